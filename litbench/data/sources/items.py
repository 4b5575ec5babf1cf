"""Rows with several answers to a prompt: each better and worse answer become a pair of one item.

For scoring, each answer becomes a row (`list_answers`), and no order is needed.

    {"prompt": "A lamp.", "chosen": "...", "rejected": ["...", "...", "..."]}
    {"prompt": "A lamp.", "completions": ["...", "...", "..."], "ranks": [1, 3, 2]}
    {"prompt": "A lamp.", "answers": [{"text": "...", "rank": 1}, {"text": "...", "rank": 2}]}

In CSV, lists are JSON or what Python prints. The best answer has the lowest of `ranks` or the
highest of `scores`, or is named by `best`, its text or its index from 0.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.chunks import LINE, ROW
from litbench.data.columns import GUESS, guess_column
from litbench.data.ingest import RejectedRows
from litbench.data.records import SIDES, Column, is_text
from litbench.data.sources.messages import CELL_ERRORS, parse_cell, read_messages
from litbench.data.text import NO_TEXT, are_empty, digest, valid_unicode

# How a column orders the answers.
_ORDERS = ("ranks", "scores", "best")
_COLUMNS = tuple(
    Column(name, "messages", "answers to a prompt, or their order")
    for name in (*SIDES, "answers", *_ORDERS)
)


def find_answers(first: pa.Table, columns: Mapping[str, str]) -> dict[str, str]:
    """The columns of answers and of their order; empty if each row is one pair.

    Args:
        first: the first rows, with lists as JSON text.
        columns: columns of `prompt`, `chosen` and `rejected` that are given; others are guessed.

    Returns:
        By name, the column of `prompt` and of both sides, or of `answers` and one of `ranks`,
        `scores` and `best`, unless the answers are objects that have their order.
    """
    names = first.column_names

    def origin(name: str) -> str | None:
        given = columns.get(name, GUESS)
        return guess_column(name, names) if given == GUESS else given

    sides = {side: column for side in SIDES if (column := origin(side)) is not None}
    prompt = {} if (column := origin("prompt")) is None else {"prompt": column}
    if sides:
        has_lists = any(_has_lists(first, column, str) for column in sides.values())
        return prompt | sides if len(sides) == len(SIDES) and has_lists else {}
    answers = origin("answers")
    if answers is None:
        return {}
    if _has_lists(first, answers, dict):
        return prompt | {"answers": answers}
    order = next((name for name in _ORDERS if origin(name) is not None), None)
    if order is None or not _has_lists(first, answers, str):
        return {}
    return prompt | {"answers": answers, order: str(origin(order))}


def answer_columns(origins: Mapping[str, str]) -> list[Column]:
    """The columns of `find_answers` to read; lists become JSON text."""
    return [column for column in _COLUMNS if column.name in origins]


def _has_lists(first: pa.Table, name: str, kind: type) -> bool:
    """Whether most of a column's first values are lists of texts or objects."""
    if name not in first.column_names or not is_text(first[name].type):
        return False
    texts = first[name].drop_null().to_pylist()
    # Messages are no answers.
    lists = [None if read_messages(text) else _list(text) for text in texts]
    are_lists = (all(isinstance(item, kind) for item in values) for values in lists if values)
    return 2 * sum(are_lists) > len(lists)


def _list(value: str | None) -> list[Any] | None:
    """The values of a list; None if the value is something else."""
    try:
        values = parse_cell(value) if value and value.lstrip().startswith("[") else None
    except CELL_ERRORS:
        return None
    return values if isinstance(values, list) else None


def explode(
    rows: pa.Table, origins: Mapping[str, str], file: str, rejected_rows: RejectedRows
) -> pa.Table:
    """Make a row of every pair of a better and a worse answer.

    Rows whose answers cannot be ordered are rejected. Answers of equal rank make no pair and are
    counted with the rejected rows.

    Args:
        rows: with `ROW`, `prompt`, the columns of `answer_columns`, and others, which every pair of
            the row repeats.
        origins: see `find_answers`.
        file: name of the source, for rejected rows.
        rejected_rows: collects what makes no pair.

    Returns:
        Table with `chosen`, `rejected` and `item_id` in place of the columns of answers.
    """
    names = [column.name for column in answer_columns(origins)]
    others = [name for name in rows.column_names if name not in (*names, *SIDES, "item_id")]
    item_ids = rows["item_id"].to_pylist()
    indices, pairs = list[int](), list[dict[str, str]]()
    for index, row in enumerate(rows.select([ROW, "prompt", *names]).to_pylist()):
        item = item_ids[index] or digest("item", row["prompt"] or "", *(row[n] for n in names))
        try:
            sides, equal = _sides(row, names)
        except ValueError as error:
            rejected_rows.add(file, row[ROW], names[-1], str(error), row[names[-1]])
            continue
        for _ in range(equal):
            rejected_rows.add(file, row[ROW], names[-1], "two answers of equal rank")
        pairs += [{"chosen": better, "rejected": worse, "item_id": item} for better, worse in sides]
        indices += [index] * len(sides)
    columns = pa.Table.from_pylist(
        pairs, pa.schema([(name, pa.large_string()) for name in (*SIDES, "item_id")])
    )
    table = rows.select(others).take(pa.array(indices, pa.int64()))
    return pa.table(
        [*table.columns, *columns.columns], names=[*table.column_names, *columns.column_names]
    )


