"""Distil rationales from a judge: explanations to train a generative verifier on.

    litbench data make_rationales --config configs/data/make_rationales.yaml

Reads pairs. For each pair a judge (any model that inspect-ai supports) reads the prompt and both
stories, explains which is better and gives a verdict; the label is hidden from it. The explanation
becomes a rationale, without the verdict, if the verdict agrees with the label. Half of the chosen
stories, drawn by the seed, are shown as Story A.

Writes into `out`: `pairs.parquet`, all pairs with the columns `rationale` (null if the pair has
none) and `rationale_first` (chosen or rejected: the side shown as Story A); `rejected.jsonl`, the
pairs without a rationale, with reasons; and `manifest.json`. Answers are stored in `out/answers`:
a killed run resumes, and no stored answer is requested again.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pyarrow as pa

from litbench.data.chunks import ROW
from litbench.data.ingest import RejectedRows, read_foreign
from litbench.data.records import PAIRS
from litbench.data.sources.verdict_lines import has_verdict_line, split_verdict
from litbench.data.tables import write_table
from litbench.judges.answers import Answer, Sampling, local_folder
from litbench.judges.client import Traffic
from litbench.judges.judge import Judge, JudgeOptions
from litbench.judges.prices import dollars_of
from litbench.raters.interface import estimates_text
from litbench.raters.templates.template import assign_positions
from litbench.runs.config import Runtime, run_program
from litbench.runs.errors import ConfigError, DataError, ModelError
from litbench.runs.outputs import Artifact

COLUMNS = ("rationale", "rationale_first")


@dataclass
class Config:
    """The pairs to explain, and the judge.

    Attributes:
        pairs: pairs table: a file, a folder saved by datasets, or owner/name[@revision][:split].
        out: folder to write.
        model: model name for inspect-ai, see litbench.judges.client.
        template: a template of LitBench, or a file; must ask for an explanation.
        where: SQL condition on the columns of `pairs`; only matching pairs are used.
        seed: seed of the order of the two stories.
        sampling: sampling options, such as temperature and max_tokens.
        traffic: connections, retries and limits.
        prices: file of prices that take precedence over the packaged ones.
        accept_errors: finish even if some pairs got no answer.
        dry_run: estimate the cost without sending requests.
    """

    pairs: str
    out: Path
    model: str
    template: str = "rationale"
    where: str | None = None
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    traffic: Annotated[Traffic, Runtime] = field(default_factory=Traffic)
    prices: Annotated[Path | None, Runtime] = None
    accept_errors: bool = False
    dry_run: Annotated[bool, Runtime] = False


def read(answer: Answer, correct: str) -> tuple[str, str | None]:
    """Read one answer; `correct` is the letter of the chosen story.

    Returns:
        The result (agrees, disagrees, unparsed, refused, cut or error), and the rationale if the
        answer agrees.
    """
    if answer.outcome != "answered":
        return answer.outcome, None
    explanation, label = split_verdict(answer.text)
    # Unparsed: no text before the verdict, or a second verdict within that text.
    if label is None or not explanation or has_verdict_line(explanation):
        return "unparsed", None
    return ("agrees", explanation) if label == correct else ("disagrees", None)


def main(config: Config) -> None:
    """Ask the judge about all pairs and write the rationales."""
    options = JudgeOptions(
        config.model,
        config.sampling,
        config.traffic,
        config.prices,
        config.out / "answers",
        config.template,
    )
    judge = Judge("rationales", options)
    template = judge.template
    if template.answer != "explanation":
        raise ConfigError(
            f"template {template.name} asks for a {template.answer}: use one that asks for an "
            "explanation, such as rationale"
        )
    folder = local_folder(config.model)
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"template": template.path, "pairs": config.pairs},
        # Other models are identified by their name in the config.
        models={} if folder is None else {"model": folder},
    )
    if not config.dry_run and artifact.is_current():
        return
    rejected_rows = RejectedRows()
    pairs = read_foreign(
        config.pairs, PAIRS, rejected_rows=rejected_rows, where=config.where, numbered=True
    )
    if taken := set(COLUMNS) & set(pairs.column_names):
        raise DataError(f"{config.pairs}: it already has the columns {taken}: drop them")
    numbers, pairs = pairs[ROW].to_pylist(), pairs.drop_columns([ROW])
    chosen_first = assign_positions(pairs["pair_id"].to_pylist(), config.seed)
    texts = (pairs[name].to_pylist() for name in ("prompt", "chosen", "rejected"))
    questions = [
        template.render(prompt, *((chosen, rejected) if first else (rejected, chosen)))
        for first, prompt, chosen, rejected in zip(chosen_first, *texts, strict=True)
    ]
    if config.dry_run:
        print(f"dry run: no request is sent\n{estimates_text(judge.estimate_questions(questions))}")
        return
    answers = [turns[-1].answer for turns, _ in judge.ask(questions)]
    errors = [answer.detail for answer in answers if answer.outcome == "error"]
    if errors and not config.accept_errors:
        raise ModelError(
            f"{len(errors)} of {len(answers)} questions got no answer, for example: {errors[0]}: "
            "run the same command again to retry them, or set accept_errors"
        )
    counts = Counter[str]()
    columns: dict[str, list[str | None]] = {name: [] for name in COLUMNS}
    for number, answer, first in zip(numbers, answers, chosen_first, strict=True):
        result, rationale = read(answer, "A" if first else "B")
        counts[result] += 1
        if rationale is None:
            said = answer.text or answer.detail
            rejected_rows.add(config.pairs, number, "rationale", result, said)
        side = "chosen" if first else "rejected"
        columns["rationale"].append(rationale)
        columns["rationale_first"].append(None if rationale is None else side)
    for name, values in columns.items():
        pairs = pairs.append_column(name, pa.array(values, pa.large_string()))
    artifact.write("pairs.parquet", lambda path: write_table(pairs, path))
    artifact.write("rejected.jsonl", rejected_rows.write)
    shown = Counter(columns["rationale_first"])
    prefer_a, prefer_b = shown["chosen"], shown["rejected"]
    agrees, decided = counts["agrees"], counts["agrees"] + counts["disagrees"]
    cost = dollars_of(answers, options.price())
    artifact.counts = {
        "pairs": pairs.num_rows,
        "answers": dict(sorted(counts.items())),
        "rationales": {"A": prefer_a, "B": prefer_b},
        "cost_usd": cost,
        "models": sorted({answer.model for answer in answers if answer.model is not None}),
        "rejected_rows": rejected_rows.counts(),
    }
    artifact.finish()
    print(f"{config.out / 'pairs.parquet'}: {pairs.num_rows:,} pairs, {agrees:,} with a rationale")
    print(f"  the judge agrees with the labels on {agrees:,} of {decided:,} pairs")
    if max(prefer_a, prefer_b) > 2 * min(prefer_a, prefer_b):
        print(
            f"  warning: {prefer_a:,} rationales prefer A and {prefer_b:,} prefer B: a model "
            "trained on them may learn the letter"
        )
    if cost is not None:
        print(f"  ${cost:.2f}")
    print(rejected_rows.summary(), end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
