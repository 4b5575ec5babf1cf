"""What preferences encode: sparse units of embedding differences, and how they count.

    python eval/preferences.py --config configs/eval/sample_preferences.yaml

The method of the paper (3.4.1, A.1; Movva et al., 2025). Both stories of every pair are embedded,
by a model of transformers, by a service or by their words, and one embedding is taken from the
other, in an order drawn by a hash of pair and seed, which the label follows. A sparse autoencoder
(litbench/models/autoencoder.py) writes the differences as few signed units; a linear model without
intercept reads the label from them. Agreement is measured on prompts that neither was fitted on, in
folds, or on `test_split`; beside the units stand, on the same pairs, linear models on the whole
difference, on as many principal components, and on surface features, and the longer story. Every
fold has an autoencoder of its own, whose units are no other fold's. The table of units, their
coefficients and the page are of one more autoencoder, fitted on all pairs of `split`. Where pairs
have a weight, the linear models use it.

With `model`, any model of inspect-ai describes every unit from the pairs that fire it most and is
then tested on pairs of other prompts (litbench/judges/interpreting.py). Without it, units are named
by what can be counted: surface features and words.

Reads `pairs`. Writes `preferences.json` and `.txt`, `units.csv`, `units.parquet` (every pair's
units), `preferences.html` (which shows stories), `coefficients.svg` and `.png`, `model/` (the
autoencoder) and `manifest.json` into `out`. Embeddings are kept in `out/embeddings` and answers in
`out/answers` as they come, so a killed run goes on. With `--dry_run true` the program tells what
asking would cost: for embeddings by a service, and for descriptions once the units are there.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from litbench.artifact import Artifact, without_runtime_keys, write_json
from litbench.config import as_plain, run_program
from litbench.curation.splits import assign_folds
from litbench.errors import ConfigError, DataError
from litbench.evaluation import estimates_text, read_pairs
from litbench.judges.client import Budget, Traffic, ask, estimate_tokens
from litbench.judges.interpreting import (
    InterpretingOptions,
    Questions,
    UnitPairs,
    choose_pairs,
    describe_question,
    load_questions,
    read_description,
    read_more,
    verify_question,
)
from litbench.judges.prices import Price, dollars_of, load_prices, price_of
from litbench.judges.store import Answer, AnswerStore, Sampling, keys_of
from litbench.locations import locate
from litbench.metrics.preferences import (
    Fidelity,
    PreferenceStudy,
    Surface,
    agreement_rows,
    coefficient_intervals,
    credits_of,
    distinct_words,
    fidelity_of,
    preferences_json,
    preferences_text,
    surface_of,
    unit_rows,
    write_units_csv,
)
from litbench.models.autoencoder import Autoencoder, AutoencoderOptions, fit_autoencoder
from litbench.models.embedding_service import ServiceEmbeddings
from litbench.models.embeddings import WORDS, Embedding, EmbeddingOptions, WordEmbedding, embed
from litbench.models.features import FEATURES, feature_matrix
from litbench.models.linear_preference import fit_linear_preference, logistic
from litbench.raters import Estimate
from litbench.records import pair_weights, prompt_keys
from litbench.report.preferences_page import draw_units, pairs_to_read, render_preferences
from litbench.text import digest

_UNITS, _RAW, _SURFACE, _LONGER = "units", "embedding", "surface features", "the longer story"
_SHOWN_PAIRS = 3
# Tokens of an answer and seconds of a call, for the dry run.
_USUAL_TOKENS, _USUAL_SECONDS = 25, 3.0


@dataclass
class Config:
    """What to decompose, and how.

    Attributes:
        pairs: pairs file.
        out: folder to write.
        split: pairs of this split; null for all.
        test_split: measure agreement on this split, and fit on `split`; null: in folds.
        max_prompts: so many prompts, drawn by a hash; null for all.
        embedding: model, service or words, see litbench.models.embeddings.
        autoencoder: see litbench.models.autoencoder.
        c: inverse strengths of the linear models' penalty, chosen in inner folds.
        folds: folds over prompts.
        repeats: times the folds are dealt anew.
        seed: of signs, folds, trainings and draws.
        model: name that inspect-ai knows, to describe the units; null for none.
        interpreting: pairs and letters for that, see litbench.judges.interpreting.
        sampling: what its answers depend on.
        traffic: connections, retries and limits, of embeddings and descriptions together.
        prices: file of prices that go before the packaged ones.
        dry_run: only tell what asking would take.
        title: heading of the page.
    """

    pairs: Path
    out: Path
    split: str | None = None
    test_split: str | None = None
    max_prompts: int | None = None
    embedding: EmbeddingOptions = field(default_factory=EmbeddingOptions)
    autoencoder: AutoencoderOptions = field(default_factory=AutoencoderOptions)
    c: list[float] = field(default_factory=lambda: [0.001, 0.01, 0.1, 1.0])
    folds: int = 5
    repeats: int = 1
    seed: int = 0
    model: str | None = None
    interpreting: InterpretingOptions = field(default_factory=InterpretingOptions)
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=256))
    traffic: Traffic = field(default_factory=Traffic)
    prices: Path | None = None
    dry_run: bool = False
    title: str = "LitBench: what the preferences encode"


@dataclass(frozen=True)
class Pairs:
    """Pairs in the order that their signs draw; shape (n,) each but for `places`.

    Attributes:
        table: by the schema PAIRS.
        keys: of the prompts.
        first_chosen: whether the first side is the chosen one.
        sides: first and second story.
        places: of both among all texts that are embedded; shape (n, 2).
        surface: surface features of the first minus those of the second; shape (n, features).
        words: words of the chosen story minus those of the other.
        weights: of the pairs in the linear models.
    """

    table: pa.Table
    keys: np.ndarray
    first_chosen: np.ndarray
    sides: list[tuple[str, str]]
    places: np.ndarray
    surface: np.ndarray
    words: np.ndarray
    weights: np.ndarray

    def differences(self, vectors: np.ndarray) -> np.ndarray:
        """Embedding of the first minus that of the second; float64, shape (n, dimensions)."""
        first, second = vectors[self.places.T]
        return first.astype(np.float64) - second

    def texts(self, rows: np.ndarray) -> np.ndarray:
        """The places of all stories of some pairs."""
        return np.unique(self.places[rows])


def read_tables(config: Config) -> list[pa.Table]:
    """The pairs to fit on, and with `test_split` those to measure agreement on.

    Raises:
        DataError: too few prompts, or a prompt is in both.
        ConfigError: more folds than prompts.
    """
    splits = [config.split, *([] if config.test_split is None else [config.test_split])]
    tables = []
    for split in splits:
        table = read_pairs(config.pairs, None, split).headline
        keys = prompt_keys(table)
        if config.max_prompts is not None:
            drawn = sorted(set(keys), key=lambda key: digest("prompt", config.seed, key))
            kept = set(drawn[: config.max_prompts])
            table = table.filter(pa.array([key in kept for key in keys]))
        tables.append(table)
    prompts = len(set(prompt_keys(tables[0])))
    if prompts < 4:
        raise DataError(f"{config.pairs}: fewer than 4 prompts to fit on: give pairs of more")
    if config.test_split is None and config.folds > prompts:
        raise ConfigError(f"folds is {config.folds}: give at most {prompts}, one for each prompt")
    shared = set(prompt_keys(tables[0])) & set(prompt_keys(tables[-1]))
    if len(tables) > 1 and shared:
        raise DataError(
            f"{config.pairs}: {len(shared)} prompts are in split {config.split} and in "
            f"{config.test_split}: give splits by prompt"
        )
    return tables


def signed(table: pa.Table, place_of: Mapping[str, int], seed: int) -> Pairs:
    """Draw the sides of every pair.

    Args:
        table: by the schema PAIRS.
        place_of: of every story among the texts that are embedded.
        seed: of the draw.
    """
    pair_ids, prompts, chosen, rejected = (
        table[name].to_pylist() for name in ("pair_id", "prompt", "chosen", "rejected")
    )
    first = np.array([int(digest("sign", seed, one), 16) % 2 == 0 for one in pair_ids], dtype=bool)
    sides = [
        (good, bad) if is_first else (bad, good)
        for good, bad, is_first in zip(chosen, rejected, first, strict=True)
    ]
    texts = sorted({(p, text) for p, both in zip(prompts, sides, strict=True) for text in both})
    row = {text: place for place, text in enumerate(texts)}
    counted = feature_matrix([p for p, _ in texts], [text for _, text in texts])
    rows = np.array(
        [[row[p, one], row[p, other]] for p, (one, other) in zip(prompts, sides, strict=True)]
    )
    words = table["chosen_n_words"].to_numpy() - table["rejected_n_words"].to_numpy()
    return Pairs(
        table,
        np.array(prompt_keys(table)),
        first,
        sides,
        np.array([[place_of[one], place_of[other]] for one, other in sides]),
        counted[rows[:, 0]] - counted[rows[:, 1]],
        words.astype(float),
        pair_weights(table),
    )


def train_units(
    differences: np.ndarray, keys: np.ndarray, config: Config, seed: int
) -> Autoencoder:
    """Fit the autoencoder on pairs of these prompts; some of the prompts decide when to stop."""
    ordered = sorted(set(keys), key=lambda key: digest("stop", seed, key))
    count = min(max(1, round(config.autoencoder.validation_share * len(ordered))), len(ordered) - 1)
    stops = np.isin(keys, ordered[:count])
    return fit_autoencoder(differences[~stops], differences[stops], config.autoencoder, seed)


def held_out_margins(
    embedding: Embedding,
    fitted_on: Pairs,
    rows: np.ndarray,
    judged: Pairs,
    to_judge: np.ndarray,
    config: Config,
    seed: int,
) -> tuple[dict[str, np.ndarray], float]:
    """Margins of every linear model on held-out rows, and the share the units leave unexplained."""
    vectors = embedding.fitted_on(fitted_on.texts(rows))
    known = fitted_on.differences(vectors)[rows]
    new = judged.differences(vectors)[to_judge]
    keys, first = fitted_on.keys[rows], fitted_on.first_chosen[rows]
    units = train_units(known, keys, config, seed)
    components = np.linalg.svd(known, full_matrices=False)[2][: config.autoencoder.units]
    views = {
        _UNITS: (units.units(known), units.units(new)),
        # A small fold may have fewer, and is no model of its own for that.
        f"{config.autoencoder.units} principal components": (
            known @ components.T,
            new @ components.T,
        ),
        _RAW: (known, new),
        _SURFACE: (fitted_on.surface[rows], judged.surface[to_judge]),
    }
    margins = {}
    for name, (seen, unseen) in views.items():
        model = fit_linear_preference(seen, first, keys.tolist(), config.c, fitted_on.weights[rows])
        margins[name] = model.margins(unseen)
    return margins, units.unexplained(new)


def measure(
    embedding: Embedding, fitted_on: Pairs, judged: Pairs, config: Config
) -> tuple[dict[str, np.ndarray], float, str]:
    """Credits per pair by model, mean over repeats; unexplained share; how pairs were held out."""
    everything = np.arange(len(fitted_on.keys))
    jobs: list[tuple[int, np.ndarray, np.ndarray]] = []
    if fitted_on is not judged:
        jobs = [(config.seed + k, everything, np.arange(len(judged.keys)))
                for k in range(config.repeats)]  # fmt: skip
        how = f"of a split that nothing was fitted on, by {config.repeats} fits"
        if config.repeats == 1:
            how = "of a split that nothing was fitted on"
    else:
        for seed in range(config.seed, config.seed + config.repeats):
            fold_of = assign_folds(judged.keys.tolist(), config.folds, seed)
            folds = np.array([fold_of[key] for key in judged.keys])
            jobs += [(seed, everything[folds != k], everything[folds == k])
                     for k in range(config.folds)]  # fmt: skip
        dealt = "once" if config.repeats == 1 else f"{config.repeats} times"
        how = f"held out by prompt in {config.folds} folds, dealt {dealt}"
    credits: dict[str, np.ndarray] = {}
    unexplained = []
    for seed, rows, to_judge in tqdm(jobs, desc="folds", unit=" fit", leave=False, disable=None):
        margins, share = held_out_margins(
            embedding, fitted_on, rows, judged, to_judge, config, seed
        )
        unexplained.append(share)
        for name, margin in margins.items():
            credit = credits_of(margin, judged.first_chosen[to_judge])
            total = credits.setdefault(name, np.zeros(len(judged.keys)))
            total[to_judge] += credit / config.repeats
    credits[_LONGER] = credits_of(judged.words, np.ones(len(judged.keys), dtype=bool))
    return credits, float(np.mean(unexplained)), how


def asking_price(config: Config, model: str) -> Price | None:
    """Of a model's tokens, where it is known."""
    return price_of(model, load_prices(config.prices))


