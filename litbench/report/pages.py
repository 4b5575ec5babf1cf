"""The pages of all programs except the data report: their plots, examples and template values."""

import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.metrics.ablation import AblationStudy, Arm, by_family, write_size
from litbench.metrics.agreement import PairScores, pair_scores
from litbench.metrics.best_of_n import Choice
from litbench.metrics.comparisons import Change, compare_all
from litbench.metrics.csv_table import write_csv
from litbench.metrics.explanation_text import FEATURES, excerpt
from litbench.metrics.explanations import PUBLISHED_PLOT_GAIN, Explanations, ExplanationStudy
from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import LeaderboardRow, reference_credits
from litbench.metrics.pairing_rules import TRUTH, Summary
from litbench.metrics.power import detectable, measure
from litbench.metrics.preferences import PreferenceStudy, UnitRow, surface_label
from litbench.metrics.printing import coin_note, significance_note, strata_note
from litbench.metrics.probes import ProbeResult, by_rater, fooled_text
from litbench.metrics.writers import WriterRow
from litbench.probes import PROBES
from litbench.records import OUTCOMES, connected_prompts
from litbench.report import figures
from litbench.report.document import (
    Figure,
    most_per_unit,
    page_links,
    render,
    short_name,
    shorten,
    signed,
    write_page,
)
from litbench.report.figures import Line
from litbench.store import Artifact
from litbench.text import aligned, clean_name, digest

# Stories on a page are cut to this many characters.
_MOST_LETTERS = 12_000

# The report -----------------------------------------------------------------------------------

_BASELINES = ("longer", "shorter", "random")
_MOST_RATERS, _EXAMPLES, _SHOWN_COEFFICIENTS = 8, 4, 16


def _one_per_prompt(
    rows: Sequence[int], prompts: Sequence[str], key: Callable[[int], Any], count: int
) -> list[int]:
    """The first rows by a key, at most one of each prompt."""
    first_of: dict[str, int] = {}
    for row in sorted(rows, key=key):
        first_of.setdefault(prompts[row], row)
    return list(first_of.values())[:count]


def _examples(pairs: pa.Table, scores: PairScores, rows: np.ndarray) -> list[dict[str, Any]]:
    """The most confident of some rows, one per prompt; selected by a hash without probabilities."""
    p = np.nan_to_num(scores.p_chosen, nan=0.5)
    ids = pairs["pair_id"].to_pylist()
    picked = _one_per_prompt(
        rows.tolist(), pairs["prompt_id"].to_pylist(),
        lambda row: (-abs(p[row] - 0.5), digest("shown", ids[row])), _EXAMPLES,
    )  # fmt: skip
    examples: list[dict[str, Any]] = pairs.take(pa.array(picked, pa.int64())).to_pylist()
    for example, row in zip(examples, picked, strict=True):
        example["confidence"] = max(p[row], 1 - p[row]) if p[row] != 0.5 else None
        example |= {side: shorten(example[side], _MOST_LETTERS) for side in ("chosen", "rejected")}
    return examples


def _misses(pairs: pa.Table, raters: Sequence[PairScores]) -> list[dict[str, Any]]:
    """By rater, the number of pairs that it gets wrong, that only it gets wrong, and examples."""
    misses = []
    for scores in raters:
        wrong = scores.credit < 0.5
        others = [one.credit > 0.5 for one in raters if one is not scores]
        only = wrong & np.logical_and.reduce(others) if others else wrong
        counts = {"n": int(wrong.sum()), "alone": int(only.sum())}
        examples = _examples(pairs, scores, np.flatnonzero(wrong))
        misses.append({"rater": scores.rater, **counts, "examples": examples})
    return misses


def _coefficients(records: Mapping[str, list[dict[str, Any]]]) -> list[Figure]:
    panels = []
    for rater, parts in records.items():
        models = [one["notes"]["coefficients"] for one in parts if "coefficients" in one["notes"]]
        if not models:
            continue
        rows = []
        for name in models[0]:
            values = [model[name] for model in models]
            mean = float(np.mean(values))
            rows.append((name, [[Interval(mean, min(values), max(values), 1, 1, 1.0)]]))
        rows.sort(key=lambda row: -abs(row[1][0][0].mean))
        caption = (
            "Coefficients in log-odds per standard deviation; positive: readers preferred more of "
            f"the feature. The {_SHOWN_COEFFICIENTS} largest of {len(rows)}, with mean and range "
            "over models."
        )
        drawn = figures.dots(
            [(name.replace("_", " "), cells) for name, cells in rows[:_SHOWN_COEFFICIENTS]],
            [rater], "log-odds per standard deviation", levels=[0],
        )  # fmt: skip
        panels.append(Figure(f"Coefficients of {clean_name(rater)}", caption, drawn, tall=True))
    return panels


