"""Upload the folder of a trained model to the Hub, or show what would be uploaded.

    python train/push_model.py --config configs/train/push_model.yaml

Reads `model`, a folder that bradley_terry.py or generative.py wrote. Shows its files and their
sizes; writes nothing here. With `push: true` it makes the model's page on the Hub, private unless
`private: false`, and replaces its files in one commit; the token comes from `hf auth login` or
HF_TOKEN and from nowhere else. Weights go as safetensors only, of the training prompts only hashes,
and no name of a folder of this machine; an adapter must have its base on the Hub. The model then
loads by its name: `RewardModel.load("owner/name")`.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litbench.config import run_program
from litbench.errors import ConfigError, DataError
from litbench.hub import parse_name, replace_files

# What transformers, tokenizers and LitBench write, and nothing that runs or was pickled.
ENDINGS = (".safetensors", ".json", ".txt", ".md", ".jinja", ".model")
# As litbench.text.prompt_key writes them.
PROMPT_KEY = re.compile("[0-9a-f]{32}")


@dataclass
class Config:
    """What to upload, and where to.

    Attributes:
        model: the model's folder.
        repository: owner/name on the Hub.
        push: upload; otherwise only show what would be.
        private: make the model private.
    """

    model: Path
    repository: str
    push: bool = False
    private: bool = True


def files_of(folder: Path) -> dict[str, Path]:
    """The files to upload, by their path on the Hub.

    Raises:
        DataError: LitBench did not write the folder, it holds something else, texts of prompts or
            names of folders here, or an adapter whose base nobody else has.
    """
    if not (folder / "litbench.json").exists():
        raise DataError(
            f"{folder} holds no litbench.json: give the folder `model` that "
            "train/bradley_terry.py or train/generative.py wrote"
        )
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or (path.is_file() and not name.endswith(ENDINGS)):
            raise DataError(
                f"{path} is no file that a model's folder should hold ({', '.join(ENDINGS)}): "
                "remove it from the folder"
            )
        if path.is_file():
            found[name] = path
    if not any(name.endswith(".safetensors") for name in found):
        raise DataError(f"{folder} holds no weights as safetensors: train the model again")
    for name in ("litbench.json", "run.json"):
        if name in found:
            check_prompts(found[name])
    if "adapter_config.json" in found:
        check_base(folder)
    for name, path in found.items():
        if name.endswith(".json"):
            check_folders(path)
    return found


def check_base(folder: Path) -> None:
    """Refuse an adapter that could be loaded on this machine only.

    Raises:
        DataError: its base model is a folder, or its files are broken.
    """
    try:
        adapter = json.loads((folder / "litbench.json").read_text(encoding="utf-8"))["adapter"]
        base = str(adapter["base"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: its adapter names no base model ({error})") from error
    if base.startswith(("/", ".", "~")) or Path(base).exists():
        raise DataError(
            f"the adapter's base model is {base}, which nobody else has: train with merge: true, "
            "or on a model by its name on the Hub"
        )


def check_folders(path: Path) -> None:
    """Refuse to publish where this machine keeps its files.

    Raises:
        DataError: a value lies in the home or the working folder, or the file is broken.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is broken ({error}): train the model again") from error
    own = tuple(f"{folder}{os.sep}" for folder in {Path.home(), Path.cwd()} if folder.name)
    named = next((text for text in texts_of(content) if text.startswith(own)), None)
    if named is not None:
        raise DataError(
            f"{path} names a folder of this machine ({named!r:.120}): write a name on the Hub in "
            "its place, or remove the entry"
        )


def texts_of(value: Any) -> Iterator[str]:
    """All values of a JSON file that are texts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of(inner)


def check_prompts(path: Path) -> None:
    """Refuse to publish training prompts as texts.

    Raises:
        DataError: an entry of `training_prompts` is no hash, or the file is broken.
    """
    try:
        prompts = json.loads(path.read_text(encoding="utf-8"))["training_prompts"]
        texts = [one for one in prompts if PROMPT_KEY.fullmatch(str(one)) is None]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is broken ({error}): train the model again") from error
    if texts:
        # The message may end up in a log, so no text is in it.
        raise DataError(
            f"{path}: {len(texts):,} of {len(prompts):,} training_prompts are no hashes and may be "
            "texts: train the model again"
        )


def main(config: Config) -> None:
    """Show the files; push them when told to."""
    parsed = parse_name(config.repository, "model")
    if str(parsed) != parsed.repository:
        raise ConfigError(f"repository is '{config.repository}': give owner/name and no more")
    files = files_of(config.model)
    for name, path in files.items():
        print(f"  {path.stat().st_size:>15,} bytes  {name}")
    if config.push:
        address = replace_files(
            config.repository,
            files,
            "model",
            private=config.private,
            is_ours=lambda path: path.endswith(ENDINGS),
        )
        print(f"pushed: {address}")
    else:
        print(
            f"nothing was pushed; read {config.model / 'README.md'}, then run the same command "
            "with --push true"
        )


if __name__ == "__main__":
    run_program(main, Config, __doc__)
