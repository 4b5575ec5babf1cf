"""Run a protocol: hold its dialogues and write turns, stories, ratings, grades, log and manifest.

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
from litbench.judges.dialogues import (
    RECORDED,
    WRITER,
    Cast,
    Dialogue,
    Held,
    Role,
    estimate,
    hold,
    recorded_names,
)
from litbench.judges.log import LogSample, write_log
from litbench.judges.prices import load_prices
from litbench.judges.store import AnswerStore, Sampling, file_name, identity, local_folder
from litbench.metrics.printing import write_dollars
from litbench.protocols.protocol import Item, Piece, Protocol, load_protocol
from litbench.raters import Estimate, estimates_text
from litbench.records import GRADES, RATINGS, STORIES, TURNS, Schema, empty_columns
from litbench.sources.ratings import story_digest
from litbench.store import Artifact, only_writer, read_manifest
from litbench.text import count_words

# Rows of a table that are held in memory, and dialogues in one log.
_ROWS_AT_ONCE = 500
_LOGGED_AT_ONCE = 100


@dataclass
class Run:
    """Configuration of `litbench run`.

    Attributes:
        protocol: name of the protocol.
        out: output folder.
        writers: writers by name: a model, or the keys of litbench.judges.dialogues.Role; a model
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


class _Table:
    """A table that is written as its rows arrive."""

    def __init__(self, schema: Schema, path: Path, extra: Mapping[str, pa.DataType] = {}) -> None:
        types = {name: column.type for name, column in empty_columns(schema, 0).items()}
        self._schema = pa.schema({**types, **extra})
        self.rows = 0
        self._rows: list[dict[str, Any]] = []
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows += len(rows)
        self._rows += map(dict, rows)
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._write()

    def close(self) -> None:
        if self._rows:
            self._write()
        self._writer.close()

    def _write(self) -> None:
        table = pa.Table.from_pylist(self._rows, self._schema)
        if "n_words" in table.column_names:
            index = table.column_names.index("n_words")
            words = count_words(table["text"].combine_chunks())
            table = table.set_column(index, "n_words", words)
        self._writer.write_table(table)
        self._rows = []


