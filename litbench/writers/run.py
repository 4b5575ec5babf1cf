"""Run a protocol: its sessions, then write turns, stories, ratings, grades, log and manifest.

    run(Run("longform", Path("out"), writers={"gpt": {"model": "openai/gpt-4.1"}}, judges=...))

`litbench run` calls it. Answers are stored in `out/answers` on arrival, so a killed run resumes.
A new judge sends no requests to writers.
"""

import contextlib
import json
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, PositiveInt

from litbench.data.ingest import RejectedRows
from litbench.data.records import GRADES, RATINGS, REPEATS, STORIES, TURNS, empty_columns
from litbench.data.sources.ratings import story_digest
from litbench.data.text import count_words_of
from litbench.evaluation.stopping import stopped_text, until_section
from litbench.evaluation.until_decided import UntilKeys, until_keys
from litbench.judges.answers import AnswerStore, identity, local_folder
from litbench.judges.client import REPEATING, Traffic
from litbench.judges.log import LogSample, write_log
from litbench.judges.prices import load_prices
from litbench.judges.rubric import MAX_JUDGE_SAMPLES, Rated
from litbench.judges.session import (
    RECORDED,
    WRITER,
    Models,
    Role,
    Session,
    estimate,
    read_role,
    recorded_names,
    run_sessions,
)
from litbench.metrics.intervals import mean_interval
from litbench.raters.interface import estimates_text
from litbench.runs.config import Positional, Runtime, describe, nearest
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact, file_name, only_writer, read_manifest
from litbench.runs.terminal import show, write_dollars
from litbench.writers.protocol import (
    PROTOCOLS,
    Grade,
    Item,
    ItemResult,
    Protocol,
    list_sessions,
    load_protocol,
    mock_of,
)
from litbench.writers.until_decided import WriterLooks

# Columns of `TURNS` that are attributes of an answer.
_OF_ANSWER = ("text", "outcome", "model", "input_tokens", "output_tokens", "seconds")
# Sessions whose rows are held in memory, and that are in one log.
_AT_ONCE = 50
# The tables of a run.
SCHEMAS = {
    schema.name: pa.table(empty_columns(schema, 0)).schema
    for schema in (TURNS, STORIES, RATINGS, GRADES)
}
for _field in (pa.field("sample", pa.int64()), pa.field("step", pa.large_string())):
    SCHEMAS["stories"] = SCHEMAS["stories"].append(_field)


@dataclass
class Run(UntilKeys):
    """Configuration of `litbench run`.

    Attributes:
        protocol: name of the protocol.
        out: output folder.
        writers: writers by name: a model, or the keys of litbench.judges.session.Role; a model
            recorded/FILE answers from a table of turns.
        judges: judges by name, in the same form.
        roles: models of the protocol's further roles.
        options: options of the protocol; see its module.
        items: only these items, by prompt_id, such as [1, 2]; null for all.
        samples: how often each writer writes each item.
        judge_samples: how often each judge rates each text, at most 30; ratings and grades are
            means, every quantity has its spread (standard deviation), and `repeats.parquet` has the
            grades of each judgement.
        traffic: connections, time-outs, retries and limits of every model without its own.
        prices: file of prices that override the packaged ones.
        answers: folder of stored answers; `out`/answers when null.
        dry_run: only estimate calls, tokens, dollars and minutes.
        until: `decided` goes on block by block and ends once every comparison is decided or futile;
            null takes all items.
        against: with `until`, the writer of this run that all others are compared with, or a grade
            such as 60.
    """

    protocol: str
    out: Path
    writers: dict[str, Any] = field(default_factory=dict)
    judges: dict[str, Any] = field(default_factory=dict)
    roles: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    items: list[str | int] | None = None
    samples: PositiveInt = 1
    judge_samples: Annotated[int, Field(ge=1, le=MAX_JUDGE_SAMPLES)] = 1
    traffic: Annotated[Traffic, Runtime] = field(default_factory=Traffic)
    prices: Path | None = None
    answers: Annotated[Path | None, Runtime] = None
    dry_run: Annotated[bool, Runtime] = False


