"""Stacks and ensembles: weights found out of fold, no side preferred, equal after reloading."""

import importlib.metadata
import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml

import litbench.raters
from litbench.errors import ConfigError, DataError, ModelError
from litbench.models.features import FeatureOptions, fit_features
from litbench.models.mixture import (
    ScoreMixture,
    StackTraining,
    differences,
    ensemble_from_options,
    fit_stack,
    stack_from_options,
    train_ensemble_rater,
)
from litbench.raters import ScoreRater, check_options, judge_pairs, parse_raters
from litbench.records import prompt_keys
from litbench.tables import write_table
from litbench.text import digest, prompt_key

SURFACE = {"kind": "features", "c": [0.1]}


@dataclass
class Known(ScoreRater):
    """Loves the chosen stories it was trained on and hates the rejected; tosses for the others."""

    name: str
    liked: frozenset[str]
    hated: frozenset[str]
    prompts: frozenset[str]
    seed: int
    scale: float = 1.0
    kind: str = "known"
    gives_probability = True

    def score(self, prompts, stories):
        del prompts
        toss = [int(digest(self.seed, s)[:8], 16) / 16**8 - 0.5 for s in stories]
        known = [9.0 * ((s in self.liked) - (s in self.hated)) for s in stories]
        return self.scale * (np.array(toss) + np.array(known))

    def training_prompts(self):
        return self.prompts


@dataclass
class KnownOptions:
    scale: float = 1.0
    fail_at: int = 0


CALLS = []


def train_known(name, options, pairs, folder, seed, where):
    ready = litbench.raters.build(KnownOptions, options, where)
    CALLS.append((name, set(prompt_keys(pairs)), seed, folder))
    if len(CALLS) == ready.fail_at:
        raise KeyboardInterrupt
    return Known(
        name, frozenset(pairs["chosen"].to_pylist()), frozenset(pairs["rejected"].to_pylist()),
        frozenset(prompt_keys(pairs)), seed, ready.scale,
    )  # fmt: skip


@pytest.fixture
def known_kind(monkeypatch):
    """Register the kind `known`; returns the calls of its trainer."""
    real = litbench.raters._entry_points
    values = {
        "litbench.raters": {"known": f"{__name__}:train_known"},
        "litbench.trainers": {"known": f"{__name__}:train_known"},
        "litbench.options": {"trainers.known": f"{__name__}:KnownOptions"},
    }

    def with_known(group):
        return real(group) | {
            name: importlib.metadata.EntryPoint(name, value, group)
            for name, value in values[group].items()
        }

    monkeypatch.setattr(litbench.raters, "_entry_points", with_known)
    CALLS.clear()
    return CALLS


@pytest.fixture
def liked(pair_table, invented):
    """Pairs of which readers liked commas, in three of four; stories differ in length by chance."""

    def build(n=120, prompts=12, seed=0, **columns):
        source = random.Random(seed)
        rows = []
        for place in range(n):
            texts = [invented(source, source.randint(30, 80)) for _ in range(2)]
            texts[0] = texts[0].replace(" ", ", ", 8)
            sides = texts if source.random() < 0.75 else texts[::-1]
            rows.append(
                {
                    "chosen": sides[0],
                    "rejected": sides[1],
                    "prompt_id": f"p{seed}-{place % prompts}",
                    "chosen_story_id": f"c{seed}-{place}",
                    "rejected_story_id": f"r{seed}-{place}",
                    **{name: values[place] for name, values in columns.items()},
                }
            )
        return pair_table(rows)

    return build


def weights(mixture):
    return mixture.notes()["weights"]


def agreement(rater, pairs):
    outcomes = judge_pairs(rater, pairs)["outcome"].to_pylist()
    return (outcomes.count("chosen") + outcomes.count("tie") / 2) / len(outcomes)


def stack_of(pairs, folder, members, **options):
    return fit_stack(pairs, StackTraining(members, **options), folder)


