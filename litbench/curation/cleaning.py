"""Cleaning of texts: what stands around a story without belonging to it is cut, and counted.

Three steps, each with its switch: tags off the prompt, the prompt off the head of the story, and
talk to the readers (votes, awards, edits, thanks, the author's own places) off the story's edges.
That talk is the label in plain sight: who thanks for gold has got it.

Precision comes first, since fiction says "thank you", "gold" and "edit" as well. Lines are cut as
wholes, only when they open with one of the formulae below, and, unless they are marked edits about
votes, only among the first and last few lines of a text. A text is never left empty.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from litbench.curation.funnel import Examples
from litbench.errors import DataError
from litbench.records import ARROW_TYPES
from litbench.text import normalise_prompt


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

    Raises:
        DataError: a column is missing.
    """
    for name in ("prompt", *texts, *texts.values()):
        if name not in table.column_names:
            raise DataError(
                f"cleaning: the table has no column '{name}', only {table.column_names}: name a "
                "column of texts and the one that names its rows"
            )
    changed: dict[str, int] = {}
    if cleaning.strip_prompt_tags:
        names = table[next(iter(texts.values()))] if texts else None
        table, changed["strip_prompt_tags"] = _strip_tags(table, names, examples)
    steps: list[tuple[str, Callable[[pa.Table, str], dict[int, tuple[str, str]]]]] = []
    if cleaning.cut_quoted_prompt:
        steps.append(("cut_quoted_prompt", _quoted_prompts))
    if cleaning.cut_vote_talk:
        steps.append(("cut_vote_talk", _vote_talk))
    for step, find in steps:
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
            return (rest, text[:place].strip()) if _has_words(rest) else None
        if end < 0 or len(quoted) > len(folded) + 40:
            return None
    return None


def _after_rule(text: str) -> str:
    """A text without the blank lines and horizontal rules at its head."""
    place = 0
    while place < len(text):
        end = text.find("\n", place)
        end = len(text) if end < 0 else end
        if not _is_rule(text[place:end]):
            break
        place = end + 1
    return text[place:]


def _quoted_prompts(table: pa.Table, column: str) -> dict[int, tuple[str, str]]:
    found = {}
    pairs = zip(table[column].to_pylist(), table["prompt"].to_pylist(), strict=True)
    for row, (text, prompt) in enumerate(pairs):
        if text is None or prompt is None:
            continue
        cut = _without_quote(text, prompt)
        if cut is not None:
            found[row] = cut
    return found


# Talk to the readers --------------------------------------------------------------------------

# Arrow's engine looks through all texts at once for a word without which no formula fits.
_TRIGGER = (
    r"(?i)\b(?:edit(?:s|ed)?\d?\b|eta\b|update|gold\b|silver\b|platinum\b|award|gild|(?:up|down)-?"
    r"vot|karma\b|front ?page|inbox|thank|thx|tysm|patreon|ko-?fi|subscribe|subs?\b|subreddit|"
    r"reddit|feedback|critici|critique|c&c|first (?:\w+ )?(?:time|attempt|post|story|prompt|"
    r"response|submission)|hope(?:d|fully)? (?:you|y'all|this|it|everyone|op|people)|let me know|"
    r"tell me (?:what|if|how)|author.?s? note|a/n\b|mobile|phone|part (?:two|three|ii|[2-9])|"
    r"(?:highest|top|most)[- ](?:rated|voted|scoring)|grammar|format|typos?\b|spelling|english|"
    r"punctuation|blew|blown|blowing|exploded|liked|enjoy|wattpad|my (?:\w+ ){0,2}(?:blog|profile|"
    r"website|twitter|youtube|instagram|discord|newsletter))|\b[ru]/\w"
)
_HEAD_LINES, _TAIL_LINES = 3, 8
_LONGEST_LINE, _LONGEST_INLINE = 1_500, 500
# What follows a marked edit belongs to it, if it is short and the story before it is long.
_LONGEST_REST, _TIMES_BEFORE = 400, 4

