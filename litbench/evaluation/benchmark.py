"""A benchmark: raters judge one or several sets of pairs; verdicts and a leaderboard.

    run_benchmark(Benchmark(Path("pairs.parquet"), Path("out"), {"longer": {"kind": "longer"}}), "")

eval/benchmark.py and `litbench judge` run it; that program's docstring lists the files it writes.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa

from litbench.data.columns import GUESS, PairColumns
from litbench.data.records import NOT_STATED, connected_prompts, prompt_keys
from litbench.data.sources.evaluation_pairs import (
    EvaluationPairs,
    input_files,
    read_pairs,
    subsample,
)
from litbench.evaluation.folds import fold_jobs
from litbench.evaluation.loop import (
    Job,
    Result,
    evaluate,
    finish_evaluation,
    finished_evaluation,
    is_finished,
    print_estimates,
)
from litbench.evaluation.report.csv_table import flat_rows, write_csv
from litbench.evaluation.report.sets import sets_page
from litbench.evaluation.results import Evaluation
from litbench.evaluation.selection import (
    Selection,
    best_templates,
    check_validation,
    list_candidates,
)
from litbench.judges.client import providers
from litbench.judges.recorded import recorded_specs
from litbench.metrics.agreement import has_texts
from litbench.metrics.leaderboard import check_reference, leaderboard_csv
from litbench.metrics.sets import linked_sets, over_sets
from litbench.models import model_entry
from litbench.raters.entries import RaterSpec, files_of, parse_raters
from litbench.runs.config import Runtime, build
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.markdown import without_folders
from litbench.runs.outputs import Artifact, Cache, write_json

# Keys that are those of the set if there is one, and otherwise given for each set.
_OF_ONE_SET = ("split", "before_symmetry", "ratings", *vars(PairColumns()))


@dataclass
class Set(PairColumns):
    """A set of pairs.

    Attributes:
        pairs: pairs file.
        split: only pairs of this split; null for all.
        before_symmetry: pairs file before the last filter; also judged and reported.
        ratings: `ratings.parquet` of data_prep/import_ratings.py, in the folder of the pairs: its
            recorded judges become raters, and all raters judge all pairs within a prompt, to be
            compared with leave-one-out agreement of the annotators.
        recorded: whether the recorded judges of `ratings` become raters. If not, only pairs whose
            texts are known are judged, since other raters need them.
        about: a short description.
    """

    pairs: Path
    split: str | None = None
    before_symmetry: Path | None = None
    ratings: Path | None = None
    recorded: bool = True
    about: str = ""


@dataclass
class Benchmark(PairColumns):
    """Config of a benchmark: which pairs, which raters, and where to write.

    Several sets have their own columns.

    Attributes:
        pairs: pairs file; or several sets by name, each a file or the keys of `Set`.
        out: output folder.
        raters: named entries, see litbench.raters.entries.
        before_symmetry: see `Set`; only for a single set.
        ratings: see `Set`; only for a single set.
        split: see `Set`; only for a single set.
        reference: the rater that all others are compared with; choose it before seeing results.
        on_training_prompts: refuse raters that were trained on prompts of these pairs, or flag
            their rows; with several sets, always flag.
        most_pairs: maximum number of pairs of each set, drawn over prompts; null for all. Limits
            the cost of judges.
        folds: with several sets, an entry of a trainable kind without `path` is trained on the
            other prompts of each set, in so many folds; 0 makes such entries an error.
        select: see `Selection`.
        dry_run: only estimate calls, tokens, dollars and minutes of the judges.
    """

    pairs: Path | dict[str, Any]
    out: Path
    raters: dict[str, Any] = field(default_factory=dict)
    before_symmetry: Path | None = None
    ratings: Path | None = None
    split: str | None = None
    reference: str = "longer"
    on_training_prompts: Literal["refuse", "flag"] = "refuse"
    most_pairs: int | None = None
    folds: int = 0
    select: Selection | None = None
    dry_run: Annotated[bool, Runtime] = False


@dataclass
class OpenedSet:
    """A set with its pairs and raters, ready to judge."""

    name: str
    source: Set
    pairs: EvaluationPairs
    specs: list[RaterSpec]


def rater_entry(model: str, judge: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config entry of a rater that is given by its name alone.

    Args:
        model: a model folder, a reward model on the Hub, or inspect-ai's name of a model that
            judges: one whose first part is a provider.
        judge: options of the judge.
    """
    if not Path(model).exists() and model.partition("/")[0] in providers():
        return {**judge, "kind": "judge", "model": model}
    return model_entry(model)


