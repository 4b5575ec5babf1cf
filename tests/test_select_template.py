"""Templates are chosen on training pairs alone, and luck is told from merit."""

import importlib.metadata
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import litbench.raters
from litbench.config import build
from litbench.errors import ConfigError, DataError
from litbench.raters import Estimate, Judgement
from litbench.records import PAIRS, VERDICTS, prompt_keys
from litbench.tables import read_table, write_table
from litbench.templates import family_names, load_template
from litbench.text import digest

KNOWN = {"writerly": 0.9, "minimal": 0.6, "reddit_minimal": 0.55}


@dataclass
class KnownOptions:
    """A judge that is right with the chance that its template has; null for no verdict at all."""

    template: str
    answer: str
    rights: dict[str, float | None]
    asks: bool = False
    trained_on: str | None = None


class KnownJudge:
    kind = "known"

    def __init__(self, name: str, options: KnownOptions) -> None:
        self.name, self.options = name, options

    def judge(self, pairs: Any) -> list[list[Judgement]]:
        return [[self._judge(pair, shown) for shown in ("first", "second")] for pair in pairs]

    def _judge(self, pair: Any, shown: Any) -> Judgement:
        right = self.options.rights.get(Path(self.options.template).stem, 0.5)
        if right is None:
            return Judgement("unparsed", first_shown=shown)
        better = "first" if "chosen" in pair.first else "second"
        texts = sorted((pair.first, pair.second))
        drawn = int(digest(*texts, self.options.template, shown), 16) % 10_000 < 10_000 * right
        other = "second" if better == "first" else "first"
        spent = {"input_tokens": 100, "output_tokens": 5, "cost_usd": 0.01}
        return Judgement(better if drawn else other, first_shown=shown, explanation="so", **spent)

    def training_prompts(self) -> frozenset[str]:
        return frozenset([self.options.trained_on] if self.options.trained_on else [])

    def notes(self) -> dict[str, Any]:
        return {}


class KnownAsker(KnownJudge):
    shard: int | None = None
    folders: list[Path] = []  # noqa: RUF012

    def work_in(self, folder: Path) -> None:
        self.folders.append(folder)

    def estimate(self, pairs: Any) -> list[Estimate]:
        return [Estimate(self.name, "m", 2 * len(pairs), 0, 1_000, 50, None, 0.25, 0.5, 30.0)]

    def judge(self, pairs: Any) -> list[list[Judgement]]:
        assert self.folders, "a judge that asks is told where to keep its answers"
        return super().judge(pairs)


def known_from_options(name: str, options: Any, where: str) -> KnownJudge:
    ready = build(KnownOptions, options, where)
    return (KnownAsker if ready.asks else KnownJudge)(name, ready)


@pytest.fixture(autouse=True)
def known_kind(monkeypatch):
    real = litbench.raters._entry_points
    added = {
        "litbench.raters": {"known": "known_from_options"},
        "litbench.options": {"raters.known": "KnownOptions"},
    }

    def with_known(group):
        own = {
            name: importlib.metadata.EntryPoint(name, f"{__name__}:{value}", group)
            for name, value in added.get(group, {}).items()
        }
        return real(group) | own

    monkeypatch.setattr(litbench.raters, "_entry_points", with_known)
    monkeypatch.setattr(KnownAsker, "folders", [])


@pytest.fixture
def pairs_file(pair_table, tmp_path):
    def write(n=120, prompts=40, name="pairs.parquet", split="train", first=0, rename=None):
        table = pair_table(
            [
                {
                    "prompt_id": f"p{first + place % prompts}",
                    "split": split,
                    "chosen": f"the chosen story number {first + place}",
                    "rejected": f"another story, number {first + place}",
                    "chosen_story_id": f"c{first + place}",
                    "rejected_story_id": f"r{first + place}",
                }
                for place in range(n)
            ]
        )
        path = tmp_path / name
        write_table(rename(table) if rename else table, path)
        return path

    return write