def rows_of(session: Session, item: Item, models: Models) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables, and the events, that a session adds."""
    key = {name: getattr(session, name) for name in ("writer", "prompt_id", "sample")}
    turns = sorted(session.transcript.values(), key=lambda turn: (turn.role, _natural(turn.step)))
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in (*SCHEMAS, "events", "repeats")}
    for turn in turns:
        answer = {name: getattr(turn.answer, name) for name in _OF_ANSWER}
        cost = models.cost(session.writer, turn)
        rows["turns"].append(
            {**key, "role": turn.role, "step": turn.step, "cost_usd": cost, **answer}
        )
    if session.result is None:
        return rows
    result: ItemResult = session.result
    story = _story_prefix(session, item)
    about = {"prompt_id": item.prompt_id, "prompt": item.prompt, "source": session.writer}
    rows["stories"] = [
        {
            **about,
            "story_id": story + step,
            "text": text,
            "n_words": count_words_of(text),
            "sample": session.sample,
            "step": step,
            **item.groups,
        }
        for step, text in result.written.texts.items()
    ]
    rows["ratings"] = [
        row
        for judge, judged in result.judged.items()
        for step, rated in judged.ratings.items()
        for row in _rating_rows(session, item, models, judge, step, rated)
    ]
    for grade in result.grades():
        is_own = grade[0] is not None and _is_own_judge(session.writer, grade[0], models)
        own = ["judged by its writer"] if is_own else []
        rows["grades"].append({**key, **_grade_columns(grade, own)})
    rows["repeats"] = [
        {**key, **_grade_columns(grade), "repeat": number}
        for judged in result.judged.values()
        for number, grades in enumerate(judged.repeats)
        for grade in grades
    ]
    events = [result.written.events, *(judged.events for judged in result.judged.values())]
    rows["events"] = [{**key, **event} for of_part in events for event in of_part]
    return rows


def _grade_columns(grade: Grade, further_flags: Sequence[str] = ()) -> dict[str, Any]:
    rater, quantity, value, flags = grade
    text = "; ".join([*flags, *further_flags]) or None
    return {"rater": rater, "quantity": quantity, "grade": value, "flags": text}


def _story_prefix(session: Session, item: Item) -> str:
    """The prefix of the ids of a session's stories; the step follows."""
    return f"{session.writer}/{item.prompt_id}/{session.sample}/"


def _rating_rows(
    session: Session, item: Item, models: Models, judge: str, step: str, rated: Rated
) -> list[dict[str, Any]]:
    """A judge's ratings of one text: of the whole, with what they cost, and of each criterion."""
    text = session.result.written.texts.get(step)
    common = {
        "story_id": _story_prefix(session, item) + step,
        "rater": judge,
        "rater_kind": "recorded" if models.roles[judge].is_recorded else "model",
        "sample": session.sample,
        "story_digest": None if text is None else story_digest(item.prompt, text),
    }
    whole = {
        name: _sum(getattr(turn.answer, name) for turn in rated.turns)
        for name in ("input_tokens", "output_tokens", "seconds")
    }
    whole["cost_usd"] = _sum(models.cost(session.writer, turn) for turn in rated.turns)
    of_text = {
        "rating": rated.grade,
        "outcome": rated.outcome,
        "explanation": rated.reply.answer.text or None,
    }
    return [
        {**common, **whole, **of_text},
        *(
            {**common, "criterion": name, "rating": rating, "outcome": outcome}
            for name, (rating, outcome) in rated.ratings.items()
        ),
    ]


def _is_own_judge(writer: str, judge: str, models: Models) -> bool:
    names = set()
    for name, role in ((writer, models.writers[writer]), (judge, models.roles[judge])):
        # The same model may be reached through several providers.
        model = name if role.is_recorded else identity(role.model)
        names.add(model.rpartition("/")[2].lower())
    return len(names) == 1