def _agreement_figures(rows: Sequence[LeaderboardRow]) -> tuple[list[Figure], str]:
    """The plots by length gap and of calibration, and a note if the first is missing."""
    panels, missing = [], ""
    gaps = [row for row in rows if row.kind not in _BASELINES and row.by_gap][:6]
    ranges = sorted({(low, high) for row in gaps for low, high, _ in row.by_gap})
    if len(ranges) > 1:
        lines = []
        for index, row in enumerate(gaps):
            shift = (index - (len(gaps) - 1) / 2) * 0.09
            points = [(ranges.index((low, high)) + shift, at, ()) for low, high, at in row.by_gap]
            lines.append(Line(short_name(row.rater), points, spread="bars"))
        names = [f"{a:.0f}+" if math.isinf(b) else f"{a:.0f}–{b - 1:.0f}" for a, b in ranges]
        drawn = figures.curves(lines, "difference in length, words", names_of_x=names)
        caption = (
            "Pairs by their difference in length; ranges with fewer than 10 pairs are left out. "
            "Dotted: chance."
        )
        panels.append(Figure("Agreement by length gap", caption, drawn))
    elif gaps:
        missing = "No plot by length gap: only one range of differences has at least 10 pairs."
    calibrated = [(row.rater, row.calibration.bins) for row in rows if row.calibration][:6]
    if calibrated:
        lines = [
            Line(short_name(name), [(sure, one, []) for sure, one in bins], spread="bars")
            for name, bins in calibrated
        ]
        drawn = figures.curves(lines, "confidence, max(p, 1 - p)", level=None)
        caption = "Dotted: perfect calibration. Bins of equal size."
        panels.append(Figure("Reliability", caption, drawn))
    return panels, missing


def render_report(
    *,
    title: str,
    rows: Sequence[LeaderboardRow],
    verdicts: pa.Table,
    pairs: pa.Table,
    before_symmetry: pa.Table | None,
    reference: str,
    evaluation_manifest: Mapping[str, Any],
    pairs_manifest: Mapping[str, Any] | None,
    annotators: Mapping[str, Any] | None = None,
    changes: Sequence[Change] = (),
    page: Path | None = None,
    beside: Sequence[str] = (),
) -> str:
    """Render report.html, with links to the pages `beside` it, see `page_links`."""
    clusters = np.array(connected_prompts(pairs))
    of_rater = {scores.rater: scores for scores in pair_scores(verdicts, pairs)}
    credits = {row.rater: of_rater[row.rater].credit for row in rows}
    first = list(credits)[:_MOST_RATERS]
    against = {
        (one.rater, one.reference): one
        for one in compare_all({name: credits[name] for name in first}, None, clusters)
    }
    reference, compared = reference_credits(list(of_rater.values()), pairs, reference)
    # Power needs at least two prompts, and raters that are sometimes right.
    known = {name: credit for name, credit in compared.items() if credit.any()}
    enough = reference in known and len(set(clusters.tolist())) > 1
    cases = measure(known, reference, clusters) if enough else {}
    reading = [row.rater for row in rows if row.kind not in _BASELINES][:_MOST_RATERS]
    examples_of = next((row.rater for row in rows if row.calibration is not None), None)
    hits = []
    if examples_of is not None:
        scores = of_rater[examples_of]
        right = (scores.credit > 0.5) & (scores.p_chosen > 0.5)
        hits = _examples(pairs, scores, np.flatnonzero(right))
    evaluation_counts = dict(evaluation_manifest["counts"])
    records = evaluation_counts.pop("raters", {})
    evaluation = {**evaluation_manifest, "counts": evaluation_counts}
    manifests = {"evaluation": json.dumps(evaluation, indent=2)}
    if pairs_manifest is not None:
        manifests["pairs"] = json.dumps(pairs_manifest, indent=2)
    counts = (pairs_manifest or {}).get("counts", {})
    plots, missing = _agreement_figures(rows)
    # A tall picture comes second, so that the others are stacked beside it.
    plots[1:1] = _coefficients(records)
    judges = [row for row in rows if row.is_judge]
    return render(
        "page.html",
        title=title,
        links=page_links(page, beside) if page else [],
        # Not a baseline: symmetry can fix the longer story at 1/2.
        best=next((row for row in rows if row.kind not in _BASELINES and not row.trained_on), None),
        label_sources=sorted(set(pairs["label_source"].to_pylist())),
        rows=rows,
        reference=reference,
        detectable={
            row.rater: detectable(cases[key])
            for row in rows
            if (key := f"{row.rater} - {reference}") in cases
        },
        first=first,
        against=against,
        judges=judges,
        annotators=annotators,
        changes=changes,
        notes=[coin_note(rows), strata_note(rows[0]), significance_note(rows)],
        other_outcomes=[name for name in OUTCOMES[2:] if any(row.outcomes[name] for row in judges)],
        before=before_symmetry,
        pairs=pairs,
        funnel=counts.get("funnel", []),
        read=counts.get("stories", {}),
        lengths=counts.get("lengths", {}),
        plots=plots,
        missing=missing,
        examples_of=examples_of,
        hits=hits,
        misses=_misses(pairs, [of_rater[name] for name in reading]),
        manifests=manifests,
        most=most_per_unit(counts.get("funnel", [])),
    )


