"""Tokens are counted as the tokenizer does, once, and what was kept is never wrong."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from litbench.curation.tokens import (
    TokenCache,
    TokenCounter,
    cache_folder,
    count_tokens,
    load_tokenizer,
    text_key,
)
from litbench.errors import DataError


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Callable[..., Path]) -> str:
    return str(tiny_model("llama"))


def plainly(tokenizer: str, texts: list[str]) -> list[int]:
    loaded = Tokenizer.from_file(str(Path(tokenizer) / "tokenizer.json"))
    return [len(loaded.encode(text, add_special_tokens=False).ids) for text in texts]


def counted(tokenizer: str, texts: list[str], cache: Path | None) -> tuple[list[int], int, int]:
    counter = TokenCounter(tokenizer, 100, cache)
    counts = counter.count(texts, [1] * len(texts)).tolist()
    counter.close()
    return counts, counter.counted, counter.remembered


def invented_texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    words = ["moth", "copper", "lantern", "你好", "🌍", "naïve", "\n\n", "42"]
    return [" ".join(rng.choices(words, k=rng.randrange(30))) + str(k) for k in range(count)]


@settings(max_examples=20)
@given(st.lists(st.text(max_size=30), max_size=30), st.integers(0, 30))
def test_any_texts_are_counted_as_the_tokenizer_does_whatever_is_known(
    tokenizer: str, tmp_path_factory: pytest.TempPathFactory, texts: list[str], known: int
) -> None:
    expected = plainly(tokenizer, texts)
    cache = tmp_path_factory.mktemp("cache")
    assert counted(tokenizer, texts[:known], cache)[0] == expected[:known]
    assert counted(tokenizer, texts, cache)[0] == expected
    assert counted(tokenizer, texts, cache) == (expected, 0, len(texts))
    assert count_tokens(texts, [1] * len(texts), tokenizer, 100).tolist() == expected


def test_many_and_long_texts_are_counted_across_batches(tokenizer: str, tmp_path: Path) -> None:
    texts = [*invented_texts(5_000, 1), "moth " * 300_000, "copper " * 200_000, "", ""]
    random.Random(2).shuffle(texts)
    expected = plainly(tokenizer, texts)
    assert counted(tokenizer, texts, tmp_path) == (expected, len(set(texts)), 0)
    assert counted(tokenizer, texts, tmp_path) == (expected, 0, len(texts))
    assert counted(tokenizer, texts, None) == (expected, len(set(texts)), 0)


def test_a_text_of_too_many_words_gets_its_words_and_is_not_kept(
    tokenizer: str, tmp_path: Path
) -> None:
    counter = TokenCounter(tokenizer, 20, tmp_path)
    (one,) = plainly(tokenizer, ["moth and moth"])
    assert counter.count(["moth and moth"] * 2, [20, 21]).tolist() == [one, 21]
    assert counter.count(["copper"], [21]).tolist() == [21]
    counter.close()
    assert counted(tokenizer, ["copper"], tmp_path)[1:] == (1, 0)


def test_each_tokenizer_keeps_counts_of_its_own(
    tokenizer: str, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    other = str(tiny_model("bert"))
    texts = invented_texts(50, 3)
    assert counted(tokenizer, texts, tmp_path)[0] == plainly(tokenizer, texts)
    assert counted(other, texts, tmp_path) == (plainly(other, texts), 50, 0)
    assert plainly(other, texts) != plainly(tokenizer, texts)
    assert len(list(tmp_path.glob("tokens-*.sqlite"))) == 2
    # The place of a tokenizer says nothing, its content does.
    copy = tmp_path / "copy.json"
    copy.write_bytes((Path(tokenizer) / "tokenizer.json").read_bytes())
    assert counted(str(copy), texts, tmp_path)[1:] == (0, 50)


def test_counts_lie_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LITBENCH_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("LITBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "litbench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "litbench"


# Damage --------------------------------------------------------------------------------------


def cache_file(tokenizer: str, folder: Path, texts: list[str]) -> Path:
    counted(tokenizer, texts, folder)
    (path,) = folder.glob("tokens-*.sqlite")
    return path


@pytest.mark.parametrize("change", ["count = count + 4294967296", "count = count + 1", "count = 7"])
def test_a_count_that_was_changed_is_noticed(tokenizer: str, tmp_path: Path, change: str) -> None:
    path = cache_file(tokenizer, tmp_path, ["moth", "copper"])
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE counts SET {change}")  # noqa: S608
    database.close()
    with pytest.raises(DataError, match=r"tokens-.*checksum.*delete the file.*cache_tokens"):
        counted(tokenizer, ["moth"], tmp_path)


def test_no_damage_to_the_file_gives_a_wrong_count(tokenizer: str, tmp_path: Path) -> None:
    texts = invented_texts(400, 4)
    expected = plainly(tokenizer, texts)
    path = cache_file(tokenizer, tmp_path, texts)
    good = path.read_bytes()
    rng = random.Random(5)
    refused = 0
    for _ in range(60):
        damaged = bytearray(good)
        for _ in range(rng.choice([1, 1, 20, 500])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        if rng.random() < 0.2:
            damaged = damaged[: rng.randrange(1, len(damaged))]
        path.write_bytes(damaged)
        try:
            found = counted(tokenizer, texts, tmp_path)[0]
        except DataError as error:
            found = expected if str(path) in str(error) else [str(error)]
            refused += 1
        assert found == expected
    assert refused > 10


def test_what_is_no_database_and_no_folder_is_a_clear_error(tokenizer: str, tmp_path: Path) -> None:
    path = cache_file(tokenizer, tmp_path, ["moth"])
    path.write_bytes(b"this is no database, " * 500)
    with pytest.raises(DataError, match=r"cannot be used.*delete the file"):
        counted(tokenizer, ["moth"], tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot be used.*LITBENCH_CACHE"):
        counted(tokenizer, ["moth"], tmp_path / "file")


# Several processes, and kills ----------------------------------------------------------------

# Keeps counts of texts "0", "1", ... for as long as it lives, each count its own number.
WORKER = """
import sys
from pathlib import Path
from litbench.curation.tokens import TokenCache, load_tokenizer, text_key
cache = TokenCache(Path(sys.argv[1]), load_tokenizer(sys.argv[2]))
for start in range(0, int(sys.argv[3]), 200):
    cache.keep({text_key(str(k)): k for k in range(start, start + 200)})
    if start == 0:
        print("ready", flush=True)
