"""Ablations: raters trained on several data variants and numbers of pairs, judged on shared tests.

A trained rater has the name of its rater, variant and number of pairs, such as `features on
full@1000`, and its verdicts have a fold for each seed. Every test set has a leaderboard of all
raters. Test sets share pairs, and each distinct pair is judged once.
"""

import itertools
import json
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from litbench.config import Input, as_plain, build
from litbench.curation.engine import open_engine
from litbench.curation.pair_making import CuratedPairs, read_stories
from litbench.curation.rules import PairRules
from litbench.entries import RaterSpec, files_of, parse_raters
from litbench.errors import ConfigError, DataError
from litbench.evaluation.loop import Job, evaluate
from litbench.metrics.leaderboard import LeaderboardRow, leaderboard, leaderboard_csv, plain
from litbench.records import PAIRS, prompt_keys
from litbench.report import figures
from litbench.report.csv_table import write_csv
from litbench.report.document import (
    Cell,
    Figure,
    Page,
    Section,
    Table,
    few_prompts,
    funnel_table,
    label_text,
    percent,
    short_name,
    table_of,
    write_page,
    written_now,
)
from litbench.report.leaderboard import agreement_columns, leaderboard_text
from litbench.show import clean_name
from litbench.sources.pairs import as_pairs, read_any_pairs
from litbench.store import Artifact, Cache, fingerprint, write_json
from litbench.tables import write_table
from litbench.text import digest


@dataclass(kw_only=True)
class Ablation(PairRules):
    """Variants, raters and numbers of pairs; inherits the rules that all variants share.

    Attributes:
        out: output folder.
        variants: name -> rules that differ, or {pairs: FILE}.
        reference: the variant that the others are compared with; null for the first.
        stories: the stories table of make_stories.py; null if every variant is a pairs file.
        test_pairs: name -> pairs file; additional test sets, used in full.
        raters: named entries, see litbench.entries; a trainable rater takes its training options
            here.
        test_split: judge pairs of this split; null to judge only `test_pairs`.
        pairs_used: numbers of training pairs, equal for all variants, or shares of the smallest
            variant.
        natural: also train on all pairs of each variant.
        seeds: seeds of the subsamples of pairs and of the trainings.
        most_test_pairs: maximum size of the test sets, drawn by `seed`; null for all pairs.
        title: heading of the page.
    """

    out: Path
    variants: dict[str, dict[str, Any]]
    reference: str | None = None
    stories: Annotated[Path | None, Input] = None
    test_pairs: dict[str, Path] = field(default_factory=dict)
    raters: dict[str, Any] = field(default_factory=dict)
    splits: dict[str, float] = field(default_factory=lambda: {"train": 0.8, "test": 0.2})
    test_split: str | None = "test"
    pairs_used: list[int | float] = field(default_factory=lambda: [0.1, 0.3, 1.0])
    natural: bool = True
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    most_test_pairs: int | None = 4_000
    title: str = "LitBench ablation"


class Training(NamedTuple):
    """A rater to train on a number of pairs of a variant, once for each seed."""

    spec: RaterSpec
    variant: str
    pairs_used: int

    @property
    def name(self) -> str:
        """Its name in verdicts and leaderboards."""
        return f"{self.spec.name} on {self.variant}@{self.pairs_used}"


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
    if both := set(config.variants) & set(config.test_pairs):
        raise ConfigError(f"{sorted(both)} name a variant and a file of test_pairs: rename one")
    return reference


def _read_variant(config: Ablation, name: str) -> PairRules | Path:
    """Return the checked rules or the pairs file of a variant."""
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
    if not any(spec.is_trained for spec in specs):
        raise ConfigError("raters: none can be trained: add one, such as f: {kind: features}")
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
    names = [column.name for column in PAIRS.columns if column.name not in ("chosen", "rejected")]
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
    for (test_set, pairs), (name, known) in itertools.product(test.items(), trained_on.items()):
        if shared := known.intersection(prompt_keys(pairs)):
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
            known = labels_of.setdefault(pair, tuple(labels))
            if set(known) != set(labels):
                raise DataError(
                    f"pair_id {pair} names different stories in the test pairs of "
                    f"{', '.join(sets)}: give each file the ids of litbench.records.pair_id"
                )
            ids.append(pair if known == tuple(labels) else f"{pair}, other label")
        place = pairs.column_names.index("pair_id")
        renamed[name] = pairs.set_column(place, "pair_id", pa.array(ids, pairs["pair_id"].type))
    merged = pa.concat_tables(renamed.values())
    first = np.unique(np.array(merged["pair_id"].to_pylist()), return_index=True)[1]
    return merged.take(pa.array(np.sort(first))), renamed


