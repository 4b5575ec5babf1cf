"""Detects a file's form by its content: compression, format, encoding, JSON shape, CSV dialect.

    form = sniff(Path("pairs.csv.gz"))
    with open_text(Path("pairs.csv.gz"), form) as (file, _):
        rows = csv.reader(file, delimiter=form.delimiter)

The suffix decides only where the content could be several formats.
"""

import bz2
import codecs
import csv
import functools
import gzip
import io
import itertools
import json
import lzma
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TextIO

from litbench.runs.errors import MissingExtraError

MAX_LINE = 256 << 20
_BLOCK = 1 << 20
# Monthly dumps of Reddit are compressed with `zstd --long=31`; decompressing needs 2 GiB of memory.
_WINDOW_LOG = 31


def zstd() -> Any:
    """Return the standard library's zstd module or its backport; both detect truncation."""
    if sys.version_info >= (3, 14):
        from compression import zstd as module  # noqa: PLC0415
    else:
        try:
            from backports import zstd as module  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("backports.zstd", "data") from error
    return module


def _open_zstd(file: BinaryIO) -> Any:
    options = {zstd().DecompressionParameter.window_log_max: _WINDOW_LOG}
    return zstd().ZstdFile(file, options=options)


# By the first bytes of a file.
_DECOMPRESSORS: dict[bytes, Callable[..., Any]] = {
    b"\x28\xb5\x2f\xfd": _open_zstd,
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
    # Skippable frames of zstd, with which parallel compressors begin.
    **{bytes([number]) + b"*M\x18": _open_zstd for number in range(0x50, 0x60)},
}
_UNREADABLE = {
    b"PK\x03\x04": "a zip archive or an Excel workbook",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"ARROW1": "an Arrow (Feather) file",
    b"\xff\xff\xff\xff": "an Arrow stream",
    b"SQLite format 3": "an SQLite database",
    b"\x80\x04\x95": "a pickle",
    b"\x80\x05\x95": "a pickle",
    b"%PDF": "a PDF",
    b"<!doctype html": "a web page",
    b"<html": "a web page",
    b"version https://git-lfs": "a pointer of Git LFS, not the file itself",
    b"{'": "rows as Python prints them, not JSON: write them with json.dumps",
}
# The line below the headings of a table in Markdown.
_MARKDOWN_RULE = re.compile(r"\|?(\s*:?-+:?\s*\|)+(\s*:?-+:?\s*)?")
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_JSON_START = re.compile(r'\{\s*(["}]|$)|\[\s*([\[{\]]|null|$)')
# Keys of an object around the rows of a file; other lists of objects may be a column.
_ROWS = ("data", "rows", "records", "examples", "items", "instances", "stories", "pairs", "posts")
_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*"')
# Lines of JSON, or records of CSV, that tell the form of a file.
_FIRST = 20


class Form(NamedTuple):
    """The form of a file.

    Attributes:
        kind: `document` is one JSON value, or several arrays, over any number of lines.
        encoding: encoding of text.
        delimiter: of CSV.
        is_quoted: whether a field of CSV that opens with a quotation mark is quoted.
        skip: lines of CSV before its headings.
    """

    kind: Literal["parquet", "lines", "document", "csv"]
    encoding: str = "utf-8"
    delimiter: str = ","
    is_quoted: bool = True
    skip: int = 0


