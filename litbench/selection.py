"""The choice of a judge's template on validation pairs (paper, A.3), and how optimistic it is.

The highest agreement of several is partly luck. So beside it stands the agreement of the choice
itself: the prompts are cut into parts, the template is chosen without a part and scored on it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.artifact import Artifact, write_json
from litbench.config import nearest
from litbench.errors import ConfigError, DataError
from litbench.evaluation import Job, VerdictParts, evaluate, read_pairs
from litbench.metrics.agreement import PairFacts, pair_scores
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.metrics.leaderboard import LeaderboardRow, leaderboard, leaderboard_text, plain
from litbench.raters import RaterSpec, check_options, files_of, kinds, load_object
from litbench.records import prompt_keys, write_table
from litbench.templates import family_names
from litbench.text import clean_name, digest

# Ten leave nine tenths of the pairs to choose by.
_PARTS = 10
# Below it a template may have lost by its form of answer and not by its criteria.
_ENOUGH_COVERAGE = 0.95


@dataclass
class Selection:
    """Choose the template of judges.

    Attributes:
        pairs: pairs file to draw validation pairs from.
        split: draw from this split; never test.
        raters: names of the judges; when empty all whose kind takes a template and that name none.
        templates: names or paths; all families of templates that come with LitBench when empty.
        sample: number of pairs to draw; all where there are fewer.
        seed: draws them.
    """

    pairs: Path
    split: str = "train"
    raters: list[str] = field(default_factory=list)
    templates: list[str] = field(default_factory=list)
    sample: int = 500
    seed: int = 0


@dataclass(frozen=True)
class TemplateChoice:
    """The template of one judge.

    Attributes:
        rater: the judge.
        templates: by agreement, the chosen one first.
        rows: their figures, each compared with the chosen one.
        chosen_anew: agreement of each part of the prompts under the template that the other parts
            choose.
        same: number of parts whose choice is the template chosen from all.
        parts: number of parts.
    """

    rater: str
    templates: list[str]
    rows: list[LeaderboardRow]
    chosen_anew: Interval
    same: int
    parts: int

    @property
    def not_significant(self) -> list[str]:
        """Templates whose difference from the chosen one is not significant."""
        return [
            template
            for template, row in zip(self.templates, self.rows, strict=True)
            if row.comparison is not None and not row.comparison.is_clear
        ]


def subsample(pairs: pa.Table, size: int, seed: int) -> pa.Table:
    """Draw pairs from as many prompts as there are, in the order of the table.

    A second pair of a prompt is taken only when every prompt has given one. A smaller subsample is
    contained in a larger one of the same seed, whatever the order of the table.
    """
    by_prompt: dict[str, list[tuple[str, int]]] = {}
    for row, (key, name) in enumerate(
        zip(prompt_keys(pairs), pairs["pair_id"].to_pylist(), strict=True)
    ):
        by_prompt.setdefault(key, []).append((digest("pair", seed, name), row))
    order = sorted(
        (turn, digest("prompt", seed, key), row)
        for key, of_prompt in by_prompt.items()
        for turn, (_, row) in enumerate(sorted(of_prompt))
    )
    return pairs.take(pa.array(sorted(row for *_, row in order[:size]), pa.int64()))


def best_of(credits: np.ndarray) -> int:
    """The template with the highest mean; the first one, where several have it.

    Args:
        credits: agreement by template and pair, 0 to 1; shape (templates, n).
    """
    # Equal sums can differ by rounding.
    return int(np.argmax(credits.mean(axis=1).round(12)))


def choose_anew(credits: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Choose without a part of the prompts, and score the choice on it.

    Args:
        credits: agreement by template and pair, 0 to 1; shape (templates, n).
        clusters: prompt of each pair, two prompts or more; shape (n,).

    Returns:
        Agreement of each pair under the template that the other parts choose, shape (n,); and the
        choices, by part.
    """
    order = sorted(set(clusters.tolist()), key=lambda key: digest("part", key))
    count = min(_PARTS, len(order))
    part_of = {key: place % count for place, key in enumerate(order)}
    parts = np.array([part_of[key] for key in clusters.tolist()])
    credit, choices = np.empty(credits.shape[1]), []
    for part in range(count):
        inside = parts == part
        choices.append(best_of(credits[:, ~inside]))
        credit[inside] = credits[choices[-1], inside]
    return credit, choices


def choose_template(
    rater: str, templates: Mapping[str, str], verdicts: pa.Table, pairs: pa.Table
) -> TemplateChoice:
    """Choose the template with the highest agreement.

    Args:
        rater: the judge.
        templates: by the name under which the judge with this template stands in `verdicts`.
        verdicts: on the validation pairs, table by the schema VERDICTS.
        pairs: the validation pairs, of two prompts or more.
    """
    scores = {one.rater: one for one in pair_scores(verdicts, pairs)}
    credits = np.stack([scores[name].credit for name in templates])
    clusters = np.asarray(PairFacts.of(pairs).clusters)
    names, best, means = list(templates), best_of(credits), credits.mean(axis=1).round(12)
    order = sorted(range(len(names)), key=lambda place: (-means[place], place))
    rows = {row.rater: row for row in leaderboard(verdicts, pairs, names[best])}
    anew, choices = choose_anew(credits, clusters)
    return TemplateChoice(
        rater,
        [templates[names[place]] for place in order],
        [rows[names[place]] for place in order],
        jackknife_interval(anew, clusters),
        choices.count(best),
        len(choices),
    )