# Weights --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("known_kind")
def test_a_member_that_only_knows_its_training_pairs_gets_no_weight(liked, tmp_path):
    pairs = liked()
    stack = stack_of(pairs, tmp_path, {"features": SURFACE, "known": {"kind": "known"}})
    # On its own training pairs it is right every time.
    assert agreement(stack.members[1].rater, pairs) == 1
    assert abs(weights(stack)["known"]) < 0.4
    assert weights(stack)["features"] > 0.7
    assert agreement(stack, liked(seed=1)) > 0.65


def test_members_are_weighed_on_prompts_that_they_were_not_trained_on(liked, known_kind, tmp_path):
    pairs = liked()
    stack_of(pairs, tmp_path, {"known": {"kind": "known"}}, folds=4)
    everything = set(prompt_keys(pairs))
    trained = [prompts for _, prompts, _, _ in known_kind]
    assert len(trained) == 5
    assert trained[-1] == everything
    held_out = [everything - prompts for prompts in trained[:-1]]
    assert sorted(key for fold in held_out for key in fold) == sorted(everything)
    assert all(len(fold) == 3 for fold in held_out)
    assert len({folder for *_, folder in known_kind}) == 5


@pytest.mark.usefixtures("known_kind")
def test_units_are_those_of_new_stories_and_scale_does_not_matter(liked, tmp_path):
    pairs = liked()
    one = stack_of(pairs, tmp_path / "1", {"f": SURFACE, "k": {"kind": "known"}})
    large = {"kind": "known", "scale": 1e4}
    other = stack_of(pairs, tmp_path / "2", {"f": SURFACE, "k": large})
    # Differences of two tosses from -0.5 to 0.5; on known stories they would be about 18.
    assert one.members[1].unit == pytest.approx(np.sqrt(1 / 6), rel=0.2)
    assert weights(other) == pytest.approx(weights(one), abs=1e-3)
    new = liked(seed=1)
    np.testing.assert_allclose(differences(other, new), differences(one, new), atol=1e-6)


def test_a_stack_prefers_neither_side(liked, rename_sides, tmp_path):
    pairs = liked(n=60)
    members = {"features": SURFACE, "longer": {"kind": "longer"}}
    stack = stack_of(pairs, tmp_path / "a", members)
    renamed = stack_of(rename_sides(pairs), tmp_path / "b", members)
    new = liked(seed=2)
    np.testing.assert_allclose(differences(stack, new), -differences(renamed, new), atol=1e-5)
    swapped = rename_sides(new)
    assert agreement(stack, swapped) == pytest.approx(1 - agreement(stack, new), abs=1e-12)


def test_a_weight_of_two_counts_like_the_pair_twice(liked, tmp_path):
    members = {"longer": {"kind": "longer"}, "talk": {"kind": "talk"}}
    heavy = [2.0 if place < 20 else 1.0 for place in range(60)]
    by_weight = weights(stack_of(liked(60, weight=heavy), tmp_path, members))
    plain = liked(60)
    twice = weights(stack_of(pa.concat_tables([plain, plain.slice(0, 20)]), tmp_path, members))
    # The unit, which is of pairs and not of weights, differs a little.
    assert by_weight["longer"] == pytest.approx(twice["longer"], rel=0.1)
    assert by_weight["longer"] != pytest.approx(
        weights(stack_of(plain, tmp_path, members))["longer"], rel=0.1
    )


@pytest.mark.parametrize("weight", [-1.0, 0.0, float("nan"), float("inf")])
def test_weights_of_pairs_that_mean_nothing_are_refused(liked, tmp_path, weight):
    pairs = liked(20, weight=[weight] + [1.0] * 19)
    with pytest.raises(DataError, match="column weight"):
        stack_of(pairs, tmp_path, {"longer": {"kind": "longer"}})


def test_no_pairs_are_refused(liked, tmp_path):
    with pytest.raises(DataError, match="no pairs"):
        stack_of(liked(4).slice(0, 0), tmp_path, {"longer": {"kind": "longer"}})


# Members --------------------------------------------------------------------------------------