class _Decompressed(io.RawIOBase):
    """A decompressed stream; raises OSError where the libraries have exceptions of their own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._stream.read(len(buffer))
        except Exception as error:  # each library raises its own exceptions
            what = f"{type(error).__name__}: {error}"
            raise OSError(f"compressed data that is truncated or damaged, {what}") from error
        buffer[: len(content)] = content
        return len(content)


@contextmanager
def open_bytes(path: Path) -> Iterator[tuple[io.BufferedReader, Callable[[], int]]]:
    """Open a file, decompressed; also yield a function that returns the position in the file.

    Raises:
        ValueError: it is a pipe or a device, which would block and cannot be read twice.
    """
    if path.exists() and not path.is_file():
        raise ValueError("is a pipe or a device: write its content into a file")
    with path.open("rb") as file:
        start = file.peek(8)
        for magic, decompress in _DECOMPRESSORS.items():
            if start.startswith(magic):
                yield io.BufferedReader(_Decompressed(decompress(file)), _BLOCK), file.tell
                return
        yield file, file.tell


@contextmanager
def open_text(
    path: Path, form: Form, newline: str = ""
) -> Iterator[tuple[TextIO, Callable[[], int]]]:
    """Open a text file like `open_bytes`; invalid bytes become surrogates."""
    encoding = "utf-8-sig" if codecs.lookup(form.encoding).name == "utf-8" else form.encoding
    with open_bytes(path) as (stream, position):
        yield io.TextIOWrapper(stream, encoding, "surrogateescape", newline), position


def sniff(path: Path, encoding: str | None = None) -> Form:
    """Return the form of a file.

    Args:
        path: the file.
        encoding: encoding of text; null for UTF-8, or what the content shows: UTF-16 or UTF-32 by
            its first bytes, else Windows-1252 if no character beyond ASCII is UTF-8 and most are
            ASCII. The last is a guess, which is printed on stderr.

    Raises:
        ValueError: LitBench does not read what the file is.
        OSError: it cannot be read, or its compressed data is damaged.
        LookupError: there is no such encoding.
    """
    state = path.stat()
    return _sniff(path, encoding, state.st_size, state.st_mtime_ns)


@functools.lru_cache
def _sniff(path: Path, encoding: str | None, *_: int) -> Form:
    csv.field_size_limit(MAX_LINE)
    with open_bytes(path) as (stream, _position):
        head = stream.read(_BLOCK)
        is_whole = len(head) < _BLOCK
        # Complete the last line, which may be the first.
        head += stream.readline(MAX_LINE)
        is_compressed = isinstance(stream.raw, _Decompressed)
    if what := _unreadable(head, is_compressed=is_compressed):
        raise ValueError(f"is {what}")
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if is_compressed and head.startswith(b"PAR1"):
        raise ValueError("is compressed Parquet: decompress it")
    if head.startswith(b"PAR1"):
        return Form("parquet")
    encoding = encoding or _encoding(path, head)
    text = head.decode(encoding, "replace").lstrip("\ufeff")
    lines = [line for line in text.split("\n") if line.strip()][:_FIRST]
    if _JSON_START.match(text.lstrip()):
        n_objects = sum(map(_is_object, lines))
        is_lines = (len(lines) > 1 or not is_whole) and (
            2 * n_objects >= len(lines) or _is_object(lines[0])
        )
        return Form("lines" if is_lines else "document", encoding)
    if ".parquet" in suffixes:
        return Form("parquet")
    if _is_list(text.lstrip()):
        raise ValueError("is JSON whose rows have no names: write each as an object")
    if len(lines) > 1 and _MARKDOWN_RULE.fullmatch(lines[1].strip()):
        raise ValueError("is a table in Markdown")
    delimiter, width = _delimiter(text, ".tsv" in suffixes)
    has_json = any(_JSON_START.match(line.lstrip()) for line in lines)
    is_csv = bool({".csv", ".tsv"}.intersection(suffixes))
    if (has_json and not is_csv) or (width < 2 and set(_JSON_SUFFIXES).intersection(suffixes)):
        return Form("lines", encoding)
    if width < 2 and not is_csv:
        raise ValueError("is neither Parquet nor JSON nor a table with headings (CSV, TSV)")
    if match := re.match(r"sep=(.)\r?\n", text):
        return Form("csv", encoding, match[1], skip=1)
    form = Form("csv", encoding, delimiter)
    return form if delimiter != "\t" else form._replace(is_quoted=_is_quoted(path, form))


def _unreadable(head: bytes, *, is_compressed: bool) -> str | None:
    """The name of a format that LitBench does not read; None if unknown."""
    if head[257:262] == b"ustar":
        return "a tar archive: unpack it"
    if is_compressed and head.startswith(tuple(_DECOMPRESSORS)):
        return "compressed twice: decompress it once"
    start = head.lstrip().lower()
    return next((what for m, what in _UNREADABLE.items() if start.startswith(m.lower())), None)


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_list(text: str) -> bool:
    """Whether a text begins with a JSON array."""
    try:
        return isinstance(json.JSONDecoder().raw_decode(text)[0], list)
    except (ValueError, RecursionError):
        return False


# Encoding and dialect of CSV --------------------------------------------------------------------


def _encoding(path: Path, head: bytes) -> str:
    """Return the encoding that the content of a file shows; prints a guess on stderr."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding
    # Without a byte order mark, half of the bytes of most texts are 0.
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if 4 * head[first::2].count(0) > len(head):
            return encoding
    n_bytes, n_valid, n_invalid, invalid = 0, 0, 0, set[int]()
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    with open_bytes(path) as (stream, _):
        while block := stream.read(_BLOCK):
            n_bytes += len(block)
            text = decoder.decode(block)
            if not text.isascii():
                escaped = re.sub("[^\udc80-\udcff]", "", text)
                invalid.update(map(ord, escaped))
                n_invalid += len(escaped)
                n_valid += len(re.sub("[\0-\x7f]", "", text)) - len(escaped)
                # UTF-8 of a lone surrogate, which Python does not decode.
                n_valid += len(re.findall("\udced[\udca0-\udcbf][\udc80-\udcbf]", text))
    # Bytes that Windows-1252 lacks or hardly uses. Texts in other alphabets are mostly not ASCII.
    is_other = not invalid.isdisjoint(map(ord, "\udc81\udc8d\udc8f\udc90\udc9d\udcfe\udcff"))
    if n_valid or not n_invalid or is_other or n_invalid > n_bytes / 4:
        return "utf-8"
    print(
        f"{path} is not UTF-8 and is read as cp1252: if letters come out wrong, give encoding",
        file=sys.stderr,
    )
    return "cp1252"


