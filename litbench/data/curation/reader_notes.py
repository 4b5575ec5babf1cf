"""Remove notes to readers from the start and end of stories: votes, awards, edits, thanks, links.

Precision matters more than recall, since fiction also says "thank you", "gold" and "edit". Only
whole lines among the first three and the last eight of a text are removed, and only if they open
with one of the formulae below. A text is never left empty.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

_HEAD_LINES, _TAIL_LINES = 3, 8
_LONGEST_LINE = 1_500
# Lines after a marked edit belong to it if they are short and the story before it is long.
_LONGEST_REST, _TIMES_BEFORE = 400, 4

_WORD = re.compile(r"[^\W_]")
_LINK = re.compile(r"!?\[([^\[\]]{0,300})\]\s?\(\s?([^()\s]{0,500})[^()]{0,100}\)")
_ADDRESS = re.compile(r"https?://(?:(?:www|old|new|np|m)\.)?", re.I)
_ENTITY = re.compile(r"&(?:amp;)?(?:nbsp|#x200b|#8203);", re.I)
_MARKUP = re.compile(r"[*~^#>\\|`\u200b]+|!<|(?<!\w)_+|(?<!_)_++(?!\w)")
_QUOTES = str.maketrans("“”„«»‘’", '"""""\'\'')
_BEFORE_WORDS = " \t-–—=+•·:;,.!?([{<"

_SUBREDDIT = r"(?:(?<![\w/])/?r/\w{2,}|\breddit\.com/r/\w+/?)"
_USER = r"(?:(?<![\w/])/?u/[\w-]{3,}|\breddit\.com/u(?:ser)?/[\w-]+/?)"
_PLACE = (
    rf"(?:{_SUBREDDIT}|{_USER}|\b(?:patreon|ko-?fi\b|wattpad)|\bmy (?:\w+ ){{0,2}}(?:subs?|"
    r"subreddit|blog|profile|website|site|twitter|youtube|instagram|discord|newsletter)\b)"
)
_AWARD = r"\b(?:gold|silver|platinum|awards?)\b"
_VOTES = r"\b(?:(?:up|down)-?vot(?:es?|ed|ing)|karma)\b"
_PART = r"\b(?:part|chapter) (?:two|three|ii|[2-9])\b"
_LIKED = r"(?:liked?|enjoy(?:ed)?|loved?)"
_YOU = r"(?:y'all|you(?: guys| all)?|anyone|anybody|everyone|people|any of you)"
_EXCLAIM = r"(?:(?:wow|omg|holy \w+|damn|well|aw+|yay|also|and|hey|hi|guys|edit)\b[,.!:; ]*){0,4}"
_THANKS = (
    r"(?:(?:so|many|much|huge|big|just|i|wanted|want|to|say|a) )*(?:thank(?:s\b| ?(?:you|u)\b)|"
    r"thx\b)(?:[,.!]{0,3} ?\b(?:so|very|much|all|guys|everyone|everybody|folks|again|a|lot|ton|"
    r"reddit|people|friends)\b)*[,.!]{0,3} ?"
)