def test_a_member_that_comes_trained_on_the_same_prompts_is_refused(liked, tmp_path):
    pairs, other = liked(60), liked(60, seed=3)
    fit_features(pairs, FeatureOptions(c=[0.1])).save(tmp_path / "same")
    fit_features(other, FeatureOptions(c=[0.1])).save(tmp_path / "other")
    with pytest.raises(ConfigError, match="comes trained on 12 of the training prompts"):
        stack_of(pairs, tmp_path, {"f": {"kind": "features", "path": str(tmp_path / "same")}})
    ready = {"kind": "features", "path": str(tmp_path / "other")}
    stack = stack_of(pairs, tmp_path, {"ready": ready, "own": SURFACE})
    assert stack.training_prompts() == set(prompt_keys(pairs)) | set(prompt_keys(other))


def test_a_rater_without_rewards_is_no_member(liked, tmp_path):
    with pytest.raises(ConfigError, match=r"raters\.stack\.r: .*'random' gives no rewards"):
        stack_of(liked(20), tmp_path, {"r": {"kind": "random"}})


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("stack", {}, "none are given"),
        ("stack", {"members": {"f": {"kind": "features", "dorp": []}}}, "dorp.*'drop'"),
        ("stack", {"members": {"f": {"kind": "featurs"}}}, "'features'"),
        ("stack", {"members": {"f": SURFACE}, "c": 0}, "c is 0"),
        ("stack", {"members": {"f": SURFACE}, "fold": 2}, "'folds'"),
        ("ensemble", {}, "'each' is missing"),
        ("ensemble", {"each": SURFACE, "size": 1}, "size is 1"),
        ("ensemble", {"each": {"kind": "reward", "backbone": "b", "seed": 1}}, "seed is given"),
        ("ensemble", {"each": {"kind": "longer"}}, "nothing to train"),
        ("ensemble", {"each": {"kind": "features", "c": "x"}}, "key 'c"),
    ],
)
def test_options_are_checked_before_any_work(kind, options, message):
    (spec,) = parse_raters({"mix": {"kind": kind, **options}})
    with pytest.raises(ConfigError, match=message):
        check_options(spec, "trainers")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "path or by its members"),
        ({"path": "x", "members": {"l": {"kind": "longer"}}}, "path or by its members"),
        ({"members": {"l": {"kind": "longer", "x": 1}}}, "unknown key 'x'"),
    ],
)
def test_an_ensemble_of_ready_members_is_checked_too(options, message):
    (spec,) = parse_raters({"mix": {"kind": "ensemble", **options}})
    with pytest.raises(ConfigError, match=message):
        check_options(spec, "raters")


# Ensembles ------------------------------------------------------------------------------------


def test_every_member_of_an_ensemble_has_a_seed_of_its_own(liked, known_kind, tmp_path):
    options = {"each": {"kind": "known"}, "size": 3}
    pairs = liked(40)
    for seed in (0, 1):
        train_ensemble_rater("mix", options, pairs, tmp_path, seed, "raters.mix")
    assert [seed for _, _, seed, _ in known_kind] == [0, 1, 2, 3, 4, 5]
    assert len({folder for *_, folder in known_kind}) == 3


def test_an_ensemble_is_the_mean_in_units_of_its_members(liked, tmp_path):
    pairs = liked(60)
    write_table(pairs, tmp_path / "pairs.parquet")
    fit_features(liked(60, seed=4), FeatureOptions(c=[0.1])).save(tmp_path / "f")
    ready = {"f": {"kind": "features", "path": str(tmp_path / "f")}, "l": {"kind": "longer"}}
    plain = ensemble_from_options("mix", {"members": ready}, "raters.mix")
    alike = ensemble_from_options(
        "mix", {"members": ready, "unit_pairs": str(tmp_path / "pairs.parquet")}, "raters.mix"
    )
    surface, longer = (differences(member.rater, pairs) for member in plain.members)
    np.testing.assert_allclose(differences(plain, pairs), (surface + longer) / 2, atol=1e-9)
    units = [np.sqrt(np.mean(d**2)) for d in (surface, longer)]
    mean = (surface / units[0] + longer / units[1]) / 2 * np.mean(units)
    np.testing.assert_allclose(differences(alike, pairs), mean, atol=1e-9)
    # Words are no log-odds.
    assert not plain.gives_probability
    assert set(judge_pairs(plain, pairs)["p_chosen"].to_pylist()) == {None}


