"""Leakage: what splits share that they should not, with an id on either side.

A rater that saw a prompt, an author's other stories, a story or a near-copy of it in training may
do well on the test pairs that hold them without knowing anything about writing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, get_args

import ibis
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from litbench.curation.filters import duplicate_key
from litbench.curation.near_duplicates import NearDuplicateIndex
from litbench.errors import ConfigError, DataError
from litbench.records import prompt_keys

Kind = Literal["prompts", "authors", "stories", "near_duplicates"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_ONE = {
    "prompts": "a prompt",
    "authors": "an author",
    "stories": "a story",
    "near_duplicates": "a near-duplicate story",
}
_SCHEMA = pa.schema(
    [
        ("kind", pa.large_string()),
        ("split_a", pa.large_string()),
        ("id_a", pa.large_string()),
        ("split_b", pa.large_string()),
        ("id_b", pa.large_string()),
        ("similarity", pa.float64()),
        ("shared", pa.large_string()),
        ("pair_a", pa.large_string()),
        ("pair_b", pa.large_string()),
        ("pairs_a", pa.int64()),
        ("pairs_b", pa.int64()),
    ]
)
_NAMED = 3


@dataclass(frozen=True)
class LeakageReport:
    """What splits share.

    Attributes:
        found: one row for each shared thing: `kind` (one of KINDS); `id_a` in `split_a` and `id_b`
            in `split_b`, which are prompt_ids of a prompt and story_ids otherwise, the smallest
            where several hold it; `similarity` of near-duplicates, estimated; `shared`, the prompt
            key, the author, or whether a story's "id" or "text" is the same; `pair_a` and `pair_b`,
            the smallest pair_id that holds it; `pairs_a` and `pairs_b`, how many do.
        counts: `splits`: per split its pairs, prompts, stories, known authors and so on; `shared`:
            per kind and two splits the number of shared things and of the pairs that hold them.
    """

    found: pa.Table
    counts: dict[str, Any]

    def check(self, must_be_clean: Sequence[str]) -> None:
        """Fail where splits share what they must not.

        Args:
            must_be_clean: kinds, of KINDS.

        Raises:
            DataError: a kind is shared; the message has the kind, both ids, the splits and what to
                do. Also when authors must not be shared and no story of a split has a known one.
            ConfigError: an unknown kind, or near-duplicates were not looked for.
        """
        looked_for = {row["kind"] for row in self.counts["shared"]}
        problems = []
        for kind in must_be_clean:
            if kind not in looked_for:
                raise ConfigError(
                    f"must_be_clean names '{kind}', which was not looked for; this report has "
                    f"{', '.join(sorted(looked_for))}: switch it on or take it out of the list"
                )
            for name, split in self.counts["splits"].items():
                if kind == "authors" and split["authors"] == 0:
                    problems.append(
                        f"no story of {name} has a known author, so shared authors cannot be found"
                    )
            problems.extend(self._problems(kind))
        if problems:
            raise DataError(
                f"{'; '.join(problems)}. Remove the pairs of one side (leakage.parquet names all), "
                f"or take the kind out of must_be_clean"
            )

    def _problems(self, kind: str) -> Iterator[str]:
        rows = self.found.filter(pc.equal(self.found["kind"], kind))
        for row in self.counts["shared"]:
            if row["kind"] != kind or not row["shared"]:
                continue
            two = pc.and_(
                pc.equal(rows["split_a"], row["split_a"]), pc.equal(rows["split_b"], row["split_b"])
            )
            named = [_in_words(found) for found in rows.filter(two).slice(0, _NAMED).to_pylist()]
            more = "" if row["shared"] <= _NAMED else f"; {row['shared'] - _NAMED:,} more"
            yield (
                f"{row['split_a']} and {row['split_b']} share {_ONE[kind]}: "
                f"{'; '.join(named)}{more}"
            )

    def __str__(self) -> str:
        """A table for the terminal."""
        lines = [
            f"  {name}: {split['pairs']:,} pairs, {split['prompts']:,} prompts, "
            f"{split['stories']:,} stories, {split['authors']:,} known authors"
            for name, split in self.counts["splits"].items()
        ]
        lines += [
            f"  {row['split_a']} and {row['split_b']} share {row['shared']:,} "
            f"{row['kind'].replace('_', '-')}, in {row['pairs_a']:,} and {row['pairs_b']:,} pairs"
            for row in self.counts["shared"]
        ]
        return "\n".join(lines)


def _in_words(row: Mapping[str, Any]) -> str:
    """One shared thing for a message, with both ids."""
    alike = "" if row["similarity"] is None else f", similarity {row['similarity']:.2f}"
    return (
        f"{row['id_a']:.80} ({row['split_a']}, pair {row['pair_a']:.40}) and "
        f"{row['id_b']:.80} ({row['split_b']}, pair {row['pair_b']:.40}){alike}"
    )


def by_split(pairs: pa.Table) -> dict[str, pa.Table]:
    """A pairs table divided by its column `split`: train first, the others by name."""
    names = sorted(pc.unique(pairs["split"]).to_pylist(), key=lambda name: (name != "train", name))
    return {name: pairs.filter(pc.equal(pairs["split"], name)) for name in names}


def leakage_report(
    pairs: Mapping[str, pa.Table],
    *,
    near_duplicates: bool = True,
    threshold: float = 0.8,
    num_perm: int = 128,
    shingle: int = 5,
    seed: int = 0,
    folder: Path | None = None,
) -> LeakageReport:
    """Compare splits two by two.

    Prompts are the same by `litbench.text.prompt_key`, authors by their hash (an unknown one is
    nobody's), stories by story_id or by text without case and spacing (the key of
    `drop_duplicates`). Of near-duplicates, copies included, every story of either split that has
    one in the other is named with its closest.

    Args:
        pairs: tables by the schema PAIRS, by the name of their split, the training split first;
            their own column `split` is not looked at.
        near_duplicates: look for them, which takes by far the longest.
        threshold: see `litbench.curation.near_duplicates`; so the four after it.
        num_perm: hashes per story.
        shingle: words to a run.
        seed: seed of the hashes.
        folder: where the temporary files lie.

    Raises:
        DataError: fewer than two splits, or an empty one.
        MissingExtraError: near-duplicates are looked for and rensa is not installed.
    """
    if len(pairs) < 2:
        raise DataError(
            f"the only split is {', '.join(pairs) or 'none'}: leakage is between two, so give two "
            "files, or pairs whose column split has two values"
        )
    for name, table in pairs.items():
        if table.num_rows == 0:
            raise DataError(f"split {name} holds no pairs: make it again")
    names = list(pairs)
    con = ibis.duckdb.connect()
    try:
        holders, stories = _load(con, pairs)
        found = _shared(con, holders)
        within = dict.fromkeys(names, 0)
        if near_duplicates:
            total = con.to_pyarrow(stories.count()).as_py()
            with (
                NearDuplicateIndex(
                    threshold=threshold,
                    num_perm=num_perm,
                    shingle=shingle,
                    seed=seed,
                    folder=folder,
                ) as index,
                tqdm(
                    total=total, desc="near-duplicates", unit=" stories", leave=False, disable=None
                ) as bar,
            ):
                for place, name in enumerate(names):
                    one = stories.filter(stories.place == place).select("story_id", "text")
                    for batch in con.con.sql(con.compile(one)).to_arrow_reader(10_000):
                        index.add(batch["story_id"], batch["text"], name)
                        bar.update(batch.num_rows)
                for name in names:
                    groups = index.groups(name)
                    within[name] = len(groups) - pc.count_distinct(groups["group"]).as_py()
                alike = [
                    _alike(index.between(names[a], names[b]), a, b)
                    for a, b in combinations(range(len(names)), 2)
                ]
            near = con.create_table("near", ibis.memtable(pa.concat_tables(alike)), temp=True)
            found = con.create_table(
                "all_found", found.union(_with_pairs(near, holders)), temp=True
            )
        kinds = KINDS if near_duplicates else KINDS[:-1]
        counts = {
            "splits": _count_splits(con, holders, pairs, within if near_duplicates else None),
            "shared": _count_shared(con, found, holders, kinds, names),
        }
        ordered = found.mutate(rank=_rank(found)).order_by(
            ["rank", "place_a", "place_b", ibis.desc("similarity"), "id_a", "id_b"]
        )
        rows = con.to_pyarrow(ordered)
    finally:
        con.disconnect()
    for side in ("a", "b"):
        split = pa.array(names, pa.large_string()).take(rows[f"place_{side}"])
        rows = rows.append_column(f"split_{side}", split)
    return LeakageReport(rows.select(_SCHEMA.names).cast(_SCHEMA).combine_chunks(), counts)


def _load(con: Any, pairs: Mapping[str, pa.Table]) -> tuple[Any, Any]:
    """What every pair holds, and each split's distinct stories, as tables of a database.

    Returns:
        `holders`: `kind`, `key` (the same for the same thing), `id`, `shared`, `pair_id` and
        `place`, the number of the split; `stories`: `place`, `story_id`, `text`.
    """
    sides, prompts = [], []
    for place, table in enumerate(pairs.values()):
        keyed = table.append_column("key", pa.array(prompt_keys(table), pa.large_string()))
        # Files say of some columns that they hold no null, and a union wants them all alike.
        nullable = pa.schema([field.with_nullable(True) for field in keyed.schema])
        one = ibis.memtable(keyed.cast(nullable)).mutate(place=ibis.literal(place, "int64"))
        prompts.append(
            one.select(
                "place", "pair_id", kind=ibis.literal("prompts"), key="key", id="prompt_id",
                shared="key",
            )
        )  # fmt: skip
        sides += [
            one.select(
                "place", "pair_id", story_id=f"{side}_story_id", text=side, author=f"{side}_author"
            )
            for side in ("chosen", "rejected")
        ]
    told = con.create_table("sides", ibis.union(*sides), temp=True)
    # A story that was read twice may have two texts; the one in its first pair stands for it.
    stories = told.group_by("place", "story_id").agg(text=told.text.argmin(told.pair_id))
    stories = con.create_table("stories", stories, temp=True)
    texts = stories.select("place", "story_id", copy=duplicate_key(stories))
    known = told.filter(told.author.notnull())
    held = told.join(texts, ["place", "story_id"])
    holders = ibis.union(
        *prompts,
        known.select(
            "place", "pair_id", kind=ibis.literal("authors"), key="author", id="story_id",
            shared="author",
        ),
        told.select(
            "place", "pair_id", kind=ibis.literal("stories"),
            key=_by_id(told.story_id), id="story_id",
            shared=ibis.literal("id"),
        ),
        held.select(
            "place", "pair_id", kind=ibis.literal("stories"),
            key=ibis.literal("text ").concat(held.copy), id="story_id",
            shared=ibis.literal("text"),
        ),
    )  # fmt: skip
    return con.create_table("holders", holders, temp=True), stories


def _shared(con: Any, holders: Any) -> Any:
    """Prompts, authors and stories that two splits hold."""
    things = holders.group_by("kind", "key", "shared", "place").agg(
        id=holders.id.min(), pair=holders.pair_id.min(), pairs=holders.pair_id.nunique()
    )
    things = con.create_table("things", things, temp=True)
    one = things.rename(place_a="place", id_a="id", pair_a="pair", pairs_a="pairs")
    two = things.select(
        kind_b="kind", same="key", place_b="place", id_b="id", pair_b="pair", pairs_b="pairs"
    )
    both = one.join(two, [one.kind == two.kind_b, one.key == two.same, one.place_a < two.place_b])
    both = both.mutate(similarity=ibis.null("float64"), key_a="key", key_b="key")
    # A story in both splits shares its id and its text, and is one thing. Its text is what more
    # pairs may hold.
    ids = ["kind", "place_a", "id_a", "place_b", "id_b"]
    window = ibis.window(group_by=ids, order_by=[ibis.desc("shared"), "key"])
    both = both.mutate(nth=ibis.row_number().over(window))
    both = both.filter((both.kind != "stories") | (both.nth == 0))
    return con.create_table("shared", both.select(_COLUMNS), temp=True)


_COLUMNS = (
    "kind", "place_a", "id_a", "place_b", "id_b", "similarity", "shared", "pair_a", "pair_b",
    "pairs_a", "pairs_b", "key_a", "key_b",
)  # fmt: skip


def _alike(table: pa.Table, place_a: int, place_b: int) -> pa.Table:
    rows = table.num_rows
    return table.append_column("place_a", pa.array([place_a] * rows, pa.int64())).append_column(
        "place_b", pa.array([place_b] * rows, pa.int64())
    )


def _with_pairs(near: Any, holders: Any) -> Any:
    """Near-duplicates by the columns of `_shared`."""
    by_id = holders.filter((holders.kind == "stories") & (holders.shared == "id"))
    by_id = by_id.group_by("place", "id").agg(
        pair=by_id.pair_id.min(), pairs=by_id.pair_id.nunique()
    )
    one = by_id.rename(place_a="place", story_a="id", pair_a="pair", pairs_a="pairs")
    two = by_id.rename(place_b="place", story_b="id", pair_b="pair", pairs_b="pairs")
    joined = near.join(one, ["place_a", "story_a"]).join(two, ["place_b", "story_b"])
    return joined.mutate(
        kind=ibis.literal("near_duplicates"),
        id_a=joined.story_a,
        id_b=joined.story_b,
        shared=ibis.null("string"),
        key_a=_by_id(joined.story_a),
        key_b=_by_id(joined.story_b),
    ).select(_COLUMNS)


def _rank(found: Any) -> Any:
    return ibis.cases(*((found.kind == kind, rank) for rank, kind in enumerate(KINDS)), else_=9)


def _by_id(story_id: Any) -> Any:
    return ibis.literal("id ").concat(story_id)


def _count_splits(
    con: Any, holders: Any, pairs: Mapping[str, pa.Table], within: Mapping[str, int] | None
) -> dict[str, dict[str, int]]:
    """Per split: pairs, prompts, stories, known authors, and repeats within it."""
    authors, stories = holders.kind == "authors", holders.kind == "stories"
    counted = holders.group_by("place").agg(
        pairs=holders.pair_id.nunique(),
        prompts=holders.key.nunique(where=holders.kind == "prompts"),
        stories=holders.id.nunique(where=stories),
        authors=holders.key.nunique(where=authors),
        stories_by_unknown=holders.id.nunique(where=stories) - holders.id.nunique(where=authors),
    )
    rows = con.to_pyarrow(counted.order_by("place")).to_pylist()
    by_name = {name: rows[place] for place, name in enumerate(pairs)}
    for name, row in by_name.items():
        del row["place"]
        if within is not None:
            row["near_duplicates_within"] = within[name]
    return by_name


def _count_shared(
    con: Any, found: Any, holders: Any, kinds: Sequence[str], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Per kind and two splits: what they share, and the pairs on either side that hold it."""
    by = ["kind", "place_a", "place_b"]
    counts: dict[tuple[str, int, int], dict[str, int]] = {}
    tables = [found.group_by(by).agg(shared=found.count())]
    held = holders.select("pair_id", held_kind="kind", held_key="key", held_place="place")
    for side in ("a", "b"):
        held_kind = ibis.ifelse(found.kind == "near_duplicates", "stories", found.kind)
        sided = found.select(*by, held_kind=held_kind, held_key=f"key_{side}",
                             held_place=f"place_{side}")  # fmt: skip
        touched = sided.join(held, ["held_kind", "held_key", "held_place"])
        tables.append(touched.group_by(by).agg(**{f"pairs_{side}": touched.pair_id.nunique()}))
    for table in tables:
        for row in con.to_pyarrow(table).to_pylist():
            kind, place_a, place_b = (row.pop(name) for name in by)
            counts.setdefault((kind, place_a, place_b), {}).update(row)
    nothing = {"shared": 0, "pairs_a": 0, "pairs_b": 0}
    return [
        {
            "kind": kind,
            "split_a": names[a],
            "split_b": names[b],
            **counts.get((kind, a, b), nothing),
        }
        for kind in kinds
        for a, b in combinations(range(len(names)), 2)
    ]