class _Tables:
    """Writes the rows and the logs of sessions, `_AT_ONCE` sessions at a time.

    Attributes:
        counts: numbers of sessions (`dialogues`), of turns and of ratings, by outcome. A session
            that ended without a text has failed; an unfinished one can go on.
        cost: dollars of all turns whose cost is known.
        may_go_on: whether a further run may mend one of the unfinished sessions.
        rejected: the sessions that failed or did not end, with the reason.
    """

    def __init__(
        self,
        folder: Path,
        task: str,
        protocol: Protocol,
        models: Models,
        samples: int,
        looks: WriterLooks | None,
    ) -> None:
        self._looks = looks
        self._task, self._headline, self._models = task, protocol.headline, models
        self._items = {item.prompt_id: item for item in protocol.items()}
        self._folder, self._scratch, self._logs = folder, folder / "scratch", folder / "logs"
        for old in (self._scratch, self._logs):
            shutil.rmtree(old, ignore_errors=True)
        self._scratch.mkdir()
        schemas = {**SCHEMAS}
        for group in dict.fromkeys(name for item in self._items.values() for name in item.groups):
            schemas["stories"] = schemas["stories"].append(pa.field(group, pa.large_string()))
        if samples > 1:
            schemas["repeats"] = pa.table(empty_columns(REPEATS, 0)).schema
        self._writers = {
            name: pq.ParquetWriter(self._scratch / f"{name}.parquet", schema, compression="zstd")
            for name, schema in schemas.items()
        }
        self._rows = defaultdict[str, list[dict[str, Any]]](list)
        self._logged: list[LogSample] = []
        self.counts = {name: Counter[str]() for name in ("turns", "ratings", "dialogues")}
        self.cost = 0.0
        self.may_go_on = False
        self.rejected = RejectedRows()

    def add(self, session: Session) -> None:
        rows = rows_of(session, self._items[session.prompt_id], self._models)
        for name, added in rows.items():
            self._rows[name] += added
        ratings = [row for row in rows["ratings"] if "criterion" in row]
        for name, counted in (("turns", rows["turns"]), ("ratings", ratings)):
            self.counts[name].update(row["outcome"] for row in counted)
        self.cost += sum(row["cost_usd"] or 0 for row in rows["turns"])
        result: ItemResult | None = session.result
        if result is None:
            outcome, reason = "unfinished", session.reason or ""
            self.may_go_on |= REPEATING not in reason
        elif not any(result.written.texts.values()):
            flags = [
                *result.written.flags,
                *(flag for grade in result.grades() for flag in grade[3]),
            ]
            outcome, reason = "failed", "; ".join(dict.fromkeys(flags)) or "no text was written"
        else:
            outcome, reason = "finished", ""
        self.counts["dialogues"][outcome] += 1
        about = f"{session.prompt_id}, sample {session.sample}"
        if reason:
            number = self.counts["dialogues"].total()
            self.rejected.add(session.writer, number, "dialogue", reason, about)
        if self._looks is not None:
            self._looks.add(session)
        name = f"{session.writer}, {about}"
        scores = {
            f"{quantity} by {judge}": (grade, "; ".join(flags))
            for judge, quantity, grade, flags in (result.grades() if result else ())
            if quantity == self._headline and grade is not None
        }
        self._logged.append(LogSample(name, session.messages() or [("user", name)], scores))
        if len(self._logged) == _AT_ONCE:
            self._flush()

    def write(self, artifact: Artifact) -> None:
        """Move the tables to their places."""
        self._flush()
        for writer in self._writers.values():
            writer.close()
        for path in sorted(self._scratch.iterdir()):
            artifact.write(path.name, partial(shutil.move, path))
        self._scratch.rmdir()
        # Return the writers' buffers to the system before the summary is computed.
        pa.default_memory_pool().release_unused()
        artifact.write("rejected.jsonl", self.rejected.write)

    def print_summary(self, *, may_go_on: bool) -> None:
        """Print what was finished and read, the grades, how looks ended, and what can be done."""
        dialogues, ratings = self.counts["dialogues"], self.counts["ratings"]
        failed = f", {dialogues['failed']:,} failed" if dialogues["failed"] else ""
        print(
            f"{self._folder}: {dialogues['finished']:,} of {dialogues.total():,} dialogues finished"
            f"{failed}, {ratings['rated']:,} of {ratings.total():,} ratings read, ${self.cost:.2f}"
        )
        print(self.rejected.summary(), end="")
        if may_go_on:
            print("run the same command again to finish the other dialogues")
        if not dialogues["finished"]:
            print("no dialogue finished: see the reasons in rejected.jsonl", file=sys.stderr)
        elif ratings.total() and not ratings["rated"]:
            print("no rating could be read: see the outcomes in ratings.parquet", file=sys.stderr)
        if ratings["rated"]:
            record = self._looks.record() if self._looks is not None else None
            print(_grades_text(self._folder / "grades.parquet", self._headline, record))
            if record is not None:
                print(until_section(record, with_figures=False).as_text())
        if dialogues["finished"]:
            print(f"next: litbench writers compare --runs {self._folder} --out FOLDER")

    def _flush(self) -> None:
        """Write the rows and the log of the sessions that were added since the last time."""
        if events := self._rows.pop("events", []):
            with (self._scratch / "events.jsonl").open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(event, ensure_ascii=False) + "\n" for event in events)
        for name, rows in self._rows.items():
            if rows:
                writer = self._writers[name]
                writer.write_table(pa.Table.from_pylist(rows, writer.schema))
        if self._logged:
            first = self.counts["dialogues"].total() - len(self._logged) + 1
            path = self._logs / f"{file_name(self._task)}_{first:06}.eval"
            about = {"task": self._task, "model": self._task}
            write_log(path, self._logged, **about, metadata={}, metric="mean")
        self._rows.clear()
        self._logged = []


