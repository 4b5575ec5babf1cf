"""Scaling studies: nested draws, held-out prompts, seeds that are no pairs, kills survived."""

import csv
import itertools
import json
import random
import re
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from litbench.errors import ConfigError, DataError
from litbench.metrics.agreement import PairFacts, pair_scores
from litbench.metrics.intervals import jackknife_interval
from litbench.metrics.scaling import (
    Arm,
    by_pairs,
    by_parameters,
    references,
    scaling_json,
    scaling_study,
    scaling_text,
    write_size,
)
from litbench.raters import RandomRater, judge_pairs
from litbench.records import PAIRS, VERDICTS, prompt_keys
from litbench.report.figures import standalone
from litbench.report.scaling_page import draw_panels, render_scaling
from litbench.tables import read_table, write_table

FAST = {"kind": "features", "c": [0.1]}
RATERS = {"longer": {"kind": "longer"}, "features": FAST}


@pytest.fixture
def study(load_program, pair_table, invented, tmp_path):
    """A study of two raters on 60 pairs to train on and 24 to judge; returns module and config."""
    source = random.Random(0)
    rows = [
        {
            "chosen": invented(source, source.randint(20, 60)),
            "rejected": invented(source, source.randint(20, 60)),
            "prompt_id": f"p{place % 20}",
            "split": "train" if place % 20 < 14 else "test",
        }
        for place in range(100)
    ]
    path = tmp_path / "pairs.parquet"
    write_table(pair_table(rows), path)
    module = load_program("eval/scaling.py")

    def build(out="out", raters=None, **changes):
        given = {"pairs_used": [0.2, 0.5, 1.0], "seeds": [0, 1], **changes}
        chosen = {name: dict(entry) for name, entry in (raters or RATERS).items()}
        return module, module.Config(pairs=path, out=tmp_path / out, raters=chosen, **given)

    return build


@pytest.fixture
def watched(study, monkeypatch):
    """A study whose trainings are noted as (name, seed, pair ids) and judgings as (name, fold)."""

    def build(**changes):
        module, config = study(**changes)
        trained, judged = [], []
        load, judge = module.checked_trainer, module.judge_pairs

        def loading(spec):
            trainer = load(spec)

            def train(name, options, pairs, folder, seed, where):
                trained.append((name, seed, pairs["pair_id"].to_pylist()))
                return trainer(name, options, pairs, folder, seed, where)

            return trainer and train

        def judging(rater, pairs, fold=None):
            judged.append((rater.name, fold))
            return judge(rater, pairs, fold=fold)

        monkeypatch.setattr(module, "checked_trainer", loading)
        monkeypatch.setattr(module, "judge_pairs", judging)
        return module, config, trained, judged

    return build


def rows_of(folder):
    table = read_table(folder / "verdicts.parquet", VERDICTS)
    return table.drop_columns(["seconds"]).to_pylist()


# Drawing pairs -------------------------------------------------------------------------------


def test_a_smaller_amount_is_contained_in_a_larger_and_takes_whole_prompts(watched):
    module, config, trained, _ = watched(pairs_used=[0.2, 21, 0.5, 1.0])
    module.main(config)
    drawn = {(name, seed): set(ids) for name, seed, ids in trained}
    amounts = [14, 21, 35, 70]
    table = read_table(config.pairs, PAIRS)
    prompt_of = dict(zip(table["pair_id"].to_pylist(), prompt_keys(table), strict=True))
    for seed in (0, 1):
        sets = [drawn[f"features@{amount}", seed] for amount in amounts]
        assert [len(ids) for ids in sets] == amounts
        assert all(small < large for small, large in itertools.pairwise(sets))
        for ids in sets:
            # Each training prompt has five pairs; one prompt at most is cut.
            sizes = [sum(prompt_of[i] == key for i in ids) for key in {prompt_of[i] for i in ids}]
            assert sum(size < 5 for size in sizes) <= 1
    assert drawn["features@14", 0] != drawn["features@14", 1], "another seed, other pairs"
    assert drawn["features@70", 0] == drawn["features@70", 1]


