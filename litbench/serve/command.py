"""The command `litbench serve`."""

import logging
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveInt

from litbench.evaluation.command import RaterKeys
from litbench.evaluation.scoring import load_scorer
from litbench.runs.errors import ConfigError

_TOKEN = "LITBENCH_SERVE_TOKEN"  # noqa: S105


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
        max_body_bytes: maximum size of a request body.
        max_waiting_stories: maximum stories in a request and in the queue.
        timeout_s: maximum time to answer a request, in seconds.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    allowed_host: list[str] = field(default_factory=list)
    max_body_bytes: PositiveInt = 4 * 2**20
    max_waiting_stories: PositiveInt = 4_096
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
    sizes = (config.max_body_bytes, config.max_waiting_stories)
    limits = server.ServerLimits(*sizes, config.timeout_s)
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
