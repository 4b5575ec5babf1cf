"""Distillation: the teacher's probabilities come out of fold, and the student learns them."""

import importlib.metadata
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml

import litbench.raters
from litbench.errors import ConfigError
from litbench.models.distillation import rater_from_options, train_rater, with_soft_labels
from litbench.models.features import FeatureOptions, fit_features
from litbench.models.mixture import ScoreMixture, StackTraining, differences, fit_stack
from litbench.raters import (
    LengthRater,
    RaterSpec,
    ScoreRater,
    check_options,
    load_trainer,
    parse_raters,
)
from litbench.records import PAIRS, prompt_keys
from litbench.tables import read_table, write_table

SURFACE = {"kind": "features", "c": [0.1]}


@dataclass
class Memory(ScoreRater):
    """Is sure of the stories it was trained on, and says nothing of others."""

    name: str
    chosen: frozenset[str]
    prompts: frozenset[str]
    kind: str = "memory"
    gives_probability = True

    def training_prompts(self):
        return self.prompts

    def score(self, prompts, stories):
        del prompts
        return np.array([5.0 * (story in self.chosen) for story in stories])


@dataclass
class MemoryOptions:
    target: str = "label"
    fail: bool = False


TRAINED = []


def train_memory(name, options, pairs, folder, seed, where):
    del folder
    if litbench.raters.build(MemoryOptions, options, where).fail:
        raise KeyboardInterrupt
    TRAINED.append((name, options, pairs, seed))
    return Memory(name, frozenset(pairs["chosen"].to_pylist()), frozenset(prompt_keys(pairs)))


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
    labelled, known = with_soft_labels(pairs, RaterSpec("t", "memory"), tmp_path)
    assert known == set(prompt_keys(pairs))
    assert labelled["p_chosen"].to_pylist() == [0.5] * 24
    half, _ = with_soft_labels(pairs, RaterSpec("t", "memory"), tmp_path, share=0.5)
    assert half["p_chosen"].to_pylist() == [0.75] * 24
    assert half.drop_columns(["p_chosen"]).equals(labelled.drop_columns(["p_chosen"]))


def test_the_student_gets_the_teachers_probabilities_of_every_pair(pairs, memory_kind, tmp_path):
    options = {"teacher": SURFACE, "student": {"kind": "memory"}}
    train_rater("small", options, pairs, tmp_path, 0, "raters.small")
    ((name, given, table, _),) = memory_kind
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
    labelled, _ = with_soft_labels(other, teacher, tmp_path)
    assert (np.array(labelled["p_chosen"].to_pylist()) > 0.5).all()
    again, _ = with_soft_labels(labelled, teacher, tmp_path)
    assert again.column_names == labelled.column_names


@pytest.fixture
def elsewhere(pairs):
    """The same stories under other prompts."""
    place = pairs.column_names.index("prompt")
    return pairs.set_column(place, "prompt", [[f"other {n % 6}" for n in range(24)]])


def test_a_student_knows_what_its_teacher_was_trained_on(pairs, elsewhere, memory_kind, tmp_path):
    fit_features(elsewhere, FeatureOptions(c=[0.1])).save(tmp_path / "model")
    ready = {"kind": "features", "path": str(tmp_path / "model")}
    both = set(prompt_keys(pairs)) | set(prompt_keys(elsewhere))
    members = {"ready": ready, "longer": {"kind": "longer"}}
    for teacher in (ready, {"kind": "stack", "members": members}):
        for _ in range(2):  # then from the folds that were kept
            options = {"teacher": teacher, "student": {"kind": "memory"}}
            folder = tmp_path / teacher["kind"]
            student = train_rater("small", options, pairs, folder, 0, "raters.small")
            assert student.training_prompts() == both
    assert len(memory_kind) == 4


