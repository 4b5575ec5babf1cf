"""Whether a judge's prose after a verdict contradicts it.

Nothing is guessed. A verdict falls with a later sentence that

- ends a clause with the other story as its answer ("Err, B.", "I'd go with B"), or prefers it;
- denies the preference for the first story, or calls both equal;
- speaks of the verdict or of the judge, names no story and retracts;
- begins with an interjection, or reconsiders;
- is not understood: only English is, so a short sentence without a common English word, or one
  that names only the other story, may say anything.

All other sentences only describe, as do those about one part ("Style: ...") and those about what
others prefer. The prose is folded: NFKC, straight apostrophes, no quoted text. Every step takes
linear time.
"""

import re
from itertools import chain

NOUN = (
    r"(?:story|response|option|text|answer|candidate|geschichte|histoire|historia|storia|故事|作品)"
)
# These replace the names of the preferred story and of the other one.
_SAME, _OTHER = "samestory", "otherstory"
_MODAL = r"would|could|should|might|may|must|will|can|did|had|won|and|or"
# At the start of a sentence, A is an article unless a verb follows.
_ARTICLE = rf"(?:^|(?<=[\r\n.!?:(*-])|(?<=[.!?:(*-] ))A (?!\w*s\b|(?:{_MODAL})\b)"
_STORY = re.compile(
    rf"(?:\b(?:the )?{NOUN} ?[\"'(]?(?P<named>[AB])|(?<![a-z0-9_'])(?!(?-i:{_ARTICLE}))"
    r"(?P<bare>(?-i:[AB]|b)))(?![a-z0-9_+]|'(?!s (?:the|my|better|clearly)\b))"
    rf"|\bthe (?P<place>first|second|other|former|latter)(?: (?:{NOUN}|one|piece|tale)\b"
    rf"|(?= ?(?:[,.;:!?)]|$)| (?:is|was|has|{_MODAL}|wins|deserves)\b))|\bother one\b",
    re.I,
)
_PLACES = {"first": "A", "former": "A", "second": "B", "latter": "B"}

