"""The evaluation and feature programs: no leaks, parts reused, honest folds, kills survived."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from litbench.errors import ConfigError, LitBenchError
from litbench.evaluation import named_models
from litbench.raters import RaterSpec
from litbench.records import PAIRS, VERDICTS, prompt_keys
from litbench.tables import read_table, write_table

ROOT = Path(__file__).resolve().parent.parent
FAST = {"kind": "features", "c": [0.1]}


@pytest.fixture
def pairs_file(pair_table, invented, tmp_path):
    def write(n, prompts=6, name="pairs.parquet", first=0):
        source = random.Random(first)
        rows = [
            {
                "chosen": invented(source, source.randint(20, 60)),
                "rejected": invented(source, source.randint(20, 60)),
                "prompt_id": f"p{first}-{place % prompts}",
                "chosen_story_id": f"c{first}-{place}",
                "rejected_story_id": f"r{first}-{place}",
            }
            for place in range(n)
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
def watched(load_program, monkeypatch):
    """A program whose calls of judge_pairs are noted as (rater's name, fold)."""

    def load(name):
        module = load_program(name)
        calls = []
        judge = module.judge_pairs

        def noting(rater, pairs, fold=None):
            calls.append((rater.name, fold))
            return judge(rater, pairs, fold=fold)

        monkeypatch.setattr(module, "judge_pairs", noting)
        return module, calls

    return load


def verdict_rows(folder):
    table = read_table(folder / "verdicts.parquet", VERDICTS)
    return table.drop_columns(["seconds"]).to_pylist()


# Fitting the feature model -------------------------------------------------------------------


def test_fitting_writes_a_model_and_a_second_run_changes_nothing(program, pairs_file, tmp_path):
    pairs = pairs_file(60)
    given = ("train/features.py", "--pairs", pairs, "--out", tmp_path / "run")
    done = program(*given)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "run/model/features.json").read_text())
    assert len(content["training_prompts"]) == 6
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["counts"]["pairs"] == 60
    assert "unchanged" in program(*given).stdout


# Benchmark -----------------------------------------------------------------------------------


def test_a_model_is_refused_on_its_training_prompts_and_flagged_when_told_to(
    load_program, pairs_file, model_folder, tmp_path
):
    benchmark = load_program("eval/benchmark.py")
    pairs = pairs_file(40)
    raters = {
        "longer": {"kind": "longer"},
        "fitted": {"kind": "features", "path": str(model_folder(pairs))},
    }
    config = benchmark.Config(pairs=pairs, out=tmp_path / "out", raters=raters)
    with pytest.raises(ConfigError, match="fitted was trained on 6 of the prompts"):
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


def test_what_a_killed_benchmark_had_judged_is_not_judged_again(watched, pairs_file, tmp_path):
    benchmark, calls = watched("eval/benchmark.py")
    raters = {"longer": {"kind": "longer"}, "coin": {"kind": "random"}}
    config = benchmark.Config(pairs=pairs_file(30), out=tmp_path / "out", raters=raters)
    benchmark.main(config)
    assert calls == [("longer", None), ("coin", None)]
    before = verdict_rows(tmp_path / "out")
    benchmark.main(config)
    for name in ("manifest.json", "verdicts.parquet", "leaderboard.json"):
        (tmp_path / "out" / name).unlink()
    benchmark.main(config)
    assert len(calls) == 2
    assert verdict_rows(tmp_path / "out") == before
    config.raters = {**raters, "shorter": {"kind": "shorter"}}
    benchmark.main(config)
    assert calls[2:] == [("shorter", None)]
    # A rater with another option is another rater, and another file of pairs another benchmark.
    config.raters = {**raters, "coin": {"kind": "random", "seed": 1}}
    benchmark.main(config)
    assert calls[3:] == [("coin", None)]
    config.pairs = pairs_file(31)
    benchmark.main(config)
    assert calls[4:] == [("longer", None), ("coin", None)]


