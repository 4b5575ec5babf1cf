"""Turn Reddit's posts and comments, from the API or an archive, into rows of a stories table.

The API and archives use the same JSON: a post has `id`, `title`, `created_utc`, a comment `id`,
`link_id`, `parent_id`, `body`, `author`, `score`. Author names are hashed with a secret salt before
anything is stored, so stories by the same author can be linked without revealing the author.
"""

import contextlib
import hashlib
import html
import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from litbench.data.curation.moderation import BOT_NAMES
from litbench.data.records import STORIES, is_account
from litbench.data.text import INVISIBLE_REFERENCE, valid_unicode
from litbench.runs.errors import ConfigError, DataError

# Tags of prompts on r/WritingPrompts: writing, simple, established universe, constrained, theme,
# image, media, reality, prompt me. Not [PI] and [CC], where the post is the story, nor [OT] and
# [MODPOST].
PROMPT_TAGS = ("WP", "SP", "EU", "CW", "TT", "IP", "MP", "RF", "PM")

SALT_VARIABLE = "LITBENCH_SALT"

# An id of a post or comment without its kind: a number in base 36; 12 digits fit into 64 bits.
THING_ID = r"[0-9a-z]{1,12}"

# Schema of the rows of `story_row`: the columns of STORIES and those specific to Reddit.
STORY_ROWS = pa.schema(
    [
        *STORIES.arrow(),
        pa.field("edited_utc", pa.int64()),
        pa.field("over_18", pa.bool_()),
        pa.field("is_bot", pa.bool_()),
    ]
)

_TAG = re.compile(r"^[\s*_#>]*\[\s*([A-Za-z]{2,12})\s*\]")
_BOT_NAME = re.compile(BOT_NAMES)
_REFERENCE = re.compile(INVISIBLE_REFERENCE)
_NOBODY = ("[deleted]", "[removed]", "")
# What `hash_author` returns, which is not hashed again.
_HASH = re.compile(r"[0-9a-f]{16}")
# Stands for the name of a bot in tables that have no column `is_bot`.
_BOT = "bot"

_REDDIT_TEXT = re.compile(r"\b(?:body|selftext)\b")
_REDDIT_FIELD = re.compile(
    r"\b(?:title|ups|created_utc|subreddit\w*|link_\w+|parent_id|author_fullname|score_hidden|over_18"
    r"|permalink|num_comments|retrieved_\w+)\b"
)


def prompt_tag(title: str) -> str | None:
    """Return the leading tag of a title in capitals, such as "WP" for "[WP] A door.", or null."""
    tag = _TAG.match(title)
    return tag[1].upper() if tag else None


def is_bot(author: str | None) -> bool:
    """Return whether an account's name is that of a bot."""
    return author is not None and _BOT_NAME.search(author) is not None


def load_salt() -> str:
    """Return the secret salt of author hashes, from LITBENCH_SALT or a file.

    The file is created on first use in the user's configuration folder, so that an author has the
    same hash in all sources that this user prepares. It is never stored with the data.
    """
    path = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "litbench" / "salt"
    salt = os.environ.get(SALT_VARIABLE)
    try:
        if salt is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                # Two first programs must not read a half-written salt.
                handle, written = tempfile.mkstemp(dir=path.parent)
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(secrets.token_hex(16))
                with contextlib.suppress(FileExistsError):
                    os.link(written, path)
                Path(written).unlink()
            salt = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the salt for authors' names cannot be stored in {path} ({error}): export "
            f"{SALT_VARIABLE} instead"
        ) from error
    if len(salt) < 16:
        # Hashes with a short salt could be reversed by trying known names.
        raise ConfigError(
            f"the salt for authors' names in {SALT_VARIABLE} or {path} is shorter than 16 "
            f"characters: export a longer {SALT_VARIABLE}, for example from openssl rand -hex 16"
        )
    return salt


def hash_author(author: str | None, salt: str) -> str | None:
    """Hash an account's name to 16 hexadecimal digits; null for a deleted account."""
    if author is None or author in _NOBODY:
        return None
    name = author.casefold().encode("utf-8", "surrogatepass")
    return hashlib.blake2b(name, key=salt.encode()[:64], digest_size=8).hexdigest()


def salt_name(salt: str) -> str:
    """Return an identifier of a salt for manifests, which does not reveal the salt."""
    # Account names cannot contain spaces.
    return f"hashes 'the salt itself' to {hash_author('the salt itself', salt)}"


def fullname(kind: str, value: str) -> str:
    """Return a full name: "t1_abc" for "abc" (kind "t1"), "t1_abc" or "T1_ABC"."""
    bare = value.strip().lower()
    return bare if bare.startswith(f"{kind}_") else f"{kind}_{bare}"


