r"""Ablation: raters trained on several data variants and amounts of pairs, judged on all test sets.

    python eval/ablation.py --config configs/eval/sample_ablation.yaml

A variant is a set of rules of pairing, applied to `stories` (the rules among the config's own keys
are what the variants share), or a ready pairs file (`{pairs: FILE}`). Each rater is trained on each
variant at growing numbers of pairs that are the same for all variants, and at all pairs of each,
with each seed; it then judges the test pairs of every variant and of every file in `test_pairs`,
since a test set that carries the winner's own filters proves little. Where the stories have a
column `quality`, as simulated ones do, there is one more test set, `truth`: random pairs of stories
of one test prompt, labelled by quality. It is an error to train on a prompt of any test set. A
rater that cannot be trained, or has a `path`, judges as it is.

With one variant this is a scaling study: agreement by number of training pairs, a line per rater.
Raters with a common `family` are compared by model size at the largest equal number of pairs.

For every seed the training pairs are ordered by a seeded hash of their prompt, then of the pair,
and the first ones are used. Writes `ablation.json` (also `.csv`, a row for each cell, and `.txt`),
`ablation.html`, its plots `ablation_RATER_TEST.svg` and `.png`, `test_pairs.parquet` (the distinct
test pairs), `verdicts.parquet` (without `seconds`, so that the same config gives the same bytes)
and `manifest.json` into `out`.

A killed run goes on where it was. Trainings can be shared by processes that see one folder: run
each with its `--part`, then once without, which puts everything together:

    for part in 1 2 3 4; do
        CUDA_VISIBLE_DEVICES=$((part - 1)) python eval/ablation.py --config CONFIG --part $part/4 &
    done; wait; python eval/ablation.py --config CONFIG
"""

import functools
import itertools
import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from litbench.artifact import Artifact, fingerprint, write_atomically, write_json
from litbench.config import as_plain, build, run_program
from litbench.curation.engine import open_engine
from litbench.curation.pair_making import CuratedPairs, read_stories
from litbench.curation.rules import PairRules
from litbench.errors import ConfigError, DataError
from litbench.evaluation import Job, VerdictParts, evaluate
from litbench.metrics.ablation import (
    TRUTH,
    Arm,
    ablation_rows,
    ablation_study,
    ablation_text,
    join_test_sets,
)
from litbench.metrics.agreement import pair_scores
from litbench.metrics.csv_table import write_csv
from litbench.metrics.leaderboard import plain
from litbench.raters import RaterSpec, checked_trainer, files_of, parse_raters
from litbench.records import PAIRS, pair_id, prompt_keys
from litbench.report.pages import write_ablation
from litbench.tables import read_table, write_table
from litbench.text import digest

_KEYS = [column.name for column in PAIRS.columns if column.name not in ("chosen", "rejected")]


@dataclass(kw_only=True)
class Config(PairRules):
    """The rules that variants share, as in `litbench.curation.rules.PairRules`, and these.

    Attributes:
        out: folder to write.
        variants: name -> rules that differ, or {pairs: a pairs file}.
        reference: the variant that the others are compared with; the first when null.
        stories: Parquet, JSONL, CSV or `datasets` by the schema STORIES; null where every variant
            is a pairs file.
        test_pairs: name -> pairs file; further test sets, all pairs of each.
        raters: named entries, see litbench.raters; one that can be trained takes its training
            options here. Each may have a `family` (raters that differ in size alone) and
            `parameters` (weights, where the rater does not tell).
        train_split: train on pairs of this split; null for all pairs.
        test_split: judge pairs of this split; null to judge `test_pairs` alone.
        pairs_used: numbers of pairs that every variant is trained on, or shares of the pairs of
            the variant with the fewest.
        natural: train on all pairs of each variant, too.
        seeds: each draws the pairs and seeds the training.
        most_test_pairs: most test pairs of each test set, drawn by `seed`; null for all.
        title: heading of the page.
        part: which of several processes this is, such as 2/4: it does its share of the trainings
            and ends; null for all work.
        memory_limit: for DuckDB, such as "4GB".
    """

    out: Path
    variants: dict[str, dict[str, Any]]
    reference: str | None = None
    stories: Path | None = None
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
    part: str | None = None
    memory_limit: str | None = None