def embedding_of(
    texts: Sequence[str], config: Config
) -> tuple[Embedding | None, Estimate | None, Traffic]:
    """Embed all texts, by what the config names.

    Returns:
        The embeddings; None in a dry run where a service would be asked. What asking a service
        takes. And what is left of the limits.
    """
    options, folder = config.embedding, config.out / "embeddings"
    if options.model == WORDS:
        return WordEmbedding(texts, options), None, config.traffic
    if not options.is_service:
        return embed(texts, options, folder), None, config.traffic
    price = asking_price(config, options.model)
    service = ServiceEmbeddings(texts, options, folder)
    estimate = service.estimate(price, config.traffic)
    if config.dry_run and estimate.calls:
        return None, estimate, config.traffic
    budget = Budget(config.traffic, price)
    found = service.fetch(config.traffic, budget)
    return found, estimate, left_over(config.traffic, budget)


def left_over(traffic: Traffic, budget: Budget) -> Traffic:
    """The same limits, less what is spent."""
    calls, dollars = traffic.max_calls, traffic.max_cost_usd
    return replace(
        traffic,
        max_calls=None if calls is None else max(calls - budget.calls, 0),
        max_cost_usd=None if dollars is None else max(dollars - budget.dollars, 0.0),
    )


def describing(
    config: Config, questions: Questions, pairs: Pairs, units: np.ndarray,
    chosen: Mapping[int, UnitPairs],
) -> Estimate:  # fmt: skip
    """What describing and testing would take."""
    assert config.model is not None, "main() has seen to it"
    letters = config.interpreting.shown_letters
    texts = [
        describe_question(questions, pairs.sides, units[:, unit], of.examples, letters)
        for unit, of in chosen.items() if of.examples
    ]  # fmt: skip
    with AnswerStore(config.out / "answers", read_only=True) as store:
        keys = keys_of(config.model, texts, config.sampling)
        new = [text for text, key in zip(texts, keys, strict=True) if key not in store]
    known = len(texts) - len(new)
    usual_description = "x" * 4 * _USUAL_TOKENS
    new += [
        verify_question(questions, usual_description, pairs.sides[row], letters)
        for of in chosen.values() for row in of.tests
    ]  # fmt: skip
    calls, most = len(new), config.sampling.max_tokens
    read, written = sum(map(estimate_tokens, new)), calls * _USUAL_TOKENS
    price = asking_price(config, config.model)
    return Estimate(
        rater="units", model=config.model, calls=calls, known=known, input_tokens=read,
        output_tokens=written, most_output_tokens=None if most is None else calls * most,
        cost_usd=price and price.of(read, written),
        most_cost_usd=None if price is None or most is None else price.of(read, calls * most),
        seconds=calls * _USUAL_SECONDS / config.traffic.connections,
        is_bound=True,
    )  # fmt: skip


