"""Evaluate raters on all sets that are there: other people's benchmarks, one command, one table.

    python eval/suite.py --config configs/eval/suite.yaml

Reads the pairs files named under `sets`; a file that is not there is listed as absent. One that
cannot be used is set aside with its reason before any rater runs: the others go on, and in the end
the exit status is 2 and no manifest is written. Every set becomes an evaluation of its own in
`out/NAME` (verdicts, leaderboard, manifest), which eval/report.py, eval/compare.py and
eval/frontier.py read like one of eval/benchmark.py. Writes `suite.json`, `suite.csv`, `suite.md`
and `manifest.json` into `out`: a row for each set and rater, with who the labels are from, and
whether the rater was trained on some of the set's prompts. Each rater's verdicts on each set are
kept as soon as they are there: a killed run goes on where it was, and a set or a rater added later
is the only one to run. With `--dry_run true` the program tells what the judges would cost.

The mean over sets is of what these sets happen to be. They differ in texts, labels and
difficulty, so it comes with its spread and without an interval, and leaves out sets on whose
prompts the rater was trained.
"""

import csv
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from litbench.artifact import (
    Artifact,
    code_digest,
    source_digest,
    write_atomically,
    write_json,
)
from litbench.config import build, run_program
from litbench.errors import ConfigError, DataError
from litbench.evaluation import (
    JUDGING_CODE,
    EvaluationPairs,
    VerdictParts,
    check_training_prompts,
    errors_in,
    estimates_text,
    finish_evaluation,
    named_models,
    read_pairs,
    ready_rater,
)
from litbench.markdown import escape, make_rows, without_folders
from litbench.metrics.agreement import has_texts
from litbench.metrics.leaderboard import (
    check_reference,
    csv_cell,
)
from litbench.raters import (
    Asks,
    Estimate,
    Rater,
    RaterSpec,
    blind,
    check_options,
    judge_pairs,
    parse_raters,
)
from litbench.tables import write_table
from litbench.text import digest

# A set's name is that of its folder.
SET_NAME = re.compile(r"[\w-][\w.-]*")

BASELINES = {"longer": {"kind": "longer"}, "shorter": {"kind": "shorter"}}


@dataclass
class Entry:
    """One set.

    Attributes:
        pairs: its pairs file, by data_prep/import_pairs.py, import_ratings.py or make_pairs.py.
        split: only pairs of this split; null for all.
        about: what it is, in a few words.
    """

    pairs: Path
    split: str | None = None
    about: str = ""


@dataclass
class Config:
    """What to judge and by whom.

    Attributes:
        out: folder to write.
        sets: named sets, see `Entry`.
        raters: named raters, see litbench.raters; `longer` and `shorter` are there in any case.
        reference: the rater all others are compared with, in every set.
        most_pairs: of a set, drawn by a hash; null for all. Judges cost money.
        errors_again: run raters again that have errors among their verdicts.
        dry_run: only tell which sets are there, and what the raters that ask others would take.
    """

    out: Path
    sets: dict[str, dict[str, Any]]
    raters: dict[str, Any] = field(default_factory=dict)
    reference: str = "longer"
    most_pairs: int | None = None
    errors_again: bool = False
    dry_run: bool = False


@dataclass
class SetRun:
    """What the evaluation of one set depends on, as its manifest tells it."""

    out: Path
    pairs: Path
    raters: dict[str, Any]
    reference: str
    split: str | None


@dataclass
class Present:
    """A set that is there.

    Attributes:
        name: its name.
        entry: what the config says of it.
        run: what its evaluation depends on; its pairs may be a part of the entry's.
        labels: who its labels are from.
        without_text: pairs left out since a text is not there.
        not_drawn: pairs left out by `most_pairs`.
        artifact: its evaluation.
        parts: its verdicts by rater.
    """

    name: str
    entry: Entry
    run: SetRun
    labels: list[str]
    without_text: int
    not_drawn: int
    artifact: Artifact
    parts: VerdictParts

    def read(self) -> EvaluationPairs:
        """The pairs to judge."""
        return read_pairs(self.run.pairs, None, self.run.split)