def test_a_kill_between_two_raters_costs_only_the_second(
    watched, pairs_file, tmp_path, monkeypatch
):
    benchmark, calls = watched("eval/benchmark.py")
    raters = {"longer": {"kind": "longer"}, "coin": {"kind": "random"}}
    config = benchmark.Config(pairs=pairs_file(30), out=tmp_path / "out", raters=raters)
    noting = benchmark.judge_pairs

    def dying(rater, pairs, fold=None):
        if rater.name == "coin":
            raise KeyboardInterrupt
        return noting(rater, pairs, fold)

    with monkeypatch.context() as patch:
        patch.setattr(benchmark, "judge_pairs", dying)
        with pytest.raises(KeyboardInterrupt):
            benchmark.main(config)
    benchmark.main(config)
    assert calls == [("longer", None), ("coin", None)]


def test_a_retrained_model_at_the_same_path_is_judged_anew(
    watched, pairs_file, model_folder, tmp_path
):
    benchmark, calls = watched("eval/benchmark.py")
    folder = model_folder(pairs_file(40, first=1, name="train.parquet"))
    raters = {"longer": {"kind": "longer"}, "fitted": {"kind": "features", "path": str(folder)}}
    config = benchmark.Config(pairs=pairs_file(20), out=tmp_path / "out", raters=raters)
    benchmark.main(config)
    model_folder(pairs_file(50, first=2, name="train.parquet"))
    benchmark.main(config)
    assert calls == [("longer", None), ("fitted", None), ("fitted", None)]


@pytest.mark.parametrize("name", ["eval/benchmark.py", "eval/crossvalidate.py"])
def test_a_mixture_is_judged_anew_when_a_member_or_its_units_change(
    watched, pairs_file, model_folder, tmp_path, name
):
    module, calls = watched(name)
    folder = model_folder(pairs_file(40, first=1, name="train.parquet"))
    units = pairs_file(20, first=3, name="units.parquet")
    members = {"f": {"kind": "features", "path": str(folder)}, "l": {"kind": "longer"}}
    raters = {
        "longer": {"kind": "longer"},
        "fitted": {"kind": "features", "path": str(folder)},
        "mix": {"kind": "ensemble", "members": members, "unit_pairs": str(units)},
    }
    config = module.Config(pairs=pairs_file(20), out=tmp_path / "out", raters=raters)

    def judged():
        calls.clear()
        module.main(config)
        return [name for name, _ in calls]

    assert judged() == ["longer", "fitted", "mix"]
    assert judged() == []
    model_folder(pairs_file(50, first=2, name="train.parquet"))
    assert judged() == ["fitted", "mix"]
    pairs_file(30, first=4, name="units.parquet")
    assert judged() == ["mix"]


@pytest.mark.parametrize("name", ["eval/benchmark.py", "eval/crossvalidate.py"])
def test_an_unknown_reference_is_refused_before_anything_is_judged(
    watched, pairs_file, tmp_path, name
):
    module, calls = watched(name)
    config = module.Config(
        pairs=pairs_file(20), out=tmp_path, raters={"coin": {"kind": "random"}}, reference="cion"
    )
    with pytest.raises(ConfigError, match="did you mean 'coin'"):
        module.main(config)
    assert calls == []


def test_the_program_reports_errors_in_one_line(program, pairs_file, tmp_path):
    given = ("eval/benchmark.py", "--pairs", pairs_file(10), "--out", tmp_path / "out")
    done = program(*given, "--raters.longer.kind", "longr")
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


def test_trained_raters_judge_every_pair_once_per_repeat_and_never_their_training(
    crossvalidated, monkeypatch
):
    module, config = crossvalidated(repeats=3)
    trained, leaks = [], []
    load, judge = module.checked_trainer, module.judge_pairs

    def watching(spec):
        trainer = load(spec)
        if trainer is None:
            return None

        def train(name, options, pairs, *rest):
            trained.append(set(prompt_keys(pairs)))
            return trainer(name, options, pairs, *rest)

        return train

    def checking(rater, pairs, fold=None):
        if fold is not None:
            leaks.append(trained[-1] & set(prompt_keys(pairs)))
        return judge(rater, pairs, fold=fold)

    monkeypatch.setattr(module, "checked_trainer", watching)
    monkeypatch.setattr(module, "judge_pairs", checking)
    module.main(config)
    assert len(trained) == 3 * 3
    assert not any(leaks)
    rows = verdict_rows(config.out)
    ids = set(read_table(config.pairs, PAIRS)["pair_id"].to_pylist())
    times = Counter(row["pair_id"] for row in rows if row["rater"] == "features")
    assert times == dict.fromkeys(ids, 3)
    assert Counter(row["pair_id"] for row in rows if row["rater"] == "longer") == Counter(ids)
    assert {row["fold"] for row in rows if row["rater"] == "longer"} == {None}
    found = {row["fold"] for row in rows if row["rater"] == "features"}
    assert all(re.fullmatch(r"\d+/\d+", fold) for fold in found)
    assert found == {f"{repeat}/{fold}" for repeat in range(3) for fold in range(3)}
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


