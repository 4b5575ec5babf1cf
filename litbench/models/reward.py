"""Reward models: one number for a prompt and a story.

    model = RewardModel.load("runs/verifier/model")
    rewards = model.score(["[WP] A door."], ["It opened."])

The same prompt and story get the same reward whatever the batch (1e-5 in fp32), and from every
program that reads the folder; see `litbench.models.input_format`. Rewards are comparable within a
prompt only: Bradley-Terry leaves a free offset per prompt.
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
        tokenizer: of the folder, with the input format.
        form: how other people's models read prompt and story; `chat` for every model trained here.
        prompts: `prompt_key` of the training prompts.
        stories_cut: how many of the stories scored so far were truncated.
        is_foreign: whether LitBench did not write the folder.
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
        # Activations of more tokens fall out of a CPU's cache (benchmarks/scoring.py).
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
            path: a folder written by `save`, another model's folder or adapter, or a name on the
                Hub.
            name: the rater's name.
            options: see `RewardRaterOptions`.

        Raises:
            ConfigError: an unknown option; the model has several outputs and none is named, or too
                few; or `form` or `max_length` for a model trained here.
            DataError: a name on the Hub that cannot be fetched.
            ModelError: it cannot be loaded.
            MissingExtraError: torch or transformers is not installed.
        """
        return rater_from_options(name, {"path": str(path), **options}, "RewardModel.load")

    def save(self, folder: Path) -> None:
        """Write weights (safetensors), config, tokenizer and `litbench.json` into a folder."""
        loaded = Loaded(
            self.model, self.tokenizer, self.prompts, self.training_record, self.adapter,
            form=None if self.form == "chat" else self.form,
        )  # fmt: skip
        save_folder(folder, self.kind, loaded)

    def training_prompts(self) -> frozenset[str]:
        """`prompt_key` of the training prompts; empty when the model folder does not tell."""
        return self.prompts

    def notes(self) -> dict[str, Any]:
        """Number of weights, stories cut so far, and the form where LitBench chose it."""
        found: dict[str, Any] = {
            "parameters": self.model.num_parameters(),
            "stories_cut": self.stories_cut,
        }
        if self.is_foreign:
            found["form"] = self.form
        if self.training_record:
            found["training"] = self.training_record
        return found

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Score stories; those beyond `model_max_length` lose their end and are counted.

        Args:
            prompts: shape (n,).
            stories: shape (n,).

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
                # In the order of falling length the first of a batch is its longest.
                longest = len(encoded.ids[order[start]])
                rows = order[start : start + max(1, self.batch_tokens // longest)]
                batch = collate(
                    [encoded.ids[row] for row in rows], packed=packed, pooling=pooling,
                    token_types=None if types is None else [types[row] for row in rows],
                )  # fmt: skip
                rewards = rewards_of(self.model, to_device(batch, device), pooling)
                # Rewards stay on the device until the end: no waiting for it in between.
                pieces.append(rewards[:, self.label])
                start += len(rows)
                bar.update(len(rows))
        found = np.empty(len(stories), dtype=np.float64)
        if pieces:
            found[order] = torch.cat(pieces).double().cpu().numpy()
        return -found if self.reversed else found


@dataclass
class RewardRaterOptions:
    """A reward model as a rater.

    Attributes:
        path: of the model; see RewardModel.load.
        device: such as cuda or cpu; a GPU where there is one when not given.
        dtype: weights' type, bfloat16 on a GPU and float32 elsewhere when not given. The head
            computes in float32 in any case.
        batch_tokens: most tokens, padding included, of one forward pass; 2,048 on a CPU and 16,384
            elsewhere when not given.
        max_length: most tokens of a sequence, for a model that LitBench did not train; 2,048 when
            not given.
        form: how such a model reads prompt and story: `chat`, its own chat template, `pair`, two
            texts, `text`, one text, or `story`, without the prompt; when not given, chat where the
            tokenizer has a template, else pair for an encoder and text for a decoder.
        label: which output is the reward, for a model with several.
        reverse: a lower output means a better story.
        probability: whether sigmoid(difference of rewards) is meant as a probability; set it to
            false for a model that was not trained on pairs.
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
        """The model."""
        return {"path": self.path}


def rater_from_options(name: str, options: Mapping[str, Any], where: str) -> RewardModel:
    """The kind `reward` of a config."""
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
            f"{path} has {labels} outputs ({model.config.id2label}): say which is the reward, as "
            "label: 0"
        )
    if label is not None and not 0 <= label < labels:
        raise ConfigError(f"{path} has {labels} outputs, and label is {label}: count from 0")
    if loaded.is_ours:
        if form or given.max_length:
            raise ConfigError(
                f"{path} was trained by LitBench and keeps its input format: leave out form and "
                "max_length"
            )
        form = cast(Form, loaded.form or "chat")
    else:
        longest = longest_of(model, given.max_length or _DEFAULT_MAX_LENGTH)
        # Given twice, or it is not saved.
        tokenizer.model_max_length = tokenizer.init_kwargs["model_max_length"] = longest
        pad = model.config.get_text_config().pad_token_id
        if pad is not None:
            # What transformers goes by, and trl's trainers with it.
            tokenizer.pad_token_id = pad
        default: Form = "pair" if is_encoder(model) else "text"
        form = form or ("chat" if tokenizer.chat_template else default)
    made = RewardModel(
        model, tokenizer, name=name, form=form, prompts=loaded.prompts,
        batch_tokens=given.batch_tokens, training=loaded.training, label=label or 0,
        reverse=given.reverse, adapter=loaded.adapter,
    )  # fmt: skip
    made.is_foreign = not loaded.is_ours
    made.gives_probability = given.probability
    return made
