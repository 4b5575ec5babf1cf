"""Write litbench/judges/prices.yaml from the prices that the package genai-prices ships.

pip install --no-deps genai-prices && python tests/price_table.py
"""

import datetime
import importlib.metadata
import re
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parent.parent / "litbench/judges/prices.yaml"
# Names of providers there, and in inspect-ai.
_PROVIDERS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "google",
    "deepseek": "deepseek",
    "mistral": "mistral",
    "x-ai": "grok",
}
# Providers that charge half of the price in a batch; genai-prices does not say.
_HALF_IN_BATCH = ("openai", "anthropic", "google")
# Models that answer with something else than text.
_OTHER = re.compile(
    r"audio|cyber|image|live|moderation|nano-banana|ocr|omni|realtime|robotics|transcribe|tts|"
    r"voice|voxtral|whisper|^ft:|embed|deep-research|search|computer-use|:|ft-$"
)
# A version that requests may leave out, as in grok-4-0709 and claude-sonnet-4-0.
_DATE = re.compile(r"-(0|\d{4})$")
_EMBEDDINGS = ("text-embedding-3-small", "text-embedding-3-large")
_HEADER = """\
# Prices in dollars per million tokens, by inspect-ai's name for the model.
#
# Generated on {date} from genai-prices {version} by tests/price_table.py: list prices without tax
# and discounts, without the surcharge for long prompts, and the highest of the day where they
# differ. Check them before a large run, and override them in your own file (the key `prices`).
#
# input: tokens read; cached: tokens read from the provider's prompt cache; output: tokens written,
# including hidden reasoning; batch: factor applied to these prices for calls in a batch.
"""


def base(value: Any) -> float:
    """A price per million tokens, before any surcharge."""
    return float(getattr(value, "base", value) or 0)


def entry_of(provider: str, model: Any) -> str | None:
    """The prices of a model, as YAML; None if it has no price of texts."""
    conditional = model.prices if isinstance(model.prices, list) else [model.prices]
    prices = [getattr(entry, "prices", entry) for entry in conditional]
    # Of prices by date, the last holds today; of prices by hour, the highest.
    by_date = [
        entry.prices
        for entry in conditional
        if hasattr(getattr(entry, "constraint", None), "start_date")
    ]
    price = by_date[-1] if by_date else max(prices, key=lambda entry: base(entry.input_mtok))
    read, cached = base(price.input_mtok), base(getattr(price, "cache_read_mtok", None))
    written = base(price.output_mtok)
    is_embedding = model.id in _EMBEDDINGS
    if not is_embedding and (_OTHER.search(model.id) or not read or not written):
        return None
    values = {"input": read, "cached": cached or None, "output": written}
    values["batch"] = 0.5 if provider in _HALF_IN_BATCH else None
    shown = ", ".join(f"{key}: {value:g}" for key, value in values.items() if value is not None)
    return f"{{{shown}}}"


def full_name(provider: str, name: str) -> str:
    """inspect-ai's name of a model."""
    return f"{'openai-api/' * (name in _EMBEDDINGS)}{_PROVIDERS[provider]}/{name}"


def main() -> None:
    """Write the table."""
    from genai_prices import data_snapshot  # noqa: PLC0415

    entries, undated = dict[str, str](), dict[str, str]()
    for provider in data_snapshot.get_snapshot().providers:
        for model in provider.models if provider.id in _PROVIDERS else ():
            entry = entry_of(provider.id, model)
            if entry is None or (provider.id == "google" and not model.id.startswith("gem")):
                continue
            name = model.id.removesuffix("-latest")
            entries[full_name(provider.id, name)] = entry
            undated[full_name(provider.id, _DATE.sub("", name))] = entry
    lines = [f"{name}: {entry}" for name, entry in sorted((undated | entries).items())]
    header = _HEADER.format(
        date=datetime.datetime.now(tz=datetime.UTC).date(),
        version=importlib.metadata.version("genai-prices"),
    )
    TABLE.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{TABLE}: {len(lines)} models")


if __name__ == "__main__":
    main()
