"""The site of the suite: a leaderboard by language and kind of text, and a page per rater."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from litbench.evaluation.report.document import (
    ENDS,
    Cell,
    Figure,
    Page,
    Section,
    Table,
    percent,
    render,
    stacked,
    table_of,
    write_interval,
)
from litbench.evaluation.report.figures import dots
from litbench.evaluation.report.leaderboard import information_warnings
from litbench.metrics.comparisons import holm, interval_p
from litbench.metrics.intervals import Interval
from litbench.metrics.sets import over_sets, shrunken
from litbench.runs.outputs import file_name, fingerprint, write_atomically
from litbench.suite.card import card_section
from litbench.suite.passport import (
    Passport,
    PassportInterval,
    PeopleFigures,
    SetFigures,
    set_rows_of,
)

# Differences that a page calls a weakness.
_LEAN, _FLIPS, _COVERAGE, _ALPHA = 0.2, 0.2, 0.95, 0.05
_WORSE = "Significantly worse than {}"
_BELOW_PEOPLE = "Agrees with annotators significantly less than one of them"
_POSITION = "Prefers a position, first or second"
_SHRUNKEN = (
    "Shrunken: the agreement to expect on new prompts of the set, an empirical Bayes estimate over "
    "these sets: the highest and the lowest are partly chance."
)
_LANGUAGES = {"en": "English", "zh": "Chinese"}


@dataclass(frozen=True)
class SiteEntry:
    """A passport on the site.

    Attributes:
        passport: the passport.
        source: its file as JSON text.
        is_recomputed: whether its figures were computed again from verdicts.
    """

    passport: Passport
    source: str
    is_recomputed: bool

    @property
    def address(self) -> str:
        return f"{file_name(f'rater {self.passport.rater}')}.html"


def write_site(entries: Sequence[SiteEntry], folder: Path) -> list[Path]:
    """Write the leaderboard of all sets, of each language and kind of text, and the raters' pages.

    Returns:
        The files; `index.html` is the first.
    """
    every = {key for entry in entries for key in _facets(entry.passport)}
    languages, kinds = sorted({facet[0] for facet in every}), sorted({facet[1] for facet in every})
    choices = [
        (language, kind)
        for language in ("", *languages)
        for kind in ("", *kinds)
        if any(language in ("", code) and kind in ("", other) for code, other in every)
    ]
    files = {_file(choice): _leaderboard_page(entries, *choice, choices) for choice in choices}
    files |= {entry.address: _rater_page(entry) for entry in entries}
    for name, text in files.items():
        write_atomically(folder / name, partial(Path.write_text, data=text, encoding="utf-8"))
    return [folder / name for name in files]


def _facets(passport: Passport) -> set[tuple[str, str]]:
    return {(figures.language, figures.kind) for figures in passport.sets.values()}


def _file(choice: tuple[str, str]) -> str:
    return file_name("_".join(part for part in choice if part) or "index") + ".html"


def _title(choice: tuple[str, str]) -> str:
    language, kind = choice
    words = [_LANGUAGES.get(language, language), kind]
    return " ".join(word for word in words if word) or "all sets"


# The leaderboard -------------------------------------------------------------------------------


def _leaderboard_page(
    entries: Sequence[SiteEntry], language: str, kind: str, choices: Sequence[tuple[str, str]]
) -> str:
    chosen = []
    for entry in entries:
        sets = {
            name: figures
            for name, figures in entry.passport.sets.items()
            if language in ("", figures.language) and kind in ("", figures.kind)
        }
        chosen += [replace(entry, passport=replace(entry.passport, sets=sets))] if sets else []
    names = {name for entry in chosen for name in entry.passport.sets}
    page = Page(
        title=f"LitBench suite: {_title((language, kind))}",
        lead=f"How often {len(chosen)} raters agree with people on {len(names)} sets of judgements "
        "of creative writing.",
        facts="Agreement: the share of pairs in which the rater prefers the story that people "
        "preferred; ties and pairs without a judgement count half. 95 % intervals.",
        sections=[
            Section(
                "Leaderboard",
                "Mean over sets, each of which counts once, with an interval over sets and "
                "prompts. Each table has the raters that judged the same pairs of the same sets: "
                "figures of different tables may not be compared.",
                parts=_groups(chosen),
            ),
            _sets_section(chosen),
            Section("What may not be compared", _not_comparable(chosen)),
        ],
        warnings=[text for entry in chosen for text in _without_information(entry.passport)],
    )
    links = [(_title(choice), _file(choice)) for choice in choices if choice != (language, kind)]
    digests = "\n".join(f"{entry.passport.rater}: {fingerprint(entry.source)}" for entry in chosen)
    return render(page, {"passports": digests}, links)


def _without_information(passport: Passport) -> list[str]:
    """A warning for each set on which the rater's verdicts carry no information."""
    sets = passport.sets.items()
    return information_warnings(
        {f"{passport.rater} on {name}": figures.no_information for name, figures in sets}
    )