# Words of a note to readers, one of which must follow a mark such as "EDIT:".
_READERS = (
    rf"{_AWARD}|\bgild|{_VOTES}|front ?page|\b(?:blew|blown) up\b|\binbox|\breddit|\bsubs?\b|"
    r"subreddit|\bthank|appreciat|\byou guys\b|\bcomment(?:s|ers?)\b|\brepl(?:y|ies)\b|"
    rf"\bresponses\b|\breaders?\b|feedback|critici|{_PART}|\b(?:this|my|the) (?:\w+ )?(?:story|"
    r"stories|prompt|post|sub)\b|\bwriting\b|\bi (?:do ?n.t )?(?:write|wrote)\b|"
    rf"\bfirst (?:time|post|attempt|story)\b|{_SUBREDDIT}|{_USER}"
)
_MENDING = (
    r"\btypos?\b|gramm[ae]r|\bspell|format|\bspac(?:es?|ing)\b|\bword(?:ing| choice)\b|punctuat|"
    r"paragraph|line ?breaks?|\bclarity\b|\bflow\b|\bsentences?\b|\bmistakes?\b|^edit\W*(?:just |"
    r"i |i've |also |quick |some )*(?:added|fix(?:ed|es)|correct(?:ed|ions?)|chang(?:ed|es)|"
    r"cleaned|removed|reword(?:ed)|rewrote|expanded|edits)\b"
)
_EDIT_MARK = (
    r"edit(?:ed|s)?\s?(?:\(?#?\d{1,2}\b\)?|\([^)]{0,40}\)|(?:one|two|three|again|also)\b)?\s?"
    r"(?:[:\-–—=;,.!/>)\]]|$)|edit(?:ed)? (?:for|to|because|since|after|again|just|wow|thank)"
)
_PROMOTION = (
    r"check (?:it |me |them )?out|\bmore (?:\w+ ){0,2}(?:stories|like|from|by|at|on|in|here|parts|"
    r"writing|work|stuff)\b|\bsubscribe\b|\bfollow\b|\bvisit\b|\bmy (?:\w+ ){0,2}(?:sub|work|"
    r"subreddit|profile|page|patreon|blog|website|stories|stuff|writing)\b|\bif (?:you|anyone)\b|"
    r"\bfor (?:\w+ )?(?:more|longer)\b|\bwant moar|feel free|x-?post|narrat|\bis me\b|"
    r"\bposted (?:on|to|at|in|over)|\banyways?,? /?r/|\b(?:part|chapter) \d"
)


class _Formula(NamedTuple):
    opening: str
    about: str = ""  # pattern that the line must contain as well
    longest: int = 450  # most characters of the line
    at_end: bool = False  # whether the formula applies only near the end of a text


