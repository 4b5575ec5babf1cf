"""Running the app under uvicorn: patient with slow answers, not with slow clients."""

import asyncio
import signal
from types import FrameType
from typing import Any

from litbench.serving.app import Server
from litbench.serving.limits import Limits


def make_uvicorn(server: Server) -> Any:
    """Make the uvicorn server that runs an app until SIGTERM or SIGINT.

    The signal closes the door: nothing new is taken, what is queued is answered, for `stop_s` at
    most. A second SIGINT ends it at once.

    Args:
        server: the model's.

    Returns:
        A uvicorn.Server, to be run on listening sockets.
    """
    import uvicorn  # noqa: PLC0415

    class Stopping(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
            # uvicorn would raise the signal again in the end, and a graceful stop look like a kill.
            server.batcher.stop_taking()
            if self.should_exit and sig == signal.SIGINT:
                self.force_exit = True
            self.should_exit = True

    config = uvicorn.Config(
        server.app,
        http=_impatient(server.limits),
        loop="asyncio",
        ws="none",
        lifespan="on",
        # A path may hold what a client should have put into the body.
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=max(1, round(server.limits.stop_s)),
    )
    return Stopping(config)


def _impatient(limits: Limits) -> type[asyncio.Protocol]:
    """Uvicorn's HTTP, without its patience for clients that connect and then say nothing.

    It closes a connection on which no request is being answered for `read_s`: one whose head does
    not arrive, and one that goes on sending a body which was refused already. It also closes one
    that has taken nothing of its answers for as long.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415

    class Impatient(H11Protocol):
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._be_patient()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._be_patient()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._be_patient()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._patience is not None:
                self._patience.cancel()
            super().connection_lost(exc)

        def _be_patient(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
            self._patience = self.loop.call_later(limits.read_s, self._lose_patience)

        def _lose_patience(self) -> None:
            answering = self.cycle is not None and not self.cycle.response_complete
            if answering and not self.flow.write_paused and not self.transport.is_closing():
                self._be_patient()
            else:
                # Not close(): it would wait for a client that does not read its answer.
                self.transport.abort()

    return Impatient
