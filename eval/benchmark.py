"""Benchmark any raters on any pairs: verdicts and a leaderboard, for one set of pairs or several.

    python eval/benchmark.py --config configs/eval/sample_benchmark.yaml

Reads `pairs` and the raters of the config; with `ratings`, the recorded judges and the annotators
of data_prep/import_ratings.py too. Writes `verdicts.parquet`, `leaderboard.json` (also `.csv` and
`.txt`), with `ratings` also `annotators.json`, and `manifest.json` into `out`.

`pairs` may name several sets. Each is then an evaluation of its own in `out/NAME`, and `sets.json`
(also `.csv` and `.md`) in `out` has a row for each set and rater, and means over the same sets for
every rater. A set whose file is absent is listed; a set that cannot be used is reported at the end,
with exit status 2; neither stops the others.

With `select`, the template of each judge is first chosen on validation pairs (paper, A.3), which is
written into `out/selection`.

Each rater's verdicts on a set are kept as soon as they are there: a killed run continues with the
next, and a rater or a set added later is the only one to run. Judges keep each answer in
`out/answers`, and logs for `inspect view` in `out/logs`. `--dry_run true` estimates the cost of the
judges without sending requests.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from litbench.artifact import Artifact, source_digest, write_atomically, write_json
from litbench.config import build, run_program
from litbench.errors import ConfigError, DataError
from litbench.evaluation import (
    EvaluationPairs,
    Job,
    Result,
    VerdictParts,
    evaluate,
    finish_evaluation,
    input_files,
    print_errors,
    print_estimates,
    print_leaderboard,
    read_pairs,
)
from litbench.judges.recorded import recorded_specs
from litbench.markdown import without_folders
from litbench.metrics.agreement import has_texts
from litbench.metrics.csv_table import write_csv
from litbench.metrics.leaderboard import check_reference
from litbench.metrics.sets import over_sets, set_rows, sets_markdown
from litbench.raters import check_options, files_of, parse_raters
from litbench.records import prompt_keys
from litbench.selection import (
    Selection,
    choose_templates,
    list_candidates,
    read_validation,
    subsample,
)
from litbench.tables import write_table


@dataclass
class Set:
    """A set of pairs.

    Attributes:
        pairs: pairs file.
        split: only pairs of this split; null for all.
        before_symmetry: pairs before the last filter; judged too and reported beside.
        ratings: `ratings.parquet` of data_prep/import_ratings.py, beside the pairs: its recorded
            judges become raters, and all raters judge all pairs within a prompt, to be compared
            with one annotator.
        about: what it is, in a few words.
    """

    pairs: Path
    split: str | None = None
    before_symmetry: Path | None = None
    ratings: Path | None = None
    about: str = ""


@dataclass
class Config:
    """What to judge and by whom.

    Attributes:
        pairs: pairs file; or several sets by name, each a file or the keys of `Set`.
        out: folder to write.
        raters: named entries, see litbench.raters.
        before_symmetry: see `Set`; for one set.
        ratings: see `Set`; for one set.
        split: only pairs of this split; null for all; for one set.
        reference: the rater all others are compared with; choose it before looking.
        on_training_prompts: refuse a rater that was trained on a prompt of these pairs, or flag
            its row; of several sets, flag always.
        most_pairs: of each set, drawn over prompts; null for all. Judges cost money.
        select: see `Selection`.
        errors_again: run raters again that have errors among their verdicts, such as a judge that
            got no answer; stored answers are not asked for again.
        dry_run: only estimate requests, tokens, dollars and minutes of the judges.
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
    select: Selection | None = None
    errors_again: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class Evaluation:
    """One set's evaluation: what its manifest has as config.

    Attributes:
        out: folder to write.
        pairs: the set's pairs file, or a file in `out` where some pairs are left out.
        raters: entries, of recorded judges too.
    """

    out: Path
    pairs: Path
    split: str | None
    before_symmetry: Path | None
    ratings: Path | None
    raters: dict[str, Any]
    reference: str
    on_training_prompts: Literal["refuse", "flag"]

    def read(self) -> EvaluationPairs:
        """Its pairs."""
        return read_pairs(self.pairs, self.before_symmetry, self.split, self.ratings)

    def artifact(self) -> Artifact:
        """Its folder."""
        inputs = input_files(self.pairs, self.before_symmetry, self.ratings)
        models = files_of(parse_raters(self.raters))
        return Artifact(self.out, program=__file__, config=self, inputs=inputs, models=models)