# Matched against lines without markup, in lower case, with straight quotes.
_FORMULAE = (
    # "EDIT 2: wow, thanks for the gold!", "(edited for spelling)". The mark alone is not enough:
    # fiction written as forum posts has it too.
    _Formula(_EDIT_MARK, f"{_READERS}|{_MENDING}", longest=_LONGEST_LINE),
    # "Update: this blew up", "P.S. thank you all for the comments"
    _Formula(
        r"(?:eta|updated?|p\.? ?s\.?|note|disclaimer)\s?\d?\s?[:\-–—,.]",
        rf"reddit gold|\bfor the (?:gold|silver)|{_VOTES}|{_SUBREDDIT}|{_USER}|feedback|critici|"
        r"\bthank(?:s| you) (?:all|every|guys|for)|\b(?:this|my) (?:story|prompt|post)\b|"
        r"\btypos?\b|\bblew up",
        longest=700,
    ),
    # "A/N: my take on the prompt"
    _Formula(
        r"(?:author'?s? note|a/n)\b\s?[:\-–—]",
        rf"\bprompt\b|\b(?:this|my) story\b|feedback|critici|\bthank|\breaders?\b|\bwriting\b|"
        rf"\bthemes\b|{_SUBREDDIT}|{_USER}|{_PART}",
    ),
    # "Thank you for the gold, kind stranger!", "Thanks everyone for all the support"
    _Formula(
        rf"{_EXCLAIM}{_THANKS}(?:for|to|/?[ru]/|(?:kind|anonymous)\b)",
        rf"\bfor (?:\w+ ){{0,4}}{_AWARD}(?:[\W_]*$|\W*!|\W+(?:kind|anon|stranger|everyone|guys|"
        rf"whoever|reddit|friend)\w*)|\bgild|{_VOTES}|\b(?:kind|anonymous) (?:stranger|redditor)|"
        rf"\b(?:the|your|all) (?:\w+ ){{0,3}}(?:support|feedback|comments|responses|kind words)\b|"
        rf"{_SUBREDDIT}|{_USER}",
    ),
    # "Thanks for reading, everyone!" and nothing more; or "... More of my stories at ..."
    _Formula(
        rf"{_EXCLAIM}{_THANKS}for (?:taking the time to read|reading)\b",
        r"reading\b(?:[,!.]? ?\b(?:this|it|the|my|our|story|stories|far|along|everyone|guys|all|"
        r"folks|so|post|tale|response|little|short|first|and|i|hope|you|enjoyed)\b)*[\W_]*"
        rf"(?:[:;][a-z])?$|{_PLACE}|feedback|critici|critique|\bcomments?\b|\bmy stories\b|{_PART}",
    ),
    # "My first gold!", "RIP my inbox", "Front page!", "This blew up overnight", "2k upvotes!",
    # "I never expected so many upvotes", "This is now my most upvoted comment"
    _Formula(
        rf"{_EXCLAIM}(?:(?:my )?first {_AWARD}[\W_]*(?:$|thank|wow)|r\.?i\.?p\.?,? (?:my )?inbox|"
        r"(?:we )?(?:hit |made it to )?(?:the )?front ?page(?:!|[\W_]*(?:thank.*)?$)|"
        r"this (?:\w+ ){0,2}(?:blew up|exploded)(?:!|.{0,9}\b(?:thank|overnight))|"
        rf"(?:over )?\d[\d.,]{{0,8}}k? {_VOTES}|"
        rf"(?:i )?(?:never|did ?n.?t|can.?t believe)\b.{{0,60}}{_VOTES}|"
        r"(?:\w+ ){0,5}(?:highest|top|most)[- ](?:rated|voted|upvoted) (?:comment|post|story)\b)",
    ),
    # "Please upvote if you liked this", "Why the downvotes?"
    _Formula(
        rf"{_EXCLAIM}(?:(?:please|so|why|and|to|those|everyone|who|all|the|with|don.?t|you|can|if|"
        r"this|an?) )*(?:up|down)-?vot(?:es?|ed|ing)\b",
        r"\b(?:please|why|if you|if this|don.?t|story|this|more|part|guys|reddit)\b",
        longest=150,
    ),
    # "/r/my_stories" and nothing more
    _Formula(rf"(?:[^\w/]*(?:{_SUBREDDIT}|{_USER})[^\w/]*){{1,3}}$", at_end=True),
    # "Anyone who likes this will find more at r/my_stories"
    _Formula(rf".{{0,400}}?{_PLACE}", _PROMOTION, at_end=True),
    # "Check out my subreddit", "[Part 2](...)", at either end
    _Formula(
        rf"{_EXCLAIM}(?:if {_YOU}|(?:please |you can |feel free to |to |for |see |find |read )*"
        r"(?:check|more|visit|subscribe|follow|support|find|read|see|come)|part \w+|previous|next|"
        r"(?:this|it) (?:is|was) (?:also |originally |x-?|cross-?)?post)",
        rf"\b(?:check|more|visit|subscribe|follow|support|find|read|stories|part|post).{{0,200}}"
        rf"{_PLACE}|^(?:part \w+|previous|next)\W+.{{0,60}}reddit\.com",
    ),
    # "Any feedback is appreciated!"
    _Formula(
        r"(?:\w+,? ){0,8}?(?:feedback|criticisms?|critiques?|c&c)\b",
        r"\b(?:welcomed?|appreciated?|please|encouraged|open to|looking for)\b",
    ),
    # "Let me know what you think!"
    _Formula(
        rf"{_EXCLAIM}(?:please |so |and )*(?:let me know|tell me) (?:what|if|how|whether) (?:you "
        rf"(?:guys |all )?|y'all )(?:think|thought|{_LIKED}|want(?: more)?)[\W_]*(?:(?:about|of|in|"
        r"it|this|the|my|story|comments|more|below|guys)\b[\W_]*)*$",
    ),
    # "Hope you enjoyed it :)"
    _Formula(
        rf"(?:\w+ )?(?:i )?(?:just )?(?:really )?hope(?:d|fully)? (?:{_YOU}|op|this|it)(?: guys| "
        rf"all| folks)?(?: (?:{_LIKED}|was|is|isn.t|wasn.t))+(?: (?:this|it|the|my|reading|little|"
        r"short|story|good|okay|too|bad|and)\b)*[\W_]*(?:[:;][a-z])?$",
        at_end=True,
    ),
    # "My first time posting here, be gentle"
    _Formula(
        rf"{_EXCLAIM}(?:\w+ ){{0,5}}?(?:my )?(?:first|1st|second)(?: \w+){{0,3}}? (?:time|"
        r"post|prompt|response|submission|attempt|story|reply|try|poster)\b",
        r"\b(?:posting|here|on reddit|this sub\b|be (?:nice|gentle|kind)|feedback|critici|"
        r"(?:so |i.m )sorry|\bsorry (?:for|about|if)|a prompt|wp|writing ?prompts?|responding)\b",
        longest=220,
    ),
    # "Sorry for the formatting, I'm on mobile"
    _Formula(
        rf"{_EXCLAIM}(?:(?:written|wrote|typed|posted|writing)(?: this)? (?:on|from) )?"
        r"(?:(?:i.?m )?(?:so |really )*(?:sorry|apologi[sz]e|apologies)\b|(?:please )?(?:excuse|"
        r"forgive) (?:the|any|all)\b|(?:my )?(?:mobile|phone)\b)",
        r"format|grammar|\btypos?\b|spelling|\b(?:on|from) (?:mobile|my phone)\b|punctuation|"
        r"\bweak\b.*\bfirst time",
        longest=220,
    ),
    # "Part 2 coming soon!"
    _Formula(
        rf"{_EXCLAIM}(?:i.?ll|i will|i may|i might|i can|working on|if there.?s|part|more)\b",
        rf"{_PART}.{{0,60}}\b(?:soon|below|comments?|repl(?:y|ies)|interest|tomorrow)\b|"
        rf"\b(?:soon|interest|working on|write|post)\b.{{0,60}}{_PART}",
        at_end=True,
    ),
)
# Every formula needs one of these words. Arrow searches all lines for them at once.
_TRIGGER = (
    r"(?i)\b(?:edit(?:s|ed)?\d?\b|eta\b|update|gold\b|silver\b|platinum\b|award|gild|(?:up|down)-?"
    r"vot|karma\b|front ?page|inbox|thank|thx|patreon|ko-?fi|subscribe|subs?\b|subreddit|reddit|"
    r"feedback|critici|critique|c&c|first (?:\w+ )?(?:time|attempt|post|story|prompt|response|"
    r"submission)|hope(?:d|fully)? (?:you|y'all|this|it|everyone|op|people)|let me know|tell me "
    r"(?:what|if|how)|author.?s? note|a/n\b|mobile|phone|part (?:two|three|ii|[2-9])|(?:highest|"
    r"top|most)[- ](?:rated|voted)|grammar|format|typos?\b|spelling|punctuation|blew|exploded|"
    r"wattpad|my (?:\w+ ){0,2}(?:blog|profile|website|twitter|youtube|instagram|discord))|\b[ru]/\w"
)
_BARE_MARK = re.compile(r"(?:edit|update|eta)(?: ?#?\d{1,2})?\s?[:\-–—]\W*$")
_MARKED = re.compile(r"^[^\w\n\"“]{0,12}(?:edit|eta|update)", re.I)
_EDIT = re.compile(_EDIT_MARK)
_SURE_EDIT = re.compile(
    rf"\bfor (?:\w+ ){{0,4}}{_AWARD}|\bgild|\bfirst (?:\w+ )?{_AWARD}|{_VOTES}|front ?page|\binbox|"
    rf"\b(?:blew|blown) up\b|\bkind stranger|{_AWARD}.{{0,20}}(?:!|thank)|{_MENDING}"
)