def answers_column(first: pa.Table, name: str | None) -> str | None:
    """The column that has lists of answers, ordered or not: `name` or a known one; else None."""
    name = name or guess_column("answers", first.column_names)
    has_lists = name is not None and any(_has_lists(first, name, kind) for kind in (str, dict))
    return name if has_lists else None


def list_answers(
    rows: pa.Table,
    columns: Mapping[str, str],
    file: str,
    rejected_rows: RejectedRows,
) -> pa.Table:
    """Make a row of every answer; rows without answers are rejected.

    Args:
        rows: with `ROW`, the column of answers as JSON text, and others, which every answer of the
            row repeats. `LINE` is the row as JSON, and becomes that of the answer.
        columns: names of the columns of the `prompt` and the `answers`, and of the column `text`
            to write an answer to.
        file: name of the source, for rejected rows.
        rejected_rows: collects rows without answers.

    Returns:
        Table with the column of texts and `item_id` in place of that of answers; without `ROW`.
    """
    prompt, answers, text = (columns[name] for name in ("prompt", "answers", "text"))
    others = [name for name in rows.column_names if name not in (ROW, answers, text, "item_id")]
    indices, new = list[int](), list[dict[str, str | None]]()
    names = {ROW, prompt, answers, "item_id", LINE} & set(rows.column_names)
    for index, row in enumerate(rows.select(sorted(names)).to_pylist()):
        try:
            texts = [_text_of(value) for value in _list(row[answers]) or ()]
            if not texts:
                raise ValueError("no list of answers")
            if pc.any(are_empty(pa.array(texts, pa.large_string()))).as_py():
                raise ValueError(NO_TEXT)
        except ValueError as error:
            rejected_rows.add(file, row[ROW], answers, str(error), row[answers])
            continue
        item = row.get("item_id")
        item = digest("item", row[prompt], row[answers]) if item in (None, "") else str(item)
        before = json.loads(row.get(LINE) or "{}")
        before.pop(answers, None)
        for value in texts:
            answer: dict[str, str | None] = {text: value, "item_id": item}
            line = json.dumps(before | answer, ensure_ascii=False) if before else None
            new.append(answer | {LINE: line})
        indices += [index] * len(texts)
    schema = pa.schema([(name, pa.large_string()) for name in (text, "item_id", LINE)])
    made = pa.Table.from_pylist(new, schema).select([text, "item_id", *({LINE} & names)])
    table = rows.select([name for name in others if name != LINE])
    table = table.take(pa.array(indices, pa.int64()))
    return pa.table(
        [*table.columns, *made.columns], names=[*table.column_names, *made.column_names]
    )


def _text_of(value: Any) -> str:
    """The text of an answer, which may be an object with other keys."""
    if isinstance(value, dict):
        value = value.get(guess_column("text", list(value)) or "")
    return _as_text(value)


def _as_text(value: Any) -> str:
    """An answer, as UTF-8 can encode it; ValueError unless it is a text with characters."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("an answer is not text")
    return valid_unicode(value)


def _sides(row: Mapping[str, Any], names: Sequence[str]) -> tuple[list[tuple[str, str]], int]:
    """The better and the worse answer of every pair of a row, and the number of equal answers.

    Raises:
        ValueError: the answers cannot be ordered.
    """
    if "answers" not in names:
        chosen, rejected = (_texts(row[side]) for side in SIDES)
        return list(itertools.product(chosen, rejected)), 0
    values = _list(row["answers"])
    if values and isinstance(values[0], dict):
        texts, grades = zip(*map(_graded, values), strict=True)
    else:
        texts = tuple(_texts(row["answers"]))
        grades = tuple(_grades(row[names[-1]], names[-1], texts))
    if len(texts) != len(grades):
        raise ValueError(f"{len(grades)} values for {len(texts)} answers")
    pairs = list[tuple[str, str]]()
    equal = 0
    for (first, above), (second, below) in itertools.combinations(
        zip(texts, grades, strict=True), 2
    ):
        if above == below:
            equal += names[-1] != "best"
        else:
            pairs.append((first, second) if above > below else (second, first))
    if not pairs:
        raise ValueError("no answer is better than another")
    return pairs, equal


def _texts(value: str | None) -> list[str]:
    """The answers of a cell, which may be one text."""
    values = _list(value)
    texts = [value] if values is None else values
    if not texts:
        raise ValueError("no answers")
    return [_as_text(text) for text in texts]


def _grades(value: str | None, order: str, texts: Sequence[str]) -> Iterator[float]:
    """A number for each answer, higher for better ones."""
    if order == "best":
        text = (value or "").strip()
        is_index = text.isdecimal() and int(text) < len(texts)
        best = int(text) if is_index else texts.index(text) if text in texts else None
        if best is None:
            raise ValueError("neither an answer nor its index")
        return (float(index == best) for index in range(len(texts)))
    sign = -1.0 if order == "ranks" else 1.0
    return (sign * _number(number) for number in _list(value) or ())


def _graded(value: Any) -> tuple[str, float]:
    """The text and the grade of an answer that is an object."""
    keys = list(value) if isinstance(value, dict) else []
    text, rank, score = (guess_column(name, keys) for name in ("text", "ranks", "scores"))
    key = rank or score
    if text is None or key is None:
        raise ValueError("an answer without a text, or without a rank or score")
    return _as_text(value[text]), (-1.0 if rank else 1.0) * _number(value[key])


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("a rank or score is not a number")
    return number
