"""Logs of judged pairs for `inspect view`, written after all answers have arrived."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inspect_ai import log as logs
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
    asked: Sequence[Sequence[tuple[str, Answer]]],
    judged: Sequence[Sequence[Judgement]],
    chosen_first: Sequence[bool],
) -> None:
    """Write one log, with one sample per pair; its accuracy is the agreement on these pairs.

    `asked` holds the question and the answer of both orders of every pair, `judged` the judgements
    read from them, `chosen_first` whether the first story of a pair is the chosen one.
    """
    samples = []
    for pair, (both, judgements) in enumerate(zip(asked, judged, strict=True)):
        target = "first" if chosen_first[pair] else "second"
        # Ties and orders without a verdict count one half, as in the leaderboard.
        credit = [
            float(judgement.prefers == target) if judgement.prefers in ("first", "second") else 0.5
            for judgement in judgements
        ]
        messages: list[Any] = []
        for question, answer in both:
            messages.append(ChatMessageUser(content=question))
            messages.append(ChatMessageAssistant(content=answer.text or answer.detail or ""))
        verdicts = ", ".join(f"{one.prefers} ({one.first_shown} as A)" for one in judgements)
        samples.append(
            logs.EvalSample(
                id=pair + 1,
                epoch=1,
                input=both[0][0],
                target=target,
                messages=messages,
                output=ModelOutput.from_content(model, both[-1][1].text),
                scores={_SCORER: Score(value=sum(credit) / len(credit), answer=verdicts)},
            )
        )
    scores = [SampleScore(score=sample.scores[_SCORER]) for sample in samples if sample.scores]
    metrics = {
        name: logs.EvalMetric(name=name, value=metric(scores))
        for name, metric in (("accuracy", accuracy()), ("stderr", stderr()))
    }
    content = logs.EvalLog(
        status="success",
        eval=logs.EvalSpec(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            task=task,
            dataset=logs.EvalDataset(name="pairs", samples=len(samples)),
            model=model,
            config=logs.EvalConfig(),
            metadata=dict(metadata),
        ),
        results=logs.EvalResults(
            total_samples=len(samples),
            completed_samples=len(samples),
            scores=[logs.EvalScore(name=_SCORER, scorer=_SCORER, metrics=metrics)],
        ),
        samples=samples,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        logs.write_eval_log(content, str(path))
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}; the answers are stored") from error
