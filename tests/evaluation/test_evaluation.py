"""What evaluations share: reading pairs, refusing leaks, keeping parts, writing the figures."""

import json
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

from litbench.data.records import VERDICTS
from litbench.data.sources.evaluation_pairs import EvaluationPairs, read_held_out, read_pairs
from litbench.data.tables import read_table, write_table
from litbench.data.text import prompt_key
from litbench.evaluation import loop
from litbench.evaluation.loop import (
    Job,
    Result,
    evaluate,
    finish_evaluation,
)
from litbench.evaluation.results import error_notes, failed_requests
from litbench.models.baselines import LengthRater
from litbench.raters import entries, templates
from litbench.raters.entries import Kind, RaterSpec, files_of
from litbench.raters.interface import Judgement, judge_pairs
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact, Cache, fingerprint


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


def test_read_pairs_selects_the_split(write_pairs):
    path = write_pairs("pairs.parquet", [row(i, split="ab"[i % 2]) for i in range(6)])
    assert read_pairs(path, None, None).headline.num_rows == 6
    result = read_pairs(path, None, "a")
    assert result.headline["chosen_story_id"].to_pylist() == ["c0", "c2", "c4"]
    assert result.all is result.headline
    with pytest.raises(DataError, match=r"split 'c'.*\['a', 'b'\]"):
        read_pairs(path, None, "c")


def test_before_symmetry_must_be_a_superset(write_pairs):
    headline = write_pairs("pairs.parquet", [row(i) for i in range(3)])
    wider = write_pairs("wider.parquet", [row(i) for i in range(5)])
    other = write_pairs("other.parquet", [row(i) for i in range(1, 5)])
    pairs = read_pairs(headline, wider, None)
    assert (pairs.headline.num_rows, pairs.all.num_rows) == (3, 5)
    with pytest.raises(DataError, match=r"other\.parquet lacks 1 pairs"):
        read_pairs(headline, other, None)


def test_files_of_names_all_files(tmp_path):
    template = str(tmp_path / "own.yaml")
    specs = [
        RaterSpec("surface", "features", {"path": "m"}),
        RaterSpec("fitted", "features", {"c": [1.0]}),
        RaterSpec("trained", "generative", {"model_name_or_path": "b", "template": template}),
        RaterSpec("plain", "generative", {"path": "p", "template": "verdict_label"}),
        RaterSpec("none", "generative", {"path": "q", "template": None}),
        RaterSpec("judge", "judge", {"model": "openai/gpt", "template": "reddit_verbose"}),
        RaterSpec("longer", "longer"),
    ]
    assert files_of(specs) == {
        "raters.surface.path": "m",
        "raters.trained.model_name_or_path": "b",
        "raters.trained.template": template,
        "raters.plain.path": "p",
        "raters.none.path": "q",
    }


def test_held_out_pairs_exclude_training_prompts_of_the_base_model(write_pairs, pair_table):
    path = write_pairs("pairs.parquet", [row(i, prompt=f"[WP] Door {i}") for i in range(4)])
    training = pair_table([row(9, prompt="[WP] Window")])
    assert read_held_out(path, None, training, path).num_rows == 4
    with pytest.raises(ConfigError, match=r"1 prompts .*such as '\[WP\] Door 2'"):
        read_held_out(path, None, training, path, frozenset({prompt_key("[WP] Door 2")}))


def test_evaluation_files_are_consistent(pair_table, tmp_path, capsys):
    pairs = pair_table([row(i, prompt=f"[WP] Door {i % 4}") for i in range(12)])
    raters = [LengthRater("longer", "longer", 1), LengthRater("shorter", "shorter", -1)]
    write_table(pairs, tmp_path / "pairs.parquet")
    inputs = {"pairs": tmp_path / "pairs.parquet"}
    artifact = Artifact(tmp_path, program=__file__, config={}, inputs=inputs)
    results = [
        Result(
            Job(RaterSpec(rater.name, rater.kind), "", lambda: pairs, 0),
            judge_pairs(rater, pairs),
            {"notes": {}, "trained_on": trained_on},
        )
        for rater, trained_on in zip(raters, (0, 2), strict=True)
    ]
    finish_evaluation(artifact, results, EvaluationPairs(pairs), "longer")
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


