"""`litbench serve`: put a model behind HTTP."""

import argparse
import contextlib
import ipaddress
import logging
import os
import resource
import socket
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from litbench.errors import ConfigError, MissingExtraError
from litbench.raters import RaterSpec
from litbench.scoring import load_scorer, scorer_entry, scorer_spec
from litbench.serving.limits import Limits

_TOKEN = "LITBENCH_SERVE_TOKEN"  # noqa: S105
_BACKLOG = 2_048
_MOST_PORT = 65_535
_MOST_FILES = 65_536
_HELP = {
    "body_bytes": "most bytes of a request",
    "held_bytes": "most bytes of all requests together",
    "requests": "most requests at once",
    "stories": "most stories of a request",
    "story_characters": "most characters of a story or prompt",
    "waiting_stories": "most stories in the queue",
    "batch_tokens": "about how many tokens the model gets at once; default: 4 forward passes",
    "wait_ms": "how long an idle model waits for more stories, in ms",
    "timeout_s": "longest time to an answer, in seconds",
    "read_s": "longest time for a client to send its request, in seconds",
    "stop_s": "longest time for what is queued after SIGTERM, in seconds",
}


def add_parser(commands: Any) -> None:
    """Add `serve` to the litbench command.

    Args:
        commands: what `add_subparsers` of argparse returned.
    """
    parser = commands.add_parser(
        "serve",
        help="score stories over HTTP",
        description="Score stories over HTTP; see docs/serving.md. A token that clients must send "
        f"stands in the environment variable {_TOKEN}.",
    )
    parser.add_argument("--model", help="model folder, or a name on the Hub")
    parser.add_argument(
        "--rater", help="instead: any rater with rewards, as in a config: '{kind: longer}'"
    )
    parser.add_argument("--name", help="of the model in answers; default: the folder's name")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine only")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000; 0: any free one")
    parser.add_argument("--device", help="such as cuda or cpu")
    parser.add_argument(
        "--end-token", action="append", default=[], metavar="TEXT",
        help="cut off around a policy's text in /get_reward, beside the model's own special "
        "tokens; may be repeated",
    )  # fmt: skip
    for field in fields(Limits):
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            type=float if field.name.endswith(("_s", "_ms")) else int,
            default=field.default,
            help=_HELP[field.name] + ("" if field.default is None else "; default: %(default)s"),
        )
    parser.add_argument("--verbose", action="store_true", help="log each request, without texts")
    parser.set_defaults(run=serve)


def serve(arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ConfigError: options that do not fit.
        MissingExtraError: fastapi, uvicorn or prometheus-client is not installed.
        LitBenchError: the model cannot be loaded.
    """
    limits = Limits(**{field.name: getattr(arguments, field.name) for field in fields(Limits)})
    spec = _spec(arguments)
    token = _token()
    if token is None and not _is_local(arguments.host):
        print(
            f"warning: anyone who reaches {arguments.host} can use this server: set {_TOKEN}, or "
            "bind to 127.0.0.1",
            file=sys.stderr,
        )
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    level = logging.DEBUG if arguments.verbose else logging.INFO
    logging.getLogger("litbench.serving").setLevel(level)
    name = arguments.name
    if name is None:
        # Also of a folder that is given as "." or "..".
        name = spec.kind if arguments.model is None else Path(arguments.model).resolve().name
    try:
        import fastapi  # noqa: F401, PLC0415
        import prometheus_client  # noqa: F401, PLC0415
        import uvicorn  # noqa: F401, PLC0415
    except ImportError as error:
        raise MissingExtraError(str(error.name), "serve") from error

    from litbench.serving.app import Server  # noqa: PLC0415
    from litbench.serving.connections import make_uvicorn  # noqa: PLC0415

    def stop() -> None:
        running.should_exit = True

    server = Server(
        partial(load_scorer, spec),
        name,
        limits=limits,
        token=token,
        ends=arguments.end_token,
        failed=stop,
    )
    _raise_file_limit()
    with _listen(arguments.host, arguments.port) as listener:
        running = make_uvicorn(server)
        address, port = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        print(f"{name}: http://{shown}:{port}, loading the model", file=sys.stderr, flush=True)
        running.run([listener])
    if server.batcher.failure is not None:
        raise server.batcher.failure


def _raise_file_limit() -> None:
    """Let the process hold as many connections as the system lets it.

    Most shells stop at 1,024 open files. Idle clients, each of which costs a few kilobytes, would
    fill them and make all others wait until `read_s` is over.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if most == resource.RLIM_INFINITY else min(most, _MOST_FILES)
    if now == resource.RLIM_INFINITY or now >= wanted:
        return
    # A system may say that there is no limit and have one; then the usual one has to do.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _listen(host: str, port: int) -> socket.socket:
    """Bind before the model is loaded, which may take minutes.

    Raises:
        ConfigError: another program has the port, or the address is not this machine's.
    """
    if not 0 <= port <= _MOST_PORT:
        raise ConfigError(f"--port is {port}: give one up to {_MOST_PORT}, or 0 for any free one")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error}): is the port free, and the address this "
            "machine's?"
        ) from error


def _spec(arguments: argparse.Namespace) -> RaterSpec:
    if (arguments.model is None) == (arguments.rater is None):
        raise ConfigError("give --model FOLDER, or --rater with a rater's entry: one of the two")
    if arguments.model is not None:
        return scorer_spec(scorer_entry(arguments.model, device=arguments.device))
    if arguments.device is not None:
        raise ConfigError("--device goes with --model: write it into the entry after --rater")
    try:
        entry = yaml.safe_load(arguments.rater)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--rater is no YAML ({error}): write it as '{{kind: longer}}'"
        ) from error
    return scorer_spec(entry)


def _token() -> str | None:
    """The token of the environment; never shown anywhere.

    Raises:
        ConfigError: it is empty, or cannot stand in a header.
    """
    token = os.environ.get(_TOKEN)
    if token is None:
        return None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{_TOKEN} is empty, or has spaces or other than ASCII letters and signs, which no "
            "header can carry: set another, or unset it for a server without token"
        )
    return token


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
