"""The litbench command, for an installed package without a checkout.

litbench fit posts.jsonl --out runs/mine
litbench judge pairs.parquet --model openai/gpt-4.1-mini --dry_run
litbench run longform --writer openai/gpt-4.1 --judge anthropic/claude-sonnet-4 --out runs/gpt
litbench score --model runs/verifier/model --input stories.jsonl --out scored.jsonl
litbench serve --model runs/verifier/model
litbench study serve runs/study
"""

import argparse
import logging
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from litbench import __version__
from litbench.benchmark import Benchmark, run_benchmark
from litbench.config import check_utf8, clear_exit
from litbench.errors import ConfigError, MissingExtraError
from litbench.judges.store import Sampling
from litbench.raters import RaterSpec, load_object
from litbench.scoring import (
    ADDED,
    SUFFIXES,
    ScoringJob,
    finite_rewards,
    load_scorer,
    score_files,
    scorer_entry,
    scorer_spec,
)

_TOKEN = "LITBENCH_SERVE_TOKEN"  # noqa: S105
# Commands that read their own arguments, which are the keys of a config: function and help.
_WITH_CONFIG = {
    "fit": ("litbench.fit:command", "train and evaluate on your own stories"),
    "run": ("litbench.protocols.run:command", "run a published writing benchmark"),
    "study": ("litbench.human_study.command:command", "run a study with human readers"),
}
# Options of the commands: type and help.
_JUDGE: dict[str, tuple[Any, str]] = {
    "template": (str, "question: a family such as writerly, or a file; default: alternative"),
    "max_tokens": (int, "maximum length of an answer, with hidden reasoning; default: 1024"),
    "max_cost_usd": (float, "maximum dollars for each model, over all runs"),
    "prices": (Path, "file of prices that override the packaged ones"),
    "split": (str, "only pairs of this split"),
    "most_pairs": (int, "maximum number of pairs, drawn over prompts"),
}
_SCORE: dict[str, tuple[Any, str]] = {
    "input": (str, "Parquet, JSONL, CSV or a datasets name"),
    "out": (Path, f"the same rows with {', '.join(ADDED)}; suffix: {', '.join(SUFFIXES)}"),
    "prompt_column": (str, "default: prompt"),
    "text_column": (str, "default: text"),
    "where": (str, "SQL condition on the rows of --input; only matching rows are scored"),
    "prompt": (str, "prompt of --story"),
    "story": (str, "print the reward of this text; - reads standard input"),
}
_LIMITS: dict[str, tuple[Any, str]] = {
    "body_bytes": (int, "maximum size of a request body; default: 4 MiB"),
    "waiting_stories": (int, "maximum stories in a request and in the queue; default: 4096"),
    "read_s": (float, "maximum seconds to receive a request, plus 1 per 16 KiB; default: 10"),
    "timeout_s": (float, "maximum time to answer a request, in seconds; default: 60"),
}


def judge(arguments: argparse.Namespace) -> None:
    """Judge pairs by language models, beside the longer story."""
    options = {
        "kind": "judge",
        "template": arguments.template,
        "prices": arguments.prices,
        "sampling": {"max_tokens": arguments.max_tokens},
        "traffic": {"max_cost_usd": arguments.max_cost_usd},
    }
    # A bag of words would have to be trained on other prompts than those of these pairs.
    raters: dict[str, Any] = {"longer": {"kind": "longer"}}
    benchmark = Benchmark(
        pairs=arguments.pairs,
        out=arguments.out,
        raters=raters | {model: options | {"model": model} for model in arguments.model},
        split=arguments.split,
        most_pairs=arguments.most_pairs,
        errors_again=arguments.errors_again,
        dry_run=arguments.dry_run,
    )
    run_benchmark(benchmark, "litbench judge")


def rater_spec(arguments: argparse.Namespace) -> RaterSpec:
    """Return the rater given by --model or --rater."""
    options = (arguments.device, arguments.batch_tokens)
    if arguments.model is not None:
        return scorer_spec(scorer_entry(arguments.model, *options))
    if options != (None, None):
        raise ConfigError(
            "--device and --batch_tokens only work with --model: put them into --rater"
        )
    try:
        return scorer_spec(yaml.safe_load(arguments.rater))
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--rater is not valid YAML ({error}): write '{{kind: longer}}'"
        ) from error


def score(arguments: argparse.Namespace) -> None:
    """Score a file of stories, or one story from the command line."""
    spec = rater_spec(arguments)
    given = {key: getattr(arguments, key) for key in _SCORE}
    given = {key: value for key, value in given.items() if value is not None}
    if given.keys() == {"prompt", "story"}:
        story = given["story"]
        if story == "-":
            story = sys.stdin.buffer.read().decode("utf-8-sig").rstrip("\r\n")
        if not given["prompt"].strip() or not story.strip():
            raise ConfigError("--prompt or --story is empty: give both")
        rater = load_scorer(spec)
        rewards = finite_rewards(rater, [given["prompt"]], [story])
        percentiles = rater.percentiles(rewards)
        print(f"reward {rewards[0]:.6f}")
        print(f"reward_percentile {'null' if percentiles is None else percentiles[0]}")
        print_notes(has_percentiles=percentiles is not None)
        return
    if not {"input", "out"} <= given.keys() or given.keys() & {"prompt", "story"}:
        raise ConfigError("give --input FILE and --out FILE, or --story TEXT with --prompt TEXT")
    job = ScoringJob(spec, **given)
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


