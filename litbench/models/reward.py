"""Reward models: one number for a prompt and a story.

    model = RewardModel.load("runs/verifier")
    rewards = model.score(["[WP] A door."], ["It opened."])

The scorer owns padding and pooling, so that the same prompt and story get the same reward
whatever the batch, the tokenizer's padding side or its pad token (tested to 1e-5 in fp32).
Rewards are comparable within a prompt only: Bradley-Terry leaves a free offset per prompt.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from litbench.config import build
from litbench.errors import MissingExtraError, ModelError
from litbench.locations import resolve
from litbench.manifest import versions, write_json
from litbench.models.layout import Layout
from litbench.raters import ScoreRater

_FILE = "litbench.json"
_FORMAT = 1
_DEFAULT_MAX_LENGTH = 2_048


def last_token_logits(hidden_states: Any, head: Any, last: Any) -> Any:
    """Apply a reward head in fp32 to the last real token of each row.

    Args:
        hidden_states: (batch, length, width), any float type.
        head: linear layer, width -> 1.
        last: (batch,) index of the last real token.

    Returns:
        (batch, 1) float32.
    """
    import torch  # noqa: PLC0415

    rows = torch.arange(hidden_states.shape[0], device=hidden_states.device)
    pooled = hidden_states[rows, last].float()
    bias = None if head.bias is None else head.bias.float()
    return torch.nn.functional.linear(pooled, head.weight.float(), bias)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' own bars and reports to itself: a new head is what we ask for."""
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


