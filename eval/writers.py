"""Compare the writers of one or several runs of a protocol (litbench run).

    python eval/writers.py --config configs/eval/longform_writers.yaml

Reads the folders of runs, and of data_prep/import_ratings.py with `writer`. Writes into `out`:

- `writers.json`, `.csv` and `.txt`: the leaderboard of writers by mean grade, with intervals by
  prompt, paired comparisons with a writer named beforehand, the judges' offsets, the share of other
  writers' texts that each writer's texts beat by every rater, Plackett-Luce utilities, the range
  over prompts, correlations of all columns over writers, and the agreement of raters with judges
  and of judges with people; of runs of the protocol tow also correlations with the lengths of
  texts, and, with several samples, how far the planner's weights differ between them;
- `writers.html` and `manifest.json`.

A killed run resumes.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import NonNegativeFloat

from litbench.artifact import Artifact, read_manifest_of, write_json
from litbench.config import nearest, run_program
from litbench.errors import ConfigError, DataError
from litbench.evaluation import VerdictParts
from litbench.metrics.csv_table import write_csv
from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import plain
from litbench.metrics.plackett_luce import Ranking, Utilities, plackett_luce, ranking_of
from litbench.metrics.printing import text_table
from litbench.metrics.writers import (
    Cell,
    Correlation,
    GradeAgreement,
    WriterRow,
    correlate,
    fit_offsets,
    grade_agreement,
    pair_agreement,
    shares_beaten,
    writer_rows,
)
from litbench.metrics.writing import (
    Inconsistency,
    LengthCorrelation,
    length_correlation,
    negotiation_inconsistency,
)
from litbench.raters import check_options, files_of, parse_raters
from litbench.records import GRADES, RATINGS, STORIES
from litbench.report.pages import write_writers
from litbench.scoring import score_stories
from litbench.sources.ratings import overall_ratings
from litbench.tables import read_table

PEOPLE = "people"
# Quantities of the protocol tow: lengths of the input and of the text, and weights of plans.
LENGTHS = ("input characters", "output characters")
WEIGHT = "weight "
# Percentiles above it do not tell writers apart (protocol webnovel).
CEILING = 99


@dataclass
class Config:
    """Configuration of `writers.py`.

    Attributes:
        runs: one or several folders of runs of the same protocol.
        out: output folder.
        quantity: the quantity to compare; the protocol's headline when null.
        reference: the writer that all others are compared with; choose it before seeing results.
        raters: raters with rewards, which score the runs' stories; see litbench.raters.
        slop: folder of the slop lists; adds the text statistics of `litbench.metrics.prose`.
        published: published results by name: a number for each writer, for comparison.
        utility_prior: strength of a Gaussian prior of the Plackett-Luce utilities, for writers that
            wins do not connect both ways; 0 for none.
        collapse: count a writer's prompts with a mean grade below this.
    """

    runs: Path | list[Path]
    out: Path
    quantity: str | None = None
    reference: str | None = None
    raters: dict[str, Any] = field(default_factory=dict)
    slop: Path | None = None
    published: dict[str, dict[str, float]] = field(default_factory=dict)
    utility_prior: NonNegativeFloat = 0.0
    collapse: float | None = None


@dataclass
class Graded:
    """All grades of the runs.

    Attributes:
        rows: rows of the tables of grades that have a grade.
        missing: number of rows without one.
        people: raters that are people.
        stories: the stories of all runs; None if there are none.
        text_grades: (judge, story_id) -> the judge's grade of that text.
        notes: why results cannot be compared with published ones.
    """

    rows: list[dict[str, Any]]
    missing: int
    people: set[str]
    stories: pa.Table | None
    text_grades: dict[tuple[str, str], float]
    headline: str
    notes: list[str]


def read_runs(folders: Sequence[Path]) -> Graded:
    """Read the tables of all runs."""
    tables, stories, people, texts, notes = [], [], set(), {}, []
    protocols = set()
    for folder in folders:
        counts = read_manifest_of(folder / "grades.parquet")["counts"]
        protocols.add((counts.get("protocol"), counts["headline"]))
        notes += counts.get("not_comparable", [])
        tables.append(read_table(folder / "grades.parquet", GRADES).select(GRADES.arrow().names))
        path = folder / "ratings.parquet"
        # A run without judges has no ratings.
        rated = pq.read_metadata(path).num_rows > 0
        for row in overall_ratings(read_table(path, RATINGS)).to_pylist() if rated else ():
            if row["rater_kind"] == "person":
                people.add(row["rater"])
            elif row["rating"] is not None:
                texts[row["rater"], row["story_id"]] = row["rating"]
        if (folder / "stories.parquet").is_file():
            stories.append(read_table(folder / "stories.parquet", STORIES))
    if len(protocols) > 1:
        names = ", ".join(sorted(str(protocol) for protocol, _ in protocols))
        raise ConfigError(f"runs are of several protocols ({names}): compare one at a time")
    rows = pa.concat_tables(tables).to_pylist()
    keys = [tuple(row[name] for name in GRADES.key) for row in rows]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DataError(f"runs: two of them have the grade {twice}: leave one of these runs out")
    known = [row for row in rows if row["grade"] is not None]
    return Graded(
        known, len(rows) - len(known), people,
        pa.concat_tables(stories, promote_options="default") if stories else None,
        texts, next(iter(protocols))[1], list(dict.fromkeys(notes)),
    )  # fmt: skip


def cells_of(graded: Graded, quantity: str) -> list[Cell]:
    """Mean grades by writer, prompt and rater; all people are the rater `PEOPLE`."""
    grades = defaultdict(list)
    for row in graded.rows:
        if row["quantity"] == quantity:
            rater = PEOPLE if row["rater"] in graded.people else row["rater"] or ""
            grades[row["writer"], row["prompt_id"], rater].append(row["grade"])
    return [Cell(*place, float(np.mean(of))) for place, of in grades.items()]


def rankings_of(graded: Graded, quantity: str) -> dict[str, list[Ranking]]:
    """Every rater's rankings of the writers by prompt, of people and of judges."""
    groups: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in graded.rows:
        if row["quantity"] == quantity and row["rater"] is not None:
            groups[row["rater"], row["prompt_id"]][row["writer"]].append(row["grade"])
    rankings = defaultdict(list)
    for (rater, _), by_writer in groups.items():
        means = {writer: round(float(np.mean(of)), 9) for writer, of in by_writer.items()}
        kind = PEOPLE if rater in graded.people else "judges"
        rankings[kind].append(ranking_of(means, rater))
    return dict(rankings)