"""


def start_worker(folder: Path, tokenizer: str, most: int) -> subprocess.Popen[bytes]:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder), tokenizer, str(most)],
        stdout=subprocess.PIPE,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
    )
    assert worker.stdout is not None
    return worker


def kept(folder: Path, tokenizer: str, most: int) -> int:
    """How many of the counts are there, all of which are right."""
    cache = TokenCache(folder, load_tokenizer(tokenizer))
    found = cache.find([text_key(str(k)) for k in range(most)])
    cache.close()
    numbers = {text_key(str(k)): k for k in range(most)}
    assert all(numbers[key] == count for key, count in found.items())
    return len(found)


def test_several_processes_keep_counts_at_once(tokenizer: str, tmp_path: Path) -> None:
    workers = [start_worker(tmp_path, tokenizer, 2_000) for _ in range(3)]
    for worker in workers:
        worker.communicate(timeout=300)
        assert worker.returncode == 0
    assert kept(tmp_path, tokenizer, 2_000) == 2_000


def test_a_kill_at_any_moment_leaves_whole_counts(tokenizer: str, tmp_path: Path) -> None:
    rng = random.Random(6)
    for _ in range(4):
        with start_worker(tmp_path, tokenizer, 10_000_000) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0, 0.4))
            worker.send_signal(signal.SIGKILL)
        assert kept(tmp_path, tokenizer, 100_000) % 200 == 0
    assert kept(tmp_path, tokenizer, 100_000) > 0
