"""The evaluation and feature programs: no leaks, parts reused, honest folds, kills survived."""

import json
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from litbench.data.records import PAIRS, VERDICTS, prompt_keys
from litbench.data.tables import read_table, write_table
from litbench.evaluation import loop as evaluation
from litbench.metrics.agreement import length_differences
from litbench.raters.entries import RaterSpec
from litbench.runs.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
FAST = {"kind": "features", "c": [0.1]}


@pytest.fixture
def pairs_file(pair_table, invented, tmp_path):
    def write(n, prompts=6, name="pairs.parquet", first=0):
        source = random.Random(first)
        rows = [
            {
                "chosen": invented(source, source.randint(20, 60)),
                "rejected": invented(source, source.randint(20, 60)),
                "prompt_id": f"p{first}-{index % prompts}",
                "chosen_story_id": f"c{first}-{index}",
                "rejected_story_id": f"r{first}-{index}",
            }
            for index in range(n)
        ]
        path = tmp_path / name
        write_table(pair_table(rows), path)
        return path

    return write


@pytest.fixture
def model_folder(load_program, tmp_path):
    """The model folder of a feature model fitted to a pairs file."""

    def fit(pairs, name="fitted"):
        fitting = load_program("train/features.py")
        fitting.main(fitting.Config(pairs=pairs, out=tmp_path / name, c=[0.1]))
        return tmp_path / name / "model"

    return fit


@pytest.fixture
def calls(monkeypatch):
    """What is judged, as (rater's name, fold, pairs); an exception in `stops` is raised there."""
    made = Calls()
    judge = evaluation.judge_pairs

    def noting(rater, pairs, fold=None):
        stop = made.stops.pop((rater.name, fold), None)
        if stop is not None:
            raise stop
        made.append((rater.name, fold, pairs))
        return judge(rater, pairs, fold=fold)

    monkeypatch.setattr(evaluation, "judge_pairs", noting)
    return made


class Calls(list):
    """Calls of judge_pairs."""

    def __init__(self):
        super().__init__()
        self.stops = {}

    def take(self):
        """Names and folds since the last time."""
        results = [(name, fold) for name, fold, _ in self]
        self.clear()
        return results


@pytest.fixture
def trained(monkeypatch):
    """The pairs tables that raters are trained on."""
    tables = []
    train = RaterSpec.train

    def watching(self, pairs, *rest):
        tables.append(pairs)
        return train(self, pairs, *rest)

    monkeypatch.setattr(RaterSpec, "train", watching)
    return tables


def verdict_rows(folder):
    table = read_table(folder / "verdicts.parquet", VERDICTS)
    return table.drop_columns(["seconds"]).to_pylist()


# Fitting the feature model -------------------------------------------------------------------


def test_fitting_is_idempotent(program, pairs_file, tmp_path):
    pairs = pairs_file(60)
    arguments = ("train/features.py", "--pairs", pairs, "--out", tmp_path / "run")
    done = program(*arguments)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "run/model/features.json").read_text())
    assert len(content["training_prompts"]) == 6
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["counts"]["pairs"] == 60
    assert "unchanged" in program(*arguments).stdout


# Benchmark -----------------------------------------------------------------------------------


def test_training_prompts_are_refused_or_flagged(load_program, pairs_file, model_folder, tmp_path):
    benchmark = load_program("eval/benchmark.py")
    pairs = pairs_file(40)
    raters = {
        "longer": {"kind": "longer"},
        "fitted": {"kind": "features", "path": str(model_folder(pairs))},
    }
    config = benchmark.Config(pairs=pairs, out=tmp_path / "out", raters=raters)
    with pytest.raises(ConfigError, match=r"fitted .* 6 of the prompts"):
        benchmark.main(config)
    assert not (tmp_path / "out" / "verdicts.parquet").exists()
    config.on_training_prompts = "flag"
    benchmark.main(config)
    rows = {
        row["rater"]: row for row in json.loads((tmp_path / "out/leaderboard.json").read_text())
    }
    assert (rows["fitted"]["trained_on"], rows["longer"]["trained_on"]) == (6, 0)
    # On prompts it never saw, it is welcome.
    config.pairs, config.on_training_prompts = pairs_file(40, name="new.parquet", first=1), "refuse"
    benchmark.main(config)
    assert json.loads((tmp_path / "out/leaderboard.json").read_text())[0]["trained_on"] == 0


def test_only_what_is_new_is_judged(load_program, calls, pairs_file, tmp_path):
    benchmark = load_program("eval/benchmark.py")
    raters = {"longer": {"kind": "longer"}, "coin": {"kind": "random"}}
    config = benchmark.Config(pairs=pairs_file(30), out=tmp_path / "out", raters=raters)
    calls.stops["coin", None] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        benchmark.main(config)
    assert calls.take() == [("longer", None)]
    benchmark.main(config)
    assert calls.take() == [("coin", None)]
    before = verdict_rows(tmp_path / "out")
    benchmark.main(config)
    for name in ("manifest.json", "verdicts.parquet", "leaderboard.json"):
        (tmp_path / "out" / name).unlink()
    benchmark.main(config)
    assert verdict_rows(tmp_path / "out") == before
    assert calls.take() == []
    config.raters = {**raters, "shorter": {"kind": "shorter"}}
    benchmark.main(config)
    assert calls.take() == [("shorter", None)]
    config.raters = {**raters, "coin": {"kind": "random", "seed": 1}}
    benchmark.main(config)
    assert calls.take() == [("coin", None)]
    config.pairs = pairs_file(31)
    benchmark.main(config)
    assert calls.take() == [("longer", None), ("coin", None)]


