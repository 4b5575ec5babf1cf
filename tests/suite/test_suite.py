"""The suite: raters on all sets, their passports, the site, and the exports."""

import html
import json
import math
import os
import random
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import yaml
from fake_openai import FakeOpenAI

from litbench.audit.command import Audit, audit
from litbench.cli import main
from litbench.data.sources.registry import import_dataset, read_registry
from litbench.evaluation.results import Evaluation
from litbench.metrics.intervals import ratio_interval
from litbench.metrics.sets import linked_sets, over_sets
from litbench.models.baselines import RandomRater
from litbench.raters.entries import KINDS, Kind
from litbench.raters.interface import Judgement, Rater
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import write_json
from litbench.suite.command import (
    Site,
    Suite,
    _pairs_digest,
    leaderboard_site,
    make_passports,
    suite,
)
from litbench.suite.page import SiteEntry, weaknesses, write_site
from litbench.suite.passport import (
    PassportInterval,
    SetFigures,
    eval_results,
    every_eval_ever,
    figures_text,
    read_passport,
    write_passport,
)

HOSTILE = "<script>alert(1)</script>"
RATED = {
    "language": "en",
    "kind": "stories",
    "judged": "ratings",
    "origin": "https://example.org/owner/rated",
    "files": {"stories.jsonl": {}, "people.jsonl": {}, "judges.jsonl": {}},
    "ratings": {
        "stories": "stories.jsonl",
        "people": {"table": "people.jsonl", "rater": "rater", "values": ["plot"]},
        "recorded": {"table": "judges.jsonl", "rater": "rater", "values": ["plot"]},
    },
}
# Rates of the coin's flags on held-out training stories.
SCOPE = {"stories": 300, "is_prose": 0.01, "like_training": 0.02}
VOTED = {
    "language": "zh",
    "kind": "answers",
    "judged": "votes",
    "origin": "owner/voted:train",
    "files": {"voted.jsonl": {}},
    "pairs": {"pairs": "voted.jsonl", "label_source": "votes"},
}


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A registry with two sets of which people prefer longer stories, and the imported sets."""
    folder = tmp_path_factory.mktemp("suite")
    draw = random.Random(0)
    stories, people, judges, pairs = [], [], [], []
    for prompt in range(8):
        for index in range(4):
            name, words = f"s{prompt}_{index}", draw.randint(5, 30)
            text = " ".join(draw.choice(["moth", "salt", "gate", "river"]) for _ in range(words))
            story = {"story_id": name, "prompt_id": f"t{prompt}", "prompt": f"Task {prompt}"}
            stories.append(story | {"text": f"{name} {text}"})
            rating = lambda noise, mean=words: mean + draw.gauss(0, noise)  # noqa: E731
            people += [{"story_id": name, "rater": f"p{k}", "plot": rating(8)} for k in range(3)]
            judges.append({"story_id": name, "rater": "sharp", "plot": rating(1)})
        for number in range(2):
            texts = [f"{'long ' * 9}{prompt} {number}", f"short {prompt} {number}"]
            chosen, rejected = texts if prompt % 4 else texts[::-1]
            pairs.append({"prompt": f"Ask {prompt}", "chosen": chosen, "rejected": rejected})
    for name, rows in (("stories", stories), ("people", people), ("judges", judges)):
        write_rows(folder / f"{name}.jsonl", rows)
    write_rows(folder / "voted.jsonl", pairs)
    sets = {"rated": RATED | {"title": "Rated"}, "voted": VOTED | {"title": HOSTILE}}
    (folder / "own.yaml").write_text(yaml.safe_dump(sets))
    for name, dataset in read_registry(folder / "own.yaml").items():
        if name in sets:
            import_dataset(name, dataset, folder / "runs" / name, "", copy=folder)
    return folder


def keys_of(home, out):
    """The keys of a suite over the two sets."""
    shared = {"sets": ["rated", "voted"], "data": home / "runs", "registry": home / "own.yaml"}
    return {**shared, "out": out}


@pytest.fixture(scope="module")
def judged(home):
    """The output of a suite with a coin of a hostile name."""
    out = home / "out"
    scope = SimpleNamespace(held_out=SCOPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RandomRater, "scope", scope)
        suite(Suite(**keys_of(home, out), raters={HOSTILE: {"kind": "random"}}))
    return out


def passports_of(out):
    results = [read_passport(path) for path in sorted((out / "passports").glob("*.json"))]
    return {passport.rater: passport for passport in results}


def test_every_rater_has_a_passport_with_the_figures_of_the_benchmark(judged, home):
    result = passports_of(judged)
    assert set(result) == {HOSTILE, "longer", "shorter", "notes", "features", "bag_of_words"}
    rows = json.loads((judged / "sets.json").read_text())
    means = {row["rater"]: row for row in rows["over_sets"]["raters"]}
    for row in rows["rows"]:
        figures = result[row["rater"]].sets[row["set"]]
        assert figures.agreement.mean == row["agreement"]
        assert (figures.agreement.low, figures.agreement.high) == (
            row["agreement_low"],
            row["agreement_high"],
        )
        assert result[row["rater"]].over_sets.mean == means[row["rater"]]["mean"]
    assert result[HOSTILE].scope == SCOPE
    longer = result["longer"]
    assert longer.scope is None
    assert longer.sets["voted"].agreement.mean == 0.75
    assert longer.sets["voted"].people is None
    people = longer.sets["rated"].people
    assert people.annotators == 3
    assert people.relative.mean == pytest.approx(
        (people.agreement.mean - 0.5) / (people.one_annotator.mean - 0.5), abs=1e-5
    )
    assert people.blind_above == ["longer"], "people here judge length alone"
    assert not people.at_chance
    assert set(result["longer"].sets["rated"].beside) == set(result) - {HOSTILE, "longer"}
    text = (judged / "passports/longer.json").read_text()
    assert "moth" not in text, "no texts"
    assert str(home) not in text, "no local paths"


def test_passports_are_deterministic_and_half_of_one_is_refused(judged, tmp_path):
    content = (judged / "passports/longer.json").read_bytes()
    write_passport(read_passport(judged / "passports/longer.json"), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == content
    (tmp_path / "half.json").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"cannot read half\.json"):
        read_passport(tmp_path / "half.json")


def test_figures_that_do_not_follow_from_the_verdicts_are_refused(judged, home, tmp_path):
    passport = read_passport(judged / "passports/shorter.json")
    better = replace(passport.sets["voted"], agreement=passport.sets["rated"].agreement)
    forged = replace(passport, sets={**passport.sets, "voted": better}, over_sets=None)
    write_passport(forged, tmp_path / "forged.json")
    keys = {"out": tmp_path / "site", "registry": home / "own.yaml"}
    leaderboard_site(Site(passports=[tmp_path / "forged.json"], **keys))
    with pytest.raises(
        DataError, match=r"does not match the verdicts in .* \(sets.voted, sets, over_sets\)"
    ):
        leaderboard_site(Site(passports=[tmp_path / "forged.json"], runs=[judged], **keys))
    both = [tmp_path / "forged.json", judged / "passports/shorter.json"]
    with pytest.raises(DataError, match="different passports of shorter"):
        leaderboard_site(Site(passports=both, **keys))
    content = json.loads((judged / "passports/shorter.json").read_text())
    del content["sets"]["voted"]["coverage"]
    write_json(content, tmp_path / "other.json")
    with pytest.raises(DataError, match=r"'sets\.voted\.coverage' is missing"):
        read_passport(tmp_path / "other.json")


SET = ("sets", "voted")
AGREEMENT = (*SET, "agreement")
# Invalid values by the path of their key in a passport.
INVALID = [
    ((*AGREEMENT, "mean"), 7.5),
    ((*AGREEMENT, "mean"), None),
    ((*AGREEMENT, "mean"), math.nan),
    ((*AGREEMENT, "low"), 0.99),
    ((*AGREEMENT, "low"), None),
    ((*AGREEMENT, "high"), -0.1),
    ((*AGREEMENT, "n"), -5),
    ((*AGREEMENT, "n"), 0),
    ((*AGREEMENT, "clusters"), 1_000),
    ((*AGREEMENT, "effective_clusters"), 1_000.0),
    ((*SET, "minus_reference", "mean"), -1.5),
    ((*SET, "chosen_longer", "high"), 1.5),
    ((*SET, "beside", "longer", "mean"), 2.0),
    ((*SET, "coverage"), 1.5),
    ((*SET, "coverage"), math.inf),
    ((*SET, "p_value"), -0.1),
    ((*SET, "outcomes"), {"chosen": -1}),
    ((*SET, "trained_on_prompts"), -1),
    ((*SET, "pairs_sha256"), "../x"),
    ((*SET, "language"), "../../x"),
    ((*SET, "language"), "/x"),
    ((*SET, "kind"), "en"),
    ((*SET, "judged"), "machines"),
    ((*SET, "group"), "a\nb"),
    (("sets", "rated", "people", "annotators"), 1),
    (("sets", "rated", "people", "one_annotator", "mean"), 3.0),
    (("sets", "rated", "people", "blind_above"), ["\u202e"]),
    (("rater",), ""),
    (("rater",), "x" * 1_000),
    (("rater",), "longer\u200b"),
    (("reference",), "lon\x1b[2Jger"),
    (("max_pairs",), 0),
    (("sets",), {}),
    (("files",), {"model": "none"}),
    (("cost_usd",), -1.0),
    (("cost_usd",), math.nan),
    (("input_tokens",), -1),
    (("date",), "yesterday"),
    (("date",), "2026-01-01T00:00:00+00:00<b>"),
    (("over_sets", "mean"), 0.9),
    (("over_sets", "sets"), ["voted"]),
    (("over_sets", "sets"), ["voted", "other"]),
    (("over_sets", "rater"), "longer"),
    (("over_sets",), {}),
    (("over_sets", "minus_reference", "low"), 0.99),
    (("version",), 2),
]


@pytest.mark.parametrize(("path", "value"), INVALID, ids=[".".join(path) for path, _ in INVALID])
def test_invalid_passports_are_refused(path, value, judged, tmp_path):
    content = json.loads((judged / "passports/shorter.json").read_text())
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    assert inner[path[-1]] != value
    inner[path[-1]] = value
    write_json(content, tmp_path / "edited.json")
    with pytest.raises(DataError, match=r"edited\.json"):
        leaderboard_site(Site(passports=[tmp_path / "edited.json"], out=tmp_path / "site"))
    assert [path.name for path in tmp_path.iterdir()] == ["edited.json"]


@pytest.mark.parametrize("name", ["Longer", "l\u043enger", "\uff4conger", "1onger"])
def test_names_that_look_alike_are_refused(name, judged, tmp_path):
    original = judged / "passports/longer.json"
    write_passport(
        replace(read_passport(original), rater=name, over_sets=None), tmp_path / "x.json"
    )
    with pytest.raises(DataError, match="look like"):
        leaderboard_site(Site(passports=[original, tmp_path / "x.json"], out=tmp_path / "site"))


@pytest.mark.parametrize(
    "changes",
    [{"options": {"seed": 1}}, {"cost_usd": 0.5}, {"date": "2020-01-01T00:00:00+00:00"}],
)
def test_facts_that_do_not_follow_from_the_run_are_refused(changes, judged, home, tmp_path):
    passport = replace(read_passport(judged / "passports/shorter.json"), **changes)
    write_passport(passport, tmp_path / "x.json")
    site = Site(
        passports=[tmp_path / "x.json"],
        runs=[judged],
        registry=home / "own.yaml",
        out=tmp_path / "site",
    )
    with pytest.raises(DataError, match=rf"does not match .* \({next(iter(changes))}\)"):
        leaderboard_site(site)


def test_the_digest_of_a_set_covers_its_texts(judged):
    pairs = Evaluation.find(judged / "voted").pairs.headline
    digests = {_pairs_digest(pairs)}
    for name in ("prompt", "chosen", "rejected"):
        texts = pa.array([*pairs[name].to_pylist()[:-1], "altered"], pa.large_string())
        index = pairs.column_names.index(name)
        digests.add(_pairs_digest(pairs.set_column(index, name, texts)))
    assert len(digests) == 4


def test_the_findings_of_an_audit_are_in_the_passport(judged, home, tmp_path):
    folder = home / "runs/voted/audit"
    datasets = read_registry(home / "own.yaml")
    try:
        audit(Audit(pairs=str(home / "runs/voted/pairs"), out=folder))
        (passport,) = [
            passed for passed in make_passports(judged, datasets) if passed.rater == "longer"
        ]
        assert passport.sets["voted"].audit
        assert passport.sets["rated"].audit is None
        write_passport(passport, tmp_path / "longer.json")
        # Figures are computed again without what the audit says, here that of no set.
        shutil.rmtree(folder)
        keys = {"runs": [judged], "registry": home / "own.yaml", "out": tmp_path / "site"}
        leaderboard_site(Site(passports=[tmp_path / "longer.json"], **keys))
        page = html.unescape((tmp_path / "site/index.html").read_text(encoding="utf-8"))
        assert passport.sets["voted"].audit[0] in page
        audit(Audit(pairs=str(home / "runs/rated/pairs"), out=folder))
        with pytest.raises(DataError, match="audit of other pairs"):
            make_passports(judged, datasets)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def site(judged, home):
    """The site of the passports, with figures computed again."""
    files = sorted((judged / "passports").glob("*.json"))
    keys = {"runs": [judged], "registry": home / "own.yaml", "out": home / "site"}
    leaderboard_site(Site(passports=files, **keys))
    return home / "site"


def test_the_site_has_pages_by_language_and_kind_and_of_each_rater(site, judged):
    pages = {path.name for path in site.glob("*.html")}
    filters = {"index.html", "en.html", "zh.html", "stories.html", "answers.html"}
    assert filters | {"en_stories.html", "zh_answers.html"} < pages
    assert len(pages) == 7 + 6
    index = (site / "index.html").read_text()
    for page in pages:
        text = (site / page).read_text()
        assert "<script" not in text
    assert index.count("recomputed") == 6
    chinese = (site / "zh.html").read_text()
    assert "0.750" in chinese
    assert "Rated" not in chinese
    assert "content-blind: longer agrees" in index
    result = passports_of(judged)
    assert any(
        text.startswith("Significantly worse than longer") for text in weaknesses(result["shorter"])
    )
    assert (
        weaknesses(result["longer"])[0].startswith("No better than a rater that does not read")
        is False
    )


def test_a_rater_without_information_is_called_so_on_the_site(judged, tmp_path):
    passport = passports_of(judged)["shorter"]
    voted = replace(passport.sets["voted"], outcomes={"tie": 16})
    blind = replace(passport, sets=passport.sets | {"voted": voted})
    entry = SiteEntry(blind, "", is_recomputed=False)
    write_site([entry], tmp_path)
    warning = "shorter on voted: no information about the stories: it prefers neither story in 16"
    for name in ("index.html", "zh.html", entry.address):
        text = (tmp_path / name).read_text()
        assert warning in text
        assert "no information</" in text
    assert "no information" not in (tmp_path / "en.html").read_text()


def test_exports_give_the_same_figures(site, judged):
    for rater, passport in passports_of(judged).items():
        record = every_eval_ever(passport)
        values = {
            result["evaluation_result_id"]: result["score_details"]
            for result in record["evaluation_results"]
        }
        for name, figures in passport.sets.items():
            details = values[f"{name}/agreement"]
            assert round(details["score"], 6) == figures.agreement.mean
            bounds = details["uncertainty"]["confidence_interval"]
            assert (bounds["lower"], bounds["upper"]) == (
                figures.agreement.low,
                figures.agreement.high,
            )
        assert {
            result["dataset"]["task_id"]: result["value"]
            for result in eval_results(passport, "me/suite")
        } == {name: figures.agreement.mean for name, figures in passport.sets.items()}
        (entry,) = eval_results(passport)
        assert entry["dataset"] == {"id": "owner/voted", "task_id": "voted"}, (
            "the other is not on the Hub"
        )
        if "EVERY_EVAL_EVER" in os.environ:
            import jsonschema  # noqa: PLC0415

            schema = json.loads(
                (Path(os.environ["EVERY_EVAL_EVER"]) / "eval.schema.json").read_text()
            )
            jsonschema.validate(record, schema)
        del rater
    (file,) = site.glob("exports/longer/.eval_results/*.yaml")
    assert yaml.safe_load(file.read_text()) == eval_results(passports_of(judged)["longer"])


class Clear(Rater):
    """A judge that sees which story is good."""

    kind, name = "judge", "clear"

    def judge(self, pairs):
        return [[Judgement("first" if "good" in pair.first else "second")] for pair in pairs]


@dataclass
class ClearOptions:
    def load(self, name):
        del name
        return Clear()


def test_a_judge_stops_early_and_its_passport_says_so(home, tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "judge", Kind(ClearOptions))
    rows = [
        {
            "prompt": f"Ask {prompt}",
            "chosen": f"good {prompt} {number} " + "and long " * (number + prompt % 2),
            "rejected": f"poor {prompt} {number} and",
        }
        for prompt in range(40)
        for number in range(3)
    ]
    write_rows(tmp_path / "wide.jsonl", rows)
    shutil.copytree(home / "runs/rated", tmp_path / "runs/rated")
    wide = VOTED | {"files": {"wide.jsonl": {}}, "pairs": VOTED["pairs"] | {"pairs": "wide.jsonl"}}
    sets = {"rated": RATED | {"title": "Rated"}, "wide": wide | {"title": "Wide"}}
    registry = tmp_path / "own.yaml"
    registry.write_text(yaml.safe_dump(sets))
    datasets = read_registry(registry)
    import_dataset("wide", datasets["wide"], tmp_path / "runs/wide", "", copy=tmp_path)
    keys = {"data": tmp_path / "runs", "registry": registry, "out": tmp_path / "out"}
    keys |= {"sets": ["rated", "wide"], "raters": {"clear": {"kind": "judge"}}}
    with pytest.raises(ConfigError, match="against"):
        suite(Suite(**keys, until="decided", against="1/2"))
    suite(Suite(**keys, until="decided"))
    passports = passports_of(tmp_path / "out")
    clear, longer = passports["clear"].sets, passports["longer"].sets
    stop = clear["wide"].stop
    assert (stop.reason, stop.plan["against"]) == ("decided", "longer")
    assert stop.looks[-1]["pairs"] < 120
    assert stop.judged == f"{stop.looks[-1]['pairs']} of 120 pairs"
    assert clear["wide"].minus_reference.low > 0
    assert (clear["rated"].stop.judged, longer["wide"].stop) == ("", None)
    assert longer["wide"].agreement.n == 120
    assert longer["wide"].pairs_sha256 == clear["wide"].pairs_sha256
    mark = f"stopped: {stop.judged}"
    assert mark in {row[0]: row[1] for row in figures_text(clear)}["wide"]
    assert [mark in entry["notes"] for entry in eval_results(passports["clear"], "me/suite")] == [
        False,
        True,
    ]
    details = [
        result["score_details"]["details"]
        for result in every_eval_ever(passports["clear"])["evaluation_results"]
        if result["evaluation_result_id"] == "wide/agreement"
    ]
    assert json.loads(details[0]["until_decided"])["looks"] == stop.looks
    summary = (tmp_path / "out/sets.md").read_text()
    assert mark in summary
    assert "clear (stopped early)" in summary
    files = list((tmp_path / "out/passports").glob("*.json"))
    site = {"runs": [tmp_path / "out"], "registry": registry, "out": tmp_path / "site"}
    leaderboard_site(Site(passports=files, **site))
    # In the table of raters, and set by set.
    assert html.unescape((tmp_path / "site/index.html").read_text()).count(mark) == 2


def test_recorded_judges_have_passports(home, tmp_path):
    suite(Suite(**keys_of(home, tmp_path), recorded=True))
    (sharp,) = passports_of(tmp_path).values()
    assert (sharp.rater, sharp.kind, list(sharp.sets)) == ("sharp", "recorded", ["rated"])
    board = json.loads((tmp_path / "rated/leaderboard.json").read_text())
    assert sharp.sets["rated"].agreement.mean == board[0]["agreement"]["mean"]
    people = json.loads((tmp_path / "rated/annotators.json").read_text())["raters"][0]
    assert sharp.sets["rated"].people.relative.mean == people["relative"]["mean"]


def test_the_command_draws_lists_and_refuses(home, tmp_path, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["litbench", "suite", *map(str, arguments)])
        main()
        return capsys.readouterr().out

    options = ["--registry", home / "own.yaml", "--data", home / "runs", "--out", tmp_path / "out"]
    listed = run("--list", *options)
    assert "rated" in listed
    assert "hanna" in listed
    assert "storyer_cut" not in listed
    run(*options, "--sets", "rated", "--max_pairs", 10)
    figures = passports_of(tmp_path / "out")["longer"]
    assert figures.max_pairs == 10
    assert figures.sets["rated"].agreement.n <= 10
    with pytest.raises(SystemExit):
        run(*options, "--sets", "rate")
    with pytest.raises(ConfigError, match="is a baseline"):
        suite(Suite(**keys_of(home, tmp_path / "x"), raters={"longer": {"kind": "shorter"}}))


def test_sets_that_share_prompts_are_one_cluster():
    groups = linked_sets({"a": {"1", "2"}, "b": {"3"}, "c": {"4"}, "d": {"2", "3"}})
    assert groups == {"a": "a", "b": "a", "c": "c", "d": "a"}
    values = {"a": 0.6, "b": 0.7, "c": 0.5, "d": 0.8}
    rows = [
        {"set": name, "rater": rater, "agreement": value + lead, "trained_on": 0}
        for name, value in values.items()
        for rater, lead in (("x", 0.1), ("y", 0.0))
    ]
    alone, linked = (
        over_sets(rows, ["x", "y"], "y", clusters)["raters"][0] for clusters in ({}, groups)
    )
    assert alone["mean"] == linked["mean"] == 0.75
    assert linked["high"] - linked["low"] > alone["high"] - alone["low"]
    assert alone["minus_reference"]["mean"] == 0.1


def test_relative_agreement_is_a_ratio_with_an_interval_that_covers():
    draw = np.random.default_rng(0)
    clusters = np.repeat(np.arange(40), 5)
    covered = 0
    for _ in range(300):
        shift = draw.normal(0, 0.1, 40)[clusters]
        first = (draw.random(200) < 0.65 + shift) - 0.5
        other = (draw.random(200) < 0.7 + shift) - 0.5
        interval = ratio_interval(other, first, clusters)
        covered += not interval.low > 0.2 / 0.15 and not interval.high < 0.2 / 0.15
    assert 270 <= covered <= 297
    assert ratio_interval(first, first, clusters).mean == 1
    coin = (draw.random(200) < 0.5) - 0.5
    assert math.isnan(ratio_interval(other, coin, clusters).low), "no bounds if people are a coin"


# inspect-ai calls tenacity by a name that it deprecates.
@pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning")
def test_inspect_gives_the_same_figures(home, tmp_path):
    inspect_ai = pytest.importorskip("inspect_ai")
    pytest.importorskip("openai")
    from litbench.suite import tasks  # noqa: PLC0415

    keys = keys_of(home, tmp_path / "out")
    with FakeOpenAI() as server:
        suite(Suite(**keys, model=[server.model]))
        task = tasks.suite(
            sets="rated,voted", data=str(keys["data"]), registry=str(keys["registry"])
        )
        (log,) = inspect_ai.eval(
            task,
            model=inspect_ai.model.get_model(server.model, memoize=False),
            log_dir=str(tmp_path / "logs"),
            log_level="error",
            display="none",
        )
    assert log.status == "success", [
        sample.error.message for sample in log.samples if sample.error
    ][:1]
    metrics = {
        score.name: {metric.name: metric.value for metric in score.metrics.values()}
        for score in log.results.scores
    }
    passport = passports_of(tmp_path / "out")[server.model]
    for name, figures in passport.sets.items():
        assert metrics["agreement"][name] == pytest.approx(figures.agreement.mean, abs=1e-6)
        assert metrics["flip_rate"][name] == pytest.approx(figures.flip_rate.mean, abs=1e-6)
        assert metrics["position_bias"][name] == pytest.approx(figures.position_bias.mean)
        assert metrics["coverage"][name] == figures.coverage == 1
    mean = passport.over_sets.mean
    assert metrics["agreement"]["all"] == pytest.approx(mean, abs=1e-6)


# Last, since the browser keeps an event loop running until the end of the file.
@pytest.mark.parametrize("width", [1200, 360])
def test_the_site_fits_a_screen(site, open_page, width):
    page = open_page(viewport={"width": width, "height": 800})
    for file in site.glob("*.html"):
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), file.name
    page.goto((site / "index.html").as_uri())
    page.click("text=Chinese >> nth=0")
    assert "LitBench suite: Chinese" in page.title()
    page.click("table a >> nth=0")
    page.locator("text=Weaknesses >> nth=0").wait_for()
    assert not page.console, "nothing broke the content security policy"


def test_a_card_shows_the_figures_of_a_passport():
    estimate = PassportInterval(0.75, 0.6, 0.85, 20, 5, 5.0)
    nothing = dict.fromkeys(("minus_reference", "p_value", "flip_rate", "position_bias", "people"))
    figures = SetFigures(
        **nothing,
        **dict.fromkeys(("agreement", "chosen_longer", "chosen_shorter"), estimate),
        **dict.fromkeys(("title", "language", "kind", "judged", "origin", "group"), "x"),
        **dict.fromkeys(("licence", "revision")),
        pairs_sha256="0",
        coverage=1.0,
        outcomes={},
        trained_on_prompts=0,
        beside={"longer": estimate},
    )
    share = "0.750 [0.600, 0.850]"
    assert figures_text({"a|set": figures}) == [["a|set", share, share, "–"]]
