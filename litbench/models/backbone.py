"""The transformers model inside a rater: loading it, its head, and one way to run it.

Training and scoring call the same forward pass. Decoders run on sequences laid end to end
(`litbench.models.attention`) where their attention allows it, all other models on rows padded on
the right; the tokens to read are given by index. The head computes in fp32, whatever the weights.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MethodType
from typing import Any, Literal

from litbench.errors import ConfigError, MissingExtraError, ModelError
from litbench.locations import locate
from litbench.models.attention import ATTENTION, can_pack, register

Head = Literal["reward", "language"]
Pooling = Literal["first", "last"]
# GPU kernels are compiled by length; rounding it up leaves few of them.
_LENGTH_STEP = 256
# What transformers calls the head of a sequence-classification model.
HEADS = ("score", "classifier")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and its report on a new head."""
    from transformers.utils import logging  # noqa: PLC0415

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _head_in_fp32(model_class: Any) -> Iterator[None]:
    """Let `from_pretrained` leave the head's weights in fp32 when the others are in 16 bits."""
    before = model_class._keep_in_fp32_modules_strict
    model_class._keep_in_fp32_modules_strict = {*(before or ()), *HEADS}
    try:
        yield
    finally:
        model_class._keep_in_fp32_modules_strict = before


def load_backbone(
    name: str,
    head: Head = "reward",
    *,
    trained_head: bool = True,
    trust_remote_code: bool = False,
    dtype: str = "float32",
    quantize: bool = False,
    attention: str | None = None,
    num_labels: int | None = 1,
) -> Any:
    """Load a model with its tokenizer, from safetensors or one GGUF file.

    Args:
        name: `package:NAME/folder`, a folder, `owner/name[@revision]` on the Hub, or a `.gguf`
            file, whose weights are dequantised to `dtype`.
        head: `reward` for sequence classification, `language` for a causal language model.
        trained_head: whether a reward head must be there, or may be new and random.
        trust_remote_code: run code from the model's repository.
        dtype: weights' type: float32, bfloat16, float16, or auto: what the folder's config names;
            a reward head stays in float32.
        quantize: weights in 4 bits (NF4, Dettmers et al., 2023), for QLoRA; needs bitsandbytes.
        attention: transformers' name of an attention implementation; variable-length attention
            where the model allows it when not given.
        num_labels: outputs of a reward head; None for as many as the model has.

    Returns:
        (model, tokenizer).

    Raises:
        ModelError: it cannot be loaded, has other labels, or lacks the head it must have.
        MissingExtraError: transformers or torch is not installed.
    """
    try:
        import torch  # noqa: PLC0415
        from transformers import (  # noqa: PLC0415
            AutoConfig,
            AutoModelForCausalLM,
            AutoModelForSequenceClassification,
            AutoTokenizer,
        )
    except ImportError as error:
        raise MissingExtraError("torch and transformers", "models") from error
    place, revision = locate(name)
    common: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    if place.endswith(".gguf"):
        place, common["gguf_file"] = os.path.split(place)
    auto = AutoModelForSequenceClassification if head == "reward" else AutoModelForCausalLM
    labels = {} if head == "language" or num_labels is None else {"num_labels": num_labels}
    quantization = _four_bits() if quantize else {}
    try:
        with quiet():
            config = AutoConfig.from_pretrained(place, **common, **labels)
            tokenizer = AutoTokenizer.from_pretrained(place, **common)
            known = auto._model_mapping
            keeps = head == "reward" and type(config) in known
            with _head_in_fp32(known[type(config)]) if keeps else contextlib.nullcontext():
                model, found = auto.from_pretrained(
                    place, config=config, output_loading_info=True, use_safetensors=True,
                    dtype=dtype if dtype == "auto" else getattr(torch, dtype),
                    **common, **quantization,
                )  # fmt: skip
            if "gguf_file" in common:
                # transformers takes dequantised weights for quantised ones, which it does not save.
                weights = model.state_dict()
                model = type(model)(model.config).to(model.dtype)
                model.load_state_dict(weights)
    except Exception as error:  # the loaders raise dozens of types
        raise ModelError(
            f"cannot load the model '{name}' ({type(error).__name__}: {error}): check the name, "
            "the network and your access; weights must be safetensors"
            + (" with at most one label" if labels else "")
        ) from error
    if trained_head and found["missing_keys"]:
        missing = ", ".join(sorted(found["missing_keys"]))
        raise ModelError(
            f"the model '{name}' lacks trained weights for {missing}: its answers would be random; "
            "train it with train/bradley_terry.py first"
        )
    for part in _towers(model).values():
        part.requires_grad_(requires_grad=False)
    if head == "reward":
        for part in head_layers(model):
            part.float()
            _run_in_fp32(part)
        if hasattr(model, "score"):
            model.forward = MethodType(_read_rewards, model)
    elif isinstance(model.get_output_embeddings(), torch.nn.Linear):
        # In 16 bits the logits of both labels come out equal too often. The weights keep their
        # type: they may be the embeddings as well.
        _run_in_fp32(model.get_output_embeddings())
    set_attention(model, attention)
    return model, tokenizer


