"""Logs of judged pairs for `inspect view`, written when the answers are there.

A sample is a pair: both questions and answers, and the credit that the verdicts earn, so that
accuracy is the agreement of the log's pairs.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalLog,
    EvalMetric,
    EvalResults,
    EvalSample,
    EvalScore,
    EvalSpec,
    write_eval_log,
)
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelOutput
from inspect_ai.scorer import SampleScore, Score, accuracy, stderr

from litbench.errors import DataError
from litbench.judges.store import Answer
from litbench.raters import Judgement

_SCORER = "preference"


def write_log(
    path: Path,
    *,
    task: str,
    model: str,
    metadata: Mapping[str, Any],
    shown: Sequence[Sequence[tuple[str, Answer]]],
    judged: Sequence[Sequence[Judgement]],
    chosen_first: Sequence[bool],
) -> None:
    """Write one log, with accuracy and its standard error.

    Args:
        path: a file `*.eval`; replaced when it is there.
        task: the rater's name.
        model: as inspect-ai names it.
        metadata: of the evaluation.
        shown: question and answer of both orders of every pair.
        judged: what they were read as.
        chosen_first: whether the chosen story of a pair is its first one.

    Raises:
        DataError: the file cannot be written.
    """
    samples = []
    for number, (both, judgements, is_first) in enumerate(
        zip(shown, judged, chosen_first, strict=True), 1
    ):
        target = "first" if is_first else "second"
        # Ties and orders without a verdict count one half, as in the leaderboard.
        credit = [
            float(one.prefers == target) if one.prefers in ("first", "second") else 0.5
            for one in judgements
        ]
        score = Score(
            value=sum(credit) / len(credit),
            answer=", ".join(f"{one.prefers} ({one.first_shown} as A)" for one in judgements),
        )
        messages: list[Any] = []
        for question, answer in both:
            messages.append(ChatMessageUser(content=question))
            messages.append(ChatMessageAssistant(content=answer.text or answer.detail or ""))
        samples.append(
            EvalSample(
                id=number,
                epoch=1,
                input=both[0][0],
                target=target,
                messages=messages,
                output=ModelOutput.from_content(model, both[-1][1].text),
                scores={_SCORER: score},
            )
        )
    scores = [SampleScore(score=sample.scores[_SCORER]) for sample in samples if sample.scores]
    metrics = {
        name: EvalMetric(name=name, value=metric(scores))
        for name, metric in (("accuracy", accuracy()), ("stderr", stderr()))
    }
    log = EvalLog(
        status="success",
        eval=EvalSpec(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            task=task,
            dataset=EvalDataset(name="pairs", samples=len(samples)),
            model=model,
            config=EvalConfig(),
            metadata=dict(metadata),
        ),
        results=EvalResults(
            total_samples=len(samples),
            completed_samples=len(samples),
            scores=[EvalScore(name=_SCORER, scorer=_SCORER, metrics=metrics)],
        ),
        samples=samples,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_eval_log(log, str(path))
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error}; the answers are kept: free space and run the same "
            "command again"
        ) from error
