"""Responses of providers: what was billed, and why there is no answer.

`check_response` cleans responses of OpenAI-compatible servers before inspect-ai parses them in the
event loop. inspect-ai's search for `<think>` takes quadratic time in the number of opening tags; it
fails on lone surrogates, on an incomplete `usage`, on content in parts and on an error with status
200; and it reads "12" and true as counts of tokens.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from litbench.data.text import valid_unicode

# An answer of 128,000 tokens has about 0.6 MB, in Chinese with JSON escapes 1 MB.
MAX_BYTES = 4 * 2**20
# Together with `MAX_BYTES`, inspect-ai's search ends within seconds.
MAX_TAGS = 64
# The end of a longer response, where its usage is.
_TAIL_BYTES = 64 * 2**10
# Token counts (read, cached, written) of the responses of an attempt, even if it fails later.
COUNTS: ContextVar[list[tuple[int, int, int]]] = ContextVar("COUNTS")
# Finish reasons of a filter: Gemini's, Anthropic's, Zhipu's and Bedrock's names.
_FILTERED = {
    *("safety", "refusal", "prohibited_content", "blocklist", "recitation", "spii"),
    *("sensitive", "content_filtered", "guardrail_intervened"),
}
# Errors of content filters: OpenAI, Azure, Anthropic, Gemini, OpenRouter, xAI, Qwen, DeepSeek,
# Zhipu, Bedrock.
_BLOCKED = re.compile(
    r"content[ _-]?(management |filtering |usage )?(filter|policy)|responsible ?ai"
    r"|prohibited_content|blocked.{0,40}\b(safety|recitation|blocklist|spii|guardrail)"
    r"|\b(safety|guardrail)\b.{0,40}block|requires moderation|safety system"
    r"|moderation.{0,40}(flag|block|reject)|(input|prompt|output)\b.{0,40}\bflagged"
    r"|(violat|against).{0,40}(usage|safety|content|acceptable use) (polic|guideline)"
    r"|data_?inspection_?failed|inappropriate content|content exists risk|敏感内容|不安全",
    re.I,
)
_TOO_LONG = re.compile(
    r"context.{0,20}(length|window|size)|(prompt|input).{0,40}too (long|large)"
    r"|token count.{0,40}exceed",
    re.I,
)
# llama.cpp says so with status 400.
_NO_MODEL = re.compile(r"\bmodel\b.{0,100}\bnot (found|loaded)", re.I)
_ABOUT_KEY = re.compile(
    r"key|auth|permission|access|credential|token|countr|region|account|project|billing", re.I
)
# An account without credit; other errors with status 429 pass.
_NO_CREDIT = re.compile(r"insufficient[_ ](quota|balance|credit)|exceeded your current quota", re.I)

# Characters of a response that is no chat completion, for its error message.
_SHOWN = 100

# What would fail again: nothing, this question, or every question to the model.
Lasting = Literal["no", "question", "model"]


class ResponseError(Exception):
    """A response without an answer.

    Attributes:
        status_code: the status of an error that was sent with status 200; None if it has none.
        is_too_large: whether the response was not read to its end.
        is_malformed: whether it is whole, but no chat completion.
    """

    def __init__(
        self,
        message: str,
        status_code: int | None = None,
        *,
        is_too_large: bool = False,
        is_malformed: bool = False,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.is_too_large = is_too_large
        self.is_malformed = is_malformed


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message


class _Completion(BaseModel):
    """The fields that a chat completion needs for inspect-ai to read it."""

    choices: list[_Choice]


def is_block(status: int | None, message: str) -> bool:
    """Whether an error says that the provider's content filter blocked the question."""
    if status is not None and (not 400 <= status < 500 or status in (401, 404, 429)):
        return False
    return _BLOCKED.search(message) is not None


def lasting(status: int | None, message: str) -> Lasting:
    """Classify an error that would recur if the request was sent again."""
    if status in (401, 402) or _NO_CREDIT.search(message) or _lacks_model(status, message):
        return "model"
    if status in (408, 409, 425, 429):
        return "no"
    if status is None or status >= 500 or status < 300:
        # Some local servers report a long question so.
        return "question" if _TOO_LONG.search(message) else "no"
    if status < 400 or (status == 403 and _ABOUT_KEY.search(message)):
        return "model"
    return "question"


def _lacks_model(status: int | None, message: str) -> bool:
    """Whether the server has no such model, or no such page."""
    return status in (404, 405) or (status == 400 and _NO_MODEL.search(message) is not None)


def advice(status: int | None, message: str) -> str:
    """The advice for an error that would recur."""
    if status is not None and 300 <= status < 400:
        return "redirects are not followed: correct the base URL"
    if _NO_CREDIT.search(message) or status == 402:
        return "add credit at the provider"
    if status in (401, 403):
        return "check the API key and what it may use"
    if _lacks_model(status, message):
        return "check the model's name and the base URL"
    if _TOO_LONG.search(message):
        return "use a longer context, a lower max_tokens or shorter stories"
    return "change the options that the message names"


def written_tokens(read: int, written: int, total: int | None, reasoning: int) -> int:
    """The largest number of tokens written that is consistent with a provider's counts.

    xAI, and Gemini's OpenAI interface, leave hidden reasoning out of the tokens written; it is only
    in the total or in the details.
    """
    is_separate = total is None or reasoning > written
    return max(written + reasoning * is_separate, (total or 0) - read)