# The config -----------------------------------------------------------------------------------


def check(config: Config) -> None:
    """Check what the types cannot."""
    if (
        not config.variants
        or (config.reference or next(iter(config.variants))) not in config.variants
    ):
        raise ConfigError(
            f"variants has {list(config.variants)} and reference is {config.reference}: name at "
            "least one variant, such as full: {}, and as reference one of them"
        )
    seeds = config.seeds
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ConfigError(f"seeds is {seeds}: give whole numbers from 0, each once")
    if not config.pairs_used:
        raise ConfigError("pairs_used is empty: give amounts, such as [0.1, 0.3, 1.0]")
    if config.most_test_pairs is not None and config.most_test_pairs < 1:
        raise ConfigError(f"most_test_pairs is {config.most_test_pairs}: give at least 1")
    if config.test_split is None and not config.test_pairs:
        raise ConfigError("test_split is null and test_pairs is empty: give one of them")
    names = [TRUTH, *config.variants, *config.test_pairs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"'{name}' names two test sets: rename it in variants or test_pairs")


def read_variants(config: Config) -> dict[str, PairRules | Path]:
    """The rules or the pairs file of each variant, checked before any is made."""
    plain = as_plain(config)
    shared = {key: plain[key] for key in as_plain(PairRules())}
    found: dict[str, PairRules | Path] = {}
    for name, keys in config.variants.items():
        where = f"variants: {name}"
        if list(keys) == ["pairs"]:
            found[name] = Path(str(keys["pairs"]))
            continue
        if "pairs" in keys or config.stories is None:
            raise ConfigError(f"{where}: give {{pairs: FILE}} alone, or stories and rules")
        rules = build(PairRules, {**shared, **keys}, where)
        rules.check()
        found[name] = rules
    return found


def read_entries(config: Config) -> list[tuple[RaterSpec, Arm, bool]]:
    """Each rater, an arm with its family and size, and whether it is trained here."""
    entries = []
    for spec in parse_raters(config.raters):
        own = {key: spec.options.pop(key, None) for key in ("family", "parameters")}
        is_trained = checked_trainer(spec) is not None
        if is_trained and "seed" in spec.options:
            raise ConfigError(f"{spec.where}.seed: leave it out, the ablation's seeds set it")
        entries.append((spec, Arm(spec.name, spec.name, **own), is_trained))
    if not any(is_trained for *_, is_trained in entries):
        raise ConfigError("raters: none of them can be trained: give one, as f: {kind: features}")
    return entries


def share_of(part: str | None) -> slice:
    """The jobs of a process: "2/4" is the second of four."""
    if part is None:
        return slice(None)
    match = re.fullmatch(r"(\d+)/(\d+)", part)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(
            f"part is '{part}': give the number of this process and of all, such as 2/4, or null"
        )
    return slice(int(match[1]) - 1, None, int(match[2]))


# The data -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairsFile:
    """A pairs file on disk; texts are read only for the rows that are needed.

    Attributes:
        path: Parquet by the schema PAIRS; its name says what it depends on.
        keys: all columns but the texts; the rows of the split in use.
    """

    path: Path
    keys: pa.Table

    def with_texts(self, keys: pa.Table) -> pa.Table:
        """The whole rows of some pairs, in the order of the file."""
        wanted = pc.field("pair_id").isin(keys["pair_id"].combine_chunks())
        schema = PAIRS.arrow()
        return ds.dataset(self.path).to_table(columns=schema.names, filter=wanted).cast(schema)


