"""Raters on probes: how often do they prefer a spoiled story to the original?

The stories are changed by `litbench.audit.probes`. The rate is over the pairs that the rater judged
in both orders; a tie counts one half. The right rate is 0; above 1/2 the rater is fooled.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from litbench.audit.probes import (
    PROBES,
    check_strengths,
    draw_originals,
    probe_pairs,
    select_probes,
)
from litbench.data.columns import PairColumns
from litbench.data.records import connected_prompts
from litbench.data.sources.evaluation_pairs import read_pairs
from litbench.data.tables import write_table
from litbench.data.text import digest
from litbench.evaluation.loop import (
    Job,
    evaluate,
    is_finished,
    print_estimates,
)
from litbench.evaluation.report import figures
from litbench.evaluation.report.document import (
    Card,
    Cell,
    Figure,
    Page,
    Section,
    Table,
    few_prompts,
    percent,
    publish,
    short_name,
    shorten,
    show_results,
    stacked,
    written_now,
)
from litbench.evaluation.results import error_notes, failed_requests
from litbench.metrics.agreement import pair_scores
from litbench.metrics.comparisons import benjamini_hochberg, paired_difference
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.raters.entries import files_of, parse_raters
from litbench.runs.config import Runtime
from litbench.runs.outputs import Artifact, Cache, read_manifest
from litbench.runs.terminal import clean_name


@dataclass
class ProbesConfig(PairColumns):
    """Probe raters with changed stories: how often is the changed story preferred?

        litbench probe --config configs/eval/probes.yaml

    Reads a pairs file, draws stories of every prompt and applies every probe at every strength
    (litbench/audit/probes.py). Every rater compares each story with its changed copies. Writes
    `probe_pairs.parquet`, `verdicts.parquet`, `probes.csv` and `.txt`, `probes.html` with excerpts
    of the stories, its plots as SVG and PNG, and `manifest.json` into `out`.

    A killed run resumes; judges store their answers in `out/answers`. `--dry_run true` estimates
    calls, tokens and cost of the judges without sending requests.

    Attributes:
        pairs: pairs file to draw stories from.
        out: output folder.
        raters: named entries, see litbench.raters.entries.
        split: only pairs of this split; null for all.
        side: draw chosen stories, rejected stories or both.
        max_per_prompt: maximum number of stories per prompt.
        max_prompts: maximum number of prompts, drawn by a hash; null for all.
        probes: names of probes; all if empty.
        strengths: strengths of every probe, above 0 and at most 1.
        seed: seed of draws and changes.
        on_training_prompts: refuse raters that were trained on prompts of these stories, or flag
            them.
        dry_run: only estimate calls, tokens, dollars and minutes.
    """

    pairs: Path
    out: Path
    raters: dict[str, Any] = field(default_factory=dict)
    split: str | None = None
    side: Literal["chosen", "rejected", "both"] = "chosen"
    max_per_prompt: int = 2
    max_prompts: int | None = None
    probes: list[str] = field(default_factory=list)
    strengths: list[float] = field(default_factory=lambda: [0.25, 0.5, 1.0])
    seed: int = 0
    on_training_prompts: Literal["refuse", "flag"] = "refuse"
    dry_run: Annotated[bool, Runtime] = False


@dataclass(frozen=True)
class ProbeResult:
    """A rater on one probe at one strength.

    Attributes:
        not_applicable: number of stories that the probe cannot change.
        words_ratio: mean ratio of the words of the changed story to those of the original.
        prefers_changed: see the module docstring; None if no pair was judged in both orders.
        p_bh: two-sided p value of a rate of 1/2, adjusted for the rater's probes and strengths
            (Benjamini and Hochberg); NaN if unknown.
        ties: share of judgements that are ties.
        not_judged: share of verdicts that are not judgements.
        flip_rate: share of pairs in which the two orders disagree; None without orders.
    """

    rater: str
    kind: str
    probe: str
    strength: float
    stories: int
    not_applicable: int
    words_ratio: float
    prefers_changed: Interval | None
    p_bh: float
    ties: float
    not_judged: float
    flip_rate: float | None

    @property
    def is_clear(self) -> bool:
        """Whether the rate differs from 1/2 significantly."""
        return self.p_bh < 0.05

    @property
    def is_fooled(self) -> bool:
        """Whether the rater significantly prefers the changed stories."""
        rate = self.prefers_changed
        return rate is not None and rate.mean > 0.5 and self.is_clear


def probe_results(
    verdicts: pa.Table, pairs: pa.Table, not_applicable: Mapping[str, Mapping[str, int]]
) -> dict[str, list[ProbeResult]]:
    """By rater, the results by probe and strength, in this order.

    `pairs` and `not_applicable` are from `litbench.audit.probes.probe_pairs`; `verdicts` cover all
    pairs.
    """
    clusters = np.array(connected_prompts(pairs))
    ids, names, strengths = (
        np.array(pairs[n].to_pylist()) for n in ("pair_id", "probe", "strength")
    )
    words = pairs["rejected_n_words"].to_numpy() / np.maximum(pairs["chosen_n_words"].to_numpy(), 1)
    raters, judged_ids, outcomes = (
        np.array(verdicts[n].to_pylist()) for n in ("rater", "pair_id", "outcome")
    )
    results: dict[str, list[ProbeResult]] = {}
    for scores in pair_scores(verdicts, pairs):
        probes = []
        for probe in PROBES:
            for strength in sorted(set(strengths[names == probe])):
                rows = (names == probe) & (strengths == strength)
                shown = outcomes[(raters == scores.rater) & np.isin(judged_ids, ids[rows])]
                judged, ties = np.isin(shown, ("chosen", "rejected", "tie")), shown == "tie"
                flipped = scores.flipped[rows]
                judged_rows = rows & np.isfinite(scores.both_orders)
                rates, prompts = 1 - scores.both_orders[judged_rows], clusters[judged_rows]
                rate, p = None, math.nan
                if len(rates):
                    rate = jackknife_interval(rates, prompts)
                    p = paired_difference(rates, 1 - rates, prompts)[1]
                probes.append(
                    ProbeResult(
                        scores.rater,
                        scores.kind,
                        probe,
                        float(strength),
                        stories=int(rows.sum()),
                        not_applicable=not_applicable.get(probe, {}).get(f"{strength:g}", 0),
                        words_ratio=float(words[rows].mean()),
                        prefers_changed=rate,
                        p_bh=p,
                        ties=float(ties.sum() / judged.sum()) if judged.any() else math.nan,
                        not_judged=float(1 - judged.mean()),
                        flip_rate=None if np.isnan(flipped).all() else float(np.nanmean(flipped)),
                    )
                )
        adjusted = benjamini_hochberg([result.p_bh for result in probes])
        results[scores.rater] = [
            replace(result, p_bh=p) for result, p in zip(probes, adjusted, strict=True)
        ]
    return results


def read_probe_results(folder: Path) -> dict[str, list[ProbeResult]]:
    """The results of a finished run."""
    verdicts, pairs = (
        pq.read_table(folder / f"{name}.parquet") for name in ("verdicts", "probe_pairs")
    )
    return probe_results(verdicts, pairs, read_manifest(folder)["counts"]["not_applicable"])


def _fooled(results: Mapping[str, Sequence[ProbeResult]]) -> str:
    """A sentence that lists the probes that fool each rater."""
    fooled = []
    for rater, rows in results.items():
        probes = dict.fromkeys(
            result.probe.replace("_", " ") for result in rows if result.is_fooled
        )
        if probes:
            fooled.append(f"{clean_name(rater)} by {', '.join(probes)}")
    if not fooled:
        return "No rater significantly prefers changed stories."
    return f"Significantly fooled: {'; '.join(fooled)}."


def probes_text(results: Mapping[str, Sequence[ProbeResult]]) -> str:
    """The rates as text for a terminal."""
    return (
        "Share of pairs in which the rater prefers the changed story; a tie counts 1/2.\n"
        f"{_table(results).as_text()}\n"
        f"* differs significantly from 1/2 (Benjamini and Hochberg)\n\n{_fooled(results)}\n"
    )


def run_probes(config: ProbesConfig) -> None:
    """Change the stories, judge the pairs, and write the results."""
    specs, probes = parse_raters(config.raters), select_probes(config.probes)
    check_strengths(config.strengths)
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"pairs": config.pairs},
        models=files_of(specs),
    )
    if not config.dry_run and is_finished(artifact):
        show_results(config.out, "probes")
        return

    labelled = read_pairs(config.pairs, None, config.split, columns=config.columns()).headline
    stories = draw_originals(
        labelled, config.side, config.max_per_prompt, config.max_prompts, config.seed
    )
    pairs, not_applicable = probe_pairs(stories, probes, config.strengths, config.seed)
    if config.dry_run:
        print_estimates(specs, pairs, config.out)
        return

    parts = Cache(config.out / "parts")
    columns = (pairs[name].to_pylist() for name in ("pair_id", "chosen", "rejected"))
    data = digest(*(digest(*row) for row in zip(*columns, strict=True)))
    jobs = [Job(spec, spec.name, lambda: pairs, data, work=pairs.num_rows) for spec in specs]
    judged = list(evaluate(jobs, parts, on_training_prompts=config.on_training_prompts))
    verdicts = pa.concat_tables(result.verdicts for result in judged)
    results = probe_results(verdicts, pairs, not_applicable)
    for note in error_notes(verdicts):
        print(note)
    rows = [vars(result) for result in itertools.chain(*results.values())]
    records = {result.job.spec.name: result.record for result in judged}
    trained_on = {name: record["trained_on"] for name, record in records.items()}
    artifact.counts = {
        "stories": len(stories),
        "pairs": pairs.num_rows,
        "not_applicable": not_applicable,
        "errors": failed_requests(verdicts).num_rows,
        "trained_on": trained_on,
        "raters": records,
    }
    artifact.write("probe_pairs.parquet", partial(write_table, pairs))
    artifact.write("verdicts.parquet", partial(write_table, verdicts))
    page = _page(results, pairs, trained_on)
    publish(artifact, "probes", probes_text(results), page, {"probes": rows})
    parts.discard_unused()


# The page -------------------------------------------------------------------------------------

# Characters of an example before its first difference, and in all.
_AROUND, _MAX_SHOWN = 160, 900


def _examples(pairs: pa.Table) -> list[Section]:
    """Excerpts of one story of every probe and of its changed copy, selected by a hash."""
    rows = pairs.select(["probe", "strength", "chosen", "rejected", "pair_id"]).to_pylist()
    sections = []
    for probe in dict.fromkeys(row["probe"] for row in rows):
        strengths = sorted({row["strength"] for row in rows if row["probe"] == probe})
        middle = strengths[len(strengths) // 2]
        of_probe = (row for row in rows if (row["probe"], row["strength"]) == (probe, middle))
        row = min(of_probe, key=lambda row: digest("example", row["pair_id"]))
        texts = row["chosen"], row["rejected"]
        letters = enumerate(itertools.zip_longest(*texts))
        start = max(0, next(at for at, (a, b) in letters if a != b) - _AROUND)
        pieces = [("…" if start else "") + shorten(text[start:], _MAX_SHOWN) for text in texts]
        card = Card(list(zip(("story", "changed"), pieces, strict=True)), lost=[1])
        title = f"{probe.replace('_', ' ')}, strength {middle:g}"
        sections.append(Section(title, PROBES[probe].about, cards=[card], fold=False))
    return sections


def _figure(results: Mapping[str, Sequence[ProbeResult]]) -> Figure:
    """The rates by probe and rater."""
    rows = []
    for probe in dict.fromkeys(result.probe for probes in results.values() for result in probes):
        rates = [
            [
                result.prefers_changed
                for result in probes
                if result.probe == probe and result.prefers_changed
            ]
            for probes in results.values()
        ]
        rows.append((probe.replace("_", " "), rates))
    drawn = figures.dots(
        rows,
        [short_name(name) for name in results],
        "prefers the changed story",
        levels=[0.0, 0.5],
        limits=(-0.03, 1.03),
    )
    caption = (
        "Share of pairs in which the rater prefers the changed story; a tie counts one half. Large "
        "markers: highest strength, with its 95 % interval by prompt; small: lower strengths."
    )
    return Figure("Changed stories", caption, drawn)


def _table(results: Mapping[str, Sequence[ProbeResult]]) -> Table:
    """A row for each probe and strength, with the results of all raters."""
    heading = ["probe", "strength", "stories", "nothing to\nchange", "words", *results]
    rows: list[list[Any]] = []
    about = {name: [probe.about] for name, probe in PROBES.items()}
    for of_raters in zip(*results.values(), strict=True):
        result = of_raters[0]
        row = [
            # Described once, where it is named first.
            Cell(result.probe.replace("_", " "), about.pop(result.probe, []), is_text=True),
            f"{result.strength:g}",
            result.stories,
            result.not_applicable or "–",
            f"×{result.words_ratio:.2f}",
        ]
        for result in of_raters:
            shares = (
                ("ties", result.ties),
                ("not judged", result.not_judged),
                ("flip", result.flip_rate),
            )
            more = [f"{percent(share)} {name}" for name, share in shares if share and share > 0]
            row.append(replace(stacked(result.prefers_changed, *more), is_bold=result.is_clear))
        rows.append(row)
    return Table(heading, rows)


def _page(
    results: Mapping[str, Sequence[ProbeResult]], pairs: pa.Table, trained_on: Mapping[str, int]
) -> Page:
    """The page, with its plot."""
    first = next(iter(results.values()))[0].prefers_changed
    seen = sorted(name for name, prompts in trained_on.items() if prompts)
    warnings = [] if first is None else few_prompts(first)
    warnings += [f"Trained on prompts of these stories: {', '.join(seen)}."] if seen else []
    note = (
        "How often the rater prefers the changed story; 0 is right, and ½ means that the rater "
        "does not see the change. A tie counts ½; pairs that were not judged in both orders are "
        "left out, and their share is shown. Intervals are 95 %, clustered by prompt; bold: "
        "significantly different from ½ (Benjamini and Hochberg). No reader compared a story with "
        "its changed copy: that the changes spoil a story is an assumption."
    )
    figure = _figure(results)
    about = (
        "One story for each probe, selected by a hash, from shortly before the first difference."
    )
    sections = [
        Section(
            "Who prefers the changed story",
            note,
            _table(results),
            [figure],
            warnings=warnings,
            name="results",
        ),
        Section("Examples", about, parts=_examples(pairs)),
    ]
    stories = len(set(pairs["chosen_story_id"].to_pylist()))
    facts = f"{stories:,} stories, each compared with changed copies of itself. {written_now()}"
    return Page("LitBench: probes", _fooled(results), facts, sections, files={"probes": figure})
