"""Leakage: what splits share that they should not, with an id on either side.

A rater that saw a prompt, an author's other stories, a story or a near-copy of it in training may
do well on the test pairs that hold them without knowing anything about writing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
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

_WITH_ARTICLE = {
    "prompts": "a prompt",
    "authors": "an author",
    "stories": "a story",
    "near_duplicates": "a near-duplicate story",
}
# So many of what is shared are named in a message.
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
                f"{row['split_a']} and {row['split_b']} share {_WITH_ARTICLE[kind]}: "
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


# What every pair holds; `key` is the same for the same thing.
_HOLDERS = """
CREATE TEMP TABLE holders AS
SELECT place, pair_id, 'prompts' AS kind, prompt_key AS key, prompt_id AS id, prompt_key AS shared
FROM pairs
UNION ALL
SELECT place, pair_id, 'authors', author, story_id, author FROM sides WHERE author IS NOT NULL
UNION ALL
SELECT place, pair_id, 'stories', 'id ' || story_id, story_id, 'id' FROM sides
UNION ALL
SELECT place, pair_id, 'stories', 'text ' || duplicate_key, story_id, 'text'
FROM sides JOIN stories USING (place, story_id)
"""
# A story in both splits shares its id and its text, and is one thing: its text, which more pairs
# may hold.
_SHARED = """
CREATE TEMP TABLE found AS
WITH things AS (
    SELECT kind, key, shared, place, min(id) AS id, min(pair_id) AS pair,
        count(DISTINCT pair_id) AS pairs
    FROM holders GROUP BY ALL
)
SELECT a.kind, a.place AS place_a, a.id AS id_a, b.place AS place_b, b.id AS id_b,
    NULL::DOUBLE AS similarity, a.shared, a.pair AS pair_a, b.pair AS pair_b,
    a.pairs AS pairs_a, b.pairs AS pairs_b, a.key AS key_a, b.key AS key_b
FROM things a JOIN things b ON a.kind = b.kind AND a.key = b.key AND a.place < b.place
QUALIFY a.kind <> 'stories' OR 1 = row_number() OVER (
    PARTITION BY a.kind, a.place, a.id, b.place, b.id ORDER BY a.shared DESC, a.key
)
"""
_NEAR_DUPLICATES = """
INSERT INTO found
WITH by_id AS (
    SELECT place, story_id, min(pair_id) AS pair, count(DISTINCT pair_id) AS pairs
    FROM sides GROUP BY ALL
)
SELECT 'near_duplicates', $place_a, story_a, $place_b, story_b, similarity, NULL,
    a.pair, b.pair, a.pairs, b.pairs, 'id ' || story_a, 'id ' || story_b
FROM near
JOIN by_id a ON a.place = $place_a AND a.story_id = story_a
JOIN by_id b ON b.place = $place_b AND b.story_id = story_b
"""
_SPLIT_COUNTS = """
SELECT count(DISTINCT pair_id) AS pairs,
    count(DISTINCT key) FILTER (kind = 'prompts') AS prompts,
    count(DISTINCT id) FILTER (kind = 'stories') AS stories,
    count(DISTINCT key) FILTER (kind = 'authors') AS authors,
    count(DISTINCT id) FILTER (kind = 'stories')
        - count(DISTINCT id) FILTER (kind = 'authors') AS stories_by_unknown
FROM holders GROUP BY place ORDER BY place
"""
_SHARED_COUNTS = """
SELECT f.kind, place_a, place_b, count(DISTINCT (id_a, id_b, f.shared)) AS shared,
    count(DISTINCT a.pair_id) AS pairs_a, count(DISTINCT b.pair_id) AS pairs_b
FROM found f
JOIN holders a ON a.place = place_a AND a.key = key_a AND a.kind = {kind}
JOIN holders b ON b.place = place_b AND b.key = key_b AND b.kind = {kind}
GROUP BY ALL
""".format(kind="CASE f.kind WHEN 'near_duplicates' THEN 'stories' ELSE f.kind END")
_FOUND = """
SELECT kind, $names[place_a + 1] AS split_a, id_a, $names[place_b + 1] AS split_b, id_b,
    similarity, shared, pair_a, pair_b, pairs_a, pairs_b
