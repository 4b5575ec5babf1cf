"""Train and evaluate on your own stories or pairs: one file to a model and a report; see `Fit`."""

import contextlib
import importlib.util
import io
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from litbench.data.columns import GUESS, find_columns, first_rows, holds_pairs
from litbench.data.curation.cleaning import Cleaning
from litbench.data.curation.funnel import Funnel
from litbench.data.curation.pair_making import BEFORE_SYMMETRY, PAIRS_FILE, PairMaking, make_pairs
from litbench.data.curation.rules import Buckets, PairRules
from litbench.data.curation.story_making import StoryMaking, make_stories
from litbench.data.records import NOT_STATED, connected_prompts
from litbench.data.sources.evaluation_pairs import EvaluationPairs, read_pairs
from litbench.data.sources.items import find_answers
from litbench.data.sources.pairs import PairImport, import_pairs
from litbench.evaluation.benchmark import Benchmark, run_benchmark
from litbench.evaluation.crossvalidation import CrossValidation, crossvalidate
from litbench.evaluation.loop import check_judged
from litbench.evaluation.report.data_sections import PairsFolder
from litbench.evaluation.report.leaderboard import headline
from litbench.evaluation.report.page import render_report
from litbench.evaluation.results import Evaluation
from litbench.judges.client import JudgeKeys
from litbench.metrics.intervals import effective_clusters
from litbench.raters.entries import RaterSpec, files_of
from litbench.raters.nonstories import KINDS, NEGATIVES, compare_nonstories, nonstories_text
from litbench.runs.config import Passed, Positional, check_installed
from litbench.runs.errors import ConfigError, DataError, MissingExtraError
from litbench.runs.locations import resolve
from litbench.runs.outputs import Artifact, only_writer, read_manifest

_PROGRAM = "litbench fit"
# What is read of each story, and what there must be.
_COLUMNS = ("prompt", "text", "score", "time", "story_id", "prompt_id")
_REQUIRED = ("prompt", "text", "score")
# Keys of pairs; rules of stories that pairs have too.
_SIDES = ("chosen", "rejected")
_OF_BOTH = ("seed", "label_source", "prompt")
# All steps print into this file of the output folder; the terminal has this many lines.
_LOG, _MAX_LINES = "fit.log", 12
# Columns of ratings that may be whole numbers.
_RATINGS = ("rating", "ratings", "stars", "grade")
_VOTES = re.compile(
    r"(net_|up)?votes?(_count)?|ups|(num_)?likes?(_count)?|karma|hearts|points", re.I
)
# Below this many effective prompts, the report warns as well.
_FEW_PROMPTS = 20
_MIN_PROMPTS = 3
# Raters of the learning curve, and their shares of the training prompts.
_SHARES = {"features, 25 % of prompts": 0.25, "features, 50 %": 0.5, "features, 100 %": 1.0}


