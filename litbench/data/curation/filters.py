"""Filters of single stories, as Ibis expressions (paper 3.2)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import ibis

from litbench.data.curation.moderation import BOT_NAMES, GONE
from litbench.data.curation.rules import PairRules

# White space is matched by patterns, as trimming whole texts took two thirds of the time of all
# filters. In RE2, \s lacks \x0b. The pattern ends in \z because in Java $ also matches before a
# final line break.
_SPACE = r"[\s\x0b]*"
_GONE = rf"^{_SPACE}(?:{GONE})?{_SPACE}\z"
_BOT_SIGNATURE = r"(?i)\bi am a bot, and this action was performed automatically"
# A story may open with the same words, so the template's second sentence must match as well.
_BOT_TEMPLATE = (
    r"(?is)^\W*(off[- ]topic (discussion|talk)|welcome to the prompt)\b"
    r".{0,300}\b(top[- ]level|reminder|reply here)\b"
)
# Characters at either end of a text that are searched.
_EDGE = 400

# Replies that comment on the prompt instead of telling a story. Only short texts are checked, by
# their first words in lower case. The patterns behave alike in RE2 (DuckDB) and Java (Spark): no
# (?i), whose case folding differs; \z for the end; and no ambiguous repetition.
TALK_WORDS = 80
_TALK = (
    # "RemindMe! 2 days", "!remindme"
    r"(?:remind ?me ?!|remindme\b|updateme ?!|remind ?me \d+ (?:day|hour|week))",
    # "[OT] how do you come up with these?"
    r"[\[(](?:ot|off[- ]topic|meta)[\])]",
    # "Commenting to find this later", "Saved for later", "Placeholder"
    r"(?:just )?(?:commenting|saving|bookmarking|replying)\b(?: (?:here|this)){0,2} (?:so|to|for)\b"
    r"[^\n]{0,60}\b(?:later|tomorrow|home|read|find|back)\b",
    r"(?:placeholder|reserved|saved|bookmarked)(?: this)?(?: for (?:later|now))?[\s\x0b.!]*\z",
    # "Great prompt!", "What a cool idea for a prompt", "I really love this prompt"
    r"(?:(?:wow|oh|man|what|an?|this|is|such|that's|really|very|the|so|op)[ ,.!]+){0,6}"
    r"(?:great|good|awesome|amazing|cool|nice|fantastic|brilliant|excellent|wonderful|fun|funny|"
    r"interesting|clever|lovely|best|favou?rite)(?: (?:idea|concept|premise))?"
    r"(?: (?:for|as|of) an?| writing)? (?:prompts?|wp)\b",
    r"(?:(?:wow|oh|man|i|really|absolutely|just|so|op)[ ,.!]+){0,6}"
    r"(?:love|loved|like|liked|enjoy|enjoyed) (?:this|the|your|that|these)(?: [a-z]+){0,2} "
    r"prompts?\b",
    # "Reminds me of a story by ..."
    r"(?:(?:wow|so|this|prompt|kinda|kind of|really)[ ,.!]+)*(?:reminds me|reminded me) "
    r"(?:a lot )?of\b[^\n]{0,100}\b(?:story|stories|books?|novels?|movies?|films?|episodes?|show|"
    r"series|game|anime|comic|poem|prompt)\b",
    # "Not OP, but ...", "Not a story, but ..."
    r"(?:i'?m )?not (?:the )?op\b",
    r"(?:this is |it's )?not (?:really |exactly |quite )?an? (?:story|response|reply|submission),? "
    r"(?:but|just|so)\b",
    # "You should post this to r/..."
    r"(?:(?:you|op|maybe|please|might|should|could|also|i'd|would|try|want|to)[ ,]+)*"
    r"(?:x-?post|cross-?post|post|posting|submit|ask|check out|try)\b[^\n]{0,40}?[ /]r/",
)
_ONLY_LINKS = (
    rf"^{_SPACE}" r"(?:(?:\[[^\]\n]*\] ?\([^)\s]+\)|<?https?://[^\s]+)(?:[\s\x0b]+|\z))+\z"
)
_BEFORE_TALK = r"^[\s\x0b*_>~#(.,!-]*"


class Rule(NamedTuple):
    """A named reason to remove a row; `about` describes the rule and its value in words."""

    name: str
    about: str
    removes: Any  # boolean Ibis expression


def story_rules(stories: Any, rules: PairRules) -> list[Rule]:
    """Return the rules for single stories, in the order in which they apply.

    Bots are recognised by author name, by wording, and by the column `is_bot` if the table has it
    (sources that hash author names fill it).

    Args:
        stories: Ibis table with the schema STORIES.
        rules: configuration that selects the rules.
    """
    score, tokens, words = rules.least_score, rules.max_tokens, rules.min_words
    checks = []
    if rules.drop_deleted:
        is_gone = stories.text.re_search(_GONE)
        checks.append(Rule("drop_deleted", "not deleted or removed", is_gone))
    if rules.drop_bots:
        checks.append(Rule("drop_bots", "not a bot or a moderator template", _is_bot(stories)))
    if rules.drop_talk:
        about = f"not a comment on the prompt (checked below {TALK_WORDS} words)"
        checks.append(Rule("drop_talk", about, _is_talk(stories)))
    checks.append(Rule("has_score", "score is known", stories.score.isnull()))
    if rules.chosen_later:
        checks.append(Rule("has_time", "time of posting is known", stories.created_utc.isnull()))
    if score is not None:
        checks.append(Rule("min_score", f"score at least {score}", stories.score < score))
    if tokens is not None:
        checks.append(Rule("max_tokens", f"at most {tokens:,} tokens", stories.n_tokens > tokens))
    if words is not None:
        checks.append(Rule("min_words", f"at least {words} words", stories.n_words < words))
    return checks


def _is_bot(stories: Any) -> Any:
    is_bot = stories.author.re_search(BOT_NAMES).fill_null(False)
    if "is_bot" in stories.columns:
        # Stories that were CSV or JSONL have "true" as text.
        is_bot |= stories.is_bot.cast("boolean").fill_null(False)
    head, tail = stories.text.substr(0, _EDGE), stories.text.right(_EDGE)
    is_bot |= head.re_search(_BOT_TEMPLATE) | head.re_search(_BOT_SIGNATURE)
    return is_bot | tail.re_search(_BOT_SIGNATURE)


def _is_talk(stories: Any) -> Any:
    """Return whether a short text comments on the prompt instead of telling a story."""
    head = stories.text.substr(0, _EDGE)
    # The engines lower-case İ differently. "I’d" should match "I'd".
    folded = head.replace("İ", "I").lower().replace("’", "'")
    talk = folded.re_search(f"{_BEFORE_TALK}(?:{'|'.join(_TALK)})")
    talk |= (stories.text.length() <= _EDGE) & head.re_search(_ONLY_LINKS)
    return (stories.n_words < TALK_WORDS) & talk


def removed_by(rules: Sequence[Rule]) -> Any:
    """Return a string column: the first rule that removes each row, or null."""
    branches = [(rule.removes, rule.name) for rule in rules]
    return ibis.cases(*branches, else_=ibis.null("string")) if rules else ibis.null("string")


def duplicate_key(stories: Any) -> Any:
    """Return the md5 of each text without case and ASCII whitespace; equal for copies."""
    # Plain replacements are several times faster than one regular expression, which took nearly a
    # third of the time of pairing stories with texts.
    bare = stories.text.replace("İ", "I").lower()
    for space in (" ", "\n", "\r", "\t"):
        bare = bare.replace(space, "")
    return bare.hexdigest("md5")


def is_repeat(stories: Any) -> Any:
    """Return whether a row is a later copy of a story; ties in time go by story_id.

    Args:
        stories: Ibis table with `duplicate_key`, `created_utc` and `story_id`.
    """
    window = ibis.window(
        group_by=stories.duplicate_key,
        order_by=[stories.created_utc.isnull(), stories.created_utc, stories.story_id],
    )
    return ibis.row_number().over(window) > 0
