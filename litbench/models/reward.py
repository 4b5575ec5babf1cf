"""Reward models: one number for a prompt and a story.

    model = RewardModel.load("runs/verifier/model")
    rewards = model.score(["[WP] A door."], ["It opened."])

The reward of a prompt and a story does not depend on the batch or on the program that loads the
folder: it is equal within 1e-5 x (1 + |reward|) in fp32. See `litbench.models.input_format`.
Rewards are comparable within a prompt only: Bradley-Terry training leaves a free offset per prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from litbench.models.backbone import (
    Pooling,
    batches,
    collate,
    is_packed,
    rewards_of,
    to_device,
)
from litbench.models.folder import FolderOptions, FolderRater, load_folder
from litbench.models.input_format import Form, encode_stories, is_encoder, longest_of, shows_prompt
from litbench.raters.interface import ScoreRater, check_stories
from litbench.runs.config import build
from litbench.runs.errors import ConfigError
from litbench.runs.progress import ProgressBar

_DEFAULT_MAX_LENGTH = 2_048
_STORIES_FOR_ERROR = 64


class RewardModel(FolderRater, ScoreRater):
    """A sequence-classification model that scores stories.

    Attributes:
        form: input form; `chat` for every model trained by LitBench, see `encode_stories`.
        stories_cut: number of scored stories that were truncated.
        is_foreign: whether the folder was not written by LitBench.
    """

    kind = "reward"
    gives_probability = True
    # Activations of larger batches do not fit into a CPU's cache (benchmarks/scoring.py).
    usual_batch_tokens = (2_048, 16_384)

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "reward",
        form: Form = "chat",
        label: int = 0,
        reverse: bool = False,
        **stored: Any,
    ) -> None:
        super().__init__(model, tokenizer, name=name, **stored)
        self.form = form
        self.reads_prompt = form != "story" and (form != "chat" or shows_prompt(tokenizer))
        self.stories_cut = 0
        self.shows_progress = True
        self.is_foreign = False
        self.applies_sigmoid = model.config.problem_type != "regression"
        self.label = label
        self.reversed = reverse

    @classmethod
    def load(cls, path: str | Path, *, name: str = "reward", **options: Any) -> "RewardModel":
        """Load a model folder, or any sequence-classification model.

        Args:
            path: a folder written by `save`, the folder or adapter of another model, or a name on
                the Hub.
            name: the rater's name.
            options: see `RewardRaterOptions`.
        """
        return build(RewardRaterOptions, {"path": str(path), **options}, "RewardModel.load").load(
            name
        )

    def save(self, folder: Path) -> None:
        """Write the folder; other programs that read it apply no sigmoid to the reward."""
        config = self.model.config
        config.problem_type = "regression"
        config.sentence_transformers = {"activation_fn": "torch.nn.modules.linear.Identity"}
        super().save(folder)

    def stored(self) -> dict[str, Any]:
        """The quantiles, and the input form of a model that LitBench did not train."""
        form = {} if self.form == "chat" else {"form": self.form}
        return {"reward_quantiles": self.reward_quantiles, **form}

    def notes(self) -> dict[str, Any]:
        """Number of parameters and truncated stories, and the training record."""
        form = {"form": self.form} if self.is_foreign else {}
        return {**super().notes(), "stories_cut": self.stories_cut, **form}

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Score stories; those longer than `model_max_length` are truncated and counted.

        Args:
            prompts: n prompts.
            stories: n stories.

        Returns:
            Rewards (log-odds scale), float64, shape (n,).
        """
        import torch  # noqa: PLC0415

        check_stories(stories)
        encoded = encode_stories(self.tokenizer, prompts, stories, self.form)
        self.stories_cut += sum(encoded.cut)
        packed = is_packed(self.model)
        pooling: Pooling = "first" if is_encoder(self.model) else "last"
        types = encoded.token_types
        order: list[int] = []
        pieces = []
        with (
            torch.inference_mode(),
            ProgressBar(
                total=len(stories),
                desc=f"score {self.name}",
                unit=" stories",
                leave=False,
                disable=None if self.shows_progress else True,
            ) as bar,
        ):
            for rows in batches(encoded.ids, self.batch_tokens):
                batch = collate(
                    [encoded.ids[row] for row in rows],
                    packed=packed,
                    pooling=pooling,
                    token_types=None if types is None else [types[row] for row in rows],
                )
                rewards = rewards_of(self.model, to_device(batch, self.model.device), pooling)
                # Rewards stay on the device until the end, to avoid synchronising in the loop.
                pieces.append(rewards[:, self.label])
                order += rows
                bar.update(len(rows))
        scores = np.empty(len(stories), dtype=np.float64)
        if pieces:
            scores[order] = torch.cat(pieces).double().cpu().numpy()
        return -scores if self.reversed else scores

    def bfloat16_error(
        self, folder: Path, texts: Sequence[tuple[str, str]], rewards: np.ndarray
    ) -> dict[str, float]:
        """How far bfloat16 moves the rewards of this model, in their standard deviations.

        Args:
            folder: where the model is saved.
            texts: prompts and stories, of which the first 64 are scored.
            rewards: their rewards by this model, float64, shape (n,).

        Returns:
            `stories`, `mean` and `max`; empty if this model has no float32 weights or the machine
            is not fast in bfloat16.
        """
        rater = RewardRaterOptions(str(folder), dtype="auto").load(self.name)
        if rater.load_exact is None or self.model.dtype.itemsize < 4:
            return {}
        prompts, stories = zip(*texts[:_STORIES_FOR_ERROR], strict=True)
        change = np.abs(rater.score(prompts, stories) - rewards[:_STORIES_FOR_ERROR])
        spread = max(float(rewards.std()), np.finfo(np.float32).tiny)
        return {
            "stories": len(stories),
            "mean": float(change.mean() / spread),
            "max": float(change.max() / spread),
        }


