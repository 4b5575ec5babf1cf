"""The tasks of inspect-ai: grades as those of `litbench run`, what is unscored, errors."""

import asyncio
import gc
import json
import math
import tomllib
import warnings
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import chinese_writers as chinese
import narra_script
import pyarrow.parquet as pq
import pytest
from fake_openai import FakeOpenAI, longer_story, messages_of
from test_run_command import rate_text, write_text

from litbench.data.tables import write_table
from litbench.writers.run import Run, run

inspect_ai = pytest.importorskip("inspect_ai")
pytest.importorskip("openai")
tasks = pytest.importorskip("litbench.inspect_tasks")
resolve_scorers = pytest.importorskip("inspect_ai._eval.score").resolve_scorers
# inspect-ai 0.3.285 uses an argument that tenacity 9.1 deprecates.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The 'initial' parameter is deprecated:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def _leaving_connections():
    """Ignore the connections and loops that inspect-ai leaves open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def evaluate(task, folder, **options):
    """Run a task as `inspect eval` does, with the server's models; returns its log."""
    # A memoised model would keep the address of an earlier test's server.
    models = {
        name: inspect_ai.model.get_model(FakeOpenAI.model_called(model), memoize=False)
        for name, model in (("model", "writer"), ("judge", "grader"), ("reader", "player"))
    }
    arguments = {"model": models.pop("model"), "model_roles": models, **options}
    (log,) = inspect_ai.eval(
        task,
        log_dir=str(folder / "logs"),
        display="none",
        log_level="error",
        max_retries=1,
        **arguments,
    )
    return log


def serve(writer, grader, player=narra_script.reader):
    """A server with a writer, a judge and a reader."""
    others = {"writer": writer, "grader": grader, "player": player}
    return FakeOpenAI(others=others, question_of=messages_of)


def options_of(protocol, folder):
    """Options for a few small items, as the command line gives them."""
    if protocol == "webnovel":
        return {"books": str(chinese.write_books(folder / "books.json", chapters=3))}
    if protocol == "tow":
        gap = {"task": "completion", "information": "前文。[fill_in the  Blank]后文。"}
        path = folder / "instructions.parquet"
        return {"instructions": str(chinese.write_instructions(path, [{}, gap]))}
    return {"chapters": 2} if protocol == "longform" else {}


SPEAKERS = {
    "longform": (write_text, rate_text),
    "webnovel": (chinese.answer, chinese.answer),
    "tow": (chinese.answer, chinese.answer),
    "narra": (narra_script.writer, narra_script.judge),
}


@pytest.mark.parametrize("protocol", SPEAKERS)
def test_grades_are_those_of_litbench_run(protocol, tmp_path):
    options = options_of(protocol, tmp_path)
    with serve(*SPEAKERS[protocol]):
        log = evaluate(getattr(tasks, protocol)(**options), tmp_path, limit=2)
        assert log.status == "success"
        items = [sample.id for sample in log.samples]
        writer, judge, reader = map(FakeOpenAI.model_called, ("writer", "grader", "player"))
        run(
            Run(
                protocol,
                tmp_path / "out",
                {"w": writer},
                {"judge": judge},
                {"reader": reader} if protocol == "narra" else {},
                options,
                items,
            )
        )
    results = {
        (sample.id, name): grade
        for sample in log.samples
        for name, grade in sample.scores["litbench/grade"].metadata["grades"].items()
    }
    expected = {
        (item, f"{quantity} by {rater}" if rater else quantity): grade
        for (_, item, rater, quantity), (grade, _) in chinese.grades_of(tmp_path / "out").items()
    }
    assert len(expected) > 5
    ratings = {
        (row["story_id"], row["criterion"]): row["rating"]
        for row in pq.read_table(tmp_path / "out/ratings.parquet").to_pylist()
        if row["criterion"] is not None and row["rating"] is not None
    }
    assert results == {key: pytest.approx(grade, abs=1e-9) for key, grade in expected.items()}
    headline = json.loads((tmp_path / "out/manifest.json").read_text())["counts"]["headline"]
    for sample in log.samples:
        value = sample.scores["litbench/grade"].value
        assert value[headline] == results[sample.id, f"{headline} by judge"]
        assert value.keys() == log.samples[0].scores["litbench/grade"].value.keys()
        means = defaultdict(list)
        for (story, criterion), rating in ratings.items():
            if story.split("/")[1] == sample.id:
                means[criterion].append(rating)
        assert {name: mean for name, mean in value.items() if name in means} == {
            name: pytest.approx(fmean(grades)) for name, grades in means.items()
        }
        assert value.keys() >= means.keys()
        assert sample.messages[0].text.startswith("[to ")


