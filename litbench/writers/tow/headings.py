"""Headings and paragraphs of Chinese texts, and the formatting leaf of Tree-of-Writing.

The heading tree is that of Listing 1 of the paper (appendix M.8). The leaf is rated as the
published code does (github.com/ZhuoerFeng/ACL2026-Tree-of-Writing), or by the paper's Table 10,
which names outcomes but no rules: the rules are ours.
"""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

_NUMERAL = "[一二三四五六七八九十]+"
# The first pattern that matches a line decides.
_PATTERNS = {
    "markdown": re.compile(r"(#{1,6})\s*(.*)"),
    "chinese": re.compile(rf"({_NUMERAL})[、.．]\s*(.*)"),
    "chinese_second": re.compile(rf"[（(]({_NUMERAL})[)）]\s*(.*)"),
}
_DIGITS = " 一二三四五六七八九"
_PUBLISHED_MARKDOWN = re.compile(r"(#{1,6})\s+.")
_PUBLISHED_TITLE = re.compile(
    r"(?:[一二三四五六七八九十百]+[、.．]|第[一二三四五六七八九十百]+[章节部分]|\d+[、.．])\s*.+"
)
# A line of nothing but marks is a divider.
_BULLET = re.compile(r"[-*+•]\s.*\w")
_SENTENCE_END = re.compile("[。！？!?…]+")
# Genres of continuous text, in which lists do not belong.
_CONTINUOUS = frozenset(["fiction", "prose", "poetry", "argumentative", "letter", "speech"])
# Texts below this many characters need no headings.
_SHORT = 500


@dataclass
class Heading:
    """A heading and those below it.

    Attributes:
        kind: how it is marked: markdown, chinese, chinese_second; `root` is the text itself.
        title: its text without mark.
        number: number of hashes, or value of the numeral (0: not a numeral below 100).
        line: index of its line in the text.
        is_raised: a Markdown heading with fewer hashes than the first one, which the tree holds at
            the level of the first one.
        children: headings one level below.
    """

    kind: str
    title: str = ""
    number: int = 0
    line: int = -1
    is_raised: bool = False
    children: list["Heading"] = field(default_factory=list)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n")]


def find_headings(text: str) -> list[Heading]:
    """Find the headings of a text, in order and without children."""
    headings = []
    for number, line in enumerate(_lines(text)):
        for kind, pattern in _PATTERNS.items():
            if match := pattern.match(line):
                mark, title = match.groups()
                rank = len(mark) if kind == "markdown" else _numeral_value(mark)
                headings.append(Heading(kind, title, rank, number))
                break
    return headings


def _numeral_value(numeral: str) -> int:
    """Value of a Chinese numeral from 1 to 99; 0 if it is not well-formed."""
    tens, ten, ones = numeral.rpartition("十")
    if len(tens) > 1 or len(ones) > 1 or "十" in tens:
        return 0
    value = 10 * (_DIGITS.index(tens) if tens else 1) if ten else 0
    return value + (_DIGITS.index(ones) if ones else 0)


def heading_tree(text: str) -> Heading:
    """Arrange the headings of a text in a tree, as Listing 1 does, and return its root.

    First-level Chinese headings and Markdown headings of the first one's level are children of the
    root. The listing fails on Markdown headings with fewer hashes than the first one; here they
    are children of the root, too, with `is_raised`.
    """
    root = Heading("root")
    stack = [root]
    first_hashes = 0
    for heading in find_headings(text):
        level = 2 if heading.kind == "chinese" else 3
        if heading.kind == "markdown":
            first_hashes = first_hashes or heading.number
            heading.is_raised = heading.number < first_hashes
            level = max(heading.number - first_hashes, 0) + 2
        del stack[level - 1 :]
        stack[-1].children.append(heading)
        stack.append(heading)
    return root


