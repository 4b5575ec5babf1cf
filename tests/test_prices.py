"""Token prices: the packaged table, user overrides, and the cost of answers."""

import pytest

from litbench.errors import ConfigError
from litbench.judges.client import Budget, Traffic
from litbench.judges.prices import Price, dollars_of, load_prices, price_of
from litbench.judges.store import Answer, Sampling

PRICE = Price(input=2.0, output=8.0, cached=0.5, batch=0.5)


def test_dollars():
    # 1,000 read, of which 400 from the cache, and 100 written.
    assert PRICE.of(1_000, 100, 400) == pytest.approx((600 * 2 + 400 * 0.5 + 100 * 8) / 1e6)
    assert PRICE.of(1_000, 100, batched=True) == pytest.approx((2_000 + 800) / 2e6)
    assert Price(2.0, 8.0).of(1_000, 0, 400) == pytest.approx(2e-3), "same price for cached tokens"
    assert Price(2.0, 8.0).of(1_000, 0, batched=True) == pytest.approx(2e-3)
    answer = Answer("answered", input_tokens=10, cached_tokens=4, output_tokens=2)
    batched = Answer("cut", input_tokens=10, output_tokens=2, batched=True)
    dollars = ((6 * 2 + 4 * 0.5 + 16) / 1e6, (20 + 16) / 2e6)
    assert (PRICE.of_answer(answer), PRICE.of_answer(batched)) == pytest.approx(dollars)
    assert dollars_of([answer, batched], PRICE) == pytest.approx(sum(dollars))
    assert PRICE.of_answer(Answer("refused", output_tokens=2)) is None, "tokens were not counted"
    assert dollars_of([answer, Answer("error")], PRICE) is dollars_of([answer], None) is None


def test_user_prices_override_packaged_ones(tmp_path):
    packaged = load_prices()
    for model, price in packaged.items():
        assert price.batch in (None, 0.5)
        if "embedding" not in model:
            assert price.cached is not None
            assert 0 < price.cached < price.input < price.output < 1_000
    own = tmp_path / "prices.yaml"
    own.write_text("openai/gpt-4.1: {input: 1, output: 2}\nmine/model: {input: 3, output: 4}\n")
    prices = load_prices(own)
    assert prices["openai/gpt-4.1"] == Price(1, 2) != packaged["openai/gpt-4.1"]
    assert prices["mine/model"] == Price(3, 4)
    assert prices["openai/gpt-4o"] == packaged["openai/gpt-4o"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("m/m: 3", "give {input: ..., output: ...}"),
        ("m/m: {input: 1}", "output"),
        ("m/m: {input: -1, output: 2}", "input"),
        ("m/m: {input: 1, output: .inf}", "output"),
        ("m/m: {input: .nan, output: 1}", "input"),
        ("m/m: {input: 1, output: 2, batsh: 0.5}", "batsh"),
    ],
)
def test_wrong_price(entry, said, tmp_path):
    own = tmp_path / "prices.yaml"
    own.write_text(entry)
    with pytest.raises(ConfigError) as error:
        load_prices(own)
    assert said in str(error.value)
    assert "prices.yaml: m/m" in str(error.value)


def test_price_of_dated_model():
    prices = {"a/m": Price(1, 2), "a/m-2025-04-14": Price(3, 4)}
    assert price_of("a/m-2025-04-14", prices) == Price(3, 4)
    for name in ("a/m", "a/m-2024-01-31", "a/m-20240131", "a/m-latest"):
        assert price_of(name, prices) == Price(1, 2)
    for other in ("a/m-mini", "a/mm", "b/m", "m", "a/m-2025", "openai-api/local/m"):
        assert price_of(other, prices) is None
    for model in ("hf/folder", "vllm/m", "ollama/m"):
        assert price_of(model, {}) == Price(0.0, 0.0), "local models are free"


def test_budget_reserves_the_highest_cost():
    # 4,936 bytes are 1,234 tokens, plus 16 for delimiters: 1,250 tokens at $1,000 per million.
    price, sampling = Price(input=1_000, output=0.0), Sampling(max_tokens=10)
    question = "x" * 4_936
    budget = Budget(Traffic(max_cost_usd=3.0), price)
    first = budget.take(question, sampling)
    assert first == pytest.approx(1.25)
    assert budget.take(question, sampling) is not None
    assert budget.take(question, sampling) is None, "$3.75 would be exceeded"
    budget.settle(first, Answer("answered", input_tokens=500, output_tokens=1))
    assert budget.dollars == pytest.approx(0.5)
    assert budget.take(question, sampling) is not None, "0.5 + 1.25 + 1.25 is 3"
    assert "max_cost_usd of $3.0" in budget.spent()
    budget = Budget(Traffic(max_cost_usd=1.0), Price(input=0.0, output=1_000))
    assert budget.take("q", Sampling(max_tokens=None)) is None, "reserves _MOST_TOKENS"
    assert budget.take("q", Sampling(max_tokens=900)) is not None