@dataclass(frozen=True)
class PreparedRun:
    """A config as read, and checked: what follows takes its parts, never the config."""

    name: str
    protocol: Protocol
    models: Models
    items: list[Item]
    judges: list[str]
    samples: int
    judge_samples: int
    looks: WriterLooks | None

    def total(self, items: Sequence[Item]) -> int:
        """The number of sessions about items."""
        return len(self.models.writers) * len(items) * self.samples

    @property
    def recorded(self) -> list[str]:
        """The files of recorded turns, one for each role that has one."""
        models = [role.model for role in self.models.all_roles() if role.is_recorded]
        return [model.removeprefix(RECORDED) for model in models]

    @property
    def is_recorded(self) -> bool:
        """Whether no model is asked: such a run fails again in the same way."""
        return all(role.is_recorded for role in self.models.all_roles())

    def sessions(self, items: Sequence[Item]) -> Iterator[Session]:
        """The sessions about items, by writer, item and sample."""
        writers, counts = self.models.writers, (self.samples, self.judge_samples)
        return list_sessions(self.protocol, items, writers, self.judges, *counts)

    def print_estimate(self, answers: Path) -> None:
        """Print what the calls take whose answers are not stored in a folder."""
        mock, count = mock_of(self.name, self.protocol), self.total(self.items)
        total = max(count, 1)
        with AnswerStore(answers, read_only=True) as store:
            estimates = estimate(self.sessions(self.items), count, self.models, store, mock)
        calls = sum(estimate.calls + estimate.known for estimate in estimates) / total
        costs = [estimate.cost_usd for estimate in estimates if estimate.cost_usd is not None]
        dollars = sum(costs) / total if len(costs) == len(estimates) else None
        print("dry run: no request is sent")
        print(f"{count:,} dialogues of {self.name}; estimate:")
        print(estimates_text(estimates))
        print(f"per dialogue: {calls:,.0f} calls, new ones ${write_dollars(dollars)}")
        if self.looks is not None:
            self.looks.print_expected(sum(estimate.calls for estimate in estimates))

    def write(self, artifact: Artifact, answers: Path) -> "_Tables":
        """Run the sessions and write the tables of their results."""
        with AnswerStore(answers) as store:
            settings = self.protocol, self.models, self.judge_samples, self.looks
            tables = _Tables(artifact.folder, self.name, *settings)
            if self.looks is None:
                self._run_sessions(store, tables, self.items)
            else:
                self.looks.run(partial(self._run_sessions, store, tables))
        tables.write(artifact)
        artifact.counts = {
            "protocol": self.name,
            "headline": self.protocol.headline,
            **self.protocol.record(),
            **tables.counts,
            "cost_usd": round(tables.cost, 6),
            **({"until_decided": self.looks.record()} if self.looks else {}),
        }
        return tables

    def _run_sessions(self, store: AnswerStore, tables: "_Tables", items: Sequence[Item]) -> bool:
        """Run the sessions about items; false if one of them may go on in a further run."""
        sessions, total = self.sessions(items), self.total(items)
        run_sessions(sessions, total, self.models, store, tables.add, self.name)
        return self.is_recorded or not tables.may_go_on