@pytest.mark.usefixtures("known_kind")
def test_like_members_keep_their_scale_and_their_probability(liked, tmp_path):
    options = {"each": {"kind": "known"}, "size": 4}
    pairs, new = liked(40), liked(40, seed=1)
    mixture = train_ensemble_rater("mix", options, pairs, tmp_path, 0, "raters.mix")
    mean = np.mean([differences(member.rater, new) for member in mixture.members], axis=0)
    np.testing.assert_allclose(differences(mixture, new), mean, rtol=0.05, atol=0.02)
    assert mixture.gives_probability
    assert mixture.training_prompts() == set(prompt_keys(pairs))


# On disk --------------------------------------------------------------------------------------


@pytest.fixture
def saved(liked, tmp_path):
    def build(kind):
        pairs = liked(60)
        # A dot, a slash and a space: names of models have them.
        members = {"owner/model 2.5": SURFACE, "longer": {"kind": "longer"}}
        if kind == "stack":
            mixture = stack_of(pairs, tmp_path / "training", members)
        else:
            options = {"each": SURFACE, "size": 2}
            mixture = train_ensemble_rater("ensemble", options, pairs, tmp_path / "t", 0, "r")
        mixture.save(tmp_path / "saved")
        return mixture, tmp_path / "saved"

    return build


@pytest.mark.parametrize("kind", ["stack", "ensemble"])
def test_save_and_load_keep_every_score_wherever_the_folder_goes(saved, liked, tmp_path, kind):
    mixture, folder = saved(kind)
    shutil.move(folder, tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "training", ignore_errors=True)
    load = {"stack": stack_from_options, "ensemble": ensemble_from_options}[kind]
    again = load("mine", {"path": str(tmp_path / "elsewhere")}, "raters.mine")
    pairs = liked(seed=1)
    prompts, stories = pairs["prompt"].to_pylist(), pairs["chosen"].to_pylist()
    assert again.score(prompts, stories).tolist() == mixture.score(prompts, stories).tolist()
    assert again.training_prompts() == mixture.training_prompts() != frozenset()
    assert again.notes() == mixture.notes()
    assert again.gives_probability == mixture.gives_probability
    assert again.training_record == json.loads(json.dumps(mixture.training_record))
    assert (again.name, again.kind) == ("mine", kind)
    again.save(tmp_path / "copy")
    assert ScoreMixture.load(tmp_path / "copy", kind).notes() == mixture.notes()


def test_a_reward_does_not_depend_on_its_neighbours(saved, liked):
    mixture, _ = saved("stack")
    pairs = liked(30, seed=1)
    prompts, stories = pairs["prompt"].to_pylist(), pairs["chosen"].to_pylist()
    alone = [mixture.score([p], [s])[0] for p, s in zip(prompts, stories, strict=True)]
    assert mixture.score(prompts, stories).tolist() == alone


def test_a_stack_of_ensembles_is_a_stack(liked, tmp_path):
    members = {"pair": {"kind": "ensemble", "each": SURFACE, "size": 2}, "l": {"kind": "longer"}}
    stack = stack_of(liked(40), tmp_path, members)
    stack.save(tmp_path / "saved")
    again = ScoreMixture.load(tmp_path / "saved", "stack")
    new = liked(20, seed=1)
    assert differences(again, new).tolist() == differences(stack, new).tolist()


def test_a_folder_of_the_other_kind_or_a_broken_one_is_refused(saved, tmp_path):
    _, folder = saved("stack")
    with pytest.raises(ModelError, match="as the kind ensemble"):
        ScoreMixture.load(folder, "ensemble")
    with pytest.raises(ModelError, match=r"mixture\.json"):
        ScoreMixture.load(tmp_path / "nothing", "stack")
    (folder / "mixture.json").write_text("{")
    with pytest.raises(ModelError, match=r"mixture\.json"):
        ScoreMixture.load(folder, "stack")