@dataclass(kw_only=True)
class FitOptions:
    """Input, columns, folds and models of `litbench fit`.

    Attributes:
        input: stories with scores, or pairs: Parquet, CSV, TSV, JSONL, a folder saved by datasets,
            a data set on the Hub, or `sample`. It can be the first argument, without --input.
        out: output folder.
        prompt: column of the prompt, or an SQL expression (DuckDB) over the columns.
        text: column of the story.
        chosen: column of the preferred story of a pair.
        rejected: column of the other story of a pair.
        score: column of the votes or ratings.
        time: column of the time of posting (Unix seconds or ISO 8601). Null, or no such column:
            pairs are made without the rule `chosen_later`.
        story_id: column with a unique name of each story; null makes one of prompt, text and row.
        prompt_id: column with the prompt's id; null makes one of the prompt's text.
        where: SQL condition on the columns; other rows are left out.
        encoding: encoding of a text file, such as cp1252; null: UTF-8, or detected.
        test_share: share of the prompts that are held out: models are trained on the others and
            judged once on these. Null: cross-validation, and a last training on all pairs. Pairs
            that have the splits train and test keep them.
        judge: also ask this model, by inspect-ai's name such as openai/gpt-4.1-mini; repeatable.
        max_cost_usd: maximum dollars for each judge.
        verbose: print everything that the steps print, which is in fit.log otherwise.
        cleaning: cleaning steps; for pairs, off unless given.
        tokenizer: counts tokens for the rule `max_tokens`: `package:NAME/folder`, a folder, or a
            name on the Hub. Default: the reward model's; null skips the rule.
        folds: number of folds over prompts; by default 3 to 5, by the number of prompts.
        repeats: number of repeats; by default 10 or fewer, by the number of prompts.
        crossvalidate_model: cross-validate the reward model too, with one training per fold; by
            default it is trained once to be judged on the prompts of one fold, and once on all
            pairs.
        model_name_or_path: also train a reward model on this model.
        negatives: add texts that are no stories as rejected sides to what the models are trained
            on, at most 5 %; the pairs that judge the models have none.
        training: keys of the training of the reward model; also accepted as --KEY VALUE.
    """

    input: Annotated[str, Positional]
    out: Path
    prompt: str = GUESS
    text: str = GUESS
    chosen: str = GUESS
    rejected: str = GUESS
    score: str = GUESS
    time: str | None = GUESS
    story_id: str | None = GUESS
    prompt_id: str | None = GUESS
    where: str | None = None
    encoding: str | None = None
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    judge: list[str] = field(default_factory=list)
    max_cost_usd: float | None = None
    verbose: bool = False
    cleaning: Cleaning = field(default_factory=Cleaning)
    tokenizer: str | None = GUESS
    folds: int | None = None
    repeats: int | None = None
    crossvalidate_model: bool = False
    model_name_or_path: str | None = None
    negatives: bool = False
    training: Annotated[dict[str, Any], Passed("litbench.models.reward_keys:RewardKeys")] = field(
        default_factory=dict
    )


@dataclass(kw_only=True)
class Fit(PairRules, FitOptions):
    """Train and evaluate on your own stories or pairs: from one file to a model and a report.

        litbench fit posts.jsonl --out runs/mine
        litbench fit posts.csv --out runs/mine --prompt heading --score hearts --time null
        litbench fit pairs.csv --out runs/mine --test_share 0.2 --judge openai/gpt-4.1-mini
        litbench fit sample --out runs/fit --model_name_or_path OWNER/MODEL --learning_rate 1e-5

    Reads stories (a prompt, a text and a score in each row) or pairs (a prompt, a chosen and a
    rejected text). Columns with common names are found; others are given, as a column or an SQL
    expression. Stories are cleaned and paired within a prompt. Then models are trained, and
    evaluated by repeated cross-validation over prompts, or with `test_share` on held-out prompts.
    The feature model needs seconds; `--model_name_or_path` adds a Bradley-Terry reward model, and
    every further key goes to its training, under trl's name.

    Writes into `out`: pairs/, model/ (the reward model if there is one, with the feature model in
    features/), evaluation/, report/ and fit.log. A second run does only what has changed, and a
    killed run resumes.

    Attributes:
        seed: seed of splits, caps, symmetry, folds and training.
        max_tokens: maximum tokens of a story; without a tokenizer, the rule is skipped.
        label_source: who gave the scores: votes, or people if they are ratings. By default
            the column of the scores decides.
    """

    given: ClassVar[Sequence[str]] = ()

    symmetry_buckets: Buckets = "auto"


def run_fit(config: Fit) -> None:
    """Fit, and exit with status 1 if a judge judged nothing."""
    check_judged([fit(config)[1]])


