"""Load and run the transformers model inside a rater.

Training and scoring share one forward pass. Decoders run on packed sequences
(`litbench.models.attention`) where their attention supports it, all other models on rows padded on
the right. The tokens to read are given by index. The head computes in fp32, whatever the dtype of
the weights.
"""

import contextlib
import importlib.util
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MethodType
from typing import Any, Literal

from litbench.models.attention import ATTENTION, can_pack, register
from litbench.runs.errors import ConfigError, MissingExtraError, ModelError
from litbench.runs.locations import locate

Head = Literal["reward", "language", "none"]
Pooling = Literal["first", "last"]
# GPU kernels are compiled per maximum length; rounding it up keeps their number small.
_LENGTH_STEP = 256
# Names of the head of a sequence-classification model in transformers.
HEADS = ("score", "classifier")
# Of model classes: modules that stay in fp32 whatever the dtype.
_IN_FP32 = "_keep_in_fp32_modules_strict"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' and peft's progress bars and warnings on which no user can act."""
    from transformers.utils import logging  # noqa: PLC0415

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            # peft 0.21 still asks transformers 5.23 by a name that it deprecates.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is dep", FutureWarning)
            # peft 0.21 looks for config.json beside a GGUF file, or on the Hub while offline.
            warnings.filterwarnings("ignore", "Could not find a config file in", UserWarning)
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _head_in_fp32(model_class: Any) -> Iterator[None]:
    """Make `from_pretrained` keep the head in fp32 when it loads other weights in 16 bits.

    Only model classes can ask for it: https://github.com/huggingface/transformers/pull/39058
    """
    before = getattr(model_class, _IN_FP32)
    setattr(model_class, _IN_FP32, {*(before or ()), *HEADS})
    try:
        yield
    finally:
        setattr(model_class, _IN_FP32, before)


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
    """Load a model and its tokenizer, from safetensors or one GGUF file.

    Args:
        name: `package:NAME/folder`, a folder, `owner/name[@revision]` on the Hub, or a `.gguf`
            file, whose weights are dequantised to `dtype`.
        head: `reward` for sequence classification, `language` for a causal language model, `none`
            for hidden states.
        trained_head: whether to refuse a model without a trained reward head. If False, a missing
            head is initialised at random.
        trust_remote_code: run code from the model's repository.
        dtype: dtype of the weights: float32, bfloat16, float16, or auto for the one in the model's
            config. A reward head stays in float32.
        quantize: load the weights in 4 bits (NF4, Dettmers et al., 2023) for QLoRA; needs
            bitsandbytes.
        attention: name of an attention implementation of transformers. If None, packed attention
            where the model supports it, and the model's default otherwise.
        num_labels: number of outputs of a reward head; None keeps the model's own.

    Returns:
        (model, tokenizer).
    """
    import torch  # noqa: PLC0415
    from transformers import (  # noqa: PLC0415
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    path, revision = locate(name)
    common: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    if path.endswith(".gguf"):
        from transformers import modeling_gguf_pytorch_utils  # noqa: PLC0415
        from transformers.utils import logging  # noqa: PLC0415

        # transformers 5.24 dequantises under a bar that ignores its own setting; it would go with
        # https://github.com/huggingface/transformers/pull/44794
        modeling_gguf_pytorch_utils.tqdm = logging.tqdm
        path, common["gguf_file"] = os.path.split(path)
    auto = {
        "reward": AutoModelForSequenceClassification,
        "language": AutoModelForCausalLM,
        "none": AutoModel,
    }[head]
    labels = {} if head != "reward" or num_labels is None else {"num_labels": num_labels}
    quantization = _four_bits() if quantize else {}
    try:
        with quiet():
            config = AutoConfig.from_pretrained(path, **common, **labels)
            tokenizer = AutoTokenizer.from_pretrained(path, **common)
            mapping = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
            keeps = head == "reward" and type(config) in mapping
            with _head_in_fp32(mapping[type(config)]) if keeps else contextlib.nullcontext():
                model, info = auto.from_pretrained(
                    path,
                    config=config,
                    output_loading_info=True,
                    use_safetensors=True,
                    dtype=dtype if dtype == "auto" else getattr(torch, dtype),
                    **common,
                    **quantization,
                )
            if "gguf_file" in common:
                # transformers treats dequantised weights as quantised, and refuses to save them,
                # and again what was trained from them.
                weights = model.state_dict()
                del model.config.quantization_config
                model = type(model)(model.config).to(model.dtype)
                model.load_state_dict(weights)
    except Exception as error:  # transformers' loaders raise many types
        raise ModelError(
            f"cannot load the model '{name}' ({type(error).__name__}: {error}): check the name, "
            "the network and your access; weights must be safetensors"
            + (" with at most one label" if labels else "")
        ) from error
    if trained_head and head != "none" and info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"]))
        raise ModelError(
            f"the model '{name}' lacks trained weights for {missing}: its rewards would be random; "
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
        # In 16 bits the logits of the two labels are often equal. The weights keep their dtype,
        # since they may be tied to the embeddings.
        _run_in_fp32(model.get_output_embeddings())
    set_attention(model, attention)
    return model, tokenizer


def _towers(model: Any) -> dict[str, Any]:
    """Submodules beside the text decoder by name, such as a vision tower; text never uses them."""
    if model.config.get_text_config() is model.config:
        return {}
    parts = model.base_model.named_children()
    prefix, decoder = model.base_model_prefix, model.get_decoder()
    return {f"{prefix}.{name}": part for name, part in parts if part is not decoder}


def _four_bits() -> dict[str, Any]:
    import torch  # noqa: PLC0415
    from transformers import BitsAndBytesConfig  # noqa: PLC0415

    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtraError("bitsandbytes", "qlora")
    arguments: dict[str, Any] = {
        "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
            # A quantised head would round the rewards.
            llm_int8_skip_modules=[*HEADS, "lm_head"],
        )
    }
    if torch.cuda.is_available():
        # One GPU per process; by default transformers puts every process on the first GPU.
        arguments["device_map"] = {"": int(os.environ.get("LOCAL_RANK", "0"))}
    return arguments


def set_attention(model: Any, attention: str | None = None) -> None:
    """Set the attention implementation; None selects `ATTENTION` if the model supports it."""
    if attention is None:
        if not can_pack(model):
            return
        register()
        attention = ATTENTION
    try:
        model.set_attn_implementation(attention)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"attention: '{attention}' cannot be used here ({error}): set it to null"
        ) from error


def attention_of(config: Any) -> Any:
    """The attention implementation, for which transformers has a public setter alone.

    https://github.com/huggingface/transformers/pull/38974
    """
    return config._attn_implementation  # noqa: SLF001


def is_packed(model: Any) -> bool:
    """Whether a model runs on packed sequences, and not on padded rows."""
    implementation = str(attention_of(model.config.get_text_config()))
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
            f"{model.config.num_labels} outputs: a reward model needs such a head"
        )
    return layers


def _run_in_fp32(layer: Any) -> None:
    """Make a linear layer compute in fp32, whatever the dtype of its weights and input."""

    def forward(self: Any, hidden: Any) -> Any:
        import torch  # noqa: PLC0415

        bias = None if self.bias is None else self.bias.float()
        with torch.autocast(hidden.device.type, enabled=False):
            return torch.nn.functional.linear(hidden.float(), self.weight.float(), bias)

    layer.forward = MethodType(forward, layer)


def _read_rewards(self: Any, *, read: Any = None, **inputs: Any) -> Any:
    """Forward pass of a decoder that applies the reward head only to the tokens at `read`.

    `read` (sequences,) holds the indices of the last tokens in the flattened batch. Returns rewards
    (sequences, labels), float32.
    """
    if read is None:
        return type(self).forward(self, **inputs)
    # peft passes further arguments with value None.
    arguments = {name: value for name, value in inputs.items() if value is not None}
    arguments.pop("return_dict", None)
    hidden = self.base_model(**arguments, use_cache=False).last_hidden_state
    return self.score(hidden.flatten(0, 1)[read])


def collate(
    sequences: Sequence[Any],
    *,
    packed: bool,
    pooling: Pooling,
    token_types: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """Collate token ids into the tensors of one forward pass, `packed` or padded on the right.

    Args:
        sequences: token ids of each sequence.
        packed: concatenate the sequences instead of padding them.
        pooling: which token is read: the `first` or the `last` one of each sequence.
        token_types: token type ids for padded rows, if not all are 0.

    Returns:
        Arguments of the model, and `read`, int64 (sequences,): indices of the tokens to read in the
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