# Ablations ------------------------------------------------------------------------------------


def draw_ablation(study: AblationStudy) -> dict[str, Figure]:
    """Plots by file name: agreement by number of pairs (paper, Figure 6) and model size (Figure 5).

    With several variants, there is a plot for each trained rater and test set, whose lines are the
    variants; with one variant, the lines are the raters. The plot by model size has a line for each
    family, on the first headline test set.
    """
    tests = list(dict.fromkeys([*study.headline, *(test.name for test in study.tests)]))
    trained = [arm for arm in study.arms if arm.variant is not None and arm.equal]
    several = len({arm.variant for arm in trained}) > 1
    drawn: list[tuple[str, str, dict[str, list[Arm]]]] = []
    for rater in study.trained_raters if several else [""]:
        arms: dict[str, list[Arm]] = {}
        for arm in sorted(trained, key=lambda arm: arm.pairs_used or 0):
            if arm.rater == (rater or arm.rater):
                arms.setdefault(str(arm.variant) if several else arm.rater, []).append(arm)
        drawn += [(rater or "pairs", test, arms) for test in tests]
    families = by_family(study.arms, study.reference)
    drawn += [("parameters", tests[0], families)] if families else []
    panels = {}
    for name, test, arms in drawn:
        by_size = arms is families
        lines = []
        for key, own in arms.items():
            points = [
                (float((arm.parameters if by_size else arm.pairs_used) or 0), cell)
                for arm in own
                for cell in [study.cell(arm.name, test)]
            ]
            # More than three bands would overlap too much.
            banded = by_size or len(arms) <= 3 or key == study.reference
            values = [(at, cell.agreement, cell.seeds) for at, cell in points]
            lines.append(Line(short_name(key), values, "band" if banded else "none"))
        references = [
            (short_name(arm.name), study.cell(arm.name, test).agreement.mean)
            for arm in study.ready
            if arm.family is None
        ]
        label, tick = ("parameters", write_size) if by_size else ("pairs", figures.short_count)
        picture = figures.curves(lines, label, tick=tick, references=references)
        on = f"tests of {short_name(test)}"
        caption = (
            f"Raters trained here use {study.most_equal:,} pairs of {short_name(study.reference)}. "
            "Bars and bands: 95 % intervals, by test prompt."
            if by_size
            else "Line: mean over seeds. Dots: seeds. Band: 95 % interval, by test prompt; with "
            f"more than three lines only for {short_name(study.reference)}."
        )
        file = f"ablation_{name}_{test}"
        readable = re.sub(r"[^-\w]+", "-", file, flags=re.ASCII)[:80]
        file = file if readable == file else f"{readable}-{digest(name, test)[:8]}"
        title = "Agreement by model size" if by_size else f"{short_name(name)}, {on}"
        panels[file] = Figure(title, caption, picture)
    return panels


