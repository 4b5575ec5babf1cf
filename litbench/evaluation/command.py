"""The commands `litbench judge` and `litbench score`, and the keys of a command with one rater."""

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from litbench.data.columns import (
    GUESS,
    PairColumns,
    find_columns,
    first_rows,
    given_columns,
    holds_pairs,
)
from litbench.data.sources.items import answers_column
from litbench.evaluation.benchmark import Benchmark, run_benchmark
from litbench.evaluation.loop import check_judged
from litbench.evaluation.report.page import render_report
from litbench.evaluation.scoring import (
    ScoringJob,
    finite_rewards,
    load_scorer,
    score_files,
    scorer_spec,
)
from litbench.evaluation.until_decided import UntilKeys, until_keys
from litbench.judges.client import JudgeKeys
from litbench.models import model_entry, trained_columns
from litbench.raters.entries import RaterSpec
from litbench.raters.interface import check_stories
from litbench.raters.scope import NOT_LEARNT
from litbench.runs.config import Positional, check_installed
from litbench.runs.errors import ConfigError, MissingExtraError
from litbench.runs.outputs import write_atomically


@dataclass
class Judge(PairColumns, JudgeKeys, UntilKeys):
    """Measure how far language models agree with people, beside the longer story.

        litbench judge pairs.parquet --model openai/gpt-4.1-mini --dry_run

    Each pair is judged in both orders. API keys are read from the environment. Run a killed command
    again to resume it; see docs/judges.md.

    Attributes:
        pairs: pairs file: Parquet, JSONL or CSV. It can be the first argument, without --pairs.
        model: inspect-ai's name of a model, such as openai/gpt-4.1-mini; repeatable.
        out: output folder.
        split: only pairs of this split.
        max_pairs: maximum number of pairs, drawn over prompts.
        dry_run: only estimate calls, tokens, dollars and minutes; needs no API key.
    """

    pairs: Annotated[Path, Positional]
    model: list[str]
    out: Path = Path("runs/judge")
    split: str | None = None
    max_pairs: int | None = None
    dry_run: bool = False


def judge(config: Judge) -> None:
    """Judge pairs by language models, beside the longer story."""
    if not config.dry_run:
        check_installed("inspect_ai", "openai")
    options = {"kind": "judge", **config.judge_entry()}
    # A bag of words would have to be trained on other prompts than those of these pairs.
    raters: dict[str, Any] = {"longer": {"kind": "longer"}}
    benchmark = Benchmark(
        pairs=config.pairs,
        out=config.out,
        raters=raters | {model: options | {"model": model} for model in config.model},
        split=config.split,
        max_pairs=config.max_pairs,
        dry_run=config.dry_run,
        **{key: getattr(config, key) for key in vars(PairColumns())},
        **vars(until_keys(config)),
    )
    evaluations = run_benchmark(benchmark, "litbench judge").values()
    for evaluation in evaluations:
        page = (config.out / "report.html").resolve()
        try:
            text = render_report(evaluation, f"LitBench: {config.pairs.name}", page)
        except MissingExtraError as error:
            print(f"no report: {error}")
        else:
            write_atomically(page, partial(Path.write_text, data=text, encoding="utf-8"))
            print(f"report: {page}")
    check_judged(evaluations)


@dataclass(kw_only=True)
class RaterKeys:
    """The rater of a command.

    Attributes:
        model: model folder, or a reward model's name on the Hub.
        rater: config entry of any rater with rewards, such as '{kind: longer}'.
        device: device of `model`, such as cuda or cpu.
        batch_tokens: maximum number of tokens in a forward pass of `model`.
        dtype: dtype of the weights of `model`; `auto`: bfloat16 where that is fast.
    """

    model: str | None = None
    rater: Any = None
    device: str | None = None
    batch_tokens: int | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None

    def spec(self) -> RaterSpec:
        """Return the checked rater; ConfigError unless one of `model` and `rater` is given."""
        if (self.model is None) == (self.rater is None):
            raise ConfigError("give --model FOLDER_OR_NAME, or --rater '{kind: ...}'")
        if self.model is not None:
            options = {name: getattr(self, name) for name in ("device", "batch_tokens", "dtype")}
            return scorer_spec(model_entry(self.model, **options))
        if (self.device, self.batch_tokens, self.dtype) != (None, None, None):
            raise ConfigError(
                "--device, --batch_tokens and --dtype only work with --model: put them into --rater"
            )
        if not isinstance(self.rater, dict):
            raise ConfigError(
                f"--rater is {self.rater!r:.80}: write an entry such as '{{kind: longer}}'"
            )
        return scorer_spec(self.rater)


