"""A study with human readers: plan, assignment, store, server, simulated readers and analysis."""

import html
import itertools
import json
import logging
import re
import socket
import sqlite3
import stat
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from study_folder import (
    TEXTS,
    begin,
    check_balance,
    command,
    free_port,
    hidden,
    join,
    read_pairs,
    right,
    serving,
    simulate_choices,
    study_pairs,
    write_study,
)

from litbench.data.records import VERDICTS
from litbench.data.tables import check_parquet, write_table
from litbench.metrics.intervals import clustered_mean, two_way_interval
from litbench.metrics.sequential import boundaries
from litbench.runs.config import build
from litbench.runs.errors import ConfigError, DataError
from litbench.study.metrics import (
    CHOICES,
    Exclusions,
    leave_out,
    one_reader,
    reader_results,
    study_figures,
    tag_figures,
)
from litbench.study.pairs import PairStore, PairStudy, garble, stories_and_ratings
from litbench.study.plan import PairPlan, Statement
from litbench.study.simulation import Reader, SimulatedReaders, visit_study
from litbench.testing import rename_sides

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
TestClient = pytest.importorskip("starlette.testclient").TestClient


@pytest.fixture
def make(tmp_path, pair_table):
    """Write a study of some pairs: `make(4, pairs_per_reader=2)`."""

    def build(count, **plan):
        return write_study(tmp_path / "study", study_pairs(pair_table, count), **plan)

    return build


OTHER = {"chosen": "rejected", "rejected": "chosen"}
OPTIONS = [option for key, text in TEXTS.items() for option in (f"--{key}", text)]


class Clock:
    """A clock that tests move."""

    at = 1_000_000.0

    def __call__(self):
        return self.at


@pytest.fixture
def clock():
    return Clock()


def read_on(store, reader, pages=1_000):
    """Answer pages; the chosen side, and the intact story."""
    for _ in range(pages):
        page = store.next_page(reader)
        if page is None:
            return
        store.answer(reader, page.place, "first" if page.order == "chosen" else "second")


# Plan ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sd", "half"), [(0.0, 0.05), (0.2, 0.08)])
def test_estimate_of_forty_pairs(make, sd, half):
    # Two readers agree more often if pairs differ: 1 - 2 (m (1 - m) - sd^2).
    alike = 1 - 2 * (0.564 * 0.436 - sd**2)
    study = make(40, readers_per_pair=11, reader_agreement=alike, pay_per_hour=12.0)
    result = study.estimate()
    assert (result["readers"], result["choices"], result["pages"]) == (44, 440, 12)
    assert result["half_width"] == pytest.approx(half, abs=0.005)
    # Stories of 12 and 9 words, and a prompt such as "[WP] Prompt of p1".
    assert result["words_per_page"] == pytest.approx(21 + 4, abs=1)
    assert result["hours"] == pytest.approx(44 * result["minutes_per_reader"] / 60)
    assert result["cost"] == pytest.approx(12 * result["hours"])


def test_the_papers_study_has_its_readers(make):
    """5.5: 46 readers, 10 to 13 of them for each of 40 pairs."""
    root = Path(__file__).resolve().parents[2]
    content = yaml.safe_load((root / "configs/paper/litbench_figure7_study.yaml").read_text())
    names = ("readers_per_pair", "pairs_per_reader", "repeats_a_pair", "checks_attention")
    study = make(40, max_starting=46, **{name: content[name] for name in names})
    store = PairStore(study)
    for number in range(46):
        begin(store, f"r{number}")
        read_on(store, f"r{number}")
    rows = store._all("select pair_id, number from choices where answered is not null")
    readers = Counter(row["pair_id"] for row in rows)
    assert (len(readers), len({row["number"] for row in rows})) == (40, 46)
    assert set(readers.values()) <= {10, 11, 12, 13}


def test_estimate_of_one_prompt_has_no_interval(make):
    assert make(1, pairs_per_reader=1).estimate()["half_width"] is None


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"pairs_per_reader": 4}, "pairs_per_reader is 4, but there are 3 pairs"),
        ({"consent": " "}, "key 'consent' is ' '"),
    ],
)
def test_invalid_plan(pair_table, tmp_path, plan, message):
    pairs = study_pairs(pair_table, 3)
    with pytest.raises(ConfigError, match=re.escape(message)):
        PairStudy(tmp_path, build(PairPlan, {**TEXTS, "pairs_per_reader": 3, **plan}), pairs)


@pytest.mark.parametrize(
    "text", ["one two three four five six seven", "他走进花园看见一只猫在睡觉"]
)
def test_garbled_text_has_the_same_pieces(text):
    changed = garble(text, "seed")
    assert changed != text
    assert sorted(changed) == sorted(text)
    assert garble(text, "seed") == changed


# Assignment ----------------------------------------------------------------------------------


def test_balanced_assignment(make):
    store = PairStore(make(7, readers_per_pair=6, pairs_per_reader=3))
    for at in range(14):
        begin(store, f"r{at}")
        if at % 2:
            read_on(store, f"r{at}")
        if at > 1:
            check_balance(store)
    sides = store._all(
        "select count(*) from choices where kind = 'pair' group by pair_id, \"order\""
    )
    assert [row[0] for row in sides] == [3] * 14
    assert begin(store, "late") is None
    assert store.state("late") == "waiting"


def test_pages_of_a_reader(make):
    study = make(6, pairs_per_reader=3)
    store = PairStore(study)
    begin(store, "r")
    rows = store._all("select * from choices order by place")
    assert Counter(row["kind"] for row in rows) == {"pair": 3, "attention": 1, "repeat": 1}
    assert (rows[0]["kind"], rows[-1]["kind"]) == ("pair", "repeat")
    again = next(row for row in rows if row["pair_id"] == rows[-1]["pair_id"])
    assert (again["kind"], {again["order"], rows[-1]["order"]}) == ("pair", {"chosen", "rejected"})
    check = next(row for row in rows if row["kind"] == "attention")
    assert check["pair_id"] not in {row["pair_id"] for row in rows if row["kind"] == "pair"}
    first, second = study.sides(check["pair_id"], "attention", check["order"])
    pair, garbled = study.by_id[check["pair_id"]], study.garbled_side(check["pair_id"])
    texts = {side: pair[side] for side in ("chosen", "rejected")}
    texts[garbled] = garble(pair[garbled], check["pair_id"])
    shown = [texts[check["order"]], texts[OTHER[check["order"]]]]
    assert [first, second] == shown
    # One reader chooses the garbled story, another the intact one.
    read_on(store, "r", check["place"] - 1)
    store.next_page("r")
    store.answer("r", check["place"], "first" if check["order"] == garbled else "second")
    page = begin(store, "other")
    while page is not None:
        intact = OTHER[study.garbled_side(page.pair_id)]
        store.answer("other", page.place, "first" if page.order == intact else "second")
        page = store.next_page("other")
    rights = [row["is_right"] for row in store.choices().to_pylist() if row["kind"] == "attention"]
    assert rights == [0, 1]


