"""Ablations: the whole matrix, equal sizes, prompts kept apart, kills survived, work shared."""

import functools
import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from litbench.config import build
from litbench.entries import RaterSpec
from litbench.errors import ConfigError, DataError
from litbench.evaluation import loop as evaluation
from litbench.experiments import ablation as experiment
from litbench.experiments.ablation import first_by_hash, join_test_sets
from litbench.metrics.agreement import pair_scores
from litbench.records import STORIES, pair_id, prompt_keys
from litbench.store import Cache
from litbench.tables import write_table

LOOSE = {"min_score": None, "max_tokens": None, "min_words": None, "drop_talk": False}
NAIVE = {"chosen_later": False, "symmetry_buckets": None}
VARIANTS = {"full": {}, "naive": NAIVE}
FAST = {"kind": "features", "c": [0.1]}


@functools.cache
def world(prompts=24, stories=8, length=0.0, hidden=0.5, seed=0):
    """Stories whose commas tell their quality; votes go with quality and, as far, with length."""
    random = np.random.default_rng(seed)
    n = prompts * stories
    quality, style = random.normal(size=n), random.normal(size=n)
    words = np.exp(random.normal(4.0, 0.5, n)).astype(int)
    commas = 0.25 / (1 + np.exp(-1.5 * quality - hidden * style))
    texts = [
        " ".join(
            f"word{place}{comma}"
            for place, comma in zip(
                random.integers(50, size=size),
                np.where(random.random(size) < share, ",", ""),
                strict=True,
            )
        )
        for size, share in zip(words, commas, strict=True)
    ]
    liking = 2.2 + 0.6 * quality + length * (np.log(words) - 4.0) / 0.5
    columns = {
        "story_id": [f"s{row:04d}" for row in range(n)],
        "prompt_id": [f"p{row // stories}" for row in range(n)],
        "prompt": [f"[WP] Prompt of p{row // stories}" for row in range(n)],
        "text": texts,
        "n_words": words,
        "source": ["test"] * n,
        "score": random.poisson(np.exp(liking)),
        "created_utc": random.integers(0, 100_000, n),
        "n_tokens": words,
    }
    fields = STORIES.arrow()
    return pa.table(
        {field.name: pa.array(columns.get(field.name, [None] * n), field.type) for field in fields}
        | {"quality": quality}
    )


@pytest.fixture(scope="session")
def made_before(tmp_path_factory):
    """Pairs by the name of their file, which tells all that they depend on."""
    return tmp_path_factory.mktemp("made_before")


@pytest.fixture
def ablation(load_program, tmp_path, monkeypatch, made_before):
    """Build an ablation on invented stories; returns the program and its config.

    No plots are drawn, and no pairs made twice.
    """
    module = load_program("eval/ablation.py")
    make_pairs, learning_curves = experiment.make_pairs, experiment._learning_curves

    def remembered(config, what, source, parts):
        return make_pairs(config, what, source, Cache(made_before / parts.folder.name))

    monkeypatch.setattr(experiment, "make_pairs", remembered)

    def make(out="out", stories=None, draws=False, **changes):
        curves = learning_curves if draws else lambda *_: ()
        monkeypatch.setattr(experiment, "_learning_curves", curves)
        path = tmp_path / "stories.parquet"
        if stories is not None or not path.exists():
            write_table(world() if stories is None else stories, path)
        given = {
            "variants": VARIANTS,
            "reference": "full",
            "raters": {"features": dict(FAST), "longer": {"kind": "longer"}},
            "pairs_used": [0.5, 1.0],
            "seeds": [0],
            "symmetry_buckets": 10,
            "label_source": "planted",
            "most_test_pairs": 60,
            **LOOSE,
            **changes,
        }
        return module, build(module.Config, {"stories": path, "out": tmp_path / out, **given})

    return make


@pytest.fixture
def trainings(monkeypatch):
    """Note what each training was given: (variant, pairs, seed) -> the pairs."""
    seen = {}
    train = RaterSpec.train

    def training(self, pairs, folder, seed, name):
        variant, used = name.split(" on ")[1].split("@")
        seen[variant, int(used), seed] = pairs
        return train(self, pairs, folder, seed, name)

    monkeypatch.setattr(RaterSpec, "train", training)
    return seen


