"""Filters of single stories, as Ibis expressions (paper 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ibis

from litbench.curation.bots import BOT_NAMES
from litbench.curation.gone import GONE
from litbench.curation.rules import PairRules

# It ends in \z, since to Java $ is also the place before a last line end.
_GONE = rf"^(?:{GONE})?\z"
_BOT_SIGNATURE = r"(?i)\bi am a bot, and this action was performed automatically"
# A story may open with the same words, so the template's next sentence is asked for as well.
_BOT_TEMPLATE = (
    r"(?is)^\W*(off[- ]topic (discussion|talk)|welcome to the prompt)\b"
    r".{0,300}\b(top[- ]level|reminder|reply here)\b"
)
_EDGE = 400

# Talk about the prompt, in the place of a story. Only short texts are looked at, by their openings
# in lower case. The patterns mean the same to RE2 (DuckDB) and to Java (Spark): no (?i), whose
# folding differs, \z for the end, and nothing repeated that could be divided in two ways.
TALK_WORDS = 80
_SHORT_TALK_WORDS = 30
_WORK = (
    r"(?:story|stories|books?|novels?|movies?|films?|episodes?|show|series|game|anime|manga|"
    r"(?:web)?comic|song|poem|prompt|thread|post|video|xkcd|scp|subreddit|twilight zone|"
    r"black mirror|doctor who|star trek|futurama|rick and morty)\b"
)
_FINE = (
    r"(?:great|good|awesome|amazing|cool|nice|fantastic|brilliant|excellent|wonderful|fun|funny|"
    r"neat|hilarious|interesting|clever|lovely|beautiful|best|favou?rite)"
)
_LATER = r"(?:later|tomorrow|tonight|home|after work|off work|soon)\b"
_TALK = (
    # "RemindMe! 2 days", "!remindme"
    r"(?:hey )?(?:remind ?me ?!|remindme\b|updateme ?!|remind ?me \d+ (?:day|hour|week))",
    # "[OT] how do you come up with these?"
    r"[\[(](?:ot|off[- ]topic|meta)[\])]",
    # "Commenting to find this later", "Saved for later", "Placeholder"
    r"(?:i'?m )?(?:just )?(?:commenting|saving|bookmarking|replying|following|marking|posting|"
    r"leaving a comment)\b(?: (?:here|this|just|it|one|spot|post|thread|prompt|on)){0,5}"
    rf" (?:so|to|for)\b[^\n]{{0,60}}\b(?:{_LATER}|read\b|find\b|back\b|save\b)",
    r"(?:placeholder|reserved|saved|bookmark|bookmarked|dibs|following|commenting)(?: this)?"
    r"(?: for (?:later|now))?[ .!]*\z",
    # "Great prompt!", "What a cool idea for a prompt", "I really love this prompt"
    rf"(?:(?:wow|oh|man|omg|what|an?|this|is|such|that's|really|very|the|my|so|ok|okay|haha|hey|op|"
    rf"absolutely|pretty)[ ,.!]+){{0,6}}{_FINE}(?: (?:idea|concept|premise))?"
    r"(?: (?:for|as|of) an?| writing| image)? (?:prompts?|wp)\b",
    r"(?:(?:wow|oh|man|omg|i|really|absolutely|just|so|ok|okay|haha|hey|op|also)[ ,.!]+){0,6}"
    r"(?:love|loved|like|liked|enjoy|enjoyed) (?:this|the|your|that|these|those|such)"
    r"(?: [a-z]+){0,2} prompts?\b",
    # "This reminds me of a story by ...", "Sounds like an episode of ..."
    r"(?:(?:ha|haha|heh|wow|so|this|prompt|kinda|kind of|sort of|really|always|also|op)[ ,.!]+)*"
    rf"(?:reminds me|reminded me) (?:a lot |so much |strongly )?of\b[^\n]{{0,100}}\b{_WORK}",
    r"(?:(?:this|that|it|so|just|really|kinda)[ ,.!]+)*sounds?(?: a (?:lot|bit|"
    rf"little))?(?: exactly| just)? like (?:an?|the|that|some) (?:[a-z']+ ){{0,3}}{_WORK}",
    r"(?:so )?(?:basically|(?:isn't|wasn't) (?:this|that|there)|this is (?:basically|literally|"
    r"just|exactly|pretty much|essentially))\b[^\n]{0,20}\b(?:the (?:plot|premise) (?:of|to)|"
    r"an? episode|a movie|the movie|a film|a book|the book|an anime|a novel|a story|a prompt)\b",
    # "Relevant xkcd", "Obligatory link"
    r"(?:somewhat |semi-?|slightly |kind of )?(?:relevant|related|obligatory|mandatory)\b"
    r"[^\n]{0,40}?(?:\bxkcd|\bsmbc|\blink\b|\bvideo|\bsong|\bcomic|\bclip|\br/|\bhttp)",
    # "Not OP, but ...", "Not a story, but ..."
    r"(?:i'?m )?not (?:the )?op\b",
    r"(?:this is |it's )?not (?:really |exactly |quite )?an? (?:actual |real )?(?:story|response|"
    r"reply|submission|prompt response),? (?:but|just|so)\b",
    # "You should post this to r/..."
    r"(?:(?:you|op|maybe|please|might|should|could|also|i'd|would|try|consider|want|to)[ ,]+)*"
    r"(?:x-?post|cross-?post|post|posting|submit|ask|asking|check out|try)\b[^\n]{0,40}?[ /]r/",
)
_SHORT_TALK = (
    # "I'd watch this", "Someone please write this", "This would make a great movie"
    r"(?:i would|i'd|id|would) (?:(?:totally|absolutely|love to|definitely|so|legit) )*(?:read|"
    r"watch|"
    r"buy|play) (?:the (?:hell|shit|fuck|crap) out of )?(?:this|that|it)(?: (?:movie|book|show|"
    r"series|story|game|so hard))?[ .!]*(?:\z| if\b)",
    r"(?:can |could |would )?(?:someone|somebody|anyone)(?: (?:please|pls|needs to|should|"
    r"has to))? "
    r"(?:write (?:this|one|it|more|a story)|(?:make|turn) (?:this|it)(?: into)? an? (?:movie|film|"
    r"book|story|series|game))\b",
    r"(?:this|that) (?:would|could|should|needs to) (?:be|"
    r"make) (?:such )?an? (?:[a-z]+ ){0,2}(?:movie|film|book|series|show|game|story|prompt)\b",
    # "I'll write something for this when I get home"
    r"(?:i'?ll|i will|will|gonna|i'm gonna|going to|i'm going to) (?:write|post|respond|reply|"
    r"finish) "
    r"(?:this|something|one|my|it|up|to this|an? (?:story|response|reply|part))\b[^\n]{0,60}"
    rf"\b{_LATER}",
    r"(?:thanks|thank you|thx)(?: so much| op)? for (?:the|this|posting)(?: [a-z]+){0,3} ?prompt\b",
    r"(?:i )?(?:just )?up-?voted (?:for|because|this|just|purely)\b",
)
# Asked of the text as it was typed, since names have capitals: "Read The Door by Ann Example".
_READING_TIP = (
    r"^[\s*_>(]*(?:(?:[Yy]ou|[Aa]nyone|[Ii]f|[Aa]lso|[Ss]hould|might|may|I|would|[Hh]ighly|go|to|"
    r"like|"
    r"recommend|have|need|want|enjoy|this|it)[ ,]+)*(?:[Rr]ead|[Rr]eading|[Cc]heck out|[Ll]ook up|"
    r"[Rr]ecommend)\b[^\n]{0,100}\bby [A-Z][a-zA-Z.]*,? [A-Z]"
)
_ONLY_LINKS = r"^(?:(?:\[[^\]\n]*\] ?\([^)\s]+\)|<?https?://[^\s]+)(?:\s+|\z))+\z"
_BEFORE_TALK = r"^[\s*_>~#(.,!-]*"


@dataclass(frozen=True)
class Rule:
    """A named reason to remove a row.

    Attributes:
        name: the step's name in the funnel.
        about: the rule in words, with its value.
        removes: boolean Ibis expression, true where the row goes.
    """

    name: str
    about: str
    removes: Any


def story_rules(stories: Any, rules: PairRules) -> list[Rule]:
    """The rules for single stories, in the order in which they apply.

    Bots are known by the column `is_bot` where the table has it (sources that hash names fill it),
    by author name and by wording.

    Args:
        stories: Ibis table by the schema STORIES.
        rules: which to apply.
    """
    text = stories.text.strip()
    hours, score = rules.min_score_age_hours, rules.min_score
    tokens, words = rules.max_tokens, rules.min_words
    about_talk = f"not talk about the prompt (looked for below {TALK_WORDS} words)"
    steps = [
        rules.drop_deleted
        and Rule("drop_deleted", "not deleted or removed", text.re_search(_GONE)),
        rules.drop_bots
        and Rule("drop_bots", "not a bot or a moderator template", _is_bot(stories)),
        rules.drop_talk and Rule("drop_talk", about_talk, _is_talk(stories)),
        Rule("has_score", "score is known", stories.score.isnull()),
        hours is not None
        and Rule(
            "min_score_age_hours",
            f"score read at least {hours:g} hours after posting",
            ((stories.score_utc - stories.created_utc).cast("float64") < hours * 3_600).fill_null(
                True
            ),
        ),
        rules.chosen_later
        and Rule("has_time", "time of posting is known", stories.created_utc.isnull()),
        score is not None and Rule("min_score", f"score at least {score}", stories.score < score),
        tokens is not None
        and Rule("max_tokens", f"at most {tokens:,} tokens", stories.n_tokens > tokens),
        words is not None and Rule("min_words", f"at least {words} words", stories.n_words < words),
    ]
    return [step for step in steps if step]


def _is_bot(stories: Any) -> Any:
    found = stories.author.re_search(BOT_NAMES).fill_null(False)
    if "is_bot" in stories.columns:
        found |= stories.is_bot.fill_null(False)
    text = stories.text.strip()
    head, tail = text.substr(0, _EDGE), text.right(_EDGE)
    found |= head.re_search(_BOT_TEMPLATE) | head.re_search(_BOT_SIGNATURE)
    return found | tail.re_search(_BOT_SIGNATURE)


def _is_talk(stories: Any) -> Any:
    """True for short texts that talk about the prompt instead of telling a story."""
    text = stories.text.strip()
    head = text.substr(0, _EDGE)
    # Engines differ about the lower case of İ; "I’d" is "I'd".
    folded = head.replace("İ", "I").lower().replace("’", "'")
    talk = folded.re_search(f"{_BEFORE_TALK}(?:{'|'.join(_TALK)})")
    talk |= head.re_search(_READING_TIP)
    talk |= (text.length() <= _EDGE) & head.re_search(_ONLY_LINKS)
    short = folded.re_search(f"{_BEFORE_TALK}(?:{'|'.join(_SHORT_TALK)})")
    return ((stories.n_words < TALK_WORDS) & talk) | ((stories.n_words < _SHORT_TALK_WORDS) & short)


def removed_by(rules: Sequence[Rule]) -> Any:
    """The name of the first rule that removes each row, null where none does; a string column."""
    if not rules:
        return ibis.null("string")
    return ibis.cases(*((rule.removes, rule.name) for rule in rules), else_=ibis.null("string"))


def duplicate_key(stories: Any) -> Any:
    """What two copies of a story share: its text without case and ASCII spacing, as md5."""
    # Plain replacements take a fraction of the time of one regular expression, which was nearly a
    # third of the time of pairing stories with texts.
    bare = stories.text.replace("İ", "I").lower()
    for space in (" ", "\n", "\r", "\t"):
        bare = bare.replace(space, "")
    return bare.hexdigest("md5")


def is_repeat(stories: Any) -> Any:
    """True for every copy of a story but the earliest (then the smallest story_id).

    Args:
        stories: Ibis table with `duplicate_key`, `created_utc` and `story_id`.
    """
    window = ibis.window(
        group_by=stories.duplicate_key,
        order_by=[stories.created_utc.isnull(), stories.created_utc, stories.story_id],
    )
    return ibis.row_number().over(window) > 0
