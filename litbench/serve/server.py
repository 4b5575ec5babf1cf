"""The scoring server: one model behind HTTP.

GET  /             a page for trying the model
POST /score        rewards
POST /classify     rewards in the format of vLLM's classification API
GET  /health       200 once the model is loaded
GET  /metrics      Prometheus metrics
GET  /openapi.json the schemas of requests and responses

Stories of concurrent requests share batches. Logs, metrics and errors never contain a story.
"""

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import logging
import math
import re
import socket
import time
import traceback
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal

import prometheus_client as prometheus
import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from litbench import __version__
from litbench.raters.interface import ScoreRater, check_stories
from litbench.runs.errors import ConfigError, DataError

logger = logging.getLogger("litbench.serve.server")

_PATHS = ("/", "/score", "/classify", "/health", "/metrics", "/openapi.json")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_CLIENT_LEFT = 499
# Below the usual limit of 1,024 open files per process.
_MAX_CONNECTIONS = 512
# What remains of a JSON text without its strings is its structure.
_STRING_OR_SPACE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|\s+', re.DOTALL)
# A story takes two commas, one of which follows its prompt.
_STRUCTURE_PER_STORY, _STRUCTURE = 2, 1_024
# The rest of a refused body is not read, so the connection must be closed.
_CLOSE = {"connection": "close"}
_BATCH_TOKENS = 4_096
# Forward passes: enough to sort stories by length, few enough not to delay the next request.
_PASSES_PER_BATCH = 4

_PAGE = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")


def _hash_of(tag: str) -> str:
    content = _PAGE.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


