"""What tokens cost: the packaged table, a user's own, and what an answer came to."""

import re
from pathlib import Path

import pytest

from litbench.errors import ConfigError
from litbench.judges.client import Budget, Traffic
from litbench.judges.prices import Price, dollars_of, load_prices, price_of
from litbench.judges.store import Answer, AnswerStore, Sampling


def test_dollars_by_hand() -> None:
    price = Price(input=2.0, output=8.0, cached=0.5, batch=0.5)
    # 1,000 read, of which 400 from the cache, and 100 written.
    assert price.of(1_000, 100, 400) == pytest.approx((600 * 2 + 400 * 0.5 + 100 * 8) / 1e6)
    assert price.of(1_000, 100, batched=True) == pytest.approx((2_000 + 800) / 2e6)
    assert Price(2.0, 8.0).of(1_000, 0, 400) == pytest.approx(2e-3), "cached ones cost as others"
    assert Price(2.0, 8.0).of(1_000, 0, batched=True) == pytest.approx(2e-3)


def test_an_answer_has_a_price_where_its_tokens_were_counted() -> None:
    price = Price(input=2.0, output=8.0, cached=0.5, batch=0.5)
    answer = Answer("answered", input_tokens=10, cached_tokens=4, output_tokens=2)
    assert price.of_answer(answer) == pytest.approx((6 * 2 + 4 * 0.5 + 16) / 1e6)
    batched = Answer("cut", input_tokens=10, output_tokens=2, batched=True)
    assert price.of_answer(batched) == pytest.approx((20 + 16) / 2e6)
    assert price.of_answer(Answer("refused", output_tokens=2)) is None
    assert price.of_answer(Answer("error")) is None


def test_dollars_of_all_answers_are_known_where_those_of_each_are() -> None:
    price = Price(input=2.0, output=8.0)
    answers = [
        Answer("answered", input_tokens=10, output_tokens=2),
        Answer("cut", "", None, 5, 0, 1),
    ]
    assert dollars_of(answers, price) == pytest.approx((20 + 16 + 10 + 8) / 1e6)
    assert dollars_of([*answers, Answer("error")], price) is None
    assert dollars_of(answers, None) is None
    assert dollars_of([], None) == 0


def test_a_budget_counts_what_stored_answers_cost(tmp_path: Path) -> None:
    with AnswerStore(tmp_path) as store:
        store.put("one", Answer("answered", input_tokens=10, output_tokens=2))
        store.put("other", Answer("answered", input_tokens=10, output_tokens=2))
        budget = Budget(Traffic(), Price(input=2.0, output=8.0))
        budget.note_stored(store, ["one", "unknown"])
    assert budget.dollars == pytest.approx(36e-6)
    assert budget.calls == 0


def test_the_packaged_prices_can_be_read_and_are_prices() -> None:
    prices = load_prices()
    assert "openai/gpt-4.1" in prices
    for model, price in prices.items():
        assert price.batch in (None, 0.5)
        if "embedding" in model:
            # Of a service by its interface; nothing is written, and nothing is cached.
            assert re.fullmatch(r"openai-api/\w+/[\w-]+", model)
            assert 0 < price.input < 1
            assert (price.output, price.cached) == (0, None)
            continue
        assert model.count("/") == 1
        assert 0 < price.input < price.output < 1_000
        assert price.cached is not None
        assert price.cached < price.input


def test_a_users_prices_go_before_the_packaged_ones(tmp_path: Path) -> None:
    own = tmp_path / "prices.yaml"
    own.write_text("openai/gpt-4.1: {input: 1, output: 2}\nmine/model: {input: 3, output: 4}\n")
    prices = load_prices(own)
    assert prices["openai/gpt-4.1"] == Price(1, 2)
    assert prices["mine/model"] == Price(3, 4)
    assert prices["openai/gpt-4o"] == load_prices()["openai/gpt-4o"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("m/m: 3", "give {input: ..., output: ...}"),
        ("m/m: {input: 1}", "output"),
        ("m/m: {input: -1, output: 2}", "input is -1"),
        ("m/m: {input: 1, output: .inf}", "output is inf"),
        ("m/m: {input: .nan, output: 1}", "input is nan"),
        ("m/m: {input: 1, output: 2, batsh: 0.5}", "batsh"),
        ("m/m: {input: dear, output: 2}", "input"),
    ],
)
def test_what_is_no_price_is_refused_with_its_place(entry: str, said: str, tmp_path: Path) -> None:
    own = tmp_path / "prices.yaml"
    own.write_text(entry)
    with pytest.raises(ConfigError) as error:
        load_prices(own)
    assert said in str(error.value)


def test_a_models_price_is_its_own_or_that_of_its_name_without_the_date() -> None:
    prices = {"a/m": Price(1, 2), "a/m-2025-04-14": Price(3, 4)}
    assert price_of("a/m", prices) == Price(1, 2)
    assert price_of("a/m-2025-04-14", prices) == Price(3, 4)
    for dated in ("a/m-2024-01-31", "a/m-20240131", "a/m-latest"):
        assert price_of(dated, prices) == Price(1, 2)
    for other in ("a/m-mini", "a/mm", "b/m", "m", "a/m-2025"):
        assert price_of(other, prices) is None


def test_models_on_this_machine_are_free() -> None:
    for model in ("hf/folder", "vllm/m", "ollama/m"):
        assert price_of(model, {}) == Price(0.0, 0.0)
    assert price_of("openai-api/local/m", {}) is None


def test_a_budget_sets_the_dearest_end_aside_until_the_answer_is_there() -> None:
    # 4,936 bytes are 1,234 tokens, and 16 stand around them: 1,250 tokens at $1,000 a million.
    price, sampling = Price(input=1_000, output=0.0), Sampling(max_tokens=10)
    question = "x" * 4_936
    budget = Budget(Traffic(max_cost_usd=3.0), price)
    first = budget.take(question, sampling)
    assert first == pytest.approx(1.25)
    second = budget.take(question, sampling)
    assert second is not None
    assert budget.take(question, sampling) is None, "$3.75 would be passed"
    budget.settle(first, Answer("answered", input_tokens=500, output_tokens=1))
    assert budget.dollars == pytest.approx(0.5)
    assert budget.take(question, sampling) is not None, "0.5 + 1.25 + 1.25 is 3"
    assert "max_cost_usd of $3.0" in budget.spent()


def test_a_budget_without_a_limit_of_tokens_expects_a_long_answer() -> None:
    budget = Budget(Traffic(max_cost_usd=1.0), Price(input=0.0, output=1_000))
    assert budget.take("q", Sampling(max_tokens=None)) is None
    assert budget.take("q", Sampling(max_tokens=900)) is not None
