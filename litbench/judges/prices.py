"""Token prices, from a packaged table that users can override.

A user's file has lines such as `openai/gpt-5: {input: 1.25, output: 10}`, or is litellm's
`model_prices_and_context_window.json`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from litbench.judges.answers import Answer, Usage
from litbench.runs.config import build, read_yaml
from litbench.runs.errors import ConfigError

_PACKAGED = Path(__file__).with_name("prices.yaml")
# Such as gpt-4.1-2025-04-14, claude-3-7-sonnet-20250219 and claude-3-5-haiku-latest.
_VERSION = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2}|latest)$")
# Providers whose models run on this machine.
_FREE = ("hf", "vllm", "sglang", "llama-cpp-python", "ollama")
# Names of providers in litellm's file, and in inspect-ai.
_OF_LITELLM = {
    "gemini": "google",
    "xai": "grok",
    "together_ai": "together",
    "fireworks_ai": "fireworks",
    **{name: name for name in ("openai", "anthropic", "deepseek", "mistral", "groq", "openrouter")},
}
_Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Price:
    """Dollars per million tokens.

    Attributes:
        input: tokens read.
        output: tokens written, including hidden reasoning.
        cached: tokens read from the provider's prompt cache; the price of `input` when null.
        batch: factor applied to these prices in a batch; 1 when null.
    """

    input: _Dollars
    output: _Dollars
    cached: _Dollars | None = None
    batch: _Dollars | None = None

    def of(self, read: float, written: float, cached: float = 0, *, batched: bool = False) -> float:
        """Dollars for tokens; `cached` of the `read` ones came from the prompt cache."""
        cached_price = self.input if self.cached is None else self.cached
        cached = min(cached, read)
        dollars = (read - cached) * self.input + cached * cached_price + written * self.output
        return dollars / 1e6 * (self.batch if batched and self.batch is not None else 1.0)

    def of_answer(self, answer: Answer) -> float | None:
        """Dollars for an answer; None if the provider did not report token counts."""
        read, written = answer.input_tokens, answer.output_tokens
        if read is None or written is None:
            return None
        return self.of(read, written, answer.cached_tokens or 0, batched=answer.batched)

    def of_usage(self, usage: Usage, *, batched: bool) -> float:
        """Dollars for counted and reserved tokens."""
        read, written = map(sum, zip(usage.counted, usage.reserved, strict=True))
        return self.of(read, written, usage.cached, batched=batched)


def dollars_of(answers: Iterable[Answer], price: Price | None) -> float | None:
    """Dollars for all answers, rounded to the millionth; None if the cost of one is unknown."""
    costs = [None if price is None else price.of_answer(answer) for answer in answers]
    return None if None in costs else round(sum(cost or 0 for cost in costs), 6)


def load_prices(path: Path | None = None) -> dict[str, Price]:
    """Read the packaged prices, overridden by the user's file; model -> `Price`."""
    prices: dict[str, Price] = {}
    for file in [_PACKAGED] if path is None else [_PACKAGED, path]:
        for model, entry in _entries(file).items():
            if not isinstance(entry, Mapping):
                raise ConfigError(f"{file}: {model}: give {{input: ..., output: ...}} in dollars")
            prices[str(model)] = build(Price, entry, f"{file}: {model}")
    return prices


def _entries(file: Path) -> Mapping[str, Any]:
    """The entries of a file of prices; those of litellm's form are converted."""
    if file.suffix != ".json":
        return read_yaml(file)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): give a file of prices") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: not an object of models and their prices")
    known = {model: entry for model, entry in content.items() if "litellm_provider" not in entry}
    for model, entry in content.items():
        provider = _OF_LITELLM.get(str(entry.get("litellm_provider")))
        if provider and entry.get("input_cost_per_token"):
            name = model.removeprefix(f"{entry['litellm_provider']}/")
            known[f"{provider}/{name}"] = _of_litellm(entry)
    return known


def _of_litellm(entry: Mapping[str, Any]) -> dict[str, float]:
    """Dollars per million tokens from an entry of litellm's file."""
    read = entry["input_cost_per_token"]
    per_token = {
        "input": read,
        "output": entry.get("output_cost_per_token", 0.0),
        "cached": entry.get("cache_read_input_token_cost"),
    }
    dollars = {key: round(1e6 * value, 9) for key, value in per_token.items() if value is not None}
    batched = entry.get("input_cost_per_token_batches")
    return dollars | ({} if batched is None else {"batch": batched / read})


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Price of a model, looked up with and without the date of its version; None if unknown."""
    for name in (model, _VERSION.sub("", model)):
        if name in prices:
            return prices[name]
    return Price(0.0, 0.0) if model.partition("/")[0] in _FREE else None
