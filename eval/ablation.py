r"""Train raters on several data variants and numbers of pairs, and judge all test sets.

    python eval/ablation.py --config configs/eval/sample_ablation.yaml

A variant is either a set of pairing rules applied to `stories`, or a pairs file (`{pairs: FILE}`).
Rules among the config's own keys are shared by all variants. Each rater is trained with each seed
on each variant, at increasing numbers of pairs that are equal across variants and on all pairs of
the variant. It then judges the test pairs of every variant and of every file in `test_pairs`,
because a test set that was filtered like the training set favours it. Training on a prompt of any
test set is an error. A rater that cannot be trained, or has a `path`, is only evaluated.

With one variant this is a scaling study: agreement by number of training pairs, a line per rater.
Raters of the same `family` are compared by model size at the largest equal number of pairs.

For every seed, the training pairs are ordered by a seeded hash of their prompt, then of the pair,
and the first ones are used. Writes `ablation.json` (also `.csv`, with a row per cell, and `.txt`),
`ablation.html`, its plots `ablation_RATER_TEST.svg` and `.png`, `test_pairs.parquet` (the distinct
test pairs), `verdicts.parquet` (without `seconds`, so that results are reproducible byte by byte)
and `manifest.json` into `out`.

A killed run resumes. To share the trainings among processes with a common folder, run each process
with its `--part`, then once without `--part` to write the results:

    for part in 1 2 3 4; do
        CUDA_VISIBLE_DEVICES=$((part - 1)) python eval/ablation.py --config CONFIG --part $part/4 &
    done; wait; python eval/ablation.py --config CONFIG
"""

import itertools
import json
import shutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from litbench.config import Input, Runtime, as_plain, build, run_program
from litbench.curation.engine import open_engine
from litbench.curation.pair_making import CuratedPairs, read_stories
from litbench.curation.rules import PairRules
from litbench.entries import RaterSpec, files_of, parse_raters
from litbench.errors import ConfigError, DataError
from litbench.evaluation.loop import Job, evaluate
from litbench.metrics.ablation import (
    Arm,
    ablation_rows,
    ablation_study,
    ablation_text,
    join_test_sets,
)
from litbench.metrics.agreement import pair_scores
from litbench.metrics.csv_table import write_csv
from litbench.metrics.leaderboard import plain
from litbench.records import PAIRS, prompt_keys
from litbench.report.pages import write_ablation
from litbench.sources.pairs import as_pairs, read_any_pairs
from litbench.store import (
    Artifact,
    Cache,
    fingerprint,
    write_json,
)
from litbench.tables import write_table
from litbench.text import digest


@dataclass(kw_only=True)
class Config(PairRules):
    """Configuration of `ablation.py`; inherits the rules that all variants share.

    Attributes:
        out: output folder.
        variants: name -> rules that differ, or {pairs: FILE}.
        reference: the variant that the others are compared with; null for the first.
        stories: Parquet, JSONL, CSV or `datasets` with the schema STORIES; null if every variant
            is a pairs file.
        test_pairs: name -> pairs file; additional test sets, used in full.
        raters: named entries, see litbench.entries; a trainable rater takes its training options
            here. Each may have a `family` (raters that differ only in size) and `parameters`
            (number of weights, if the rater does not report it).
        train_split: train on pairs of this split; null for all pairs.
        test_split: judge pairs of this split; null to judge only `test_pairs`.
        pairs_used: numbers of training pairs, equal for all variants, or shares of the smallest
            variant.
        natural: also train on all pairs of each variant.
        seeds: seeds of the subsamples of pairs and of the trainings.
        most_test_pairs: maximum size of the test sets, drawn by `seed`; null for all pairs.
        title: heading of the page.
        part: number of this process and number of processes, such as 2/4, to do only a share of the
            trainings; null to do everything.
        memory_limit: memory limit of DuckDB, such as "4GB".
    """

    out: Path
    variants: dict[str, dict[str, Any]]
    reference: str | None = None
    stories: Annotated[Path | None, Input] = None
    test_pairs: dict[str, Path] = field(default_factory=dict)
    raters: dict[str, Any] = field(default_factory=dict)
    splits: dict[str, float] = field(default_factory=lambda: {"train": 0.8, "test": 0.2})
    train_split: str | None = "train"
    test_split: str | None = "test"
    pairs_used: list[int | float] = field(default_factory=lambda: [0.1, 0.3, 1.0])
    natural: bool = True
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    most_test_pairs: int | None = 4_000
    title: str = "LitBench ablation"
    part: Annotated[str | None, Runtime] = None
    memory_limit: Annotated[str | None, Runtime] = None


