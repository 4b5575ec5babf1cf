"""Write a trained model, report its result to trackers, and push its folder to the Hub.

Only safetensors, JSON and text are pushed, to a private repository by default. A folder that
contains a training prompt or a local path is refused.
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

# File types that transformers, tokenizers and LitBench write; no code and no pickles.
_ENDINGS = (".safetensors", ".json", ".txt", ".md", ".jinja", ".model")
# As litbench.text.prompt_key writes them.
_PROMPT_KEY = re.compile("[0-9a-f]{32}")


def check_push(config: Any) -> None:
    """Check before training that the model can be pushed afterwards.

    Raises:
        ConfigError: no repository name, no token, or an adapter whose base model is a local folder.
    """
    if not config.push_to_hub:
        return
    name = config.hub_model_id
    if name is None:
        raise ConfigError("push_to_hub needs hub_model_id: set it to owner/name")
    parsed = parse_name(name)
    if str(parsed) != parsed.repository:
        raise ConfigError(f"hub_model_id is '{name}': set it to owner/name")
    base = config.model_name_or_path
    if config.use_peft and not config.merge_adapter and Path(base).expanduser().exists():
        raise ConfigError(
            f"the adapter's base model is the local folder {base}: set merge_adapter: true, or "
            "train a model from the Hub"
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
    """Judge the held-out pairs, write the model's folder, report to the trackers, and push.

    Args:
        artifact: the program's artifact.
        model: the trained model.
        pairs: training pairs.
        held_out: pairs to judge at the end; not used for model selection.
        checkpoints: the trainer's folder; removed at the end.
        config: the program's config.
    """
    run = write_trained_model(artifact, model, pairs, held_out, checkpoints, artifact.fingerprint)
    rows = (run["evaluation"] or {"raters": []})["raters"]
    own = (row["agreement"] for row in rows if row["kind"] == run["kind"])
    agreement: dict[str, float | None] = next(own, {})
    metrics = {f"test_agreement_{name}": agreement.get(name) for name in ("mean", "low", "high")}
    config.report({name: value for name, value in metrics.items() if value is not None})
    print(f"{artifact.folder / 'model'}: {run_text(run)}")
    push_model(artifact.folder / "model", config)


def push_model(folder: Path, config: Any) -> None:
    """Push a model's folder in one commit if the config sets `push_to_hub`.

    Raises:
        ConfigError: there is no token, or the repository is public and `hub_private_repo` is true.
        DataError: the folder contains something that must not be published, or the push fails.
    """
    if config.push_to_hub:
        address = replace_files(
            config.hub_model_id, _files_of(folder), "model", private=config.hub_private_repo,
            is_ours=lambda path: path.endswith(_ENDINGS),
        )  # fmt: skip
        print(f"pushed: {address}")


def _files_of(folder: Path) -> dict[str, Path]:
    """The files to push, by their path on the Hub."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or (path.is_file() and not name.endswith(_ENDINGS)):
            raise DataError(f"{path} is not a model file ({', '.join(_ENDINGS)}): remove it")
        if path.is_file():
            files[name] = path
            _check_text(path)
    if not any(name.endswith(".safetensors") for name in files):
        raise DataError(f"{folder} has no weights in safetensors: train the model again")
    return files


def _check_text(path: Path) -> None:
    """Refuse training prompts that are not hashed, and local paths."""
    if path.suffix not in (".json", ".md"):
        return
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        try:
            content = json.loads(text)
        except ValueError as error:
            raise DataError(f"{path} is broken ({error}): train the model again") from error
        prompts = content.get("training_prompts", []) if isinstance(content, dict) else []
        texts = sum(_PROMPT_KEY.fullmatch(str(key)) is None for key in prompts)
        if texts:
            # The texts themselves stay out of the message, which may be logged.
            raise DataError(
                f"{path}: {texts:,} of {len(prompts):,} training_prompts are not hashes and may be "
                "texts: train the model again"
            )
    own = "|".join(re.escape(str(folder)) for folder in {Path.home(), Path.cwd()} if folder.name)
    named = re.search(rf"(?<![\w./-])(?:{own})/[^\s\"'|`]*", text) if own else None
    if named is not None:
        raise DataError(
            f"{path} contains a local path ({named[0]:.120}): replace it by a name on the Hub, or "
            "remove the entry"
        )
