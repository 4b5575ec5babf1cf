"""Ablations: raters trained on several data variants and numbers of pairs, judged on shared tests.

A trained rater has the name of its rater, variant and number of pairs, such as `features on
full@1000`, and its verdicts have a fold for each seed. Test sets share pairs, and each distinct
pair is judged once. The headline rater, trained on as many pairs of each variant, gives a matrix of
variants and test sets, and its differences from the reference variant are tested on one test set.
"""

import itertools
import json
import math
import shlex
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from litbench.data.curation.engine import open_engine
from litbench.data.curation.pair_making import CuratedPairs, read_stories
from litbench.data.curation.rules import PairRules
from litbench.data.records import PAIRS, SIDES, VERDICTS, connected_prompts, label_text, prompt_keys
from litbench.data.sources.pairs import as_pairs, read_any_pairs
from litbench.data.tables import read_table, write_table
from litbench.data.text import digest
from litbench.evaluation.loop import Job, evaluate
from litbench.evaluation.report import figures
from litbench.evaluation.report.document import (
    Card,
    Cell,
    Figure,
    Page,
    Section,
    Table,
    few_prompts,
    funnel_table,
    p_value,
    publish,
    short_name,
    show_results,
    stacked,
    table_of,
    write_interval,
    written_now,
)
from litbench.evaluation.report.leaderboard import correction_note
from litbench.metrics.agreement import length_differences, pair_scores
from litbench.metrics.comparisons import Comparison, compare_all
from litbench.metrics.intervals import Interval, clustered_mean, jackknife_interval
from litbench.metrics.leaderboard import plain
from litbench.metrics.power import needed_signal
from litbench.raters.entries import RaterSpec, files_of, parse_raters
from litbench.runs.config import as_plain, build, nearest
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact, Cache, fingerprint, read_manifest, write_json
from litbench.runs.terminal import clean_name


@dataclass(kw_only=True)
class Ablation(PairRules):
    """Variants, raters and numbers of pairs; inherits the rules that all variants share.

    Attributes:
        out: output folder.
        variants: name -> rules that differ, or {pairs: FILE}.
        reference: the variant that the others are compared with; null for the first.
        stories: the stories table of make_stories.py; null if every variant is a pairs file.
        test_pairs: name -> pairs file; additional test sets, used in full.
        raters: named entries, see litbench.raters.entries; a trainable rater takes its training
            options here.
        test_split: judge pairs of this split; null to judge only `test_pairs`.
        pairs_used: numbers of training pairs, equal for all variants, or shares of the smallest
            variant.
        natural: also train on all pairs of each variant.
        seeds: seeds of the subsamples of pairs and of the trainings.
        max_test_pairs: maximum size of the test sets, drawn by `seed`; null for all pairs.
        headline_rater: the trained rater that the first tables compare variants with; null for the
            first.
        headline_test: the test set on which differences are tested; null for `common`, the test
            pairs that all variants share, or without them for the first test set.
        title: heading of the page.
    """

    out: Path
    variants: dict[str, dict[str, Any]]
    reference: str | None = None
    stories: Path | None = None
    test_pairs: dict[str, Path] = field(default_factory=dict)
    raters: dict[str, Any] = field(default_factory=dict)
    splits: dict[str, float] = field(default_factory=lambda: {"train": 0.8, "test": 0.2})
    test_split: str | None = "test"
    pairs_used: list[int | float] = field(default_factory=lambda: [0.1, 0.3, 1.0])
    natural: bool = True
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    max_test_pairs: int | None = 4_000
    headline_rater: str | None = None
    headline_test: str | None = None
    title: str = "LitBench ablation"


# The test set of pairs that are test pairs of every variant.
COMMON = "common"


class TrainingRun(NamedTuple):
    """A rater to train on a number of pairs of a variant, once for each seed."""

    spec: RaterSpec
    variant: str
    pairs_used: int

    @property
    def name(self) -> str:
        return f"{self.spec.name} on {self.variant}@{self.pairs_used}"


class Headline(NamedTuple):
    """The rows of the first tables.

    Attributes:
        rater: the rater that is trained on every variant.
        training_pairs: the number of pairs, equal for all variants.
        reference: the variant that the others are compared with.
        test: the test set on which differences are tested.
        compares: variants, or the raters if there is only one variant.
    """

    rater: str
    training_pairs: int
    reference: str
    test: str
    compares: Literal["variants", "raters"]