def check(config: Config) -> slice:
    """Check the config; returns the slice of the jobs that this process runs."""
    reference = config.reference or next(iter(config.variants), None)
    if reference not in config.variants:
        raise ConfigError(
            f"variants has {list(config.variants)} and reference is {reference}: name at least one "
            "variant, such as full: {}, and one of the variants as reference"
        )
    seeds = config.seeds
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ConfigError(f"seeds is {seeds}: give distinct whole numbers, 0 or greater")
    if config.test_split is None and not config.test_pairs:
        raise ConfigError("test_split is null and test_pairs is empty: give one of them")
    if both := set(config.variants) & set(config.test_pairs):
        raise ConfigError(f"{sorted(both)} name a variant and a file of test_pairs: rename one")
    number, _, parts = (config.part or "1/1").partition("/")
    if not (number.isdigit() and parts.isdigit() and 1 <= int(number) <= int(parts)):
        raise ConfigError(f"part is '{config.part}': give number and count, such as 2/4")
    return slice(int(number) - 1, None, int(parts))


def read_variants(config: Config) -> dict[str, PairRules | Path]:
    """Return the checked rules or the pairs file of each variant."""
    shared = {key: as_plain(config)[key] for key in as_plain(PairRules())}
    variants: dict[str, PairRules | Path] = {}
    for name, keys in config.variants.items():
        where = f"variants: {name}"
        if list(keys) == ["pairs"]:
            variants[name] = Path(str(keys["pairs"]))
            continue
        if "pairs" in keys or config.stories is None:
            raise ConfigError(f"{where}: give only {{pairs: FILE}}, or stories and rules")
        variants[name] = rules = build(PairRules, {**shared, **keys}, where)
        rules.check()
    return variants


def read_raters(config: Config) -> list[tuple[RaterSpec, Arm]]:
    """Return each rater, and an arm with its family and size."""
    raters = []
    for spec in parse_raters(config.raters, may_train=True, extra=("family", "parameters")):
        if spec.is_trained and "seed" in spec.given:
            raise ConfigError(f"{spec.where}.seed: leave it out; the key seeds sets it")
        raters.append((spec, Arm(spec.name, spec.name, **spec.extra)))
    if not any(spec.is_trained for spec, _ in raters):
        raise ConfigError("raters: none can be trained: add one, such as f: {kind: features}")
    return raters


def make_pairs(config: Config, what: PairRules | Path, source: str, parts: Cache) -> Path:
    """Return the folder with the pairs of a variant or pairs file, and their funnel.

    `source` is the digest of the stories or of the pairs file.
    """

    def write(folder: Path) -> None:
        if isinstance(what, Path):
            write_table(read_any_pairs(what), folder / "pairs.parquet")
            write_json([], folder / "funnel.json")
            return
        assert config.stories is not None, "checked by read_variants()"
        with open_engine("duckdb", parts.folder, memory_limit=config.memory_limit) as engine:
            stories = read_stories(engine, config.stories)
            curated = CuratedPairs(engine, stories, what, where=str(config.stories))
            curated.check_not_empty()
            curated.write(curated.after, folder / "pairs.parquet")
            write_json(curated.funnel.plain(), folder / "funnel.json")

    return parts.get_folder([None if isinstance(what, Path) else what, source], write, "pairs")


def read_keys(path: Path, split: str | None, where: str) -> pa.Table:
    """Read the pairs of a split without texts, which may need gigabytes of memory."""
    names = [column.name for column in PAIRS.columns if column.name not in ("chosen", "rejected")]
    keys = pq.read_table(path, columns=names)
    selected = keys if split is None else keys.filter(pc.equal(keys["split"], split))
    if selected.num_rows == 0:
        splits = sorted(set(keys["split"].to_pylist()))
        raise DataError(f"{where}: no pair of split '{split}': name one of {splits}")
    return selected


def with_texts(path: Path, keys: pa.Table) -> pa.Table:
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


def check_apart(train: Mapping[str, pa.Table], test: Mapping[str, pa.Table]) -> None:
    """Raise a DataError if a variant's training pairs have a prompt of any test set."""
    trained_on = {name: set(prompt_keys(pairs)) for name, pairs in train.items()}
    for (test_set, pairs), (name, known) in itertools.product(test.items(), trained_on.items()):
        if shared := known.intersection(prompt_keys(pairs)):
            raise DataError(
                f"{len(shared)} test prompts of {test_set} are training prompts of variant {name}: "
                "split both by the same rule (seed, splits, test_from), or give other test_pairs"
            )


def count_pairs(amount: float, total: int) -> int:
    """Convert an amount to a number of pairs; a share of `total` is rounded, to at least 2."""
    if isinstance(amount, float) and 0 < amount <= 1 and total >= 2:
        return max(2, round(amount * total))
    if not isinstance(amount, int) or not 2 <= amount <= total:
        raise ConfigError(
            f"pairs_used has {amount!r}: give shares up to 1.0, or whole numbers from 2 to "
            f"{total:,}, the number of pairs of the smallest variant"
        )
    return amount


