"""Find leakage: prompts, authors, stories and near-duplicates that splits share.

A rater trained on a test pair's prompt, on its stories or near-copies of them, or on other stories
by its authors may score well on that pair without knowing anything about writing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, get_args

import ibis
import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.curation.filters import duplicate_key
from litbench.data.curation.near_duplicates import NearDuplicateIndex
from litbench.data.records import prompt_keys
from litbench.runs.errors import DataError

Kind = Literal["prompts", "authors", "stories", "near_duplicates"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_COLUMNS = ("kind", "split_a", "id_a", "split_b", "id_b", "similarity")
# Examples per kind and pair of splits that an error message names.
_NAMED = 3


@dataclass(frozen=True)
class LeakageReport:
    """The items that splits share.

    Attributes:
        shared: one row per shared item: `kind` (one of KINDS); `id_a` in `split_a` and `id_b` in
            `split_b`, which are prompt_ids for prompts and story_ids for other kinds, the smallest
            if there are several; `similarity`, estimated, for near-duplicates.
        counts: `splits` has the number of pairs, prompts, stories and known authors of each split;
            `shared` has the number of shared items for each kind and two splits.
    """

    shared: pa.Table
    counts: dict[str, Any]

    def check(self, must_be_clean: Sequence[str]) -> None:
        """Raise DataError if splits share one of these kinds, or if a split names no author."""
        problems = [
            f"no story of {name} has a known author, so shared authors cannot be found"
            for name, split in self.counts["splits"].items()
            if "authors" in must_be_clean and not split["authors"]
        ]
        for row in self.counts["shared"]:
            if row["kind"] in must_be_clean and row["shared"]:
                where = [pc.field(key) == row[key] for key in ("kind", "split_a", "split_b")]
                rows = self.shared.filter(where[0] & where[1] & where[2]).slice(0, _NAMED)
                a, b = row["split_a"], row["split_b"]
                named = "; ".join(
                    f"{item['id_a']:.80} ({a}) and {item['id_b']:.80} ({b})"
                    for item in rows.to_pylist()
                )
                problems.append(f"{_in_words(row)}, such as {named}")
        if problems:
            raise DataError(
                f"{'. '.join(problems)}. Remove the pairs of the second split "
                "(leakage.parquet names all), or take the kind out of must_be_clean"
            )

    def __str__(self) -> str:
        """Format the counts as a table for the terminal."""
        lines = [
            f"  {name}: " + ", ".join(f"{number:,} {what}" for what, number in split.items())
            for name, split in self.counts["splits"].items()
        ]
        return "\n".join([*lines, *(f"  {_in_words(row)}" for row in self.counts["shared"])])


def _in_words(row: Mapping[str, Any]) -> str:
    kind = row["kind"].replace("_", "-")
    return f"{row['split_a']} and {row['split_b']} share {row['shared']:,} {kind}"


def by_split(pairs: pa.Table) -> dict[str, pa.Table]:
    """Divide a pairs table by its column `split`; train comes first, then the others by name."""
    names = sorted(pc.unique(pairs["split"]).to_pylist(), key=lambda name: (name != "train", name))
    return {name: pairs.filter(pc.equal(pairs["split"], name)) for name in names}


def leakage_report(
    pairs: Mapping[str, pa.Table],
    *,
    threshold: float = 0.8,
    seed: int = 0,
) -> LeakageReport:
    """Compare every two of several splits.

    Prompts are compared by `litbench.data.text.prompt_key`, authors by their hash (unknown authors
    are skipped), and stories by story_id or by text without case and spacing (the key of
    `drop_duplicates`). Each story of the second split that has near-duplicates or copies in the
    first is reported with the closest of them.

    Args:
        pairs: maps split names to tables with the schema PAIRS, training split first; the column
            `split` of the tables is ignored.
        threshold: see `litbench.data.curation.near_duplicates`.
        seed: seed of the MinHash signatures.
    """
    if len(pairs) < 2 or not all(table.num_rows for table in pairs.values()):
        raise DataError(
            f"leakage needs two splits that hold pairs, but found {', '.join(pairs)}: give two "
            "files, or pairs whose column split has two values"
        )
    items = {name: _smallest_ids(table) for name, table in pairs.items()}
    indexes = {}
    for name, table in pairs.items():
        texts = _smallest(_sides(table, "_story_id"), _sides(table, ""))
        indexes[name] = NearDuplicateIndex(threshold=threshold, seed=seed)
        indexes[name].add(pa.array(texts.keys()), pa.array(texts.values(), pa.large_string()))
    shared_items: list[tuple[Any, ...]] = []
    shared = []
    for kind in KINDS:
        for a, b in combinations(pairs, 2):
            rows: list[tuple[str, str, float | None]]
            if kind == "near_duplicates":
                close = indexes[a].closest(indexes[b])
                rows = [*sorted(close, key=lambda row: (-row[2], row))]
            else:
                ids_a, ids_b = items[a][kind], items[b][kind]
                both = {(ids_a[key], ids_b[key]) for key in ids_a.keys() & ids_b.keys()}
                rows = [(*ids, None) for ids in sorted(both)]
            shared_items += [
                (kind, a, id_a, b, id_b, similarity) for id_a, id_b, similarity in rows
            ]
            shared.append({"kind": kind, "split_a": a, "split_b": b, "shared": len(rows)})
    splits = {
        name: {
            "pairs": table.num_rows,
            "prompts": len(items[name]["prompts"]),
            "stories": len(set(_sides(table, "_story_id"))),
            "authors": len(items[name]["authors"]),
        }
        for name, table in pairs.items()
    }
    types = [pa.float64() if name == "similarity" else pa.string() for name in _COLUMNS]
    rows_found = [dict(zip(_COLUMNS, row, strict=True)) for row in shared_items]
    table = pa.Table.from_pylist(rows_found, pa.schema(zip(_COLUMNS, types, strict=True)))
    return LeakageReport(table, {"splits": splits, "shared": shared})


def _sides(pairs: pa.Table, column: str) -> list[Any]:
    """Return a column's values for the chosen stories, then for the rejected ones."""
    return [*pairs[f"chosen{column}"].to_pylist(), *pairs[f"rejected{column}"].to_pylist()]


def _smallest(keys: Iterable[str | None], values: Iterable[str]) -> dict[str, str]:
    """Map each key to the smallest of its values; null keys are skipped."""
    items = ((key, value) for key, value in zip(keys, values, strict=True) if key is not None)
    return dict(sorted(items, reverse=True))


def _smallest_ids(pairs: pa.Table) -> dict[str, dict[str, str]]:
    """Map each kind of item to its keys in a split and their smallest ids."""
    ids = _sides(pairs, "_story_id")
    texts = ibis.memtable(pa.table({"text": pa.array(_sides(pairs, ""), pa.large_string())}))
    keys = texts.select(key=duplicate_key(texts)).to_pyarrow()["key"].to_pylist()
    return {
        "prompts": _smallest(prompt_keys(pairs), pairs["prompt_id"].to_pylist()),
        "authors": _smallest(_sides(pairs, "_author"), ids),
        "stories": _smallest([*(f"id {name}" for name in ids), *keys], [*ids, *ids]),
    }