def pair_prompts(path):
    table = read_table(path, PAIRS)
    return table["pair_id"].to_pylist(), prompt_keys(table)


@pytest.fixture
def by_authors(crossvalidated):
    """Cross-validate pairs whose sides have authors, such as w0."""

    def build(authors, groups, side="chosen"):
        module, config = crossvalidated(repeats=2)
        pairs = read_table(config.pairs, PAIRS)
        for name, shift in (("chosen_author", 0), ("rejected_author", 3)):
            found = [f"w{(place + shift) % authors}" for place in range(pairs.num_rows)]
            if side is None:
                found[0] = None
            column = pa.array(found, pa.large_string())
            pairs = pairs.set_column(pairs.column_names.index(name), name, column)
        write_table(pairs, config.pairs)
        config.author_groups = groups
        return module, config, pairs

    return build


def test_author_groups_train_on_no_author_of_the_pairs_judged(by_authors, monkeypatch):
    module, config, pairs = by_authors(authors=8, groups=4)
    trained, overlaps, sizes = [], [], []
    load, judge = module.checked_trainer, module.judge_pairs

    def authors(table):
        return {*table["chosen_author"].to_pylist(), *table["rejected_author"].to_pylist()}

    def watching(spec):
        trainer = load(spec)
        if trainer is None:
            return None

        def train(name, options, table, *rest):
            trained.append((authors(table), set(prompt_keys(table))))
            return trainer(name, options, table, *rest)

        return train

    def checking(rater, table, fold=None):
        if fold is not None:
            of, prompts = trained[-1]
            overlaps.append((of & authors(table), prompts & set(prompt_keys(table))))
            sizes.append(table.num_rows)
        return judge(rater, table, fold=fold)

    monkeypatch.setattr(module, "checked_trainer", watching)
    monkeypatch.setattr(module, "judge_pairs", checking)
    module.main(config)
    assert not any(of or prompts for of, prompts in overlaps)
    assert sum(sizes) == 2 * pairs.num_rows
    rows = [row for row in verdict_rows(config.out) if row["rater"] == "features"]
    assert Counter(row["pair_id"] for row in rows) == dict.fromkeys(pairs["pair_id"].to_pylist(), 2)
    assert all(re.fullmatch(r"[01]/[0-2]-[0-3]-[0-3]", row["fold"]) for row in rows)
    # The report on the spread over repeats reads them.
    assert {int(row["fold"].split("/")[0]) for row in rows} == {0, 1}


@pytest.mark.parametrize(
    ("authors", "groups", "side", "message"),
    [
        (8, 2, "chosen", "author_groups is 2: give at least 3"),
        (4, 5, "chosen", "has 4 authors"),
        (8, 4, None, "1 of 48 pairs lack an author"),
    ],
)
def test_authors_that_cannot_be_held_out_are_refused(by_authors, authors, groups, side, message):
    module, config, _ = by_authors(authors, groups, side)
    with pytest.raises(LitBenchError, match=message):
        module.main(config)