def prepare(config: Run) -> PreparedRun:
    """Read the protocol, the models and the items of a config; raises a ConfigError."""
    protocol = load_protocol(config.protocol, config.options)
    models = models_of(config, protocol)
    protocol.check(models)
    items, looks = protocol.select(config.items), None
    if config.until is not None:
        looks = WriterLooks(until_keys(config), protocol.headline, models.writers, items)
    judges, counts = list(config.judges), (config.samples, config.judge_samples)
    return PreparedRun(config.protocol, protocol, models, items, judges, *counts, looks)


def run(config: Run) -> bool:
    """Run the sessions of a protocol and write the results.

    Returns:
        False if no dialogue finished, or judges rated and none of their ratings could be read.
    """
    prepared, out, answers = prepare(config), config.out, config.answers or config.out / "answers"
    if config.dry_run:
        prepared.print_estimate(answers)
        return True
    models = [role.model for role in prepared.models.all_roles()]
    artifact = Artifact(
        out,
        program="litbench run",
        config=config,
        inputs={"prices": config.prices}
        | prepared.protocol.files()
        | {f"recorded.{file}": Path(file) for file in prepared.recorded},
        models={model: folder for model in models if (folder := local_folder(model))},
    )
    with only_writer(out):
        if (prepared.is_recorded or _is_finished(out)) and artifact.is_current():
            return _has_results(read_manifest(out)["counts"])
        _check_extends(out, artifact.as_manifest(), prepared.protocol)
        tables = prepared.write(artifact, answers)
        artifact.finish()
    tables.print_summary(may_go_on=tables.may_go_on and not prepared.is_recorded)
    return _has_results(tables.counts)


def _has_results(counts: Mapping[str, Any]) -> bool:
    """Whether a dialogue finished and, if there are judges, one of their ratings was read."""
    ratings = counts["ratings"]
    return bool(counts["dialogues"].get("finished")) and ("rated" in ratings or not ratings)


def _check_extends(folder: Path, now: Mapping[str, Any], protocol: Protocol) -> None:
    """Refuse to replace results in the folder by those of another config.

    Further writers, judges, items and samples of both only add results. Traffic does not change
    any.

    Raises:
        ConfigError: results of the folder would be replaced.
    """
    try:
        manifest = read_manifest(folder)
    except DataError:
        return
    if manifest.get("program") != now["program"]:
        return
    before, after = _settings(manifest, protocol), _settings(now, protocol)
    changed = {name for name, value in before.items() if after.get(name) != value}
    changed |= {name for name in after.keys() - before if name.startswith("options.")}
    if changed:
        raise ConfigError(
            f"{folder} has results of another config, which would be replaced: "
            f"{', '.join(sorted(changed))} changed: choose another folder, or remove manifest.json "
            "in this one to replace its results"
        )


