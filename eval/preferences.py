"""Explain preferences by sparse units of embedding differences.

    python eval/preferences.py --config configs/eval/sample_preferences.yaml

The method of the paper (3.4.1, A.1; Movva et al., 2025), see docs/preferences.md. Both stories of
every pair are embedded, an autoencoder describes the differences by a few signed units, and a
linear model predicts the label from the units. Agreement is measured in folds over prompts, and
compared with linear models on the whole difference, on as many principal components and on surface
features, and with the longer story. The table of units and the page show another autoencoder,
fitted on all pairs.

With `model`, any model of inspect-ai describes every unit, and its descriptions are tested on pairs
of other prompts. Without it, units are labelled by counts: surface features and words.

Reads `pairs`. Writes `preferences.json` and `.txt`, `units.csv`, `units.parquet` (every pair's
units), `preferences.html` (which shows stories), `coefficients.svg` and `.png`, `model/` (the
autoencoder) and `manifest.json` into `out`. Embeddings in `out/embeddings` and answers in
`out/answers` are stored as they arrive, so a killed run resumes.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from litbench.config import Input, Runtime, run_program
from litbench.curation.splits import assign_folds
from litbench.errors import ConfigError, DataError
from litbench.judges.client import Budget, Traffic, ask, check_limit
from litbench.judges.interpreting import (
    InterpretingOptions,
    UnitPairs,
    choose_pairs,
    describe_question,
    load_questions,
    read_description,
    read_more,
    verify_question,
)
from litbench.judges.prices import dollars_of, load_prices, price_of
from litbench.judges.store import Answer, AnswerStore, Sampling
from litbench.locations import locate
from litbench.metrics.csv_table import write_csv
from litbench.metrics.leaderboard import plain
from litbench.metrics.preferences import (
    Fidelity,
    PreferenceStudy,
    agreement_rows,
    coefficient_intervals,
    credits_of,
    distinct_words,
    fidelity_of,
    preference_rows,
    preferences_text,
    surface_of,
    unit_rows,
)
from litbench.models.autoencoder import Autoencoder, AutoencoderOptions, fit_autoencoder
from litbench.models.embeddings import WORDS, Embedding, EmbeddingOptions, WordEmbedding, embed
from litbench.models.features import FEATURES, feature_matrix
from litbench.models.linear_preference import fit_linear_preference, logistic
from litbench.progress import ProgressBar
from litbench.records import connected_prompts, pair_weights
from litbench.report.pages import pairs_to_read, write_preferences
from litbench.sources.evaluation_pairs import read_pairs
from litbench.store import Artifact, write_json
from litbench.text import digest

_LONGER = "the longer story"
# Share of the prompts for early stopping of an autoencoder.
_VALIDATION_SHARE = 0.1


@dataclass
class Config:
    """Configuration of `preferences.py`.

    Attributes:
        pairs: pairs file.
        out: folder to write.
        split: split of the pairs to use; null for all.
        embedding: model, service or words; see litbench.models.embeddings.
        autoencoder: see litbench.models.autoencoder.
        c: inverse strengths of the linear models' penalty, selected in inner folds.
        folds: number of folds over prompts.
        repeats: number of times to repeat the folds with other seeds.
        seed: seed of signs, folds, training and selected pairs.
        model: inspect-ai name of the model that describes the units; null for none.
        interpreting: pairs and characters to show it; see litbench.judges.interpreting.
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
        return first.astype(np.float64) - second


def check(config: Config) -> None:
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


def read_table(config: Config) -> pa.Table:
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


def signed(table: pa.Table, seed: int) -> Pairs:
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
    differences: np.ndarray, keys: np.ndarray, config: Config, seed: int
) -> Autoencoder:
    """Fit the autoencoder, with some of the prompts held out for early stopping."""
    ordered = sorted(set(keys), key=lambda key: digest("stop", seed, key))
    count = min(max(1, round(_VALIDATION_SHARE * len(ordered))), len(ordered) - 1)
    stops = np.isin(keys, ordered[:count])
    return fit_autoencoder(differences[~stops], differences[stops], config.autoencoder, seed)


