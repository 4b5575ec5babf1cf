"""Writes the pages of docs/reference: every command with its keys, every table with its columns.

`conf.py` calls `write` before a build, so the site always shows what the code says.
"""

from collections.abc import Iterator
from pathlib import Path

from litbench.cli import command_names, find_command
from litbench.data import records
from litbench.runs.config import describe

_TABLES = (
    records.STORIES,
    records.PAIRS,
    records.VERDICTS,
    records.TURNS,
    records.RATINGS,
    records.GRADES,
)


def write(folder: Path) -> None:
    """Write the pages `keys.md` and `tables.md` into a folder."""
    folder.mkdir(exist_ok=True)
    for name, lines in (("keys", _commands()), ("tables", _tables())):
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _commands() -> Iterator[str]:
    yield "# All commands and keys\n\nThe text of `litbench COMMAND --help`."
    for name in command_names():
        _, config, about = find_command(name)
        keys = "\n".join(describe(config))
        yield f"\n## {name}\n\n```text\n{(about or '').strip()}\n\n{keys}\n```"


def _tables() -> Iterator[str]:
    yield "# All tables and columns\n"
    yield "Parquet files. Required columns have no nulls; a table may have further columns."
    for schema in _TABLES:
        yield f"\n## {schema.name}\n\nKey: {', '.join(f'`{name}`' for name in schema.key)}.\n"
        yield "| column | type | required | meaning |\n| --- | --- | --- | --- |"
        for column in schema.columns:
            choices = f" ({', '.join(column.choices)})" if column.choices else ""
            required = "yes" if column.required else ""
            about = column.about.replace("|", "\\|")
            yield f"| `{column.name}` | {column.kind} | {required} | {about}{choices} |"