def run_ablation(config: Ablation, program: str) -> None:
    """Make the variants, train and judge, and write the results."""
    reference, specs = _check(config), _read_raters(config)
    variants = {name: _read_variant(config, name) for name in config.variants}
    sources = variants | config.test_pairs
    artifact = Artifact(
        config.out,
        program=program,
        config=config,
        inputs={f"pairs of {k}": path for k, path in sources.items() if isinstance(path, Path)},
        models=files_of(specs),
    )
    if artifact.is_current():
        artifact.show("ablation.txt", "ablation.html")
        return

    data = Cache(config.out / "data")
    folders: dict[str, Path] = {}
    for name, what in sources.items():
        digest_of = artifact.digests[f"pairs of {name}" if isinstance(what, Path) else "stories"]
        try:
            folders[name] = make_pairs(config, what, digest_of, data)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
    paths = {name: folder / "pairs.parquet" for name, folder in folders.items()}
    train = {name: _read_keys(paths[name], "train", name) for name in variants}
    tests = {name: _read_keys(paths[name], None, name) for name in config.test_pairs}
    if config.test_split is not None:
        tests = {n: _read_keys(paths[n], config.test_split, n) for n in variants} | tests
    _check_apart(train, tests)
    most, seed = config.most_test_pairs, config.seed
    tests = {
        name: _with_texts(paths[name], first_by_hash(one, most, "test", seed, by_prompt=False))
        for name, one in tests.items()
    }
    test, tests = join_test_sets(tests)
    texts = [test[name].to_pylist() for name in ("pair_id", "prompt", "chosen", "rejected")]
    judged = fingerprint(*texts)

    totals = {name: keys.num_rows for name, keys in train.items()}
    equal = {_count_pairs(amount, min(totals.values())) for amount in config.pairs_used}
    trainings = [
        Training(spec, variant, used)
        for (variant, total), spec in itertools.product(totals.items(), specs)
        if spec.is_trained
        for used in sorted(equal | {total} if config.natural else equal)
    ]

    def training_pairs(one: Training, seed: int) -> pa.Table:
        keys = train[one.variant]
        drawn = first_by_hash(keys, one.pairs_used, "scaling", seed, by_prompt=True)
        return _with_texts(paths[one.variant], drawn)

    jobs = [
        Job(spec, spec.name, lambda: test, judged, work=test.num_rows)
        for spec in specs
        if not spec.is_trained
    ]
    jobs += [
        Job(
            one.spec,
            f"{one.name}-seed{seed}",
            lambda: test,
            [judged, folders[one.variant].name, one.pairs_used],
            train=partial(training_pairs, one, seed),
            seed=seed,
            fold=f"{seed}/0",
            name=one.name,
            work=one.pairs_used + test.num_rows,
        )
        for one in trainings
        for seed in config.seeds
    ]
    parts = Cache(config.out / "parts")
    records: dict[str, list[dict[str, Any]]] = defaultdict(list)
    verdicts = []
    # Small trainings first, so that errors appear early.
    for job, table, record in evaluate(sorted(jobs, key=lambda job: job.work), parts):
        records[job.name or job.spec.name].append(record)
        index = table.column_names.index("seconds")
        seconds = pa.nulls(table.num_rows, pa.float64())
        verdicts.append(table.set_column(index, "seconds", seconds))
    table = pa.concat_tables(verdicts)
    # The first trained rater, on as many pairs of the reference as every variant has.
    first = next(
        one for one in trainings if one.variant == reference and one.pairs_used == max(equal)
    )
    boards = {name: leaderboard(table, pairs, first.name) for name, pairs in tests.items()}
    texts = [
        f"test pairs of {clean_name(name)}\n\n{leaderboard_text(rows)}\n"
        for name, rows in boards.items()
    ]
    artifact.counts = {
        "training_pairs": totals,
        "test_pairs": {name: pairs.num_rows for name, pairs in tests.items()},
        "test_pairs_distinct": test.num_rows,
        "funnels": {
            name: json.loads((folders[name] / "funnel.json").read_bytes()) for name in variants
        },
        "raters": records,
    }
    artifact.write("verdicts.parquet", partial(write_table, table))
    artifact.write("test_pairs.parquet", partial(write_table, test))
    artifact.write("ablation.json", partial(write_json, plain(boards)))
    rows = [{"test": name, **row} for name, of in boards.items() for row in leaderboard_csv(of)]
    artifact.write("ablation.csv", partial(write_csv, rows))
    artifact.write_text("ablation.txt", "\n".join(texts))
    _write_page(artifact, config, boards, trainings, first, set(test["label_source"].to_pylist()))
    artifact.finish()
    parts.discard_unused()
    shutil.rmtree(data.folder, ignore_errors=True)
    artifact.show("ablation.txt", "ablation.html")


# The page -------------------------------------------------------------------------------------

Boards = Mapping[str, Sequence[LeaderboardRow]]