@pytest.fixture
def judgings(monkeypatch):
    """Count the calls of `judge_pairs`; `limit` kills at that call."""
    judge = evaluation.judge_pairs
    calls = {"count": 0, "limit": None}

    def judging(*arguments):
        if calls["count"] == calls["limit"]:
            raise KeyboardInterrupt
        calls["count"] += 1
        return judge(*arguments)

    monkeypatch.setattr(evaluation, "judge_pairs", judging)
    return calls


def read(folder):
    return json.loads((folder / "ablation.json").read_text(encoding="utf-8"))


def results(folder):
    """The bytes of everything that says something about the raters."""
    names = ["ablation.json", "ablation.csv", "ablation.txt", "verdicts.parquet"]
    return {name: (folder / name).read_bytes() for name in [*names, "test_pairs.parquet"]}


def test_variants_are_judged_on_all_test_sets(ablation, trainings):
    module, config = ablation(draws=True)
    module.main(config)
    boards = read(config.out)
    assert list(boards) == list(VARIANTS)
    names = {name: {row["rater"] for row in rows} for name, rows in boards.items()}
    totals = json.loads((config.out / "manifest.json").read_text())["counts"]["training_pairs"]
    least = min(totals.values())
    assert len(set(totals.values())) > 1
    # As many pairs of each variant, then all of each, never of a test prompt.
    arms = {*itertools.product(VARIANTS, [round(least / 2), least]), *totals.items()}
    assert {(variant, used) for variant, used, _ in trainings} == arms
    assert names["full"] == names["naive"]
    assert names["full"] == {"longer", *(f"features on {name}@{used}" for name, used in arms)}
    verdicts = pq.read_table(config.out / "verdicts.parquet").to_pylist()
    tested = pq.read_table(config.out / "test_pairs.parquet")
    for (_, used, _), table in trainings.items():
        assert len(set(table["pair_id"].to_pylist())) == table.num_rows == used
        assert not set(prompt_keys(tested)) & set(prompt_keys(table))
    # All are compared with the reference at the largest equal number.
    first = f"features on full@{least}"
    for rows in boards.values():
        for row in rows:
            compared = row["comparison"]
            assert (compared is None) == (row["rater"] == first)
            assert compared is None or compared["reference"] == first
    # The verdicts tell the same.
    pairs = {row["pair_id"]: row for row in tested.to_pylist()}
    longer = [row for row in verdicts if row["rater"] == "longer"]
    assert {row["pair_id"] for row in longer} == set(pairs)
    for row in longer:
        pair = pairs[row["pair_id"]]
        difference = pair["chosen_n_words"] - pair["rejected_n_words"]
        assert row["outcome"] == {0: "tie", 1: "chosen", -1: "rejected"}[np.sign(difference)]
    for name in ("ablation.html", "ablation.csv", "ablation.txt"):
        assert (config.out / name).stat().st_size
    pictures = {path.stem for path in config.out.glob("*.svg")}
    assert pictures == {path.stem for path in config.out.glob("*.png")}
    assert len(pictures) == len(VARIANTS)


def test_shared_training_and_test_prompts_raise(ablation, trainings):
    module, config = ablation(variants={"full": {}, "other": {"seed": 5}})
    with pytest.raises(DataError, match=r"test prompts of .* are training prompts of variant"):
        module.main(config)
    assert not trainings


def test_killed_run_resumes_with_equal_files(ablation, judgings):
    module, undisturbed = ablation("undisturbed")
    module.main(undisturbed)
    jobs = judgings["count"]
    _, config = ablation("killed")
    judgings |= {"count": 0, "limit": 5}
    with pytest.raises(KeyboardInterrupt):
        module.main(config)
    assert not (config.out / "manifest.json").exists()
    judgings |= {"count": 0, "limit": None}
    module.main(config)
    assert judgings["count"] == jobs - 5, "what was kept was judged again"
    assert results(config.out) == results(undisturbed.out)
    assert not (config.out / "scratch").exists()
    assert not (config.out / "data").exists()