def test_attention_check_says_nothing_about_the_label(make):
    study = make(200, pairs_per_reader=3)
    sides = Counter(study.garbled_side(name) for name in study.by_id)
    assert min(sides.values()) > 70
    # Whoever follows the labels passes half of the checks.
    assert study.garbled_side("x") == study.garbled_side("x")


def checks_and_pairs(store):
    """By reader, the story ids of checks and of pairs."""
    results = {}
    for row in store._all("select number, kind, pair_id from choices where kind <> 'repeat'"):
        kinds = results.setdefault(row["number"], {"attention": set(), "pair": set()})
        kinds[row["kind"]] |= store.study.stories_of([row["pair_id"]])
    return results.values()


@pytest.mark.parametrize(("pairs", "each"), [(4, 3), (4, 2), (6, 3), (12, 4)])
def test_nobody_reads_the_pair_of_their_check(make, clock, pairs, each):
    store = PairStore(make(pairs, readers_per_pair=60, pairs_per_reader=each), now=clock)
    # Readers leave after each page and come back.
    for leaves_after in range(each + 2):
        for at in range(10):
            begin(store, f"{leaves_after}-{at}")
            read_on(store, f"{leaves_after}-{at}", leaves_after)
            store.next_page(f"{leaves_after}-{at}")
        clock.at += 100 * 60
    for leaves_after in range(each + 2):
        for at in range(10):
            read_on(store, f"{leaves_after}-{at}")
    assert store.states() == {"finished": 10 * (each + 2)}
    for reader in checks_and_pairs(store):
        assert len(reader["attention"]) == 2
        assert reader["attention"].isdisjoint(reader["pair"])


def test_a_story_of_a_check_is_in_no_other_pair_of_the_reader(tmp_path, pair_table):
    rows = [
        {
            "prompt_id": "p",
            "chosen_story_id": f"s{k}",
            "rejected_story_id": f"s{k + 1}",
            "chosen": f"story {k}",
            "rejected": f"story {k + 1}",
        }
        for k in range(8)
    ]
    study = write_study(tmp_path / "study", pair_table(rows), pairs_per_reader=2)
    store = PairStore(study)
    for at in range(30):
        begin(store, f"r{at}")
    for reader in checks_and_pairs(store):
        assert reader["attention"].isdisjoint(reader["pair"])


def test_without_an_unread_pair_there_is_no_check(make):
    study = make(3, pairs_per_reader=3)
    store = PairStore(study)
    begin(store, "r")
    read_on(store, "r")
    kinds = Counter(row["kind"] for row in store.choices().to_pylist())
    assert kinds == {"pair": 3, "repeat": 1}
    result = study.estimate()
    assert result["pages"] == 4
    assert "no attention check" in study.estimate_text(result)


def test_who_is_silent_gives_back_what_is_not_answered(make, clock):
    store = PairStore(
        make(4, readers_per_pair=1, pairs_per_reader=4, release_minutes=30), now=clock
    )
    begin(store, "gone")
    read_on(store, "gone", 2)
    assert begin(store, "late") is None
    clock.at += 31 * 60
    assert store.next_page("late") is not None
    read_on(store, "late")
    assert set(store.progress().values()) == {(1, 0)}
    # Who comes back keeps the answers, but has not finished: others have the pairs.
    assert store.next_page("gone") is None
    assert store.states() == {"finished": 1, "left": 1}


def test_who_comes_back_goes_on(make, clock):
    store = PairStore(make(5, readers_per_pair=3, pairs_per_reader=4), now=clock)
    begin(store, "r")
    read_on(store, "r", 2)
    old = store.next_page("r")
    clock.at += 91 * 60
    begin(store, "other")
    assert store.states() == {"left": 1, "reading": 1}
    assert store.next_page("r").done == 2
    # A tab from before shows a page that is no longer theirs.
    with pytest.raises(ValueError, match="no such page"):
        store.answer("r", old.place, "first")
    read_on(store, "r")
    rows = store._all("select kind, pair_id from choices where number = 1")
    assert Counter(row["kind"] for row in rows) == {"pair": 4, "attention": 1, "repeat": 1}
    assert len(set(map(tuple, rows))) == 6


def test_made_up_ids_do_not_keep_others_away(make, clock):
    # Ten places; a page of 25 words takes 6.5 seconds, but everybody has a minute.
    store = PairStore(make(4, readers_per_pair=10, pairs_per_reader=4, max_starting=5), now=clock)
    for at in range(37):
        begin(store, f"made-up-{at}")
    assert store.states() == {"reading": 5, "queued": 32}
    begin(store, "person")
    assert store.state("person") == "queued"
    clock.at += 59
    assert store.next_page("person") is None
    clock.at += 2
    assert store.next_page("person") is not None
    read_on(store, "person")
    assert store.states() == {"reading": 4, "queued": 32, "left": 1, "finished": 1}
    # Who has answered keeps the pairs, however many come.
    begin(store, "slow")
    read_on(store, "slow", 1)
    for at in range(37):
        clock.at += 60
        begin(store, f"more-{at}")
    assert store.state("slow") == "reading"
    assert len(store._all("select 1 from choices where answered is null group by number")) == 6


# PairStore ---------------------------------------------------------------------------------------