def whole_text(answer: Answer) -> str:
    """What an answer says; nothing where it was cut off, refused or never came."""
    return answer.text if answer.outcome == "answered" else ""


def interpret(
    config: Config, traffic: Traffic, questions: Questions, pairs: Pairs, units: np.ndarray,
    chosen: Mapping[int, UnitPairs],
) -> tuple[dict[int, tuple[str | None, Fidelity | None]], dict[str, Any]]:  # fmt: skip
    """Ask for descriptions, then test them; by unit, and what the asking was."""
    assert config.model is not None, "main() has seen to it"
    letters = config.interpreting.shown_letters
    price = asking_price(config, config.model)
    budget = Budget(traffic, price)
    told = [unit for unit, of in chosen.items() if of.examples]
    with AnswerStore(config.out / "answers") as store:

        def asked(texts: list[str], about: str) -> list[Answer]:
            assert config.model is not None, "main() has seen to it"
            budget.note_stored(store, set(keys_of(config.model, texts, config.sampling)))
            return ask(
                config.model, texts, store, config.sampling, traffic, about=about, budget=budget
            )

        answers = asked(
            [
                describe_question(questions, pairs.sides, units[:, u], chosen[u].examples, letters)
                for u in told
            ],
            "descriptions",
        )
        description_of = {
            unit: found
            for unit, answer in zip(told, answers, strict=True)
            if (found := read_description(whole_text(answer))) is not None
        }
        tests = [(unit, row) for unit in description_of for row in chosen[unit].tests]
        verdicts = asked(
            [verify_question(questions, description_of[u], pairs.sides[r], letters)
             for u, r in tests],
            "tests",
        )  # fmt: skip
    said: dict[int, list[tuple[int, int | None]]] = {}
    for (unit, row), answer in zip(tests, verdicts, strict=True):
        said.setdefault(unit, []).append((row, read_more(whole_text(answer))))
    found: dict[int, tuple[str | None, Fidelity | None]] = {}
    for unit, description in description_of.items():
        rows = [row for row, _ in said.get(unit, [])]
        mores = [more for _, more in said.get(unit, [])]
        fidelity = fidelity_of(mores, units[rows, unit], pairs.keys[rows].tolist())
        found[unit] = (description, fidelity)
    every = [*answers, *verdicts]
    notes = {
        "model": config.model,
        "answered_by": sorted({answer.model for answer in every if answer.model}),
        "answers": len(every),
        "not_described": len(chosen) - len(description_of),
        "errors": sum(answer.outcome == "error" for answer in every),
        "cost_usd": dollars_of(every, price),
    }
    return found, notes


