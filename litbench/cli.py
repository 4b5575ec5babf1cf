"""The litbench command: every program of LitBench under one name, with one grammar.

    litbench fit posts.jsonl --out runs/mine
    litbench data make_pairs --config configs/data/sample_pairs.yaml
    accelerate launch -m litbench train bradley_terry --config configs/paper/bradley_terry.yaml

`litbench` alone lists the commands, `litbench COMMAND --help` the keys of one. The commands of the
groups data, train and eval are the programs of these folders: `litbench eval benchmark` and
`python eval/benchmark.py` are the same.
"""

import ast
import importlib.metadata
import importlib.resources
import inspect
import logging
import os
import signal
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from litbench import __version__
from litbench.data.columns import (
    GUESS,
    PairColumns,
    find_columns,
    first_rows,
    given_columns,
)
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
from litbench.judges.client import JudgeKeys
from litbench.models import model_entry, trained_columns
from litbench.raters.entries import RaterSpec
from litbench.raters.interface import check_stories
from litbench.runs.config import Positional, nearest, report_errors, run_program
from litbench.runs.errors import ConfigError, MissingExtraError
from litbench.runs.outputs import write_atomically

_TOKEN = "LITBENCH_SERVE_TOKEN"  # noqa: S105
# Commands: the function, whose argument is the config, and what it does.
_COMMANDS = {
    "fit": ("litbench.fitting:fit", "Train and evaluate on your own stories."),
    "score": ("litbench.cli:score", "Score stories with any rater that gives rewards."),
    "serve": ("litbench.cli:serve", "Score stories over HTTP."),
    "judge": ("litbench.cli:judge", "Measure how far language models agree with people on pairs."),
    "audit": (
        "litbench.audit.command:audit",
        "Find out what a set of preferences, and a rater on it, measures.",
    ),
    "probe": (
        "litbench.audit.probing:run_probes",
        "Measure how often raters prefer changed stories.",
    ),
    "power": (
        "litbench.research.power:run_power",
        "Compute power, and the pairs or prompts needed.",
    ),
    "preferences": (
        "litbench.research.preferences:run_preferences",
        "Find and describe what readers prefer.",
    ),
    "explanations": (
        "litbench.research.explanations:run_explanations",
        "Compare what explanations of right and wrong verdicts say.",
    ),
    "run": ("litbench.writers.run:command", "Run a published writing benchmark."),
    "suite": (
        "litbench.suite.command:suite",
        "Measure raters on every published set of judgements.",
    ),
    "leaderboard": (
        "litbench.suite.command:leaderboard_site",
        "Make a site of the suite's passports.",
    ),
    "tasks": ("litbench.writers.run:print_tasks", "List the writing benchmarks."),
}
_STUDY = {
    "make": ("litbench.study.make:make_study", "Make a study, and say what it takes."),
    "serve": ("litbench.study.command:serve", "Show the study to readers."),
    "status": ("litbench.study.command:status", "Print the progress of readers and pairs."),
    "export": (
        "litbench.study.command:export",
        "Write the choices, and the pairs with readers as annotators.",
    ),
    "close": ("litbench.study.command:close", "Accept no more readers and answers."),
    "analyse": ("litbench.study.analysis:analyse", "Compare readers and raters."),
    "remove": ("litbench.study.command:remove", "Remove a reader with all answers."),
    "simulate": (
        "litbench.study.command:simulate",
        "Answer the running server by simulated readers.",
    ),
}
_WRITERS = {
    "compare": ("litbench.writers.compare:compare_writers", "Compare writers by their grades."),
    "import_turns": (
        "litbench.writers.import_turns:import_turns",
        "Turn published runs of a writing benchmark into a table of turns.",
    ),
    "import_novels": (
        "litbench.writers.webnovel.import_novels:import_novels",
        "Turn Chinese novels into books of the protocol webnovel.",
    ),
}
# Groups of commands: what they do, and their functions, or the package of their programs.
_GROUPS: dict[str, tuple[str, dict[str, tuple[str, str]] | str]] = {
    "data": ("Make, import and check data", "litbench.programs.data_prep"),
    "train": ("Train raters and policies", "litbench.programs.train"),
    "eval": ("Evaluate raters, writers and filters", "litbench.programs.eval"),
    "study": ("Run a study with human readers", _STUDY),
    "writers": ("Compare what writers were graded", _WRITERS),
}


