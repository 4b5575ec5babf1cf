"""data_report.html: what a pairs file holds and how it came to hold that, on one page.

The sibling of page.py, which is about raters (see document.py for what they share). Numbers come
from litbench.report.pair_profile and the manifest of the program that wrote the pairs; what a
source does not have is left out with a line that says so.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from litbench.artifact import without_runtime_keys
from litbench.errors import DataError
from litbench.metrics.intervals import Interval
from litbench.report import figures
from litbench.report.document import Figure, most_per_unit, render
from litbench.report.pair_profile import SIDES, Lengths, Profile, SplitProfile, ValueCounts

# Fein et al. (2025), 3.2 and 3.3; the share is before pruning, of all pairs.
PAPER_SHARE_LONGER = 0.6525
_PAPER = {
    "pairs": ("43,827", "2,480"),
    "stories": ("50,309", "3,543"),
    "mean words": ("like test", "550"),
    "posted": ("before 2023, most 2014 to 2022", "from 2023 on"),
    "score of chosen: least / median / most": ("like test", "14 / – / –"),
    "score of rejected: least / median / most": ("like test", "many near 10, the minimum"),
}
# The buckets of the paper, for pairs that were not pruned here.
_BUCKETS = 100
_DRAWN_SPLITS = 4
_EXAMPLES_PER_STEP = 5
_LONGEST_EXAMPLE = 600
_CALENDAR_STEPS = 48
# 1900 and 2100 as days since 1970: a time beyond is a fault of the source and drawn at the edge.
_CALENDAR = (-25_567, 47_482)
# Shown in their own sections.
_TOLD_ELSEWHERE = ("funnel", "lengths", "stories", "leakage", "digest")
# What keys of a manifest's counts mean, where they do not say so themselves.
_NAMES = {"not_selected": "left out by the config's own condition"}


@dataclass(frozen=True)
class Removed:
    """A story, pair or passage that a step removed.

    Attributes:
        name: story_id or pair_id.
        text: what went, cut short.
        about: facts in words.
    """

    name: str
    text: str
    about: str


@dataclass(frozen=True)
class Step:
    """A step with examples of what it removed."""

    title: str
    counted: str
    examples: list[Removed]


@dataclass(frozen=True)
class LengthRow:
    """A row of the table about length and choice.

    Attributes:
        split: its name, or "all".
        stage: before or after length symmetry; empty where there was none.
        lengths: the counts.
        shown: the interval that is drawn; without bounds where pruning has fixed the mean.
        fixed: whether it has.
        imbalance: the most by which longer and shorter differ in one bucket; None of all splits
            together, whose buckets differ.
    """

    split: str
    stage: str
    lengths: Lengths
    shown: Interval
    fixed: bool
    imbalance: int | None


def read_examples(path: Path) -> dict[str, list[Removed]]:
    """Read the examples a program left, at most five of each step.

    Args:
        path: examples.jsonl, see litbench.curation.funnel.Examples.

    Raises:
        DataError: a row is no JSON object with the texts `step`, `name`, `text` and `about`.
    """
    found: dict[str, list[Removed]] = {}
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                step, name, text, about = (row[key] for key in ("step", "name", "text", "about"))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise DataError(
                    f"{path}: row {number} is no example ({type(error).__name__}: {error}): make "
                    "the product again"
                ) from error
            kept = found.setdefault(str(step), [])
            if len(kept) < _EXAMPLES_PER_STEP:
                kept.append(Removed(*(_clipped(str(part)) for part in (name, text, about))))
    return found


def _clipped(text: str) -> str:
    return text if len(text) < _LONGEST_EXAMPLE else text[:_LONGEST_EXAMPLE] + " […]"


def check_funnel(funnel: Sequence[Mapping[str, Any]], where: str) -> None:
    """Check that every step starts from what the one before it kept, within a unit.

    Args:
        funnel: steps as a manifest has them.
        where: named in the message.

    Raises:
        DataError: it does not add up.
    """
    for earlier, step in itertools.pairwise(funnel):
        total = step["kept"] + step["removed"]
        if earlier["unit"] == step["unit"] and total != earlier["kept"]:
            raise DataError(
                f"{where}: counts.funnel, step {step['step']}: {step['kept']:,} kept and "
                f"{step['removed']:,} removed are not the {earlier['kept']:,} {step['unit']} that "
                f"{earlier['step']} kept: make the pairs again"
            )


def flatten(counts: Mapping[str, Any], skip: Sequence[str] = ()) -> list[tuple[str, Any]]:
    """Counts in a manifest as rows of a table: (what, how many); lists are left out.

    Inner keys, such as reasons, stay as the program wrote them; times are written as dates.
    """
    rows: list[tuple[str, Any]] = []
    for key, value in counts.items():
        if key not in skip:
            label = _NAMES.get(key, str(key).replace("_", " "))
            rows += [(label + path, n) for path, n in _leaves("", str(key), value)]
    return rows


def _leaves(path: str, key: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        inner = [_leaves(f"{path}: {name}", str(name), n) for name, n in value.items()]
        return list(itertools.chain.from_iterable(inner))
    if isinstance(value, list):
        return []
    if key.endswith("_utc") and isinstance(value, int):
        return [(path, str(np.datetime64(value, "s")))]
    return [(path, value)]


def leakage_rows(leakage: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What splits share, as rows of a table: kind, both splits, how many, pairs of either split.

    Args:
        leakage: the counts of litbench.curation.leakage.LeakageReport.
    """
    return [
        (
            str(row["kind"]).replace("_", "-"),
            f"{row['split_a']} and {row['split_b']}",
            *(f"{row[name]:,}" for name in ("shared", "pairs_a", "pairs_b")),
        )
        for row in leakage.get("shared", [])
    ]


