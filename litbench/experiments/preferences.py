"""Explain preferences by sparse units of embedding differences (paper, 3.4.1, A.1).

Both stories of every pair are embedded, an autoencoder describes the differences by a few signed
units (positive if the first side has more), and a linear model predicts the label from the units
(Movva et al., 2025). Agreement is measured in folds over prompts; the table of units shows another
autoencoder, fitted on all pairs. A model may describe each unit; its descriptions are tested on
pairs of other prompts. See docs/preferences.md.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import NonNegativeInt, PositiveInt

from litbench.config import Input, Runtime, read_yaml
from litbench.curation.splits import assign_folds
from litbench.errors import ConfigError, DataError
from litbench.judges.client import Budget, Traffic, ask, check_limit
from litbench.judges.prices import dollars_of, load_prices, price_of
from litbench.judges.store import Answer, AnswerStore, Sampling
from litbench.locations import locate
from litbench.metrics.comparisons import benjamini_hochberg, compare_all
from litbench.metrics.csv_table import write_csv
from litbench.metrics.intervals import LEVEL, Interval, effective_clusters, jackknife_interval
from litbench.metrics.leaderboard import plain
from litbench.models.autoencoder import Autoencoder, AutoencoderOptions, fit_autoencoder
from litbench.models.embeddings import EmbeddingOptions, embed
from litbench.models.features import FEATURES, feature_matrix
from litbench.models.linear_preference import fit_linear_preference, logistic
from litbench.progress import ProgressBar
from litbench.records import connected_prompts, pair_weights
from litbench.report import figures
from litbench.report.document import (
    ENDS,
    Card,
    Cell,
    Figure,
    Page,
    Section,
    Table,
    few_prompts,
    label_text,
    p_value,
    percent,
    shorten,
    signed,
    stacked,
    table_of,
    write_interval,
    write_page,
    written_now,
)
from litbench.show import show
from litbench.sources.evaluation_pairs import read_pairs
from litbench.store import Artifact, write_json
from litbench.templates import without_delimiters
from litbench.text import clean_name, digest

_LONGER = "the longer story"
# Share of the prompts for early stopping of an autoencoder.
_VALIDATION_SHARE = 0.1


@dataclass
class InterpretingOptions:
    """How units are described and descriptions tested.

    Attributes:
        examples: pairs shown to describe a unit: those with its strongest activations.
        tests: random test pairs on which the unit is active.
        quiet_tests: random test pairs on which the unit is inactive.
        shown_letters: characters of each story that are shown; the rest is truncated.
    """

    examples: PositiveInt = 6
    tests: PositiveInt = 20
    quiet_tests: NonNegativeInt = 10
    shown_letters: PositiveInt = 3_000


@dataclass
class PreferencesConfig:
    """Pairs, embedding, autoencoder and the model that describes the units.

    Attributes:
        pairs: pairs file.
        out: folder to write.
        split: split of the pairs to use; null for all.
        embedding: model or service; see litbench.models.embeddings.
        autoencoder: see litbench.models.autoencoder.
        c: inverse strengths of the linear models' penalty, selected in inner folds.
        folds: number of folds over prompts.
        repeats: number of times to repeat the folds with other seeds.
        seed: seed of signs, folds, training and selected pairs.
        model: inspect-ai name of the model that describes the units; null for none.
        interpreting: pairs and characters to show it; see InterpretingOptions.
        sampling: sampling parameters of the model.
        traffic: connections, retries and limits.
        prices: file of prices that override the packaged ones.
        title: heading of the page.
    """

    pairs: Annotated[Path, Input]
    out: Path
    split: str | None = None
    embedding: EmbeddingOptions = field(default_factory=EmbeddingOptions)
    autoencoder: AutoencoderOptions = field(default_factory=AutoencoderOptions)
    c: list[float] = field(default_factory=lambda: [0.001, 0.01, 0.1, 1.0])
    folds: int = 5
    repeats: int = 1
    seed: int = 0
    model: str | None = None
    interpreting: InterpretingOptions = field(default_factory=InterpretingOptions)
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=256))
    traffic: Annotated[Traffic, Runtime] = field(default_factory=Traffic)
    prices: Path | None = None
    title: str = "LitBench: what the preferences encode"


# Describing units with a model ---------------------------------------------------------------
#
# In the pairs that describe a unit, story A is the side with the higher activation. In the test
# pairs the order is arbitrary, and the unit is inactive in some of them. No pair or prompt is used
# for both.

# The questions about a unit: `describe`, `example` (one per pair) and `verify`.
_QUESTIONS = read_yaml(Path(__file__).with_name("interpreting.yaml"))
# Tolerates Markdown around the words.
_QUALITY = re.compile(r"^\W*quality\W*:[\s*_]*([^\s*_].*?)[\s*_]*$", re.I | re.M)
_MORE = re.compile(r"^\W*more\W*:\W*(A|B|neither)\W*$", re.I | re.M)
_MOST_DESCRIBED = 300


class UnitPairs(NamedTuple):
    """Row indices of the pairs that describe a unit, and of those that test the description."""

    examples: list[int]
    tests: list[int]


def choose_pairs(
    values: np.ndarray, prompts: Sequence[str], unit: int, options: InterpretingOptions, seed: int
) -> UnitPairs:
    """Choose the pairs of a unit: half of the prompts describe it, the other half test it.

    `values` are the unit's activations and `prompts` the prompts of the pairs, both of shape (n,).
    """
    describes = np.array([int(digest("half", seed, p), 16) % 2 == 0 for p in prompts], dtype=bool)
    active = values != 0

    def drawn(mask: np.ndarray, count: int) -> list[int]:
        rows = np.flatnonzero(mask & ~describes).tolist()
        return sorted(rows, key=lambda row: digest("test", seed, unit, row))[:count]

    best = sorted(np.flatnonzero(active & describes).tolist(), key=lambda r: (-abs(values[r]), r))
    # One pair per prompt while prompts last: otherwise the pairs share the prompt itself.
    first = set({prompts[row]: row for row in reversed(best)}.values())
    best.sort(key=lambda row: row not in first)
    return UnitPairs(
        best[: options.examples],
        drawn(active, options.tests) + drawn(~active, options.quiet_tests),
    )


def describe_question(
    sides: Sequence[tuple[str, str]],
    values: np.ndarray,
    rows: Sequence[int],
    shown_letters: int,
) -> str:
    """The question what the sides with more of a unit share; `rows` are the pairs to show."""
    examples = []
    for number, row in enumerate(rows, 1):
        stories = sides[row] if values[row] > 0 else sides[row][::-1]
        content = {"number": str(number), **_truncated(stories, shown_letters)}
        examples.append(_filled(_QUESTIONS["example"], content).rstrip())
    content = {"count": str(len(rows)), "examples": "\n\n".join(examples)}
    return _filled(_QUESTIONS["describe"], content)


def verify_question(description: str, sides: tuple[str, str], shown_letters: int) -> str:
    """The question which side has more of the described quality."""
    content = {"description": description, **_truncated(sides, shown_letters)}
    return _filled(_QUESTIONS["verify"], content)


def read_description(text: str) -> str | None:
    """The quality that an answer names last, on one line; None if it names none."""
    qualities = _QUALITY.findall(text)
    line = clean_name(without_delimiters(qualities[-1])) if qualities else ""
    return (line if len(line) <= _MOST_DESCRIBED else line[: _MOST_DESCRIBED - 1] + "…") or None


def read_more(text: str) -> int | None:
    """1 for story A, -1 for B, 0 for neither; None if the answer names none or several of them."""
    named = {match.upper() for match in _MORE.findall(text)}
    return {"A": 1, "B": -1, "NEITHER": 0}[named.pop()] if len(named) == 1 else None


def _truncated(stories: tuple[str, str], letters: int) -> dict[str, str]:
    cut = [text if len(text) <= letters else text[:letters] + " […]" for text in stories]
    return dict(zip(("story_a", "story_b"), map(without_delimiters, cut), strict=True))


def _filled(template: str, content: Mapping[str, str]) -> str:
    """Fill in a template; braces in the content are left as they are."""
    names = "|".join(content)
    return re.sub(rf"\{{({names})\}}", lambda match: content[match[1]], template)


# Figures --------------------------------------------------------------------------------------

# Maximum number of groups of prompts that the jackknife of coefficients leaves out in turn.
_MOST_GROUPS = 100
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
# In scripts without spaces between words, two adjacent characters count as a word.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+")


@dataclass(frozen=True)
class Agreement:
    """A linear model on pairs of held-out prompts, also relative to the longer-story baseline."""

    name: str
    agreement: Interval
    chosen_longer: Interval | None
    chosen_shorter: Interval | None
    over_longer: Interval | None
    p_holm: float


@dataclass(frozen=True)
class Fidelity:
    """How often a model names the side with more of a unit from its description, on new pairs.

    Naming neither side counts 1/2, which is also chance. `unread` answers could not be parsed and
    are left out.
    """

    agreement: Interval
    unread: int


@dataclass(frozen=True)
class Surface:
    """Surface features and words of the pairs on which a unit is active.

    Attributes:
        correlations: correlations with differences of surface features.
        more: words that occur more often only on the side with more of the unit.
        less: words that occur more often only on the side with less of the unit.
    """

    correlations: dict[str, float]
    more: list[str]
    less: list[str]


@dataclass(frozen=True)
class UnitRow:
    """One unit of the autoencoder that was fitted on all pairs.

    Attributes:
        unit: index of the unit.
        coefficient: log-odds of being preferred per root mean square of the unit, in one model of
            all units. The interval takes the units and the penalty as given.
        p_bh: p value of a coefficient of 0, adjusted for all units (Benjamini and Hochberg).
        prevalence: share of pairs on which the unit is active.
        preferred: among these, how often the side with more of the unit is the chosen one.
        description: description by a model; None if no model was asked or the model had none.
        fidelity: fidelity of the description.
        surface: surface features and words.
    """

    unit: int
    coefficient: Interval
    p_bh: float
    prevalence: float
    preferred: Interval
    description: str | None
    fidelity: Fidelity | None
    surface: Surface

    @property
    def is_significant(self) -> bool:
        """Whether the coefficient differs from 0 after correction."""
        return self.p_bh < 0.05

    @property
    def label(self) -> str:
        """The description, or the surface label without one, on one line."""
        if self.description is None:
            return surface_label(self.surface)
        return clean_name(self.description)


@dataclass(frozen=True)
class PreferenceStudy:
    """The results of a study of preferences.

    Attributes:
        agreements: held-out agreement of linear models; each fold has its own autoencoder.
        units: active units of the autoencoder that was fitted on all pairs, largest coefficients
            first.
        silent_units: number of units that are never active.
        unexplained: share of the squared held-out differences that the units do not reconstruct.
        described_by: the model that described the units, or None.
    """

    pairs: int
    prompts: int
    held_out: str
    agreements: list[Agreement]
    units: list[UnitRow]
    silent_units: int
    unexplained: float
    described_by: str | None


def credits_of(margins: np.ndarray, first_chosen: np.ndarray) -> np.ndarray:
    """1 where a margin names the chosen side, 1/2 where it is zero, else 0; shape (n,)."""
    credits: np.ndarray = (1 + np.sign(np.where(first_chosen, margins, -margins))) / 2
    return credits


def agreement_rows(
    credits: Mapping[str, np.ndarray], longer: str, clusters: np.ndarray, words: np.ndarray
) -> list[Agreement]:
    """Agreement of several models on the same pairs.

    Args:
        credits: by model, the credit of each pair, 0 to 1 (a mean over repeats); shape (n,) each.
        longer: key of the longer-story baseline in `credits`.
        clusters: prompt of each pair; shape (n,).
        words: words of the chosen story minus words of the rejected story; shape (n,).
    """
    against = {one.rater: one for one in compare_all(credits, longer, clusters)}
    rows = []
    for name, credit in credits.items():
        chosen_longer, chosen_shorter = (
            jackknife_interval(credit[keep], clusters[keep]) if keep.any() else None
            for keep in (words > 0, words < 0)
        )
        compared = against.get(name)
        over, p_holm = (compared.difference, compared.p_holm) if compared else (None, math.nan)
        overall = jackknife_interval(credit, clusters)
        rows.append(Agreement(name, overall, chosen_longer, chosen_shorter, over, p_holm))
    return rows


def coefficient_intervals(
    fit: Callable[[np.ndarray], np.ndarray], prompts: Sequence[str]
) -> tuple[list[Interval], list[float]]:
    """Intervals of coefficients by the delete-a-group jackknife over prompts (Kott, 2001).

    There are up to 100 groups. The degrees of freedom of the t quantile are the number of groups,
    or the effective number of prompts if that is smaller, minus 1.

    Args:
        fit: function from row indices (int, shape (k,)) to coefficients, shape (columns,).
        prompts: prompt of each row; shape (n,).

    Returns:
        For each column its interval, and the two-sided p value of a coefficient of 0; NaN with
        fewer than two prompts.
    """
    from scipy import stats  # noqa: PLC0415

    distinct, index, sizes = np.unique(np.asarray(prompts), return_inverse=True, return_counts=True)
    effective, rows = effective_clusters(sizes), len(index)
    whole = fit(np.arange(rows))
    groups = min(len(distinct), _MOST_GROUPS)
    freedom = max(min(groups, effective) - 1, 1.0)
    error = np.full(len(whole), math.nan)
    if groups > 1:
        order = sorted(range(len(distinct)), key=lambda k: digest("jackknife", distinct[k]))
        group_of = np.empty(len(distinct), dtype=int)
        group_of[order] = np.arange(len(distinct)) % groups
        without = np.array([fit(np.flatnonzero(group_of[index] != g)) for g in range(groups)])
        error = np.sqrt((groups - 1) / groups * np.square(without - whole).sum(0))
    reach = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * error
    intervals = [
        Interval(w, w - half, w + half, rows, len(distinct), effective)
        for w, half in zip(whole.tolist(), reach.tolist(), strict=True)
    ]
    # A unit that is never active has no meaningful coefficient.
    known = np.where(error > 1e-12, error, math.nan)
    p_values: list[float] = (2 * stats.t.sf(np.abs(whole) / known, freedom)).tolist()
    return intervals, p_values


def unit_rows(
    units: np.ndarray,
    first_chosen: np.ndarray,
    clusters: np.ndarray,
    coefficients: Sequence[Interval],
    p_values: Sequence[float],
    described: Mapping[int, tuple[str | None, Fidelity | None]],
    surfaces: Mapping[int, Surface],
) -> list[UnitRow]:
    """The table of units that are ever active, largest coefficients first."""
    adjusted = benjamini_hochberg(p_values)
    rows = []
    for unit, surface in surfaces.items():
        active = units[:, unit] != 0
        preferred = credits_of(units[active, unit], first_chosen[active])
        rows.append(
            UnitRow(
                unit,
                coefficients[unit],
                adjusted[unit],
                float(active.mean()),
                jackknife_interval(preferred, clusters[active]),
                *described.get(unit, (None, None)),
                surface,
            )
        )
    return sorted(rows, key=lambda row: -abs(row.coefficient.mean))


def fidelity_of(
    answers: Sequence[int | None], values: np.ndarray, clusters: np.ndarray
) -> Fidelity | None:
    """Compare the answers of a model that reads a description with the values of the unit."""
    signs = np.array([math.nan if answer is None else answer for answer in answers])
    active = ~np.isnan(signs) & (values != 0)
    if not active.any():
        return None
    credit = (1 + signs[active] * np.sign(values[active])) / 2
    agreement = jackknife_interval(credit, np.asarray(clusters)[active])
    return Fidelity(agreement, int(np.isnan(signs).sum()))


def distinct_words(text: str) -> frozenset[str]:
    """The distinct words of a text, case-folded; pairs of characters in unspaced scripts."""
    runs = _UNSPACED.findall(text)
    pairs = (run[start : start + 2] for run in runs for start in range(len(run) - 1))
    spaced = _WORD.findall(_UNSPACED.sub(" ", text)) if runs else _WORD.findall(text)
    return frozenset(pairs) | {word.casefold().replace("’", "'") for word in spaced}


def surface_of(
    values: np.ndarray,
    differences: np.ndarray,
    names: Sequence[str],
    words: Sequence[tuple[frozenset[str], frozenset[str]]],
    shown: int = 6,
) -> Surface:
    """The surface features and words of one unit."""
    correlations = {
        name: round(float(np.corrcoef(values, column)[0, 1]), 3)
        for name, column in zip(names, differences.T, strict=True)
        if np.ptp(column) > 1e-12 and np.ptp(values) > 0
    }
    strongest = sorted(correlations, key=lambda name: (-abs(correlations[name]), name))[:shown]
    active = np.flatnonzero(values).tolist()
    only: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for row in active:
        more, less = words[row] if values[row] > 0 else words[row][::-1]
        only[0].update(more - less)
        only[1].update(less - more)
    # z of a sign test; words that occur in few pairs are skipped.
    least = max(3, len(active) // 20)
    z = {
        word: (only[0][word] - only[1][word]) / math.sqrt(count)
        for word, count in (only[0] + only[1]).items()
        if count >= least
    }
    ranked = sorted(z, key=lambda word: (-z[word], word))
    return Surface(
        {name: correlations[name] for name in strongest},
        [word for word in ranked[:shown] if z[word] > 0],
        [word for word in ranked[::-1][:shown] if z[word] < 0],
    )


def surface_label(surface: Surface) -> str:
    """A label from surface features: the strongest correlations, and words of either side."""
    words = [", ".join(f"“{clean_name(w)}”" for w in of[:3]) for of in (surface.more, surface.less)]
    parts = [f"{name} {r:+.2f}" for name, r in list(surface.correlations.items())[:2]]
    parts += [f"{start} {of}" for start, of in zip(("words", "not"), words, strict=True) if of]
    return "; ".join(parts)


def preference_rows(study: PreferenceStudy) -> list[dict[str, Any]]:
    """The units as rows of a table."""
    names = ("unit", "label", "coefficient", "p_bh", "prevalence", "preferred")
    return [
        {name: getattr(row, name) for name in names}
        | {
            "pairs": row.preferred.n,
            "fidelity": row.fidelity and row.fidelity.agreement,
            "surface": surface_label(row.surface),
        }
        for row in study.units
    ]


def preferences_text(study: PreferenceStudy, shown: int = 12) -> str:
    """The study as text for a terminal."""
    named = "labelled by counts" if study.described_by is None else "described by a model"
    significant = sum(row.is_significant for row in study.units)
    agreements = [[f"  {row.name}", str(row.agreement)] for row in study.agreements]
    rows = [
        [f"{unit.coefficient}{'*' if unit.is_significant else ''}", f"{unit.unit}: {unit.label}"]
        for unit in study.units[:shown]
    ]
    return (
        f"held-out agreement: {study.pairs:,} pairs of {study.prompts:,} prompts, "
        f"{study.held_out}\n{show(agreements)}\n\n"
        f"units of one autoencoder, fitted on all pairs, {named}: {len(study.units)} active, "
        f"{study.silent_units} silent, {significant} significant (*); {study.unexplained:.0%} of "
        f"the held-out differences not explained\n{show(rows, align='ll') if rows else ''}\n"
        f"coefficients of {len(rows)} units; units.csv has all {len(study.units)}"
    )


# The study ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """Pairs with random signs: which story is first; shape (n,) each unless stated.

    Attributes:
        table: table with the schema PAIRS.
        keys: `prompt_key` of the prompts.
        first_chosen: whether the first story is the chosen one.
        sides: first and second story.
        texts_at: indices of both stories among all embedded texts; shape (n, 2).
        surface: surface features of the first minus those of the second; shape (n, features).
        words: words of the chosen story minus words of the rejected story.
        weights: weights of the pairs in the linear models.
    """

    table: pa.Table
    keys: np.ndarray
    first_chosen: np.ndarray
    sides: list[tuple[str, str]]
    texts_at: np.ndarray
    surface: np.ndarray
    words: np.ndarray
    weights: np.ndarray

    def differences(self, vectors: np.ndarray) -> np.ndarray:
        """Embedding of the first minus that of the second; float64, shape (n, dimensions)."""
        first, second = vectors[self.texts_at.T]
        difference: np.ndarray = first.astype(np.float64) - second
        return difference


def check(config: PreferencesConfig) -> None:
    """Raise a ConfigError for an invalid config."""
    config.embedding.check()
    config.autoencoder.check()
    if config.repeats < 1 or config.folds < 2 or not config.c or min(config.c) <= 0:
        raise ConfigError(
            f"repeats is {config.repeats}, folds {config.folds} and c {config.c}: give at least 1 "
            "repeat, 2 folds and one c, all above 0"
        )
    if config.model is not None:
        price = price_of(config.model, load_prices(config.prices))
        check_limit(config.traffic, price, config.sampling)


def read_table(config: PreferencesConfig) -> pa.Table:
    """Read the pairs."""
    table = read_pairs(config.pairs, None, config.split).headline
    prompts = len(set(connected_prompts(table)))
    if prompts < max(4, config.folds):
        raise DataError(
            f"{config.pairs}: {prompts} prompts: give pairs of at least 4 prompts, and one per fold"
        )
    return table


def texts_of(table: pa.Table) -> list[str]:
    """The distinct stories to embed, sorted."""
    return sorted({text for side in ("chosen", "rejected") for text in table[side].to_pylist()})


def sign_pairs(table: pa.Table, seed: int) -> Pairs:
    """Assign the order of the sides of every pair at random, by a hash."""
    pair_ids, prompts, chosen, rejected = (
        table[name].to_pylist() for name in ("pair_id", "prompt", "chosen", "rejected")
    )
    index_of = {text: number for number, text in enumerate(texts_of(table))}
    first = np.array([int(digest("sign", seed, one), 16) % 2 == 0 for one in pair_ids], dtype=bool)
    sides = [
        (good, bad) if is_first else (bad, good)
        for good, bad, is_first in zip(chosen, rejected, first, strict=True)
    ]
    counted = [feature_matrix(prompts, of) for of in zip(*sides, strict=True)]
    words = table["chosen_n_words"].to_numpy() - table["rejected_n_words"].to_numpy()
    return Pairs(
        table,
        np.array(connected_prompts(table)),
        first,
        sides,
        np.array([[index_of[one], index_of[other]] for one, other in sides]),
        counted[0] - counted[1],
        words.astype(float),
        pair_weights(table),
    )


def train_units(
    differences: np.ndarray, keys: np.ndarray, config: PreferencesConfig, seed: int
) -> Autoencoder:
    """Fit the autoencoder, with some of the prompts held out for early stopping."""
    ordered = sorted(set(keys), key=lambda key: digest("stop", seed, key))
    count = min(max(1, round(_VALIDATION_SHARE * len(ordered))), len(ordered) - 1)
    stops = np.isin(keys, ordered[:count])
    return fit_autoencoder(differences[~stops], differences[stops], config.autoencoder, seed)


def held_out_margins(
    differences: np.ndarray, pairs: Pairs, is_held: np.ndarray, config: PreferencesConfig, seed: int
) -> tuple[dict[str, np.ndarray], float]:
    """Margins of every linear model on held-out pairs, and the share that units do not explain.

    `is_held` (bool, shape (n,)) marks the pairs that are held out of all fits.
    """
    rows = np.flatnonzero(~is_held)
    known, new = differences[rows], differences[is_held]
    keys, first, weights = pairs.keys[rows], pairs.first_chosen[rows], pairs.weights[rows]
    units = train_units(known, keys, config, seed)
    # The name counts the units even if a small fold has fewer components.
    components = np.linalg.svd(known, full_matrices=False)[2][: config.autoencoder.units].T
    views = {
        "units": (units.units(known), units.units(new)),
        f"{config.autoencoder.units} principal components": (known @ components, new @ components),
        "embedding": (known, new),
        "surface features": (pairs.surface[rows], pairs.surface[is_held]),
    }
    margins = {
        name: fit_linear_preference(seen, first, keys.tolist(), config.c, weights).margins(unseen)
        for name, (seen, unseen) in views.items()
    }
    return margins, units.unexplained(new)


def measure(
    differences: np.ndarray, pairs: Pairs, config: PreferencesConfig
) -> tuple[dict[str, np.ndarray], float]:
    """Credits per pair by model, averaged over repeats, and the unexplained share."""
    credits: dict[str, np.ndarray] = {}
    unexplained = []
    seeds = range(config.seed, config.seed + config.repeats)
    jobs = list(itertools.product(seeds, range(config.folds)))
    for seed, fold in ProgressBar(jobs, desc="folds", unit=" fit", leave=False):
        fold_of = assign_folds(pairs.keys.tolist(), config.folds, seed)
        is_held = np.array([fold_of[key] == fold for key in pairs.keys])
        margins, share = held_out_margins(differences, pairs, is_held, config, seed)
        unexplained.append(share)
        for name, margin in margins.items():
            total = credits.setdefault(name, np.zeros(len(pairs.keys)))
            total[is_held] += credits_of(margin, pairs.first_chosen[is_held]) / config.repeats
    credits[_LONGER] = credits_of(pairs.words, np.ones(len(pairs.keys), dtype=bool))
    return credits, float(np.mean(unexplained))


def describe_units(
    config: PreferencesConfig,
    model: str,
    pairs: Pairs,
    units: np.ndarray,
    chosen: Mapping[int, UnitPairs],
) -> tuple[dict[int, tuple[str | None, Fidelity | None]], dict[str, Any]]:
    """Ask a model for descriptions and test them.

    Returns:
        Description and fidelity by unit, and a summary of the answers.
    """
    letters = config.interpreting.shown_letters
    price = price_of(model, load_prices(config.prices))
    budget = Budget(config.traffic, price)
    every: list[Answer] = []
    with AnswerStore(config.out / "answers") as store:

        def texts_of_answers(texts: list[str], about: str) -> list[str]:
            """The model's answers; empty if truncated, refused or an error."""
            answers = ask(
                model, texts, store, config.sampling, config.traffic, about=about, budget=budget
            )
            every.extend(answers)
            return [one.text if one.outcome == "answered" else "" for one in answers]

        with_examples = [unit for unit, of in chosen.items() if of.examples]
        texts = texts_of_answers(
            [
                describe_question(pairs.sides, units[:, u], chosen[u].examples, letters)
                for u in with_examples
            ],
            "descriptions",
        )
        parsed = zip(with_examples, map(read_description, texts), strict=True)
        descriptions = {unit: text for unit, text in parsed if text is not None}
        tests = [(unit, row) for unit in descriptions for row in chosen[unit].tests]
        verdicts = texts_of_answers(
            [verify_question(descriptions[unit], pairs.sides[row], letters) for unit, row in tests],
            "tests",
        )
    described: dict[int, tuple[str | None, Fidelity | None]] = {}
    mores = list(zip(tests, map(read_more, verdicts), strict=True))
    for unit, description in descriptions.items():
        own = [(row, more) for (of, row), more in mores if of == unit]
        rows = [row for row, _ in own]
        fidelity = fidelity_of([more for _, more in own], units[rows, unit], pairs.keys[rows])
        described[unit] = (description, fidelity)
    return described, {
        "model": model,
        "answered_by": sorted({answer.model for answer in every if answer.model}),
        "answers": len(every),
        "not_described": len(chosen) - len(descriptions),
        "errors": sum(answer.outcome == "error" for answer in every),
        "cost_usd": dollars_of(every, price),
    }


