"""The command `litbench study`: serve a study, follow it, close it, export it, simulate readers."""

import argparse
import logging
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from litbench.config import build, report_errors
from litbench.errors import DataError, MissingExtraError
from litbench.human_study.export import stories_and_ratings
from litbench.human_study.plan import BaseStudy, Study, read_plan
from litbench.human_study.ratings import RatingStore, RatingStudy, tables_of
from litbench.human_study.simulation import SimulatedReaders, visit_study
from litbench.human_study.store import BaseStore, Store
from litbench.store import Artifact, read_manifest
from litbench.tables import write_table


def serve(arguments: argparse.Namespace) -> None:
    """Show the study to readers until SIGTERM or SIGINT."""
    try:
        from litbench import server  # noqa: PLC0415
        from litbench.human_study.server import make_app  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(str(error.name), "study") from error

    server.check_address(arguments.host, arguments.port)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    hosts = server.accepted_hosts(arguments.host, arguments.allowed_host)
    with open_store(open_study(arguments.folder)) as (study, store):
        store.note_restart()
        app = make_app(study, store, hosts)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: sys.exit(0))
        server.make_server(app, server.ServerLimits(), arguments.host, arguments.port).run()


def open_study(folder: Path) -> BaseStudy:
    """Open a study of any kind."""
    return (Study if read_plan(folder).kind == "pairs" else RatingStudy).open(folder)


@contextmanager
def open_store(study: BaseStudy) -> Iterator[tuple[BaseStudy, BaseStore]]:
    """Open a study's store; DataError if another program does not let it be used."""
    try:
        cls = Store if isinstance(study, Study) else RatingStore
        with closing(cls(study)) as store:
            yield study, store
    except sqlite3.Error as error:
        raise DataError(
            f"{study.database}: {error}: end other programs that use it, or restore it"
        ) from error


def started_study(folder: Path) -> AbstractContextManager[tuple[BaseStudy, BaseStore]]:
    """Open a study that readers have started."""
    study = open_study(folder)
    if not study.database.exists():
        raise DataError(f"{study.database} does not exist: run litbench study serve {folder} first")
    return open_store(study)


def status(arguments: argparse.Namespace) -> None:
    """Print the progress of readers and pairs."""
    with started_study(arguments.folder) as (study, store):
        print_status(study, store, with_pairs=arguments.pairs)


def print_status(study: BaseStudy, store: BaseStore, *, with_pairs: bool) -> None:
    """Print the progress of an open study."""
    progress, states, left = store.progress(), store.states(), store.left_out()
    what, item = ("choices", "pair") if study.plan.kind == "pairs" else ("answers", "story")
    each = getattr(study.plan, f"readers_per_{item}")
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


def export(arguments: argparse.Namespace) -> None:
    """Write the answers, also as ratings of stories with readers as annotators."""
    with started_study(arguments.folder) as (study, store):
        if not has_answers(store):
            raise DataError(f"{study.database} has no answer yet: wait for readers")
        write_export(study, store)


def has_answers(store: BaseStore) -> bool:
    """Whether somebody has answered a page."""
    return store.answers_since(0) > 0


def write_export(study: BaseStudy, store: BaseStore) -> None:
    """Write the export, which only its owner can read: it holds what readers wrote."""
    out = study.folder / "export"
    names = ["plan.json", *(p.name for p in study.folder.glob("*.parquet"))]
    inputs = {name: study.folder / name for name in names}
    artifact = Artifact(out, program="study_export", config={"out": out}, inputs=inputs)
    artifact.counts = {"readers": store.states()}
    if isinstance(study, RatingStudy):
        assert isinstance(store, RatingStore)
        tables = tables_of(study, store.answers())
        counts = read_manifest(study.folder)["counts"]
        artifact.counts |= {name: counts.get(name) for name in ("protocol", "headline")}
    else:
        assert isinstance(study, Study)
        assert isinstance(store, Store)
        choices = store.choices()
        stories, ratings = stories_and_ratings(choices, study.pairs)
        tables = {"choices": choices, "stories": stories, "ratings": ratings}
    for name, table in tables.items():
        artifact.write(f"{name}.parquet", partial(write_table, table))
        (out / f"{name}.parquet").chmod(0o600)
    first, table = next(iter(tables.items()))
    artifact.counts["answers"] = table.num_rows
    artifact.finish()
    print(f"{out / first}.parquet: {table.num_rows:,} answers")


def close(arguments: argparse.Namespace) -> None:
    """Accept no more readers and answers."""
    with started_study(arguments.folder) as (_, store):
        store.close_study()
    print("closed: readers who finished still see their code")


def remove(arguments: argparse.Namespace) -> None:
    """Remove a reader with all answers, from the export too."""
    with started_study(arguments.folder) as (study, store):
        store.remove(arguments.reader)
        print("removed: analyse again what you computed from an earlier export")
        if not (study.folder / "export").exists():
            return
        if has_answers(store):
            write_export(study, store)
        else:
            shutil.rmtree(study.folder / "export")


def simulate(arguments: argparse.Namespace) -> None:
    """Answer the running server by simulated readers."""
    study = open_study(arguments.folder)
    given = {name: getattr(arguments, name) for name in SimulatedReaders.ABOUT}
    crowd = build(SimulatedReaders, given, "command line")
    ends, _ = visit_study(study, crowd, arguments.url, arguments.readers)
    print(", ".join(f"{count} {how}" for how, count in ends.items()))


def make_parser() -> argparse.ArgumentParser:
    """Create the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="litbench study", description="A study with human readers; see docs/human_study.md."
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    made = {}
    for run in (serve, status, close, export, remove, simulate):
        about = (run.__doc__ or "").partition(".")[0]
        made[run.__name__] = commands.add_parser(run.__name__, help=about, description=about)
        made[run.__name__].set_defaults(run=run)
        made[run.__name__].add_argument("folder", type=Path, help="out of data_prep/make_study.py")
    add = made["serve"].add_argument
    add("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine only")
    add("--port", type=int, default=8000, help="default: 8000")
    add("--allowed_host", action="append", default=[], help="accept this Host header; repeatable")
    made["remove"].add_argument("reader", help="the id with which the reader came")
    made["status"].add_argument("--pairs", action="store_true", help="also print every pair")
    add = made["simulate"].add_argument
    add("--url", default="http://127.0.0.1:8000", help="default: http://127.0.0.1:8000")
    add("--readers", type=int, default=20, help="readers, all at once; default: 20")
    for name, about in SimulatedReaders.ABOUT.items():
        default = getattr(SimulatedReaders, name)
        add(f"--{name}", type=type(default), default=default, help=f"{about}; default: {default}")
    return parser


def command(arguments: list[str]) -> None:
    """Run the command, inside `report_errors`."""
    with report_errors():
        parsed = make_parser().parse_args(arguments)
        parsed.run(parsed)
