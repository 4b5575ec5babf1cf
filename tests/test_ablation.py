"""Ablations: the whole matrix, equal sizes, prompts kept apart, kills survived, work shared."""

import csv
import functools
import itertools
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from litbench.config import build
from litbench.crew import Crew, leave_the_group
from litbench.errors import ConfigError, DataError
from litbench.metrics.ablation import (
    TRUTH,
    AblationArm,
    ablation_study,
    ablation_text,
    join_test_sets,
    write_ablation_csv,
)
from litbench.models.features import FeatureOptions, FeatureStore, feature_matrix, fit_features
from litbench.records import STORIES, pair_id, prompt_keys
from litbench.report.ablation_page import draw_curves, render_ablation
from litbench.tables import write_table

ROOT = Path(__file__).resolve().parent.parent
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
    make_variant = module.make_variant

    def remembered(engine, config, variant, path):
        files = [path, path.with_suffix(".json")]
        if not (made_before / files[1].name).exists():
            make_variant(engine, config, variant, path)
            for file in files:
                shutil.copy(file, made_before)
        for file in files:
            shutil.copy(made_before / file.name, file)

    monkeypatch.setattr(module, "make_variant", remembered)
    monkeypatch.setattr(module, "draw_curves", lambda _: {})

    def make(out="out", stories=None, **changes):
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
            "truth_pairs": 60,
            **LOOSE,
            **changes,
        }
        return module, build(module.Config, {"stories": path, "out": tmp_path / out, **given})

    return make


@pytest.fixture
def trainings(monkeypatch, ablation):
    """Note what each training was given: (variant, pairs, seed) -> its prompts and pair ids."""
    module, _ = ablation()
    seen = {}
    load = module.checked_trainer

    def loading(spec):
        trainer = load(spec)

        def train(name, options, pairs, folder, seed, where):
            variant, used = name.split(" on ")[1].split("@")
            seen[variant, int(used), seed] = pairs
            return trainer(name, options, pairs, folder, seed, where)

        return trainer and train

    monkeypatch.setattr(module, "checked_trainer", loading)
    return seen


def results(folder):
    """The bytes of everything that says something about the raters."""
    names = ["ablation.json", "ablation.csv", "ablation.txt", "verdicts.parquet"]
    names += [path.name for path in folder.glob("*.svg")] + ["test_pairs.parquet"]
    return {name: (folder / name).read_bytes() for name in names}


def test_every_variant_is_judged_on_the_test_of_every_variant(ablation, monkeypatch):
    module, config = ablation()
    monkeypatch.setattr(module, "draw_curves", draw_curves)
    module.main(config)
    found = json.loads((config.out / "ablation.json").read_text(encoding="utf-8"))
    tests = [test["name"] for test in found["tests"]]
    assert tests == [*VARIANTS, TRUTH]
    cells = {(cell["arm"], cell["test"]): cell for cell in found["cells"]}
    arms = [arm["name"] for arm in found["arms"]]
    assert set(cells) == set(itertools.product(arms, tests))
    assert all(0 <= cell["agreement"]["mean"] <= 1 for cell in cells.values())
    trained = [arm for arm in found["arms"] if arm["variant"] is not None]
    assert {arm["variant"] for arm in trained} == set(VARIANTS)
    # Nine cells in ten of a matrix that were one and the same would pass so far.
    of_naive = [cells[name, "naive"]["agreement"]["mean"] for name in arms]
    of_truth = [cells[name, TRUTH]["agreement"]["mean"] for name in arms]
    assert of_naive != of_truth
    # The verdicts tell the same.
    verdicts = pq.read_table(config.out / "verdicts.parquet").to_pylist()
    pairs = {
        row["pair_id"]: row for row in pq.read_table(config.out / "test_pairs.parquet").to_pylist()
    }
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
    assert len(pictures) == len(tests)


