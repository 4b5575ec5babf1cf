"""Run a protocol: hold its sessions and write turns, stories, ratings, grades, log and manifest.

    run(Run("longform", Path("out"), writers={"gpt": {"model": "openai/gpt-4.1"}}, judges=...))

`litbench run` calls it. Answers are stored in `out/answers` as they arrive: a killed run resumes,
and a run with another judge asks the writers nothing.
"""

import contextlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import PositiveInt

from litbench.config import Input, Runtime, as_plain, build, clear_exit, load_config, nearest
from litbench.errors import ConfigError, DataError
from litbench.ingest import RejectedRows
from litbench.judges.log import LogSample, write_log
from litbench.judges.prices import load_prices
from litbench.judges.session import (
    RECORDED,
    WRITER,
    Models,
    Role,
    Session,
    at_once,
    estimate,
    recorded_names,
    run_sessions,
)
from litbench.judges.store import AnswerStore, Sampling, file_name, identity, local_folder
from litbench.metrics.printing import write_dollars
from litbench.protocols.protocol import (
    Grade,
    Item,
    Judged,
    Protocol,
    Written,
    load_protocol,
    mock_of,
)
from litbench.raters import Estimate, estimates_text
from litbench.records import GRADES, RATINGS, STORIES, TURNS, empty_columns
from litbench.sources.ratings import story_digest
from litbench.store import Artifact, only_writer, read_manifest
from litbench.text import count_words

# Rows of a table that are held in memory, and sessions in one log.
_ROWS_AT_ONCE = 500
_LOGGED_AT_ONCE = 100
_SCHEMAS = {
    schema.name: pa.schema({
        **{name: column.type for name, column in empty_columns(schema, 0).items()}, **extra,
    })
    for schema, extra in (
        (TURNS, {}), (STORIES, {"sample": pa.int64(), "step": pa.large_string()}), (RATINGS, {}),
        (GRADES, {}),
    )
}  # fmt: skip


@dataclass
class Run:
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
        prices: file of prices that override the packaged ones.
        answers: folder of stored answers; `out`/answers when null.
        dry_run: only estimate calls, tokens, dollars and minutes.
    """

    protocol: str
    out: Path
    writers: dict[str, Any] = field(default_factory=dict)
    judges: dict[str, Any] = field(default_factory=dict)
    roles: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    items: list[str | int] | None = None
    samples: PositiveInt = 1
    prices: Annotated[Path | None, Input] = None
    answers: Annotated[Path | None, Runtime] = None
    dry_run: Annotated[bool, Runtime] = False


@dataclass(frozen=True)
class ItemResult:
    """What a session returns: what was written, and what each judge said about it."""

    written: Written
    judged: Mapping[str, Judged]

    def grades(self) -> list[Grade]:
        """All grades; those that judges share, such as a plan's weights, once."""
        found: dict[tuple[str | None, str], Grade] = {}
        for grades in (self.written.grades, *(one.grades for one in self.judged.values())):
            for rater, quantity, grade, flags in grades:
                found.setdefault((rater, quantity), (rater, quantity, grade, flags))
        return list(found.values())