_WORD = re.compile(r"[^\W_]")
_LINK = re.compile(r"!?\[([^\[\]]{0,300})\]\s?\(\s?([^()\s]{0,500})[^()]{0,100}\)")
_ADDRESS = re.compile(r"https?://(?:(?:www|old|new|np|m)\.)?", re.I)
_ENTITY = re.compile(r"&(?:amp;)?(?:nbsp|#x200b|#8203);", re.I)
_MARKUP = re.compile(r"[*~^#>\\|`\u200b]+|!<|(?<!\w)_+|_+(?!\w)")
_QUOTES = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "«": '"', "»": '"', "„": '"'})
_BEFORE_WORDS = " \t-–—=+•·:;,.!?([{<"

_SUBREDDIT = r"(?:(?<![\w/])/?r/\w{2,}|\breddit\.com/r/\w+/?)"
_USER = r"(?:(?<![\w/])/?u/[\w-]{3,}|\breddit\.com/u(?:ser)?/[\w-]+/?)"
_PLACE = (
    rf"(?:{_SUBREDDIT}|{_USER}|\b(?:patreon|ko-?fi\b|wattpad)|\bmy (?:(?:personal|own|writing|new|"
    r"little|other) )*(?:subs?|subreddit|blog|profile|website|site|twitter|youtube|instagram|"
    r"discord|newsletter)\b)"
)
_AWARD = r"\b(?:gold|silver|platinum|(?:reddit )?awards?)\b"
_AFTER_AWARD = (
    r"(?:[\W_]*$|\W*!|\W+(?:kind|anon|anonymous|strangers?|every\w+|guys|y'all|whoever|you|i|i'm|"
    r"it|"
    r"this|my first|redditors?|reddit|random|friends?|and (?:the )?(?:silver|gold|platinum|awards?|"
    r"all|up-?votes?|support|comments|love))\b)"
)
_VOTES = r"\b(?:(?:up|down)-?vot(?:es?|ed|ing)|karma)\b"
_PART = r"\b(?:part|chapter) (?:two|three|ii|[2-9])\b"
_EXCLAIM = (
    r"(?:(?:wow|who?ah?|omg|oh my (?:god|gosh|goodness)|holy (?:crap|cow|shit|moly|hell|smokes)|"
    r"damn|dang|jee?z|gee?z|gosh|well|aw+|yay|also|and|hey|hi|guys|lol|haha|edit)\b[,.!:; ]*){0,4}"
)
_THANKS = (
    r"(?:(?:so|many|much|huge|big|special|obligatory|just|i|wanted|want|to|say|a) )*"
    r"(?:thank(?:s\b| ?(?:you|u|ya)\b)|thx\b|tysm\b|much (?:appreciated|love)\b)"
)
_SO = (
    r"(?:[,.!]{0,3} ?\b(?:so|very|much|all|both|guys|everyone|everybody|folks|again|y'all|a|lot|"
    r"ton|bunch|million|kindly|reddit|people|friends)\b)*[,.!]{0,3} ?"
)
_YOU = r"(?:y'all|you(?: guys| all)?|anyone|anybody|everyone|people|any of you)"
_LIKED = r"(?:liked?|enjoy(?:ed)?|loved?)"