def list_sets(config: Benchmark) -> dict[str, Set]:
    """Return the sets by name; a single set is named ""."""
    if not isinstance(config.pairs, Mapping):
        return {"": Set(**{key: getattr(config, key) for key in ("pairs", *_OF_ONE_SET)})}
    for key in _OF_ONE_SET:
        if getattr(config, key) not in (None, GUESS, NOT_STATED):
            raise ConfigError(f"{key}: with several sets, give {key} in the entry of a set")
    sets = {}
    for name, given in config.pairs.items():
        if not re.fullmatch(r"[\w-][\w.-]*", name):
            raise ConfigError(
                f"pairs: '{name}' cannot be a folder's name: use letters, digits, -, _ and ."
            )
        entry = given if isinstance(given, Mapping) else {"pairs": given}
        sets[name] = build(Set, entry, f"pairs.{name}")
    return sets


def _raters(config: Benchmark) -> list[RaterSpec]:
    return parse_raters(config.raters, may_train=config.folds > 0)


def open_set(config: Benchmark, name: str, source: Set, notes: list[tuple[str, str]]) -> OpenedSet:
    """Read a set and append notes on omitted pairs.

    Raises:
        DataError: the set cannot be used.
    """
    read = read_pairs(
        source.pairs, source.before_symmetry, source.split, source.ratings, source.columns()
    )
    # Other supersets are judged in full: recorded judges need no texts.
    if read.all is read.headline or not source.recorded:
        pairs = read.all.filter(pa.array(has_texts(read.all)))
        if (lost := read.all.num_rows - pairs.num_rows) > 0:
            notes.append((name, f"{lost:,} pairs left out: no text"))
        if config.most_pairs is not None and pairs.num_rows > config.most_pairs:
            notes.append((name, f"{config.most_pairs:,} of {pairs.num_rows:,} pairs drawn"))
            pairs = subsample(pairs, config.most_pairs)
        read = read.select(pairs["pair_id"])
        if not read.headline.num_rows:
            raise DataError(f"{source.pairs}: no pair has both its texts: leave the set out")
    elif config.most_pairs is not None:
        raise ConfigError(
            "most_pairs: before_symmetry and ratings need all pairs: leave out most_pairs"
        )
    has_recorded = source.ratings is not None and source.recorded
    recorded = recorded_specs(source.ratings) if has_recorded and source.ratings else []
    specs = {spec.name: spec for spec in recorded}
    if config.raters or not specs:
        specs |= {spec.name: spec for spec in _raters(config)}
    prompts = len(set(connected_prompts(read.headline)))
    if prompts < 3 and any(spec.is_trained for spec in specs.values()):
        raise DataError(f"{source.pairs}: fewer than three prompts: too few to train out of fold")
    check_reference(config.reference, list(specs))
    return OpenedSet(name, source, read, list(specs.values()))


def find_sets(config: Benchmark) -> tuple[list[OpenedSet], list[tuple[str, str]], list[str]]:
    """Read every set; missing and broken sets get a note.

    Returns:
        The evaluations, (set name, note) tuples, and the names of broken sets.
    """
    sets = list_sets(config)
    notes = [(name, source.about) for name, source in sets.items() if source.about]
    evaluations: list[OpenedSet] = []
    broken, absent = [], []
    for name, source in sets.items():
        if name and not source.pairs.is_file():
            absent.append((name, f"absent: no file {without_folders(str(source.pairs))}"))
            continue
        try:
            evaluations.append(open_set(config, name, source, notes))
        except DataError as error:
            if not name:
                raise
            broken.append(name)
            # The note is published, so it must not contain local folders.
            notes.append((name, f"not used: {str(error).replace(f'{source.pairs.parent}/', '')}"))
    for name, note in notes:
        print(f"{name}: {note}" if name else note)
    if absent:
        names = ", ".join(name for name, _ in absent)
        print(f"absent: {names} (no file {sets[absent[0][0]].pairs})")
        notes += absent
    if not evaluations:
        raise DataError(
            f"none of the {len(sets)} sets can be used: make them with `litbench data import`, or "
            "name other files"
        )
    return evaluations, notes, broken


