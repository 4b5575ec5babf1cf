"""The judge card: what a run's records show about a judge, and what is missing.

    litbench card runs/judge

The same figures are the section `card` of a passport of the suite.
"""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from re import Pattern
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import NonNegativeInt

from litbench.data.records import GRADES, SIDES, TURNS, connected_prompts
from litbench.data.sources.evaluation_pairs import (
    EvaluationPairs,
    read_audit,
    read_pairs,
    subsample,
)
from litbench.data.tables import read_table
from litbench.evaluation.report.document import (
    Cell,
    Page,
    Section,
    Table,
    as_cell,
    few_prompts,
    p_value,
    percent,
    render,
    stacked,
)
from litbench.evaluation.results import Evaluation, find_input
from litbench.evaluation.stopping import common_pairs
from litbench.judges.judge import JudgeOptions
from litbench.metrics.agreement import length_differences, pair_scores
from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import LeaderboardRow, plain
from litbench.raters.interface import estimates_text
from litbench.runs.config import Positional, build, nearest
from litbench.runs.errors import ConfigError, DataError, MissingExtraError
from litbench.runs.outputs import read_manifest_of, write_atomically, write_json
from litbench.runs.terminal import write_dollars
from litbench.suite.invariance import (
    MAX_FORMS,
    MIN_SAMPLES,
    Invariance,
    ask_forms,
    estimate_forms,
    forms_of,
)
from litbench.suite.passport import (
    InvarianceFigures,
    JudgeCard,
    MissingFigures,
    ResolutionFigures,
)
from litbench.suite.repeats import Repeats, repeats_of, votes_of
from litbench.suite.resolution import Resolution, resolutions, resolutions_of_grades
from litbench.suite.self_preference import (
    SOURCES,
    SelfPreference,
    family_of,
    people_preference,
    read_families,
    self_preference,
    source_column,
)

Families = Mapping[str, Pattern[str]]

# Kinds of raters that are not measured, but compared with.
BASELINE_KINDS = ("longer", "shorter", "notes", "features", "bag_of_words")
_GRADES = "grades.parquet"
_SAMPLES = 3
_FLIPS, _FORMS = "flip_rate", "other forms"
_PAIRS_OF_FORMS = 20


@dataclass(kw_only=True)
class CardKeys:
    """Write the card of judges: whether they can be trusted, from what a run has recorded.

        litbench card runs/judge
        litbench card runs/judge --ask 20 --dry_run
        litbench card runs/longform

    Answers from the records alone, without a request: agreement with people, repeats, order, own
    family, content-blind share, resolution and price; and what is missing, with its price. With
    `--ask` it also asks questions of the run in other forms: another instruction, other names of
    the sides, no Markdown, white space. Writes card.html and card.json.

    Attributes:
        run: output folder of `litbench judge`, of eval/benchmark.py, or of a set of the suite; or
            of `litbench run`: then the page says which writers its judges tell apart. It can be
            the first argument, without --run.
        rater: only these raters; repeatable. All but the baselines by default.
        families: YAML file of families that adds to the packaged ones: a name, and a regular
            expression of the models in it.
        audit: output folder of `litbench audit` with the rater; repeatable. The folder `audit`
            beside that of the pairs is read, too.
        ask: number of pairs whose questions are asked in other forms, drawn over prompts.
        max_cost_usd: maximum dollars for each model that is asked, over all runs.
        out: output folder; the folder `card` in that of the run by default.
        dry_run: only estimate calls, tokens, dollars and minutes of `ask`.
    """

    run: Annotated[Path, Positional]
    rater: list[str] = field(default_factory=list)
    families: Path | None = None
    audit: list[Path] = field(default_factory=list)
    ask: NonNegativeInt = 0
    max_cost_usd: float | None = None
    out: Path | None = None
    dry_run: bool = False