def is_settled(created_utc: int, score_utc: int | None, min_score_age_hours: float) -> bool:
    """Return whether a score was read long enough after posting."""
    return min_score_age_hours <= 0 or (
        score_utc is not None and score_utc - created_utc >= min_score_age_hours * 3_600
    )


def story_row(
    comment: Mapping[str, Any],
    post: Mapping[str, Any],
    *,
    source: str,
    salt: str,
    score_utc: int | None,
    escaped: bool,
    min_score_age_hours: float = 0,
) -> dict[str, Any]:
    """Turn a top-level comment into a row of a stories table.

    Args:
        comment: JSON of the comment, as in Reddit's API.
        post: JSON of the post that it answers.
        source: value of the column `source`.
        salt: see `load_salt`.
        score_utc: time at which the score was read; null if unknown.
        escaped: whether texts contain "&amp;", "&lt;" and "&gt;"; true for archives, not the API.
        min_score_age_hours: scores become null if they were read sooner after posting or at an
            unknown time. Hidden scores, which Reddit reports as 1, always become null.

    Returns:
        The columns of STORY_ROWS without `n_words` and `n_tokens`.

    Raises:
        DataError: a field is missing or of the wrong type; the message names it.
    """
    created = number_of(comment, "created_utc")
    if created is None:
        raise DataError("created_utc is missing")
    score = number_of(comment, "score")
    hidden = bool(comment.get("score_hidden", False))
    if hidden or not is_settled(created, score_utc, min_score_age_hours):
        score = None
    edited = comment.get("edited")
    author = text_of(comment, "author", needed=False)
    prompt, text = text_of(post, "title"), text_of(comment, "body")
    return {
        "story_id": fullname("t1", text_of(comment, "id")),
        "prompt_id": fullname("t3", text_of(post, "id")),
        "prompt": unescape(prompt) if escaped else prompt,
        "text": unescape(text) if escaped else text,
        "source": source,
        "score": score,
        "score_utc": score_utc,
        "created_utc": created,
        "author": hash_author(author, salt),
        "flair": prompt_tag(prompt) or text_of(post, "link_flair_text", needed=False),
        # Reddit gives false or the time; very old posts give true.
        "edited_utc": None if edited in (None, False, True) else number_of(comment, "edited"),
        "over_18": bool(post.get("over_18", False)),
        "is_bot": is_bot(author),
    }


def is_reddit_shaped(origins: Mapping[str, str]) -> bool:
    """Return whether stories come from Reddit's JSON, whose texts are escaped.

    Args:
        origins: the column or SQL expression of each column of a stories table.
    """
    others = " ".join(origin for name, origin in origins.items() if name != "text")
    return bool(_REDDIT_TEXT.search(origins.get("text", "")) and _REDDIT_FIELD.search(others))


def unescape(text: str) -> str:
    """Undo Reddit's escapes once, then decode references to invisible characters."""
    # Reddit escapes only these three. Its editor writes an empty line as "&#x200B;".
    plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return _REFERENCE.sub(lambda match: html.unescape(html.unescape(match[0])), plain)


def hash_accounts(table: pa.Table) -> pa.Table:
    """Hash the names of accounts in all columns that hold them; see `is_account`.

    Hashes stay as they are. The names of bots become "bot". The salt is loaded, and if need be
    created, when the first name is hashed.
    """

    @cache
    def hashed(name: str) -> str | None:
        if _HASH.fullmatch(name):
            return name
        return _BOT if is_bot(name) else hash_author(name, load_salt())

    for index, column in enumerate(table.column_names):
        if is_account(column):
            values = table[column].to_pylist()
            names = [None if value is None else hashed(str(value)) for value in values]
            table = table.set_column(index, column, pa.array(names, pa.large_string()))
    return table


def text_of(thing: Mapping[str, Any], name: str, *, needed: bool = True) -> Any:
    """Return a text field; null if it is absent and not needed.

    Lone surrogates are replaced, see `valid_unicode`.

    Raises:
        DataError: the field is not text, or it is absent but needed.
    """
    value = thing.get(name)
    if value is None and not needed:
        return None
    if not isinstance(value, str):
        what = "is missing" if value is None else f"is a {type(value).__name__}, not text"
        raise DataError(f"{name} {what}")
    return valid_unicode(value)


def number_of(thing: Mapping[str, Any], name: str) -> int | None:
    """Return an integer field, which old archives write as text; null if it is absent."""
    value = thing.get(name)
    if value is None:
        return None
    try:
        number = int(value) if isinstance(value, int) else int(float(value))
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{name} is not a number") from error
    if isinstance(value, bool) or not -(1 << 63) <= number < 1 << 63:
        raise DataError(f"{name} is not a number")
    return number