def run_preferences(config: PreferencesConfig, program: str) -> None:
    """Write the study of preferences."""
    check(config)
    models = {}
    if not config.embedding.is_service:
        models["embedding.model"] = locate(config.embedding.model)[0]
    if config.prices is not None:
        models["prices"] = str(config.prices)
    artifact = Artifact(
        config.out,
        program=program,
        config=config,
        models=models,
    )
    if artifact.is_current():
        artifact.show("preferences.txt", "preferences.html")
        return
    table = read_table(config)
    texts, folder = texts_of(table), config.out / "embeddings"
    vectors, notes = embed(texts, config.embedding, folder)
    pairs = sign_pairs(table, config.seed)
    keys, first, weights = pairs.keys.tolist(), pairs.first_chosen, pairs.weights
    differences = pairs.differences(vectors)
    autoencoder = train_units(differences, pairs.keys, config, config.seed)
    units = autoencoder.units(differences)
    active = np.flatnonzero(units.any(0)).tolist()
    linear = fit_linear_preference(units, first, keys, config.c, weights)
    scaled = units / linear.scale
    coefficients, p_values = coefficient_intervals(
        lambda some: logistic(scaled[some], first[some], linear.c, weights[some]), keys
    )
    credits, unexplained = measure(differences, pairs, config)
    described: dict[int, tuple[str | None, Fidelity | None]] = {}
    asked: dict[str, Any] = {}
    if config.model is not None:
        chosen = {
            unit: choose_pairs(units[:, unit], keys, unit, config.interpreting, config.seed)
            for unit in active
        }
        described, asked = describe_units(config, config.model, pairs, units, chosen)
    words_of = {text: distinct_words(text) for text in texts}
    words = [(words_of[one], words_of[other]) for one, other in pairs.sides]
    surfaces = {unit: surface_of(units[:, unit], pairs.surface, FEATURES, words) for unit in active}
    study = PreferenceStudy(
        pairs=len(keys),
        prompts=len(set(keys)),
        held_out=f"held out by prompt in {config.folds} folds"
        + ("" if config.repeats == 1 else f", {config.repeats} times"),
        agreements=agreement_rows(credits, _LONGER, pairs.keys, pairs.words),
        units=unit_rows(units, first, pairs.keys, coefficients, p_values, described, surfaces),
        silent_units=units.shape[1] - len(active),
        unexplained=unexplained,
        described_by=config.model,
    )

    artifact.write_folder("model", autoencoder.save)
    artifact.write("preferences.json", lambda path: write_json(plain(study), path))
    if study.units:
        artifact.write("units.csv", lambda path: write_csv(preference_rows(study), path))
    # Positive means more of the unit on the chosen side.
    towards_chosen = np.where(first[:, None], units, -units).astype(np.float32)
    columns = {name: table[name] for name in ("pair_id", "prompt_id")}
    columns |= {f"unit_{unit}": pa.array(towards_chosen[:, unit]) for unit in range(units.shape[1])}
    artifact.write("units.parquet", lambda path: pq.write_table(pa.table(columns), path))
    text = preferences_text(study) + "\n"
    artifact.write_text("preferences.txt", text)
    artifact.counts = {
        "pairs": len(keys),
        "prompts": len(set(keys)),
        "embeddings": notes,
        "autoencoder": autoencoder.notes,
        "c": linear.c,
        "asked": asked,
    }
    prompts = table["prompt"].to_pylist()
    write_preferences(
        artifact,
        study,
        title=config.title,
        examples={
            unit: pairs_to_read(units[:, unit], prompts, pairs.sides, first, unit)
            for unit in active
        },
        notes=notes,
        label_sources=sorted(set(table["label_source"].to_pylist())),
    )
    artifact.show("preferences.txt", "preferences.html")
    if asked.get("errors"):
        # Without a manifest, the next run requests the failed answers again.
        print(f"{asked['errors']:,} answers are errors: run the same command again to retry them")
        return
    artifact.finish()