def test_other_author_groups_are_other_folds(by_authors, monkeypatch):
    module, config, _ = by_authors(authors=24, groups=5)
    judge, calls = module.judge_pairs, []
    monkeypatch.setattr(
        module,
        "judge_pairs",
        lambda rater, pairs, fold=None: (
            calls.append((rater.name, fold)), judge(rater, pairs, fold=fold)
        )[1],
    )  # fmt: skip
    module.main(config)
    # Parts of the same names hold other pairs.
    config.author_groups = 4
    calls.clear()
    module.main(config)
    folds = {row["fold"] for row in verdict_rows(config.out) if row["rater"] == "features"}
    assert {fold for name, fold in calls if name == "features"} == folds
    assert [name for name, _ in calls].count("longer") == 0


def test_groups_that_judge_nothing_are_left_out_and_an_evaluation_goes_on(by_authors, monkeypatch):
    module, config, pairs = by_authors(authors=24, groups=8)
    judge, calls = module.judge_pairs, []

    def judging(rater, table, fold=None):
        calls.append((rater.name, table.num_rows))
        if len(calls) == 50:
            raise KeyboardInterrupt
        return judge(rater, table, fold=fold)

    monkeypatch.setattr(module, "judge_pairs", judging)
    with pytest.raises(KeyboardInterrupt):
        module.main(config)
    module.main(config)
    assert all(count for _, count in calls)
    # Of 2 repeats, 3 folds and 36 groups; one of them was broken off.
    assert len(calls) < 2 * 3 * 36
    rows = [row for row in verdict_rows(config.out) if row["rater"] == "features"]
    assert Counter(row["pair_id"] for row in rows) == dict.fromkeys(pairs["pair_id"].to_pylist(), 2)


def test_a_fold_without_pairs_to_learn_from_is_found_before_any_work(by_authors, monkeypatch):
    module, config, pairs = by_authors(authors=8, groups=4)
    # Every pair has an author of each group but one, so that nobody is left to teach.
    monkeypatch.setattr(
        module, "groups_of_authors", lambda pairs, *_: np.array([[0, 1]] * pairs.num_rows)
    )
    monkeypatch.setattr(module, "judge_pairs", lambda *_, **__: pytest.fail("judged"))
    with pytest.raises(
        ConfigError, match=r"raters\.features: in fold 0 of repeat 0, groups of authors \(0, 1\), 0"
    ):
        module.main(config)
    assert pairs.num_rows == 48


def test_members_models_are_inputs(tmp_path):
    member = {"kind": "features", "path": str(tmp_path)}
    spec = RaterSpec("mix", "ensemble", {"members": {"one": member, "two": {"kind": "longer"}}})
    assert named_models([spec]) == {"raters.mix.members.one": str(tmp_path)}


def test_the_same_config_gives_the_same_verdicts_twice(crossvalidated):
    module, config = crossvalidated("one")
    module.main(config)
    _, other = crossvalidated("two")
    module.main(other)
    assert verdict_rows(config.out) == verdict_rows(other.out)
    _, reseeded = crossvalidated("three")
    reseeded.seed = 1
    module.main(reseeded)
    assert verdict_rows(reseeded.out) != verdict_rows(config.out)


def test_folds_done_before_a_kill_are_not_done_again(crossvalidated, watched, monkeypatch):
    module, config = crossvalidated("whole")
    module.main(config)
    watched_module, calls = watched("eval/crossvalidate.py")
    _, killed = crossvalidated("killed")
    noting = watched_module.judge_pairs

    def dying(rater, pairs, fold=None):
        if fold == "1/0":
            raise KeyboardInterrupt
        return noting(rater, pairs, fold)

    with monkeypatch.context() as patch:
        patch.setattr(watched_module, "judge_pairs", dying)
        with pytest.raises(KeyboardInterrupt):
            watched_module.main(killed)
    assert len(calls) == 4  # longer and the three folds of the first repeat
    watched_module.main(killed)
    assert calls[4:] == [("features", "1/0"), ("features", "1/1"), ("features", "1/2")]
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


def test_a_finished_model_is_refused_on_its_training_prompts_there_too(
    crossvalidated, model_folder, pairs_file
):
    pairs = pairs_file(48, prompts=9)
    raters = {
        "longer": {"kind": "longer"},
        "fitted": {"kind": "features", "path": str(model_folder(pairs))},
    }
    module, config = crossvalidated(raters=raters)
    with pytest.raises(ConfigError, match="fitted was trained on 9"):
        module.main(config)


