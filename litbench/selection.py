"""The choice of a judge's template on validation pairs (paper, A.3), and how optimistic it is."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.artifact import Artifact, write_json
from litbench.errors import ConfigError, DataError
from litbench.evaluation import Job, VerdictParts, evaluate, read_pairs
from litbench.metrics.agreement import PairFacts, pair_scores
from litbench.metrics.intervals import jackknife_interval
from litbench.metrics.leaderboard import leaderboard, leaderboard_json, plain
from litbench.metrics.printing import leaderboard_text
from litbench.raters import RaterSpec, check_options, files_of, kinds, load_object
from litbench.records import prompt_keys
from litbench.tables import write_table
from litbench.templates import family_names
from litbench.text import clean_name, digest

_PARTS = 10


@dataclass
class Selection:
    """Choose the template of every judge whose entry names none.

    Attributes:
        pairs: pairs file to draw validation pairs from.
        split: draw from this split; never test.
        templates: names or paths; all families of templates that come with LitBench when empty.
        sample: number of pairs to draw; all where there are fewer.
    """

    pairs: Path
    split: str = "train"
    templates: list[str] = field(default_factory=list)
    sample: int = 500


def subsample(pairs: pa.Table, size: int) -> pa.Table:
    """Draw pairs from as many prompts as there are, in the order of the table.

    A second pair of a prompt is taken only when every prompt has given one. A smaller subsample is
    contained in a larger one, whatever the order of the table.
    """
    by_prompt: dict[str, list[tuple[str, int]]] = {}
    for row, (key, name) in enumerate(
        zip(prompt_keys(pairs), pairs["pair_id"].to_pylist(), strict=True)
    ):
        by_prompt.setdefault(key, []).append((digest("pair", 0, name), row))
    order = sorted(
        (turn, digest("prompt", 0, key), row)
        for key, of_prompt in by_prompt.items()
        for turn, (_, row) in enumerate(sorted(of_prompt))
    )
    return pairs.take(pa.array(sorted(row for *_, row in order[:size]), pa.int64()))


def choose_anew(credits: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Score the choice itself: cut the prompts into parts, choose without one and score on it.

    Args:
        credits: agreement by template and pair, 0 to 1; shape (templates, n).
        clusters: prompt of each pair, two prompts or more; shape (n,).

    Returns:
        Agreement of each pair under the template that the other parts choose; shape (n,).
    """
    order = sorted(set(clusters.tolist()), key=lambda key: digest("part", key))
    part_of = {key: place % _PARTS for place, key in enumerate(order)}
    parts = np.array([part_of[key] for key in clusters.tolist()])
    credit = np.empty(credits.shape[1])
    for part in set(part_of.values()):
        inside = parts == part
        credit[inside] = credits[_best_of(credits[:, ~inside]), inside]
    return credit


def _best_of(credits: np.ndarray) -> int:
    # Equal sums can differ by rounding; of equal templates the first one is taken.
    return int(np.argmax(credits.mean(axis=1).round(12)))


def list_candidates(select: Selection, specs: Sequence[RaterSpec]) -> dict[str, list[RaterSpec]]:
    """Every judge whose template is to be chosen, with each template.

    Returns:
        By judge, entries named "judge@template".

    Raises:
        ConfigError: fewer than two templates, no judge, or options that do not fit.
    """
    templates = select.templates or family_names()
    if len(set(templates)) < max(2, len(templates)):
        raise ConfigError(f"select.templates is {templates}: give two or more, each once")
    found: dict[str, list[RaterSpec]] = {}
    for spec in specs:
        options = {one.name for one in fields(load_object(kinds()[spec.kind].options))}
        if "template" not in options or "template" in spec.options:
            continue
        for template in templates:
            options_with = {**spec.options, "template": template}
            candidate = replace(spec, name=f"{spec.name}@{template}", options=options_with)
            check_options(candidate, "raters")
            found.setdefault(spec.name, []).append(candidate)
    if not found:
        raise ConfigError(
            "select: every rater has a template, or its kind takes none: leave out `template` of "
            "a judge, or leave out select"
        )
    return found