# The loop --------------------------------------------------------------------------------------


@dataclass
class PluginOptions:
    """Options of a kind that another package brings; its model is a Path."""

    path: Path
    sign: int = 1

    def load(self, name):
        return Plugin.load(name, self)


@dataclass
class PluginTraining:
    """Options of its training."""

    sign: int = 1

    def train(self, name, pairs, folder, seed):
        del seed
        return Plugin.train(name, self, pairs, folder)


class Plugin:
    """A kind of rater whose training can be interrupted."""

    loaded: ClassVar[list[str]] = []
    alive: ClassVar[list[weakref.ref]] = []
    trained: ClassVar[list[list[str]]] = []
    interrupt = False

    @classmethod
    def load(cls, name, options):
        cls.loaded.append(name)
        assert all(ref() is None for ref in cls.alive), "two models in memory"
        rater = Trained(name, "plugin", options.sign)
        rater.prompts = frozenset(Path(options.path).read_text().split())
        cls.alive.append(weakref.ref(rater))
        return rater

    @classmethod
    def train(cls, name, options, pairs, folder):
        folder.mkdir(parents=True, exist_ok=True)
        cls.trained.append(sorted(path.name for path in folder.iterdir()))
        (folder / "checkpoint").touch()
        if cls.interrupt:
            raise KeyboardInterrupt
        rater = Trained(name, "plugin", options.sign)
        rater.prompts = frozenset(map(prompt_key, pairs["prompt"].to_pylist()))
        return rater


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    model = tmp_path / "model"
    model.write_text("")
    here = f"{__name__}:"
    kind = Kind(f"{here}PluginOptions", f"{here}PluginTraining")
    monkeypatch.setitem(entries.KINDS, "plugin", kind)
    monkeypatch.setattr(Plugin, "loaded", [])
    monkeypatch.setattr(Plugin, "trained", [])
    return RaterSpec("plugin", "plugin", {"path": str(model)})


def run(jobs, folder, **options):
    """Verdict tables and records of an evaluation."""
    result = list(evaluate(jobs, Cache(folder / "parts"), **options))
    assert [job for job, *_ in result] == list(jobs)
    return [table for _, table, _ in result], [record for *_, record in result]


def test_stored_parts_depend_on_options_files_data_and_versions(
    plugin, pair_table, tmp_path, monkeypatch
):
    pairs = pair_table([row(i, prompt=f"[WP] Door {i}") for i in range(4)])
    job = Job(plugin, "plugin", lambda: pairs, "data")
    (first,), _ = run([job], tmp_path)
    (again,), _ = run([job], tmp_path)
    assert again.equals(first)
    assert len(Plugin.loaded) == 1
    changes = [
        lambda: run([replace(job, depends_on="other data")], tmp_path),
        lambda: run(
            [replace(job, spec=replace(plugin, given={**plugin.given, "sign": -1}))], tmp_path
        ),
        lambda: (Path(plugin.given["path"]).write_text("x"), run([job], tmp_path)),
        lambda: (
            monkeypatch.setitem(
                entries.KINDS, "plugin", replace(entries.KINDS["plugin"], version=2)
            ),
            run([job], tmp_path),
        ),
        lambda: (
            monkeypatch.setattr(loop, "package_version", lambda: "99"),
            run([job], tmp_path),
        ),
    ]
    for count, change in enumerate(changes, start=2):
        change()
        assert len(Plugin.loaded) == count


@pytest.mark.parametrize("name", ["owner/model", "../up", "a b", "夜" * 85, "é" * 300])
def test_any_rater_name_stays_inside_the_folder(plugin, pair_table, tmp_path, name):
    pairs = pair_table([row(i) for i in range(4)])
    for _ in range(2):
        run([Job(plugin, name, lambda: pairs, name)], tmp_path / "out")
    assert len(Plugin.loaded) == 1
    assert len(list((tmp_path / "out/parts").iterdir())) == 1


