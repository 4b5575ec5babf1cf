r"""Ablation: the same rater trained on several data variants, each judged on the tests of them all.

    python eval/ablation.py --config configs/eval/sample_ablation.yaml

Makes the pairs of every variant from one stories file: the keys of the config that name rules of
pairing are what the variants share, `variants` says what differs. A variant may also be a ready
pairs file of the same stories (`{pairs: FILE}`). Then it trains each rater on each variant, at
growing numbers of pairs that are the same for all variants, and at all pairs of each, with each
seed; and it judges every model on the test pairs of every variant, since a test set that carries
the winner's own filters proves little. Where the stories have a column `quality`, as simulated
ones do, there is one more test set, `truth`: random pairs of stories of one test prompt, whatever
their votes, labelled by quality. A prompt that is trained on in one variant and tested in another
is an error. A rater that cannot be trained, or has a `path`, judges as it is.

For every seed the training pairs stand in the order of a seeded hash of their prompt, then of the
pair, and the first ones are used. Reads `stories`. Writes `ablation.json` (also `.csv`, a row for
each cell of the matrix, and `.txt`), `ablation.html`, its plots `ablation_RATER_TEST.svg` and
`.png`, `test_pairs.parquet` (the distinct test pairs), `verdicts.parquet` (without `seconds`, so
that the same config gives the same bytes) and `manifest.json` into `out`.

Every training is kept once its rater has judged, so a killed run goes on. Parts need no other
part: several processes share them,

    accelerate launch --config_file configs/accelerate/multi_gpu.yaml eval/ablation.py \
        --config CONFIG

each with a GPU of its own, and so do jobs of a cluster that see one folder: `--part 1/8` to
`--part 8/8`, then once without, which puts everything together.
"""

import functools
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

from litbench.artifact import (
    Artifact,
    code_digest,
    fingerprint,
    write_atomically,
    write_json,
)
from litbench.config import as_plain, build, run_program
from litbench.crew import Crew, leave_the_group
from litbench.curation.engine import Engine, open_engine
from litbench.curation.pair_making import (
    PairRules,
    check_stories_file,
    make_keys,
    read_stories,
)
from litbench.draws import check_seeds, check_unseeded, count_pairs, draw_order
from litbench.errors import ConfigError, DataError
from litbench.evaluation import (
    JUDGING_CODE,
    VerdictParts,
    check_training_prompts,
    named_models,
    ready_rater,
    trained,
)
from litbench.metrics.ablation import (
    TRUTH,
    AblationArm,
    ablation_json,
    ablation_study,
    ablation_text,
    join_test_sets,
    write_ablation_csv,
)
from litbench.metrics.agreement import pair_scores
from litbench.raters import (
    RaterSpec,
    Trainer,
    checked_trainer,
    judge_pairs,
    parse_raters,
)
from litbench.records import PAIRS, VERDICTS, pair_id, prompt_keys
from litbench.report.ablation_page import draw_curves, render_ablation
from litbench.report.document import write_panels
from litbench.tables import check_parquet, read_table, write_sorted_batches, write_table
from litbench.text import digest

_TEXTS = ("chosen", "rejected")
_PAIRING_CODE = ("curation", "records.py", "text.py", "reading.py")


@dataclass(kw_only=True)
class Config(PairRules):
    """The rules that variants share, as in `litbench.curation.pair_making.PairRules`, and these.

    Attributes:
        stories: Parquet, JSONL, CSV or `datasets` by the schema STORIES.
        out: folder to write.
        variants: name -> rules that differ, or {pairs: a pairs file of the same stories}.
        reference: the variant that the others are compared with.
        raters: named entries, see litbench.raters; one that can be trained takes its training
            options here.
        train_split: train on pairs of this split.
        test_split: judge pairs of this split.
        pairs_used: numbers of pairs that every variant is trained on, or shares of the pairs of
            the variant with the fewest.
        natural: train on all pairs of each variant, too.
        seeds: each draws the pairs and seeds the training.
        most_test_pairs: most test pairs of each variant, drawn by `seed`; null for all.
        truth_pairs: how many random pairs are labelled by quality, where it is known.
        title: heading of the page.
        part: which job of a cluster this is and of how many, such as 2/4: it takes its share of
            the trainings and leaves the rest; null for all work.
        memory_limit: for DuckDB, such as "4GB".
    """

    stories: Path
    out: Path
    variants: dict[str, dict[str, Any]]
    reference: str
    raters: dict[str, Any] = field(default_factory=dict)
    splits: dict[str, float] = field(default_factory=lambda: {"train": 0.8, "test": 0.2})
    train_split: str = "train"
    test_split: str = "test"
    pairs_used: list[int | float] = field(default_factory=lambda: [0.1, 0.3, 1.0])
    natural: bool = True
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    most_test_pairs: int | None = 4_000
    truth_pairs: int = 4_000
    title: str = "LitBench ablation"
    part: str | None = None
    memory_limit: str | None = None