def _learning_curves(
    boards: Boards, trainings: Sequence[Training], reference: str
) -> Iterator[tuple[str, Figure]]:
    """Agreement by number of pairs (paper, Figure 6), by file name.

    With several variants, there is a plot for each rater and test set, whose lines are the
    variants; with one variant, the lines of a plot are the raters.
    """
    several = len({one.variant for one in trainings}) > 1
    groups: dict[str, dict[str, list[Training]]] = {}
    for one in trainings:
        group, line = (one.spec.name, one.variant) if several else ("pairs", one.spec.name)
        groups.setdefault(group, {}).setdefault(line, []).append(one)
    trained = {one.name for one in trainings}
    for (number, group), (place, (test, rows)) in itertools.product(
        enumerate(groups, 1), enumerate(boards.items(), 1)
    ):
        row_of, drawn = {row.rater: row for row in rows}, []
        for name, of in groups[group].items():
            found = [(float(one.pairs_used), row_of[one.name]) for one in of]
            points = [(used, row.agreement, row.repeats) for used, row in found]
            # More than three bands would overlap too much.
            banded = len(groups[group]) <= 3 or name == reference
            drawn.append(figures.Line(short_name(name), points, "band" if banded else "none"))
        others = [
            (short_name(row.rater), row.agreement.mean) for row in rows if row.rater not in trained
        ]
        picture = figures.curves(drawn, "pairs", tick=figures.short_count, references=others)
        caption = (
            "Line: mean over seeds. Dots: seeds. Band: 95 % interval, by test prompt; with more "
            f"than three lines only for {short_name(reference)}. Horizontal lines: raters that "
            "were not trained here. Dotted: chance."
        )
        title = f"{short_name(group)}, test pairs of {short_name(test)}"
        yield f"ablation_{number}_{place}", Figure(title, caption, picture)


def _write_page(
    artifact: Artifact,
    config: Ablation,
    boards: Boards,
    trainings: Sequence[Training],
    first: Training,
    label_sources: Collection[str],
) -> None:
    """Write ablation.html and its plots, with the counts of the artifact."""
    panels = dict(_learning_curves(boards, trainings, first.variant))
    variants = []
    for name, total in artifact.counts["training_pairs"].items():
        differs = ", ".join(f"{key}: {value}" for key, value in config.variants[name].items())
        about = Cell(differs or "the shared rules", is_text=True)
        tested = boards[name][0].agreement if name in boards else None
        judged = [tested.n, tested.clusters] if tested else ["–", "–"]
        variants.append([name, about, total, *judged])
    test = first.variant if first.variant in boards else next(iter(boards))
    found = next(row for row in boards[test] if row.rater == first.name)
    sections = [
        Section(
            "Learning curves",
            "For each seed, the training pairs of a variant are sorted by a hash of their prompt, "
            "and the first ones are used. The seed is also that of the training.",
            figures=list(panels.values()),
            warnings=few_prompts(found.agreement),
        ),
        Section(
            "Leaderboards",
            "Names: rater, training variant and number of training pairs. Agreement with the "
            "labels (correct 1, tie ½, not judged ½), averaged over seeds, with 95 % intervals "
            "clustered by prompt. Intervals and tests cover the sampling of prompts and take the "
            "trained models as fixed; differences are paired, with Holm's correction within each "
            "table. A test set that was filtered like the training set favours it, so compare "
            "within a table.",
            parts=[
                Section(f"Test pairs of {name}", table=_table(rows, first.name), name=f"test-{k}")
                for k, (name, rows) in enumerate(boards.items())
            ],
        ),
        Section(
            "The variants",
            table=Table(
                ["variant", "differs in", "training pairs", "test pairs judged", "of prompts"],
                variants,
            ),
            parts=[
                Section(f"{name}: from stories to pairs", table=funnel_table(steps), fold=False)
                for name, steps in artifact.counts["funnels"].items()
                if steps
            ],
        ),
    ]
    compared = [row.comparison for row in boards[test] if row.comparison]
    lead = (
        f"Trained on {first.pairs_used:,} pairs of {first.variant}, {first.spec.name} agrees with "
        f"the labels on {percent(found.agreement.mean)} of the test pairs of {test} and prefers "
        f"the longer story in {percent(_prefers_longer(found))}. "
        f"{sum(one.is_clear for one in compared)} of {len(compared)} others differ from it "
        "significantly."
    )
    facts = (
        f"Number of data variants: {len(variants)}; no variant trains on a test prompt. "
        f"{label_text(sorted(label_sources))}. {written_now()}"
    )
    page = Page(config.title, lead, facts, sections, sorted(label_sources))
    write_page(artifact, "ablation", page, panels)


def _table(rows: Sequence[LeaderboardRow], reference: str) -> Table:
    def seeds(row: LeaderboardRow) -> str:
        return f"{min(row.repeats):.3f}–{max(row.repeats):.3f}" if row.repeats else "–"

    columns = agreement_columns(reference)
    columns["single seeds"] = seeds
    columns["prefers\nthe longer"] = lambda row: percent(_prefers_longer(row))
    return table_of(rows, columns)


def _prefers_longer(row: LeaderboardRow) -> float:
    """How often the rater prefers the longer story, over pairs of different length."""
    longer, shorter = row.chosen_longer, row.chosen_shorter
    parts = [(one.n, share) for one, share in ((longer, longer.mean), (shorter, 1 - shorter.mean))]
    known = [(n, share) for n, share in parts if n]
    return sum(n * share for n, share in known) / max(sum(n for n, _ in known), 1)
