"""What evaluations share: reading pairs, refusing leaks, keeping parts, writing the figures."""

import json

import pytest

from litbench import artifact
from litbench.artifact import Artifact
from litbench.errors import ConfigError, DataError
from litbench.evaluation import (
    EvaluationPairs,
    VerdictParts,
    check_training_prompts,
    finish_evaluation,
    named_models,
    read_held_out,
    read_pairs,
)
from litbench.metrics.leaderboard import check_reference
from litbench.raters import LengthRater, RaterSpec, judge_pairs
from litbench.records import VERDICTS
from litbench.tables import read_table, write_table
from litbench.text import prompt_key


class Trained(LengthRater):
    """A rater that says it was trained on some prompts."""

    prompts: frozenset[str] = frozenset()

    def training_prompts(self):
        return self.prompts


@pytest.fixture
def write_pairs(pair_table, tmp_path):
    def write(name, rows):
        path = tmp_path / name
        write_table(pair_table(rows), path)
        return path

    return write


def row(place, **more):
    return {
        "chosen_story_id": f"c{place}",
        "rejected_story_id": f"r{place}",
        "chosen": "a lantern burns over the river " * (place + 1),
        "rejected": "a moth counts its ladders " * 3,
        **more,
    }


def test_only_the_pairs_of_the_split_are_read(write_pairs):
    path = write_pairs("pairs.parquet", [row(i, split="ab"[i % 2]) for i in range(6)])
    assert read_pairs(path, None, None).headline.num_rows == 6
    found = read_pairs(path, None, "a")
    assert found.headline["chosen_story_id"].to_pylist() == ["c0", "c2", "c4"]
    assert found.all is found.headline
    with pytest.raises(DataError, match=r"no pair of split 'c': it has \['a', 'b'\]"):
        read_pairs(path, None, "c")


def test_the_pairs_before_symmetry_are_judged_and_must_hold_all_the_others(write_pairs):
    headline = write_pairs("pairs.parquet", [row(i) for i in range(3)])
    wider = write_pairs("wider.parquet", [row(i) for i in range(5)])
    other = write_pairs("other.parquet", [row(i) for i in range(1, 5)])
    pairs = read_pairs(headline, wider, None)
    assert (pairs.headline.num_rows, pairs.all.num_rows) == (3, 5)
    with pytest.raises(DataError, match=r"other\.parquet lacks 1 pairs"):
        read_pairs(headline, other, None)


def test_a_rater_trained_on_the_prompts_is_refused_or_counted(pair_table):
    pairs = pair_table([row(i, prompt=f"[WP] Door {i}") for i in range(4)])
    rater = Trained("verifier", "test", 1)
    assert check_training_prompts(rater, pairs, "refuse") == 0
    # A repost with other punctuation is the same prompt.
    rater.prompts = frozenset({prompt_key("door 2!"), prompt_key("[wp] DOOR 3"), prompt_key("x")})
    assert check_training_prompts(rater, pairs, "flag") == 2
    with pytest.raises(ConfigError, match=r"verifier was trained on 2 .*'\[WP\] Door 2'"):
        check_training_prompts(rater, pairs, "refuse")


def test_a_reference_that_is_no_rater_names_the_nearest():
    check_reference("longer", ["shorter", "longer"])
    with pytest.raises(ConfigError, match="reference 'longr' is no rater: did you mean 'longer'"):
        check_reference("longr", ["shorter", "longer"])


@pytest.fixture
def part(pair_table):
    """A maker of a part that counts how often it was called."""
    pairs = pair_table([row(i) for i in range(4)])
    calls = []

    def make():
        calls.append(1)
        return judge_pairs(LengthRater("longer", "longer", 1), pairs), {
            "notes": {"made": len(calls)}
        }

    return make, calls


def test_a_part_is_made_once_and_read_afterwards(part, tmp_path):
    make, calls = part
    first = VerdictParts(tmp_path).get_or_make("longer", ["pairs", 1], make)
    again = VerdictParts(tmp_path).get_or_make("longer", ["pairs", 1], make)
    assert len(calls) == 1
    assert again[0].equals(first[0])
    assert again[1] == first[1] == {"notes": {"made": 1}}
    VerdictParts(tmp_path).get_or_make("longer", ["pairs", 2], make)
    assert len(calls) == 2


def test_long_names_that_begin_alike_are_parts_of_their_own(part, tmp_path):
    make, calls = part
    for name in ("夜" * 85, "夜" * 84 + "月"):
        VerdictParts(tmp_path).get_or_make(name, [name], make)
    assert len(calls) == 2
    assert len(list(tmp_path.iterdir())) == 4


def test_all_that_a_rater_reads_from_outside_is_named(tmp_path):
    own = str(tmp_path / "own.yaml")
    members = {
        "one": {"kind": "features", "path": "m"},
        "two": {"kind": "generative", "backbone": "b", "template": own},
    }
    specs = [
        RaterSpec("mix", "ensemble", {"members": members, "unit_pairs": "u.parquet"}),
        RaterSpec("plain", "generative", {"path": "p", "template": "verdict_label"}),
        RaterSpec("none", "generative", {"path": "q", "template": None}),
    ]
    assert named_models(specs) == {
        "raters.mix.unit_pairs": "u.parquet",
        "raters.mix.members.one": "m",
        "raters.mix.members.two": "b",
        "raters.mix.members.two.template": own,
        "raters.plain": "p",
        "raters.none": "q",
    }


