"""Reddit posts and comments as rows of a stories table, whether an API or an archive gave them.

Both speak the same JSON: a post has `id`, `title`, `created_utc`, a comment `id`, `link_id`,
`parent_id`, `body`, `author`, `score`. Names of authors are hashed with a secret salt before
anything is written, so that two stories of one author can be told without saying whose they are.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from litbench.curation.bots import BOT_NAMES
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
        pa.field("prompt_created_utc", pa.int64()),
        pa.field("score_settled", pa.bool_()),
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
    """The secret that authors' names are hashed with.

    It is read from the environment variable LITBENCH_SALT, or else from a file in the user's
    configuration folder that is made on first use, so that the same author has the same hash in
    every source this user prepares. It is never written beside the data.

    Raises:
        ConfigError: the variable is shorter than 16 characters, or the file cannot be made.
    """
    given = os.environ.get(SALT_VARIABLE)
    if given is not None:
        if len(given) < 16:
            raise ConfigError(
                f"{SALT_VARIABLE} is shorter than 16 characters: export a longer secret, such as "
                "the output of openssl rand -hex 16"
            )
        return given
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    path = Path(base) / "litbench" / "salt"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Of two programs that start at once, the first to link wins, and both read its file.
            draft = path.with_name(f".salt-{secrets.token_hex(8)}")
            draft.touch(mode=0o600)
            draft.write_text(secrets.token_hex(16), encoding="utf-8")
            try:
                path.hardlink_to(draft)
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        kept = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the salt for authors' names cannot be kept in {path} ({error}): export "
            f"{SALT_VARIABLE} instead"
        ) from error
    if len(kept) < 16:
        # An empty salt would hash names so that anyone could look them up.
        raise ConfigError(
            f"{path} holds fewer than 16 characters: remove it, and another salt is made (authors "
            f"then get other hashes than before), or export {SALT_VARIABLE}"
        )
    return kept


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


def is_settled(
    created_utc: int, score_utc: int | None, min_score_age_hours: float, *, hidden: bool = False
) -> bool:
    """Whether a score counts: the votes can be seen, and were read late enough after posting."""
    if hidden:
        return False
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
        escaped: whether texts hold "&amp;", "&lt;" and "&gt;", as in archives; an API asked with
            raw_json=1 (praw does) gives them plain.
        min_score_age_hours: a score read sooner after posting has not settled and becomes null;
            so does one of unknown age, and one that Reddit hides (it then says 1).

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
    settled = is_settled(created, score_utc, min_score_age_hours, hidden=hidden)
    edited = comment.get("edited")
    author = text_of(comment, "author", needed=False)
    return {
        "story_id": fullname("t1", text_of(comment, "id")),
        "prompt_id": fullname("t3", text_of(post, "id")),
        "prompt": _unescape(text_of(post, "title")) if escaped else text_of(post, "title"),
        "text": _unescape(text_of(comment, "body")) if escaped else text_of(comment, "body"),
        "source": source,
        "score": score if settled else None,
        "score_utc": score_utc,
        "created_utc": created,
        "author": hash_author(author, salt),
        "flair": prompt_tag(text_of(post, "title"))
        or text_of(post, "link_flair_text", needed=False),
        # Reddit says false, or when; very old posts say true.
        "edited_utc": None if edited in (None, False, True) else number_of(comment, "edited"),
        "over_18": bool(post.get("over_18", False)),
        "is_bot": is_bot(author),
        "prompt_created_utc": number_of(post, "created_utc"),
        "score_settled": settled,
    }


def _unescape(text: str) -> str:
    # Reddit escapes these three and no others; "&amp;nbsp;" was typed as "&nbsp;".
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def text_of(thing: Mapping[str, Any], name: str, *, needed: bool = True) -> Any:
    """A field that is text; null where it is absent and not needed.

    Raises:
        DataError: it is missing or something else; the message names it and holds no value.
    """
    value = thing.get(name)
    if value is None and not needed:
        return None
    if not isinstance(value, str):
        what = "is missing" if value is None else f"is a {type(value).__name__}, not text"
        raise DataError(f"{name} {what}")
    return value


def number_of(thing: Mapping[str, Any], name: str) -> int | None:
    """A field that is a whole number; null where it is absent.

    Raises:
        DataError: it is something else; the message names it and holds no value.
    """
    value = thing.get(name)
    if value is None:
        return None
    try:
        # Old archives hold times as text.
        if isinstance(value, bool):
            raise ValueError("true or false")
        number = int(float(value)) if isinstance(value, float | str) else int(value)
        if not -(1 << 63) <= number < 1 << 63:
            raise ValueError("too large for 64 bits")
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{name} is not a number") from error
    return number


def mend(text: str) -> str:
    """Text that UTF-8 can hold: JSON lets half a pair of surrogates by, which becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def mend_row(row: dict[str, Any]) -> int:
    """Mend all texts of a row in place (see `mend`); returns how many of them were broken."""
    mended = {name: mend(value) for name, value in row.items() if isinstance(value, str)}
    broken = sum(value is not row[name] for name, value in mended.items())
    row.update(mended)
    return broken