def fit(config: Fit) -> tuple[Path, Evaluation]:
    """Make or read pairs, train, evaluate on held-out prompts, and write the report.

    Returns:
        The folder of the model that agrees most often with the labels of held-out prompts, and the
        evaluation of all models.
    """
    config.check()
    if config.training and config.model_name_or_path is None:
        raise ConfigError(
            f"{next(iter(config.training))} is a key of training a reward model: give "
            "--model_name_or_path too"
        )
    if config.test_share is not None and len(config.splits) > 1:
        raise ConfigError("test_share and splits are both given: keep one of them")
    source = find_source(config)
    if config.model_name_or_path is not None:
        check_installed("trl")
    _raters(config, n_pairs=0)
    for name, entry in _judges(config).items():
        RaterSpec(name, entry.pop("kind"), entry).check_installed()
    with only_writer(config.out):
        with _logged(config.out / _LOG, is_shown=config.verbose):
            fitted = _fit(config, source)
        print(*fitted.lines(config.out / _LOG), sep="\n")
    return fitted.model, fitted.evaluations[-1]


class _Tee(io.TextIOBase):
    """Writes into two streams."""

    def __init__(self, *streams: Any) -> None:
        self.streams = streams

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
        for stream in self.streams:
            stream.write(text)
        return len(text)


@contextlib.contextmanager
def _logged(path: Path, *, is_shown: bool) -> Iterator[None]:
    """Write what is printed into a file, and to the terminal too if `is_shown`."""
    with path.open("w", encoding="utf-8", buffering=1) as log:
        stream: Any = _Tee(log, sys.stdout) if is_shown else log
        with contextlib.redirect_stdout(stream):
            yield


@dataclass(frozen=True)
class Source:
    """The contents of an input.

    Attributes:
        is_pairs: whether its rows are pairs, not stories.
        names: its columns.
        origins: by name, the column or expression that is read; None if there is none.
    """

    is_pairs: bool
    names: Sequence[str] = ()
    origins: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class OwnPairs:
    """Pairs made of the stories of a `Fit`, or read.

    Attributes:
        folder: their folder.
        pairs: the pairs.
        columns: columns of the input that are the prompt and the texts, by these names.
        notes: what the data lack, one line each.
    """

    folder: Path
    pairs: EvaluationPairs
    columns: dict[str, str]
    notes: Sequence[str] = ()

    def files(self) -> dict[str, Path | None]:
        """The pairs files, by the keys of an evaluation."""
        wider = self.pairs.before_symmetry
        before = None if wider is None else self.folder / BEFORE_SYMMETRY
        return {"pairs": self.folder / PAIRS_FILE, "before_symmetry": before}

    def funnel(self) -> Funnel | None:
        """The counts of the rules; None if the pairs were read."""
        steps = read_manifest(self.folder)["counts"].get("funnel")
        return None if steps is None else Funnel.of(steps)

    @property
    def has_test(self) -> bool:
        """Whether some prompts are held out."""
        return {"train", "test"} <= set(self.pairs.headline["split"].to_pylist())

    def part(self, split: str) -> pa.Table:
        """The pairs of the split train or test; all pairs if no prompt is held out."""
        pairs = self.pairs.headline
        return pairs.filter(pc.equal(pairs["split"], split)) if self.has_test else pairs


@dataclass(frozen=True)
class Fitted:
    """The result of a `Fit`: the best model, and the lines for the terminal."""

    model: Path
    evaluations: Sequence[Evaluation]
    method: str
    notes: Sequence[str]
    nonstories: str
    pages: Mapping[str, Path]

    def lines(self, log: Path) -> list[str]:
        """The method, the leaderboard, as many notes as there is room for, and what is next."""
        model = shlex.quote(str(self.model))
        ends = [
            self.nonstories,
            f'next: litbench score --model {model} --prompt "A PROMPT" --story "A STORY"',
        ]
        if self.pages:
            first, *others = self.pages.values()
            beside = f" (beside it: {', '.join(page.name for page in others)})" if others else ""
            ends.insert(1, f"report: {first}{beside}")
        title, table = headline(self.evaluations[-1].rows)
        rows = [self.method, title, *table.splitlines()]
        # The line of `find_source` has been printed.
        room = _MAX_LINES - 1 - len(rows) - len(ends)
        if room < 1:
            rows = [*rows[: room - 1], f"all raters and notes: {log}"]
            room = 0
        notes = [f"note: {note}" for note in self.notes]
        if len(notes) > room:
            further = len(notes) - max(room - 1, 0)
            notes = [*notes[: max(room - 1, 0)], f"{further} further notes: {log}"][:room]
        return [*rows, *notes, *ends]


