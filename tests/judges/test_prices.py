"""Token prices: the packaged table, user overrides, and the cost of answers."""

import json

import pytest
from inspect_ai.model import ModelOutput, ModelUsage

from litbench.judges.answers import Answer, AnswerStore, Attempt, Sampling
from litbench.judges.client import Budget, Traffic, check_limit, read_output
from litbench.judges.prices import Price, dollars_of, load_prices, price_of
from litbench.judges.responses import written_tokens
from litbench.runs.errors import ConfigError

MODEL = "openai/gpt-4.1"
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


@pytest.mark.parametrize(
    ("completion", "total", "reasoning", "written"),
    [
        (20, 120, 0, 20),
        (20, 120, 15, 20),  # OpenAI: reasoning is among the tokens written.
        (20, 520, 400, 420),  # xAI, inspect-ai's grok
        (20, 520, 0, 420),  # Gemini's OpenAI interface
        (20, 120, 400, 420),  # More reasoning than tokens written cannot be among them.
        (20, None, 15, 35),  # Without a total, it may not be among them.
        (20, 0, 0, 20),
    ],
)
def test_hidden_reasoning_is_charged(completion, total, reasoning, written):
    assert written_tokens(100, completion, total, reasoning) == written
    if total is not None:
        usage = ModelUsage(
            input_tokens=60,
            input_tokens_cache_read=40,
            output_tokens=completion,
            total_tokens=total,
            reasoning_tokens=reasoning,
        )
        output = ModelOutput.from_content("grok/grok-4", "A.")
        output.usage = usage
        answer = read_output(output)
        assert (answer.input_tokens, answer.cached_tokens) == (100, 40)
        assert answer.output_tokens == written


def test_user_prices_override_packaged_ones(tmp_path):
    packaged = load_prices()
    for model, price in packaged.items():
        assert price.batch in (None, 0.5)
        if "embedding" not in model:
            cached = price.input if price.cached is None else price.cached
            assert 0 < cached <= price.input <= price.output < 1_000
    path = tmp_path / "prices.yaml"
    path.write_text("openai/gpt-4.1: {input: 1, output: 2}\nmine/model: {input: 3, output: 4}\n")
    prices = load_prices(path)
    assert prices["openai/gpt-4.1"] == Price(1, 2) != packaged["openai/gpt-4.1"]
    assert prices["mine/model"] == Price(3, 4)
    assert prices["openai/gpt-4o"] == packaged["openai/gpt-4o"]


def test_prices_may_be_in_litellms_form(tmp_path):
    path = tmp_path / "model_prices_and_context_window.json"
    costs = {"input_cost_per_token": 1e-6, "output_cost_per_token": 4e-6}
    content = {
        "sample_spec": {"litellm_provider": "one of the providers"},
        "new-model": {**costs, "litellm_provider": "openai", "input_cost_per_token_batches": 5e-7},
        "gemini/new": {**costs, "litellm_provider": "gemini", "cache_read_input_token_cost": 1e-7},
        "a-picture": {"litellm_provider": "openai", "output_cost_per_image": 1.0},
        "mine/model": {"input": 3, "output": 4},
    }
    path.write_text(json.dumps(content))
    prices = load_prices(path)
    assert prices.keys() - load_prices().keys() == {"openai/new-model", "google/new", "mine/model"}
    assert prices["openai/new-model"] == Price(1, 4, batch=0.5)
    assert prices["google/new"] == Price(1, 4, cached=0.1)
    path.write_text("[")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_prices(path)


def test_a_model_without_a_price_is_told_the_line_to_add():
    with pytest.raises(ConfigError, match=r"mine/model: \{input: DOLLARS"):
        check_limit(Traffic(max_cost_usd=1.0), "mine/model", None, Sampling())


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
    prices = tmp_path / "prices.yaml"
    prices.write_text(entry)
    with pytest.raises(ConfigError) as error:
        load_prices(prices)
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