def _agreement(figures: SetFigures, *marks: str) -> Cell:
    """Agreement on a set; constant halves would have a narrow interval."""
    marks += (figures.stopped,) if figures.stopped else ()
    if figures.no_information:
        return Cell(f"{figures.agreement.mean:.3f}", ("no information", *marks))
    return stacked(figures.agreement.interval(), *marks)


def _groups(entries: Sequence[SiteEntry]) -> list[Section]:
    """A table for each group of raters with the same pairs of the same sets, and one reference."""
    groups: dict[tuple[tuple[tuple[str, str], ...], str], list[SiteEntry]] = {}
    for entry in entries:
        valid = {
            k: figures
            for k, figures in entry.passport.sets.items()
            if not figures.trained_on_prompts
        }
        key = tuple(sorted((name, figures.pairs_sha256) for name, figures in valid.items()))
        groups.setdefault((key, entry.passport.reference), []).append(entry)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[0][0]), -len(item[1]), item[0]))
    return [_group([name for name, _ in key], members) for (key, _), members in ordered if key]


def _group(names: Sequence[str], entries: Sequence[SiteEntry]) -> Section:
    by_rater = {entry.passport.rater: entry for entry in entries}
    rows = [row for entry in entries for row in set_rows_of(entry.passport) if row["set"] in names]
    first = entries[0].passport
    groups = {name: first.sets[name].group for name in names}

    def sets_of(row: Mapping[str, Any]) -> list[SetFigures]:
        sets = by_rater[row["rater"]].passport.sets
        return [sets[name] for name in names]

    def named(row: Mapping[str, Any]) -> Cell:
        entry = by_rater[row["rater"]]
        small = ("recomputed",) * entry.is_recomputed
        small += _changed(entry.passport)
        if any(figures.no_information for figures in sets_of(row)):
            small += ("no information",)
        small += tuple(filter(None, (figures.stopped for figures in sets_of(row))))
        return Cell(row["rater"], small, address=entry.address)

    def agreement(row: Mapping[str, Any]) -> Interval:
        # Of one set, the interval over its prompts.
        (figures, *more) = sets_of(row)
        return _interval(row, len(names)) if more else figures.agreement.interval()

    def difference(row: Mapping[str, Any]) -> Cell:
        (figures, *more) = sets_of(row)
        if more and row["minus_reference"]:
            difference = _interval(row["minus_reference"], len(names))
            return stacked(difference, is_signed=True)
        return Cell("–") if more else _difference(figures.minus_reference)

    def relative(row: Mapping[str, Any]) -> str:
        people = [
            figures.people
            for figures in sets_of(row)
            if figures.people and not (figures.people.at_chance or figures.people.is_dependent)
        ]
        means = [
            agreement.relative.mean for agreement in people if agreement.relative.mean is not None
        ]
        return f"{sum(means) / len(means):.2f} ({len(means)})" if means else "–"

    ranked = over_sets(rows, list(by_rater), first.reference, groups)["raters"]
    is_changed = [bool(_changed(by_rater[row["rater"]].passport)) for row in ranked]
    table = table_of(
        ranked,
        {
            "rater": named,
            "kind": lambda row: by_rater[row["rater"]].passport.kind,
            "agreement": lambda row: stacked(agreement(row)),
            ENDS: lambda row: Cell(
                scale=None
                if all(figures.no_information for figures in sets_of(row))
                else agreement(row)
            ),
            f"minus\n{first.reference}": difference,
            "relative to people\n(sets)": relative,
            "least\ncoverage": lambda row: percent(
                min(figures.coverage for figures in sets_of(row))
            ),
        },
        marks={index: "drifted" for index, changed in enumerate(is_changed) if changed},
    )
    size = {name: max(entry.passport.sets[name].agreement.n for entry in entries) for name in names}
    counts = [f"{name} ({size[name]:,} pairs)" for name in names]
    title = f"{len(names)} sets" if len(names) > 1 else counts[0]
    note = ", ".join(counts) if len(names) > 1 else ""
    name = f"on-{fingerprint([first.sets[name].pairs_sha256 for name in names])[:8]}"
    return Section(title, note, table=table, name=name)