@dataclass
class Judge(PairColumns, JudgeKeys):
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
    options = {"kind": "judge", **config.judge_entry()}
    # A bag of words would have to be trained on other prompts than those of these pairs.
    raters: dict[str, Any] = {"longer": {"kind": "longer"}}
    benchmark = Benchmark(
        pairs=config.pairs,
        out=config.out,
        raters=raters | {model: options | {"model": model} for model in config.model},
        split=config.split,
        prompt=config.prompt,
        chosen=config.chosen,
        rejected=config.rejected,
        encoding=config.encoding,
        label_source=config.label_source,
        max_pairs=config.max_pairs,
        dry_run=config.dry_run,
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
    """

    model: str | None = None
    rater: Any = None
    device: str | None = None
    batch_tokens: int | None = None

    def spec(self) -> RaterSpec:
        """Return the checked rater; ConfigError unless one of `model` and `rater` is given."""
        if (self.model is None) == (self.rater is None):
            raise ConfigError("give --model FOLDER_OR_NAME, or --rater '{kind: ...}'")
        if self.model is not None:
            return scorer_spec(
                model_entry(self.model, device=self.device, batch_tokens=self.batch_tokens)
            )
        if (self.device, self.batch_tokens) != (None, None):
            raise ConfigError(
                "--device and --batch_tokens only work with --model: put them into --rater"
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

    The rows of the output are those of the input with reward, reward_percentile and
    rank_within_prompt; of pairs, with reward and reward_percentile of both sides, in the order of
    their pair_id. Columns with common names, or with those that the model was trained on, are
    found. Run a killed command again to resume it. Several processes: accelerate launch -m
    litbench score ...

    Attributes:
        input: Parquet, JSONL, CSV or a datasets name.
        out: file to write: .parquet, .jsonl, .ndjson or .csv.
        prompt: column of the prompt; with --story, the prompt's text.
        text: column of the story.
        chosen: column of the preferred story of a pair.
        rejected: column of the other story of a pair.
        where: SQL condition on the rows of --input; only matching rows are scored.
        encoding: encoding of a text file, such as cp1252; null: UTF-8, or told by the content.
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
    names = first_rows(source, config.where, config.encoding).column_names
    remembered = {} if config.model is None else trained_columns(config.model)
    stated = {name: getattr(config, name) for name in ("prompt", "text", "chosen", "rejected")}
    origins = find_columns(source, names, stated, (), remembered)
    if origins["text"] is None and origins["chosen"] and origins["rejected"]:
        return {"pairs": given_columns({**origins, "encoding": config.encoding})}
    find_columns(source, names, origins, ("prompt", "text"))
    columns = {"prompt_column": origins["prompt"], "text_column": origins["text"]}
    return {**columns, "encoding": config.encoding}


def score_story(spec: RaterSpec, prompt: str, story: str) -> None:
    """Print the reward and the percentile of one story."""
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
    print_notes(has_percentiles=percentiles is not None)


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
    if counts["stories_cut"]:
        lines.append(f"{counts['stories_cut']:,} stories were too long and were truncated")
    if counts["left_out_by_where"]:
        lines.append(f"left out by --where: {counts['left_out_by_where']:,} rows")
    if replaced := manifest["replaced_columns"]:
        lines.append(f"replaced in the output: {', '.join(replaced)} of the input")
    if rows := sum(counts["rejected_rows"].values()):
        lines.append(f"rejected: {rows:,} rows, reasons in {job.rejected_rows}")
    print_notes(*lines, has_percentiles=manifest["has_percentiles"])


def print_notes(*lines: str, has_percentiles: bool) -> None:
    """Print on stderr what rewards mean, then further lines."""
    meaning = "reward_percentile: the share of training stories, in %, with a lower reward"
    if not has_percentiles:
        meaning = "reward_percentile is null: this rater stores no rewards of training stories"
    notes = ("rewards can be compared within a prompt only", meaning, *lines)
    print(*(f"  {line}" for line in notes), sep="\n", file=sys.stderr)


@dataclass(kw_only=True)
class Serve(RaterKeys):
    """Serve a model over HTTP until SIGTERM or SIGINT.

        litbench serve --model runs/mine/model

    If LITBENCH_SERVE_TOKEN is set, clients must send that token; see docs/serving.md.

    Attributes:
        host: address to listen on; by default this machine only.
        port: port to listen on; 0: any free port.
        allowed_host: accept this Host header; repeatable; default: local names on 127.0.0.1,
            otherwise any name.
        body_bytes: maximum size of a request body.
        waiting_stories: maximum stories in a request and in the queue.
        timeout_s: maximum time to answer a request, in seconds.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    allowed_host: list[str] = field(default_factory=list)
    body_bytes: PositiveInt = 4 * 2**20
    waiting_stories: PositiveInt = 4_096
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60


def serve(config: Serve) -> None:
    """Serve a model over HTTP until SIGTERM or SIGINT."""
    from litbench.serve import server  # noqa: PLC0415

    token = os.environ.get(_TOKEN)
    if token is not None and not (
        token.isascii() and token.isprintable() and token.split() == [token]
    ):
        raise ConfigError(
            f"{_TOKEN} must be ASCII characters without spaces, and not empty: change it"
        )
    if token is None and not server.is_loopback(config.host):
        print(
            f"warning: anyone who reaches {config.host} can use this server: set {_TOKEN}, or "
            "bind to 127.0.0.1",
            file=sys.stderr,
        )
    server.check_address(config.host, config.port)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    limits = server.ServerLimits(config.body_bytes, config.waiting_stories, config.timeout_s)
    spec = config.spec()
    name = spec.kind
    if config.model is not None:
        path = Path(config.model).resolve()
        # A run's folder has its model in `model`.
        name = path.parent.name if path.name == "model" else path.name
    hosts = server.accepted_hosts(config.host, config.allowed_host)
    app = server.make_app(load_scorer(spec), name, limits, token=token, allowed_hosts=hosts)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal again after shutdown; exit with 0.
        signal.signal(number, lambda *_: sys.exit(0))
    server.make_server(app, limits, config.host, config.port).run()


# Finding commands ----------------------------------------------------------------------------


def commands_of(group: str) -> dict[str, str]:
    """The commands of a group, by name, with what they do."""
    members = _GROUPS[group][1]
    if not isinstance(members, str):
        return {name: about for name, (_, about) in members.items()}
    folder = importlib.resources.files(members)
    return {
        file.name.removesuffix(".py"): _first_line(file.read_text(encoding="utf-8"))
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".py") and file.name != "__init__.py"
    }