def _towers(model: Any) -> dict[str, Any]:
    """The parts of a model that no text reaches, and that get no gradient: vision towers."""
    if model.config.get_text_config() is model.config:
        return {}
    parts = model.base_model.named_children()
    prefix, decoder = model.base_model_prefix, model.get_decoder()
    return {f"{prefix}.{name}": part for name, part in parts if part is not decoder}


def _four_bits() -> dict[str, Any]:
    import torch  # noqa: PLC0415
    from transformers import BitsAndBytesConfig  # noqa: PLC0415

    try:
        import bitsandbytes  # noqa: F401, PLC0415
    except ImportError as error:
        raise MissingExtraError("bitsandbytes", "qlora") from error
    arguments: dict[str, Any] = {
        "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
            # A quantised head would round the very number that is asked for.
            llm_int8_skip_modules=[*HEADS, "lm_head"],
        )
    }
    if torch.cuda.is_available():
        # Each process of a machine has its own GPU; transformers would take the first for all.
        arguments["device_map"] = {"": int(os.environ.get("LOCAL_RANK", "0"))}
    return arguments


def set_attention(model: Any, attention: str | None = None) -> None:
    """Set transformers' attention by name; `ATTENTION` where the model allows it when None."""
    if attention is None:
        if not can_pack(model):
            return
        register()
        attention = ATTENTION
    try:
        model.set_attn_implementation(attention)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"attention: '{attention}' cannot be used here ({error}): leave it null"
        ) from error


def is_packed(model: Any) -> bool:
    """Whether a model takes sequences laid end to end, not rows with padding."""
    implementation = str(model.config.get_text_config()._attn_implementation)
    return implementation == ATTENTION or (
        implementation.startswith("flash_attention") and can_pack(model)
    )


def head_layers(model: Any) -> list[Any]:
    """The linear layers of a sequence-classification model's head; RoBERTa's has two."""
    import torch  # noqa: PLC0415

    layers = [
        module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name.split(".")[0] in HEADS
    ]
    if not layers or layers[-1].out_features != model.config.num_labels:
        raise ModelError(
            f"{type(model).__name__} does not end in a linear layer 'score' or 'classifier' with "
            f"{model.config.num_labels} outputs: only models with such a head give rewards"
        )
    return layers


def _run_in_fp32(layer: Any) -> None:
    """Let a linear layer compute in fp32, whatever its weights, its input and autocast."""

    def forward(self: Any, hidden: Any) -> Any:
        import torch  # noqa: PLC0415

        bias = None if self.bias is None else self.bias.float()
        with torch.autocast(hidden.device.type, enabled=False):
            return torch.nn.functional.linear(hidden.float(), self.weight.float(), bias)

    layer.forward = MethodType(forward, layer)


def _read_rewards(self: Any, *, read: Any = None, **inputs: Any) -> Any:
    """Forward pass of a decoder with a reward head: only the tokens to read reach the head.

    `read` (sequences,) are the last tokens' indices in the flattened batch; rewards are (sequences,
    labels) float32.
    """
    if read is None:
        return type(self).forward(self, **inputs)
    # peft adds arguments that are None.
    given = {name: value for name, value in inputs.items() if value is not None}
    given.pop("return_dict", None)
    hidden = self.base_model(**given, use_cache=False).last_hidden_state
    return self.score(hidden.flatten(0, 1)[read])