async def check_response(response: Any) -> None:
    """Check and clean the body of a response, as a response hook of httpx or httpx2.

    Raises:
        ResponseError: the body is longer than `MAX_BYTES`, has over `MAX_TAGS` tags `<think`, is
            an error that was sent with status 200, or is no chat completion where one was asked.
    """
    body, n_bytes = b"", 0
    async for part in response.aiter_bytes():
        n_bytes += len(part)
        body += part
        if n_bytes > MAX_BYTES:
            body = body[-_TAIL_BYTES:]
    content = None if n_bytes > MAX_BYTES else _parsed(body)
    usage = content.get("usage") if isinstance(content, dict) else _find_usage(body)
    counts = _counts(usage)
    if counts is not None and (seen := COUNTS.get(None)) is not None:
        seen.append(counts)
    if n_bytes > MAX_BYTES:
        raise ResponseError(f"the response has more than {MAX_BYTES:,} bytes", is_too_large=True)
    cleaned = body
    if content is not None:
        if isinstance(content, dict) and response.status_code < 400:
            _raise_error(content)
            if "choices" in content:
                _clean_completion(content, counts)
        text = json.dumps(content, ensure_ascii=False)
        if text.count("<think") > MAX_TAGS:
            reason = f"the response has more than {MAX_TAGS} tags <think>"
            raise ResponseError(reason, is_too_large=True)
        cleaned = valid_unicode(text).encode()
    if response.status_code < 300 and response.url.path.endswith("/chat/completions"):
        _check_completion(cleaned)

    async def aiter_bytes(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        del chunk_size
        yield cleaned

    # What httpx reads the body with.
    response.aiter_bytes = aiter_bytes


def _parsed(body: bytes) -> Any:
    """The content of a JSON body; None for any other."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _check_completion(body: bytes) -> None:
    """Raise a ResponseError if the body of a successful response is no chat completion."""
    try:
        _Completion.model_validate_json(body, strict=True)
        return
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
    text = body.decode("utf-8", "replace").strip("\ufeff \r\n\t")
    if problem["type"] != "json_invalid":
        field = ".".join(map(str, ("response", *problem["loc"])))
        form, text = f"JSON ({field}: {problem['msg']})", json.dumps(problem["input"])
    elif text[:1] in ("", "{", "["):
        # A connection that broke, or keep-alive spaces without an answer.
        raise ResponseError("the response is broken JSON" if text else "the response is empty")
    elif text.startswith("<"):
        form, text = "an HTML page", re.sub("<[^>]*>", " ", text[: 10 * _SHOWN])
    else:
        form = "an event stream" if re.match("(data|event|id|retry)?:", text) else "plain text"
    shown = " ".join(text.split())[:_SHOWN]
    message = f"the response is no chat completion but {form}: {shown}"
    raise ResponseError(message, is_malformed=True)


def _raise_error(content: Mapping[str, Any]) -> None:
    """Raise the error of a response with status 200, or of its first choice."""
    choices = content.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    error = content.get("error") or (isinstance(first, dict) and first.get("error"))
    if not error and content.get("object") == "error":
        error = content
    if not error:
        return
    fields = error if isinstance(error, dict) else {"message": str(error)}
    code = str(fields.get("code") or "")
    status = int(code) if re.fullmatch("[1-5][0-9]{2}", code) else None
    named = code and f" (code {code})"
    raise ResponseError(f"{fields.get('message') or json.dumps(fields)}{named}", status)


def _clean_completion(content: dict[str, Any], counts: tuple[int, int, int] | None) -> None:
    """Give a chat completion the form that inspect-ai reads."""
    content["usage"] = None
    if counts is not None:
        read, cached, written = counts
        content["usage"] = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
    if content["choices"] is None:
        content["choices"] = []
    for choice in content["choices"] if isinstance(content["choices"], list) else []:
        if not isinstance(choice, dict):
            continue
        reason, message = choice.get("finish_reason"), choice.get("message")
        if isinstance(reason, str):
            reason = reason.lower()
            choice["finish_reason"] = "content_filter" if reason in _FILTERED else reason
        if isinstance(message, dict) and isinstance(message.get("content"), list | dict):
            message["content"] = _text_of(message["content"])


def _text_of(content: Any) -> Any:
    """The text of content in parts, without hidden reasoning; other content as it is."""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    is_known = any(isinstance(part, dict) and "type" in part for part in parts)
    text = "".join(text for text in texts if isinstance(text, str))
    return text if text or is_known or not parts else content


def _find_usage(body: bytes) -> Any:
    """The last usage in a body that is cut off or not valid JSON; None if there is none."""
    text = body.decode("utf-8", "replace")
    for match in reversed(list(re.finditer(r'(?<!\\)"usage"\s*:\s*(?=\{)', text))):
        try:
            return json.JSONDecoder().raw_decode(text, match.end())[0]
        except (ValueError, RecursionError):
            continue
    return None


def _counts(usage: Any) -> tuple[int, int, int] | None:
    """Tokens read, cached and written; None if a count is missing or no integer."""

    def count(value: Any, *names: str) -> int | None:
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value if type(value) is int else None

    read, written = count(usage, "prompt_tokens"), count(usage, "completion_tokens")
    if read is None or written is None:
        return None
    cached = count(usage, "prompt_tokens_details", "cached_tokens") or 0
    reasoning = count(usage, "completion_tokens_details", "reasoning_tokens") or 0
    written = written_tokens(read, written, count(usage, "total_tokens"), max(reasoning, 0))
    return read, cached, written