def judge_sets(
    config: Benchmark, program: str, opened: list[OpenedSet], parts: Cache
) -> dict[str, Evaluation]:
    """Judge every set and write the evaluations, unless all of them are up to date."""
    jobs: list[Job] = []
    set_of: dict[str, str] = {}
    artifacts = {}
    keys = ("reference", "on_training_prompts", "most_pairs", "folds")
    for one in opened:
        source = one.source
        files = input_files(source.pairs, source.before_symmetry, source.ratings)
        raters = {spec.name: spec.plain() for spec in one.specs}
        artifacts[one.name] = artifact = Artifact(
            config.out / one.name,
            program=program,
            config=vars(source) | {"raters": raters} | {key: getattr(config, key) for key in keys},
            inputs=files,
            models=files_of(one.specs),
        )
        data = [artifact.digests[key] for key in files if key != "ratings"]
        depends_on = [data, source.split, source.columns(), config.most_pairs]
        pairs, work = partial(getattr, one.pairs, "all"), one.pairs.all.num_rows
        for spec in one.specs:
            label = f"{spec.name}@{one.name}" if one.name else spec.name
            set_of[label] = one.name
            if spec.is_trained:
                folds = min(config.folds, len(set(connected_prompts(one.pairs.all))))
                trained = fold_jobs(spec, label, one.pairs, depends_on, folds=folds)
                jobs += trained
                set_of |= {job.label: one.name for job in trained}
            else:
                jobs.append(Job(spec, label, pairs, depends_on, work=work))
    if all(is_finished(artifact) for artifact in artifacts.values()):
        if "" in artifacts:
            return {"": finished_evaluation(artifacts[""])}
        return {name: Evaluation.of(artifact) for name, artifact in artifacts.items()}
    for one in opened:
        # Other raters cost nothing, and may be slow to load.
        judges = [spec for spec in one.specs if spec.kind == "judge"]
        print_estimates(judges, one.pairs.all, config.out, dry_run=False)
    # Group jobs by rater, so that each rater is loaded once.
    order = list(dict.fromkeys(job.spec.name for job in jobs))
    jobs.sort(key=lambda job: order.index(job.spec.name))
    policy = "flag" if opened[0].name else config.on_training_prompts
    results: dict[str, list[Result]] = defaultdict(list)
    for result in evaluate(jobs, parts, on_training_prompts=policy, may_stop=True):
        results[set_of[result.job.label]].append(result)
    evaluations = {}
    for one in opened:
        artifact, own = artifacts[one.name], results[one.name]
        ratings = one.source.ratings
        # Of several sets, a summary is shown.
        evaluations[one.name] = finish_evaluation(
            artifact, own, one.pairs, config.reference, ratings, is_shown=not one.name
        )
    return evaluations