_SENTENCE = re.compile(r"(?<=[.!?。！？…])|[\r\n]+")
_CLAUSE = re.compile(r"[,;:!?()—–…，；、/]| - ")
_PART_OF_CLAUSE = re.compile(
    r"\b(?:but|while|whereas|though|although|and|yet|because|since)\b", re.I
)
_HEADING = re.compile(
    rf"[\s*_#>-]*(?![^:]*(?:{_SAME}|{_OTHER}))(?:[\w'-]+ ){{0,2}}?[\w'-]+[\s*_]*(?P<sign>:|$)"
    r"[\s*_]*"
)
_CONCLUDES = re.compile(
    r"\b(?:i|that|overall|final\w*|conclu\w+|verdict|prefer\w*|winner|answer|choice|better|best)\b",
    re.I,
)
# "- B: strange and alive"
_ITEM = re.compile(rf"[^,.;:]{{0,20}}{_OTHER}\W*:(?=\W*\w)")
_WORD = re.compile(r"[^\W_]+")
_ENGLISH = re.compile(
    r"\b(?:the|of|and|is|was|are|were|has|have|had|it|its|to|for|with|but|so|an|by|more|than|both"
    r"|very|much|too|each|as|at|would|does|not|because|while|may|might|can|could|be|been|there|they"
    r"|their|which|who|some|one|only|when|where|if|from|into|about|over|rather|unlike|let|hope"
    r"|thanks?|done|end|confidence|no contest)\b|\bi \w+ \w|\d|^\s*[,;:–—-]",
    re.I,
)
_DESCRIBES = re.compile(rf"{_OTHER} \w{{3,}}s\b")
# A word alone before a comma, unless it connects sentences.
_INTERJECTION = re.compile(
    r"\W*(?!(?:overall|however|still|yes|also|moreover|furthermore|besides|first|second|third|last"
    r"|thus|therefore|hence|indeed|sure|granted|plus|otherwise|nevertheless|nonetheless|meanwhile"
    rf"|here|again|{_SAME}|{_OTHER})\b)(?:actually|(?!\w+ly\b)[^\W\d_]+)(?: ?[,!?…–—]| - |\.\.)",
    re.I,
)
_RECONSIDERS = re.compile(
    r"\b(?:on (?:\w+ )?(?:thoughts?|reflection|(?:re-?)?reading)|then again|no longer)\b"
    r"|looking back|\bnot\W*$|^\W*(?:not (?:really|so|quite)|no|nope|wait|hold on)\b(?! contest)"
    r"|\b(?:edit|correction|update|typo|erratum)\s*:",
    re.I,
)
_OF_VERDICT = re.compile(
    r"\b(?:i|i'm|i've|my|me|that|this|it|above|verdict|answer|choice|preference|line|letters?|labels?"
    r"|order)\b",
    re.I,
)
_RETRACTS = re.compile(
    r"\b(?:(?:correct|mist[ao]|mis(?:read|judg|spoke|wrote)|retract|withdr|revis|reconsider|chang|revers"
    r"|swap|switch|mix|confus|jok|kidding|sarcas|ignor|disregard|apolog|scratch|strike)\w*|wrong"
    r"|incorrect|err(?:or|atum)?|oops|sorry(?! for)|mean|meant|typo|slip|lied|back|opposite|instead"
    r"|other way|make (?:it|that)|not (?:true|so))\b",
    re.I,
)
_EQUAL = re.compile(
    r"\b(?:it(?:'s| is) a (?:tie|draw)|(?:they|both|neither)(?: \w+)? (?:are|is)(?: \w+)? (?:equal"
    r"|equally good|tied|better)|i (?:have|state) no preference"
    r"|i (?:can't|cannot) (?:choose|decide))(?=\W*$)",
    re.I,
)
_OTHERS = re.compile(
    r"\b(?:some|others|many|readers?|people|critics|fans|one (?:might|could|may)|you|author|writer"
    r"|narrator|nobody|no one|doubt)\b",
    re.I,
)
_BARE = re.compile(
    rf"(?P<before>.*){_OTHER}(?: (?:instead|then|it is|after all|though|please|actually|really"
    r"|indeed|now|i think))?\W*\Z",
    re.I,
)
_GOVERNED = re.compile(
    r"\b(?:than|over|of|from|in|unlike|like|as|above|beats|between|and|about|against|not|by|at|into"
    r"|nor|behind|below|near|versus|vs|(?:\w*compar\w*|contrast\w*|next|closer?|similar|equal|inferior"
    r"|superior|due|akin|relative|prefer\w*) (?:to|with))\W*\Z",
    re.I,
)
_PARTICLE = re.compile(r"\b(?:to|for|with|on|towards?)\W*\Z", re.I)
_SUBJECT = re.compile(rf"\W*(?:it|its|this|which)\b|.*{_SAME}", re.I)
_IS = re.compile(r"\b(?:is|be|was|or|mean|meant|meaning|rather)\W*\Z", re.I)
_PREFERENCE = (
    r".*\b(?:prefer\w*|better|best|stronger|strongest|superior|win|wins|winner|winning|won|choose"
    r"|chose|choice|pick|vote|favou?r|favou?rites?|deserves? (?:to|it|this|that|the)|prevails"
    r"|triumphs|beats|outshines|crown|prize|finer|finest|first place|rank)\b"
)
_DENIAL = r".*(?:\b(?:not(?! only)|never|hardly|cannot)\b|n't\b)"
# Not "better at dialogue", "has the better opening" or "would win on another day".
_PREFERS = re.compile(
    rf"(?!{_DENIAL}|.*\b(?:has|have|had|with|would)\b){_PREFERENCE}"
    rf"(?! ?(?:at|in|for|on|when|where|than {_OTHER})\b)",
    re.I,
)
_IS_CHOSEN = re.compile(
    rf"{_OTHER}(?:'s|,? \w+)? (?:should|must|ought|shall|has to|needs to)\b(?! have)"
    rf"|{_OTHER}(?:'s| is| was) (?:\w+ )?(?:my|what|the one|the story)\b"
    rf"|{_OTHER} \w+ me (?:\w+ )?(?:more|most|best)\b|{_OTHER} ?比|(?<!{_SAME} )\bor {_OTHER}",
    re.I,
)
_IS_DENIED = re.compile(
    rf".*\bnot {_SAME}|(?=.*{_SAME})(?:.*\b(?:worse|weaker|worst|weakest|inferior|loses|lost)\b"
    rf"(?! ?(?:at|in)\b)|(?={_DENIAL}){_PREFERENCE}(?! ?(?:at|in|for|on)\b))",
    re.I,
)
_ORIGIN = r"(?:(?:the|its|this|that) )*(?:author|writer|narrator|story|text|prose|end|last)\b"
_DISOWNED = re.compile(
    r"\W*(?:this|that|these|those|such|which)(?:'s| (?:is|was|are|were|line|verdict|sentence|words"
    r"|text|stands|appears))\b(?! (?:because|based|why|my|(?:a )?(?:very |rather )?(?:close|hard"
    r"|tough|difficult|easy)))"
    rf"|\W*(?:\w+ ){{0,3}}(?:says?|said|writes?|claims?|written|planted|hidden|quoted|according to"
    rf"|in|by|from) (?:\w+ )?{_ORIGIN}",
    re.I,
)


