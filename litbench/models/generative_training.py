"""Training a generative reward model (paper 4.2; Zhang et al., 2024; Mahan et al., 2024).

GenRM learns the single label A or B after the question; GenRM-CoT a rationale, the verdict line and
the end of the answer. Cross-entropy on the answer's tokens only. Which story stands as A is dealt
by a seeded hash of the pair and exactly balanced, unless a rationale fixes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from litbench.config import build
from litbench.errors import ConfigError, DataError
from litbench.models.backbone import answer_logits, collate
from litbench.models.folder import prompts_of
from litbench.models.generative import GenerativeModel, make_question, require_packing
from litbench.models.layout import tokenize
from litbench.models.question import VERDICT, Question
from litbench.models.tokenised import TokenisedPairs, make_tokenised
from litbench.models.training import (
    TrainingOptions,
    is_main_process,
    kept_adapter,
    load_to_train,
    load_trained,
    tokenise_parts,
    train,
)
from litbench.raters import training_prompts_of
from litbench.records import pair_weights
from litbench.templates import assign_positions, load_template, template_files


@dataclass(kw_only=True)
class GenerativeTraining(TrainingOptions):
    """How a generative reward model is trained.

    Attributes:
        max_length: most tokens of question and answer.
        template: the question, by name or path; one with an explanation needs pairs with columns
            `rationale` and `rationale_first` (data_prep/make_rationales.py).
        answer: label or explanation: what a family of templates is to ask for.
        max_answer_tokens: room kept for the answer; pairs whose answer is longer are set aside.
            512 with an explanation when null.
    """

    max_length: int = 4_096
    template: str = "verdict_label"
    answer: Literal["label", "explanation"] | None = None
    max_answer_tokens: int | None = None

    def files(self) -> dict[str, str]:
        """The backbone, and a template of the user's own."""
        return {**super().files(), **template_files(self.template)}