@dataclass(frozen=True)
class AblationRow:
    """A rater on a test set.

    Attributes:
        test: test set.
        entry: the rater's entry in the config.
        variant: the data that it was trained on; None if it was not trained, as `training_pairs`.
        agreement: headline agreement, averaged over seeds.
        seeds_low: lowest agreement of a seed.
        seeds_high: highest agreement of a seed.
        prefers_longer: how often it prefers the longer story, over pairs of different length.
    """

    test: str
    entry: str
    variant: str | None
    training_pairs: int | None
    agreement: Interval
    seeds_low: float
    seeds_high: float
    prefers_longer: float


@dataclass(frozen=True)
class Effect:
    """A variant (or rater) compared with the reference on the headline test.

    Attributes:
        name: the variant or rater.
        agreement: headline agreement.
        comparison: with the reference; None for the reference.
        detectable: the smallest true difference that would be significant with a power of 80 %,
            after the correction for all comparisons; NaN if unknown.
        verdict: helps or hurts (of raters: better or worse), cannot tell, or reference.
    """

    name: str
    agreement: Interval
    comparison: Comparison | None
    detectable: float
    verdict: str


def _check(config: Ablation) -> str:
    """Check the config; returns the reference."""
    reference = config.reference or next(iter(config.variants), None)
    if reference is None or reference not in config.variants:
        raise ConfigError(
            f"variants has {list(config.variants)} and reference is {reference}: name at least one "
            "variant, such as full: {}, and one of the variants as reference"
        )
    seeds = config.seeds
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ConfigError(f"seeds is {seeds}: give distinct whole numbers, 0 or greater")
    if config.test_split is None and not config.test_pairs:
        raise ConfigError("test_split is null and test_pairs is empty: give one of them")
    names = [COMMON, *config.variants, *config.test_pairs]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"a name is used twice among {names}, the test sets: rename a variant or a file of "
            f"test_pairs; '{COMMON}' is the name of the test pairs that all variants share"
        )
    shared = [COMMON] if len(config.variants) > 1 else []
    variant_tests = [*shared, *config.variants] if config.test_split is not None else []
    tests = [*variant_tests, *config.test_pairs]
    if config.headline_test not in (None, *tests):
        raise ConfigError(
            f"headline_test '{config.headline_test}' is not a test set: "
            f"{nearest(str(config.headline_test), tests)}"
        )
    return reference


def _read_variant(config: Ablation, name: str) -> PairRules | Path:
    keys, where = config.variants[name], f"variants: {name}"
    if list(keys) == ["pairs"]:
        return Path(str(keys["pairs"]))
    if "pairs" in keys or config.stories is None:
        raise ConfigError(f"{where}: give only {{pairs: FILE}}, or stories and rules")
    shared = {key: as_plain(config)[key] for key in as_plain(PairRules())}
    rules = build(PairRules, {**shared, **keys}, where)
    rules.check()
    return rules


def _read_raters(config: Ablation) -> list[RaterSpec]:
    specs = parse_raters(config.raters, may_train=True)
    for spec in specs:
        if spec.is_trained and "seed" in spec.given:
            raise ConfigError(f"{spec.where}.seed: leave it out; the key seeds sets it")
    trained = [spec.name for spec in specs if spec.is_trained]
    if not trained:
        raise ConfigError("raters: none can be trained: add one, such as f: {kind: features}")
    if config.headline_rater not in (None, *trained):
        raise ConfigError(
            f"headline_rater '{config.headline_rater}' is not a rater that is trained here: "
            f"{nearest(str(config.headline_rater), trained)}"
        )
    return specs


def make_pairs(config: Ablation, what: PairRules | Path, source: str, parts: Cache) -> Path:
    """Return the folder with the pairs of a variant or pairs file, and their funnel.

    `source` is the digest of the stories or of the pairs file.
    """

    def write(folder: Path) -> None:
        if isinstance(what, Path):
            write_table(read_any_pairs(what), folder / "pairs.parquet")
            write_json([], folder / "funnel.json")
            return
        assert config.stories is not None, "checked by _read_variants()"
        with open_engine("duckdb", parts.folder) as engine:
            stories = read_stories(engine, config.stories)
            curated = CuratedPairs(engine, stories, what, where=str(config.stories))
            curated.check_not_empty()
            curated.write(curated.after, folder / "pairs.parquet")
            write_json(curated.funnel.plain(), folder / "funnel.json")

    return parts.get_folder([None if isinstance(what, Path) else what, source], write, "pairs")