@pytest.mark.usefixtures("memory_kind")
def test_a_student_that_cannot_note_its_teachers_prompts_is_refused(
    pairs, elsewhere, monkeypatch, tmp_path
):
    fit_features(elsewhere, FeatureOptions(c=[0.1])).save(tmp_path / "model")
    teacher = {"kind": "features", "path": str(tmp_path / "model")}
    monkeypatch.setattr(f"{__name__}.Memory", lambda name, *_: LengthRater(name, "memory", 1))
    options = {"teacher": teacher, "student": {"kind": "memory"}}
    with pytest.raises(ConfigError, match="cannot note that its teacher"):
        train_rater("small", options, pairs, tmp_path, 0, "raters.small")


def test_folds_share_and_seed_reach_the_teacher(pairs, memory_kind, tmp_path):
    options = {"teacher": {"kind": "memory"}, "student": {"kind": "memory"}}
    given = {**options, "folds": 2, "share": 0.25}
    train_rater("small", given, pairs, tmp_path, 7, "raters.small")
    assert [seed for *_, seed in memory_kind] == [7, 7, 7]
    assert [table.num_rows for _, _, table, _ in memory_kind] == [12, 12, 24]
    assert memory_kind[-1][2]["p_chosen"].to_pylist() == [0.875] * 24
    first = set(prompt_keys(memory_kind[0][2]))
    others = []
    for other in (8, 9, 10):
        memory_kind.clear()
        train_rater("small", given, pairs, tmp_path / str(other), other, "raters.small")
        others.append(set(prompt_keys(memory_kind[0][2])))
    assert any(found != first for found in others)


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


@pytest.fixture
def labelling(pairs, load_program, tmp_path):
    """Label a file of which a third of the prompts is the split test."""
    module = load_program("data_prep/soft_labels.py")
    split = pa.array(["test" if n % 6 < 2 else "train" for n in range(24)], pa.large_string())
    both = pairs.set_column(pairs.column_names.index("split"), "split", split)
    write_table(both, tmp_path / "pairs.parquet")

    def run(**changes):
        given = {"pairs": tmp_path / "pairs.parquet", "out": tmp_path / "out", "teacher": SURFACE}
        module.main(module.Config(**{**given, **changes}))

    return run, both


def test_the_teacher_of_one_split_does_not_learn_the_labels_of_another(labelling, tmp_path):
    run, _ = labelling
    with pytest.raises(ConfigError, match=r"has the splits test, train, and no split is named"):
        run()
    run(split="train")
    table = read_table(tmp_path / "out/pairs.parquet", PAIRS)
    assert set(table["split"].to_pylist()) == {"train"}


def test_a_teacher_that_knows_another_split_of_the_file_is_refused(labelling, tmp_path):
    run, both = labelling
    test = both.filter(pc.equal(both["split"], "test"))
    fit_features(test, FeatureOptions(c=[0.1])).save(tmp_path / "model")
    ready = {"kind": "features", "path": str(tmp_path / "model")}
    for teacher in (ready, {"kind": "stack", "members": {"ready": ready}}):
        with pytest.raises(ConfigError, match=r"raters\.teacher was trained on 2 prompts"):
            run(split="train", teacher=teacher)
    assert not (tmp_path / "out/pairs.parquet").exists()


@pytest.mark.parametrize("kind", ["reward", "generative"])
def test_a_model_knows_what_its_backbone_was_trained_on(
    pairs, elsewhere, kind, tiny_model, tmp_path
):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    base = tiny_model("llama", head="reward" if kind == "reward" else "language", positions=2048)
    given = {"max_length": 1_200, "batch_size": 6, "precision": "fp32"}

    def trained(backbone, table, folder):
        spec = RaterSpec("m", kind, {"backbone": str(backbone), **given})
        return load_trainer(spec)("m", spec.options, table, tmp_path / folder, 0, spec.where)

    first = trained(base, elsewhere.slice(0, 6), "one")
    first.save(tmp_path / "saved")
    second = trained(tmp_path / "saved", pairs.slice(0, 6), "two")
    assert second.training_prompts() == set(prompt_keys(pairs)) | set(prompt_keys(elsewhere))
    assert first.training_prompts() == set(prompt_keys(elsewhere))