def test_equal_sizes_are_equal_and_natural_ones_are_all_pairs(ablation, trainings):
    module, config = ablation()
    module.main(config)
    found = json.loads((config.out / "ablation.json").read_text(encoding="utf-8"))
    manifest = json.loads((config.out / "manifest.json").read_text(encoding="utf-8"))
    totals = manifest["counts"]["training_pairs"]
    least = min(totals.values())
    assert len(set(totals.values())) > 1
    for (variant, used, _), pairs in trainings.items():
        assert pairs.num_rows == used
        assert used in {round(least / 2), least, totals[variant]}
        assert len(set(pairs["pair_id"].to_pylist())) == used
    equal = {(arm["variant"], arm["pairs_used"]) for arm in found["arms"] if arm["equal"]}
    assert equal == set(itertools.product(VARIANTS, [round(least / 2), least]))
    natural = {arm["variant"]: arm["pairs_used"] for arm in found["arms"] if arm["natural"]}
    assert natural == totals


def test_no_test_prompt_is_trained_on(ablation, trainings):
    module, config = ablation()
    module.main(config)
    tested = set(prompt_keys(pq.read_table(config.out / "test_pairs.parquet")))
    assert tested
    assert trainings
    for pairs in trainings.values():
        assert not tested & set(prompt_keys(pairs))


def test_a_prompt_trained_on_in_one_variant_and_tested_in_another_is_refused(ablation, trainings):
    module, config = ablation(variants={"full": {}, "other": {"seed": 5}})
    with pytest.raises(DataError, match=r"test prompts of variant .* are trained on in variant"):
        module.main(config)
    assert not trainings


def test_a_killed_run_goes_on_and_ends_in_the_same_files(ablation, monkeypatch):
    module, undisturbed = ablation("undisturbed")
    module.main(undisturbed)
    _, config = ablation("killed")
    judge, calls = module.judge_pairs, itertools.count()

    def dying(*arguments, **named):
        if next(calls) == 5:
            raise KeyboardInterrupt
        return judge(*arguments, **named)

    monkeypatch.setattr(module, "judge_pairs", dying)
    with pytest.raises(KeyboardInterrupt):
        module.main(config)
    assert not (config.out / "manifest.json").exists()
    again = itertools.count()

    def counting(*arguments, **named):
        next(again)
        return judge(*arguments, **named)

    monkeypatch.setattr(module, "judge_pairs", counting)
    module.main(config)
    jobs = len(list((config.out / "parts").glob("*.parquet")))
    assert next(again) == jobs - 5, "what was kept was judged again"
    assert results(config.out) == results(undisturbed.out)
    assert not (config.out / "scratch").exists()
    assert not (config.out / "data").exists()


def test_two_parts_and_the_rest_equal_one_run(ablation, monkeypatch, capsys):
    module, whole = ablation("whole")
    module.main(whole)
    made = {}
    for part in ("1/2", "2/2"):
        _, config = ablation("parts", part=part)
        module.main(config)
        made[part] = {path.name for path in (config.out / "parts").glob("*.parquet")}
        assert not (config.out / "manifest.json").exists()
    assert made["1/2"] < made["2/2"]
    monkeypatch.setattr(module, "judge_pairs", None)
    _, config = ablation("parts")
    module.main(config)
    assert results(config.out) == results(whole.out)
    capsys.readouterr()
    module.main(config)
    assert "unchanged" in capsys.readouterr().out


def test_processes_of_a_launcher_share_the_work(ablation, tmp_path, monkeypatch):
    # No truth: one plot fewer for each process.
    stories = world().drop_columns(["quality"])
    module, whole = ablation("whole", stories, pairs_used=[1.0], natural=False)
    monkeypatch.setattr(module, "draw_curves", draw_curves)
    module.main(whole)
    plain = {
        key: value for key, value in module.as_plain(whole).items() if key not in ("out", "raters")
    }
    plain["raters"] = {"features": FAST, "longer": {"kind": "longer"}}
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(plain), encoding="utf-8")
    command = [sys.executable, str(ROOT / "eval/ablation.py"), "--config", str(config)]
    command += ["--out", str(tmp_path / "shared")]
    environment = {**module.os.environ, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(command, env={**environment, "RANK": rank, "LOCAL_RANK": rank}, cwd=ROOT)
        for rank in ("0", "1")
    ]
    assert [process.wait(300) for process in running] == [0, 0]
    assert results(tmp_path / "shared") == results(whole.out)