def _read_keys(path: Path, split: str | None, where: str) -> pa.Table:
    """Read the pairs of a split without texts, which may need gigabytes of memory."""
    names = [column.name for column in PAIRS.columns if column.name not in SIDES]
    keys = pq.read_table(path, columns=names)
    selected = keys if split is None else keys.filter(pc.equal(keys["split"], split))
    if selected.num_rows == 0:
        splits = sorted(set(keys["split"].to_pylist()))
        raise DataError(f"{where}: no pair of split '{split}': name one of {splits}")
    return selected


def _with_texts(path: Path, keys: pa.Table) -> pa.Table:
    """Read the rows of `keys` with all declared columns, in the order of the file."""
    wanted = pc.field("pair_id").isin(keys["pair_id"].combine_chunks())
    table = ds.dataset(path).to_table(columns=PAIRS.arrow().names, filter=wanted)
    return as_pairs(dict(zip(table.column_names, table.columns, strict=True)))


def first_by_hash(pairs: pa.Table, most: int | None, *purpose: Any, by_prompt: bool) -> pa.Table:
    """Return the first pairs by a hash of the pair; with `by_prompt`, first of the prompt."""
    if most is None or pairs.num_rows <= most:
        return pairs
    prompts = prompt_keys(pairs) if by_prompt else [""] * pairs.num_rows
    names = zip(prompts, pairs["pair_id"].to_pylist(), strict=True)
    order = [(by_prompt and digest(*purpose, key), digest(*purpose, name)) for key, name in names]
    return pairs.take(pa.array(sorted(sorted(range(len(order)), key=order.__getitem__)[:most])))


def _check_apart(train: Mapping[str, pa.Table], test: Mapping[str, pa.Table]) -> None:
    """Raise a DataError if a variant's training pairs have a prompt of any test set."""
    trained_on = {name: set(prompt_keys(pairs)) for name, pairs in train.items()}
    for (test_set, pairs), (name, keys) in itertools.product(test.items(), trained_on.items()):
        if shared := keys.intersection(prompt_keys(pairs)):
            raise DataError(
                f"{len(shared)} test prompts of {test_set} are training prompts of variant {name}: "
                "split both by the same rule (seed, splits, test_from), or give other test_pairs"
            )


def _count_pairs(amount: float, total: int) -> int:
    """Convert an amount to a number of pairs; a share of `total` is rounded, to at least 2."""
    if isinstance(amount, float) and 0 < amount <= 1 and total >= 2:
        return max(2, round(amount * total))
    if not isinstance(amount, int) or not 2 <= amount <= total:
        raise ConfigError(
            f"pairs_used has {amount!r}: give shares up to 1.0, or whole numbers from 2 to "
            f"{total:,}, the number of pairs of the smallest variant"
        )
    return amount


def join_test_sets(sets: Mapping[str, pa.Table]) -> tuple[pa.Table, dict[str, pa.Table]]:
    """Merge test sets into their distinct pairs.

    Returns:
        The distinct pairs; and the sets, in which a pair that an earlier set labels the other way
        has an id of its own, so that it is judged for both labels.
    """
    labels_of: dict[str, tuple[Any, ...]] = {}
    renamed = {}
    for name, pairs in sets.items():
        columns = (pairs[key].to_pylist() for key in ("chosen_story_id", "rejected_story_id"))
        ids = []
        for pair, *labels in zip(pairs["pair_id"].to_pylist(), *columns, strict=True):
            first_labels = labels_of.setdefault(pair, tuple(labels))
            if set(first_labels) != set(labels):
                raise DataError(
                    f"pair_id {pair} names different stories in the test pairs of "
                    f"{', '.join(sets)}: give each file the ids of litbench.data.records.pair_id"
                )
            ids.append(pair if first_labels == tuple(labels) else f"{pair}, other label")
        index = pairs.column_names.index("pair_id")
        renamed[name] = pairs.set_column(index, "pair_id", pa.array(ids, pairs["pair_id"].type))
    merged = pa.concat_tables(renamed.values())
    first = np.unique(np.array(merged["pair_id"].to_pylist()), return_index=True)[1]
    return merged.take(pa.array(np.sort(first))), renamed


def _common_pairs(keys: Mapping[str, pa.Table], reference: str) -> pa.Table:
    """Return the test pairs of the reference that are test pairs of every variant, labels alike."""

    def labelled(table: pa.Table) -> list[tuple[str, str]]:
        columns = (table[name].to_pylist() for name in ("pair_id", "chosen_story_id"))
        return list(zip(*columns, strict=True))

    shared = set.intersection(*(set(labelled(table)) for table in keys.values()))
    pairs = keys[reference].filter(pa.array([row in shared for row in labelled(keys[reference])]))
    if pairs.num_rows == 0:
        raise DataError(
            "no test pair is common to all variants: set headline_test to one of "
            f"{', '.join(keys)}, or a name of test_pairs"
        )
    return pairs


