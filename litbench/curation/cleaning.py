"""Cleaning of texts: what surrounds a story without belonging to it is cut, and counted.

Three steps, each with its key: tags off the prompt, the prompt off the head of the story, and talk
to the readers (see reader_talk.py) off the story's edges. Such talk gives away the label: whoever
thanks for gold has got it. A text is never left empty.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from litbench.curation.funnel import Examples
from litbench.curation.reader_talk import cut_reader_talk, has_words, is_rule
from litbench.records import ARROW_TYPES
from litbench.text import normalise_prompt

# The story that is left and the passage that was cut.
_Cut = tuple[str, str]


@dataclass(frozen=True)
class Cleaning:
    """Which texts are cut; each key is the name of its step.

    Attributes:
        strip_prompt_tags: leading tags such as "[WP]" off the prompt; the first one goes into the
            column `flair` where the table has it and it is null.
        cut_quoted_prompt: the prompt repeated at the head of a story.
        cut_vote_talk: talk to the readers at the edges of a story: votes, awards, edits, thanks,
            requests for feedback, the author's other places.
    """

    strip_prompt_tags: bool = True
    cut_quoted_prompt: bool = True
    cut_vote_talk: bool = True

    @classmethod
    def none(cls) -> "Cleaning":
        """Every step off."""
        return cls(strip_prompt_tags=False, cut_quoted_prompt=False, cut_vote_talk=False)


def clean_table(
    table: pa.Table,
    cleaning: Cleaning,
    texts: Mapping[str, str],
    examples: Examples | None = None,
) -> tuple[pa.Table, dict[str, int]]:
    """Cut what `cleaning` names out of a table's texts.

    Words are not counted again: whoever calls this does so.

    Args:
        table: has the column `prompt`, may have `flair`, and has the columns named in `texts`.
        cleaning: the steps to take, in the order of its attributes.
        texts: for each column of story texts the column that names its rows in `examples`, such
            as {"text": "story_id"} or {"chosen": "pair_id", "rejected": "pair_id"}.
        examples: is offered every passage that was cut; for `strip_prompt_tags`, the prompt.

    Returns:
        The table with the same rows in the same order, and for each step that is on the number
        of texts it changed.
    """
    changed: dict[str, int] = {}
    if cleaning.strip_prompt_tags:
        names = table[next(iter(texts.values()))] if texts else None
        table, changed["strip_prompt_tags"] = _strip_tags(table, names, examples)
    finders: dict[str, Callable[[pa.Table, str], dict[int, _Cut]]] = {
        "cut_quoted_prompt": _quoted_prompts,
        "cut_vote_talk": lambda table, column: cut_reader_talk(table[column]),
    }
    for step, find in finders.items():
        if not getattr(cleaning, step):
            continue
        changed[step] = 0
        for column, name_column in texts.items():
            found = find(table, column)
            changed[step] += len(found)
            if examples is not None:
                for row, (_, passage) in found.items():
                    name = str(table[name_column][row].as_py())
                    examples.add(step, name, passage, f"cut from {column}")
            table = _replace(table, column, {row: kept for row, (kept, _) in found.items()})
    return table, changed


def _replace(table: pa.Table, column: str, values: Mapping[int, str]) -> pa.Table:
    """The table with some cells of a text column replaced."""
    if not values:
        return table
    field = table.schema.field(column)
    mask = [False] * table.num_rows
    for row in values:
        mask[row] = True
    new = pa.array([values[row] for row in sorted(values)], field.type)
    merged = pc.replace_with_mask(table[column], pa.array(mask), new)
    return table.set_column(table.schema.get_field_index(column), field, merged)


# Tags of prompts ------------------------------------------------------------------------------

# What r/WritingPrompts and its like put before a title, in any case; others only in capitals, so
# that "[Redacted] woke up." keeps its first word.
_TAGS = (
    "WP|SP|EU|CW|TT|IP|MP|RF|PM|PI|CC|OT|FF|ID|MODPOST|META|AMA|PUBQ|POETRY|CONTEST|REQUEST|TOMT"
)
_TAG = re.compile(rf"^[\s*_#>]*\[\s*((?i:{_TAGS})|[A-Z]{{2,4}})\s*\][\s*_#>]*")
_MOST_TAGS = 8
# Reddit's titles end at 300 characters; a text this long in the place of a prompt is left alone.
_LONGEST_PROMPT = 10_000
_LEADING_MARKS = re.compile(r"^[*_]+")


@lru_cache(maxsize=8_192)
def _without_tags(prompt: str) -> tuple[str, str | None]:
    """The prompt without its leading tags, and the first tag in capitals."""
    rest, first = prompt, None
    if len(prompt) > _LONGEST_PROMPT:
        return prompt, None
    for _ in range(_MOST_TAGS):
        found = _TAG.match(rest)
        if found is None:
            break
        first = first or found[1].upper()
        rest = rest[found.end() :]
    if first is None:
        return prompt, None
    marks = _LEADING_MARKS.match(prompt.lstrip())
    if marks and rest.endswith(marks[0]) and marks[0] not in rest[: -len(marks[0])]:
        # "**[WP] A door.**": what was opened before the tag is closed at the end.
        rest = rest[: -len(marks[0])]
    rest = rest.strip().removeprefix(":").lstrip()
    # Splits and leaks go by the normalised prompt, so it must stay what it was.
    if not normalise_prompt(rest) or normalise_prompt(rest) != normalise_prompt(prompt):
        return prompt, None
    return rest, first


def _strip_tags(
    table: pa.Table, names: pa.ChunkedArray | None, examples: Examples | None
) -> tuple[pa.Table, int]:
    prompts = table["prompt"]
    tagged = pc.match_substring_regex(prompts, pattern=r"^[\s*_#>]*\[")
    rows = pc.indices_nonzero(pc.fill_null(tagged, False)).to_pylist()
    stripped: dict[int, str] = {}
    tags: dict[int, str] = {}
    for row, prompt in zip(rows, prompts.take(pa.array(rows, pa.int64())).to_pylist(), strict=True):
        rest, tag = _without_tags(prompt)
        if tag is None:
            continue
        stripped[row], tags[row] = rest, tag
        if examples is not None and names is not None:
            examples.add("strip_prompt_tags", str(names[row].as_py()), prompt, f"tag {tag}")
    if "flair" in table.column_names:
        # A column without any value may come as Arrow's type of nulls.
        place = table.schema.get_field_index("flair")
        if pa.types.is_null(table["flair"].type):
            table = table.set_column(place, "flair", table["flair"].cast(ARROW_TYPES["text"]))
        unknown = set(pc.indices_nonzero(pc.is_null(table["flair"])).to_pylist())
        known = {row: tag for row, tag in tags.items() if row in unknown}
        table = _replace(table, "flair", known)
    return _replace(table, "prompt", stripped), len(stripped)


# The prompt, quoted ---------------------------------------------------------------------------

_QUOTED_LINES = 6
_LONGEST_QUOTE = 4_000
_SPEECH = re.compile(r"[\s*_]*[\"“”„«‘']")
_NOT_LETTERS = re.compile(r"[\W_]+")
_LABEL = re.compile(
    r"^(?:the |original |writing |my |today'?s )*prompt(?: was| is)?"
    r"(?: (?:wp|sp|eu|cw|tt|ip|mp|rf|pm))* "
)
# A short title may well be a story's own title or first line, if nothing marks it as quoted.
_SHORTEST_PROMPT, _SHORTEST_MARKED = 40, 10
_QUOTE_MARK = re.compile(r"[\s*_#]*(?:>|\[\s*[A-Za-z]{2,8}\s*\]|prompt\b)", re.I)


@lru_cache(maxsize=8_192)
def _prompt_folded(prompt: str) -> tuple[str, str]:
    """The normalised prompt, and its first letters, by which a candidate is found."""
    folded = normalise_prompt(prompt) if len(prompt) <= _LONGEST_PROMPT else ""
    return folded, _NOT_LETTERS.sub("", folded)[:10]


def _without_quote(text: str, prompt: str) -> tuple[str, str] | None:
    """The story without the prompt at its head, and what was cut; null where it is not there."""
    folded, start = _prompt_folded(prompt)
    marked = _QUOTE_MARK.match(text) is not None
    if not marked and _SPEECH.match(text):
        # A prompt that is something said is said again in the story.
        return None
    shortest = _SHORTEST_MARKED if marked else _SHORTEST_PROMPT
    if len(folded.encode("utf-8", "surrogatepass")) < shortest:
        return None
    head = text[: 200 + len(start)]
    if start not in _NOT_LETTERS.sub("", head.lower()):
        return None
    taken: list[str] = []
    place = 0
    for _ in range(_QUOTED_LINES):
        end = text.find("\n", place)
        line = text[place:] if end < 0 else text[place:end]
        if len(line) > _LONGEST_QUOTE:
            return None
        taken.append(line)
        place = len(text) if end < 0 else end + 1
        quoted = normalise_prompt("\n".join(taken))
        if quoted != folded:
            quoted = _LABEL.sub("", quoted)
        if quoted == folded:
            rest = _after_rule(text[place:])
            return (rest, text[:place].strip()) if has_words(rest) else None
        if end < 0 or len(quoted) > len(folded) + 40:
            return None
    return None


def _after_rule(text: str) -> str:
    """A text without the blank lines and horizontal rules at its head."""
    place = 0
    while place < len(text):
        end = text.find("\n", place)
        end = len(text) if end < 0 else end
        if not is_rule(text[place:end]):
            break
        place = end + 1
    return text[place:]


def _quoted_prompts(table: pa.Table, column: str) -> dict[int, _Cut]:
    """Cut the prompts at the heads of a table's stories."""
    pairs = zip(table[column].to_pylist(), table["prompt"].to_pylist(), strict=True)
    cuts = (
        (row, _without_quote(text, prompt))
        for row, (text, prompt) in enumerate(pairs)
        if text is not None and prompt is not None
    )
    return {row: cut for row, cut in cuts if cut is not None}