def _changed(passport: Passport) -> tuple[str, ...]:
    """A note if `litbench drift` found that the judge has changed."""
    if passport.drift is None or passport.drift.result != "changed":
        return ()
    return (f"changed since {passport.date[:10]}, found {passport.drift.date[:10]}",)


def _interval(row: Mapping[str, Any], sets: int) -> Interval:
    low, high = (math.nan if row[key] is None else row[key] for key in ("low", "high"))
    return Interval(row["mean"], low, high, sets, sets, float(sets))


def _difference(estimate: PassportInterval | None) -> Cell:
    return stacked(None if estimate is None else estimate.interval(), is_signed=True)


def _by_pairs(entries: Sequence[SiteEntry]) -> dict[tuple[str, str], list[SiteEntry]]:
    """The raters by set and digest of its pairs."""
    groups: dict[tuple[str, str], list[SiteEntry]] = {}
    for entry in entries:
        for name, figures in entry.passport.sets.items():
            groups.setdefault((name, figures.pairs_sha256), []).append(entry)
    return groups


def _sets_section(entries: Sequence[SiteEntry]) -> Section:
    rows = []
    for (name, _), members in sorted(_by_pairs(entries).items()):
        first = members[0].passport.sets[name]
        cells = []
        for entry in entries:
            if entry not in members:
                cells.append(Cell())
                continue
            figures = entry.passport.sets[name]
            seen = figures.trained_on_prompts
            marks = (f"trained on {seen} of its prompts",) if seen else ()
            cells.append(_agreement(figures, *marks))
        licence = first.licence or "no licence stated"
        facts = f"{first.language}, {first.kind}, {first.judged}; {licence}"
        size = f"{first.agreement.n:,} pairs, {first.agreement.clusters:,} prompts"
        small = (first.title, facts, size, *_warnings(first))
        people = None if first.people is None else first.people.one_annotator.interval()
        rows.append([Cell(name, small, is_text=True), stacked(people), *cells])
    heading = ["set", "one annotator", *(entry.passport.rater for entry in entries)]
    note = (
        "One annotator: agreement with the mean of the other annotators, on other comparisons than "
        "the labels; the raters' pages compare on the same ones."
    )
    return Section("Set by set", note, table=Table(heading, rows))


def _warnings(figures: SetFigures) -> list[str]:
    """Warnings about a set's figures."""
    warnings = []
    if figures.people is not None and figures.people.at_chance:
        warnings.append("annotators agree at chance: beating one means little")
    if figures.people is not None and figures.people.is_dependent:
        warnings.append(
            "annotators' residuals correlate negatively: one annotator is not a valid reference"
        )
    if figures.people is not None and figures.people.blind_above:
        names = " and ".join(figures.people.blind_above)
        warnings.append(
            f"content-blind: {names} agrees with annotators more than an annotator does"
        )
    if figures.agreement.effective_clusters < 20:
        warnings.append(f"few prompts: {figures.agreement.effective_clusters:.0f} effective")
    warnings += [f"audit: {finding}" for finding in (figures.audit or [])[:1]]
    return warnings


def _not_comparable(entries: Sequence[SiteEntry]) -> list[str]:
    sentences = [
        "Figures of different sets: where annotators agree little, no rater can agree much."
    ]
    judged: dict[str, list[str]] = {}
    for (name, _), members in sorted(_by_pairs(entries).items()):
        pairs = members[0].passport.sets[name].agreement.n
        raters = ", ".join(entry.passport.rater for entry in members)
        judged.setdefault(name, []).append(f"{pairs:,} pairs ({raters})")
    sentences += [
        f"{name} was judged on different pairs: {'; '.join(descriptions)}."
        for name, descriptions in judged.items()
        if len(descriptions) > 1
    ]
    for entry in entries:
        sets = entry.passport.sets
        if trained := [name for name, figures in sets.items() if figures.trained_on_prompts]:
            sentences.append(
                f"{entry.passport.rater} was trained on prompts of {', '.join(trained)}."
            )
    versions = sorted({str(entry.passport.versions.get("litbench")) for entry in entries})
    if len(versions) > 1:
        sentences.append(f"The passports were made by LitBench {', '.join(versions)}.")
    return sentences


