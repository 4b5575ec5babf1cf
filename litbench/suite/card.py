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

from litbench.data.records import GRADES, TURNS, connected_prompts
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
    table_of,
)
from litbench.evaluation.results import Evaluation, find_input
from litbench.evaluation.stopping import common_pairs
from litbench.metrics.agreement import pair_scores
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
    ask_forms,
    estimate_forms,
    forms_of,
    judge_options,
)
from litbench.suite.passport import (
    InvarianceFigures,
    JudgeCard,
    MissingFigures,
    ResolutionFigures,
)
from litbench.suite.repeats import repeats_of, votes_of
from litbench.suite.resolution import resolutions, resolutions_of_grades
from litbench.suite.self_preference import (
    SOURCES,
    family_of,
    read_families,
    self_preference,
)

Families = Mapping[str, Pattern[str]]

# Kinds of raters that are not measured, but compared with.
BASELINE_KINDS = ("longer", "shorter", "notes", "features", "bag_of_words")
_GRADES = "grades.parquet"
_SAMPLES = 3
_FORMS, _PAIRS_OF_FORMS = "other forms", 20
# Figures on the page before and after agreement by number of calls, and those that have a sign.
_QUESTIONS = {
    "agreement": "Does it agree with people?",
    "minus_annotator": "As well as one annotator?",
    "flip_rate": "Does it keep its verdict in the other order?",
    "position_bias": "How often does the story shown first win?",
    "self_agreement": "Does it agree with itself?",
    "by_order": "How many flips does the order explain?",
}
_QUESTIONS_OF_CALLS = {
    "gain": "What do repeats gain?",
    "own_family_excess": "Does it prefer its family more than people do?",
}
_SIGNED = ("minus_annotator", "by_order", "gain", "own_family_excess")


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
    if config.dry_run and not config.ask:
        raise ConfigError("dry_run without ask: the card sends no requests but those of --ask")
    if (config.run / _GRADES).is_file():
        if config.ask or config.rater or config.families or config.audit:
            raise ConfigError(
                f"{config.run} has grades, no pairs: leave ask, rater, families and audit out"
            )
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
    judged = pairs_of(evaluation)
    cards = cards_of(
        evaluation,
        judged,
        names,
        {row["rater"]: Interval.of(row["comparison"]["difference"]) for row in annotators},
        read_families(config.families),
        config.audit,
    )
    for name, asked in forms.items():
        cards[name].invariance = asked
        cards[name].missing = [part for part in cards[name].missing if part.part != _FORMS]
    sections = [
        card_section(name, card, name, f"card-{number}")
        for number, (name, card) in enumerate(cards.items())
    ]
    page = Page(
        "Can the judge be trusted?",
        f"What {evaluation.pairs.headline.num_rows:,} pairs show about each rater.",
        "95 % intervals by prompt. Agreement, flips and position: pairs of the leaderboard; other "
        f"lines: all {judged.all.num_rows:,} judged pairs.",
        sections,
        warnings=few_prompts(evaluation.rows[0].agreement),
    )
    _publish(config, cards, page, {"evaluation": json.dumps(evaluation.manifest, indent=2)})