# Words of a note to readers, asked for where a mark such as "EDIT:" opens the line already.
_READERS = (
    rf"{_AWARD}|\bgild|{_VOTES}|\bvotes?\b|front ?page|\b(?:blew|blown?|blowing) up\b|\binbox|"
    r"\breddit|\bsubs?\b|subreddit|subscri|\bthank(?:s\b| ?(?:you|u)\b)|\bthx\b|appreciat|"
    r"\byou guys\b|\by'all\b|\bcomment(?:s|ers?)\b|\brepl(?:y|ies)\b|\bresponses\b|\breaders?\b|"
    rf"\bfor reading|feedback|critici|critique|\bkind words|{_PART}|sequel|\bto be continued|"
    r"\b(?:this|my|the) (?:\w+ )?(?:story|stories|prompt|post|sub)\b|\bwriting\b|\bi (?:do ?n.t )?"
    r"(?:write|wrote)\b|\bfirst (?:time|post|attempt|story|gold|award|comment|writing)\b|"
    rf"{_SUBREDDIT}|{_USER}|https?:|patreon|\bnarrat|\btl;?dr|\bop\b|\bnsfw\b|\bthemes\b"
)
_MENDING = (
    r"\btypos?\b|gramm[ae]r|\bspell|format|\bspac(?:es?|ing)\b|\bword(?:ing| choice)\b|punctuat|"
    r"\btenses?\b|paragraph|line ?breaks?|italic|\bclarity\b|\bflow\b|autocorrect|\bmobile\b|"
    r"\bsentences?\b|\bmistakes?\b|\bpov\b|proofread|capitali[sz]|^edit\W*(?:just |i |i've |also |"
    r"quick |some )*(?:added|fix(?:ed|es)|correct(?:ed|ions?)|chang(?:ed|es)|cleaned|removed|"
    r"reword(?:ed)|rewrote|reformatted|expanded|edits)\b"
)
_EDIT_MARK = (
    r"edit(?:ed|s)?\s?(?:\(?#?\d{1,2}\b\)?|\([^)]{0,40}\)|(?:one|two|three|again|also)\b)?\s?"
    r"(?:[:\-–—=;,.!/>)\]]|$)|"
    r"edit(?:ed)? (?:for|to|because|since|after|again|just|wow|thank)"
)
_PROMOTION = (
    r"check (?:it |me |them )?out|\bmore (?:\w+ ){0,2}(?:stories|like|from|by|at|on|in|here|parts|"
    r"writing|work|stuff|of (?:my|this|these|the))\b|\bfind (?:more|me|my|other)|\bread (?:more|my|"
    r"the rest|other)|\bsubscribe\b|\bfollow\b|\bvisit\b|\bjoin\b|\bmy (?:\w+ ){0,2}(?:sub|work|"
    r"subreddit|profile|page|patreon|blog|website|stories|stuff|writing)\b|\bif (?:you|anyone)\b|"
    r"\bcome (?:say|see|visit|check|by|over|join)|\bwant (?:more|moar)|\bfor (?:\w+ )?(?:more|"
    r"other|longer)\b|\bstories (?:at|on|in|here)\b|feel free|\bhead (?:on )?over|x-?post|"
    r"cross-?post|"
    r"\bposted (?:on|to|at|in|over)|^see \b|support me|\bis me\b|\bmore here\b|\banyways?,? /?r/|"
    r"narrat|\bthanks\b|\bpart \d|\bchapter \d|shameless|\bplug\b"
)


@dataclass(frozen=True)
class _Formula:
    """One shape that talk to readers has.

    Attributes:
        kind: what the talk is about.
        opening: how the line opens.
        about: what else must be in it; null for nothing else.
        longest: most characters of the line.
        at_end: whether it counts only near the end of a text.
    """

    kind: str
    opening: re.Pattern[str]
    about: re.Pattern[str] | None
    longest: int
    at_end: bool


def _formula(
    kind: str, opening: str, about: str = "", *, longest: int, at_end: bool = False
) -> _Formula:
    pattern = re.compile(about) if about else None
    return _Formula(kind, re.compile(opening), pattern, longest, at_end)