def test_pairs_before_symmetry_are_judged_but_not_trained_on(crossvalidated, monkeypatch):
    module, config = crossvalidated(repeats=1)
    wide = read_table(config.pairs, PAIRS)
    narrow = config.pairs.with_name("narrow.parquet")
    write_table(wide.slice(0, 36), narrow)
    config.before_symmetry, config.pairs = config.pairs, narrow
    trained = Counter()
    load = module.checked_trainer

    def watching(spec):
        trainer = load(spec)
        return trainer and (
            lambda name, options, pairs, *rest: (
                trained.update(pairs["pair_id"].to_pylist()),
                trainer(name, options, pairs, *rest),
            )[1]
        )

    monkeypatch.setattr(module, "checked_trainer", watching)
    module.main(config)
    # Of three folds, each pair trains two models.
    assert trained == Counter(dict.fromkeys(wide["pair_id"].to_pylist()[:36], 2))
    judged = Counter(row["pair_id"] for row in verdict_rows(config.out) if row["fold"])
    assert judged == Counter(wide["pair_id"].to_pylist())


def test_a_reward_model_is_trained_inside_the_folds(crossvalidated, tiny_model):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    tiny = {
        "kind": "reward",
        "backbone": str(tiny_model("bert")),
        "max_length": 64,
        "batch_size": 16,
        "precision": "fp32",
    }
    raters = {"longer": {"kind": "longer"}, "tiny": tiny}
    module, config = crossvalidated(raters=raters, repeats=1, folds=2)
    module.main(config)
    rows = [row for row in verdict_rows(config.out) if row["rater"] == "tiny"]
    assert len(rows) == 48
    assert all(row["reward_chosen"] is not None for row in rows)
    assert not (config.out / "scratch").exists()


@pytest.mark.long
def test_a_cross_validation_killed_half_way_gives_the_same_verdicts(program, pairs_file, tmp_path):
    pairs = pairs_file(120, prompts=12)

    def given(out):
        return [
            *("--pairs", str(pairs), "--out", str(tmp_path / out), "--repeats", "8"),
            *("--raters.longer.kind", "longer", "--raters.features.kind", "features"),
        ]

    assert program("eval/crossvalidate.py", *given("whole")).returncode == 0
    running = subprocess.Popen(
        [sys.executable, str(ROOT / "eval/crossvalidate.py"), *given("killed")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 120
    while len(list((tmp_path / "killed/parts").glob("features*.parquet"))) < 15:
        assert time.monotonic() < until
        assert running.poll() is None
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not (tmp_path / "killed/verdicts.parquet").exists()
    done = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "killed/parts").glob("*.*t")}
    assert program("eval/crossvalidate.py", *given("killed")).returncode == 0
    assert all((tmp_path / "killed/parts" / n).stat().st_mtime_ns == t for n, t in done.items())
    assert verdict_rows(tmp_path / "killed") == verdict_rows(tmp_path / "whole")


@pytest.mark.parametrize("name", ["eval/crossvalidate.py", "eval/benchmark.py"])
def test_a_typo_in_the_last_rater_is_found_before_the_first_one_runs(
    name, load_program, pairs_file, tmp_path
):
    module = load_program(name)
    trained = {"path": tmp_path} if name == "eval/benchmark.py" else {}
    raters = {"longer": {"kind": "longer"}, "last": {**FAST, **trained, "fold": 3}}
    if trained:
        del raters["last"]["c"]
    with pytest.raises(ConfigError, match=r"raters\.last: unknown key 'fold'"):
        module.main(module.Config(pairs=pairs_file(12), out=tmp_path / "out", raters=raters))
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_an_unchanged_evaluation_prints_its_leaderboard_again(
    load_program, pairs_file, tmp_path, capsys
):
    module = load_program("eval/benchmark.py")
    config = module.Config(
        pairs=pairs_file(12), out=tmp_path / "out", raters={"longer": {"kind": "longer"}}
    )
    module.main(config)
    first = capsys.readouterr().out
    module.main(config)
    again = capsys.readouterr().out
    assert again.startswith("unchanged:")
    assert again.endswith(first)
    assert "longer" in first