def find_set(config: Config, name: str, entry: Entry, specs: Sequence[RaterSpec]) -> Present:
    """Look at a set that is there; where a part of it is left out, write the rest beside."""
    pairs = read_pairs(entry.pairs, None, entry.split).headline
    known = pairs.filter(pa.array(has_texts(pairs)))
    if known.num_rows == 0:
        raise DataError(f"{entry.pairs}: no pair has both its texts: leave set {name} out")
    drawn = known
    if config.most_pairs is not None and known.num_rows > config.most_pairs:
        names = known["pair_id"].to_pylist()
        first = sorted(range(len(names)), key=lambda row: digest("drawn", names[row]))
        drawn = known.take(pa.array(sorted(first[: config.most_pairs])))
    path, split, folder = entry.pairs, entry.split, config.out / name
    if drawn.num_rows < pairs.num_rows:
        path, split = folder / "pairs.parquet", None
        write_atomically(path, lambda part: write_table(drawn, part))
    raters = {spec.name: {"kind": spec.kind, **spec.options} for spec in specs}
    run = SetRun(folder, path, raters, config.reference, split)
    return Present(
        name=name,
        entry=entry,
        run=run,
        labels=sorted(pc.unique(drawn["label_source"]).to_pylist()),
        without_text=pairs.num_rows - known.num_rows,
        not_drawn=known.num_rows - drawn.num_rows,
        artifact=Artifact(
            folder, program=__file__, config=run, inputs={"pairs": path},
            models=named_models(specs),
        ),
        parts=VerdictParts(folder / "parts"),
    )  # fmt: skip


def find_sets(
    config: Config, entries: Mapping[str, Entry], specs: Sequence[RaterSpec]
) -> tuple[list[Present], dict[str, str]]:
    """Look at sets that are there; the usable ones, and why each of the others is not.

    Raises:
        DataError: none can be used.
    """
    found: list[Present] = []
    broken: dict[str, str] = {}
    for name, entry in entries.items():
        try:
            found.append(find_set(config, name, entry, specs))
        except DataError as error:
            print(f"set aside: {name}: {error}")
            # In tables that are shown, without the folders of who made them.
            broken[name] = str(error).replace(f"{entry.pairs.parent}/", "")
    if not found:
        raise DataError(f"none of the {len(broken)} sets that are there can be used: mend them")
    return found, broken


def refuse_broken(broken: Mapping[str, str]) -> None:
    """Tell at the very end that something is missing, so that no script takes it for the whole.

    Raises:
        DataError: a set was set aside.
    """
    if broken:
        raise DataError(
            f"set aside: {', '.join(broken)}, for the reasons above: mend or leave out, and run "
            "the same command again, which judges these alone"
        )


def judge_sets(
    config: Config, spec: RaterSpec, sets: Sequence[Present]
) -> list[tuple[pa.Table, dict[str, Any]]]:
    """One rater's verdicts on each set, and a record about them."""
    ready: list[Rater] = []

    def rater_for(one: Present) -> Rater:
        # Answers belong to a set; anything else is loaded once, which can take minutes.
        if not ready or isinstance(ready[0], Asks):
            ready[:] = [ready_rater(spec, one.run.out)]
        return ready[0]

    def judge(one: Present) -> tuple[pa.Table, dict[str, Any]]:
        rater, pairs = rater_for(one), one.read().headline
        trained_on = check_training_prompts(rater, pairs, "flag")
        return judge_pairs(rater, pairs), {"notes": rater.notes(), "trained_on": trained_on}

    code = code_digest(__file__, *JUDGING_CODE)
    weights = {
        name: source_digest(path, is_model=True) for name, path in named_models([spec]).items()
    }
    return [
        one.parts.get_or_make(
            spec.name,
            [spec, source_digest(one.run.pairs), one.run.split, code, weights],
            lambda one=one: judge(one),
            errors_again=config.errors_again,
        )
        for one in tqdm(sets, desc=spec.name, unit=" set", leave=False, disable=None)
    ]