# Matched against lines without markup, in lower case, with straight quotes. A comment gives an
# example of each.
_FORMULAE = (
    # "EDIT 2: wow, thanks for the gold!", "(edited for spelling)". The mark alone is not enough:
    # fiction in the form of posts has it too.
    _formula("edit", _EDIT_MARK, f"{_READERS}|{_MENDING}", longest=_LONGEST_LINE),
    # "Update: this blew up", "P.S. thank you all for the comments"
    _formula(
        "edit",
        r"(?:eta|updated?|p\.? ?s\.?|note|disclaimer)\s?\d?\s?[:\-–—,.]",
        rf"{_AWARD}.{{0,20}}!|reddit gold|\bfor the (?:gold|silver)|{_VOTES}|{_SUBREDDIT}|{_USER}|"
        r"feedback|critici|\bthank(?:s| you) (?:all|every|guys|for (?:the|all|your|reading))|"
        r"\b(?:this|my) (?:story|prompt|post)\b|\btypos?\b|\bblew up",
        longest=700,
    ),
    # "A/N: my take on the prompt"
    _formula(
        "edit",
        r"(?:author'?s? note|a/n)\b\s?[:\-–—]",
        rf"\bprompt\b|\b(?:this|my) story\b|feedback|critici|\bthank(?:s| you)\b|\breaders?\b|"
        rf"\bnsfw\b|\bthemes\b|\bwriting\b|{_SUBREDDIT}|{_USER}|{_PART}|\btypos?\b",
        longest=700,
    ),
    # "Thank you for the gold, kind stranger!", "Thanks everyone for all the support"
    _formula(
        "thanks",
        rf"{_EXCLAIM}{_THANKS}{_SO}"
        r"(?:for|to|whoever|/?[ru]/|(?:kind|anonymous|generous|mysterious|lovely)\b)",
        rf"\bfor (?:\w+ ){{0,4}}{_AWARD}{_AFTER_AWARD}|\bgild|{_VOTES}|\b(?:kind|anonymous|"
        rf"generous|mysterious|"
        r"lovely) (?:stranger|redditor|internet)|\bredditors?\b|\b(?:the|your|all) (?:\w+ ){0,3}"
        r"(?:support|feedback|comments|responses|kind words|compliments)\b|\bcriti(?:cism|que)|"
        rf"\bfor (?:stopping by|tuning in|the read)\b|{_SUBREDDIT}|{_USER}",
        longest=400,
    ),
    # "Thanks for reading, everyone!" and nothing more
    _formula(
        "thanks",
        rf"{_EXCLAIM}{_THANKS}{_SO}for (?:taking the time to read|reading)\b(?:[,!.]? ?\b(?:this|"
        r"it|the|my|our|story|stories|piece|far|along|everyone|everybody|guys|all|folks|so|post|"
        r"tale|ramblings?|response|little|short|first|and|i|hope|you|enjoyed|if|made|here)\b)*"
        r"[\W_]*(?:[:;][a-z])?$",
        longest=150,
    ),
    # "Thanks for reading! More of my stories at ..."
    _formula(
        "thanks",
        rf"{_EXCLAIM}{_THANKS}{_SO}for reading\b",
        rf"{_PLACE}|feedback|critici|critique|\bcomments?\b|\b(?:more|my|other) stories\b|{_PART}",
        longest=400,
    ),
    # "So glad you guys liked it!"
    _formula(
        "thanks",
        rf"{_EXCLAIM}(?:i.?m )?(?:so |really |very )*glad {_YOU}[^.]{{0,20}} {_LIKED} "
        r"(?:it|this|my|the story)\b",
        longest=240,
    ),
    # "My first gold!"
    _formula(
        "votes",
        rf"{_EXCLAIM}(?:(?:(?:i )?(?:got|received|woke up to) |my |the )*(?:first|1st) (?:ever |"
        rf"reddit )*{_AWARD}|got gilded\b|gilded!)[\W_]*(?:$|thank|wow|yay|omg|ever|so|i.m|you)",
        longest=180,
    ),
    # "RIP my inbox", "Front page!"
    _formula(
        "votes",
        rf"{_EXCLAIM}(?:r\.?i\.?p\.?,? (?:to )?(?:my |the )?(?:inbox|karma)|"
        rf"my (?:poor )?inbox (?:is|has|exploded|blew|can.?t|will)\b|"
        r"(?:(?:this|we|i|it|my story) )?(?:(?:hit|made it to|made|is on|on|reached) )?(?:the )?"
        r"front ?page(?: of (?:the sub|reddit|the internet|/?r/\w+))?(?:!|[\W_]*(?:thank.*)?$))",
        longest=150,
    ),
    # "Well, this blew up overnight!"
    _formula(
        "votes",
        rf"{_EXCLAIM}(?:this|it|my (?:story|comment|post|reply|response)|that)\b (?:\w+ ){{0,4}}"
        r"(?:blew|blown|blowing|exploded)(?: up)?\b",
        r"\b(?:comment|post|story|response|reply|reddit|thank|gold|guys|inbox|overnight)|"
        r"^(?:wow|who?ah?|holy|well)\b.{0,20}\bthis (?:\w+ ){0,2}(?:blew|exploded|blown)",
        longest=240,
    ),
    # "I never expected so many upvotes"
    _formula(
        "votes",
        rf"{_EXCLAIM}(?:i )?(?:did ?n.?t|did not|never|was ?n.?t|had no idea|can.?t believe|cannot "
        r"believe)\b",
        rf"{_VOTES}|\bthis (?:to |would )?(?:blow|blew|blown) up\b|\bso (?:many|much) (?:attention|"
        r"responses?|comments?|support)\b|\b(?:get|getting|first) (?:\w+ )?reddit (?:gold|silver)",
        longest=240,
    ),
    # "Over 2k upvotes!", "Please upvote if you liked this", "Why the downvotes?"
    _formula(
        "votes",
        rf"{_EXCLAIM}(?:over |almost |nearly |holy )?\d[\d.,]{{0,8}}k? {_VOTES}",
        longest=150,
    ),
    _formula(
        "votes",
        rf"{_EXCLAIM}(?:(?:please|pls|plz|so|why|and|to|whoever|those|everyone|who|all|the|with|"
        r"don.?t|do not|you|can|if|this|gets|leave|an?|remember|enough|\d+) )*(?:up|down)-?vot(?:"
        r"es?|ed|ing)\b",
        r"\b(?:please|pls|plz|why|if you|if this|don.?t|do not|story|this|more|part|guys|reddit)\b",
        longest=150,
    ),
    # "This is now my most upvoted comment"
    _formula(
        "votes",
        r"(?:\w+ ){0,5}(?:highest|top|most)[- ](?:rated|voted|upvoted|scoring) (?:comment|post|"
        r"story)\b",
        longest=180,
    ),
    # "/r/my_stories" and nothing more
    _formula(
        "elsewhere",
        rf"(?:[^\w/]*(?:{_SUBREDDIT}|{_USER})[^\w/]*){{1,3}}$",
        longest=150,
        at_end=True,
    ),
    # "Anyone who likes this will find more at r/my_stories"
    _formula("elsewhere", rf".{{0,400}}?{_PLACE}", _PROMOTION, longest=450, at_end=True),
    # "Check out my subreddit", "[Part 2](...)", at either end
    _formula(
        "elsewhere",
        rf"{_EXCLAIM}(?:if {_YOU}|(?:please |you can |feel free to |to |for |see |find |read )*"
        r"(?:check|more|visit|subscribe|follow|support|find|read|see|come)|part \w+|previous|next|"
        r"(?:this|it) (?:is|was) (?:also |originally |x-?|cross-?)?post)",
        rf"\b(?:check|more|visit|subscribe|follow|support|find|read|stories|part|post).{{0,200}}"
        rf"{_PLACE}|^(?:part \w+|previous|next)\W+.{{0,60}}reddit\.com",
        longest=400,
    ),
    # "If you liked this, subscribe for more"
    _formula(
        "elsewhere",
        rf"{_EXCLAIM}if {_YOU}(?:.d| would)? ?(?:{_LIKED}|want(?:ed|s)?|(?:are |is )?interested)\b",
        r"\bsubscribe\b|upvote|\bfollow (?:me|my)|check (?:it |me )?out|subreddit|\bsubs?\b|"
        rf"patreon|{_PART}|\bmy (?:other|work|writing|stuff|stories|profile|page|blog)\b|"
        r"\bmore of my|\bsequel",
        longest=400,
    ),
    # "Any feedback is appreciated!"
    _formula(
        "asking",
        r"(?:\w+,? ){0,8}?(?:feedback|criticisms?|critiques?|c&c)\b",
        r"\b(?:welcomed?|appreciated?|please|pls|encouraged|open to|looking for)\b",
        longest=400,
    ),
    _formula(
        "asking",
        rf"{_EXCLAIM}(?:please |so |and )*(?:let me know|tell me) (?:what|if|how|whether) (?:you "
        r"(?:guys |all )?|y'all )(?:think|thought|liked?|enjoy(?:ed)?|want(?: more| part| to (?:see"
        r"|read))?)[\W_]*(?:(?:about|of|in|it|this|the|my|story|comments|more|below|guys|part \d)"
        r"\b[\W_]*)*$",
        longest=150,
    ),
    # "Hope you enjoyed it :)"
    _formula(
        "asking",
        rf"(?:\w+ )?(?:i )?(?:just )?(?:really )?hope(?:d|fully)? (?:{_YOU}|op|this|it)(?: guys|"
        rf" all| folks)?(?: (?:{_LIKED}|was|is|isn.t|wasn.t|were))+(?: (?:this|it|the|my|reading|"
        rf"little|"
        r"short|story|stories|piece|good|okay|ok|too|bad|terrible|awful|enjoyable|and|take|"
        r"response)\b)*[\W_]*(?:[:;][a-z])?$",
        r"enjoy|like|story|reading|good|bad|terrible|awful",
        longest=120,
        at_end=True,
    ),
    # "My first time posting here, be gentle"
    _formula(
        "asking",
        rf"{_EXCLAIM}(?:\w+ ){{0,5}}?(?:(?:my|the) )?(?:very )?(?:first|1st|second)(?: ever)?"
        r"(?: \w+){0,2}? (?:time|post|prompt|response|submission|attempt|story|reply|try|piece|"
        r"poster)\b",
        r"\b(?:posting|here|on (?:this )?(?:sub|reddit|here)|this sub\b|be (?:nice|gentle|kind)|"
        r"feedback|critici|(?:so |i.m )sorry|\bsorry (?:for|about|if)|a prompt|wp|"
        r"writing ?prompts?|submission|responding|"
        r"doing (?:this|one of these))\b",
        longest=240,
    ),
    # "Sorry for the formatting, I'm on mobile"
    _formula(
        "excuse",
        rf"{_EXCLAIM}(?:(?:written|wrote|typed|typing|posted|posting|writing)(?: this| it)?"
        r"(?: all)? (?:on|from) |on )?(?:(?:i.?m )?(?:so |really |very |also )*(?:sorry|"
        r"apologi[sz]e|apologies)\b|(?:please )?(?:excuse|forgive|pardon) (?:the|any|all)\b|"
        r"(?:my )?"
        r"(?:mobile|phone)\b)",
        r"format|grammar|\btypos?\b|spelling|\b(?:on|from) (?:mobile|my phone)\b|(?:bad|poor|my) "
        r"english|punctuation|\bweak\b.*\bfirst time",
        longest=180,
    ),
    # "Part 2 coming soon!"
    _formula(
        "sequel",
        rf"{_EXCLAIM}(?:i.?ll|i will|i may|i might|i can|i could|will|working on|if there.?s|part|"
        r"more)\b",
        rf"{_PART}.{{0,60}}\b(?:soon|below|comments?|repl(?:y|ies)|interest|tomorrow)\b|"
        rf"\b(?:soon|interest|working on|write|post)\b.{{0,60}}{_PART}",
        longest=180,
        at_end=True,
    ),
)
_MARKED = re.compile(r"^[^\w\n\"“]{0,12}(?:edit|eta|update)", re.I | re.M)
_MARKED_SOMEWHERE = (
    r"(?im)^[^\w\n]{0,12}(?:edit|eta|update)|[(\[]\s?edit|"
    r"\s[*_^]{0,3}edit(?:ed)?\s?\d?[*_]{0,3}\s?[:\-–—]"
)
_BARE_MARK = re.compile(r"(?:edit|update|eta)(?: ?#?\d{1,2})?\s?[:\-–—]\W*$")
_ABOUT_VOTES = re.compile(
    rf"\bfor (?:\w+ ){{0,4}}{_AWARD}|\bgild|\bfirst (?:\w+ )?{_AWARD}|{_VOTES}|front ?page|\binbox|"
    rf"\b(?:blew|blow|blown) up\b|\bkind stranger|{_AWARD}.{{0,20}}(?:!|thank)"
)
_EDIT, _SURE_EDIT = re.compile(_EDIT_MARK), re.compile(f"{_ABOUT_VOTES.pattern}|{_MENDING}")
# Where an edit may begin that shares its line with the end of the story.
_INLINE = re.compile(r"(?<=[.!?…\"”'’*_)\]])\s+(?=[(\[*_^]*edit)|(?<=\S)\s*(?=[(\[]edit)", re.I)