def list_sets(config: Config) -> dict[str, Set]:
    """The sets by name; "" for a single one."""
    if not isinstance(config.pairs, Mapping):
        return {"": Set(config.pairs, config.split, config.before_symmetry, config.ratings)}
    for key in ("split", "before_symmetry", "ratings"):
        if getattr(config, key) is not None:
            raise ConfigError(f"{key}: with several sets, give it in the entry of a set")
    sets = {}
    for name, given in config.pairs.items():
        if not re.fullmatch(r"[\w-][\w.-]*", name):
            raise ConfigError(f"pairs: '{name}' names a folder: use letters, digits, -, _ and .")
        entry = given if isinstance(given, Mapping) else {"pairs": given}
        sets[name] = build(Set, entry, f"pairs.{name}")
    return sets


def open_set(config: Config, name: str, one: Set, notes: list[tuple[str, str]]) -> Evaluation:
    """Check a set; where pairs are left out, note it and write the others.

    Raises:
        DataError: its pairs cannot be used.
    """
    read = read_pairs(one.pairs, one.before_symmetry, one.split, one.ratings)
    pairs, folder = read.headline, config.out / name
    path, split = one.pairs, one.split
    if read.unlabelled:
        notes.append((name, f"{read.unlabelled:,} pairs left out: equal mean ratings"))
    # Recorded judges need no texts, and wider sets of pairs would have to be cut likewise.
    if one.before_symmetry is None and one.ratings is None:
        known = pairs.filter(pa.array(has_texts(pairs)))
        if known.num_rows < pairs.num_rows:
            notes.append((name, f"{pairs.num_rows - known.num_rows:,} pairs left out: no text"))
        if not known.num_rows:
            raise DataError(f"{one.pairs}: no pair has both its texts: leave the set out")
        drawn = known if config.most_pairs is None else subsample(known, config.most_pairs)
        if drawn.num_rows < known.num_rows:
            notes.append((name, f"{drawn.num_rows:,} of {known.num_rows:,} pairs drawn"))
        if drawn.num_rows < pairs.num_rows:
            path, split = folder / "pairs.parquet", None
            write_atomically(path, lambda part: write_table(drawn, part))
    elif config.most_pairs is not None:
        raise ConfigError("most_pairs: not with before_symmetry or ratings, which need all pairs")
    recorded = [] if one.ratings is None else recorded_specs(one.ratings)
    raters = {spec.name: {"kind": spec.kind, **spec.options} for spec in recorded} | config.raters
    check_reference(config.reference, list(raters))
    return Evaluation(
        folder,
        path,
        split,
        one.before_symmetry,
        one.ratings,
        raters,
        config.reference,
        "flag" if name else config.on_training_prompts,
    )


def find_sets(
    config: Config, sets: Mapping[str, Set]
) -> tuple[dict[str, Evaluation], list[tuple[str, str]], list[str]]:
    """Check every set; one that is absent or broken gets a note.

    Returns:
        The evaluations, notes on sets by their names, and the names of broken sets.
    """
    evaluations: dict[str, Evaluation] = {}
    notes = [(name, one.about) for name, one in sets.items() if one.about]
    broken = []
    for name, one in sets.items():
        if name and not one.pairs.is_file():
            notes.append((name, f"absent: no file {without_folders(str(one.pairs))}"))
            continue
        try:
            evaluations[name] = open_set(config, name, one, notes)
        except DataError as error:
            if not name:
                raise
            broken.append(name)
            # The note is published, so it does not name the folders of who made it.
            notes.append((name, f"not used: {str(error).replace(f'{one.pairs.parent}/', '')}"))
    for name, note in notes:
        print(f"{name}: {note}" if name else note)
    if not evaluations:
        raise DataError(
            f"none of the {len(sets)} sets can be used: make them with the programs of data_prep "
            "(each config under configs/data says how), or name other files under pairs"
        )
    return evaluations, notes, broken


def with_templates(
    config: Config, select: Selection, evaluations: dict[str, Evaluation]
) -> dict[str, Evaluation]:
    """The same evaluations with a template for every judge; a dry run takes the first one."""
    candidates = list_candidates(select, parse_raters(config.raters))
    judged = {key for one in evaluations.values() for key in prompt_keys(one.read().all)}
    validation, folder = read_validation(select, judged), config.out / "selection"
    if config.dry_run:
        specs = [spec for of_judge in candidates.values() for spec in of_judge]
        print("select:")
        print_estimates(specs, validation, folder)
        chosen = {judge: of_judge[0] for judge, of_judge in candidates.items()}
    else:
        chosen = choose_templates(select, candidates, validation, folder, __file__)
    ready = {judge: {"kind": spec.kind, **spec.options} for judge, spec in chosen.items()}
    return {name: replace(one, raters={**one.raters, **ready}) for name, one in evaluations.items()}