def rows_of(session: Session, item: Item, models: Models) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables, and the events, that a session adds."""
    place = {name: getattr(session, name) for name in ("writer", "prompt_id", "sample")}
    turns = sorted(session.transcript.values(), key=lambda one: (one.role, _natural(one.step)))
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in (*_SCHEMAS, "events")}
    rows["turns"] = [
        {
            **place, "role": turn.role, "step": turn.step, "text": turn.answer.text,
            "outcome": turn.outcome, "model": turn.answer.model,
            "cost_usd": models.cost(session.writer, turn),
            "input_tokens": turn.answer.input_tokens,
            "output_tokens": turn.answer.output_tokens, "seconds": turn.answer.seconds,
        }
        for turn in turns
    ]  # fmt: skip
    if session.result is None:
        return rows
    result: ItemResult = session.result
    story = f"{session.writer}/{item.prompt_id}/{session.sample}/"
    rows["stories"] = [
        {
            "story_id": story + step, "prompt_id": item.prompt_id, "prompt": item.prompt,
            "text": text, "source": session.writer, "sample": session.sample, "step": step,
        }
        for step, text in result.written.texts.items()
    ]  # fmt: skip
    for judge, judged in result.judged.items():
        for step, rated in judged.ratings.items():
            text = result.written.texts.get(step)
            common = {
                "story_id": story + step, "rater": judge,
                "rater_kind": "recorded" if models.roles[judge].is_recorded else "model",
                "sample": session.sample,
                "story_digest": None if text is None else story_digest(item.prompt, text),
            }  # fmt: skip
            answers = [turn.answer for turn in rated.turns]
            whole = {
                "rating": rated.grade,
                "outcome": rated.outcome,
                "explanation": rated.reply.answer.text or None,
                "input_tokens": _sum(answer.input_tokens for answer in answers),
                "output_tokens": _sum(answer.output_tokens for answer in answers),
                "cost_usd": _sum(models.cost(session.writer, turn) for turn in rated.turns),
                "seconds": _sum(answer.seconds for answer in answers),
            }
            rows["ratings"].append({**common, **whole})
            rows["ratings"] += [
                {**common, "criterion": name, "rating": rating, "outcome": outcome}
                for name, (rating, outcome) in rated.ratings.items()
            ]
    for rater, quantity, grade, given in result.grades():
        own = rater is not None and _is_own_judge(session.writer, rater, models)
        flags = [*given, *["judged by its writer"] * own]
        rows["grades"].append({**place, "rater": rater, "quantity": quantity, "grade": grade,
                               "flags": "; ".join(flags) or None})  # fmt: skip
    events = [result.written.events, *(judged.events for judged in result.judged.values())]
    rows["events"] = [{**place, **event} for of_part in events for event in of_part]
    return rows


def _is_own_judge(writer: str, judge: str, models: Models) -> bool:
    """Whether a judge is the writer itself."""
    names = set()
    for name, role in ((writer, models.writers[writer]), (judge, models.roles[judge])):
        # The same model may be reached through several providers.
        model = name if role.is_recorded else identity(role.model)
        names.add(model.rpartition("/")[2].lower())
    return len(names) == 1


class _Tables:
    """Writes the rows of sessions as they arrive, and their logs."""

    def __init__(self, config: Run, headline: str, items: Mapping[str, Item], models: Models):
        self._config, self._headline, self._items, self._models = config, headline, items, models
        self._scratch = config.out / "scratch"
        for folder in (self._scratch, config.out / "logs"):
            shutil.rmtree(folder, ignore_errors=True)
        self._scratch.mkdir()
        self._writers = {
            name: pq.ParquetWriter(self._scratch / f"{name}.parquet", schema, compression="zstd")
            for name, schema in _SCHEMAS.items()
        }
        self._waiting: dict[str, list[dict[str, Any]]] = {name: [] for name in _SCHEMAS}
        self._logged: list[LogSample] = []
        self.rows = Counter[str]()
        self.counts = {name: Counter[str]() for name in ("turns", "ratings", "dialogues")}
        self.cost = 0.0
        self.rejected_rows = RejectedRows()

    def add(self, session: Session) -> None:
        """Add a session that has ended."""
        rows = rows_of(session, self._items[session.prompt_id], self._models)
        events = rows.pop("events")
        if events:
            with (self._scratch / "events.jsonl").open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in events)
        for name, added in rows.items():
            self.rows[name] += len(added)
            self._waiting[name] += added
            if len(self._waiting[name]) >= _ROWS_AT_ONCE:
                self._write(name)
        self.counts["turns"].update(row["outcome"] for row in rows["turns"])
        self.counts["ratings"].update(row["outcome"] for row in rows["ratings"]
                                      if row.get("criterion") is not None)  # fmt: skip
        self.cost += sum(row["cost_usd"] or 0 for row in rows["turns"])
        is_finished = session.result is not None
        self.counts["dialogues"]["finished" if is_finished else "unfinished"] += 1
        number = self.counts["dialogues"].total()
        if not is_finished:
            self.rejected_rows.add(
                session.writer, number, "dialogue", session.reason or "",
                f"{session.prompt_id}, sample {session.sample}",
            )  # fmt: skip
        name = f"{session.writer}, {session.prompt_id}, sample {session.sample}"
        scores = {
            f"{quantity} by {judge}": (grade, "; ".join(flags))
            for judge, quantity, grade, flags in (session.result.grades() if is_finished else ())
            if quantity == self._headline and grade is not None
        }
        self._logged.append(LogSample(name, session.messages() or [("user", name)], scores))
        if len(self._logged) == _LOGGED_AT_ONCE:
            self._write_log()

    def write(self, artifact: Artifact) -> None:
        """Move the tables to their places; DataError if one has lost rows."""
        self._write_log()
        for name, writer in self._writers.items():
            self._write(name)
            writer.close()
            path = self._scratch / f"{name}.parquet"
            if (found := pq.read_metadata(path).num_rows) != self.rows[name]:
                raise DataError(
                    f"{path} has {found:,} rows, but {self.rows[name]:,} were written: another "
                    "program changed it: run the same command again"
                )
        for path in sorted(self._scratch.iterdir()):
            artifact.write(path.name, partial(shutil.move, path))
        self._scratch.rmdir()
        artifact.write("rejected.jsonl", self.rejected_rows.write)

    def _write(self, name: str) -> None:
        if self._waiting[name]:
            table = pa.Table.from_pylist(self._waiting[name], _SCHEMAS[name])
            if "n_words" in table.column_names:
                index = table.column_names.index("n_words")
                words = count_words(table["text"].combine_chunks())
                table = table.set_column(index, "n_words", words)
            self._writers[name].write_table(table)
            self._waiting[name] = []

    def _write_log(self) -> None:
        if self._logged:
            name = self._config.protocol
            first = self.counts["dialogues"].total() - len(self._logged) + 1
            path = self._config.out / "logs" / f"{file_name(name)}_{first:06}.eval"
            write_log(path, self._logged, task=name, model=name, metadata={}, metric="mean")
            self._logged = []


def run(config: Run) -> None:
    """Run the sessions of a protocol and write the results."""
    protocol = load_protocol(config.protocol, config.options)
    items = _chosen(protocol.items(), config.items)
    models = _models(config, protocol)
    protocol.check(models)

    def session(writer: str, item: Item, sample: int) -> Session:
        async def script(session: Session) -> ItemResult:
            written = await protocol.write(session, item)
            rated = (protocol.rate(session, item, written, judge) for judge in config.judges)
            return ItemResult(written, dict(zip(config.judges, await at_once(*rated), strict=True)))

        recorded = models.recorded(writer, item.prompt_id, sample)
        return Session(writer, item.prompt_id, sample, script, recorded)

    sessions = (
        session(writer, item, sample)
        for writer in models.writers
        for item in items
        for sample in range(config.samples)
    )
    total = len(models.writers) * len(items) * config.samples
    answers = config.answers or config.out / "answers"
    if config.dry_run:
        with AnswerStore(answers, read_only=True) as store:
            mock = mock_of(config.protocol, protocol)
            estimates = estimate(sessions, total, models, store, mock)
        _print_estimates(config, estimates, total)
        return
    roles = [*models.writers.values(), *models.roles.values()]
    inputs: dict[str, str | Path] = {**protocol.files()}
    for role in roles:
        if role.is_recorded:
            name = role.model.removeprefix(RECORDED)
            inputs[f"recorded.{name}"] = Path(name)
    artifact = Artifact(
        config.out,
        program="litbench run",
        config=config,
        inputs=inputs,
        models={one.model: folder for one in roles if (folder := local_folder(one.model))},
    )
    # Recorded models fail again in the same way.
    is_recorded = all(role.is_recorded for role in roles)
    with only_writer(config.out):
        if (is_recorded or _is_finished(config.out)) and artifact.is_current():
            return
        _check_extends(artifact, protocol)
        with AnswerStore(answers) as store:
            by_id = {item.prompt_id: item for item in items}
            tables = _Tables(config, protocol.headline, by_id, models)
            run_sessions(sessions, total, models, store, tables.add, config.protocol)
        tables.write(artifact)
        artifact.counts = {
            "protocol": config.protocol,
            "headline": protocol.headline,
            **protocol.record(),
            **tables.counts,
            "cost_usd": round(tables.cost, 6),
        }
        artifact.finish()
    _print_summary(config, tables, may_go_on=not is_recorded)


def _check_extends(artifact: Artifact, protocol: Protocol) -> None:
    """Refuse to replace results in the folder by those of another config.

    Further writers, judges, items and samples only add results. Traffic does not change any.

    Raises:
        ConfigError: results of the folder would be replaced.
    """
    try:
        manifest = read_manifest(artifact.folder)
    except DataError:
        return
    now = artifact.as_manifest()
    if manifest.get("program") != now["program"]:
        return
    before, after = _settings(manifest, protocol), _settings(now, protocol)
    changed = {name for name, value in before.items() if after.get(name) != value}
    changed |= {name for name in after.keys() - before if name.startswith("options.")}
    if changed:
        raise ConfigError(
            f"{artifact.folder} has results of another config, which would be replaced: "
            f"{', '.join(sorted(changed))} changed: choose another folder, or remove manifest.json "
            "in this one to replace its results"
        )


def _settings(manifest: Mapping[str, Any], protocol: Protocol) -> dict[str, Any]:
    """What the results of a manifest depend on, by dotted key; files by their digests."""
    config = manifest["config"]
    first_judge = next(iter(config["judges"].values()), None)
    defaults = {name for name, role in protocol.roles.items() if role.is_judge and first_judge}
    named = {**config, "roles": {**dict.fromkeys(defaults, first_judge), **config["roles"]}}
    found = {f"options.{name}": value for name, value in config["options"].items()}
    for kind in ("writers", "judges", "roles"):
        for name, entry in named[kind].items():
            role = {"model": entry} if isinstance(entry, str) else entry
            found[f"{kind}.{name}"] = {key: role[key] for key in role if key != "traffic"}
    items = [item.prompt_id for item in protocol.items()]
    found |= {f"items.{name}": True for name in (config["items"] or items)}
    found |= {f"samples.{number}": True for number in range(config["samples"])}
    digests = {name: entry["sha256"] for name, entry in manifest["inputs"].items()}
    return {"protocol": config["protocol"], "prices": None, **found, **digests}


def _print_estimates(config: Run, estimates: Sequence[Estimate], total: int) -> None:
    print("dry run: no request is sent")
    print(f"{total:,} dialogues of {config.protocol}; estimate:")
    print(estimates_text(estimates))
    calls = sum(one.calls + one.known for one in estimates) / max(total, 1)
    costs = [one.cost_usd for one in estimates if one.cost_usd is not None]
    dollars = sum(costs) / max(total, 1) if len(costs) == len(estimates) else None
    print(f"per dialogue: {calls:,.0f} calls, new ones ${write_dollars(dollars)}")


def _print_summary(config: Run, tables: _Tables, *, may_go_on: bool) -> None:
    counts = tables.counts
    print(
        f"{config.out}: {counts['dialogues']['finished']:,} of "
        f"{counts['dialogues'].total():,} dialogues finished, {counts['ratings']['rated']:,} of "
        f"{counts['ratings'].total():,} ratings read, ${tables.cost:.2f}"
    )
    print(tables.rejected_rows.summary(), end="")
    if counts["dialogues"]["unfinished"] and may_go_on:
        print("run the same command again to go on with the unfinished dialogues")
    print("leaderboard of writers: python eval/writers.py --runs", config.out)


def _is_finished(folder: Path) -> bool:
    """Whether the last run in a folder had no failure that a further run might mend."""
    with contextlib.suppress(DataError):
        counts = read_manifest(folder)["counts"]
        is_whole = not counts.get("dialogues", {}).get("unfinished")
        return is_whole and not counts.get("turns", {}).get("error")
    return False


def _chosen(items: Sequence[Item], names: Sequence[str | int] | None) -> list[Item]:
    """The items of a run; raises a ConfigError for an unknown name."""
    known = [item.prompt_id for item in items]
    chosen = known if names is None else [str(name) for name in names]
    for name in chosen:
        if name not in known:
            raise ConfigError(f"items: no item '{name}': {nearest(name, known)}")
    return [item for item in items if item.prompt_id in chosen]


def _models(config: Run, protocol: Protocol) -> Models:
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
    writers = {name: _role(entry, protocol.writer, f"writers.{name}")
               for name, entry in config.writers.items()}  # fmt: skip
    judges = {name: _role(entry, protocol.judge, f"judges.{name}")
              for name, entry in config.judges.items()}  # fmt: skip
    others = {}
    for name, default in protocol.roles.items():
        entry = config.roles.get(name)
        if entry is None and default.is_judge:
            if not judges:
                continue
            entry = {"model": next(iter(judges.values())).model}
        if entry is None:
            raise ConfigError(f"roles.{name}: {config.protocol} needs a model for it")
        others[name] = _role(entry, default.sampling, f"roles.{name}")
    return Models(writers, {**others, **judges}, load_prices(config.prices))


def _role(entry: Any, default: Sampling, where: str) -> Role:
    given: dict[str, Any] = {"model": entry} if isinstance(entry, str) else dict(entry)
    given["sampling"] = {**as_plain(default), **given.get("sampling", {})}
    return build(Role, given, where)


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of numbers; None if one is unknown."""
    known = list(values)
    return None if None in known else sum(value or 0 for value in known)


