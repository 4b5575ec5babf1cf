"""Generate n stories for every prompt with a local or hosted model.

    python eval/generate.py --config configs/eval/sample_generate.yaml

Reads prompts from a table of stories, pairs or prompts, or from a list in the config. Writes
`stories.parquet` (a stories table whose `source` is the model, with the column `sample`, from 0),
`rejected.jsonl` (refusals, truncated stories, errors) and `manifest.json` into `out`. Answers are
stored in `out/answers` as they arrive: a resumed run, or one with a larger `n`, requests only
missing stories. `--dry_run true` estimates calls, tokens and cost without sending requests.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyarrow as pa

from litbench.config import Runtime, run_program
from litbench.errors import ConfigError, DataError, ModelError
from litbench.ingest import ROW, RejectedRows, stream_foreign
from litbench.judges.client import Budget, Traffic, ask, check_limit, estimate_tokens, is_error
from litbench.judges.prices import Price, dollars_of, load_prices, price_of
from litbench.judges.store import Answer, AnswerStore, Sampling, keys_of, local_folder
from litbench.records import STORIES, Column, Schema, empty_columns
from litbench.store import Artifact
from litbench.tables import write_table
from litbench.text import count_words, digest, prompt_key

PROMPTS = Schema(
    "prompts",
    (
        Column("prompt", "text", "the prompt's text", required=True),
        Column("prompt_id", "text", "its name in the source"),
    ),
    key=("prompt", "prompt_id"),
)

TASK = """\
Write a short story for the prompt below, for readers who come to be moved, surprised or amused, \
and who stop reading when they are not.

The story stands alone: it begins, something changes, and it ends. Let people want something, show \
what they do about it, and choose details that only this story could have. Leave out what a reader \
would guess.

Length: {words} words.

Give the story's text and nothing else: no title, no heading, no remark before or after it.

