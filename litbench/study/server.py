"""The page of a study: server-rendered HTML forms, without scripts.

GET  /            consent; a known reader resumes
POST /start       a reader gives consent
GET  /read        the reader's next page: statements, a pair, a story, a check, or the end;
                  with ?page=N a story of the same group, to change its ratings
POST /statements  answers to the statements about the instructions
POST /answer      the answer of one page
POST /turn        in a session, what the reader does; GET /read then waits for the writer
POST /retry       tries again to ask a writer that failed

The first answer of a page counts (of ratings, the last before their group is submitted), and a POST
that is accepted redirects to /read, so that a reload, a second tab or a double click changes
nothing. A form is signed for its reader and page, so that a tab of another reader in the same
browser answers for nobody. Logs contain no story, no choice and no id.

Handlers run in a thread, one at a time, because the store waits for the disk and for other
programs; requests wait for their turn, and are told after a while that the study is busy. Sessions
run in the event loop.
"""

import asyncio
import hmac
import math
import re
import secrets
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import jinja2
from anyio import from_thread
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request

from litbench.runs.errors import LitBenchError
from litbench.serve.server import ServerLimits, log_error, read_body
from litbench.study.plan import ID_PARAMETER, PAGES, READER_ID
from litbench.study.ratings import IncompleteError
from litbench.study.sessions import Play, SessionStore, SessionStudy, action_of
from litbench.study.store import ReaderPage, Store

COOKIE = "reader"
_LIMITS = ServerLimits(max_body_bytes=64 * 1024)
_MAX_FIELDS, _MAX_REASON, _MAX_TURN = 64, 2_000, 4_000
# How long a request waits for its turn. The handlers take some milliseconds, so that hundreds of
# readers who send at the same moment are all served.
_TURN_S = 20.0
# How long a page waits for the writer before it shows that the reader has to wait.
_WRITER_S = 10.0
_FAILED = "The story cannot continue now. Your answers are saved; please try again in a minute."
_NO_PAGE = "This answer does not belong to your pages. Please go back to the study."
_OTHER_READER = (
    "This page was opened for another reader, and the answer was not saved. Please open your own "
    "link again."
)
_AWAY = (
    "You were away for long, so this story was given to another reader: this answer was not saved. "
    "All earlier answers are saved."
)
_NONE_LEFT = (
    "You were away for long, so your other stories were given to other readers, and there is "
    "nothing left to read at the moment. Your answers are saved."
)
_BUSY = "The study is busy. Please reload this page in a few seconds, and send it again if asked."

Form = Mapping[str, str]
Handler = Callable[[Request, Form], Response]
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    # Going back asks the server, which shows the page that is next.
    "cache-control": "no-store",
}


def signed(store: Store, reader: str) -> str:
    """The value of a reader's cookie."""
    return f"{reader}.{store.sign('cookie', reader)}"


def reader_of(request: Request, store: Store) -> str | None:
    """The reader whose signed id the cookie holds; None without a valid one."""
    cookie = request.cookies.get(COOKIE, "")
    reader = cookie.rpartition(".")[0]
    return reader if hmac.compare_digest(cookie.encode(), signed(store, reader).encode()) else None


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; HTTPException for what no browser sends from our pages."""
    # Browsers send the origin of a form; other clients do not have the reader's cookie.
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise HTTPException(403, "This form came from another site.")
    body = await read_body(request.receive, _LIMITS)
    try:
        return dict(parse_qsl(body.decode(), max_num_fields=_MAX_FIELDS))
    except ValueError:
        raise HTTPException(400, "This form cannot be read.") from None


def valid_id(text: str) -> str:
    """Validate a reader's id; 400 if malformed."""
    if not re.fullmatch(READER_ID, text):
        raise HTTPException(400, "This address has no valid id. Please use the link you were sent.")
    return text


def number_in(form: Form, name: str) -> int:
    """A number that our pages put into a form; HTTPException for something else."""
    text = form.get(name, "")
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise HTTPException(400, _NO_PAGE)
    return int(text)


def form_key(store: Store, reader: str, page: str | int) -> str:
    """The token of a form, made for this reader and this page."""
    return store.sign("form", f"{reader} {page}")


def check_key(store: Store, reader: str, page: str | int, form: Form) -> None:
    """Raise an HTTPException for a form of another reader or page."""
    key = form.get("key", "")
    if not hmac.compare_digest(key.encode(), form_key(store, reader, page).encode()):
        raise HTTPException(403, _OTHER_READER)


def go_on() -> RedirectResponse:
    """Send the reader to the page that is next."""
    return RedirectResponse("/read", 303)


