"""Select a judge's template on validation pairs (paper, A.3)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from litbench.data.records import prompt_keys
from litbench.evaluation.results import Evaluation
from litbench.raters.entries import RaterSpec
from litbench.raters.templates.template import family_names
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.terminal import clean_name


@dataclass
class Selection:
    """Select a template for every judge whose entry names none.

    Attributes:
        pairs: pairs file to draw validation pairs from.
        split: split to draw from; must not be test.
        templates: names, files, or folders of files; if empty, all template families of LitBench.
        sample: maximum number of pairs to draw.
    """

    pairs: Path
    split: str = "train"
    templates: list[str] = field(default_factory=list)
    sample: int = 500


def list_candidates(select: Selection, specs: Sequence[RaterSpec]) -> dict[str, list[RaterSpec]]:
    """Return, for every judge without a template, an entry per template, "judge@template"."""
    if select.split.strip().casefold() == "test":
        raise ConfigError("select.split is test: choose templates on train or validation pairs")
    templates = [
        str(path)
        for name in select.templates or family_names()
        for path in (sorted(Path(name).glob("*.y*ml")) if Path(name).is_dir() else [name])
    ]
    if len(set(templates)) < max(2, len(templates)):
        raise ConfigError(f"select.templates is {templates}: give two or more, each once")
    candidates: dict[str, list[RaterSpec]] = {}
    for spec in specs:
        if not hasattr(spec.options, "template") or "template" in spec.given:
            continue
        candidates[spec.name] = [
            replace(spec, name=f"{spec.name}@{name}", given={**spec.given, "template": name})
            for name in templates
        ]
    if not candidates:
        raise ConfigError(
            "select: every rater has a template, or its kind takes none: remove `template` from "
            "a judge, or remove select"
        )
    return candidates


def check_validation(select: Selection, pairs: pa.Table, judged_prompts: Collection[str]) -> None:
    """Raise a DataError for prompts of the pairs to judge, or fewer than two prompts."""
    where = f"{select.pairs}, split {select.split}"
    prompts = set(prompt_keys(pairs))
    if shared := prompts & set(judged_prompts):
        raise DataError(
            f"{where}: {len(shared)} prompts are also in the pairs to judge, which would bias the "
            "selection: remove them from one of the two"
        )
    if min(len(prompts), select.sample) < 2:
        raise DataError(
            f"{where}: {pairs.num_rows} pairs of {len(prompts)} prompts, of which "
            f"{select.sample} are drawn: raise select.sample or name another file"
        )


def best_templates(
    evaluation: Evaluation, candidates: Mapping[str, Sequence[RaterSpec]]
) -> dict[str, RaterSpec]:
    """Return the entry of each judge that agrees most often with the labels."""
    chosen = {}
    for judge, of_judge in candidates.items():
        entries = {spec.name: spec for spec in of_judge}
        best = next(row.rater for row in evaluation.rows if row.rater in entries)
        chosen[judge] = entries[best]
        print(f"{clean_name(judge)}: template {entries[best].given['template']}\n")
    return chosen