def write_card(config: CardKeys) -> None:
    """Write the cards of a run, and print them."""
    if (config.run / _GRADES).is_file():
        _write_resolution(config)
        return
    evaluation = Evaluation.find(config.run)
    every = [row.rater for row in evaluation.rows]
    for name in config.rater:
        if name not in every:
            raise ConfigError(f"{config.run} has no rater '{name}': {nearest(name, every)}")
    names = config.rater or [
        row.rater for row in evaluation.rows if row.kind not in BASELINE_KINDS and row.is_judged
    ]
    if not names:
        raise ConfigError(f"{config.run} has no judge but baselines: name one with --rater")
    annotators = (evaluation.annotators() or {}).get("raters", [])
    forms = _asked_forms(config, evaluation, names) if config.ask else {}
    if config.dry_run:
        return
    cards = cards_of(
        evaluation,
        pairs_of(evaluation),
        names,
        {row["rater"]: Interval.of(row["comparison"]["difference"]) for row in annotators},
        read_families(config.families),
        config.audit,
    )
    for name, asked in forms.items():
        cards[name].invariance = [build(InvarianceFigures, plain(form), name) for form in asked]
        cards[name].missing = [part for part in cards[name].missing if part.part != _FORMS]
    sections = [
        card_section(name, card, name, f"card-{number}")
        for number, (name, card) in enumerate(cards.items())
    ]
    page = Page(
        "Can the judge be trusted?",
        f"What {evaluation.pairs.headline.num_rows:,} pairs show about {len(cards)} raters.",
        "95 % intervals by prompt.",
        sections,
        warnings=few_prompts(evaluation.rows[0].agreement),
    )
    _publish(config, cards, page, {"evaluation": json.dumps(evaluation.manifest, indent=2)})


def _write_resolution(config: CardKeys) -> None:
    """Write and print which writers the judges of a protocol's run tell apart."""
    path = config.run / _GRADES
    counts = read_manifest_of(path)["counts"]
    turns = read_table(config.run / "turns.parquet", TURNS)
    by_rater = plain(resolutions_of_grades(read_table(path, GRADES), turns, counts["headline"]))
    rows = []
    for name, values in by_rater.items():
        figures = build(ResolutionFigures, values, name)
        answer = f"{figures.told_apart} of {figures.pairs} pairs"
        rows.append(_row(name, answer, _resolution_text(figures)))
    table = Table(["judge or quantity", "writers told apart", "meaning"], rows)
    page = Page(
        "Which writers does the judge tell apart?",
        f"What a run of {counts['protocol']} shows.",
        "Differences on the same items, Holm's correction over all pairs of writers.",
        [Section(f"By {counts['headline']}", table=table, name="resolution")],
    )
    _publish(config, by_rater, page, {"run": json.dumps(counts, indent=2)})


def _publish(config: CardKeys, cards: Any, page: Page, manifests: dict[str, str]) -> None:
    """Write card.json and, with the extra `report`, card.html; print the page's sections."""
    out = config.out or config.run / "card"
    out.mkdir(parents=True, exist_ok=True)
    write_json(cards, out / "card.json")
    for section in page.sections:
        print(f"{section.title}\n\n{section.as_text()}\n")
    try:
        text = render(page, manifests)
    except MissingExtraError as error:
        print(f"no page: {error}")
        return
    path = (out / "card.html").resolve()
    write_atomically(path, partial(Path.write_text, data=text, encoding="utf-8"))
    print(f"card: {path}")


def _asked_forms(
    config: CardKeys, evaluation: Evaluation, names: Sequence[str]
) -> dict[str, list[Invariance]]:
    """Ask questions of the run's judges in other forms; a dry run only prints the cost."""
    pairs = evaluation.all_pairs.select(common_pairs(evaluation.verdicts)).headline
    drawn = subsample(pairs, config.ask)
    # Of a run of several sets, the answers are in the folder of all.
    folder = next((f for f in (config.run, config.run.parent) if (f / "answers").is_dir()), None)
    results = {}
    for name in names:
        entry = dict(evaluation.manifest["config"]["raters"][name])
        if entry.pop("kind") != "judge":
            continue
        if config.max_cost_usd is not None:
            entry["traffic"] = {**entry.get("traffic", {}), "max_cost_usd": config.max_cost_usd}
        forms = forms_of(name, build(JudgeOptions, entry, f"raters.{name}"), drawn)
        if not forms:
            continue
        print(f"{name}: {drawn.num_rows:,} pairs in {len(forms)} forms; estimate:")
        print(estimates_text(estimate_forms(forms, folder or config.run)))
        if not config.dry_run:
            results[name] = ask_forms(forms, folder or config.run)
    return results


# Figures ---------------------------------------------------------------------------------------


def pairs_of(evaluation: Evaluation) -> EvaluationPairs:
    """The pairs of an evaluation; with all pairs within a prompt if it has annotators."""
    manifest = evaluation.manifest
    if "ratings" not in manifest["inputs"]:
        return evaluation.all_pairs
    ratings = find_input(evaluation.folder, manifest, "ratings")
    pairs = read_pairs(evaluation.pairs_path, None, manifest["config"]["split"], ratings)
    return pairs.select(evaluation.verdicts["pair_id"].unique())