def _delimiter(text: str, is_tsv: bool) -> tuple[str, int]:
    """Return the delimiter by which most rows have as many fields as headings, and that number."""
    best, most = ("\t" if is_tsv else ","), (False, 1)
    for delimiter in dict.fromkeys((best, ",", ";", "\t", "|")):
        try:
            records = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
            widths = [len(record) for record in itertools.islice(records, _FIRST) if record]
        except csv.Error:
            continue
        if widths and widths[0] > 1:
            is_regular = 2 * widths[1:].count(widths[0]) >= len(widths) - 1
            if (is_regular, widths[0]) > most:
                best, most = delimiter, (is_regular, widths[0])
    return best, most[1]


def _is_quoted(path: Path, form: Form) -> bool:
    """Whether fields of a TSV are quoted by the rule of CSV; else a quotation mark is text."""
    width, n_broken, is_regular, is_doubled = 0, 0, True, False
    with open_text(path, form) as (file, _):
        for line in file:
            fields = line.rstrip("\r\n").split("\t")
            width = width or len(fields)
            n_broken += len(fields) != width and line.strip() != ""
            # Only a writer that quotes doubles a quotation mark.
            is_doubled = is_doubled or '""' in line
            if is_regular and '"' in line:
                is_regular = all('"' not in f or _QUOTED.fullmatch(f) for f in fields)
    if is_regular or not (n_broken or is_doubled):
        return is_regular
    n_broken_quoted = 0
    with open_text(path, form) as (file, _):
        records = csv.reader(file, delimiter="\t", strict=True)
        while True:
            try:
                record = next(records, None)
            except csv.Error:
                n_broken_quoted += 1
                continue
            if record is None:
                return n_broken_quoted <= n_broken
            n_broken_quoted += len(record) not in (0, width)


# JSON documents ---------------------------------------------------------------------------------


def json_rows(text: str) -> Iterator[str]:
    """Yield the JSON text of each row of a document.

    A document is an array, or several one after another; an object with the rows under a key such
    as `data`; a table as pandas writes it, such as {column: {row: value}}; or a single row.

    Raises:
        ValueError: it is not JSON; the message names the position.
    """
    decoder, is_inside = json.JSONDecoder(), False
    position = _skip(text, 0)
    while position < len(text):
        mark = text[position]
        if mark == ("]" if is_inside else "["):
            is_inside, position = not is_inside, position + 1
        elif mark == ",":
            position += 1
        else:
            try:
                value, end = decoder.raw_decode(text, position)
            except RecursionError as error:
                raise ValueError(f"JSON nested too deeply, from character {position:,}") from error
            rows = _rows_of(value) if isinstance(value, dict) and not is_inside else None
            yield from [text[position:end]] if rows is None else map(json.dumps, rows)
            position = end
        position = _skip(text, position)
    if is_inside:
        raise ValueError("a JSON array without its end")


def _skip(text: str, position: int) -> int:
    match = re.compile(r"[\s\ufeff]*").match(text, position)
    return match.end() if match else position


def _rows_of(table: dict[str, Any]) -> list[Any] | None:
    """Return the rows of an object that is a whole table; None if it is a single row."""
    names, values = table.get("columns"), list(table.values())
    rows: list[Any] = next((table[key] for key in _ROWS if isinstance(table.get(key), list)), [])
    if rows and all(isinstance(row, dict) and isinstance(row.get("row"), dict) for row in rows):
        # The Hub's dataset viewer.
        return [row["row"] for row in rows]
    if rows and isinstance(names, list) and all(isinstance(row, list) for row in rows):
        return [dict(zip(map(str, names), row, strict=False)) for row in rows]
    if rows and all(isinstance(row, dict | None) for row in rows):
        return rows
    if values and all(isinstance(value, dict) for value in values):
        if all(key.isdigit() for value in values for key in value):
            keys = dict.fromkeys(itertools.chain(*values))
            return [{name: table[name].get(key) for name in table} for key in keys]
        return values if all(map(str.isdigit, table)) else None
    if values and all(isinstance(value, list) for value in values):
        cells = itertools.chain(*values)
        is_table = len(set(map(len, values))) == 1 and not all(isinstance(c, dict) for c in cells)
        return (
            [dict(zip(table, row, strict=True)) for row in zip(*values, strict=True)]
            if is_table
            else None
        )
    return None