# A rater ---------------------------------------------------------------------------------------


def weaknesses(passport: Passport) -> list[str]:
    """Warnings about a rater's figures, in words, each with its sets.

    The last sentence is the number of tests over which significance is corrected.
    """
    tests: dict[tuple[str, str], tuple[float, float]] = {}
    for name, figures in passport.sets.items():
        people = None if figures.people is None else figures.people.difference
        for kind, estimate, null in (
            (_WORSE, figures.minus_reference, 0.0),
            (_BELOW_PEOPLE, people, 0.0),
            (_POSITION, figures.position_bias, 0.5),
        ):
            if estimate is not None and estimate.low is not None:
                interval, is_share = estimate.interval(), kind == _POSITION
                tests[kind, name] = (
                    interval.mean - null,
                    interval_p(interval, null, is_share=is_share),
                )
    adjusted = holm([p for _, p in tests.values()])
    significant: dict[str, list[str]] = {}
    for ((kind, name), (lead, _)), p in zip(tests.items(), adjusted, strict=True):
        if p < _ALPHA and (lead < 0 or kind == _POSITION):
            significant.setdefault(kind, []).append(name)

    def lean(figures: SetFigures) -> float:
        return _mean(figures.chosen_longer, 0.5) - _mean(figures.chosen_shorter, 0.5)

    def blind(figures: SetFigures) -> float:
        names = [name for name in ("longer", "shorter", "notes") if name in figures.beside]
        return max((_mean(figures.beside[name], 0.0) for name in names), default=0.0)

    signs: dict[str, Callable[[SetFigures], bool]] = {
        "No better than a rater that does not read (longer, shorter or notes)": lambda figures: (
            _mean(figures.agreement, 1.0) <= blind(figures)
        ),
        "Prefers the longer story more than people do": lambda figures: lean(figures) > _LEAN,
        "Prefers the shorter story more than people do": lambda figures: lean(figures) < -_LEAN,
        f"Changes its verdict with the order of the stories in over {_FLIPS:.0%}": lambda figures: (
            _mean(figures.flip_rate, 0.0) > _FLIPS
        ),
        f"Does not judge over {1 - _COVERAGE:.0%}": lambda figures: figures.coverage < _COVERAGE,
        "Trained on prompts of these sets, whose figures are not valid": lambda figures: (
            figures.trained_on_prompts > 0
        ),
    }
    named = {kind.format(passport.reference): names for kind, names in significant.items()}
    named |= {
        text: [name for name, figures in passport.sets.items() if holds(figures)]
        for text, holds in signs.items()
    }
    sentences = [f"{text}: {', '.join(names)}." for text, names in named.items() if names]
    return [
        *sentences,
        f"Significant after Holm's correction over {len(tests)} tests of this page.",
    ]


def _mean(estimate: PassportInterval | None, otherwise: float) -> float:
    return otherwise if estimate is None or estimate.mean is None else estimate.mean