def test_silence_and_reading_are_measured_after_a_restart(make, clock):
    study = make(3, pairs_per_reader=3, max_words_per_minute=600.0, release_minutes=30)
    store = PairStore(study, now=clock)
    page = begin(store, "r")
    least = study.min_seconds(page.pair_id)
    clock.at += least
    assert store.answer("r", page.place, "first") == 0
    # The next page is open over a restart, during which nobody can send anything.
    page = store.next_page("r")
    clock.at += 31 * 60
    store.close()
    store = PairStore(study, now=clock)
    store.note_restart()
    begin(store, "other")
    assert store.state("r") == "reading"
    assert store.answer("r", page.place, "first") == 0, "how long it was read is not known"
    clock.at += 1
    assert store.answer("r", store.next_page("r").place, "first") > 0
    rows = store.choices().to_pylist()
    assert [row["seconds"] for row in rows] == [pytest.approx(least), None]
    clock.at += 31 * 60
    store.next_page("other")
    begin(store, "third")
    assert store.states()["left"] == 2
    store.close()


def test_a_look_decides_by_boundaries_that_fall(make, capsys):
    study = make(10, readers_per_pair=20, pairs_per_reader=10)
    texts = []
    for agreement, ends in ((0.5, (7, 9, 12)), (0.95, (20,))):
        for end in ends:
            # Every look at the clock is a minute later, so that nobody reads too fast.
            with closing(PairStore(study, now=itertools.count(0.0, 60.0).__next__)) as store:
                first = store.states().get("finished", 0) + 1
                for number in range(first, end + 1):
                    read_pairs(store, Reader(SimulatedReaders(agreement), number, 10))
            with nullcontext() if end > 7 else pytest.raises(SystemExit):
                command(["look", study.folder])
            texts.append("".join(capsys.readouterr()))
    assert "7 readers or prompts" in texts[0]
    assert all("go on" in text for text in texts[1:3])
    assert "look 3: 20 readers, 100% of the planned choices" in texts[3]
    assert "decided: readers agree more often" in texts[3]
    shares = json.loads((study.folder / "looks.json").read_text())
    assert shares == pytest.approx([0.45, 0.6, 1.0])
    assert f"boundary {boundaries(tuple(shares))[-1]:.2f}" in texts[3]
    with pytest.raises(SystemExit):
        command(["look", study.folder])
    assert "no reader has finished since" in capsys.readouterr().err


def test_a_removed_reader_leaves_nothing(make, capsys):
    study = make(4, pairs_per_reader=3)
    with closing(PairStore(study)) as store:
        for reader in ("gone", "other"):
            page = begin(store, reader)
            store.answer(reader, page.place, "first", f"reason of {reader}")
    command(["export", str(study.folder)])
    exported = study.folder / "export"
    assert {stat.S_IMODE(path.stat().st_mode) for path in exported.glob("*.parquet")} == {0o600}
    command(["remove", str(study.folder), "gone"])
    texts = [path.read_bytes() for path in study.folder.rglob("*") if path.is_file()]
    assert not any(b"reason of gone" in text for text in texts)
    assert pq.read_table(exported / "choices.parquet")["reason"].to_pylist() == ["reason of other"]
    assert len(set(pq.read_table(exported / "ratings.parquet")["rater"].to_pylist())) == 1
    with pytest.raises(SystemExit):
        command(["remove", str(study.folder), "gone"])
    assert "no reader 'gone'" in capsys.readouterr().err
    command(["remove", str(study.folder), "other"])
    assert not exported.exists()


def test_a_removed_reader_is_in_no_log(make, capsys):
    study = make(4, pairs_per_reader=3)
    log = study.database.with_name("study.sqlite-wal")
    with closing(PairStore(study)) as store:
        store.answer("gone", begin(store, "gone").place, "first", "reason of gone")
        with closing(sqlite3.connect(study.database, isolation_level=None)) as other:
            other.execute("begin")
            other.execute("select * from readers").fetchall()
            for _ in range(2):
                with pytest.raises(SystemExit):
                    command(["remove", str(study.folder), "gone"])
                assert "end that program" in capsys.readouterr().err
            assert b"reason of gone" in log.read_bytes()
        with pytest.raises(SystemExit):
            command(["remove", str(study.folder), "gone"])
        assert "no reader 'gone'" in capsys.readouterr().err
        assert b"reason of gone" not in log.read_bytes()


def test_first_answer_binds(make):
    store = PairStore(make(3, pairs_per_reader=3))
    page = begin(store, "r")
    assert store.answer("r", page.place, "first", "because") == 0
    before = store.choices()
    assert store.answer("r", page.place, "second", "no") == 0
    assert store.choices() == before
    (row,) = before.to_pylist()
    assert (row["outcome"], row["order"], row["reason"]) == (page.order, page.order, "because")


def test_answers_that_come_too_early(make, clock):
    study = make(3, pairs_per_reader=3, max_words_per_minute=60.0)
    store = PairStore(study, now=clock)
    page = begin(store, "r")
    least = study.words_of(page.pair_id)
    clock.at += 1
    assert store.answer("r", page.place, "first") == pytest.approx(least - 1)
    assert store.choices().num_rows == 0
    clock.at += least
    assert store.answer("r", page.place, "first") == 0
    row = store.choices().to_pylist()[0]
    assert (row["hurried"], row["seconds"]) == (1, least + 1)


@pytest.mark.parametrize(
    ("reader", "position", "answer"),
    [("r", 2, "first"), ("r", 99, "first"), ("r", 1, "third"), ("unknown", 1, "first")],
)
def test_answers_to_no_page(make, reader, position, answer):
    store = PairStore(make(3, pairs_per_reader=3))
    begin(store, "r")
    with pytest.raises(ValueError, match="no such"):
        store.answer(reader, position, answer)
    assert store.choices().num_rows == 0


def test_store_is_private_and_belongs_to_its_pairs(make, pair_table, tmp_path):
    study = make(3, pairs_per_reader=3)
    store = PairStore(study)
    begin(store, "PROLIFIC-ID")
    read_on(store, "PROLIFIC-ID")
    assert stat.S_IMODE(study.database.stat().st_mode) == 0o600
    path = tmp_path / "choices.parquet"
    write_table(store.choices(), path)
    check_parquet(path, CHOICES)
    assert b"PROLIFIC" not in path.read_bytes()
    assert len(set(store.choices()["reader"].to_pylist())) == 1
    other = write_study(tmp_path / "other", study_pairs(pair_table, 4), pairs_per_reader=3)
    with pytest.raises(DataError, match="another study"):
        PairStore(other, study.database)
    plan = study.folder / "plan.json"
    plan.write_text(plan.read_text().replace("C0DE", "FREE"))
    with pytest.raises(DataError, match="does not match"):
        PairStudy.open(study.folder)


