"""What follows a training: writing the model, telling trackers, pushing the folder to the Hub.

Pushed are safetensors, JSON and text only, privately by default. No training prompt and no path of
this machine is published: a folder that holds one is refused.
"""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from litbench.artifact import Artifact
from litbench.errors import ConfigError, DataError
from litbench.hub import check_token, parse_name, replace_files
from litbench.models.card import run_text, write_trained_model

# What transformers, tokenizers and LitBench write, and nothing that runs or was pickled.
_ENDINGS = (".safetensors", ".json", ".txt", ".md", ".jinja", ".model")
# As litbench.text.prompt_key writes them.
_PROMPT_KEY = re.compile("[0-9a-f]{32}")


def check_push(config: Any) -> None:
    """Find before training what would stop a push after it.

    Raises:
        ConfigError: no name, no token, or an adapter that could be loaded on this machine only.
    """
    if not config.push_to_hub:
        return
    name = config.hub_model_id
    if name is None:
        raise ConfigError("push_to_hub needs hub_model_id: give it as owner/name")
    parsed = parse_name(name)
    if str(parsed) != parsed.repository:
        raise ConfigError(f"hub_model_id is '{name}': give owner/name and no more")
    base = config.model_name_or_path
    if config.use_peft and not config.merge_adapter and Path(base).expanduser().exists():
        raise ConfigError(
            f"the adapter's base model is {base}, which nobody else has: set merge_adapter: true, "
            "or train on a model by its name on the Hub"
        )
    check_token()


def finish(
    artifact: Artifact,
    model: Any,
    pairs: pa.Table,
    held_out: pa.Table | None,
    checkpoints: Path,
    config: Any,
) -> None:
    """Judge the held-out pairs, write the model's folder, tell the trackers, and push.

    Args:
        artifact: of the program.
        model: as its trainer returned it.
        pairs: the pairs it was given to train on.
        held_out: pairs to judge at the end; they choose nothing.
        checkpoints: the trainer's folder; removed when all is written.
        config: of the program.
    """
    run = write_trained_model(artifact, model, pairs, held_out, checkpoints, artifact.fingerprint)
    rows = (run["evaluation"] or {"raters": []})["raters"]
    found = (row["agreement"] for row in rows if row["kind"] == run["kind"])
    agreement: dict[str, float | None] = next(found, {})
    told = {f"test_agreement_{name}": agreement.get(name) for name in ("mean", "low", "high")}
    config.report({name: value for name, value in told.items() if value is not None})
    print(f"{artifact.folder / 'model'}: {run_text(run)}")
    push_model(artifact.folder / "model", config)


def push_model(folder: Path, config: Any) -> None:
    """Push a model's folder, in one commit; nothing happens without `push_to_hub`.

    Raises:
        ConfigError: there is no token, or the model on the Hub is public and `hub_private_repo`.
        DataError: the folder holds something that should not be published, or the Hub refuses.
    """
    if config.push_to_hub:
        address = replace_files(
            config.hub_model_id, _files_of(folder), "model", private=config.hub_private_repo,
            is_ours=lambda path: path.endswith(_ENDINGS),
        )  # fmt: skip
        print(f"pushed: {address}")


def _files_of(folder: Path) -> dict[str, Path]:
    """The files to push, by their path on the Hub."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or (path.is_file() and not name.endswith(_ENDINGS)):
            raise DataError(f"{path} is no file of a model ({', '.join(_ENDINGS)}): remove it")
        if path.is_file():
            found[name] = path
            _check_text(path)
    if not any(name.endswith(".safetensors") for name in found):
        raise DataError(f"{folder} holds no weights as safetensors: train the model again")
    return found


def _check_text(path: Path) -> None:
    """Refuse training prompts that are no hashes, and folders of this machine."""
    if path.suffix not in (".json", ".md"):
        return
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        try:
            content = json.loads(text)
        except ValueError as error:
            raise DataError(f"{path} is broken ({error}): train the model again") from error
        prompts = content.get("training_prompts", []) if isinstance(content, dict) else []
        texts = sum(_PROMPT_KEY.fullmatch(str(one)) is None for one in prompts)
        if texts:
            # The message may end up in a log, so no text is in it.
            raise DataError(
                f"{path}: {texts:,} of {len(prompts):,} training_prompts are no hashes and may be "
                "texts: train the model again"
            )
    own = "|".join(re.escape(str(folder)) for folder in {Path.home(), Path.cwd()} if folder.name)
    named = re.search(rf"(?<![\w./-])(?:{own})/[^\s\"'|`]*", text) if own else None
    if named is not None:
        raise DataError(
            f"{path} names a folder of this machine ({named[0]:.120}): write a name on the Hub in "
            "its place, or remove the entry"
        )