def make_own_pairs(config: Fit, source: Source, min_prompts: int = 1) -> OwnPairs:
    """Make stories, then pairs; a DataError if fewer prompts have stories."""
    stories, folder = config.out / "stories", config.out / "pairs"
    story_making = _story_making(config, source, stories)
    make_stories(story_making, _PROGRAM)
    counts = read_manifest(stories)["counts"]
    if counts["prompts"] < min_prompts:
        raise DataError(
            f"{counts['prompts']} prompts are left, and {min_prompts} are needed: "
            f"{counts['stories']} stories were read: check the column of the prompt, or give "
            "stories of more prompts"
        )
    rules, notes = _pair_making(config, story_making, folder)
    make_pairs(rules, _PROGRAM)
    before = folder / BEFORE_SYMMETRY if config.symmetry_buckets else None
    read = read_pairs(folder / PAIRS_FILE, before, None)
    columns = {key: story_making.columns.get(key, key) for key in ("prompt", "text")}
    return OwnPairs(folder, read, columns, notes)


def read_own_pairs(config: Fit, source: Source) -> OwnPairs:
    """Import the pairs of the input."""
    names = ("prompt", *_SIDES)
    origins = {name: str(source.origins[name]) for name in names if source.origins.get(name)}
    cleaning = config.cleaning if "cleaning" in config.given else Cleaning.none()
    job = PairImport(
        pairs=config.input,
        out=config.out / "pairs",
        pair_columns=origins,
        where=config.where,
        encoding=config.encoding,
        label_source=config.label_source,
        test_share=config.test_share,
        seed=config.seed,
        cleaning=cleaning,
    )
    import_pairs(job, _PROGRAM)
    pairs = read_pairs(job.out / PAIRS_FILE, None, None)
    notes = []
    if NOT_STATED in pairs.headline["label_source"].to_pylist():
        notes.append("the pairs do not state who chose: set --label_source")
    return OwnPairs(job.out, pairs, origins, notes)


def _fit(config: Fit, source: Source) -> Fitted:
    if source.is_pairs:
        made = read_own_pairs(config, source)
    else:
        made = make_own_pairs(config, source, _MIN_PROMPTS)
    pairs, funnel = made.pairs.headline, made.funnel()
    notes = [advice] if funnel and (advice := funnel.advice()) else []
    sizes = np.unique(connected_prompts(pairs), return_counts=True)[1]
    prompts = len(sizes)
    if prompts < _MIN_PROMPTS:
        raise DataError(
            f"{pairs.num_rows} pairs of {prompts} prompts are left, and {_MIN_PROMPTS} prompts "
            f"are needed: {funnel.summary() if funnel else 'give pairs of more prompts'}"
        )
    specs = _raters(config, made.part("train").num_rows)
    learning = None
    if made.has_test:
        models = _train(config, specs, made)
        evaluations = [_evaluate_held_out(config, models, made)]
        training, test = (len(set(connected_prompts(made.part(s)))) for s in ("train", "test"))
        method = f"trained on {training} prompts, judged on {test} held-out prompts"
    else:
        method, evaluations = _evaluate(config, specs, prompts, made)
        models = _train(config, specs, made)
        # With fewer prompts, the line would show noise.
        learning = _learning_curve(config, made) if prompts >= _FEW_PROMPTS else None
    sizes = np.unique(connected_prompts(made.part("test")), return_counts=True)[1]
    if (effective := effective_clusters(sizes)) < _FEW_PROMPTS:
        notes.append(
            f"few prompts: {len(sizes)} ({effective:.0f} effective); with fewer than "
            f"{_FEW_PROMPTS} effective prompts the ranking may not generalise"
        )
    best, of_models = _best(models, evaluations[-1])
    counts = read_manifest(config.out)["counts"]
    nonstories = counts["nonstories"][best]
    if config.negatives:
        of_best = counts["features"] if best == "features" else counts["training"]["counts"]
        n_pairs = made.part("train").num_rows
        method += f"; {of_best.get(NEGATIVES, 0):,} negatives added to {n_pairs:,} pairs"
    pages = {}
    try:
        pages = _report(config, made.folder, evaluations, learning, models[best], nonstories)
    except MissingExtraError as error:
        notes.insert(0, f"no report: {error}")
    notes += [*of_models, *made.notes]
    for note in notes:
        print(f"note: {note}")
    told = nonstories_text(best, nonstories)
    return Fitted(models[best], evaluations, method, notes, told, pages)


