"""Raters that are trained, and the loader of whatever was saved.

Importing this package needs no torch; a model's own module is imported when it is loaded.
"""

from pathlib import Path
from typing import Any

from litbench.models.record import FeaturesRecord, FolderRecord, ModelRecord, read_record
from litbench.raters.entries import RaterSpec
from litbench.raters.interface import Rater
from litbench.runs.errors import ConfigError
from litbench.runs.hub import fetch_model
from litbench.runs.locations import resolve

_MODEL_FILES = ("features.json", "litbench.json", "config.json", "adapter_config.json")


def model_entry(model: str | Path, **options: Any) -> dict[str, Any]:
    """The config entry of a saved model: its kind, by the files in its folder, and its path.

    Args:
        model: a model folder, a GGUF file, or a name on the Hub.
        options: options of the kind, such as `device`; those that are None are left out.

    Raises:
        ConfigError: the folder holds no model, or a feature model is given options.
    """
    chosen = {key: value for key, value in options.items() if value is not None}
    kind = _kind_of(model)
    if chosen and kind == "features":
        raise ConfigError(f"{model} is a feature model: leave out {' and '.join(chosen)}")
    return {"kind": kind, "path": str(model), **chosen}


def _kind_of(model: str | Path) -> str:
    folder = Path(resolve(str(model)))
    if folder.is_dir() and not any((folder / name).exists() for name in _MODEL_FILES):
        inner = {path.parent for name in _MODEL_FILES for path in folder.glob(f"*/{name}")}
        models = " or ".join(map(str, sorted(inner)))
        raise ConfigError(
            f"{folder} holds no model (none of {', '.join(_MODEL_FILES)}): give "
            f"{models or 'the folder of a trained model, such as runs/verifier/model'}"
        )
    if not folder.exists():
        folder = fetch_model(str(model))
    if (folder / "features.json").exists():
        return "features"
    if not (folder / "litbench.json").exists():
        return "reward"
    return read_record(folder / "litbench.json", FolderRecord, "train the model again").kind


def trained_columns(model: str | Path) -> dict[str, str]:
    """The columns of the prompt and the text in the data that a saved model was trained on."""
    folder = Path(resolve(str(model)))
    records: tuple[tuple[str, type[ModelRecord]], ...] = (
        ("features.json", FeaturesRecord),
        ("litbench.json", FolderRecord),
    )
    for name, cls in records:
        if (folder / name).exists():
            return read_record(folder / name, cls, "train the model again").columns
    return {}


def load(model: str | Path, **options: Any) -> Rater:
    """Load whatever was saved: a feature model, a reward model or a generative one.

        model = litbench.load("runs/mine/model")
        rewards = model.score(["[WP] A door."], ["It opened."])
        model.percentiles(rewards)

    A generative model reads two stories at once: `model.compare(prompts, stories, others)`, which
    the other models have too.

    Args:
        model: a model folder, a GGUF file, or a name on the Hub.
        options: of the model's kind, such as `device` and `batch_tokens`; see `FolderOptions`.

    Raises:
        ConfigError: the folder holds no model.
        ModelError: the model cannot be read.
    """
    entry = model_entry(model, **options)
    kind = entry.pop("kind")
    return RaterSpec(kind, kind, entry).load()