# Server --------------------------------------------------------------------------------------


@pytest.fixture
def client(make):
    """A browser without scripts at a study: `client(4, ...)`; more come from `client.again()`."""
    from litbench.study.server import make_app  # noqa: PLC0415

    opened = []

    def build(count, study=None, **plan):
        study = study or make(count, pairs_per_reader=min(count, 3), **plan)
        store = PairStore(study)
        app = make_app(store, ["testserver"])

        def again():
            client = TestClient(app, raise_server_exceptions=False)
            client.again, client.store, client.study = again, store, study
            opened.append(client)
            return client

        return again()

    yield build
    for item in opened:
        item.close()


def test_from_consent_to_code(client):
    browser = client(4, asks_reason=True)
    first = browser.get("/?PROLIFIC_PID=reader1")
    assert TEXTS["consent"] in first.text
    assert browser.post("/start", data={"reader": "reader1"}).status_code == 422
    started = browser.post("/start", data={"reader": "reader1", "agree": "yes"})
    assert "Before you start" in started.text
    answers = right(browser.study)
    wrong = browser.post(
        "/statements", data=right(browser.study) | hidden(started) | {"statement1": "true"}
    )
    assert "you can try 1 more time." in wrong.text
    page = browser.post("/statements", data=answers | hidden(wrong))
    for at in range(5):
        assert f"Page {at + 1} of 5" in page.text
        data = hidden(page) | {"choice": "first", "reason": f"reason {at}"}
        page = browser.post("/answer", data=data)
    assert TEXTS["completion_code"] in page.text
    assert browser.again().get("/?PROLIFIC_PID=reader1").text == page.text
    reasons = browser.store.choices()["reason"].to_pylist()
    assert reasons == [f"reason {at}" for at in range(5)]


def test_wrong_statements_end_it(client):
    browser = client(4)
    page = browser.post("/start", data={"reader": "reader1", "agree": "yes"})
    answers = right(browser.study) | hidden(page)
    wrong = answers | {"statement0": "false"}
    # A double click is one attempt.
    for _ in range(2):
        assert "you can try 1 more time." in browser.post("/statements", data=wrong).text
    assert browser.post("/statements", data=wrong | {"attempt": "x"}).status_code == 400
    assert "You cannot take part" in browser.post("/statements", data=wrong | {"attempt": "1"}).text
    assert (
        "You cannot take part"
        in browser.post("/statements", data=right(browser.study) | hidden(page)).text
    )
    assert "You cannot take part" in browser.again().get("/?PROLIFIC_PID=reader1").text


def test_removed_reader_starts_anew(client):
    browser = client(4)
    join(browser)
    browser.store._all("delete from choices")
    browser.store._all("delete from readers")
    assert TEXTS["consent"] in browser.get("/read").text


def test_page_does_not_tell_the_side(client):
    browser = client(4)
    text = html.unescape(join(browser).text)
    for word in ("chosen", "rejected", "attention", *browser.study.by_id):
        assert word not in text
    pair = browser.study.by_id[browser.store.next_page("reader1").pair_id]
    shown = text.replace(pair["chosen"], "STORY").replace(pair["rejected"], "STORY")
    first, second = re.findall(r"<article.*?</article>", shown, re.DOTALL)
    assert first.replace("first", "second").replace("Story A", "Story B") == second


def test_security_headers_and_cookie(client):
    browser = client(4)
    page = browser.get("/?PROLIFIC_PID=reader1")
    started = browser.post("/start", data={"reader": "reader1", "agree": "yes"})
    foreign = browser.get("/", headers={"host": "evil.example"})
    assert foreign.status_code == 400
    for item in (
        page,
        browser.get("/style.css"),
        browser.get("/none"),
        browser.get("/?PROLIFIC_PID=a%20b"),
        started,
        foreign,
    ):
        policy = item.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; form-action 'self'")
        assert item.headers["x-content-type-options"] == "nosniff"
        assert item.headers["cache-control"] == "no-store"
    cookie = started.history[0].headers["set-cookie"]
    assert re.fullmatch(r"reader=reader1\.\w{32}; HttpOnly; Path=/; SameSite=lax", cookie)
    # Nothing comes from elsewhere.
    assert re.findall(r'(?:src|href)="([^"]*)"', page.text) == ["/style.css"]
    assert "http" not in browser.get("/style.css").text


SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>&amp;"


def test_texts_are_escaped(client, tmp_path, pair_table):
    rows = [
        {
            "prompt_id": f"p{k}",
            "prompt": f"{SCRIPT} {k}",
            "chosen": f"{SCRIPT} good {k}",
            "rejected": f"{SCRIPT} poor {k}",
        }
        for k in range(4)
    ]
    study = write_study(
        tmp_path / "study",
        pair_table(rows),
        pairs_per_reader=3,
        title=SCRIPT,
        consent=SCRIPT,
        asks_reason=True,
        instructions=SCRIPT,
        contact=SCRIPT,
        statements=[Statement(SCRIPT, is_true=True)],
        completion_code=SCRIPT,
        max_words_per_minute=1.0,
    )
    browser = client(4, study=study)
    pages = [browser.get("/?PROLIFIC_PID=r")]
    pages.append(browser.post("/start", data={"reader": "r", "agree": "yes"}))
    pages.append(browser.post("/statements", data=hidden(pages[-1]) | {"statement0": "true"}))
    answer = hidden(pages[-1]) | {"choice": "first", "reason": f"</textarea>{SCRIPT}"}
    pages.append(browser.post("/answer", data=answer))
    assert "That was quick" in pages[-1].text
    for page in pages:
        assert "<script" not in page.text
        assert "<img" not in page.text
        assert html.unescape(page.text).count(SCRIPT) > 1


