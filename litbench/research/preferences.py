"""Explain preferences by sparse units of embedding differences (paper, 3.4.1, A.1).

Both stories of every pair are embedded, an autoencoder describes the differences by a few signed
units (positive if the first side has more), and a linear model predicts the label from the units
(Movva et al., 2025). Agreement is measured in folds over prompts; the table of units shows another
autoencoder, fitted on all pairs. A model may describe each unit; its descriptions are tested on
pairs of other prompts. See docs/preferences.md.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, PositiveFloat, PositiveInt

from litbench.data.columns import PairColumns
from litbench.data.curation.splits import assign_folds
from litbench.data.records import (
    SIDES,
    VERDICTS,
    connected_prompts,
    empty_columns,
    label_text,
    pair_weights,
)
from litbench.data.sources.evaluation_pairs import read_pairs
from litbench.data.text import digest
from litbench.evaluation.report import figures
from litbench.evaluation.report.document import (
    Card,
    Cell,
    Figure,
    Page,
    Section,
    Table,
    few_prompts,
    p_value,
    percent,
    publish,
    shorten,
    show_results,
    signed,
    table_of,
    write_interval,
    written_now,
)
from litbench.evaluation.report.leaderboard import (
    agreement_columns,
    coin_note,
    leaderboard_text,
    rater_table,
    significance_note,
)
from litbench.judges.answers import Sampling
from litbench.judges.client import Traffic
from litbench.judges.prices import load_prices
from litbench.judges.session import JUDGE, Models, Role
from litbench.metrics.coefficients import coefficient_intervals
from litbench.metrics.comparisons import benjamini_hochberg
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.metrics.leaderboard import LeaderboardRow, leaderboard, plain
from litbench.models.features import FEATURES, feature_matrix
from litbench.models.linear_preference import fit_linear_preference, logistic
from litbench.research.autoencoder import Autoencoder, AutoencoderOptions, fit_autoencoder
from litbench.research.embeddings import EmbeddingOptions, embed
from litbench.research.units import Fidelity, describe_units
from litbench.runs.config import Runtime
from litbench.runs.errors import DataError
from litbench.runs.locations import locate
from litbench.runs.outputs import Artifact, write_json
from litbench.runs.progress import ProgressBar
from litbench.runs.terminal import clean_name

# The raters that the page and the leaderboard's reference name.
LONGER, UNITS = "the longer story", "units"
# Share of the prompts for early stopping of an autoencoder.
_VALIDATION_SHARE = 0.1
# Surface features that are named for a unit.
_CORRELATIONS = 6


@dataclass
class PreferencesConfig(PairColumns):
    """Explain preferences by sparse units of embedding differences.

        litbench preferences --config configs/eval/preferences.yaml

    The method of the paper (3.4.1, A.1; Movva et al., 2025), see docs/preferences.md. Both stories
    of every pair are embedded, an autoencoder describes the differences by a few signed units, and
    a linear model predicts the label from the units. Agreement is measured in folds over prompts,
    and compared with linear models on the whole difference, on as many principal components and on
    surface features, and with the longer story. The table of units and the page show another
    autoencoder, fitted on all pairs.

    With `model`, any model of inspect-ai describes every unit, and its descriptions are tested on
    pairs of other prompts. Without it, units are labelled by counts: surface features and words.

    Reads `pairs`. Writes `preferences.json` and `.txt`, `units.csv`, `units.parquet` (every pair's
    units), `preferences.html` (which shows stories), `coefficients.svg` and `.png`, `model/` (the
    autoencoder) and `manifest.json` into `out`. Embeddings in `out/embeddings` and answers in
    `out/answers` are stored as they arrive, so a killed run resumes.

    Attributes:
        pairs: pairs file.
        out: folder to write.
        split: split of the pairs to use; null for all.
        embedding: model or service; see litbench.research.embeddings.
        autoencoder: see litbench.research.autoencoder.
        c: inverse strengths of the linear models' penalty, selected in inner folds.
        folds: number of folds over prompts.
        repeats: number of times to repeat the folds with other seeds.
        seed: seed of signs, folds, training and selected pairs.
        model: inspect-ai name of the model that describes the units; null for none.
        sampling: sampling parameters of the model.
        traffic: connections, retries and limits.
        prices: file of prices that override the packaged ones.
    """

    pairs: Path
    out: Path
    split: str | None = None
    embedding: EmbeddingOptions = field(default_factory=EmbeddingOptions)
    autoencoder: AutoencoderOptions = field(default_factory=AutoencoderOptions)
    c: Annotated[list[PositiveFloat], Field(min_length=1)] = field(
        default_factory=lambda: [0.001, 0.01, 0.1, 1.0]
    )
    folds: Annotated[int, Field(ge=2)] = 5
    repeats: PositiveInt = 1
    seed: int = 0
    model: str | None = None
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=256))
    traffic: Annotated[Traffic, Runtime] = field(default_factory=Traffic)
    prices: Path | None = None


# Figures --------------------------------------------------------------------------------------


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
        surface: its strongest correlations with differences of surface features.
    """

    unit: int
    coefficient: Interval
    p_bh: float
    prevalence: float
    preferred: Interval
    description: str | None
    fidelity: Fidelity | None
    surface: dict[str, float]

    @property
    def is_significant(self) -> bool:
        """Whether the coefficient differs from 0 after correction."""
        return self.p_bh < 0.05

    @property
    def label(self) -> str:
        """The description, or the counts that go with the unit without one, on one line."""
        return self.counted if self.description is None else clean_name(self.description)

    @property
    def counted(self) -> str:
        """The two surface features that correlate most."""
        return "; ".join(f"{name} {r:+.2f}" for name, r in list(self.surface.items())[:2])

    def as_row(self) -> dict[str, Any]:
        names = ("unit", "label", "coefficient", "p_bh", "prevalence", "preferred")
        return {name: getattr(self, name) for name in names} | {
            "pairs": self.preferred.n,
            "fidelity": self.fidelity and self.fidelity.agreement,
            "surface": self.counted,
        }