def cards_of(
    evaluation: Evaluation,
    judged: EvaluationPairs,
    raters: Sequence[str],
    minus_annotator: Mapping[str, Interval],
    families: Families,
    audits: Sequence[Path] = (),
) -> dict[str, JudgeCard]:
    """Compute the cards of raters from a finished evaluation.

    Args:
        evaluation: the evaluation.
        judged: all its pairs, see `pairs_of`; the cards are of those that every rater judged.
        raters: names of raters in it.
        minus_annotator: by rater, agreement with annotators minus that of one of them.
        families: see `read_families`.
        audits: output folders of audits with a rater.
    """
    pairs = judged.select(common_pairs(evaluation.verdicts)).all
    credits = {scores.rater: scores.credit for scores in pair_scores(evaluation.verdicts, pairs)}
    rows = {row.rater: row for row in evaluation.rows}
    shares = _content_blind(evaluation, audits)
    writers = _resolutions(pairs, {name: credits[name] for name in raters}, rows)
    return {
        name: _card(
            rows[name],
            evaluation,
            pairs,
            credits[name],
            families,
            {
                "longer": rows["longer"].agreement if "longer" in rows else None,
                "minus_annotator": minus_annotator.get(name),
            },
            shares.get(name),
            {key: writers[key] for key in (name, "longer", "people") if key in writers},
        )
        for name in raters
    }