def _plain(line: str) -> str:
    """A line without links, markup and opening marks, in lower case with straight quotes."""
    line = _ADDRESS.sub("", _LINK.sub(r" \1 \2 ", line))
    line = _MARKUP.sub("", _ENTITY.sub(" ", line)).translate(_QUOTES).lower()
    return " ".join(line.split()).lstrip(_BEFORE_WORDS)


def _talk_kind(line: str, *, at_end: bool = True) -> str | None:
    """The kind of talk to readers that a line is; null where it may be story."""
    if len(line) > _LONGEST_LINE:
        return None
    plain = _plain(line)
    # Whoever speaks in quotation marks is in the story.
    if not plain or plain[0] in "\"'":
        return None
    for formula in _FORMULAE:
        if (
            (at_end or not formula.at_end)
            and len(plain) <= formula.longest
            and formula.opening.match(plain)
            and (formula.about is None or formula.about.search(plain))
        ):
            return formula.kind
    return None


def _has_words(text: str) -> bool:
    seen = _ENTITY.sub("", text) if "&" in text else text
    return _WORD.search(seen) is not None


def _is_rule(line: str) -> bool:
    """Whether a line is blank, a horizontal rule or a like ornament."""
    return not _has_words(line) and len(line) <= _LONGEST_LINE