def test_prompts_that_the_backbone_knows_are_not_evaluated_on(write_pairs, pair_table):
    path = write_pairs("pairs.parquet", [row(i, prompt=f"[WP] Door {i}") for i in range(4)])
    training = pair_table([row(9, prompt="[WP] Window")])
    assert read_held_out(path, None, training, path).num_rows == 4
    with pytest.raises(ConfigError, match=r"1 prompts .*such as '\[WP\] Door 2'"):
        read_held_out(path, None, training, path, frozenset({prompt_key("[WP] Door 2")}))


@pytest.mark.parametrize("lost", [".parquet", ".json"])
def test_half_a_part_is_made_again(part, tmp_path, lost):
    make, calls = part
    VerdictParts(tmp_path).get_or_make("longer", 1, make)
    (path,) = tmp_path.glob(f"*{lost}")
    path.unlink()
    VerdictParts(tmp_path).get_or_make("longer", 1, make)
    assert len(calls) == 2


def test_parts_of_earlier_configs_are_removed_and_no_others(part, tmp_path):
    make, calls = part
    old = VerdictParts(tmp_path)
    old.get_or_make("longer", 1, make)
    old.get_or_make("longer", 2, make)
    new = VerdictParts(tmp_path)
    new.get_or_make("longer", 2, make)
    new.discard_others()
    assert len(list(tmp_path.iterdir())) == 2
    VerdictParts(tmp_path).get_or_make("longer", 2, make)
    assert len(calls) == 2


def test_an_interrupted_training_finds_its_own_files_again(part, tmp_path):
    make, _ = part
    seen = []

    def work(folder, *, killed=False):
        folder.mkdir(parents=True, exist_ok=True)
        seen.append((folder, sorted(path.name for path in folder.iterdir())))
        (folder / "checkpoint").touch()
        if killed:
            raise KeyboardInterrupt
        return make()

    with pytest.raises(KeyboardInterrupt):
        VerdictParts(tmp_path / "parts").get_or_train("a", 1, lambda at: work(at, killed=True))
    parts = VerdictParts(tmp_path / "parts")
    for depends_on in (2, 1):
        parts.get_or_train("a", depends_on, work)
    assert [found for _, found in seen] == [[], [], ["checkpoint"]]
    assert seen[0][0] == seen[2][0] != seen[1][0]
    parts.get_or_train("a", 1, work)
    assert len(seen) == 3, "a part that is there is not made again"
    parts.discard_others()
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


@pytest.mark.parametrize("name", ["owner/model", "../up", "a b", "夜" * 85, "é" * 300])
def test_any_rater_name_stays_inside_the_folder(part, tmp_path, name):
    make, calls = part
    folder = tmp_path / "parts"
    for _ in range(2):
        VerdictParts(folder).get_or_make(name, [name], make)
    assert len(calls) == 1
    assert len(list(folder.iterdir())) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


def test_the_files_of_an_evaluation_agree_with_each_other(pair_table, tmp_path, capsys):
    pairs = pair_table([row(i, prompt=f"[WP] Door {i % 4}") for i in range(12)])
    raters = [LengthRater("longer", "longer", 1), LengthRater("shorter", "shorter", -1)]
    verdicts = [judge_pairs(rater, pairs) for rater in raters]
    artifact = Artifact(tmp_path, program=__file__, config={}, inputs={})
    records = {"longer": [{"notes": {}}], "shorter": [{"notes": {}, "trained_on": 2}]}
    finish_evaluation(artifact, verdicts, records, EvaluationPairs(pairs, None), "longer")
    # Chosen has 6 (place + 1) words and rejected 15: longer from place 2 on, 10 of 12 pairs.
    expected = {"longer": 10 / 12, "shorter": 2 / 12}
    written = json.loads((tmp_path / "leaderboard.json").read_text())
    rows = {entry["rater"]: entry for entry in written}
    for name, share in expected.items():
        assert rows[name]["agreement"]["mean"] == pytest.approx(share, abs=1e-6)
    assert rows["shorter"]["trained_on"] == 2
    assert read_table(tmp_path / "verdicts.parquet", VERDICTS).num_rows == 24
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["counts"]["verdicts"] == 24
    tables = {f"leaderboard.{ending}" for ending in ("json", "csv", "txt")}
    assert set(manifest["outputs"]) == {"verdicts.parquet", *tables}
    shown = capsys.readouterr().out
    assert "longer" in shown
    assert "shorter" in shown


def test_a_template_of_the_package_counts_as_code(tmp_path, monkeypatch):
    (tmp_path / "templates").mkdir()
    template = tmp_path / "templates" / "verdict.yaml"
    program = tmp_path / "program.py"
    program.touch()
    monkeypatch.setattr(artifact, "__file__", str(tmp_path / "manifest.py"))
    found = []
    for text in ("text: a", "text: b"):
        template.write_text(text)
        artifact.code_digest.cache_clear()
        found.append(artifact.code_digest(str(program), "templates"))
    artifact.code_digest.cache_clear()
    assert found[0] != found[1]