def _length_rows(profile: Profile, buckets: int) -> list[LengthRow]:
    names: list[str | None] = [split.name for split in profile.splits]
    if len(names) > 1:
        names.append(None)
    rows = []
    for name in names:
        stages = [("before", profile.before.get(name)), ("after", profile.after[name])]
        wider = profile.before.get(name, profile.after[name])
        for stage, lengths in stages:
            if lengths is None:
                continue
            imbalance = None
            if name is not None:
                counts = lengths.buckets(_widest(wider.difference), buckets)
                imbalance = int(np.abs(counts - counts[::-1]).max())
            fixed = bool(profile.before) and stage == "after" and lengths.longer == lengths.shorter
            shown = lengths.longer_wins
            if fixed:
                shown = replace(shown, low=math.nan, high=math.nan)
            label = stage if profile.before else ""
            rows.append(LengthRow(name or "all", label, lengths, shown, fixed, imbalance))
    return rows


def _widest(difference: ValueCounts) -> int:
    return max(abs(difference.least), abs(difference.most), 1)


def _month(day: int) -> str:
    return str(np.datetime64(day, "D").astype("datetime64[M]"))


def _three(values: ValueCounts) -> str:
    """Least, median and most."""
    return f"{values.least:,} / {values.quantile(0.5):,} / {values.most:,}" if values.n else "–"