def _vote_talk(table: pa.Table, column: str) -> dict[int, tuple[str, str]]:
    """By row, the story without talk to its readers, and the lines that were cut."""
    triggered = pc.match_substring_regex(table[column], pattern=_TRIGGER)
    rows = pc.indices_nonzero(pc.fill_null(triggered, False))
    texts = table[column].take(rows)
    # What can be said of all texts or lines at once is said by Arrow, at a hundredth of the cost.
    marked = pc.match_substring_regex(texts, pattern=_MARKED_SOMEWHERE).to_pylist()
    stories = [text.split("\n") for text in texts.to_pylist()]
    edges = [_edges(lines) for lines in stories]
    lines_at_edges = pa.array(
        {lines[place] for lines, places in zip(stories, edges, strict=True) for place in places},
        pa.large_string(),
    )
    suspect = pc.match_substring_regex(lines_at_edges, pattern=_TRIGGER)
    suspects = set(lines_at_edges.filter(suspect).to_pylist())
    found = {}
    for row, lines, places, has_mark in zip(rows.to_pylist(), stories, edges, marked, strict=True):
        suspected = {place: end for place, end in places.items() if lines[place] in suspects}
        if suspected or has_mark:
            cut = _without_talk(lines, suspected, has_mark)
            if cut is not None:
                found[row] = cut
    return found