def _settings(manifest: Mapping[str, Any], protocol: Protocol) -> dict[str, Any]:
    """The inputs of a manifest's results, by dotted key; files by their digests."""
    config = manifest["config"]
    first_judge = next(iter(config["judges"].values()), None)
    defaults = {name for name, role in protocol.roles.items() if role.is_judge and first_judge}
    named = {**config, "roles": {**dict.fromkeys(defaults, first_judge), **config["roles"]}}
    settings = {f"options.{name}": value for name, value in config["options"].items()}
    for kind in ("writers", "judges", "roles"):
        for name, entry in named[kind].items():
            role = {"model": entry} if isinstance(entry, str) else entry
            settings[f"{kind}.{name}"] = {key: role[key] for key in role if key != "traffic"}
    items = [item.prompt_id for item in protocol.items()]
    settings |= {f"items.{name}": True for name in (config["items"] or items)}
    for name in ("samples", "judge_samples"):
        settings |= {f"{name}.{number}": True for number in range(config[name])}
    digests = {name: entry["sha256"] for name, entry in manifest["inputs"].items()}
    fixed = {"protocol": config["protocol"], "prices": None, "until": None}
    if config.get("until"):
        # Further items, samples or judges would change the looks.
        names = ("against", "looks", "order_seed", "items", "samples", "judge_samples")
        fixed["until"] = [config[name] for name in names] + list(config["judges"])
    return {**fixed, **settings, **digests}


def _grades_text(path: Path, headline: str, record: Mapping[str, Any] | None) -> str:
    """Mean grades of the headline by writer and judge, with intervals by prompt."""
    by_judge: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for row in pq.read_table(path).to_pylist():
        if row["quantity"] == headline and row["grade"] is not None:
            by_judge[row["writer"], row["rater"] or ""].append((row["grade"], row["prompt_id"]))
    is_stopped = record is not None and stopped_text(record)
    rows = [("writer", "judge", headline, "95 %", "items (stopped)" if is_stopped else "items")]
    for (writer, judge), grades in by_judge.items():
        mean = mean_interval(np.array([g for g, _ in grades]), [name for _, name in grades])
        interval = f"[{mean.low:.2f}, {mean.high:.2f}]" if mean.is_bounded else "–"
        rows.append((writer, judge, f"{mean.mean:.2f}", interval, str(mean.clusters)))
    return show(rows)


def _is_finished(folder: Path) -> bool:
    """Whether the last run in a folder had no failure that a further run might mend."""
    with contextlib.suppress(DataError):
        counts = read_manifest(folder)["counts"]
        is_whole = not counts.get("dialogues", {}).get("unfinished")
        return is_whole and not counts.get("turns", {}).get("error")
    return False


