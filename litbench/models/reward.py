"""Reward models: one number for a prompt and a story.

    model = RewardModel.load("runs/verifier/model")
    rewards = model.score(["[WP] A door."], ["It opened."])

The reward of a prompt and a story does not depend on the batch (1e-5 in fp32) or on the program
that loads the folder; see `litbench.models.input_format`. Rewards are comparable within a prompt
only: Bradley-Terry training leaves a free offset per prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from litbench.config import build
from litbench.errors import ConfigError
from litbench.models.backbone import Pooling, collate, is_packed, rewards_of, to_device
from litbench.models.folder import Adapter, Loaded, load_folder, save_folder
from litbench.models.input_format import Form, encode_stories, is_encoder, longest_of
from litbench.raters import ScoreRater

_DEFAULT_MAX_LENGTH = 2_048


class RewardModel(ScoreRater):
    """A sequence-classification model that scores stories.

    Attributes:
        tokenizer: the folder's tokenizer, which contains the input format.
        form: input form; `chat` for every model trained by LitBench, see `encode_stories`.
        prompts: `prompt_key` of the training prompts.
        stories_cut: number of scored stories that were truncated.
        is_foreign: whether the folder was not written by LitBench.
    """

    kind = "reward"
    gives_probability = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "reward",
        form: Form = "chat",
        prompts: frozenset[str] = frozenset(),
        batch_tokens: int | None = None,
        training: Mapping[str, Any] | None = None,
        label: int = 0,
        reverse: bool = False,
        adapter: Adapter | None = None,
    ) -> None:
        if batch_tokens is not None and batch_tokens < 1:
            raise ConfigError(f"batch_tokens is {batch_tokens}: give at least 1")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.form = form
        self.name = name
        self.prompts = prompts
        on_cpu = next(model.parameters()).device.type == "cpu"
        # Activations of larger batches do not fit into a CPU's cache (benchmarks/scoring.py).
        self.batch_tokens = batch_tokens or (2_048 if on_cpu else 16_384)
        self.stories_cut = 0
        self.shows_progress = True
        self.is_foreign = False
        self.training_record = dict(training or {})
        self.label = label
        self.reversed = reverse
        self.adapter = adapter

    @classmethod
    def load(cls, path: str | Path, *, name: str = "reward", **options: Any) -> "RewardModel":
        """Load a model folder, or any sequence-classification model.

        Args:
            path: a folder written by `save`, the folder or adapter of another model, or a name on
                the Hub.
            name: the rater's name.
            options: see `RewardRaterOptions`.

        Raises:
            ConfigError: an unknown option, a missing or invalid `label`, or `form` or `max_length`
                for a model trained by LitBench.
            DataError: the model cannot be fetched from the Hub.
            ModelError: the model cannot be loaded.
            MissingExtraError: torch or transformers is not installed.
        """
        return rater_from_options(name, {"path": str(path), **options}, "RewardModel.load")

    def save(self, folder: Path) -> None:
        """Write weights (safetensors), config, tokenizer and `litbench.json` into a folder."""
        loaded = Loaded(
            self.model, self.tokenizer, self.prompts, self.training_record, self.adapter,
            form=None if self.form == "chat" else self.form, reward_quantiles=self.reward_quantiles,
        )  # fmt: skip
        save_folder(folder, self.kind, loaded)

    def training_prompts(self) -> frozenset[str]:
        """`prompt_key` of the training prompts; empty if the model folder has no record."""
        return self.prompts

    def notes(self) -> dict[str, Any]:
        """Number of parameters and truncated stories, and the training record."""
        notes: dict[str, Any] = {
            "parameters": self.model.num_parameters(),
            "stories_cut": self.stories_cut,
        }
        if self.is_foreign:
            notes["form"] = self.form
        if self.training_record:
            notes["training"] = self.training_record
        return notes

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Score stories; those longer than `model_max_length` are truncated and counted.

        Args:
            prompts: n prompts.
            stories: n stories.

        Returns:
            Rewards (log-odds scale), float64, shape (n,).
        """
        import torch  # noqa: PLC0415
        from tqdm import tqdm  # noqa: PLC0415

        encoded = encode_stories(self.tokenizer, prompts, stories, self.form)
        self.stories_cut += sum(encoded.cut)
        order = sorted(range(len(stories)), key=lambda row: len(encoded.ids[row]), reverse=True)
        device = next(self.model.parameters()).device
        packed = is_packed(self.model)
        pooling: Pooling = "first" if is_encoder(self.model) else "last"
        types = encoded.token_types
        pieces = []
        with (
            torch.inference_mode(),
            tqdm(
                total=len(stories), desc=f"score {self.name}", unit=" stories", leave=False,
                disable=None if self.shows_progress else True,
            ) as bar,
        ):  # fmt: skip
            start = 0
            while start < len(order):
                # Sorted by decreasing length, so the first story of a batch is its longest.
                longest = len(encoded.ids[order[start]])
                rows = order[start : start + max(1, self.batch_tokens // longest)]
                batch = collate(
                    [encoded.ids[row] for row in rows], packed=packed, pooling=pooling,
                    token_types=None if types is None else [types[row] for row in rows],
                )  # fmt: skip
                rewards = rewards_of(self.model, to_device(batch, device), pooling)
                # Rewards stay on the device until the end, to avoid synchronising in the loop.
                pieces.append(rewards[:, self.label])
                start += len(rows)
                bar.update(len(rows))
        scores = np.empty(len(stories), dtype=np.float64)
        if pieces:
            scores[order] = torch.cat(pieces).double().cpu().numpy()
        return -scores if self.reversed else scores


@dataclass
class RewardRaterOptions:
    """A reward model as a rater.

    Attributes:
        path: path or name of the model; see `RewardModel.load`.
        device: such as cuda or cpu. Default: a GPU if available.
        dtype: dtype of the weights. Default: bfloat16 on a GPU; elsewhere float32, or the dtype in
            which LitBench saved the model. The head always
            computes in float32.
        batch_tokens: maximum number of tokens in one forward pass, with padding. Default: 2,048 on
            a CPU, 16,384 elsewhere.
        max_length: maximum number of tokens of a sequence, for a model that LitBench did not train.
            Default: 2,048.
        form: input form of a model that LitBench did not train: `chat` (its chat template), `pair`
            (two texts), `text` (one text) or `story` (without the prompt). Default: `chat` if the
            tokenizer has a chat template, else `pair` for an encoder and `text` for a decoder.
        label: index of the output that is the reward, for a model with several outputs.
        reverse: whether a lower output means a better story.
        probability: whether sigmoid(difference of rewards) is a probability; set it to false for a
            model that was not trained on pairs.
        trust_remote_code: run code from the model's repository.
    """

    path: str
    device: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    batch_tokens: int | None = None
    max_length: int | None = None
    form: Form | None = None
    label: int | None = None
    reverse: bool = False
    probability: bool = True
    trust_remote_code: bool = False

    def files(self) -> dict[str, str]:
        """Model, by key."""
        return {"path": self.path}


def rater_from_options(name: str, options: Mapping[str, Any], where: str) -> RewardModel:
    """Make a rater of kind `reward` from its config."""
    given = build(RewardRaterOptions, options, where)
    path, form, label = given.path, given.form, given.label
    loaded = load_folder(
        path, "reward", "reward", device=given.device, dtype=given.dtype,
        trust_remote_code=given.trust_remote_code, num_labels=None,
    )  # fmt: skip
    model, tokenizer = loaded.model, loaded.tokenizer
    labels = model.config.num_labels
    if label is None and labels > 1:
        raise ConfigError(
            f"{path} has {labels} outputs ({model.config.id2label}): set label to the index of the "
            "reward, such as label: 0"
        )
    if label is not None and not 0 <= label < labels:
        raise ConfigError(f"{path} has {labels} outputs, and label is {label}: count from 0")
    if loaded.is_ours:
        if form or given.max_length:
            raise ConfigError(
                f"{path} was trained by LitBench and has its own input format: remove form and "
                "max_length"
            )
        form = cast(Form, loaded.form or "chat")
    else:
        longest = longest_of(model, given.max_length or _DEFAULT_MAX_LENGTH)
        # Set in both places, since only init_kwargs is saved.
        tokenizer.model_max_length = tokenizer.init_kwargs["model_max_length"] = longest
        pad = model.config.get_text_config().pad_token_id
        if pad is not None:
            # transformers and trl's trainers use the pad token of the model's config.
            tokenizer.pad_token_id = pad
        default: Form = "pair" if is_encoder(model) else "text"
        form = form or ("chat" if tokenizer.chat_template else default)
    rater = RewardModel(
        model, tokenizer, name=name, form=form, prompts=loaded.prompts,
        batch_tokens=given.batch_tokens, training=loaded.training, label=label or 0,
        reverse=given.reverse, adapter=loaded.adapter,
    )  # fmt: skip
    rater.is_foreign = not loaded.is_ours
    rater.gives_probability = given.probability
    rater.reward_quantiles = None if given.reverse else loaded.reward_quantiles
    return rater
