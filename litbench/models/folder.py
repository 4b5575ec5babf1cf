"""Raters with a transformers model, and the folder in which it is stored.

Weights (safetensors), config, tokenizer and chat template are as transformers writes them, and are
all that a reward depends on. `litbench.json` adds the kind of rater, hashes of the training
prompts, a record of the training, and the question of a generative rater. `scope.json` has what
the training stories look like.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from litbench.models.backbone import (
    Head,
    default_device,
    load_backbone,
    load_with_adapter,
    on_device,
    quiet,
)
from litbench.models.record import FORMAT, FolderRecord, read_record
from litbench.raters.interface import Rater
from litbench.raters.scope import Scope
from litbench.runs.errors import ModelError
from litbench.runs.hub import fetch_model
from litbench.runs.locations import locate, resolve
from litbench.runs.markdown import without_folders
from litbench.runs.outputs import versions, write_sealed

_FILE = "litbench.json"
_ADAPTER_FILE = "adapter_config.json"
# How the base model was loaded, and a length that contradicts `model_max_length`.
_NOT_SAVED = ("is_local", "local_files_only", "max_length")


@dataclass(frozen=True)
class Adapter:
    """An adapter saved by peft in `folder`, not merged into its base model."""

    base: str
    quantized: bool
    folder: Path


@dataclass
class FolderOptions:
    """Options of a rater with a model.

    Attributes:
        path: a folder written by `FolderRater.save`, the folder of another model or peft adapter, a
            GGUF file, or a name on the Hub.
        device: such as cuda or cpu. Default: a GPU if available.
        dtype: dtype of the weights. Default: bfloat16 on a GPU; elsewhere float32, or the dtype in
            which LitBench saved the model. `auto`: bfloat16 on a GPU and on a CPU with the
            instruction avx512_bf16, else float32. A reward head always computes in float32.
        batch_tokens: maximum number of tokens in one forward pass, with padding. Default: see
            `FolderRater.usual_batch_tokens`.
        trust_remote_code: run code from the model's repository.
    """

    path: str
    device: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    batch_tokens: Annotated[int, Field(ge=1)] | None = None
    trust_remote_code: bool = False

    def files(self) -> dict[str, str]:
        return {"path": self.path}


class FolderRater(Rater):
    """A rater with a model.

    Attributes:
        tokenizer: the folder's tokenizer.
        prompts: `prompt_key` of the training prompts.
        training_record: record of the training; empty if there is none.
        adapter: the model's adapter, if it is stored separately.
        report: logs values to the trackers of the training and closes them.
        usual_batch_tokens: `batch_tokens` on a CPU and on a GPU.
    """

    usual_batch_tokens: tuple[int, int]

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        prompts: frozenset[str] = frozenset(),
        batch_tokens: int | None = None,
        training: Mapping[str, Any] | None = None,
        adapter: Adapter | None = None,
        columns: Mapping[str, str] = MappingProxyType({}),
        scope: Scope | None = None,
        report: Callable[[Mapping[str, float]], None] = lambda _: None,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.prompts = prompts
        on_gpu = model.device.type != "cpu"
        self.batch_tokens = batch_tokens or self.usual_batch_tokens[on_gpu]
        self.training_record = dict(training or {})
        self.adapter = adapter
        self.columns = columns
        self.scope = scope
        self.report = report

    def stored(self) -> dict[str, Any]:
        """Entries of `litbench.json` for this kind of rater."""
        return {}

    def training_prompts(self) -> frozenset[str]:
        """`prompt_key` of the training prompts; empty if the model folder has no record."""
        return self.prompts

    def notes(self) -> dict[str, Any]:
        """Number of parameters, and the training record."""
        record = {"training": self.training_record} if self.training_record else {}
        return {"parameters": self.model.num_parameters(), **record}

    def save(self, folder: Path) -> None:
        """Write weights (or the adapter's files), config, tokenizer, scope and `litbench.json`."""
        adapter = self.adapter
        if adapter is None:
            with quiet():
                self.model.save_pretrained(folder)
        else:
            for path in adapter.folder.glob("adapter_*"):
                shutil.copy(path, folder / path.name)
        for name in _NOT_SAVED:
            self.tokenizer.init_kwargs.pop(name, None)
        self.tokenizer.save_pretrained(folder)
        content = {
            "format": FORMAT,
            "kind": self.kind,
            "adapter": adapter and {"base": adapter.base, "quantized": adapter.quantized},
            **self.stored(),
            "columns": dict(self.columns),
            "training_prompts": sorted(self.prompts),
            # Nothing is loaded from the paths in this record.
            "training": without_folders(self.training_record),
            "versions": versions(),
        }
        write_sealed(content, folder / _FILE)
        if self.scope is not None:
            self.scope.save(folder)


def load_folder(
    options: FolderOptions, head: Head, kind: str, *, num_labels: int | None = 1
) -> tuple[dict[str, Any], FolderRecord | None]:
    """Load the model of a rater of this kind onto a device; see also `load_backbone`.

    Returns:
        Arguments for the rater, as `litbench.models.training.train` returns them, and the record of
        a folder that LitBench wrote.
    """
    device, code = options.device, options.trust_remote_code
    folder = Path(resolve(options.path))
    if not folder.exists():
        # Verifiers on the Hub have a litbench.json, and adapters their own files.
        folder = fetch_model(options.path, with_code=code)
    record = _read(folder / _FILE, kind)
    on_cpu = (device or default_device()).startswith("cpu")
    dtype, adapter = options.dtype or (None if on_cpu else "bfloat16"), None
    if dtype == "auto":
        dtype = "float32" if on_cpu and not _has_bfloat16() else "bfloat16"
    if (folder / _ADAPTER_FILE).exists():
        about = record.adapter if record else None
        base = about.base if about else _base_of(folder / _ADAPTER_FILE)
        adapter = Adapter(base, about is not None and about.quantized, folder)
        model, tokenizer = load_with_adapter(
            folder, base, head, quantized=adapter.quantized, dtype=dtype, trust_remote_code=code
        )
    else:
        model, tokenizer = load_backbone(
            str(folder),
            head,
            num_labels=num_labels,
            trust_remote_code=code,
            # A model trained on four-bit weights was judged, and saved, in bfloat16.
            dtype=dtype or ("auto" if record else "float32"),
        )
    arguments = {
        "model": on_device(model, device),
        "tokenizer": tokenizer,
        "batch_tokens": options.batch_tokens,
        "adapter": adapter,
    }
    if record is not None:
        arguments |= {
            "prompts": frozenset(record.training_prompts),
            "training": record.training,
            "columns": record.columns,
            "scope": Scope.load(folder),
        }
    return arguments, record


def _has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16; others are slower in it than in float32."""
    import torch  # noqa: PLC0415

    return bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def _base_of(path: Path) -> str:
    """Return the base model that peft's `adapter_config.json` names, with its revision."""
    try:
        if not path.is_file():
            raise ValueError("it is not a file")
        config = json.loads(path.read_text(encoding="utf-8"))
        base, revision = config["base_model_name_or_path"], config.get("revision")
        return f"{base}@{revision}" if revision and "@" not in base else str(base)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} does not name its base model ({error}): save it again") from error


def prompts_of(name: str) -> frozenset[str]:
    """`prompt_key` of a model's training prompts; empty if it has no `litbench.json`."""
    location, revision = locate(name)
    path = Path(location) / _FILE
    if not path.parent.exists():
        from transformers.utils import cached_file  # noqa: PLC0415

        try:
            # Offline, the cached litbench.json is used if there is one.
            cached = cached_file(
                location,
                _FILE,
                revision=revision,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )
        except OSError as error:
            raise ModelError(
                f"cannot read the training prompts of {name} from the Hub ({error}): check the "
                "name, the network and your access"
            ) from error
        if cached is None:
            return frozenset()
        path = Path(cached)
    record = _read(path, None)
    return frozenset(record.training_prompts if record else ())


def _read(path: Path, kind: str | None) -> FolderRecord | None:
    """Read a `litbench.json`; None if there is none."""
    if not path.exists():
        return None
    record = read_record(path, FolderRecord, "train the model again")
    if kind is not None and record.kind != kind:
        raise ModelError(
            f"{path.parent} holds a rater of kind {record.kind}, not {kind}: use that kind"
        )
    return record