def _write_resolution(config: CardKeys) -> None:
    """Write and print which writers the judges of a protocol's run tell apart."""
    path = config.run / _GRADES
    counts = read_manifest_of(path)["counts"]
    turns = read_table(config.run / "turns.parquet", TURNS)
    by_rater = resolutions_of_grades(read_table(path, GRADES), turns, counts["headline"])
    rows = [
        _row(name, f"{figures.told_apart} of {figures.pairs} pairs", _resolution_text(figures))
        for name, figures in by_rater.items()
    ]
    table = Table(["judge or quantity", "writers told apart", "meaning"], rows)
    page = Page(
        "Which writers does the judge tell apart?",
        f"What a run of {counts['protocol']} shows.",
        "Differences on the same items, Holm's correction over all pairs of writers.",
        [Section(f"By {counts['headline']}", table=table, name="resolution")],
    )
    _publish(config, plain(by_rater), page, {"run": json.dumps(counts, indent=2)})


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
) -> dict[str, list[InvarianceFigures]]:
    """Ask questions of the run's judges in other forms; a dry run only prints the cost."""
    pairs = evaluation.all_pairs.select(common_pairs(evaluation.verdicts)).headline
    drawn = subsample(pairs, config.ask)
    # Of a run of several sets, the answers are in the folder of all.
    folders = (config.run, config.run.parent)
    folder = next((path for path in folders if (path / "answers").is_dir()), config.run)
    results = {}
    for name in names:
        options = judge_options(evaluation, name, config.max_cost_usd)
        forms = {} if options is None else forms_of(name, options, drawn)
        if not forms:
            print(f"{name}: only a judge of pairs can be asked in other forms")
            continue
        print(f"{name}: {drawn.num_rows:,} pairs in {len(forms)} forms; estimate:")
        print(estimates_text(estimate_forms(forms, folder)))
        if not config.dry_run:
            results[name] = ask_forms(forms, folder)
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
    dollars = {name: row.cost_usd for name, row in rows.items()}
    writers = resolutions(pairs, {name: credits[name] for name in raters}, dollars)
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
    writers: Mapping[str, ResolutionFigures],
) -> JudgeCard:
    """The card of a rater; see `cards_of`."""
    entry = evaluation.manifest["config"]["raters"][row.rater]
    votes = votes_of(evaluation.verdicts, pairs["pair_id"].to_pylist(), row.rater)
    verdicts = evaluation.verdicts.filter(pc.equal(evaluation.verdicts["rater"], row.rater))
    samples, dollars, price, repeats = 1, None, None, None
    if row.cost_usd is not None:
        dollars = row.cost_usd / len(verdicts["pair_id"].unique())
    if votes is not None:
        samples = votes.shape[2]
        price = None if dollars is None else dollars / votes[0].size
        repeats = repeats_of(votes, connected_prompts(pairs), price)
    family = family_of(str(entry.get("model") or entry.get("judge") or row.rater), families)
    preference = (
        "its family is not in the table of families, see --families"
        if family is None
        else self_preference(credit, pairs, family, families)
    )
    measured = {
        "agreement": row.agreement,
        **beside,
        "flip_rate": row.flip_rate,
        "position_bias": row.position_bias,
        **({} if repeats is None else repeats.figures),
        **({} if isinstance(preference, str) else preference),
    }
    figures = {
        name: figure
        for name, figure in measured.items()
        if figure is not None and math.isfinite(figure.mean)
    }
    content = {
        "figures": figures,
        "samples": samples,
        "calls": [] if repeats is None else repeats.growth,
        "family": family,
        "content_blind": content_blind,
        "resolution": dict(writers),
        "dollars": dollars,
        "missing": [
            *_missing_answers(row.kind, votes, repeats is not None, price),
            *_missing_facts(figures, preference, content_blind, writers),
        ],
    }
    return build(JudgeCard, plain(content), row.rater)


def _content_blind(evaluation: Evaluation, audits: Sequence[Path]) -> dict[str, float]:
    """The content-blind share of raters by audits of the same pairs."""
    pairs = evaluation.manifest["inputs"]["pairs"]["sha256"]
    results = [read_audit(folder, pairs) for folder in audits]
    # The folder beside that of the pairs may be the audit of other pairs, or none.
    with contextlib.suppress(DataError):
        results.append(read_audit(evaluation.pairs_path.parent.parent / "audit", pairs))
    raters = [result["rater"] for result in results if "rater" in result]
    return {row["rater"]: row["reproduced"] for row in raters if row["reproduced"] is not None}


# What is missing -------------------------------------------------------------------------------


def _missing_answers(
    kind: str, votes: np.ndarray | None, has_repeats: bool, price: float | None
) -> list[MissingFigures]:
    """Missing answers of a rater, with their dollars at the price of an answer."""

    def missing(part: str, why: str, remedy: str, calls: int | None = None) -> MissingFigures:
        dollars = None if calls is None or price is None else calls * price
        return MissingFigures(part, why, remedy, calls, dollars)

    if kind != "judge" or votes is None:
        why = "the recording has one answer" if kind == "recorded" else "it has no repeated answers"
        return [missing("repeats", why, "ask a judge of pairs with samples")]
    parts = []
    if not has_repeats:
        why, remedy = "each question has one answer", f"run the judge again with samples {_SAMPLES}"
        parts.append(missing("repeats", why, remedy, votes.size * (_SAMPLES - 1)))
    why, remedy = "no question was asked in another form", f"litbench card --ask {_PAIRS_OF_FORMS}"
    calls = _PAIRS_OF_FORMS * 2 * MIN_SAMPLES * MAX_FORMS
    return [*parts, missing(_FORMS, why, remedy, calls)]


def _missing_facts(
    figures: Mapping[str, Interval],
    preference: Mapping[str, Interval] | str,
    content_blind: float | None,
    writers: Mapping[str, ResolutionFigures],
) -> list[MissingFigures]:
    """What is missing about people, writers and the content."""
    columns = f"columns chosen_{SOURCES[0]} and rejected_{SOURCES[0]}"
    parts = []
    if "minus_annotator" not in figures:
        why = "no ratings of single annotators are known"
        parts.append(MissingFigures("one annotator", why, "litbench eval benchmark --ratings"))
    if isinstance(preference, str):
        remedy = "pairs with texts by its family and by others, chosen by people"
        parts.append(MissingFigures("own family", preference, remedy))
    if content_blind is None:
        why = "no audit of the rater is known, or it is not above chance there"
        remedy = "litbench audit with the rater, see --audit"
        parts.append(MissingFigures("content-blind share", why, remedy))
    if not any(resolution.pairs for resolution in writers.values()):
        why = "no writers with three common prompts are known"
        parts.append(MissingFigures("writers told apart", why, columns))
    return parts


