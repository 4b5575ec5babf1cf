"""Load and save the folder of a trained transformers rater.

Weights (safetensors), config, tokenizer and chat template are as transformers writes them, and are
all that a reward depends on. `litbench.json` adds the kind of rater, hashes of the training
prompts, a record of the training, and the question of a generative rater.
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
    """An adapter saved by peft in `folder`, not merged into its base model."""

    base: str
    quantized: bool
    folder: Path


@dataclass
class Loaded:
    """Content of a model folder."""

    model: Any
    tokenizer: Any
    # `prompt_key` of the training prompts.
    prompts: frozenset[str] = frozenset()
    # Record of the training.
    training: dict[str, Any] = field(default_factory=dict)
    adapter: Adapter | None = None
    # Arguments of `Question.make`, for a trained generative rater.
    question: dict[str, Any] | None = None
    # Input form of a model that LitBench did not train but saved; None for `chat`.
    form: str | None = None
    is_ours: bool = False
    # See `litbench.raters.ScoreRater`.
    reward_quantiles: list[float] | None = None


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
        name: a folder written by `save_folder`, the folder of another model or peft adapter, a
            GGUF file, or a name on the Hub.
        head: see `load_backbone`.
        kind: expected kind of rater.
        device: such as cuda or cpu. If None, a GPU if available.
        dtype: dtype of the weights. If None, bfloat16 on a GPU; elsewhere float32, or the dtype in
            which LitBench saved the model.
        trust_remote_code: run code from the model's repository.
        num_labels: number of outputs of a reward head; None keeps the model's own.
    """
    folder = Path(resolve(name))
    if not folder.exists():
        # Verifiers on the Hub have a litbench.json, and adapters their own files.
        folder = fetch_model(name, with_code=trust_remote_code)
    content = _read(folder / _FILE, kind)
    dtype, adapter = dtype or _default_dtype(device), None
    if (folder / _ADAPTER_FILE).exists():
        about = content.get("adapter") or {}
        try:
            config = json.loads((folder / _ADAPTER_FILE).read_text(encoding="utf-8"))
            base = about.get("base") or config["base_model_name_or_path"]
            if not about and config.get("revision") and "@" not in base:
                base += f"@{config['revision']}"
        except (ValueError, KeyError) as error:
            raise ModelError(
                f"{folder / _ADAPTER_FILE} does not name its base model ({error}): save it again"
            ) from error
        adapter = Adapter(base, bool(about.get("quantized")), folder)
        model, tokenizer = load_with_adapter(
            folder, base, head, quantized=adapter.quantized, dtype=dtype,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
    else:
        model, tokenizer = load_backbone(
            str(folder), head, num_labels=num_labels, trust_remote_code=trust_remote_code,
            # A model trained on four-bit weights was judged, and saved, in bfloat16.
            dtype=dtype or ("auto" if content else "float32"),
        )  # fmt: skip
    return Loaded(
        on_device(model, device), tokenizer, frozenset(content.get("training_prompts", ())),
        content.get("training", {}), adapter, content.get("question"), content.get("form"),
        bool(content), content.get("reward_quantiles"),
    )  # fmt: skip


def _default_dtype(device: str | None) -> str | None:
    try:
        return None if (device or default_device()).startswith("cpu") else "bfloat16"
    except ImportError:
        return None


def prompts_of(name: str) -> frozenset[str]:
    """`prompt_key` of a model's training prompts; empty if it has no `litbench.json`.

    Args:
        name: see `litbench.models.backbone.load_backbone`.
    """
    place, revision = locate(name)
    path = Path(place) / _FILE
    if not path.parent.exists():
        from transformers.utils import cached_file  # noqa: PLC0415

        try:
            # Offline, the cached litbench.json is used if there is one.
            cached = cached_file(
                place, _FILE, revision=revision, _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )  # fmt: skip
        except OSError as error:
            raise ModelError(
                f"cannot read the training prompts of {name} from the Hub ({error}): check the "
                "name, the network and your access"
            ) from error
        if cached is None:
            return frozenset()
        path = Path(cached)
    return frozenset(_read(path, None).get("training_prompts", ()))


def _read(path: Path, kind: str | None) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']}, not {_FORMAT}")
        stored_kind = content["kind"]
        if not isinstance(content["training_prompts"], list):
            raise TypeError("training_prompts is not a list")
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is broken ({error}): train the model again") from error
    if kind is not None and stored_kind != kind:
        raise ModelError(
            f"{path.parent} holds a rater of kind {stored_kind}, not {kind}: use that kind"
        )
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
        "reward_quantiles": loaded.reward_quantiles,
        "training_prompts": sorted(loaded.prompts),
        # Nothing is loaded from the paths in this record.
        "training": without_folders(loaded.training),
        "versions": versions(),
    }
    write_json(content, folder / _FILE)
