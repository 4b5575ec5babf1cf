"""Studies whose readers rate stories: plan, assignment, pages, export and what reads it."""

import itertools
import json
import re
from collections import Counter, defaultdict

import pyarrow.parquet as pq
import pytest
from study_folder import TEXTS, begin, command, hidden, join, rating_folder, serving

from litbench.data.records import GRADES, RATINGS, STORIES
from litbench.data.tables import read_table
from litbench.runs.config import build
from litbench.runs.errors import ConfigError
from litbench.study.make import StudyMaking
from litbench.study.pairs import PairStudy
from litbench.study.ratings import CHECK, RatingStore, right_number
from litbench.study.simulation import SimulatedReaders, visit_study

pytest.importorskip("fastapi")
TestClient = pytest.importorskip("starlette.testclient").TestClient
SCRIPT = "<script>alert(1)</script>&amp;"


@pytest.fixture
def make(tmp_path, load_program):
    """Write a study of stories by some writers: `make(prompts=3, writers=4, ...)`."""

    def write(prompts=3, writers=4, **plan):
        program = load_program("litbench study make")
        return rating_folder(tmp_path / "study", program, prompts, writers, **plan)

    return write


def rate(store, reader, page, number=4, *, is_careful=True):
    """Rate a page's story by the same number everywhere, and follow the attention check or not."""
    arguments = {}
    for line in store.study.lines(page) if page.kind != "submit" else []:
        arguments[line.field] = float(number)
        if line.field == CHECK:
            wrong = next(n for n, _ in line.options if n != right_number(line))
            arguments[CHECK] = right_number(line) if is_careful else wrong
    store.answer(reader, page.place, json.dumps(arguments))


def rate_all(store, reader, **how):
    while (page := store.next_page(reader)) is not None:
        rate(store, reader, page, **how)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"kind": "ratings"}, "rubric is missing"),
        ({"kind": "ratings", "rubric": "story", "pairs_per_reader": 3}, "key of the kind pairs"),
        ({"rubric": "story"}, "rubric is a key of the kind ratings"),
    ],
)
def test_keys_of_another_kind(plan, message):
    with pytest.raises(ConfigError, match=message):
        build(StudyMaking, {**TEXTS, "out": "study", **plan})


def test_a_study_is_opened_as_its_kind(make):
    with pytest.raises(ConfigError, match="kind ratings"):
        PairStudy.open(make().folder)


def test_stories_and_positions_are_balanced(make):
    study = make(prompts=4, writers=5, readers_per_story=10, groups_per_reader=2, max_starting=21)
    assert study.estimate()["readers"] == 20
    store = RatingStore(study)
    for at in range(20):
        begin(store, f"r{at}")
        loads = Counter(
            row[0] for row in store._all("select pair_id from choices where kind <> 'submit'")
        )
        by_prompt = defaultdict(set)
        for name, story in study.by_id.items():
            by_prompt[story["prompt_id"]].add(loads[name])
        assert all(max(counts) - min(counts) <= 1 for counts in by_prompt.values())
    counts = store._all(
        "select count(*) from choices where kind <> 'submit' group by pair_id, \"order\""
    )
    assert [row[0] for row in counts] == [2] * 4 * 5 * 5
    assert begin(store, "late") is None
    assert store.state("late") == "waiting"
    checks = store._all("select count(*) from choices where kind = 'checked' group by number")
    assert [row[0] for row in checks] == [1] * 20


def test_ratings_change_until_the_group_is_submitted(make):
    store = RatingStore(make(prompts=2, writers=3, groups_per_reader=2))
    first = begin(store, "r")
    rate(store, "r", first, 2)
    rate(store, "r", first, 5)
    second = store.next_page("r")
    assert second.order == "2"
    assert [not choice for _, choice in store.group("r", second)] == [False, True, True]
    while (page := store.next_page("r")).kind != "submit":
        rate(store, "r", page)
    rate(store, "r", second, 1)
    rate(store, "r", page)
    for number in (2, 3):
        rate(store, "r", first, number)
    rate_all(store, "r")
    rows = {row["place"]: row for row in store.answers().to_pylist()}
    means = [set(json.loads(rows[item.place]["ratings"]).values()) for item in (first, second)]
    assert means == [{5.0}, {1.0}]
    assert len(rows) == 6
    assert store.states() == {"finished": 1}


def test_answers_that_are_none(make):
    store = RatingStore(make())
    page = begin(store, "r")
    lines = store.study.lines(page)
    whole = {line.field: 3.0 for line in lines}
    for form in ({}, whole | {"rating0": 99.0}, whole | {"other": 1.0}):
        with pytest.raises(ValueError, match=r"no such answer|not rated"):
            store.answer("r", page.place, json.dumps(form))
    assert store.answers().num_rows == 0


def test_a_reader_who_left_keeps_what_was_rated(make):
    now = itertools.count(0.0, 1000.0).__next__
    store = RatingStore(make(prompts=1, writers=4, readers_per_story=1, release_minutes=5), now=now)
    rate(store, "gone", begin(store, "gone"))
    rate(store, "late", begin(store, "late"))
    rate_all(store, "late")
    assert set(store.progress().values()) == {(1, 0)}
    assert store.next_page("gone") is None
    assert store.states() == {"finished": 1, "left": 1}


@pytest.fixture
def browser(make):
    """A browser without scripts: `browser(prompts=2, ...)`, with its store."""
    from litbench.study.server import make_app  # noqa: PLC0415

    def build(**plan):
        study = make(**plan)
        client = TestClient(make_app(RatingStore(study), ["testserver"]))
        client.study, client.store = study, RatingStore(study)
        return client

    return build