def test_errors_are_judged_again(plugin, pair_table, tmp_path, monkeypatch):
    pairs = pair_table([row(i) for i in range(4)])
    job = Job(plugin, "plugin", lambda: pairs, "data")
    with monkeypatch.context() as patch:
        patch.setattr(Trained, "judge", lambda _, pairs: [[Judgement("error")] for _ in pairs])
        (failed,) = evaluate([job], Cache(tmp_path / "parts"))
    assert failed_requests(failed.verdicts).num_rows == 4
    assert "plugin: 4 of 4 verdicts are errors" in error_notes(failed.verdicts)[0]
    (again,), _ = run([job], tmp_path)
    assert "error" not in again["outcome"].to_pylist()


def test_raters_are_loaded_once(plugin, pair_table, tmp_path):
    tables = {name: pair_table([row(i, prompt=f"{name} {i}") for i in range(3)]) for name in "ab"}
    other = replace(plugin, name="other")
    jobs = [
        Job(spec, f"{name}-{spec.name}", lambda name=name: tables[name], name)
        for spec in (plugin, other)
        for name in tables
    ]
    verdicts, _ = run(jobs, tmp_path)
    assert Plugin.loaded == ["plugin", "other"]
    assert [table["rater"][0].as_py() for table in verdicts] == ["plugin"] * 2 + ["other"] * 2
    assert verdicts[0]["pair_id"].to_pylist() == tables["a"]["pair_id"].to_pylist()


def test_training_prompts_are_refused_or_flagged(plugin, pair_table, tmp_path):
    pairs = pair_table([row(i, prompt=f"door{i}") for i in range(4)])
    # A repost with other punctuation is the same prompt.
    Path(plugin.given["path"]).write_text(f"{prompt_key('[WP] DOOR1!')} {prompt_key('door2')}")
    job = Job(plugin, "plugin", lambda: pairs, 1)
    _, (record,) = run([job], tmp_path, on_training_prompts="flag")
    assert record == {"notes": {}, "trained_on": 2}
    with pytest.raises(ConfigError, match="was trained on 2"):
        run([job], tmp_path)
    fitted = RaterSpec("fitted", "plugin", {})
    job = Job(fitted, "fitted", lambda: pairs, 1, train=lambda: pairs.slice(0, 1))
    with pytest.raises(ConfigError, match="was trained on 1"):
        run([job], tmp_path, on_training_prompts="flag")


@pytest.mark.usefixtures("plugin")
def test_interrupted_trainings_keep_their_folder(pair_table, tmp_path, monkeypatch):
    pairs = pair_table([row(i, prompt=f"door{i}") for i in range(4)])
    jobs = [
        Job(
            RaterSpec("fitted", "plugin", {}),
            f"fold{fold}",
            lambda fold=fold: pairs.slice(2 * fold, 2),
            fold,
            train=lambda fold=fold: pairs.slice(2 - 2 * fold, 2),
            seed=7,
            fold=f"0/{fold}",
            name="arm",
        )
        for fold in range(2)
    ]
    monkeypatch.setattr(Plugin, "interrupt", True)
    with pytest.raises(KeyboardInterrupt):
        run(jobs[:1], tmp_path)
    monkeypatch.setattr(Plugin, "interrupt", False)
    for _ in range(2):
        tables, records = run(jobs[::-1], tmp_path)
    assert Plugin.trained == [[], [], ["checkpoint"]]
    assert not any((tmp_path / "parts/scratch").iterdir())
    verdicts = pa.concat_tables(tables)
    assert set(verdicts["rater"].to_pylist()) == {"arm"}
    assert verdicts["fold"].to_pylist() == ["0/1", "0/1", "0/0", "0/0"]
    expected = {"notes": {}, "trained_on": 0, "pairs_used": 2, "prompts_used": 2, "seed": 7}
    assert records == [expected, expected]


def test_changed_templates_need_a_new_kind_version():
    """Else kept verdicts of the old words would be taken for those of the new ones."""
    folder = Path(templates.__file__).parent
    digest = fingerprint({path.name: path.read_text() for path in folder.glob("*.yaml")})
    shown_by = {entries.KINDS[name].version for name in ("judge", "generative")}
    # After a change raise `version` in litbench/raters/entries.py for each kind whose questions or
    # verdicts it changes, then both values here.
    assert (shown_by, digest[:16]) == ({4, 5}, "3479e2be3e1593f9")