def test_the_draw_goes_by_the_prompt_and_not_by_the_order_of_the_file(study):
    module, config = study()
    train, _ = module.read_both(config)
    shuffled = train.take(pa.array(np.random.default_rng(0).permutation(train.num_rows)))

    def first_prompts(table, seed):
        return [prompt_keys(table)[row] for row in module.draw_order(table, seed)[:12]]

    assert first_prompts(train, 0) == first_prompts(shuffled, 0)
    assert first_prompts(train, 0) != first_prompts(train, 1)


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        ([1], r"raters\.features: pairs_used has 1: give shares"),
        ([0.0], "pairs_used has 0.0"),
        ([1.5], "pairs_used has 1.5"),
        ([-3], "pairs_used has -3"),
        ([71], "pairs_used has 71, and there are 70 pairs"),
        ([0.5, 35], "names 35 of the 70 pairs 2 times"),
        ([], "pairs_used is empty"),
    ],
)
def test_an_amount_that_means_nothing_is_refused_before_any_training(watched, amounts, message):
    module, config, _, judged = watched(pairs_used=amounts)
    with pytest.raises(ConfigError, match=message):
        module.main(config)
    assert judged == []


@pytest.mark.parametrize("seeds", [[], [-1], [0, 0]])
def test_seeds_are_checked_too(watched, seeds):
    module, config, _, judged = watched(seeds=seeds)
    with pytest.raises(ConfigError, match="seeds is"):
        module.main(config)
    assert judged == []


def test_an_arm_named_like_another_rater_is_refused(study):
    module, config = study(raters={**RATERS, "features@14": {"kind": "longer"}})
    with pytest.raises(ConfigError, match="are both features@14 in the verdicts"):
        module.main(config)


# Held-out prompts ----------------------------------------------------------------------------


def test_a_test_prompt_among_the_training_prompts_is_refused(study, pair_table, tmp_path):
    module, config = study()
    train, _ = module.read_both(config)
    prompt = train["prompt"][0].as_py()
    other = pair_table([{"prompt": prompt.upper() + "!"}, {"prompt": "[WP] quite another"}])
    write_table(other, tmp_path / "other.parquet")
    config.test_pairs, config.test_split = tmp_path / "other.parquet", None
    with pytest.raises(DataError, match="1 prompts are in both the pairs to train on"):
        module.main(config)
    config.test_pairs, config.split = None, None
    with pytest.raises(DataError, match="prompts are in both"):
        module.main(config)


def test_held_out_pairs_may_come_from_a_file_of_their_own(study, pair_table, tmp_path):
    module, config = study(pairs_used=[0.5, 1.0])
    write_table(pair_table([{"prompt_id": f"q{k % 5}"} for k in range(15)]), tmp_path / "t.parquet")
    config.test_pairs, config.test_split = tmp_path / "t.parquet", None
    module.main(config)
    content = json.loads((config.out / "scaling.json").read_text())
    assert {point["agreement"]["n"] for point in content["points"]} == {15}


def test_a_ready_model_trained_on_a_test_prompt_is_refused(study, load_program, tmp_path):
    module, config = study()
    fitting = load_program("train/features.py")
    fitting.main(fitting.Config(pairs=config.pairs, out=tmp_path / "fit", split=None, c=[0.1]))
    config.raters["ready"] = {"kind": "features", "path": str(tmp_path / "fit/model")}
    with pytest.raises(ConfigError, match="ready was trained on 6 of the prompts"):
        module.main(config)


def test_a_training_that_saw_a_test_prompt_is_refused(study, monkeypatch):
    module, config = study()
    load = module.checked_trainer

    def loading(spec):
        trainer = load(spec)

        def train(name, options, pairs, folder, seed, where):
            rater = trainer(name, options, pairs, folder, seed, where)
            rater.prompts |= set(prompt_keys(read_table(config.pairs, PAIRS)))
            return rater

        return trainer and train

    monkeypatch.setattr(module, "checked_trainer", loading)
    with pytest.raises(ConfigError, match="features@14 was trained on 6 of the prompts"):
        module.main(config)


# Parts ---------------------------------------------------------------------------------------


def test_all_arms_judge_the_same_pairs_and_columns_tell_amount_and_seed(study):
    module, config = study()
    module.main(config)
    rows = rows_of(config.out)
    _, test = module.read_both(config)
    ids = set(test["pair_id"].to_pylist())
    judged = {}
    for row in rows:
        key = (row["rater"], row["pairs_used"], row["seed"], row["fold"])
        judged.setdefault(key, []).append(row["pair_id"])
    assert set(judged) == {("longer", None, None, None)} | {
        (f"features@{n}", n, seed, f"{seed}/0") for n in (14, 35, 70) for seed in (0, 1)
    }
    assert all(sorted(found) == sorted(ids) for found in judged.values())
    assert not (config.out / "scratch").exists()
    with (config.out / "scaling.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [row["name"] for row in table] == [
        "longer", "features@14", "features@35", "features@70"
    ]  # fmt: skip
    assert [row["seeds"] for row in table] == ["0", "2", "2", "2"]