@dataclass
class RewardRaterOptions(FolderOptions):
    """A reward model as a rater; see also `FolderOptions`.

    Attributes:
        max_length: maximum number of tokens of a sequence, for a model that LitBench did not train.
            Default: 2,048.
        form: input form of a model that LitBench did not train: `chat` (its chat template), `pair`
            (two texts), `text` (one text) or `story` (without the prompt). Default: `chat` if the
            tokenizer has a chat template, else `pair` for an encoder and `text` for a decoder.
        label: index of the output that is the reward, for a model with several outputs.
        reverse: whether a lower output means a better story.
        probability: whether sigmoid(difference of rewards) is a probability; set it to false for a
            model that was not trained on pairs.
    """

    max_length: int | None = None
    form: Form | None = None
    label: int | None = None
    reverse: bool = False
    probability: bool = True

    def load(self, name: str) -> RewardModel:
        path, form, label = self.path, self.form, self.label
        stored, record = load_folder(self, "reward", "reward", num_labels=None)
        model, tokenizer = stored["model"], stored["tokenizer"]
        labels = model.config.num_labels
        if label is None and labels > 1:
            raise ConfigError(
                f"{path} has {labels} outputs ({model.config.id2label}): set label to the index of "
                "the reward, such as label: 0"
            )
        if label is not None and not 0 <= label < labels:
            raise ConfigError(f"{path} has {labels} outputs, and label is {label}: count from 0")
        if record is not None:
            if form or self.max_length:
                raise ConfigError(
                    f"{path} was trained by LitBench and has its own input format: remove form and "
                    "max_length"
                )
            form = record.form or "chat"
        else:
            longest = longest_of(model, self.max_length or _DEFAULT_MAX_LENGTH)
            # Set in both places, since only init_kwargs is saved.
            tokenizer.model_max_length = tokenizer.init_kwargs["model_max_length"] = longest
            pad = model.config.get_text_config().pad_token_id
            if pad is not None:
                # transformers and trl's trainers use the pad token of the model's config.
                tokenizer.pad_token_id = pad
            default: Form = "pair" if is_encoder(model) else "text"
            form = form or ("chat" if tokenizer.chat_template else default)
        rater = RewardModel(**stored, name=name, form=form, label=label or 0, reverse=self.reverse)
        rater.is_foreign = record is None
        if self.dtype == "auto" and model.dtype.itemsize < 4:
            rater.load_exact = partial(replace(self, dtype="float32").load, name)
        rater.gives_probability = self.probability
        if record is not None and not self.reverse:
            rater.reward_quantiles = record.reward_quantiles
        return rater