def stands(prose: str, verdict: str) -> bool:
    """Whether a verdict (A, B or tie) is left standing by the judge's own prose after it."""

    def renamed(match: re.Match[str]) -> str:
        place = (match["place"] or "").casefold()
        letter = (match["named"] or match["bare"] or _PLACES.get(place, "")).upper()
        return _SAME if letter == verdict else _OTHER

    lines = [line for line in _STORY.sub(renamed, prose).splitlines() if _WORD.search(line)]
    is_below = False
    for number, line in enumerate(lines, start=1):
        heading = _HEADING.match(line)
        is_heading = heading is not None and heading.end() == len(line) and number < len(lines)
        if heading and (is_heading or heading["sign"]) and not _CONCLUDES.search(heading[0]):
            is_part = True
        else:
            is_part, is_heading = is_below, False
        if any(_is_contrary(sentence, verdict, is_part) for sentence in _SENTENCE.split(line)):
            return False
        is_below = is_heading
    return True


def reconsiders(prose: str) -> bool:
    """Whether a sentence announces a change of mind."""
    return any(
        _RECONSIDERS.search(sentence) or _INTERJECTION.match(sentence)
        for sentence in _SENTENCE.split(prose)
    )


def is_disowned(prose: str) -> bool:
    """Whether the first sentence of the prose calls what was said before it a quotation."""
    first = next((part for part in _SENTENCE.split(prose.strip()[:300])), "")
    return _DISOWNED.match(first) is not None


def _is_contrary(sentence: str, verdict: str, is_part: bool) -> bool:
    """Whether a sentence lets the verdict fall; `is_part` if it speaks of one part."""
    if reconsiders(sentence) or (verdict != "tie" and _EQUAL.search(sentence)):
        return True
    is_understood = bool(_ENGLISH.search(sentence))
    if _SAME not in sentence and _OTHER not in sentence:
        n_words = len(_WORD.findall(sentence))
        is_retraction = _RETRACTS.search(sentence) and (
            n_words <= 3 or _OF_VERDICT.search(sentence)
        )
        return bool(is_retraction) or (0 < n_words <= 5 and not is_part and not is_understood)
    is_understood |= _SAME in sentence or _DESCRIBES.search(sentence) is not None
    clauses = _CLAUSE.split(_ITEM.sub("", sentence, count=1))
    is_inserted = len(clauses) > 2 and clauses[0].strip() == _OTHER
    if not is_understood or any(_is_bare(clause, sentence) for clause in clauses[is_inserted:]):
        return True
    parts = chain.from_iterable(map(_PART_OF_CLAUSE.split, clauses))
    return not is_part and any(map(_is_other_preferred, parts))


def _is_bare(clause: str, sentence: str) -> bool:
    """Whether a clause ends with the other story, as an answer does."""
    match = _BARE.match(clause)
    if match is None or _OTHERS.search(match["before"]):
        return False
    before = match["before"][-40:]
    is_object = _SUBJECT.match(match["before"]) and not _IS.search(before)
    is_held_against = _SAME in sentence and _PARTICLE.search(before)
    return not (is_object or is_held_against or _GOVERNED.search(before))


def _is_other_preferred(clause: str) -> bool:
    if _OTHERS.search(clause):
        return False
    named = any(not _GOVERNED.search(before[-40:]) for before in clause.split(_OTHER)[:-1])
    is_preferred = named and (_PREFERS.match(clause) or _IS_CHOSEN.search(clause))
    return bool(is_preferred or _IS_DENIED.match(clause))