def _with_names(
    verdicts: pa.Table, trainings: Sequence[TrainingRun], sets_of: Mapping[str, list[str]]
) -> pa.Table:
    """Add the columns `entry`, `variant`, `training_pairs` and `test_sets` to verdicts."""
    training_of = {training.name: training for training in trainings}
    raters = verdicts["rater"].to_pylist()
    matches = [training_of.get(name) for name in raters]
    names = [
        match.spec.name if match else name for match, name in zip(matches, raters, strict=True)
    ]
    columns = {
        "entry": pa.array(names, pa.large_string()),
        "variant": pa.array([match and match.variant for match in matches], pa.large_string()),
        "training_pairs": pa.array([match and match.pairs_used for match in matches], pa.int64()),
        "test_sets": pa.array([sets_of[pair] for pair in verdicts["pair_id"].to_pylist()]),
    }
    for name, values in columns.items():
        verdicts = verdicts.append_column(name, values)
    return verdicts


def _make_folders(
    config: Ablation, sources: Mapping[str, Any], digests: Mapping[str, str], cache: Cache
) -> dict[str, Path]:
    """The pairs folder of every variant and test set, by name."""
    folders = {}
    for name, source in sources.items():
        key = digests[f"pairs of {name}" if isinstance(source, Path) else "stories"]
        try:
            folders[name] = make_pairs(config, source, key, cache)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
    return folders


def _read_tests(
    config: Ablation, paths: dict[str, Path], train: Mapping[str, pa.Table], reference: str
) -> dict[str, pa.Table]:
    """The pairs of every test set, with texts; `paths` gets that of the common one."""
    variant_tests = {
        name: _read_keys(paths[name], config.test_split, name)
        for name in train
        if config.test_split is not None
    }
    tests = variant_tests | {
        name: _read_keys(paths[name], None, name) for name in config.test_pairs
    }
    _check_apart(train, tests)
    if len(variant_tests) > 1 and config.headline_test in (None, COMMON):
        paths[COMMON] = paths[reference]
        tests = {COMMON: _common_pairs(variant_tests, reference), **tests}
    count, seed = config.max_test_pairs, config.seed
    return {
        name: _with_texts(paths[name], first_by_hash(keys, count, "test", seed, by_prompt=False))
        for name, keys in tests.items()
    }


def _list_jobs(
    specs: Sequence[RaterSpec],
    trainings: Sequence[TrainingRun],
    seeds: Sequence[int],
    test: pa.Table,
    folders: Mapping[str, Path],
    draw: Callable[[TrainingRun, int], pa.Table],
) -> list[Job]:
    """A job per untrained rater, and per training and seed; small ones first.

    `draw` returns the pairs of a training with a seed. Errors of small trainings appear early.
    """
    texts = [test[name].to_pylist() for name in ("pair_id", "prompt", "chosen", "rejected")]
    judged = fingerprint(*texts)
    jobs = [
        Job(spec, spec.name, lambda: test, judged, work=test.num_rows)
        for spec in specs
        if not spec.is_trained
    ]
    jobs += [
        Job(
            training.spec,
            f"{training.name}-seed{seed}",
            lambda: test,
            [judged, folders[training.variant].name, training.pairs_used],
            train=partial(draw, training, seed),
            seed=seed,
            fold=f"{seed}/0",
            name=training.name,
            work=training.pairs_used + test.num_rows,
        )
        for training in trainings
        for seed in seeds
    ]
    return sorted(jobs, key=lambda job: job.work)


def _run_jobs(
    jobs: Sequence[Job], parts: Cache
) -> tuple[pa.Table, dict[str, list[dict[str, Any]]]]:
    """The verdicts of all jobs, without seconds, and the records of each rater."""
    records: dict[str, list[dict[str, Any]]] = defaultdict(list)
    verdicts = []
    for job, table, record in evaluate(jobs, parts):
        records[job.name or job.spec.name].append(record)
        index = table.column_names.index("seconds")
        seconds = pa.nulls(table.num_rows, pa.float64())
        verdicts.append(table.set_column(index, "seconds", seconds))
    return pa.concat_tables(verdicts), records