def _best(models: Mapping[str, Path], evaluation: Evaluation) -> tuple[str, list[str]]:
    """The model that agrees most often with the labels, and notes on what agrees more often."""
    # The last evaluation has all models, on the same pairs.
    agreement = {row.rater: row.agreement.mean for row in evaluation.rows}
    best = max(models, key=lambda name: (agreement[name], name))
    notes = []
    if len(models) > 1:
        notes.append(
            f"{best} agrees more often with the labels of held-out prompts ({agreement[best]:.3f})"
        )
    leader = max(agreement, key=lambda name: (agreement[name] or 0, name in models))
    if leader not in models:
        notes.append(
            f"{leader} agrees more often ({agreement[leader]:.3f}) than {best} "
            f"({agreement[best]:.3f}), the model that is saved"
        )
    return best, notes


# Stories and pairs -------------------------------------------------------------------------------


def _story_making(config: Fit, source: Source, out: Path) -> StoryMaking:
    tokenizer = config.tokenizer
    if tokenizer == GUESS:
        # A model in one file, such as GGUF, has no tokenizer.json.
        base = config.model_name_or_path
        tokenizer = None if base is None or Path(resolve(base)).is_file() else base
    return StoryMaking(
        out,
        config.input,
        _sql_of(source),
        config.where,
        config.encoding,
        Path(config.input).name,
        config.cleaning,
        tokenizer,
    )


def find_source(config: Fit) -> Source:
    """Tell by its columns whether an input has stories or pairs, and print what is read."""
    stated = {name: getattr(config, name) for name in (*_COLUMNS, *_SIDES)}
    if config.input == "sample":
        if renamed := [name for name, value in stated.items() if value != GUESS]:
            raise ConfigError(f"--{renamed[0]}: the sample has its own columns: leave it out")
        print("sample: stories with simulated votes")
        return Source(is_pairs=False)
    rows = first_rows(config.input, config.where, config.encoding)
    names = rows.column_names
    origins = find_columns(config.input, names, stated, ())
    given = {name: stated[name] for name in ("prompt", *_SIDES) if stated[name] != GUESS}
    is_stories = all(origins[name] for name in ("text", "score"))
    # Rows with several answers are pairs, too.
    answers = {} if is_stories else find_answers(rows, given)
    is_pairs = bool(answers) or holds_pairs(origins, ("text", "score"))
    if is_pairs:
        origins = {**answers} or {name: origins[name] for name in ("prompt", *_SIDES)}
        rules = {rule.name for rule in fields(PairRules)} | {*_COLUMNS, "tokenizer"}
        kind, other, wrong = "pairs", "stories", rules - {*_OF_BOTH}
    else:
        find_columns(config.input, names, origins, _REQUIRED)
        origins = {name: origins[name] for name in _COLUMNS}
        for name, suits in (("story_id", _is_unique), ("prompt_id", _names_prompts)):
            origin = origins[name]
            if stated[name] == GUESS and origin and not suits(rows, origin, origins["prompt"]):
                origins[name] = None
        kind, other, wrong = "stories", "pairs", {*_SIDES}
    said = [f"{name} = {origin}" for name, origin in origins.items() if origin is not None]
    print(f"{config.input}: {kind}; {', '.join(said)}")
    if misplaced := [key for key in config.given if key in wrong]:
        raise ConfigError(
            f"--{misplaced[0]} is a key of {other}, and {config.input} has {kind}: leave it out"
        )
    return Source(is_pairs, names, origins)