# The page --------------------------------------------------------------------------------------


def card_section(rater: str, card: JudgeCard, title: str, name: str) -> Section:
    """The card as a section: questions, figures and what they mean, and what is missing."""
    rows = [
        *_figure_rows(card, _QUESTIONS),
        *_call_rows(card),
        *_figure_rows(card, _QUESTIONS_OF_CALLS),
        *_content_rows(card),
        *_writer_rows(rater, card),
        *_price_rows(card),
    ]
    table = Table(["question", "answer", "meaning"], rows)
    missing = table_of(
        card.missing,
        {
            "what is missing": lambda part: Cell(part.part, is_text=True),
            "why, and what to do": lambda part: Cell(f"{part.why}: {part.remedy}", is_text=True),
            "calls": lambda part: part.calls,
            "$": lambda part: write_dollars(part.dollars),
        },
    )
    part = Section("What is missing", table=missing, name=f"missing-{name}")
    return Section(title, table=table, parts=[part] if card.missing else [], name=name)


def _row(question: str, answer: Any, meaning: str) -> list[Cell]:
    return [Cell(question, is_text=True), as_cell(answer), Cell(meaning, is_text=True)]


def _figure_rows(card: JudgeCard, questions: Mapping[str, str]) -> list[list[Cell]]:
    return [
        _row(question, stacked(figure, is_signed=name in _SIGNED), _meaning(card, name, figure))
        for name, question in questions.items()
        if (figure := card.interval(name)) is not None
    ]


def _meaning(card: JudgeCard, name: str, figure: Interval) -> str:
    """What a figure of a card says."""
    if name == "agreement":
        longer = card.interval("longer")
        return "a coin has 0.500" if longer is None else f"the longer story has {longer}"
    if name == "minus_annotator":
        if not figure.is_bounded or figure.low <= 0 <= figure.high:
            return "no clear difference from one annotator"
        return f"significantly {'better' if figure.mean > 0 else 'worse'} than one annotator"
    if name == "position_bias":
        if not figure.is_bounded or figure.low <= 0.5 <= figure.high:
            return "no clear preference for a position"
        return f"it prefers the {'first' if figure.mean > 0.5 else 'second'} story"
    if name == "own_family_excess":
        own, people = (card.mean(f"own_family{end}") for end in ("", "_people"))
        return (
            f"it prefers {card.family} in {own:.3f} of {figure.n:,} pairs, people in {people:.3f}"
        )
    return {
        "flip_rate": "pairs in which the verdict changes when the stories swap places",
        "self_agreement": "two answers to the same question, in the same order",
        "by_order": f"beyond the {percent(card.mean('by_repeats'))} that repeats explain",
        "gain": "last line minus the one above",
    }[name]


def _call_rows(card: JudgeCard) -> list[list[Cell]]:
    rows = []
    for calls in card.calls:
        orders = "one order" if calls.orders == 1 else "both orders"
        answers = "one answer" if calls.samples == 1 else f"{calls.samples} answers"
        dollars = "" if calls.dollars is None else f", ${write_dollars(calls.dollars)} a pair"
        count = calls.orders * calls.samples
        text = f"{count} call{'s' * (count > 1)}{dollars}"
        agreement = stacked(calls.agreement.interval())
        rows.append(_row(f"Agreement with {orders}, {answers}", agreement, text))
    return rows


def _content_rows(card: JudgeCard) -> list[list[Cell]]:
    """How far verdicts need the content, and change with the form of the question."""
    rows = []
    if card.content_blind is not None:
        text = "of its agreement above chance, by cues that need no reading"
        rows.append(_row("How much needs no reading?", percent(card.content_blind), text))
    for form in card.invariance:
        beyond = stacked(form.beyond.interval(), is_signed=True)
        text = f"changed in {percent(form.changed.mean)}; beyond repeats, {p_value(form.p_holm)}"
        rows.append(_row(f"Changed verdicts: {form.form}", beyond, text))
    return rows


def _writer_rows(rater: str, card: JudgeCard) -> list[list[Cell]]:
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


def _price_rows(card: JudgeCard) -> list[list[Cell]]:
    if card.dollars is None:
        return []
    calls = "both orders" if "flip_rate" in card.figures else "one verdict"
    calls += f", {card.samples} answers each" if card.samples > 1 else ""
    return [_row("What does a pair cost?", f"${write_dollars(card.dollars)}", calls)]
