"""Jobs that train and judge out of fold: no pair is judged by a rater trained on its prompt."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.curation.splits import assign_folds
from litbench.entries import RaterSpec
from litbench.errors import ConfigError
from litbench.evaluation.loop import Job
from litbench.records import connected_prompts
from litbench.sources.evaluation_pairs import EvaluationPairs
from litbench.text import digest

# Time per pair relative to features, for the progress bar; measured with MiniLM on two cores.
_COST = {"reward": 500, "generative": 500}


def fold_jobs(
    spec: RaterSpec,
    label: str,
    pairs: EvaluationPairs,
    data: Any,
    *,
    folds: int,
    judged: Sequence[int] | None = None,
    seed: int = 0,
    repeat: int = 0,
    share: float = 1.0,
) -> list[Job]:
    """Return a job per fold over prompts: train on the other folds' headline pairs, judge this one.

    Prompts that share a `prompt_id` or a story are in the same fold.

    Args:
        spec: entry of a rater that is trained.
        label: start of the jobs' labels.
        pairs: the pairs; all of them are judged, the headline pairs are trained on.
        data: plain values that change whenever the pairs change.
        folds: number of folds.
        judged: the folds that are judged; None for all.
        seed: seed of the folds and of training.
        repeat: number of the repeat, for the verdicts' `fold`.
        share: share of the training prompts to train on, drawn by a hash.

    Raises:
        ConfigError: a fold has fewer than two pairs to train on.
    """
    prompts = np.array(connected_prompts(pairs.all))
    prompt_of = dict(zip(pairs.all["pair_id"].to_pylist(), prompts, strict=True))
    training_prompts = np.array([prompt_of[name] for name in pairs.headline["pair_id"].to_pylist()])
    fold_of = assign_folds(prompts.tolist(), folds, seed)
    jobs = []
    for fold in range(folds) if judged is None else judged:
        held_out = [prompt for prompt, of in fold_of.items() if of == fold]
        own = np.flatnonzero(np.isin(prompts, held_out))
        train = np.flatnonzero(~np.isin(training_prompts, held_out))
        if share < 1:
            known = sorted(set(training_prompts[train].tolist()), key=lambda one: digest(seed, one))
            drawn = known[: max(round(share * len(known)), 1)]
            train = np.flatnonzero(np.isin(training_prompts, drawn))
        if len(own) and len(train) < 2:
            raise ConfigError(
                f"{label}: fold {fold} has {len(own)} pairs to judge and {len(train)} to train on: "
                "set fewer folds, or use more pairs"
            )
        job = Job(
            spec,
            f"{label}-repeat{repeat}-fold{fold}",
            partial(pairs.all.take, pa.array(own)),
            [data, own.tolist(), train.tolist()],
            train=partial(pairs.headline.take, pa.array(train)),
            seed=seed,
            fold=f"{repeat}/{fold}",
            work=(len(own) + len(train)) * _COST.get(spec.kind, 1),
        )
        # In a small set, a fold may have no pairs.
        jobs += [job] if len(own) else []
    return jobs
