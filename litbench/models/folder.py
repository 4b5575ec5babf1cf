"""The folder of a trained transformers rater, and what stands in its `litbench.json`.

Weights as safetensors, config, tokenizer and chat template as transformers writes them: all that a
reward needs. Beside them `litbench.json` holds the kind of rater, hashes of the training prompts, a
record of the training, and the question of a generative rater.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from litbench.artifact import versions, write_json
from litbench.errors import ModelError
from litbench.hub import fetch_model
from litbench.locations import locate, resolve
from litbench.markdown import without_folders
from litbench.models.backbone import (
    Head,
    default_device,
    load_backbone,
    load_with_adapter,
    on_device,
    quiet,
)

_FILE = "litbench.json"
_FORMAT = 3
_ADAPTER_FILE = "adapter_config.json"


@dataclass(frozen=True)
class Adapter:
    """An adapter in peft's files in `folder`, apart from its base model."""

    base: str
    quantized: bool
    folder: Path


@dataclass
class Loaded:
    """What a folder holds."""

    model: Any
    tokenizer: Any
    # `prompt_key` of the training prompts.
    prompts: frozenset[str] = frozenset()
    # Record of the training.
    training: dict[str, Any] = field(default_factory=dict)
    adapter: Adapter | None = None
    # Arguments of `Question.make`, for a trained generative rater.
    question: dict[str, Any] | None = None
    # How another's model, saved again, reads prompt and story; None for `chat`.
    form: str | None = None
    is_ours: bool = False


def load_folder(
    name: str,
    head: Head,
    kind: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    num_labels: int | None = 1,
) -> Loaded:
    """Load a rater's model onto a device.

    Args:
        name: a folder that `save_folder` wrote, another model's folder or peft adapter, a GGUF
            file, or a name on the Hub.
        head: kind of transformers model.
        kind: kind of rater it must be.
        device: such as cuda or cpu; a GPU where there is one when None.
        dtype: weights' type; bfloat16 on a GPU and float32 elsewhere when None.
        trust_remote_code: run code from the model's repository.
        num_labels: outputs of a reward head; None for as many as it has.
    """
    place = Path(resolve(name))
    if not place.exists():
        # A verifier on the Hub has its litbench.json there, and an adapter its own files.
        place = fetch_model(name, with_code=trust_remote_code)
    content = _read(place / _FILE, kind)
    common: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    adapter = None
    if (place / _ADAPTER_FILE).exists():
        about = content.get("adapter") or {}
        try:
            config = json.loads((place / _ADAPTER_FILE).read_text(encoding="utf-8"))
            base = about.get("base") or config["base_model_name_or_path"]
            if not about and config.get("revision") and "@" not in base:
                base += f"@{config['revision']}"
        except (ValueError, KeyError) as error:
            raise ModelError(
                f"{place / _ADAPTER_FILE} does not name its base model ({error}): save it again"
            ) from error
        adapter = Adapter(base, bool(about.get("quantized")), place)
        common["dtype"] = common["dtype"] or _default_dtype(device)
        model, tokenizer = load_with_adapter(
            place, base, head, quantized=adapter.quantized, **common
        )
    else:
        common["dtype"] = common["dtype"] or _default_dtype(device)
        model, tokenizer = load_backbone(str(place), head, num_labels=num_labels, **common)
    return Loaded(
        on_device(model, device), tokenizer, frozenset(content.get("training_prompts", ())),
        content.get("training", {}), adapter, content.get("question"), content.get("form"),
        bool(content),
    )  # fmt: skip


def _default_dtype(device: str | None) -> str:
    try:
        return "float32" if (device or default_device()).startswith("cpu") else "bfloat16"
    except ImportError:
        return "float32"


def prompts_of(name: str) -> frozenset[str]:
    """`prompt_key` of what a backbone was trained on before, where its `litbench.json` tells.

    Args:
        name: as for `litbench.models.backbone.load_backbone`.
    """
    place, revision = locate(name)
    path = Path(place) / _FILE
    if not path.parent.exists():
        from transformers.utils import cached_file  # noqa: PLC0415

        try:
            # Offline, a model in the cache is trained on with what is known of it there.
            found = cached_file(
                place, _FILE, revision=revision, _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )  # fmt: skip
        except OSError as error:
            raise ModelError(
                f"cannot ask the Hub whether {name} knows prompts already ({error}): check the "
                "name, the network and your access"
            ) from error
        if found is None:
            return frozenset()
        path = Path(found)
    return frozenset(_read(path, None).get("training_prompts", ()))


def _read(path: Path, kind: str | None) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']}, not {_FORMAT}")
        found = content["kind"]
        if not isinstance(content["training_prompts"], list):
            raise TypeError("training_prompts is no list")
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is broken ({error}): train the model again") from error
    if kind is not None and found != kind:
        raise ModelError(f"{path.parent} holds a rater of kind {found}, not {kind}: name that kind")
    return content


def save_folder(folder: Path, kind: str, loaded: Loaded) -> None:
    """Write weights (or the adapter's files), config, tokenizer and `litbench.json`."""
    adapter: Mapping[str, Any] | None = None
    if loaded.adapter is None:
        with quiet():
            loaded.model.save_pretrained(folder)
    else:
        adapter = {"base": loaded.adapter.base, "quantized": loaded.adapter.quantized}
        for path in loaded.adapter.folder.glob("adapter_*"):
            shutil.copy(path, folder / path.name)
    loaded.tokenizer.save_pretrained(folder)
    content = {
        "format": _FORMAT,
        "kind": kind,
        "adapter": adapter,
        "question": loaded.question,
        "form": loaded.form,
        "training_prompts": sorted(loaded.prompts),
        # Only a record: nothing is loaded from the folders it would name.
        "training": without_folders(loaded.training),
        "versions": versions(),
    }
    write_json(content, folder / _FILE)