def test_in_a_world_that_likes_length_the_naive_pairs_teach_it(ablation):
    module, config = ablation(
        stories=world(prompts=80, length=0.4, hidden=2.0, seed=3),
        raters={"features": dict(FAST)},
        pairs_used=[1.0],
        natural=False,
        most_test_pairs=None,
        truth_pairs=400,
    )
    module.main(config)
    found = json.loads((config.out / "ablation.json").read_text(encoding="utf-8"))
    on_truth = {
        cell["arm"].split(" on ")[1].split("@")[0]: cell
        for cell in found["cells"]
        if cell["test"] == TRUTH
    }
    naive, full = (on_truth[name]["prefers_longer"]["mean"] for name in ("naive", "full"))
    assert naive > full + 0.05
    tests = {test["name"]: test["longer"]["mean"] for test in found["tests"]}
    assert tests["naive"] > 0.55
    assert tests["full"] == 0.5
    assert not any(arm["natural"] for arm in found["arms"])
    assert on_truth["full"]["agreement"]["mean"] > on_truth["naive"]["agreement"]["mean"]


def test_a_ready_pairs_file_is_a_variant(ablation, load_program, trainings, tmp_path):
    pairs_program = load_program("data_prep/make_pairs.py")
    module, config = ablation()
    rules = {key: getattr(config, key) for key in (*LOOSE, "splits", "symmetry_buckets")}
    pairs_program.main(
        pairs_program.Config(stories=config.stories, out=tmp_path / "pairs", **rules)
    )
    pairs = pq.read_table(tmp_path / "pairs/pairs.parquet")
    place = pairs.column_names.index("weight")
    weight = pa.array(np.linspace(0.5, 1.5, pairs.num_rows))
    ready = tmp_path / "weighted.parquet"
    write_table(pairs.set_column(place, "weight", weight), ready)
    module, config = ablation(variants={**VARIANTS, "weighted": {"pairs": str(ready)}})
    module.main(config)
    drawn = [pairs for (variant, *_), pairs in trainings.items() if variant == "weighted"]
    assert drawn
    assert all(table["weight"].null_count == 0 for table in drawn)
    known = {row["pair_id"]: row for row in pairs.to_pylist()}
    for row in drawn[0].to_pylist():
        assert row["chosen"] == known[row["pair_id"]]["chosen"]
    # The unknown stories of another file are said.
    chosen = [f"x{row}" for row in range(pairs.num_rows)]
    rejected = pairs["rejected_story_id"].to_pylist()
    ids = [pair_id(*sides) for sides in zip(chosen, rejected, strict=True)]
    other = pairs
    for name, values in (("chosen_story_id", chosen), ("pair_id", ids)):
        place = other.column_names.index(name)
        other = other.set_column(
            place, other.schema.field(name), pa.array(values, pa.large_string())
        )
    write_table(other, ready)
    with pytest.raises(DataError, match=r"is not in .*stories\.parquet"):
        module.main(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": {"full": {"min_scor": 3}}}, "variants: full: unknown key 'min_scor'"),
        ({"variants": {"full": {"stories": "x"}}}, "variants: full: unknown key 'stories'"),
        ({"variants": {"full": {"min_gap": 2.0}}}, "min_gap is 2.0"),
        ({"variants": {"full": {"pairs": "x", "seed": 1}}}, "ready pairs file: leave out seed"),
        ({"variants": {}}, "variants is empty"),
        ({"variants": {"truth": {}}, "reference": "truth"}, "rename the variant"),
        ({"reference": "ful"}, "reference is 'ful': give one of full"),
        ({"raters": {"longer": {"kind": "longer"}}}, "none of them can be trained"),
        ({"raters": {"f": {**FAST, "seed": 1}}}, r"f: unknown key 'seed'|raters\.f\.seed is given"),
        ({"seeds": []}, r"seeds is \[\]"),
        ({"pairs_used": []}, "pairs_used is empty"),
        ({"pairs_used": [10_000_000]}, "variant full has the fewest pairs"),
        ({"pairs_used": [0.999999, 1.0]}, "twice"),
        ({"part": "3/2"}, "part is '3/2'"),
        ({"truth_pairs": 0}, "truth_pairs is 0"),
        ({"train_split": "trian"}, "no pair of split 'trian'"),
    ],
)
def test_what_cannot_be_is_named(ablation, trainings, changes, message):
    module, config = ablation(**changes)
    with pytest.raises((ConfigError, DataError), match=message):
        module.main(config)
    assert not trainings