def write_ablation(
    artifact: Artifact,
    study: AblationStudy,
    *,
    funnels: Mapping[str, Sequence[Mapping[str, Any]]],
    **values: Any,
) -> None:
    """Write ablation.html and its plots.

    `funnels` has the steps of each variant. Further values are `title`, `label_sources` of the test
    pairs, `variants` (the keys in which each differs) and `training_pairs` by variant.
    """
    arms = study.matrices()[0][2]
    # The reference: the best of several variants would be selected partly by chance.
    arm = next(arm for arm in arms if arm.variant == study.reference)
    test = study.headline[0]
    write_page(
        artifact, "ablation", draw_ablation(study),
        study=study,
        arm=arm,
        cell=study.cell(arm.name, test),
        others=[
            one.comparison
            for one in study.contrasts
            if (one.axis, one.test, one.comparison.reference) == ("variant", test, arm.name)
            and one.comparison.rater in [other.name for other in arms]
        ],
        matrices=study.matrices(),
        funnels={name: (steps, most_per_unit(steps)) for name, steps in funnels.items() if steps},
        **values,
    )  # fmt: skip


# Best of n ------------------------------------------------------------------------------------


def write_best_of_n(
    artifact: Artifact, choices: Sequence[Choice], rater: str, second: str | None
) -> None:
    """Write best_of_n.html and its plots, with the counts of the artifact."""
    kinds = [
        ("gain", rater, 0.0, "gain in reward", "Gain for the rater that chooses",
         "Reward of the best of n minus the mean of its prompt's stories; it never falls with n."),
        ("second_gain", second, 0.0, "gain in its reward", "Gain for the second rater",
         "Gain of the same stories in the second rater's rewards. Where it stops rising, n is too "
         "large."),
        ("beats_random", second, 0.5, "share preferred", "The best of n against a random story",
         "How often the second rater prefers the best of n to another story of the prompt."),
        ("words", rater, 1.0, "length relative to the mean", "Length",
         "Words of the best of n over the mean of the prompt's stories."),
    ]  # fmt: skip
    panels = {}
    for key, name, level, y_label, title, caption in kinds:
        known = [(one.n, getattr(one, key), ()) for one in choices if getattr(one, key) is not None]
        if name is not None and known:
            drawn = figures.curves(
                [Line(short_name(name), known)], "n, stories chosen from",
                y_label=y_label, level=level, tick="{:,.0f}".format,
            )  # fmt: skip
            about = f"{caption} Band: 95 % interval, by prompt."
            panels[f"best_of_n_{key}"] = Figure(title, about, drawn)
    trained_on = artifact.counts["trained_on"]
    write_page(
        artifact, "best_of_n", panels,
        title="LitBench: best of n",
        label_sources=[],
        choices=choices,
        rater=rater,
        second=second,
        counts=artifact.counts,
        seen=[
            (name, trained_on[key])
            for key, name in (("rater", rater), ("second", second))
            if trained_on.get(key)
        ],
    )  # fmt: skip


def write_writers(
    artifact: Artifact,
    quantity: str,
    rows: Sequence[WriterRow],
    tables: Mapping[str, Sequence[Sequence[str]]],
    notes: Sequence[str],
    published: Mapping[str, Mapping[str, float]],
) -> None:
    """Write writers.html: the leaderboard of writers as a plot, and all tables."""
    name = next(iter(published), None)
    hollow = {} if name is None else {short_name(w): n for w, n in published[name].items()}
    drawn = figures.dots(
        [(short_name(row.writer), [[row.grade]]) for row in rows], [quantity],
        f"{quantity}, mean over prompts", levels=(), hollow=hollow,
        mark=f"published: {name}",
    )  # fmt: skip
    panel = Figure("Writers", "Mean grade and 95 % interval, by prompt.", drawn, tall=True)
    write_page(
        artifact, "writers", {"writers": panel},
        title="LitBench: writers", label_sources=[], quantity=quantity, rows=rows, tables=tables,
        notes=notes,
    )  # fmt: skip


# Probes ---------------------------------------------------------------------------------------

_AROUND, _MOST_SHOWN = 160, 900