def models_of(config: Run, protocol: Protocol) -> Models:
    """The models of a run."""
    if not config.writers:
        raise ConfigError("writers is empty: name at least one, such as --writer openai/gpt-4.1")
    reserved = {WRITER, *protocol.roles}
    if taken := reserved & set(config.judges):
        raise ConfigError(
            f"judges.{min(taken)}: this is the name of another role: rename the judge"
        )
    if unknown := set(config.roles) - set(protocol.roles):
        name = min(unknown)
        raise ConfigError(f"roles.{name}: no such role: {nearest(name, list(protocol.roles))}")
    others = dict(config.roles)
    for name, default in protocol.roles.items():
        if name not in others and not default.is_judge:
            raise ConfigError(f"roles.{name}: {config.protocol} needs a model for it")
        if name not in others and config.judges:
            first = next(iter(config.judges.values()))
            others[name] = first if isinstance(first, str) else first.get("model")
    entries = [
        *(("writers", name, entry, protocol.writer) for name, entry in config.writers.items()),
        *(("judges", name, entry, protocol.judge) for name, entry in config.judges.items()),
        *(("roles", name, entry, protocol.roles[name].sampling) for name, entry in others.items()),
    ]
    roles: dict[str, dict[str, Role]] = {"writers": {}, "roles": {}, "judges": {}}
    for kind, name, entry, sampling in entries:
        roles[kind][name] = read_role(entry, f"{kind}.{name}", sampling, config.traffic)
    for name, role in roles["writers"].items():
        same = role.sampling.temperature == 0 or role.sampling.seed is not None
        if config.samples > 1 and same and not role.is_recorded:
            raise ConfigError(
                f"writers.{name}: samples is {config.samples}, but with temperature 0 or a seed "
                "all samples are the same: change its sampling, or set samples to 1"
            )
    prices = load_prices(config.prices)
    return Models(roles["writers"], {**roles["roles"], **roles["judges"]}, prices)


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of numbers; None if one is unknown."""
    numbers = list(values)
    return None if None in numbers else sum(value or 0 for value in numbers)


def _natural(step: str) -> list[tuple[int, int | str]]:
    """A key that sorts chapter_2 before chapter_10."""
    parts = re.split(r"(\d+)", step)
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts]


@dataclass(kw_only=True)
class RunCommand(Run):
    """Run a published writing benchmark.

        litbench run longform --writer openai/gpt-4.1 --judge anthropic/claude-sonnet-4 --out FOLDER

    `litbench tasks` lists the benchmarks, `litbench run NAME --help` the options of one. Run a
    killed command again to resume it; see docs/writers.md.

    Attributes:
        writer: model under test; repeatable. recorded/FILE stands for all writers of that table of
            turns. `writers` takes further keys of a writer.
        judge: model that rates; repeatable, and recorded/FILE as for writers.
        texts: folder of the published texts, an option of the protocol.
    """

    protocol: Annotated[str, Positional]
    writer: list[str] = field(default_factory=list)
    judge: list[str] = field(default_factory=list)
    texts: str | None = None

    @classmethod
    def explain(cls, arguments: Sequence[str]) -> Iterator[str]:
        """The options of the protocol that is named among the arguments, for `--help`."""
        for name in PROTOCOLS.keys() & set(arguments):
            yield from describe(resolve_name(PROTOCOLS[name]).options, "options.")


def command(config: RunCommand) -> None:
    """Run the benchmark of a command line; exit status 1 if there are no results."""
    keys = {field.name: getattr(config, field.name) for field in fields(Run)}
    for kind, models in (("writer", config.writer), ("judge", config.judge)):
        for model in models:
            names = [model]
            if model.startswith(RECORDED):
                names = recorded_names(model)[kind == "judge"]
            keys[f"{kind}s"] = keys[f"{kind}s"] | dict.fromkeys(names, model)
    if config.texts is not None:
        keys["options"] = {**config.options, "texts": config.texts}
    if not run(Run(**keys)):
        raise SystemExit(1)


@dataclass
class Tasks:
    """List the writing benchmarks.

    Shows what each measures, its items and calls, and what it needs:

        litbench tasks
    """


def print_tasks(config: Tasks) -> None:
    """Print a table of the benchmarks."""
    del config
    print(f"{'benchmark':<10}{'items':>6}{'calls per item':>16}  measures")
    for name, path in sorted(PROTOCOLS.items()):
        cls = resolve_name(path)
        about = (sys.modules[cls.__module__].__doc__ or "").partition("\n")[0]
        items, calls, needs = _size(name)
        print(f"{name:<10}{items:>6}{calls:>16}  {about.partition(': ')[2]}")
        print(f"{'':<34}{cls.source}{needs}")
    print("litbench run NAME --help lists a protocol's options; docs/writers.md describes them")


def _size(name: str) -> tuple[str, str, str]:
    """The number of items, of requests to writer and judge for one, and the files it needs."""
    needs = [
        f"--options.{field.name}"
        for field in fields(resolve_name(PROTOCOLS[name]).options)
        if field.default is MISSING and field.default_factory is MISSING
    ]
    if needs:
        return "", "", f"; needs {' and '.join(needs)}"
    protocol = load_protocol(name, {})
    items = protocol.items()
    model = "openai/gpt-4.1"
    role = Role(model)
    models = Models({"w": role}, dict.fromkeys([*protocol.roles, "j"], role))
    sessions = list_sessions(protocol, items[:1], ["w"], ["j"], 1, 1)
    with AnswerStore(Path("answers"), read_only=True) as store:
        estimates = estimate(sessions, 1, models, store, mock_of(name, protocol))
    return f"{len(items):,}", f"{sum(estimate.calls for estimate in estimates):,}", ""