def command_names() -> list[str]:
    """All commands, such as `fit` and `eval benchmark`."""
    return [
        *_COMMANDS,
        *(f"{group} {member}" for group in _GROUPS for member in commands_of(group)),
    ]


def _first_line(source: str) -> str:
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def overview() -> str:
    """All commands in groups, one line each."""
    lines = ["usage: litbench COMMAND [KEYS]; litbench COMMAND --help lists the keys", ""]
    lines += _table({name: about for name, (_, about) in _COMMANDS.items()})
    for group, (about, _) in _GROUPS.items():
        lines += ["", f"{about}: litbench {group} ...", "", *_table(commands_of(group))]
    return "\n".join(lines)


def _table(rows: dict[str, str]) -> list[str]:
    return [f"  {name:<18} {about}" for name, about in rows.items()]


def find_command(name: str) -> tuple[Callable[[Any], None], type, str | None]:
    """The function of a command such as `fit` or `eval benchmark`, its config, and its help.

    Raises:
        ConfigError: no command has this name.
    """
    first, _, member = name.partition(" ")
    if first in _GROUPS:
        members, names = _GROUPS[first][1], list(commands_of(first))
    else:
        members, member, names = _COMMANDS, first, [*_COMMANDS, *_GROUPS]
    if member not in names:
        raise ConfigError(f"unknown command 'litbench {name}': {nearest(member, names)}")
    if isinstance(members, str):
        # Not by runpy: trainers pickle the config, whose class must be found in its module.
        program = importlib.import_module(f"{members}.{member}")
        return program.main, program.Config, program.__doc__
    function = resolve_name(members[member][0])
    (config, *_) = typing.get_type_hints(function).values()
    return function, config, inspect.getdoc(config).partition("Attributes:")[0]  # type: ignore[union-attr]


def _dispatch(name: str, rest: list[str]) -> None:
    if name == "--version":
        print(f"litbench {__version__}")
        return
    if name in ("-h", "--help"):
        print(overview())
        return
    if name in _GROUPS:
        member, *rest = rest or ["--help"]
        if member in ("-h", "--help"):
            about, table = _GROUPS[name][0], _table(commands_of(name))
            print("\n".join([f"{about}: litbench {name} COMMAND [KEYS]", "", *table]))
            return
        name = f"{name} {member}"
    function, config, text = find_command(name)
    sys.argv = [f"litbench {name}", *rest]
    run_program(function, config, text)


def main() -> None:
    """Run the command of the command line, inside `report_errors`."""
    name, *rest = sys.argv[1:] or ["--help"]
    with report_errors():
        _dispatch(name, rest)


if __name__ == "__main__":
    main()