def _card(
    row: LeaderboardRow,
    evaluation: Evaluation,
    pairs: pa.Table,
    credit: np.ndarray,
    families: Families,
    beside: Mapping[str, Interval | None],
    content_blind: float | None,
    writers: Mapping[str, Resolution],
) -> JudgeCard:
    """The card of a rater; see `cards_of`."""
    entry = evaluation.manifest["config"]["raters"][row.rater]
    votes = votes_of(evaluation.verdicts, pairs["pair_id"].to_pylist(), row.rater)
    samples = 1 if votes is None else votes.shape[2]
    verdicts = evaluation.verdicts.filter(pc.equal(evaluation.verdicts["rater"], row.rater))
    answers, price = pairs.num_rows * 2 * samples, None
    if row.cost_usd is not None:
        price = row.cost_usd / (verdicts.num_rows * samples)
    repeats = None if votes is None else repeats_of(votes, connected_prompts(pairs), price)
    family = family_of(str(entry.get("model") or entry.get("judge") or row.rater), families)
    preference = (
        "its family is not in the table of families, see --families"
        if family is None
        else self_preference(credit, pairs, family, families)
    )
    figures = {
        "agreement": row.agreement,
        **beside,
        _FLIPS: row.flip_rate,
        "position_bias": row.position_bias,
        **_repeat_figures(repeats),
        **_own_figures(preference),
    }
    missing = [
        *_missing_repeats(row, repeats, answers // samples * (_SAMPLES - samples), price),
        *_missing_people(beside),
        *_missing_own(preference),
        *_missing_share(content_blind),
        *_missing_writers(writers),
        *_missing_forms(row, price),
    ]
    content = {
        "figures": {
            name: figure
            for name, figure in figures.items()
            if figure is not None and math.isfinite(figure.mean)
        },
        "samples": samples,
        "calls": [] if repeats is None else repeats.growth,
        "family": family,
        "content_blind": content_blind,
        "resolution": dict(writers),
        "dollars": None if price is None else price * 2 * samples,
        "missing": missing,
    }
    return build(JudgeCard, plain(content), row.rater)


def _repeat_figures(repeats: Repeats | None) -> dict[str, Interval]:
    if repeats is None:
        return {}
    names = ("self_agreement", "by_repeats", "by_order", "gain")
    return {name: getattr(repeats, name) for name in names}


def _own_figures(preference: SelfPreference | str) -> dict[str, Interval]:
    if isinstance(preference, str):
        return {}
    return {
        "own_family": preference.judge,
        "own_family_people": preference.people,
        "own_family_excess": preference.excess,
    }


def _resolutions(
    pairs: pa.Table, credits: Mapping[str, np.ndarray], rows: Mapping[str, LeaderboardRow]
) -> dict[str, Resolution]:
    """The resolution of raters, of the longer story and of people; empty without writers."""
    name = source_column(pairs)
    if name is None:
        return {}
    lengths, people = np.sign(length_differences(pairs)), people_preference(pairs)
    credits = {**credits, "people": people, "longer": (lengths + 1) / 2}
    sources = {side: pairs[f"{side}_{name}"].to_pylist() for side in SIDES}
    dollars = {rater: rows[rater].cost_usd for rater in credits if rater in rows}
    return resolutions(credits, dollars, sources, connected_prompts(pairs))


def _content_blind(evaluation: Evaluation, audits: Sequence[Path]) -> dict[str, float]:
    """The content-blind share of raters by audits of the same pairs."""
    pairs = evaluation.manifest["inputs"]["pairs"]["sha256"]
    results = [read_audit(folder, pairs) for folder in audits]
    # The folder beside that of the pairs may be the audit of other pairs, or none.
    with contextlib.suppress(DataError):
        results.append(read_audit(evaluation.pairs_path.parent.parent / "audit", pairs))
    of_raters = [result["rater"] for result in results if "rater" in result]
    return {
        rater["rater"]: rater["reproduced"]
        for rater in of_raters
        if rater["reproduced"] is not None
    }


# What is missing -------------------------------------------------------------------------------


def _missing_repeats(
    row: LeaderboardRow, repeats: Repeats | None, calls: int, price: float | None
) -> list[MissingFigures]:
    if repeats is not None:
        return []
    if row.kind == "judge":
        dollars = None if price is None else price * calls
        why, remedy = "each question has one answer", f"run the judge again with samples {_SAMPLES}"
        return [MissingFigures("repeats", why, remedy, calls, dollars)]
    why = "the recording has one answer" if row.kind == "recorded" else "it has no repeated answers"
    return [MissingFigures("repeats", why, "ask a judge of the kind judge with samples")]


def _missing_people(beside: Mapping[str, Interval | None]) -> list[MissingFigures]:
    if beside["minus_annotator"] is not None:
        return []
    why = "no ratings of single annotators are known"
    return [MissingFigures("one annotator", why, "litbench eval benchmark --ratings")]


def _missing_own(preference: SelfPreference | str) -> list[MissingFigures]:
    if not isinstance(preference, str):
        return []
    remedy = "pairs with texts by its family and by others, chosen by people"
    return [MissingFigures("own family", preference, remedy)]


def _missing_share(content_blind: float | None) -> list[MissingFigures]:
    if content_blind is not None:
        return []
    why = "no audit of the rater is known, or it is not above chance there"
    return [
        MissingFigures("content-blind share", why, "litbench audit with the rater, see --audit")
    ]


def _missing_writers(writers: Mapping[str, Any]) -> list[MissingFigures]:
    if any(resolution.pairs for resolution in writers.values()):
        return []
    why = "no writers with three common prompts are known"
    remedy = f"columns chosen_{SOURCES[0]} and rejected_{SOURCES[0]}"
    return [MissingFigures("writers told apart", why, remedy)]


def _missing_forms(row: LeaderboardRow, price: float | None) -> list[MissingFigures]:
    if row.kind != "judge":
        return []
    calls = _PAIRS_OF_FORMS * 2 * MIN_SAMPLES * MAX_FORMS
    why, remedy = "no question was asked in another form", f"litbench card --ask {_PAIRS_OF_FORMS}"
    dollars = None if price is None else calls * price
    return [MissingFigures(_FORMS, why, remedy, calls, dollars)]


# The page --------------------------------------------------------------------------------------


def card_section(rater: str, card: JudgeCard, title: str, name: str) -> Section:
    """The card as a section: questions, figures and what they mean, and what is missing."""
    rows = [
        *_agreement_rows(card),
        *_order_rows(card),
        *_call_rows(card),
        *_bias_rows(card),
        *_form_rows(card),
        *_writer_rows(rater, card),
    ]
    if card.dollars is not None:
        calls = f"both orders, {card.samples} answers each" if card.samples > 1 else "both orders"
        rows.append(_row("What does a pair cost?", f"${write_dollars(card.dollars)}", calls))
    table = Table(["question", "answer", "meaning"], rows)
    missing = [
        [
            Cell(part.part, is_text=True),
            Cell(f"{part.why}: {part.remedy}", is_text=True),
            part.calls,
            write_dollars(part.dollars),
        ]
        for part in card.missing
    ]
    parts = []
    if missing:
        heading = ["what is missing", "why, and what to do", "calls", "$"]
        part = Section("What is missing", table=Table(heading, missing), name=f"missing-{name}")
        parts = [part]
    return Section(title, table=table, parts=parts, name=name)


def _row(question: str, answer: Any, meaning: str) -> list[Any]:
    return [Cell(question, is_text=True), as_cell(answer), Cell(meaning, is_text=True)]


def _signed(interval: Interval | None) -> Cell:
    return stacked(interval, is_signed=True)


def _agreement_rows(card: JudgeCard) -> list[list[Any]]:
    agreement, longer = card.interval("agreement"), card.interval("longer")
    meaning = "a coin has 0.500" if longer is None else f"the longer story has {longer}"
    rows = [_row("Does it agree with people?", stacked(agreement), meaning)]
    if (minus := card.interval("minus_annotator")) is not None:
        rows.append(
            _row("As well as one annotator?", _signed(minus), _direction(minus, "annotator"))
        )
    return rows


def _direction(interval: Interval, other: str) -> str:
    if not interval.is_bounded or interval.low <= 0 <= interval.high:
        return f"no clear difference from one {other}"
    return f"significantly {'better' if interval.mean > 0 else 'worse'} than one {other}"


def _order_rows(card: JudgeCard) -> list[list[Any]]:
    rows = []
    if (flips := card.interval(_FLIPS)) is not None:
        text = "pairs in which the verdict changes when the stories swap places"
        rows.append(_row("Does it keep its verdict in the other order?", stacked(flips), text))
    if (first := card.interval("position_bias")) is not None:
        is_clear = first.is_bounded and not first.low <= 0.5 <= first.high
        side = "first" if first.mean > 0.5 else "second"
        text = f"it prefers the {side} story" if is_clear else "no clear preference for a position"
        rows.append(_row("How often does the story shown first win?", stacked(first), text))
    if (same := card.interval("self_agreement")) is not None:
        text = "two answers to the same question, in the same order"
        rows.append(_row("Does it agree with itself?", stacked(same), text))
    if (order := card.interval("by_order")) is not None:
        text = f"beyond the {percent(card.figures['by_repeats'].mean)} that repeats explain"
        rows.append(_row("How many flips does the order explain?", _signed(order), text))
    return rows


def _call_rows(card: JudgeCard) -> list[list[Any]]:
    rows = []
    for calls in card.calls:
        orders = "one order" if calls.orders == 1 else "both orders"
        answers = "one answer" if calls.samples == 1 else f"{calls.samples} answers"
        dollars = "" if calls.dollars is None else f", ${write_dollars(calls.dollars)} a pair"
        count = calls.orders * calls.samples
        text = f"{count} call{'s' * (count > 1)}{dollars}"
        agreement = stacked(calls.agreement.interval())
        rows.append(_row(f"Agreement with {orders}, {answers}", agreement, text))
    if (gain := card.interval("gain")) is not None:
        rows.append(_row("What do repeats gain?", _signed(gain), "last line minus the one above"))
    return rows


def _bias_rows(card: JudgeCard) -> list[list[Any]]:
    rows = []
    if (excess := card.interval("own_family_excess")) is not None:
        own, people = (card.figures[f"own_family{end}"].mean for end in ("", "_people"))
        text = (
            f"it prefers {card.family} in {own:.3f} of {excess.n:,} pairs, people in {people:.3f}"
        )
        rows.append(_row("Does it prefer its family more than people do?", _signed(excess), text))
    if card.content_blind is not None:
        text = "of its agreement above chance, by cues that need no reading"
        rows.append(_row("How much needs no reading?", percent(card.content_blind), text))
    return rows


def _form_rows(card: JudgeCard) -> list[list[Any]]:
    rows = []
    for form in card.invariance:
        beyond, p = form.beyond.interval(), p_value(form.p_holm)
        text = f"changed in {percent(form.changed.mean)}; beyond repeats, {p}"
        rows.append(_row(f"Changed verdicts: {form.form}", _signed(beyond), text))
    return rows


def _writer_rows(rater: str, card: JudgeCard) -> list[list[Any]]:
    rows = []
    for name, figures in card.resolution.items():
        if not figures.pairs:
            continue
        named = "the longer story" if name == "longer" else name
        question = "Which writers does it tell apart?" if name == rater else f"... {named}"
        answer = f"{figures.told_apart} of {figures.pairs} pairs"
        rows.append(_row(question, answer, _resolution_text(figures)))
    return rows


def _resolution_text(figures: ResolutionFigures) -> str:
    text = f"{figures.writers} writers, means within {figures.spread:.3f}"
    if figures.smallest is not None:
        text += f"; finds a difference of {figures.smallest:.3f} in 80 %"
    if figures.dollars is not None and figures.told_apart:
        text += f"; ${write_dollars(figures.dollars / figures.told_apart)} per pair told apart"
    return text