def test_retrained_models_are_judged_again(load_program, calls, pairs_file, model_folder, tmp_path):
    module = load_program("eval/benchmark.py")
    folder = model_folder(pairs_file(40, first=1, name="train.parquet"))
    members = {"f": {"kind": "features", "path": str(folder)}, "l": {"kind": "longer"}}
    raters = {
        "longer": {"kind": "longer"},
        "fitted": {"kind": "features", "path": str(folder)},
        "mix": {"kind": "panel", "members": members},
    }
    config = module.Config(pairs=pairs_file(20), out=tmp_path / "out", raters=raters)

    def judged():
        module.main(config)
        return [name for name, _ in calls.take()]

    assert judged() == ["longer", "fitted", "mix"]
    assert judged() == []
    model_folder(pairs_file(50, first=2, name="train.parquet"))
    assert judged() == ["fitted", "mix"]


@pytest.mark.parametrize("name", ["eval/benchmark.py", "eval/crossvalidate.py"])
def test_unknown_reference_raises_before_judging(load_program, calls, pairs_file, tmp_path, name):
    module = load_program(name)
    config = module.Config(
        pairs=pairs_file(20), out=tmp_path, raters={"coin": {"kind": "random"}}, reference="cion"
    )
    with pytest.raises(ConfigError, match="did you mean 'coin'"):
        module.main(config)
    assert not calls


def test_the_program_reports_errors_in_one_line(program, pairs_file, tmp_path):
    arguments = ("eval/benchmark.py", "--pairs", pairs_file(10), "--out", tmp_path / "out")
    done = program(*arguments, "--raters.longer.kind", "longr")
    assert done.returncode == 2
    assert done.stderr.startswith("error: raters.longer: unknown kind 'longr'")
    assert done.stderr.count("\n") == 1


# Cross-validation ----------------------------------------------------------------------------


@pytest.fixture
def crossvalidated(load_program, pairs_file, tmp_path):
    """Cross-validate two raters; returns the module, its config and the pairs."""

    def build(out="out", repeats=2, folds=3, raters=None):
        module = load_program("eval/crossvalidate.py")
        path = tmp_path / "pairs.parquet"
        config = module.Config(
            pairs=path if path.exists() else pairs_file(48, prompts=9),
            out=tmp_path / out,
            raters=raters or {"longer": {"kind": "longer"}, "features": dict(FAST)},
            folds=folds,
            repeats=repeats,
        )
        return module, config

    return build


def test_every_pair_is_judged_out_of_fold_once_per_repeat(crossvalidated, calls, trained):
    module, config = crossvalidated(repeats=3)
    module.main(config)
    folds = [pairs for _, fold, pairs in calls if fold is not None]
    assert len(trained) == len(folds) == 3 * 3
    for train, judged in zip(trained, folds, strict=True):
        assert not set(prompt_keys(train)) & set(prompt_keys(judged))
    rows = verdict_rows(config.out)
    ids = set(read_table(config.pairs, PAIRS)["pair_id"].to_pylist())
    times = Counter(row["pair_id"] for row in rows if row["rater"] == "features")
    assert times == dict.fromkeys(ids, 3)
    assert Counter(row["pair_id"] for row in rows if row["rater"] == "longer") == Counter(ids)
    assert {row["fold"] for row in rows if row["rater"] == "longer"} == {None}
    results = {row["fold"] for row in rows if row["rater"] == "features"}
    assert all(re.fullmatch(r"\d+/\d+", fold) for fold in results)
    assert results == {f"{repeat}/{fold}" for repeat in range(3) for fold in range(3)}
    # Within a repeat a prompt lies in one fold; other repeats deal anew.
    prompt_of = dict(zip(*pair_prompts(config.pairs), strict=True))
    folds_of = Counter(
        (prompt_of[row["pair_id"]], row["fold"]) for row in rows if row["rater"] == "features"
    )
    assert len(folds_of) == len(set(prompt_of.values())) * 3
    deals = [
        {prompt: fold[2:] for prompt, fold in folds_of if fold.startswith(f"{repeat}/")}
        for repeat in range(3)
    ]
    assert deals[0] != deals[1]
    assert not (config.out / "scratch").exists()