def surfaces_of(pairs: Pairs, units: np.ndarray) -> dict[int, Surface]:
    """What can be counted about every active unit."""
    words_of = {text: distinct_words(text) for both in pairs.sides for text in both}
    words = [(words_of[one], words_of[other]) for one, other in pairs.sides]
    return {
        unit: surface_of(units[:, unit], pairs.surface, FEATURES, words)
        for unit in range(units.shape[1])
        if units[:, unit].any()
    }


def units_table(pairs: Pairs, units: np.ndarray) -> pa.Table:
    """Every pair's units, with the sign turned so that positive means more on the chosen side."""
    toward = np.where(pairs.first_chosen[:, None], units, -units)
    columns = {f"unit_{k}": toward[:, k].astype(np.float32) for k in range(units.shape[1])}
    return pa.table({name: pairs.table[name] for name in ("pair_id", "prompt_id")} | columns)


def check(config: Config) -> None:
    """Refuse a config before the work begins.

    Raises:
        ConfigError: a number is too small, or dollars are limited for a model without a price.
    """
    config.embedding.check()
    config.autoencoder.check()
    config.interpreting.check()
    config.traffic.check()
    for name, least in (("repeats", 1), ("folds", 2)):
        if getattr(config, name) < least:
            raise ConfigError(f"{name} is {getattr(config, name)}: give at least {least}")
    if not config.c or min(config.c) <= 0:
        raise ConfigError(f"c is {config.c}: give at least one strength, all of them above 0")
    if config.max_prompts is not None and config.max_prompts < 4:
        raise ConfigError(f"max_prompts is {config.max_prompts}: give at least 4")
    asked = [config.embedding.model] if config.embedding.is_service else []
    asked += [] if config.model is None else [config.model]
    for model in asked:
        Budget(config.traffic, asking_price(config, model))
    if config.dry_run and not asked:
        raise ConfigError("dry_run: no model is named, so nothing would be asked: give model")


