"""Talk to the readers at the edges of a story: votes, awards, edits, thanks, other places.

Precision comes first, since fiction says "thank you", "gold" and "edit" as well. Whole lines are
cut, only when they open with one of the formulae below and, except for marked edits about votes,
only among the first and last few lines of a text. A text is never left empty.
"""

import itertools
import re
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

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
    r"(?:[:\-–—=;,.!/>)\]]|$)|edit(?:ed)? (?:for|to|because|since|after|again|just|wow|thank)"
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


class _Formula:
    """One form that talk to readers takes.

    Attributes:
        kind: what the talk is about.
        opening: how the line opens.
        about: what else must be in it.
        longest: most characters of the line.
        at_end: whether it counts only near the end of a text.
    """

    def __init__(
        self, kind: str, opening: str, about: str = "", *, longest: int, at_end: bool = False
    ) -> None:
        self.kind, self.longest, self.at_end = kind, longest, at_end
        self.opening, self.about = re.compile(opening), re.compile(about)

    def matches(self, line: str, *, at_end: bool) -> bool:
        """Whether a line, as `_plain` returns it, has this form."""
        return bool(
            (at_end or not self.at_end)
            and len(line) <= self.longest
            and self.opening.match(line)
            and self.about.search(line)
        )


# Matched against lines without markup, in lower case, with straight quotes. A comment gives an
# example of each.
_FORMULAE = (
    # "EDIT 2: wow, thanks for the gold!", "(edited for spelling)". The mark alone is not enough:
    # fiction in the form of posts has it too.
    _Formula("edit", _EDIT_MARK, f"{_READERS}|{_MENDING}", longest=_LONGEST_LINE),
    # "Update: this blew up", "P.S. thank you all for the comments"
    _Formula(
        "edit",
        r"(?:eta|updated?|p\.? ?s\.?|note|disclaimer)\s?\d?\s?[:\-–—,.]",
        rf"{_AWARD}.{{0,20}}!|reddit gold|\bfor the (?:gold|silver)|{_VOTES}|{_SUBREDDIT}|{_USER}|"
        r"feedback|critici|\bthank(?:s| you) (?:all|every|guys|for (?:the|all|your|reading))|"
        r"\b(?:this|my) (?:story|prompt|post)\b|\btypos?\b|\bblew up",
        longest=700,
    ),
    # "A/N: my take on the prompt"
    _Formula(
        "edit",
        r"(?:author'?s? note|a/n)\b\s?[:\-–—]",
        rf"\bprompt\b|\b(?:this|my) story\b|feedback|critici|\bthank(?:s| you)\b|\breaders?\b|"
        rf"\bnsfw\b|\bthemes\b|\bwriting\b|{_SUBREDDIT}|{_USER}|{_PART}|\btypos?\b",
        longest=700,
    ),
    # "Thank you for the gold, kind stranger!", "Thanks everyone for all the support"
    _Formula(
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
    _Formula(
        "thanks",
        rf"{_EXCLAIM}{_THANKS}{_SO}for (?:taking the time to read|reading)\b(?:[,!.]? ?\b(?:this|"
        r"it|the|my|our|story|stories|piece|far|along|everyone|everybody|guys|all|folks|so|post|"
        r"tale|ramblings?|response|little|short|first|and|i|hope|you|enjoyed|if|made|here)\b)*"
        r"[\W_]*(?:[:;][a-z])?$",
        longest=150,
    ),
    # "Thanks for reading! More of my stories at ..."
    _Formula(
        "thanks",
        rf"{_EXCLAIM}{_THANKS}{_SO}for reading\b",
        rf"{_PLACE}|feedback|critici|critique|\bcomments?\b|\b(?:more|my|other) stories\b|{_PART}",
        longest=400,
    ),
    # "So glad you guys liked it!"
    _Formula(
        "thanks",
        rf"{_EXCLAIM}(?:i.?m )?(?:so |really |very )*glad {_YOU}[^.]{{0,20}} {_LIKED} "
        r"(?:it|this|my|the story)\b",
        longest=240,
    ),
    # "My first gold!"
    _Formula(
        "votes",
        rf"{_EXCLAIM}(?:(?:(?:i )?(?:got|received|woke up to) |my |the )*(?:first|1st) (?:ever |"
        rf"reddit )*{_AWARD}|got gilded\b|gilded!)[\W_]*(?:$|thank|wow|yay|omg|ever|so|i.m|you)",
        longest=180,
    ),
    # "RIP my inbox", "Front page!"
    _Formula(
        "votes",
        rf"{_EXCLAIM}(?:r\.?i\.?p\.?,? (?:to )?(?:my |the )?(?:inbox|karma)|"
        rf"my (?:poor )?inbox (?:is|has|exploded|blew|can.?t|will)\b|"
        r"(?:(?:this|we|i|it|my story) )?(?:(?:hit|made it to|made|is on|on|reached) )?(?:the )?"
        r"front ?page(?: of (?:the sub|reddit|the internet|/?r/\w+))?(?:!|[\W_]*(?:thank.*)?$))",
        longest=150,
    ),
    # "Well, this blew up overnight!"
    _Formula(
        "votes",
        rf"{_EXCLAIM}(?:this|it|my (?:story|comment|post|reply|response)|that)\b (?:\w+ ){{0,4}}"
        r"(?:blew|blown|blowing|exploded)(?: up)?\b",
        r"\b(?:comment|post|story|response|reply|reddit|thank|gold|guys|inbox|overnight)|"
        r"^(?:wow|who?ah?|holy|well)\b.{0,20}\bthis (?:\w+ ){0,2}(?:blew|exploded|blown)",
        longest=240,
    ),
    # "I never expected so many upvotes"
    _Formula(
        "votes",
        rf"{_EXCLAIM}(?:i )?(?:did ?n.?t|did not|never|was ?n.?t|had no idea|can.?t believe|cannot "
        r"believe)\b",
        rf"{_VOTES}|\bthis (?:to |would )?(?:blow|blew|blown) up\b|\bso (?:many|much) (?:attention|"
        r"responses?|comments?|support)\b|\b(?:get|getting|first) (?:\w+ )?reddit (?:gold|silver)",
        longest=240,
    ),
    # "Over 2k upvotes!", "Please upvote if you liked this", "Why the downvotes?"
    _Formula(
        "votes",
        rf"{_EXCLAIM}(?:over |almost |nearly |holy )?\d[\d.,]{{0,8}}k? {_VOTES}",
        longest=150,
    ),
    _Formula(
        "votes",
        rf"{_EXCLAIM}(?:(?:please|pls|plz|so|why|and|to|whoever|those|everyone|who|all|the|with|"
        r"don.?t|do not|you|can|if|this|gets|leave|an?|remember|enough|\d+) )*(?:up|down)-?vot(?:"
        r"es?|ed|ing)\b",
        r"\b(?:please|pls|plz|why|if you|if this|don.?t|do not|story|this|more|part|guys|reddit)\b",
        longest=150,
    ),
    # "This is now my most upvoted comment"
    _Formula(
        "votes",
        r"(?:\w+ ){0,5}(?:highest|top|most)[- ](?:rated|voted|upvoted|scoring) (?:comment|post|"
        r"story)\b",
        longest=180,
    ),
    # "/r/my_stories" and nothing more
    _Formula(
        "elsewhere",
        rf"(?:[^\w/]*(?:{_SUBREDDIT}|{_USER})[^\w/]*){{1,3}}$",
        longest=150,
        at_end=True,
    ),
    # "Anyone who likes this will find more at r/my_stories"
    _Formula("elsewhere", rf".{{0,400}}?{_PLACE}", _PROMOTION, longest=450, at_end=True),
    # "Check out my subreddit", "[Part 2](...)", at either end
    _Formula(
        "elsewhere",
        rf"{_EXCLAIM}(?:if {_YOU}|(?:please |you can |feel free to |to |for |see |find |read )*"
        r"(?:check|more|visit|subscribe|follow|support|find|read|see|come)|part \w+|previous|next|"
        r"(?:this|it) (?:is|was) (?:also |originally |x-?|cross-?)?post)",
        rf"\b(?:check|more|visit|subscribe|follow|support|find|read|stories|part|post).{{0,200}}"
        rf"{_PLACE}|^(?:part \w+|previous|next)\W+.{{0,60}}reddit\.com",
        longest=400,
    ),
    # "If you liked this, subscribe for more"
    _Formula(
        "elsewhere",
        rf"{_EXCLAIM}if {_YOU}(?:.d| would)? ?(?:{_LIKED}|want(?:ed|s)?|(?:are |is )?interested)\b",
        r"\bsubscribe\b|upvote|\bfollow (?:me|my)|check (?:it |me )?out|subreddit|\bsubs?\b|"
        rf"patreon|{_PART}|\bmy (?:other|work|writing|stuff|stories|profile|page|blog)\b|"
        r"\bmore of my|\bsequel",
        longest=400,
    ),
    # "Any feedback is appreciated!"
    _Formula(
        "asking",
        r"(?:\w+,? ){0,8}?(?:feedback|criticisms?|critiques?|c&c)\b",
        r"\b(?:welcomed?|appreciated?|please|pls|encouraged|open to|looking for)\b",
        longest=400,
    ),
    _Formula(
        "asking",
        rf"{_EXCLAIM}(?:please |so |and )*(?:let me know|tell me) (?:what|if|how|whether) (?:you "
        r"(?:guys |all )?|y'all )(?:think|thought|liked?|enjoy(?:ed)?|want(?: more| part| to (?:see"
        r"|read))?)[\W_]*(?:(?:about|of|in|it|this|the|my|story|comments|more|below|guys|part \d)"
        r"\b[\W_]*)*$",
        longest=150,
    ),
    # "Hope you enjoyed it :)"
    _Formula(
        "asking",
        rf"(?:\w+ )?(?:i )?(?:just )?(?:really )?hope(?:d|fully)? (?:{_YOU}|op|this|it)(?: guys|"
        rf" all| folks)?(?: (?:{_LIKED}|was|is|isn.t|wasn.t|were))+(?: (?:this|it|the|my|reading|"
        rf"little|short|story|stories|piece|good|okay|ok|too|bad|terrible|awful|enjoyable|and|take|"
        r"response)\b)*[\W_]*(?:[:;][a-z])?$",
        r"enjoy|like|story|reading|good|bad|terrible|awful",
        longest=120,
        at_end=True,
    ),
    # "My first time posting here, be gentle"
    _Formula(
        "asking",
        rf"{_EXCLAIM}(?:\w+ ){{0,5}}?(?:(?:my|the) )?(?:very )?(?:first|1st|second)(?: ever)?"
        r"(?: \w+){0,2}? (?:time|post|prompt|response|submission|attempt|story|reply|try|piece|"
        r"poster)\b",
        r"\b(?:posting|here|on (?:this )?(?:sub|reddit|here)|this sub\b|be (?:nice|gentle|kind)|"
        r"feedback|critici|(?:so |i.m )sorry|\bsorry (?:for|about|if)|a prompt|wp|"
        r"writing ?prompts?|submission|responding|doing (?:this|one of these))\b",
        longest=240,
    ),
    # "Sorry for the formatting, I'm on mobile"
    _Formula(
        "excuse",
        rf"{_EXCLAIM}(?:(?:written|wrote|typed|typing|posted|posting|writing)(?: this| it)?"
        r"(?: all)? (?:on|from) |on )?(?:(?:i.?m )?(?:so |really |very |also )*(?:sorry|"
        r"apologi[sz]e|apologies)\b|(?:please )?(?:excuse|forgive|pardon) (?:the|any|all)\b|"
        r"(?:my )?(?:mobile|phone)\b)",
        r"format|grammar|\btypos?\b|spelling|\b(?:on|from) (?:mobile|my phone)\b|(?:bad|poor|my) "
        r"english|punctuation|\bweak\b.*\bfirst time",
        longest=180,
    ),
    # "Part 2 coming soon!"
    _Formula(
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
    # Speech in quotation marks belongs to the story.
    if not plain or plain[0] in "\"'":
        return None
    kinds = (formula.kind for formula in _FORMULAE if formula.matches(plain, at_end=at_end))
    return next(kinds, None)


def has_words(text: str) -> bool:
    """Whether a text holds a letter or digit; HTML's invisible spaces are none."""
    seen = _ENTITY.sub("", text) if "&" in text else text
    return _WORD.search(seen) is not None


def is_rule(line: str) -> bool:
    """Whether a line is blank, a horizontal rule or a similar ornament."""
    return not has_words(line) and len(line) <= _LONGEST_LINE


def cut_reader_talk(texts: pa.Array | pa.ChunkedArray) -> dict[int, tuple[str, str]]:
    """Cut talk to the readers off the edges of stories.

    Args:
        texts: strings; shape (n,).

    Returns:
        For the number of each text that changes, the story and the lines that were cut.
    """
    triggered = pc.match_substring_regex(texts, pattern=_TRIGGER)
    rows = pc.indices_nonzero(pc.fill_null(triggered, False))
    texts = texts.take(rows)
    # Arrow searches all texts and lines at once, at a hundredth of the cost.
    has_mark = pc.match_substring_regex(texts, pattern=_MARKED_SOMEWHERE).to_pylist()
    stories = [text.split("\n") for text in texts.to_pylist()]
    edges = [_edges(lines) for lines in stories]
    lines_at_edges = pa.array(
        {lines[n] for lines, numbers in zip(stories, edges, strict=True) for n in numbers},
        pa.large_string(),
    )
    possible = lines_at_edges.filter(pc.match_substring_regex(lines_at_edges, pattern=_TRIGGER))
    possible_lines = set(possible.to_pylist())
    found = {}
    for row, lines, numbers, marked in zip(rows.to_pylist(), stories, edges, has_mark, strict=True):
        candidates = {n: at_end for n, at_end in numbers.items() if lines[n] in possible_lines}
        if candidates or marked:
            cut = _without_talk(lines, candidates, marked)
            if cut is not None:
                found[row] = cut
    return found


def _edges(lines: list[str]) -> dict[int, bool]:
    """The numbers of the first and last few lines that hold words; true for the last."""
    first = itertools.islice(_with_words(lines, range(len(lines))), _HEAD_LINES)
    last = itertools.islice(_with_words(lines, reversed(range(len(lines)))), _TAIL_LINES)
    return dict.fromkeys(first, False) | dict.fromkeys(last, True)


def _with_words(lines: list[str], numbers: Iterable[int]) -> Iterator[int]:
    return (n for n in numbers if not is_rule(lines[n]))


def _without_talk(
    lines: list[str], candidates: dict[int, bool], has_mark: bool
) -> tuple[str, str] | None:
    """The story without talk, and what was cut; null where nothing is, or nothing would be left."""
    cut = _talk_at_edges(lines, candidates)
    if has_mark:
        cut |= _edits_about_votes(lines)
        cut |= _rest_of_edit(lines, cut)
    cut |= _ornaments(lines, cut)
    last = next((n for n in reversed(range(len(lines))) if n not in cut), None)
    if last is None:
        return None
    end = _inline_edit(lines[last]) if has_mark else None
    if end is None and not cut:
        return None
    kept: list[str] = []
    gone: list[str] = []
    for n, line in enumerate(lines):
        if n in cut:
            gone.append(line)
        elif n == last and end is not None:
            kept.append(line[:end])
            gone.append(line[end:])
        elif line.strip() or n - 1 not in cut or (kept and kept[-1].strip()):
            # Else a blank line follows the blank line before the cut: one is enough.
            kept.append(line)
    story = "\n".join(kept)
    if last < len(lines) - 1 or end is not None:
        story = story.rstrip()
    return (story, "\n".join(gone).strip()) if has_words(story) else None


def _talk_at_edges(lines: list[str], candidates: dict[int, bool]) -> set[int]:
    """The numbers of lines of talk among the candidates."""
    cut = set()
    is_fiction = False
    for n, at_end in candidates.items():
        line = lines[n]
        if len(line) <= _LONGEST_LINE and _BARE_MARK.match(_plain(line)):
            # The mark stands on a line of its own, above what it marks.
            below = next(_with_words(lines, range(n + 1, len(lines))), None)
            if below is None:
                cut.add(n)
            elif _talk_kind(f"edit: {lines[below]}") is not None:
                cut |= {n, below}
        elif _talk_kind(line, at_end=at_end) is not None:
            cut.add(n)
        elif _is_marked(line):
            is_fiction = True
    if is_fiction:
        # A marked edit that is not talk to readers belongs to a story in the form of posts, and
        # so may the others, unless they are about votes or corrections.
        cut = {n for n in cut if not _is_marked(lines[n]) or _SURE_EDIT.search(_plain(lines[n]))}
    return cut


def _is_marked(line: str) -> bool:
    """Whether a line opens as a marked edit does."""
    return _MARKED.match(line) is not None and _EDIT.match(_plain(line[:_LONGEST_LINE])) is not None


def _edits_about_votes(lines: list[str]) -> set[int]:
    """The numbers of marked edits about votes, at any position."""
    return {
        n
        for n, line in enumerate(lines)
        if _MARKED.match(line)
        and _talk_kind(line) == "edit"
        and _ABOUT_VOTES.search(_plain(line)) is not None
    }


def _rest_of_edit(lines: list[str], cut: set[int]) -> set[int]:
    """The numbers of the few lines below a marked edit at the end, which continue it."""
    before = sum(len(line) for n, line in enumerate(lines) if n not in cut)
    rest: set[int] = set()
    taken: set[int] = set()
    length = 0
    for n in reversed(range(len(lines))):
        if n not in cut:
            length += len(lines[n])
            before -= len(lines[n])
            rest.add(n)
        elif before >= _TIMES_BEFORE * (length + len(lines[n])) and _is_marked(lines[n]):
            taken = set(rest)
        if length > _LONGEST_REST:
            break
    return taken


def _ornaments(lines: list[str], cut: set[int]) -> set[int]:
    """The numbers of blank lines and rules that set off what was cut at either end."""
    taken: set[int] = set()
    for numbers in (range(len(lines)), range(len(lines) - 1, -1, -1)):
        edge = list(itertools.takewhile(lambda n: n in cut or is_rule(lines[n]), numbers))
        if not cut.isdisjoint(edge):
            taken |= set(edge) - cut
    return taken


def _inline_edit(line: str) -> int | None:
    """Where an edit about votes begins that shares the story's last line; null without one."""
    for found in _INLINE.finditer(line, max(0, len(line) - _LONGEST_INLINE)):
        note = line[found.end() :]
        if _talk_kind(note) == "edit" and (
            note.lstrip()[0] in "([" or _ABOUT_VOTES.search(_plain(note)) is not None
        ):
            return found.end()
    return None