def judge_sets(
    config: Config, evaluations: Mapping[str, Evaluation], outdated: Mapping[str, Artifact]
) -> VerdictParts:
    """Judge every set, and write the evaluations that are outdated."""
    specs = {name: parse_raters(one.raters) for name, one in evaluations.items()}
    data, sizes = {}, {}
    for name, one in evaluations.items():
        sizes[name] = one.read().all.num_rows
        files = input_files(one.pairs, one.before_symmetry, one.ratings)
        data[name] = [source_digest(path) for key, path in files.items() if key != "ratings"]
    # Jobs of one rater go one after the other, so that it is loaded once.
    raters = dict.fromkeys(spec.name for of_set in specs.values() for spec in of_set)
    jobs = [
        (
            name,
            Job(
                spec,
                f"{spec.name}@{name}" if name else spec.name,
                lambda one=one: one.read().all,
                [data[name], one.split],
                work=sizes[name],
            ),
        )
        for rater in raters
        for name, one in evaluations.items()
        for spec in specs[name]
        if spec.name == rater
    ]
    parts = VerdictParts(config.out / "parts")
    found = evaluate(
        [job for _, job in jobs],
        parts,
        on_training_prompts="flag" if "" not in evaluations else config.on_training_prompts,
        errors_again=config.errors_again,
    )
    results: dict[str, list[Result]] = {name: [] for name in evaluations}
    for (name, _), result in zip(jobs, found, strict=True):
        results[name].append(result)
    for name, artifact in outdated.items():
        one = evaluations[name]
        if name:
            print(f"\n{name}:")
        finish_evaluation(artifact, results[name], one.read(), config.reference, one.ratings)
        for result in results[name]:
            if result.job.spec.kind != "recorded":
                print_errors(result.job.spec.name, result.verdicts)
    return parts


def summarise(
    artifact: Artifact,
    evaluations: Mapping[str, Evaluation],
    raters: Sequence[str],
    notes: Sequence[tuple[str, str]],
) -> None:
    """Write the table of several sets, and print it."""
    rows = []
    for name, one in evaluations.items():
        labels = sorted(set(one.read().headline["label_source"].to_pylist()))
        text = (one.out / "leaderboard.json").read_text(encoding="utf-8")
        rows += set_rows(name, labels, json.loads(text))
    means = over_sets(rows, raters)
    page = sets_markdown(rows, means, notes)
    content = {"rows": rows, "over_sets": means, "notes": notes}
    artifact.write("sets.json", lambda path: write_json(content, path))
    artifact.write("sets.csv", lambda path: write_csv(rows, path))
    artifact.write("sets.md", lambda path: path.write_text(page, encoding="utf-8"))
    artifact.counts = {"sets": list(evaluations), "raters": list(raters)}
    print(f"\n{page}", end="")


def write_evaluations(
    config: Config,
    evaluations: Mapping[str, Evaluation],
    notes: Sequence[tuple[str, str]],
    *,
    is_complete: bool,
) -> None:
    """Judge what is outdated, and write the table of several sets."""
    artifacts = {name: one.artifact() for name, one in evaluations.items()}
    outdated = {
        name: artifact
        for name, artifact in artifacts.items()
        if config.errors_again or not artifact.is_current()
    }
    if outdated:
        parts = judge_sets(config, evaluations, outdated)
        if is_complete:
            parts.discard_others()
    elif "" in evaluations:
        print_leaderboard(config.out)
    if "" not in evaluations:
        artifact = Artifact(
            config.out,
            program=__file__,
            config=config,
            inputs={f"pairs.{name}": one.pairs for name, one in evaluations.items()},
            runtime_keys=("errors_again", "dry_run"),
        )
        summarise(artifact, evaluations, list(config.raters), notes)
        if is_complete:
            artifact.finish()


def main(config: Config) -> None:
    """Find the sets, choose templates, judge, write the figures."""
    if config.raters or config.ratings is None:
        for spec in parse_raters(config.raters):
            check_options(spec, "raters")
    if config.most_pairs is not None and config.most_pairs < 2:
        raise ConfigError(f"most_pairs is {config.most_pairs}: give at least 2, or null")
    sets = list_sets(config)
    evaluations, notes, broken = find_sets(config, sets)
    if config.select is not None:
        evaluations = with_templates(config, config.select, evaluations)
    if config.dry_run:
        for name, one in evaluations.items():
            print(f"\n{name}:" if name else "")
            print_estimates(parse_raters(one.raters), one.read().all, config.out)
    else:
        write_evaluations(config, evaluations, notes, is_complete=not broken)
    if broken:
        raise DataError(
            f"not used: {', '.join(broken)}, for the reasons above: mend or leave out, and run the "
            "same command again, which judges these alone"
        )


if __name__ == "__main__":
    run_program(main, Config, __doc__)