def test_only_a_number_is_taken_for_the_truth(ablation):
    stories = world()
    place = stories.column_names.index("quality")
    # One of the eight stories of each prompt.
    values = [
        math.nan if row % 8 == 3 else v for row, v in enumerate(stories["quality"].to_pylist())
    ]
    unknown = {stories["story_id"][row].as_py() for row in range(3, stories.num_rows, 8)}
    some = stories.set_column(place, "quality", pa.array(values))
    module, config = ablation(stories=some, truth_pairs=10_000, most_test_pairs=None)
    data = module.Data(config, [], {"stories": "s"})
    prompts = dict(zip(some["prompt_id"].to_pylist(), some["prompt"].to_pylist(), strict=True))
    truth = data.truth(prompts)
    assert truth.num_rows == len(prompts) * 7 * 6 // 2
    for side in ("chosen", "rejected"):
        assert not unknown & set(truth[f"{side}_story_id"].to_pylist())
    known = dict(zip(some["story_id"].to_pylist(), values, strict=True))
    for row in truth.to_pylist():
        assert known[row["chosen_story_id"]] > known[row["rejected_story_id"]]
    texts = some.set_column(place, "quality", pa.array([str(value) for value in values]))
    module, config = ablation(stories=texts)
    with pytest.raises(DataError, match="column quality holds string"):
        module.Data(config, [], {"stories": "s"}).truth(prompts)


def test_a_ready_variant_is_not_made_anew_for_a_rule_it_does_not_go_by(ablation, tmp_path):
    ready = {"weighted": {"pairs": str(tmp_path / "pairs.parquet")}, "full": {}}
    digests = {"stories": "s", "variants.weighted.pairs": "p"}
    names = []
    for gap in (0.25, 0.5):
        module, config = ablation(variants=ready, min_gap=gap)
        paths = module.Data(config, module.read_variants(config), digests).paths
        names.append(paths)
    assert names[0]["weighted"] == names[1]["weighted"]
    assert names[0]["full"] != names[1]["full"]


def test_test_pairs_are_of_nearly_all_prompts_and_shared_between_variants(ablation, pair_table):
    module, _ = ablation()
    every = pair_table([{"prompt_id": f"p{row // 20}"} for row in range(400)])
    fewer = every.filter(pa.array([row % 3 == 0 for row in range(400)]))
    drawn = module.draw_test_pairs(every, 60, seed=1)
    assert drawn.num_rows == 60
    assert len(set(drawn["prompt_id"].to_pylist())) > 15, "whole prompts would be three of twenty"
    of_fewer = set(module.draw_test_pairs(fewer, 60, seed=1)["pair_id"].to_pylist())
    both = set(drawn["pair_id"].to_pylist()) & set(fewer["pair_id"].to_pylist())
    assert both <= of_fewer
    ids = every["pair_id"].to_pylist()
    places = [ids.index(one) for one in drawn["pair_id"].to_pylist()]
    assert places == sorted(places)
    assert module.draw_test_pairs(every, 60, seed=2) != drawn
    assert module.draw_test_pairs(every, None, seed=1) == every