@dataclass(frozen=True)
class PreferenceResults:
    """The units of the preferences and their figures.

    Attributes:
        leaderboard: the linear models on held-out pairs, and the longer story; each fold has its
            own autoencoder.
        units: active units of the autoencoder that was fitted on all pairs, largest coefficients
            first.
        silent_units: number of units that are never active.
        unexplained: share of the squared held-out differences that the units do not reconstruct.
        described_by: the model that described the units, or None.
    """

    pairs: int
    prompts: int
    held_out: str
    leaderboard: list[LeaderboardRow]
    units: list[UnitRow]
    silent_units: int
    unexplained: float
    described_by: str | None


def credits_of(margins: np.ndarray, first_chosen: np.ndarray) -> np.ndarray:
    """1 where a margin names the chosen side, 1/2 where it is zero, else 0; shape (n,)."""
    credits: np.ndarray = (1 + np.sign(np.where(first_chosen, margins, -margins))) / 2
    return credits


def unit_rows(
    units: np.ndarray,
    first_chosen: np.ndarray,
    clusters: np.ndarray,
    coefficients: Sequence[Interval],
    p_values: Sequence[float],
    described: Mapping[int, tuple[str, Fidelity | None]],
    surfaces: Mapping[int, dict[str, float]],
) -> list[UnitRow]:
    """The table of units that are ever active, largest coefficients first."""
    adjusted = benjamini_hochberg(p_values)
    rows = []
    for unit, surface in surfaces.items():
        active = units[:, unit] != 0
        preferred = credits_of(units[active, unit], first_chosen[active])
        description, fidelity = described.get(unit, (None, None))
        rows.append(
            UnitRow(
                unit,
                coefficients[unit],
                adjusted[unit],
                float(active.mean()),
                jackknife_interval(preferred, clusters[active]),
                description,
                fidelity,
                surface,
            )
        )
    return sorted(rows, key=lambda row: -abs(row.coefficient.mean))


def preferences_text(results: PreferenceResults, shown: int = 12) -> str:
    """The results as text for a terminal."""
    return (
        f"held-out agreement: {results.pairs:,} pairs of {results.prompts:,} prompts, "
        f"{results.held_out}\n\n{leaderboard_text(results.leaderboard)}\n\n"
        f"units of one autoencoder, fitted on all pairs: {len(results.units)} active, "
        f"{results.silent_units} silent; {results.unexplained:.0%} of the held-out differences not "
        f"explained\n{_units_table(results.units[:shown], results.described_by).as_text()}\n"
        f"units.csv has all {len(results.units)} units\n"
    )


