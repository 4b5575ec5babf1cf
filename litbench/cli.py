"""The litbench command: what an installed user needs without a checkout.

litbench score --model runs/verifier/model --input stories.jsonl --out scored.jsonl
litbench serve --model runs/verifier/model
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
from litbench.config import clear_exit
from litbench.errors import ConfigError, MissingExtraError
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
_SCORE = {
    "input": "Parquet, JSONL, CSV or a datasets name",
    "out": f"same rows plus reward and rank_within_prompt; ends in {', '.join(SUFFIXES)}",
    "prompt-column": "default: prompt",
    "text-column": "default: text",
    "where": "SQL condition on a row of --input; others are left out",
    "prompt": "the prompt of --story",
    "story": "print the reward of this text, or of - standard input",
}
_LIMITS = {
    "body-bytes": "most bytes of a request; default: 4 MiB",
    "waiting-stories": "most stories in the queue, or of a request; default: 4096",
    "read-s": "longest time to receive a request, in seconds; default: 10",
    "timeout-s": "longest time to answer it, in seconds; default: 60",
}


def rater_spec(arguments: argparse.Namespace) -> RaterSpec:
    """The rater that the command line names."""
    options = (arguments.device, arguments.batch_tokens)
    if arguments.model is not None:
        return scorer_spec(scorer_entry(arguments.model, *options))
    if options != (None, None):
        raise ConfigError("--device and --batch-tokens go with --model: write them into --rater")
    try:
        return scorer_spec(yaml.safe_load(arguments.rater))
    except yaml.YAMLError as error:
        raise ConfigError(f"--rater is no YAML ({error}): write '{{kind: longer}}'") from error


def score(arguments: argparse.Namespace) -> None:
    """Score a file of stories, or one story from the command line."""
    spec = rater_spec(arguments)
    given = {key.replace("-", "_"): getattr(arguments, key.replace("-", "_")) for key in _SCORE}
    given = {key: value for key, value in given.items() if value is not None}
    if given.keys() == {"prompt", "story"}:
        story = given["story"]
        if story == "-":
            story = sys.stdin.buffer.read().decode("utf-8-sig").rstrip("\r\n")
        if not given["prompt"].strip() or not story.strip():
            raise ConfigError("--prompt or --story is empty: give both")
        (reward,) = finite_rewards(load_scorer(spec), [given["prompt"]], [story])
        print(f"{reward:.6f}")
        return
    if not {"input", "out"} <= given.keys() or given.keys() & {"prompt", "story"}:
        raise ConfigError("give --input FILE and --out FILE, or --story TEXT with --prompt TEXT")
    job = ScoringJob(spec, **{**given, "out": Path(given["out"])})
    manifest = score_files(job)
    if manifest is None:
        return
    if manifest.get("unchanged"):
        print(f"unchanged: {job.out}")
        return
    counts = manifest["counts"]
    print(f"{job.out}: {counts['stories']:,} stories scored in {manifest['seconds']:,.1f} s")
    lines = ["rewards can be compared within a prompt only"]
    if counts["stories_cut"]:
        lines.append(f"{counts['stories_cut']:,} stories did not fit and lost their end")
    if counts["left_out_by_where"]:
        lines.append(f"left out by --where: {counts['left_out_by_where']:,} rows")
    if rows := sum(counts["rejected_rows"].values()):
        lines.append(f"rejected: {rows:,} rows, reasons in {job.rejected_rows}")
    print(*(f"  {line}" for line in lines), sep="\n", file=sys.stderr)


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
        raise ConfigError(f"{_TOKEN} is empty or not of ASCII characters without spaces: change it")
    if token is None and not server.is_loopback(host):
        print(f"warning: anyone who reaches {host} can use this server: set {_TOKEN}, or bind to "
              "127.0.0.1", file=sys.stderr)  # fmt: skip
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    given = {one.name: getattr(arguments, one.name) for one in fields(server.ServerLimits)}
    limits = server.ServerLimits(**{key: n for key, n in given.items() if n is not None})
    spec = rater_spec(arguments)
    name = spec.kind if arguments.model is None else Path(arguments.model).resolve().name
    hosts = server.accepted_hosts(host, arguments.allowed_host)
    app = server.make_app(load_scorer(spec), name, limits, token=token, allowed_hosts=hosts)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal again once it has stopped, which is no failure.
        signal.signal(number, lambda *_: sys.exit(0))
    server.make_server(app, limits, host, arguments.port).run()


def main() -> None:
    """Parse the command line and run, and end as `clear_exit` does."""
    parser = argparse.ArgumentParser(prog="litbench", description="Verifiers of creative writing.")
    parser.add_argument("--version", action="version", version=f"litbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for run, about, more in (
        (score, "score stories with any rater that gives rewards", "A killed run goes on where it "
         "was; several processes: accelerate launch -m litbench score ..."),
        (serve, "score stories over HTTP", f"Clients must send the token in {_TOKEN}, if it is "
         "set; see docs/serving.md."),
    ):  # fmt: skip
        own = commands.add_parser(run.__name__, help=about, description=f"{about}. {more}")
        own.set_defaults(run=run)
        which = own.add_mutually_exclusive_group(required=True)
        which.add_argument("--model", help="model folder, or a reward model's name on the Hub")
        which.add_argument("--rater", help="any rater with rewards, as in a config")
        own.add_argument("--device", help="such as cuda or cpu")
        own.add_argument("--batch-tokens", type=int, help="most tokens of one forward pass")
        for option, text in (_SCORE if run is score else _LIMITS).items():
            kind: Any = str if run is score else float if option.endswith("-s") else int
            own.add_argument(f"--{option}", type=kind, help=text)
    own.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine only")
    own.add_argument("--port", type=int, default=8000, help="default: 8000; 0: any free one")
    own.add_argument("--allowed-host", action="append", default=[], help="accepted in the Host "
                     "header; may be repeated; default: local names on 127.0.0.1, any elsewhere"
                     )  # fmt: skip
    arguments = parser.parse_args()
    with clear_exit():
        arguments.run(arguments)


if __name__ == "__main__":
    main()