# The page -------------------------------------------------------------------------------------

_SHOWN_UNITS, _MOST_LABEL = 20, 34
# Stories on a page are cut to this many characters.
_MOST_LETTERS = 12_000


def pairs_to_read(
    values: np.ndarray,
    prompts: Sequence[str],
    sides: Sequence[tuple[str, str]],
    first_chosen: np.ndarray,
    unit: int,
    count: int = 3,
) -> list[Section]:
    """The pairs on which a unit is strongest, and as many others selected by a hash."""
    active = np.flatnonzero(values).tolist()
    strongest = sorted(active, key=lambda row: (-abs(values[row]), row))[:count]
    others = sorted(set(active) - set(strongest), key=lambda row: digest("to read", unit, row))
    shown: list[Section] = []
    for how, rows in (("strongest", strongest), ("at random", others[:count])):
        for row in rows:
            texts = sides[row] if values[row] > 0 else sides[row][::-1]
            more_chosen = bool(first_chosen[row]) == bool(values[row] > 0)
            words = ("chosen", "rejected") if more_chosen else ("rejected", "chosen")
            tags = f"more of unit {unit}, {words[0]}", f"less, {words[1]}"
            cut = (shorten(text, _MOST_LETTERS) for text in texts)
            card = Card(list(zip(tags, cut, strict=True)), prompts[row], lost=[int(more_chosen)])
            which = "more" if more_chosen else "less"
            title = f"{how}, size {abs(float(values[row])):.2f}, {which} of it was chosen"
            name = f"unit-{unit}-pair-{len(shown)}"
            shown.append(Section(title, cards=[card], name=name, fold=False))
    return shown


