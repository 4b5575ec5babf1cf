"""Training a Bradley-Terry reward model (paper 4.1, A.9).

Loss of a pair: -log sigmoid(x) with x = reward of chosen - reward of rejected - margin. With label
smoothing s it is (1 - s) times that plus s times -log sigmoid(-x). A step's loss is the mean over
its pairs, by their weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from litbench.config import build
from litbench.errors import DataError
from litbench.models.backbone import Pooling, collate, is_packed, rewards_of
from litbench.models.folder import prompts_of
from litbench.models.layout import Form, Layout
from litbench.models.reward import RewardModel
from litbench.models.tokenised import TokenisedPairs, make_tokenised
from litbench.models.training import (
    TrainingOptions,
    is_main_process,
    kept_adapter,
    load_to_train,
    load_trained,
    tokenise_parts,
    train,
)
from litbench.raters import training_prompts_of
from litbench.records import numbers_of_pairs, pair_weights

_LN2 = float(np.log(2))


@dataclass(kw_only=True)
class RewardTraining(TrainingOptions):
    """How a reward model is trained.

    Attributes:
        form: `plain`: prompt, blank line, story; `chat`: the backbone's own chat template; or
            `story`: the story alone.
        center_rewards_coefficient: weight of (r_chosen + r_rejected)^2, which keeps the free
            offset near zero (Eisenstein et al., 2023); null for none.
        margin: by how much the chosen story should lead: `column`, the pairs' own where they have
            it; `votes`, the logarithm of the ratio of their votes; or `none`.
    """

    form: Form = "plain"
    center_rewards_coefficient: float | None = None
    margin: Literal["column", "votes", "none"] = "column"


@dataclass
class RewardObjective:
    """Bradley-Terry on pairs of sequences; see litbench.models.training.Objective."""

    pooling: Pooling
    padded: bool
    center: float | None = None
    label_smoothing: float = 0.0

    def batch(self, data: TokenisedPairs, rows: np.ndarray) -> dict[str, Any]:
        """The chosen stories of these pairs, then the rejected ones."""
        import torch  # noqa: PLC0415

        both = [data.sequences(int(row)) for row in rows]
        sequences = [pair[0] for pair in both] + [pair[1] for pair in both]
        numbers = {
            name: torch.from_numpy(data.column(name)[rows].astype(np.float32))
            for name in ("weight", "margin")
        }
        return {
            "inputs": collate(sequences, packed=not self.padded, pooling=self.pooling),
            **numbers,
        }

    def normaliser(self, data: TokenisedPairs, rows: np.ndarray) -> float:
        """Sum of the pairs' weights."""
        return float(data.column("weight")[rows].sum())

    def loss(self, model: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
        """Summed weighted loss, and 1, 1/2 or 0 for each pair."""
        from torch.nn.functional import logsigmoid  # noqa: PLC0415

        rewards = rewards_of(model, batch["inputs"], self.pooling)[:, 0]
        chosen, rejected = rewards.chunk(2)
        lead, smooth = chosen - rejected, self.label_smoothing
        beyond = lead - batch["margin"]
        loss = -((1 - smooth) * logsigmoid(beyond) + smooth * logsigmoid(-beyond))
        if self.center is not None:
            loss = loss + self.center * (chosen + rejected) ** 2
        right = (lead.detach().sign() + 1) / 2
        return (loss * batch["weight"]).sum(), right


def _log_vote_ratio(pairs: pa.Table) -> np.ndarray:
    sides = [pairs["chosen_score"], pairs["rejected_score"]]
    if any(side.null_count for side in sides):
        raise DataError(
            "margin: votes needs the votes of both stories, and columns chosen_score and "
            "rejected_score have nulls: take pairs with votes, or another value"
        )
    # A story starts with its author's own vote; what fell below counts as that.
    chosen, rejected = (np.maximum(side.to_numpy().astype(np.float64), 1.0) for side in sides)
    ratio: np.ndarray = np.log(chosen / rejected)
    return ratio


def margins(pairs: pa.Table, options: RewardTraining) -> np.ndarray:
    """Margin of every pair; float64, shape (n,).

    Raises:
        DataError: a column that the options ask for has nulls, or values that are not finite.
    """
    if options.margin == "column":
        return numbers_of_pairs(pairs, "margin", 0.0)
    if options.margin == "votes":
        return _log_vote_ratio(pairs)
    return np.zeros(pairs.num_rows)


def tokenise(
    pairs: pa.Table, tokenizer: Any, layout: Layout, options: RewardTraining
) -> TokenisedPairs:
    """Turn pairs into token ids.

    Raises:
        DataError: pairs that do not fit where `overlong` is error, or columns as
            `margins` says.
    """
    weight = pair_weights(pairs)
    margin = margins(pairs, options)
    prompts = pairs["prompt"].to_pylist()
    sides = [
        layout.encode(tokenizer, prompts, pairs[side].to_pylist())
        for side in ("chosen", "rejected")
    ]
    rows: list[dict[str, Any]] = []
    rejected_rows: list[dict[str, str]] = []
    shortened = 0
    for place, pair_id in enumerate(pairs["pair_id"].to_pylist()):
        cut = any(side.cut[place] for side in sides)
        ids = [side.ids[place] for side in sides]
        reason = options.reason_to_drop(pair_id, layout.max_length) if cut else None
        if reason is None and ids[0] == ids[1]:
            # They would get equal rewards whatever is learned.
            reason = "both stories are the same tokens" + (" once cut" if cut else "")
        if reason:
            rejected_rows.append({"pair_id": pair_id, "reason": reason})
            continue
        shortened += cut
        rows.append(
            {
                "pair_id": pair_id,
                "ids_0": ids[0],
                "ids_1": ids[1],
                "weight": weight[place],
                "margin": margin[place],
                "answer": 0,
                "label_at": 0,
            }
        )
    return make_tokenised(rows, rejected_rows, shortened)


def train_reward_model(
    pairs: pa.Table,
    options: RewardTraining,
    folder: Path,
    name: str = "reward",
    *,
    prepare_only: bool = False,
) -> RewardModel | None:
    """Train a reward model on preference pairs.

    Args:
        pairs: table by the schema PAIRS; all its rows are used.
        options: see RewardTraining.
        folder: for checkpoints; training goes on from the last one there.
        name: the rater's name.
        prepare_only: tokenise into the cache and stop, before a launch.

    Returns:
        The trained model, not saved; its record holds options, counts and the curve. None on every
        process but the first, and when only preparing.

    Raises:
        ConfigError: options that do not fit together.
        DataError: no pairs, or columns that the options need have nulls.
        ModelError: the backbone cannot be loaded, or the loss is no number or does not move.
        MissingExtraError: a library is not installed.
    """
    model, tokenizer = load_to_train(pairs, options, "reward")
    layout = Layout.infer(
        tokenizer, model, options.max_length, options.max_prompt_tokens, options.form
    )
    how = [options.overlong, options.margin]
    data, validation = tokenise_parts(
        pairs, tokenizer, options, ["reward", layout, how],
        lambda part: tokenise(part, tokenizer, layout, options),
    )  # fmt: skip
    if prepare_only:
        if is_main_process():
            print(f"cached: to train on {data}; to validate on {validation}")
        return None
    trained = train(
        RewardObjective(
            layout.pooling, not is_packed(model), options.center_rewards_coefficient,
            options.label_smoothing,
        ),
        model, tokenizer, options, data, validation, folder,
        head="reward", chance_loss=_LN2,
    )  # fmt: skip
    if not is_main_process():
        return None
    # Two models side by side may not fit.
    del model
    model, tokenizer = load_trained(trained.folder, options, "reward")
    return RewardModel(
        model, tokenizer, layout, name=name,
        prompts=training_prompts_of(pairs) | prompts_of(options.backbone),
        training=trained.record, adapter=kept_adapter(options, trained.folder),
    )  # fmt: skip


def train_rater(
    name: str,
    options: Mapping[str, Any],
    pairs: pa.Table,
    folder: Path,
    seed: int,
    where: str,
) -> RewardModel:
    """Train the kind `reward` inside cross-validation; the fold's seed joins the config's."""
    ready = build(RewardTraining, {"seed": seed, **options}, where)
    model = train_reward_model(pairs, ready, folder, name)
    assert model is not None
    return model
