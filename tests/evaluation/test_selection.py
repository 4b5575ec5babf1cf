"""Templates are chosen on validation pairs alone."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import litbench.raters.entries
from litbench.data.records import PAIRS, VERDICTS, prompt_keys
from litbench.data.sources.evaluation_pairs import subsample
from litbench.data.tables import read_table, write_table
from litbench.data.text import digest
from litbench.evaluation import loop as evaluation
from litbench.evaluation.selection import Selection
from litbench.raters.entries import Kind
from litbench.raters.interface import Estimate, Judgement, Rater
from litbench.raters.templates.template import family_names, template_files
from litbench.runs.errors import ConfigError, DataError, LitBenchError
from litbench.runs.outputs import read_manifest

KNOWN = {"writerly": 0.9, "minimal": 0.6, "reddit_minimal": 0.55}


@dataclass
class KnownOptions:
    """A judge that is right with the chance that its template has."""

    rights: dict[str, float]
    template: str = "alternative"
    trained_on: str | None = None

    def files(self):
        return template_files(self.template)

    def load(self, name):
        return KnownJudge(name, self)


class KnownJudge(Rater):
    kind = "known"
    folders: ClassVar[list[Path]] = []

    def __init__(self, name, options):
        self.name, self.options = name, options

    def judge(self, pairs):
        assert self.folders, "a judge is told where to keep its answers"
        return [[self._judge(pair, shown) for shown in ("first", "second")] for pair in pairs]

    def _judge(self, pair, shown):
        right = self.options.rights.get(Path(self.options.template).stem, 0.5)
        better = "first" if "chosen" in pair.first else "second"
        texts = sorted((pair.first, pair.second))
        drawn = int(digest(*texts, self.options.template, shown), 16) % 10_000 < 10_000 * right
        other = "second" if better == "first" else "first"
        spent = {"input_tokens": 100, "output_tokens": 5, "cost_usd": 0.01}
        return Judgement(better if drawn else other, first_shown=shown, explanation="so", **spent)

    def training_prompts(self):
        return frozenset([self.options.trained_on] if self.options.trained_on else [])

    def work_in(self, folder):
        self.folders.append(folder)

    def estimate(self, pairs):
        return [Estimate(self.name, "m", 2 * len(pairs), 0, 1_000, 50, 0.25, 0.5, 30.0)]


@pytest.fixture(autouse=True)
def known_kind(monkeypatch):
    kind = Kind(f"{__name__}:KnownOptions")
    monkeypatch.setitem(litbench.raters.entries.KINDS, "known", kind)
    monkeypatch.setattr(KnownJudge, "folders", [])


@pytest.fixture
def pairs_file(pair_table, tmp_path):
    def write(n=120, prompts=40, name="train.parquet", split="train", first=0, rename=None):
        table = pair_table(
            [
                {
                    "prompt_id": f"p{first + index % prompts}",
                    "split": split,
                    "chosen": f"the chosen story number {first + index}",
                    "rejected": f"another story, number {first + index}",
                    "chosen_story_id": f"c{first + index}",
                    "rejected_story_id": f"r{first + index}",
                }
                for index in range(n)
            ]
        )
        path = tmp_path / name
        write_table(rename(table) if rename else table, path)
        return path

    return write


@pytest.fixture
def benchmark(load_program, pairs_file, tmp_path):
    """A benchmark whose judges' templates are chosen on other pairs."""
    program = load_program("eval/benchmark.py")

    def make(judges=None, **keys):
        judged = {
            "pairs": keys.pop("judged", None) or pairs_file(30, 30, "test.parquet", first=500)
        }
        keys = {"pairs": keys.pop("pairs", None) or pairs_file(), "templates": list(KNOWN), **keys}
        return program, program.Config(
            **judged,
            out=tmp_path / "out",
            raters={"longer": {"kind": "longer"}}
            | (judges or {"tiny": {"kind": "known", "rights": KNOWN}}),
            select=Selection(**keys),
        )

    return make


@pytest.fixture
def asked(monkeypatch):
    """Names of the raters that judge."""
    names = []
    judge = evaluation.judge_pairs

    def noting(rater, pairs, fold=None):
        names.append(rater.name)
        return judge(rater, pairs, fold)

    monkeypatch.setattr(evaluation, "judge_pairs", noting)
    return names


# The subsample ---------------------------------------------------------------------------------


def test_subsamples_spread_over_prompts_and_nest(pair_table):
    # One prompt has most of the pairs.
    prompts = [f"few {k // 2}" if k < 40 else "many" for k in range(90)]
    table = pair_table([{"prompt": prompt} for prompt in prompts])
    small, large = (subsample(table, n) for n in (21, 40))
    names = [item["pair_id"].to_pylist() for item in (small, large)]
    assert set(names[0]) < set(names[1])
    # 21 prompts, each of which gives one pair before any gives a second.
    assert set(Counter(small["prompt"].to_pylist()).values()) == {1}
    assert max(Counter(large["prompt"].to_pylist()).values()) == 2
    assert subsample(table, 500).equals(table)
    turned = table.take(list(range(89, -1, -1)))
    assert set(subsample(turned, 21)["pair_id"].to_pylist()) == set(names[0])