# The results ----------------------------------------------------------------------------------


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
    models_of(config)


def models_of(config: PreferencesConfig) -> Models:
    """The model that describes units, if there is one."""
    model = config.model
    roles = {} if model is None else {JUDGE: Role(model, config.sampling, config.traffic)}
    return Models({}, roles, load_prices(config.prices))


def read_table(config: PreferencesConfig) -> pa.Table:
    """Read the pairs."""
    table = read_pairs(config.pairs, None, config.split, columns=config.columns()).headline
    prompts = len(set(connected_prompts(table)))
    if prompts < max(4, config.folds):
        raise DataError(
            f"{config.pairs}: {prompts} prompts: give pairs of at least 4 prompts, and one per fold"
        )
    return table


def texts_of(table: pa.Table) -> list[str]:
    """The distinct stories to embed, sorted."""
    return sorted({text for side in SIDES for text in table[side].to_pylist()})


def sign_pairs(table: pa.Table, seed: int) -> Pairs:
    """Assign the order of the sides of every pair at random, by a hash."""
    pair_ids, prompts, chosen, rejected = (
        table[name].to_pylist() for name in ("pair_id", "prompt", "chosen", "rejected")
    )
    index_of = {text: number for number, text in enumerate(texts_of(table))}
    first = np.array([int(digest("sign", seed, key), 16) % 2 == 0 for key in pair_ids], dtype=bool)
    sides = [
        (good, bad) if is_first else (bad, good)
        for good, bad, is_first in zip(chosen, rejected, first, strict=True)
    ]
    counted = [feature_matrix(prompts, texts) for texts in zip(*sides, strict=True)]
    words = table["chosen_n_words"].to_numpy() - table["rejected_n_words"].to_numpy()
    return Pairs(
        table,
        np.array(connected_prompts(table)),
        first,
        sides,
        np.array([[index_of[key], index_of[other]] for key, other in sides]),
        counted[0] - counted[1],
        words.astype(float),
        pair_weights(table),
    )


def surface_correlations(values: np.ndarray, differences: np.ndarray) -> dict[str, float]:
    """A unit's strongest correlations with the surface features of the differences, by name.

    Args:
        values: values of the unit; shape (n,).
        differences: shape (n, features), in the order of FEATURES.
    """
    correlations = {
        name: round(float(np.corrcoef(values, column)[0, 1]), 3)
        for name, column in zip(FEATURES, differences.T, strict=True)
        if np.ptp(column) > 1e-12 and np.ptp(values) > 0
    }
    strongest = sorted(correlations, key=lambda name: (-abs(correlations[name]), name))[
        :_CORRELATIONS
    ]
    return {name: correlations[name] for name in strongest}


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
    train, new = differences[rows], differences[is_held]
    keys, first, weights = pairs.keys[rows], pairs.first_chosen[rows], pairs.weights[rows]
    units = train_units(train, keys, config, seed)
    # The name counts the units even if a small fold has fewer components.
    components = np.linalg.svd(train, full_matrices=False)[2][: config.autoencoder.units].T
    views = {
        UNITS: (units.units(train), units.units(new)),
        f"{config.autoencoder.units} principal components": (train @ components, new @ components),
        "embedding": (train, new),
        "surface features": (pairs.surface[rows], pairs.surface[is_held]),
    }
    margins = {
        name: fit_linear_preference(seen, first, keys.tolist(), config.c, weights).margins(unseen)
        for name, (seen, unseen) in views.items()
    }
    return margins, units.unexplained(new)


def verdict_rows(
    rater: str, kind: str, margins: np.ndarray, pair_ids: Sequence[str], fold: str | None = None
) -> list[dict[str, Any]]:
    """Rows of VERDICTS from margins, shape (n,), that are positive for the chosen story."""
    outcomes = {1: "chosen", 0: "tie", -1: "rejected"}
    return [
        {"pair_id": key, "rater": rater, "kind": kind, "outcome": outcomes[sign], "fold": fold}
        for key, sign in zip(pair_ids, np.sign(margins).astype(int).tolist(), strict=True)
    ]


