"""A benchmark: raters judge one or several sets of pairs; verdicts and a leaderboard.

    run_benchmark(Benchmark(Path("pairs.parquet"), Path("out"), {"longer": {"kind": "longer"}}), "")

eval/benchmark.py and `litbench judge` run it; that program's docstring lists the files it writes.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from litbench.data.columns import GUESS, PairColumns
from litbench.data.records import NOT_STATED, connected_prompts, prompt_keys
from litbench.data.sources.evaluation_pairs import (
    EvaluationPairs,
    draw,
    input_files,
    read_pairs,
    subsample,
)
from litbench.evaluation.folds import fold_jobs
from litbench.evaluation.loop import (
    Job,
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
from litbench.evaluation.until_decided import (
    ASKING,
    PairPlan,
    UntilDecided,
    UntilKeys,
    ended_notes,
    make_plan,
    print_plan,
    until_keys,
)
from litbench.judges.client import providers
from litbench.judges.recorded import recorded_specs
from litbench.metrics.leaderboard import check_reference, leaderboard_csv
from litbench.metrics.sets import linked_sets, over_sets
from litbench.models import model_entry
from litbench.raters.entries import RaterSpec, files_of, parse_raters
from litbench.raters.interface import Rater
from litbench.runs.config import Runtime, build
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.markdown import without_folders
from litbench.runs.outputs import Artifact, Cache, write_json

# What the results of every set depend on.
_RULES = ("on_training_prompts", "max_pairs", "folds")
# With several sets, these keys are given per set.
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
class Benchmark(PairColumns, UntilKeys):
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
        max_pairs: maximum number of pairs of each set, drawn over prompts; null for all. Limits
            the cost of judges.
        folds: with several sets, an entry of a trainable kind without `path` is trained on the
            other prompts of each set, in this number of folds; 0 makes such entries an error.
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
    max_pairs: int | None = None
    folds: int = 0
    select: Selection | None = None
    dry_run: Annotated[bool, Runtime] = False


@dataclass
class OpenedSet:
    """A set, ready to judge; a single one is named "".

    `notes` say what was left out; `plan` is that of judging until decided.
    """

    name: str
    source: Set
    pairs: EvaluationPairs
    specs: list[RaterSpec]
    reference: str
    notes: list[str]
    plan: PairPlan | None = None


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


def list_raters(config: Benchmark) -> list[RaterSpec]:
    """Return the raters; none if only the recorded judges of a set judge it."""
    if not config.raters and config.ratings is not None:
        return []
    return parse_raters(config.raters, may_train=config.folds > 0)


def list_sets(config: Benchmark) -> dict[str, Set]:
    """Return the sets by name; a single set is named ""."""
    if not isinstance(config.pairs, Mapping):
        return {"": Set(**{key: getattr(config, key) for key in ("pairs", *_OF_ONE_SET)})}
    for key in _OF_ONE_SET:
        if getattr(config, key) not in (None, GUESS, NOT_STATED):
            raise ConfigError(f"{key}: with several sets, give {key} in the entry of a set")
    sets = {}
    for name, value in config.pairs.items():
        if not re.fullmatch(r"[\w-][\w.-]*", name):
            raise ConfigError(
                f"pairs: '{name}' cannot be a folder's name: use letters, digits, -, _ and ."
            )
        entry = value if isinstance(value, Mapping) else {"pairs": value}
        sets[name] = build(Set, entry, f"pairs.{name}")
    return sets


def open_set(
    name: str, source: Set, specs: Sequence[RaterSpec], reference: str, max_pairs: int | None
) -> OpenedSet:
    """Read the pairs and the recorded judges of a set.

    Without `specs` these judge alone, and the first of them is the default reference.

    Raises:
        DataError: the set cannot be used.
    """
    pairs = read_pairs(
        source.pairs, source.before_symmetry, source.split, source.ratings, source.columns()
    )
    notes: list[str] = []
    # Other supersets are judged in full: recorded judges need no texts.
    if pairs.all is pairs.headline or not source.recorded:
        pairs, notes = draw(pairs, max_pairs)
        if not pairs.headline.num_rows:
            raise DataError(f"{source.pairs}: no pair has both its texts: leave the set out")
    elif max_pairs is not None:
        raise ConfigError(
            "max_pairs: before_symmetry and ratings need all pairs: leave out max_pairs"
        )
    is_recorded = source.ratings is not None and source.recorded
    recorded = recorded_specs(source.ratings) if is_recorded and source.ratings else []
    by_name = {spec.name: spec for spec in (*recorded, *specs)}
    if recorded and not specs and reference == Benchmark.reference and reference not in by_name:
        reference = recorded[0].name
        print(f"reference: {reference}, the first recorded judge; --reference names another")
    if not by_name:
        raise DataError(f"{source.ratings} has no recorded judge: name raters")
    prompts = len(set(connected_prompts(pairs.headline)))
    if prompts < 3 and any(spec.is_trained for spec in by_name.values()):
        raise DataError(f"{source.pairs}: fewer than three prompts: too few to train out of fold")
    check_reference(reference, list(by_name))
    return OpenedSet(name, source, pairs, list(by_name.values()), reference, notes)


def open_sets(
    sets: Mapping[str, Set], specs: Sequence[RaterSpec], reference: str, max_pairs: int | None
) -> tuple[list[OpenedSet], list[tuple[str, str]], list[str]]:
    """Open every set; missing and broken sets get a note.

    Returns:
        The sets, (set name, note) tuples, and the names of broken sets.
    """
    notes = [(name, source.about) for name, source in sets.items() if source.about]
    opened: list[OpenedSet] = []
    broken, absent = [], []
    for name, source in sets.items():
        if name and not source.pairs.is_file():
            absent.append((name, f"absent: no file {without_folders(str(source.pairs))}"))
            continue
        try:
            opened.append(open_set(name, source, specs, reference, max_pairs))
            notes += [(name, note) for note in opened[-1].notes]
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
    if not opened:
        raise DataError(
            f"none of the {len(sets)} sets can be used: make them with `litbench data import`, or "
            "name other files"
        )
    return opened, notes, broken


def list_jobs(opened: OpenedSet, data: Any, folds: int) -> list[Job]:
    """The jobs of a set; `data` are plain values that change whenever its pairs change."""
    jobs: list[Job] = []
    pairs = opened.pairs.all
    for spec in opened.specs:
        label = f"{spec.name}@{opened.name}" if opened.name else spec.name
        if spec.is_trained:
            folds = min(folds, len(set(connected_prompts(pairs))))
            jobs += fold_jobs(spec, label, opened.pairs, data, folds=folds)
        else:
            jobs.append(Job(spec, label, lambda: pairs, data, work=pairs.num_rows))
    return jobs


def judge_sets(
    opened: Sequence[OpenedSet], out: Path, rules: Mapping[str, Any], parts: Cache, program: str
) -> dict[str, Evaluation]:
    """Judge every set and write the evaluations, unless all of them are up to date.

    `rules` has `on_training_prompts`, `max_pairs` and `folds` of `Benchmark`, and a plan's keys.
    """
    artifacts, jobs, data_of = {}, {}, {}
    for judged in opened:
        source = judged.source
        files = input_files(source.pairs, source.before_symmetry, source.ratings)
        raters = {spec.name: spec.plain() for spec in judged.specs}
        artifact = Artifact(
            out / judged.name,
            program=program,
            config={**vars(source), **rules, "raters": raters, "reference": judged.reference},
            inputs=files,
            models=files_of(judged.specs),
        )
        digests = [artifact.digests[key] for key in files if key != "ratings"]
        data = [digests, source.split, source.columns(), rules["max_pairs"]]
        artifacts[judged.name], data_of[judged.name] = artifact, data
        jobs[judged.name] = list_jobs(judged, data, rules["folds"])
        if judged.plan is not None:
            # The raters that ask a model follow, block by block.
            jobs[judged.name] = [job for job in jobs[judged.name] if job.spec.kind not in ASKING]
    if all(map(is_finished, artifacts.values())):
        if "" in artifacts:
            return {"": finished_evaluation(artifacts[""])}
        return {name: Evaluation.of(artifact) for name, artifact in artifacts.items()}
    for judged in opened:
        # Other raters cost nothing, and may be slow to load.
        judges = [spec for spec in judged.specs if spec.kind == "judge"]
        print_estimates(judges, judged.pairs.all, out, dry_run=False)
    # Group jobs by rater, so that each rater is loaded once.
    every = [job for of_set in jobs.values() for job in of_set]
    order = list(dict.fromkeys(job.spec.name for job in every))
    every.sort(key=lambda job: order.index(job.spec.name))
    is_single = not opened[0].name
    policy: Literal["refuse", "flag"] = rules["on_training_prompts"] if is_single else "flag"
    results = {
        result.job.label: result
        for result in evaluate(every, parts, on_training_prompts=policy, may_stop=True)
    }
    # Judges count their calls over all blocks and sets.
    loaded: dict[str, Rater] = {}
    judge = partial(evaluate, parts=parts, on_training_prompts=policy, may_stop=True, raters=loaded)
    evaluations = {}
    for judged in opened:
        of_set, until, limit = [results[job.label] for job in jobs[judged.name]], None, ""
        if judged.plan is not None:
            run = UntilDecided(judged.plan, judged.specs, of_set)
            label = f"@{judged.name}" if judged.name else ""
            of_set += run.run(label, data_of[judged.name], judge)
            until, limit = run.record(), run.limit
        evaluations[judged.name] = finish_evaluation(
            artifacts[judged.name],
            of_set,
            judged.pairs,
            judged.reference,
            judged.source.ratings,
            # Of several sets, a summary is shown.
            is_shown=not judged.name,
            until=until,
            limit=limit,
        )
    return evaluations


def write_summary(
    artifact: Artifact,
    opened: Sequence[OpenedSet],
    evaluations: Mapping[str, Evaluation],
    raters: Sequence[str],
    notes: Sequence[tuple[str, str]],
) -> None:
    """Write and print the table of several sets; the caller writes the manifest."""
    rows: list[dict[str, Any]] = []
    for judged in opened:
        labels = sorted(set(judged.pairs.headline["label_source"].to_pylist()))
        facts = {"set": judged.name, "labels": " and ".join(labels)}
        rows += [facts | row for row in flat_rows(leaderboard_csv(evaluations[judged.name].rows))]
    prompts = {judged.name: set(prompt_keys(judged.pairs.all)) for judged in opened}
    means = over_sets(rows, raters, opened[0].reference, linked_sets(prompts))
    content = {"rows": rows, "over_sets": means, "notes": notes}
    artifact.write("sets.json", lambda path: write_json(content, path))
    artifact.write("sets.csv", lambda path: write_csv(rows, path))
    artifact.write_text("sets.md", sets_page(rows, means, notes, "md"))
    artifact.counts = {"sets": [judged.name for judged in opened], "raters": raters}
    print(f"\n{sets_page(rows, means, notes, 'text')}", end="")
    print(
        f"each set: {artifact.folder}/SET/leaderboard.txt, and report.html by litbench eval report"
    )


def select_templates(
    select: Selection,
    specs: Sequence[RaterSpec],
    judged_prompts: Collection[str],
    folder: Path,
    program: str,
    *,
    dry_run: bool,
) -> dict[str, RaterSpec]:
    """Return the best entry of each judge without a template, by a benchmark of templates.

    The benchmark judges the validation pairs, none of which has a `prompt_key` of `judged_prompts`,
    and writes into `folder`; a dry run estimates its cost and takes the first template.
    """
    candidates = list_candidates(select, specs)
    entries = parse_raters({spec.name: spec.plain() for row in candidates.values() for spec in row})
    validation = open_set("", Set(select.pairs, select.split), entries, entries[0].name, None)
    check_validation(select, validation.pairs.headline, judged_prompts)
    drawn = subsample(validation.pairs.headline, select.sample)
    validation.pairs = EvaluationPairs(drawn)
    print("select:")
    if dry_run:
        print_estimates(entries, drawn, folder)
        return {judge: of_judge[0] for judge, of_judge in candidates.items()}
    rules = {"on_training_prompts": "refuse", "max_pairs": select.sample, "folds": 0}
    parts = Cache(folder / "parts")
    (evaluation,) = judge_sets([validation], folder, rules, parts, program).values()
    if parts.used:
        parts.discard_unused()
    return best_templates(evaluation, candidates)


def run_benchmark(config: Benchmark, program: str) -> dict[str, Evaluation]:
    """Read the sets, select templates, judge, and write the results.

    Args:
        config: see `Benchmark`.
        program: the name or path of the program, for the manifests.

    Returns:
        The evaluation of each set, by name ("" for a single set); empty after a dry run.
    """
    if config.max_pairs is not None and config.max_pairs < 2:
        raise ConfigError(f"max_pairs is {config.max_pairs}: give 2 or more, or null")
    specs, sets, out = list_raters(config), list_sets(config), config.out
    keys, rules = until_keys(config), {key: getattr(config, key) for key in _RULES}
    opened, notes, broken = open_sets(sets, specs, config.reference, config.max_pairs)
    if config.select is not None:
        prompts = {key for judged in opened for key in prompt_keys(judged.pairs.all)}
        selected = select_templates(
            config.select, specs, prompts, out / "selection", program, dry_run=config.dry_run
        )
        for judged in opened:
            judged.specs = [
                replace(selected[spec.name], name=spec.name) if spec.name in selected else spec
                for spec in judged.specs
            ]
    if keys.until is not None:
        rules |= vars(keys)
        for judged in opened:
            judged.plan = make_plan(keys, judged.reference, judged.specs, judged.pairs)
    evaluations = {}
    if config.dry_run:
        for judged in opened:
            if judged.name:
                print(f"\n{judged.name}:")
            print_estimates(judged.specs, judged.pairs.all, out)
            if judged.plan is not None:
                print_plan(judged.plan, judged.specs, out, out / judged.name)
    else:
        is_single = "" in sets
        parts = Cache(out / "parts")
        evaluations = judge_sets(opened, out, rules, parts, program)
        if not is_single:
            notes += [
                (name, f"judged until decided: {ended_notes(evaluation.until_decided)}")
                for name, evaluation in evaluations.items()
                if evaluation.until_decided is not None
            ]
            inputs = {f"pairs.{judged.name}": judged.source.pairs for judged in opened}
            summary = Artifact(out, program=program, config=config, inputs=inputs)
            write_summary(summary, opened, evaluations, [*config.raters], notes)
        if not broken:
            # Keep the stored verdicts of a broken set until it is fixed.
            if parts.used:
                parts.discard_unused()
            if not is_single:
                summary.finish()
    if broken:
        raise DataError(
            f"not used: {', '.join(broken)}, for the reasons above: fix or remove these sets and "
            "run the same command again; it judges only what is missing"
        )
    return evaluations
