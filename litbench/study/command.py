"""The commands `litbench study ...`: serve, follow, close and export a study, simulate readers."""

import logging
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np

from litbench.data.tables import write_table
from litbench.runs.config import Positional
from litbench.runs.errors import DataError, MissingExtraError
from litbench.runs.outputs import Artifact
from litbench.study.pairs import PairStore, PairStudy
from litbench.study.plan import Study, StudyPlan, read_plan
from litbench.study.ratings import RatingStore, RatingStudy
from litbench.study.sessions import SessionStore, SessionStudy
from litbench.study.simulation import SimulatedReaders, visit_study
from litbench.study.store import Store


@dataclass(kw_only=True)
class StudyOptions:
    """A command on a study.

    Attributes:
        folder: `out` of litbench study make.
    """

    folder: Annotated[Path, Positional]


@dataclass(kw_only=True)
class StudyServing(StudyOptions):
    """Show the study to readers until SIGTERM or SIGINT.

        litbench study serve FOLDER --port 8080

    Attributes:
        host: address to listen on; by default this machine only.
        port: port to listen on.
        allowed_host: accept this Host header; repeatable.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    allowed_host: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Status(StudyOptions):
    """Print the progress of readers and pairs.

        litbench study status FOLDER

    Attributes:
        pairs: also print every pair.
    """

    pairs: bool = False


@dataclass(kw_only=True)
class Export(StudyOptions):
    """Export the answers.

    They are also written as ratings of stories with readers as annotators:

        litbench study export FOLDER
    """


@dataclass(kw_only=True)
class Close(StudyOptions):
    """Close a study.

    It accepts no more readers and answers:

        litbench study close FOLDER
    """


@dataclass(kw_only=True)
class Remove(StudyOptions):
    """Remove a reader with all answers, from the export too.

        litbench study remove FOLDER --reader ID

    Attributes:
        reader: the id with which the reader came.
    """

    reader: Annotated[str, Positional]


@dataclass(kw_only=True, frozen=True)
class Simulate(SimulatedReaders):
    """Answer the running server by simulated readers.

        litbench study simulate FOLDER

    Attributes:
        folder: `out` of litbench study make.
        url: address of the server.
        readers: number of readers, all at once.
    """

    folder: Annotated[Path, Positional]
    url: str = "http://127.0.0.1:8000"
    readers: int = 20


def serve(config: StudyServing) -> None:
    """Show the study to readers until SIGTERM or SIGINT."""
    try:
        from litbench.serve import server  # noqa: PLC0415
        from litbench.study.server import make_app  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(str(error.name), "study") from error

    server.check_address(config.host, config.port)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    hosts = server.accepted_hosts(config.host, config.allowed_host)
    with open_store(open_study(config.folder)) as store:
        store.note_restart()
        app = make_app(store, hosts)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: sys.exit(0))
        server.make_server(app, server.ServerLimits(), config.host, config.port).run()


# The study of each kind, and its store.
KINDS: dict[str, tuple[type[PairStudy | RatingStudy | SessionStudy], type[Store]]] = {
    "pairs": (PairStudy, PairStore),
    "ratings": (RatingStudy, RatingStore),
    "session": (SessionStudy, SessionStore),
}


def open_study(folder: Path) -> Study:
    """Open a study of any kind."""
    return KINDS[read_plan(folder, StudyPlan).kind][0].open(folder)


@contextmanager
def open_store(study: Study) -> Iterator[Store]:
    """Open a study's store; DataError if another program does not let it be used."""
    try:
        with closing(KINDS[study.plan.kind][1](study)) as store:
            yield store
    except sqlite3.Error as error:
        raise DataError(
            f"{study.database}: {error}: end other programs that use it, or restore it"
        ) from error


def started_store(folder: Path) -> AbstractContextManager[Store]:
    """Open the store of a study that readers have started."""
    study = open_study(folder)
    if not study.database.exists():
        raise DataError(f"{study.database} does not exist: run litbench study serve {folder} first")
    return open_store(study)


def status(config: Status) -> None:
    """Print the progress of readers and pairs."""
    with started_store(config.folder) as store:
        print_status(store, with_pairs=config.pairs)


def print_status(store: Store, *, with_pairs: bool) -> None:
    """Print the progress of an open study."""
    progress, states, left = store.progress(), store.states(), store.left_out()
    what, item = store.nouns
    each = getattr(store.study.plan, f"readers_per_{item}")
    done = [answered for answered, _ in progress.values()]
    print("closed" if store.is_closed else "open")
    print(
        f"{what}: {sum(done):,} of {each * len(progress):,}; by {item} {min(done)} to {max(done)} "
        f"of {each}"
    )
    print("readers: " + (", ".join(f"{n} {state}" for state, n in states.items()) or "none"))
    print(
        "left out by the rules so far: "
        + (", ".join(f"{n} {rule}" for rule, n in left.items()) or "nobody")
    )
    print(f"answers in the last hour: {store.answers_since(time.time() - 3600):,}")
    if minutes := store.minutes():
        print(
            f"minutes of readers who finished: median {np.median(minutes):.1f}, "
            f"{minutes[0]:.1f} to {minutes[-1]:.1f}"
        )
    if with_pairs:
        for name, (answered, waiting) in progress.items():
            print(f"{name}  {answered} answered, {waiting} waiting")


def export(config: Export) -> None:
    """Write the answers, also as ratings of stories with readers as annotators."""
    with started_store(config.folder) as store:
        if not has_answers(store):
            raise DataError(f"{store.study.database} has no answer yet: wait for readers")
        write_export(store)


def has_answers(store: Store) -> bool:
    """Whether somebody has answered a page."""
    return store.answers_since(0) > 0


def write_export(store: Store) -> None:
    """Write the export, which only its owner can read: it holds what readers wrote."""
    study = store.study
    out = study.folder / "export"
    names = ["plan.json", *(p.name for p in study.folder.glob("*.parquet"))]
    inputs = {name: study.folder / name for name in names}
    artifact = Artifact(out, program="study_export", config={"out": out}, inputs=inputs)
    tables, facts = store.export()
    artifact.counts = {"readers": store.states(), **facts}
    for name, table in tables.items():
        artifact.write(f"{name}.parquet", partial(write_table, table))
        (out / f"{name}.parquet").chmod(0o600)
    first, table = next(iter(tables.items()))
    artifact.counts["answers"] = table.num_rows
    artifact.finish()
    print(f"{out / first}.parquet: {table.num_rows:,} answers")


def close(config: Close) -> None:
    """Accept no more readers and answers."""
    with started_store(config.folder) as store:
        store.close_study()
    print("closed: readers who finished still see their code")


def remove(config: Remove) -> None:
    """Remove a reader with all answers, from the export too."""
    with started_store(config.folder) as store:
        try:
            store.remove(config.reader)
            if has_answers(store) and (store.study.folder / "export").exists():
                write_export(store)
            else:
                shutil.rmtree(store.study.folder / "export", ignore_errors=True)
        finally:
            store.empty_log()
    print("removed: repeat the analyses of earlier exports")


def simulate(config: Simulate) -> None:
    """Answer the running server by simulated readers."""
    study = open_study(config.folder)
    ends, _ = visit_study(study, config, config.url, config.readers)
    print(", ".join(f"{count} {how}" for how, count in sorted(ends.items())))