@dataclass(kw_only=True)
class Score(RaterKeys):
    """Score a file of stories or pairs, or one story, with any rater that gives rewards.

        litbench score --model runs/mine/model --input stories.jsonl --out scored.jsonl
        litbench score --model runs/mine/model --prompt "A PROMPT" --story "A STORY"

    The rows of the output are those of the input with reward, reward_percentile,
    rank_within_prompt, is_prose, like_training and the reasons of these flags; of pairs, with all
    but the rank for both sides, in the order of their pair_id. A list of stories in a row becomes a
    row for each, with the item_id of the row. Columns with common names, or with
    those that the model was trained on, are found. Run a killed command again to resume it. Several
    processes: accelerate launch -m litbench score ...

    Attributes:
        input: Parquet, JSONL, CSV or a datasets name.
        out: file to write: .parquet, .jsonl, .ndjson or .csv.
        prompt: column of the prompt; with --story, the prompt's text.
        text: column of the story.
        chosen: column of the preferred story of a pair.
        rejected: column of the other story of a pair.
        where: SQL condition on the rows of --input; only matching rows are scored.
        encoding: encoding of a text file, such as cp1252; null: UTF-8, or detected.
        story: print the reward of this text; - reads standard input.
    """

    input: str | None = None
    out: Path | None = None
    prompt: str = GUESS
    text: str = GUESS
    chosen: str = GUESS
    rejected: str = GUESS
    where: str | None = None
    encoding: str | None = None
    story: str | None = None


def score(config: Score) -> None:
    """Score a file of stories, or one story from the command line."""
    spec = config.spec()
    has_file = config.input is not None and config.out is not None
    is_story = config.story is not None and config.prompt != GUESS
    if has_file == is_story or (config.input, config.out).count(None) == 1:
        raise ConfigError("give --input FILE and --out FILE, or --story TEXT with --prompt TEXT")
    if config.story is not None:
        score_story(spec, config.prompt, config.story)
    elif config.input is not None and config.out is not None:
        columns = _columns(config, config.input)
        score_table(ScoringJob(spec, config.input, config.out, where=config.where, **columns))


def _columns(config: Score, source: str) -> dict[str, Any]:
    """The columns of a job: those of stories, or of pairs if there is no story column."""
    first = first_rows(source, config.where, config.encoding)
    names = first.column_names
    remembered = {} if config.model is None else trained_columns(config.model)
    stated = {name: getattr(config, name) for name in ("prompt", "text", "chosen", "rejected")}
    origins = find_columns(source, names, stated, (), remembered)
    if holds_pairs(origins, ["text"]):
        return {"pairs": given_columns({**origins, "encoding": config.encoding})}
    if (answers := answers_column(first, origins["text"])) is not None:
        origins["text"] = "text"
    find_columns(source, names, origins, ("prompt", "text"))
    columns = {"prompt_column": origins["prompt"], "text_column": origins["text"]}
    columns["answers"] = answers
    return {**columns, "encoding": config.encoding}


def score_story(spec: RaterSpec, prompt: str, story: str) -> None:
    """Print the reward, the percentile and the flags of one story."""
    if story == "-":
        story = sys.stdin.buffer.read().decode("utf-8-sig").rstrip("\r\n")
    if not prompt.strip():
        raise ConfigError("--prompt is empty: give the prompt's text")
    check_stories([story])
    rater = load_scorer(spec)
    rewards = finite_rewards(rater, [prompt], [story])
    percentiles = rater.percentiles(rewards)
    print(f"reward {rewards[0]:.6f}")
    print(f"reward_percentile {'null' if percentiles is None else percentiles[0]}")
    flags = rater.flags([story])
    for name in ("is_prose", "like_training"):
        print(f"{name} {json.dumps(getattr(flags, name)[0])}")
    print_notes(*flags.reasons[0], has_percentiles=percentiles is not None)


def score_table(job: ScoringJob) -> None:
    """Score a file and print what was done."""
    manifest = score_files(job)
    if manifest is None:
        return
    if manifest.get("unchanged"):
        print(f"unchanged: {job.out}")
        return
    counts = manifest["counts"]
    print(f"{job.out}: {counts['stories']:,} stories scored in {manifest['seconds']:,.1f} s")
    lines = []
    if rescored := counts.get("stories_rescored"):
        share = rescored / counts["stories"]
        lines.append(f"{rescored:,} stories ({share:.1%}) were scored again in float32")
    if counts["stories_cut"]:
        lines.append(f"{counts['stories_cut']:,} stories were too long and were truncated")
    if counts["left_out_by_where"]:
        lines.append(f"left out by --where: {counts['left_out_by_where']:,} rows")
    if replaced := manifest["replaced_columns"]:
        lines.append(f"replaced in the output: {', '.join(replaced)} of the input")
    if rows := sum(counts["rejected_rows"].values()):
        lines.append(f"rejected: {rows:,} rows, reasons in {job.rejected_rows}")
    if not manifest["has_flags"]:
        lines.append(f"is_prose and like_training are {NOT_LEARNT}")
    for name, count in counts["flagged"].items():
        if count:
            lines.append(f"{name} is false for {count:,} stories, see reasons in {job.out}")
    print_notes(*lines, has_percentiles=manifest["has_percentiles"])


def print_notes(*lines: str, has_percentiles: bool) -> None:
    """Print on stderr what rewards mean, then further lines."""
    meaning = "reward_percentile: the share of training stories, in %, with a lower reward"
    if not has_percentiles:
        meaning = "reward_percentile is null: this rater stores no rewards of training stories"
    notes = ("rewards can be compared within a prompt only", meaning, *lines)
    print(*(f"  {line}" for line in notes), sep="\n", file=sys.stderr)
