"""Filters of single stories, as Ibis expressions (paper 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ibis

# Bodies that Reddit and its archives put in place of a text that is gone, such as "[removed]" and
# "[ Removed by Reddit on account of violating the content policy. ]".
_GONE = r"(?is)^(\[\s*(deleted|removed)(\s+by\s+(user|reddit|moderators?)\b.{0,200})?\s*\])?$"
# A set-off or capitalised "Bot" at the end: people are called Talbot and Abbot.
_BOT_NAMES = r"^(?i:automoderator)$|(^|[-_])(?i:bot)\d*$|[A-Za-z0-9]Bot\d*$"
_BOT_SIGNATURE = r"(?i)\bi am a bot, and this action was performed automatically"
# A story may open with the same words, so the template's next sentence is asked for as well.
_BOT_TEMPLATE = (
    r"(?is)^\W*(off[- ]topic (discussion|talk)|welcome to the prompt)\b"
    r".{0,300}\b(top[- ]level|reminder|reply here)\b"
)
_EDGE = 400


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


def story_rules(
    stories: Any,
    *,
    drop_deleted: bool,
    drop_bots: bool,
    needs_score: bool,
    needs_time: bool,
    min_score: int | None,
    max_tokens: int | None,
    min_words: int | None,
) -> list[Rule]:
    """The rules for single stories, in the order in which they apply.

    Args:
        stories: Ibis table by the schema STORIES.
        drop_deleted: remove deleted and removed bodies.
        drop_bots: remove bots and moderator templates, by author name and by wording.
        needs_score: remove stories without a score (a later rule compares scores).
        needs_time: remove stories without a time of posting.
        min_score: least net upvotes (paper: 10).
        max_tokens: most tokens (paper: 2,048).
        min_words: fewest words (paper: 50).
    """
    rules = []
    if drop_deleted:
        text = stories.text.strip()
        rules.append(Rule("drop_deleted", "not deleted or removed", text.re_search(_GONE)))
    if drop_bots:
        by_name = stories.author.re_search(_BOT_NAMES).fill_null(False)
        text = stories.text.strip()
        head, tail = text.substr(0, _EDGE), text.right(_EDGE)
        by_text = head.re_search(_BOT_TEMPLATE) | head.re_search(_BOT_SIGNATURE)
        by_text |= tail.re_search(_BOT_SIGNATURE)
        rules.append(Rule("drop_bots", "not a bot or a moderator template", by_name | by_text))
    if needs_score:
        rules.append(Rule("has_score", "score is known", stories.score.isnull()))
    if needs_time:
        rules.append(Rule("has_time", "time of posting is known", stories.created_utc.isnull()))
    if min_score is not None:
        rules.append(Rule("min_score", f"score at least {min_score}", stories.score < min_score))
    if max_tokens is not None:
        rules.append(
            Rule("max_tokens", f"at most {max_tokens:,} tokens", stories.n_tokens > max_tokens)
        )
    if min_words is not None:
        rules.append(Rule("min_words", f"at least {min_words} words", stories.n_words < min_words))
    return rules


def removed_by(rules: Sequence[Rule]) -> Any:
    """The name of the first rule that removes each row, null where none does; a string column."""
    if not rules:
        return ibis.null("string")
    return ibis.cases(*((rule.removes, rule.name) for rule in rules), else_=ibis.null("string"))


def duplicate_key(stories: Any) -> Any:
    """What two copies of a story share: its text without case and ASCII spacing, as md5."""
    return stories.text.lower().re_replace(r"\s+", " ").strip().hexdigest("md5")


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