def make_pairs(config: Config, what: PairRules | Path, path: Path) -> None:
    """Write the pairs of a variant or a ready file, and beside them the funnel; once."""
    funnel_path = path.with_suffix(".json")
    if path.is_file() and funnel_path.is_file():
        return
    if isinstance(what, Path):
        table = read_table(what, PAIRS)
        write_atomically(path, lambda part: write_table(table, part))
        write_json([], funnel_path)
        return
    assert config.stories is not None, "read_variants() has seen to it"
    with open_engine("duckdb", path.parent, memory_limit=config.memory_limit) as engine:
        stories = read_stories(engine, config.stories)
        made = CuratedPairs(engine, stories, what, where=str(config.stories))
        made.check_not_empty()
        write_atomically(path, lambda part: made.write(made.after, part))
        write_json(made.funnel.plain(), funnel_path)


def read_split(path: Path, split: str | None, where: str) -> PairsFile:
    """The pairs of a split, without texts."""
    keys = pq.read_table(path, columns=_KEYS)
    kept = keys if split is None else keys.filter(pc.equal(keys["split"], split))
    if kept.num_rows == 0:
        there = sorted(set(keys["split"].to_pylist()))
        raise DataError(f"{where}: no pair of split '{split}': it has {there}")
    return PairsFile(path, kept)


