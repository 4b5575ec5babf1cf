"""Responses of OpenAI-compatible servers, checked before inspect-ai parses them in the event loop.

inspect-ai's search for `<think>` takes quadratic time in the number of opening tags, it fails on
lone surrogates and on an incomplete `usage`, and it reads "12" and true as counts of tokens.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

from litbench.text import valid_unicode

# An answer of 128,000 tokens has about 0.6 MB, in Chinese with JSON escapes 1 MB.
MOST_BYTES = 4 * 2**20
# Together with `MOST_BYTES`, inspect-ai's search ends within seconds.
MOST_TAGS = 64


class ResponseError(Exception):
    """A response that is not parsed; sending the request again would not help."""


async def check_response(response: Any) -> None:
    """Check and clean the body of a response, as a response hook of httpx or httpx2.

    Raises:
        ResponseError: the body is longer than `MOST_BYTES`, or has over `MOST_TAGS` tags `<think`.
    """
    body = b""
    async for part in response.aiter_bytes():
        body += part
        if len(body) > MOST_BYTES:
            raise ResponseError(f"the response has more than {MOST_BYTES:,} bytes")
    cleaned = _cleaned(body)

    async def aiter_bytes(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        del chunk_size
        yield cleaned

    # What httpx reads the body with.
    response.aiter_bytes = aiter_bytes


def _cleaned(body: bytes) -> bytes:
    """The body with valid Unicode and valid counts; other bodies than JSON are unchanged."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if isinstance(content, dict) and "choices" in content:
        content["usage"] = _usage(content.get("usage"))
    text = json.dumps(content, ensure_ascii=False)
    if text.count("<think") > MOST_TAGS:
        raise ResponseError(f"the response has more than {MOST_TAGS} tags <think>")
    return valid_unicode(text).encode()


def _usage(given: Any) -> dict[str, Any] | None:
    """Token counts of a chat completion; None if one is missing or no integer."""
    usage = given if isinstance(given, dict) else {}
    read, written = (usage.get(f"{name}_tokens") for name in ("prompt", "completion"))
    if type(read) is not int or type(written) is not int:
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": cached if type(cached) is int else 0},
    }
