"""Compare the writers of one or several runs: the command `litbench writers compare`."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import NonNegativeFloat, PositiveInt

from litbench.data.records import GRADES, RATINGS, REPEATS, STORIES
from litbench.data.sources.ratings import grades_of, overall_ratings
from litbench.data.tables import read_table
from litbench.evaluation.report.document import publish, show_results
from litbench.evaluation.scoring import score_stories
from litbench.evaluation.stopping import stopped_text
from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import plain
from litbench.raters.entries import files_of, parse_raters
from litbench.runs.config import Runtime, nearest
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact, Cache, read_manifest_of, write_json
from litbench.writers.grades import (
    PEOPLE,
    GradeTable,
    agreements_with_people,
    cells_of,
    length_correlations,
    method_correlations,
    pairwise_rankings,
    plan_inconsistencies,
    rankings_of,
    repeats_of,
    without_people,
)
from litbench.writers.group_page import group_rows
from litbench.writers.groups import NO_COLUMNS, group_matrices, groups_of_prompts
from litbench.writers.metrics import (
    GradeCell,
    PairCredits,
    TextAgreement,
    WriterRow,
    correlate,
    fit_offsets,
    grouped,
    pair_credits,
    prompt_ranges,
    text_agreements,
    win_rates,
    writer_rows,
)
from litbench.writers.page import (
    WriterComparison,
    comparison_notes,
    writer_records,
    writers_page,
)
from litbench.writers.pictures import pictures
from litbench.writers.plackett_luce import Ranking, plackett_luce


@dataclass
class WritersConfig:
    """Compare the writers of one or several runs of a protocol (litbench run).

        litbench writers compare --config configs/eval/writers.yaml --preset longform

    Reads the folders of runs, and of data_prep/import_ratings.py with `writer`. Writes into `out`:

    - `writers.json`, `.csv` and `.txt`: the leaderboard of writers by mean grade, with intervals by
      prompt, paired comparisons with a writer named beforehand, the judges' offsets, the share of
      other writers' texts that each writer's texts beat by every rater, Plackett-Luce utilities,
      the range over prompts, correlations of all columns over writers, and the agreement of raters
      with judges and of judges with people, with intervals by prompt and writer; of runs of the
      protocol tow also correlations with the lengths of texts, and, with several samples, how far
      the planner's weights differ between them;
    - `writers.html` and `manifest.json`.

    A killed run resumes.

    Attributes:
        runs: one or several folders of runs of the same protocol.
        out: output folder.
        quantity: the quantity or criterion to compare; the protocol's headline when null.
        reference: the writer that all others are compared with; choose it before seeing results.
        raters: raters with rewards, which score the runs' stories; see litbench.raters.entries.
        slop: folder of the slop lists; adds the text statistics of `litbench.writers.prose`.
        published: published results by name: a number for each writer, for comparison.
        utility_prior: strength of a Gaussian prior of the Plackett-Luce utilities, for writers that
            wins do not connect both ways; 0 for none.
        collapse: count a writer's prompts with a mean grade below this.
        by: also compare by group: `criterion`, `judge`, `prompt`, `step` (chapter), or a column of
            the stories, such as `genre`, `task` or `persona`; several are possible.
        words: minimum and maximum length that writers were asked for, drawn beside their lengths.
        novels: of runs of webnovel, the file of the distribution on which writers are drawn,
            fixed_parameters.json or reference.json of import_novels.
    """

    # The manifests of the runs are inputs; their paths do not matter.
    runs: Annotated[Path | list[Path], Runtime]
    out: Path
    quantity: str | None = None
    reference: str | None = None
    raters: dict[str, Any] = field(default_factory=dict)
    slop: Path | None = None
    published: dict[str, dict[str, float]] = field(default_factory=dict)
    utility_prior: NonNegativeFloat = 0.0
    collapse: float | None = None
    by: list[str] = field(default_factory=list)
    words: tuple[PositiveInt, PositiveInt] | None = None
    novels: Path | None = None


def read_runs(folders: Sequence[Path]) -> GradeTable:
    """Read the tables of all runs."""
    counts = [read_manifest_of(folder / "grades.parquet")["counts"] for folder in folders]
    protocols = {(of_run.get("protocol"), of_run["headline"]) for of_run in counts}
    if len(protocols) > 1:
        names = ", ".join(sorted(str(protocol) for protocol, _ in protocols))
        raise ConfigError(f"runs are of several protocols ({names}): compare one at a time")
    rows: list[dict[str, Any]] = []
    criteria: list[dict[str, Any]] = []
    repeats: list[dict[str, Any]] = []
    stories: list[pa.Table] = []
    rated_criteria: list[str] = []
    people, texts = set(), {}
    for folder in folders:
        grades = read_table(folder / "grades.parquet", GRADES).select(GRADES.arrow().names)
        rows += grades.to_pylist()
        if (folder / "repeats.parquet").is_file():
            every = read_table(folder / "repeats.parquet", REPEATS).to_pylist()
            repeats += [row for row in every if row["grade"] is not None]
        of_run = None
        if (folder / "stories.parquet").is_file():
            of_run = read_table(folder / "stories.parquet", STORIES)
            stories.append(_new_stories(of_run, stories))
        path = folder / "ratings.parquet"
        if not pq.read_metadata(path).num_rows:
            # A run without judges.
            continue
        ratings = read_table(path, RATINGS)
        rated_criteria += ratings["criterion"].drop_null().unique().to_pylist()
        for row in overall_ratings(ratings).to_pylist():
            if row["rater_kind"] == "person":
                people.add(row["rater"])
            elif row["rating"] is not None:
                texts[row["rater"], row["story_id"]] = row["rating"]
        if of_run is not None:
            criteria += _grades_by_criterion(ratings, of_run, grades)
    _check_unique(rows)
    graded = [row for row in rows if row["grade"] is not None] + criteria
    quantities = {row["quantity"] for row in graded}
    notes = dict.fromkeys(note for of_run in counts for note in of_run.get("not_comparable", []))
    return GradeTable(
        rows=graded,
        missing=len(rows) + len(criteria) - len(graded),
        people=people,
        stories=pa.concat_tables(stories, promote_options="default") if stories else None,
        text_grades=texts,
        headline=next(iter(protocols))[1],
        notes=list(notes),
        repeats=repeats,
        criteria=[name for name in dict.fromkeys(rated_criteria) if name in quantities],
        costs=_costs([folder for folder in folders if (folder / "turns.parquet").is_file()]),
        until=[of_run["until_decided"] for of_run in counts if "until_decided" in of_run],
    )


def _costs(runs: Sequence[Path]) -> list[list[Any]]:
    """Rows of `GradeTable.costs`; in tow, leaves and baselines are steps (HoWToBench, Table 3)."""
    names = ["role", "step", "cost_usd", "input_tokens", "output_tokens"]
    tables = [pq.read_table(run / "turns.parquet", columns=names) for run in runs]
    if not tables:
        return []
    turns = pa.concat_tables(tables)
    # Without the numbers of chapters and turns.
    kinds = pc.replace_substring_regex(turns["step"], r"[\W_]*\d.*", "")
    rows = turns.set_column(1, "step", kinds).group_by(names[:2], use_threads=False)
    counts = [([], "count_all"), ("cost_usd", "sum"), *((name, "mean") for name in names[3:])]
    return list(map(list, zip(*rows.aggregate(counts).to_pydict().values(), strict=True)))


def _new_stories(stories: pa.Table, others: Sequence[pa.Table]) -> pa.Table:
    """The stories that no other run has: people may have rated those of another run."""
    is_same = [pc.is_in(stories["story_id"], other["story_id"]) for other in others]
    return stories.filter(pc.invert(reduce(pc.or_, is_same))) if is_same else stories


def _grades_by_criterion(
    ratings: pa.Table, stories: pa.Table, grades: pa.Table
) -> list[dict[str, Any]]:
    """Grades of the stories by the criteria that are no quantity of the run's grades."""
    named = {"overall", *grades["quantity"].to_pylist()}
    # A judge may also have rated a whole work, which is not a story of its own.
    of_stories = ratings.filter(pc.is_in(ratings["story_id"], stories["story_id"]))
    rows = grades_of(of_stories, stories, "source").to_pylist()
    return [row for row in rows if row["quantity"] not in named and row["grade"] is not None]


