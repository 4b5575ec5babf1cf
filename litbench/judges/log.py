"""Logs of judged pairs and sessions for `inspect view`, written after all answers arrived."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from litbench.judges.client import chat_messages
from litbench.runs.errors import DataError


@dataclass(frozen=True)
class LogSample:
    """One sample of a log.

    Attributes:
        name: unique within the log.
        messages: (role, text) pairs, with the roles system, user and assistant.
        scores: value and explanation by scorer.
        target: the right answer, if there is one.
    """

    name: str | int
    messages: Sequence[tuple[str, str]]
    scores: Mapping[str, tuple[float, str]]
    target: str = ""


def write_log(
    path: Path,
    samples: Sequence[LogSample],
    *,
    task: str,
    model: str,
    metadata: Mapping[str, Any],
    metric: Literal["accuracy", "mean"],
) -> None:
    """Write one log; it has the `metric` and the standard error of every scorer.

    Without inspect-ai, which stored answers do not need, nothing is written.
    """
    try:
        from inspect_ai import log as logs  # noqa: PLC0415
        from inspect_ai.model import ModelOutput  # noqa: PLC0415
        from inspect_ai.scorer import Score  # noqa: PLC0415
    except ImportError:
        return
    metrics = [{"name": f"inspect_ai/{name}"} for name in (metric, "stderr")]
    names = dict.fromkeys(name for sample in samples for name in sample.scores)
    content = logs.EvalLog(
        status="success",
        eval=logs.EvalSpec(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            task=task,
            # The viewer shows only the latest log of a task_id.
            task_id=path.stem,
            dataset=logs.EvalDataset(name=task, samples=len(samples)),
            model=model,
            config=logs.EvalConfig(),
            metadata=dict(metadata),
            scorers=[{"name": name, "metrics": metrics} for name in names],
        ),
        samples=[
            logs.EvalSample(
                id=sample.name,
                epoch=1,
                input=sample.messages[0][1],
                target=sample.target,
                messages=chat_messages(sample.messages),
                output=ModelOutput.from_content(model, sample.messages[-1][1]),
                scores={
                    name: Score(value=value, answer=explanation)
                    for name, (value, explanation) in sample.scores.items()
                },
            )
            for sample in samples
        ],
    )
    logs.recompute_metrics(content)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # In a thread of its own: inside a running event loop, inspect-ai would run the loop's other
        # tasks while it writes.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(logs.write_eval_log, content, str(path)).result()
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}; the answers are stored") from error