def test_a_killed_study_goes_on_and_ends_in_the_same_verdicts(watched, monkeypatch):
    module, config, _, _ = watched(out="whole")
    module.main(config)
    module, killed, trained, judged = watched(out="killed")
    noting = module.judge_pairs

    def dying(rater, pairs, fold=None):
        if (rater.name, fold) == ("features@35", "1/0"):
            raise KeyboardInterrupt
        return noting(rater, pairs, fold)

    with monkeypatch.context() as patch:
        patch.setattr(module, "judge_pairs", dying)
        with pytest.raises(KeyboardInterrupt):
            module.main(killed)
    assert not (killed.out / "manifest.json").exists()
    done = len(judged)
    module.main(killed)
    assert judged[done:] == [
        ("features@35", "1/0"), ("features@70", "0/0"), ("features@70", "1/0")
    ]  # fmt: skip
    assert rows_of(killed.out) == rows_of(config.out)
    assert len(trained) == 7, "one training was lost with the kill"


def test_an_amount_a_seed_or_a_family_added_later_costs_only_itself(watched):
    module, config, trained, _ = watched()
    module.main(config)
    module.main(config)
    assert len(trained) == 6, "a current study is left alone"
    config.raters["features"] |= {"family": "floor", "parameters": 27}
    module.main(config)
    assert len(trained) == 6
    for kind in ("svg", "png"):
        assert (config.out / f"scaling_parameters.{kind}").exists()
    config.pairs_used = [0.2, 0.5, 0.8, 1.0]
    module.main(config)
    assert [name for name, *_ in trained[6:]] == ["features@56"] * 2
    config.seeds = [0, 1, 2]
    module.main(config)
    assert [(name, seed) for name, seed, _ in trained[8:]] == [
        (f"features@{n}", 2) for n in (14, 35, 56, 70)
    ]


def test_an_interrupted_training_finds_its_own_files_and_no_other_ones(watched, monkeypatch):
    module, config, _, _ = watched()
    load = module.checked_trainer
    found, finished = [], []

    def loading(spec):
        trainer = load(spec)

        def train(name, options, pairs, folder, seed, where):
            found.append((name, seed, sorted(path.name for path in folder.glob("*"))))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}-{seed}").touch()
            if len(found) == 3:
                raise KeyboardInterrupt
            finished.append(folder)
            return trainer(name, options, pairs, folder, seed, where)

        return trainer and train

    monkeypatch.setattr(module, "checked_trainer", loading)
    with pytest.raises(KeyboardInterrupt):
        module.main(config)
    assert not any(folder.exists() for folder in finished)
    module.main(config)
    assert [left for _, _, left in found[:3]] == [[], [], []]
    assert found[3][:2] == found[2][:2]
    assert found[3][2] == ["features@35-0"]
    assert all(left == [] for _, _, left in found[4:])
    assert not (config.out / "scratch").exists()


def parts_made(module, config, judged):
    """Run the study; the parts that were not there before."""
    judged.clear()
    module.main(config)
    return sorted(set(judged), key=str)