def main(config: Config) -> None:
    """Make the variants, train and judge, and write the results."""
    share, variants, raters = check(config), read_variants(config), read_raters(config)
    inputs = {f"test_pairs.{name}": path for name, path in config.test_pairs.items()}
    inputs |= {
        f"variants.{k}.pairs": path for k, path in variants.items() if isinstance(path, Path)
    }
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs=inputs,
        models=files_of(spec for spec, _ in raters),
    )
    page_path = (config.out / "ablation.html").resolve()
    if artifact.is_current():
        print((config.out / "ablation.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return

    data = Cache(config.out / "data")
    folders: dict[str, Path] = {}
    for name, what in (variants | config.test_pairs).items():
        key = f"variants.{name}.pairs" if name in variants else f"test_pairs.{name}"
        source = artifact.digests[key if isinstance(what, Path) else "stories"]
        try:
            folders[name] = make_pairs(config, what, source, data)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
    paths = {name: folder / "pairs.parquet" for name, folder in folders.items()}
    train = {name: read_keys(paths[name], config.train_split, name) for name in variants}
    tests = {name: read_keys(paths[name], None, name) for name in config.test_pairs}
    if config.test_split is not None:
        tests = {n: read_keys(paths[n], config.test_split, n) for n in variants} | tests
    check_apart(train, tests)
    most, seed = config.most_test_pairs, config.seed
    tests = {
        name: with_texts(paths[name], first_by_hash(one, most, "test", seed, by_prompt=False))
        for name, one in tests.items()
    }
    test, test_sets = join_test_sets(tests)
    texts = [test[name].to_pylist() for name in ("pair_id", "prompt", "chosen", "rejected")]
    judged = fingerprint(*texts)

    # One arm for every trainable rater, variant and amount.
    totals = {name: keys.num_rows for name, keys in train.items()}
    equal = {count_pairs(amount, min(totals.values())) for amount in config.pairs_used}
    arms = [(spec, arm) for spec, arm in raters if not spec.is_trained]
    trained_here = [(spec, arm) for spec, arm in raters if spec.is_trained]
    for (variant, total), (spec, arm) in itertools.product(totals.items(), trained_here):
        for used in sorted(equal | {total} if config.natural else equal):
            trained = replace(
                arm,
                name=f"{arm.rater} on {variant}@{used}",
                variant=variant,
                pairs_used=used,
                equal=used in equal,
                natural=config.natural and used == total,
            )
            arms.append((spec, trained))

    def training_pairs(arm: Arm, seed: int) -> pa.Table:
        keys, name = train[str(arm.variant)], str(arm.variant)
        drawn = first_by_hash(keys, arm.pairs_used, "scaling", seed, by_prompt=True)
        return with_texts(paths[name], drawn)

    jobs = [
        Job(spec, arm.name, lambda: test, judged, work=test.num_rows)
        if arm.variant is None
        else Job(
            spec,
            f"{arm.name}-seed{seed}",
            lambda: test,
            [judged, folders[arm.variant].name, config.train_split, arm.pairs_used],
            train=partial(training_pairs, arm, seed),
            seed=seed,
            fold=f"{seed}/0",
            name=arm.name,
            work=(arm.pairs_used or 0) + test.num_rows,
        )
        for spec, arm in arms
        for seed in (config.seeds if arm.variant else [0])
    ]
    # Small trainings first, so that errors appear early.
    mine = sorted(jobs, key=lambda job: job.work)[share]

    parts = Cache(config.out / "parts")
    credits: dict[str, list[np.ndarray]] = defaultdict(list)
    records: dict[str, list[dict[str, Any]]] = defaultdict(list)
    verdicts = []
    for _, table, record in evaluate(mine, parts):
        (scores,) = pair_scores(table, test)
        credits[scores.rater].append(scores.credit)
        records[scores.rater].append(record)
        index = table.column_names.index("seconds")
        seconds = pa.nulls(table.num_rows, pa.float64())
        verdicts.append(table.set_column(index, "seconds", seconds))
    if config.part is not None:
        print(f"part {config.part}: {len(mine)} of {len(jobs)} jobs are in {parts.folder}")
        return

    sized = [
        replace(arm, parameters=arm.parameters or records[arm.name][0]["notes"].get("parameters"))
        for _, arm in arms
    ]
    reference = config.reference or next(iter(variants))
    headline = [reference, *config.test_pairs]
    study = ablation_study(sized, credits, test, test_sets, reference, headline)
    text = ablation_text(study)
    funnels = {name: json.loads((folders[name] / "funnel.json").read_bytes()) for name in variants}
    artifact.write("verdicts.parquet", partial(write_table, pa.concat_tables(verdicts)))
    artifact.write("test_pairs.parquet", partial(write_table, test))
    artifact.write("ablation.json", partial(write_json, plain(study)))
    artifact.write("ablation.csv", partial(write_csv, ablation_rows(study)))
    artifact.write("ablation.txt", lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = {
        "training_pairs": totals,
        "test_pairs": {name: table.num_rows for name, table in tests.items()},
        "test_pairs_distinct": test.num_rows,
        "funnels": funnels,
        "raters": records,
    }
    write_ablation(
        artifact,
        study,
        title=config.title,
        label_sources=sorted(set(test["label_source"].to_pylist())),
        variants=config.variants,
        training_pairs=totals,
        funnels=funnels,
    )
    artifact.finish()
    parts.discard_unused()
    shutil.rmtree(data.folder, ignore_errors=True)
    print(f"{text}page: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
