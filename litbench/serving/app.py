"""The server's app: its paths, and what becomes of errors.

POST /score        rewards, in a form of our own
POST /classify     the same in vLLM's form
POST /get_reward   the same in OpenRLHF's form
GET  /health       ready (200), or loading or stopping (503)
GET  /metrics      for Prometheus
GET  /openapi.json the forms of all of them
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from litbench import __version__
from litbench.models.reward import RewardModel
from litbench.raters import ScoreRater
from litbench.serving import forms
from litbench.serving.batching import Batcher
from litbench.serving.gauges import Gauges
from litbench.serving.guard import Guard
from litbench.serving.joined import Joint
from litbench.serving.limits import Limits, Refusal, problem

_PATHS = frozenset({"/score", "/classify", "/get_reward", "/health", "/metrics", "/openapi.json"})
# Of a body with many errors the first ones tell enough.
_MOST_ERRORS = 3
_LONGEST_PLACE = 80


class Server:
    """One model behind HTTP.

    Attributes:
        app: the ASGI app.
        batcher: its queue and model.
        gauges: its metrics.
        name: of the model, in answers.
    """

    def __init__(
        self,
        load: Callable[[], ScoreRater],
        name: str,
        *,
        limits: Limits | None = None,
        token: str | None = None,
        ends: Sequence[str] = (),
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Make a server; the model is loaded when the app starts.

        Args:
            load: loads the model; runs in the thread that is to own it.
            name: of the model.
            limits: how much it takes on.
            token: without it a request is refused; None for no token.
            ends: tokens that a policy's tokenizer writes around its text, in /get_reward.
            failed: called when the model could not be loaded; `batcher.failure` says why.
        """
        self.name = name
        self.limits = limits or Limits()
        self.gauges = Gauges()
        self.batcher = Batcher(self._prepare, self.limits, self.gauges)
        self._load = load
        self._ends = list(ends)
        self._failed = failed
        self._joint = Joint()
        self.app = Guard(self._paths(), self.batcher, self.limits, self.gauges, _PATHS, token)

    @asynccontextmanager
    async def _lifespan(self, _app: Any) -> AsyncIterator[None]:
        running = asyncio.create_task(self.batcher.run())
        running.add_done_callback(self._ended)
        try:
            yield
        finally:
            self.batcher.stop_taking()
            running.cancel()
            await asyncio.wait({running})
            self.batcher.close()

    def _ended(self, running: "asyncio.Task[None]") -> None:
        if running.cancelled():
            return
        self.batcher.failure = running.exception()
        self.batcher.state = "failed"
        if self._failed is not None:
            self._failed()

    async def _score(
        self, prompts: Sequence[str], stories: Sequence[str], *, empty: bool = False
    ) -> list[float]:
        forms.check_texts(prompts, stories, self.limits, empty=empty)
        return await self.batcher.score(prompts, stories)

    def _prepare(self) -> ScoreRater:
        """Load the model and ask its tokenizer, in the one thread that may use it."""
        rater = self._load()
        silence(rater)
        self._joint = Joint.of(rater)
        own = rater.tokenizer.all_special_tokens if isinstance(rater, RewardModel) else []
        self._ends = sorted({*self._ends, *own}, key=len, reverse=True)
        return rater

    def _paths(self) -> Any:
        from fastapi import FastAPI  # noqa: PLC0415
        from fastapi.exceptions import RequestValidationError  # noqa: PLC0415
        from fastapi.responses import JSONResponse, Response  # noqa: PLC0415
        from prometheus_client import CONTENT_TYPE_LATEST  # noqa: PLC0415
        from starlette.exceptions import HTTPException  # noqa: PLC0415

        app = FastAPI(
            title="LitBench scores",
            version=__version__,
            # The pages would load scripts from elsewhere.
            docs_url=None,
            redoc_url=None,
            # They would lead to whatever host a client names.
            redirect_slashes=False,
            lifespan=self._lifespan,
        )

        async def answer_refusal(_request: Any, error: Any) -> JSONResponse:
            return JSONResponse(
                problem(error.status, str(error)), error.status, headers=error.headers()
            )

        async def answer_invalid(_request: Any, error: Any) -> JSONResponse:
            status = 400 if error.errors()[0]["type"] == "json_invalid" else 422
            return JSONResponse(problem(status, explain(error.errors())), status)

        async def answer_http(_request: Any, error: Any) -> JSONResponse:
            # FastAPI's own 400 is for a body that Python's JSON parser gave up on.
            words = {
                400: "the body is no valid JSON: check it with a JSON parser",
                404: f"no such path: there are {', '.join(sorted(_PATHS))}",
                405: "this path takes another method: POST for rewards, GET for the rest",
            }
            message = words.get(error.status_code, str(error.detail))
            return JSONResponse(
                problem(error.status_code, message), error.status_code, headers=error.headers
            )

        async def answer_failure(_request: Any, _error: Any) -> JSONResponse:
            return JSONResponse(problem(500, "the server failed on this request: see its log"), 500)

        app.add_exception_handler(Refusal, answer_refusal)
        app.add_exception_handler(RequestValidationError, answer_invalid)
        app.add_exception_handler(HTTPException, answer_http)
        app.add_exception_handler(Exception, answer_failure)

        @app.post("/score")
        async def score(body: forms.ScoreRequest) -> forms.ScoreResponse:
            """Score stories; rewards can be compared within a prompt only."""
            return forms.ScoreResponse(
                model=self.name,
                rewards=await self._score(*body.texts()),
                comparable="within a prompt",
            )

        @app.post("/classify")
        async def classify(body: forms.ClassifyRequest) -> forms.ClassifyResponse:
            """Score stories in the form of vLLM's classification API."""
            if body.model not in (None, self.name):
                raise Refusal(
                    404, f"body.model: there is no such model here: give {self.name} or none"
                )
            rewards = await self._score(*body.texts(self._joint))
            activation = body.use_activation is not False
            return forms.ClassifyResponse.of(rewards, self.name, activation=activation)

        @app.post("/get_reward")
        async def get_reward(body: forms.GetRewardRequest) -> forms.GetRewardResponse:
            """Score stories in the form of OpenRLHF's remote reward models."""
            prompts, stories = body.texts(self._ends)
            return forms.GetRewardResponse.of(await self._score(prompts, stories, empty=True))

        @app.get("/health")
        async def health() -> JSONResponse:
            """Whether the server takes stories."""
            state = self.batcher.state
            kind = None if self.batcher.rater is None else self.batcher.rater.kind
            found = {"status": state, "model": self.name, "kind": kind, "version": __version__}
            return JSONResponse(found, 200 if state == "ready" else 503)

        @app.get("/metrics")
        async def metrics() -> Response:
            """Metrics in Prometheus' text form."""
            return Response(self.gauges.text(), media_type=CONTENT_TYPE_LATEST)

        return app


def silence(rater: ScoreRater) -> None:
    """Let a rater show no progress: every batch would flicker."""
    if isinstance(rater, RewardModel):
        rater.shows_progress = False


def explain(errors: Sequence[Any]) -> str:
    """What is wrong with a body and where, without what stood there."""
    found = []
    for error in errors[:_MOST_ERRORS]:
        place = ".".join(map(str, error["loc"]))[:_LONGEST_PLACE]
        found.append(f"{place}: {error['msg']}")
    rest = len(errors) - len(found)
    more = f"; and {rest:,} more" if rest > 0 else ""
    return f"{'; '.join(found)}{more}: see /openapi.json for what a request looks like"
