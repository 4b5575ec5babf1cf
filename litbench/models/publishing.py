"""Pushing a trained model's folder to the Hub: safetensors only, private by default.

No training prompt and no path of this machine is published: what holds one is refused.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litbench.errors import ConfigError, DataError
from litbench.hub import check_token, parse_name, replace_files

# What transformers, tokenizers and LitBench write, and nothing that runs or was pickled.
_ENDINGS = (".safetensors", ".json", ".txt", ".md", ".jinja", ".model")
# As litbench.text.prompt_key writes them.
_PROMPT_KEY = re.compile("[0-9a-f]{32}")

HUB_KEYS = ("push_to_hub", "hub_model_id", "hub_private_repo")


@dataclass(kw_only=True)
class HubOptions:
    """Whether and where to push a model, by the names of transformers' `TrainingArguments`.

    Attributes:
        push_to_hub: push the model once it is written, or the one that is there.
        hub_model_id: owner/name on the Hub.
        hub_private_repo: make it private; pushing to a public one is then refused.
    """

    push_to_hub: bool = False
    hub_model_id: str | None = None
    hub_private_repo: bool = True


def check_push(options: HubOptions, adapter_base: str | None) -> None:
    """Find before training what would stop a push after it.

    Args:
        options: see HubOptions; nothing is checked where nothing is to be pushed.
        adapter_base: base model of an adapter that is kept apart from it, None for a whole model.

    Raises:
        ConfigError: no name, no token, or an adapter that could be loaded on this machine only.
    """
    if not options.push_to_hub:
        return
    if options.hub_model_id is None:
        raise ConfigError("push_to_hub needs hub_model_id: give it as owner/name")
    parsed = parse_name(options.hub_model_id)
    if str(parsed) != parsed.repository:
        raise ConfigError(f"hub_model_id is '{options.hub_model_id}': give owner/name and no more")
    if adapter_base is not None and _is_local(adapter_base):
        raise ConfigError(
            f"the adapter's base model is {adapter_base}, which nobody else has: set merge: true, "
            "or train on a model by its name on the Hub"
        )
    check_token()


def push_model(folder: Path, options: HubOptions) -> None:
    """Push a model's folder, in one commit; nothing happens without `push_to_hub`.

    Raises:
        ConfigError: there is no token, or the model on the Hub is public and `hub_private_repo`.
        DataError: the folder holds something that should not be published, or the Hub refuses.
    """
    if not options.push_to_hub:
        return
    assert options.hub_model_id is not None
    address = replace_files(
        options.hub_model_id,
        _files_of(folder),
        "model",
        private=options.hub_private_repo,
        is_ours=lambda path: path.endswith(_ENDINGS),
    )
    print(f"pushed: {address}")


def _files_of(folder: Path) -> dict[str, Path]:
    """The files to push, by their path on the Hub."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or (path.is_file() and not name.endswith(_ENDINGS)):
            raise DataError(
                f"{path} is no file that a model's folder should hold ({', '.join(_ENDINGS)}): "
                "remove it from the folder"
            )
        if path.is_file():
            found[name] = path
    if not any(name.endswith(".safetensors") for name in found):
        raise DataError(f"{folder} holds no weights as safetensors: train the model again")
    for name, path in found.items():
        if name.endswith(".json"):
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise DataError(f"{path} is broken ({error}): train the model again") from error
            _check_prompts(path, content)
            _check_folders(path, _strings_in(content))
        elif name.endswith(".md"):
            _check_folders(path, re.split(r"[\s|`'\"(]+", path.read_text(encoding="utf-8")))
    return found


def _is_local(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or Path(name).exists()


def _check_prompts(path: Path, content: Any) -> None:
    prompts = content.get("training_prompts", []) if isinstance(content, dict) else []
    texts = [one for one in prompts if _PROMPT_KEY.fullmatch(str(one)) is None]
    if texts:
        # The message may end up in a log, so no text is in it.
        raise DataError(
            f"{path}: {len(texts):,} of {len(prompts):,} training_prompts are no hashes and may be "
            "texts: train the model again"
        )


def _check_folders(path: Path, strings: Iterator[str] | list[str]) -> None:
    own = tuple(f"{folder}{os.sep}" for folder in {Path.home(), Path.cwd()} if folder.name)
    named = next((text for text in strings if text.startswith(own)), None)
    if named is not None:
        raise DataError(
            f"{path} names a folder of this machine ({named!r:.120}): write a name on the Hub in "
            "its place, or remove the entry"
        )


def _strings_in(value: Any) -> Iterator[str]:
    """All strings of a JSON value, its keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _strings_in(inner)