@dataclass
class _Results:
    """Collects ended dialogues into tables, logs and counts."""

    name: str
    protocol: Protocol
    items: Mapping[str, Item]
    cast: Cast
    out: Path
    scratch: Path

    def __post_init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {
            "turns": Counter(), "ratings": Counter(), "dialogues": Counter(),
        }  # fmt: skip
        self.cost = 0.0
        self.rejected_rows = RejectedRows()
        self._logged: list[tuple[Held, Any]] = []
        self._number = 0
        extra = {"sample": pa.int64(), "step": pa.large_string()}
        self.tables = {
            schema.name: _Table(schema, self.scratch / f"{schema.name}.parquet", columns)
            for schema, columns in ((TURNS, {}), (STORIES, extra), (RATINGS, {}), (GRADES, {}))
        }
        self.events = (self.scratch / "events.jsonl").open("w", encoding="utf-8")
        self.has_events = False

    def take(self, held: Held) -> None:
        """Add an ended dialogue."""
        self._number += 1
        dialogue = held.dialogue
        place = {name: getattr(dialogue, name) for name in ("writer", "prompt_id", "sample")}
        self.tables["turns"].add([
            {
                **place, "role": turn.role, "step": turn.step, "text": turn.answer.text,
                "outcome": turn.outcome, "model": turn.answer.model, "cost_usd": turn.cost_usd,
                "input_tokens": turn.answer.input_tokens,
                "output_tokens": turn.answer.output_tokens, "seconds": turn.answer.seconds,
            }
            for turn in sorted(held.turns, key=lambda turn: (turn.role, _natural(turn.step)))
        ])  # fmt: skip
        self.counts["turns"].update(turn.outcome for turn in held.turns)
        self.cost += sum(turn.cost_usd or 0 for turn in held.turns)
        self.counts["dialogues"]["unfinished" if held.result is None else "finished"] += 1
        if held.result is None:
            self.rejected_rows.add(
                dialogue.writer, self._number, "dialogue", held.reason or "",
                f"{dialogue.prompt_id}, sample {dialogue.sample}",
            )  # fmt: skip
        else:
            self._add_piece(held.result, place)
        self._logged.append((held, place))
        if len(self._logged) == _LOGGED_AT_ONCE:
            self.write_log()

    def _add_piece(self, piece: Piece, place: Mapping[str, Any]) -> None:
        item = self.items[place["prompt_id"]]
        story = f"{place['writer']}/{place['prompt_id']}/{place['sample']}/"
        self.tables["stories"].add([
            {
                "story_id": story + step, "prompt_id": item.prompt_id, "prompt": item.prompt,
                "text": text, "source": place["writer"], "sample": place["sample"], "step": step,
            }
            for step, text in piece.texts.items()
        ])  # fmt: skip
        for (judge, step), rated in piece.ratings.items():
            is_recorded = self.cast.roles[judge].is_recorded
            text = piece.texts.get(step)
            common = {
                "story_id": story + step, "rater": judge,
                "rater_kind": "recorded" if is_recorded else "model", "sample": place["sample"],
                "story_digest": None if text is None else story_digest(item.prompt, text),
            }  # fmt: skip
            answers = [turn.answer for turn in rated.turns]
            whole = {
                "rating": rated.grade,
                "outcome": rated.outcome,
                "explanation": rated.reply.answer.text or None,
                "input_tokens": _sum(answer.input_tokens for answer in answers),
                "output_tokens": _sum(answer.output_tokens for answer in answers),
                "cost_usd": _sum(turn.cost_usd for turn in rated.turns),
                "seconds": _sum(answer.seconds for answer in answers),
            }
            of_criteria = [
                {**common, "criterion": name, "rating": rating, "outcome": outcome}
                for name, (rating, outcome) in rated.ratings.items()
            ]
            self.tables["ratings"].add([{**common, **whole}, *of_criteria])
            self.counts["ratings"].update(row["outcome"] for row in of_criteria)
        grades = []
        for rater, quantity, grade, flags in piece.grades:
            known = list(flags)
            if rater is not None and self._is_own_judge(place["writer"], rater):
                known.append("judged by its writer")
            grades.append({**place, "rater": rater, "quantity": quantity, "grade": grade,
                           "flags": "; ".join(known) or None})  # fmt: skip
        self.tables["grades"].add(grades)
        for event in piece.events:
            self.has_events = True
            self.events.write(json.dumps({**place, **event}, ensure_ascii=False) + "\n")

    def _is_own_judge(self, writer: str, judge: str) -> bool:
        """Whether a judge is the writer itself."""
        names = set()
        for name, role in ((writer, self.cast.writers[writer]), (judge, self.cast.roles[judge])):
            # The same model may be reached through several providers.
            model = name if role.is_recorded else identity(role.model)
            names.add(model.rpartition("/")[2].lower())
        return len(names) == 1

    def write_log(self) -> None:
        """Write the log of the last dialogues."""
        samples = []
        for held, place in self._logged:
            scores = {
                f"{quantity} by {judge}": (grade, "; ".join(flags))
                for judge, quantity, grade, flags in (held.result or Piece()).grades
                if quantity == self.protocol.headline and grade is not None
            }
            name = f"{place['writer']}, {place['prompt_id']}, sample {place['sample']}"
            samples.append(LogSample(name, held.messages() or [("user", name)], scores))
        first = self._number - len(self._logged) + 1
        path = self.out / "logs" / f"{file_name(self.name)}_{first:06}.eval"
        if samples:
            write_log(path, samples, task=self.name, model=self.name, metadata={}, metric="mean")
        self._logged = []

    def write(self, artifact: Artifact) -> None:
        """Write what was collected; DataError if a table has lost rows."""
        self.write_log()
        self.events.close()
        for name, table in self.tables.items():
            path = self.scratch / f"{name}.parquet"
            table.close()
            if (found := pq.read_metadata(path).num_rows) != table.rows:
                raise DataError(
                    f"{path} has {found:,} rows, but {table.rows:,} were written: another program "
                    "changed it: run the same command again"
                )
            artifact.write(path.name, partial(shutil.move, path))
        if self.has_events:
            artifact.write("events.jsonl", partial(shutil.move, self.scratch / "events.jsonl"))
        shutil.rmtree(self.scratch)
        artifact.write("rejected.jsonl", self.rejected_rows.write)