@pytest.fixture
def selecting(load_program, pairs_file, tmp_path):
    program = load_program("eval/select_template.py")

    def make(**keys):
        ready = {
            "pairs": keys.pop("pairs", None) or pairs_file(),
            "out": tmp_path / "out",
            "raters": {"tiny": {"kind": "known", "rights": KNOWN}},
            "templates": list(KNOWN),
            **keys,
        }
        return program, program.Config(**ready)

    return make


def found_in(folder):
    return json.loads((folder / "selection.json").read_text())


# The sample ----------------------------------------------------------------------------------


def test_a_sample_is_spread_over_prompts_and_grows_with_its_size(load_program, pair_table):
    program = load_program("eval/select_template.py")
    # One prompt has most of the pairs.
    prompts = [f"few {k // 2}" if k < 40 else "many" for k in range(90)]
    table = pair_table([{"prompt": prompt} for prompt in prompts])
    small, large = (program.draw(table, n, 0) for n in (21, 40))
    assert len(set(small)) == 21
    assert set(small) < set(large)
    assert small == sorted(small)
    # 21 prompts, each of which gives one pair before any gives a second.
    assert set(Counter(prompts[row] for row in small).values()) == {1}
    assert max(Counter(prompts[row] for row in large).values()) == 2
    assert program.draw(table, 20, 1) != small
    assert program.draw(table, 500, 0) == list(range(90))


def test_a_sample_does_not_depend_on_the_order_of_the_file(load_program, pair_table):
    program = load_program("eval/select_template.py")
    table = pair_table([{} for _ in range(60)])
    turned = table.take(list(range(59, -1, -1)))
    drawn = [{t["pair_id"][row].as_py() for row in program.draw(t, 9, 3)} for t in (table, turned)]
    assert drawn[0] == drawn[1]


# What may choose ------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["test", " Test"])
def test_test_pairs_choose_nothing(selecting, split, tmp_path):
    program, config = selecting(split=split)
    with pytest.raises(ConfigError, match="split is test, and test pairs choose nothing"):
        program.main(config)
    assert not (tmp_path / "out").exists()


def test_prompts_of_the_test_pairs_are_refused(selecting, pairs_file, tmp_path):
    test = pairs_file(30, 30, "test.parquet", split="test", first=39)
    program, config = selecting(test_pairs=test)
    with pytest.raises(DataError, match=r"1 prompts of the pairs to draw from .* Prompt of p39"):
        program.main(config)
    config.test_pairs = pairs_file(30, 30, "other.parquet", split="test", first=40)
    program.main(config)
    assert (tmp_path / "out" / "selection.json").exists()


def test_the_test_pairs_of_the_same_file_count_too(selecting, pairs_file):
    def mixed(table):
        splits = ["test" if row % 40 == 0 and row < 40 else "train" for row in range(120)]
        return table.set_column(table.column_names.index("split"), "split", [splits])

    program, config = selecting(pairs=pairs_file(rename=mixed))
    with pytest.raises(DataError, match="1 prompts of the pairs to draw from"):
        program.main(config)


def test_a_model_that_was_trained_on_the_sample_is_refused(selecting, pairs_file):
    pairs = pairs_file()
    key = prompt_keys(read_table(pairs, PAIRS))[0]
    raters = {"tiny": {"kind": "known", "rights": KNOWN, "trained_on": key}}
    program, config = selecting(pairs=pairs, raters=raters)
    with pytest.raises(ConfigError, match="tiny@writerly was trained on 1 of the prompts"):
        program.main(config)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"templates": ["writerly"]}, "two or more, each once"),
        ({"templates": ["writerly", "writerly"]}, "two or more, each once"),
        ({"templates": ["writerly", "writely"]}, "there is no template 'writely'.*writerly"),
        ({"templates": ["writerly", "verdict_label"], "answer": "verdict"}, "answer form label"),
        ({"sample": 1}, "sample is 1"),
        ({"raters": {"a": {"kind": "known", "template": "minimal"}}}, "raters.a: template is giv"),
        ({"raters": {"a": {"kind": "longer"}}}, "raters.a@writerly: unknown key 'template'"),
        ({"raters": {"a": {"kind": "known", "rihgts": {}}}}, "did you mean 'rights'"),
    ],
)
def test_what_cannot_be_tried_out_is_refused_before_anyone_is_asked(selecting, keys, message):
    program, config = selecting(**keys)
    with pytest.raises(ConfigError, match=message):
        program.main(config)