def test_another_text_of_a_test_prompt_is_judged_anew(ablation, monkeypatch, tmp_path):
    module, config = ablation(raters={"features": FAST}, pairs_used=[1.0], natural=False)
    full = module.read_variants(config)[0]
    ready = tmp_path / "ready.parquet"
    data = module.Data(config, [full], {"stories": "s"})
    data.make(Crew())
    pairs = data.with_texts(pq.read_table(data.paths["full"]))
    judge, calls = module.judge_pairs, []
    monkeypatch.setattr(
        module, "judge_pairs", lambda *given, **named: calls.append(1) or judge(*given, **named)
    )
    place = pairs.column_names.index("prompt")
    for ending in ("", "!"):
        prompts = [f"{prompt}{ending}" for prompt in pairs["prompt"].to_pylist()]
        write_table(pairs.set_column(place, "prompt", pa.array(prompts, pa.large_string())), ready)
        variants = {"ready": {"pairs": str(ready)}, "full": {}}
        module, config = ablation(
            variants=variants, raters={"features": FAST}, pairs_used=[1.0], natural=False
        )
        calls.clear()
        module.main(config)
        assert len(calls) == 2, "one training for each variant"


def test_texts_are_taken_without_reading_them_all(ablation, tmp_path):
    module, _ = ablation()
    texts = [f"{row:04d}" * 1_000 for row in range(2_000)]
    with pa.OSFile(str(tmp_path / "texts.arrow"), "wb") as sink:
        schema = pa.schema([("text", pa.large_string())])
        with pa.ipc.new_file(sink, schema) as writer:
            for start in range(0, 2_000, 100):
                some = pa.array(texts[start : start + 100], pa.large_string())
                writer.write_batch(pa.record_batch([some], schema=schema))
    with pa.memory_map(str(tmp_path / "texts.arrow")) as source:
        column = pa.ipc.open_file(source).read_all()["text"]
        places = np.array([1_999, 3, 150, 3, 0, 700])
        usual = pa.default_memory_pool()
        pool = pa.proxy_memory_pool(usual)
        pa.set_memory_pool(pool)
        try:
            found = module.take_texts(column, places).to_pylist()
        finally:
            pa.set_memory_pool(usual)
    assert found == [texts[place] for place in places]
    assert pool.max_memory() < 500_000, "all texts are 8 MB"


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


def test_a_pair_labelled_both_ways_is_judged_once_and_counts_for_both(pair_table):
    sets = {
        "one": keys_of(pair_table, [("a", "b"), ("a", "c")]),
        "other": keys_of(pair_table, [("b", "a"), ("a", "d"), ("a", "c")]),
    }
    pairs, tests = join_test_sets(sets)
    assert pairs.num_rows == 3
    assert [test.flipped.tolist() for test in tests] == [[False, False], [True, False, False]]
    arms = [AblationArm("r on one@5", "r", "one", 5, True), AblationArm("l", "l")]
    # The first pair right, the second (a, c) wrong, the third a tie.
    credit = {"r on one@5": [np.array([1.0, 0.0, 0.5])] * 2, "l": [np.zeros(3)]}
    kinds = {"r on one@5": "test", "l": "longer"}
    study = ablation_study(arms, credit, kinds, pairs, tests, "one")
    assert study.cell("r on one@5", "one").agreement.mean == 0.5
    assert study.cell("r on one@5", "other").agreement.mean == pytest.approx((0 + 0.5 + 0) / 3)
    # a is the shortest: who calls the chosen a right prefers the shorter.
    assert study.cell("r on one@5", "one").prefers_longer.mean == 0.5
    assert study.cell("r on one@5", "one").chosen_shorter.n == 2
    assert study.cell("r on one@5", "other").chosen_longer.n == 1
    by_name = {test.name: test.longer.mean for test in study.tests}
    assert by_name == {"one": 0.0, "other": pytest.approx(1 / 3)}
    # A rater prefers the same story whatever the label says.
    alone, flipped = (
        join_test_sets({"x": keys_of(pair_table, [sides])}) for sides in (("a", "b"), ("b", "a"))
    )
    lengths = []
    for (of, tests), credit in ((alone, 1.0), (flipped, 0.0)):
        study = ablation_study([arms[1]], {"l": [np.array([credit])]}, kinds, of, tests, "x")
        lengths.append(study.cells[0].prefers_longer.mean)
    assert lengths == [0.0, 0.0]


