"""Clean prompts and stories: remove what surrounds a story but is not part of it.

Each of the three steps has its own config key and is counted: remove tags from the prompt, remove a
copy of the prompt at the start of the story, and remove notes to readers (see reader_notes.py) from
the start and end of the story. These notes leak the label: an author who thanks for gold has
received it. A text is never left empty.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import dropwhile

import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.curation.funnel import Examples
from litbench.data.curation.reader_notes import cut_reader_notes, has_words, is_rule
from litbench.data.text import normalise_prompt

# Tags of r/WritingPrompts and similar subreddits match in any case. Other tags must be in capitals,
# so that "[Redacted] woke up." keeps its first word.
_TAG = re.compile(
    r"^[\s*_#>]*\[\s*((?i:WP|SP|EU|CW|TT|IP|MP|RF|PM|PI|CC|OT|FF|ID|MODPOST|META|AMA|PUBQ|POETRY|"
    r"CONTEST|REQUEST|TOMT)|[A-Z]{2,4})\s*\][\s*_#>]*"
)
_MAX_TAGS = 8
_OPENING_MARKS = re.compile(r"\s*([*_]+)")
# Reddit limits titles to 300 characters; a longer prompt than this is left unchanged.
_LONGEST_PROMPT = 10_000

_QUOTED_LINES = 6
_SPEECH = re.compile(r"[\s*_]*[\"“”„«‘']")
_NOT_LETTERS = re.compile(r"[\W_]+")
_LABEL = re.compile(r"^(?:the |original |writing )*prompt(?: was| is)?(?: [a-z]{2})? ")
# A short title that is not marked as quoted may be the story's own title or first line.
_SHORTEST_PROMPT, _SHORTEST_MARKED = 40, 10
_QUOTE_MARK = re.compile(r"[\s*_#]*(?:>|\[\s*[A-Za-z]{2,8}\s*\]|prompt\b)", re.I)


@dataclass(frozen=True)
class Cleaning:
    """The cleaning steps; each attribute is also the name of its step.

    Attributes:
        strip_prompt_tags: remove leading tags such as "[WP]" from the prompt. The first tag goes
            into the column `flair` if the table has this column and the value is null.
        cut_quoted_prompt: remove a copy of the prompt at the start of a story.
        cut_vote_talk: remove notes to readers at the start and end of a story: votes, awards,
            edits, thanks, requests for feedback, links to the author's pages.
    """

    strip_prompt_tags: bool = True
    cut_quoted_prompt: bool = True
    cut_vote_talk: bool = True

    @classmethod
    def none(cls) -> "Cleaning":
        """Return a configuration with every step switched off."""
        return cls(strip_prompt_tags=False, cut_quoted_prompt=False, cut_vote_talk=False)


def clean_table(
    table: pa.Table,
    cleaning: Cleaning,
    texts: Mapping[str, str],
    examples: Examples | None = None,
) -> tuple[pa.Table, dict[str, int]]:
    """Clean the texts of a table. `n_words` is not updated.

    Args:
        table: table with the columns `prompt` and those named in `texts`; `flair` is optional.
        cleaning: steps to apply, in the order of the attributes of `Cleaning`.
        texts: maps each column of story texts to the column that identifies its rows in
            `examples`: {"text": "story_id"} or {"chosen": "pair_id", "rejected": "pair_id"}.
        examples: collects the removed passages; for `strip_prompt_tags`, the whole prompt.

    Returns:
        The cleaned table, with its rows in the same order, and the number of texts that each
        enabled step changed.
    """
    changed: dict[str, int] = {}
    examples = examples or Examples(0)
    if cleaning.strip_prompt_tags:
        prompts = table["prompt"].to_pylist()
        tagged = {row: _without_tags(prompt) for row, prompt in enumerate(prompts) if prompt}
        stripped = {row: (rest, tag) for row, (rest, tag) in tagged.items() if tag}
        changed["strip_prompt_tags"] = len(stripped)
        for row, (_, tag) in stripped.items():
            name = str(table[next(iter(texts.values()))][row].as_py())
            examples.add("strip_prompt_tags", name, prompts[row], f"tag {tag}")
        table = _replace(table, "prompt", {row: rest for row, (rest, _) in stripped.items()})
        if "flair" in table.column_names:
            unknown = pc.is_null(table["flair"]).to_pylist()
            tags = {row: tag for row, (_, tag) in stripped.items() if unknown[row]}
            table = _replace(table, "flair", tags)
    finders: dict[str, Callable[[pa.Table, str], dict[int, tuple[str, str]]]] = {
        "cut_quoted_prompt": _quoted_prompts,
        "cut_vote_talk": lambda table, column: cut_reader_notes(table[column]),
    }
    for step, find in finders.items():
        if not getattr(cleaning, step):
            continue
        changed[step] = 0
        for column, name_column in texts.items():
            passages = find(table, column)
            changed[step] += len(passages)
            for row, (_, passage) in passages.items():
                name = str(table[name_column][row].as_py())
                examples.add(step, name, passage, f"cut from {column}")
            table = _replace(table, column, {row: text for row, (text, _) in passages.items()})
    return table, changed


def _replace(table: pa.Table, column: str, values: Mapping[int, str]) -> pa.Table:
    """The table with some cells of a text column replaced."""
    if not values:
        return table
    field, cells = table.schema.field(column), table[column].to_pylist()
    for row, value in values.items():
        cells[row] = value
    index = table.schema.get_field_index(column)
    return table.set_column(index, field, pa.array(cells, field.type))


@lru_cache(maxsize=8_192)
def _without_tags(prompt: str) -> tuple[str, str | None]:
    """Return the prompt without its leading tags, and the first tag in capitals."""
    rest, first = prompt[:_LONGEST_PROMPT], None
    for _ in range(_MAX_TAGS):
        tag = _TAG.match(rest)
        if tag is None:
            break
        first = first or tag[1].upper()
        rest = rest[tag.end() :]
    marks = _OPENING_MARKS.match(prompt)
    if marks and rest.endswith(marks[1]) and rest.count(marks[1]) == 1:
        # "**[WP] A door.**": remove the closing mark of markup that opened before the tag.
        rest = rest[: -len(marks[1])]
    rest = rest.strip().removeprefix(":").lstrip()
    # Splits and leakage checks use the normalised prompt, which must not change.
    key = normalise_prompt(rest) if first else ""
    return (rest, first) if key and key == normalise_prompt(prompt) else (prompt, None)


@lru_cache(maxsize=8_192)
def _prompt_folded(prompt: str) -> tuple[str, str]:
    """Return the normalised prompt and its first ten letters, for a cheap first comparison."""
    folded = normalise_prompt(prompt) if len(prompt) <= _LONGEST_PROMPT else ""
    return folded, _NOT_LETTERS.sub("", folded)[:10]


def _quoted_prompts(table: pa.Table, column: str) -> dict[int, tuple[str, str]]:
    """Map each row whose story opens with the prompt to the rest of the story and the quote."""
    rows = zip(table[column].to_pylist(), table["prompt"].to_pylist(), strict=True)
    cuts = {
        row: _without_quote(text or "", prompt or "") for row, (text, prompt) in enumerate(rows)
    }
    return {row: cut for row, cut in cuts.items() if cut is not None}


def _without_quote(text: str, prompt: str) -> tuple[str, str] | None:
    folded, start = _prompt_folded(prompt)
    marked = _QUOTE_MARK.match(text) is not None
    if start not in _NOT_LETTERS.sub("", text[:210].lower()) or (
        # A prompt that is a line of dialogue may be spoken again in the story.
        not marked and _SPEECH.match(text)
    ):
        return None
    if len(folded.encode("utf-8", "surrogatepass")) < (
        _SHORTEST_MARKED if marked else _SHORTEST_PROMPT
    ):
        return None
    lines = text.split("\n")
    for n in range(1, min(len(lines), _QUOTED_LINES) + 1):
        head = "\n".join(lines[:n])
        if len(head) > _LONGEST_PROMPT:
            return None
        quoted = normalise_prompt(head)
        if folded in (quoted, _LABEL.sub("", quoted)):
            rest = "\n".join(dropwhile(is_rule, lines[n:]))
            return (rest, head.strip()) if has_words(rest) else None
    return None
