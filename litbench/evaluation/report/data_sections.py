"""Sections of the audit's page: the contents of a set of pairs, and how it was made.

All figures come from columns of the pairs other than their texts, and from the manifest of the
program that wrote them. Missing data are left out, with a note.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pa_dataset

from litbench.data.records import PAIRS, SIDES, connected_prompts, label_text
from litbench.data.tables import check_parquet
from litbench.evaluation.report import figures
from litbench.evaluation.report.document import (
    ENDS,
    Card,
    Cell,
    Figure,
    Section,
    Table,
    few_prompts,
    funnel_table,
    percent,
)
from litbench.metrics.intervals import Interval, effective_clusters, jackknife_interval
from litbench.runs.errors import DataError
from litbench.runs.outputs import is_output, read_manifest_of

# The paper's number of buckets, for pairs without a manifest of their pruning.
_BUCKETS = 100
_DRAWN_SPLITS, _EXAMPLES_PER_STEP, _LONGEST_EXAMPLE = 4, 5, 600


@dataclass(frozen=True)
class Split:
    """Statistics of a split.

    Attributes:
        name: name of the split; "all" for all pairs.
        difference: words of the chosen story minus words of the rejected story, by pair.
        longer_wins: agreement of the longer-story baseline, clustered by prompt.
        pairs_per_prompt: number of pairs of each prompt, by normalised text.
        stories: by side, the known `words`, `score` and `day` of posting (days since 1970) of its
            distinct stories, sorted.
        words: words of distinct stories of both sides.
        gap: chosen minus rejected score, in per cent of the chosen score, rounded down, from -100
            to 100, sorted.
    """

    name: str
    difference: np.ndarray
    longer_wins: Interval
    pairs_per_prompt: np.ndarray
    stories: dict[str, dict[str, np.ndarray]]
    words: np.ndarray
    gap: np.ndarray

    @property
    def counts(self) -> dict[str, int]:
        """Pairs whose chosen story is the longer, equally long, or the shorter."""
        signs = np.sign(self.difference)
        names = {"longer": 1, "equal": 0, "shorter": -1}
        return {name: int((signs == sign).sum()) for name, sign in names.items()}

    def buckets(self, widest: int, buckets: int) -> np.ndarray:
        """Pairs per bucket of the mirrored histogram used for length symmetry; shape (buckets,).

        Buckets go from the most negative to the most positive difference; `widest` is the largest
        absolute difference before pruning. Pairs of equal length are in no bucket.
        """
        half = buckets // 2
        values = self.difference[self.difference != 0]
        index = np.minimum(np.abs(values) * half // widest, half - 1)
        return np.bincount(np.where(values > 0, half + index, half - 1 - index), minlength=buckets)


def _column(table: pa.Table, name: str) -> np.ndarray:
    values: np.ndarray = table[name].to_numpy()
    return values


def _split(name: str, table: pa.Table) -> Split:
    _, prompt = np.unique(np.array(connected_prompts(table), dtype=object), return_inverse=True)
    difference = _column(table, "chosen_n_words") - _column(table, "rejected_n_words")
    longer_wins = jackknife_interval((np.sign(difference) + 1) / 2, prompt)
    stories: dict[str, dict[str, np.ndarray]] = {}
    words: dict[str, int] = {}
    for side in SIDES:
        ids = np.array(table[f"{side}_story_id"].to_pylist(), dtype=object)
        _, first = np.unique(ids, return_index=True)
        stories_of_side = table.take(pa.array(first))
        words |= dict(
            zip(ids[first], _column(stories_of_side, f"{side}_n_words").tolist(), strict=True)
        )
        values_of = {
            "words": _column(stories_of_side, f"{side}_n_words"),
            "score": stories_of_side[f"{side}_score"].drop_null().to_numpy(),
            "day": stories_of_side[f"{side}_created_utc"].drop_null().to_numpy() // 86_400,
        }
        stories[side] = {key: np.sort(values) for key, values in values_of.items()}
    chosen, rejected = (
        table[f"{side}_score"].to_numpy(zero_copy_only=False).astype(float) for side in SIDES
    )
    voted = (chosen > 0) & np.isfinite(rejected)
    gap = np.floor(100 * (chosen[voted] - rejected[voted]) / chosen[voted])
    return Split(
        name,
        difference,
        longer_wins,
        np.sort(np.bincount(prompt)),
        stories,
        np.sort(np.array(list(words.values()))),
        np.sort(np.clip(gap, -100, 100)).astype(int),
    )


def split_statistics(table: pa.Table) -> list[Split]:
    """Compute the statistics of pairs, without reading the texts of stories.

    Args:
        table: pairs with the schema PAIRS.

    Returns:
        All pairs as a split named `all`, followed by the splits, largest first.
    """
    names = np.array(table["split"].to_pylist(), dtype=object)
    splits = [_split(name, table.filter(pa.array(names == name))) for name in sorted(set(names))]
    return [_split("all", table), *sorted(splits, key=lambda split: -len(split.difference))]


def read_examples(path: Path) -> dict[str, list[dict[str, str]]]:
    """Read the examples of removed stories, at most five per step.

    Each example has `name`, `text` and `about`.
    """
    examples: dict[str, list[dict[str, str]]] = {}
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                step, *texts = (str(row[key]) for key in ("step", "name", "text", "about"))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise DataError(f"{path}: row {number} is not an example: {error}") from error
            of_step = examples.setdefault(step, [])
            if len(of_step) < _EXAMPLES_PER_STEP:
                name, text, about = (value[:_LONGEST_EXAMPLE] for value in texts)
                of_step.append({"name": name, "text": text, "about": about})
    return examples


def _month(day: int) -> str:
    return str(np.datetime64(int(day), "D").astype("datetime64[M]"))


def _three(values: np.ndarray) -> str:
    """Minimum, median and maximum of sorted values."""
    return (
        f"{values[0]:,} / {values[(len(values) - 1) // 2]:,} / {values[-1]:,}"
        if len(values)
        else "–"
    )


def _glance(split: Split) -> dict[str, str]:
    """A column of the table of splits."""
    days = np.sort(np.concatenate([split.stories[side]["day"] for side in SIDES]))
    words, sizes = split.words, split.pairs_per_prompt
    low, middle, high = np.quantile(words, [0.05, 0.5, 0.95], method="inverted_cdf")
    return {
        "pairs": f"{len(split.difference):,}",
        "prompts": f"{len(sizes):,} ({effective_clusters(sizes):,.0f} effective)",
        "pairs per prompt, min / median / max": _three(sizes),
        "stories": f"{len(words):,}",
        "mean words": f"{words.mean():,.0f}",
        "words, median and middle 90 %": f"{middle:,} ({low:,} to {high:,})",
        "posted": f"{_month(days[0])} to {_month(days[-1])}" if len(days) else "–",
        **{
            f"score of {side}, min / median / max": _three(split.stories[side]["score"])
            for side in SIDES
        },
        "score gap in % of chosen score, min / median / max": _three(split.gap),
    }


def _length_figure(after: Split, before: Split | None, buckets: int) -> Figure:
    wider = before or after
    widest = max(int(np.abs(wider.difference).max()), 1)
    counts = wider.buckets(widest, buckets)
    # Leave out the largest 0.5 % of differences, which would squeeze the others.
    reach = np.cumsum((counts + counts[::-1])[buckets // 2 :])
    shown = int(np.searchsorted(reach, 0.995 * reach[-1])) + 1
    caption = (
        f"Buckets of {2 * widest / buckets:,.1f} words; {reach[-1] - reach[shown - 1]:,} pairs are "
        "outside the plot."
    )
    drawn = figures.length_buckets(
        None if before is None else counts, after.buckets(widest, buckets), widest, shown
    )
    return Figure(f"Length differences: {after.name}", caption, drawn)


def _distributions(splits: Sequence[Split]) -> list[Figure]:
    """Histograms of words, dates and votes, each for all splits in turn."""
    panels = []
    for title, quantity, label in (
        ("Words", "words", "length, words"),
        ("Dates", "day", ""),
        ("Votes", "score", "score, net upvotes"),
    ):
        for split in splits:
            sides = [split.stories[side][quantity] for side in SIDES]
            if not all(len(values) for values in sides):
                continue
            caption = f"{len(sides[0]):,} chosen and {len(sides[1]):,} rejected stories."
            if quantity == "score" and min(values[0] for values in sides) < 1:
                caption += " Scores below 1 are shown as 1."
            if quantity == "day":
                drawn = figures.timeline(*sides)
            else:
                chosen, rejected = (np.maximum(values, 1) for values in sides)
                drawn = figures.distribution(chosen, rejected, label)
            panels.append(Figure(f"{title}: {split.name}", caption, drawn))
    return panels


def made_by(manifest: Mapping[str, Any] | None, sources: Sequence[str]) -> str:
    """The source of the labels, and the program and time that made the pairs."""
    record = manifest or {}
    facts = f"{label_text(sources).capitalize()}."
    if made := record.get("program"):
        finished = record.get("finished_utc")
        facts += f" Made by {made}"
        facts += f", {datetime.fromisoformat(finished):%d %B %Y, %H:%M %Z}." if finished else "."
    if pairs := record.get("outputs", {}).get("pairs.parquet"):
        facts += f" SHA-256 of the pairs: {pairs['sha256']}."
    return facts


def _splits_section(splits: Sequence[Split]) -> Section:
    columns = [_glance(split) for split in splits]
    rows = [
        [Cell(name, is_text=True), *(column[name] for column in columns)] for name in columns[0]
    ]
    note = (
        "Words are those of distinct stories; score gaps are rounded down. Pairs of one prompt "
        "share stories and readers, so intervals are clustered by prompt."
    )
    table = Table(["", *(split.name for split in splits)], rows)
    return Section("The splits at a glance", note, table, name="splits")


def _lengths_section(splits: Sequence[Split], wider: Mapping[str, Split], buckets: int) -> Section:
    rows = []
    for split in splits:
        earlier = wider.get(split.name)
        stages = [("before", earlier)] if earlier else []
        for stage, part in [*stages, ("after" if wider else "", split)]:
            wins_of_longer, counts = part.longer_wins, part.counts
            is_fixed = stage == "after" and counts["longer"] == counts["shorter"]
            wins = (
                Cell(f"{wins_of_longer.mean:.3f}", ["fixed by pruning"])
                if is_fixed
                else wins_of_longer
            )
            rows.append(
                [
                    part.name,
                    stage,
                    Cell(scale=None if is_fixed else wins_of_longer),
                    wins,
                    percent(counts["longer"] / wins_of_longer.n),
                    counts["longer"],
                    counts["equal"],
                    counts["shorter"],
                    wins_of_longer.n,
                    f"{wins_of_longer.clusters:,} ({wins_of_longer.effective_clusters:,.0f})",
                ]
            )
    heading = [
        "split",
        "",
        ENDS,
        "the longer wins [95 %]",
        "chosen is longer",
        "longer",
        "equal",
        "shorter",
        "pairs",
        "prompts\n(effective)",
    ]
    note = (
        "The pairs before length symmetry are unknown: there is no pairs_before_symmetry.parquet "
        "in the folder of the pairs."
    )
    if wider:
        note = (
            "Length differences before and after pruning to symmetry (the paper's Figure 2), in "
            f"the {buckets} buckets that pruning used."
        )
    remark = (
        "“The longer wins” is the agreement of the longer-story baseline, with equal lengths "
        "counted one half; its interval is clustered by prompt. “Chosen is longer” is a share of "
        "all pairs: 65.25 % before symmetry in the paper (Fein et al., 2025, section 3.2)."
    )
    # The last row of several is all pairs.
    drawn = splits[: min(_DRAWN_SPLITS, len(splits) - (len(splits) > 1))]
    shown = [_length_figure(split, wider.get(split.name), buckets) for split in drawn]
    table = Table(heading, rows)
    return Section("Length and choice", note, table, shown, [remark], name="lengths")


def _removed_section(
    examples: Mapping[str, Sequence[Mapping[str, str]]] | None,
) -> Section:
    note = "Up to five stories per step, selected by a hash; texts are cut after 600 characters."
    if examples is None:
        note = "Examples were left out, so that the page has no texts of stories."
    elif not examples:
        note = "No step removed anything, or the program left no examples."
    parts = [
        Section(
            step.replace("_", " "),
            fold=False,
            name=f"removed-{index}",
            cards=[
                Card(
                    [("", row["text"])], facts=" · ".join(filter(None, (row["name"], row["about"])))
                )
                for row in items
            ],
        )
        for index, (step, items) in enumerate((examples or {}).items())
    ]
    return Section("Removed stories", note, parts=parts, name="removed")


@dataclass(frozen=True)
class PairsFolder:
    """A set of pairs, and what the run that made it left beside it.

    Attributes:
        files: `pairs` and, if the run that wrote the pairs wrote them, `manifest`,
            `pairs_before_symmetry`, `examples` and `ratings`.
        manifest: content of the manifest; None for external pairs, whose page has no funnel.
        examples: whether the page may show texts of removed stories.
        notes: notes about files that are left out.
    """

    files: dict[str, str | Path]
    manifest: dict[str, Any] | None
    examples: bool
    notes: list[str]

    @classmethod
    def find(cls, source: str | Path, *, examples: bool = True) -> "PairsFolder":
        """Find and check the files of a folder, or of a pairs file or data set of any origin.

        Raises:
            DataError: there are no pairs, or they do not match the manifest beside them.
        """
        path = Path(source)
        folder = path.parent if path.name == "pairs.parquet" else path
        if not any((folder / name).is_file() for name in ("pairs.parquet", "manifest.json")):
            return cls({"pairs": source}, None, examples, [])
        files: dict[str, str | Path] = {"pairs": folder / "pairs.parquet"}
        check_parquet(folder / "pairs.parquet", PAIRS)
        manifest, notes = None, []
        if (folder / "manifest.json").is_file():
            files["manifest"] = folder / "manifest.json"
            manifest = read_manifest_of(folder / "pairs.parquet")
        for name in ("pairs_before_symmetry.parquet", "examples.jsonl", "ratings.parquet"):
            path = folder / name
            if not path.is_file() or (name == "examples.jsonl" and not examples):
                continue
            if manifest is None or is_output(manifest, path):
                files[path.stem] = path
            else:
                notes.append(
                    f"{path} is left out: the run that wrote these pairs did not write it."
                )
        if before := files.get("pairs_before_symmetry"):
            check_parquet(Path(before), PAIRS)
        return cls(files, manifest, examples, notes)

    def funnel_sections(self) -> list[Section]:
        """How stories became pairs, and what the steps removed; empty for external pairs."""
        funnel = (self.manifest or {}).get("counts", {}).get("funnel", [])
        if not funnel:
            return []
        examples: dict[str, Any] | None = {} if self.examples else None
        if "examples" in self.files:
            examples = read_examples(Path(self.files["examples"]))
        title = "From stories to pairs"
        steps = Section(title, table=funnel_table(funnel), name="funnel")
        return [steps, _removed_section(examples)]

    def sections(self, table: pa.Table) -> list[Section]:
        """The sections on these pairs; `table` has the schema PAIRS."""
        whole, *splits = split_statistics(table)
        # All pairs are a row of their own where there are several splits.
        rows = [*splits, *([whole] if len(splits) > 1 else [])]
        wider = {}
        if before := self.files.get("pairs_before_symmetry"):
            columns = [name for name in PAIRS.arrow().names if name not in SIDES]
            earlier = pa_dataset.dataset(str(before), format="parquet").to_table(columns)
            wider = {split.name: split for split in split_statistics(earlier)}
        counts = (self.manifest or {}).get("counts", {})
        buckets = counts.get("lengths", {}).get("buckets") or _BUCKETS
        warnings = [*few_prompts(whole.longer_wins), *self.notes, *counts.get("notes", [])]
        return [
            replace(_splits_section(splits), warnings=warnings),
            _lengths_section(rows, wider, buckets),
            Section(
                "Words, dates and votes",
                "The stories of each side (the paper's Figure 3). Unknown quantities are left out, "
                "and only the four largest splits are shown.",
                figures=_distributions(splits[:_DRAWN_SPLITS]),
                name="distributions",
            ),
        ]
