"""Studies whose readers play a session of narra: pages, resuming, limits of dollars, export."""

import json
import shutil
import time

import narra_script as script
import pyarrow.parquet as pq
import pytest
from fake_openai import FakeOpenAI
from study_folder import CARDS, command, serving, session_folder

from litbench.data.records import GRADES, RATINGS, STORIES, TURNS
from litbench.data.tables import read_table
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import write_sealed
from litbench.study.command import open_study
from litbench.study.plan import SessionPlan
from litbench.study.sessions import action_of
from litbench.study.simulation import Reader, SimulatedReaders, Visitor, visit_study
from litbench.writers.narra.personas import CARDS as PERSONAS
from litbench.writers.run import Run, run

pytest.importorskip("fastapi")


@pytest.fixture
def writer(monkeypatch):
    """A scripted writer behind a server on loopback: `writer(faults=...)`."""

    def make(answer=script.writer, **behaviour):
        server = FakeOpenAI(answer, **behaviour)
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        return server

    return make


@pytest.fixture
def make(tmp_path, load_program):
    """Write a study of sessions: `make(readers_per_card=3, ...)`."""

    def write(**plan):
        return session_folder(tmp_path / "study", load_program("litbench study make"), **plan)

    return write


def test_plan_of_sessions():
    texts = {"consent": "c", "contact": "c", "completion_code": "c", "kind": "session"}
    with pytest.raises(ConfigError, match="writers is empty"):
        SessionPlan(**texts)
    with pytest.raises(ConfigError, match="dollars needs dollars_per_reader"):
        SessionPlan(**texts, writers={"w": "m"}, dollars=1.0)
    assert SessionPlan(**texts, writers={"w": "m"}).release_minutes == 20


@pytest.mark.parametrize(
    ("step", "form", "said"),
    [
        ("turn_1", {"choice": "2"}, {"action": "select_choice", "choice_id": "2", "text": ""}),
        ("turn_1", {"choice": "2", "text": "No."}, {"action": "send_message", "text": "No."}),
        ("turn_1", {"end": "yes", "text": ""}, {"action": "end_story", "text": ""}),
        ("answer_3", {"choice": "At night"}, {"action": "send_message", "text": "At night"}),
        (
            "keywords",
            {"word0": "lamp", "word4": "rope"},
            {"action": "send_message", "text": "lamp, rope"},
        ),
        ("answer_3", {"end": "yes"}, None),
        ("turn_1", {"text": " \r\n "}, None),
    ],
)
def test_what_a_form_says(step, form, said):
    result = action_of(step, form)
    assert (None if result is None else json.loads(result)) == said


def test_sessions_are_played_and_exported_as_a_run(
    make, writer, load_program, tmp_path, capsys, monkeypatch
):
    # So that a run of the recorded turns has the same samples.
    monkeypatch.setattr("litbench.study.sessions.FIRST_SAMPLE", 0)
    study = make(cards=CARDS, readers_per_card=2, exclude={"failed_attention": False})
    with writer() as server, serving(study) as (url, store):
        ends, visitors = visit_study(study, SimulatedReaders(seed=3), url, 4)
        assert ends == {"finished": 4}
        asked = server.requests
        for visitor in visitors:
            number = store._all("select number from readers where reader = ?", visitor.reader.name)
            turns = store._all("select step, text from turns where number = ?", number[0][0])
            sent = {step: action_of(step, form) for step, form in visitor.turns.items()}
            assert dict(map(tuple, turns)) == sent
            assert len(sent) > 12
        assert set(store.progress().values()) == {(2, 0)}
    command(["status", str(study.folder)])
    assert "rated sessions: 4 of 4" in capsys.readouterr().out
    command(["export", str(study.folder)])
    # Nothing was asked anew.
    assert server.requests == asked
    out = study.folder / "export"
    schemas = {"turns": TURNS, "stories": STORIES, "ratings": RATINGS, "grades": GRADES}
    tables = {name: read_table(out / f"{name}.parquet", schema) for name, schema in schemas.items()}
    assert tables["stories"].num_rows == 4
    assert tables["ratings"].num_rows == 4 * 12
    by_people = [row for row in tables["grades"].to_pylist() if row["rater"]]
    assert sorted({row["quantity"] for row in by_people}) == ["all11", "storyq", "ux"]
    assert {row["role"] for row in tables["turns"].to_pylist()} == {"reader", "writer"}
    # The same stories as a run of the recorded turns has.
    recorded = f"recorded/{out / 'turns.parquet'}"
    config = Run("narra", tmp_path / "again", {"quill": recorded}, roles={"reader": recorded})
    config.items = CARDS
    config.samples = 5
    run(config)
    again = pq.read_table(tmp_path / "again" / "stories.parquet")
    texts = dict(zip(again["story_id"].to_pylist(), again["text"].to_pylist(), strict=True))
    stories = tables["stories"]
    assert {name: texts[name] for name in stories["story_id"].to_pylist()} == dict(
        zip(stories["story_id"].to_pylist(), stories["text"].to_pylist(), strict=True)
    )
    writers = load_program("litbench writers compare")
    writers.main(writers.Config(runs=out, out=tmp_path / "writers"))
    assert "quill" in capsys.readouterr().out


