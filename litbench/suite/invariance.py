"""Invariance: does a judge keep its verdict if a question changes in form but not in content?

Some questions of a run are asked again with another instruction, with other names of the sides,
without Markdown in the stories, and with white space behind them, each at least twice. Changes are
counted beyond those that repeats of each form explain (`litbench.suite.repeats.distances`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.records import SIDES, connected_prompts
from litbench.evaluation.results import Evaluation
from litbench.judges.answers import Answer
from litbench.judges.judge import Judge, JudgeOptions
from litbench.metrics.comparisons import difference_interval, holm
from litbench.metrics.intervals import Interval, clustered_mean, jackknife_interval
from litbench.metrics.leaderboard import plain
from litbench.raters.interface import Estimate, blind, judge_pairs
from litbench.raters.templates.parser import Verdict
from litbench.raters.templates.template import Template
from litbench.runs.config import build
from litbench.suite.passport import InvarianceFigures, PassportInterval
from litbench.suite.repeats import distances, votes_of

ORIGINAL = "as it was asked"
_INSTRUCTIONS = ("writerly", "minimal", "alternative")
_NAMES = (("1", "2"), ("X", "Y"))
# The names of the sides in a question of the frame.
_SIDE = re.compile(r'\bA or B\b|(?<=STORY )[AB]\b|(?<=: )[AB](?=$| or )|(?<=")[AB](?=")', re.M)
_MARKDOWN = re.compile(r"^ {0,3}(?:#{1,6} +|[-*+] +|> ?)|\*{1,3}|(?<!\w)_+|_+(?!\w)|`+", re.M)
# Answers to each question in each form, and the number of forms with the original one.
MIN_SAMPLES, MAX_FORMS = 2, 7


@dataclass(frozen=True)
class NamedTemplate(Template):
    """A template whose sides have other names than A and B."""

    names: tuple[str, str] = ("A", "B")

    @classmethod
    def of(cls, template: Template, names: tuple[str, str]) -> "NamedTemplate":
        """The template with these names."""
        renamed = cls(**vars(template), names=names)
        return replace(renamed, pieces=tuple(map(renamed._named, template.pieces)))

    def _named(self, text: str) -> str:
        by_side = dict(zip("AB", self.names, strict=True))
        return _SIDE.sub(lambda match: re.sub("[AB]", lambda m: by_side[m[0]], match[0]), text)

    def repair(self, code: str | None, n_stories: int = 2) -> str:
        return self._named(super().repair(code, n_stories))

    def is_read(self, answer: str, code: str | None, n_stories: int = 2) -> bool:
        return super().is_read(self.restored(answer), code, n_stories)

    def restored(self, answer: str) -> str:
        """An answer with A and B where it states the verdict."""
        sides = dict(zip(self.names, "AB", strict=True))
        name = rf"(?<!\w)(?:{'|'.join(self.names)})(?!\w)"

        def restore(text: str) -> str:
            return re.sub(name, lambda match: sides[match[0]], text)

        if answer.strip() in self.names:
            return restore(answer)
        return re.sub(r"preferred.*", lambda match: restore(match[0]), answer, flags=re.I)


class NamedJudge(Judge):
    """A judge that is asked with other names of the sides."""

    template: NamedTemplate

    def read(
        self, answer: Answer, code: str | None = None, letters: str = "AB"
    ) -> tuple[Verdict, str]:
        restored = replace(answer, text=self.template.restored(answer.text))
        return super().read(restored, code, letters)


def without_markdown(text: str) -> str:
    """A text without headings, lists, emphasis and code marks."""
    return _MARKDOWN.sub("", text)


def judge_options(
    evaluation: Evaluation, rater: str, max_cost_usd: float | None
) -> JudgeOptions | None:
    """The options of a judge of an evaluation, with another cap; None for other kinds of raters."""
    entry = dict(evaluation.manifest["config"]["raters"][rater])
    if entry.pop("kind") != "judge":
        return None
    if max_cost_usd is not None:
        entry["traffic"] = {**entry.get("traffic", {}), "max_cost_usd": max_cost_usd}
    return build(JudgeOptions, entry, f"raters.{rater}")


def forms_of(
    name: str, options: JudgeOptions, pairs: pa.Table
) -> dict[str, tuple[Judge, pa.Table]]:
    """The judges and pairs of all forms by name; pairs that a form does not change are left out.

    There are none if the judge is asked about all answers of an item.
    """
    options = replace(options, samples=max(options.samples, MIN_SAMPLES), batch=None)
    judge = Judge(name, options)
    if judge.template.takes_list:
        return {}
    forms = {ORIGINAL: (judge, pairs)}
    for template in [each for each in _INSTRUCTIONS if each != options.template][:2]:
        another = Judge(name, replace(options, template=template))
        forms[f"instruction {template}"] = (another, pairs)
    for names in _NAMES:
        named = NamedJudge(name, options)
        named.template = NamedTemplate.of(judge.template, names)
        if named.template.pieces != judge.template.pieces:
            forms[f"sides {names[0]} and {names[1]}"] = (named, pairs)
    forms["stories without Markdown"] = (judge, _changed(pairs, without_markdown))
    forms["stories with white space"] = (judge, _changed(pairs, "{} \n\n".format))
    return {form: (asked, table) for form, (asked, table) in forms.items() if table.num_rows}


def _changed(pairs: pa.Table, change: Callable[[str], str]) -> pa.Table:
    """The pairs with changed texts."""
    table = pairs
    for side in SIDES:
        texts = pa.array([change(text) for text in pairs[side].to_pylist()], pa.large_string())
        table = table.set_column(table.column_names.index(side), side, texts)
    is_changed = [pc.not_equal(table[side], pairs[side].cast(pa.large_string())) for side in SIDES]
    return table.filter(pc.or_(*is_changed))


def estimate_forms(forms: Mapping[str, tuple[Judge, pa.Table]], folder: Path) -> list[Estimate]:
    """Estimate the cost of all forms; `folder` has stored answers."""
    estimates = []
    for form, (judge, pairs) in forms.items():
        judge.work_in(folder)
        estimates += [replace(row, rater=form) for row in judge.estimate(blind(pairs)[0])]
    return estimates


def ask_forms(forms: Mapping[str, tuple[Judge, pa.Table]], folder: Path) -> list[InvarianceFigures]:
    """Ask all forms and compare them with the original one.

    Args:
        forms: see `forms_of`.
        folder: folder of stored answers.

    Raises:
        ConfigError: a limit is reached.
        ModelError: see `litbench.judges.session.run_sessions`.
    """
    votes: dict[str, np.ndarray] = {}
    for form, (judge, pairs) in forms.items():
        judge.work_in(folder)
        answered = votes_of(judge_pairs(judge, pairs), pairs["pair_id"].to_pylist(), judge.name)
        assert answered is not None
        votes[form] = answered
    original, pairs = votes.pop(ORIGINAL), forms[ORIGINAL][1]
    number = {pair: index for index, pair in enumerate(pairs["pair_id"].to_pylist())}
    prompts = np.array(connected_prompts(pairs))
    results = []
    for form, answered in votes.items():
        rows = [number[pair] for pair in forms[form][1]["pair_id"].to_pylist()]
        results.append(_compare(original[rows], answered, prompts[rows]))
    adjusted = holm([p for *_, p in results])
    return [
        InvarianceFigures(
            form, PassportInterval.of(changed), PassportInterval.of(beyond), plain(float(p))
        )
        for form, (changed, beyond, _), p in zip(votes, results, adjusted, strict=True)
    ]


def _compare(
    original: np.ndarray, answered: np.ndarray, prompts: Sequence[str] | np.ndarray
) -> tuple[Interval, Interval, float]:
    """How often votes change, how often beyond repeats, and the p value; shapes (n, 2, samples)."""
    groups = (votes.reshape(-1, votes.shape[2]) for votes in (original, answered))
    between, within = distances(*groups)
    is_known, clusters = np.isfinite(between - within), np.repeat(prompts, 2)
    excess = clustered_mean((between - within)[is_known], clusters[is_known])
    changed = jackknife_interval(between[is_known], clusters[is_known])
    return changed, *difference_interval(excess)
