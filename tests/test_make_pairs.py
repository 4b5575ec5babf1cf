"""The program make_pairs, end to end: what it writes, counts, repeats and refuses."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.artifact import source_digest
from litbench.config import build, load_config
from litbench.curation.splits import split_of
from litbench.errors import ConfigError, DataError
from litbench.records import PAIRS, pair_id
from litbench.sources.sample import read_sample
from litbench.tables import check_parquet, write_table

CONFIGS = Path(__file__).parent.parent / "configs/data"
LOOSE = {
    "min_score": None,
    "max_tokens": None,
    "min_words": None,
    "min_gap": None,
    "chosen_later": False,
    "symmetry_buckets": None,
}


@pytest.fixture
def pairs_from(load_program, tmp_path):
    """Write a stories table, run main on it and read what it wrote."""
    program = load_program("data_prep/make_pairs.py")
    runs = iter(range(1_000))

    def run(stories, config=None, file="stories.parquet", **options):
        folder = tmp_path / f"run{next(runs)}"
        folder.mkdir()
        if file.endswith("parquet"):
            write_table(stories, folder / file)
        elif file.endswith("csv"):
            pyarrow.csv.write_csv(stories, folder / file)
        elif file.endswith("jsonl"):
            lines = [json.dumps(row) + "\n" for row in stories.to_pylist()]
            (folder / file).write_text("".join(lines), encoding="utf-8")
        else:
            pytest.importorskip("datasets").Dataset(stories).save_to_disk(str(folder / file))
        arguments = ["--config", str(CONFIGS / config)] if config else []
        paths = [f"--stories={folder / file}", f"--out={folder / 'out'}"]
        given = [f"--{key}={json.dumps(value)}" for key, value in options.items()]
        program.main(load_config(program.Config, [*arguments, *paths, *given]))
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
    """Stories whose votes go with length, so that every later step has something to remove."""
    random = np.random.default_rng(seed)
    rows = []
    for place in range(prompts * stories):
        n_words = int(random.integers(30, 400))
        rows.append(
            {
                "prompt_id": f"p{place // stories}",
                "text": f"Story {place} of the village.",
                "n_words": n_words,
                "n_tokens": n_words * int(random.choice([1, 1, 1, 9])),
                "score": int(random.poisson(8 + n_words / 30)),
                "created_utc": int(random.integers(0, 5_000)),
                "author": random.choice(["4f1b", "77aa", "AutoModerator"], p=[0.5, 0.48, 0.02]),
            }
        )
    return story_table(rows)


@pytest.mark.parametrize("file", ["stories.jsonl", "stories.csv", "stories"])
def test_the_format_of_the_stories_does_not_matter(file, story_table, pairs_from):
    stories = village(story_table)
    plain, other = pairs_from(stories), pairs_from(stories, file=file)
    assert (plain.folder / "pairs.parquet").read_bytes() == (
        other.folder / "pairs.parquet"
    ).read_bytes()


def test_the_product_is_a_pairs_table_in_the_order_of_pair_id(pairs_from, story_table):
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
        assert (row["label_source"], row["split"]) == ("votes", "all")
        assert row["margin"] is row["weight"] is row["fold"] is None
        for column in ("score", "created_utc", "author", "n_words"):
            values = (row[f"chosen_{column}"], row[f"rejected_{column}"])
            assert values == (chosen[column], rejected[column])


def test_in_the_written_splits_the_longer_story_is_chosen_in_exactly_half(pairs_from, story_table):
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


def test_shuffled_rows_give_the_same_bytes_and_another_seed_gives_others(pairs_from, story_table):
    stories = village(story_table, prompts=6, stories=60)
    options = {"splits": {"train": 0.5, "test": 0.5}, "max_pairs_per_prompt": 300}
    shuffled = stories.take(np.random.default_rng(1).permutation(stories.num_rows))
    first = pairs_from(stories, **options)
    assert len(first.rows) > 100
    assert pairs_from(shuffled, **options).bytes() == first.bytes()
    assert pairs_from(stories, **options).bytes() == first.bytes()
    for step in ({"splits": {"all": 1.0}}, {"splits": {"all": 1.0}, "max_pairs_per_prompt": None}):
        seeds = [pairs_from(stories, **{**options, **step}, seed=seed).sides() for seed in (0, 1)]
        assert seeds[0] != seeds[1], step


def test_a_second_run_leaves_a_current_product_alone(pairs_from, load_program, story_table, capsys):
    folder = pairs_from(village(story_table)).folder
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    program = load_program("data_prep/make_pairs.py")
    paths = [f"--stories={folder.parent / 'stories.parquet'}", f"--out={folder}"]
    capsys.readouterr()
    program.main(load_config(program.Config, paths))
    assert capsys.readouterr().out == f"unchanged: {folder}\n"
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    program.main(load_config(program.Config, [*paths, "--min_gap=0.2"]))
    assert (folder / "pairs.parquet").stat().st_mtime_ns > before[folder / "pairs.parquet"]


def check_funnel(written, stories):
    """Every step starts from what the last one kept, and the ends are what was read and written."""
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


nullable = st.one_of(st.none(), st.integers(0, 30))


@settings(max_examples=8)
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
        min_size=1,
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


SETS = {"naive": "naive_upvotes", "timed": "upvotes_and_timestamps", "full": "full"}


def test_the_papers_three_sets_on_a_table_small_enough_to_pair_by_hand(pairs_from, story_table):
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
    found = {name: pairs_from(stories, f"paper_{file}.yaml").sides() for name, file in SETS.items()}
    assert found["naive"] == {
        ("b", "a"),
        ("c", "a"),
        ("c", "b"),
        ("c", "f"),
        ("f", "a"),
        ("f", "b"),
    }
    assert found["timed"] == {
        ("b", "a"), ("b", "e"), ("d", "e"), ("f", "a"), ("f", "b"), ("f", "d"), ("f", "e"),
    }  # fmt: skip
    assert found["full"] == {("b", "a")}


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("naive_upvotes", "has_score min_score | min_gap"),
        ("upvotes_and_timestamps", "has_score has_time | min_gap chosen_later"),
        ("full", "has_score has_time min_score max_tokens min_words"
                 " | min_gap chosen_later symmetry_buckets"),
    ],
)  # fmt: skip
def test_the_strict_sets_take_the_steps_of_the_paper_alone(pairs_from, story_table, name, steps):
    written = pairs_from(village(story_table), f"paper_strict_{name}.yaml")
    found = " ".join(step["step"] for step in written.funnel)
    assert found == "read " + steps.replace("|", "within_prompt")


def test_all_filters_have_work_on_the_sample(pairs_from):
    sample = read_sample()
    # Every word of the sample is at least one token; overlong rows have over 2,048 words.
    tokens = sample["n_words"]
    sample = sample.set_column(sample.column_names.index("n_tokens"), "n_tokens", tokens)
    written = pairs_from(sample, "sample_pairs.yaml")
    steps = check_funnel(written, sample)
    # Nobody wrote talk about the prompts for the sample.
    idle = {"read", "drop_talk", "has_score", "has_time", "within_prompt"}
    assert {name for name, step in steps.items() if step["removed"] == 0} == idle
    assert {row["label_source"] for row in written.rows} == {"planted"}


def one_pair(story_table, **column):
    rows = [{"score": 10 * n, "created_utc": n, "n_tokens": 90, "n_words": 60} for n in (1, 2)]
    return story_table([{**row, **column} for row in rows])


def test_when_no_pair_is_left_the_funnel_tells_where_they_went(pairs_from, story_table):
    with pytest.raises(DataError, match=r"no pair is left:[\s\S]*score at least 1000 +0 stories"):
        pairs_from(one_pair(story_table), min_score=1_000)
    # One pair of unequal lengths has no mirror.
    lengths = story_table(
        [{"score": 10 * n, "created_utc": n, "n_tokens": 90, "n_words": 60 + n} for n in (1, 2)]
    )
    with pytest.raises(DataError, match=r"no pair is left:[\s\S]*mirrored, 100 buckets +0 pairs"):
        pairs_from(lengths)


def test_the_program_prints_an_error_in_one_line_without_traceback(program, story_table, tmp_path):
    write_table(one_pair(story_table), tmp_path / "stories.parquet")
    paths = [f"--stories={tmp_path / 'stories.parquet'}", f"--out={tmp_path / 'out'}"]
    done = program("data_prep/make_pairs.py", *paths, "--symmetry_buckets", "3")
    assert done.returncode == 2
    assert done.stderr == "error: symmetry_buckets is 3: give an even number, 2 or more\n"
    done = program("data_prep/make_pairs.py", *paths)
    assert (done.returncode, done.stderr) == (0, "")
    assert "score at least 10" in done.stdout


def test_the_benchmark_measures_the_program(load_program):
    benchmark = load_program("benchmarks/pairing.py")
    assert benchmark.main(benchmark.Config(n_stories=4_000, repeats=1))["n_pairs"] > 100


DAY = 1_672_531_200  # 2023-01-01


def dated(story_table, **more):
    """Three prompts: answered before the day, on both sides of it, and from it on."""
    rows = []
    for prompt, days in {"old": (-3, -2), "both": (-2, -1, 0, 1), "new": (0, 5, 9)}.items():
        for place, day in enumerate(days):
            when = DAY + 86_400 * day
            row = {"story_id": f"{prompt}{place}", "prompt_id": prompt, "created_utc": when}
            rows.append({**row, "score": 10 + 20 * place, "n_words": 99, "n_tokens": 99, **more})
    return story_table(rows)


def test_a_split_by_date_leaves_no_prompt_on_both_sides(pairs_from, story_table):
    options = {"test_from": "2023-01-01", "symmetry_buckets": None}
    written = pairs_from(dated(story_table), must_be_clean=["prompts", "stories"], **options)
    prompts = {"train": set(), "test": set()}
    for row in written.rows:
        prompts[row["split"]].add(row["prompt_id"])
        times = (row["chosen_created_utc"], row["rejected_created_utc"])
        assert all((when >= DAY) == (row["split"] == "test") for when in times)
    assert prompts == {"train": {"old", "both"}, "test": {"new"}}
    assert next(step for step in written.funnel if step["step"] == "test_from")["removed"] == 2


def near_copies(story_table, apart):
    """Two prompts in two splits whose last stories differ in one word of 120."""
    words = [f"word{place}" for place in range(120)]
    rows = []
    for prompt in apart:
        for place in range(3):
            text = " ".join(f"{prompt}{place}{word}" for word in words)
            rows.append({"story_id": f"{prompt}{place}", "prompt_id": prompt, "text": text})
    rows[2]["text"] = " ".join(words)
    rows[5]["text"] = " ".join([*words[:60], "other", *words[61:]])
    for place, row in enumerate(rows):
        row.update(score=10 + 20 * (place % 3), created_utc=place, n_tokens=200, n_words=120)
    return story_table(rows)


@pytest.fixture
def apart():
    """Two prompts that a split in halves puts on two sides."""
    sides = {}
    for place in range(50):
        prompt_id = f"q{place}"
        sides.setdefault(split_of(f"[WP] Prompt of {prompt_id}", HALVES, 0), prompt_id)
    return sides["train"], sides["test"]


HALVES = {"train": 0.5, "test": 0.5}


def test_a_near_duplicate_in_test_fails_the_build_with_both_ids(pairs_from, story_table, apart):
    pytest.importorskip("rensa")
    stories = near_copies(story_table, apart)
    options = {"splits": HALVES, "symmetry_buckets": None}
    with pytest.raises(DataError, match="near-duplicate") as caught:
        pairs_from(stories, must_be_clean=["near_duplicates"], **options)
    assert f"{apart[0]}2 (train)" in str(caught.value)
    assert f"{apart[1]}2 (test)" in str(caught.value)
    # Exact copies and prompts are not shared.
    pairs_from(stories, must_be_clean=["stories", "prompts"], **options)
    clean = pairs_from(
        stories, must_be_clean=["near_duplicates"], drop_near_duplicates=0.8, **options
    )
    step = next(step for step in clean.funnel if step["step"] == "drop_near_duplicates")
    assert step["removed"] == 1
    names = {name for pair in clean.sides() for name in pair}
    # The earlier one stays.
    assert f"{apart[0]}2" in names
    assert f"{apart[1]}2" not in names
    assert clean.manifest["counts"]["leakage"]["shared"][-1]["shared"] == 0


def test_a_build_that_is_not_clean_is_not_current(load_program, story_table, tmp_path):
    program = load_program("data_prep/make_pairs.py")
    stories = dated(story_table, author="77aa")
    write_table(stories, tmp_path / "s.parquet")
    config = program.Config(
        stories=tmp_path / "s.parquet", out=tmp_path / "out", test_from="2023-01-01",
        must_be_clean=["authors"], symmetry_buckets=None,
    )  # fmt: skip
    for _ in range(2):
        with pytest.raises(DataError, match="share 1 authors"):
            program.main(config)
    assert not (tmp_path / "out/manifest.json").exists()
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {"examples.jsonl", "leakage.parquet"}


def test_each_variant_is_what_its_own_config_gives(load_program, story_table, tmp_path):
    program = load_program("data_prep/make_pairs.py")
    write_table(village(story_table), tmp_path / "stories.parquet")
    paths = {"stories": tmp_path / "stories.parquet", "out": tmp_path / "out"}
    variants = {"full": {}, "any_score": {"min_score": None, "symmetry_buckets": 20}}
    program.main(program.Config(**paths, seed=4, variants=variants))
    for name, keys in variants.items():
        alone = {**paths, "out": tmp_path / "alone" / name, "seed": 4, **keys}
        program.main(program.Config(**alone))
        made = Written(tmp_path / "out" / name)
        assert made.bytes() == Written(tmp_path / "alone" / name).bytes()
        assert made.manifest["config"]["seed"] == 4
    assert not (tmp_path / "out/manifest.json").exists()
    first, second = (Written(tmp_path / "out" / name) for name in variants)
    assert first.sides() != second.sides()


def test_all_variants_are_checked_before_the_first_runs(load_program, story_table, tmp_path):
    program = load_program("data_prep/make_pairs.py")
    write_table(village(story_table), tmp_path / "stories.parquet")
    paths = {"stories": tmp_path / "stories.parquet", "out": tmp_path / "out"}
    for keys, message in (({"min_skore": 3}, "min_score"), ({"symmetry_buckets": 3}, "even")):
        variants = {"full": {}, "wrong": keys}
        with pytest.raises(ConfigError, match=message):
            program.main(program.Config(**paths, variants=variants))
        assert not (tmp_path / "out").exists()


def test_examples_are_rows_that_their_step_removed(pairs_from, story_table):
    stories = village(story_table)
    written = pairs_from(stories, max_pairs_per_prompt=9)
    lines = (written.folder / "examples.jsonl").read_text(encoding="utf-8").splitlines()
    examples = [json.loads(line) for line in lines]
    removed = {step["step"]: step["removed"] for step in written.funnel if step["removed"]}
    assert Counter(row["step"] for row in examples) == {
        step: min(5, count) for step, count in removed.items()
    }
    by_name = {row["story_id"]: row for row in stories.to_pylist()}
    kept = {name for pair in sides(written.before()) for name in pair}
    for row in examples:
        if row["step"] == "min_score":
            story = by_name[row["name"]]
            assert (row["text"], story["score"] < 10) == (story["text"], True)
            assert row["about"].startswith(f"score {story['score']}, words ")
        if row["step"] in ("min_score", "max_tokens", "min_words", "drop_bots"):
            assert row["name"] not in kept
    pruned = {row["name"] for row in examples if row["step"] == "symmetry_buckets"}
    assert pruned <= set(written.before()["pair_id"].to_pylist())
    assert not pruned & set(written.pairs["pair_id"].to_pylist())


def test_the_digest_tells_which_pairs_there_are_and_who_was_chosen(
    load_program, pairs_from, story_table, rename_sides, tmp_path
):
    program = load_program("data_prep/make_pairs.py")
    written = pairs_from(village(story_table))
    digest = written.manifest["counts"]["digest"]
    again = tmp_path / "again.parquet"
    # Another file of the same pairs, in other batches.
    pq.write_table(written.pairs, again, row_group_size=7, compression="none")
    assert program.digest_of(again) == digest
    for other in (rename_sides(written.pairs), written.pairs.slice(1)):
        pq.write_table(other, again)
        assert program.digest_of(again) != digest


def test_bots_that_the_source_marked_are_removed_and_a_mark_of_another_type_is_an_error(
    pairs_from, story_table
):
    stories = village(story_table)
    marks = [place % 4 == 0 for place in range(stories.num_rows)]
    marked = stories.append_column("is_bot", pa.array(marks))
    written = pairs_from(marked, **LOOSE)
    bots = {row["story_id"] for row in marked.to_pylist() if row["is_bot"]}
    assert bots
    assert not bots & {name for pair in written.sides() for name in pair}
    for wrong in (pa.array(["true"] * len(marks)), pa.array([1] * len(marks))):
        with pytest.raises(DataError, match=r"column is_bot holds .*, not true or false"):
            pairs_from(stories.append_column("is_bot", wrong), **LOOSE)


def test_counts_of_the_stories_are_told_only_beside_the_stories_they_counted(
    load_program, story_table, tmp_path
):
    program = load_program("data_prep/make_pairs.py")
    stories = tmp_path / "stories.parquet"
    for seed, expected in ((0, {"stories": 168}), (5, None)):
        write_table(village(story_table, seed=seed), stories)
        if expected:
            outputs = {stories.name: {"sha256": source_digest(stories)}}
            manifest = {"counts": expected, "outputs": outputs}
            (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        program.main(program.Config(stories=stories, out=tmp_path / "out"))
        assert Written(tmp_path / "out").manifest["counts"].get("stories") == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": {"train": 0.8, "test": 0.1}}, "splits: .*summing to 1"),
        ({"min_gap": 1.0}, "min_gap is 1.0: give a share from 0 to below 1"),
        ({"max_pairs_per_prompt": 0}, "max_pairs_per_prompt is 0: give at least 1"),
        ({"symmetry_buckets": 7}, "symmetry_buckets is 7: give an even number"),
        ({"label_source": "guess"}, "label_source"),
        ({"min_scores": 3}, "unknown key 'min_scores': did you mean 'min_score'"),
        ({"test_from": "soon"}, "test_from is 'soon': give a day"),
        ({"test_from": "2023-01-01", "splits": HALVES}, "both given"),
        ({"must_be_clean": ["prompts"]}, "needs two splits"),
        ({"must_be_clean": ["prompt"], "splits": HALVES}, "must_be_clean.0' is 'prompt'"),
        ({"drop_near_duplicates": 1.5}, "threshold is 1.5"),
        ({"engine": "sparkle"}, "engine"),
        ({}, r"there is no file .*nowhere\.parquet"),
        ({"variants": {}}, "variants is empty"),
        ({"variants": {"../b": {}}}, "names no folder"),
        ({"variants": {"a/b": {}}}, "names no folder"),
        ({"variants": {"full": {"out": "elsewhere"}}}, "variants: full: 'out' is shared"),
    ],
)
def test_a_wrong_config_is_refused_before_any_work(load_program, tmp_path, options, message):
    program = load_program("data_prep/make_pairs.py")
    values = {"stories": tmp_path / "nowhere.parquet", "out": tmp_path / "out", **options}
    with pytest.raises((ConfigError, DataError), match=message):
        program.main(build(program.Config, {key: str(v) if isinstance(v, Path) else v
                                            for key, v in values.items()}))  # fmt: skip
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("column", "off", "message"),
    [
        ("n_tokens", {"max_tokens": None}, r"stories\.parquet: column n_tokens is null in 2 rows"),
        ("created_utc", {"chosen_later": False}, "created_utc is empty, and chosen_later needs it"),
    ],
)
def test_an_empty_column_is_an_error_until_no_rule_needs_it(
    pairs_from, story_table, column, off, message
):
    assert pairs_from(one_pair(story_table)).sides() == {("s0001", "s0000")}
    stories = one_pair(story_table, **{column: None})
    with pytest.raises(DataError, match=message):
        pairs_from(stories)
    assert len(pairs_from(stories, **off).rows) == 1


def test_a_story_id_that_comes_twice_is_an_error(pairs_from, story_table):
    with pytest.raises(DataError, match="story_id: 1 rows repeat an id: make the file"):
        pairs_from(one_pair(story_table, story_id="same"))


def test_pairs_are_counted_before_they_are_made(pairs_from, story_table):
    stories = village(story_table, prompts=3, stories=40)
    loose = {**LOOSE, "drop_bots": False}
    with pytest.raises(
        DataError,
        match=r"2,340 pairs within prompts, 780 of them from the 40 stories of prompt_id 'p0'; "
        r"max_candidate_pairs is 2,339: .*max_pairs_per_prompt",
    ):
        pairs_from(stories, max_candidate_pairs=2_339, **loose)
    assert pairs_from(stories, max_candidate_pairs=2_340, **loose).rows


def test_prompts_that_share_an_id_or_a_text_share_a_split(pairs_from, story_table):
    """Texts chain prompt_ids, so that everything is one prompt to a split."""
    rows = village(story_table, prompts=6).to_pylist()
    for place, row in enumerate(rows):
        number = int(row["prompt_id"][1:])
        row["prompt"] = f"[WP] Door {number + place % 2} opens"
    written = pairs_from(story_table(rows), splits=HALVES, **LOOSE)
    assert len(set(written.pairs["split"].to_pylist())) == 1
    assert set(written.pairs["prompt"].to_pylist()) == {f"[WP] Door {n} opens" for n in range(6)}
    assert written.manifest["counts"]["notes"] == [
        "6 prompt_ids stand for several prompts, whose stories are paired with each other: check "
        "the column prompt_id"
    ]
