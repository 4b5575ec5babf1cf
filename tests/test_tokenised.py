"""Tokenised pairs: what is written comes back, once made it is not made again, and for no other."""

import threading

import numpy as np
import pytest

from litbench.models import tokenised
from litbench.models.layout import Layout
from litbench.models.tokenised import cached, make_tokenised
from litbench.models.training import content_digest

transformers = pytest.importorskip("transformers")


def made(n=5, sides=2):
    rows = [
        {
            "pair_id": f"pair {place}",
            **{f"ids_{side}": list(range(place + side + 1)) for side in range(sides)},
            "weight": 1.0 + place,
            "margin": 0.5 * place,
            "answer": 0,
            "label_at": 0,
        }
        for place in range(n)
    ]
    return make_tokenised(rows, [{"pair_id": "other", "reason": "longer than max_length"}], 2)


def refuse():
    raise AssertionError("tokenised once more")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LITBENCH_CACHE", str(tmp_path))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return tmp_path / "pairs"


@pytest.mark.parametrize("sides", [1, 2])
def test_what_is_cached_is_what_was_made(sides):
    first = made(sides=sides)
    for found in (first, cached("key", lambda: first), cached("key", refuse)):
        assert len(found) == 5
        assert found.lengths().tolist() == [[p + s + 1 for s in range(sides)] for p in range(5)]
        for place in range(5):
            expected = [list(range(place + side + 1)) for side in range(sides)]
            assert [ids.tolist() for ids in found.sequences(place)] == expected
            assert all(ids.dtype == np.int32 for ids in found.sequences(place))
        assert found.column("weight").tolist() == [1, 2, 3, 4, 5]
        assert found.counts == first.counts
        assert found.rejected_rows == [{"pair_id": "other", "reason": "longer than max_length"}]
    assert first.counts["pairs_given"] == 6
    assert first.counts["pairs"] == 5
    assert first.counts["pairs_cut"] == 2
    assert first.counts["set aside: longer than max_length"] == 1
    assert first.counts["tokens"] == first.lengths().sum()


def test_no_pairs_can_be_cached():
    assert len(cached("none", lambda: made(0))) == 0
    assert cached("none", refuse).lengths().shape == (0, 1)


def test_another_process_of_the_machine_waits_for_the_first(monkeypatch):
    waiting, found = threading.Event(), []

    def pause(_):
        waiting.set()
        threading.Event().wait(0.005)

    monkeypatch.setattr(tokenised.time, "sleep", pause)
    monkeypatch.setenv("LOCAL_RANK", "1")
    second = threading.Thread(target=lambda: found.append(cached("key", refuse)), daemon=True)
    second.start()
    assert waiting.wait(60)
    assert not found
    monkeypatch.setenv("LOCAL_RANK", "0")
    cached("key", made)
    second.join(60)
    assert [len(one) for one in found] == [5]


def test_a_making_that_fails_leaves_nothing_behind(cache):
    with pytest.raises(AssertionError):
        cached("key", refuse)
    assert not list(cache.glob("*.arrow"))
    assert len(cached("key", made)) == 5


def test_another_version_and_other_tokenizers_make_another_file(monkeypatch, cache):
    cached("key", made)
    monkeypatch.setattr(tokenised, "_VERSION", 2)
    cached("key", made)
    monkeypatch.setattr(tokenised, "versions", lambda: {"tokenizers": "0.0"})
    cached("key", made)
    cached("key", refuse)
    assert len(list(cache.glob("*.arrow"))) == 3


def test_other_pairs_another_tokenizer_or_layout_are_another_file(tiny_model, pair_table, cache):
    tokenizer, other = (
        transformers.AutoTokenizer.from_pretrained(tiny_model(kind)) for kind in ("llama", "bert")
    )
    layout = Layout((), (), (), 64, 16, "last")
    rows = [{"chosen": "the moth", "rejected": "the gate"}]
    pairs = pair_table(rows)
    variants = [
        (content_digest(pairs, tokenizer), layout),
        (content_digest(pair_table([{**rows[0], "chosen": "a moth"}]), tokenizer), layout),
        (content_digest(pair_table([{**rows[0], "margin": 1.0}]), tokenizer), layout),
        (content_digest(pairs, other), layout),
        (content_digest(pairs, tokenizer), Layout((), (), (), 32, 16, "last")),
    ]
    for count, variant in enumerate(variants, start=1):
        cached(variant, made)
        cached(variant, refuse)
        assert len(list(cache.glob("*.arrow"))) == count
    assert content_digest(pair_table(rows), tokenizer) == variants[0][0]


def test_a_damaged_file_is_made_again(cache):
    cached("key", made)
    (path,) = cache.glob("*.arrow")
    for damaged in (path.read_bytes()[:-9], b"", path.read_bytes().replace(b"pair 3", b"pair 8")):
        path.write_bytes(damaged)
        assert cached("key", made).table["pair_id"].to_pylist()[3] == "pair 3"
        cached("key", refuse)