FROM found
ORDER BY list_position($kinds, kind), place_a, place_b, similarity DESC, id_a, id_b
"""


def leakage_report(
    pairs: Mapping[str, pa.Table],
    *,
    near_duplicates: bool = True,
    threshold: float = 0.8,
    seed: int = 0,
) -> LeakageReport:
    """Compare splits two by two.

    Prompts are the same by `litbench.text.prompt_key`, authors by their hash (an unknown one is
    shared with nobody), stories by story_id or by text without case and spacing (the key of
    `drop_duplicates`). Every story that has a near-duplicate in the other split, copies included,
    is named with its closest.

    Args:
        pairs: tables by the schema PAIRS, by the name of their split, the training split first;
            their own column `split` is ignored.
        near_duplicates: look for them, which takes the longest by far.
        threshold: see `litbench.curation.near_duplicates`.
        seed: of the hashes.

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
    kinds = KINDS if near_duplicates else KINDS[:-1]
    con = ibis.duckdb.connect()
    try:
        _load(con, pairs)
        db = con.con
        db.execute(_HOLDERS)
        db.execute(_SHARED)
        splits = dict(zip(names, db.sql(_SPLIT_COUNTS).to_arrow_table().to_pylist(), strict=True))
        if near_duplicates:
            _add_near_duplicates(db, splits, threshold, seed)
        counts = {"splits": splits, "shared": _count_shared(db, kinds, names)}
        given = {"names": names, "kinds": list(KINDS)}
        found = db.sql(_FOUND, params=given).to_arrow_table()
    finally:
        con.disconnect()
    return LeakageReport(found, counts)


def _load(con: Any, pairs: Mapping[str, pa.Table]) -> None:
    """Make `pairs`, `sides` (two rows a pair) and `stories` (one row a story of a split).

    `place` is the number of the split. A story with several texts has that of its first pair.
    """
    columns = ["pair_id", "prompt_id"]
    sides = ("chosen", "rejected")
    columns += [f"{side}{part}" for side in sides for part in ("", "_story_id", "_author")]
    tables = []
    for place, table in enumerate(pairs.values()):
        keys = pa.array(prompt_keys(table), pa.string())
        arrays = [pc.cast(table[name], pa.large_string()) for name in columns]
        places = pa.repeat(place, table.num_rows)
        tables.append(pa.table([*arrays, keys, places], [*columns, "prompt_key", "place"]))
    con.con.register("pairs", pa.concat_tables(tables))
    each = " UNION ALL ".join(
        f"SELECT place, pair_id, {side}_story_id AS story_id, {side} AS text, "  # noqa: S608
        f"{side}_author AS author FROM pairs"
        for side in sides
    )
    con.con.execute(f"CREATE TEMP TABLE sides AS {each}")
    told = con.table("sides")
    texts = told.group_by("place", "story_id").agg(text=told.text.argmin(told.pair_id))
    con.create_table("stories", texts.mutate(duplicate_key=duplicate_key(texts)), temp=True)


def _add_near_duplicates(
    db: Any, splits: dict[str, dict[str, int]], threshold: float, seed: int
) -> None:
    """Add the near-duplicates between splits to `found`, and those within to the counts."""
    total = db.sql("SELECT count(*) FROM stories").fetchall()[0][0]
    indexes = []
    with tqdm(
        total=total, desc="near-duplicates", unit=" stories", leave=False, disable=None
    ) as bar:
        for place, counts in enumerate(splits.values()):
            index = NearDuplicateIndex(threshold=threshold, seed=seed)
            query = "SELECT story_id, text FROM stories WHERE place = ?"
            rows = db.sql(query, params=[place])
            for batch in rows.to_arrow_reader(10_000):
                index.add(batch["story_id"], batch["text"])
                bar.update(batch.num_rows)
            groups = index.groups()
            counts["near_duplicates_within"] = len(groups) - len(set(groups.values()))
            indexes.append(index)
    for place_a, place_b in combinations(range(len(indexes)), 2):
        db.register("near", indexes[place_a].closest(indexes[place_b]))
        db.execute(_NEAR_DUPLICATES, {"place_a": place_a, "place_b": place_b})


def _count_shared(db: Any, kinds: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """Per kind and two splits: what they share, and the pairs on either side that hold it."""
    counted = {
        (kind, a, b): {"shared": shared, "pairs_a": pairs_a, "pairs_b": pairs_b}
        for kind, a, b, shared, pairs_a, pairs_b in db.sql(_SHARED_COUNTS).fetchall()
    }
    nothing = {"shared": 0, "pairs_a": 0, "pairs_b": 0}
    return [
        {
            "kind": kind,
            "split_a": names[a],
            "split_b": names[b],
            **counted.get((kind, a, b), nothing),
        }
        for kind in kinds
        for a, b in combinations(range(len(names)), 2)
    ]