@pytest.mark.parametrize(
    ("reader", "status"),
    [
        ("x" * 10_000, 400),
        ("'; drop table readers; --", 400),
        ("a.b", 400),
        ("", 400),
        ("é", 400),
        ("x" * 64, 200),
    ],
)
def test_hostile_ids(client, reader, status):
    browser = client(4)
    assert browser.get("/", params={"PROLIFIC_PID": reader}).status_code == status
    answer = browser.post("/start", data={"reader": reader, "agree": "yes"})
    assert answer.status_code == status
    assert browser.store.states() == ({"consented": 1} if status == 200 else {})


def test_forged_and_foreign_requests(client):
    from litbench.study.server import form_key  # noqa: PLC0415

    browser = client(4)
    answer = hidden(join(browser)) | {"choice": "first"}
    thief = browser.again()
    real = browser.cookies["reader"]
    forged = ["reader1", "reader1.", f"reader1.{'0' * 32}", real[:-1], f"reader2{real[7:]}", "."]
    for cookie in forged:
        thief.cookies.set("reader", cookie)
        assert thief.post("/answer", data=answer).status_code == 403
        assert thief.get("/read").status_code == 403
    cases = [
        ({"data": answer, "headers": {"origin": "https://evil.example"}}, 403),
        ({"data": answer | {"place": "99"}}, 403),
        ({"data": answer | {"place": "99", "key": form_key(browser.store, "reader1", 99)}}, 400),
        ({"data": answer | {"key": ""}}, 403),
        ({"data": answer | {"key": answer["key"][:-1]}}, 403),
        ({"data": answer | {"key": "é"}}, 403),
        ({"data": answer | {"place": "-1"}}, 400),
        ({"data": answer | {"place": "1; drop table choices"}}, 400),
        ({"data": answer | {"choice": "chosen"}}, 400),
        ({"data": answer | {"reason": "x" * 2_001}}, 413),
        ({"data": answer | {"reason": "x" * 70_000}}, 413),
        ({"content": b"place=1&choice=\xff"}, 400),
        ({"content": b"&".join(b"a%d=1" % k for k in range(100))}, 400),
    ]
    for request, status in cases:
        assert browser.post("/answer", **request).status_code == status, request
    assert browser.store.choices().num_rows == 0
    lines = "a\r\n" * 999
    after = browser.post("/answer", data=answer | {"reason": lines})
    assert after.status_code == 200
    assert browser.store.choices()["reason"].to_pylist() == [lines.replace("\r", "").strip()]
    browser.store._all("update readers set seen = 0")
    browser.store._release_silent(0)
    assert browser.store.states() == {"left": 1}
    # An answer of who was away for long goes to no page, which they are told, and they go on.
    lost = browser.post("/answer", data=hidden(after) | {"choice": "first"})
    assert (lost.status_code, "this answer was not saved" in lost.text) == (409, True)
    assert browser.store.choices().num_rows == 1
    assert "Page 2 of" in browser.get("/read").text
    browser.store._all("update readers set seen = 0")
    begin(browser.store, "late")
    browser.store._all("update choices set number = 2 where answered is null")
    browser.store._plan.readers_per_pair = 1
    assert "nothing left to read" in browser.get("/read").text


def test_a_tab_of_another_reader_answers_for_nobody(client):
    browser = client(4)
    first = join(browser, "one")
    consented = browser.post("/start", data={"reader": "third", "agree": "yes"})
    two = join(browser, "two")
    # The cookie is that of the last link.
    for page, path, more in (
        (first, "/answer", {"choice": "first"}),
        (consented, "/statements", right(browser.study)),
    ):
        refused = browser.post(path, data=more | hidden(page))
        assert (refused.status_code, "another reader" in refused.text) == (403, True)
    assert browser.store.choices().num_rows == 0
    assert browser.store.attempts("third") == 0
    assert browser.post("/answer", data=hidden(two) | {"choice": "first"}).status_code == 200
    browser.get("/?PROLIFIC_PID=one")
    assert browser.post("/answer", data=hidden(first) | {"choice": "first"}).status_code == 200
    done = browser.store._all(
        "select reader, place from choices join readers using (number) "
        "where answered is not null order by answered"
    )
    assert list(map(tuple, done)) == [("two", 1), ("one", 1)]


def test_only_listed_ids(client):
    browser = client(4, reader_ids=["ann", "ben"])
    assert "I have read this" in browser.get("/?PROLIFIC_PID=ann").text
    for answer in (
        browser.get("/?PROLIFIC_PID=eve"),
        browser.get("/"),
        browser.post("/start", data={"reader": "eve", "agree": "yes"}),
        browser.post("/start", data={"reader": "made-x", "agree": "yes"}),
    ):
        assert answer.status_code in (400, 403)
    assert browser.store.states() == {}
    assert "Page 1 of 5" in join(browser, "ben").text


def test_titles_and_languages(client):
    browser = client(4, language="zh", max_words_per_minute=1.0)
    pages = [browser.get("/?PROLIFIC_PID=reader1")]
    pages.append(browser.post("/start", data={"reader": "reader1", "agree": "yes"}))
    pages.append(browser.post("/statements", data=right(browser.study) | hidden(pages[-1])))
    pages.append(browser.post("/answer", data=hidden(pages[-1]) | {"choice": "first"}))
    pages.append(browser.get("/none"))
    titles = [re.search("<title>(.*)</title>", page.text)[1] for page in pages]
    study = " · Which story is better?"
    assert titles == [
        name + study
        for name in (
            "Consent",
            "Instructions",
            "Page 1 of 5",
            "Error: Page 1 of 5",
            "This did not work",
        )
    ]
    assert pages[2].text.count('lang="zh"') == 3
    assert '<html lang="en">' in pages[2].text