def collate(
    sequences: Sequence[Any],
    *,
    packed: bool,
    pooling: Pooling,
    token_types: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """Make the tensors of one forward pass.

    Args:
        sequences: token ids.
        packed: whether to lay them end to end.
        pooling: where the answer is read: `first` or `last` token.
        token_types: of padded sequences, where they are not all 0.

    Returns:
        Arguments of the model; `read` (sequences,) int64 is the index of the token to read in the
        flattened batch.
    """
    import torch  # noqa: PLC0415
    from torch.nn.utils.rnn import pad_sequence  # noqa: PLC0415

    rows = [torch.as_tensor(ids, dtype=torch.int64) for ids in sequences]
    lengths = torch.tensor([len(row) for row in rows])
    ends = lengths.cumsum(0)
    if packed:
        starts = torch.nn.functional.pad(ends, (1, 0)).int()
        longest = -(-int(lengths.max()) // _LENGTH_STEP) * _LENGTH_STEP
        return {
            "input_ids": torch.cat(rows)[None],
            "position_ids": torch.cat([torch.arange(len(row)) for row in rows])[None],
            "cu_seq_lens_q": starts,
            "cu_seq_lens_k": starts,
            "max_length_q": longest,
            "max_length_k": longest,
            "read": ends - 1,
        }
    ids = pad_sequence(rows, batch_first=True)
    first = torch.arange(len(rows)) * ids.shape[1]
    batch = {
        "input_ids": ids,
        "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long(),
        "read": first if pooling == "first" else first + lengths - 1,
    }
    if token_types is not None:
        types = [torch.as_tensor(row, dtype=torch.int64) for row in token_types]
        batch["token_type_ids"] = pad_sequence(types, batch_first=True)
    return batch


def on_device(model: Any, device: str | None) -> Any:
    """Move a model to a device, such as cuda or cpu; a GPU where there is one when not given."""
    where = device or default_device()
    try:
        return model.to(where)
    except (RuntimeError, AssertionError) as error:
        # A torch without CUDA fails by an assertion.
        said = str(error).split("\n", 1)[0]
        raise ConfigError(
            f"device: the model cannot be put on '{where}' ({said:.160}): name another, such as cpu"
        ) from error


def default_device() -> str:
    """A GPU where there is one."""
    import torch  # noqa: PLC0415

    return "cuda" if torch.cuda.is_available() else "cpu"


def to_device(batch: Mapping[str, Any], device: Any) -> dict[str, Any]:
    """Copy a batch's tensors without waiting for them."""
    return {
        name: value.to(device, non_blocking=True) if hasattr(value, "to") else value
        for name, value in batch.items()
    }


def rewards_of(model: Any, batch: Mapping[str, Any], pooling: Pooling) -> Any:
    """Run a reward model on a batch of `collate`: (sequences, labels) float32."""
    if pooling == "first":
        inputs = {name: value for name, value in batch.items() if name != "read"}
        return model(**inputs).logits.float()
    return model(**batch)


def answer_logits(model: Any, batch: Mapping[str, Any], read: Any) -> Any:
    """Run a language model on a packed batch: logits (tokens, vocabulary) at the tokens `read`."""
    inputs = {name: value for name, value in batch.items() if name != "read"}
    return model(**inputs, logits_to_keep=read, use_cache=False).logits[0].float()


def load_with_adapter(
    folder: str | Path,
    base: str,
    head: Head,
    *,
    quantized: bool = False,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    attention: str | None = None,
) -> Any:
    """Load a base model and merge a trained adapter into its weights.

    Args:
        folder: of peft's adapter; its tokenizer is taken where there is one.
        base: name of the model that the adapter was trained on.
        head: kind of model.
        quantized: whether the adapter was trained on four-bit weights: it is then merged into
            those, so that the model answers as it did in training; on the CPU in bfloat16, since a
            GPU that holds the four-bit weights may not hold whole ones.
        dtype: type of the merged weights; float32 when None, and bfloat16 where `quantized`.
        trust_remote_code: run code from the base model's repository.
        attention: as for `load_backbone`.

    Returns:
        (model, tokenizer), as `load_backbone`.
    """
    try:
        import torch  # noqa: PLC0415
        from peft import PeftModel  # noqa: PLC0415
        from safetensors import safe_open  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("peft", "train") from error
    from transformers import AutoTokenizer  # noqa: PLC0415

    weights = Path(folder) / "adapter_model.safetensors"
    if not weights.exists():
        raise ModelError(f"{weights} is not there: an adapter must be saved as safetensors")
    with safe_open(weights, "np") as file:
        names = {part for name in file.keys() for part in name.split(".")}  # noqa: SIM118
    model, tokenizer = load_backbone(
        base, head, trained_head=names.isdisjoint(HEADS),
        # As in training: weights that were rounded before are other weights in four bits.
        dtype="float32" if quantized else dtype or "float32",
        quantize=quantized, trust_remote_code=trust_remote_code, attention=attention,
    )  # fmt: skip
    if quantized:
        with quiet():
            model = model.to("cpu").dequantize(dtype=torch.bfloat16)
        _cast_body(model, torch.bfloat16)
    try:
        with quiet():
            merged = PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
            if any(Path(folder).glob("tokenizer*")):
                tokenizer = AutoTokenizer.from_pretrained(
                    str(folder), trust_remote_code=trust_remote_code
                )
                # transformers reads the reward at the last token that is not the pad token.
                merged.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    except Exception as error:  # peft and safetensors raise many types
        raise ModelError(
            f"the adapter in {folder} does not fit {base} ({type(error).__name__}: {error}): both "
            "must be as they were in training"
        ) from error
    if quantized and dtype is not None:
        _cast_body(merged, getattr(torch, dtype))
    return merged, tokenizer


def _cast_body(model: Any, dtype: Any) -> None:
    """Change the type of a model's weights, but not of a reward head's."""
    for name, weight in model.named_parameters():
        if name.split(".")[0] not in HEADS:
            weight.data = weight.data.to(dtype)
    model.config.dtype = dtype


def no_towers(model: Any) -> str | None:
    """Peft's pattern of the parts that no text reaches; None where there are none."""
    towers = "|".join(_towers(model))
    return rf"({towers})\..*" if towers else None
