"""The litbench command: what an installed user needs without a checkout.

litbench score --model runs/verifier/model --input stories.jsonl --out scored.jsonl
litbench serve --model runs/verifier/model
"""

import argparse
import logging
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from litbench import __version__
from litbench.config import clear_exit
from litbench.errors import ConfigError, DataError, MissingExtraError
from litbench.raters import RaterSpec
from litbench.scoring import (
    SUFFIXES,
    ScoringJob,
    finite_rewards,
    load_scorer,
    score_files,
    scorer_entry,
    scorer_spec,
)

_TOKEN = "LITBENCH_SERVE_TOKEN"  # noqa: S105


def rater_spec(arguments: argparse.Namespace) -> RaterSpec:
    """The rater that the command line names.

    Raises:
        ConfigError: --rater is no YAML mapping, or stands beside options of a model.
    """
    options = {"device": arguments.device, "batch_tokens": arguments.batch_tokens}
    if arguments.model is not None:
        return scorer_spec(scorer_entry(arguments.model, **options))
    if set(options.values()) != {None}:
        raise ConfigError(
            "--device and --batch-tokens go with --model: write them into --rater as device and "
            "batch_tokens"
        )
    try:
        return scorer_spec(yaml.safe_load(arguments.rater))
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--rater is no YAML ({error}): write it as '{{kind: longer}}', in quotes"
        ) from error


def _add_rater(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", help="model folder, or a reward model's name on the Hub")
    which.add_argument("--rater", help="any rater with rewards, as in a config: '{kind: longer}'")
    parser.add_argument("--device", help="such as cuda or cpu")
    parser.add_argument("--batch-tokens", type=int, help="most tokens of one forward pass")


# litbench score -------------------------------------------------------------------------------


def score(arguments: argparse.Namespace) -> None:
    """Score a file of stories, or one story from the command line."""
    spec = rater_spec(arguments)
    if arguments.story is not None:
        if arguments.input is not None or arguments.out is not None:
            raise ConfigError("--story is scored by itself: leave out --input and --out")
        _score_one(spec, arguments.prompt, arguments.story)
        return
    if arguments.input is None or arguments.out is None:
        raise ConfigError("give --input FILE and --out FILE, or --story TEXT with --prompt TEXT")
    names = ("input", "out", "prompt_column", "text_column", "where", "reference",
             "reference_where")  # fmt: skip
    job = ScoringJob(spec, **{name: getattr(arguments, name) for name in names})
    manifest = score_files(job)
    if manifest is not None:
        _print_summary(job, manifest)


def _score_one(spec: RaterSpec, prompt: str | None, story: str) -> None:
    """Print the reward of one story; of standard input if it is a dash."""
    if story == "-":
        try:
            story = sys.stdin.buffer.read().decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"standard input is no UTF-8 at byte {error.start}: convert it"
            ) from error
    if not prompt or not prompt.strip() or not story.strip():
        raise ConfigError("a reward is that of a prompt and a story: give --prompt and --story")
    (reward,) = finite_rewards(load_scorer(spec), [prompt], [story])
    print(f"{reward:.6f}")
    print("  it can be compared with rewards of the same prompt only", file=sys.stderr)


def _print_summary(job: ScoringJob, manifest: dict[str, Any]) -> None:
    if manifest.get("unchanged"):
        print(f"unchanged: {job.out}")
        return
    counts = manifest["counts"]
    print(f"{job.out}: {counts['stories']:,} stories scored in {manifest['seconds']:,.1f} s")
    lines = ["rewards can be compared within a prompt only: each prompt has an offset of its own"]
    if job.reference is not None:
        lines.append(
            f"beats_reference: {counts['stories_with_reference']:,} stories have one of the "
            f"{counts['reference_stories']:,} reference stories at their prompt"
        )
    if counts["stories_cut"]:
        lines.append(f"{counts['stories_cut']:,} stories did not fit and lost their end")
    if counts["left_out_by_where"]:
        lines.append(f"left out by --where: {counts['left_out_by_where']:,} rows")
    rejected = (counts.get(key, {}) for key in ("rejected_rows", "reference_rejected_rows"))
    if rows := sum(sum(reasons.values()) for reasons in rejected):
        lines.append(f"rejected: {rows:,} rows, reasons in {job.rejected_rows}")
    for line in lines:
        print(f"  {line}", file=sys.stderr)