def test_a_locked_store_blocks_nothing_else(make, monkeypatch):
    monkeypatch.setattr("litbench.study.server._TURN_S", 0.5)
    monkeypatch.setattr("litbench.study.store.BUSY_S", 0.5)
    study = make(4, pairs_per_reader=3)
    with serving(study) as (url, store), ThreadPoolExecutor(20) as threads:
        begin(store, "r")

        def timed(path):
            started = time.monotonic()
            try:
                with urllib.request.urlopen(url + path, timeout=30) as answer:  # noqa: S310
                    return answer.status, answer.read().decode(), time.monotonic() - started
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode(), time.monotonic() - started

        with closing(sqlite3.connect(study.database, isolation_level=None)) as other:
            other.execute("begin immediate")
            visits = [threads.submit(timed, "/?PROLIFIC_PID=r") for _ in range(20)]
            styles = [timed("/style.css") for _ in range(5)]
            assert {(status, seconds < 0.4) for status, _, seconds in styles} == {(200, True)}
            for visit in visits:
                status, page, seconds = visit.result()
                assert (status, "The study is busy" in page, seconds < 3) == (503, True, True)
            other.execute("rollback")
        # A simulated reader tries again.
        assert timed("/?PROLIFIC_PID=new")[0] == 200


def test_closed_study(client):
    browser = client(4)
    join(browser, "done")
    read_on(browser.store, "done")
    other, new = browser.again(), browser.again()
    data = hidden(join(other, "other")) | {"choice": "first"}
    browser.store.close_study()
    assert TEXTS["completion_code"] in browser.get("/read").text
    for answer in (
        other.get("/read"),
        other.post("/answer", data=data),
        new.get("/?PROLIFIC_PID=new"),
        new.post("/start", data={"reader": "new", "agree": "yes"}),
    ):
        assert (answer.status_code, "closed" in answer.text) == (403, True)
    assert browser.store.states() == {"finished": 1, "reading": 1}


def test_ids_are_made_or_required(client, tmp_path, pair_table):
    browser = client(4)
    ids = [
        re.search(r'name="reader" value="(made-[^"]+)"', browser.again().get("/").text)[1]
        for _ in range(2)
    ]
    assert ids[0] != ids[1]
    study = write_study(
        tmp_path / "other", study_pairs(pair_table, 3), pairs_per_reader=3, requires_id=True
    )
    assert client(3, study=study).get("/").status_code == 400


def test_errors_reveal_nothing(client, monkeypatch, caplog):
    browser = client(4)
    page = join(browser, "secret-reader")
    story = html.unescape(re.search(r'id="first-text">(.*?)</div>', page.text)[1])

    def fail(*_):
        raise RuntimeError(story)

    monkeypatch.setattr(PairStore, "answer", fail)
    with caplog.at_level(logging.DEBUG):
        data = hidden(page) | {"choice": "second", "reason": "mine"}
        answer = browser.post("/answer", data=data)
    assert answer.status_code == 500
    assert "a request failed: RuntimeError" in caplog.text
    for secret in (story, "secret-reader", "mine"):
        assert secret not in caplog.text
        assert secret not in answer.text


def test_simulated_readers_over_http(make):
    study = make(6, readers_per_pair=4, pairs_per_reader=3)
    with serving(study) as (url, store):
        ends, visitors = visit_study(study, SimulatedReaders(careless=0.3, dropout=0.2), url, 12)
        choices = store.choices()
    assert set(ends) <= {"finished", "left", "turned away"}
    assert ends["finished"] >= 3
    assert choices.num_rows == sum(len(visitor.acknowledged) for visitor in visitors)


# Analysis ------------------------------------------------------------------------------------


def table_of(rows):
    """Choices; what a row leaves out is unknown."""
    return pa.Table.from_pylist(rows, CHOICES.arrow())


def hand_made(pairs, counts, readers=11):
    """Choices in which the first `counts[k]` readers of pair k agree with its label."""
    rows = [
        {
            "reader": f"r{reader}",
            "place": at + 1,
            "kind": "pair",
            "pair_id": name,
            "order": "chosen" if (reader + at) % 2 else "rejected",
            "seconds": 10.0 * (at + 1),
            "outcome": "chosen" if reader < count else "rejected",
            "hurried": 0,
            "finished": 1,
        }
        for at, (name, count) in enumerate(zip(pairs["pair_id"].to_pylist(), counts, strict=True))
        for reader in range(readers)
    ]
    return table_of(rows)


def test_share_of_choices_is_not_the_majority(pair_table):
    pairs = study_pairs(pair_table, 4)
    pairs = pairs.append_column("kind", pairs["prompt"])
    figures = study_figures(hand_made(pairs, [9, 8, 3, 3]), pairs)
    # 23 of 44 choices, but 2 of 4 majorities.
    assert figures.shares["agreement"].mean == pytest.approx(23 / 44)
    assert f"{figures.shares['agreement'].mean:.3f}" == "0.523"
    assert figures.shares["majority"].mean == 0.5
    assert (figures.choices, figures.pairs, figures.readers) == (44, 4, 11)
    # The chosen stories have 12 words, the others 9.
    assert figures.shares["longer"].mean == figures.shares["agreement"].mean
    assert figures.seconds == [17.5, 25.0, 32.5]


def test_two_way_interval_by_hand():
    values = np.array([1.0, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0])
    prompts, readers = np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4)
    by = [clustered_mean(values, groups).error ** 2 for groups in (prompts, readers, np.arange(12))]
    variance = max(by[0] + by[1] - by[2], by[2] / 2)
    both = two_way_interval(values, prompts, readers)
    mean, t = values.mean(), 4.302652729911275  # 97.5 % of Student's t with 2 degrees of freedom
    half = t * np.sqrt(variance) / (mean * (1 - mean))
    logit = np.log(mean / (1 - mean))
    assert both.low == pytest.approx(1 / (1 + np.exp(-(logit - half))))
    assert both.high == pytest.approx(1 / (1 + np.exp(-(logit + half))))
    assert (both.n, both.clusters, both.effective_clusters) == (12, 4, 3)
    # Readers named anew, in another order, change nothing; one reader has no interval.
    again = two_way_interval(values[::-1], prompts[::-1], [f"x{r}" for r in readers[::-1]])
    assert again.low == pytest.approx(both.low)
    assert np.isnan(two_way_interval(values, prompts, np.zeros(12)).low)