def draw_units(units: Sequence[UnitRow]) -> Figure | None:
    """Plot the coefficients with their intervals; None without active units."""
    rows = []
    for row in sorted(units[:_SHOWN_UNITS], key=lambda row: -row.coefficient.mean):
        text = f"{row.unit}: {row.label}"
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


def write_preferences(
    artifact: Artifact,
    study: PreferenceStudy,
    *,
    title: str,
    label_sources: Sequence[str],
    examples: Mapping[int, Sequence[Section]],
    notes: Mapping[str, Any],
) -> None:
    """Write preferences.html and its plot.

    Args:
        artifact: the output folder.
        study: the results.
        title: heading of the page.
        label_sources: who labelled the pairs.
        examples: `pairs_to_read` by unit.
        notes: of the embeddings.
    """
    panel, units, by = draw_units(study.units), study.units, study.described_by
    method = (
        "Both stories of a pair are embedded, and one embedding is subtracted from the other, in "
        "an order given by a hash. A sparse autoencoder represents every difference by a few "
        "signed units; a linear model without intercept predicts from the units which side was "
        f"chosen. The units do not reconstruct {percent(study.unexplained, 0)} of the held-out "
        "differences."
    )
    folds = (
        "Autoencoders and linear models are fitted in each fold, without the prompts that they "
        "judge, so the units differ between folds and from those below. A margin of zero counts ½. "
        "Intervals are 95 %, clustered by prompt; p values have Holm's correction for all "
        "differences of the table. The paper reports 0.612 for such units on its own held-out "
        "pairs (3.4.1)."
    )
    agreement = table_of(
        study.agreements,
        {
            "linear model on": lambda one: one.name,
            "agreement": lambda one: stacked(one.agreement),
            ENDS: lambda one: Cell(scale=one.agreement),
            "chosen longer": lambda one: stacked(one.chosen_longer),
            "chosen shorter": lambda one: stacked(one.chosen_shorter),
            "over the longer story": lambda one: Cell(
                signed(one.over_longer), [p_value(one.p_holm)] if one.over_longer else []
            ),
        },
    )
    silent = study.silent_units
    to_read = [
        Section(
            f"Unit {row.unit} ({signed(row.coefficient.mean)}): {row.label}",
            _surface_note(row),
            parts=examples[row.unit],
            fold=False,
            name=f"unit-{row.unit}",
        )
        for row in units
    ]
    first = study.agreements[0].agreement
    sections = [
        Section(
            "Held-out agreement",
            method,
            agreement,
            remarks=[folds],
            name="agreement",
            warnings=[*few_prompts(first), *_embedding_warnings(notes)],
        ),
        Section(
            "Units",
            _units_note(by),
            _units_table(study),
            [panel] if panel else [],
            [f"{silent} further units are active on no pair."] if silent else [],
        ),
        Section(
            "Pairs to read",
            "For every unit, the pairs on which it is strongest, then random pairs on which it "
            "is active. The story with more of the unit is on the left.",
            parts=to_read,
            name="pairs",
        ),
    ]
    clear = [row for row in units if row.is_significant]
    lead = (
        f"A linear model on sparse units has a held-out agreement of {write_interval(first)}. "
        f"{len(clear)} of {len(units)} units have a significant coefficient"
        f"{f', above all {clear[0].label}' if clear else ''}."
    )
    facts = (
        f"{study.pairs:,} pairs of {study.prompts:,} prompts, {study.held_out}; "
        f"{label_text(label_sources)}. {written_now()}"
    )
    page = Page(title, lead, facts, sections, label_sources)
    write_page(artifact, "preferences", page, {"coefficients": panel})