def _probe_examples(pairs: pa.Table) -> list[dict[str, Any]]:
    """Excerpts of one story of every probe and of its changed copy, selected by a hash."""
    rows = pairs.select(["probe", "strength", "chosen", "rejected", "pair_id"]).to_pylist()
    found = []
    for probe in dict.fromkeys(row["probe"] for row in rows):
        strengths = sorted({row["strength"] for row in rows if row["probe"] == probe})
        middle = strengths[len(strengths) // 2]
        of_probe = (row for row in rows if (row["probe"], row["strength"]) == (probe, middle))
        one = min(of_probe, key=lambda row: digest("example", row["pair_id"]))
        texts = one["chosen"], one["rejected"]
        letters = enumerate(itertools.zip_longest(*texts))
        start = max(0, next(at for at, (a, b) in letters if a != b) - _AROUND)
        pieces = [("…" if start else "") + shorten(text[start:], _MOST_SHOWN) for text in texts]
        found.append({**one, "original": pieces[0], "changed": pieces[1]})
    return found


def draw_probes(results: Sequence[ProbeResult]) -> dict[str, Figure]:
    """The plots `probes_EFFECT`, for effects with probes."""
    raters, panels = by_rater(results), {}
    caption = (
        "Share of pairs in which the rater prefers the changed story; a tie counts one half. Large "
        "markers: highest strength, with its 95 % interval by prompt; small: lower strengths."
    )
    for effect, right in (("breaking", 0.0), ("preserving", 0.5)):
        rows = []
        for probe in dict.fromkeys(one.probe for one in results if one.effect == effect):
            rates = [
                [one.prefers_changed for one in of if one.probe == probe and one.prefers_changed]
                for of in raters.values()
            ]
            rows.append((probe.replace("_", " "), rates))
        if rows:
            drawn = figures.dots(
                rows, [short_name(name) for name in raters], "prefers the changed story",
                levels=[right, 0.5], limits=(-0.03, 1.03),
            )  # fmt: skip
            panels[f"probes_{effect}"] = Figure(f"Label-{effect} changes", caption, drawn)
    return panels


def write_probes(
    artifact: Artifact,
    results: Sequence[ProbeResult],
    pairs: pa.Table,
    trained_on: Mapping[str, int],
) -> None:
    """Write probes.html and its plots."""
    raters = by_rater(results)
    # A row for every probe and strength, with the results of all raters.
    rows = list(zip(*raters.values(), strict=True))
    present = {row[0].effect for row in rows}
    effects = [effect for effect in ("breaking", "preserving") if effect in present]
    write_page(
        artifact, "probes", draw_probes(results),
        title="LitBench: probes",
        # No reader compared these stories, as the page says.
        label_sources=[],
        lead=fooled_text(results),
        n_stories=len(set(pairs["chosen_story_id"].to_pylist())),
        raters=list(raters),
        tables={effect: [row for row in rows if row[0].effect == effect] for effect in effects},
        about={name: probe.about for name, probe in PROBES.items()},
        seen=sorted(name for name, prompts in trained_on.items() if prompts),
        examples=_probe_examples(pairs),
    )  # fmt: skip


# Explanations ---------------------------------------------------------------------------------


def examples_of(feature: str, data: Explanations, count: int = 3) -> list[dict[str, str]]:
    """A few explanations with a feature, of different prompts, selected by a hash."""

    def hash_of(row: int) -> str:
        verdict = data.rows[row]
        # Independent of the outcome.
        return digest(feature, verdict["rater"], verdict["pair_id"], verdict["order"])

    rows = np.flatnonzero(data.present[:, list(FEATURES).index(feature)]).tolist()
    prompts = data.clusters.tolist()
    picked = [data.rows[row] for row in _one_per_prompt(rows, prompts, hash_of, count)]
    return [{**row, "text": excerpt(feature, row["explanation"])} for row in picked]


def draw_effects(study: ExplanationStudy) -> Figure | None:
    """Plot the differences over all raters, largest first (paper, Figure 8); None without any."""
    by_name = study.by_rater if len(study.by_rater) > 1 else {}
    rows = []
    for index, one in enumerate(study.overall):
        if one.difference is not None:
            each = [one.difference, *(of[index].difference for of in by_name.values())]
            rows.append((one.feature.replace("_", " "), [[d] if d else [] for d in each]))
    if not rows:
        return None
    rows.sort(key=lambda row: -row[1][0][0].mean)
    known = [interval for _, cells in rows for cell in cells for interval in cell]
    # Wide intervals of rare features may exceed the plot, so that the others stay readable.
    ends = max(abs(bound) for one in known for bound in (one.low, one.high))
    widest = 1.08 * max(0.16, *(abs(one.mean) for one in known), min(0.4, ends))
    drawn = figures.dots(
        rows, ["all raters", *map(short_name, by_name)],
        "agreement with it minus agreement without it", levels=[0], limits=(-widest, widest),
        hollow={"plot": PUBLISHED_PLOT_GAIN}, mark="published for other judges",
    )  # fmt: skip
    caption = (
        "Agreement of verdicts whose explanation has the feature minus that of the others, with "
        "95 % intervals clustered by prompt. The difference over all raters is within raters. The "
        f"hollow marker is the +{PUBLISHED_PLOT_GAIN:.1%} that the LitBench paper reports for "
        "explanations about the plot (section 5.2), for other judges and pairs, without interval."
    )
    return Figure("Features of explanations and agreement", caption, drawn)


def write_explanations(
    artifact: Artifact, study: ExplanationStudy, data: Explanations, **values: Any
) -> None:
    """Write explanations.html and Figure 8; values are `title` and `label_sources` of the pairs."""
    known = [one for one in study.overall if one.difference is not None]
    write_page(
        artifact, "explanations", {"figure8": draw_effects(study)},
        study=study,
        known=known,
        significant=sorted(
            (one for one in known if one.is_clear and one.difference),
            key=lambda one: -abs(one.difference.mean if one.difference else 0),
        ),
        groups={"What explanations talk about": "subject", "How they talk": "manner"},
        by_rater=study.by_rater if len(study.by_rater) > 1 else {},
        about={name: words.about for name, words in FEATURES.items()},
        examples={name: examples_of(name, data) for name in FEATURES},
        **values,
    )  # fmt: skip


# Preferences ----------------------------------------------------------------------------------

_SHOWN_UNITS, _MOST_LABEL = 20, 34
# Labels with later characters are not plotted: the font lacks Chinese.
_LAST_DRAWN = 0x2E7F


def pairs_to_read(
    values: np.ndarray,
    prompts: Sequence[str],
    sides: Sequence[tuple[str, str]],
    first_chosen: np.ndarray,
    unit: int,
    count: int = 3,
) -> list[dict[str, Any]]:
    """The pairs on which a unit is strongest, and as many others selected by a hash."""
    active = np.flatnonzero(values).tolist()
    strongest = sorted(active, key=lambda row: (-abs(values[row]), row))[:count]
    others = sorted(set(active) - set(strongest), key=lambda row: digest("to read", unit, row))
    shown = []
    for how, rows in (("strongest", strongest), ("at random", others[:count])):
        for row in rows:
            more, less = sides[row] if values[row] > 0 else sides[row][::-1]
            shown.append(
                {
                    "how": how,
                    "size": abs(float(values[row])),
                    "prompt": prompts[row],
                    "more": shorten(more, _MOST_LETTERS),
                    "less": shorten(less, _MOST_LETTERS),
                    "more_chosen": bool(first_chosen[row]) == bool(values[row] > 0),
                }
            )
    return shown


def draw_units(units: Sequence[UnitRow]) -> Figure | None:
    """Plot the coefficients with their intervals; None without active units."""
    rows = []
    for row in sorted(units[:_SHOWN_UNITS], key=lambda row: -row.coefficient.mean):
        text = f"{row.unit}: {row.label}"
        if any(ord(letter) > _LAST_DRAWN for letter in text):
            text = f"unit {row.unit}"
        text = text if len(text) <= _MOST_LABEL else f"{text[: _MOST_LABEL - 1]}…"
        rows.append((text, [[row.coefficient]]))
    if not rows:
        return None
    caption = (
        "Log-odds of being preferred for a root mean square of each unit, with 95 % intervals by "
        "prompt that take the units as given. Positive: more of what the label names raises the "
        "odds."
    )
    drawn = figures.dots(rows, ["coefficient"], "log-odds", levels=[0])
    return Figure("Coefficients of the units", caption, drawn)


def write_preferences(artifact: Artifact, study: PreferenceStudy, **values: Any) -> None:
    """Write preferences.html and its plot.

    Values are `title`, `label_sources` of the pairs, `examples` (`pairs_to_read` by unit) and
    `notes` of the embeddings.
    """
    write_page(
        artifact, "preferences", {"coefficients": draw_units(study.units)},
        study=study,
        significant=[row for row in study.units if row.is_significant],
        counted={row.unit: surface_label(row.surface) for row in study.units},
        **values,
    )  # fmt: skip


# Simulation studies ---------------------------------------------------------------------------

_PLOTTED = (
    ("agreement", "equal", "agreement, equal n"),
    ("agreement", "all", "agreement, all pairs"),
    ("prefers_longer", "equal", "prefers the longer, equal n"),
)
# The results of one world, by variant, amount and measure.
World = Mapping[tuple[str, str, str], Summary]


def group_worlds(summaries: Sequence[Summary]) -> dict[str, dict[str, World]]:
    """The results by sweep (`worlds` for single worlds), then by the label of the world."""
    groups: dict[str, dict[str, Any]] = {}
    for one in summaries:
        group, label = one.world, f"{one.world} {one.value}"
        if one.value is None:
            group, label = "worlds", one.world
        of = groups.setdefault(group, {}).setdefault(label.removesuffix(".0"), {})
        of[one.variant, one.amount, one.measure] = one
    return groups


def table_rows(of: World, reference: str) -> list[list[str]]:
    """The table of one world: a heading, then a row for every variant."""
    rows = [[
        "variant", "agreement, equal n", f"minus {reference}", "prefers the longer",
        f"minus {reference}", "pairs are right", "chosen is longer", "pairs",
        "agreement, all pairs", f"minus {reference}",
    ]]  # fmt: skip
    for name in dict.fromkeys(variant for variant, _, _ in of):
        longer, natural = of[name, "equal", "prefers_longer"], of[name, "all", "agreement"]
        equal, size = of[name, "equal", "agreement"], of[name, "all", "pairs"].interval.mean
        right, chosen = (of[name, "all", key].interval for key in ("right", "chosen_longer"))
        rows.append([
            name, str(equal.interval), signed(equal.difference), str(longer.interval),
            signed(longer.difference), f"{right.mean:.3f}", f"{chosen.mean:.3f}", f"{size:,.0f}",
            str(natural.interval), signed(natural.difference),
        ])  # fmt: skip
    return rows


def study_text(summaries: Sequence[Summary], reference: str) -> str:
    """The results as text for a terminal."""
    text = "Agreement with true quality on random pairs; means and 95 % intervals over seeds.\n"
    for worlds in group_worlds(summaries).values():
        for label, of in worlds.items():
            equal = of[reference, "equal", "pairs"].interval.mean
            longer = of[reference, "equal", "random_longer"].interval
            text += f"\n{label}: equal n is {equal:,.0f} pairs; share of random pairs whose better "
            text += f"story is longer: {longer}\n{aligned(table_rows(of, reference))}"
    return text


def draw_group(group: str, worlds: Mapping[str, World]) -> dict[str, Figure]:
    """A plot of each measure, with a row for each world and a colour for each variant."""
    variants = dict.fromkeys(variant for of in worlds.values() for variant, _, _ in of)
    names = sorted(variants, key=lambda name: name == TRUTH)
    caption = "Means and 95 % intervals over seeds. truth: trained on pairs labelled by quality."
    panels = {}
    for measured, amount, title in _PLOTTED:
        rows = [
            (
                label.removeprefix(f"{group} ").replace("_", " "),
                [[of[name, amount, measured].interval] for name in names],
            )
            for label, of in worlds.items()
        ]
        drawn = figures.dots(rows, [name.replace("_", " ") for name in names], title)
        figure = Figure(f"{group.replace('_', ' ')}: {title}", caption, drawn)
        panels[f"study_{group}_{measured}_{amount}"] = figure
    return panels


def write_study(
    artifact: Artifact, summaries: Sequence[Summary], title: str, reference: str
) -> None:
    """Write study.csv, study.txt, study.html and its plots."""
    text, groups = study_text(summaries, reference), group_worlds(summaries)
    drawn = {group: draw_group(group, worlds) for group, worlds in groups.items()}
    rows = [vars(one) for one in summaries]
    artifact.write("study.csv", lambda path: write_csv(rows, path))
    artifact.write("study.txt", lambda path: path.write_text(text, encoding="utf-8"))
    write_page(
        artifact, "study", {key: one for of in drawn.values() for key, one in of.items()},
        title=title,
        # The page says that everything is simulated.
        label_sources=[],
        n_seeds=summaries[0].interval.n,
        tables={
            group: {label: table_rows(of, reference) for label, of in worlds.items()}
            for group, worlds in groups.items()
        },
        drawn={group: list(of.values()) for group, of in drawn.items()},
    )  # fmt: skip