@dataclass
class GenerativeObjective:
    """Cross-entropy on answers; see litbench.models.training.Objective."""

    question: Question
    padded: bool = False
    label_smoothing: float = 0.0

    def batch(self, data: TokenisedPairs, rows: np.ndarray) -> dict[str, Any]:
        """Questions with their answers; `places` are those that predict a token of an answer."""
        import torch  # noqa: PLC0415

        sequences = [data.sequences(int(row))[0] for row in rows]
        answers = data.column("answer")[rows].astype(np.int64)
        ends = np.cumsum([len(ids) for ids in sequences])
        taught = [np.arange(end - count, end) for end, count in zip(ends, answers, strict=True)]
        flat = np.concatenate(sequences).astype(np.int64)
        places = np.concatenate(taught)
        return {
            "inputs": collate(sequences, packed=True, pooling="last"),
            "places": torch.from_numpy(places - 1),
            "tokens": torch.from_numpy(flat[places]),
            "pair": torch.from_numpy(np.repeat(np.arange(len(rows)), answers)),
            "label_place": torch.from_numpy(
                np.cumsum(answers) - answers + data.column("label_at")[rows]
            ),
            "weight": torch.from_numpy(data.column("weight")[rows].astype(np.float32)),
        }

    def normaliser(self, data: TokenisedPairs, rows: np.ndarray) -> float:
        """Taught tokens of the pairs, by the pairs' weights."""
        return float((data.column("weight")[rows] * data.column("answer")[rows]).sum())

    def loss(self, model: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
        """Summed weighted loss of the answers' tokens, and whether the right label is likelier."""
        import torch  # noqa: PLC0415

        logits = answer_logits(model, batch["inputs"], batch["places"])
        log = torch.log_softmax(logits, dim=-1)
        loss = -log.gather(1, batch["tokens"][:, None])[:, 0]
        a, b = (ids[0] for ids in self.question.label_ids)
        at = batch["label_place"]
        right_token = batch["tokens"][at]
        other_token = torch.where(right_token == a, b, a)
        right_log = log[at].gather(1, right_token[:, None])[:, 0]
        other_log = log[at].gather(1, other_token[:, None])[:, 0]
        # Smoothing moves part of the weight of the label, and of no other token, to the other.
        loss = loss.index_add(0, at, self.label_smoothing * (right_log - other_log))
        right = ((right_log - other_log).detach().sign() + 1) / 2
        return (loss * batch["weight"][batch["pair"]]).sum(), right


def tokenise(
    pairs: pa.Table, tokenizer: Any, question: Question, options: GenerativeTraining
) -> TokenisedPairs:
    """Turn pairs into questions with answers, as token ids.

    Raises:
        DataError: pairs that do not fit where `overlong` is error, or no column of rationales
            where the template asks for one.
    """
    weight = pair_weights(pairs)
    ids = pairs["pair_id"].to_pylist()
    chosen_is_a: list[bool | None] = list(assign_positions(ids, options.seed))
    rationales: list[str | None] = [None] * len(ids)
    if question.explains:
        lacking = {"rationale", "rationale_first"} - set(pairs.column_names)
        if lacking:
            raise DataError(
                f"the template asks for an explanation, and the pairs have no column "
                f"{' and no column '.join(sorted(lacking))}: make them with "
                "data_prep/make_rationales.py, or take the template verdict_label"
            )
        rationales = pairs["rationale"].to_pylist()
        firsts = pairs["rationale_first"].to_pylist()
        chosen_is_a = [None if first is None else first == "chosen" for first in firsts]
    sides = [pairs[side].to_pylist() for side in ("chosen", "rejected")]
    stories = list(zip(*sides, strict=True))
    as_a = [c if is_a else r for is_a, (c, r) in zip(chosen_is_a, stories, strict=True)]
    as_b = [r if is_a else c for is_a, (c, r) in zip(chosen_is_a, stories, strict=True)]
    asked = question.ask(tokenizer, pairs["prompt"].to_pylist(), as_a, as_b)
    rows: list[dict[str, Any]] = []
    rejected_rows: list[dict[str, str]] = []
    shortened = 0
    for place, pair_id in enumerate(ids):
        is_a, rationale, cut = chosen_is_a[place], rationales[place], asked.cut[place]
        label = 0 if is_a else 1
        reason = None
        answer = [question.label_ids[label][0]]
        label_at = 0
        if question.explains:
            if is_a is None or not rationale:
                reason = "no rationale"
            else:
                text = tokenize(tokenizer, [f"{rationale.strip()}\n\n{VERDICT}"])[0]
                answer = [*text, *answer, *question.end]
                label_at = len(text)
        if len(answer) > question.max_answer_tokens:
            reason = "answer longer than max_answer_tokens"
        if cut:
            reason = options.reason_to_drop(pair_id, question.max_length) or reason
        if reason:
            rejected_rows.append({"pair_id": pair_id, "reason": reason})
            continue
        shortened += cut
        rows.append(
            {
                "pair_id": pair_id,
                "ids_0": [*asked.ids[place], *answer],
                "weight": weight[place],
                "margin": 0.0,
                "answer": len(answer),
                "label_at": label_at,
            }
        )
    return make_tokenised(rows, rejected_rows, shortened)


def train_generative_model(
    pairs: pa.Table,
    options: GenerativeTraining,
    folder: Path,
    name: str = "generative",
    *,
    prepare_only: bool = False,
) -> GenerativeModel | None:
    """Train a generative reward model on preference pairs.

    Args:
        pairs: table by the schema PAIRS; all its rows are used.
        options: see GenerativeTraining.
        folder: for checkpoints; training goes on from the last one there.
        name: the rater's name.
        prepare_only: tokenise into the cache and stop, before a launch.

    Returns:
        The trained model, not saved; its record holds options, counts and the curve. None on every
        process but the first, and when only preparing.

    Raises:
        ConfigError: options that do not fit together.
        DataError: no pairs, or no rationales where the template asks for them.
        ModelError: the backbone cannot be loaded or read, or the loss is no number or does not
            move.
        MissingExtraError: a library is not installed.
    """
    template = load_template(options.template, options.answer)
    if template.answer not in ("label", "explanation"):
        raise ConfigError(
            f"template {template.name} asks for the answer form {template.answer}, which is not "
            "trained: take one that asks for a label or an explanation"
        )
    model, tokenizer = load_to_train(pairs, options, "language")
    require_packing(model, options.backbone)
    question = make_question(
        tokenizer, model, template, options.max_length, options.max_prompt_tokens,
        options.max_answer_tokens,
    )  # fmt: skip
    how = [options.overlong, options.seed]
    data, validation = tokenise_parts(
        pairs, tokenizer, options, ["generative", question, how],
        lambda part: tokenise(part, tokenizer, question, options),
    )  # fmt: skip
    if prepare_only:
        if is_main_process():
            print(f"cached: to train on {data}; to validate on {validation}")
        return None
    trained = train(
        GenerativeObjective(question, label_smoothing=options.label_smoothing),
        model, tokenizer, options, data, validation, folder,
        head="language", chance_loss=None,
    )  # fmt: skip
    if not is_main_process():
        return None
    # Two models side by side may not fit.
    del model
    model, tokenizer = load_trained(trained.folder, options, "language")
    return GenerativeModel(
        model, tokenizer, question, name=name,
        prompts=training_prompts_of(pairs) | prompts_of(options.backbone),
        training=trained.record, adapter=kept_adapter(options, trained.folder),
    )  # fmt: skip


def train_rater(
    name: str,
    options: Mapping[str, Any],
    pairs: pa.Table,
    folder: Path,
    seed: int,
    where: str,
) -> GenerativeModel:
    """Train the kind `generative` inside cross-validation; the fold's seed joins the config's."""
    ready = build(GenerativeTraining, {"seed": seed, **options}, where)
    model = train_generative_model(pairs, ready, folder, name)
    assert model is not None
    return model