def _embedding_warnings(notes: Mapping[str, Any]) -> list[str]:
    warnings = []
    if (notes.get("unknown_tokens") or 0) > 0.05:
        warnings.append(
            f"The vocabulary of the embedding model lacks {percent(notes['unknown_tokens'])} of "
            "the tokens, so it misses much of these stories."
        )
    if cut := notes.get("tokens_cut"):
        share = percent(cut / (cut + notes["tokens"]))
        warnings.append(
            f"The ends of {notes['longer_than_a_window']:,} of {notes['texts']:,} stories were cut "
            f"off, {share} of all tokens, so the units describe the beginnings."
        )
    return warnings


def _units_note(by: str | None) -> str:
    described = (
        "No model described the units. Their labels are counts on the pairs on which they are "
        "active: correlations with surface features, and words that occur only on the side with "
        "more of the unit. These are hints, not descriptions."
    )
    if by:
        described = (
            f"Described by {by}. Fidelity is tested on pairs of other prompts, in an order "
            f"independent of the unit: how often {by}, given only the description, names the side "
            "with more of the unit. Naming neither side counts ½, which is also chance."
        )
    return (
        "One autoencoder, fitted on all pairs without looking at their labels, and one linear "
        f"model on its units. {described} A coefficient is in log-odds of being preferred for a "
        "root mean square of the unit, all units in one model with a penalty that shrinks them "
        "towards 0. Its interval, by prompt, takes the units and the penalty as given; another "
        "training may find other units. Bold where it differs significantly from 0 (Benjamini and "
        "Hochberg over all units). Preferred: how often the side with more of the unit was chosen, "
        "among the pairs on which it is active."
    )