def make_app(store: Store, allowed_hosts: Sequence[str]) -> FastAPI:
    """Create the ASGI application; `allowed_hosts` are accepted values of the Host header."""
    study, plan = store.study, store.study.plan
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FileSystemLoader(PAGES),
        undefined=jinja2.StrictUndefined,
    )
    environment.globals["plan"] = plan
    environment.filters["paragraphs"] = lambda text: re.split(r"\n\s*\n", text.strip())
    styles = (PAGES.parent.parent / "evaluation" / "report" / "style.css", PAGES / "study.css")
    style = "\n".join(path.read_text(encoding="utf-8") for path in styles)
    app = FastAPI(openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts), www_redirect=False)

    turn = asyncio.Lock()
    # Sessions under way by reader's number and place, and the place of each reader's.
    plays: dict[tuple[int, int], Play] = {}
    playing: dict[str, tuple[int, int]] = {}

    def route(method: str, path: str) -> Callable[[Handler], Handler]:
        """Register a handler that uses the store."""

        def register(handle: Handler) -> Handler:
            @app.api_route(path, methods=[method])
            async def respond(request: Request) -> Response:
                form = await read_form(request) if method == "POST" else {}
                play = plays.get(playing.get(reader_of(request, store) or "", (0, 0)))
                if path == "/read" and play is not None:
                    await play.settle(_WRITER_S)
                try:
                    async with asyncio.timeout(_TURN_S):
                        await turn.acquire()
                except TimeoutError:
                    raise HTTPException(503, _BUSY, {"retry-after": "5"}) from None
                try:
                    return await run_in_threadpool(handle, request, form)
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                        raise
                    raise HTTPException(503, _BUSY, {"retry-after": "5"}) from None
                finally:
                    turn.release()

            return handle

        return register

    @app.middleware("http")
    async def guard(
        request: Request, respond: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Add the security headers, and answer errors without what they say."""
        try:
            response = await respond(request)
        except ClientDisconnect:
            response = Response(status_code=400)
        except Exception as error:  # noqa: BLE001 - any error of the application
            log_error("a request failed", error)
            text = "Something went wrong. Please reload the page: your answers are kept."
            response = Response(text, 500)
        response.headers.update(_HEADERS)
        return response

    def page(name: str, status: int = 200, **values: Any) -> HTMLResponse:
        text = environment.get_template(f"{name}.html").render(values)
        return HTMLResponse(text, status)

    @app.exception_handler(HTTPException)
    async def http_error(_request: Request, error: HTTPException) -> Response:
        heading = "One moment" if error.status_code == 503 else "This did not work"
        response = page("message", error.status_code, heading=heading, text=error.detail)
        response.headers.update(error.headers or {})
        return response

    def with_cookie(request: Request, reader: str) -> Response:
        # A session cookie: no age.
        response = go_on()
        response.set_cookie(
            COOKIE,
            signed(store, reader),
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
        )
        return response

    def listed_id(text: str) -> str:
        if plan.reader_ids is not None and valid_id(text) not in plan.reader_ids:
            raise HTTPException(403, "This address has no id of this study. Please check it.")
        return valid_id(text)

    def check_open() -> None:
        if store.is_closed:
            raise HTTPException(403, "This study is closed. Thank you for your interest.")

    def not_saved() -> Response:
        return page("message", 409, heading="Not saved", text=_AWAY, again="Continue")

    def known_reader(request: Request) -> str:
        reader = reader_of(request, store)
        if reader is None:
            raise HTTPException(403, "Please open the link you were sent, and allow cookies.")
        return reader

    @app.get("/style.css")
    async def read_style() -> Response:
        return Response(style, media_type="text/css")

    @route("GET", "/")
    def consent(request: Request, _form: Form) -> Response:
        asked = request.query_params.get(ID_PARAMETER)
        reader = reader_of(request, store) if asked is None else listed_id(asked)
        if reader is not None and store.state(reader) is not None:
            return with_cookie(request, reader)
        if asked is None and (plan.requires_id or plan.reader_ids is not None):
            raise HTTPException(400, "This address has no id. Please use the link you got.")
        check_open()
        # Made here, not when the form arrives: a double click then starts one reader.
        return page("consent", reader=asked or f"made-{secrets.token_urlsafe(12)}")

    @route("POST", "/start")
    def start(request: Request, form: Form) -> Response:
        check_open()
        reader = listed_id(form.get("reader", ""))
        if form.get("agree") != "yes":
            return page("consent", 422, reader=reader)
        store.start(reader)
        return with_cookie(request, reader)

    @route("GET", "/read")
    def read(request: Request, _form: Form) -> Response:
        reader = known_reader(request)
        state = store.state(reader)
        if state is None:
            return RedirectResponse("/", 303)
        if state != "finished":
            check_open()
        if state == "consented":
            key = form_key(store, reader, "statements")
            return page("statements", attempts=store.attempts(reader), key=key)
        if state == "failed":
            text = "Some statements about the instructions were not answered right."
            text += " You cannot take part in this study."
            return page("message", heading="Thank you", text=text)
        shown = store.next_page(reader)
        if shown is not None:
            return show(reader, earlier(request, reader, shown) or shown)
        state = store.state(reader)
        if state == "finished":
            return page("end")
        if state == "queued":
            text = "Many readers are starting. Please try again in a minute."
            return page("message", heading="One moment", text=text, again="Try again")
        if state == "left":
            return page("message", heading="Thank you", text=_NONE_LEFT, again="Try again")
        text = "The study has enough readers at the moment."
        return page("message", heading="Thank you", text=text)

    def earlier(request: Request, reader: str, shown: ReaderPage) -> ReaderPage | None:
        """The story that the address names, if its ratings may still be changed."""
        asked = request.query_params.get("page", "")
        group = store.group(reader, shown)
        return next(
            (page for page, shown_page in group if shown_page and str(page.place) == asked), None
        )

    def show(
        reader: str, shown: ReaderPage, status: int = 200, wait: float = 0, **sent: Any
    ) -> Response:
        if shown.kind == "session":
            return show_session(reader, shown, status, **sent)
        template, values = store.view(reader, shown)
        values = {"reason": "", **values, **sent, "page": shown, "wait": math.ceil(wait)}
        key = form_key(store, reader, shown.place)
        return page(template, status, key=key, most=_MAX_REASON, **values)

    def play_of(reader: str, shown: ReaderPage) -> Play:
        """The session of a page, started if it is not under way."""
        assert isinstance(store, SessionStore)
        assert isinstance(study, SessionStudy)
        key = (shown.number, shown.place)
        if key not in plays:
            for old in plays.keys() - store.open_sessions():
                from_thread.run_sync(plays.pop(old).cancel)
            plays[key] = from_thread.run_sync(Play, study, shown, store.turns(shown))
            playing[reader] = key
        return plays[key]

    def show_session(reader: str, shown: ReaderPage, status: int, **sent: Any) -> Response:
        assert isinstance(store, SessionStore)
        assert isinstance(study, SessionStudy)
        play = play_of(reader, shown)
        if play.has_story is not None or play.is_spent:
            store.end_session(shown, has_story=bool(play.has_story))
            return go_on()
        if play.reason is not None:
            log_error("a session stopped", LitBenchError(play.reason))
            key = form_key(store, reader, f"retry {shown.place}")
            return page("retry", text=_FAILED, place=shown.place, key=key)
        if play.step is None:
            return page("writing")
        key = form_key(store, reader, f"{shown.place} {play.step}")
        card = study.by_id[shown.pair_id]["item"].content if study.plan.shows_card else None
        return page(
            "session",
            status,
            page=shown,
            key=key,
            step=play.step,
            shown=play.shown,
            card=card,
            most=_MAX_TURN,
            **{"missing": False, **sent},
        )

    @route("POST", "/turn")
    def take_turn(request: Request, form: Form) -> Response:
        reader, position = known_reader(request), number_in(form, "place")
        check_open()
        step = form.get("step", "")
        check_key(store, reader, f"{position} {step}", form)
        shown = store.page_at(reader, position)
        assert isinstance(store, SessionStore)
        state = store.state(reader)
        if state == "left":
            return not_saved()
        if (
            state != "reading"
            or shown is None
            or (shown.number, position) not in store.open_sessions()
        ):
            return go_on()
        text = action_of(step, form)
        if len(text or "") > _MAX_TURN:
            raise HTTPException(413, f"Please write at most {_MAX_TURN:,} characters at a time.")
        play = play_of(reader, shown)
        if text is None:
            return show_session(reader, shown, 422, missing=True)
        seconds = time.monotonic() - play.since if step == play.step else 0.0
        store.add_turn(shown, step, text, seconds)
        # If two tabs sent different texts, use the stored one.
        from_thread.run_sync(play.deliver, step, store.turns(shown)[step])
        # To the newest part of the story.
        return RedirectResponse("/read#now", 303)

    @route("POST", "/retry")
    def retry(request: Request, form: Form) -> Response:
        reader, position = known_reader(request), number_in(form, "place")
        check_open()
        check_key(store, reader, f"retry {position}", form)
        at = playing.get(reader, (0, 0))
        play = plays.get(at)
        if at[1] == position and play is not None and play.reason is not None:
            del plays[at]
        return go_on()

    @route("POST", "/statements")
    def statements(request: Request, form: Form) -> Response:
        reader = known_reader(request)
        check_open()
        check_key(store, reader, "statements", form)
        are_right = all(
            form.get(f"statement{at}") == ("true" if statement.is_true else "false")
            for at, statement in enumerate(plan.statements or [])
        )
        store.try_statements(reader, number_in(form, "attempt"), are_right=are_right)
        return go_on()

    @route("POST", "/answer")
    def answer(request: Request, form: Form) -> Response:
        reader, position = known_reader(request), number_in(form, "place")
        check_open()
        check_key(store, reader, position, form)
        state = store.state(reader)
        if state != "reading":
            # Done in another tab, if not away.
            return not_saved() if state == "left" else go_on()
        # Forms send a line break as two characters.
        reason = form.get("reason", "").replace("\r\n", "\n").strip()
        if len(reason) > _MAX_REASON:
            raise HTTPException(413, f"A reason may have at most {_MAX_REASON:,} characters.")
        try:
            answer, sent = store.read_form(form)
            wait = store.answer(reader, position, answer, reason or None)
        except IncompleteError:
            wait, sent["missing"] = 0, True
        except ValueError:
            raise HTTPException(400, _NO_PAGE) from None
        shown = store.page_at(reader, position) if wait or sent.get("missing") else None
        if shown is None:
            return go_on()
        return show(reader, shown, 422, wait, reason=reason, **sent)

    return app