@pytest.fixture
def ready(ablation, load_program, tmp_path):
    """Pairs of the same stories with weights, as a file."""
    program = load_program("data_prep/make_pairs.py")
    _, config = ablation()
    rules = {key: getattr(config, key) for key in (*LOOSE, "splits", "symmetry_buckets")}
    program.main(program.Config(stories=config.stories, out=tmp_path / "pairs", **rules))
    pairs = pq.read_table(tmp_path / "pairs/pairs.parquet")
    weight = pa.array(np.linspace(0.5, 1.5, pairs.num_rows))
    path = tmp_path / "weighted.parquet"
    write_table(pairs.set_column(pairs.column_names.index("weight"), "weight", weight), path)
    return path


def test_one_variant_is_a_scaling_study(ablation, trainings, ready):
    raters = {"one": FAST, "other": {**FAST, "c": [1.0]}, "longer": {"kind": "longer"}}
    module, config = ablation(
        stories=world(),
        variants={"ready": {"pairs": str(ready)}},
        reference=None,
        raters=raters,
        pairs_used=[0.2, 21, 0.5, 1.0],
        seeds=[0, 1],
    )
    config.stories = None
    module.main(config)
    rows = read(config.out)["ready"]
    total = json.loads((config.out / "manifest.json").read_text())["counts"]["training_pairs"]
    amounts = sorted([round(0.2 * total["ready"]), 21, round(0.5 * total["ready"]), total["ready"]])
    assert {row["rater"]: len(row["repeats"]) for row in rows} == {
        "longer": 0,
        **{f"{name} on ready@{used}": 2 for name in ("one", "other") for used in amounts},
    }
    assert all(row["weight"] is not None for row in trainings["ready", 21, 0].to_pylist())
    # A smaller amount is contained in a larger one, and one prompt at most is cut.
    for seed in (0, 1):
        sets = [trainings["ready", amount, seed] for amount in amounts]
        ids = [set(table["pair_id"].to_pylist()) for table in sets]
        assert [len(one) for one in ids] == amounts
        assert all(small < large for small, large in itertools.pairwise(ids))
        keys = [prompt_keys(table) for table in sets]
        cut = [key for key in set(keys[0]) if keys[0].count(key) < keys[-1].count(key)]
        assert len(cut) <= 1
    drawn = [trainings["ready", amounts[0], seed]["pair_id"].to_pylist() for seed in (0, 1)]
    assert drawn[0] != drawn[1]


def test_external_pairs_are_a_test_set(ablation, trainings, ready, tmp_path):
    pairs = pq.read_table(ready)
    column = pairs.column_names.index("prompt")
    prompts = pa.array([f"{text}, elsewhere" for text in pairs["prompt"].to_pylist()])
    other = tmp_path / "external.jsonl"
    rows = pairs.set_column(column, "prompt", prompts.cast(pa.large_string())).to_pylist()
    other.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    module, config = ablation(test_pairs={"external": str(other)})
    module.main(config)
    assert list(read(config.out)) == [*VARIANTS, "external"]
    module, config = ablation(test_pairs={"external": str(other)}, test_split=None)
    module.main(config)
    assert set(read(config.out)) == {"external"}
    trainings.clear()
    module, config = ablation(test_pairs={"same": str(ready)})
    with pytest.raises(
        DataError, match="test prompts of same are training prompts of variant full"
    ):
        module.main(config)
    assert not trainings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": {"full": {"min_scor": 3}}}, "variants: full: unknown key 'min_scor'"),
        ({"variants": {"full": {"min_gap": 2.0}}}, "'min_gap' is 2.0"),
        ({"variants": {"full": {"pairs": "x", "seed": 1}}}, "give only {pairs: FILE}"),
        ({"variants": {}}, "name at least one variant"),
        ({"test_pairs": {"full": "x"}}, "name a variant and a file of test_pairs"),
        ({"test_split": None}, "test_split is null and test_pairs is empty"),
        ({"reference": "ful"}, "reference is ful:"),
        ({"raters": {"longer": {"kind": "longer"}}}, "none can be trained"),
        ({"raters": {"f": {**FAST, "seed": 1}}}, r"f: unknown key 'seed'|f\.seed: leave it out"),
        ({"seeds": []}, r"seeds is \[\]"),
        ({"pairs_used": [10_000_000]}, "pairs_used has 10000000"),
        ({"pairs_used": [1.5]}, "pairs_used has 1.5"),
        ({"test_split": "tset"}, "no pair of split 'tset'"),
    ],
)
def test_invalid_configs_raise(ablation, trainings, changes, message):
    module, config = ablation(**changes)
    with pytest.raises((ConfigError, DataError), match=message):
        module.main(config)
    assert not trainings