def run(config: Run) -> None:
    """Hold the dialogues of a protocol and write the results."""
    protocol = load_protocol(config.protocol, config.options)
    items = _chosen(protocol.items(), config.items)
    cast = _cast(config, protocol)
    protocol.check(cast)
    judges = list(config.judges)

    def dialogue(writer: str, item: Item, sample: int) -> Dialogue:
        return Dialogue(
            writer, item.prompt_id, sample, lambda talk: protocol.hold(talk, item, judges)
        )

    dialogues = [
        dialogue(writer, item, sample)
        for writer in cast.writers
        for item in items
        for sample in range(config.samples)
    ]
    answers = config.answers or config.out / "answers"
    if config.dry_run:
        with AnswerStore(answers, read_only=True) as store:
            estimates = estimate(dialogues, cast, store)
        _print_estimates(config, estimates, len(dialogues))
        return
    roles = [*cast.writers.values(), *cast.roles.values()]
    inputs: dict[str, str | Path] = {**protocol.files()}
    for role in roles:
        if role.is_recorded:
            name = role.model.removeprefix(RECORDED)
            inputs[f"recorded.{name}"] = Path(name)
    folders = {one.model: folder for one in roles if (folder := local_folder(one.model))}
    artifact = Artifact(
        config.out,
        program="litbench run",
        config=config,
        inputs=inputs,
        models=folders,
    )
    # Recorded models fail again in the same way.
    is_recorded = all(role.is_recorded for role in roles)
    with only_writer(config.out):
        if (is_recorded or _is_finished(config.out)) and artifact.is_current():
            return
        _check_extends(artifact, protocol)
        with AnswerStore(answers) as store:
            scratch = config.out / "scratch"
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.rmtree(config.out / "logs", ignore_errors=True)
            scratch.mkdir()
            results = _Results(
                config.protocol, protocol, {item.prompt_id: item for item in items}, cast,
                config.out, scratch,
            )  # fmt: skip
            hold(dialogues, cast, store, results.take, config.protocol)
        results.write(artifact)
        artifact.counts = {
            "protocol": config.protocol,
            "headline": protocol.headline,
            **protocol.record(),
            **results.counts,
            "cost_usd": round(results.cost, 6),
        }
        artifact.finish()
    _print_summary(config, results, may_go_on=not is_recorded)


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


def _print_estimates(config: Run, estimates: Sequence[Estimate], dialogues: int) -> None:
    print("dry run: no request is sent")
    print(f"{dialogues:,} dialogues of {config.protocol}; estimate:")
    print(estimates_text(estimates))
    calls = sum(one.calls + one.known for one in estimates) / max(dialogues, 1)
    costs = [one.cost_usd for one in estimates if one.cost_usd is not None]
    dollars = sum(costs) / max(dialogues, 1) if len(costs) == len(estimates) else None
    print(f"per dialogue: {calls:,.0f} calls, new ones ${write_dollars(dollars)}")


def _print_summary(config: Run, results: _Results, *, may_go_on: bool) -> None:
    counts = results.counts
    print(
        f"{config.out}: {counts['dialogues']['finished']:,} of "
        f"{counts['dialogues'].total():,} dialogues finished, {counts['ratings']['rated']:,} of "
        f"{counts['ratings'].total():,} ratings read, ${results.cost:.2f}"
    )
    print(results.rejected_rows.summary(), end="")
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


def _cast(config: Run, protocol: Protocol) -> Cast:
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
    return Cast(writers, {**others, **judges}, load_prices(config.prices))


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