# The choice -----------------------------------------------------------------------------------


def test_the_best_template_is_chosen_for_each_family_of_models(selecting, capsys, tmp_path):
    other = {"writerly": 0.5, "minimal": 0.55, "reddit_minimal": 0.95}
    raters = {
        "large": {"kind": "known", "rights": KNOWN, "answer": "json_verdict"},
        "tiny": {"kind": "known", "rights": other},
    }
    program, config = selecting(raters=raters, sample=100)
    program.main(config)
    large, tiny = found_in(tmp_path / "out")
    assert (large["family"], large["template"], large["answer"]) == (
        "large", "writerly", "json_verdict",
    )  # fmt: skip
    assert (tiny["family"], tiny["template"], tiny["answer"]) == (
        "tiny", "reddit_minimal", "explanation",
    )  # fmt: skip
    for found in (large, tiny):
        assert found["within_noise_of"] == []
        assert found["templates"][0]["comparison"] is None
        assert found["templates"][0]["template"] == found["template"]
        means = [one["agreement"]["mean"] for one in found["templates"]]
        assert means == sorted(means, reverse=True)
        assert found["templates"][0]["agreement"]["n"] == 100
        assert found["templates"][0]["agreement"]["clusters"] == 40
        assert found["templates"][0]["cost_usd"] == pytest.approx(2.0)
        assert found["templates"][0]["input_tokens"] == 20_000
    verdicts = read_table(tmp_path / "out/verdicts.parquet", VERDICTS).to_pylist()
    assert len(verdicts) == 100 * 2 * 6
    by_hand = np.mean([row["outcome"] == "chosen" for row in verdicts if row["rater"]
                       == "large@writerly"])  # fmt: skip
    assert large["agreement"]["mean"] == pytest.approx(by_hand, abs=1e-6)
    said = capsys.readouterr().out
    assert "large: writerly (answer json_verdict), agreement" in said
    assert "Outside the noise of all 2 others" in said
    assert "optimistic" in said
    program.main(config)
    assert said in capsys.readouterr().out, "a second run says the same and changes nothing"


def test_a_choice_within_the_noise_is_made_and_called_so(selecting, tmp_path, capsys):
    alike = dict.fromkeys(KNOWN, 0.7)
    program, config = selecting(raters={"tiny": {"kind": "known", "rights": alike}})
    program.main(config)
    (found,) = found_in(tmp_path / "out")
    means = {one["template"]: one["agreement"]["mean"] for one in found["templates"]}
    assert found["template"] == max(means, key=means.get)
    assert len(found["within_noise_of"]) == 2
    assert "Within the noise of 2 of the 2 others" in capsys.readouterr().out
    assert "not shown to be the best" in (tmp_path / "out/selection.md").read_text()


def test_renamed_sides_make_the_worst_template_the_best(
    selecting, pairs_file, rename_sides, tmp_path
):
    """And every agreement one minus what it was."""
    program, config = selecting()
    program.main(config)
    (straight,) = found_in(tmp_path / "out")
    turned = pairs_file(name="turned.parquet", rename=rename_sides)
    program, config = selecting(pairs=turned)
    config.out = tmp_path / "turned"
    program.main(config)
    (renamed,) = found_in(tmp_path / "turned")

    def means(found):
        return {one["template"]: one["agreement"]["mean"] for one in found["templates"]}

    assert means(renamed) == pytest.approx({k: 1 - v for k, v in means(straight).items()})
    assert renamed["template"] == straight["templates"][-1]["template"]