def _plain(line: str) -> str:
    """Return a line without links, markup and opening marks, in lower case with straight quotes."""
    line = _ADDRESS.sub("", _LINK.sub(r" \1 \2 ", line))
    line = _MARKUP.sub("", _ENTITY.sub(" ", line)).translate(_QUOTES).lower()
    return " ".join(line.split()).lstrip(_BEFORE_WORDS)


def _is_note(line: str, *, at_end: bool = True) -> bool:
    plain = _plain(line) if len(line) <= _LONGEST_LINE else ""
    # Lines in quotation marks are dialogue.
    return plain[:1] not in ("", '"', "'") and any(
        (at_end or not formula.at_end)
        and len(plain) <= formula.longest
        and re.match(formula.opening, plain)
        and re.search(formula.about, plain)
        for formula in _FORMULAE
    )


def _is_marked(line: str) -> bool:
    """Return whether a line opens with a mark such as "EDIT:"."""
    return _MARKED.match(line) is not None and _EDIT.match(_plain(line[:_LONGEST_LINE])) is not None


def has_words(text: str) -> bool:
    """Return whether a text has a letter or digit, not counting HTML entities of spaces."""
    seen = _ENTITY.sub("", text) if "&" in text else text
    return _WORD.search(seen) is not None


def is_rule(line: str) -> bool:
    """Return whether a line is blank, a horizontal rule or a similar ornament."""
    return not has_words(line) and len(line) <= _LONGEST_LINE