def test_a_stack_of_reward_models_is_saved_with_its_weights(tiny_model, liked, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pairs = liked(16, prompts=4)
    members = {
        "features": SURFACE,
        "tiny": {
            "kind": "reward",
            "backbone": str(tiny_model("bert")),
            "max_length": 48,
            "batch_size": 8,
            "precision": "fp32",
        },
    }
    stack = stack_of(pairs, tmp_path / "training", members, folds=2)
    stack.save(tmp_path / "saved")
    again = ScoreMixture.load(tmp_path / "saved", "stack")
    new = liked(10, seed=1)
    np.testing.assert_allclose(differences(again, new), differences(stack, new), rtol=0, atol=1e-5)
    assert {prompt_key(p) for p in pairs["prompt"].to_pylist()} == again.training_prompts()


@dataclass
class Odd(Known):
    """A model folder that must be told which way its rewards point."""

    kind: str = "odd"

    def save(self, folder):
        folder.mkdir(parents=True)
        (folder / "odd").touch()


@dataclass
class OddOptions:
    path: str
    sign: int = 0


def odd_from_options(name, options, where):
    ready = litbench.raters.build(OddOptions, options, where)
    assert (Path(ready.path) / "odd").exists()
    if not ready.sign:
        raise ConfigError("say which way")
    return Odd(name, frozenset(), frozenset(), frozenset(), 0, float(ready.sign))


@pytest.mark.usefixtures("known_kind")
def test_a_ready_member_is_read_as_before_when_its_mixture_is_loaded(liked, monkeypatch, tmp_path):
    with_known = litbench.raters._entry_points
    odd = importlib.metadata.EntryPoint("odd", f"{__name__}:odd_from_options", "litbench.raters")
    monkeypatch.setattr(
        litbench.raters,
        "_entry_points",
        lambda group: with_known(group) | ({"odd": odd} if group == "litbench.raters" else {}),
    )
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/odd").touch()
    members = {"odd": {"kind": "odd", "path": str(tmp_path / "odd"), "sign": -1}, "own": SURFACE}
    stack = stack_of(liked(40), tmp_path / "t", members)
    stack.save(tmp_path / "saved")
    shutil.rmtree(tmp_path / "odd")
    again = ScoreMixture.load(tmp_path / "saved", "stack")
    again.save(tmp_path / "twice")
    twice = ScoreMixture.load(tmp_path / "twice", "stack")
    new = liked(20, seed=1)
    for other in (again, twice):
        assert differences(other, new).tolist() == differences(stack, new).tolist()
    entries = json.loads((tmp_path / "saved/mixture.json").read_text())["members"]
    assert [entry["options"] for entry in entries] == [{"sign": -1}, {}]


def test_a_model_with_several_outputs_and_a_turned_sign_survives_saving(
    tiny_model, liked, tmp_path
):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    path = str(tiny_model("bert", num_labels=3))
    options = {"label": 1, "reverse": True, "probability": False, "max_length": 48}
    members = {"foreign": {"kind": "reward", "path": path, **options}}
    mixture = ensemble_from_options("mix", {"members": members}, "raters.mix")
    mixture.save(tmp_path / "saved")
    again = ScoreMixture.load(tmp_path / "saved", "ensemble")
    new = liked(6)
    np.testing.assert_allclose(differences(again, new), differences(mixture, new), atol=1e-5)
    assert again.gives_probability is mixture.gives_probability is False


def test_the_mixtures_own_prompts_survive_saving(liked, tmp_path):
    pairs = liked(20)
    stack_of(pairs, tmp_path / "t", {"longer": {"kind": "longer"}}).save(tmp_path / "saved")
    again = ScoreMixture.load(tmp_path / "saved", "stack")
    # No member was trained: the weights alone know these prompts.
    assert again.training_prompts() == set(prompt_keys(pairs))


# Few prompts and members that come trained -----------------------------------------------------


def test_there_are_no_more_folds_than_prompts_and_the_record_says_so(liked, known_kind, tmp_path):
    stack = stack_of(liked(12, prompts=2), tmp_path, {"known": {"kind": "known"}}, folds=5)
    assert len(known_kind) == 3
    assert stack.training_record["folds"] == 2
    with pytest.raises(ConfigError, match=r"raters\.stack is trained .* of one prompt"):
        stack_of(liked(12, prompts=1), tmp_path / "one", {"known": {"kind": "known"}})


@pytest.mark.usefixtures("known_kind")
def test_a_member_trained_here_on_one_that_knows_the_held_out_prompts_is_refused(
    liked, monkeypatch, tmp_path
):
    pairs = liked(24)
    real = Known.training_prompts
    # As a backbone that was trained on all of them before.
    monkeypatch.setattr(
        Known, "training_prompts", lambda self: real(self) | set(prompt_keys(pairs))
    )
    with pytest.raises(ConfigError, match=r"raters\.stack\.known comes trained on 4"):
        stack_of(pairs, tmp_path, {"known": {"kind": "known"}})


def test_an_ensemble_given_by_its_members_is_ready(liked, tmp_path):
    fit_features(liked(60, seed=4), FeatureOptions(c=[0.1])).save(tmp_path / "f")
    members = {"f": {"kind": "features", "path": str(tmp_path / "f")}}
    entry = {"kind": "ensemble", "members": members}
    (spec,) = parse_raters({"mix": entry})
    assert litbench.raters.load_trainer(spec) is None
    (trained,) = parse_raters({"mix": {"kind": "ensemble", "each": SURFACE}})
    assert litbench.raters.load_trainer(trained) is not None
    stack = stack_of(liked(20), tmp_path / "t", {"mix": entry})
    assert stack.training_prompts() == {
        *prompt_keys(liked(20)), *prompt_keys(liked(60, seed=4))
    }  # fmt: skip
    stack.save(tmp_path / "saved")
    again = ScoreMixture.load(tmp_path / "saved", "stack")
    new = liked(6, seed=1)
    assert differences(again, new).tolist() == differences(stack, new).tolist()


# Kills ----------------------------------------------------------------------------------------


def test_folds_that_were_judged_before_a_kill_are_not_trained_again(liked, known_kind, tmp_path):
    pairs = liked()
    whole = stack_of(pairs, tmp_path / "whole", {"known": {"kind": "known"}})
    known_kind.clear()
    with pytest.raises(KeyboardInterrupt):
        stack_of(pairs, tmp_path / "killed", {"known": {"kind": "known", "fail_at": 3}})
    assert len(known_kind) == 3
    again = stack_of(pairs, tmp_path / "killed", {"known": {"kind": "known"}})
    assert len(known_kind) == 5
    assert weights(again) == weights(whole)


# The program ----------------------------------------------------------------------------------


def test_the_program_writes_a_stack_that_loads(liked, program, tmp_path):
    write_table(liked(40), tmp_path / "pairs.parquet")
    config = {
        "pairs": str(tmp_path / "pairs.parquet"),
        "out": str(tmp_path / "out"),
        "members": {"features": SURFACE, "longer": {"kind": "longer"}},
    }
    (tmp_path / "stack.yaml").write_text(yaml.safe_dump(config))
    arguments = ["train/stack.py", "--config", str(tmp_path / "stack.yaml")]
    done = program(*arguments)
    assert done.returncode == 0, done.stderr
    assert "features" in done.stdout
    stack = ScoreMixture.load(tmp_path / "out" / "model", "stack")
    counts = json.loads((tmp_path / "out" / "manifest.json").read_text())["counts"]
    assert counts["weights"] == weights(stack)
    assert not list((tmp_path / "out").glob("training-*"))
    assert "unchanged" in program(*arguments).stdout


def test_a_stack_of_a_member_that_was_trained_again_is_made_anew(liked, load_program, tmp_path):
    module = load_program("train/stack.py")
    write_table(liked(30), tmp_path / "pairs.parquet")
    fit_features(liked(40, seed=3), FeatureOptions(c=[0.1])).save(tmp_path / "ready")
    config = module.Config(
        pairs=tmp_path / "pairs.parquet",
        out=tmp_path / "out",
        members={"ready": {"kind": "features", "path": str(tmp_path / "ready")}},
    )
    module.main(config)
    first = ScoreMixture.load(tmp_path / "out/model", "stack").training_prompts()
    fit_features(liked(40, seed=5), FeatureOptions(c=[0.1])).save(tmp_path / "ready")
    module.main(config)
    assert ScoreMixture.load(tmp_path / "out/model", "stack").training_prompts() != first