def test_budget_reserves_before_an_attempt_and_settles_after_it(tmp_path):
    """At $1,000 per million tokens read, 1,250 tokens cost $1.25."""
    traffic, price = Traffic(max_cost_usd=3.0), Price(input=1_000, output=0.0)

    def attempt(batched=False):
        return Attempt("key", "a/m", (1_250, 10), batched)

    def budget_of(store):
        return Budget(traffic, price, usages=store.usages("a/m"))

    with AnswerStore(tmp_path) as store:
        budget, first = budget_of(store), attempt()
        assert budget.start(store, first)
        assert budget.start(store, attempt())
        assert budget.dollars == pytest.approx(2.5)
        assert not budget.start(store, attempt()), "$3.75 would be exceeded"
        store.put(Answer("answered", input_tokens=500, output_tokens=1), first)
        assert budget.dollars == pytest.approx(1.75)
        assert budget.start(store, attempt()), "0.5 + 1.25 + 1.25 is 3"
        assert "max_cost_usd of $3.0" in budget.spent()
        assert Budget(traffic, price, usages=store.usages("b/m")).dollars == 0
    with AnswerStore(tmp_path, "other") as store, AnswerStore(tmp_path, "third") as third:
        assert budget_of(store).dollars == pytest.approx(3.0), "of earlier runs"
        store.put(Answer("error", input_tokens=0, output_tokens=0), attempt())
        assert budget_of(store).dollars == pytest.approx(3.0), "free"
        freed = Attempt("key", "a/m", (1_250, 10))
        third.reserve(freed)
        assert budget_of(store).dollars == pytest.approx(3.0)
        store.refresh()
        assert budget_of(store).dollars == pytest.approx(4.25), "of a program at the same time"


def test_counts_replace_reservations_once(tmp_path):
    traffic, price = Traffic(max_cost_usd=10.0), Price(input=1_000, output=1_000, batch=0.5)
    with AnswerStore(tmp_path) as store:
        budget = Budget(traffic, price, usages=store.usages("a/m"))
        attempts = [Attempt(f"{k}", "a/m", (1_000, 1_000)) for k in range(3)]
        for attempt in attempts:
            assert budget.start(store, attempt)
        assert budget.dollars == pytest.approx(6)
        # More tokens than were reserved are charged as the provider counted them.
        counted = Answer("answered", "text", input_tokens=1_500, output_tokens=900)
        store.put(counted, attempts[0])
        assert budget.dollars == pytest.approx(1.5 + 0.9 + 2 * (1 + 1))
        assert budget.start(store, Attempt("3", "a/m", (1_000, 1_500)))
        assert not budget.start(store, Attempt("4", "a/m", (1_000, 1_000)))
        assert budget.start(store, Attempt("4", "a/m", (1_000, 1_000), batched=True))
        assert budget.dollars == pytest.approx(8.9 + 1)
    again = AnswerStore(tmp_path, read_only=True)
    assert Budget(traffic, price, usages=again.usages("a/m")).dollars == pytest.approx(9.9)
    (tmp_path / "copy.jsonl").write_bytes((tmp_path / "answers.jsonl").read_bytes())
    again = AnswerStore(tmp_path, read_only=True)
    assert Budget(traffic, price, usages=again.usages("a/m")).dollars == pytest.approx(9.9), "once"


@pytest.mark.parametrize("count", [-1, 10**400, 10**9, True, 12.0, float("nan"), "12", [1], 0])
def test_a_number_that_is_no_count_stays_reserved(count, tmp_path):
    with AnswerStore(tmp_path) as store:
        attempt = Attempt("key", "a/m", (1_000, 1_000))
        store.reserve(attempt)
        answer = Answer("answered", "text", input_tokens=count, output_tokens=count)
        assert answer == Answer("answered", "text")
        store.put(answer, attempt)
        (usage, _), *_ = store.usages("a/m")
        assert (usage.counted, usage.reserved) == ([0, 0], [1_000, 1_000])
        assert PRICE.of(10, 0, 10**6) == PRICE.of(10, 0, 10), "no more cached than read"


def test_a_limit_needs_a_price_and_max_tokens():
    traffic = Traffic(max_cost_usd=1.0)
    check_limit(traffic, MODEL, PRICE, Sampling())
    check_limit(Traffic(), MODEL, None, Sampling(max_tokens=None))
    for price, sampling, said in (
        (None, Sampling(), "has no price"),
        (PRICE, Sampling(max_tokens=None), "set max_tokens"),
    ):
        with pytest.raises(ConfigError, match=rf"^max_cost_usd is 1.0, but [^\n]*{said}[^\n]*$"):
            check_limit(traffic, MODEL, price, sampling)