def serve(arguments: argparse.Namespace) -> None:
    """Serve a model over HTTP until SIGTERM or SIGINT."""
    try:
        from litbench import server  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(str(error.name), "serve") from error

    token, host = os.environ.get(_TOKEN), arguments.host
    if token is not None and not (
        token.isascii() and token.isprintable() and token.split() == [token]
    ):
        raise ConfigError(
            f"{_TOKEN} must be ASCII characters without spaces, and not empty: change it"
        )
    if token is None and not server.is_loopback(host):
        print(f"warning: anyone who reaches {host} can use this server: set {_TOKEN}, or bind to "
              "127.0.0.1", file=sys.stderr)  # fmt: skip
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    given = {field.name: getattr(arguments, field.name) for field in fields(server.ServerLimits)}
    limits = server.ServerLimits(**{key: n for key, n in given.items() if n is not None})
    spec = rater_spec(arguments)
    name = spec.kind if arguments.model is None else Path(arguments.model).resolve().name
    hosts = server.accepted_hosts(host, arguments.allowed_host)
    app = server.make_app(load_scorer(spec), name, limits, token=token, allowed_hosts=hosts)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal again after shutdown; exit with 0.
        signal.signal(number, lambda *_: sys.exit(0))
    server.make_server(app, limits, host, arguments.port).run()


def make_parser() -> argparse.ArgumentParser:
    """Create the parser of the command line."""
    parser = argparse.ArgumentParser(prog="litbench", description="Verifiers of creative writing.")
    parser.add_argument("--version", action="version", version=f"litbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for run, options, about, more in (
        (judge, _JUDGE, "measure how far language models agree with people on pairs of stories",
         "Each pair is judged in both orders. API keys are read from the environment. Run a killed "
         "command again to resume it; see docs/judges.md."),
        (score, _SCORE, "score stories with any rater that gives rewards", "Run a killed command "
         "again to resume it. Several processes: accelerate launch -m litbench score ..."),
        (serve, _LIMITS, "score stories over HTTP", f"If {_TOKEN} is set, clients must send that "
         "token; see docs/serving.md."),
    ):  # fmt: skip
        command = commands.add_parser(run.__name__, help=about, description=f"{about}. {more}")
        command.set_defaults(run=run)
        if run is judge:
            command.set_defaults(template="alternative", max_tokens=Sampling.max_tokens)
            command.add_argument("pairs", type=Path, help="pairs file: Parquet, JSONL or CSV")
            command.add_argument("--model", action="append", required=True, help="inspect-ai's "
                                 "name of a model, such as openai/gpt-4.1-mini; repeatable"
                                 )  # fmt: skip
            command.add_argument("--out", type=Path, default=Path("runs/judge"),
                                 help="output folder; default: runs/judge")  # fmt: skip
            command.add_argument("--dry_run", action="store_true", help="only estimate calls, "
                                 "tokens, dollars and minutes; needs no API key")  # fmt: skip
            command.add_argument("--errors_again", action="store_true",
                                 help="ask again where a request failed")  # fmt: skip
        else:
            model = command.add_mutually_exclusive_group(required=True)
            model.add_argument("--model", help="model folder, or a reward model's name on the Hub")
            model.add_argument("--rater", help="config entry of any rater with rewards, as YAML")
            command.add_argument("--device", help="such as cuda or cpu")
            command.add_argument(
                "--batch_tokens", type=int, help="maximum number of tokens in a forward pass"
            )
        for option, (kind, text) in options.items():
            command.add_argument(f"--{option}", type=kind, help=text)
    command.add_argument(
        "--host", default="127.0.0.1", help="default: 127.0.0.1, this machine only"
    )
    command.add_argument("--port", type=int, default=8000, help="default: 8000; 0: any free port")
    command.add_argument("--allowed_host", action="append", default=[], help="accept this Host "
                     "header; repeatable; default: local names on 127.0.0.1, otherwise any name"
                     )  # fmt: skip
    for name, (_, about) in _WITH_CONFIG.items():
        commands.add_parser(name, help=about, add_help=False)
    return parser


def main() -> None:
    """Parse the command line and run the command, inside `clear_exit`."""
    name = "".join(sys.argv[1:2])
    if name in _WITH_CONFIG:
        load_object(_WITH_CONFIG[name][0])(sys.argv[2:])
        return
    with clear_exit():
        for argument in sys.argv[1:]:
            check_utf8(argument, "command line")
        arguments = make_parser().parse_args()
        arguments.run(arguments)


if __name__ == "__main__":
    main()
