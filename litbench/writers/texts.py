"""Original prompt files of a benchmark, which a user has copied, instead of our paraphrases."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from litbench.raters.templates.template import PLACEHOLDER
from litbench.runs.errors import ConfigError
from litbench.runs.outputs import file_digest

# Of a known file: the first digits of its SHA-256.
_DIGITS = 16


def read_texts(folder: Path, names: Iterable[str], origin: str) -> dict[str, str]:
    """Read the files of a folder of published texts, by name.

    Raises:
        ConfigError: a file cannot be read; the message says where it comes from (`origin`).
    """
    files = {}
    for name in names:
        try:
            files[name] = (folder / name).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"texts: cannot read {name} in {folder} ({error}): give the folder {origin}"
            ) from error
    return files


def check_texts(
    texts: Mapping[str, str], placeholders: Mapping[str, Collection[str]], where: object
) -> None:
    """Check that a file has all texts, and that each contains the placeholders it should.

    Args:
        texts: by name; further ones are ignored.
        placeholders: by name, those that the program fills; all of them must occur.
        where: the file, for messages.

    Raises:
        ConfigError: a text or placeholder is missing, or a text has another placeholder.
    """
    for name, expected in placeholders.items():
        if not isinstance(texts.get(name), str):
            raise ConfigError(f"texts: {where} has no text '{name}': take the file unchanged")
        check_placeholders(texts[name], expected, f"{where}: '{name}'", needed=expected)


def check_placeholders(
    text: str, allowed: Collection[str], where: object, *, needed: Collection[str] = ()
) -> None:
    """Check the placeholders of a published text; ConfigError for an unknown or missing one."""
    names = set(PLACEHOLDER.findall(text))
    if extra := sorted(names - set(allowed)):
        raise ConfigError(
            f"texts: {where} has the placeholder {{{extra[0]}}}, which has no value; known: "
            f"{', '.join(sorted(allowed)) or 'none'}: take the file unchanged"
        )
    if missing := sorted(set(needed) - names):
        raise ConfigError(
            f"texts: {where} has no placeholder {{{missing[0]}}}: take the file unchanged"
        )


def check_form(theirs: Any, expected: Any, where: str) -> None:
    """Check that a user's texts have the keys of ours, and no placeholder that ours do not have.

    Raises:
        ConfigError: a key is missing or unknown, or a text has an extra placeholder.
    """
    if isinstance(expected, Mapping):
        texts = theirs if isinstance(theirs, Mapping) else {}
        if differing := sorted(set(expected) ^ set(texts), key=str):
            state = "misses" if differing[0] in expected else "has the unknown"
            raise ConfigError(f"texts: {where} {state} key '{differing[0]}': keep our keys")
        for key, text in expected.items():
            check_form(texts[key], text, f"{where}: {key}")
    elif isinstance(expected, list):
        if not isinstance(theirs, list) or len(theirs) != len(expected):
            raise ConfigError(f"texts: {where} is not a list of {len(expected)} texts: write them")
        for text, ours in zip(theirs, expected, strict=True):
            check_form(text, ours, where)
    elif not isinstance(theirs, str):
        raise ConfigError(f"texts: {where} is {theirs!r:.60}: write a text")
    else:
        check_placeholders(theirs, PLACEHOLDER.findall(expected), where)


def texts_record(
    folder: Path | None, files: Mapping[str, str | None], about: str
) -> tuple[list[str], dict[str, str]]:
    """The manifest's entries about the texts: why they differ from the published ones; digests.

    Args:
        folder: the folder of published texts; None for our own.
        files: by file, the first digits of the SHA-256 of the published version; None where
            it is not known.
        about: the reason where the texts are our own.
    """
    if folder is None:
        return [about], {}
    digests = {name: file_digest(folder / name) for name in files}
    altered = [
        name for name, first in files.items() if first not in (None, digests[name][:_DIGITS])
    ]
    return [f"not the published texts: {', '.join(altered)}"] * bool(altered), digests