def _sql_of(source: Source) -> dict[str, str]:
    """Map the columns of the stories table; the sample has them."""
    if not source.origins:
        return {}
    origins = {name: str(origin) for name, origin in source.origins.items() if origin is not None}
    prompt, text = (_sql(origins[name], source.names) for name in ("prompt", "text"))
    return {
        "prompt": origins["prompt"],
        "text": origins["text"],
        "score": origins["score"],
        "created_utc": origins.get("time", "NULL"),
        "prompt_id": origins.get("prompt_id", f"md5({prompt})"),
        "story_id": origins.get("story_id", f"""md5(concat_ws('|', {prompt}, {text}, "(row)"))"""),
    }


def _sql(origin: str, columns: Sequence[str]) -> str:
    """Return a column's name, quoted, or an expression, in brackets."""
    return '"' + origin.replace('"', '""') + '"' if origin in columns else f"({origin})"


def _is_unique(rows: pa.Table, column: str, _: str) -> bool:
    return bool(pc.count_distinct(rows[column]).as_py() == rows.num_rows)


def _names_prompts(rows: pa.Table, column: str, prompt: str) -> bool:
    """Whether stories share ids, and each id has one prompt."""
    if prompt not in rows.column_names:
        return False
    ids = pc.count_distinct(rows[column]).as_py()
    return bool(rows.group_by([column, prompt]).aggregate([]).num_rows == ids < rows.num_rows)


def _pair_making(config: Fit, stories: StoryMaking, out: Path) -> tuple[PairMaking, list[str]]:
    """Return the rules for these stories, and which of them the data do not allow."""
    rules = {field.name: getattr(config, field.name) for field in fields(PairRules)}
    if config.test_share is not None:
        rules["splits"] = {"train": 1 - config.test_share, "test": config.test_share}
    notes: list[str] = []
    file = stories.out / "stories.parquet"
    if config.input == "sample":
        rules["label_source"] = "planted"
    times, scores = pq.read_table(file, columns=["created_utc", "score"]).columns
    if rules["chosen_later"] and times.null_count == len(times):
        rules["chosen_later"] = False
        notes.append(
            "no column of times (--time): the chosen story of a pair may be the earlier one"
        )
    is_rating = pa.types.is_floating(scores.type) or stories.columns.get("score") in _RATINGS
    if rules["label_source"] == NOT_STATED:
        if is_rating:
            rules["label_source"] = "people"
            said = "label_source is people, and min_score has no default"
            notes.append(f"scores are ratings, not votes: {said}")
        elif _are_votes(stories.columns):
            rules["label_source"] = "votes"
        else:
            notes.append(
                "the stories do not state who scored them: give --label_source votes or people"
            )
    if stories.tokenizer is None:
        rules["max_tokens"] = None
    return PairMaking(**rules, stories=file, out=out), notes


def _are_votes(columns: Mapping[str, str]) -> bool:
    """Whether scores are votes by their column's name; Reddit's are `score` and `created_utc`."""
    score = columns.get("score", "")
    is_reddit = (score, columns.get("created_utc")) == ("score", "created_utc")
    return is_reddit or _VOTES.fullmatch(score) is not None


# Models and evaluation ---------------------------------------------------------------------------