def cut_reader_notes(texts: pa.Array | pa.ChunkedArray) -> dict[int, tuple[str, str]]:
    """Remove notes to readers from the start and end of stories.

    Args:
        texts: strings; shape (n,).

    Returns:
        Maps the index of each changed text to the remaining story and the removed lines.
    """
    stories = [(text or "").split("\n") for text in texts.to_pylist()]
    edges = [_edges(lines) for lines in stories]
    lines_at_edges = pa.array(
        {lines[n] for lines, numbers in zip(stories, edges, strict=True) for n in numbers},
        pa.large_string(),
    )
    possible = lines_at_edges.filter(pc.match_substring_regex(lines_at_edges, pattern=_TRIGGER))
    possible_lines = set(possible.to_pylist())
    changed = {}
    for row, (lines, numbers) in enumerate(zip(stories, edges, strict=True)):
        candidates = {n: at_end for n, at_end in numbers.items() if lines[n] in possible_lines}
        cut = _notes_at_edges(lines, candidates)
        if cut:
            story, gone = _without(lines, cut | _ornaments(lines, cut))
            if has_words(story):
                changed[row] = (story, gone)
    return changed


def _edges(lines: Sequence[str]) -> dict[int, bool]:
    """Return the numbers of the first and last few lines with words; the last map to true."""
    first = itertools.islice(_with_words(lines, range(len(lines))), _HEAD_LINES)
    last = itertools.islice(_with_words(lines, reversed(range(len(lines)))), _TAIL_LINES)
    return dict.fromkeys(first, False) | dict.fromkeys(last, True)


def _with_words(lines: Sequence[str], numbers: Iterable[int]) -> Iterator[int]:
    return (n for n in numbers if not is_rule(lines[n]))


def _notes_at_edges(lines: Sequence[str], candidates: dict[int, bool]) -> set[int]:
    cut: set[int] = set()
    is_fiction = False
    for n, at_end in candidates.items():
        line = lines[n]
        if len(line) <= _LONGEST_LINE and _BARE_MARK.match(_plain(line)):
            # The line has only the mark; the note is on the next line.
            below = next(_with_words(lines, range(n + 1, len(lines))), None)
            if below is None:
                cut.add(n)
            elif _is_note(f"edit: {lines[below]}"):
                cut |= {n, below}
        elif _is_note(line, at_end=at_end):
            cut.add(n)
        elif _is_marked(line):
            is_fiction = True
    if is_fiction:
        # A marked edit that is not a note to readers shows that the story is written as forum
        # posts. Then keep the other marked edits, unless they are about votes or corrections.
        cut = {n for n in cut if not _is_marked(lines[n]) or _SURE_EDIT.search(_plain(lines[n]))}
    for n in sorted(cut):
        sizes = [0 if m in cut else len(line) for m, line in enumerate(lines)]
        rest = sum(sizes[n:])
        is_short = rest <= _LONGEST_REST and sum(sizes[:n]) >= _TIMES_BEFORE * (
            rest + len(lines[n])
        )
        if is_short and _is_marked(lines[n]):
            return cut | set(range(n, len(lines)))
    return cut


def _ornaments(lines: Sequence[str], cut: set[int]) -> set[int]:
    """Return the numbers of blank lines and rules next to removed lines at either end."""
    taken: set[int] = set()
    for numbers in (range(len(lines)), range(len(lines) - 1, -1, -1)):
        edge = set(itertools.takewhile(lambda n: n in cut or is_rule(lines[n]), numbers))
        if not cut.isdisjoint(edge):
            taken |= edge
    return taken


def _without(lines: Sequence[str], cut: set[int]) -> tuple[str, str]:
    """Return the text without the cut lines, and the cut lines."""
    rest: list[str] = []
    for n, line in enumerate(lines):
        # Keep one of the blank lines around a cut.
        is_second_blank = not line.strip() and n - 1 in cut and not (rest and rest[-1].strip())
        if n not in cut and not is_second_blank:
            rest.append(line)
    story = "\n".join(rest)
    gone = "\n".join(lines[n] for n in sorted(cut)).strip()
    return (story.rstrip() if len(lines) - 1 in cut else story), gone