def formatting_violations(text: str, genre: str) -> list[str]:
    """Find what breaks the hierarchy of headings, or the text.

    Returns:
        Any of `level_jump` (a Markdown heading is more than one level below the one before),
        `second_before_first` (a second-level Chinese heading before any other heading),
        `numbering` (Chinese numerals that do not go up by one; they may start again below a higher
        heading) and `bullets` (two or more in a genre of continuous text).
    """
    headings = find_headings(text)
    bullets = sum(bool(_BULLET.match(line)) for line in _lines(text))
    violations = {
        "level_jump": _jumps(
            [heading.number for heading in headings if heading.kind == "markdown"]
        ),
        "second_before_first": bool(headings) and headings[0].kind == "chinese_second",
        "numbering": not _is_numbered_in_order(headings),
        "bullets": genre in _CONTINUOUS and bullets >= 2,
    }
    return [name for name, is_broken in violations.items() if is_broken]


def _jumps(hashes: Sequence[int]) -> bool:
    """Whether a Markdown heading is more than one level below the one before."""
    return any(after > before + 1 for before, after in itertools.pairwise(hashes))


def _is_numbered_in_order(headings: Sequence[Heading]) -> bool:
    last = {"chinese": 0, "chinese_second": 0}
    may_restart: set[str] = set()
    for heading in headings:
        if heading.kind == "markdown":
            may_restart = {"chinese", "chinese_second"}
            continue
        restarts = heading.number == 1 and heading.kind in may_restart
        if heading.number != last[heading.kind] + 1 and not restarts:
            return False
        last[heading.kind] = heading.number
        may_restart.discard(heading.kind)
        if heading.kind == "chinese":
            may_restart.add("chinese_second")
    return True


def formatting_score(text: str, genre: str) -> int | None:
    """Rate the formatting by the paper's Table 10.

    Returns:
        0 with a violation, 5 with at most one heading, else 10. None (not applicable) for poetry
        and for texts below 500 characters, if they have neither headings nor violations.
    """
    if formatting_violations(text, genre):
        return 0
    headings = len(find_headings(text))
    if headings == 0 and (genre == "poetry" or len(text) < _SHORT):
        return None
    return 10 if headings > 1 else 5


def published_formatting_score(text: str) -> int:
    """Rate the formatting as the published code does.

    Returns:
        0 if a Markdown heading is more than one level below the one before, else 10 with any title
        (numbered list items are titles there) or below 500 characters, else 5.
    """
    lines = _lines(text)
    hashes = [len(match[1]) for line in lines if (match := _PUBLISHED_MARKDOWN.match(line))]
    if _jumps(hashes):
        return 0
    has_title = bool(hashes) or any(_PUBLISHED_TITLE.match(line) for line in lines)
    return 10 if has_title or len(text) < _SHORT else 5


def paragraph_statistics(text: str) -> dict[str, float]:
    """Count the criteria of paragraphing that can be counted.

    Returns:
        `paragraphs`, the number of non-blank lines that are no headings; of these, the shares above
        500 characters (`long_share`), below 50 (`short_share`) and of at most one sentence
        (`one_sentence_share`), NaN without paragraphs; `largest_chapter_share`, the share of the
        largest chapter in the characters of all chapters, NaN for fewer than two. Chapters begin at
        the topmost headings of which there are several.
    """
    lines = _lines(text)
    headings = {heading.line for heading in find_headings(text)}
    lengths = np.array([0 if k in headings else len(line) for k, line in enumerate(lines)])
    paragraphs = [line for line, length in zip(lines, lengths, strict=True) if length]
    node = heading_tree(text)
    while len(node.children) == 1:
        node = node.children[0]
    starts = [heading.line for heading in node.children]
    chapters = [int(part.sum()) for part in np.split(lengths, starts)[1:]]
    counts = {
        "long_share": sum(len(line) > 500 for line in paragraphs),
        "short_share": sum(len(line) < 50 for line in paragraphs),
        "one_sentence_share": sum(len(_SENTENCE_END.findall(line)) <= 1 for line in paragraphs),
    }
    n = len(paragraphs)
    return {
        "paragraphs": n,
        **{name: count / n if n else math.nan for name, count in counts.items()},
        "largest_chapter_share": max(chapters) / sum(chapters) if sum(chapters) else math.nan,
    }