def _natural(step: str) -> list[tuple[int, int | str]]:
    """A key that sorts chapter_2 before chapter_10."""
    parts = re.split(r"(\d+)", step)
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts]


def command(arguments: Sequence[str]) -> None:
    """Run a protocol: `litbench run PROTOCOL --writer MODEL --judge MODEL --out FOLDER`.

    --writer and --judge may be repeated; a model recorded/FILE stands for all writers, or all
    judges, in that table of turns. --texts FOLDER is an option of the protocol. Further keys:
    """
    with clear_exit():
        rest = list(arguments)
        named: dict[str, list[str]] = {"writer": [], "judge": []}
        if rest and not rest[0].startswith("--"):
            rest[:1] = ["--protocol", rest[0]]
        passed = []
        while rest:
            key, equals, value = rest.pop(0).partition("=")
            if key in ("--writer", "--judge"):
                value = value if equals or not rest else rest.pop(0)
                if not value or value.startswith("--"):
                    raise ConfigError(f"{key}: name a model, such as openai/gpt-4.1")
                named[key[2:]].append(value)
                continue
            key = "--options.texts" if key == "--texts" else key
            passed.append(f"{key}{equals}{value}")
            if not equals and rest and not rest[0].startswith("--"):
                passed.append(rest.pop(0))
        for kind, models in named.items():
            entries: dict[str, Any] = {}
            for model in models:
                names = [model]
                if model.startswith(RECORDED):
                    names = recorded_names(model)[kind == "judge"]
                entries |= {name: {"model": model} for name in names}
            if entries:
                passed += [f"--{kind}s", json.dumps(entries)]
        run(load_config(Run, passed, command.__doc__))