def pairwise_rankings(
    rewards: Sequence[float], writers: Sequence[str], groups: Sequence[Any], prompts: Sequence[str]
) -> list[Ranking]:
    """A rater's verdicts on pairs of texts by two writers; intervals are by prompt."""
    members = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    return [
        ranking_of({writers[one]: rewards[one], writers[other]: rewards[other]}, prompts[one])
        for indices in members.values()
        for one, other in itertools.combinations(indices, 2)
        if writers[one] != writers[other]
    ]


def without_people(cells: list[Cell]) -> list[Cell]:
    """The judges' grades; those of people if there are no judges. The two are not pooled."""
    return [cell for cell in cells if cell.judge != PEOPLE] or cells


def agreements_with_people(graded: Graded) -> list[GradeAgreement]:
    """Compare every judge with the mean of the people, by quantity."""
    by_quantity: dict[str, dict[str, dict[tuple[str, str, int], list[float]]]] = {}
    for row in graded.rows:
        place = (row["writer"], row["prompt_id"], row["sample"])
        rater = PEOPLE if row["rater"] in graded.people else row["rater"]
        of_rater = by_quantity.setdefault(row["quantity"], {}).setdefault(rater, {})
        of_rater.setdefault(place, []).append(row["grade"])
    found = []
    for quantity, by_rater in by_quantity.items():
        people = by_rater.pop(PEOPLE, {})
        for rater, grades in by_rater.items():
            shared = [
                (writer, prompt, prompt, float(np.mean(people[place])), float(np.mean(of)))
                for place, of in grades.items()
                if place in people
                for writer, prompt, _ in [place]
            ]
            if shared:
                found.append(grade_agreement(rater, PEOPLE, quantity, shared))
    return found