def test_only_the_same_amounts_are_compared_and_holm_counts_them_all(pair_table):
    sets = {"full": keys_of(pair_table, itertools.combinations("abcd", 2))}
    pairs, tests = join_test_sets(sets)
    random = np.random.default_rng(0)
    arms, credit = [], {}
    for variant, natural in (("full", 6), ("naive", 9)):
        for used in sorted({3, 6, natural}):
            name = f"r on {variant}@{used}"
            arms.append(AblationArm(name, "r", variant, used, used <= 6, used == natural))
            credit[name] = [random.random(6), random.random(6)]
    kinds = {arm.name: "test" for arm in arms}
    study = ablation_study(arms, credit, kinds, pairs, tests, "full")
    compared = [(c.comparison.rater, c.comparison.reference, c.natural) for c in study.contrasts]
    assert compared == [
        ("r on naive@6", "r on full@6", False),
        ("r on naive@9", "r on full@6", True),
    ]
    raw = sorted(contrast.comparison.p_value for contrast in study.contrasts)
    adjusted = sorted(contrast.comparison.p_holm for contrast in study.contrasts)
    assert adjusted[0] == pytest.approx(min(1, 2 * raw[0]))
    assert "against full, p by Holm over 2" in ablation_text(study)


def test_a_pair_of_other_stories_under_a_known_id_is_refused(pair_table):
    one, other = keys_of(pair_table, [("a", "b")]), keys_of(pair_table, [("a", "c")])
    place = other.column_names.index("pair_id")
    renamed = other.set_column(place, "pair_id", one["pair_id"])
    with pytest.raises(DataError, match=r"stories a and b in the test pairs of x, and a and c"):
        join_test_sets({"x": one, "y": renamed})


def test_variants_with_as_many_pairs_are_compared_once_and_seeds_side_by_side(pair_table):
    sets = {"full": keys_of(pair_table, itertools.combinations("abcd", 2))}
    pairs, tests = join_test_sets(sets)
    arms = [AblationArm(f"r on {name}@6", "r", name, 6, True, True) for name in ("full", "other")]
    credit = {
        "r on full@6": [np.zeros(6), np.full(6, 0.5)],
        "r on other@6": [np.ones(6), np.array([0.5] * 5 + [1.0])],
    }
    kinds = {arm.name: "test" for arm in arms}
    study = ablation_study(arms, credit, kinds, pairs, tests, "full")
    (contrast,) = study.contrasts
    assert contrast.seeds == [1.0, pytest.approx(0.5 / 6)]
    assert contrast.comparison.difference.mean == pytest.approx(np.mean(contrast.seeds))
    assert contrast.comparison.p_holm == contrast.comparison.p_value
    assert "+0.083 to +1.000" in ablation_text(study)


