"""Novels as text: their chapters, and the choice of a subset."""

import math
import random
import re
from collections.abc import Mapping

from litbench.data.text import digest, normalise
from litbench.runs.errors import DataError

_NUMERAL = "[0-9０-９零〇一二两三四五六七八九十百千万]+"
_BLANK = "[ \t\u3000]"
# A heading starts its line. Without a separator the title must be short and no sentence, since
# sentences, too, may begin with the number of a chapter.
_HEADING = re.compile(
    rf"^{_BLANK}*(?:"
    rf"第{_BLANK}*{_NUMERAL}{_BLANK}*[章回节卷]"
    rf"(?:{_BLANK}*$|(?:{_BLANK}|[:：、.．—-])[^\n]{{0,60}}(?<!。)$|[^\n。，！？,]{{1,30}}$)"
    rf"|(?:楔子|序章|序幕|引子|番外|尾声|终章)(?:{_NUMERAL})?(?:{_BLANK}*$|(?:{_BLANK}|[:：])[^\n。]{{0,60}}$)"
    rf"|chapter{_BLANK}+\d+\b[^\n]{{0,60}}$)",
    re.I | re.M,
)
# So many headings without text in a row are a table of contents.
_CONTENTS = 3
_BINS = 100


def split_chapters(text: str) -> list[str]:
    """Split a novel at its headings and return the chapters' texts, without headings.

    Text before the first heading, and headings without text, such as those of a table of
    contents, make no chapter. A text without headings is one chapter.
    """
    # Text files may begin with a byte order mark.
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    headings = list(_HEADING.finditer(text))
    if not headings:
        return [text.strip()] if text.strip() else []
    ends = [*(match.start() for match in headings[1:]), len(text)]
    bodies = [text[match.end() : end].strip() for match, end in zip(headings, ends, strict=True)]
    names = [normalise(match[0]) for match in headings]
    last = {name: number for number, name in enumerate(names)}
    chapters, empty = [], 0
    for number, (name, body) in enumerate(zip(names, bodies, strict=True)):
        # The last heading of a table of contents is followed by front matter.
        ends_contents = empty >= _CONTENTS and last[name] > number
        if body and not ends_contents:
            chapters.append(body)
        empty = 0 if body else empty + 1
    return chapters


def consecutive_chapters(chapters: list[str], count: int, seed: int, name: str) -> list[str]:
    """Return `count` consecutive chapters; the seed and a name decide where they start."""
    source = random.Random(int(digest("chapters", seed, name), 16))
    start = source.randrange(len(chapters) - count + 1)
    return chapters[start : start + count]


def one_per_percentile(percentiles: Mapping[str, float], seed: int) -> list[str]:
    """Draw one book from (p - 1, p] for p = 1, ..., 100, each book at most once.

    An empty interval, after all others are drawn, takes the nearest book that is left.

    Percentiles, by book, are 0 to 100; 0 belongs to the first interval. Returns 100 books.
    """
    if len(percentiles) < _BINS:
        raise DataError(f"{len(percentiles)} books have a percentile: {_BINS} are needed")
    by_bin: dict[int, list[str]] = {}
    for name, percentile in sorted(percentiles.items()):
        by_bin.setdefault(max(math.ceil(percentile), 1), []).append(name)
    drawn = {
        number: min(names, key=lambda name: digest("subset", seed, name))
        for number, names in by_bin.items()
    }
    for number in range(1, _BINS + 1):
        if number not in drawn:
            left = sorted(percentiles.keys() - drawn.values())
            drawn[number] = min(left, key=lambda name: abs(percentiles[name] - number + 0.5))
    return [drawn[number] for number in range(1, _BINS + 1)]