def length_correlations(graded: Graded, quantity: str) -> list[tuple[str, str, LengthCorrelation]]:
    """Correlate lengths with each other, and the judges' grades with them, over texts."""
    values: dict[str, dict[tuple[str, str, int], float]] = defaultdict(dict)
    for row in graded.rows:
        is_length = row["quantity"] in LENGTHS
        if is_length or (row["quantity"] == quantity and row["rater"] is not None):
            name = row["quantity"] if is_length else f"{quantity} by {row['rater']}"
            values[name][row["writer"], row["prompt_id"], row["sample"]] = row["grade"]
    found = []
    for x, y in itertools.combinations(values, 2) if values.keys() >= set(LENGTHS) else ():
        shared = [place for place in values[x] if place in values[y]]
        if x in LENGTHS and shared:
            of_both = ([values[name][place] for place in shared] for name in (x, y))
            found.append((x, y, length_correlation(*of_both)))
    return found


def plan_inconsistencies(graded: Graded) -> dict[str, list[Inconsistency]]:
    """How far the weights of each planner differ between samples, by prompt with several."""
    plans: dict[tuple[str, str], dict[int, dict[str, float]]] = defaultdict(dict)
    for row in graded.rows:
        if row["quantity"].startswith(WEIGHT):
            # The plan does not depend on the writer.
            plan = plans[row["rater"], row["prompt_id"]].setdefault(row["sample"], {})
            plan[row["quantity"]] = row["grade"]
    found = defaultdict(list)
    for (planner, _), trials in plans.items():
        if len(trials) > 1:
            ordered = [trials[sample] for sample in sorted(trials)]
            found[planner].append(negotiation_inconsistency(ordered))
    return dict(found)


def score_texts(
    config: Config, graded: Graded, parts: VerdictParts
) -> tuple[
    dict[str, dict[str, Interval]], list[dict[str, Any]], dict[str, int], dict[str, list[Ranking]]
]:
    """Score the stories with all raters.

    Returns:
        By rater and writer the share of texts beaten; agreements with the judges' grades of texts;
        by rater the number of prompts it was trained on; by rater its verdicts on pairs of texts.
    """
    specs = parse_raters(config.raters) if config.raters else []
    if specs and graded.stories is None:
        raise DataError("raters: none of the runs has stories.parquet: leave out raters")
    beaten, agreements, trained_on, verdicts = {}, [], {}, {}
    for spec in specs:
        stories = graded.stories
        rewards, trained_on[spec.name] = score_stories(spec, stories, parts)
        columns = (stories[name].to_pylist() for name in ("source", "prompt_id", "step"))
        writers, prompts, steps = columns
        groups = list(zip(prompts, steps, strict=True))
        beaten[spec.name] = shares_beaten(rewards.tolist(), writers, groups, prompts)
        verdicts[spec.name] = pairwise_rankings(rewards.tolist(), writers, groups, prompts)
        ids = stories["story_id"].to_pylist()
        for judge in dict.fromkeys(judge for judge, _ in graded.text_grades):
            at = [index for index, name in enumerate(ids) if (judge, name) in graded.text_grades]
            reference = [graded.text_grades[judge, ids[index]] for index in at]
            interval = pair_agreement(
                reference, rewards[at].tolist(),
                [groups[index] for index in at], [prompts[index] for index in at],
            )  # fmt: skip
            agreements.append({"rater": spec.name, "judge": judge, "agreement": interval})
    return beaten, agreements, trained_on, verdicts