def writers_of(*names):
    """Writers of one scripted model."""
    return dict.fromkeys(names, FakeOpenAI.model)


def test_readers_play_groups_that_rank_the_writers(make, writer, load_program, tmp_path, capsys):
    study = make(
        writers=writers_of("quill", "reed", "brush"),
        writers_per_reader=3,
        readers_per_card=4,
        exclude={"failed_attention": False},
    )
    assert (study.estimate()["sessions"], study.estimate()["readers"]) == (12, 4)
    with writer(), serving(study) as (url, store):
        # A reader who closes the tab in the second session goes on there.
        early = Visitor(study, url, Reader(SimulatedReaders(), 1, 20))
        early.reader.leaves_after = 40
        assert early.visit() == "left"
        late = Visitor(study, url, Reader(SimulatedReaders(), 1, 20))
        assert late.visit() == "finished"
        assert "need" not in late.turns, "the need is said once"
        assert visit_study(study, SimulatedReaders(seed=5), url, 3)[0] == {"finished": 3}
        pages = store._all('select number, kind, pair_id, "order" from choices order by 1, place')
        orders = [
            tuple(
                row["pair_id"] for row in pages if row["number"] == n and row["kind"] == "session"
            )
            for n in range(1, 5)
        ]
        assert all(len(set(names)) == 3 for names in orders)
        assert len(set(orders)) > 1
        ends = [row["kind"] for row in pages if row["number"] == 1]
        assert (ends[0], ends[-1], ends.count("checked"), len(ends)) == ("session", "submit", 1, 7)
        needs = store._all("select number from turns where step = 'need'")
        assert len(needs) == 4
        assert set(store.progress().values()) == {(4, 0)}
    command(["export", str(study.folder)])
    out = study.folder / "export"
    grades = read_table(out / "grades.parquet", GRADES).to_pylist()
    people = {row["rater"] for row in grades if row["rater"]}
    for rater in people:
        rows = [row for row in grades if row["rater"] == rater and row["quantity"] == "all11"]
        assert sorted(row["writer"] for row in rows) == ["brush", "quill", "reed"]
    assert len(people) == 4
    writers = load_program("litbench writers compare")
    writers.main(writers.Config(runs=out, out=tmp_path / "writers", utility_prior=0.5))
    shown = capsys.readouterr().out
    assert "no utilities by people" not in shown
    utilities = json.loads((tmp_path / "writers" / "writers.json").read_text())["utilities"]
    assert utilities["people"]["raters"] == 4
    # By reader: the one card is no cluster.
    assert all(utilities["people"][bound]["quill"] is not None for bound in ("low", "high"))


def test_a_reader_who_was_away_rates_what_was_played(make, writer):
    study = make(writers=writers_of("quill", "reed"), writers_per_reader=2, release_minutes=5)
    with writer():
        with serving(study) as (url, store):
            visitor = Visitor(study, url, Reader(SimulatedReaders(), 1, 20))
            rate = visitor._rate

            def rate_and_leave(page):
                visitor.reader.leaves_after = visitor._answers + 3
                return rate(page)

            visitor._rate = rate_and_leave
            assert visitor.visit() == "left"
            (number,) = store._all("select number from readers")[0]
            played = store._all("select pair_id from choices where answered is not null")
            assert len(played) == 2, "a session and its rating"
        with serving(study, now=lambda: time.time() + 600) as (url, store):
            other = Visitor(study, url, Reader(SimulatedReaders(), 2, 20))
            assert other.visit() == "finished"
            again = Visitor(study, url, Reader(SimulatedReaders(), 1, 20))
            assert again.visit() == "finished"
            rows = store._all("select kind from choices where number = ? order by place", number)
            kinds = [row["kind"].replace("checked", "rating") for row in rows]
            # The other reader took the second writer.
            assert kinds == ["session", "rating", "submit"]