def _edges(lines: list[str]) -> dict[int, bool]:
    """The places of the first and last few lines that hold words; true for the last."""
    first = itertools.islice(_with_words(lines, range(len(lines))), _HEAD_LINES)
    last = itertools.islice(_with_words(lines, reversed(range(len(lines)))), _TAIL_LINES)
    return dict.fromkeys(first, False) | dict.fromkeys(last, True)


def _with_words(lines: list[str], places: Iterable[int]) -> Iterator[int]:
    return (place for place in places if not _is_rule(lines[place]))


def _without_talk(
    lines: list[str], suspects: dict[int, bool], has_mark: bool
) -> tuple[str, str] | None:
    """The story without talk, and what was cut; null where nothing is, or nothing would be left."""
    cut = _talk_at_edges(lines, suspects)
    if has_mark:
        cut |= _edits_about_votes(lines)
        cut |= _rest_of_edit(lines, cut)
    cut |= _ornaments(lines, cut)
    last = next((place for place in reversed(range(len(lines))) if place not in cut), None)
    if last is None:
        return None
    end = _inline_edit(lines[last]) if has_mark else None
    if end is None and not cut:
        return None
    kept: list[str] = []
    gone: list[str] = []
    for place, line in enumerate(lines):
        if place in cut:
            gone.append(line)
        elif place == last and end is not None:
            kept.append(line[:end])
            gone.append(line[end:])
        elif line.strip() or place - 1 not in cut or (kept and kept[-1].strip()):
            # Else a blank line follows the blank line before the cut: one is enough.
            kept.append(line)
    story = "\n".join(kept)
    if last < len(lines) - 1 or end is not None:
        story = story.rstrip()
    return (story, "\n".join(gone).strip()) if _has_words(story) else None