def prose_columns(graded: Graded, folder: Path) -> dict[str, dict[str, float]]:
    """Text statistics by name and writer."""
    from litbench.metrics.prose import SlopLists, prose_statistics  # noqa: PLC0415

    if graded.stories is None:
        raise DataError("slop: none of the runs has stories.parquet: leave out slop")
    lists = SlopLists.read(folder)
    works: dict[str, dict[Any, list[str]]] = defaultdict(lambda: defaultdict(list))
    names = ("source", "prompt_id", "sample", "text")
    for writer, prompt, sample, text in zip(
        *(graded.stories[name].to_pylist() for name in names), strict=True
    ):
        works[writer][prompt, sample].append(text)
    columns: dict[str, dict[str, float]] = defaultdict(dict)
    for writer, of_writer in works.items():
        for name, value in asdict(prose_statistics(list(of_writer.values()), lists)).items():
            columns[name][writer] = value
    return dict(columns)


def leaderboard_table(rows: Sequence[WriterRow], reference: str | None) -> list[list[str]]:
    """The leaderboard as rows of text, with a heading."""
    raters = list(dict.fromkeys(rater for row in rows for rater in row.beaten))
    heading = ["writer", "grade", "95 % interval", "prompts", "grades"]
    heading += [f"difference to {reference}", "p (Holm)"] if reference is not None else []
    table = [[*heading, *(f"beaten by {rater}" for rater in raters)]]
    for row in rows:
        cells = [row.writer, _number(row.grade.mean, 2),
                 f"{_number(row.grade.low, 2)} to {_number(row.grade.high, 2)}",
                 str(row.grade.clusters), str(row.grades)]  # fmt: skip
        if reference is not None and row.difference is None:
            cells += ["", ""]
        elif row.difference is not None:
            gap = row.difference
            bounds = f"[{_number(gap.low, 2)}, {_number(gap.high, 2)}]"
            cells += [f"{gap.mean:+.2f} {bounds}", _p_value(row.p_holm)]
        shares = (row.beaten.get(rater) for rater in raters)
        table.append([*cells, *("–" if share is None else str(share) for share in shares)])
    return table


def utilities_table(utilities: Mapping[str, Utilities], writers: Sequence[str]) -> list[list[str]]:
    """Plackett-Luce utilities with their intervals as rows of text."""

    def cell(found: Utilities, writer: str) -> str:
        values = (found.values, found.low, found.high)
        mean, low, high = (_number(of.get(writer), 2) for of in values)
        return mean if "–" in (mean, low) else f"{mean} [{low}, {high}]"

    return [
        ["writer", *utilities],
        *([writer, *(cell(found, writer) for found in utilities.values())] for writer in writers),
    ]


def range_table(cells: Sequence[Cell], collapse: float | None) -> list[list[str]]:
    """Each writer's lowest and highest prompt, by grades without the judges' offsets."""
    offsets = fit_offsets(cells).judges
    grades: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        grades[cell.writer][cell.prompt].append(cell.grade - offsets[cell.judge])
    heading = ["writer", "lowest", "on", "highest", "on"]
    table = [heading if collapse is None else [*heading, f"below {collapse:g}"]]
    for writer, by_prompt in grades.items():
        means = {prompt: float(np.mean(of)) for prompt, of in by_prompt.items()}
        low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        row = [writer, _number(means[low], 2), low, _number(means[high], 2), high]
        if collapse is not None:
            row.append(str(sum(mean < collapse for mean in means.values())))
        table.append(row)
    return table


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _p_value(value: float | None) -> str:
    return "<0.001" if value is not None and value < 0.001 else _number(value, 3)


def _correlation(one: Correlation) -> list[str]:
    return [_number(value, 2) for value in (one.pearson, one.kendall, one.spearman)]