def batches(
    sequences: Sequence[Sequence[int]], batch_tokens: int, room: int = 0
) -> Iterator[list[int]]:
    """Yield indices of sequences by decreasing length, in batches of at most `batch_tokens`.

    Every sequence counts as the longest one of its batch and `room` for an answer.
    """
    order = sorted(range(len(sequences)), key=lambda row: -len(sequences[row]))
    start = 0
    while start < len(order):
        size = max(1, batch_tokens // (len(sequences[order[start]]) + room))
        yield order[start : start + size]
        start += size


def on_device(model: Any, device: str | None) -> Any:
    """Move a model to a device such as cuda or cpu; None selects a GPU if available."""
    where = device or default_device()
    try:
        return model.to(where)
    except (RuntimeError, AssertionError) as error:
        # torch built without CUDA raises an AssertionError.
        said = str(error).split("\n", 1)[0]
        raise ConfigError(
            f"device: the model cannot be put on '{where}' ({said:.160}): try another, such as cpu"
        ) from error


def default_device() -> str:
    """Return "cuda" if a GPU is available, else "cpu"."""
    import torch  # noqa: PLC0415

    return "cuda" if torch.cuda.is_available() else "cpu"


def to_device(batch: Mapping[str, Any], device: Any) -> dict[str, Any]:
    """Copy a batch's tensors to a device asynchronously."""
    return {
        name: value.to(device, non_blocking=True) if hasattr(value, "to") else value
        for name, value in batch.items()
    }


def rewards_of(model: Any, batch: Mapping[str, Any], pooling: Pooling) -> Any:
    """Run a reward model on a batch of `collate`; return rewards (sequences, labels), float32."""
    if pooling == "first":
        inputs = {name: value for name, value in batch.items() if name != "read"}
        return model(**inputs).logits.float()
    return model(**batch)


def answer_logits(model: Any, batch: Mapping[str, Any], read: Any) -> Any:
    """Run a language model on a packed batch; return logits (tokens, vocabulary) at `read`."""
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
) -> Any:
    """Load a base model and merge a peft adapter into its weights; see `load_backbone`.

    An adapter that was trained on 4-bit weights (`quantized`) is merged into the dequantised 4-bit
    weights, so that the model computes what it computed in training. This happens on the CPU in
    bfloat16, since the GPU may lack the memory. The adapter's tokenizer replaces the base model's.
    `dtype` is that of the merged weights; if None, float32, or bfloat16 if `quantized`.
    """
    import torch  # noqa: PLC0415
    from peft import PeftModel  # noqa: PLC0415
    from safetensors import safe_open  # noqa: PLC0415
    from transformers import AutoTokenizer  # noqa: PLC0415

    weights = Path(folder) / "adapter_model.safetensors"
    if not weights.exists():
        raise ModelError(f"{weights} does not exist: an adapter must be saved as safetensors")
    with safe_open(weights, "np") as file:
        names = {part for name in file.keys() for part in name.split(".")}  # noqa: SIM118
    model, tokenizer = load_backbone(
        base,
        head,
        trained_head=names.isdisjoint(HEADS),
        # As in training: rounding before quantisation would give other 4-bit weights.
        dtype="float32" if quantized else dtype or "float32",
        quantize=quantized,
        trust_remote_code=trust_remote_code,
    )
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
            f"the adapter in {folder} does not fit {base} ({type(error).__name__}: {error}): use "
            "the base model that it was trained on"
        ) from error
    if quantized and dtype is not None:
        _cast_body(merged, getattr(torch, dtype))
    return merged, tokenizer


def _cast_body(model: Any, dtype: Any) -> None:
    """Cast all weights except a reward head's."""
    for name, weight in model.named_parameters():
        if name.split(".")[0] not in HEADS:
            weight.data = weight.data.to(dtype)
    model.config.dtype = dtype


def no_towers(model: Any) -> str | None:
    """Pattern of modules that peft excludes: vision towers; None if the model has none."""
    towers = "|".join(_towers(model))
    return rf"({towers})\..*" if towers else None