def held_out_margins(
    embedding: Embedding, pairs: Pairs, is_held: np.ndarray, config: Config, seed: int
) -> tuple[dict[str, np.ndarray], float]:
    """Margins of every linear model on held-out pairs, and the share that units do not explain.

    `is_held` (bool, shape (n,)) marks the pairs that are held out of all fits.
    """
    rows = np.flatnonzero(~is_held)
    differences = pairs.differences(embedding.fitted_on(np.unique(pairs.texts_at[rows])))
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
    embedding: Embedding, pairs: Pairs, config: Config
) -> tuple[dict[str, np.ndarray], float]:
    """Credits per pair by model, averaged over repeats, and the unexplained share."""
    credits: dict[str, np.ndarray] = {}
    unexplained = []
    seeds = range(config.seed, config.seed + config.repeats)
    jobs = list(itertools.product(seeds, range(config.folds)))
    for seed, fold in ProgressBar(jobs, desc="folds", unit=" fit", leave=False):
        fold_of = assign_folds(pairs.keys.tolist(), config.folds, seed)
        is_held = np.array([fold_of[key] == fold for key in pairs.keys])
        margins, share = held_out_margins(embedding, pairs, is_held, config, seed)
        unexplained.append(share)
        for name, margin in margins.items():
            total = credits.setdefault(name, np.zeros(len(pairs.keys)))
            total[is_held] += credits_of(margin, pairs.first_chosen[is_held]) / config.repeats
    credits[_LONGER] = credits_of(pairs.words, np.ones(len(pairs.keys), dtype=bool))
    return credits, float(np.mean(unexplained))


def describe_units(
    config: Config, model: str, pairs: Pairs, units: np.ndarray, chosen: Mapping[int, UnitPairs]
) -> tuple[dict[int, tuple[str | None, Fidelity | None]], dict[str, Any]]:
    """Ask a model for descriptions and test them.

    Returns:
        Description and fidelity by unit, and a summary of the answers.
    """
    questions, letters = load_questions(), config.interpreting.shown_letters
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
                describe_question(questions, pairs.sides, units[:, u], chosen[u].examples, letters)
                for u in with_examples
            ],
            "descriptions",
        )
        parsed = zip(with_examples, map(read_description, texts), strict=True)
        descriptions = {unit: text for unit, text in parsed if text is not None}
        tests = [(unit, row) for unit in descriptions for row in chosen[unit].tests]
        verdicts = texts_of_answers(
            [
                verify_question(questions, descriptions[unit], pairs.sides[row], letters)
                for unit, row in tests
            ],
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


def main(config: Config) -> None:
    """Write the study of preferences."""
    check(config)
    models = {}
    if config.embedding.is_transformer:
        models["embedding.model"] = locate(config.embedding.model)[0]
    if config.prices is not None:
        models["prices"] = str(config.prices)
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        models=models,
    )
    page_path = (config.out / "preferences.html").resolve()
    if artifact.is_current():
        print((config.out / "preferences.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return
    table = read_table(config)
    texts, folder = texts_of(table), config.out / "embeddings"
    embedding: Embedding
    if config.embedding.model == WORDS:
        embedding = WordEmbedding(texts)
    else:
        embedding = embed(texts, config.embedding, folder)
    pairs = signed(table, config.seed)
    keys, first, weights = pairs.keys.tolist(), pairs.first_chosen, pairs.weights
    differences = pairs.differences(embedding.fitted_on(np.arange(len(texts))))
    autoencoder = train_units(differences, pairs.keys, config, config.seed)
    units = autoencoder.units(differences)
    active = np.flatnonzero(units.any(0)).tolist()
    linear = fit_linear_preference(units, first, keys, config.c, weights)
    scaled = units / linear.scale
    coefficients, p_values = coefficient_intervals(
        lambda some: logistic(scaled[some], first[some], linear.c, weights[some]), keys
    )
    credits, unexplained = measure(embedding, pairs, config)
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
    artifact.write("preferences.txt", lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = {
        "pairs": len(keys),
        "prompts": len(set(keys)),
        "embeddings": dict(embedding.notes),
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
        notes=embedding.notes,
        label_sources=sorted(set(table["label_source"].to_pylist())),
    )
    print(f"{text}page: {page_path}")
    if asked.get("errors"):
        # Without a manifest, the next run requests the failed answers again.
        print(f"{asked['errors']:,} answers are errors: run the same command again to retry them")
        return
    artifact.finish()


if __name__ == "__main__":
    run_program(main, Config, __doc__)