def test_epochs_are_samples_and_another_judge_rates_without_a_writer(tmp_path):
    """Every text is judged twice, by the scorer that `inspect score` makes from the log."""
    with serve(write_text, rate_text) as server:
        task = tasks.longform(chapters=1, judge_samples=2)
        log = evaluate(task, tmp_path, limit=1, epochs=2)
        assert server.requests == 2 * (6 + 4)
        another = inspect_ai.model.get_model(FakeOpenAI.model, memoize=False)
        server.answers["judge"] = rate_text
        # inspect-ai replaces `asyncio.run` by one that leaves its loop open.
        with asyncio.Runner() as runner:
            rated = runner.run(
                inspect_ai.score_async(
                    log, resolve_scorers(log), action="append", model_roles={"judge": another}
                )
            )
        assert {body["model"] for body in server.bodies.values()} >= {"writer", "judge"}
        assert server.requests == 2 * (6 + 4) + 2 * 4
    names = [score.name for score in rated.results.scores]
    assert len(names) == 2 * len(set(names))
    assert {"overall", "overall spread", "Pacing"} <= set(names)


def test_a_failed_sample_makes_the_log_an_error_and_others_go_on(tmp_path):
    def write(question):
        return "too short" if "lighthouse keeper" in question else write_text(question)

    with serve(write, rate_text):
        log = evaluate(tasks.longform(chapters=1), tmp_path, limit=3)
    assert log.status == "error"
    scores = {sample.id: sample.scores for sample in log.samples}
    assert sum(bool(score) for score in scores.values()) == 2
    (error,) = (sample.error.message for sample in log.samples if sample.error)
    assert "5 answers are shorter than 500 characters" in error


def test_a_judge_has_to_be_named(tmp_path):
    with serve(write_text, rate_text) as server:
        log = evaluate(tasks.longform(chapters=1), tmp_path, limit=1, model_roles={})
        assert server.requests == 0, "the writer does not judge itself"
    assert log.status == "error"


def test_a_text_that_is_not_graded_is_unscored(tmp_path):
    with serve(write_text, lambda _: "I would rather not."):
        log = evaluate(tasks.longform(chapters=1), tmp_path, limit=1)
    assert all(map(math.isnan, log.samples[0].scores["litbench/grade"].value.values()))
    assert {score.unscored_samples for score in log.results.scores} == {1}


def test_preference(tmp_path, pair_table):
    """Pairs whose longer story is chosen or not; one is declined, one judged in one order."""
    rows = [
        {"prompt": f"prompt {k}", "chosen": "long story " * (20 + k), "rejected": f"short {k}"}
        for k in range(6)
    ]
    rows[0] |= {"chosen": rows[0]["rejected"], "rejected": rows[0]["chosen"]}
    write_table(pair_table(rows), tmp_path / "pairs.parquet")
    asked = set()

    def judge(question):
        if "prompt 1" in question:
            return "I would rather not."
        first = "prompt 2" not in question or not asked
        asked.update(["2"] if "prompt 2" in question else [])
        if "prompt 3" in question:
            return "The first.\n\nPreferred: A"
        return longer_story(question) if first else "I would rather not."

    with serve(judge, judge) as server:
        task = tasks.preference(str(tmp_path / "pairs.parquet"), template="writerly")
        log = evaluate(task, tmp_path, max_connections=1)
        assert server.requests == 12 + 3, "unread answers are asked for once more"
    assert log.status == "success"
    values = {sample.input[-1]: sample.scores["litbench/verdicts"].value for sample in log.samples}
    names = ("agreement", "flip_rate", "position_bias", "coverage")
    results = {k: tuple(value[name] for name in names) for k, value in values.items()}
    assert results["0"] == (0.0, 0.0, 0.5, 1.0)
    assert results["3"] == (0.5, 1.0, 1.0, 1.0)
    assert results["4"] == results["5"] == (1.0, 0.0, 0.5, 1.0)
    assert all(map(math.isnan, results["1"][:3]))
    assert results["1"][3] == 0
    assert (results["2"][0], results["2"][3], math.isnan(results["2"][1])) == (1.0, 0.5, True)
    metrics = {score.name: score.metrics for score in log.results.scores}
    assert metrics["agreement"]["mean"].value == pytest.approx(3.5 / 5)
    assert metrics["coverage"]["mean"].value == pytest.approx(4.5 / 6)


def test_tasks_are_an_entry_point():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["inspect_ai"] == {
        "litbench": "litbench.inspect_tasks"
    }