def test_swapped_labels_mirror_the_figures(make):
    study = make(6, readers_per_pair=5, pairs_per_reader=3)
    choices = simulate_choices(study, SimulatedReaders(agreement=0.8))
    pairs, renamed = study.pairs, rename_sides(study.pairs)
    other = {"chosen": "rejected", "rejected": "chosen"}
    flipped = table_of(
        [
            row | {name: other.get(row[name]) for name in ("order", "outcome")}
            for row in choices.to_pylist()
        ]
    )
    ones = {"labels": np.ones(6)}
    first = study_figures(choices, pairs, one_reader(choices, pairs, ones))
    two = study_figures(flipped, renamed, one_reader(flipped, renamed, ones))
    for name, expected in first.shares.items():
        is_mirrored = name in ("agreement", "majority")
        mean = 1 - expected.mean if is_mirrored else expected.mean
        assert two.shares[name].mean == pytest.approx(mean)
    # Alpha and the agreement of readers do not depend on which side is called chosen.
    assert two.annotators.alpha == pytest.approx(first.annotators.alpha)
    assert two.annotators.one_annotator.mean == pytest.approx(first.annotators.one_annotator.mean)


def test_two_readers_tags_are_counted_by_side_and_compared():
    tags = {("a", "p"): "xy", ("b", "p"): "xx", ("a", "q"): "yx", ("b", "q"): "yx"}
    rows = [
        {"reader": reader, "place": place, "kind": "pair", "pair_id": pair, "finished": 1}
        | {"tag_chosen": chosen, "tag_rejected": rejected}
        for place, ((reader, pair), (chosen, rejected)) in enumerate(tags.items())
    ]
    result = tag_figures(table_of(rows), {"p": 0, "q": 1})
    assert result.counts == {"x": (2, 3), "y": (2, 1)}
    # The same tag for three of four stories; by frequency (5/8)^2 + (3/8)^2 = 34/64.
    assert result.same.mean == 0.75
    assert result.kappa == pytest.approx((0.75 - 34 / 64) / (1 - 34 / 64))
    one = tag_figures(table_of(rows[:1]), {"p": 0})
    assert np.isnan(one.same.mean)
    assert (
        tag_figures(
            table_of([row | dict.fromkeys(("tag_chosen", "tag_rejected")) for row in rows]), {}
        )
        is None
    )


def test_tags_belong_to_the_story_that_was_shown(client):
    browser = client(4, tags=["funny", "<b>dry</b>"], repeats_a_pair=False)
    page = join(browser)
    assert "&lt;b&gt;dry" in page.text
    form = hidden(page) | {"choice": "first"}
    for tags in ({}, {"tag_first": "1"}, {"tag_first": "1", "tag_second": "2"}):
        assert browser.post("/answer", data=form | tags).status_code == 400
    assert browser.post("/answer", data=form | {"tag_first": "1", "tag_second": "0"}).is_success
    (row,) = browser.store.choices().to_pylist()
    assert row["outcome"] == row["order"]
    assert row[f"tag_{row['order']}"] == "<b>dry</b>"
    assert row[f"tag_{OTHER[row['order']]}"] == "funny"


def test_exclusion_rules(pair_table):
    pairs = study_pairs(pair_table, 2)
    pages = [
        ("attentive", "pair", "chosen", None),
        ("attentive", "attention", "chosen", 1),
        ("attentive", "repeat", "chosen", None),
        ("careless", "pair", "chosen", None),
        ("careless", "attention", "rejected", 0),
        ("fickle", "pair", "chosen", None),
        ("fickle", "repeat", "rejected", None),
        ("gone", "pair", "chosen", None),
    ]
    choices = table_of(
        [
            {
                "reader": reader,
                "place": index,
                "kind": kind,
                "pair_id": pairs["pair_id"][0].as_py(),
                "outcome": outcome,
                "is_right": is_right,
                "finished": int(reader != "gone"),
            }
            for index, (reader, kind, outcome, is_right) in enumerate(pages)
        ]
    )

    def excluded(rules):
        return {row["reader"]: row["excluded"] for row in reader_results(choices, rules)}

    strict = Exclusions(changed_repeat=True, unfinished=True)
    assert excluded(strict) == {
        "attentive": [],
        "careless": ["failed the attention check"],
        "fickle": ["changed a repeated choice"],
        "gone": ["unfinished"],
    }
    usual = [reader for reader, rules in excluded(Exclusions()).items() if rules]
    assert usual == ["careless"]
    figures = study_figures(leave_out(choices, usual), pairs)
    assert figures.readers == 3
    assert (figures.shares["attention"].mean, figures.shares["repeats"].mean) == (1.0, 0.5)
    with pytest.raises(DataError, match="no choice is left"):
        study_figures(leave_out(choices, excluded(strict)), pairs)
    with pytest.raises(DataError, match="pairs file"):
        study_figures(choices, pairs.slice(1))


def test_ratings_of_a_story_in_two_pairs(pair_table):
    pairs = pair_table(
        [{"prompt_id": "p", "chosen_story_id": "a", "rejected_story_id": other} for other in "bc"]
    )
    choices = table_of(
        [
            {"reader": "r", "place": index, "kind": "pair", "pair_id": name, "outcome": outcome}
            for index, (name, outcome) in enumerate(
                zip(pairs["pair_id"].to_pylist(), ("chosen", "rejected"), strict=True)
            )
        ]
    )
    stories, ratings = (table.to_pydict() for table in stories_and_ratings(choices, pairs))
    assert stories["story_id"] == ["a", "b", "c"]
    result = dict(zip(ratings["story_id"], ratings["rating"], strict=True))
    assert result == {"a": 0.5, "b": 0.0, "c": 1.0}


# Programs ------------------------------------------------------------------------------------