def _check_unique(rows: Sequence[Mapping[str, Any]]) -> None:
    keys = Counter(tuple(row[name] for name in GRADES.key) for row in rows)
    twice, times = keys.most_common(1)[0] if keys else ((), 1)
    if times > 1:
        raise DataError(f"runs: two of them have the grade {twice}: leave one of these runs out")


def score_texts(
    config: WritersConfig, graded: GradeTable, parts: Cache
) -> tuple[
    dict[str, dict[str, Interval]], list[TextAgreement], dict[str, int], dict[str, list[Ranking]]
]:
    """Score the stories with all raters.

    Returns:
        By rater and writer the win rate; agreements with the judges' grades of texts,
        compared with the longer text if it is one of the raters; by rater the number of prompts it
        was trained on; by rater its verdicts on pairs of texts.
    """
    stories = graded.stories
    specs = parse_raters(config.raters) if config.raters else []
    rates, trained_on, verdicts = {}, {}, {}
    credits: dict[tuple[str, str], PairCredits] = {}
    for spec in specs:
        if stories is None:
            raise DataError("raters: none of the runs has stories.parquet: leave out raters")
        rewards, trained_on[spec.name], _ = score_stories(spec, stories, parts)
        writers, prompts, steps, ids = (
            stories[name].to_pylist() for name in ("source", "prompt_id", "step", "story_id")
        )
        groups = list(zip(prompts, steps, strict=True))
        rates[spec.name] = win_rates(rewards.tolist(), writers, groups, prompts)
        verdicts[spec.name] = pairwise_rankings(rewards.tolist(), writers, groups, prompts)
        for judge in dict.fromkeys(judge for judge, _ in graded.text_grades):
            at = [index for index, name in enumerate(ids) if (judge, name) in graded.text_grades]
            credits[spec.name, judge] = pair_credits(
                [graded.text_grades[judge, ids[index]] for index in at],
                rewards[at].tolist(),
                [groups[index] for index in at],
                [prompts[index] for index in at],
                [writers[index] for index in at],
            )
    longer = next((spec.name for spec in specs if spec.kind == "longer"), None)
    return rates, text_agreements(credits, longer), trained_on, verdicts