def test_judges_that_always_fail_tie_at_one_half_and_the_first_template_is_taken(
    selecting, tmp_path
):
    silent = dict.fromkeys(KNOWN)
    program, config = selecting(raters={"tiny": {"kind": "known", "rights": silent}})
    program.main(config)
    (found,) = found_in(tmp_path / "out")
    assert found["template"] == "writerly"
    assert (
        "the first listed of all with that agreement (minimal, reddit_minimal)"
        in (found["conclusion"])
    )
    for one in found["templates"]:
        assert (one["agreement"]["mean"], one["coverage"]) == (0.5, 0)
        assert one["outcomes"]["unparsed"] == 240


def test_a_template_that_gets_no_verdicts_is_named(selecting, tmp_path):
    """Or bad criteria and a form that the model does not keep to would look alike."""
    program, config = selecting()
    program.main(config)
    (found,) = found_in(tmp_path / "out")
    assert "overage" not in found["conclusion"]
    config.raters = {"tiny": {"kind": "known", "rights": {**KNOWN, "minimal": None}}}
    program.main(config)
    (found,) = found_in(tmp_path / "out")
    assert "Low coverage (minimal 0.000): where no verdict" in found["conclusion"]
    assert "Low coverage" in (tmp_path / "out/selection.md").read_text()


def test_choosing_anew_never_sees_the_prompts_it_is_scored_on(load_program):
    """Templates without merit: the highest looks good, and chosen anew it does not."""
    program = load_program("eval/select_template.py")
    drawn = np.random.default_rng(0)
    gains, anew = [], []
    for _ in range(200):
        credits = drawn.integers(0, 2, size=(6, 60)).astype(float)
        clusters = np.array([f"p{k // 2}" for k in range(60)])
        credit, choices = program.choose_anew(credits, clusters)
        assert len(choices) == 10
        gains.append(credits.mean(axis=1).max())
        anew.append(credit.mean())
    assert np.mean(gains) > 0.57
    assert abs(np.mean(anew) - 0.5) < 0.02
    better = np.vstack([np.zeros(60), np.ones(60)])
    credit, choices = program.choose_anew(better, clusters)
    assert credit.tolist() == [1.0] * 60
    assert choices == [1] * 10
    assert len(program.choose_anew(better[:, :4], clusters[:4])[1]) == 2


# Going on, telling beforehand -------------------------------------------------------------------


def test_only_what_is_new_is_judged(selecting, monkeypatch, tmp_path):
    program, config = selecting()
    asked = []
    judge = program.judge_pairs
    monkeypatch.setattr(
        program, "judge_pairs", lambda rater, pairs: asked.append(rater.name) or judge(rater, pairs)
    )
    stop = KeyboardInterrupt()

    def killed(rater, pairs):
        if len(asked) == 2:
            raise stop
        asked.append(rater.name)
        return judge(rater, pairs)

    with monkeypatch.context() as patch:
        patch.setattr(program, "judge_pairs", killed)
        with pytest.raises(KeyboardInterrupt):
            program.main(config)
    assert asked == ["tiny@writerly", "tiny@minimal"]
    program.main(config)
    assert asked[2:] == ["tiny@reddit_minimal"]
    config.templates = [*config.templates, "alternative"]
    program.main(config)
    assert asked[3:] == ["tiny@alternative"]
    config.seed = 1
    config.sample = 50
    program.main(config)
    assert len(asked) == 8
    assert len(list((tmp_path / "out/parts").glob("*.parquet"))) == 4


def test_a_template_of_ones_own_is_judged_again_when_it_changes(selecting, tmp_path, monkeypatch):
    path = tmp_path / "mine.yaml"
    path.write_text("criteria: Go by rhyme.\n")
    program, config = selecting(templates=["writerly", str(path)])
    asked = []
    judge = program.judge_pairs
    monkeypatch.setattr(
        program, "judge_pairs", lambda rater, pairs: asked.append(rater.name) or judge(rater, pairs)
    )
    program.main(config)
    path.write_text("criteria: Go by rhythm.\n")
    program.main(config)
    assert asked == ["tiny@writerly", f"tiny@{path}", f"tiny@{path}"]