def _rater_page(entry: SiteEntry) -> str:
    passport = entry.passport

    def with_people(write: Callable[[Any], Cell]) -> Callable[[tuple[str, SetFigures]], Cell]:
        return lambda row: write(row[1].people) if row[1].people else Cell("–")

    values = shrunken([people.agreement.interval() for people in passport.sets.values()])
    shrunk = dict(zip(passport.sets, values or [], strict=False))
    table = table_of(
        list(passport.sets.items()),
        {
            "set": lambda row: Cell(row[0], (row[1].title, *_warnings(row[1])), is_text=True),
            "pairs /\nprompts": lambda row: (
                f"{row[1].agreement.n:,} / {row[1].agreement.clusters:,}"
            ),
            "agreement": lambda row: _agreement(row[1]),
            f"minus\n{passport.reference}": lambda row: _difference(row[1].minus_reference),
            **({"shrunken": lambda row: shrunk[row[0]]} if shrunk else {}),
            "chosen\nlonger": lambda row: row[1].chosen_longer.mean,
            "chosen\nshorter": lambda row: row[1].chosen_shorter.mean,
            "flip\nrate": lambda row: row[1].flip_rate and row[1].flip_rate.mean,
            "position\nbias": lambda row: row[1].position_bias and row[1].position_bias.mean,
            "coverage": lambda row: percent(row[1].coverage),
            "one\nannotator": with_people(lambda people: stacked(people.one_annotator.interval())),
            "minus one\nannotator": with_people(lambda people: _difference(people.difference)),
            "relative\nto people": with_people(_relative),
        },
    )
    status = (
        "Figures, tokens and cost were recomputed from the verdicts; options, files, versions and "
        "date are from the run's manifest."
        if entry.is_recomputed
        else "Everything is as submitted: no figure was recomputed."
    )
    what = {"kind": passport.kind, **passport.options, **passport.files}
    what |= {"cost in dollars": passport.cost_usd, "date": passport.date}
    what |= {"template": passport.template, "returned model": ", ".join(passport.answered_by)}
    if scope := passport.scope:
        what["flags on held-out training stories"] = (
            f"{percent(scope['is_prose'])} no prose, {percent(scope['like_training'])} unlike the "
            f"others, of {scope['stories']:,.0f}"
        )
    if passport.drift is not None:
        drift = passport.drift
        what["drift"] = f"{drift.result} by {drift.questions:,} questions on {drift.date[:10]}"
    facts = [
        [key, Cell(str(value), is_text=True)]
        for key, value in what.items()
        if value not in (None, "")
    ]
    mean, lead = passport.over_sets, f"{len(passport.sets)} sets."
    if mean:
        count = len(mean.sets)
        lead = f"Mean agreement {write_interval(_interval(vars(mean), count))} over {count} sets."
    sections = [
        Section("Weaknesses", weaknesses(passport)),
        Section("In pictures", figures=_pictures(passport)),
        Section("Set by set", _SHRUNKEN if shrunk else "", table=table),
        *_card_sections(passport),
        Section("What it is", table=Table(["", ""], facts, is_narrow=True)),
    ]
    page = Page(passport.rater, lead, status, sections, warnings=_without_information(passport))
    return render(page, {"passport": entry.source}, [("all sets", "index.html")])


def _card_sections(passport: Passport) -> list[Section]:
    """The judge's cards by set, if there are any."""
    cards = {name: figures.card for name, figures in passport.sets.items() if figures.card}
    parts = [
        card_section(passport.rater, card, name, f"card-{number}")
        for number, (name, card) in enumerate(cards.items())
    ]
    note = "What the records show; a card is not recomputed."
    return [Section("Can it be trusted?", note, parts=parts)] if parts else []


def _relative(people: PeopleFigures) -> Cell:
    """Agreement relative to people, marked where they are at chance."""
    interval = people.relative.interval()
    if not math.isfinite(interval.mean):
        return Cell("–")
    is_bounded = math.isfinite(interval.low)
    small = [f"[{interval.low:.2f}, {interval.high:.2f}]"] if is_bounded else []
    small += ["people at chance"] if people.at_chance else []
    small += ["people not independent"] if people.is_dependent else []
    return Cell(f"{interval.mean:.2f}", small)


def _pictures(passport: Passport) -> list[Figure]:
    def intervals(*estimates: PassportInterval | None) -> list[list[Interval]]:
        return [[e.interval()] if e and e.mean is not None else [] for e in estimates]

    reference, sets = passport.reference, passport.sets.items()
    names = [passport.rater]
    names += [reference] * any(reference in figures.beside for _, figures in sets)
    agreement = [
        (name, intervals(figures.agreement, figures.beside.get(reference))[: len(names)])
        for name, figures in sets
    ]
    lengths = [
        (name, intervals(figures.chosen_longer, figures.chosen_shorter)) for name, figures in sets
    ]
    return [
        Figure(
            "Agreement with people",
            "By set, with 95 % intervals.",
            dots(agreement, names, "agreement", limits=(0, 1)),
        ),
        Figure(
            "By length",
            "Agreement where the chosen story is the longer, and the shorter one.",
            dots(lengths, ["chosen is longer", "chosen is shorter"], "agreement", limits=(0, 1)),
        ),
    ]
