"""Text statistics of EQ-Bench Longform, by hand and as published.

GOLDEN, LONGFORM_BENCH, LONGFORM and NLTK_DATA name the folders of the published data.
"""

import json
import os
from pathlib import Path

import duckdb
import pytest

from litbench.runs.errors import DataError, MissingExtraError
from litbench.writers import prose
from litbench.writers.prose import SlopLists

nltk = pytest.importorskip("nltk")
LISTS = SlopLists(frozenset(["lantern"]), frozenset(["a lantern"]), frozenset(["lantern he said"]))
PRONUNCIATIONS = """\
LANTERN 1 L AE1 N T ER0 N
LANTERN 2 L AE1 N T ER0 N AH0
FIRE 1 F AY1 ER0
"""


def needs(*names):
    missing = [name for name in names if name not in os.environ]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not set")


def golden(name):
    path = Path(os.environ["GOLDEN"]) / "longform" / name
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _fresh_data():
    prose._english.cache_clear()
    yield
    prose._english.cache_clear()


@pytest.fixture
def small_data(tmp_path, monkeypatch):
    """NLTK's data with three pronunciations, one abbreviation and three stop words."""
    files = {
        "tokenizers/punkt_tab/english/abbrev_types.txt": "mr\n",
        "tokenizers/punkt_tab/english/collocations.tab": "",
        "tokenizers/punkt_tab/english/ortho_context.tab": "",
        "tokenizers/punkt_tab/english/sent_starters.txt": "",
        "corpora/cmudict/cmudict": PRONUNCIATIONS,
        "corpora/stopwords/english": "the\na\nof\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    return tmp_path


@pytest.mark.usefixtures("small_data")
def test_complexity_counts_punctuation_and_the_longest_pronunciation():
    result = prose.complexity("Mr. Lantern saw fire. He left!")
    assert (result.sentences, result.tokens) == (2, 8)
    assert result.syllables == 3 + 2 + 6
    assert result.polysyllabic == 1
    grade = 0.39 * 8 / 2 + 11.8 * 11 / 8 - 15.59
    assert result.index == pytest.approx((100 * grade / 14 + 100 * 12.5 / 20) / 2)


@pytest.mark.usefixtures("small_data")
def test_complexity_is_capped_above_only():
    assert prose.complexity("lantern lantern lantern").index == 100
    assert prose.complexity("He left.").index < 0
    assert prose.complexity(" \n ").index == 0


@pytest.mark.usefixtures("small_data")
def test_slop_hits_are_weighted_and_cross_sentences():
    result = prose.slop("A Lantern. He said: it's 7.", LISTS)
    # "'s" is not alphanumeric, "7" is.
    assert (result.words, result.word_hits, result.bigram_hits, result.trigram_hits) == (6, 1, 1, 1)
    assert result.index == pytest.approx(1000 * (1 + 2 + 8) / 6)
    assert prose.slop("...", LISTS).index == 0


@pytest.mark.usefixtures("small_data")
def test_repetition_counts_phrases_of_two_stories_within_chapters():
    stories = [
        ["The cold, of rain fell.", "cold rain"],
        ["cold rain fell", "fell softly fell softly fell softly"],
    ]
    # Of 16 words: "cold rain" three times, "rain fell" and "cold rain fell" twice.
    assert prose.repetition(stories) == pytest.approx(1000 * 7 / 16)
    assert prose.repetition([["cold rain"], ["fell", "cold", "rain"]]) == 0


@pytest.mark.usefixtures("small_data")
def test_repetition_takes_the_forty_most_frequent_of_each_length():
    chapter = " ".join(f"{a}{b}" for a in "abcdefgh" for b in "abcdefgh")
    assert prose.repetition([[chapter], [chapter]]) == pytest.approx(1000 * 160 / 128)


@pytest.mark.usefixtures("small_data")
def test_statistics_of_a_writer():
    result = prose.prose_statistics([["A lantern.", "fire"], ["a lantern"]], LISTS)
    assert result.length == pytest.approx(23 / 3)
    assert result.slop == pytest.approx(1000 * (2 + 2 * 2) / 5)
    assert result.complexity == prose.complexity("A lantern.\n\nfire\n\na lantern").index
    assert result.repetition == 0
    empty = prose.prose_statistics([], LISTS)
    assert str((empty.length, empty.repetition)) == "(nan, nan)"


def test_slop_lists_are_read(tmp_path):
    for name, rows in (("", [["lantern"]]), ("_bigrams", [["a lantern"]]), ("_trigrams", [])):
        (tmp_path / f"slop_list{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    lists = SlopLists.read(tmp_path)
    assert lists == SlopLists(LISTS.words, LISTS.bigrams, frozenset())


def test_errors(tmp_path, small_data, monkeypatch):
    with pytest.raises(DataError, match=r"slop_list\.json"):
        SlopLists.read(tmp_path)
    (tmp_path / "slop_list.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(DataError, match="not a list of slop phrases"):
        SlopLists.read(tmp_path)
    (small_data / "corpora/cmudict/cmudict").unlink()
    with pytest.raises(DataError, match=r"^[^\n]+nltk\.downloader punkt_tab cmudict stopwords, or"):
        prose.slop("a lantern", LISTS)
    monkeypatch.setattr(nltk, "__version__", "3.9.3")
    with pytest.raises(MissingExtraError, match=r"nltk 3\.9\.1 or 3\.9\.2.*litbench\[prose\]"):
        prose.complexity("a lantern")


@needs("GOLDEN", "LONGFORM_BENCH", "NLTK_DATA")
def test_chapters_are_as_published():
    lists = SlopLists.read(Path(os.environ["LONGFORM_BENCH"]))
    cases = golden("metrics_chapters.json")["cases"]
    assert len(cases) == 46
    for case in cases:
        slop, complexity = prose.slop(case["text"], lists), prose.complexity(case["text"])
        assert case["expected"]["nltk-3.9.1"] == {
            "slop_index": pytest.approx(slop.index, abs=1e-9),
            "total_words": slop.words or None,
            "word_hits": slop.word_hits,
            "bigram_hits": slop.bigram_hits,
            "trigram_hits": slop.trigram_hits,
            "complexity_index": pytest.approx(complexity.index, abs=0.01),
            "n_sentences": complexity.sentences,
            "n_tokens": complexity.tokens,
            "total_syllables": complexity.syllables,
            "n_polysyllabic": complexity.polysyllabic,
        }, case["id"]


@needs("LONGFORM_BENCH", "LONGFORM", "NLTK_DATA")
def test_writers_are_as_published():
    chapters = Path(os.environ["LONGFORM"]) / "longform_results_sample.parquet"
    lists = SlopLists.read(Path(os.environ["LONGFORM_BENCH"]))
    published = {
        "deepseek-ai/DeepSeek-V3-0324": ("4131", "19.39", "47.40", "11.6"),
        "o3": ("7493", "32.82", "33.03", "4.3"),
        "microsoft/phi-4-multimodal-instruct": ("9738", "41.00", "86.47", "84.5"),
    }
    query = """
        select list(text order by chapter_index) from read_parquet(?)
        where kind = 'chapter' and model = ? group by prompt_id order by prompt_id
    """
    for model, expected in published.items():
        stories = [row[0] for row in duckdb.execute(query, [str(chapters), model]).fetchall()]
        result = prose.prose_statistics(stories, lists)
        assert expected == (
            f"{result.length:.0f}",
            f"{result.complexity:.2f}",
            f"{result.slop:.2f}",
            f"{result.repetition:.1f}",
        ), model