def run_ablation(config: Ablation, program: str) -> None:
    """Make the variants, train and judge, and write the results."""
    reference, specs = _check(config), _read_raters(config)
    variants = {name: _read_variant(config, name) for name in config.variants}
    sources = variants | config.test_pairs
    artifact = Artifact(
        config.out,
        program=program,
        config=config,
        inputs={"stories": config.stories}
        | {f"pairs of {k}": path for k, path in sources.items() if isinstance(path, Path)},
        models=files_of(specs),
    )
    if artifact.is_current():
        show_results(config.out, "ablation")
        return

    data, parts = Cache(config.out / "data"), Cache(config.out / "parts")
    folders = _make_folders(config, sources, artifact.digests, data)
    paths = {name: folder / "pairs.parquet" for name, folder in folders.items()}
    train = {name: _read_keys(paths[name], "train", name) for name in variants}
    test, tests = join_test_sets(_read_tests(config, paths, train, reference))

    totals = {name: keys.num_rows for name, keys in train.items()}
    equal = {_count_pairs(amount, min(totals.values())) for amount in config.pairs_used}
    trainings = [
        TrainingRun(spec, variant, used)
        for (variant, total), spec in itertools.product(totals.items(), specs)
        if spec.is_trained
        for used in sorted(equal | {total} if config.natural else equal)
    ]

    def draw(training: TrainingRun, seed: int) -> pa.Table:
        keys = train[training.variant]
        drawn = first_by_hash(keys, training.pairs_used, "scaling", seed, by_prompt=True)
        return _with_texts(paths[training.variant], drawn)

    jobs = _list_jobs(specs, trainings, config.seeds, test, folders, draw)
    verdicts, records = _run_jobs(jobs, parts)
    sets_of: dict[str, list[str]] = defaultdict(list)
    for name, pairs in tests.items():
        for pair in pairs["pair_id"].to_pylist():
            sets_of[pair].append(name)
    table = _with_names(verdicts, trainings, sets_of)
    test = test.append_column(
        "test_sets", pa.array([sets_of[pair] for pair in test["pair_id"].to_pylist()])
    )
    headline = Headline(
        rater=config.headline_rater or next(spec.name for spec in specs if spec.is_trained),
        training_pairs=max(equal),
        reference=reference,
        test=config.headline_test or next(iter(tests)),
        compares="variants" if len(variants) > 1 else "raters",
    )
    untrained = [spec.name for spec in specs if not spec.is_trained]
    raters = [*(training.name for training in trainings), *untrained]
    rows = _all_rows(table, test, list(tests), raters)
    artifact.counts = {
        "headline": headline._asdict(),
        "training_pairs": totals,
        "test_pairs": {name: pairs.num_rows for name, pairs in tests.items()},
        "test_pairs_distinct": test.num_rows,
        "funnels": {
            name: json.loads((folders[name] / "funnel.json").read_bytes()) for name in variants
        },
        "raters": records,
    }
    _write_results(artifact, config, variants, headline, table, test, rows)
    parts.discard_unused()
    shutil.rmtree(data.folder, ignore_errors=True)


def _write_results(
    artifact: Artifact,
    config: Ablation,
    variants: Mapping[str, Any],
    headline: Headline,
    verdicts: pa.Table,
    test: pa.Table,
    rows: Sequence[AblationRow],
) -> None:
    """Write the tables, the page and the manifest."""
    words = ("helps", "hurts") if len(variants) > 1 else ("better", "worse")
    effects = compare_effects(*headline_credits(verdicts, test, headline), words)
    content = {"headline": headline._asdict(), "effects": effects, "results": rows}
    artifact.write("verdicts.parquet", partial(write_table, verdicts))
    artifact.write("test_pairs.parquet", partial(write_table, test))
    artifact.write("ablation.json", partial(write_json, plain(content)))
    csv_rows = [
        {**vars(row), "pairs": row.agreement.n, "prompts": row.agreement.clusters} for row in rows
    ]
    label_sources = sorted(set(test["label_source"].to_pylist()))
    page = _page(config, variants, rows, effects, headline, label_sources, artifact.counts)
    publish(artifact, "ablation", _text(rows, effects, headline), page, {"ablation": csv_rows})


# Results --------------------------------------------------------------------------------------


def headline_credits(
    verdicts: pa.Table, test: pa.Table, headline: Headline
) -> tuple[dict[str, np.ndarray], str, list[str]]:
    """The credit of each pair of the headline test, by variant or rater.

    Args:
        verdicts: `verdicts.parquet` of an ablation.
        test: its `test_pairs.parquet`.
        headline: what to compare.

    Returns:
        Credits, shape (n,) each; the key of the reference; and the prompt of each pair.
    """
    pairs = test.filter(_is_in_set(test, headline.test))
    is_equal = pc.equal(verdicts["training_pairs"], headline.training_pairs)
    of_variants = headline.compares == "variants"
    if of_variants:
        wanted = pc.and_(is_equal, pc.equal(verdicts["entry"], headline.rater))
    else:
        wanted = pc.fill_null(is_equal, fill_value=True)
    table = verdicts.filter(wanted)
    names = table["variant" if of_variants else "entry"]
    table = table.set_column(table.column_names.index("rater"), "rater", names)
    credits = {scores.rater: scores.credit for scores in pair_scores(table, pairs)}
    reference = headline.reference if of_variants else headline.rater
    return credits, reference, connected_prompts(pairs)