def _add_score(commands: Any) -> None:
    parser = commands.add_parser(
        "score",
        help="score stories with any rater that gives rewards",
        description="Score stories. A killed run goes on where it was; several processes: "
        "accelerate launch -m litbench score ...",
    )
    _add_rater(parser)
    parser.add_argument("--input", help="Parquet, JSONL, CSV or a datasets name")
    parser.add_argument(
        "--out",
        type=Path,
        help="same rows plus reward, rank_within_prompt and with --reference beats_reference; "
        f"ends in {', '.join(SUFFIXES)}",
    )
    parser.add_argument("--prompt-column", default="prompt", help="default: prompt")
    parser.add_argument("--text-column", default="text", help="default: text")
    parser.add_argument("--where", help="SQL condition on a row of --input; others are left out")
    parser.add_argument("--reference", help="human stories of the same prompts, same columns")
    parser.add_argument("--reference-where", help="SQL condition on a row of --reference")
    parser.add_argument("--story", help="print the reward of this text, or of - standard input")
    parser.add_argument("--prompt", help="the prompt of --story")
    parser.set_defaults(run=score)


# litbench serve -------------------------------------------------------------------------------


def serve(arguments: argparse.Namespace) -> None:
    """Serve a model over HTTP until SIGTERM or SIGINT."""
    try:
        from litbench import server  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(str(error.name), "serve") from error

    token = os.environ.get(_TOKEN)
    if token is not None and not (
        token.isascii() and token.isprintable() and token.split() == [token]
    ):
        raise ConfigError(f"{_TOKEN} is empty or not of ASCII characters without spaces: change it")
    if token is None and not server.is_loopback(arguments.host):
        print(
            f"warning: anyone who reaches {arguments.host} can use this server: set {_TOKEN}, or "
            "bind to 127.0.0.1",
            file=sys.stderr,
        )
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    given = {one.name: getattr(arguments, one.name) for one in fields(server.ServerLimits)}
    limits = server.ServerLimits(**{key: n for key, n in given.items() if n is not None})
    spec = rater_spec(arguments)
    name = spec.kind if arguments.model is None else Path(arguments.model).resolve().name
    server.serve(
        load_scorer(spec), name, limits, arguments.host, arguments.port,
        token=token, allowed_hosts=server.accepted_hosts(arguments.host, arguments.allowed_host),
    )  # fmt: skip


def _add_serve(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="score stories over HTTP",
        description="Score stories over HTTP; see docs/serving.md. Clients must send the token in "
        f"the environment variable {_TOKEN}, if it is set.",
    )
    _add_rater(parser)
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine only")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000; 0: any free one")
    parser.add_argument(
        "--allowed-host", action="append", default=[], metavar="NAME",
        help="accepted in the Host header; may be repeated; default: local names on 127.0.0.1, "
        "any on other addresses",
    )  # fmt: skip
    limits = {
        "body-bytes": "most bytes of a request; default: 4 MiB",
        "waiting-stories": "most stories in the queue, or of a request; default: 4096",
        "read-s": "longest time to receive a request, in seconds; default: 10",
        "timeout-s": "longest time to answer it, in seconds; default: 60",
    }
    for option, text in limits.items():
        kind = float if option.endswith("-s") else int
        parser.add_argument(f"--{option}", type=kind, metavar="N", help=text)
    parser.set_defaults(run=serve)


def main() -> None:
    """Parse the command line and run, and end as `clear_exit` does."""
    parser = argparse.ArgumentParser(prog="litbench", description="Verifiers of creative writing.")
    parser.add_argument("--version", action="version", version=f"litbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_score(commands)
    _add_serve(commands)
    arguments = parser.parse_args()
    with clear_exit():
        arguments.run(arguments)


if __name__ == "__main__":
    main()