def summarise(
    config: Benchmark,
    program: str,
    opened: list[OpenedSet],
    evaluations: Mapping[str, Evaluation],
    notes: list[tuple[str, str]],
) -> Artifact:
    """Write and print the table of several sets; the caller writes the manifest."""
    artifact = Artifact(
        config.out,
        program=program,
        config=config,
        inputs={f"pairs.{one.name}": one.source.pairs for one in opened},
    )
    rows: list[dict[str, Any]] = []
    for one in opened:
        labels = sorted(set(one.pairs.headline["label_source"].to_pylist()))
        facts = {"set": one.name, "labels": " and ".join(labels)}
        rows += [facts | row for row in flat_rows(leaderboard_csv(evaluations[one.name].rows))]
    prompts = {one.name: set(prompt_keys(one.pairs.all)) for one in opened}
    means = over_sets(rows, list(config.raters), config.reference, linked_sets(prompts))
    content = {"rows": rows, "over_sets": means, "notes": notes}
    artifact.write("sets.json", lambda path: write_json(content, path))
    artifact.write("sets.csv", lambda path: write_csv(rows, path))
    artifact.write_text("sets.md", sets_page(rows, means, notes, "md"))
    artifact.counts = {"sets": [one.name for one in opened], "raters": list(config.raters)}
    print(f"\n{sets_page(rows, means, notes, 'text')}", end="")
    print(f"each set: {config.out}/SET/leaderboard.txt, and report.html by litbench eval report")
    return artifact


def select_templates(
    config: Benchmark, select: Selection, opened: Sequence[OpenedSet], program: str
) -> None:
    """Replace judges without a template by the best of a benchmark of judge@template entries.

    The benchmark judges the validation pairs and writes into `out/selection`; a dry run estimates
    its cost and takes the first template.
    """
    folder = config.out / "selection"
    candidates = list_candidates(select, _raters(config))
    entries = {one.name: one.plain() for of in candidates.values() for one in of}
    validation = Benchmark(
        select.pairs,
        folder,
        entries,
        split=select.split,
        reference=next(iter(entries)),
        most_pairs=select.sample,
    )
    judged = {key for one in opened for key in prompt_keys(one.pairs.all)}
    of_all = open_set(replace(validation, most_pairs=None), "", Set(select.pairs, select.split), [])
    check_validation(select, of_all.pairs.headline, judged)
    drawn = replace(of_all, pairs=EvaluationPairs(subsample(of_all.pairs.headline, select.sample)))
    print("select:")
    chosen = {judge: of_judge[0] for judge, of_judge in candidates.items()}
    if config.dry_run:
        print_estimates(drawn.specs, drawn.pairs.all, folder)
    else:
        parts = Cache(folder / "parts")
        (evaluation,) = judge_sets(validation, program, [drawn], parts).values()
        if parts.used:
            parts.discard_unused()
        chosen = best_templates(evaluation, candidates)
    for one in opened:
        one.specs = [
            replace(chosen[spec.name], name=spec.name) if spec.name in chosen else spec
            for spec in one.specs
        ]


def run_benchmark(config: Benchmark, program: str) -> dict[str, Evaluation]:
    """Read the sets, select templates, judge, and write the results.

    Args:
        config: see `Benchmark`.
        program: the name or path of the program, for the manifests.

    Returns:
        The evaluation of each set, by name ("" for a single set); empty after a dry run.
    """
    if config.raters or config.ratings is None:
        _raters(config)
    elif config.reference == Benchmark.reference:
        names = [spec.name for spec in recorded_specs(config.ratings)]
        if names and config.reference not in names:
            print(f"reference: {names[0]}, the first recorded judge; --reference names another")
            config = replace(config, reference=names[0])
    if config.most_pairs is not None and config.most_pairs < 2:
        raise ConfigError(f"most_pairs is {config.most_pairs}: give 2 or more, or null")
    opened, notes, broken = find_sets(config)
    if config.select is not None:
        select_templates(config, config.select, opened, program)
    evaluations = {}
    if config.dry_run:
        for one in opened:
            if one.name:
                print(f"\n{one.name}:")
            print_estimates(one.specs, one.pairs.all, config.out)
    else:
        parts = Cache(config.out / "parts")
        evaluations = judge_sets(config, program, opened, parts)
        summary = summarise(config, program, opened, evaluations, notes) if opened[0].name else None
        if not broken:
            # Keep the stored verdicts of a broken set until it is fixed.
            if parts.used:
                parts.discard_unused()
            if summary is not None:
                summary.finish()
    if broken:
        raise DataError(
            f"not used: {', '.join(broken)}, for the reasons above: fix or remove these sets and "
            "run the same command again; it judges only what is missing"
        )
    return evaluations