def read_validation(select: Selection, judged_prompts: Collection[str]) -> pa.Table:
    """Draw the validation pairs.

    Args:
        select: from which pairs.
        judged_prompts: `prompt_key` of the prompts that the raters are to be judged on.

    Raises:
        ConfigError: the split is test.
        DataError: some prompts are in both, or fewer than two are drawn.
    """
    if select.split.strip().casefold() == "test":
        raise ConfigError("select.split is test: choose templates on train or validation pairs")
    pairs = read_pairs(select.pairs, None, select.split).headline
    shared = set(prompt_keys(pairs)) & set(judged_prompts)
    if shared:
        raise DataError(
            f"{select.pairs}, split {select.split}: {len(shared)} prompts are also in the pairs to "
            "judge, so that the choice would have seen them: take them out of one of the two"
        )
    sample = subsample(pairs, select.sample)
    if len(set(prompt_keys(sample))) < 2:
        raise DataError(
            f"{select.pairs}, split {select.split}: {sample.num_rows} pairs are drawn, not of two "
            "prompts or more: raise select.sample or name another file"
        )
    return sample


def choose_templates(
    select: Selection,
    candidates: Mapping[str, Sequence[RaterSpec]],
    validation: pa.Table,
    folder: Path,
    program: str,
) -> dict[str, RaterSpec]:
    """Judge the validation pairs with every template, and keep the best of each judge.

    Writes `verdicts.parquet`, `selection.json` and `manifest.json` into `folder`, and prints.

    Args:
        select: see Selection.
        candidates: of `list_candidates`.
        validation: of `read_validation`.
        folder: to write.
        program: path of the program.

    Returns:
        Each judge's entry with its template.
    """
    specs = [spec for of_judge in candidates.values() for spec in of_judge]
    inputs, models = {"pairs": select.pairs}, files_of(specs)
    artifact = Artifact(folder, program=program, config=select, inputs=inputs, models=models)
    depends_on = [artifact.digests["pairs"], validation["pair_id"].to_pylist()]
    parts = VerdictParts(folder / "parts")
    jobs = [
        Job(spec, spec.name, lambda: validation, depends_on, work=validation.num_rows)
        for spec in specs
    ]
    verdicts = pa.concat_tables(table for _, table, _ in evaluate(jobs, parts))
    credit_of = {one.rater: one.credit for one in pair_scores(verdicts, validation)}
    clusters = PairFacts.of(validation).clusters
    chosen, content = {}, []
    for judge, of_judge in candidates.items():
        credits = np.stack([credit_of[spec.name] for spec in of_judge])
        best = of_judge[_best_of(credits)]
        names = pa.array([spec.name for spec in of_judge], pa.large_string())
        own = verdicts.filter(pc.is_in(verdicts["rater"], value_set=names))
        rows = leaderboard(own, validation, best.name)
        anew = jackknife_interval(choose_anew(credits, clusters), clusters)
        template = best.options["template"]
        print(
            f"{leaderboard_text(rows)}\n\n{clean_name(judge)}: template {template}; its agreement "
            f"is optimistic, chosen on other prompts it is {anew}\n"
        )
        content.append(
            {
                "rater": judge,
                "template": template,
                "chosen_anew": plain(anew),
                "templates": leaderboard_json(rows),
            }
        )
        chosen[judge] = replace(best, name=judge)
    artifact.write("verdicts.parquet", lambda path: write_table(verdicts, path))
    artifact.write("selection.json", lambda path: write_json(content, path))
    artifact.counts = {"pairs": validation.num_rows, "prompts": len(set(clusters.tolist()))}
    artifact.finish()
    parts.discard_others()
    return chosen
