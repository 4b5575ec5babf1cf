"""Studies at full size: coverage of intervals, recovery of a known agreement, kills, a browser."""

import dataclasses
import itertools
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import narra_script as script
import numpy as np
import pytest
from fake_openai import FakeOpenAI
from study_folder import (
    CARDS,
    check_balance,
    free_port,
    rating_folder,
    serve_process,
    session_folder,
    simulate_choices,
    study_pairs,
    wait_for,
    write_study,
)

from litbench.data.records import TURNS
from litbench.metrics.intervals import jackknife_interval, two_way_interval
from litbench.study.metrics import leave_out, reader_results, study_figures
from litbench.study.pairs import PairStore
from litbench.study.ratings import RatingStore
from litbench.study.sessions import SessionStore, action_of
from litbench.study.simulation import Reader, SimulatedReaders, Visitor

pytestmark = pytest.mark.long
TRUE = 0.564


@pytest.fixture
def forty(tmp_path, pair_table):
    return write_study(tmp_path / "study", study_pairs(pair_table, 40))


def simulated(study, seed, **options):
    plan = dataclasses.replace(study.plan, seed=seed)
    return simulate_choices(
        dataclasses.replace(study, plan=plan), SimulatedReaders(seed=seed, **options)
    )


def draw_choices(random, pair_sd, reader_sd, each):
    """Choices on 40 pairs with 10 readers each, who read `each` pairs; equal loads."""
    readers = 400 // each
    order = np.array(
        [(start + at) % 40 for start in range(0, 40, 40 // readers or 1) for at in range(each)]
    )[:400]
    pair, reader = random.permutation(40)[order], np.repeat(np.arange(readers), each)[:400]
    chance = TRUE + random.normal(0, pair_sd, 40)[pair]
    chance += random.normal(0, reader_sd, readers)[reader]
    return (random.random(400) < chance).astype(float), pair, reader


@pytest.mark.parametrize("each", [10, 40])
def test_two_way_coverage(each):
    for pair_sd, reader_sd in itertools.product((0.0, 0.1, 0.2), (0.0, 0.05, 0.1)):
        random = np.random.default_rng([each, int(100 * pair_sd), int(100 * reader_sd)])
        covered = Counter()
        for _ in range(1_000):
            values, pair, reader = draw_choices(random, pair_sd, reader_sd, each)
            both, first = two_way_interval(values, pair, reader), jackknife_interval(values, pair)
            covered["both"] += both.low <= TRUE <= both.high
            covered["prompt"] += first.low <= TRUE <= first.high
        print(f"{each} pairs a reader, sd {pair_sd} {reader_sd}: {dict(covered)} of 1000")
        assert 920 <= covered["both"] <= 970
        if (each, reader_sd) == (40, 0.1):
            # Ten readers of different taste: clustering by prompt alone is too sure.
            assert covered["prompt"] < 900


def test_recovers_known_agreement(forty):
    results = [study_figures(simulated(forty, seed), forty.pairs) for seed in range(1_000)]
    shares = [item.shares["agreement"] for item in results]
    covered = np.mean([share.low <= TRUE <= share.high for share in shares])
    half = np.mean([(share.high - share.low) / 2 for share in shares])
    print(f"covered {covered:.3f}, mean {np.mean([s.mean for s in shares]):.4f}, half {half:.4f}")
    assert 0.92 <= covered <= 0.97
    assert abs(np.mean([share.mean for share in shares]) - TRUE) < 0.005
    assert {item.choices for item in results} == {400}


def test_a_careless_third(forty):
    counts, means, widths = Counter(), [], []
    for seed in range(200):
        choices = simulated(forty, seed, careless=1 / 3)
        readers = reader_results(choices, forty.plan.exclude)
        # Readers came one after the other.
        order = list(dict.fromkeys(choices["reader"].to_pylist()))
        numbered = [
            Reader(SimulatedReaders(seed=seed, careless=1 / 3), at, 1)
            for at in range(1, len(order) + 1)
        ]
        careless = {name for name, who in zip(order, numbered, strict=True) if who.is_careless}
        failed = {row["reader"] for row in readers if row["excluded"]}
        changed = {row["reader"] for row in readers if row["repeats"] == 0}
        assert (failed | changed) <= careless
        counts.update(careless=len(careless), failed=len(failed), either=len(failed | changed))
        shares = [
            study_figures(leave_out(choices, without), forty.pairs).shares["agreement"]
            for without in ((), failed, failed | changed, careless)
        ]
        means.append([share.mean for share in shares])
        widths.append([(share.high - share.low) / 2 for share in shares])
    print(dict(counts), np.mean(means, 0).round(4), np.mean(widths, 0).round(4))
    assert counts["failed"] / counts["careless"] == pytest.approx(1 / 2, abs=0.03)
    assert counts["either"] / counts["careless"] == pytest.approx(3 / 4, abs=0.03)
    # Each step is nearer to the agreement of careful readers, for fewer choices.
    biases = TRUE - np.mean(means, 0)
    assert biases[0] == pytest.approx((TRUE - 0.5) / 3, abs=0.006)
    assert biases[0] > biases[1] > biases[2] > biases[3] - 0.003
    assert np.mean(widths, 0)[3] > np.mean(widths, 0)[0]


def test_kills_lose_and_double_nothing(tmp_path, pair_table):
    pages = 40
    study = write_study(
        tmp_path / "study",
        study_pairs(pair_table, 60),
        readers_per_pair=200,
        pairs_per_reader=pages,
        max_starting=200,
    )

    def check(visitors):
        """Every acknowledged answer is in the store; the load of pairs and sides is even."""
        with closing(PairStore(study)) as store:
            stored = answers_in(store)
            check_balance(store)
        for visitor in visitors:
            # A copy: the reader goes on meanwhile.
            for page, choice in list(visitor.acknowledged.items()):
                assert stored[visitor.reader.name, page] == choice

    visitors = visit_through_kills(study, 200, pages, 300, check)
    assert acknowledged(visitors) == 200 * (pages + 2)


def test_kills_lose_and_double_no_ratings(tmp_path, load_program):
    program = load_program("litbench study make")
    study = rating_folder(
        tmp_path / "study",
        program,
        4,
        5,
        readers_per_story=200,
        groups_per_reader=4,
        max_starting=200,
    )

    def check(visitors):
        with closing(RatingStore(study)) as store:
            stored = answers_in(store)
        for visitor in visitors:
            for page in list(visitor.acknowledged):
                assert (visitor.reader.name, page) in stored

    visitors = visit_through_kills(study, 200, 100, 250, check)
    with closing(RatingStore(study)) as store:
        stored = answers_in(store)
        assert set(store.progress().values()) == {(200, 0)}
        assert store.answers().num_rows == 200 * 20
    for visitor in visitors:
        assert len(visitor.acknowledged) == 20
        for page, sent in visitor.acknowledged.items():
            # Sent again after a kill, or changed before the group was submitted: the last one.
            answer = json.loads(stored[visitor.reader.name, page])
            assert answer == {name: float(number) for name, number in json.loads(sent).items()}


def test_kills_lose_and_double_no_sessions(tmp_path, load_program):
    program = load_program("litbench study make")
    study = session_folder(
        tmp_path / "study", program, cards=CARDS, readers_per_card=10, sessions_at_once=8
    )

    def check(visitors):
        with closing(SessionStore(study)) as store:
            rows = store._all("select reader, step from turns join readers using (number)")
        stored = set(map(tuple, rows))
        for visitor in visitors:
            for step in list(visitor.turns):
                assert (visitor.reader.name, step) in stored

    with FakeOpenAI(script.writer):
        visitors = visit_through_kills(study, 20, 100, 25, check)
    with closing(SessionStore(study)) as store:
        asked = "select reader, step, text from turns join readers using (number)"
        stored = {(reader, step): text for reader, step, text in store._all(asked)}
        tables, _ = store.export()
    sent = {
        (visitor.reader.name, step): action_of(step, form)
        for visitor in visitors
        for step, form in visitor.turns.items()
    }
    assert stored == sent
    assert tables["stories"].num_rows == 20
    assert tables["ratings"].num_rows == 20 * 12
    turns = tables["turns"].to_pylist()
    keys = Counter(tuple(row[name] for name in TURNS.key) for row in turns)
    assert max(keys.values()) == 1
    assert sum(row["role"] == "reader" for row in turns) == len(sent)


def visit_through_kills(study, readers, pages, each, check):
    """Let simulated readers go through a study whose server is killed ten times.

    The server is killed whenever `each` further answers are acknowledged; then `check` is called
    with the readers, whom it returns.
    """
    port, logs = free_port(), ""
    url = f"http://127.0.0.1:{port}"
    population = SimulatedReaders(seed=1)
    visitors = [Visitor(study, url, Reader(population, at, pages)) for at in range(1, readers + 1)]
    server = serve_process(study.folder, port)
    wait_for(url)
    with ThreadPoolExecutor(readers) as threads:
        visits = [threads.submit(visitor.visit) for visitor in visitors]
        try:
            for kill in range(1, 11):
                # In the middle of the traffic, however slow the machine is.
                wanted, end = acknowledged(visitors) + each, time.monotonic() + 300
                while acknowledged(visitors) < wanted:
                    assert time.monotonic() < end, "the readers do not get on"
                    time.sleep(0.05)
                print(f"kill {kill}: {acknowledged(visitors)} answers acknowledged")
                server.kill()
                logs += server.communicate()[1].decode()
                assert server.returncode == -9
                check(visitors)
                server = serve_process(study.folder, port)
            assert Counter(visit.result(600) for visit in visits) == {"finished": readers}
        finally:
            server.kill()
            logs += server.communicate()[1].decode()
    check(visitors)
    assert "word" not in logs
    assert "simulated" not in logs
    return visitors


def acknowledged(visitors):
    return sum(len(visitor.acknowledged) + len(visitor.turns) for visitor in visitors)


def answers_in(store):
    """The answers of a store by reader and place; its key allows one to a page."""
    rows = store._all("select reader, place, answer from choices join readers using (number)")
    return {(reader, index): answer for reader, index, answer in rows}