def measure(
    differences: np.ndarray, pairs: Pairs, config: PreferencesConfig
) -> tuple[pa.Table, float]:
    """The held-out verdicts of the models, by repeat and fold, and the unexplained share."""
    pair_ids = pairs.table["pair_id"].to_numpy()
    rows = verdict_rows(LONGER, "longer", pairs.words, pair_ids)
    unexplained = []
    jobs = list(itertools.product(range(config.repeats), range(config.folds)))
    for repeat, fold in ProgressBar(jobs, desc="folds", unit=" fit", leave=False):
        seed = config.seed + repeat
        fold_of = assign_folds(pairs.keys.tolist(), config.folds, seed)
        is_held = np.array([fold_of[key] == fold for key in pairs.keys])
        margins, share = held_out_margins(differences, pairs, is_held, config, seed)
        unexplained.append(share)
        signs = np.where(pairs.first_chosen[is_held], 1, -1)
        for name, margin in margins.items():
            rows += verdict_rows(
                name, "linear", margin * signs, pair_ids[is_held], f"{repeat}/{fold}"
            )
    schema = pa.table(empty_columns(VERDICTS, 0)).schema
    return pa.Table.from_pylist(rows, schema), float(np.mean(unexplained))


def run_preferences(config: PreferencesConfig) -> None:
    """Find the units, and write the results."""
    check(config)
    models = {}
    if not config.embedding.is_service:
        models["embedding.model"] = locate(config.embedding.model)[0]
    inputs = {"pairs": config.pairs, "prices": config.prices}
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs, models=models)
    if artifact.is_current():
        show_results(config.out, "preferences")
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
    verdicts, unexplained = measure(differences, pairs, config)
    described: dict[int, tuple[str, Fidelity | None]] = {}
    asked: dict[str, Any] = {}
    if config.model is not None:
        described, asked = describe_units(
            models_of(config),
            units,
            pairs.sides,
            keys,
            seed=config.seed,
            answers=config.out / "answers",
        )
    surfaces = {unit: surface_correlations(units[:, unit], pairs.surface) for unit in active}
    results = PreferenceResults(
        pairs=len(keys),
        prompts=len(set(keys)),
        held_out=f"held out by prompt in {config.folds} folds"
        + ("" if config.repeats == 1 else f", {config.repeats} times"),
        leaderboard=leaderboard(verdicts, table, LONGER),
        units=unit_rows(units, first, pairs.keys, coefficients, p_values, described, surfaces),
        silent_units=units.shape[1] - len(active),
        unexplained=unexplained,
        described_by=config.model,
    )

    artifact.write_folder("model", autoencoder.save)
    artifact.counts = {
        "pairs": len(keys),
        "prompts": len(set(keys)),
        "embeddings": notes,
        "autoencoder": autoencoder.notes,
        "c": linear.c,
        "asked": asked,
    }
    _write_results(artifact, results, pairs, units)


def _write_results(
    artifact: Artifact, results: PreferenceResults, pairs: Pairs, units: np.ndarray
) -> None:
    """Write the tables and the page; without a manifest if a model's answer is an error."""
    table, first = pairs.table, pairs.first_chosen
    artifact.write("preferences.json", partial(write_json, plain(results)))
    # Positive means more of the unit on the chosen side.
    towards_chosen = np.where(first[:, None], units, -units).astype(np.float32)
    columns = {name: table[name] for name in ("pair_id", "prompt_id")}
    columns |= {f"unit_{unit}": pa.array(towards_chosen[:, unit]) for unit in range(units.shape[1])}
    artifact.write("units.parquet", lambda path: pq.write_table(pa.table(columns), path))
    prompts = table["prompt"].to_pylist()
    page = preferences_page(
        results,
        examples={
            row.unit: pairs_to_read(units[:, row.unit], prompts, pairs.sides, first, row.unit)
            for row in results.units
        },
        notes=artifact.counts["embeddings"],
        label_sources=sorted(set(table["label_source"].to_pylist())),
    )
    tables = {"units": [row.as_row() for row in results.units]} if results.units else {}
    # Without a manifest, the next run requests the failed answers again.
    errors = artifact.counts["asked"].get("errors")
    publish(artifact, "preferences", preferences_text(results), page, tables, is_final=not errors)
    if errors:
        print(f"{errors:,} answers are errors: run the same command again to retry them")