def test_all_families_are_tried_when_none_are_named(selecting, tmp_path):
    program, config = selecting(templates=[], answer="label", sample=20)
    program.main(config)
    (found,) = found_in(tmp_path / "out")
    assert sorted(one["template"] for one in found["templates"]) == family_names()
    assert {one["answer"] for one in found["templates"]} == {"label"}
    assert found["agreement"]["n"] == 20
    assert load_template(found["template"], found["answer"]).answer == "label"


def test_a_dry_run_asks_nothing_and_writes_nothing(selecting, capsys, monkeypatch, tmp_path):
    raters = {
        "large": {"kind": "known", "rights": KNOWN, "asks": True},
        "tiny": {"kind": "known", "rights": KNOWN},
    }
    program, config = selecting(raters=raters, dry_run=True)
    with monkeypatch.context() as patch:
        patch.setattr(program, "judge_pairs", None)
        program.main(config)
    said = capsys.readouterr().out
    assert re.search(r"all +720 +0 +3,000 +150 +0\.75 +1\.50 +1\.5\n", said)
    assert "since they run on this machine: tiny" in said
    assert said.count("large@") == 3
    assert not (tmp_path / "out").exists()
    config.dry_run = False
    KnownAsker.folders.clear()
    program.main(config)
    assert KnownAsker.folders == [tmp_path / "out"] * 3
    config.dry_run = True
    program.main(config)
    assert "unchanged" in capsys.readouterr().out


def test_a_dry_run_fetches_no_model(selecting, capsys):
    raters = {
        "large": {"kind": "known", "rights": KNOWN, "asks": True},
        "local": {"kind": "generative", "path": "owner/of-many-gigabytes"},
    }
    program, config = selecting(raters=raters, dry_run=True)
    program.main(config)
    assert "since they run on this machine: local" in capsys.readouterr().out


def test_judges_behind_an_interface_keep_their_answers(
    selecting, program_process, monkeypatch, capsys, tmp_path
):
    pytest.importorskip("inspect_ai")
    from fake_openai import FakeOpenAI, longer_story  # noqa: PLC0415

    with FakeOpenAI(longer_story) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        selection, config = selecting(
            raters={"fake": {"kind": "judge", "model": server.model}},
            templates=["minimal", "writerly"], sample=6, dry_run=True,
        )  # fmt: skip
        selection.main(config)
        assert "fake@writerly" in capsys.readouterr().out
        assert server.requests == 0
        # inspect-ai leaves connections to the end of its process.
        done = program_process(
            "eval/select_template.py", "--pairs", config.pairs, "--out", config.out,
            "--raters.fake.kind", "judge", "--raters.fake.model", server.model,
            "--templates", "[minimal, writerly]", "--sample", "6",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (len(server.answered), sum(server.answered.values())) == (24, 24)
    (found,) = found_in(tmp_path / "out")
    assert {one["coverage"] for one in found["templates"]} == {1.0}
    assert len({one["agreement"]["mean"] for one in found["templates"]}) == 1
    assert found["template"] == "minimal"
    stored = list((tmp_path / "out" / "answers").glob("*.jsonl"))
    assert sum(len(path.read_text().splitlines()) for path in stored) == 24
    # All is there, so a later run of other pairs need not ask about these again.
    config.sample = 7
    selection.main(config)
    assert re.search(r"all +4 +24 ", capsys.readouterr().out)


def test_names_and_texts_cannot_break_the_page(selecting, tmp_path):
    hostile = "<script>alert(1)</script>|`x`"
    program, config = selecting(raters={hostile: {"kind": "known", "rights": KNOWN}})
    program.main(config)
    page = (tmp_path / "out/selection.md").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\|\\`x\\`" in page