def truth_table(config: Config, folder: Path, tested: set[str]) -> pa.Table | None:
    """Random pairs of stories of one prompt, labelled by quality; None where it is not known.

    Args:
        config: of the ablation.
        folder: for working files.
        tested: ids of the prompts to use.
    """
    if config.stories is None or not tested:
        return None
    with open_engine("duckdb", folder, memory_limit=config.memory_limit) as engine:
        stories = read_stories(engine, config.stories)
        if "quality" not in stories.columns:
            return None
        kind = stories.schema()["quality"]
        if not kind.is_numeric():
            raise DataError(
                f"{config.stories}: column quality holds {kind}, and it would be taken for the "
                "truth about the stories: give numbers, or rename the column"
            )
        columns = ("story_id", "prompt_id", "prompt", "text", "n_words")
        known = stories.filter(stories.quality.notnull(), stories.prompt_id.isin(sorted(tested)))
        known = known.select(*columns, quality=known.quality.cast("float64"))
        rows = sorted(engine.rows(known), key=lambda row: (row["prompt_id"], row["story_id"]))
    of: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if math.isfinite(row["quality"]):
            of.setdefault(row["prompt_id"], []).append(row)
    most = config.most_test_pairs
    per_prompt = None if most is None else -(-most // max(len(of), 1))
    random = np.random.default_rng(config.seed)
    found = []
    for members in of.values():
        firsts, seconds = np.triu_indices(len(members), 1)
        for place in random.permutation(len(firsts))[:per_prompt]:
            both = members[firsts[place]], members[seconds[place]]
            worse, better = sorted(both, key=lambda row: row["quality"])
            if worse["quality"] < better["quality"]:
                found.append(
                    {
                        "pair_id": pair_id(worse["story_id"], better["story_id"]),
                        "prompt_id": better["prompt_id"],
                        "prompt": better["prompt"],
                        "label_source": "planted",
                        "split": TRUTH,
                        "chosen": better["text"],
                        "chosen_story_id": better["story_id"],
                        "chosen_n_words": better["n_words"],
                        "rejected": worse["text"],
                        "rejected_story_id": worse["story_id"],
                        "rejected_n_words": worse["n_words"],
                    }
                )
    if not found:
        return None
    table = pa.Table.from_pylist(found, schema=PAIRS.arrow())
    return table.take(pa.array(sorted(order_of(table, config.seed)[:most])))


def order_of(pairs: pa.Table, seed: int) -> list[int]:
    """Row numbers in the order in which subsamples take them: by hash of prompt, then of pair."""
    keys = [
        (digest("scaling", seed, key), digest("scaling", seed, name))
        for key, name in zip(prompt_keys(pairs), pairs["pair_id"].to_pylist(), strict=True)
    ]
    return sorted(range(len(keys)), key=keys.__getitem__)


def subsample_test(pairs: pa.Table, most: int | None, seed: int) -> pa.Table:
    """At most so many pairs by a hash of the pair, so that nearly all prompts stay."""
    if most is None or pairs.num_rows <= most:
        return pairs
    keys = [digest("test", seed, name) for name in pairs["pair_id"].to_pylist()]
    return pairs.take(pa.array(sorted(sorted(range(len(keys)), key=keys.__getitem__)[:most])))


def check_apart(train: Mapping[str, PairsFile], test: Mapping[str, PairsFile]) -> None:
    """Check that no variant trains on a prompt of any test set."""
    trained_on = {name: set(prompt_keys(one.keys)) for name, one in train.items()}
    for (tested, one), (name, known) in itertools.product(test.items(), trained_on.items()):
        if shared := known.intersection(prompt_keys(one.keys)):
            raise DataError(
                f"{len(shared)} test prompts of {tested} are trained on in variant {name}: split "
                "both by one rule (seed, splits, test_from), or give other test_pairs"
            )


# The work -------------------------------------------------------------------------------------


def count_pairs(amount: float, total: int) -> int:
    """How many of `total` pairs an amount stands for; a share is rounded, to at least 2."""
    if isinstance(amount, float) and 0 < amount <= 1 and total >= 2:
        return max(2, round(amount * total))
    if not isinstance(amount, int) or not 2 <= amount <= total:
        raise ConfigError(
            f"pairs_used has {amount!r}: give shares up to 1.0, or whole numbers from 2 to "
            f"{total:,}, the pairs of the variant with the fewest"
        )
    return amount


def list_arms(
    config: Config, entries: Sequence[tuple[RaterSpec, Arm, bool]], totals: Mapping[str, int]
) -> list[tuple[RaterSpec, Arm]]:
    """All arms, by variant in the order of the config, then by size; ready raters first."""
    least = min(totals.values())
    equal = {count_pairs(amount, least) for amount in config.pairs_used}
    arms = [(spec, arm) for spec, arm, is_trained in entries if not is_trained]
    for variant, total in totals.items():
        for spec, base, is_trained in entries:
            sizes = equal | {total} if config.natural else equal
            for used in sorted(sizes) if is_trained else ():
                arm = replace(
                    base,
                    name=f"{base.rater} on {variant}@{used}",
                    variant=variant,
                    pairs_used=used,
                    equal=used in equal,
                    natural=config.natural and used == total,
                )
                arms.append((spec, arm))
    return arms


def main(config: Config) -> None:
    """Make the variants, train, judge, then write the figures and the page."""
    check(config)
    variants, entries, share = read_variants(config), read_entries(config), share_of(config.part)
    reference = config.reference or next(iter(variants))
    inputs = {f"test_pairs.{name}": path for name, path in config.test_pairs.items()}
    for name, what in variants.items():
        if isinstance(what, Path):
            inputs[f"variants.{name}.pairs"] = what
    if config.stories is not None:
        inputs["stories"] = config.stories
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs=inputs,
        models=files_of(spec for spec, *_ in entries),
        runtime_keys=("part", "memory_limit"),
    )
    page_path = (config.out / "ablation.html").resolve()
    if artifact.is_current():
        print((config.out / "ablation.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return
    parts = VerdictParts(config.out / "parts")

    folder = config.out / "data"
    paths: dict[str, Path] = {}
    for name, what in (variants | config.test_pairs).items():
        key = f"variants.{name}.pairs" if name in variants else f"test_pairs.{name}"
        made_of = artifact.digests[key if isinstance(what, Path) else "stories"]
        rules = None if isinstance(what, Path) else what
        paths[name] = folder / f"{fingerprint(rules, made_of)[:32]}.parquet"
        try:
            make_pairs(config, what, paths[name])
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
    train = {name: read_split(paths[name], config.train_split, name) for name in variants}
    own: dict[str, PairsFile] = {}
    if config.test_split is not None:
        own = {name: read_split(paths[name], config.test_split, name) for name in variants}
    sources = own | {name: read_split(paths[name], None, name) for name in config.test_pairs}
    check_apart(train, sources)
    tests = {
        name: one.with_texts(subsample_test(one.keys, config.most_test_pairs, config.seed))
        for name, one in sources.items()
    }
    tested = {prompt for one in own.values() for prompt in one.keys["prompt_id"].to_pylist()}
    truth = truth_table(config, folder, tested)
    if truth is not None:
        tests[TRUTH] = truth
    test, test_sets = join_test_sets(tests)

    totals = {name: one.keys.num_rows for name, one in train.items()}
    arms = list_arms(config, entries, totals)
    judged = fingerprint(
        *(test[name].to_pylist() for name in ("pair_id", "prompt", "chosen", "rejected"))
    )

    def training_pairs(arm: Arm, seed: int) -> pa.Table:
        source = train[str(arm.variant)]
        if arm.natural:
            return source.with_texts(source.keys)
        rows = order_of(source.keys, seed)[: arm.pairs_used]
        return source.with_texts(source.keys.take(pa.array(rows)))

    jobs: list[tuple[Job, Arm]] = []
    for spec, arm in arms:
        if arm.variant is None:
            jobs.append((Job(spec, arm.name, lambda: test, judged, work=test.num_rows), arm))
            continue
        used = arm.pairs_used or 0
        depends_on = [judged, paths[arm.variant].stem, config.train_split, used]
        for seed in config.seeds:
            job = Job(
                spec,
                f"{arm.name}-seed{seed}",
                lambda: test,
                depends_on,
                train=functools.partial(training_pairs, arm, seed),
                seed=seed,
                fold=f"{seed}/0",
                name=arm.name,
                work=used + test.num_rows,
            )
            jobs.append((job, arm))
    # Small trainings first, so that a fault shows early.
    jobs.sort(key=lambda item: item[1].pairs_used or 0)
    arm_of = {job.label: arm for job, arm in jobs}

    credits: dict[str, list[np.ndarray]] = {}
    records: dict[str, list[dict[str, Any]]] = {}
    verdicts = []
    mine = [job for job, _ in jobs][share]
    for job, table, record in evaluate(mine, parts):
        name = arm_of[job.label].name
        (scores,) = pair_scores(table, test)
        credits.setdefault(name, []).append(scores.credit)
        records.setdefault(name, []).append(record)
        seconds = pa.nulls(table.num_rows, pa.float64())
        column = table.column_names.index("seconds")
        verdicts.append(table.set_column(column, "seconds", seconds))
    if config.part is not None:
        print(f"part {config.part}: {len(mine)} of {len(jobs)} trainings are in {parts.folder}")
        return

    artifact.write("verdicts.parquet", lambda path: write_table(pa.concat_tables(verdicts), path))
    artifact.write("test_pairs.parquet", lambda path: write_table(test, path))
    sized = [
        replace(
            arm,
            kind=spec.kind,
            parameters=arm.parameters or records[arm.name][0]["notes"].get("parameters"),
        )
        for spec, arm in arms
    ]
    headline = [TRUTH, reference, *config.test_pairs]
    study = ablation_study(sized, credits, test, test_sets, reference, headline)
    artifact.write("ablation.json", lambda path: write_json(plain(study), path))
    artifact.write("ablation.csv", lambda path: write_csv(ablation_rows(study), path))
    text = ablation_text(study)
    artifact.write("ablation.txt", lambda path: path.write_text(text, encoding="utf-8"))
    funnels = {
        name: json.loads(paths[name].with_suffix(".json").read_text(encoding="utf-8"))
        for name in variants
    }
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
    parts.discard_others()
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{text}page: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