# The page runs its own script and style, and talks to this server only.
_PAGE_POLICY = (
    f"default-src 'none'; script-src {_hash_of('script')}; style-src {_hash_of('style')}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class ServerLimits:
    """Limits on requests, on the queue and on time.

    Attributes:
        max_body_bytes: maximum size of a request body, in bytes.
        max_waiting_stories: maximum number of stories in a request, and in the queue.
        timeout_s: maximum time to answer a request once it is received, in seconds.
    """

    max_body_bytes: int = 4 * 2**20
    max_waiting_stories: int = 4_096
    timeout_s: float = 60


class Metrics:
    """Prometheus metrics of one server, in their own registry."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        common: dict[str, Any] = {"namespace": "litbench", "registry": self.registry}
        about = "requests; status 499: the client disconnected"
        self.requests = prometheus.Counter("requests", about, ["path", "status"], **common)
        self.seconds = prometheus.Histogram(
            "request_seconds", "time of a request", ["path"], **common
        )
        self.waiting = prometheus.Gauge("queue_stories", "stories in the queue", **common)
        self.failures = prometheus.Counter(
            "model_failures", "batches on which the model failed", **common
        )


@dataclass(eq=False)
class _Story:
    prompt: str
    text: str
    tokens: int
    reward: "asyncio.Future[float]"


class Batcher:
    """Scores the stories of concurrent requests in batches, to which the requests take turns."""

    def __init__(self, rater: ScoreRater, limits: ServerLimits, metrics: Metrics) -> None:
        self._rater = rater
        self._max_stories = limits.max_waiting_stories
        self._failures = metrics.failures
        self._batch_tokens = _PASSES_PER_BATCH * getattr(rater, "batch_tokens", _BATCH_TOKENS)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="litbench-model")
        # The waiting stories of each request.
        self._queue: deque[deque[_Story]] = deque()
        self._running: asyncio.Task[None] | None = None
        metrics.waiting.set_function(lambda: self._waiting)

    async def score(self, prompts: Sequence[str], stories: Sequence[str]) -> list[float]:
        """Return the rewards of stories, shape (n,); cancelling removes them from the queue."""
        if not 0 < len(stories) <= self._max_stories:
            raise HTTPException(422, f"{len(stories):,} stories: send 1 to {self._max_stories:,}")
        self.check_room(len(stories))
        loop, queued = asyncio.get_running_loop(), deque[_Story]()
        for prompt, text in zip(prompts, stories, strict=True):
            try:
                tokens = 8 + len((prompt + text).encode()) // 4
            except UnicodeEncodeError as error:
                raise HTTPException(
                    422, "a text has a lone surrogate: send valid Unicode"
                ) from error
            queued.append(_Story(prompt, text, tokens, loop.create_future()))
        try:
            check_stories(stories)
        except DataError as error:
            raise HTTPException(422, str(error)) from error
        self._queue.append(queued)
        rewards = [story.reward for story in queued]
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        try:
            return await asyncio.gather(*rewards)
        finally:
            for reward in rewards:
                reward.cancel()
            queued.clear()

    def check_room(self, stories: int = 1) -> None:
        """Raise HTTPException (503) if the queue has no room for `stories` more."""
        if self._waiting + stories > self._max_stories:
            message = f"{self._waiting:,} stories are waiting for the model: try again later"
            raise HTTPException(503, message, {"retry-after": "1", **_CLOSE})

    @property
    def _waiting(self) -> int:
        return sum(map(len, self._queue))

    async def _run(self) -> None:
        while batch := self._next_batch():
            await self._score(batch)

    def _next_batch(self) -> list[_Story]:
        """Take one story of each request in turn until the batch is full."""
        batch: list[_Story] = []
        room = self._batch_tokens
        while self._queue:
            request = self._queue.popleft()
            # Empty if the client has left.
            if request:
                room -= request[0].tokens
                if batch and room < 0:
                    self._queue.appendleft(request)
                    break
                batch.append(request.popleft())
                self._queue.append(request)
        return batch

    async def _score(self, batch: Sequence[_Story]) -> None:
        """Score a batch in the model's thread and set each story's reward or error."""
        prompts, texts = [story.prompt for story in batch], [story.text for story in batch]
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(self._thread, self._rater.score, prompts, texts)
        await asyncio.wait({call})
        rewards = [math.nan]
        if (error := call.exception()) is None:
            rewards = call.result().tolist()
        else:
            self._failures.inc()
            log_error(f"the model failed on {len(batch)} stories", error)
            if len(batch) > 1:
                # Retry one by one: one bad story must not fail the others.
                for story in batch:
                    await self._score([story])
                return
        for story, reward in zip(batch, rewards, strict=True):
            if story.reward.done():
                continue
            if math.isfinite(reward):
                story.reward.set_result(reward)
            else:
                message = "the model failed, or a reward is not finite: see the server's log"
                story.reward.set_exception(HTTPException(500, message))


def log_error(what: str, error: BaseException | None) -> None:
    """Log where an error happened, without its message, which may contain a story."""
    frames = "" if error is None else "".join(traceback.format_tb(error.__traceback__))
    logger.error("%s: %s\n%s", what, type(error).__name__, frames)


async def read_body(receive: Receive, limits: ServerLimits) -> bytes:
    """Read the body of a request; HTTPException if it is too long."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > limits.max_body_bytes:
            limit = f"{limits.max_body_bytes:,} bytes"
            raise HTTPException(413, f"the body is over {limit}: send less", _CLOSE)
        if not message.get("more_body", False):
            return bytes(body)


def check_json(scope: Scope, body: bytes, limits: ServerLimits) -> None:
    """Refuse a body that is not called JSON, or has more values than the stories need.

    A value takes up to a hundred times its length in memory once it is parsed.
    """
    form = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    if form != "application/json":
        raise HTTPException(415, "send the header Content-Type: application/json")
    most = limits.max_waiting_stories
    structure = len(_STRING_OR_SPACE.sub(b"", body))
    if structure > _STRUCTURE + _STRUCTURE_PER_STORY * most:
        raise HTTPException(422, f"the body has too many values: send 1 to {most:,} stories")


@dataclass
class Middleware:
    """Checks host and token, enforces the limits, cancels abandoned requests, counts requests."""

    app: ASGIApp
    batcher: Batcher
    limits: ServerLimits
    metrics: Metrics
    token: str | None
    allowed_hosts: Sequence[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        path = scope["path"] if scope["path"] in _PATHS else "other"
        status = 0

        async def note_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            self._check_host(scope)
            self._authorize(scope)
            if scope["method"] == "POST":
                self.batcher.check_room()
            body = await read_body(receive, self.limits)
            if scope["method"] == "POST" and path != "other":
                check_json(scope, body, self.limits)
            if scope["method"] == "HEAD":
                # uvicorn sends no body.
                scope = {**scope, "method": "GET"}
            await self._respond(scope, body, receive, note_status)
        except ClientDisconnect:
            status = status or _CLIENT_LEFT
        except HTTPException as error:
            # A response that has started cannot be replaced by an error.
            if not status:
                await error_response(scope, error)(scope, receive, note_status)
        finally:
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - started)

    def _check_host(self, scope: Scope) -> None:
        host = re.sub(r":\d*$", "", Headers(scope=scope).get("host", "")).lower()
        if not {"*", host} & {name.lower() for name in self.allowed_hosts}:
            reason = "the server does not accept this Host header: start it with --allowed_host"
            raise HTTPException(400, reason, _CLOSE)

    def _authorize(self, scope: Scope) -> None:
        # The page asks for the token and sends it to /score.
        if self.token is None or scope["path"] in ("/", "/health"):
            return
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        valid = hmac.compare_digest(token.strip().encode(), self.token.encode())
        if scheme.lower() != "bearer" or not valid:
            headers = {"www-authenticate": "Bearer", **_CLOSE}
            raise HTTPException(401, "send the header Authorization: Bearer TOKEN", headers)

    async def _respond(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        async def replay() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        response = asyncio.ensure_future(self.app(scope, replay, send))
        # After the body, the only message that can arrive is the disconnect.
        disconnect = asyncio.ensure_future(receive())
        disconnect.add_done_callback(lambda _: response.cancel())
        try:
            await asyncio.wait_for(response, self.limits.timeout_s)
        except TimeoutError:
            reason = f"no rewards within {self.limits.timeout_s:g} s: send less, or try later"
            raise HTTPException(504, reason) from None
        except asyncio.CancelledError:
            if disconnect.done():
                raise ClientDisconnect from None
            raise
        except Exception as error:  # noqa: BLE001 - any error of the application
            log_error("a request failed", error)
        finally:
            disconnect.cancel()


def error_response(_request: Any, error: Any) -> JSONResponse:
    """Return an HTTPException, or the first error of a body, in the format of vLLM and OpenAI."""
    if isinstance(error, RequestValidationError):
        # Without its value, which FastAPI would include.
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))[:80]
        error = HTTPException(422, f"{where}: {first['msg']}: see /openapi.json")
    kind = HTTPStatus(error.status_code).phrase.title().replace(" ", "")
    content = {"message": error.detail, "type": kind, "code": error.status_code}
    return JSONResponse({"error": content}, error.status_code, error.headers)


