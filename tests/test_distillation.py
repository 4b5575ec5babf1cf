"""Distillation: the teacher's probabilities come out of fold, and the student learns them."""

import importlib.metadata
from dataclasses import dataclass

import numpy as np
import pytest
import yaml

import litbench.raters
from litbench.errors import ConfigError
from litbench.models.distillation import rater_from_options, train_rater, with_soft_labels
from litbench.models.features import FeatureOptions, fit_features
from litbench.models.mixture import ScoreMixture, StackTraining, differences, fit_stack
from litbench.raters import RaterSpec, ScoreRater, check_options, parse_raters
from litbench.reading import read_table
from litbench.records import PAIRS, prompt_keys, write_table

SURFACE = {"kind": "features", "c": [0.1]}


@dataclass
class Memory(ScoreRater):
    """Is sure of the stories it was trained on, and says nothing of others."""

    name: str
    chosen: frozenset[str]
    kind: str = "memory"
    gives_probability = True

    def score(self, prompts, stories):
        del prompts
        return np.array([5.0 * (story in self.chosen) for story in stories])


@dataclass
class MemoryOptions:
    target: str = "label"
    fail: bool = False


TRAINED = []


def train_memory(name, options, pairs, folder, seed, where):
    del folder, seed
    if litbench.raters.build(MemoryOptions, options, where).fail:
        raise KeyboardInterrupt
    TRAINED.append((name, options, pairs))
    return Memory(name, frozenset(pairs["chosen"].to_pylist()))


@pytest.fixture
def memory_kind(monkeypatch):
    real = litbench.raters._entry_points
    values = {
        "litbench.raters": {"memory": f"{__name__}:train_memory"},
        "litbench.trainers": {"memory": f"{__name__}:train_memory"},
        "litbench.options": {"trainers.memory": f"{__name__}:MemoryOptions"},
    }
    monkeypatch.setattr(
        litbench.raters,
        "_entry_points",
        lambda group: (
            real(group)
            | {n: importlib.metadata.EntryPoint(n, v, group) for n, v in values[group].items()}
        ),
    )
    TRAINED.clear()
    return TRAINED


@pytest.fixture
def pairs(pair_table):
    rows = [
        {"prompt_id": f"p{place % 6}", "chosen": f"a, tale {place}", "rejected": f"a poem {place}"}
        for place in range(24)
    ]
    return pair_table(rows)


@pytest.mark.usefixtures("memory_kind")
def test_a_teacher_does_not_repeat_the_labels_it_was_told(pairs, tmp_path):
    labelled = with_soft_labels(pairs, RaterSpec("t", "memory"), tmp_path)
    assert labelled["p_chosen"].to_pylist() == [0.5] * 24
    half = with_soft_labels(pairs, RaterSpec("t", "memory"), tmp_path, share=0.5)
    assert half["p_chosen"].to_pylist() == [0.75] * 24
    assert half.drop_columns(["p_chosen"]).equals(labelled.drop_columns(["p_chosen"]))


def test_the_student_gets_the_teachers_probabilities_of_every_pair(pairs, memory_kind, tmp_path):
    options = {"teacher": SURFACE, "student": {"kind": "memory"}}
    train_rater("small", options, pairs, tmp_path, 0, "raters.small")
    ((name, given, table),) = memory_kind
    assert (name, given) == ("small", {"target": "column"})
    assert table["pair_id"].to_pylist() == pairs["pair_id"].to_pylist()
    found = np.array(table["p_chosen"].to_pylist())
    # Commas tell, and no fold's teacher is sure.
    assert ((found > 0.5) & (found < 1)).all()