def _glance(splits: Sequence[SplitProfile]) -> list[tuple[str, list[str], tuple[str, str]]]:
    """The rows of the table of splits: what, per split, per split of the paper."""

    def posted(split: SplitProfile) -> str:
        days = [split.sides[side].day for side in SIDES if split.sides[side].day.n]
        if not days:
            return "–"
        first, last = min(day.least for day in days), max(day.most for day in days)
        return f"{_month(first)} to {_month(last)}"

    def row(name: str, cells: list[str]) -> tuple[str, list[str], tuple[str, str]]:
        return name, cells, _PAPER.get(name, ("–", "–"))

    sizes = [split.pairs_per_prompt for split in splits]
    return [
        row("pairs", [f"{split.pairs:,}" for split in splits]),
        row("stories", [f"{split.stories:,}" for split in splits]),
        row("mean words", [f"{split.words.mean:,.0f}" for split in splits]),
        row(
            "words, median and middle 90 %",
            [
                f"{s.words.quantile(0.5):,} ({s.words.quantile(0.05):,} to "
                f"{s.words.quantile(0.95):,})"
                for s in splits
            ],
        ),
        row("posted", [posted(split) for split in splits]),
        *(
            row(
                f"score of {side}: least / median / most",
                [_three(split.sides[side].score) for split in splits],
            )
            for side in SIDES
        ),
        row(
            "median lead, % of chosen score",
            [str(split.gap.quantile(0.5)) if split.gap.n else "–" for split in splits],
        ),
        row("prompts", [f"{split.prompts:,}" for split in splits]),
        row("worth prompts of equal size", [f"{split.effective_prompts:,.0f}" for split in splits]),
        row(
            "pairs per prompt, median and most",
            [f"{size.quantile(0.5):,} and {size.most:,}" for size in sizes],
        ),
        row(
            "pairs from the largest 1 % of prompts",
            [f"{100 * split.share_of_largest(0.01):.1f} %" for split in splits],
        ),
        row(
            "uses per story, mean and most",
            [f"{split.uses.mean:.2f} and {split.uses.most:,}" for split in splits],
        ),
        row(
            "stories chosen here and rejected there",
            [f"{100 * split.both_sides / split.stories:.1f} %" for split in splits],
        ),
    ]


