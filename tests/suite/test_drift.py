"""Drift: the plan, its errors, and judges that have changed or not."""

import json
from dataclasses import replace

import pytest
from fake_openai import FakeOpenAI, uncoded
from test_suite import RATED, write_rows

from litbench.cli import main
from litbench.data.sources.registry import import_dataset, read_registry
from litbench.data.text import digest
from litbench.runs.errors import ConfigError, DataError
from litbench.suite.command import Site, Suite, leaderboard_site, suite
from litbench.suite.drift import (
    DriftKeys,
    binomial_p,
    check_drift,
    is_unchanged,
    plan_for,
    simulate,
)
from litbench.suite.passport import Drift, read_passport, write_passport


@pytest.mark.parametrize(("single", "odd", "p"), [(0, 0, 1), (5, 5, 3**-5), (1, 2, 1 - 4 / 9)])
def test_the_single_answer_is_odd_in_a_third(single, odd, p):
    assert binomial_p(single, odd) == pytest.approx(p)


def test_a_change_is_excluded_by_many_equal_answers_only():
    assert not is_unchanged(0, 0, 20, 0.1)
    assert is_unchanged(0, 0, 40, 0.1)
    assert not is_unchanged(4, 4, 40, 0.1)


@pytest.mark.parametrize(("rate", "change"), [(0.0, 0.2), (0.1, 0.2)])
def test_the_plan_finds_its_change_and_raises_no_false_alarm(rate, change):
    plan = plan_for(rate, change)
    assert simulate(rate, change, plan.questions, change, seed=1).power == pytest.approx(
        0.8, abs=0.06
    )
    assert simulate(rate, 0.0, plan.questions, change, seed=1).power <= 0.01
    assert simulate(rate, change, plan.questions // 2, change).power < 0.75
    assert plan.expected < plan.questions


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A suite of a judge with two answers on 60 pairs, of which one of 20 answers errs."""
    folder = tmp_path_factory.mktemp("drift")
    stories, people = [], []
    for prompt in range(20):
        for index in range(3):
            name = f"s{prompt}_{index}"
            story = {"story_id": name, "prompt_id": f"t{prompt}", "prompt": f"Task {prompt}"}
            stories.append(story | {"text": f"{name} tells of rain"})
            people += [{"story_id": name, "rater": f"p{k}", "plot": index + k} for k in range(2)]
    write_rows(folder / "stories.jsonl", stories)
    write_rows(folder / "people.jsonl", people)
    ratings = {key: value for key, value in RATED["ratings"].items() if key != "recorded"}
    files = {"stories.jsonl": {}, "people.jsonl": {}}
    entry = RATED | {"title": "Rated", "files": files, "ratings": ratings}
    (folder / "own.yaml").write_text(json.dumps({"rated": entry}))
    dataset = read_registry(folder / "own.yaml")["rated"]
    import_dataset("rated", dataset, folder / "runs/rated", "", copy=folder)
    with FakeOpenAI(answering(0)):
        suite(suite_of(folder))
    (path,) = (folder / "out/passports").glob("*judge*.json")
    return folder, path


def suite_of(folder):
    shared = {"sets": ["rated"], "data": folder / "runs", "registry": folder / "own.yaml"}
    return Suite(**shared, out=folder / "out", model=[FakeOpenAI.model], samples=2)


def answering(changed):
    """A judge that decides by a hash of the stories, differently in `changed` of 100 questions."""
    times = {}

    def answer(question):
        text = uncoded(question)
        times[text] = times.get(text, 0) + 1
        number = int(digest(text), 16)
        is_other = number % 100 < changed
        errs = int(digest(text, times[text]), 16) % 20 == 0
        return f"So it is.\n\nPreferred: {'AB'[(number // 100 + is_other + errs) % 2]}"

    return answer


@pytest.mark.parametrize(("changed", "result"), [(0, "unchanged"), (60, "changed")])
def test_a_change_is_found_and_greyed(run, changed, result, capsys):
    folder, path = run
    path = path.with_name(f"{result}.json")
    path.write_text(next(iter((folder / "out/passports").glob("*judge*.json"))).read_text())
    keys = {"passport": path, "change": 0.2, "out": folder / result}
    with FakeOpenAI(answering(changed)) as server:
        server.name = "judge-2"
        check_drift(DriftKeys(**keys, dry_run=True))
        assert server.requests == 0
        assert read_passport(path).drift is None
        assert "measured" in capsys.readouterr().out
        check_drift(DriftKeys(**keys))
        asked = server.requests
        check_drift(DriftKeys(**keys))
        assert server.requests == asked, "the answers are stored"
    drift = read_passport(path).drift
    assert (drift.result, drift.answered_by) == (result, ["judge-2"])
    assert drift.questions == asked <= 60
    leaderboard_site(Site(passports=[path], out=folder / f"site_{result}"))
    page = (folder / f"site_{result}/index.html").read_text()
    assert ('class="drifted"' in page) == (result == "changed")
    assert ("changed since" in page) == (result == "changed")


def test_the_passport_names_template_and_returned_model(run):
    passport = read_passport(run[1])
    assert (passport.answered_by, passport.template) == (["judge-1"], "alternative")


def test_drift_stays_in_the_passport_until_all_sets_are_judged_again(run, capsys):
    folder, path = run
    passport = read_passport(path)
    drift = Drift("changed", passport.date, 60, 20, 20, 0.2, 0.0, ["judge-2"])
    write_passport(replace(passport, drift=drift), path)
    suite(suite_of(folder))
    assert read_passport(path) == replace(passport, drift=drift)
    earlier = {name: replace(figures, coverage=0.5) for name, figures in passport.sets.items()}
    write_passport(replace(passport, drift=drift, sets=earlier), path)
    suite(suite_of(folder))
    assert read_passport(path) == passport
    assert "has to check it again" in capsys.readouterr().out


def test_a_passport_from_before_template_and_model_is_recomputed(run, tmp_path, capsys):
    folder, path = run
    keys = {"runs": [folder / "out"], "registry": folder / "own.yaml", "out": tmp_path / "site"}
    content = json.loads(path.read_text())
    del content["template"], content["answered_by"], content["drift"]
    for figures in content["sets"].values():
        del figures["card"]
    (tmp_path / "old.json").write_text(json.dumps(content))
    leaderboard_site(Site(passports=[tmp_path / "old.json"], **keys))
    assert "1 recomputed" in capsys.readouterr().out
    (tmp_path / "old.json").write_text(json.dumps(content | {"template": "minimal"}))
    with pytest.raises(DataError, match=r"answered_by, template"):
        leaderboard_site(Site(passports=[tmp_path / "old.json"], **keys))


def test_what_was_not_asked_cannot_drift(run, monkeypatch):
    folder, path = run
    with pytest.raises(ConfigError, match="asked again"):
        check_drift(DriftKeys(passport=folder / "out/passports/longer.json"))
    other = replace(read_passport(path), rater="other")
    write_passport(replace(other, over_sets=None), folder / "other.json")
    with pytest.raises(ConfigError, match="no rater 'other'"):
        check_drift(DriftKeys(passport=folder / "other.json", run=folder / "out"))
    monkeypatch.setattr("sys.argv", ["litbench", "drift", "--help"])
    with pytest.raises(SystemExit):
        main()