def test_each_input_of_a_part_counts_and_no_other_part_is_made_anew(
    watched, load_program, pair_table, tmp_path
):
    fitting = load_program("train/features.py")

    def fit(first):
        rows = [
            {"prompt_id": f"{first}-{n % 5}", "chosen": "a, tale " * (n % 4 + first)}
            for n in range(20)
        ]
        write_table(pair_table(rows), tmp_path / "own.parquet")
        fitting.main(fitting.Config(pairs=tmp_path / "own.parquet", out=tmp_path / "fit", c=[0.1]))

    fit(1)
    ready = {"kind": "features", "path": str(tmp_path / "fit/model")}
    raters = {
        **RATERS,
        "ready": ready,
        "mix": {"kind": "ensemble", "members": {"one": ready}},
        "stack": {"kind": "stack", "members": {"one": ready}},
    }
    module, config, _, judged = watched(raters=raters, pairs_used=[0.5, 1.0], seeds=[0])
    trained = [(f"{name}@{n}", "0/0") for name in ("features", "stack") for n in (35, 70)]
    unseeded = [(name, None) for name in ("longer", "mix", "ready")]
    everything = sorted([*trained, *unseeded], key=str)
    assert parts_made(module, config, judged) == everything
    assert parts_made(module, config, judged) == []
    # The model's bytes, of a rater and of members.
    fit(3)
    assert parts_made(module, config, judged) == [
        ("mix", None), ("ready", None), ("stack@35", "0/0"), ("stack@70", "0/0")
    ]  # fmt: skip
    # What is judged, and what is trained on: as many pairs of other prompts.
    table = read_table(config.pairs, PAIRS).to_pylist()
    for row in table:
        row["split"] = {"p0": "spare", "p14": "extra"}.get(row["prompt_id"], row["split"])
    write_table(pair_table(table), config.pairs)
    assert len(parts_made(module, config, judged)) == len(everything)
    config.test_split = "extra"
    assert len(parts_made(module, config, judged)) == len(everything)
    config.split = "spare"
    config.pairs_used = [5]
    made = parts_made(module, config, judged)
    assert [name for name, _ in made if "@" in name] == ["features@5", "stack@5"]
    config.split = "test"
    config.pairs_used = [5]
    again = parts_made(module, config, judged)
    assert [name for name, _ in again if "@" in name] == ["features@5", "stack@5"]


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        ({"kind": "reward", "backbone": "b", "seed": 1}, r"raters\.x\.seed"),
        (
            {"kind": "stack", "members": {"m": {"kind": "reward", "backbone": "b", "seed": 1}}},
            r"raters\.x\.members\.m\.seed",
        ),
    ],
)
def test_a_seed_of_the_entry_would_make_all_seeds_the_same(watched, entry, where):
    module, config, _, judged = watched(raters={"longer": {"kind": "longer"}, "x": entry})
    with pytest.raises(ConfigError, match=f"{where} is given, so that all trainings"):
        module.main(config)
    assert judged == []


def test_a_rater_that_is_no_training_may_have_a_seed(watched):
    module, config, _, judged = watched(raters={"coin": {"kind": "random", "seed": 3}})
    module.main(config)
    assert judged == [("coin", None)]


def test_an_ensemble_has_a_size_and_the_study_has_seeds(watched):
    entry = {"kind": "ensemble", "each": FAST, "size": 2, "seeds": [3, 4]}
    module, config, trained, _ = watched(raters={"e": entry}, pairs_used=[1.0])
    module.main(config)
    assert [(name, seed) for name, seed, _ in trained] == [("e@70", 3), ("e@70", 4)]


def test_a_share_is_at_least_two_pairs(study):
    module, _ = study()
    assert module.count_pairs(0.01, 20, "raters.x") == 2
    with pytest.raises(ConfigError, match="there is 1 pair"):
        module.count_pairs(1.0, 1, "raters.x")


# Figures -------------------------------------------------------------------------------------


@pytest.fixture
def verdicts_of(pair_table, verdict_table):
    """Verdicts on 40 pairs of 8 prompts: `verdicts_of({name: share right}, seeds)`."""
    pairs = pair_table([{"prompt_id": f"p{place % 8}"} for place in range(40)])
    ids = pairs["pair_id"].to_pylist()

    def build(right, seeds=(0,)):
        rows = [
            {
                "pair_id": pair_id,
                "rater": name,
                "fold": None if seeds is None else f"{seed}/0",
                "outcome": "chosen" if coin.random() < share else "rejected",
            }
            for name, share in right.items()
            for seed in seeds or (0,)
            for coin in [random.Random(f"{name}{seed}")]
            for pair_id in ids
        ]
        return verdict_table(rows)

    return pairs, build


def test_copies_of_a_seed_change_no_figure_but_the_count_of_seeds(verdicts_of, verdict_table):
    pairs, build = verdicts_of
    once = build({"a@10": 0.7})
    rows = once.to_pylist()
    copies = [{**row, "fold": f"{seed}/0"} for seed in range(5) for row in rows]
    arms = [Arm("a@10", "a", 10, None, None)]
    single = scaling_study(once, pairs, arms).points[0]
    many = scaling_study(verdict_table(copies), pairs, arms).points[0]
    assert many.agreement == single.agreement
    assert many.agreement.n == 40
    assert many.seeds == single.seeds * 5