Prompt:
{prompt}
"""


@dataclass
class Config:
    """Configuration of `generate.py`.

    Attributes:
        model: any model name of inspect-ai, such as openai/gpt-4.1-2025-04-14, hf/FOLDER for a
            local model, or openai-api/SERVICE/MODEL; see litbench.judges.client.
        prompts: table with a column `prompt` (and `prompt_id`), or a list of prompts.
        out: output folder.
        n: stories per prompt.
        where: SQL condition on the table's rows, such as "split = 'test'".
        most_prompts: maximum number of prompts, drawn by a hash; null for all.
        task: the instruction to the model; {prompt} and {words} are replaced.
        words: minimum and maximum length to ask for.
        sampling: sampling parameters; leave out `seed` if `n` > 1, or all n stories are the same.
        traffic: rate limits and budget; `max_cost_usd` limits dollars.
        prices: YAML file of prices in addition to those of LitBench.
        accept_errors: continue without the stories whose requests failed.
        dry_run: only estimate calls, tokens and cost.
    """

    model: str
    prompts: str | list[str]
    out: Path
    n: int = 16
    where: str | None = None
    most_prompts: int | None = None
    task: str = TASK
    words: tuple[int, int] = (300, 800)
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=1.0, max_tokens=2048))
    traffic: Annotated[Traffic, Runtime] = field(default_factory=Traffic)
    prices: Annotated[Path | None, Runtime] = None
    accept_errors: bool = False
    dry_run: Annotated[bool, Runtime] = False


class Prompt(NamedTuple):
    """A prompt and its row number in the source, from 1."""

    row: int
    prompt_id: str
    text: str


def check(config: Config) -> None:
    """Check the config before reading data or sending requests."""
    if config.n < 1 or (config.most_prompts is not None and config.most_prompts < 1):
        raise ConfigError(
            f"n is {config.n} and most_prompts is {config.most_prompts}: give at least 1"
        )
    sampling = config.sampling
    if config.n > 1 and (sampling.temperature == 0 or sampling.seed is not None):
        raise ConfigError(
            f"n is {config.n}, but with temperature 0 or a seed all stories are the same: change "
            "sampling, or set n to 1"
        )
    if "{prompt}" not in config.task:
        raise ConfigError("task does not contain {prompt}: add it where the prompt belongs")
    if not 0 < config.words[0] <= config.words[1]:
        raise ConfigError(f"words is {list(config.words)}: give minimum and maximum length")


def read_prompts(config: Config, rejected_rows: RejectedRows) -> list[Prompt]:
    """Read the distinct prompts, sorted by id."""
    rows: list[tuple[int, str, str | None]] = []
    if isinstance(config.prompts, list):
        rows = [(row, text, None) for row, text in enumerate(config.prompts, 1)]
    else:
        for table in stream_foreign(
            config.prompts, PROMPTS, rejected_rows=rejected_rows, where=config.where, numbered=True
        ):
            columns = (table[name].to_pylist() for name in (ROW, "prompt", "prompt_id"))
            rows += zip(*columns, strict=True)
    # Computed once per distinct prompt: keys are slow, and pairs tables repeat prompts.
    keys = {text: prompt_key(text) for text in {text for _, text, _ in rows} if text.strip()}
    prompts: dict[str, Prompt] = {}
    for row, text, name in rows:
        if text in keys:
            prompts.setdefault(keys[text], Prompt(row, name or keys[text], text))
    if not prompts:
        raise DataError(f"{config.prompts}: no prompt has a text: check the table and `where`")
    drawn = sorted(prompts.values(), key=lambda prompt: digest(0, prompt.text))
    return sorted(drawn[: config.most_prompts], key=lambda prompt: (prompt.prompt_id, prompt.text))


def make_question(task: str, prompt: str, words: tuple[int, int]) -> str:
    """Replace {prompt} and {words} in one pass, so that braces in a prompt are kept."""
    low, high = words
    values = {"prompt": prompt, "words": f"{low:,}" if low == high else f"{low:,} to {high:,}"}
    return re.sub(r"\{(prompt|words)\}", lambda match: values[match[1]], task)


def print_estimate(config: Config, questions: list[str], price: Price | None) -> None:
    """Print calls, tokens and cost of the questions without stored answers."""
    keys = keys_of(config.model, questions, config.sampling, range(config.n))
    with AnswerStore(config.out / "answers", read_only=True) as store:
        unanswered = [
            question
            for question, key in zip(questions * config.n, keys, strict=True)
            if key not in store
        ]
    read, calls = sum(map(estimate_tokens, unanswered)), len(unanswered)
    # English has about four tokens per three words.
    written = calls * sum(config.words) // 2 * 4 // 3
    most = calls * (config.sampling.max_tokens or 0)
    print(
        f"dry run: {len(questions):,} prompts, {config.n} stories each; {calls:,} calls of "
        f"{config.model} ({len(keys) - calls:,} answers are stored)\n"
        f"  about {read:,} input tokens (one per 4 bytes), {written:,} output tokens"
        + (f", at most {most:,}" if most else "")
    )
    if price is None:
        print("  the price of this model is unknown: set prices")
    else:
        print(
            f"  about ${price.of(read, written):.2f} for stories of the requested length"
            + (f", at most ${price.of(read, most):.2f}" if most else "")
        )


def ask_all(config: Config, questions: list[str], price: Price | None) -> dict[str, Answer]:
    """Request all samples of every prompt; returns answers by key, ordered by sample, then prompt.

    Raises:
        ModelError: some requests failed, and `accept_errors` is false.
    """
    samples = range(config.n)
    keys = keys_of(config.model, questions, config.sampling, samples)
    with AnswerStore(config.out / "answers") as store:
        answers = ask(
            config.model,
            questions,
            store,
            config.sampling,
            config.traffic,
            sample=samples,
            about="stories",
            budget=Budget(config.traffic, price),
        )
    failed = [answer for answer in answers if is_error(answer)]
    if failed and not config.accept_errors:
        raise ModelError(
            f"{len(failed)} of {len(answers)} stories failed, for example: {failed[0].detail}: "
            "run the same command again to retry only these, or set accept_errors"
        )
    return dict(zip(keys, answers, strict=True))


def make_stories(
    config: Config, prompts: list[Prompt], answers: dict[str, Answer], rejected_rows: RejectedRows
) -> pa.Table:
    """Build the stories table, with `sample`; answers without a story become rejected rows."""
    source = config.prompts if isinstance(config.prompts, str) else "prompts"
    rows = []
    for index, (key, answer) in enumerate(answers.items()):
        sample, number = divmod(index, len(prompts))
        prompt, text = prompts[number], answer.text.strip()
        if answer.outcome != "answered" or not text:
            reason = "empty" if answer.outcome == "answered" else answer.outcome
            rejected_rows.add(source, prompt.row, "text", reason, answer.detail or answer.text)
            continue
        rows.append(
            {
                "story_id": digest("story", key),
                "prompt_id": prompt.prompt_id,
                "prompt": prompt.text,
                "text": text,
                "source": config.model,
                "sample": sample,
            }
        )
    if not rows:
        raise DataError(
            f"{config.model}: none of {len(answers)} answers is a story: {rejected_rows.counts()}: "
            f"look into {config.out / 'answers'}"
        )
    rows.sort(key=lambda row: (row["prompt_id"], row["prompt"], row["sample"]))
    types = {name: column.type for name, column in empty_columns(STORIES, 0).items()}
    table = pa.Table.from_pylist(rows, pa.schema({**types, "sample": pa.int64()}))
    index = table.column_names.index("n_words")
    return table.set_column(index, "n_words", count_words(table["text"].combine_chunks()))


def main(config: Config) -> None:
    """Read the prompts, generate stories, and write them."""
    check(config)
    price = price_of(config.model, load_prices(config.prices))
    check_limit(config.traffic, price, config.sampling)
    folder = local_folder(config.model)
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"prompts": config.prompts} if isinstance(config.prompts, str) else {},
        # A hosted model is identified by its name.
        models={} if folder is None else {"model": folder},
    )
    if not config.dry_run and artifact.is_current():
        return
    rejected_rows = RejectedRows()
    prompts = read_prompts(config, rejected_rows)
    questions = [make_question(config.task, prompt.text, config.words) for prompt in prompts]
    if config.dry_run:
        print_estimate(config, questions, price)
        return
    answers = ask_all(config, questions, price)
    stories = make_stories(config, prompts, answers, rejected_rows)
    succeeded = [answer for answer in answers.values() if not is_error(answer)]
    by_prompt = Counter(stories["prompt_id"].to_pylist())
    texts = zip(stories["prompt_id"].to_pylist(), stories["text"].to_pylist(), strict=True)
    artifact.write("stories.parquet", partial(write_table, stories))
    artifact.write("rejected.jsonl", rejected_rows.write)
    counts: dict[str, Any] = {
        "stories": stories.num_rows,
        "distinct": len(set(texts)),
        "prompts": len(by_prompt),
        "fewest_of_a_prompt": min(by_prompt.values()),
        "answers": dict(sorted(Counter(answer.outcome for answer in answers.values()).items())),
        "input_tokens": sum(answer.input_tokens or 0 for answer in succeeded),
        "output_tokens": sum(answer.output_tokens or 0 for answer in succeeded),
        "cost_usd": dollars_of(answers.values(), price),
        "models": sorted({answer.model for answer in succeeded if answer.model is not None}),
        "asked_prompts": len(prompts),
        "not_selected": rejected_rows.not_selected,
        "rejected_rows": rejected_rows.counts(),
    }
    artifact.counts = counts
    artifact.finish()
    cost = "" if counts["cost_usd"] is None else f", ${counts['cost_usd']:.2f}"
    print(
        f"{config.out / 'stories.parquet'}: {counts['stories']:,} stories for "
        f"{counts['prompts']:,} prompts, {counts['distinct']:,} of them distinct\n"
        f"  {counts['input_tokens']:,} tokens read, {counts['output_tokens']:,} written{cost}"
    )
    print(rejected_rows.summary(), end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