@dataclass(frozen=True)
class Variant:
    """A data variant: rules, or a ready pairs file."""

    name: str
    rules: PairRules
    pairs: Path | None


@dataclass(frozen=True)
class Entry:
    """A rater of the config; `trainer` is None for one that is ready."""

    spec: RaterSpec
    trainer: Trainer | None


@dataclass(frozen=True)
class Job:
    """One part of the work: an arm, and the seed it is trained with."""

    entry: Entry
    arm: AblationArm
    seed: int | None = None

    @property
    def label(self) -> str:
        """Name of the part."""
        return self.arm.name if self.seed is None else f"{self.arm.name}-seed{self.seed}"


# The config -----------------------------------------------------------------------------------


def read_variants(config: Config) -> list[Variant]:
    """Check all variants before any is made."""
    if not config.variants:
        raise ConfigError("variants is empty: name at least one, such as full: {}")
    if TRUTH in config.variants:
        raise ConfigError(f"variants: '{TRUTH}' names the test set by quality: rename the variant")
    if config.reference not in config.variants:
        raise ConfigError(
            f"reference is '{config.reference}': give one of {', '.join(config.variants)}"
        )
    plain = as_plain(config)
    shared = {key: plain[key] for key in as_plain(PairRules())}
    found = []
    for name, keys in config.variants.items():
        where = f"variants: {name}"
        if "pairs" in keys and len(keys) > 1:
            others = ", ".join(key for key in keys if key != "pairs")
            raise ConfigError(
                f"{where}: rules do not change a ready pairs file: leave out {others}"
            )
        ready = "pairs" in keys
        rules = build(PairRules, shared if ready else {**shared, **keys}, where)
        rules.check()
        found.append(Variant(name, rules, Path(str(keys["pairs"])) if ready else None))
    return found


def read_entries(config: Config) -> list[Entry]:
    """Check all raters before any of them runs."""
    entries = []
    for spec in parse_raters(config.raters):
        trainer = checked_trainer(spec)
        if trainer is not None:
            check_unseeded(spec.options, spec.where)
        entries.append(Entry(spec, trainer))
    if all(entry.trainer is None for entry in entries):
        raise ConfigError("raters: none of them can be trained: give one, as f: {kind: features}")
    return entries


def check(config: Config) -> None:
    """Check what the types cannot."""
    check_seeds(config.seeds)
    if not config.pairs_used:
        raise ConfigError("pairs_used is empty: give amounts, such as [0.1, 0.3, 1.0]")
    for key in ("most_test_pairs", "truth_pairs"):
        value = getattr(config, key)
        if value is not None and value < 1:
            raise ConfigError(f"{key} is {value}: give at least 1")


# The data -------------------------------------------------------------------------------------


def as_keys(table: pa.Table) -> pa.Table:
    """A pairs table without its texts, in the columns and types of the schema PAIRS."""
    fields = [field for field in PAIRS.arrow() if field.name not in _TEXTS]
    return table.select([field.name for field in fields]).cast(pa.schema(fields))


def make_variant(engine: Engine, config: Config, variant: Variant, path: Path) -> None:
    """Write the pairs of a variant without texts, and beside them what was counted."""
    if variant.pairs is None:
        stories = read_stories(engine, config.stories)
        made = make_keys(engine, stories, variant.rules, where=str(config.stories))
        try:
            made.check_not_empty()
        except DataError as error:
            raise DataError(f"variants: {variant.name}: {error}") from error
        rows = made.with_prompts(made.after).order_by("pair_id")
        table = as_keys(pa.Table.from_batches(engine.batches(rows)))
        record = {"funnel": made.funnel.plain(), "lengths": made.longer_share(made.after)}
    elif variant.pairs.suffix == ".parquet":
        check_parquet(variant.pairs, PAIRS)
        names = [column.name for column in PAIRS.columns if column.name not in _TEXTS]
        table, record = as_keys(pq.read_table(variant.pairs, columns=names)), {"funnel": []}
    else:
        table, record = as_keys(read_table(variant.pairs, PAIRS)), {"funnel": []}
    write_atomically(path, lambda part: write_table(table, part))
    # Last: its presence says that both are whole.
    write_json(record, path.with_suffix(".json"))


