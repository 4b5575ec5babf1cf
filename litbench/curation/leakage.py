"""Leakage: what splits share that they should not, with an id on either side.

A rater that saw a prompt, an author's other stories, a story or a near-copy of it in training may
do well on the test pairs that hold them without knowing anything about writing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, get_args

import ibis
import pyarrow as pa
import pyarrow.compute as pc

from litbench.curation.filters import duplicate_key
from litbench.curation.near_duplicates import NearDuplicateIndex
from litbench.errors import DataError
from litbench.records import prompt_keys

Kind = Literal["prompts", "authors", "stories", "near_duplicates"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_COLUMNS = ("kind", "split_a", "id_a", "split_b", "id_b", "similarity")
# So many of what is shared are named in a message.
_NAMED = 3


@dataclass(frozen=True)
class LeakageReport:
    """What splits share.

    Attributes:
        found: one row for each shared thing: `kind` (one of KINDS); `id_a` in `split_a` and `id_b`
            in `split_b`, which are prompt_ids of a prompt and story_ids otherwise, the smallest
            where several hold it; `similarity` of near-duplicates, estimated.
        counts: `splits`: per split its pairs, prompts, stories and known authors; `shared`: per
            kind and two splits the number of shared things.
    """

    found: pa.Table
    counts: dict[str, Any]

    def check(self, must_be_clean: Sequence[str]) -> None:
        """Raise DataError where splits share one of these kinds, or know no author to compare."""
        problems = [
            f"no story of {name} has a known author, so shared authors cannot be found"
            for name, split in self.counts["splits"].items()
            if "authors" in must_be_clean and not split["authors"]
        ]
        for row in self.counts["shared"]:
            if row["kind"] in must_be_clean and row["shared"]:
                where = [pc.field(key) == row[key] for key in ("kind", "split_a", "split_b")]
                rows = self.found.filter(where[0] & where[1] & where[2]).slice(0, _NAMED)
                named = "; ".join(
                    f"{one['id_a']:.80} ({one['split_a']}) and {one['id_b']:.80} ({one['split_b']})"
                    for one in rows.to_pylist()
                )
                problems.append(f"{_in_words(row)}, such as {named}")
        if problems:
            raise DataError(
                f"{'. '.join(problems)}. Remove the pairs of the second split "
                "(leakage.parquet names all), or take the kind out of must_be_clean"
            )

    def __str__(self) -> str:
        """A table for the terminal."""
        lines = [
            f"  {name}: " + ", ".join(f"{number:,} {what}" for what, number in split.items())
            for name, split in self.counts["splits"].items()
        ]
        return "\n".join([*lines, *(f"  {_in_words(row)}" for row in self.counts["shared"])])


def _in_words(row: Mapping[str, Any]) -> str:
    kind = row["kind"].replace("_", "-")
    return f"{row['split_a']} and {row['split_b']} share {row['shared']:,} {kind}"


def by_split(pairs: pa.Table) -> dict[str, pa.Table]:
    """A pairs table divided by its column `split`: train first, the others by name."""
    names = sorted(pc.unique(pairs["split"]).to_pylist(), key=lambda name: (name != "train", name))
    return {name: pairs.filter(pc.equal(pairs["split"], name)) for name in names}


def leakage_report(
    pairs: Mapping[str, pa.Table],
    *,
    near_duplicates: bool = True,
    threshold: float = 0.8,
    seed: int = 0,
) -> LeakageReport:
    """Compare two or more splits two by two.

    Prompts are the same by `litbench.text.prompt_key`, authors by their hash (an unknown one is
    shared with nobody), stories by story_id or by text without case and spacing (the key of
    `drop_duplicates`). Every story of the second split that has a near-duplicate in the first,
    copies included, is named with its closest.

    Args:
        pairs: tables by the schema PAIRS, by the name of their split, the training split first;
            their own column `split` is ignored.
        near_duplicates: look for them, which takes the longest by far.
        threshold: see `litbench.curation.near_duplicates`.
        seed: of the hashes.
    """
    if len(pairs) < 2 or not all(table.num_rows for table in pairs.values()):
        raise DataError(
            f"leakage is between two splits that hold pairs, and here is {', '.join(pairs)}: give "
            "two files, or pairs whose column split has two values"
        )
    things = {name: _things(table) for name, table in pairs.items()}
    indexes = {}
    for name, table in pairs.items() if near_duplicates else ():
        texts = _smallest(_sides(table, "_story_id"), _sides(table, ""))
        indexes[name] = NearDuplicateIndex(threshold=threshold, seed=seed)
        indexes[name].add(pa.array(texts.keys()), pa.array(texts.values(), pa.large_string()))
    found: list[tuple[Any, ...]] = []
    shared = []
    for kind in KINDS if near_duplicates else KINDS[:-1]:
        for a, b in combinations(pairs, 2):
            rows: list[tuple[str, str, float | None]]
            if kind == "near_duplicates":
                close = indexes[a].closest(indexes[b])
                rows = [*sorted(close, key=lambda row: (-row[2], row))]
            else:
                ids_a, ids_b = things[a][kind], things[b][kind]
                same = {(ids_a[key], ids_b[key]) for key in ids_a.keys() & ids_b.keys()}
                rows = [(*ids, None) for ids in sorted(same)]
            found += [(kind, a, id_a, b, id_b, similarity) for id_a, id_b, similarity in rows]
            shared.append({"kind": kind, "split_a": a, "split_b": b, "shared": len(rows)})
    splits = {
        name: {
            "pairs": table.num_rows,
            "prompts": len(things[name]["prompts"]),
            "stories": len(set(_sides(table, "_story_id"))),
            "authors": len(things[name]["authors"]),
        }
        for name, table in pairs.items()
    }
    types = [pa.float64() if name == "similarity" else pa.string() for name in _COLUMNS]
    rows_found = [dict(zip(_COLUMNS, row, strict=True)) for row in found]
    table = pa.Table.from_pylist(rows_found, pa.schema(zip(_COLUMNS, types, strict=True)))
    return LeakageReport(table, {"splits": splits, "shared": shared})


def _sides(pairs: pa.Table, column: str) -> list[Any]:
    """The values of a column of the chosen stories, then of the rejected ones."""
    return [*pairs[f"chosen{column}"].to_pylist(), *pairs[f"rejected{column}"].to_pylist()]


def _smallest(keys: Iterable[str | None], values: Iterable[str]) -> dict[str, str]:
    """The smallest value of each key; null is no key."""
    known = ((key, value) for key, value in zip(keys, values, strict=True) if key is not None)
    return dict(sorted(known, reverse=True))


def _things(pairs: pa.Table) -> dict[str, dict[str, str]]:
    """What a split holds, by kind: the smallest id of each key."""
    ids = _sides(pairs, "_story_id")
    texts = ibis.memtable(pa.table({"text": pa.array(_sides(pairs, ""), pa.large_string())}))
    keys = texts.select(key=duplicate_key(texts)).to_pyarrow()["key"].to_pylist()
    return {
        "prompts": _smallest(prompt_keys(pairs), pairs["prompt_id"].to_pylist()),
        "authors": _smallest(_sides(pairs, "_author"), ids),
        "stories": _smallest([*(f"id {name}" for name in ids), *keys], [*ids, *ids]),
    }