def prose_columns(graded: GradeTable, folder: Path) -> dict[str, dict[str, float]]:
    """Text statistics by name and writer."""
    from litbench.writers.prose import SlopLists, prose_statistics  # noqa: PLC0415

    if graded.stories is None:
        raise DataError("slop: none of the runs has stories.parquet: leave out slop")
    lists = SlopLists.read(folder)
    works: dict[str, dict[Any, list[str]]] = defaultdict(lambda: defaultdict(list))
    for writer, prompt, sample, text in graded.story_rows("source", "prompt_id", "sample", "text"):
        works[writer][prompt, sample].append(text)
    columns: dict[str, dict[str, float]] = defaultdict(dict)
    for writer, of_writer in works.items():
        for name, value in asdict(prose_statistics(list(of_writer.values()), lists)).items():
            columns[name][writer] = value
    return dict(columns)


def read_excerpts(graded: GradeTable, writers: Sequence[str]) -> dict[str, tuple[str, str]]:
    """By writer, a prompt and the writer's first text for it; of one prompt that most have."""
    names = ("prompt_id", "step", "sample", "source", "prompt", "text")
    # By prompt, each writer's first text.
    firsts: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    rows = sorted(graded.story_rows(*names), key=lambda row: tuple(map(str, row[:3])))
    for prompt_id, _, _, writer, prompt, text in rows:
        firsts[prompt_id].setdefault(writer, (prompt, text))
    texts: dict[str, tuple[str, str]] = {}
    for of_prompt in sorted(firsts.values(), key=lambda firsts_of_prompt: -len(firsts_of_prompt)):
        texts = of_prompt | texts
    return {writer: texts[writer] for writer in writers if writer in texts}


def compare(config: WritersConfig, graded: GradeTable, parts: Cache) -> WriterComparison:
    """Compare the writers by one quantity; raises a ConfigError if the config names an unknown."""
    quantity = config.quantity or graded.headline
    by_quantity = _by_quantity(graded, quantity)
    cells = by_quantity[quantity]
    judged = without_people(cells)
    writers = sorted({cell.writer for cell in judged})
    if config.reference is not None and config.reference not in writers:
        raise ConfigError(
            f"reference: no writer '{config.reference}': {nearest(config.reference, writers)}"
        )
    rates, agreements, trained_on, verdicts = score_texts(config, graded, parts)
    offsets, is_connected = fit_offsets(judged)
    rows_of = {
        name: [
            _with_looks(row, name, config.reference, graded.until)
            for row in writer_rows(without_people(of_quantity), config.reference)
        ]
        for name, of_quantity in by_quantity.items()
    }
    columns = _columns(cells, quantity, rates)
    if config.slop is not None:
        columns |= prose_columns(graded, config.slop)
    columns |= {f"published {name}": values for name, values in config.published.items()}
    return WriterComparison(
        quantity=quantity,
        reference=config.reference,
        rows=[
            _with_looks(row, quantity, config.reference, graded.until)
            for row in writer_rows(judged, config.reference, rates)
        ],
        judges=offsets,
        is_connected=is_connected,
        utilities={
            name: plackett_luce(rankings, prior=config.utility_prior)
            for name, rankings in {**rankings_of(graded, quantity), **verdicts}.items()
            if any(len(list(itertools.chain(*ranking.blocks))) > 1 for ranking in rankings)
        },
        columns=columns,
        quantities={
            name: {row.writer: row.grade.mean for row in rows} for name, rows in rows_of.items()
        },
        correlations=[correlate(*pair, columns) for pair in itertools.combinations(columns, 2)],
        text_agreement=agreements,
        people_agreement=agreements_with_people(graded),
        method_correlation=method_correlations(
            graded,
            quantity,
            [groups_of_prompts(graded, by) for by in config.by if by not in NO_COLUMNS],
        ),
        changes={
            name: {row.writer: row.difference for row in rows if row.difference is not None}
            for name, rows in rows_of.items()
        },
        costs=graded.costs,
        length_correlation=length_correlations(graded, quantity),
        plan_inconsistency=plan_inconsistencies(graded),
        ranges=prompt_ranges(judged, config.collapse),
        repeats=repeats_of(graded, quantity),
        missing_grades=graded.missing,
        not_comparable=graded.notes,
        trained_on=trained_on,
        groups={by: group_matrices(graded, by, quantity, config.utility_prior) for by in config.by},
        until=graded.until,
    )


