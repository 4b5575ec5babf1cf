"""What stands between a connection and the app: token, sizes, time-outs, clients that leave.

Every request passes here once. Its body is read whole, counted and timed before the app sees it;
the app is ended when the client has left or time is up.
"""

import asyncio
import hmac
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from litbench.serving.batching import Batcher
from litbench.serving.gauges import Gauges
from litbench.serving.limits import Limits, Refusal, problem

logger = logging.getLogger("litbench.serving")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_LEFT = 499
_BUSY_RETRY_S = 1
_STOP_RETRY_S = 5
# Open to all: a load balancer asks it, and it tells nothing of stories.
_OPEN = ("/health",)


class _ClientLeftError(Exception):
    """The connection was closed before its answer."""


class Guard:
    """An ASGI app around another one.

    Attributes:
        held: requests that are read or being answered.
        held_bytes: their bodies together.
    """

    def __init__(
        self,
        app: App,
        batcher: Batcher,
        limits: Limits,
        gauges: Gauges,
        paths: frozenset[str],
        token: str | None = None,
    ) -> None:
        self._app = app
        self._batcher = batcher
        self._limits = limits
        self._gauges = gauges
        self._paths = paths
        self._token = None if token is None else token.encode()
        self.held = 0
        self.held_bytes = 0
        gauges.watch("requests_held", "requests being read or answered", lambda: self.held)
        gauges.watch("held_bytes", "bytes of their bodies", lambda: self.held_bytes)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request; anything but HTTP goes to the app."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        # Only paths that exist: a made-up one would be a label of its own, and may hold anything.
        path = scope["path"] if scope["path"] in self._paths else "other"
        request = _Request(send)
        self.held += 1
        try:
            self._check(scope)
            body = await self._read(scope, receive, request)
            await self._run(scope, receive, request, body)
        except _ClientLeftError:
            request.status = _LEFT
        except Refusal as refusal:
            await request.refuse(refusal)
        except asyncio.CancelledError:
            # Only the end of `stop_s` does that; uvicorn would answer 500, as if this had failed.
            await request.refuse(
                Refusal(
                    503, "the server stopped before it could answer: ask another one", _STOP_RETRY_S
                )
            )
        finally:
            self.held -= 1
            self.held_bytes -= request.bytes
            seconds = time.perf_counter() - started
            self._gauges.requests.labels(path, str(request.status)).inc()
            self._gauges.seconds.labels(path).observe(seconds)
            logger.debug("%s %d in %.1f ms", path, request.status, seconds * 1_000)

    def _check(self, scope: MutableMapping[str, Any]) -> None:
        """Refuse by the head alone."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self._token is not None and scope["path"] not in _OPEN:
            # The scheme is the same in any case of its letters (RFC 9110, section 11.1).
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            right = hmac.compare_digest(given.lstrip(b" "), self._token)
            if scheme.lower() != b"bearer" or not right:
                raise Refusal(
                    401, "no valid token: send the header Authorization: Bearer with the token"
                )
        if scope["method"] != "POST" or scope["path"] not in self._paths:
            return
        self._batcher.check_ready()
        if self.held > self._limits.requests:
            raise Refusal(
                429,
                f"{self._limits.requests:,} requests are being answered: try again later",
                _BUSY_RETRY_S,
            )
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise Refusal(
                415,
                "the body's type must be JSON: send the header Content-Type: application/json",
            )
        if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            raise Refusal(415, "the body is compressed: send it without Content-Encoding")
        length = headers.get(b"content-length", b"")
        if length.isdigit():
            self._check_size(int(length))

    def _check_size(self, size: int) -> None:
        if size > self._limits.body_bytes:
            raise Refusal(
                413,
                f"the body has {size:,} bytes or more, and the limit is "
                f"{self._limits.body_bytes:,}: send fewer stories at once",
            )

    async def _read(
        self, scope: MutableMapping[str, Any], receive: Receive, request: "_Request"
    ) -> bytes:
        """Read the whole body; it is held against the limits until the request ends."""
        if scope["method"] != "POST":
            return b""
        pieces = []
        try:
            async with asyncio.timeout(self._limits.read_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientLeftError
                    piece = message.get("body", b"")
                    pieces.append(piece)
                    request.bytes += len(piece)
                    self.held_bytes += len(piece)
                    self._check_size(request.bytes)
                    if self.held_bytes > self._limits.held_bytes:
                        raise Refusal(
                            429,
                            "the bodies of all requests together are over the limit of "
                            f"{self._limits.held_bytes:,} bytes: try again later",
                            _BUSY_RETRY_S,
                        )
                    if not message.get("more_body", False):
                        return b"".join(pieces)
        except TimeoutError:
            raise Refusal(
                408, f"the body did not arrive within {self._limits.read_s:g} s: send it faster"
            ) from None

    async def _run(
        self, scope: MutableMapping[str, Any], receive: Receive, request: "_Request", body: bytes
    ) -> None:
        """Run the app until it has answered, the client leaves or time is up."""
        rest = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            if rest:
                return rest.pop()
            # Nothing more will come; whoever waits is cancelled when the request ends.
            never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            return await never

        answering = asyncio.ensure_future(self._app(scope, replay, request.send))
        leaving = asyncio.ensure_future(receive())
        both: set[asyncio.Future[Any]] = {answering, leaving}
        try:
            done, _ = await asyncio.wait(
                both,
                timeout=self._limits.timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)
        if answering in done:
            error = answering.exception()
            if error is not None:
                # Where, never what: the message of an error may hold a story.
                frames = "".join(traceback.format_tb(error.__traceback__))
                logger.error("a request failed: %s\n%s", type(error).__name__, frames)
                raise Refusal(500, "the server failed on this request: see its log")
        elif leaving in done:
            raise _ClientLeftError
        else:
            raise Refusal(
                504,
                f"no rewards within {self._limits.timeout_s:g} s: send fewer stories at once, or "
                "try again when the server has less to do",
                self._batcher.seconds_to_wait(),
            )


class _Request:
    """The answer's side of one request."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._started = False
        self.status = _LEFT
        self.bytes = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            self.status = message["status"]
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        if self._started:
            return
        body = json.dumps(problem(refusal.status, str(refusal))).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **refusal.headers(),
        }
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        start = {"type": "http.response.start", "status": refusal.status, "headers": encoded}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": body})
