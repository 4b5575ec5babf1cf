"""The claims of the docs are recomputed on any folder of sets, and each has its row."""

import csv
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.replicate import CLAIMS, Config, difference, main, read_claims
from litbench.metrics.intervals import Interval

RESULTS = CLAIMS.parent / "new_prompts.md"
NOTE = "\n\nEdit: thanks for the gold, more stories are on my subreddit!"


def numbers(text):
    return [float(number) for number in re.findall(r"[-+]?\d+\.\d+", text)]


def test_the_claims_of_the_docs_are_the_rows_of_the_table():
    """Each row of the page has the values of claims.csv, and no row is without its claim."""
    lines = re.findall(r"^\| (.+) \|$", RESULTS.read_text(encoding="utf-8"), re.M)[2:]
    stated = {cells[0]: cells[1:] for cells in (line.split(" | ") for line in lines)}
    claims = {claim["claim"]: claim for claim in read_claims()}
    assert list(stated) == list(claims)
    for name, claim in claims.items():
        for cell, start in zip(stated[name][:2], ("stated", "elsewhere"), strict=True):
            ends = ("low", "high") if start == "stated" else ("elsewhere_low", "elsewhere_high")
            values = [float(claim[key]) for key in (start, *ends) if claim[key]]
            assert numbers(cell) == pytest.approx(values), name
        assert stated[name][3] == claim["p_times_370"], name


def test_claims_without_a_row_have_a_reason():
    listed = re.findall(r"^- \*\*(.+)\*\*: (.+)\.$", RESULTS.read_text(encoding="utf-8"), re.M)
    claims = read_claims(recomputed=False)
    assert claims
    assert listed == [(claim["claim"], claim["reason"]) for claim in claims]
    assert not any(claim["set"] for claim in claims)


def test_a_difference_has_the_errors_of_both():
    there = Interval(0.5, 0.4, 0.7, 100, 20, 20.0)
    assert difference([0.6, 0.5, 0.8], there) == pytest.approx(
        [-0.1, -0.1 - np.hypot(0.1, 0.2), -0.1 + np.hypot(0.2, 0.1)]
    )
    assert np.isnan(difference([0.6, np.nan, np.nan], there)[1])


def storyer(folder: Path, seed: int, prompts: int) -> None:
    """A set in StoryER's form, in which the story with notes wins 9 of 10 pairs."""
    random = np.random.default_rng(seed)
    words = [f"w{number}" for number in range(300)]
    stories, pairs = [], []
    for prompt in range(prompts):
        for pair in range(6):
            ids = [f"{seed}-{prompt}-{pair}-{side}" for side in ("a", "b")]
            if random.random() < 0.1:
                ids.reverse()
            pairs.append((f"{seed}-{prompt}", *ids))
            for name in ids:
                text = " ".join(random.choice(words, int(random.integers(60, 120))))
                note = NOTE if name.endswith("a") else ""
                about = f"The tale {seed} of number {prompt} {words[prompt]}"
                stories.append((f"{seed}-{prompt}", about, name, text + note))
    folder.mkdir(parents=True)
    names = ["prompt_id", "prompt", "story_id", "story"]
    columns = zip(*stories, strict=True)
    pq.write_table(pa.table(dict(zip(names, columns, strict=True))), folder / "stories.parquet")
    names = ["prompt_id", "high_story_id", "low_story_id"]
    table = pa.table(dict(zip(names, zip(*pairs, strict=True), strict=True)))
    pq.write_table(table, folder / "pairs_as_published.parquet")


def test_claims_are_recomputed_on_other_prompts(tmp_path, capsys):
    storyer(tmp_path / "new/storyer_pairs", seed=1, prompts=10)
    storyer(tmp_path / "old/storyer_pairs", seed=2, prompts=12)
    main(Config(data=tmp_path / "new", train=tmp_path / "old", out=tmp_path / "out"))
    with (tmp_path / "out/replication.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["claim"]: row for row in csv.DictReader(file)}
    assert list(rows) == [claim["claim"] for claim in read_claims()]
    notes = rows["StoryER: story with notes to readers"]
    assert 0.8 < float(notes["there"]) < 1
    assert (notes["n"], notes["prompts"]) == ("60", "10")
    assert float(notes["difference"]) == pytest.approx(float(notes["there"]) - 0.677)
    lost = rows["StoryER: what features lose with notes cut"]
    assert float(lost["there"]) > 0.15
    assert float(rows["StoryER: features"]["there"]) > 0.7
    assert rows["wqrm: shorter"]["there"] == ""
    assert "wqrm: shorter" in capsys.readouterr().out
    # Nine of ten pairs in ten prompts stay significant among 370 figures; no difference does.
    assert float(notes["p"]) < float(notes["p_corrected"]) < 0.05
    assert float(rows["StoryER: features, notes cut"]["p_corrected"]) == 1