def test_a_ready_teacher_must_not_know_the_prompts(pairs, tmp_path):
    fit_features(pairs, FeatureOptions(c=[0.1])).save(tmp_path / "model")
    teacher = RaterSpec("t", "features", {"path": str(tmp_path / "model")})
    with pytest.raises(ConfigError, match="comes trained on 6"):
        with_soft_labels(pairs, teacher, tmp_path)
    other = pairs.set_column(
        pairs.column_names.index("prompt"), "prompt", [[f"other {n % 6}" for n in range(24)]]
    )
    labelled = with_soft_labels(other, teacher, tmp_path)
    assert (np.array(labelled["p_chosen"].to_pylist()) > 0.5).all()
    again = with_soft_labels(labelled, teacher, tmp_path)
    assert again.column_names == labelled.column_names


def test_rewards_that_are_no_log_odds_are_no_probabilities(pairs, tmp_path):
    with pytest.raises(ConfigError, match=r"raters\.t: .*'longer' are no log-odds"):
        with_soft_labels(pairs, RaterSpec("t", "longer"), tmp_path)


@pytest.mark.usefixtures("memory_kind")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"teacher": SURFACE}, "'student' is missing"),
        ({"teacher": {"kind": "features", "x": 1}, "student": {"kind": "memory"}}, "'x'"),
        # Features cannot learn from probabilities.
        ({"teacher": SURFACE, "student": SURFACE}, "unknown key 'target'"),
        ({"teacher": SURFACE, "student": {"kind": "memory", "target": "label"}}, "leave the key"),
        ({"teacher": SURFACE, "student": {"kind": "memory"}, "share": 0}, "share is 0"),
    ],
)
def test_options_are_checked_before_any_work(options, message):
    (spec,) = parse_raters({"small": {"kind": "distilled", **options}})
    with pytest.raises(ConfigError, match=message):
        check_options(spec, "trainers")


def test_a_distilled_model_is_loaded_by_its_own_kind():
    with pytest.raises(ConfigError, match="student's kind"):
        rater_from_options("small", {"path": "x"}, "raters.small")


def test_a_teacher_of_a_killed_run_is_not_trained_again(pairs, memory_kind, tmp_path):
    options = {"teacher": {"kind": "memory"}, "student": {"kind": "memory", "fail": True}}
    with pytest.raises(KeyboardInterrupt):
        train_rater("small", options, pairs, tmp_path, 0, "raters.small")
    assert len(memory_kind) == 3
    options["student"]["fail"] = False
    train_rater("small", options, pairs, tmp_path, 0, "raters.small")
    assert len(memory_kind) == 4


def test_a_real_student_is_trained_and_lives_in_a_stack(pairs, tiny_model, tmp_path):
    pytest.importorskip("torch")
    student = {
        "kind": "reward",
        "backbone": str(tiny_model("bert")),
        "max_length": 32,
        "batch_size": 8,
        "precision": "fp32",
    }
    small = {"kind": "distilled", "teacher": SURFACE, "student": student, "folds": 2}
    stack = fit_stack(pairs, StackTraining({"small": small}, folds=2), tmp_path / "t")
    assert stack.training_prompts() == set(prompt_keys(pairs))
    stack.save(tmp_path / "saved")
    again = ScoreMixture.load(tmp_path / "saved", "stack")
    np.testing.assert_allclose(
        differences(again, pairs), differences(stack, pairs), rtol=0, atol=1e-5
    )


def test_the_program_writes_pairs_with_probabilities(pairs, program, tmp_path):
    write_table(pairs, tmp_path / "pairs.parquet")
    config = {
        "pairs": str(tmp_path / "pairs.parquet"),
        "out": str(tmp_path / "out"),
        "teacher": SURFACE,
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    arguments = ["data_prep/soft_labels.py", "--config", str(tmp_path / "config.yaml")]
    done = program(*arguments)
    assert done.returncode == 0, done.stderr
    table = read_table(tmp_path / "out" / "pairs.parquet", PAIRS)
    assert table.num_rows == 24
    assert all(0 < p < 1 for p in table["p_chosen"].to_pylist())
    assert "unchanged" in program(*arguments).stdout
