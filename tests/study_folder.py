"""Small studies with human readers, in a folder and behind a server, for several test files."""

import contextlib
import itertools
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from litbench.cli import main
from litbench.data.records import STORIES, empty_columns
from litbench.data.tables import write_table
from litbench.runs.config import as_plain, build
from litbench.runs.outputs import Artifact, write_json
from litbench.study.command import KINDS, open_study
from litbench.study.pairs import PairStore, PairStudy
from litbench.study.plan import PairPlan
from litbench.study.simulation import Reader, SimulatedReaders

ROOT = Path(__file__).resolve().parent.parent
CARDS = ["night_nurse", "late_divorce"]
TEXTS = {"consent": "You read stories.", "contact": "owner@example.org", "completion_code": "C0DE"}


def study_pairs(pair_table, count):
    """Pairs of as many prompts; the chosen and the rejected story differ in every word."""
    rows = [
        {
            "prompt_id": f"p{k}",
            "chosen": " ".join(f"good{k}word{w}" for w in range(12)),
            "rejected": " ".join(f"poor{k}word{w}" for w in range(9)),
            "label_source": "model",
        }
        for k in range(count)
    ]
    return pair_table(rows).sort_by("pair_id")


def write_study(folder: Path, pairs: pa.Table, **plan) -> PairStudy:
    """Write a study's folder as litbench study make does."""
    study_plan = PairPlan(**{**TEXTS, "max_words_per_minute": None, **plan})
    artifact = Artifact(folder, program="make_study.py", config={"out": folder}, inputs={})
    artifact.write("pairs.parquet", partial(write_table, pairs))
    artifact.write("plan.json", partial(write_json, as_plain(study_plan)))
    artifact.finish()
    return PairStudy.open(folder)


def rating_folder(folder: Path, make_study, prompts: int, writers: int, **plan):
    """Write the folder of a study of ratings as litbench study make does, and open it.

    `make_study` is that program; `prompt` and `story` are put before all prompts and stories.
    """
    before = {name: plan.pop(name, "") for name in ("prompt", "story")}
    rows = [
        {
            "story_id": f"story-{p}-{w}",
            "prompt_id": f"prompt-{p}",
            "prompt": f"{before['prompt']} Write about thing {p}.",
            "text": f"{before['story']} " + " ".join(f"word{p}x{w}x{k}" for k in range(20)),
            "n_words": 20,
            "source": f"writer-{w}",
        }
        for p in range(prompts)
        for w in range(writers)
    ]
    folder.mkdir(parents=True)
    stories = folder.parent / "stories.parquet"
    schema = pa.schema({n: c.type for n, c in empty_columns(STORIES, 0).items()})
    write_table(pa.Table.from_pylist(rows, schema), stories)
    arguments = {"kind": "ratings", "rubric": "narra_story", "max_words_per_minute": None}
    config = {**TEXTS, **arguments, **plan, "stories": str(stories), "out": str(folder)}
    make_study.main(build(make_study.Config, config))
    return open_study(folder)


def session_folder(folder: Path, make_study, **plan):
    """Write the folder of a study of sessions as litbench study make does, and open it."""
    arguments = {
        "kind": "session",
        "writers": {"quill": "openai-api/fake/judge"},
        "cards": CARDS[:1],
    }
    arguments |= {"max_words_per_minute": None, "max_starting": 1000}
    config = {**TEXTS, **arguments, **plan, "out": str(folder)}
    make_study.main(build(make_study.Config, config))
    return open_study(folder)


def begin(store, reader):
    """Take a reader to the first page."""
    store.start(reader)
    store.try_statements(reader, 0, are_right=True)
    return store.next_page(reader)


def hidden(page):
    """What the form of a page sends by itself."""
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text))


def right(study):
    """The right answers to the statements of a study."""
    statements = enumerate(study.plan.statements)
    return {f"statement{at}": str(statement.is_true).lower() for at, statement in statements}


def join(client, reader="reader1"):
    """Take a browser at a study to the first page."""
    page = client.post("/start", data={"reader": reader, "agree": "yes"})
    return client.post("/statements", data=right(client.study) | hidden(page))


def read_pairs(store: PairStore, reader: Reader) -> bool:
    """Let a reader answer all pages; false if no pair is left."""
    page = begin(store, reader.name)
    if page is None:
        return False
    while page is not None:
        answer = reader.answer(store.study, page.kind, page.pair_id, page.order, page.place)
        store.answer(reader.name, page.place, answer)
        page = store.next_page(reader.name)
    return True


def simulate_choices(study: PairStudy, simulated: SimulatedReaders) -> pa.Table:
    """The choices of a study that has all its readers, who answer the store without a server."""
    # Every look at the clock is a minute later, so that nobody reads too fast.
    store = PairStore(study, ":memory:", now=itertools.count(0.0, 60.0).__next__)
    for number in itertools.count(1):
        if not read_pairs(store, Reader(simulated, number, study.plan.pairs_per_reader)):
            break
    choices = store.choices()
    store.close()
    return choices


def check_balance(store: PairStore) -> None:
    """Two pairs differ by one reader at most, and the two sides of a pair by one."""
    (total,) = store._all(
        """select max(total) - min(total) <= 1, max(abs(first - (total - first))) <= 1 from (
            select count(*) as total, sum("order" = 'chosen') as first
            from choices where kind = 'pair' group by pair_id)"""
    )
    assert tuple(total) == (1, 1)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(url: str) -> None:
    """Wait until a server answers."""
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{url}/style.css", timeout=5).close()  # noqa: S310
        except OSError:
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.1)
        else:
            return


@contextlib.contextmanager
def serving(study: PairStudy, now=time.time):
    """Serve a study from a thread; yields its address and its store."""
    from litbench.serve.server import ServerLimits, make_server  # noqa: PLC0415
    from litbench.study.server import make_app  # noqa: PLC0415

    port, store = free_port(), KINDS[study.plan.kind][1](study, now=now)
    app = make_app(store, ["127.0.0.1"])
    server = make_server(app, ServerLimits(), "127.0.0.1", port)
    thread = threading.Thread(target=server.run)
    thread.start()
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url)
        yield url, store
    finally:
        server.should_exit = True
        thread.join()
        store.close()


def command(options: list) -> None:
    """Run a command of `litbench study` in this process."""
    with patch.object(sys, "argv", ["litbench", "study", *map(str, options)]):
        main()


def serve_process(folder: Path, port: int) -> subprocess.Popen:
    """Start `litbench study serve` in a process of its own."""
    command = [sys.executable, "-m", "litbench", "study", "serve", folder, "--port", port]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*map(str, command)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
