"""What the server takes on, and how it says no."""

import math
from dataclasses import dataclass, fields
from typing import Any

from litbench.errors import ConfigError, LitBenchError


@dataclass(frozen=True)
class Limits:
    """How much the server takes on at once, and how long it waits.

    Attributes:
        body_bytes: most bytes of a request's body.
        held_bytes: most bytes of all bodies together that are read or being answered.
        requests: most requests that are read or being answered.
        stories: most stories of one request.
        story_characters: most characters of a story, and of a prompt.
        waiting_stories: most stories waiting for the model, of all requests together.
        batch_tokens: about how many tokens the model gets at once, by 4 bytes of UTF-8 to a token;
            None for four of the model's own forward passes.
        wait_ms: how long an idle model waits for more stories after the first, in milliseconds.
        timeout_s: longest time from a read body to its answer, in seconds.
        read_s: longest time that a client may take to send a request's head, and then its body.
        stop_s: longest time for what is left when the server is told to stop.
    """

    body_bytes: int = 4 * 2**20
    held_bytes: int = 256 * 2**20
    requests: int = 512
    stories: int = 256
    story_characters: int = 100_000
    waiting_stories: int = 4_096
    batch_tokens: int | None = None
    wait_ms: float = 3
    timeout_s: float = 60
    read_s: float = 10
    stop_s: float = 30

    def __post_init__(self) -> None:
        """Check that every limit lets something through.

        Raises:
            ConfigError: a limit is not above 0, or not finite.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            # Zero is no wait, and a fair choice.
            fits = value >= 0 if field.name == "wait_ms" else value > 0
            if not (fits and math.isfinite(value)):
                option = "--" + field.name.replace("_", "-")
                raise ConfigError(f"{option} is {value}: give a finite number above 0")


class Refusal(LitBenchError):
    """A request that gets an error instead of rewards.

    Attributes:
        status: of HTTP.
        retry_s: after how many seconds another try makes sense; None where none does.
    """

    def __init__(self, status: int, message: str, retry_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_s = retry_s

    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        found = {} if self.retry_s is None else {"retry-after": str(self.retry_s)}
        if self.status == 401:
            found["www-authenticate"] = "Bearer"
        return found


# Error types as vLLM and OpenAI name them, so that their clients show the message.
_TYPES = {
    401: "AuthenticationError",
    404: "NotFoundError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}


def problem(status: int, message: str) -> dict[str, Any]:
    """The body of every answer that is no success."""
    kind = _TYPES.get(status, "BadRequestError")
    return {"error": {"message": message, "type": kind, "code": status}}