# Stop at the first invalid entry: a body can contain a million of them.
_Texts = Annotated[list[str], Field(fail_fast=True)]


class ScoreRequest(BaseModel):
    """Stories with one prompt for all of them, or with a list of one prompt per story."""

    prompt: str | _Texts
    stories: _Texts


class TextPart(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Turn(BaseModel):
    """A message, whose text may come in parts; vLLM, too, puts each on a line."""

    content: str | Annotated[list[TextPart], Field(fail_fast=True)]

    def text(self) -> str:
        parts = self.content
        return parts if isinstance(parts, str) else "\n".join(part.text for part in parts)


class UserTurn(Turn):
    """The prompt."""

    role: Literal["user"]


class AssistantTurn(Turn):
    """The story."""

    role: Literal["assistant"]


class ClassifyRequest(BaseModel):
    """A conversation in the format of vLLM's /classify."""

    messages: tuple[UserTurn, AssistantTurn]
    use_activation: bool | None = None


def make_app(
    rater: ScoreRater,
    name: str,
    limits: ServerLimits,
    *,
    token: str | None = None,
    allowed_hosts: Sequence[str] = _LOCAL_HOSTS,
) -> ASGIApp:
    """Create the ASGI application.

    Args:
        rater: scores the stories.
        name: name of the model in responses.
        limits: limits on requests, on the queue and on time.
        token: bearer token required by all requests except / and /health; None for no
            authentication.
        allowed_hosts: accepted values of the Host header; "*" for any.
    """
    metrics = Metrics()
    batcher = Batcher(rater, limits, metrics)
    if hasattr(rater, "shows_progress"):
        rater.shows_progress = False
    # The documentation pages load scripts from other sites.
    app = FastAPI(title="LitBench", version=__version__, docs_url=None, redoc_url=None)
    for kind in (HTTPException, RequestValidationError):
        app.add_exception_handler(kind, error_response)

    @app.post("/score")
    async def score(body: ScoreRequest) -> dict[str, Any]:
        """Rewards in the order of the stories, comparable within a prompt only."""
        prompts = body.prompt
        if isinstance(prompts, str):
            prompts = [prompts] * len(body.stories)
        if len(prompts) != len(body.stories):
            raise HTTPException(
                422, "body: prompt and stories have different lengths: send one prompt per story"
            )
        rewards = await batcher.score(prompts, body.stories)
        percentiles = rater.percentiles(rewards)
        # In a thread, as a pass over thousands of stories takes seconds.
        flags = await asyncio.to_thread(rater.flags, body.stories)
        return {
            "model": name,
            "rewards": rewards,
            "reward_percentiles": None if percentiles is None else percentiles.tolist(),
            **vars(flags),
            "comparable": "within a prompt",
        }

    @app.post("/classify")
    async def classify(body: ClassifyRequest) -> dict[str, Any]:
        """The reward, or its sigmoid where vLLM gives that by the model's config."""
        prompt, story = body.messages
        (reward,) = await batcher.score([prompt.text()], [story.text()])
        if rater.applies_sigmoid and body.use_activation is not False:
            # 1 / (1 + exp(-reward)), in a form that does not overflow.
            reward = (1 + math.tanh(reward / 2)) / 2
        data = [{"index": 0, "label": "LABEL_0", "probs": [reward], "num_classes": 1}]
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        return {"object": "list", "model": name, "data": data, "usage": usage}

    @app.get("/", include_in_schema=False)
    async def show_page() -> Response:
        return HTMLResponse(_PAGE, headers={"content-security-policy": _PAGE_POLICY})

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ready", "model": name, "kind": rater.kind, "version": __version__}

    @app.get("/metrics")
    async def read_metrics() -> Response:
        text = prometheus.generate_latest(metrics.registry)
        return Response(text, media_type=prometheus.CONTENT_TYPE_LATEST)

    return Middleware(app, batcher, limits, metrics, token, allowed_hosts)


def make_server(app: ASGIApp, limits: ServerLimits, host: str, port: int) -> uvicorn.Server:
    """Create the uvicorn server of `make_app` or of a study.

    On shutdown it still answers accepted requests.
    """
    config = uvicorn.Config(
        # uvicorn opens the socket, not we: asyncio then sets TCP_NODELAY, without which a response
        # on a keep-alive connection waits 40 ms for the client's delayed ACK. No access log: a
        # client may have put a story into the path.
        app,
        host=host,
        port=port,
        http="h11",
        loop="asyncio",
        ws="none",
        lifespan="off",
        access_log=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=math.ceil(limits.timeout_s),
    )
    return uvicorn.Server(config)


def check_address(host: str, port: int) -> None:
    """Raise a ConfigError if no server can listen here; before a model is loaded for nothing."""
    try:
        for family, *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            socket.create_server((address[0], port), family=family).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on {host}, port {port} ({error}): give another --port, or a --host of "
            "this machine"
        ) from error


def accepted_hosts(host: str, allowed: Sequence[str]) -> list[str]:
    """Return the values of the Host header to accept when listening on `host`.

    On a loopback address these are local names and `allowed`. Otherwise a web page could reach the
    server through a domain that resolves to 127.0.0.1 (DNS rebinding).
    """
    return [host, *_LOCAL_HOSTS, *allowed] if is_loopback(host) or allowed else ["*"]


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
