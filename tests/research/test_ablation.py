"""Ablations: the whole matrix, equal sizes, prompts kept apart, kills survived, work shared."""

import functools
import html
import itertools
import json
import re
import shlex
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from litbench.data.records import STORIES, pair_id, prompt_keys
from litbench.data.tables import write_table
from litbench.evaluation.report import figures
from litbench.metrics.agreement import pair_scores
from litbench.metrics.intervals import clustered_mean
from litbench.metrics.power import t_power
from litbench.raters.entries import RaterSpec
from litbench.research import ablation as experiment
from litbench.research.ablation import compare_effects, first_by_hash, join_test_sets
from litbench.runs.config import build, load_config
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Cache

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
            f"word{number}{comma}"
            for number, comma in zip(
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

    Plots are empty unless a test draws them, and no pairs are made twice.
    """
    module = load_program("eval/ablation.py")
    make_pairs, curves = experiment.make_pairs, figures.curves
    png = figures.Drawing._write_png

    def remembered(config, what, source, parts):
        return make_pairs(config, what, source, Cache(made_before / parts.folder.name))

    monkeypatch.setattr(experiment, "make_pairs", remembered)

    def make(out="out", stories=None, draws=False, **changes):
        empty = figures.Drawing("<svg></svg>", SimpleNamespace(get_figwidth=lambda: 1))
        monkeypatch.setattr(figures, "curves", curves if draws else lambda *_, **__: empty)
        monkeypatch.setattr(
            figures.Drawing, "_write_png", png if draws else lambda _, path: path.touch()
        )
        path = tmp_path / "stories.parquet"
        if stories is not None or not path.exists():
            write_table(world() if stories is None else stories, path)
        arguments = {
            "variants": VARIANTS,
            "reference": "full",
            "raters": {"features": dict(FAST), "longer": {"kind": "longer"}},
            "pairs_used": [0.5, 1.0],
            "seeds": [0],
            "symmetry_buckets": 10,
            "label_source": "planted",
            "max_test_pairs": 60,
            **LOOSE,
            **changes,
        }
        return module, build(module.Config, {"stories": path, "out": tmp_path / out, **arguments})

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


def read(folder):
    return json.loads((folder / "ablation.json").read_text(encoding="utf-8"))


def rows_by(results, *keys):
    """The rows of `results` in ablation.json, grouped by some of their keys."""
    groups = {}
    for row in results:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def test_variants_are_judged_on_all_test_sets(ablation, trainings):
    module, config = ablation(draws=True)
    module.main(config)
    content = read(config.out)
    totals = json.loads((config.out / "manifest.json").read_text())["counts"]["training_pairs"]
    least = min(totals.values())
    assert len(set(totals.values())) > 1
    # As many pairs of each variant, then all of each, never of a test prompt.
    arms = {*itertools.product(VARIANTS, [round(least / 2), least]), *totals.items()}
    assert {(variant, used) for variant, used, _ in trainings} == arms
    of_tests = rows_by(content["results"], "test")
    assert list(of_tests) == [("common",), *((name,) for name in VARIANTS)]
    for rows in of_tests.values():
        facts = {(row["entry"], row["variant"], row["training_pairs"]) for row in rows}
        assert facts == {("longer", None, None), *(("features", *arm) for arm in arms)}
    verdicts = pq.read_table(config.out / "verdicts.parquet").to_pylist()
    tested = pq.read_table(config.out / "test_pairs.parquet")
    for (_, used, _), table in trainings.items():
        assert len(set(table["pair_id"].to_pylist())) == table.num_rows == used
        assert not set(prompt_keys(tested)) & set(prompt_keys(table))
    # Only the other variant is compared with the reference, at the largest equal number.
    assert content["headline"] == {
        "rater": "features",
        "training_pairs": least,
        "reference": "full",
        "test": "common",
        "compares": "variants",
    }
    reference, other = content["effects"]
    assert (reference["name"], reference["comparison"], reference["verdict"]) == (
        "full",
        None,
        "reference",
    )
    assert other["comparison"]["reference"] == "full"
    assert other["comparison"]["p_holm"] == other["comparison"]["p_value"]
    assert other["detectable"] > 0
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
    assert {path.name for path in config.out.glob("*.*g")} == {
        "learning_curves.svg",
        "learning_curves.png",
    }
    # The first table of the terminal has a line for each variant, then the raters beside it.
    lines = (config.out / "ablation.txt").read_text().split("\n\n")[1].splitlines()
    assert [line.split()[0] for line in lines] == ["trained", "full", "naive", "longer"]


def test_a_cell_is_recomputed_from_the_verdicts(ablation):
    module, config = ablation(seeds=[0, 1])
    module.main(config)
    names = ["entry", "variant", "training_pairs"]
    cells = {
        (row["test"], *(row[name] for name in names)): row for row in read(config.out)["results"]
    }
    verdicts = pq.read_table(config.out / "verdicts.parquet")
    credits = {}
    for row in verdicts.to_pylist():
        for test in row["test_sets"]:
            credit = {"chosen": 1.0, "rejected": 0.0}.get(row["outcome"], 0.5)
            credits.setdefault((test, *(row[name] for name in names)), []).append(credit)
    assert set(credits) == set(cells)
    for key, values in credits.items():
        assert cells[key]["agreement"]["mean"] == pytest.approx(np.mean(values), abs=1e-6)
    # A test set's pairs are those that name it, and no others.
    tested = pq.read_table(config.out / "test_pairs.parquet")
    sizes = json.loads((config.out / "manifest.json").read_text())["counts"]["test_pairs"]
    named = [name for names in tested["test_sets"].to_pylist() for name in names]
    assert {name: named.count(name) for name in sizes} == sizes


def test_the_page_prints_a_command_that_makes_the_pairs_again(ablation, load_program):
    module, config = ablation(max_test_pairs=None, splits={"train": 0.8, "test": 0.2})
    module.main(config)
    page = html.unescape((config.out / "ablation.html").read_text(encoding="utf-8"))
    command = next(
        shlex.split(line)
        for line in re.findall(r"litbench data make_pairs [^<]*", page)
        if "/pairs/naive" in line
    )
    program = load_program("data_prep/make_pairs.py")
    making = load_config(program.Config, command[3:])
    program.main(making)
    pairs = pq.read_table(making.out / "pairs.parquet")
    tested = pq.read_table(config.out / "test_pairs.parquet")
    of_naive = [
        row["pair_id"].removesuffix(", other label")
        for row in tested.select(["pair_id", "test_sets"]).to_pylist()
        if "naive" in row["test_sets"]
    ]
    assert set(of_naive) == set(
        pairs.filter(pc.equal(pairs["split"], "test"))["pair_id"].to_pylist()
    )


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.0, "cannot tell"), (0.4, "helps"), (-0.4, "hurts")]
)
def test_verdicts_on_variants(shift, verdict):
    random = np.random.default_rng(0)
    clusters = [f"p{row // 4}" for row in range(200)]
    reference = random.integers(0, 2, 200).astype(float)
    flips = random.random(200) < 0.1
    other = np.where(flips, 1 - reference, reference)
    if shift:
        other = np.where(random.random(200) < abs(shift), float(shift > 0), other)
    credits = {"other": other, "full": reference, "third": 1 - reference}
    first, *others = compare_effects(credits, "full", clusters, ("helps", "hurts"))
    assert first.name == "full"
    assert others[0].verdict == verdict
    # At the effect that is called detectable, Holm's first step finds it in 80 % of studies.
    estimate = clustered_mean(other - reference, clusters)
    signal = others[0].detectable / estimate.error
    assert t_power(signal, estimate.freedom, 0.05 / 2) == pytest.approx(0.8, abs=1e-6)


def test_power_of_an_ablation_says_how_many_prompts_it_needs(ablation, load_program, tmp_path):
    module, config = ablation()
    module.main(config)
    power = load_program("litbench power")
    power.main(power.Config(evaluation=config.out, out=tmp_path / "power"))
    (row,) = pa_csv.read_csv(tmp_path / "power/power.csv").to_pylist()
    (_, effect) = read(config.out)["effects"]
    assert row["name"] == "naive - full"
    assert row["difference"] == pytest.approx(
        abs(effect["comparison"]["difference"]["mean"]), abs=1e-6
    )
    assert row["detectable"] == pytest.approx(effect["detectable"], abs=1e-6)
    needs = row["difference"] < row["detectable"]
    assert (row["prompts_needed"] > row["prompts"]) == needs
    with pytest.raises(ConfigError, match=r"reference 'ful'.* 'full'"):
        power.main(power.Config(evaluation=config.out, out=tmp_path / "p", reference="ful"))


def test_variants_without_a_common_pair_name_another_test(ablation, ready, tmp_path):
    pairs = pq.read_table(ready)
    ids = pa.array([f"x{name}" for name in pairs["pair_id"].to_pylist()], pa.large_string())
    other = tmp_path / "other.parquet"
    write_table(pairs.set_column(pairs.column_names.index("pair_id"), "pair_id", ids), other)
    variants = {"full": {}, "other": {"pairs": str(other)}}
    module, config = ablation(variants=variants)
    with pytest.raises(DataError, match="headline_test to one of full, other"):
        module.main(config)
    module, config = ablation(variants=variants, headline_test="other", pairs_used=[1.0])
    module.main(config)
    content = read(config.out)
    assert content["headline"]["test"] == "other"
    assert [name for (name,) in rows_by(content["results"], "test")] == ["full", "other"]


def test_shared_training_and_test_prompts_raise(ablation, trainings):
    module, config = ablation(variants={"full": {}, "other": {"seed": 5}})
    with pytest.raises(DataError, match=r"test prompts .* variant"):
        module.main(config)
    assert not trainings


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
    content = read(config.out)
    total = json.loads((config.out / "manifest.json").read_text())["counts"]["training_pairs"]
    amounts = sorted([round(0.2 * total["ready"]), 21, round(0.5 * total["ready"]), total["ready"]])
    assert {(row["test"], row["entry"], row["training_pairs"]) for row in content["results"]} == {
        ("ready", "longer", None),
        *(("ready", name, used) for name in ("one", "other") for used in amounts),
    }
    # With one variant, the raters are compared.
    first, *others = (effect["name"] for effect in content["effects"])
    assert (first, sorted(others)) == ("one", ["longer", "other"])
    assert content["headline"]["compares"] == "raters"
    assert content["effects"][0]["agreement"]["mean"] == next(
        row["agreement"]["mean"]
        for row in content["results"]
        if (row["entry"], row["training_pairs"]) == ("one", total["ready"])
    )
    assert all(row["weight"] is not None for row in trainings["ready", 21, 0].to_pylist())
    # A smaller amount is contained in a larger one, and one prompt at most is cut.
    for seed in (0, 1):
        sets = [trainings["ready", amount, seed] for amount in amounts]
        ids = [set(table["pair_id"].to_pylist()) for table in sets]
        assert [len(item) for item in ids] == amounts
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
    tests = rows_by(read(config.out)["results"], "test")
    assert [name for (name,) in tests] == ["common", *VARIANTS, "external"]
    module, config = ablation(test_pairs={"external": str(other)}, test_split=None)
    module.main(config)
    content = read(config.out)
    assert content["headline"]["test"] == "external"
    assert set(rows_by(content["results"], "test")) == {("external",)}
    trainings.clear()
    module, config = ablation(test_pairs={"same": str(ready)})
    with pytest.raises(DataError, match=r"test prompts of same .* variant full"):
        module.main(config)
    assert not trainings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": {"full": {"min_scor": 3}}}, "variants: full: unknown key 'min_scor'"),
        ({"variants": {"full": {"min_gap": 2.0}}}, "'min_gap' is 2.0"),
        ({"variants": {"full": {"pairs": "x", "seed": 1}}}, "give only {pairs: FILE}"),
        ({"variants": {}}, "name at least one variant"),
        ({"test_pairs": {"full": "x"}}, "a name is used twice among"),
        ({"test_pairs": {"common": "x"}}, "a name is used twice among"),
        ({"headline_test": "naiv"}, "headline_test 'naiv' is not a test set: did you mean 'naive'"),
        ({"headline_rater": "longer"}, "headline_rater 'longer' is not a rater that is trained"),
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
    rows = [ids.index(item) for item in drawn["pair_id"].to_pylist()]
    assert rows == sorted(rows)
    assert first_by_hash(every, 60, 2, by_prompt=False) != drawn
    assert first_by_hash(every, None, 1, by_prompt=False) == every


# The figures ----------------------------------------------------------------------------------


def keys_of(pair_table, chosen):
    """Pairs of stories a, b, c and d by (chosen, rejected)."""
    words = {"a": 10, "b": 20, "c": 30, "d": 40}
    rows = [
        {
            "pair_id": pair_id(first, other),
            "chosen_story_id": first,
            "rejected_story_id": other,
            "chosen_n_words": words[first],
            "rejected_n_words": words[other],
            "prompt_id": f"p{index}",
        }
        for index, (first, other) in enumerate(chosen)
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
        for index, name in enumerate(pairs["pair_id"].to_pylist())
        for outcome in ["rejected" if index < wrong else "chosen"]
    ]
    (scores,) = pair_scores(verdict_table(rows), pairs)
    assert scores.credit.tolist() == [0.0, 0.5, 1.0, 1.0]


def test_reused_pair_ids_raise(pair_table):
    first, other = keys_of(pair_table, [("a", "b")]), keys_of(pair_table, [("a", "c")])
    index = other.column_names.index("pair_id")
    renamed = other.set_column(index, "pair_id", first["pair_id"])
    with pytest.raises(DataError, match="of x, y"):
        join_test_sets({"x": first, "y": renamed})


def test_names_of_others_are_text_on_the_page(ablation):
    wicked = "<script>alert(1)</script>"
    raters = {f"{wicked}/r": dict(FAST)}
    module, config = ablation(
        variants={wicked: {}}, reference=None, raters=raters, draws=True, pairs_used=[1.0]
    )
    module.main(config)
    page = (config.out / "ablation.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