def test_names_of_others_are_text_in_files(pair_table, tmp_path):
    wicked = "=1+1\x1b[2J\nnew"
    pairs, tests = join_test_sets({wicked: keys_of(pair_table, [("a", "b"), ("c", "d")])})
    arms = [AblationArm("a", wicked, wicked, 2, True, True)]
    arms.append(AblationArm("b", wicked, "other", 2, True, True))
    credit = {arm.name: [np.array([1.0, 0.0])] for arm in arms}
    study = ablation_study(arms, credit, {"a": "t", "b": "t"}, pairs, tests, wicked)
    text = ablation_text(study)
    assert "\x1b" not in text
    assert "=1+1[2J new" in text
    write_ablation_csv(study, tmp_path / "cells.csv")
    with (tmp_path / "cells.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["rater"] for row in rows} == {f"'{wicked}"}


def test_files_of_plots_differ_where_small_and_large_letters_are_one(pair_table):
    sets = {name: keys_of(pair_table, [("a", "b"), ("c", "d")]) for name in ("full", "Full")}
    pairs, tests = join_test_sets(sets)
    arms = [AblationArm("a", "r", "full", 2, True, True)]
    study = ablation_study(arms, {"a": [np.ones(2)]}, {"a": "t"}, pairs, tests, "full")
    names = list(draw_curves(study))
    assert len({name.lower() for name in names}) == 2


def test_of_many_bands_only_that_of_the_reference_is_drawn(pair_table, monkeypatch):
    from matplotlib.axes import Axes  # noqa: PLC0415

    bands = []
    fill = Axes.fill_between
    monkeypatch.setattr(
        Axes, "fill_between", lambda *given, **named: bands.append(1) or fill(*given, **named)
    )
    pairs, tests = join_test_sets({"v1": keys_of(pair_table, [("a", "b"), ("c", "d")])})
    arms = [AblationArm(f"r{n}", "r", f"v{n}", 1_200, True) for n in range(4)]
    credit = {arm.name: [np.array([1.0, 0.0])] for arm in arms}
    counted = []
    for some in (arms[:3], arms):
        kinds = dict.fromkeys(credit, "t")
        (panel,) = draw_curves(ablation_study(some, credit, kinds, pairs, tests, "v1")).values()
        counted.append((len(bands), panel.caption.split("Band: ")[1][:3]))
        bands.clear()
    assert counted == [(3, "its"), (1, "v1’")]


def test_names_of_others_are_text_on_the_page(pair_table):
    wicked = "<script>alert(1)</script>"
    pairs, tests = join_test_sets({wicked: keys_of(pair_table, [("a", "b"), ("c", "d")])})
    arms = [AblationArm("a", f"{wicked}/r", wicked, 2, True, True)]
    study = ablation_study(arms, {"a": [np.array([1.0, 0.0])]}, {"a": "t"}, pairs, tests, wicked)
    panels = draw_curves(study)
    assert all("/" not in name and "<" not in name for name in panels)
    page = render_ablation(
        title=wicked,
        study=study,
        panels=panels,
        label_sources=["planted"],
        variants={wicked: {"min_score": wicked}},
        training_pairs={wicked: 2},
        funnels={wicked: []},
        manifests={},
    )
    assert "<script" not in page
    assert "Trained on 2 pairs of &lt;script&gt;" in page


# What is shared -------------------------------------------------------------------------------


def test_a_store_of_features_changes_nothing_and_computes_each_story_once(
    pair_table, tmp_path, monkeypatch
):
    texts = [
        f"Story {place}, with {'more, ' * (place % 7)}words; and, perhaps" for place in range(40)
    ]
    rows = [
        {"chosen": texts[place], "rejected": texts[-1 - place], "prompt_id": f"p{place % 5}"}
        for place in range(20)
    ]
    pairs = pair_table(rows)
    plain = fit_features(pairs, FeatureOptions(c=[0.1, 1.0]))
    options = FeatureOptions(c=[0.1, 1.0], store=tmp_path / "store")
    stored = fit_features(pairs, options)
    assert stored.coefficients.tolist() == plain.coefficients.tolist()
    prompts = ["a prompt"] * 40
    # Not what this process remembers: what lies on disk.
    again = FeatureStore(tmp_path / "store")
    counted = []
    compute = feature_matrix
    monkeypatch.setattr(
        "litbench.models.features.feature_matrix",
        lambda p, s: counted.append(len(s)) or compute(p, s),
    )
    prompts = pairs["prompt"].to_pylist()
    given = pairs["chosen"].to_pylist()
    assert again.matrix(prompts, given).tolist() == compute(prompts, given).tolist()
    assert counted == []
    assert plain.score(prompts, given).tolist() == stored.score(prompts, given).tolist()
    other = ["Another prompt"] * 3 + prompts[:1]
    mixed = [given[0], given[0], given[1], given[0]]
    assert again.matrix(other, mixed).tolist() == compute(other, mixed).tolist()
    assert counted == [len(given), 2], "one plain score, then the two new ones of four"


def test_a_store_uses_several_processes_for_many_stories(tmp_path, monkeypatch):
    monkeypatch.setattr("litbench.models.features._STORIES_PER_PROCESS", 5)
    monkeypatch.setattr("litbench.models.features._STORIES_AT_ONCE", 3)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    stories = [f"A story, {'really ' * place} number {place}." for place in range(11)]
    prompts = [f"prompt {place}" for place in range(11)]
    found = FeatureStore(tmp_path).matrix(prompts, stories)
    assert found.tolist() == feature_matrix(prompts, stories).tolist()


def test_a_store_says_which_file_is_broken(tmp_path):
    store = FeatureStore(tmp_path)
    found = store.matrix(["p"], ["A story."])
    (path,) = store.folder.glob("*.arrow")
    whole = path.read_bytes()
    for broken in (b"", whole[:-20], whole[: len(whole) // 2]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=rf"cannot read .*{path.name}.*: delete it"):
            FeatureStore(tmp_path).matrix(["p"], ["A story."])
    other = pa.table({"key": pa.array([b"0" * 16], pa.binary(16))})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, other.schema) as writer:
        writer.write_table(other)
    with pytest.raises(DataError, match="holds no features: delete it"):
        FeatureStore(tmp_path).matrix(["p"], ["A story."])
    path.unlink()
    assert FeatureStore(tmp_path).matrix(["p"], ["A story."]).tolist() == found.tolist()


def test_a_store_on_a_full_disk_says_so_and_leaves_no_half_file(tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = FeatureStore(tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))
    try:
        with pytest.raises(DataError, match=r"cannot write .*free space"):
            store.matrix(["p"] * 9, [f"Story {place}." for place in range(9)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(store.folder.iterdir()) == []
    assert (
        store.matrix(["p"], ["Story 1."]).tolist() == feature_matrix(["p"], ["Story 1."]).tolist()
    )


def test_a_store_is_another_one_for_other_libraries(tmp_path, monkeypatch):
    folder = FeatureStore(tmp_path).folder
    monkeypatch.setattr("pyarrow.__version__", "0.0")
    assert FeatureStore(tmp_path).folder != folder


def test_two_processes_fill_one_store(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from litbench.models.features import FeatureStore\n"
        "store = FeatureStore(Path(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "for start in range(0, 60, 6):\n"
        "    store.matrix(['p'] * 9, [f'Story, number {n}' for n in range(start, start + 9)])\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    store = FeatureStore(tmp_path)
    texts = [f"Story, number {n}" for n in range(66)]
    with other:
        assert other.stdout.readline() == b"ready\n"
        for start in range(54, -1, -6):
            store.matrix(["p"] * 9, texts[start : start + 9])
    assert other.returncode == 0
    texts = texts[:60]
    store = FeatureStore(tmp_path)
    files = set(store.folder.iterdir())
    assert store.matrix(["p"] * 60, texts).tolist() == feature_matrix(["p"] * 60, texts).tolist()
    assert set(store.folder.iterdir()) == files, "nothing was missing"


def test_a_crew_shares_all_work_once():
    work = list(range(11))
    jobs = [Crew.of_part(f"{number}/3") for number in (1, 2, 3)]
    crews = [Crew(index, 2).within(job) for job in jobs for index in (0, 1)]
    shares = [crew.share(work) for crew in crews]
    assert sorted(itertools.chain(*shares)) == work
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert [crew.leads for crew in crews] == [True, False, False, False, False, False]
    for wrong in ("0/2", "3/2", "1", "a/b", "1/2/3"):
        with pytest.raises(ConfigError, match="part is"):
            Crew.of_part(wrong)


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}, "1"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,7"}, "7"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": ""}, ""),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1", "ACCELERATE_USE_CPU": "True"}, ""),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1", "ACCELERATE_USE_CPU": "False"}, "1"),
        ({"WORLD_SIZE": "1", "CUDA_VISIBLE_DEVICES": "4,7"}, "4,7"),
        ({}, None),
    ],
)
def test_a_process_that_trains_alone_has_one_device_and_no_group(given, devices):
    environment = {"MASTER_PORT": "29500", "LOCAL_WORLD_SIZE": "2", "HOME": "/home", **given}
    leave_the_group(environment)
    assert environment.get("CUDA_VISIBLE_DEVICES") == devices
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"} & environment.keys()
    # A store of features divides the cores by it.
    assert environment["LOCAL_WORLD_SIZE"] == "2"
    assert environment["HOME"] == "/home"