def _length_figures(profile: Profile, buckets: int) -> list[Figure]:
    found = []
    for split in profile.splits[:_DRAWN_SPLITS]:
        after, before = profile.after[split.name], profile.before.get(split.name)
        wider = before or after
        widest = _widest(wider.difference)
        counts = wider.buckets(widest, buckets)
        # The few longest stories would press all the others into the middle.
        reach = np.cumsum((counts + counts[::-1])[buckets // 2 :])
        shown = int(np.searchsorted(reach, 0.995 * reach[-1])) + 1
        beyond = int(reach[-1] - reach[shown - 1])
        caption = f"Buckets of {2 * widest / buckets:,.1f} words."
        if beyond:
            caption += f" {beyond:,} pairs lie further out."
        if wider.equal:
            caption += f" {wider.equal:,} of equal length are in no bucket."
        alt = f"Histogram of length differences. {caption} " + " ".join(
            f"{stage}: {of.longer:,} pairs with the longer story chosen, {of.shorter:,} with the "
            "shorter."
            for stage, of in (("Before symmetry", before), ("In the file", after))
            if of is not None
        )
        svg = figures.length_buckets(
            None if before is None else counts, after.buckets(widest, buckets), widest, shown
        )
        found.append(Figure(f"Length differences: {split.name}", caption, svg, alt=alt))
    return found


def _calendar(
    chosen: ValueCounts, rejected: ValueCounts
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, str]:
    """Stories of both sides per step of the calendar, the steps' edges in years, and their name."""
    months = [
        np.clip(values.values, *_CALENDAR)
        .astype("datetime64[D]")
        .astype("datetime64[M]")
        .astype(np.int64)
        for values in (chosen, rejected)
    ]
    both = np.concatenate(months)
    step, name = 1, "month"
    for wider, called in ((3, "quarter"), (12, "year"), (120, "decade")):
        if both.max() // step - both.min() // step >= _CALENDAR_STEPS:
            step, name = wider, called
    edges = np.arange(both.min() // step, both.max() // step + 2)

    def count(values: ValueCounts, of: np.ndarray) -> np.ndarray:
        return np.histogram(of // step, edges, weights=values.counts)[0]

    return (count(chosen, months[0]), count(rejected, months[1])), 1970 + edges * step / 12, name


def _alt(quantity: str, chosen: ValueCounts, rejected: ValueCounts) -> str:
    parts = [
        f"{side}: {values.n:,} stories from {values.least:,} to {values.most:,}, median "
        f"{values.quantile(0.5):,}"
        for side, values in (("chosen", chosen), ("rejected", rejected))
    ]
    return f"Histogram of {quantity}. {'; '.join(parts)}."


def _distributions(split: SplitProfile) -> list[Figure]:
    chosen, rejected = (split.sides[side] for side in SIDES)
    once = "Each story once per side."

    def on_log_axis(values: ValueCounts) -> np.ndarray:
        return np.repeat(np.maximum(values.values, 1), values.counts)

    found = [
        Figure(
            f"Words: {split.name}",
            once,
            figures.distribution(
                on_log_axis(chosen.words), on_log_axis(rejected.words), "length, words", log=True
            ),
            alt=_alt("words", chosen.words, rejected.words),
        )
    ]
    if chosen.day.n and rejected.day.n:
        counts, edges, step = _calendar(chosen.day, rejected.day)
        alt = "Histogram of times of posting. " + "; ".join(
            f"{side}: {_month(values.least)} to {_month(values.most)}, median "
            f"{_month(values.quantile(0.5))}"
            for side, values in (("chosen", chosen.day), ("rejected", rejected.day))
        )
        svg = figures.timeline(*counts, edges)
        found.append(Figure(f"Dates: {split.name}", f"By {step}. {once}", svg, alt=alt))
    if chosen.score.n and rejected.score.n:
        low = sum(
            int(side.score.counts[side.score.values < 1].sum()) for side in (chosen, rejected)
        )
        caption = once + (f" {low:,} scores below 1 are drawn at 1." if low else "")
        svg = figures.distribution(
            on_log_axis(chosen.score), on_log_axis(rejected.score), "score, net upvotes", log=True
        )
        alt = _alt("scores", chosen.score, rejected.score)
        found.append(Figure(f"Votes: {split.name}", caption, svg, alt=alt))
    return found


def _side_by_side(per_split: Sequence[Sequence[Figure]]) -> list[Figure]:
    """The same quantity of all splits in a row, one quantity after the other."""
    return [item for items in itertools.zip_longest(*per_split) for item in items if item]


def _steps(
    funnel: Sequence[Mapping[str, Any]],
    cleaned: Mapping[str, Any],
    own_cleaning: Mapping[str, Any],
    examples: Mapping[str, Sequence[Removed]],
    cuts: Mapping[str, Sequence[Removed]],
) -> list[Step]:
    """The steps that removed something, in their order, with examples.

    Args:
        funnel: of the pairs.
        cleaned: texts changed by each step when the stories were made.
        own_cleaning: the same by the program that wrote the pairs.
        examples: what its steps removed.
        cuts: what was cut from the stories.
    """
    found = []
    for step in dict.fromkeys([*cleaned, *cuts]):
        n = cleaned.get(step)
        if n or step in cuts:
            found.append(Step(step.replace("_", " "), _changed(n), list(cuts.get(step, []))))
    for counted_step in funnel:
        rows = list(examples.get(counted_step["step"], []))
        if counted_step["removed"] or rows:
            counted = f"{counted_step['removed']:,} {counted_step['unit']} removed"
            found.append(Step(counted_step["about"], counted, rows))
    known = {counted_step["step"] for counted_step in funnel}
    for name, more in examples.items():
        if name not in known:
            found.append(Step(name.replace("_", " "), _changed(own_cleaning.get(name)), list(more)))
    return found


def _changed(texts: Any) -> str:
    return "" if texts is None else f"{texts:,} texts changed"


def _moment(text: str | None) -> str | None:
    try:
        return None if text is None else f"{datetime.fromisoformat(text):%d %B %Y, %H:%M %Z}"
    except ValueError:
        return text


def _lead(profile: Profile) -> str:
    after, before = profile.after[None], profile.before.get(None)

    def told(lengths: Lengths) -> str:
        wins = lengths.longer_wins
        text = f"{wins.mean:.1%} of the pairs"
        if math.isfinite(wins.low):
            text += f" (95 % interval {wins.low:.1%} to {wins.high:.1%})"
        return text

    start = (
        f"{profile.pairs:,} pairs of {profile.stories:,} stories under "
        f"{after.longer_wins.clusters:,} prompts. "
    )
    if before is None:
        return f"{start}The longer story wins in {told(after)}."
    return (
        f"{start}Before length symmetry the longer story wins in {told(before)}, after it in "
        f"{after.longer_wins.mean:.1%}."
    )


def render_data_report(
    *,
    title: str,
    profile: Profile,
    manifest: Mapping[str, Any] | None,
    examples: Mapping[str, Sequence[Removed]] | None,
    cuts: Mapping[str, Sequence[Removed]] | None,
    notes: Sequence[str] = (),
) -> str:
    """Render the page; the same arguments give the same bytes.

    Args:
        title: heading of the page.
        profile: from `read_profile`.
        manifest: of the program that wrote the pairs, where it left one.
        examples: what its steps removed, by step; None leaves all examples out.
        cuts: what was cut from the stories before, by step; likewise.
        notes: lines about what could not be shown.

    Raises:
        DataError: the funnel does not add up.
        MissingExtraError: jinja2 or matplotlib is not installed.
    """
    if manifest is not None:
        manifest = without_runtime_keys(manifest)
    counts = (manifest or {}).get("counts", {})
    settings = (manifest or {}).get("config", {})
    funnel = counts.get("funnel", [])
    check_funnel(funnel, "manifest.json")
    notes = list(notes)
    kept = [step["kept"] for step in funnel if step["unit"] == "pairs"]
    if kept and kept[-1] != profile.pairs:
        notes.append(
            f"The funnel ends with {kept[-1]:,} pairs and the file holds {profile.pairs:,}: the "
            "file was changed after it was made."
        )
    made_from = counts.get("stories", {})
    made_from = made_from if isinstance(made_from, Mapping) else {"stories": made_from}
    buckets = settings.get("symmetry_buckets") or _BUCKETS
    drawn = profile.splits[:_DRAWN_SPLITS]
    if len(profile.splits) > len(drawn):
        names = ", ".join(split.name for split in drawn)
        notes.append(f"Pictures show the {len(drawn)} largest splits: {names}.")
    paper = Interval(PAPER_SHARE_LONGER, math.nan, math.nan, 0, 0, 0.0)
    return render(
        "data_page.html",
        title=title,
        label_sources=profile.label_sources,
        lead=_lead(profile),
        made=(manifest or {}).get("program"),
        finished=_moment((manifest or {}).get("finished_utc")),
        digest=counts.get("digest"),
        notes=notes,
        funnel=funnel,
        most=most_per_unit(funnel),
        made_from=flatten(made_from),
        counted=flatten(counts, skip=_TOLD_ELSEWHERE),
        splits=profile.splits,
        glance=_glance(profile.splits),
        length_rows=_length_rows(profile, buckets),
        buckets=buckets,
        has_before=bool(profile.before),
        paper=paper,
        length_figures=_length_figures(profile, buckets),
        distributions=_side_by_side([_distributions(split) for split in drawn]),
        has_days=any(split.sides[side].day.n for split in profile.splits for side in SIDES),
        has_scores=any(split.sides[side].score.n for split in profile.splits for side in SIDES),
        leakage=leakage_rows(counts.get("leakage", {})),
        shows_examples=examples is not None,
        steps=_steps(
            funnel,
            made_from.get("cleaning", {}),
            counts.get("cleaning", {}),
            examples or {},
            cuts or {},
        ),
        manifests={} if manifest is None else {"pairs": json.dumps(manifest, indent=2)},
    )
