"""data_report.html: what a pairs file holds and how it came to hold that, on one page.

Numbers come from litbench.report.pair_profile and the manifest of the program that wrote the
pairs; what a source does not have is left out with a line that says so.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from litbench.errors import DataError
from litbench.report import figures
from litbench.report.document import Figure, most_per_unit, render
from litbench.report.pair_profile import SIDES, Lengths, Profile, SplitProfile

# The buckets of the paper, for pairs that were not pruned here.
_BUCKETS = 100
_DRAWN_SPLITS = 4
_EXAMPLES_PER_STEP = 5
_LONGEST_EXAMPLE = 600
# 1900 and 2100 as days since 1970: a time beyond is a fault of the source and drawn at the edge.
_CALENDAR = (-25_567, 47_482)
# Shown in their own sections.
_SHOWN_ELSEWHERE = ("funnel", "lengths", "stories", "leakage", "digest", "notes")


def read_examples(path: Path) -> dict[str, list[dict[str, str]]]:
    """Read the examples a program left: at most five of each step, with `name`, `text`, `about`.

    Args:
        path: examples.jsonl, see litbench.curation.funnel.Examples.

    Raises:
        DataError: a row is no JSON object with these texts and `step`.
    """
    found: dict[str, list[dict[str, str]]] = {}
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                step, *texts = (str(row[key]) for key in ("step", "name", "text", "about"))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise DataError(
                    f"{path}: row {number} is no example ({type(error).__name__}: {error}): make "
                    "the pairs again"
                ) from error
            kept = found.setdefault(step, [])
            if len(kept) < _EXAMPLES_PER_STEP:
                name, text, about = (value[:_LONGEST_EXAMPLE] for value in texts)
                kept.append({"name": name, "text": text, "about": about})
    return found


def flatten(counts: Mapping[str, Any], skip: Sequence[str] = ()) -> list[tuple[str, Any]]:
    """Counts of a manifest as rows of a table: (what, how many); lists are left out.

    Inner keys, such as reasons, stay as the program wrote them; times are written as dates.
    """
    rows: list[tuple[str, Any]] = []

    def add(label: str, key: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                add(f"{label}: {name}", str(name), inner)
        elif key.endswith("_utc") and isinstance(value, int):
            rows.append((label, str(np.datetime64(value, "s"))))
        elif not isinstance(value, list):
            rows.append((label, value))

    for key, value in counts.items():
        if key not in skip:
            add(str(key).replace("_", " "), str(key), value)
    return rows


def _length_rows(profile: Profile) -> list[dict[str, Any]]:
    """Rows of the table about length and choice, before and after length symmetry."""
    names: list[str | None] = [split.name for split in profile.splits]
    if len(names) > 1:
        names.append(None)
    rows = []
    for name in names:
        for stage, lengths in (
            ("before", profile.before.get(name)),
            ("after" if profile.before else "", profile.after[name]),
        ):
            if lengths is None:
                continue
            shown = lengths.longer_wins
            # Pruning has fixed the mean, so an interval would say nothing.
            fixed = stage == "after" and lengths.longer == lengths.shorter
            if fixed:
                shown = replace(shown, low=math.nan, high=math.nan)
            rows.append(
                {
                    "split": name or "all",
                    "stage": stage,
                    "lengths": lengths,
                    "pairs": len(lengths.difference),
                    "shown": shown,
                    "fixed": fixed,
                }
            )
    return rows


def _month(day: int) -> str:
    return str(np.datetime64(int(day), "D").astype("datetime64[M]"))


def _quantile(values: np.ndarray, share: float) -> int:
    return int(np.quantile(values, share, method="inverted_cdf"))


def _three(values: np.ndarray) -> str:
    """Least, median and most; values are sorted."""
    return f"{values[0]:,} / {_quantile(values, 0.5):,} / {values[-1]:,}" if len(values) else "–"


def _glance(split: SplitProfile) -> dict[str, str]:
    """A column of the table of splits."""
    days = np.sort(np.concatenate([split.sides[side]["day"] for side in SIDES]))
    words, sizes = split.words, split.pairs_per_prompt
    return {
        "pairs": f"{split.pairs:,}",
        "prompts": f"{len(sizes):,} ({split.effective_prompts:,.0f} effective)",
        "pairs per prompt, least / median / most": _three(sizes),
        "stories": f"{len(words):,}",
        "mean words": f"{words.mean():,.0f}",
        "words, median and middle 90 %": (
            f"{_quantile(words, 0.5):,} ({_quantile(words, 0.05):,} to {_quantile(words, 0.95):,})"
        ),
        "posted": f"{_month(days[0])} to {_month(days[-1])}" if len(days) else "–",
        **{
            f"score of {side}, least / median / most": _three(split.sides[side]["score"])
            for side in SIDES
        },
        "lead in % of chosen score, least / median / most": _three(split.gap),
    }


def _length_figure(split: str, after: Lengths, before: Lengths | None, buckets: int) -> Figure:
    wider = before or after
    counts = wider.buckets(wider.widest, buckets)
    # The few longest stories would press all the others into the middle.
    reach = np.cumsum((counts + counts[::-1])[buckets // 2 :])
    shown = int(np.searchsorted(reach, 0.995 * reach[-1])) + 1
    caption = (
        f"Buckets of {2 * wider.widest / buckets:,.1f} words; "
        f"{reach[-1] - reach[shown - 1]:,} pairs lie further out."
    )
    alt = f"Histogram of length differences: {split}. {caption} " + " ".join(
        f"{stage}: {of.longer:,} pairs with the longer story chosen, {of.shorter:,} with the "
        "shorter."
        for stage, of in (("Before symmetry", before), ("In the file", after))
        if of is not None
    )
    drawn = figures.length_buckets(
        None if before is None else counts, after.buckets(wider.widest, buckets), wider.widest,
        shown,
    )  # fmt: skip
    return Figure(f"Length differences: {split}", caption, drawn, alt=alt)


def _timeline(chosen: np.ndarray, rejected: np.ndarray) -> figures.Drawing:
    years = [1970 + np.clip(days, *_CALENDAR) / 365.2425 for days in (chosen, rejected)]
    edges = np.histogram_bin_edges(np.concatenate(years), bins=48)
    of_chosen, of_rejected = (np.histogram(side, edges)[0] for side in years)
    return figures.timeline(of_chosen, of_rejected, edges)


def _distributions(splits: Sequence[SplitProfile]) -> list[Figure]:
    """Words, dates and votes: the same quantity of all splits in a row."""

    def on_log_axis(label: str) -> Callable[[np.ndarray, np.ndarray], figures.Drawing]:
        return lambda chosen, rejected: figures.distribution(
            np.maximum(chosen, 1), np.maximum(rejected, 1), label, log=True
        )

    found = []
    for title, quantity, draw in (
        ("Words", "words", on_log_axis("length, words")),
        ("Dates", "day", _timeline),
        ("Votes", "score", on_log_axis("score, net upvotes")),
    ):
        for split in splits:
            sides = [split.sides[side][quantity] for side in SIDES]
            if not all(len(values) for values in sides):
                continue
            written = _month if quantity == "day" else "{:,}".format
            alt = f"Histogram of {title.lower()}: {split.name}. " + "; ".join(
                f"{side}: {len(values):,} stories from {written(values[0])} to "
                f"{written(values[-1])}, median {written(_quantile(values, 0.5))}"
                for side, values in zip(SIDES, sides, strict=True)
            )
            caption = "Each story once per side."
            if quantity == "score" and min(values[0] for values in sides) < 1:
                caption += " Scores below 1 are drawn at 1."
            found.append(Figure(f"{title}: {split.name}", caption, draw(*sides), alt=alt))
    return found


def _lead(profile: Profile) -> str:
    after, before = profile.after[None], profile.before.get(None)
    first = (before or after).longer_wins
    text = (
        f"{len(after.difference):,} pairs of {profile.stories:,} stories under "
        f"{after.longer_wins.clusters:,} prompts. "
        f"{'Before length symmetry the' if before else 'The'} longer story wins in "
        f"{first.mean:.1%} of the pairs"
    )
    if math.isfinite(first.low):
        text += f" (95 % interval {first.low:.1%} to {first.high:.1%})"
    return text + (f", after it in {after.longer_wins.mean:.1%}." if before else ".")


def render_data_report(
    *,
    title: str,
    profile: Profile,
    manifest: Mapping[str, Any] | None,
    examples: Mapping[str, Sequence[Mapping[str, str]]] | None,
    notes: Sequence[str] = (),
) -> str:
    """Render the page; the same arguments give the same bytes.

    Args:
        title: heading of the page.
        profile: from `read_profile`.
        manifest: of the program that wrote the pairs, where it left one.
        examples: what its steps removed, from `read_examples`; None leaves all examples out.
        notes: lines about what could not be shown.

    Raises:
        MissingExtraError: jinja2 or matplotlib is not installed.
    """
    shown = manifest or {}
    counts = shown.get("counts", {})
    funnel = counts.get("funnel", [])
    finished = shown.get("finished_utc")
    buckets = shown.get("config", {}).get("symmetry_buckets") or _BUCKETS
    drawn = profile.splits[:_DRAWN_SPLITS]
    columns = [_glance(split) for split in profile.splits]
    stories = counts.get("stories", {})
    return render(
        "data_page.html",
        title=title,
        label_sources=profile.label_sources,
        lead=_lead(profile),
        made=shown.get("program"),
        finished=f"{datetime.fromisoformat(finished):%d %B %Y, %H:%M %Z}" if finished else None,
        digest=counts.get("digest"),
        notes=[*notes, *counts.get("notes", [])],
        funnel=funnel,
        most=most_per_unit(funnel),
        made_from=flatten(stories if isinstance(stories, Mapping) else {"stories": stories}),
        counted=flatten(counts, skip=_SHOWN_ELSEWHERE),
        splits=[split.name for split in profile.splits],
        glance=[(name, [column[name] for column in columns]) for name in columns[0]],
        length_rows=_length_rows(profile),
        buckets=buckets,
        has_before=bool(profile.before),
        length_figures=[
            _length_figure(
                split.name, profile.after[split.name], profile.before.get(split.name), buckets
            )
            for split in drawn
        ],
        distributions=_distributions(drawn),
        leakage=counts.get("leakage", {}).get("shared", []),
        examples=examples,
        manifests={} if manifest is None else {"pairs": json.dumps(shown, indent=2)},
    )
