"""`inspect eval litbench/preference -T pairs=FILE --model NAME`: judges as an inspect-ai task.

Combines inspect-ai's retries, logs and viewer with LitBench's templates and verdict parser. In
contrast, the kind `judge` of eval/benchmark.py stores every answer and limits the cost.
"""

from typing import Any

import pyarrow.compute as pc
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, accuracy, scorer, stderr
from inspect_ai.solver import TaskState, generate

from litbench.raters import blind
from litbench.sources.pairs import read_any_pairs
from litbench.templates import AnswerForm, load_template, read_answer


@scorer(metrics=[accuracy(), stderr(cluster="prompt_id")])  # type: ignore[untyped-decorator]
def verdict(form: AnswerForm) -> Scorer:
    """Score the verdict of an answer; a tie or a missing verdict counts one half."""

    async def score(state: TaskState, target: Any) -> Score:
        reading = read_answer(state.output.completion, form)
        value: str | float = 0.5
        if reading.verdict in ("A", "B"):
            value = CORRECT if reading.verdict == target.text else INCORRECT
        return Score(value=value, answer=reading.verdict, explanation=reading.explanation)

    return score


@task  # type: ignore[untyped-decorator]
def preference(
    pairs: str, template: str = "alternative", answer: str | None = None, split: str | None = None
) -> Task:
    """Ask which of two stories is better, in both orders.

    Args:
        pairs: path of a pairs table.
        template: a template family or file.
        answer: answer form for a template family; explanation when null.
        split: use only the pairs of this split.
    """
    table = read_any_pairs(pairs)
    if split is not None:
        table = table.filter(pc.field("split") == split)
    loaded = load_template(template, answer)  # type: ignore[arg-type]
    samples = []
    for row, pair, is_first in zip(table.to_pylist(), *blind(table), strict=True):
        for swapped, stories in enumerate([(pair.first, pair.second), (pair.second, pair.first)]):
            samples.append(
                Sample(
                    id=f"{row['pair_id']}-{swapped + 1}",
                    input=loaded.render(pair.prompt, *stories),
                    target="B" if is_first == swapped else "A",
                    metadata={"prompt_id": row["prompt_id"]},
                )
            )
    return Task(dataset=MemoryDataset(samples), solver=generate(), scorer=verdict(loaded.answer))