def choice_json(choice: TemplateChoice) -> dict[str, Any]:
    """A choice as JSON can hold it."""
    rows = zip(choice.templates, choice.rows, strict=True)
    return {
        "rater": choice.rater,
        "template": choice.templates[0],
        "agreement": plain(choice.rows[0].agreement),
        "not_significant": choice.not_significant,
        "chosen_anew": plain(choice.chosen_anew),
        "parts": choice.parts,
        "parts_with_the_same_choice": choice.same,
        "templates": [{"template": template, **plain(row)} for template, row in rows],
    }


def choice_text(choice: TemplateChoice) -> str:
    """The figures for a terminal: what was chosen, and how much that says."""
    name, agreement = clean_name(choice.rater), choice.rows[0].agreement
    others, unclear = len(choice.templates) - 1, choice.not_significant
    lines = [
        leaderboard_text(choice.rows),
        "",
        f"{name}: template {choice.templates[0]}, agreement {agreement} on the pairs that it was "
        "chosen on, which is optimistic; chosen on the other prompts and scored on those left out "
        f"{choice.chosen_anew} ({choice.same} of {choice.parts} times the same template)",
    ]
    if unclear:
        lines.append(f"not significantly better than {len(unclear)} of the {others} others")
    poor = [
        f"{template} {row.coverage:.3f}"
        for template, row in zip(choice.templates, choice.rows, strict=True)
        if row.coverage < _ENOUGH_COVERAGE
    ]
    if poor:
        lines.append(
            f"low coverage: {', '.join(poor)}; a pair without a verdict counts one half, so this "
            "also compares how often the judge keeps to the form of the answer"
        )
    return "\n".join(lines)


# Choosing ------------------------------------------------------------------------------------


def list_candidates(select: Selection, specs: Sequence[RaterSpec]) -> dict[str, list[RaterSpec]]:
    """Every judge whose template is to be chosen, with each template.

    Returns:
        By judge, entries named "judge@template".

    Raises:
        ConfigError: fewer than two templates, no such judge, or options that do not fit.
    """
    templates = select.templates or family_names()
    if len(set(templates)) < max(2, len(templates)):
        raise ConfigError(f"select.templates is {templates}: give two or more, each once")
    names = [spec.name for spec in specs]
    for name in select.raters:
        if name not in names:
            raise ConfigError(f"select.raters: no rater '{name}': {nearest(name, names)}")
    found: dict[str, list[RaterSpec]] = {}
    for spec in specs:
        options = {one.name for one in fields(load_object(kinds()[spec.kind].options))}
        is_tried = spec.name in (select.raters or names)
        if not is_tried or "template" not in options or "template" in spec.options:
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
        ConfigError: the split is test, or the sample is too small.
        DataError: some prompts are in both, or there is only one prompt.
    """
    if select.split.strip().casefold() == "test":
        raise ConfigError("select.split is test: choose templates on train or validation pairs")
    if select.sample < 2:
        raise ConfigError(f"select.sample is {select.sample}: give at least 2 pairs, better 500")
    pairs = read_pairs(select.pairs, None, select.split).headline
    shared = set(prompt_keys(pairs)) & set(judged_prompts)
    if shared:
        raise DataError(
            f"{select.pairs}, split {select.split}: {len(shared)} prompts are also in the pairs to "
            "judge, so that the choice would have seen them: take them out of one of the two"
        )
    sample = subsample(pairs, select.sample, select.seed)
    if len(set(prompt_keys(sample))) < 2:
        raise DataError(f"{select.pairs}: all pairs of split {select.split} have one prompt")
    return sample


def choose_templates(
    select: Selection,
    candidates: Mapping[str, Sequence[RaterSpec]],
    validation: pa.Table,
    folder: Path,
    program: str,
) -> dict[str, RaterSpec]:
    """Judge the validation pairs with every template, and keep the best of each judge.

    Writes `verdicts.parquet`, `selection.json`, `selection.txt` and `manifest.json`, and prints.

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
    artifact = Artifact(
        folder,
        program=program,
        config=select,
        inputs={"pairs": select.pairs},
        models=files_of(specs),
    )
    depends_on = [artifact.digests["pairs"], validation["pair_id"].to_pylist()]
    parts = VerdictParts(folder / "parts")
    jobs = [
        Job(spec, spec.name, lambda: validation, depends_on, work=validation.num_rows)
        for spec in specs
    ]
    verdicts = pa.concat_tables(table for _, table, _ in evaluate(jobs, parts))
    chosen, choices = {}, []
    for judge, of_judge in candidates.items():
        names = {spec.name: str(spec.options["template"]) for spec in of_judge}
        own = verdicts.filter(pa.array([name in names for name in verdicts["rater"].to_pylist()]))
        choice = choose_template(judge, names, own, validation)
        best = next(s for s in of_judge if s.options["template"] == choice.templates[0])
        chosen[judge] = replace(best, name=judge)
        choices.append(choice)
    text = "\n\n".join(map(choice_text, choices)) + "\n"
    content = [choice_json(choice) for choice in choices]
    artifact.write("verdicts.parquet", lambda path: write_table(verdicts, path))
    artifact.write("selection.json", lambda path: write_json(content, path))
    artifact.write("selection.txt", lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = {"pairs": validation.num_rows, "prompts": len(set(prompt_keys(validation)))}
    artifact.finish()
    parts.discard_others()
    print(text)
    return chosen
