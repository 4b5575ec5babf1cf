"""Jobs that train and judge out of fold: no pair is judged by a rater trained on its prompt.

Length symmetry over a whole set tilts every training fold against its test fold: if the longer
story wins more often in one, it loses more often in the other. So the training pairs of a fold are
balanced apart, of all pairs before symmetry if these are given, and every pair of the set is judged
once per repeat.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import ibis
import numpy as np
import pyarrow as pa

from litbench.data.curation.pairing import breaks_symmetry
from litbench.data.curation.rules import buckets_for
from litbench.data.curation.splits import assign_folds
from litbench.data.records import connected_prompts
from litbench.data.sources.evaluation_pairs import EvaluationPairs
from litbench.data.text import digest
from litbench.evaluation.loop import Job
from litbench.metrics.leaderboard import longer_is_coin
from litbench.raters.entries import RaterSpec
from litbench.runs.errors import ConfigError

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
    """Return a job per fold over prompts: train on the other folds, judge this one.

    Prompts that share a `prompt_id` or a story are in the same fold. The training pairs are
    headline pairs; if these have length symmetry, pairs before symmetry, balanced again.

    Args:
        spec: entry of a rater that is trained.
        label: start of the jobs' labels.
        pairs: the pairs; all of them are judged.
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
    is_symmetric = longer_is_coin(pairs.headline)
    trainable = pairs.headline
    if is_symmetric and pairs.before_symmetry is not None:
        trainable = pairs.before_symmetry
    prompt_of = dict(zip(pairs.all["pair_id"].to_pylist(), prompts, strict=True))
    training_prompts = np.array([prompt_of[name] for name in trainable["pair_id"].to_pylist()])
    fold_of = assign_folds(prompts.tolist(), folds, seed)
    judged = range(folds) if judged is None else judged
    tests, trainings = {}, {}
    for fold in judged:
        held_out = [prompt for prompt, number in fold_of.items() if number == fold]
        tests[fold] = np.flatnonzero(np.isin(prompts, held_out))
        train = np.flatnonzero(~np.isin(training_prompts, held_out))
        if share < 1:
            names = sorted(set(training_prompts[train].tolist()), key=lambda key: digest(seed, key))
            drawn = names[: max(round(share * len(names)), 1)]
            train = np.flatnonzero(np.isin(training_prompts, drawn))
        trainings[fold] = train
    if is_symmetric:
        trainings = balance_lengths(trainable, trainings, seed)
    jobs = []
    for fold, train in trainings.items():
        test = tests[fold]
        if len(test) and len(train) < 2:
            raise ConfigError(
                f"{label}: fold {fold} has {len(test)} pairs to judge and {len(train)} to train "
                "on: set fewer folds, or use more pairs"
            )
        job = Job(
            spec,
            f"{label}-repeat{repeat}-fold{fold}",
            partial(pairs.all.take, pa.array(test)),
            [data, test.tolist(), train.tolist()],
            train=partial(trainable.take, pa.array(train)),
            seed=seed,
            fold=f"{repeat}/{fold}",
            work=(len(test) + len(train)) * _COST.get(spec.kind, 1),
            in_folds=len(judged) > 1,
        )
        # In a small set, a fold may have no pairs.
        jobs += [job] if len(test) else []
    return jobs


def balance_lengths(
    pairs: pa.Table, trainings: Mapping[int, np.ndarray], seed: int
) -> dict[int, np.ndarray]:
    """Prune each fold's training pairs by length symmetry, as `make_pairs` prunes a split.

    Args:
        pairs: the pairs.
        trainings: by fold, the rows of its training pairs.
        seed: seed of the pruning.

    Returns:
        By fold, the remaining rows.
    """
    columns = ("pair_id", "chosen_n_words", "rejected_n_words")
    numbers = {fold: np.full(len(rows), fold) for fold, rows in trainings.items()}
    fold, row = (np.concatenate([*arrays.values()]) for arrays in (numbers, trainings))
    table = pairs.select(columns).take(pa.array(row)).append_column("row", pa.array(row))
    ids = zip(fold.tolist(), table["pair_id"].to_pylist(), strict=True)
    names = pa.array([f"{number}|{name}" for number, name in ids])
    table = table.set_column(0, "pair_id", names).append_column("split", pa.array(fold))
    buckets = buckets_for(min(map(len, trainings.values())))
    marked = breaks_symmetry(ibis.memtable(table), buckets, seed)
    left = ibis.duckdb.connect().to_pyarrow(marked.filter(~marked.removed).select("split", "row"))
    of_fold = left["split"].to_numpy()
    return {key: np.sort(left["row"].to_numpy()[of_fold == key]) for key in trainings}
