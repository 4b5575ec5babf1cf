"""BLEU and ROUGE on Chinese words. GOLDEN names the folder of the values for public texts."""

import math
import random
import sys
import warnings

import pytest
from chinese_writers import golden, published

from litbench.runs.errors import MissingExtraError
from litbench.writers.tow import overlap


def words(text):
    return text.split(" ")


def test_bleu1_is_precision_with_clipped_counts_and_a_brevity_penalty():
    short, long = words("风 风 风 雨"), words("风 风 雪 雨 雷 电 云 雾")
    assert overlap.ngram_precision(short, long, 1) == 3 / 4
    assert overlap.ngram_precision(short, long, 2) == 1 / 3
    assert overlap.ngram_precision(["风"], long, 2) == 0
    assert overlap.bleu1(short, long) == pytest.approx(math.exp(1 - 8 / 4) * 3 / 4)
    assert overlap.bleu1(long, short) == 3 / 8
    assert overlap.bleu1([], long) == overlap.bleu1(long, []) == 0


def test_rouge_n_is_of_sets_and_rouge_l_of_order():
    hypothesis, reference = words("风 风 风 雨"), words("风 雪")
    assert overlap.rouge_n(hypothesis, reference, 1) == pytest.approx(1 / 2)
    assert overlap.rouge_n(hypothesis, reference, 2) == 0
    assert overlap.rouge_n(hypothesis, hypothesis, 2) == pytest.approx(1)
    assert overlap.rouge_n([], reference, 1) == overlap.rouge_l(words("风"), []) == 0
    assert overlap.rouge_l(words("风 云 雨 雪"), words("雨 风 雪")) == pytest.approx(4 / 7)


def test_a_line_of_blanks_is_a_token_of_rouge():
    # One line break ends the sentence of 。, the other leaves a line of one blank.
    assert overlap.rouge_l(words("风 。 \n 雨"), words("风 。 雨")) == pytest.approx(6 / 7)
    assert overlap.rouge_l(words("风 \n 雨"), words("风 雨")) == pytest.approx(1)


def test_rouge_is_that_of_rouge_chinese():
    with warnings.catch_warnings(action="ignore"):
        package = pytest.importorskip("rouge_chinese").Rouge()
    source = random.Random(0)
    pieces = [*"。！？?”’“，… \n\t\u3000风雨", "......", "……", "?”", "......."]
    compared = 0
    for _ in range(500):
        first, second = (source.choices(pieces, k=source.randrange(25)) for _ in range(2))
        try:
            expected = package.get_scores(" ".join(first), " ".join(second))[0]
        except ValueError:
            assert overlap.rouge_l(first, second) == 0
            continue
        compared += 1
        results = {f"rouge-{n}": overlap.rouge_n(first, second, n) for n in (1, 2)}
        results["rouge-l"] = overlap.rouge_l(first, second)
        f_scores = {name: scores["f"] for name, scores in expected.items()}
        assert results == pytest.approx(f_scores, abs=1e-12, rel=0)
    assert compared > 400


def test_jieba_cuts_words_quietly_and_leaves_no_cache(tmp_path, monkeypatch, capfd):
    pytest.importorskip("jieba")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    overlap._jieba.cache_clear()
    assert overlap.tokenize("河水很冷，\n她没有回头。") == [
        *("河水", "很", "冷", "，", "\n", "她", "没有", "回头", "。")
    ]
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_without_jieba_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    overlap._jieba.cache_clear()
    with pytest.raises(MissingExtraError, match=r"litbench\[prose\]"):
        overlap.tokenize("河水")


@pytest.mark.parametrize(("load", "count"), [(golden, 16), (published, 94)])
def test_pairs_are_as_published(load, count):
    cases = load("tow/bleu_rouge_code")["cases"]
    assert len(cases) == count
    for case in cases:
        hypothesis, reference = map(overlap.tokenize, (case["hypothesis"], case["reference"]))
        results = {
            f"bleu-{n}": overlap.ngram_precision(hypothesis, reference, n) for n in (1, 2, 3, 4)
        }
        results |= {f"rouge-{n}": overlap.rouge_n(hypothesis, reference, n) for n in (1, 2)}
        results["rouge-l"] = overlap.rouge_l(hypothesis, reference)
        assert results == pytest.approx(case["bleu"] | case["rouge"], abs=1e-6), case["id"]