def test_a_point_is_the_mean_over_seeds_with_the_interval_of_the_leaderboard(verdicts_of):
    pairs, build = verdicts_of
    verdicts = build({"a@10": 0.7}, seeds=(0, 3, 12))
    point = scaling_study(verdicts, pairs, [Arm("a@10", "a", 10, None, None)]).points[0]
    assert point.agreement.mean == pytest.approx(np.mean(point.seeds))
    scores = pair_scores(verdicts, pairs)[0]
    assert point.agreement == jackknife_interval(scores.credit, PairFacts.of(pairs).clusters)
    assert len(set(point.seeds)) > 1


def test_gains_are_paired_and_corrected_together(verdicts_of):
    pairs, build = verdicts_of
    shares = {"a@10": 0.5, "a@20": 0.7, "a@40": 0.98, "b@40": 0.6, "b@10": 0.6}
    arms = [
        Arm(name, name[0], int(name[2:]), "f", {"a": 100, "b": 1_000}[name[0]]) for name in shares
    ]
    study = scaling_study(build(shares), pairs, arms)
    steps = [(gain.of, gain.axis, gain.least, gain.most) for gain in study.gains]
    assert steps == [
        ("a", "pairs", 10, 40), ("b", "pairs", 10, 40), ("f", "parameters", 100, 1_000)
    ]  # fmt: skip
    first = study.gains[0].comparison
    mean = {point.name: point.agreement.mean for point in study.points}
    assert first.difference.mean == pytest.approx(mean["a@40"] - mean["a@10"])
    assert first.p_holm == pytest.approx(3 * first.p_value)
    assert "f, 100 to 1k parameters: -" in scaling_text(study)
    json.dumps(scaling_json(study), allow_nan=False)


def test_sizes_are_compared_at_one_amount():
    arms = [
        Arm("a@10", "a", 10, "one", 5),
        Arm("a@40", "a", 40, "one", 5),
        Arm("b@10", "b", 10, "two", 3),
        Arm("c@90", "c", 90, None, 9),
        Arm("d", "d", None, "two", 1),
        Arm("e", "e", None, "two", None),
        Arm("longer", "longer", None, None, None),
    ]
    names = {family: [arm.name for arm in of] for family, of in by_parameters(arms).items()}
    assert names == {"one": ["a@10"], "two": ["d", "b@10", "e"]}
    assert [arm.name for arm in references(arms)] == ["longer"]
    assert list(by_pairs(arms)) == ["a", "b", "c"]
    with pytest.raises(ConfigError, match="raters a, b have a family and share no number of pairs"):
        by_parameters([*arms[1:3]])


def test_raters_of_families_without_a_common_amount_are_refused_before_training(watched):
    raters = {
        "few": {**FAST, "family": "f", "pairs_used": [0.1, 0.2]},
        "all": {**FAST, "family": "f", "pairs_used": [1.0]},
    }
    module, config, _, judged = watched(raters=raters)
    with pytest.raises(ConfigError, match="share no number of pairs"):
        module.main(config)
    assert judged == []


def test_the_number_of_parameters_comes_from_the_config_or_else_from_the_rater(study, monkeypatch):
    module, config = study(pairs_used=[1.0], seeds=[0])
    config.raters["features"]["family"] = "floor"
    config.raters["told"] = {**FAST, "family": "floor", "parameters": 12}
    judge = module.judge_pairs

    def judging(rater, pairs, fold=None):
        notes = rater.notes()
        rater.notes = lambda: {**notes, "parameters": 27}
        return judge(rater, pairs, fold=fold)

    monkeypatch.setattr(module, "judge_pairs", judging)
    module.main(config)
    points = json.loads((config.out / "scaling.json").read_text())["points"]
    found = {point["rater"]: point["parameters"] for point in points}
    assert found == {"longer": 27, "features": 27, "told": 12}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (27, "27"),
        (22_713_216, "22.7M"),
        (999_999_999, "1B"),
        (8_030_261_248, "8.03B"),
        (1000, "1k"),
    ],
)
def test_sizes_are_written_as_people_say_them(parameters, text):
    assert write_size(parameters) == text


# Page and plots ------------------------------------------------------------------------------

ATTACK = '<script>alert("x")</script>{{ 7 * 7 }}'


