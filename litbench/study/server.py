"""The page of a study: server-rendered HTML forms, without scripts.

GET  /            consent; a known reader goes on where they were
POST /start       a reader gives consent
GET  /read        the reader's next page: statements, a pair, a check, a question, or the end
POST /statements  answers to the statements about the instructions
POST /answer      the answer of one page
POST /leave       the reader stops

The first answer of a page binds, and a POST that is accepted redirects to /read, so that a reload,
a second tab or a double click changes nothing. Logs contain no story, no choice and no id.
"""

import asyncio
import hmac
import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import jinja2
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from litbench.server import log_error
from litbench.study.plan import PAGES, Study
from litbench.study.store import Page, Store

COOKIE = "reader"
_READER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_BYTES, _MOST_FIELDS, _MOST_REASON = 64 * 1024, 64, 2_000
_READ_SECONDS = 10
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    # Going back asks the server, which shows the page that is next.
    "cache-control": "no-store",
}


@dataclass
class Guard:
    """Adds the security headers, and answers errors without what they say."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        has_started = False

        async def add_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        try:
            await self.app(scope, receive, add_headers)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - any error of the application
            log_error("a request failed", error)
            if not has_started:
                text = "Something went wrong. Please reload the page: your answers are kept."
                await Response(text, 500)(scope, receive, add_headers)


def signed(store: Store, reader: str) -> str:
    """The value of a reader's cookie."""
    return f"{reader}.{store.sign('cookie', reader)}"


def reader_of(request: Request, store: Store) -> str | None:
    """The reader whose signed id the cookie holds; None without a valid one."""
    reader, _, signature = request.cookies.get(COOKIE, "").rpartition(".")
    expected = store.sign("cookie", reader)
    return reader if hmac.compare_digest(signature.encode(), expected.encode()) else None


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; HTTPException for what no browser sends from our pages."""
    # Browsers tell where a form came from; others cannot hold a cookie of the reader.
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise HTTPException(403, "This form came from another site.")
    body = bytearray()
    try:
        async with asyncio.timeout(_READ_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise HTTPException(413, "This is too long. Please shorten it.")
    except TimeoutError:
        raise HTTPException(408, "The answer did not arrive. Please send it again.") from None
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise HTTPException(400, "This form cannot be read.") from None
    return dict(pairs)


def valid_id(text: str) -> str:
    """A reader's id as it came; HTTPException if it is none."""
    if not _READER.fullmatch(text):
        raise HTTPException(400, "This address has no valid id. Please use the link you were sent.")
    return text