def rows_of(one: Present) -> list[dict[str, Any]]:
    """A row for each rater of a finished set, from the files of its evaluation."""
    text = (one.run.out / "leaderboard.json").read_text(encoding="utf-8")
    rows = []
    for row in json.loads(text):
        agreement, comparison = row["agreement"], row["comparison"]
        rows.append(
            {
                "set": one.name,
                "labels": " and ".join(one.labels),
                "rater": row["rater"],
                "kind": row["kind"],
                "agreement": agreement["mean"],
                "low": agreement["low"],
                "high": agreement["high"],
                "pairs": agreement["n"],
                "prompts": agreement["clusters"],
                "effective_prompts": agreement["effective_clusters"],
                "coverage": row["coverage"],
                "against_reference": comparison and comparison["difference"]["mean"],
                "p_holm": comparison and comparison["p_holm"],
                "trained_on_prompts": row["trained_on"],
                "pairs_without_text": one.without_text,
                "pairs_not_drawn": one.not_drawn,
            }
        )
    return rows


def over_sets(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each rater's unweighted mean over the sets on whose prompts it was not trained, with spread.

    A standard deviation is that of the sets' own figures, so it holds their differences and their
    noise; None with fewer than two sets.
    """
    found = []
    for rater in dict.fromkeys(row["rater"] for row in rows):
        own = [row for row in rows if row["rater"] == rater]
        values = [row["agreement"] for row in own if not row["trained_on_prompts"]]
        found.append(
            {
                "rater": rater,
                "sets": len(values),
                "sets_trained_on": len(own) - len(values),
                "mean": round(statistics.fmean(values), 6) if values else None,
                "sd": round(statistics.stdev(values), 6) if len(values) > 1 else None,
                "lowest": min(values, default=None),
                "highest": max(values, default=None),
            }
        )
    return sorted(found, key=lambda row: (-(row["mean"] or 0.0), row["rater"]))


def in_words(row: Mapping[str, Any]) -> str:
    """A row's agreement with its interval and what must be known beside it."""
    text = f"{row['agreement']:.3f}"
    if row["low"] is not None:
        text += f" [{row['low']:.3f}, {row['high']:.3f}]"
    if row["trained_on_prompts"]:
        text += f" TRAINED ON {row['trained_on_prompts']} OF ITS PROMPTS"
    return text


def markdown(
    rows: Sequence[Mapping[str, Any]],
    means: Sequence[Mapping[str, Any]],
    present: Sequence[Present],
    absent: Mapping[str, Entry],
    broken: Mapping[str, str],
) -> str:
    """The tables in Markdown, a row for each set and a column for each rater."""
    names = [mean["rater"] for mean in means]
    heading = ["set", "labels", "pairs", "prompts", *map(escape, names)]
    body = []
    for one in present:
        own = {row["rater"]: row for row in rows if row["set"] == one.name}
        first = own[names[0]]
        counts = [f"{first['pairs']:,}", f"{first['prompts']:,}"]
        body.append([one.name, first["labels"], *counts, *(in_words(own[name]) for name in names)])
    lines = [
        "# Agreement with the labels, set by set",
        "",
        "95 % intervals by prompt. Labels of people are ratings or choices made for the study; "
        "votes are those of readers; labels of a model are no people's.",
        "",
        *make_rows(heading, body),
    ]
    notes = [(one.name, one.entry.about) for one in present if one.entry.about]
    notes += [
        (one.name, f"{one.without_text:,} pairs left out: a text is not there")
        for one in present
        if one.without_text
    ]
    notes += [
        (one.name, f"{one.not_drawn:,} pairs not drawn (most_pairs)")
        for one in present
        if one.not_drawn
    ]
    notes += [(name, f"absent: no file {without_folders(str(entry.pairs))}")
              for name, entry in absent.items()]  # fmt: skip
    notes += [(name, f"set aside: {reason}") for name, reason in broken.items()]
    lines += [*(f"- {escape(name)}: {escape(note)}" for name, note in notes), ""]
    if len(present) > 1:
        lines += [
            "## Over sets",
            "",
            "Unweighted means of the sets above. They differ in texts, labels and difficulty, and "
            "some share prompts: a mean over them belongs to this list and to no population, so "
            "it has a spread and no interval. Sets on whose prompts a rater was trained are left "
            "out of its mean.",
            "",
            *make_rows(
                ["rater", "mean", "sd over sets", "lowest", "highest", "sets", "left out"],
                [
                    [
                        mean["rater"],
                        *(
                            "–" if mean[key] is None else f"{mean[key]:.3f}"
                            for key in ("mean", "sd", "lowest", "highest")
                        ),
                        mean["sets"],
                        mean["sets_trained_on"],
                    ]
                    for mean in means
                ],
            ),
        ]
    return "\n".join(lines).rstrip() + "\n"


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The rows as CSV, by `csv_cell`."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows[0])
        for row in rows:
            writer.writerow([csv_cell(value) for value in row.values()])


def tell(specs: Sequence[RaterSpec], sets: Sequence[Present]) -> None:
    """Say what the raters that ask others would take, over all sets."""
    estimates: list[Estimate] = []
    for one in sets:
        pairs, _ = blind(one.read().headline)
        print(f"{one.name}: {len(pairs):,} pairs, labels of {' and '.join(one.labels)}")
        for spec in specs:
            rater = ready_rater(spec, one.run.out)
            if isinstance(rater, Asks):
                estimates += [
                    replace(estimate, rater=f"{one.name}: {estimate.rater}")
                    for estimate in rater.estimate(pairs)
                ]
    print(estimates_text(estimates) if estimates else "dry run: no rater asks others")


def main(config: Config) -> None:
    """Find the sets, judge each, put the figures together."""
    specs = parse_raters(BASELINES | config.raters)
    for spec in specs:
        check_options(spec, "raters")
    check_reference(config.reference, [spec.name for spec in specs])
    if config.most_pairs is not None and config.most_pairs < 2:
        raise ConfigError(f"most_pairs is {config.most_pairs}: give at least 2, or null")
    if not config.sets:
        raise ConfigError(
            "sets: none is named: give names with pairs files, as in configs/eval/suite.yaml"
        )
    entries = {name: build(Entry, given, f"sets.{name}") for name, given in config.sets.items()}
    for name in entries:
        if not SET_NAME.fullmatch(name):
            raise ConfigError(f"sets: '{name}' names a folder: use letters, digits, -, _ and .")
    absent = {name: entry for name, entry in entries.items() if not entry.pairs.is_file()}
    for name, entry in absent.items():
        print(f"absent: {name} ({entry.pairs})")
    if len(absent) == len(entries):
        raise DataError(
            f"none of the {len(entries)} sets is there: run their programs of data_prep first "
            "(each config under configs/data says how), or name other files under sets"
        )
    there = {name: entry for name, entry in entries.items() if name not in absent}
    sets, broken = find_sets(config, there, specs)
    if config.dry_run:
        tell(specs, sets)
        refuse_broken(broken)
        return
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={f"sets.{one.name}": one.run.pairs for one in sets},
        models=named_models(specs),
        runtime_keys=("errors_again", "dry_run"),
    )
    # A figure of a set that is gone must not stay in the tables of those that are there.
    open_sets = [one for one in sets if config.errors_again or not one.artifact.is_current()]
    if not open_sets and not broken and artifact.is_current():
        print((config.out / "suite.md").read_text(encoding="utf-8"), end="")
        return
    judged = [judge_sets(config, spec, open_sets) for spec in specs]
    for place, one in enumerate(open_sets):
        found = [of_spec[place] for of_spec in judged]
        records = {spec.name: [of[1]] for spec, of in zip(specs, found, strict=True)}
        pairs = one.read().without_texts()
        print(f"\n{one.name}:")
        finish_evaluation(
            one.artifact, [table for table, _ in found], records, pairs, config.reference
        )
        one.parts.discard_others()
        for spec, (table, _) in zip(specs, found, strict=True):
            if errors := errors_in(table):
                print(f"{spec.name}: {errors:,} of {table.num_rows:,} verdicts are errors: run the "
                      "same command with --errors_again true")  # fmt: skip
    rows = [row for one in sets for row in rows_of(one)]
    means = over_sets(rows)
    content = {
        "rows": rows,
        "over_sets": means,
        "absent": sorted(absent),
        "rejected_rows": broken,
        "about": {one.name: one.entry.about for one in sets},
    }
    artifact.write("suite.json", lambda path: write_json(content, path))
    artifact.write("suite.csv", lambda path: write_csv(rows, path))
    text = markdown(rows, means, sets, absent, broken)
    artifact.write("suite.md", lambda path: path.write_text(text, encoding="utf-8"))
    print(f"\n{text}", end="")
    refuse_broken(broken)
    artifact.counts = {"sets": len(sets), "absent": sorted(absent), "raters": len(specs)}
    artifact.finish()


if __name__ == "__main__":
    run_program(main, Config, __doc__)
