"""The program make_pairs, end to end: outputs, counts, reruns and errors."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.data.curation import pair_making
from litbench.data.curation.engine import Engine
from litbench.data.records import PAIRS, pair_id
from litbench.data.tables import check_parquet, write_table
from litbench.runs.config import build, load_config
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import source_digest, write_sealed

CONFIG = Path(__file__).parents[2] / "configs/paper/litbench_figure1.yaml"
HALVES = {"train": 0.5, "test": 0.5}
LOOSE = {
    **dict.fromkeys(("min_score", "max_tokens", "min_words", "min_gap", "symmetry_buckets")),
    "chosen_later": False,
}


@pytest.fixture
def pairs_from(load_program, tmp_path):
    """Write a stories table, run main on it and read what it wrote."""
    program = load_program("data_prep/make_pairs.py")
    runs = iter(range(1_000))

    def run(stories, preset=None, folder=None, **options):
        if folder is None:
            folder = tmp_path / f"run{next(runs)}"
            folder.mkdir()
            write_table(stories, folder / "stories.parquet")
        arguments = [] if preset is None else [f"--config={CONFIG}", *preset]
        paths = [f"--stories={folder / 'stories.parquet'}", f"--out={folder / 'out'}"]
        inputs = [f"--{key}={json.dumps(value)}" for key, value in options.items()]
        program.main(load_config(program.Config, [*arguments, *paths, *inputs]))
        return Written(folder / "out")

    return run


class Written:
    """A folder of make_pairs."""

    def __init__(self, folder):
        self.folder = folder
        self.pairs = pq.read_table(folder / "pairs.parquet")
        self.rows = self.pairs.to_pylist()
        self.manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        self.funnel = self.manifest["counts"]["funnel"]

    def before(self):
        return pq.read_table(self.folder / "pairs_before_symmetry.parquet")

    def bytes(self):
        files = sorted(self.folder.glob("*.parquet"))
        return {file.name: file.read_bytes() for file in files}

    def sides(self):
        return sides(self.pairs)


def sides(pairs):
    names = (pairs[f"{side}_story_id"].to_pylist() for side in ("chosen", "rejected"))
    return set(zip(*names, strict=True))


def village(story_table, prompts=12, stories=14, seed=0):
    """Stories whose votes correlate with length, so that every later step removes some."""
    random = np.random.default_rng(seed)
    rows = []
    for index in range(prompts * stories):
        n_words = int(random.integers(30, 400))
        rows.append(
            {
                "prompt_id": f"p{index // stories}",
                "text": f"Story {index} of the village.",
                "n_words": n_words,
                "n_tokens": n_words * int(random.choice([1, 1, 1, 9])),
                "score": int(random.poisson(8 + n_words / 30)),
                "created_utc": int(random.integers(0, 5_000)),
                "author": random.choice(["4f1b", "77aa", "AutoModerator"], p=[0.5, 0.48, 0.02]),
            }
        )
    return story_table(rows)


def check_funnel(written, stories):
    """Check that counts add up from step to step, from the rows read to the rows written."""
    steps = {step["step"]: step for step in written.funnel}
    for before, after in pairwise(written.funnel):
        if after["unit"] == before["unit"]:
            assert after["kept"] + after["removed"] == before["kept"]
    assert written.funnel[0]["kept"] == stories.num_rows
    assert written.funnel[-1]["kept"] == written.pairs.num_rows
    if "symmetry_buckets" in steps:
        step = steps["symmetry_buckets"]
        assert step["kept"] + step["removed"] == written.before().num_rows
    return steps


def test_writes_pairs_funnel_and_examples(pairs_from, story_table):
    stories = village(story_table)
    written = pairs_from(stories)
    check_parquet(written.folder / "pairs.parquet", PAIRS)
    assert written.pairs.column_names == [column.name for column in PAIRS.columns]
    names = written.pairs["pair_id"].to_pylist()
    assert names == sorted(set(names))
    by_name = {row["story_id"]: row for row in stories.to_pylist()}
    for row in written.rows:
        chosen, rejected = (by_name[row[f"{side}_story_id"]] for side in ("chosen", "rejected"))
        assert (row["chosen"], row["rejected"]) == (chosen["text"], rejected["text"])
        assert row["prompt"] == chosen["prompt"] == rejected["prompt"]
        assert row["prompt_id"] == chosen["prompt_id"] == rejected["prompt_id"]
        assert row["pair_id"] == pair_id(chosen["story_id"], rejected["story_id"])
        assert (row["label_source"], row["split"]) == ("not stated", "all")
        assert row["margin"] is row["weight"] is row["fold"] is None
        for column in ("score", "created_utc", "author", "n_words"):
            values = (row[f"chosen_{column}"], row[f"rejected_{column}"])
            assert values == (chosen[column], rejected[column])

    steps = check_funnel(written, stories)
    lines = (written.folder / "examples.jsonl").read_text(encoding="utf-8").splitlines()
    examples = [json.loads(line) for line in lines]
    removed = {name: step["removed"] for name, step in steps.items() if step["unit"] == "stories"}
    assert Counter(row["step"] for row in examples) == {
        step: min(5, count) for step, count in removed.items() if count
    }
    story_ids = {name for pair in sides(written.before()) for name in pair}
    for row in examples:
        story = by_name[row["name"]]
        assert row["text"] == story["text"]
        assert row["about"].startswith(f"score {story['score']}, words ")
        assert row["name"] not in story_ids


def test_longer_story_is_chosen_in_half_of_the_pairs(pairs_from, story_table):
    stories = village(story_table, prompts=30, stories=12)
    written = pairs_from(stories, splits={"train": 0.6, "test": 0.4}, symmetry_buckets=10)
    lengths = written.manifest["counts"]["lengths"]
    for split in ("train", "test"):
        signs = Counter(
            int(np.sign(row["chosen_n_words"] - row["rejected_n_words"]))
            for row in written.rows
            if row["split"] == split
        )
        assert signs[1] == signs[-1] > 0
        counted = lengths["after"][split]
        assert (counted["chosen_longer"], counted["chosen_shorter"]) == (signs[1], signs[-1])
        assert counted["pairs"] == sum(signs.values())
        before = lengths["before"][split]
        assert before["chosen_longer"] > before["chosen_shorter"]
    assert written.sides() < sides(written.before())


def test_pairs_depend_on_seed_not_on_order_or_parts(pairs_from, story_table, monkeypatch):
    stories = village(story_table, prompts=6, stories=40)
    options = {"splits": HALVES, "max_pairs_per_prompt": 150}
    shuffled = stories.take(np.random.default_rng(1).permutation(stories.num_rows))
    first = pairs_from(stories, **options)
    assert len(first.rows) > 100
    assert pairs_from(shuffled, **options).bytes() == first.bytes()
    assert pairs_from(stories, seed=1, **options).sides() != first.sides()
    monkeypatch.setattr(pair_making, "_PAIRS_AT_ONCE", 60)
    assert pairs_from(stories, **options).bytes() == first.bytes()


nullable = st.one_of(st.none(), st.integers(0, 30))


@settings(max_examples=4)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "prompt_id": st.sampled_from("ab"),
                "text": st.sampled_from(["[removed]", "One. ", "Two. ", "Three. ", "Four. "]),
                "score": nullable,
                "created_utc": nullable,
                "n_words": st.integers(45, 70),
                "n_tokens": st.integers(2_040, 2_051),
            }
        ),
        min_size=10,
        max_size=40,
    ),
    options=st.fixed_dictionaries(
        {
            "drop_duplicates": st.booleans(),
            "max_pairs_per_prompt": st.sampled_from([None, 1, 7]),
            "symmetry_buckets": st.sampled_from([None, 2, 8]),
        }
    ),
)
def test_the_funnel_adds_up(pairs_from, story_table, rows, options):
    # One pair that every rule keeps, since a product without pairs is an error.
    safe = {"prompt_id": "safe", "n_words": 60, "n_tokens": 80}
    rows += [{**safe, "text": f"Safe {n}.", "score": 20 * n, "created_utc": n} for n in (1, 2)]
    stories = story_table(rows)
    check_funnel(pairs_from(stories, **options), stories)


@pytest.mark.parametrize(
    ("name", "pairs", "steps"),
    [
        ("naive_upvotes", "ba ca cb cf fa fb", "has_score min_score | min_gap"),
        (
            "upvotes_and_timestamps",
            "ba be de fa fb fd fe",
            "has_score has_time | min_gap chosen_later",
        ),
        (
            "full",
            "ba",
            "has_score has_time min_score max_tokens min_words"
            " | min_gap chosen_later symmetry_buckets",
        ),
    ],
)
def test_strict_configs_apply_only_the_papers_rules(pairs_from, story_table, name, pairs, steps):
    columns = ("story_id", "score", "created_utc", "n_words")
    rows = [
        ("a", 10, 1, 60),
        ("b", 14, 2, 60),
        ("c", 100, 0, 60),  # high and early
        ("d", 4, 3, 60),  # too few votes
        ("e", 1, 1, 60),
        ("f", 50, 9, 20),  # too short
    ]
    stories = story_table(
        [{**dict(zip(columns, row, strict=True)), "n_tokens": 80} for row in rows]
    )
    written = pairs_from(stories, [] if name == "full" else [f"--preset={name}"])
    assert written.sides() == {tuple(pair) for pair in pairs.split()}
    result = " ".join(step["step"] for step in written.funnel)
    assert result == "read " + steps.replace("|", "within_prompt")


def one_pair(story_table, **column):
    rows = [{"score": 10 * n, "created_utc": n, "n_tokens": 90, "n_words": 60} for n in (1, 2)]
    return story_table([{**row, **column} for row in rows])


def test_errors_are_one_line_or_show_the_funnel(program, pairs_from, story_table, tmp_path):
    write_table(one_pair(story_table), tmp_path / "stories.parquet")
    paths = [f"--stories={tmp_path / 'stories.parquet'}", f"--out={tmp_path / 'out'}"]
    done = program("data_prep/make_pairs.py", *paths, "--symmetry_buckets", "3")
    assert done.returncode == 2
    assert done.stderr.startswith("error: command line: key 'symmetry_buckets' is 3")
    assert done.stderr.count("\n") == 1
    funnel = r"2 stories \(stories read\) → 0 \(score at least 1000\).*min_score removed most"
    with pytest.raises(DataError, match=f"no pair is left: {funnel}"):
        pairs_from(one_pair(story_table), min_score=1_000)


@pytest.mark.long
def test_the_benchmark_measures_the_program(load_program):
    benchmark = load_program("benchmarks/pairing.py")
    assert benchmark.measure(benchmark.Config(n_stories=4_000, repeats=1))["n_pairs"] > 100


DAY = 1_672_531_200  # 2023-01-01


def test_date_split_shares_no_prompt(pairs_from, story_table):
    rows = []
    for prompt, days in {"old": (-3, -2), "both": (-2, -1, 0, 1), "new": (0, 5, 9)}.items():
        for index, day in enumerate(days):
            when = DAY + 86_400 * day
            row = {"story_id": f"{prompt}{index}", "prompt_id": prompt, "created_utc": when}
            rows.append({**row, "score": 10 + 20 * index, "n_words": 99, "n_tokens": 99})
    written = pairs_from(
        story_table(rows),
        test_from="2023-01-01",
        symmetry_buckets=None,
    )
    prompts = {"train": set(), "test": set()}
    for row in written.rows:
        prompts[row["split"]].add(row["prompt_id"])
        times = (row["chosen_created_utc"], row["rejected_created_utc"])
        assert all((when >= DAY) == (row["split"] == "test") for when in times)
    assert prompts == {"train": {"old", "both"}, "test": {"new"}}
    assert next(step for step in written.funnel if step["step"] == "test_from")["removed"] == 2


def test_near_duplicates_of_other_prompts_are_dropped(pairs_from, story_table):
    """The last stories of two prompts differ in one word of 120."""
    words = [f"word{index}" for index in range(120)]
    rows = []
    for prompt in "pq":
        for index in range(3):
            text = " ".join(f"{prompt}{index}{word}" for word in words)
            rows.append({"story_id": f"{prompt}{index}", "prompt_id": prompt, "text": text})
    rows[2]["text"] = " ".join(words)
    rows[5]["text"] = " ".join([*words[:60], "other", *words[61:]])
    for index, row in enumerate(rows):
        row.update(score=10 + 20 * (index % 3), created_utc=index, n_tokens=200, n_words=120)
    written = pairs_from(story_table(rows), drop_near_duplicates=0.8, symmetry_buckets=None)
    removed = {step["step"]: step["removed"] for step in written.funnel}
    assert removed["drop_near_duplicates"] == 1
    names = {name for pair in written.sides() for name in pair}
    assert "p2" in names
    assert "q2" not in names


def test_stories_must_be_those_of_their_manifest(pairs_from, story_table, tmp_path):
    stories = tmp_path / "stories.parquet"
    write_table(village(story_table), stories)
    outputs = {stories.name: {"sha256": source_digest(stories)}}
    write_sealed({"counts": {"stories": 168}, "outputs": outputs}, tmp_path / "manifest.json")
    assert pairs_from(None, folder=tmp_path).manifest["counts"]["stories"] == {"stories": 168}
    write_table(village(story_table, seed=5), stories)
    with pytest.raises(DataError, match=r"stories.parquet does not match"):
        pairs_from(None, folder=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": {"train": 0.8, "test": 0.1}}, "splits: .*summing to 1"),
        ({"min_gap": 1.0}, "'min_gap' is 1.0"),
        ({"max_pairs_per_prompt": 0}, "'max_pairs_per_prompt' is 0"),
        ({"symmetry_buckets": 7}, "'symmetry_buckets' is 7"),
        ({"label_source": "guess"}, "label_source"),
        ({"min_scores": 3}, "unknown key 'min_scores': did you mean 'min_score'"),
        ({"test_from": "soon"}, "test_from is 'soon': give a day"),
        ({"test_from": "2023-01-01", "splits": HALVES}, "both given"),
        ({"drop_near_duplicates": 1.5}, "'drop_near_duplicates' is 1.5"),
        ({"engine": "sparkle"}, "engine"),
        ({}, r"there is no file .*nowhere\.parquet"),
    ],
)
def test_a_wrong_config_is_refused_before_any_work(load_program, tmp_path, options, message):
    program = load_program("data_prep/make_pairs.py")
    paths = {"stories": str(tmp_path / "nowhere.parquet"), "out": str(tmp_path / "out")}
    with pytest.raises((ConfigError, DataError), match=message):
        program.main(build(program.Config, {**paths, **options}))
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_tokens": None}, r"stories\.parquet: column n_tokens is null in 2 rows"),
        ({"created_utc": None}, "created_utc is empty, and chosen_later needs it"),
        ({"story_id": "same"}, "story_id: 1 rows repeat an id: make the file"),
    ],
)
def test_unsuitable_stories_are_refused(pairs_from, story_table, changes, message):
    with pytest.raises(DataError, match=message):
        pairs_from(one_pair(story_table, **changes))


def test_pairs_are_counted_before_they_are_made(pairs_from, story_table):
    stories = village(story_table, prompts=3, stories=40)
    with pytest.raises(
        DataError,
        match=r"2,340 pairs within prompts, 780 of them from the 40 stories of prompt_id 'p0'; "
        r"max_candidate_pairs is 2,339: .*max_pairs_per_prompt",
    ):
        pairs_from(stories, max_candidate_pairs=2_339, drop_bots=False, **LOOSE)


def test_pairs_beyond_the_cap_are_never_stored(pairs_from, story_table, monkeypatch):
    stored = []

    def keep(engine, table):
        result = real_keep(engine, table)
        stored.append(engine.count(result))
        return result

    real_keep = Engine.keep
    monkeypatch.setattr(Engine, "keep", keep)
    stories = village(story_table, prompts=1, stories=200)
    written = pairs_from(stories, max_pairs_per_prompt=20, **LOOSE)
    (step,) = (step for step in written.funnel if step["step"] == "max_pairs_per_prompt")
    assert step["kept"] == len(written.rows) == 20
    assert step["removed"] > 15_000
    assert max(stored) <= stories.num_rows


def test_prompts_that_share_an_id_or_a_text_share_a_split(pairs_from, story_table):
    """Shared texts link all prompt_ids, so that they must be in one split."""
    rows = village(story_table, prompts=6).to_pylist()
    for index, row in enumerate(rows):
        number = int(row["prompt_id"][1:])
        row["prompt"] = f"[WP] Door {number + index % 2} opens"
    written = pairs_from(story_table(rows), splits=HALVES, **LOOSE)
    assert len(set(written.pairs["split"].to_pylist())) == 1
    assert set(written.pairs["prompt"].to_pylist()) == {f"[WP] Door {n} opens" for n in range(6)}
    assert "6 prompt_ids have several prompts" in written.manifest["counts"]["notes"][0]