def read_headline(folder: Path) -> tuple[dict[str, np.ndarray], str, list[str]]:
    """`headline_credits` of a finished ablation."""
    headline = Headline(**read_manifest(folder)["counts"]["headline"])
    verdicts = read_table(folder / "verdicts.parquet", VERDICTS)
    test = read_table(folder / "test_pairs.parquet", PAIRS)
    return headline_credits(verdicts, test, headline)


def is_ablation(folder: Path) -> bool:
    """Whether a folder holds a finished ablation; DataError if it holds no output of a program."""
    return "headline" in read_manifest(folder)["counts"]


def _is_in_set(test: pa.Table, name: str) -> pa.Array:
    """Whether each distinct test pair belongs to a test set."""
    return pa.array([name in names for names in test["test_sets"].to_pylist()])


def _all_rows(
    verdicts: pa.Table, test: pa.Table, tests: Sequence[str], raters: Sequence[str]
) -> list[AblationRow]:
    """Every rater on every test set, in this order."""
    credits: dict[str, list[np.ndarray]] = defaultdict(list)
    folds = verdicts["fold"].fill_null("")
    for fold in folds.unique():
        for scores in pair_scores(verdicts.filter(pc.equal(folds, fold)), test):
            credits[scores.rater].append(scores.credit)
    facts = verdicts.select(["rater", "entry", "variant", "training_pairs"])
    facts_of = {
        row.pop("rater"): row
        for row in facts.group_by(facts.column_names).aggregate([]).to_pylist()
    }
    differences = length_differences(test)
    rows = []
    for name in tests:
        mask = _is_in_set(test, name)
        inside = mask.to_numpy(zero_copy_only=False)
        clusters, longer = connected_prompts(test.filter(mask)), differences[inside]
        for rater in raters:
            of_seeds = np.array(credits[rater])[:, inside]
            agreement = jackknife_interval(of_seeds.mean(axis=0), clusters)
            prefers = np.where(longer > 0, of_seeds, 1 - of_seeds)[:, np.abs(longer) > 0]
            rows.append(
                AblationRow(
                    test=name,
                    **facts_of[rater],
                    agreement=agreement,
                    seeds_low=float(of_seeds.mean(axis=1).min()),
                    seeds_high=float(of_seeds.mean(axis=1).max()),
                    prefers_longer=float(prefers.mean()) if prefers.size else math.nan,
                )
            )
    return rows


def compare_effects(
    credits: Mapping[str, np.ndarray], reference: str, clusters: Sequence[str], words: Sequence[str]
) -> list[Effect]:
    """Compare every variant or rater with the reference, which comes first.

    `words` are the verdicts on one that is significantly above the reference, and below.
    """
    comparisons = {row.rater: row for row in compare_all(credits, reference, clusters)}
    alpha = 0.05 / max(len(comparisons), 1)
    effects = []
    for name in [reference, *(name for name in credits if name != reference)]:
        estimate = clustered_mean(credits[name] - credits[reference], clusters)
        smallest = needed_signal(0.8, estimate.freedom, alpha) * estimate.error
        # NaN with a single prompt, 0 without any difference; agreements differ by at most 1.
        detectable = smallest if 0 < smallest <= 1 else math.nan
        comparison = comparisons.get(name)
        verdict = "reference" if comparison is None else "cannot tell"
        if comparison is not None and comparison.is_clear:
            verdict = words[comparison.difference.mean < 0]
        agreement = jackknife_interval(credits[name], clusters)
        effects.append(Effect(name, agreement, comparison, detectable, verdict))
    return effects


# Tables ---------------------------------------------------------------------------------------


def _grid(lines: Mapping[str, Sequence[AblationRow]], tests: Sequence[str]) -> Table:
    """The agreement of each line of rows, on some test sets."""
    sizes = {row.test: row.agreement.n for rows in lines.values() for row in rows}

    def cells(rows: Sequence[AblationRow]) -> Iterator[Cell]:
        row_of = {row.test: row for row in rows}
        for test in tests:
            is_own = row_of[test].variant == test and len(sizes) > 1
            yield replace(stacked(row_of[test].agreement), is_bold=is_own)

    heading = ["trained on", *(f"{test}\n{sizes[test]:,} pairs" for test in tests)]
    return Table(heading, [[name, *cells(rows)] for name, rows in lines.items()], is_narrow=True)


