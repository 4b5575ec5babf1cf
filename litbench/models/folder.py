"""The folder of a trained transformers rater, and what stands in its `litbench.json`.

Weights as safetensors, config and tokenizer as transformers writes them, so that other tools load
the folder too. Beside them `litbench.json` holds what scoring needs: the kind of rater, the joined
form of its input, hashes of the training prompts, and, for an adapter kept apart, its base model.
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
from litbench.models.backbone import Head, load_backbone, load_with_adapter, quiet

_FILE = "litbench.json"
_FORMAT = 2
_ADAPTER_FILE = "adapter_config.json"


@dataclass(frozen=True)
class Adapter:
    """An adapter that is kept apart from its base model.

    Attributes:
        base: the base model's name.
        quantized: whether its weights were in 4 bits.
        folder: where peft's files lie.
    """

    base: str
    quantized: bool
    folder: Path


@dataclass
class Loaded:
    """What a folder holds.

    Attributes:
        model: of transformers.
        tokenizer: its tokenizer.
        form: the joined form as plain values; None where LitBench did not write the folder.
        prompts: `prompt_key` of the training prompts.
        training: record of the training.
        adapter: set when the folder holds an adapter only.
    """

    model: Any
    tokenizer: Any
    form: dict[str, Any] | None = None
    prompts: frozenset[str] = frozenset()
    training: dict[str, Any] = field(default_factory=dict)
    adapter: Adapter | None = None


def load_folder(
    name: str,
    head: Head,
    kind: str,
    *,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    num_labels: int | None = 1,
) -> Loaded:
    """Load a rater's model.

    Args:
        name: a folder that `save_folder` wrote, another model's folder or peft adapter, or a name
            on the Hub.
        head: kind of transformers model.
        kind: kind of rater it must be.
        dtype: weights' type; when None, what a model that LitBench trained was judged in after
            training (float32; bfloat16 for one trained on four-bit weights), and float32 for
            others.
        trust_remote_code: run code from the model's repository.
        num_labels: outputs of a reward head; None for as many as it has.

    Raises:
        DataError: a name on the Hub that cannot be fetched.
        ModelError: it cannot be loaded, is another kind of rater, or its litbench.json is broken.
        MissingExtraError: a library is not installed.
    """
    place = Path(resolve(name))
    if not place.exists():
        # A verifier on the Hub has its litbench.json there, and an adapter its own files.
        place = fetch_model(name, with_code=trust_remote_code)
    content = _read(place / _FILE, kind)
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
        model, tokenizer = load_with_adapter(
            place, base, head, quantized=adapter.quantized, dtype=dtype,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
    else:
        adapter = None
        model, tokenizer = load_backbone(
            str(place),
            head,
            dtype=dtype or ("auto" if content else "float32"),
            trust_remote_code=trust_remote_code,
            num_labels=num_labels,
        )
    return Loaded(
        model,
        tokenizer,
        content.get("form"),
        frozenset(content.get("training_prompts", ())),
        content.get("training", {}),
        adapter,
    )


def prompts_of(name: str) -> frozenset[str]:
    """`prompt_key` of what a backbone was trained on before, where its `litbench.json` tells.

    Args:
        name: as for `litbench.models.backbone.load_backbone`.

    Raises:
        ModelError: its `litbench.json` is broken, or the Hub has no such model.
    """
    place, revision = locate(name)
    path = Path(place) / _FILE
    if not path.parent.exists():
        from transformers.utils import cached_file  # noqa: PLC0415

        try:
            found = cached_file(
                place,
                _FILE,
                revision=revision,
                _raise_exceptions_for_missing_entries=False,
                # Offline, a model in the cache is trained on with what is known of it there.
                _raise_exceptions_for_connection_errors=False,
            )
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
        missing = {"form", "training_prompts"} - content.keys()
        if missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        if not isinstance(content["training_prompts"], list):
            raise ValueError("training_prompts is no list")
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is broken ({error}): train the model again") from error
    if kind is not None and found != kind:
        raise ModelError(f"{path.parent} holds a rater of kind {found}, not {kind}: name that kind")
    return content


def save_folder(
    folder: Path,
    kind: str,
    loaded: Loaded,
    form: Mapping[str, Any],
) -> None:
    """Write weights, config, tokenizer and `litbench.json`.

    Args:
        folder: where to; it exists.
        kind: of rater.
        loaded: what to write; with `adapter`, peft's files instead of all weights.
        form: the joined form as plain values.
    """
    if loaded.adapter is None:
        with quiet():
            loaded.model.save_pretrained(folder)
    else:
        for path in loaded.adapter.folder.glob("adapter_*"):
            shutil.copy(path, folder / path.name)
    loaded.tokenizer.save_pretrained(folder)
    adapter = loaded.adapter and {
        "base": loaded.adapter.base,
        "quantized": loaded.adapter.quantized,
    }
    content = {
        "format": _FORMAT,
        "kind": kind,
        "form": dict(form),
        "adapter": adapter,
        "training_prompts": sorted(loaded.prompts),
        # Only a record: nothing is loaded from the folders it would name.
        "training": without_folders(loaded.training),
        "versions": versions(),
    }
    write_json(content, folder / _FILE)