def _by_quantity(graded: GradeTable, quantity: str) -> dict[str, list[GradeCell]]:
    """The grades of each quantity, among them the one to compare."""
    by_quantity = {
        name: cells_of(graded, name)
        for name in dict.fromkeys(row["quantity"] for row in graded.rows)
    }
    if not by_quantity:
        raise DataError(
            f"all {graded.missing:,} grades are missing, since no rating could be read: see the "
            "outcomes in ratings.parquet and the replies in turns.parquet"
        )
    if quantity not in by_quantity:
        hint = nearest(quantity, list(by_quantity))
        raise ConfigError(f"no grades of quantity '{quantity}': {hint}")
    return by_quantity


def _with_looks(
    row: WriterRow, quantity: str, reference: str | None, records: Sequence[Mapping[str, Any]]
) -> WriterRow:
    """A row with the mark of a run until decided.

    Its difference allows for the looks, or is left out if they were of another comparison.
    """
    for record in records:
        plan, result = record["plan"], record["comparisons"].get(row.writer)
        if result is None and row.writer != plan["against"]:
            continue
        row = replace(row, stopped=stopped_text(record), difference=None, p_holm=None)
        if result is not None and (plan["against"], plan["quantity"]) == (reference, quantity):
            difference = Interval.of(result["interval"])
            row = replace(row, difference=difference, p_holm=result["p_holm"])
    return row


def _columns(
    cells: Sequence[GradeCell], quantity: str, rates: Mapping[str, Mapping[str, Interval]]
) -> dict[str, dict[str, float]]:
    """Mean grades by judge, and win rates by rater, of each writer."""
    by_judge = grouped(cells, lambda cell: cell.judge)
    return {
        f"{quantity} by {judge}" if judge else quantity: {
            row.writer: row.plain for row in writer_rows(of_judge)
        }
        for judge, of_judge in by_judge.items()
    } | {
        f"win rate by {rater}": {writer: share.mean for writer, share in of_rater.items()}
        for rater, of_rater in rates.items()
    }


def compare_writers(config: WritersConfig) -> None:
    """Read the runs, compare the writers, and write the results."""
    folders = config.runs if isinstance(config.runs, list) else [config.runs]
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"slop": config.slop, "novels": config.novels}
        | {f"run {number}": folder / "manifest.json" for number, folder in enumerate(folders, 1)},
        models=files_of(parse_raters(config.raters)) if config.raters else {},
    )
    if artifact.is_current():
        show_results(config.out, "writers")
        return
    graded, parts = read_runs(folders), Cache(config.out / "parts")
    comparison = compare(config, graded, parts)
    notes = comparison_notes(comparison)
    if graded.people and PEOPLE not in comparison.utilities:
        notes.append(
            "no utilities by people: none of them rated two writers on the same prompt by "
            f"{comparison.quantity}"
        )
    artifact.write("writers.json", partial(write_json, plain(comparison)))
    artifact.counts = {
        "writers": len(comparison.rows),
        "grades": len(graded.rows),
        "missing_grades": graded.missing,
    }
    text, page = writers_page(
        comparison,
        notes,
        config.published,
        read_excerpts(graded, [row.writer for row in comparison.rows]),
        pictures(
            graded,
            comparison.quantity,
            comparison.repeats,
            by=config.by,
            words=config.words,
            novels=config.novels,
        ),
    )
    csv_tables = {"writers": writer_records(comparison)}
    if comparison.groups:
        csv_tables["groups"] = list(group_rows(comparison.groups))
    publish(artifact, "writers", text, page, csv_tables)
    parts.discard_unused()
