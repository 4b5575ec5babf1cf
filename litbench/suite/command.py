"""The suite: any rater on every imported set of human judgements.

    litbench suite --model openai/gpt-4.1-mini --dry_run
    litbench suite --model runs/mine/model --out runs/suite

It is a benchmark over the sets of the registry (`litbench.data.sources.registry`), beside
baselines, and writes a passport of each rater.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import yaml

from litbench.data.records import prompt_keys
from litbench.data.sources.evaluation_pairs import EvaluationPairs, read_audit
from litbench.data.sources.registry import Dataset, find_dataset, list_sets, read_registry
from litbench.data.text import digest
from litbench.evaluation.benchmark import Benchmark, rater_entry, run_benchmark
from litbench.evaluation.loop import check_judged, compare_annotators
from litbench.evaluation.results import Evaluation, find_input
from litbench.evaluation.stopping import common_pairs
from litbench.evaluation.until_decided import UntilKeys, until_keys
from litbench.judges.client import JudgeKeys
from litbench.judges.recorded import recorded_specs
from litbench.metrics.annotators import AnnotatorAgreement
from litbench.metrics.leaderboard import LeaderboardRow, plain
from litbench.metrics.sets import linked_sets, over_sets
from litbench.models.card import model_card
from litbench.runs.config import Positional, Runtime, build
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import (
    file_name,
    fingerprint,
    read_manifest,
    write_atomically,
    write_json,
)
from litbench.suite.card import BASELINE_KINDS, cards_of, pairs_of
from litbench.suite.page import SiteEntry, write_site
from litbench.suite.passport import (
    Drift,
    JudgeCard,
    OverSets,
    Passport,
    PassportInterval,
    PeopleFigures,
    SetFigures,
    Stop,
    appearance,
    eval_results,
    every_eval_ever,
    figures_text,
    read_passport,
    set_rows_of,
    write_passport,
)
from litbench.suite.self_preference import read_families

REFERENCE = "longer"
# Raters that do not read what a story says.
BLIND = ("longer", "shorter", "notes")
# Beside every rater; the last two are trained on the other prompts of each set.
BASELINES = {name: {"kind": name} for name in BASELINE_KINDS}
_FOLDS = 5
_Names = list[str]


@dataclass(kw_only=True)
class Suite(JudgeKeys, UntilKeys):
    """Measure raters on every imported set of human judgements.

        litbench suite --list
        litbench suite --model openai/gpt-4.1-mini --dry_run
        litbench suite --model OWNER/REWARD_MODEL --out runs/suite

    `litbench data import NAME` makes the sets. The baselines are the longer story, the shorter
    story, the story with notes to readers, features and a bag of words trained on the other prompts
    of each set, and, with several annotators, one of them against the others. Writes the
    folder of a benchmark of several sets (eval/benchmark.py), and the passport of each rater into
    `passports` (docs/suite.md), with what `litbench audit --out DATA/SET/audit` found, if it was
    run. Run a killed command again to resume it.

    Attributes:
        model: inspect-ai's name of a language model, a model folder, or a reward model's name on
            the Hub; repeatable.
        raters: further raters, named entries as in litbench.raters.entries.
        sets: only these sets; repeatable.
        data: folder of the sets, one folder each.
        registry: YAML file with further entries.
        out: output folder.
        max_pairs: maximum number of pairs of each set, drawn over prompts by a hash.
        recorded: instead of raters, the published answers of judges that come with some sets.
        dry_run: only estimate calls, tokens, dollars and minutes; needs no API key.
        list: only list the sets.
    """

    model: _Names = field(default_factory=_Names)
    raters: dict[str, Any] = field(default_factory=dict)
    sets: _Names = field(default_factory=_Names)
    data: Path = Path("runs")
    registry: Path | None = None
    out: Path = Path("runs/suite")
    max_pairs: int | None = None
    recorded: bool = False
    dry_run: Annotated[bool, Runtime] = False
    list: Annotated[bool, Runtime] = False


def raters_of(config: Suite) -> dict[str, Any]:
    """Return the entries of the raters, without the baselines."""
    raters = dict(config.raters)
    for model in config.model:
        raters[model] = rater_entry(model, config.judge_entry())
    if taken := sorted(set(raters) & set(BASELINES)):
        raise ConfigError(f"rater '{taken[0]}' is a baseline of the suite: choose another name")
    return raters


def sets_of(config: Suite) -> dict[str, Dataset]:
    """Return the sets to evaluate on, in the order of the registry."""
    sets = read_registry(config.registry)
    if config.sets:
        return {name: find_dataset(sets, name) for name in config.sets}
    return {name: dataset for name, dataset in sets.items() if dataset.suite}


def benchmark_of(config: Suite, raters: Mapping[str, Any]) -> Benchmark:
    """Return the benchmark of raters, beside the baselines, on the sets."""
    if config.against is not None:
        raise ConfigError(f"against: the suite compares with `{REFERENCE}`: leave against out")
    return Benchmark(
        pairs={
            name: _set_entry(config, name, dataset) for name, dataset in sets_of(config).items()
        },
        out=config.out,
        raters={**BASELINES, **raters},
        reference=REFERENCE,
        max_pairs=config.max_pairs,
        folds=_FOLDS,
        dry_run=config.dry_run,
        **vars(until_keys(config)),
    )


def suite(config: Suite) -> None:
    """Evaluate the raters on the sets, and write their passports."""
    datasets = sets_of(config)
    if config.list:
        print(list_sets(datasets))
        return
    evaluations: Mapping[str, Evaluation] = {}
    if config.recorded:
        _evaluate_recorded(config, datasets)
    else:
        # Without a rater, the baselines alone.
        evaluations = run_benchmark(benchmark_of(config, raters_of(config)), "litbench suite")
    if not config.dry_run:
        passports = make_passports(config.out, datasets)
        for passport in passports:
            path = config.out / "passports" / f"{file_name(passport.rater)}.json"
            if path.is_file():
                passport.drift = _drift_of(read_passport(path), passport)
            write_passport(passport, path)
            if (record := Path(passport.rater) / "run.json").is_file():
                # Not written into the model's folder, whose digest is in the passport.
                run = json.loads(record.read_text(encoding="utf-8"))
                card = model_card(run, figures_text(passport.sets), passport.date)
                write = partial(Path.write_text, data=card, encoding="utf-8")
                write_atomically(path.with_suffix(".md"), write)
        print(f"{config.out / 'passports'}: {len(passports)} passports")
    check_judged(evaluations.values())


def _drift_of(earlier: Passport, passport: Passport) -> Drift | None:
    """What an earlier passport says about drift; None if all sets have been judged again."""
    is_valid = any(
        name in earlier.sets and _recomputed(earlier.sets[name]) == _recomputed(figures)
        for name, figures in passport.sets.items()
    )
    if earlier.drift is not None and not is_valid:
        print(f"{passport.rater}: judged again: `litbench drift` has to check it again")
    return earlier.drift if is_valid else None


def _set_entry(config: Suite, name: str, dataset: Dataset) -> dict[str, Any]:
    folder = config.data / name / "pairs"
    ratings = folder / "ratings.parquet"
    has_people = ratings.is_file() and read_manifest(folder)["counts"]["people"] > 1
    return {
        "pairs": str(folder / "pairs.parquet"),
        "split": dataset.split,
        "ratings": str(ratings) if has_people else None,
        "recorded": False,
        "about": dataset.about,
    }


def _evaluate_recorded(config: Suite, datasets: Mapping[str, Dataset]) -> None:
    """Evaluate the recorded judges of each set on all its pairs, with and without texts."""
    done = []
    for name in datasets:
        ratings = config.data / name / "pairs/ratings.parquet"
        if ratings.is_file() and (specs := recorded_specs(ratings)):
            print(f"\n{name}:")
            pairs = ratings.with_name("pairs.parquet")
            reference = min(spec.name for spec in specs)
            benchmark = Benchmark(pairs, config.out / name, ratings=ratings, reference=reference)
            run_benchmark(benchmark, "litbench suite")
            done.append(name)
    if not done:
        raise DataError(
            f"no set in {config.data} has recorded judges: make one by `litbench data import hanna`"
        )


# Passports -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedSet:
    """A set that was evaluated: its pairs, see `pairs_of`, and the cards of raters."""

    dataset: Dataset
    evaluation: Evaluation
    pairs: EvaluationPairs
    annotators: AnnotatorAgreement | None
    cards: Mapping[str, JudgeCard]


def _read_judged(folder: Path, dataset: Dataset) -> JudgedSet:
    evaluation = Evaluation.find(folder)
    pairs, people = pairs_of(evaluation), None
    if "ratings" in evaluation.manifest["inputs"]:
        ratings = find_input(folder, evaluation.manifest, "ratings")
        common = pairs.select(common_pairs(evaluation.verdicts))
        people = compare_annotators(evaluation.verdicts, ratings, common.all)
    minus = {row.rater: row.comparison.difference for row in people.raters} if people else {}
    names = [row.rater for row in evaluation.rows if row.is_judged and row.rater not in BASELINES]
    cards = cards_of(evaluation, pairs, names, minus, read_families())
    return JudgedSet(dataset, evaluation, pairs, people, cards)


def make_passports(folder: Path, datasets: Mapping[str, Dataset]) -> list[Passport]:
    """Compute the passports of all raters of a run from its verdicts.

    Args:
        folder: output folder of `litbench suite`, with a folder for each set.
        datasets: entries of the registry by set; sets without a folder, and those of which a limit
            stopped a rater, are left out.

    Raises:
        DataError: verdicts or pairs are missing or have changed.
    """
    judged = {
        name: _read_judged(folder / name, dataset)
        for name, dataset in datasets.items()
        if (folder / name / "manifest.json").is_file()
    }
    judged = {name: result for name, result in judged.items() if not result.evaluation.partial}
    groups = linked_sets(
        {name: set(prompt_keys(result.pairs.all)) for name, result in judged.items()}
    )
    raters = dict.fromkeys(
        row.rater for result in judged.values() for row in result.evaluation.rows if row.is_judged
    )
    passports = {rater: _passport(rater, judged, groups) for rater in raters}
    for rater, passport in passports.items():
        if len(passport.sets) > 1 and passport.reference in passports:
            names = list(dict.fromkeys([rater, passport.reference]))
            rows = [row for name in names for row in set_rows_of(passports[name])]
            rows = [row for row in rows if row["set"] in passport.sets]
            combined = over_sets(rows, names, passport.reference, groups)
            for figures in combined["raters"]:
                if figures["rater"] == rater:
                    passport.over_sets = build(
                        OverSets, {"sets": combined["sets"], **figures}, rater
                    )
    return list(passports.values())


def _passport(rater: str, judged: Mapping[str, JudgedSet], groups: Mapping[str, str]) -> Passport:
    """The passport of a rater, without means over sets."""
    rows = {
        name: (result, row)
        for name, result in judged.items()
        for row in result.evaluation.rows
        if row.rater == rater and row.is_judged
    }
    result, row = next(iter(rows.values()))
    config, inputs = result.evaluation.manifest["config"], result.evaluation.manifest["inputs"]
    start = f"raters.{rater}."
    files = {
        key.removeprefix(start): value["sha256"]
        for key, value in inputs.items()
        if key.startswith(start)
    }
    entry = config["raters"][rater]
    records = [
        part
        for result, _ in rows.values()
        for part in result.evaluation.manifest["counts"]["raters"][rater]
    ]
    notes = [record["notes"] for record in records]
    costs = [row.cost_usd for _, row in rows.values() if row.cost_usd is not None]
    return Passport(
        rater=rater,
        kind=row.kind,
        options={key: value for key, value in entry.items() if key not in ("kind", *files)},
        files=files,
        reference=config["reference"],
        max_pairs=config["max_pairs"],
        sets={
            name: _set_figures(result, row, groups[name]) for name, (result, row) in rows.items()
        },
        over_sets=None,
        cost_usd=round(sum(costs), 6) if costs else None,
        input_tokens=_total([row.input_tokens for _, row in rows.values()]),
        output_tokens=_total([row.output_tokens for _, row in rows.values()]),
        versions=result.evaluation.manifest["versions"],
        date=max(result.evaluation.manifest["finished_utc"] for result, _ in rows.values()),
        answered_by=sorted({name for note in notes for name in note.get("answered_by", [])}),
        template=notes[0].get("template"),
        scope=records[0].get("scope"),
    )


def _total(counts: Sequence[int | None]) -> int | None:
    counted = [count for count in counts if count is not None]
    return sum(counted) if len(counted) == len(counts) else None


def _set_figures(result: JudgedSet, row: LeaderboardRow, group: str) -> SetFigures:
    def estimate(value: Any) -> Any:
        return None if value is None else PassportInterval.of(value)

    stop, record = None, result.evaluation.until_decided
    if record is not None:
        ended = record["comparisons"].get(row.rater, {"reason": None, "looks": []})
        if ended["looks"] or row.rater in record["levels"]:
            stop = Stop(row.stopped, ended["reason"], record["plan"], ended["looks"])

    dataset, comparison = result.dataset, row.comparison
    return SetFigures(
        title=dataset.title,
        language=dataset.language,
        kind=dataset.kind,
        judged=dataset.judged,
        licence=dataset.licence,
        origin=dataset.origin,
        revision=dataset.revision,
        group=group,
        pairs_sha256=_pairs_digest(result.pairs.headline),
        agreement=estimate(row.agreement),
        minus_reference=estimate(comparison and comparison.difference),
        p_value=None if comparison is None else plain(comparison.p_value),
        flip_rate=estimate(row.flip_rate),
        position_bias=estimate(row.position_bias),
        coverage=plain(row.coverage),
        chosen_longer=estimate(row.chosen_longer),
        chosen_shorter=estimate(row.chosen_shorter),
        outcomes=row.outcomes,
        trained_on_prompts=row.trained_on,
        beside={
            other.rater: estimate(other.agreement)
            for other in result.evaluation.rows
            if other.rater in BASELINES and other.rater != row.rater
        },
        people=_people_figures(result.annotators, row.rater, estimate),
        audit=_audit_findings(result.evaluation),
        stop=stop,
        card=result.cards.get(row.rater),
    )


def _pairs_digest(pairs: pa.Table) -> str:
    """A digest of the pairs' ids, the chosen stories' ids and all texts."""
    names = ("pair_id", "chosen_story_id", "prompt", "chosen", "rejected")
    rows = zip(*(pairs[name].to_pylist() for name in names), strict=True)
    return fingerprint(sorted((*row[:2], digest(*row[2:])) for row in rows))


def _audit_findings(evaluation: Evaluation) -> list[str] | None:
    """The findings of an audit in the folder `audit` beside that of the pairs."""
    folder = evaluation.pairs_path.parent.parent / "audit"
    if not (folder / "audit.json").is_file():
        return None
    audit = read_audit(folder, evaluation.manifest["inputs"]["pairs"]["sha256"])
    return [finding["sentence"] for finding in audit["findings"]] or [audit["nothing_found"]]


def _people_figures(
    annotators: AnnotatorAgreement | None, rater: str, estimate: Any
) -> PeopleFigures | None:
    if annotators is None:
        return None
    (figures,) = [figures for figures in annotators.raters if figures.rater == rater]
    above = [
        figures.rater
        for figures in annotators.raters
        if figures.rater in BLIND and figures.agreement.mean > annotators.one_annotator.mean
    ]
    return PeopleFigures(
        annotators=annotators.annotators,
        agreement=estimate(figures.agreement),
        one_annotator=estimate(annotators.one_annotator),
        difference=estimate(figures.comparison.difference),
        relative=estimate(figures.relative),
        at_chance=annotators.at_chance,
        blind_above=sorted(above),
        is_dependent=annotators.is_dependent,
    )


# The leaderboard -------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Site:
    """Check passports of the suite, and make a static site of them.

        litbench leaderboard results/*.json --out site

    A passport with missing or impossible values is refused. Besides the pages, each passport is
    written in the forms of Every Eval Ever and of the Hub's `.eval_results`.

    Attributes:
        passports: files; they can be the arguments, without --passports.
        runs: output folders of `litbench suite`, from whose verdicts the figures are recomputed;
            repeatable.
        registry: YAML file with further entries, for `runs`.
        benchmark: the data set on the Hub that registers the suite as a benchmark, OWNER/NAME.
        out: output folder.
    """

    passports: Annotated[list[Path], Positional]
    runs: list[Path] = field(default_factory=list)
    registry: Path | None = None
    benchmark: str | None = None
    out: Path = Path("site")


def leaderboard_site(config: Site) -> None:
    """Check passports, and write the site."""
    read: dict[str, tuple[Path, Passport]] = {}
    for path in config.passports:
        passport = read_passport(path)
        first, other = read.setdefault(appearance(passport.rater), (path, passport))
        if other != passport:
            alike = (
                "different passports of"
                if other.rater == passport.rater
                else "names that look like"
            )
            raise DataError(f"{first} and {path} have {alike} {passport.rater}: leave one out")
    read = {passport.rater: (path, passport) for path, passport in read.values()}
    recomputed = _recompute(config, {name: passport for name, (_, passport) in read.items()})
    entries = [
        SiteEntry(passport, path.read_text(encoding="utf-8"), name in recomputed)
        for name, (path, passport) in sorted(read.items())
    ]
    index, *_ = write_site(entries, config.out)
    for name, (path, passport) in read.items():
        out = config.out / "exports" / file_name(name)
        write_json(every_eval_ever(passport), out / "every_eval_ever.json")
        results = yaml.safe_dump(eval_results(passport, config.benchmark), sort_keys=False)
        write_atomically(
            out / ".eval_results/litbench.yaml",
            partial(Path.write_text, data=results, encoding="utf-8"),
        )
        write_atomically(out / "passport.json", partial(shutil.copyfile, path))
    print(f"{index}: {len(entries)} raters, {len(recomputed)} recomputed from verdicts")


def _recomputed(figures: SetFigures) -> SetFigures:
    """The figures that follow from verdicts: not what an audit found, nor the card around it."""
    return replace(figures, audit=None, card=None)


def _recompute(config: Site, passports: Mapping[str, Passport]) -> set[str]:
    """Return the raters whose passports follow from the verdicts and manifests of `runs`.

    Raises:
        DataError: a passport has other figures than its verdicts, or other facts than the manifest.
    """
    datasets, reproduced = read_registry(config.registry), set()
    for folder in config.runs:
        for passport in make_passports(folder, datasets):
            published = passports.get(passport.rater)
            if published is None:
                continue
            stated, followed = (
                vars(replace(entry, drift=None))
                | {"sets": {name: _recomputed(figures) for name, figures in entry.sets.items()}}
                for entry in (published, passport)
            )
            if (published.template, published.answered_by) == (None, []):
                # A passport from before both were recorded.
                followed |= {"template": None, "answered_by": []}
            wrong = [name for name, value in followed.items() if stated[name] != value]
            sets = [
                name
                for name, figures in followed["sets"].items()
                if stated["sets"].get(name) != figures
            ]
            wrong[:0] = [f"sets.{name}" for name in sets]
            if wrong:
                raise DataError(
                    f"the passport of {passport.rater} does not match the verdicts in "
                    f"{folder} ({', '.join(wrong)}): make it again, or leave it out"
                )
            reproduced.add(passport.rater)
    return reproduced