# The page -------------------------------------------------------------------------------------

_SHOWN_UNITS, _MAX_LABEL = 20, 34
# Stories on a page are cut to this many characters.
_MAX_LETTERS = 12_000


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
            words = SIDES if more_chosen else SIDES[::-1]
            tags = f"more of unit {unit}, {words[0]}", f"less, {words[1]}"
            cut = (shorten(text, _MAX_LETTERS) for text in texts)
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
        text = text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…"
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


def preferences_page(
    results: PreferenceResults,
    *,
    label_sources: Sequence[str],
    examples: Mapping[int, Sequence[Section]],
    notes: Mapping[str, Any],
) -> Page:
    """The page, with its plot; `examples` has the pairs to read by unit."""
    panel, units, by = draw_units(results.units), results.units, results.described_by
    method = (
        "Both stories of a pair are embedded, and one embedding is subtracted from the other, in "
        "an order given by a hash. A sparse autoencoder represents every difference by a few "
        "signed units; a linear model without intercept predicts from the units which side was "
        f"chosen. The units do not reconstruct {percent(results.unexplained, 0)} of the held-out "
        "differences."
    )
    folds = (
        "Autoencoders and linear models are fitted in each fold, without the prompts that they "
        "judge, so the units differ between folds and from those below. A margin of zero counts ½. "
        "The paper reports 0.612 for such units on its own held-out pairs (3.4.1)."
    )
    silent = results.silent_units
    to_read = [
        Section(
            f"Unit {row.unit} ({signed(row.coefficient.mean)}): {row.label}",
            f"Correlations: {', '.join(f'{name} {r:+.2f}' for name, r in row.surface.items())}.",
            parts=examples[row.unit],
            fold=False,
            name=f"unit-{row.unit}",
        )
        for row in units
    ]
    raters = results.leaderboard
    agreement = next(row.agreement for row in raters if row.rater == UNITS)
    reference = next(row.comparison.reference for row in raters if row.comparison is not None)
    sections = [
        Section(
            "Held-out agreement",
            method,
            rater_table(raters, agreement_columns(reference)),
            remarks=[folds, *filter(None, (coin_note(raters), significance_note(raters)))],
            name="agreement",
            warnings=[*few_prompts(agreement), *_embedding_warnings(notes)],
        ),
        Section(
            "Units",
            _units_note(by),
            _units_table(units, by),
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
        f"A linear model on sparse units has a held-out agreement of {write_interval(agreement)}. "
        f"{len(clear)} of {len(units)} units have a significant coefficient"
        f"{f', above all {clear[0].label}' if clear else ''}."
    )
    facts = (
        f"{results.pairs:,} pairs of {results.prompts:,} prompts, {results.held_out}; "
        f"{label_text(label_sources)}. {written_now()}"
    )
    title = "LitBench: what the preferences encode"
    return Page(title, lead, facts, sections, label_sources, files={"coefficients": panel})


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
        "No model described the units. Their labels are the surface features that correlate most "
        "with them: hints, not descriptions."
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


def _units_table(units: Sequence[UnitRow], by: str | None) -> Table:
    def about(row: UnitRow) -> Cell:
        small = [f"counted: {row.counted}"] if by else []
        return Cell(row.label, small, is_text=True)

    def fidelity(row: UnitRow) -> Cell:
        if row.fidelity is None:
            return Cell("–")
        unread = f", {row.fidelity.unread} unread" if row.fidelity.unread else ""
        agreement = row.fidelity.agreement
        return Cell(write_interval(agreement), [f"{agreement.n} pairs{unread}"])

    return table_of(
        units,
        {
            "unit": lambda row: Cell(str(row.unit), address=f"#unit-{row.unit}"),
            "description" if by else "what is counted": about,
            "coefficient [95 %]": lambda row: Cell(
                signed(row.coefficient), is_bold=row.is_significant
            ),
            "p (BH)": lambda row: p_value(row.p_bh),
            "prevalence": lambda row: percent(row.prevalence),
            "preferred": lambda row: Cell(
                write_interval(row.preferred), [f"{row.preferred.n:,} pairs"]
            ),
            "fidelity": fidelity,
        },
    )