def _headline_lines(
    rows: Sequence[AblationRow], headline: Headline
) -> dict[str, list[AblationRow]]:
    """The headline rater by variant, then the raters beside it on the reference."""
    lines: dict[str, list[AblationRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.entry != headline.rater):
        if row.variant is None:
            lines[f"{row.entry} (not trained)"].append(row)
        elif row.training_pairs != headline.training_pairs:
            continue
        elif row.entry == headline.rater:
            lines[row.variant].append(row)
        elif row.variant == headline.reference:
            lines[f"{row.entry} on {row.variant}"].append(row)
    return lines


def _effects_section(effects: Sequence[Effect], headline: Headline) -> Section:
    """The comparisons, with a line for each variant or rater."""
    reference, first = effects[0].name, effects[0].agreement
    table = table_of(
        effects,
        {
            headline.compares.removesuffix("s"): lambda effect: effect.name,
            "agreement\n[95 %]": lambda effect: stacked(effect.agreement),
            f"against {reference}\n[95 %]": lambda effect: stacked(
                effect.comparison and effect.comparison.difference, is_signed=True
            ),
            "p (Holm)": lambda effect: p_value(effect.comparison and effect.comparison.p_holm),
            "detectable": lambda effect: effect.detectable,
            "verdict": lambda effect: effect.verdict,
        },
        is_narrow=True,
    )
    shared = ", which all variants share" if headline.test == COMMON else ""
    note = (
        f"On the {headline.test} test pairs{shared}: {first.n:,} pairs of {first.clusters:,} "
        f"prompts ({first.effective_clusters:.0f} effective)."
    )
    family = [
        (effect.name, effect.comparison.difference, effect.comparison.p_holm)
        for effect in effects
        if effect.comparison
    ]
    remarks = [
        correction_note(family),
        "Detectable: the smallest true difference that would be significant on these prompts with "
        "a power of 80 %. Intervals and tests cover the sampling of prompts and take the trained "
        "models as fixed, averaged over seeds.",
    ]
    title = f"Compared with {reference}"
    warnings = few_prompts(first)
    return Section(title, note, table, remarks=remarks, warnings=warnings, name="effects")


def _lead(effects: Sequence[Effect], headline: Headline) -> str:
    """The effect of each variant, and the power of these prompts."""
    names = defaultdict(list)
    for effect in effects[1:]:
        names[effect.verdict].append(effect.name)
    text = (
        f"Trained on {headline.training_pairs:,} pairs of {headline.reference}, {headline.rater} "
        f"agrees with the labels on {write_interval(effects[0].agreement)} of the {headline.test} "
        "test pairs. "
    )
    text += " ".join(
        f"{verdict.capitalize()}: {', '.join(effects)}." for verdict, effects in names.items()
    )
    sizes = [effect.detectable for effect in effects if math.isfinite(effect.detectable)]
    if sizes:
        ends = " to ".join(dict.fromkeys(f"{size:.3f}" for size in (min(sizes), max(sizes))))
        text += f" The smallest differences that these prompts can show: {ends} (power 80 %)."
    return text


def _text(rows: Sequence[AblationRow], effects: Sequence[Effect], headline: Headline) -> str:
    """The matrix and the comparisons for a terminal."""
    lines, tests = _headline_lines(rows, headline), list(dict.fromkeys(row.test for row in rows))
    section = _effects_section(effects, headline)
    blocks = [
        f"{clean_name(headline.rater)}: agreement with the labels [95 %] by training variant, "
        f"{headline.training_pairs:,} pairs of each, and by test set (*: filtered alike)",
        # Four test sets side by side, for lines of about 110 characters.
        *(_grid(lines, tests[k : k + 4]).as_text() for k in range(0, len(tests), 4)),
        clean_name(f"{section.title}. {section.notes}"),
        section.as_text(),
        *section.warnings,
    ]
    return "\n\n".join(blocks) + "\n"


# The page -------------------------------------------------------------------------------------


def _learning_curves(rows: Sequence[AblationRow], headline: Headline) -> Figure:
    """Agreement on the headline test by number of pairs (paper, Figure 6).

    Lines are the variants of the headline rater, or the raters if there is only one variant.
    """
    of_variants = headline.compares == "variants"
    lines: dict[str, list[tuple[float, Interval, tuple[float, ...]]]] = defaultdict(list)
    untrained = []
    for row in rows:
        if row.test != headline.test:
            continue
        if row.training_pairs is None:
            untrained.append((short_name(row.entry), row.agreement.mean))
        elif not of_variants or row.entry == headline.rater:
            point = (float(row.training_pairs), row.agreement, (row.seeds_low, row.seeds_high))
            lines[str(row.variant if of_variants else row.entry)].append(point)
    reference = headline.reference if of_variants else headline.rater
    drawn = [
        # More than three bands would overlap too much.
        figures.Line(
            short_name(name), points, "band" if len(lines) <= 3 or name == reference else "none"
        )
        for name, points in lines.items()
    ]
    axis = "training pairs"
    picture = figures.curves(drawn, axis, tick=figures.short_count, references=untrained)
    caption = (
        "Line: mean over seeds. Dots: lowest and highest seed. Band: 95 % interval, by test "
        f"prompt; with more than three lines only for {short_name(reference)}. Horizontal lines: "
        "raters that were not trained here. Dotted: chance."
    )
    rater = f"{short_name(headline.rater)}, " if of_variants else ""
    return Figure(f"{rater}{short_name(headline.test)} test pairs", caption, picture)


def _make_command(config: Ablation, rules: PairRules, name: str) -> str:
    default = as_plain(PairRules())
    keys = {key: value for key, value in as_plain(rules).items() if value != default[key]}
    options = {"stories": str(config.stories), "out": str(config.out / "pairs" / name), **keys}
    words = [
        f"--{key} {shlex.quote(value if isinstance(value, str) else json.dumps(value))}"
        for key, value in options.items()
    ]
    return " ".join(["litbench data make_pairs", *words])


def _details(
    config: Ablation,
    variants: Mapping[str, PairRules | Path],
    rows: Sequence[AblationRow],
    counts: Mapping[str, Any],
) -> Section:
    """Everything else, folded."""
    lines: dict[str, dict[str, list[AblationRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        line = f"{row.variant}@{row.training_pairs}" if row.variant else "not trained"
        lines[row.entry][line].append(row)
    tests = list(dict.fromkeys(row.test for row in rows))
    parts = [
        Section(f"{entry}: all variants and numbers of pairs", table=_grid(of_entry, tests))
        for entry, of_entry in lines.items()
    ]
    for name, rules in variants.items():
        differs = ", ".join(f"{key}: {value}" for key, value in config.variants[name].items())
        cards, steps = [], counts["funnels"][name]
        if isinstance(rules, PairRules):
            command = _make_command(config, rules, name)
            cards = [Card([("command that makes these pairs again", command)])]
        parts.append(
            Section(
                f"{name}: {counts['training_pairs'][name]:,} training pairs",
                differs or "The shared rules.",
                funnel_table(steps) if steps else None,
                cards=cards,
            )
        )
    folded = [replace(part, fold=False, name=f"details-{k}") for k, part in enumerate(parts)]
    note = (
        "For each seed, the training pairs of a variant are ordered by a hash of their prompt, and "
        "the first ones are used; the seed is also that of the training. verdicts.parquet names "
        "the entry, variant, training_pairs and test_sets of each verdict, and test_pairs.parquet "
        "the test_sets of each pair."
    )
    return Section("Details", note, parts=folded)


def _page(
    config: Ablation,
    variants: Mapping[str, PairRules | Path],
    rows: Sequence[AblationRow],
    effects: Sequence[Effect],
    headline: Headline,
    label_sources: Sequence[str],
    counts: Mapping[str, Any],
) -> Page:
    """The page, with its plot."""
    curves, tests = _learning_curves(rows, headline), list(dict.fromkeys(row.test for row in rows))
    note = (
        f"Agreement of {headline.rater} with the labels (correct 1, tie ½, not judged ½), trained "
        f"on {headline.training_pairs:,} pairs of each variant, with 95 % intervals by prompt. "
        "Bold: the test pairs were filtered like the training pairs, which favours them."
    )
    matrix = _grid(_headline_lines(rows, headline), tests)
    sections = [
        Section("Trained on × tested on", note, matrix, name="matrix"),
        _effects_section(effects, headline),
        Section("Learning curves", figures=[curves]),
        _details(config, variants, rows, counts),
    ]
    facts = (
        f"{len(variants)} data variants; no variant trains on a test prompt; "
        f"{label_text(label_sources)}. {written_now()}"
    )
    files = {"learning_curves": curves}
    lead = _lead(effects, headline)
    return Page(config.title, lead, facts, sections, label_sources, files=files)