def write_texts(engine: Engine, config: Config, path: Path) -> None:
    """Write the texts of all stories so that they can be mapped from disk."""
    schema = pa.schema([("story_id", pa.large_string()), ("text", pa.large_string())])
    batches = engine.batches(read_stories(engine, config.stories).select("story_id", "text"))

    def write(part: Path) -> None:
        with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch.cast(schema))

    write_atomically(path, write)


class Data:
    """The pairs of all variants and the texts of their stories, on disk.

    What is there is not made again; a file's name tells all that it depends on.
    """

    def __init__(
        self, config: Config, variants: Sequence[Variant], digests: Mapping[str, str]
    ) -> None:
        self.config, self.variants = config, variants
        self.folder = config.out / "data"
        code = code_digest(__file__, *_PAIRING_CODE)
        self.paths: dict[str, Path] = {}
        for variant in variants:
            given = [digests[name] for name in inputs_of(config, [variant])]
            rules = variant.rules if variant.pairs is None else None
            name = fingerprint(rules, given, code)[:32]
            self.paths[variant.name] = self.folder / f"{name}.parquet"
        self.texts_path = self.folder / f"{fingerprint('texts', digests['stories'])[:32]}.arrow"

    def make(self, crew: Crew) -> None:
        """Make what is not there, with the other processes of a launcher."""

        def is_there(variant: Variant | None) -> bool:
            if variant is None:
                return self.texts_path.is_file()
            path = self.paths[variant.name]
            return path.is_file() and path.with_suffix(".json").is_file()

        work = [None, *self.variants]
        for variant in tqdm(
            crew.share(work), desc="pairs", unit=" sets", leave=False, disable=None
        ):
            if is_there(variant):
                continue
            limit = self.config.memory_limit
            with open_engine("duckdb", self.folder, memory_limit=limit) as engine:
                if variant is None:
                    write_texts(engine, self.config, self.texts_path)
                else:
                    make_variant(engine, self.config, variant, self.paths[variant.name])
        crew.wait(lambda: all(is_there(variant) for variant in work), "the pairs of other variants")

    def counts(self, name: str) -> dict[str, Any]:
        """What was counted in making a variant."""
        found: dict[str, Any] = json.loads(
            self.paths[name].with_suffix(".json").read_text(encoding="utf-8")
        )
        return found

    def pairs(self, name: str, split: str) -> pa.Table:
        """The pairs of a variant's split, without texts."""
        table = pq.read_table(self.paths[name])
        kept = table.filter(pc.equal(table["split"], split))
        if kept.num_rows == 0:
            there = sorted(set(table["split"].to_pylist()))
            raise DataError(f"variants: {name}: no pair of split '{split}': it has {there}")
        return kept

    @functools.cached_property
    def _texts(self) -> pa.Table:
        return pa.ipc.open_file(pa.memory_map(str(self.texts_path))).read_all()

    def with_texts(self, keys: pa.Table) -> pa.Table:
        """Put the texts to pairs; a table by the schema PAIRS.

        Raises:
            DataError: a story is not among the stories.
        """
        ids = self._texts["story_id"].combine_chunks()
        columns = {name: keys[name] for name in keys.column_names}
        for side in _TEXTS:
            place = pc.index_in(keys[f"{side}_story_id"], value_set=ids)
            if place.null_count:
                unknown = keys.filter(pc.is_null(place))[f"{side}_story_id"][0]
                raise DataError(
                    f"story {unknown} of the pairs is not in {self.config.stories}: give the "
                    "stories that the pairs were made of"
                )
            columns[side] = take_texts(self._texts["text"], place.to_numpy())
        return pa.table(columns).select([column.name for column in PAIRS.columns])

    def truth(self, prompts: Mapping[str, str]) -> pa.Table | None:
        """Random pairs labelled by quality, without texts; None where it is not known.

        Args:
            prompts: text of each prompt, by prompt_id; pairs are of these.
        """
        with open_engine("duckdb", self.folder, memory_limit=self.config.memory_limit) as engine:
            stories = read_stories(engine, self.config.stories)
            if "quality" not in stories.columns:
                return None
            kind = stories.schema()["quality"]
            if not kind.is_numeric():
                raise DataError(
                    f"{self.config.stories}: column quality holds {kind}, and it would be taken "
                    "for the truth about the stories: give numbers, or rename the column"
                )
            known = stories.select(
                "story_id", "prompt_id", "n_words", quality=stories.quality.cast("float64")
            )
            rows = [
                row
                for row in engine.rows(known.filter(known.quality.notnull()))
                if row["prompt_id"] in prompts and math.isfinite(row["quality"])
            ]
        of: dict[str, list[dict[str, Any]]] = {}
        for row in sorted(rows, key=lambda row: (row["prompt_id"], row["story_id"])):
            of.setdefault(row["prompt_id"], []).append(row)
        random = np.random.default_rng(self.config.seed)
        per_prompt = -(-self.config.truth_pairs // max(len(of), 1))
        found: list[dict[str, Any]] = []
        for prompt_id, members in of.items():
            firsts, seconds = np.triu_indices(len(members), 1)
            some = random.permutation(len(firsts))[:per_prompt]
            for first, second in zip(firsts[some], seconds[some], strict=True):
                low, high = sorted(
                    (members[first], members[second]), key=lambda row: row["quality"]
                )
                if low["quality"] == high["quality"]:
                    continue
                pair = {
                    "pair_id": pair_id(low["story_id"], high["story_id"]),
                    "prompt_id": prompt_id,
                    "prompt": prompts[prompt_id],
                    "label_source": "planted",
                    "split": self.config.test_split,
                }
                for side, row in (("chosen", high), ("rejected", low)):
                    pair |= {f"{side}_{name}": row[name] for name in ("story_id", "n_words")}
                found.append(pair)
        if not found:
            return None
        table = pa.Table.from_pylist(found, schema=PAIRS.arrow().empty_table().schema)
        order = draw_order(table, self.config.seed)
        return as_keys(table).take(pa.array(sorted(order[: self.config.truth_pairs])))


def take_texts(texts: pa.ChunkedArray, places: np.ndarray) -> pa.ChunkedArray:
    """`texts.take(places)`, which would bring all texts into memory first."""
    ends = np.cumsum([len(chunk) for chunk in texts.chunks])
    of_chunk = np.searchsorted(ends, places, side="right")
    taken, rows = [], []
    for number in np.unique(of_chunk):
        here = np.flatnonzero(of_chunk == number)
        chunk = texts.chunk(int(number))
        taken.append(chunk.take(pa.array(places[here] - (ends[number] - len(chunk)))))
        rows.append(here)
    back = np.argsort(np.concatenate(rows))
    return pa.chunked_array([pa.concat_arrays(taken).take(pa.array(back))])


def draw_test_pairs(pairs: pa.Table, most: int | None, seed: int) -> pa.Table:
    """At most so many pairs by a hash of the pair, in the order of the table.

    Not whole prompts: prompts are what intervals count, and so nearly all of them stay.
    """
    if most is None or pairs.num_rows <= most:
        return pairs
    keys = [digest("test", seed, pair_id) for pair_id in pairs["pair_id"].to_pylist()]
    return pairs.take(pa.array(sorted(sorted(range(len(keys)), key=keys.__getitem__)[:most])))


def check_apart(train: Mapping[str, pa.Table], test: Mapping[str, pa.Table]) -> None:
    """Check that no variant trains on a prompt that any is tested on."""
    trained_on = {name: set(prompt_keys(table)) for name, table in train.items()}
    for tested, table in test.items():
        keys = prompt_keys(table)
        for name, known in trained_on.items():
            shared = known.intersection(keys)
            if shared:
                prompts = dict(zip(keys, table["prompt"].to_pylist(), strict=True))
                raise DataError(
                    f"{len(shared)} test prompts of variant {tested} are trained on in variant "
                    f"{name}, such as {prompts[min(shared)]!r:.80}: split both by one rule (seed, "
                    "splits, test_from)"
                )


# The work -------------------------------------------------------------------------------------


def list_jobs(config: Config, entries: Sequence[Entry], totals: Mapping[str, int]) -> list[Job]:
    """All parts, those with the fewest pairs first, so that a fault shows early.

    Args:
        config: of the ablation.
        entries: its raters.
        totals: training pairs by variant.
    """
    least = min(totals, key=lambda name: totals[name])
    where = f"variant {least} has the fewest pairs"
    equal = [count_pairs(amount, totals[least], where) for amount in config.pairs_used]
    if len(set(equal)) < len(equal):
        raise ConfigError(
            f"pairs_used {config.pairs_used} names a number of pairs twice ({equal}): give amounts "
            "that differ"
        )
    jobs = []
    for entry in entries:
        name = entry.spec.name
        if entry.trainer is None:
            jobs.append(Job(entry, AblationArm(name, name)))
            continue
        for variant, total in totals.items():
            for used in sorted({*equal, total} if config.natural else set(equal)):
                label = f"{name} on {variant}@{used}"
                natural = config.natural and used == total
                arm = AblationArm(label, name, variant, used, used in equal, natural)
                jobs += [Job(entry, arm, seed) for seed in config.seeds]
    names: dict[str, AblationArm] = {}
    for job in jobs:
        if names.setdefault(job.arm.name, job.arm) != job.arm:
            raise ConfigError(f"two raters are {job.arm.name} in the verdicts: rename one of them")
    return sorted(jobs, key=lambda job: job.arm.pairs_used or 0)


def inputs_of(config: Config, variants: Sequence[Variant]) -> dict[str, Path]:
    """What variants are made of, by its key in the config."""
    ready = {f"variants.{one.name}.pairs": one.pairs for one in variants if one.pairs is not None}
    return {"stories": config.stories, **ready}


def with_columns(verdicts: pa.Table, job: Job) -> pa.Table:
    """The verdicts with `variant`, `pairs_used` and `seed`, and without the time they took."""
    rows = verdicts.num_rows
    place = verdicts.column_names.index("seconds")
    verdicts = verdicts.set_column(place, "seconds", pa.nulls(rows, pa.float64()))
    verdicts = verdicts.append_column(
        "variant", pa.array([job.arm.variant] * rows, pa.large_string())
    )
    for name, value in (("pairs_used", job.arm.pairs_used), ("seed", job.seed)):
        verdicts = verdicts.append_column(name, pa.array([value] * rows, pa.int64()))
    return verdicts


def main(config: Config) -> None:
    """Make the variants, train, judge, then write the figures and the page."""
    check(config)
    variants, entries = read_variants(config), read_entries(config)
    launched = Crew.of_launcher()
    crew = launched.within(Crew.of_part(config.part))
    leave_the_group(os.environ)
    check_stories_file(config.stories)
    inputs = inputs_of(config, variants)
    models = named_models(entry.spec for entry in entries)
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs=inputs,
        models=models,
        runtime_keys=("part", "memory_limit"),
    )
    page_path = (config.out / "ablation.html").resolve()
    if artifact.is_current():
        print((config.out / "ablation.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return
    parts = VerdictParts(config.out / "parts")
    done = [
        parts.scratch / f"done-{artifact.fingerprint[:32]}-{index}-{launched.count}"
        for index in range(launched.count)
    ]
    done[launched.index].unlink(missing_ok=True)

    data = Data(config, variants, artifact.digests)
    data.make(launched)
    names = [variant.name for variant in variants]
    train = {name: data.pairs(name, config.train_split) for name in names}
    tests = {name: data.pairs(name, config.test_split) for name in names}
    check_apart(train, tests)
    prompts = {
        prompt_id: prompt
        for table in tests.values()
        for prompt_id, prompt in zip(
            table["prompt_id"].to_pylist(), table["prompt"].to_pylist(), strict=True
        )
    }
    tests = {
        name: draw_test_pairs(table, config.most_test_pairs, config.seed)
        for name, table in tests.items()
    }
    truth = data.truth(prompts)
    if truth is not None:
        tests[TRUTH] = truth
    test_keys, test_sets = join_test_sets(tests)
    test = data.with_texts(test_keys)
    totals = {name: table.num_rows for name, table in train.items()}
    jobs = list_jobs(config, entries, totals)
    ordered = functools.cache(lambda variant, seed: draw_order(train[variant], seed))
    judging_code = code_digest(__file__, *JUDGING_CODE)
    of_variant = {name: path.stem for name, path in data.paths.items()}
    judged = fingerprint(
        *(test_keys[name].to_pylist() for name in ("pair_id", "chosen_story_id", "prompt"))
    )

    def work(job: Job, folder: Path) -> tuple[pa.Table, dict[str, Any]]:
        spec, trainer, variant = job.entry.spec, job.entry.trainer, job.arm.variant
        if trainer is None or job.seed is None or variant is None:
            rater = ready_rater(spec, config.out)
            check_training_prompts(rater, test, "refuse")
            return with_columns(judge_pairs(rater, test), job), {"notes": rater.notes()}
        keys = train[variant]
        if not job.arm.natural:
            rows = ordered(variant, job.seed)[: job.arm.pairs_used]
            # In the order of the file: the trainer shuffles by its own seed.
            keys = keys.take(pa.array(sorted(rows)))
        drawn = data.with_texts(keys)
        with trained(trainer, spec, drawn, test, folder, job.seed, job.arm.name) as rater:
            verdicts = judge_pairs(rater, test, fold=f"{job.seed}/0")
            record = {
                "notes": rater.notes(),
                "seed": job.seed,
                "pairs_used": drawn.num_rows,
                "prompts_used": len(set(prompt_keys(drawn))),
            }
            return with_columns(verdicts, job), record

    def part(job: Job) -> tuple[pa.Table, dict[str, Any]]:
        variant = job.arm.variant
        depends_on = [
            job.entry.spec, None if variant is None else of_variant[variant], job.arm.pairs_used,
            job.seed, config.train_split, artifact.digests["stories"], judged, judging_code,
            [artifact.digests[key] for key in named_models([job.entry.spec])],
        ]  # fmt: skip
        return parts.get_or_train(job.label, depends_on, functools.partial(work, job))

    mine = crew.share(jobs)
    # Pairs are trained on and judged, so that the time left is not that of the small amounts.
    steps = [(job.arm.pairs_used or 0) + test.num_rows for job in mine]
    with tqdm(
        total=sum(steps), desc="ablation", unit=" pairs", unit_scale=True, leave=False, disable=None
    ) as bar:
        for job, step in zip(mine, steps, strict=True):
            bar.set_postfix_str(job.label)
            part(job)
            bar.update(step)
    if config.part is not None:
        print(f"part {config.part}: {len(mine)} of {len(jobs)} trainings are in {parts.folder}")
        return
    write_atomically(done[launched.index], lambda path: path.write_text("done\n", encoding="utf-8"))
    if not launched.leads:
        return
    launched.wait(lambda: all(path.is_file() for path in done), "the trainings of other processes")

    credits: dict[str, list[np.ndarray]] = {}
    records: dict[str, list[dict[str, Any]]] = {}
    kinds: dict[str, str] = {}

    def gathered() -> Iterator[pa.RecordBatch]:
        for job in jobs:
            table, record = part(job)
            scores = pair_scores(table, test)[0]
            credits.setdefault(job.arm.name, []).append(scores.credit)
            kinds[job.arm.name] = scores.kind
            records.setdefault(job.arm.name, []).append(record)
            yield from table.to_batches()

    batches = gathered()
    first = next(batches)
    rows = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
    artifact.write("verdicts.parquet", lambda path: write_sorted_batches(rows, VERDICTS, path))
    artifact.write("test_pairs.parquet", lambda path: write_table(test, path))
    arms = list(dict.fromkeys(job.arm for job in jobs))
    # By variant in the order of the config, then by size.
    arms.sort(key=lambda arm: (arm.variant is None, names.index(arm.variant or names[0])))
    study = ablation_study(arms, credits, kinds, test, test_sets, config.reference)
    artifact.write("ablation.json", lambda path: write_json(ablation_json(study), path))
    artifact.write("ablation.csv", lambda path: write_ablation_csv(study, path))
    text = ablation_text(study) + "\n"
    artifact.write("ablation.txt", lambda path: path.write_text(text, encoding="utf-8"))
    made = {name: data.counts(name) for name in names}
    artifact.counts = {
        "training_pairs": totals,
        "test_pairs": {name: table.num_rows for name, table in tests.items()},
        "test_pairs_distinct": test.num_rows,
        "variants": made,
        "raters": records,
    }
    panels = draw_curves(study)
    write_panels(artifact, "ablation", panels)
    page = render_ablation(
        title=config.title,
        study=study,
        panels=panels,
        label_sources=sorted(set(test["label_source"].to_pylist())),
        variants=config.variants,
        training_pairs=totals,
        funnels={name: counts["funnel"] for name, counts in made.items()},
        manifests={"ablation": artifact.made_of()},
    )
    artifact.write("ablation.html", lambda path: path.write_text(page, encoding="utf-8"))
    artifact.finish()
    parts.discard_others()
    shutil.rmtree(data.folder, ignore_errors=True)
    print(f"{text}page: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