def main(config: Config) -> None:
    """Embed, fit, describe, write."""
    check(config)
    models = {}
    if config.embedding.is_transformer:
        models["embedding.model"] = locate(config.embedding.model)[0]
    if config.prices is not None:
        models["prices"] = str(config.prices)
    artifact = Artifact(
        config.out, program=__file__, config=config, inputs={"pairs": config.pairs}, models=models,
        runtime_keys=("dry_run", "traffic"),
    )  # fmt: skip
    page_path = (config.out / "preferences.html").resolve()
    if not config.dry_run and artifact.is_current():
        print((config.out / "preferences.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return
    tables = read_tables(config)
    texts = sorted(
        {text for t in tables for side in ("chosen", "rejected") for text in t[side].to_pylist()}
    )
    embedding, estimate, traffic = embedding_of(texts, config)
    estimates = [] if estimate is None else [estimate]
    if embedding is None:
        print(estimates_text(estimates))
        if config.model is not None:
            print("what describing units would take can be told when the embeddings are there")
        return
    place_of = {text: place for place, text in enumerate(texts)}
    fitted_on, *others = (signed(table, place_of, config.seed) for table in tables)
    judged = others[0] if others else fitted_on
    vectors = embedding.fitted_on(fitted_on.texts(np.arange(len(fitted_on.keys))))
    differences = fitted_on.differences(vectors)
    autoencoder = train_units(differences, fitted_on.keys, config, config.seed)
    units = autoencoder.units(differences)
    chosen = {
        unit: choose_pairs(
            units[:, unit], fitted_on.keys.tolist(), unit, config.interpreting, config.seed
        )
        for unit in range(units.shape[1])
        if units[:, unit].any()
    }
    questions = load_questions()
    if config.dry_run:
        if config.model is not None:
            estimates.append(describing(config, questions, fitted_on, units, chosen))
        print(estimates_text(estimates))
        return
    keys, first, weights = fitted_on.keys.tolist(), fitted_on.first_chosen, fitted_on.weights
    linear = fit_linear_preference(units, first, keys, config.c, weights)
    scaled = units / linear.scale
    coefficients, p_values = coefficient_intervals(
        lambda some: logistic(scaled[some], first[some], linear.c, weights[some]), keys
    )
    credits, unexplained, how = measure(embedding, fitted_on, judged, config)
    described: dict[int, tuple[str | None, Fidelity | None]] = {}
    asked: dict[str, Any] = {}
    if config.model is not None:
        described, asked = interpret(config, traffic, questions, fitted_on, units, chosen)
    study = PreferenceStudy(
        pairs=len(judged.keys),
        prompts=len(set(judged.keys)),
        held_out=how,
        agreements=agreement_rows(credits, _LONGER, judged.keys.tolist(), judged.words),
        fitted_on=len(keys),
        units=unit_rows(
            units, first, keys, coefficients, p_values, described, surfaces_of(fitted_on, units)
        ),
        silent_units=int((units == 0).all(0).sum()),
        unexplained=unexplained,
        described_by=config.model,
    )  # fmt: skip
    write(config, artifact, study, fitted_on, units, autoencoder, embedding.notes, linear.c, asked)
    print((config.out / "preferences.txt").read_text(encoding="utf-8") + f"page: {page_path}")
    if asked.get("errors"):
        print(f"{asked['errors']:,} answers are errors: run the same command again to ask for them")


def write(
    config: Config, artifact: Artifact, study: PreferenceStudy, pairs: Pairs, units: np.ndarray,
    autoencoder: Autoencoder, embedding_notes: Mapping[str, Any], c: float,
    asked: Mapping[str, Any],
) -> None:  # fmt: skip
    """Write every file of the artifact."""
    artifact.write_folder("model", autoencoder.save)
    artifact.write("preferences.json", lambda path: write_json(preferences_json(study), path))
    artifact.write("units.csv", lambda path: write_units_csv(study, path))
    table = units_table(pairs, units)
    artifact.write("units.parquet", lambda path: pq.write_table(table, path))
    text = preferences_text(study) + "\n"
    artifact.write("preferences.txt", lambda path: path.write_text(text, encoding="utf-8"))
    panel = draw_units(study)
    if panel is not None:
        for file, write_plot in panel.drawing.files("coefficients").items():
            artifact.write(file, write_plot)
    artifact.counts = {
        "pairs": pairs.table.num_rows,
        "prompts": len(set(pairs.keys)),
        "embeddings": dict(embedding_notes),
        "autoencoder": autoencoder.notes,
        "c": c,
        "asked": dict(asked),
    }
    prompts: Sequence[str] = pairs.table["prompt"].to_pylist()
    page = render_preferences(
        title=config.title,
        study=study,
        panel=None if panel is None else panel.figure,
        examples={
            row.unit: pairs_to_read(
                units[:, row.unit], prompts, pairs.sides, pairs.first_chosen, row.unit, _SHOWN_PAIRS
            )
            for row in study.units
        },
        embedding_notes=embedding_notes,
        label_sources=pairs.table["label_source"].to_pylist(),
        manifests={
            "preferences": json.dumps(
                as_plain(without_runtime_keys(artifact.as_manifest())), indent=2
            )
        },
    )
    artifact.write("preferences.html", lambda path: path.write_text(page, encoding="utf-8"))
    # Without a manifest the next run asks for what failed, and for nothing else.
    if not asked.get("errors"):
        artifact.finish()


if __name__ == "__main__":
    run_program(main, Config, __doc__)