def chosen(page, number):
    asked = re.search(r"choose (\d+) here", page.text)
    check = {CHECK: asked[1]} if asked else {}
    return (
        hidden(page) | dict.fromkeys(re.findall(r'name="(rating\d+)"', page.text), number) | check
    )


def test_from_the_first_story_to_the_code(browser):
    client = browser(prompts=1, writers=3, asks_reason=True)
    page = join(client)
    assert "Text 1" in page.text
    # What is left out is asked for, and the rest is kept.
    some = {**chosen(page, "2"), "reason": "because"}
    del some["rating0"]
    again = client.post("/answer", data=some)
    assert again.status_code == 422
    assert "choose a number in every line" in again.text
    assert again.text.count(" checked>") == len(client.study.rubric.criteria) - 1 + (CHECK in some)
    assert "because" in again.text
    page = client.post("/answer", data=chosen(again, "2") | {"reason": "because"})
    back = client.get(re.search(r'<a href="(/read\?page=\d+)">', page.text)[1])
    assert back.text.count(" checked>") >= len(client.study.rubric.criteria)
    page = client.post("/answer", data=chosen(back, "5"))
    assert "Text 2" in page.text
    for _ in range(2):
        page = client.post("/answer", data=chosen(page, "3"))
    assert "Submit these ratings?" in page.text
    end = client.post("/answer", data=hidden(page))
    assert TEXTS["completion_code"] in end.text
    stale = client.post("/answer", data=chosen(back, "1"))
    assert TEXTS["completion_code"] in stale.text
    rows = client.store.answers().sort_by("position").to_pylist()
    assert [set(json.loads(row["ratings"]).values()) for row in rows] == [{5.0}, {3.0}, {3.0}]


def test_pages_are_blind_and_show_texts_as_text(browser):
    client = browser(prompts=2, writers=3, prompt=SCRIPT, story=SCRIPT)
    page = join(client)
    while 'class="criterion"' in page.text:
        assert SCRIPT not in page.text
        assert "&lt;script&gt;" in page.text
        for word in ("writer-", "story-", *client.study.groups):
            assert word not in page.text
        page = client.post("/answer", data=chosen(page, "3"))


def test_export_is_read_by_writers_and_import_ratings(make, load_program, tmp_path, capsys):
    study = make(prompts=3, writers=4, readers_per_story=4, groups_per_reader=3)
    store = RatingStore(study)
    for at in range(4):
        begin(store, f"r{at}")
        rate_all(store, f"r{at}", number=at + 1, is_careful=at != 3)
    assert store.left_out() == {"failed the attention check": 1}
    store.close()
    command(["export", str(study.folder)])
    out = study.folder / "export"
    ratings = read_table(out / "ratings.parquet", RATINGS)
    criteria = len(study.rubric.criteria)
    assert ratings.num_rows == 3 * 12 * (criteria + 1)
    assert pq.read_metadata(out / "answers.parquet").num_rows == 4 * 12
    assert {row["rating"] for row in ratings.to_pylist()} == {1.0, 2.0, 3.0}
    assert read_table(out / "stories.parquet", STORIES).num_rows == 12
    assert read_table(out / "grades.parquet", GRADES).num_rows == ratings.num_rows
    assert not any(name.encode() == b"r1" for name in ratings["rater"].to_pylist())
    # The leaderboard of writers, by people.
    writers = load_program("litbench writers compare")
    writers.main(build(writers.Config, {"runs": str(out), "out": str(tmp_path / "writers")}))
    assert "writer-0" in capsys.readouterr().out
    # Pairs by people's ratings, for the leaderboard of annotators.
    importing = load_program("data_prep/import_ratings.py")
    with pytest.raises(Exception, match=r"none of .* pairs has means that differ"):
        importing.main(
            build(
                importing.Config,
                {
                    "stories": str(out / "stories.parquet"),
                    "people": {
                        "table": str(out / "ratings.parquet"),
                        "rater": "rater",
                        "values": ["rating"],
                        "where": "criterion is null",
                    },
                    "out": str(tmp_path / "pairs"),
                },
            )
        )
    command(["remove", str(study.folder), "r1"])
    assert pq.read_metadata(out / "answers.parquet").num_rows == 3 * 12


def test_simulated_readers_rate_over_http(make, load_program, tmp_path, capsys):
    study = make(prompts=3, writers=4, readers_per_story=4, groups_per_reader=3, max_starting=40)
    simulated = SimulatedReaders(careless=0.25, dropout=0.25, seed=5)
    with serving(study) as (url, store):
        ends, visitors = visit_study(study, simulated, url, 8)
        result = defaultdict(dict)
        for row in store._all(
            "select reader, place, answer from choices join readers using (number) "
            "where answered is not null and kind <> 'submit'"
        ):
            result[row["reader"]][row["place"]] = json.loads(row["answer"])
    assert ends["finished"] >= 2
    for visitor in visitors:
        sent = {
            page: {name: float(number) for name, number in json.loads(answer).items()}
            for page, answer in visitor.acknowledged.items()
        }
        assert result[visitor.reader.name] == sent
    # Their spread plans the next study.
    command(["export", str(study.folder)])
    power = load_program("litbench power")
    case = {"difference": 0.5, "prompts": 8, "raters": [1, 5]}
    arguments = {"out": tmp_path / "power", "people": str(study.folder / "export")}
    power.main(build(power.Config, {**arguments, "grades": {"plan": case}}))
    assert "plan: story_surprise" in capsys.readouterr().out