def test_the_whole_way(program, tmp_path, pair_table, capsys):
    pairs, out, done = tmp_path / "pairs.parquet", tmp_path / "study", tmp_path / "done"
    write_table(study_pairs(pair_table, 9), pairs)

    def run(name, *options):
        result = program(name, *options)
        assert result.returncode == 0, result.stderr
        return result.stdout

    # Lengths are counted where the file has none.
    shorter = pq.read_table(pairs).drop_columns(["chosen_n_words", "rejected_n_words"])
    pq.write_table(shorter, pairs)
    made = run(
        "litbench study make",
        "--pairs",
        pairs,
        "--out",
        out,
        "--readers_per_pair",
        4,
        "--pairs_per_reader",
        4,
        "--max_words_per_minute",
        "null",
        "--max_pairs",
        8,
        "--tags",
        "[funny, dry, a twist]",
        *OPTIONS,
    )
    assert "8 pairs of 8 prompts, 4 readers a pair, 4 pairs a reader: 8 readers" in made
    with serving(PairStudy.open(out)) as (url, _):
        command(["simulate", str(out), "--url", url, "--readers", "9", "--agreement", "0.9"])
    for what in (["status", "--pairs"], ["export"], ["close"], ["export"]):
        command([*what, str(out)])
    said = capsys.readouterr().out
    assert "choices: 32 of 32; by pair 4 to 4 of 4" in said
    assert "8 finished, 1 turned away" in said

    # Judges and verifiers of the same pairs stand in the table of the readers.
    judged = tmp_path / "judged"
    run(
        "eval/benchmark.py",
        "--pairs",
        out / "pairs.parquet",
        "--out",
        judged,
        "--raters",
        "{longer: {kind: longer}, shorter: {kind: shorter}}",
    )
    analysis = (
        "litbench study analyse",
        "--study",
        out,
        "--out",
        done,
        "--verifier",
        "mine",
        "--evaluation",
        judged,
    )
    run(*analysis)
    results = json.loads((done / "human_study.json").read_text())["all"]
    assert results["shares"]["agreement"]["n"] == 32
    assert np.sum(list(results["tags"]["counts"].values()), axis=0).tolist() == [32, 32]
    assert "kappa" in (done / "human_study.html").read_text()
    raters = {row["rater"]: row["agreement"]["mean"] for row in results["annotators"]["raters"]}
    assert raters["mine"] == raters["longer"] == pytest.approx(1 - raters["shorter"])
    check_parquet(done / "verdicts.parquet", VERDICTS)
    assert stat.S_IMODE((done / "verdicts.parquet").stat().st_mode) == 0o600
    page = (done / "human_study.html").read_text()
    assert "0.564" in page
    assert "shorter" in page
    assert run(*analysis).startswith("unchanged")

    # The ratings of the export, imported as others' are, give the same leave-one-out agreement.
    imported, people = tmp_path / "imported", out / "export" / "ratings.parquet"
    run(
        "data_prep/import_ratings.py",
        "--stories",
        out / "export" / "stories.parquet",
        "--people",
        f"{{table: {people}, rater: rater, values: [rating]}}",
        "--out",
        imported,
    )
    labelled = pq.read_table(imported / "all_pairs.parquet")
    assert set(labelled["pair_id"].to_pylist()) == set(PairStudy.open(out).by_id)
    run(
        "eval/benchmark.py",
        "--pairs",
        imported / "pairs.parquet",
        "--ratings",
        imported / "ratings.parquet",
        "--raters",
        "{longer: {kind: longer}}",
        "--out",
        tmp_path / "benchmark",
    )
    other = json.loads((tmp_path / "benchmark" / "annotators.json").read_text())
    for name in ("one_annotator", "alpha"):
        assert other[name] == results["annotators"][name]


def test_commands_say_nothing_on_stderr(make, program):
    study = make(4, pairs_per_reader=3)
    with closing(PairStore(study)) as store:
        begin(store, "r")
        read_on(store, "r")
    for options in (["status", "--pairs"], ["export"], ["close"], ["remove", "r"]):
        name, *more = options
        done = program("litbench study", name, study.folder, *more)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout


# `socket.create_server` leaves its socket open where the port is out of range.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
def test_errors_are_one_line(make, program, tmp_path):
    study = make(4, pairs_per_reader=3)
    with closing(PairStore(study)), socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = [
            (["serve", study.folder, "--port", port], "Address already in use"),
            (["serve", study.folder, "--port", 80_000], "port 80000"),
            (["serve", study.folder, "--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
            (["serve", study.folder, "--host", "no.such.host.invalid"], "cannot listen on no.such"),
            (["serve", tmp_path], "manifest.json"),
            (["export", study.folder], "has no answer yet"),
            (["remove", study.folder, "x"], "no reader 'x'"),
        ]
        with closing(sqlite3.connect(study.database, isolation_level=None)) as other:
            other.execute("begin immediate")
            locked = program("litbench study", "close", study.folder)
        done = [(program("litbench study", *options), message) for options, message in cases]
    done.append((locked, "database is locked"))
    study.database.write_bytes(b"x" * 10_000)
    status = program("litbench study", "status", study.folder)
    done.append((status, "file is not a database"))
    for process, message in done:
        assert process.returncode == 2
        assert message in process.stderr
        assert process.stderr.startswith("error: ")
        assert process.stderr.count("\n") == 1


def test_errors_of_the_programs(program, tmp_path, pair_table, make, capsys, monkeypatch):
    monkeypatch.setattr("litbench.study.simulation._PATIENCE", 0)
    pairs = tmp_path / "pairs.parquet"
    write_table(pair_table([{"chosen": "same", "rejected": "same"}, {}]), pairs)
    study, out = make(3, pairs_per_reader=3), tmp_path / "x"
    cases = [
        (
            "litbench study make",
            ["--pairs", pairs, "--out", out, *OPTIONS],
            "0 pairs have no texts and 1 have the same text twice",
        ),
        ("litbench study analyse", ["--out", out, "--study", study.folder], "choices.parquet"),
    ]
    for name, options, message in cases:
        assert message in program(name, *options).stderr
    for (name, *options), message in (
        (["status"], "does not exist: run litbench study serve"),
        (["export"], "has no answer yet"),
        (["simulate", "--careless", "2"], "key 'careless' is 2"),
        (["simulate", "--url", f"http://127.0.0.1:{free_port()}"], "does not answer"),
    ):
        with pytest.raises(SystemExit):
            command([name, str(study.folder), *options])
        assert message in capsys.readouterr().err
        PairStore(study).close()
    # A study that has readers keeps its plan.
    again = program(
        "litbench study make",
        "--pairs",
        study.folder / "pairs.parquet",
        "--out",
        study.folder,
        *OPTIONS,
        "--pairs_per_reader",
        2,
    )
    assert "has readers of an earlier plan" in again.stderr
    assert PairStudy.open(study.folder).plan == study.plan