def _units_table(study: PreferenceStudy) -> Table:
    def about(row: UnitRow) -> Cell:
        small = [f"counted: {surface_label(row.surface)}"] if study.described_by else []
        return Cell(row.label, small, is_text=True)

    def coefficient(row: UnitRow) -> Cell:
        found = row.coefficient
        known = math.isfinite(found.low)
        small = [f"[{signed(found.low)}, {signed(found.high)}]"] if known else []
        return Cell(signed(found.mean), small, is_bold=row.is_significant)

    def fidelity(row: UnitRow) -> Cell:
        if row.fidelity is None:
            return Cell("–")
        unread = f", {row.fidelity.unread} unread" if row.fidelity.unread else ""
        return stacked(row.fidelity.agreement, f"{row.fidelity.agreement.n} pairs{unread}")

    return table_of(
        study.units,
        {
            "unit": lambda row: Cell(str(row.unit), address=f"#unit-{row.unit}"),
            "description" if study.described_by else "what is counted": about,
            "coefficient": coefficient,
            "prevalence": lambda row: percent(row.prevalence),
            "preferred": lambda row: stacked(row.preferred, f"{row.preferred.n:,} pairs"),
            "fidelity": fidelity,
        },
    )


def _surface_note(row: UnitRow) -> str:
    found = row.surface
    correlations = ", ".join(
        f"{name.replace('_', ' ')} {r:+.2f}" for name, r in found.correlations.items()
    )
    return (
        f"Correlations: {correlations}. Words of the side with more: "
        f"{', '.join(found.more) or 'none'}; with less: {', '.join(found.less) or 'none'}."
    )