def test_subsampled_test_pairs_cover_prompts_and_variants(pair_table):
    every = pair_table([{"prompt_id": f"p{row // 20}"} for row in range(400)])
    fewer = every.filter(pa.array([row % 3 == 0 for row in range(400)]))
    drawn = first_by_hash(every, 60, 1, by_prompt=False)
    assert drawn.num_rows == 60
    assert len(set(drawn["prompt_id"].to_pylist())) > 15, "whole prompts would be three of twenty"
    of_fewer = set(first_by_hash(fewer, 60, 1, by_prompt=False)["pair_id"].to_pylist())
    both = set(drawn["pair_id"].to_pylist()) & set(fewer["pair_id"].to_pylist())
    assert both <= of_fewer
    ids = every["pair_id"].to_pylist()
    rows = [ids.index(one) for one in drawn["pair_id"].to_pylist()]
    assert rows == sorted(rows)
    assert first_by_hash(every, 60, 2, by_prompt=False) != drawn
    assert first_by_hash(every, None, 1, by_prompt=False) == every


# The figures ----------------------------------------------------------------------------------


def keys_of(pair_table, chosen):
    """Pairs of stories a, b, c and d by (chosen, rejected)."""
    words = {"a": 10, "b": 20, "c": 30, "d": 40}
    rows = [
        {
            "pair_id": pair_id(one, other),
            "chosen_story_id": one,
            "rejected_story_id": other,
            "chosen_n_words": words[one],
            "rejected_n_words": words[other],
            "prompt_id": f"p{place}",
        }
        for place, (one, other) in enumerate(chosen)
    ]
    return pair_table(rows)


def test_a_pair_with_both_labels_is_judged_for_both(pair_table):
    sets = {
        "one": keys_of(pair_table, [("a", "b"), ("a", "c")]),
        "other": keys_of(pair_table, [("b", "a"), ("a", "d"), ("a", "c")]),
    }
    pairs, renamed = join_test_sets(sets)
    ids = [pair_id(*sides) for sides in (("a", "b"), ("a", "c"), ("b", "a"), ("a", "d"))]
    ids[2] += ", other label"
    assert pairs["pair_id"].to_pylist() == ids
    assert pairs["chosen_story_id"].to_pylist() == ["a", "a", "b", "a"]
    assert renamed["one"].equals(sets["one"])
    assert renamed["other"]["pair_id"].to_pylist() == [*ids[2:], ids[1]]


def test_seeds_are_averaged_before_the_interval(pair_table, verdict_table):
    pairs = pair_table([{"prompt_id": f"p{k}"} for k in range(4)])
    rows = [
        {"pair_id": name, "outcome": outcome, "fold": f"{seed}/0"}
        for seed, wrong in ((0, 1), (1, 2))
        for place, name in enumerate(pairs["pair_id"].to_pylist())
        for outcome in ["rejected" if place < wrong else "chosen"]
    ]
    (scores,) = pair_scores(verdict_table(rows), pairs)
    assert scores.credit.tolist() == [0.0, 0.5, 1.0, 1.0]


def test_reused_pair_ids_raise(pair_table):
    one, other = keys_of(pair_table, [("a", "b")]), keys_of(pair_table, [("a", "c")])
    place = other.column_names.index("pair_id")
    renamed = other.set_column(place, "pair_id", one["pair_id"])
    with pytest.raises(DataError, match="different stories in the test pairs of x, y"):
        join_test_sets({"x": one, "y": renamed})


def test_names_of_others_are_text_on_the_page(ablation):
    wicked = "<script>alert(1)</script>"
    raters = {f"{wicked}/r": dict(FAST)}
    module, config = ablation(
        variants={wicked: {}}, reference=None, raters=raters, draws=True, pairs_used=[1.0]
    )
    module.main(config)
    page = (config.out / "ablation.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "pairs of &lt;script&gt;" in page
    assert {path.stem for path in config.out.glob("*.svg")} == {"ablation_1_1"}
