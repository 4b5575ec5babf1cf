"""Published runs become turns: the command `litbench writers import_turns`."""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import pyarrow as pa
from pydantic import Field

from litbench.data.ingest import RejectedRows, read_foreign
from litbench.data.records import TURNS
from litbench.data.tables import write_table
from litbench.runs.errors import DataError
from litbench.runs.outputs import Artifact


@dataclass
class Select:
    """Which rows become turns, and how.

    Attributes:
        columns: maps the columns of turns to the table's columns or SQL expressions over them;
            `sample` is 0 and `outcome` is answered unless they are mapped.
        where: SQL condition on the table's rows.
    """

    columns: dict[str, str]
    where: str | None = None


@dataclass
class TurnImport:
    """Turn published runs of a writing benchmark into a table of turns.

        litbench writers import_turns --config configs/data/longform_turns.yaml

    Reads a table, once per entry of `selects`, which maps its rows to turns: who answered (`role`:
    writer, or a judge's name) at which `step`, and the text. Writes `turns.parquet`,
    `rejected.jsonl` (rows that could not be used, with reasons) and `manifest.json` into `out`. In
    `litbench run`, the model `recorded/OUT/turns.parquet` then answers as published, as a writer or
    as a judge.

    Attributes:
        table: Parquet, JSONL or CSV file, or a datasets name.
        out: output folder.
        selects: see `Select`.
        encoding: encoding of the table, if it is a text file.
    """

    table: str
    out: Path
    selects: Annotated[list[Select], Field(min_length=1)]
    encoding: str | None = None


def import_turns(config: TurnImport) -> None:
    """Read the table once per select, and write the turns."""
    artifact = Artifact(config.out, program=__file__, config=config, inputs={"table": config.table})
    if artifact.is_current():
        return
    rejected_rows = RejectedRows()
    names = TURNS.arrow().names
    read = []
    for select in config.selects:
        columns = {"sample": "0", "outcome": "'answered'", **select.columns}
        table = read_foreign(
            config.table,
            TURNS,
            columns=columns,
            rejected_rows=rejected_rows,
            where=select.where,
            encoding=config.encoding,
        )
        read.append(table.select(names))
    turns = pa.concat_tables(read)
    keys = Counter(zip(*(turns[name].to_pylist() for name in TURNS.key), strict=True))
    if len(keys) < turns.num_rows:
        raise DataError(
            f"{config.table}: {turns.num_rows - len(keys)} turns repeat writer, prompt, sample, "
            f"role and step of another, such as {keys.most_common(1)[0][0]}: correct columns or "
            "where in selects"
        )
    artifact.write("turns.parquet", partial(write_table, turns))
    artifact.write("rejected.jsonl", rejected_rows.write)
    artifact.counts = {
        "turns": turns.num_rows,
        "writers": sorted(set(turns["writer"].to_pylist())),
        "roles": sorted(set(turns["role"].to_pylist())),
        "rejected_rows": rejected_rows.counts(),
    }
    artifact.finish()
    print(f"{config.out / 'turns.parquet'}: {turns.num_rows:,} turns")
    print(rejected_rows.summary(), end="")