def load_backbone(
    name: str,
    *,
    trained_head: bool = True,
    trust_remote_code: bool = False,
    dtype: str = "float32",
) -> Any:
    """Load a sequence-classification model with one label; safetensors only.

    Args:
        name: `package:NAME/folder`, a folder, or a name on the Hub.
        trained_head: whether the reward head must be there, or may be new and random.
        trust_remote_code: run code from the model's repository.
        dtype: weights' type: float32, bfloat16 or float16.

    Returns:
        (model, tokenizer).

    Raises:
        ModelError: it cannot be loaded, has more than one label, or lacks the head it must have.
        MissingExtraError: transformers or torch is not installed.
    """
    try:
        import torch  # noqa: PLC0415
        from transformers import (  # noqa: PLC0415
            AutoConfig,
            AutoModelForSequenceClassification,
            AutoTokenizer,
        )
    except ImportError as error:
        raise MissingExtraError("torch and transformers", "models") from error
    place = resolve(name)
    try:
        with _quiet():
            config = AutoConfig.from_pretrained(
                place, num_labels=1, trust_remote_code=trust_remote_code
            )
            tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)
            model, found = AutoModelForSequenceClassification.from_pretrained(
                place,
                config=config,
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
    except Exception as error:  # the loaders raise dozens of types
        raise ModelError(
            f"cannot load the model '{name}' ({type(error).__name__}: {error}): check the name, "
            "the network and your access; weights must be safetensors with at most one label"
        ) from error
    if trained_head and found["missing_keys"]:
        missing = ", ".join(sorted(found["missing_keys"]))
        raise ModelError(
            f"the model '{name}' lacks trained weights for {missing}: its rewards would be random; "
            "train it with train/bradley_terry.py first"
        )
    text_config = model.config.get_text_config()
    if text_config.pad_token_id is None:
        # Only a filler under a mask of zeros; any valid id will do.
        filler = tokenizer.pad_token_id
        text_config.pad_token_id = filler if filler is not None else tokenizer.eos_token_id
    return model, tokenizer


class RewardModel(ScoreRater):
    """A sequence-classification model that scores stories.

    Attributes:
        name: the rater's name.
        layout: how prompt and story are joined.
        model: the transformers model, in evaluation mode.
        tokenizer: its tokenizer.
        batch_tokens: most tokens, padding included, of one forward pass.
        prompts: `prompt_key` of the training prompts.
        stories_cut: how many of the stories scored so far did not fit and were cut.
        layout_inferred: whether the folder held no layout, so that one had to be inferred.
        training_record: options, counts and loss curve, where LitBench trained it.
    """

    kind = "reward"
    gives_probability = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        layout: Layout,
        *,
        name: str = "reward",
        prompts: frozenset[str] = frozenset(),
        batch_tokens: int | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.layout = layout
        self.name = name
        self.prompts = prompts
        on_cpu = next(model.parameters()).device.type == "cpu"
        # Activations of more tokens fall out of a CPU's cache (benchmarks/scoring.py).
        self.batch_tokens = batch_tokens or (2_048 if on_cpu else 8_192)
        self.stories_cut = 0
        self.layout_inferred = False
        self.training_record = dict(training or {})

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        name: str = "reward",
        device: str | None = None,
        dtype: str = "float32",
        batch_tokens: int | None = None,
        max_length: int | None = None,
        trust_remote_code: bool = False,
    ) -> "RewardModel":
        """Load a model folder, or any one-label sequence-classification model.

        Args:
            path: a folder written by `save`, another model's folder, or a name on the Hub. A
                model that LitBench did not train has no stored layout; one is inferred, and
                `notes` says so.
            name: the rater's name.
            device: such as cuda or cpu; a GPU where there is one when not given.
            dtype: float32, bfloat16 or float16; the head is computed in float32 in any case.
            batch_tokens: most tokens, padding included, of one forward pass; 2,048 on a CPU and
                8,192 elsewhere when not given.
            max_length: most tokens of a sequence, for a model without stored layout.
            trust_remote_code: run code from the model's repository.

        Raises:
            ModelError: it cannot be loaded.
            MissingExtraError: torch or transformers is not installed.
        """
        model, tokenizer = load_backbone(
            str(path), trained_head=True, trust_remote_code=trust_remote_code, dtype=dtype
        )
        stored = Path(resolve(str(path))) / _FILE
        inferred = not stored.exists()
        training: dict[str, Any] = {}
        prompts: frozenset[str] = frozenset()
        if inferred:
            layout = Layout.infer(tokenizer, model, max_length or _DEFAULT_MAX_LENGTH)
        else:
            try:
                content = json.loads(stored.read_text(encoding="utf-8"))
                if content["format"] != _FORMAT:
                    raise ValueError(f"format {content['format']}, not {_FORMAT}")
                layout = build(Layout, content["layout"], str(stored))
                prompts = frozenset(content["training_prompts"])
                training = content["training"]
            except (ValueError, KeyError, TypeError) as error:
                raise ModelError(f"{stored} is broken ({error}): train the model again") from error
        import torch  # noqa: PLC0415

        where = device or ("cuda" if torch.cuda.is_available() else "cpu")
        loaded = cls(
            model.to(where), tokenizer, layout, name=name, prompts=prompts,
            batch_tokens=batch_tokens, training=training,
        )  # fmt: skip
        loaded.layout_inferred = inferred
        return loaded

    def save(self, folder: Path) -> None:
        """Write weights (safetensors), config, tokenizer and `litbench.json` into a folder."""
        with _quiet():
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        content = {
            "format": _FORMAT,
            "kind": self.kind,
            "layout": asdict(self.layout),
            "training_prompts": sorted(self.prompts),
            "training": self.training_record,
            "versions": versions(),
        }
        write_json(content, folder / _FILE)

    def training_prompts(self) -> frozenset[str]:
        """`prompt_key` of the training prompts; empty when the model folder does not tell."""
        return self.prompts

    def notes(self) -> dict[str, Any]:
        """Stories cut so far, and whether the layout had to be inferred."""
        found: dict[str, Any] = {"stories_cut": self.stories_cut}
        if self.layout_inferred:
            found["layout"] = "inferred: the folder holds no litbench.json"
        return found

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Score stories; longer ones than the layout holds lose their end and are counted.

        Args:
            prompts: shape (n,).
            stories: shape (n,).

        Returns:
            Rewards (log-odds scale), float64, shape (n,).
        """
        import torch  # noqa: PLC0415
        from tqdm import tqdm  # noqa: PLC0415

        encoded = self.layout.encode(self.tokenizer, prompts, stories)
        self.stories_cut += sum(encoded.cut)
        order = sorted(range(len(stories)), key=lambda row: len(encoded.ids[row]), reverse=True)
        device = next(self.model.parameters()).device
        pieces = []
        with (
            torch.inference_mode(),
            tqdm(
                total=len(stories), desc=f"score {self.name}", unit=" stories", leave=False,
                disable=None,
            ) as bar,
        ):  # fmt: skip
            start = 0
            while start < len(order):
                longest = len(encoded.ids[order[start]])
                rows = order[start : start + max(1, self.batch_tokens // longest)]
                # Rewards stay on the device until the end: no waiting for it in between.
                pieces.append(self._forward([encoded.ids[row] for row in rows], device))
                start += len(rows)
                bar.update(len(rows))
        rewards = np.empty(len(stories), dtype=np.float64)
        if pieces:
            rewards[order] = torch.cat(pieces).double().cpu().numpy()
        return rewards

    def _forward(self, ids: list[list[int]], device: Any) -> Any:
        """Rewards of one batch, (batch,); padded on the right whatever the tokenizer prefers."""
        import torch  # noqa: PLC0415

        lengths = torch.tensor([len(row) for row in ids])
        input_ids = torch.zeros((len(ids), int(lengths.max())), dtype=torch.long)
        for place, row in enumerate(ids):
            input_ids[place, : len(row)] = torch.tensor(row)
        mask = (torch.arange(input_ids.shape[1])[None] < lengths[:, None]).long()
        input_ids, mask = input_ids.to(device), mask.to(device)
        if self.layout.pooling == "first":
            return self.model(input_ids=input_ids, attention_mask=mask).logits[:, 0].float()
        hidden = self.model.base_model(
            input_ids=input_ids, attention_mask=mask, use_cache=False
        ).last_hidden_state
        return last_token_logits(hidden, self.model.score, lengths.to(device) - 1)[:, 0]


@dataclass
class RewardRaterOptions:
    """A reward model as a rater; see RewardModel.load."""

    path: str
    device: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    batch_tokens: int | None = None
    max_length: int | None = None
    trust_remote_code: bool = False


def rater_from_options(name: str, options: Mapping[str, Any], where: str) -> RewardModel:
    """The kind `reward` of a config."""
    ready = asdict(build(RewardRaterOptions, options, where))
    return RewardModel.load(ready.pop("path"), name=name, **ready)