def main(config: Config) -> None:
    """Read the runs, compare the writers, and write the results."""
    folders = config.runs if isinstance(config.runs, list) else [config.runs]
    specs = parse_raters(config.raters) if config.raters else []
    for spec in specs:
        check_options(spec, "raters")
    inputs = {f"run {number}": folder / "manifest.json" for number, folder in enumerate(folders, 1)}
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs=inputs if config.slop is None else {**inputs, "slop": config.slop},
        models=files_of(specs),
        runtime_keys=("runs",),
    )
    if artifact.is_current():
        print((config.out / "writers.txt").read_text(encoding="utf-8"), end="")
        return
    graded, parts = read_runs(folders), VerdictParts(config.out / "parts")
    quantity = config.quantity or graded.headline
    quantities = list(dict.fromkeys(row["quantity"] for row in graded.rows))
    if quantity not in quantities:
        raise ConfigError(f"no grades of quantity '{quantity}': {nearest(quantity, quantities)}")
    cells = cells_of(graded, quantity)
    writers = sorted({cell.writer for cell in cells})
    if config.reference is not None and config.reference not in writers:
        raise ConfigError(
            f"reference: no writer '{config.reference}': {nearest(config.reference, writers)}"
        )
    beaten, agreements, trained_on, verdicts = score_texts(config, graded, parts)
    by_judge = {judge: [cell for cell in cells if cell.judge == judge]
                for judge in dict.fromkeys(cell.judge for cell in cells)}  # fmt: skip
    judged = without_people(cells)
    rows: list[WriterRow] = writer_rows(judged, config.reference, beaten)
    fit = fit_offsets(judged)
    utilities = {
        name: plackett_luce(rankings, prior=config.utility_prior)
        for name, rankings in {**rankings_of(graded, quantity), **verdicts}.items()
        if any(len(list(itertools.chain(*one.blocks))) > 1 for one in rankings)
    }
    columns = {
        f"{quantity} by {judge}" if judge else quantity: {
            row.writer: row.plain for row in writer_rows(of_judge)
        }
        for judge, of_judge in by_judge.items()
    }
    columns |= {
        f"beaten by {rater}": {writer: share.mean for writer, share in of_rater.items()}
        for rater, of_rater in beaten.items()
    }
    if config.slop is not None:
        columns |= prose_columns(graded, config.slop)
    columns |= {f"published {name}": values for name, values in config.published.items()}
    by_quantity = {name: writer_rows(without_people(cells_of(graded, name))) for name in quantities}
    correlations = [correlate(*pair, columns) for pair in itertools.combinations(columns, 2)]
    people = agreements_with_people(graded)
    lengths, plans = length_correlations(graded, quantity), plan_inconsistencies(graded)
    content = {
        "quantity": quantity,
        "reference": config.reference,
        "rows": rows,
        "judges": fit.judges,
        "is_connected": fit.is_connected,
        "utilities": utilities,
        "columns": columns,
        "quantities": {
            name: {row.writer: row.grade.mean for row in of} for name, of in by_quantity.items()
        },
        "correlations": correlations,
        "text_agreement": agreements,
        "people_agreement": people,
        "length_correlation": lengths,
        "plan_inconsistency": plans,
        "missing_grades": graded.missing,
        "not_comparable": graded.notes,
        "trained_on": trained_on,
    }
    tables = {f"Writers by {quantity}": leaderboard_table(rows, config.reference)}
    if len(fit.judges) > 1:
        tables["Judges' offsets"] = [
            ["judge", "grades above the mean of all judges by"],
            *([judge, f"{offset:+.2f}"] for judge, offset in fit.judges.items()),
        ]
    if utilities:
        tables["Utilities (Plackett-Luce)"] = utilities_table(utilities, [r.writer for r in rows])
    tables["Range over prompts"] = range_table(judged, config.collapse)
    tables["Columns"] = [
        ["writer", *columns],
        *(
            [row.writer, *(_number(of.get(row.writer), 3) for of in columns.values())]
            for row in rows
        ),
    ]
    tables["Correlations over writers"] = [
        ["columns", "writers", "Pearson", "tau-b", "Spearman"],
        *([f"{one.first}, {one.second}", str(one.writers), *_correlation(one)]
          for one in correlations),
    ]  # fmt: skip
    if agreements:
        tables["Raters against judges, on single texts"] = [
            ["rater", "judge", "agreement", "pairs"],
            *([one["rater"], one["judge"], str(one["agreement"]), f"{one['agreement'].n:,}"]
              for one in agreements),
        ]  # fmt: skip
    if people:
        tables["Judges against people"] = [
            ["judge", "quantity", "agreement on pairs", "pairs", "Pearson", "tau-b", "Spearman"],
            *([one.rater, one.quantity, str(one.agreement), f"{one.agreement.n:,}",
               *_correlation(one.systems)] for one in people),
        ]  # fmt: skip
    if lengths:
        tables["Lengths of texts"] = [
            ["of", "on", "texts", "Pearson", "slope"],
            *([y, x, f"{one.n:,}", _number(one.pearson, 4), _number(one.slope, 3)]
              for x, y, one in lengths),
        ]  # fmt: skip
    if plans:
        tables["Negotiation inconsistency"] = [
            ["planner", "prompts", "delta", "sigma"],
            *([planner, str(len(of)), _number(float(np.mean([one.delta for one in of])), 3),
               _number(float(np.mean([one.sigma for one in of])), 3)]
              for planner, of in plans.items()),
        ]  # fmt: skip
    if len(by_quantity) > 1:
        tables["Mean grades"] = [
            ["writer", *by_quantity],
            *(
                [row.writer, *(_number(content["quantities"][name].get(row.writer), 2)
                               for name in by_quantity)]
                for row in rows
            ),
        ]  # fmt: skip
    notes = [f"{graded.missing:,} grades are missing: no rating could be read"] * bool(
        graded.missing
    )
    if quantity == "percentile":
        notes += [
            f"{row.writer} lies above the {CEILING}th percentile, where the scale saturates: "
            "compare the quantity value"
            for row in rows
            if row.plain > CEILING
        ]
    notes += [
        f"by {name}, wins do not connect {', '.join(found.infinite)} with the others both ways: no "
        "finite utility; utility_prior shrinks it"
        for name, found in utilities.items()
        if found.infinite
    ]
    if config.utility_prior and utilities:
        notes.append(f"utilities are shrunk by a prior of strength {config.utility_prior:g}")
    if not fit.is_connected:
        notes.append("judges graded different writers or prompts, so their offsets are not known")
    notes += [f"not comparable with published results: {note}" for note in graded.notes]
    notes += [f"{rater} was trained on {count} of these prompts"
              for rater, count in trained_on.items() if count]  # fmt: skip
    parts_of_text = [f"{title}\n" + "\n".join(text_table(table)) for title, table in tables.items()]
    text = "\n\n".join([*parts_of_text, *notes]) + "\n"
    table = [
        {
            "writer": row.writer, "grade": row.grade.mean, "low": row.grade.low,
            "high": row.grade.high, "prompts": row.grade.clusters, "grades": row.grades,
            "plain_mean": row.plain,
            **{name: of_column.get(row.writer) for name, of_column in columns.items()},
        }
        for row in rows
    ]  # fmt: skip
    artifact.write("writers.json", partial(write_json, plain(content)))
    artifact.write("writers.csv", partial(write_csv, table))
    artifact.write("writers.txt", lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = {"writers": len(rows), "grades": len(graded.rows),
                       "missing_grades": graded.missing}  # fmt: skip
    write_writers(artifact, quantity, rows, tables, notes, config.published)
    artifact.finish()
    parts.discard_others()
    print(text, end="")
    print(f"page: {(config.out / 'writers.html').resolve()}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