@pytest.fixture
def drawn(verdicts_of):
    pairs, build = verdicts_of
    shares = {f"{ATTACK}@10": 0.6, f"{ATTACK}@40": 0.8, "$x$@40": 0.7}
    arms = [
        Arm(f"{ATTACK}@10", ATTACK, 10, "family & co", 5_000_000),
        Arm(f"{ATTACK}@40", ATTACK, 40, "family & co", 5_000_000),
        Arm("$x$@40", "$x$", 40, "family & co", None),
        Arm("coin", "coin", None, None, None),
    ]
    verdicts = pa.concat_tables([build(shares, (0, 1)), judge_pairs(RandomRater("coin"), pairs)])
    study = scaling_study(verdicts, pairs, arms)
    panels = draw_panels(study)
    page = render_scaling(
        title="A study", study=study, panels=panels, training=pairs, test=pairs, manifests={}
    )
    return study, panels, page


def test_the_page_shows_names_as_they_are_and_runs_nothing(drawn):
    study, _, page = drawn
    assert "<script" not in page
    assert "{{ 7 * 7 }}" in page
    assert "family &amp; co" in page
    assert "nobody tells their number of parameters: $x$@40" in page
    assert f"{study.points[1].agreement.mean:.3f}" in page
    assert "2 seeds" in page
    assert not re.search(r"url\((?!#)|@import|<link|<img|<iframe", page)


def test_a_plot_stands_alone_with_colours_of_its_own(drawn):
    _, panels, _ = drawn
    assert list(panels) == ["pairs", "parameters"]
    for panel in panels.values():
        svg = standalone(panel.drawing.svg)
        ElementTree.fromstring(svg)  # noqa: S314
        assert "var(" not in svg
        assert set(re.findall(r'font-family: ([^;"]*)', svg)) == {"Helvetica, Arial, sans-serif"}
    assert "5M" in panels["parameters"].drawing.svg
    assert "coin" in panels["parameters"].drawing.svg
    assert "$x$" not in panels["pairs"].drawing.svg, "one amount makes no line"


def test_a_name_that_begins_with_an_underscore_stands_in_the_legend(verdicts_of):
    pairs, build = verdicts_of
    arms = [Arm(f"_a@{n}", "_a", n, None, None) for n in (10, 40)]
    arms.append(Arm("_coin", "_coin", None, None, None))
    verdicts = pa.concat_tables(
        [build({"_a@10": 0.6, "_a@40": 0.8}), judge_pairs(RandomRater("_coin"), pairs)]
    )
    svg = draw_panels(scaling_study(verdicts, pairs, arms))["pairs"].drawing.svg
    assert re.findall(r">(_\w+)</text>", svg) == ["_a", "_coin"]


def test_coverage_is_the_share_of_verdicts_that_are_judgements(verdicts_of, verdict_table):
    pairs, build = verdicts_of
    rows = build({"a@10": 0.7}).to_pylist()
    rows[:10] = [{**row, "outcome": "unparsed"} for row in rows[:10]]
    arms = [Arm("a@10", "a", 10, None, None)]
    assert scaling_study(verdict_table(rows), pairs, arms).points[0].coverage == 0.75


def test_many_long_names_fit_into_the_plot(verdicts_of):
    pairs, build = verdicts_of
    names = [f"a rather long name of a family, number {place}" for place in range(9)]
    right = {f"{name}@{n}": 0.6 for name in names for n in (10, 40)}
    arms = [Arm(f"{name}@{n}", name, n, None, None) for name in names for n in (10, 40)]
    panels = draw_panels(scaling_study(build(right), pairs, arms))
    assert all(name in panels["pairs"].drawing.svg for name in names)
    width = float(re.search(r'viewBox="0 0 ([\d.]+) ', panels["pairs"].drawing.svg)[1])
    starts = re.findall(r'<text [^>]*?x="([\d.]+)"[^>]*>a rather long', panels["pairs"].drawing.svg)
    assert len(starts) == 9
    # A letter of this size is about 4 units wide.
    assert max(map(float, starts)) + 4 * len(names[0]) < width


def test_one_prompt_and_no_plot_still_make_a_page(study, pair_table, tmp_path):
    module, config = study(pairs_used=[1.0], seeds=[0])
    write_table(pair_table([{"prompt_id": "q"} for _ in range(3)]), tmp_path / "t.parquet")
    config.test_pairs, config.test_split = tmp_path / "t.parquet", None
    module.main(config)
    page = (config.out / "scaling.html").read_text(encoding="utf-8")
    assert "one prompt: no interval" in page
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    assert "No plot: every rater has one amount" in page