def make_app(study: Study, store: Store, allowed_hosts: Sequence[str]) -> ASGIApp:
    """Create the ASGI application; `allowed_hosts` are accepted values of the Host header."""
    plan = study.plan
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True,
        loader=jinja2.FileSystemLoader(PAGES), undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.globals["plan"] = plan
    environment.filters["paragraphs"] = lambda text: re.split(r"\n\s*\n", text.strip())
    styles = (
        PAGES.parent.parent.joinpath("report", "style.css"),
        PAGES / "study.css",
    )
    style = "\n".join(path.read_text(encoding="utf-8") for path in styles)
    app = FastAPI(title=plan.title, openapi_url=None)

    def page(name: str, status: int = 200, **values: Any) -> HTMLResponse:
        text = environment.get_template(f"{name}.html").render(values)
        return HTMLResponse(text, status)

    def message(heading: str, text: str, status: int = 200) -> HTMLResponse:
        return page("message", status, heading=heading, text=text)

    async def http_error(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return message("This did not work", error.detail, error.status_code)

    app.add_exception_handler(HTTPException, http_error)

    def go_on() -> RedirectResponse:
        return RedirectResponse("/read", 303)

    def with_cookie(response: Response, request: Request, reader: str) -> Response:
        # A session cookie: no age.
        response.set_cookie(
            COOKIE, signed(store, reader), httponly=True, samesite="lax",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return response

    def known_reader(request: Request) -> str:
        reader = reader_of(request, store)
        if reader is None:
            raise HTTPException(403, "Please open the link you were sent, and allow cookies.")
        return reader

    def check_open() -> None:
        if store.is_closed:
            raise HTTPException(403, "This study is closed. Thank you for your interest.")

    @app.get("/style.css")
    async def read_style() -> Response:
        return Response(style, media_type="text/css")

    @app.get("/")
    async def consent(request: Request) -> Response:
        given = request.query_params.get(plan.id_parameter)
        if given is None:
            if reader_of(request, store) is not None:
                return go_on()
            if plan.requires_id:
                raise HTTPException(400, "This address has no id. Please use the link you got.")
            # Made here, not when the form arrives: a double click then starts one reader.
            given = f"made-{secrets.token_urlsafe(12)}"
        elif store.state(valid_id(given)) is not None:
            return with_cookie(go_on(), request, given)
        check_open()
        return page("consent", reader=given)

    @app.post("/start")
    async def start(request: Request) -> Response:
        form = await read_form(request)
        check_open()
        reader = valid_id(form.get("reader", ""))
        if form.get("agree") != "yes":
            return page("consent", 422, reader=reader)
        store.start(reader)
        return with_cookie(go_on(), request, reader)

    @app.get("/read")
    async def read(request: Request) -> Response:
        return next_page(known_reader(request))

    def next_page(reader: str) -> Response:
        state = store.state(reader)
        if state is None:
            return RedirectResponse("/", 303)
        if state == "finished":
            return page("end")
        check_open()
        if state == "consented":
            return page("statements", is_wrong=False)
        shown = store.next_page(reader)
        if shown is not None:
            return show(shown)
        if store.state(reader) == "finished":
            return page("end")
        if state == "failed":
            text = "Some statements about the instructions were not answered right."
            return message("Thank you", f"{text} You cannot take part in this study.")
        return message("Thank you", "The study has enough readers at the moment.")

    def show(
        shown: Page, status: int = 200, wait: float = 0, choice: str = "", reason: str = ""
    ) -> Response:
        values = {"page": shown, "wait": math.ceil(wait), "choice": choice, "reason": reason}
        if shown.kind == "question":
            return page("question", status, asked=plan.questions[shown.pair_id], **values)
        assert shown.order is not None
        first, second = study.sides(shown.pair_id, shown.kind, shown.order)
        least = math.ceil(study.least_seconds(shown.pair_id))
        prompt = study.by_id[shown.pair_id]["prompt"]
        stories = [("first", "Story A", first), ("second", "Story B", second)]
        return page(
            "pair", status, stories=stories, prompt=prompt, least=least, most=_MOST_REASON, **values
        )

    @app.post("/statements")
    async def statements(request: Request) -> Response:
        form, reader = await read_form(request), known_reader(request)
        check_open()
        are_right = all(
            form.get(f"statement{at}") == ("true" if one.is_true else "false")
            for at, one in enumerate(plan.statements)
        )
        store.try_statements(reader, are_right=are_right)
        if store.state(reader) == "consented":
            return page("statements", 422, is_wrong=True, left=store.attempts_left(reader))
        return go_on()

    @app.post("/answer")
    async def answer(request: Request) -> Response:
        form, reader = await read_form(request), known_reader(request)
        check_open()
        if store.state(reader) != "reading":
            # Away for long, or done in another tab.
            return go_on()
        # Forms send a line break as two characters.
        reason = form.get("reason", "").replace("\r\n", "\n").strip() or None
        if reason is not None and len(reason) > _MOST_REASON:
            raise HTTPException(413, f"A reason may have {_MOST_REASON:,} letters.")
        place = form.get("place", "")
        try:
            if not (place.isascii() and place.isdigit() and len(place) < 6):
                raise ValueError
            wait = store.answer(reader, int(place), form.get("choice", ""), reason)
        except ValueError:
            raise HTTPException(
                400, "This answer belongs to no page of yours. Please go back to the study."
            ) from None
        shown = store.next_page(reader) if wait else None
        if shown is None:
            return go_on()
        return show(shown, 422, wait, form.get("choice", ""), reason or "")

    @app.post("/leave")
    async def leave(request: Request) -> Response:
        await read_form(request)
        store.leave(known_reader(request))
        text = "You have left the study. To take it up again, open the link you were sent."
        return message("Thank you", f"{text} To have your answers removed, write to {plan.contact}")

    return TrustedHostMiddleware(Guard(app), list(allowed_hosts), www_redirect=False)
