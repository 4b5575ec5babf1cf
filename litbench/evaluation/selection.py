"""Select a judge's template on validation pairs (paper, A.3)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc

from litbench.config import Input
from litbench.entries import RaterSpec, files_of
from litbench.errors import ConfigError, DataError
from litbench.evaluation.loop import Job, evaluate, print_estimates
from litbench.metrics.leaderboard import leaderboard, plain
from litbench.metrics.printing import leaderboard_text
from litbench.records import prompt_keys
from litbench.sources.evaluation_pairs import read_pairs
from litbench.store import Artifact, Cache, write_json
from litbench.tables import write_table
from litbench.templates import family_names
from litbench.text import clean_name, digest


@dataclass
class Selection:
    """Select a template for every judge whose entry names none.

    Attributes:
        pairs: pairs file to draw validation pairs from.
        split: split to draw from; must not be test.
        templates: names or paths; if empty, all template families of LitBench.
        sample: maximum number of pairs to draw.
    """

    pairs: Annotated[Path, Input]
    split: str = "train"
    templates: list[str] = field(default_factory=list)
    sample: int = 500


def subsample(pairs: pa.Table, size: int) -> pa.Table:
    """Draw pairs from as many prompts as possible; the result keeps the order of the table.

    A prompt gives a second pair only after every prompt has given one. A smaller subsample is
    contained in a larger one. The order of the table has no effect on the choice.
    """
    by_prompt: dict[str, list[tuple[str, int]]] = {}
    for row, (key, name) in enumerate(
        zip(prompt_keys(pairs), pairs["pair_id"].to_pylist(), strict=True)
    ):
        by_prompt.setdefault(key, []).append((digest("pair", 0, name), row))
    order = sorted(
        (rank, digest("prompt", 0, key), row)
        for key, of_prompt in by_prompt.items()
        for rank, (_, row) in enumerate(sorted(of_prompt))
    )
    return pairs.take(pa.array(sorted(row for *_, row in order[:size]), pa.int64()))


def list_candidates(select: Selection, specs: Sequence[RaterSpec]) -> dict[str, list[RaterSpec]]:
    """Return, for every judge without a template, an entry per template, "judge@template"."""
    templates = select.templates or family_names()
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


def read_validation(select: Selection, judged_prompts: Collection[str]) -> pa.Table:
    """Draw the validation pairs; a test split or a prompt of `judged_prompts` is an error."""
    if select.split.strip().casefold() == "test":
        raise ConfigError("select.split is test: choose templates on train or validation pairs")
    pairs = read_pairs(select.pairs, None, select.split).headline
    where = f"{select.pairs}, split {select.split}"
    if shared := set(prompt_keys(pairs)) & set(judged_prompts):
        raise DataError(
            f"{where}: {len(shared)} prompts are also in the pairs to judge, which would bias the "
            "selection: remove them from one of the two"
        )
    sample = subsample(pairs, select.sample)
    if len(set(prompt_keys(sample))) < 2:
        raise DataError(
            f"{where}: the {sample.num_rows} pairs drawn have fewer than two prompts: raise "
            "select.sample or name another file"
        )
    return sample


def select_templates(
    select: Selection,
    specs: Sequence[RaterSpec],
    judged_prompts: Collection[str],
    folder: Path,
    *,
    program: str,
    dry_run: bool,
) -> dict[str, RaterSpec]:
    """Judge validation pairs with every template, and select the best template of each judge.

    Writes `verdicts.parquet`, `selection.json` and `manifest.json` into `folder`, and prints a
    leaderboard per judge. A dry run estimates the cost and takes the first template.

    Returns:
        The entries of the judges, with their selected templates, by name.
    """
    candidates = list_candidates(select, specs)
    validation = read_validation(select, judged_prompts)
    every = [spec for of_judge in candidates.values() for spec in of_judge]
    chosen = {judge: replace(of[0], name=judge) for judge, of in candidates.items()}
    if dry_run:
        print("select:")
        print_estimates(every, validation, folder)
        return chosen
    artifact = Artifact(
        folder,
        program=program,
        config=select,
        models=files_of(every),
    )
    depends_on = [artifact.digests["pairs"], validation["pair_id"].to_pylist()]
    jobs = [
        Job(spec, spec.name, lambda: validation, depends_on, work=validation.num_rows)
        for spec in every
    ]
    parts = Cache(folder / "parts")
    verdicts = pa.concat_tables(table for _, table, _ in evaluate(jobs, parts))
    content = []
    for judge, of_judge in candidates.items():
        names = [spec.name for spec in of_judge]
        own = verdicts.filter(pc.is_in(verdicts["rater"], pa.array(names, pa.large_string())))
        best_name = leaderboard(own, validation, names[0])[0].rater
        rows = leaderboard(own, validation, best_name)
        best = of_judge[names.index(best_name)]
        template = best.given["template"]
        print(f"{leaderboard_text(rows)}\n\n{clean_name(judge)}: template {template}\n")
        content.append({"rater": judge, "template": template, "templates": plain(rows)})
        chosen[judge] = replace(best, name=judge)
    artifact.write("verdicts.parquet", lambda path: write_table(verdicts, path))
    artifact.write("selection.json", lambda path: write_json(content, path))
    artifact.counts = {"pairs": validation.num_rows, "prompts": len(set(prompt_keys(validation)))}
    artifact.finish()
    parts.discard_unused()
    return chosen
