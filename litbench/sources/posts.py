"""Reddit posts and comments as rows of a stories table, whether an API or an archive gave them.

Both speak the same JSON: a post has `id`, `title`, `created_utc`, a comment `id`, `link_id`,
`parent_id`, `body`, `author`, `score`. Names of authors are hashed with a secret salt before
anything is written, so that two stories of one author can be told without saying whose they are.
"""

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from litbench.curation.moderation import BOT_NAMES
from litbench.errors import ConfigError, DataError
from litbench.records import STORIES

# What r/WritingPrompts calls a prompt: writing, simple, established universe, constrained, theme,
# image, media, reality, prompt me. Not: [PI] and [CC], whose story is the post; [OT], [MODPOST].
PROMPT_TAGS = ("WP", "SP", "EU", "CW", "TT", "IP", "MP", "RF", "PM")

SALT_VARIABLE = "LITBENCH_SALT"

# An id of a post or comment, without its kind: a number in base 36, of which 12 digits fit 64 bits.
THING_ID = r"[0-9a-z]{1,12}"

# A table of `story_row`'s rows: the columns of STORIES and those that only Reddit has.
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
_NOBODY = ("[deleted]", "[removed]", "")


def prompt_tag(title: str) -> str | None:
    """The tag a title opens with, in capitals: "WP" of "[WP] A door."; null without one."""
    found = _TAG.match(title)
    return found[1].upper() if found else None


def is_bot(author: str | None) -> bool:
    """Whether an account's name says that it is a bot."""
    return author is not None and _BOT_NAME.search(author) is not None


def load_salt() -> str:
    """The secret that authors' names are hashed with: LITBENCH_SALT, or else a file.

    The file is made on first use in the user's configuration folder, so that the same author has
    the same hash in every source this user prepares. It is never written beside the data.
    """
    path = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "litbench" / "salt"
    salt = os.environ.get(SALT_VARIABLE)
    try:
        if salt is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600)
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(secrets.token_hex(16))
            salt = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the salt for authors' names cannot be kept in {path} ({error}): export "
            f"{SALT_VARIABLE} instead"
        ) from error
    if len(salt) < 16:
        # Anyone could look up names hashed with an empty salt.
        raise ConfigError(
            f"the salt for authors' names in {SALT_VARIABLE} or {path} is shorter than 16 "
            f"characters: export a longer {SALT_VARIABLE}, such as of openssl rand -hex 16"
        )
    return salt


def hash_author(author: str | None, salt: str) -> str | None:
    """Hash an account's name to 16 hexadecimal digits; null for a deleted account."""
    if author is None or author in _NOBODY:
        return None
    name = author.casefold().encode("utf-8", "surrogatepass")
    return hashlib.blake2b(name, key=salt.encode()[:64], digest_size=8).hexdigest()


def salt_name(salt: str) -> str:
    """What tells a salt from another, for manifests: no more than a table's hashes give away."""
    # No account can have a name with spaces in it.
    return f"hashes 'the salt itself' to {hash_author('the salt itself', salt)}"


def fullname(kind: str, value: str) -> str:
    """The full name of a thing, such as "t1_abc" of "abc" (kind "t1"), "t1_abc" or "T1_ABC"."""
    bare = value.strip().lower()
    return bare if bare.startswith(f"{kind}_") else f"{kind}_{bare}"


def is_settled(created_utc: int, score_utc: int | None, min_score_age_hours: float) -> bool:
    """Whether a score was read late enough after posting."""
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
    """One top-level comment as a row of a stories table.

    Args:
        comment: a comment's JSON, by the names of Reddit's API.
        post: the JSON of the post it answers.
        source: written into the column `source`.
        salt: see `load_salt`.
        score_utc: when the score was read; null where unknown.
        escaped: whether texts hold "&amp;", "&lt;" and "&gt;", as in archives, not in the API.
        min_score_age_hours: a score that was read sooner after posting, at an unknown time, or is
            hidden (Reddit then says 1) becomes null.

    Returns:
        The columns of STORY_ROWS but `n_words` and `n_tokens`.

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
        "prompt": _unescape(prompt) if escaped else prompt,
        "text": _unescape(text) if escaped else text,
        "source": source,
        "score": score,
        "score_utc": score_utc,
        "created_utc": created,
        "author": hash_author(author, salt),
        "flair": prompt_tag(prompt) or text_of(post, "link_flair_text", needed=False),
        # Reddit says false, or when; very old posts say true.
        "edited_utc": None if edited in (None, False, True) else number_of(comment, "edited"),
        "over_18": bool(post.get("over_18", False)),
        "is_bot": is_bot(author),
    }


def _unescape(text: str) -> str:
    # Reddit escapes these three and no others; "&amp;nbsp;" was typed as "&nbsp;".
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def text_of(thing: Mapping[str, Any], name: str, *, needed: bool = True) -> Any:
    """A field that is text; null where it is absent and not needed, else a DataError.

    JSON lets half a surrogate pair by, which UTF-8 cannot hold: it becomes U+FFFD.
    """
    value = thing.get(name)
    if value is None and not needed:
        return None
    if not isinstance(value, str):
        what = "is missing" if value is None else f"is a {type(value).__name__}, not text"
        raise DataError(f"{name} {what}")
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def number_of(thing: Mapping[str, Any], name: str) -> int | None:
    """A field that is a whole number, or one as text, as in old archives; null where absent."""
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