def test_careless_and_leaving_players(make, writer):
    study = make(readers_per_card=8, release_minutes=5)
    simulated = SimulatedReaders(careless=0.4, dropout=0.4, seed=2)
    with writer():
        with serving(study) as (url, store):
            ends, visitors = visit_study(study, simulated, url, 8)
            players = [visitor.reader for visitor in visitors]
            assert ends == {
                "finished": sum(player.leaves_after > 20 for player in players),
                "left": sum(player.leaves_after < 20 for player in players),
            }
            assert min(ends.values()) > 1
            for visitor in visitors:
                said = {form.get("text") for form in visitor.turns.values()} - {None}
                assert said <= {"ok"} if visitor.reader.is_careless else "ok" not in said
            failed = sum(player.failed_check for player in players)
            assert failed <= sum(player.is_careless for player in players)
            expected = {"failed the attention check": failed} if failed else {}
            assert store.left_out() == expected
            assert store.progress() == {f"quill/{CARDS[0]}": (ends["finished"], ends["left"])}
        # Once the leaving players have been silent for long, others play in their place.
        with serving(study, now=lambda: time.time() + 600) as (url, store):
            late = SimulatedReaders(seed=9)
            assert visit_study(study, late, url, ends["left"])[0] == {"finished": ends["left"]}
            assert store.progress() == {f"quill/{CARDS[0]}": (8, 0)}


def test_changed_personas_are_refused(make, tmp_path):
    shutil.copytree(PERSONAS, tmp_path / "cards")
    study = make(options={"personas": str(tmp_path / "cards")})
    path = tmp_path / "cards" / f"1_{CARDS[0]}.yaml"
    path.write_text(path.read_text() + "\n# changed\n")
    with pytest.raises(DataError, match=r"options\.personas: .*cards was changed"):
        open_study(study.folder)
    # An earlier version wrote a digest for each card.
    manifest = study.folder / "manifest.json"
    content = json.loads(manifest.read_text())
    of_card = content["inputs"].pop("options.personas")
    content["inputs"] |= {f"personas/{path.name}": of_card}
    del content["sha256"]
    write_sealed(content, manifest)
    with pytest.raises(DataError, match=r"no digest of options\.personas"):
        open_study(study.folder)


def test_a_restarted_server_goes_on_at_the_same_turn(make, writer):
    study = make()
    with writer() as server:
        with serving(study) as (url, _):
            visitor = Visitor(study, url, Reader(SimulatedReaders(), 2, 20))
            visitor.reader.leaves_after = 14
            assert visitor.visit() == "left"
        asked, steps = server.requests, list(visitor.turns)
        with serving(study) as (url, _):
            again = Visitor(study, url, Reader(SimulatedReaders(), 2, 20))
            assert again.visit() == "finished"
        assert not set(again.turns) & set(steps)
        assert max(server.answered.values()) == 1
        assert server.requests > asked


def test_a_failed_writer_is_asked_again(make, writer):
    role = {"model": FakeOpenAI.model, "traffic": {"max_retries": 0}}
    study = make(writers={"quill": role})
    failing = dict.fromkeys((2, 9, 14), "500")
    with writer(faults=lambda number, _: failing.get(number)), serving(study) as (url, store):
        visitor = Visitor(study, url, Reader(SimulatedReaders(), 1, 20))
        pages = []
        send = visitor.send

        def noting(*sent):
            status, page = send(*sent)
            pages.append(page)
            return status, page

        visitor.send = noting
        assert visitor.visit() == "finished"
        assert sum("cannot continue now" in page for page in pages) >= 2
        assert store.answers().num_rows == 1


def test_dollars_are_kept(make, writer, tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("openai-api/fake/judge: {input: 1000.0, output: 1000.0}\n")
    role = {"model": FakeOpenAI.model, "sampling": {"max_tokens": 400}}
    study = make(
        writers={"quill": role},
        readers_per_card=6,
        prices=str(prices),
        dollars_per_reader=12.0,
        dollars=30.0,
    )
    with writer() as server, serving(study) as (url, store):
        ends = [
            Visitor(study, url, Reader(SimulatedReaders(), at, 20)).visit() for at in range(1, 7)
        ]
        spent = study.dollars([])
        assert spent <= 30.0
        assert "turned away" in ends
        assert store._has_money(1) is False
        assert server.requests > 0
    assert spent > 12.0


def test_a_withdrawn_reader_leaves_nothing(make, writer):
    study = make()
    with writer(), serving(study) as (url, _):
        visitor = Visitor(study, url, Reader(SimulatedReaders(), 1, 20))
        assert visitor.visit() == "finished"
        said = json.loads(action_of("turn_1", visitor.turns["turn_1"]))["text"]
    command(["export", str(study.folder)])
    command(["remove", str(study.folder), visitor.reader.name])
    texts = [path.read_bytes() for path in study.folder.rglob("*") if path.is_file()]
    assert not any(said.encode() in text for text in texts if said)
    assert not list(study.folder.glob("answers/*"))