def test_connected_pairs_stay_in_one_fold(crossvalidated, trained, calls):
    module, config = crossvalidated(repeats=2)
    pairs = read_table(config.pairs, PAIRS)
    # Two texts of prompt p0-0 under one id, and a story that stands under two prompts.
    texts = pairs["prompt"].to_pylist()
    texts[0] = "Another text of the same prompt"
    stories = pairs["chosen_story_id"].to_pylist()
    stories[1] = stories[2]
    for name, values in (("prompt", texts), ("chosen_story_id", stories)):
        column = pa.array(values, pa.large_string())
        pairs = pairs.set_column(pairs.column_names.index(name), name, column)
    write_table(pairs, config.pairs)
    module.main(config)
    folds = [table for _, fold, table in calls if fold is not None]
    for train, judged in zip(trained, folds, strict=True):
        for names in (("prompt_id",), ("chosen_story_id", "rejected_story_id")):
            both = [{x for n in names for x in t[n].to_pylist()} for t in (train, judged)]
            assert not both[0] & both[1]


def pair_prompts(path):
    table = read_table(path, PAIRS)
    return table["pair_id"].to_pylist(), prompt_keys(table)


def test_finished_folds_are_not_repeated(crossvalidated, calls):
    module, config = crossvalidated("whole")
    module.main(config)
    calls.clear()
    _, killed = crossvalidated("killed")
    calls.stops["features", "1/0"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        module.main(killed)
    assert len(calls.take()) == 4  # longer and the three folds of the first repeat
    module.main(killed)
    assert calls.take() == [("features", "1/0"), ("features", "1/1"), ("features", "1/2")]
    assert verdict_rows(killed.out) == verdict_rows(config.out)


def test_a_rater_has_repeats_of_its_own(crossvalidated):
    raters = {
        "longer": {"kind": "longer"},
        "once": {**FAST, "repeats": 1},
        "often": dict(FAST),
    }
    module, config = crossvalidated(raters=raters)
    module.main(config)
    counts = Counter(row["rater"] for row in verdict_rows(config.out))
    assert counts == {"longer": 48, "once": 48, "often": 96}
    config.raters["once"]["repeats"] = 0
    with pytest.raises(ConfigError, match=r"raters\.once: repeats is 0"):
        module.main(config)


def test_training_pairs_are_balanced_in_length_in_every_fold(
    crossvalidated, trained, pair_table, tmp_path
):
    source = random.Random(5)
    rows = []
    for index in range(120):
        chosen, rejected = ("word " * source.randint(3, 90) for _ in range(2))
        sides = {"chosen": chosen, "rejected": rejected, "prompt_id": f"p{index % 9}"}
        rows.append({**sides, "chosen_story_id": f"c{index}", "rejected_story_id": f"r{index}"})
    wide = pair_table(rows)
    tilts = np.sign(length_differences(wide))
    longer, shorter = (np.flatnonzero(tilts == sign) for sign in (1, -1))
    count = min(len(longer), len(shorter))
    narrow = wide.take(pa.array(sorted([*longer[:count], *shorter[:count]])))
    write_table(narrow, tmp_path / "pairs.parquet")
    write_table(wide, tmp_path / "wider.parquet")
    for before_symmetry in (None, tmp_path / "wider.parquet"):
        module, config = crossvalidated(out=f"out {before_symmetry is None}")
        config.before_symmetry = before_symmetry
        module.main(config)
        tilts = [int(np.sign(length_differences(table)).sum()) for table in trained]
        assert tilts == [0] * 6
        judged = Counter(row["pair_id"] for row in verdict_rows(config.out) if row["fold"])
        every = narrow if before_symmetry is None else wide
        assert judged == dict.fromkeys(every["pair_id"].to_pylist(), 2)
        trained.clear()


def test_pairs_without_texts_are_left_out_and_counted(crossvalidated, tmp_path, capsys):
    module, config = crossvalidated(repeats=1, raters={"longer": {"kind": "longer"}})
    pairs = read_table(config.pairs, PAIRS)
    texts = ["", *pairs["chosen"].to_pylist()[1:]]
    index = pairs.schema.get_field_index("chosen")
    write_table(pairs.set_column(index, "chosen", pa.array(texts)), tmp_path / "pairs.parquet")
    module.main(config)
    assert "1 pairs left out: no text" in capsys.readouterr().out
    judged = {row["pair_id"] for row in verdict_rows(config.out)}
    assert judged == set(pairs["pair_id"].to_pylist()[1:])


def test_before_symmetry_is_judged_but_not_trained_on(crossvalidated, trained):
    module, config = crossvalidated(repeats=1)
    wide = read_table(config.pairs, PAIRS)
    narrow = config.pairs.with_name("narrow.parquet")
    write_table(wide.slice(0, 36), narrow)
    config.before_symmetry, config.pairs = config.pairs, narrow
    module.main(config)
    # Of three folds, each pair trains two models.
    seen = Counter(name for table in trained for name in table["pair_id"].to_pylist())
    assert seen == Counter(dict.fromkeys(wide["pair_id"].to_pylist()[:36], 2))
    judged = Counter(row["pair_id"] for row in verdict_rows(config.out) if row["fold"])
    assert judged == Counter(wide["pair_id"].to_pylist())