# What may choose ------------------------------------------------------------------------------


def test_judged_prompts_are_refused(benchmark, pairs_file, tmp_path):
    program, config = benchmark(judged=pairs_file(30, 30, "judged.parquet", first=39))
    with pytest.raises(DataError, match="split train: 1 prompts"):
        program.main(config)
    assert not (tmp_path / "out/selection").exists()


def test_judges_trained_on_validation_pairs_are_refused(benchmark, pairs_file):
    pairs = pairs_file()
    key = prompt_keys(read_table(pairs, PAIRS))[0]
    raters = {"tiny": {"kind": "known", "rights": KNOWN, "trained_on": key}}
    program, config = benchmark(raters, pairs=pairs)
    with pytest.raises(ConfigError, match="tiny@writerly"):
        program.main(config)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"split": " Test"}, "select.split is test"),
        ({"templates": ["writerly"]}, "two or more, each once"),
        ({"templates": ["writerly", "writerly"]}, "two or more, each once"),
        ({"sample": 1}, "raise select.sample"),
        (
            {"judges": {"a": {"kind": "known", "rights": {}, "template": "minimal"}}},
            "has a template",
        ),
        ({"judges": {"a": {"kind": "known", "rihgts": {}}}}, "mean 'rights'"),
    ],
)
def test_invalid_selections_send_no_requests(benchmark, asked, keys, message):
    program, config = benchmark(**keys)
    with pytest.raises(LitBenchError, match=message):
        program.main(config)
    assert not asked


# The choice -----------------------------------------------------------------------------------


def test_the_best_template_of_each_judge_judges(benchmark, capsys, tmp_path):
    other = {"writerly": 0.5, "minimal": 0.55, "reddit_minimal": 0.95}
    raters = {
        "large": {"kind": "known", "rights": KNOWN},
        "tiny": {"kind": "known", "rights": other},
        "given": {"kind": "known", "rights": KNOWN, "template": "minimal"},
    }
    program, config = benchmark(raters, sample=100)
    program.main(config)
    board = json.loads((tmp_path / "out/selection/leaderboard.json").read_text())
    assert {row["agreement"]["n"] for row in board} == {100}
    means = {row["rater"]: row["agreement"]["mean"] for row in board}
    for judge in ("large", "tiny"):
        candidates = {name: mean for name, mean in means.items() if name.startswith(f"{judge}@")}
        assert len(candidates) == 3
        best = {"large": "writerly", "tiny": "reddit_minimal"}[judge]
        assert max(candidates, key=candidates.get) == f"{judge}@{best}"
    verdicts = read_table(tmp_path / "out/selection/verdicts.parquet", VERDICTS).to_pylist()
    assert len(verdicts) == 100 * 2 * 6
    by_hand = np.mean(
        [row["outcome"] == "chosen" for row in verdicts if row["rater"] == "large@writerly"]
    )
    assert means["large@writerly"] == pytest.approx(by_hand, abs=1e-6)
    judged = read_manifest(tmp_path / "out")["config"]["raters"]
    assert {name: entry.get("template") for name, entry in judged.items()} == {
        "longer": None,
        "large": "writerly",
        "tiny": "reddit_minimal",
        "given": "minimal",
    }
    said = capsys.readouterr().out
    assert "large: template writerly" in said
    program.main(config)
    assert "unchanged" in capsys.readouterr().out


# Going on, telling beforehand -------------------------------------------------------------------


def test_only_what_is_new_is_judged(benchmark, asked, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("criteria: Go by rhyme.\n")
    program, config = benchmark(templates=["writerly", str(path)])
    program.main(config)
    assert asked == ["tiny@writerly", f"tiny@{path}", "longer", "tiny"]
    asked.clear()
    path.write_text("criteria: Go by rhythm.\n")
    program.main(config)
    assert asked == [f"tiny@{path}"]
    config.select.templates.append("alternative")
    program.main(config)
    assert asked[1:] == ["tiny@alternative"]
    config.select.sample = 50
    program.main(config)
    assert len(asked) == 5
    assert len(list((tmp_path / "out/selection/parts").glob("*.parquet"))) == 3


def test_a_folder_of_templates_stands_for_its_files(benchmark, asked, tmp_path):
    (tmp_path / "a4").mkdir()
    for name in ("first", "second"):
        (tmp_path / f"a4/{name}.yaml").write_text(f"criteria: Go by the {name}.\n")
    program, config = benchmark(templates=[str(tmp_path / "a4")])
    program.main(config)
    first, second = (f"tiny@{tmp_path}/a4/{name}.yaml" for name in ("first", "second"))
    assert asked == [first, second, "longer", "tiny"]


def test_dry_run_sends_and_writes_nothing(benchmark, asked, capsys, tmp_path):
    raters = {
        "large": {"kind": "known", "rights": KNOWN},
        "local": {"kind": "generative", "path": "owner/of-many-gigabytes"},
    }
    program, config = benchmark(raters, templates=[])
    config.dry_run = True
    program.main(config)
    said = capsys.readouterr().out
    assert not asked
    assert said.count("large@") == len(family_names())
    assert not (tmp_path / "out").exists()