def _raters(config: Fit, n_pairs: int) -> list[RaterSpec]:
    """Return the raters that are trained; options of the reward model fit the number of pairs."""
    shared = {"negatives": True} if config.negatives else {}
    specs = [RaterSpec("features", "features", shared)]
    if config.model_name_or_path is not None:
        # The paper's 128 pairs per step, or fewer, so that an epoch has 25 steps.
        options = {"model_name_or_path": config.model_name_or_path, **shared, **config.training}
        micro_batch = int(options.get("per_device_train_batch_size", 4))
        steps = max(min(n_pairs // 25, 128) // micro_batch, 1)
        specs.append(
            RaterSpec("reward", "reward", {"gradient_accumulation_steps": steps, **options})
        )
    return specs


def _judges(config: Fit) -> dict[str, dict[str, Any]]:
    """The entries of the models that are asked."""
    options = JudgeKeys(max_cost_usd=config.max_cost_usd).judge_entry()
    return {name: {"kind": "judge", **options, "model": name} for name in config.judge}


def _train(config: Fit, specs: Sequence[RaterSpec], made: OwnPairs) -> dict[str, Path]:
    folders = {"features": config.out / ("model" if len(specs) == 1 else "features")}
    if len(specs) > 1:
        folders["reward"] = config.out / "model"
    artifact = Artifact(
        config.out,
        program=_PROGRAM,
        config={
            "seed": config.seed,
            "columns": made.columns,
            "nonstories": list(KINDS),
            **{spec.name: spec.given for spec in specs},
        },
        inputs={"pairs": made.folder / PAIRS_FILE},
        models=files_of(specs),
    )
    if artifact.is_current():
        return folders
    pairs = made.part("train")
    features = cast(Any, specs[0].train(pairs, config.out, config.seed))
    features.columns = made.columns
    features.learn_scope(pairs)
    artifact.counts["features"] = {"negatives": features.negatives}
    artifact.counts["nonstories"] = {"features": compare_nonstories(features, pairs)}
    artifact.write_folder(folders["features"].name, features.save)
    if len(specs) == 1:
        shutil.rmtree(config.out / "features", ignore_errors=True)
        artifact.finish()
        return folders
    checkpoints = config.out / f"checkpoints-{artifact.fingerprint[:12]}"
    from litbench.models.publishing import write_trained_model  # noqa: PLC0415

    reward = cast(Any, specs[1].train(pairs, checkpoints, config.seed))
    reward.columns = made.columns
    write_trained_model(artifact, reward, pairs, None, checkpoints)
    return folders


def _evaluate_held_out(config: Fit, models: Mapping[str, Path], made: OwnPairs) -> Evaluation:
    """Judge the split test by the models that were trained on the split train."""
    files = made.files()
    bag = {"kind": "bag_of_words", "path": str(files["pairs"]), "split": "train"}
    raters: dict[str, Any] = {
        "longer": {"kind": "longer"},
        "bag_of_words": bag,
        "random": {"kind": "random"},
        **{name: {"kind": name, "path": str(folder)} for name, folder in models.items()},
        **_judges(config),
    }
    benchmark = Benchmark(
        cast(Path, files["pairs"]),
        config.out / "evaluation",
        raters,
        before_symmetry=files["before_symmetry"],
        split="test",
    )
    return run_benchmark(benchmark, _PROGRAM)[""]


def _evaluate(
    config: Fit, specs: Sequence[RaterSpec], prompts: int, made: OwnPairs
) -> tuple[str, list[Evaluation]]:
    """Evaluate out of fold, and print the leaderboards; returns the method and the evaluations.

    Raters are cross-validated, a reward model only with `crossvalidate_model`: otherwise it is
    trained once, and all raters are compared on its held-out prompts in an evaluation of their own.
    """
    folds = config.folds or min(max(prompts // 15, 3), 5)
    repeats = config.repeats or max(min(1_000 // prompts, 10), 1)
    raters: dict[str, Any] = {name: {"kind": name} for name in ("longer", "bag_of_words", "random")}
    trained = {spec.name: spec.plain() for spec in specs}
    shared: dict[str, Any] = {**made.files(), "folds": folds, "seed": config.seed}
    if "reward" in trained and config.crossvalidate_model:
        trained["reward"]["repeats"] = 1
    split = (
        trained.pop("reward") if "reward" in trained and not config.crossvalidate_model else None
    )
    method = f"cross-validation: {folds} folds of {prompts} prompts, {repeats} repeats"
    print(method)
    judges = _judges(config)
    last = judges if split is None else {}
    evaluation = CrossValidation(
        out=config.out / "evaluation", raters=raters | trained | last, repeats=repeats, **shared
    )
    evaluations = [crossvalidate(evaluation, _PROGRAM, made.pairs)]
    if split is None:
        shutil.rmtree(config.out / "evaluation_reward", ignore_errors=True)
    else:
        method = f"all raters: trained on {folds - 1} of {folds} folds, judged on the other one"
        print(method)
        held_out = CrossValidation(
            out=config.out / "evaluation_reward",
            judged_folds=1,
            raters={**raters, **trained, "reward": split, **judges},
            **shared,
        )
        evaluations.append(crossvalidate(held_out, _PROGRAM, made.pairs))
    return method, evaluations


def _learning_curve(config: Fit, made: OwnPairs) -> Evaluation:
    """Cross-validate the features on shares of the training prompts."""
    raters: dict[str, Any] = {"longer": {"kind": "longer"}}
    features = _raters(config, 0)[0].plain()
    raters |= {name: {**features, "share": share} for name, share in _SHARES.items()}
    print("learning curve:")
    crossvalidation = CrossValidation(
        made.folder / PAIRS_FILE,
        config.out / "learning_curve",
        raters,
        folds=config.folds or 5,
        repeats=3,
        seed=config.seed,
        before_symmetry=made.files()["before_symmetry"],
    )
    return crossvalidate(crossvalidation, _PROGRAM, made.pairs)


def find_audit() -> Callable[..., dict[str, Any]] | None:
    """The function that audits pairs; None where that extension is not installed."""
    if importlib.util.find_spec("litbench.audit") is None:
        return None
    write: Callable[..., dict[str, Any]] = import_module("litbench.audit.command").audit_files
    return write


def _report(
    config: Fit,
    pairs: Path,
    evaluations: Sequence[Evaluation],
    learning: Evaluation | None,
    model: Path,
    nonstories: Sequence[Mapping[str, Any]],
) -> dict[str, Path]:
    """Write the pages; returns their paths by name."""
    out = config.out / "report"
    names = ["report", "reward model"][: len(evaluations)]
    files = ["report.html", "reward.html"][: len(evaluations)]
    folder = PairsFolder.find(pairs)
    name = "the embedded sample" if config.input == "sample" else Path(config.input).name
    inputs: dict[str, str | Path] = dict(folder.files)
    for evaluation in [*evaluations, *filter(None, [learning])]:
        inputs |= evaluation.inputs(evaluation.folder.name)
    artifact = Artifact(
        out,
        program=_PROGRAM,
        config={"name": name, "model": model.name, "nonstories": nonstories},
        inputs=inputs,
    )
    if not artifact.is_current():
        audit_files = find_audit()
        beside = [*files, *(["audit.html"] if audit_files else [])]
        curve_of = {row.rater: row.agreement for row in learning.rows} if learning else {}
        curve = {share: curve_of[name] for name, share in _SHARES.items() if name in curve_of}
        command = (
            f"litbench score --model {shlex.quote(str(model))} --input stories.jsonl "
            "--out scored.jsonl"
        )
        for file, evaluation in zip(files, evaluations, strict=True):
            page = render_report(
                evaluation,
                f"LitBench: {name}",
                out / file,
                beside=beside,
                next_command=command,
                learning={"features": curve} if curve else {},
                # The last evaluation has all models.
                nonstories=nonstories if evaluation is evaluations[-1] else (),
            )
            artifact.write(file, partial(Path.write_text, data=page, encoding="utf-8"))
        if audit_files is not None:
            title, audit = f"LitBench audit: {name}", out / "audit.html"
            for file, write in audit_files(folder, title, audit, beside=beside).items():
                artifact.write(file, write)
        artifact.finish()
    pages = dict(zip(names, files, strict=True))
    if find_audit() is not None:
        pages["audit"] = "audit.html"
    return {key: (out / page).resolve() for key, page in pages.items()}