def _talk_at_edges(lines: list[str], suspects: dict[int, bool]) -> set[int]:
    """The places of lines of talk among the suspects."""
    cut = set()
    is_fiction = False
    for place, at_end in suspects.items():
        line = lines[place]
        if len(line) <= _LONGEST_LINE and _BARE_MARK.match(_plain(line)):
            # The mark stands on a line of its own, above what it marks.
            below = next(_with_words(lines, range(place + 1, len(lines))), None)
            if below is None:
                cut.add(place)
            elif _talk_kind(f"edit: {lines[below]}") is not None:
                cut |= {place, below}
        elif _talk_kind(line, at_end=at_end) is not None:
            cut.add(place)
        elif _is_marked(line):
            is_fiction = True
    if is_fiction:
        # An edit that is no talk to readers is part of a story in the form of posts, and so may
        # the others be.
        cut = {place for place in cut if not _is_marked(lines[place]) or _is_sure(lines[place])}
    return cut


def _is_marked(line: str) -> bool:
    """Whether a line opens as a marked edit does."""
    return _MARKED.match(line) is not None and _EDIT.match(_plain(line[:_LONGEST_LINE])) is not None


def _is_sure(line: str) -> bool:
    """Whether a marked edit can only be the author's: about votes, or about mending the text."""
    return _SURE_EDIT.search(_plain(line)) is not None


def _edits_about_votes(lines: list[str]) -> set[int]:
    """The places of marked edits about votes, wherever they stand."""
    return {
        place
        for place, line in enumerate(lines)
        if _MARKED.match(line)
        and _talk_kind(line) == "edit"
        and _ABOUT_VOTES.search(_plain(line)) is not None
    }


def _rest_of_edit(lines: list[str], cut: set[int]) -> set[int]:
    """The places of the few lines below a marked edit at the end, which go on with it."""
    before = sum(len(line) for place, line in enumerate(lines) if place not in cut)
    rest: set[int] = set()
    taken: set[int] = set()
    length = 0
    for place in reversed(range(len(lines))):
        if place not in cut:
            length += len(lines[place])
            before -= len(lines[place])
            rest.add(place)
        elif before >= _TIMES_BEFORE * (length + len(lines[place])) and _is_marked(lines[place]):
            taken = set(rest)
        if length > _LONGEST_REST:
            break
    return taken


def _ornaments(lines: list[str], cut: set[int]) -> set[int]:
    """The places of blank lines and rules that set off what was cut at either end."""
    taken: set[int] = set()
    for places in (range(len(lines)), range(len(lines) - 1, -1, -1)):
        between: set[int] = set()
        has_cut = False
        for place in places:
            if place in cut:
                has_cut = True
            elif _is_rule(lines[place]):
                between.add(place)
            else:
                break
        if has_cut:
            taken |= between
    return taken


def _inline_edit(line: str) -> int | None:
    """Where an edit about votes begins that shares the story's last line; null without one."""
    start = max(0, len(line) - _LONGEST_INLINE)
    for found in _INLINE.finditer(line, start):
        note = line[found.end() :]
        if _talk_kind(note) == "edit" and (
            note.lstrip()[0] in "([" or _ABOUT_VOTES.search(_plain(note)) is not None
        ):
            return found.end()
    return None
