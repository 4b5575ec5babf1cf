"""Train and evaluate on your own stories: from one file to a model and a report; see `Fit`."""

import importlib.util
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from litbench.data.columns import GUESS, find_columns, first_rows
from litbench.data.curation.cleaning import Cleaning
from litbench.data.curation.funnel import Funnel
from litbench.data.curation.pair_making import BEFORE_SYMMETRY, PAIRS_FILE, PairMaking, make_pairs
from litbench.data.curation.rules import Buckets, PairRules
from litbench.data.curation.story_making import StoryMaking, make_stories
from litbench.data.records import NOT_STATED, connected_prompts
from litbench.data.sources.evaluation_pairs import EvaluationPairs, read_pairs
from litbench.evaluation.crossvalidation import CrossValidation, crossvalidate
from litbench.evaluation.report.data_sections import PairsFolder
from litbench.evaluation.report.page import render_report
from litbench.evaluation.results import Evaluation
from litbench.metrics.intervals import effective_clusters
from litbench.raters.entries import RaterSpec, files_of
from litbench.runs.config import Passed, Positional
from litbench.runs.errors import ConfigError, DataError, MissingExtraError
from litbench.runs.locations import resolve
from litbench.runs.outputs import Artifact, only_writer, read_manifest

_PROGRAM = "litbench fit"
# What is read of each story.
_COLUMNS = ("prompt", "text", "score", "time", "story_id", "prompt_id")
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
        input: Parquet, CSV, TSV, JSONL, a folder saved by datasets, a data set on the Hub, or
            `sample`. It can be the first argument, without --input.
        out: output folder.
        prompt: column of the prompt, or an SQL expression (DuckDB) over the columns.
        text: column of the story.
        score: column of the votes or ratings.
        time: column of the time of posting (Unix seconds or ISO 8601). Null, or no such column:
            pairs are made without the rule `chosen_later`.
        story_id: column with a unique name of each story; null makes one of prompt, text and row.
        prompt_id: column with the prompt's id; null makes one of the prompt's text.
        where: SQL condition on the columns; other rows are left out.
        encoding: encoding of a text file, such as cp1252; null: UTF-8, or told by the content.
        cleaning: cleaning steps.
        tokenizer: counts tokens for the rule `max_tokens`: `package:NAME/folder`, a folder, or a
            name on the Hub. By default that of the reward model; null skips the rule.
        folds: number of folds over prompts; by default 3 to 5, by the number of prompts.
        repeats: number of repeats; by default 10 or fewer, by the number of prompts.
        crossvalidate_model: cross-validate the reward model too, with one training per fold; by
            default it is trained once to be judged on the prompts of one fold, and once on all
            pairs.
        model_name_or_path: also train a reward model on this model.
        training: keys of the training of the reward model; also accepted as --KEY VALUE.
    """

    input: Annotated[str, Positional]
    out: Path
    prompt: str = GUESS
    text: str = GUESS
    score: str = GUESS
    time: str | None = GUESS
    story_id: str | None = GUESS
    prompt_id: str | None = GUESS
    where: str | None = None
    encoding: str | None = None
    cleaning: Cleaning = field(default_factory=Cleaning)
    tokenizer: str | None = GUESS
    folds: int | None = None
    repeats: int | None = None
    crossvalidate_model: bool = False
    model_name_or_path: str | None = None
    training: Annotated[dict[str, Any], Passed("litbench.models.reward_keys:RewardKeys")] = field(
        default_factory=dict
    )


@dataclass(kw_only=True)
class Fit(PairRules, FitOptions):
    """Train and evaluate on your own stories: from one file to a model and a report.

        litbench fit posts.jsonl --out runs/mine
        litbench fit posts.csv --out runs/mine --prompt heading --score hearts --time null
        litbench fit sample --out runs/fit --model_name_or_path OWNER/MODEL --learning_rate 1e-5

    Reads Parquet, CSV, TSV, JSONL, a data set on the Hub (owner/name[:split]) or the embedded
    `sample`, with a prompt, a text and a score in each row. Columns with common names are found;
    others are given, as a column or an SQL expression. Then: clean the stories, pair them within a
    prompt, train on all pairs, and evaluate by repeated cross-validation over prompts. The feature
    model needs seconds; `--model_name_or_path` adds a Bradley-Terry reward model, and every further
    key goes to its training, under trl's name.

    Writes into `out`: stories/, pairs/, model/ (the reward model if there is one, with the feature
    model in features/), evaluation/ and report/ with two pages. A second run does only what has
    changed, and a killed run resumes.

    Attributes:
        seed: seed of caps, symmetry, folds and training.
        max_tokens: most tokens of a story; without a tokenizer, the rule is skipped.
        label_source: who gave the scores: votes, or people if they are ratings. By default it is
            told by the column of the scores.
    """

    symmetry_buckets: Buckets = "auto"


def fit(config: Fit) -> tuple[Path, Evaluation]:
    """Make stories and pairs, train, evaluate out of fold, and write the report.

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
    _raters(config, n_pairs=0)
    with only_writer(config.out):
        return _fit(config)


@dataclass(frozen=True)
class OwnPairs:
    """Pairs made of the stories of a `Fit`.

    Attributes:
        folder: their folder.
        pairs: the pairs.
        columns: columns of the input that are the prompt and the text, by these names.
    """

    folder: Path
    pairs: EvaluationPairs
    columns: dict[str, str]

    def files(self) -> dict[str, Path | None]:
        """The pairs files, by the keys of an evaluation."""
        wider = self.pairs.before_symmetry
        before = None if wider is None else self.folder / BEFORE_SYMMETRY
        return {"pairs": self.folder / PAIRS_FILE, "before_symmetry": before}

    def funnel(self) -> Funnel:
        return Funnel.of(read_manifest(self.folder)["counts"]["funnel"])


def make_own_pairs(config: Fit, min_prompts: int = 1) -> OwnPairs:
    """Make stories, then pairs; a DataError if fewer prompts have stories."""
    stories, folder = config.out / "stories", config.out / "pairs"
    story_making = _story_making(config, stories)
    make_stories(story_making, _PROGRAM)
    counts = read_manifest(stories)["counts"]
    if counts["prompts"] < min_prompts:
        raise DataError(
            f"{counts['prompts']} prompts are left, and cross-validation needs {min_prompts} "
            f"prompts: {counts['stories']} stories were read: check the column of the prompt, or "
            "give stories of more prompts"
        )
    make_pairs(_pair_making(config, story_making, folder), _PROGRAM)
    before = folder / BEFORE_SYMMETRY if config.symmetry_buckets else None
    read = read_pairs(folder / PAIRS_FILE, before, None)
    columns = {key: story_making.columns.get(key, key) for key in ("prompt", "text")}
    return OwnPairs(folder, read, columns)


def _fit(config: Fit) -> tuple[Path, Evaluation]:
    made = make_own_pairs(config, _MIN_PROMPTS)
    pairs, funnel = made.pairs.headline, made.funnel()
    if advice := funnel.advice():
        print(f"note: {advice}")
    sizes = np.unique(connected_prompts(pairs), return_counts=True)[1]
    prompts = len(sizes)
    if prompts < _MIN_PROMPTS:
        raise DataError(
            f"{pairs.num_rows} pairs of {prompts} prompts are left, and cross-validation needs "
            f"{_MIN_PROMPTS} prompts: {funnel.summary()}"
        )
    specs = _raters(config, pairs.num_rows)
    evaluations = _evaluate(config, specs, prompts, made)
    models = _train(config, specs, made)
    # With fewer prompts, the line would show noise.
    learning = _learning_curve(config, made) if prompts >= _FEW_PROMPTS else None
    # The last evaluation has all models, on the same pairs.
    agreement = {row.rater: row.agreement.mean for row in evaluations[-1].rows}
    best = max(models, key=lambda name: (agreement[name], name))
    pages = {}
    try:
        pages = _report(config, made.folder, evaluations, learning, models[best])
    except MissingExtraError as error:
        print(f"no report: {error}")
    if (effective := effective_clusters(sizes)) < _FEW_PROMPTS:
        print(
            f"note: few prompts: {prompts} ({effective:.0f} effective); with fewer than "
            f"{_FEW_PROMPTS} effective prompts the ranking may not generalise"
        )
    for name, page in pages.items():
        print(f"{name}: {page}")
    if len(models) > 1:
        print(
            f"{best} agrees more often with the labels of held-out prompts ({agreement[best]:.3f})"
        )
    leader = max(agreement, key=lambda name: (agreement[name] or 0, name in models))
    if leader not in models:
        print(
            f"note: {leader} agrees more often ({agreement[leader]:.3f}) than {best} "
            f"({agreement[best]:.3f}), the model that is saved: {leader} is a baseline"
        )
    model = shlex.quote(str(models[best]))
    print(f'next: litbench score --model {model} --prompt "A PROMPT" --story "A STORY"')
    return models[best], evaluations[-1]


# Stories and pairs -------------------------------------------------------------------------------


def _story_making(config: Fit, out: Path) -> StoryMaking:
    tokenizer = config.tokenizer
    if tokenizer == GUESS:
        # A model in one file, such as GGUF, has no tokenizer.json.
        base = config.model_name_or_path
        tokenizer = None if base is None or Path(resolve(base)).is_file() else base
    return StoryMaking(
        out,
        config.input,
        _columns(config),
        config.where,
        config.encoding,
        Path(config.input).name,
        config.cleaning,
        tokenizer,
    )


def _columns(config: Fit) -> dict[str, str]:
    """Map the columns of the stories table, and print what they are taken from."""
    stated = {name: getattr(config, name) for name in _COLUMNS}
    if config.input == "sample":
        if wrong := [name for name, value in stated.items() if value != GUESS]:
            raise ConfigError(f"--{wrong[0]}: the sample has its own columns: leave it out")
        return {}
    rows = first_rows(config.input, config.where, config.encoding)
    names = rows.column_names
    columns = find_columns(config.input, names, stated, ("prompt", "text", "score"))
    for name, suits in (("story_id", _is_unique), ("prompt_id", _names_prompts)):
        if (
            stated[name] == GUESS
            and columns[name]
            and not suits(rows, columns[name], columns["prompt"])
        ):
            columns[name] = None
    said = [f"{name} = {origin}" for name, origin in columns.items() if origin is not None]
    print(f"columns: {', '.join(said)}")
    prompt, text = (_sql(columns[name], names) for name in ("prompt", "text"))
    return {
        "prompt": columns["prompt"],
        "text": columns["text"],
        "score": columns["score"],
        "created_utc": columns["time"] or "NULL",
        "prompt_id": columns["prompt_id"] or f"md5({prompt})",
        "story_id": columns["story_id"] or f"""md5(concat_ws('|', {prompt}, {text}, "(row)"))""",
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


def _pair_making(config: Fit, stories: StoryMaking, out: Path) -> PairMaking:
    """Return the rules for these stories, and print which of them the data do not allow."""
    rules = {field.name: getattr(config, field.name) for field in fields(PairRules)}
    file = stories.out / "stories.parquet"
    if config.input == "sample":
        rules["label_source"] = "planted"
    times, scores = pq.read_table(file, columns=["created_utc", "score"]).columns
    if rules["chosen_later"] and times.null_count == len(times):
        rules["chosen_later"] = False
        print("no column of times (--time): the chosen story of a pair may be the earlier one")
    is_rating = pa.types.is_floating(scores.type) or stories.columns.get("score") in _RATINGS
    if rules["label_source"] == NOT_STATED:
        if is_rating:
            rules["label_source"] = "people"
            said = "label_source is people, and min_score has no default"
            print(f"scores are ratings, not votes: {said}")
        elif _are_votes(stories.columns):
            rules["label_source"] = "votes"
        else:
            print("who gave the scores is not stated: give --label_source votes or people")
    if stories.tokenizer is None:
        rules["max_tokens"] = None
    return PairMaking(**rules, stories=file, out=out)


def _are_votes(columns: Mapping[str, str]) -> bool:
    """Whether scores are votes by their column's name; Reddit's are `score` and `created_utc`."""
    score = columns.get("score", "")
    is_reddit = (score, columns.get("created_utc")) == ("score", "created_utc")
    return is_reddit or _VOTES.fullmatch(score) is not None


# Models and evaluation ---------------------------------------------------------------------------


def _raters(config: Fit, n_pairs: int) -> list[RaterSpec]:
    """Return the raters that are trained; options of the reward model fit the number of pairs."""
    specs = [RaterSpec("features", "features")]
    if config.model_name_or_path is not None:
        # The paper's 128 pairs per step, or fewer, so that an epoch has 25 steps.
        options = {"model_name_or_path": config.model_name_or_path, **config.training}
        micro_batch = int(options.get("per_device_train_batch_size", 4))
        steps = max(min(n_pairs // 25, 128) // micro_batch, 1)
        specs.append(
            RaterSpec("reward", "reward", {"gradient_accumulation_steps": steps, **options})
        )
    return specs


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
            **{spec.name: spec.given for spec in specs},
        },
        inputs={"pairs": made.folder / PAIRS_FILE},
        models=files_of(specs),
    )
    if artifact.is_current():
        return folders
    pairs = made.pairs.headline
    features = cast(Any, specs[0].train(pairs, config.out, config.seed))
    features.columns = made.columns
    features.learn_scope(pairs)
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


def _evaluate(
    config: Fit, specs: Sequence[RaterSpec], prompts: int, made: OwnPairs
) -> list[Evaluation]:
    """Evaluate out of fold, and print the leaderboards.

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
    print(f"cross-validation: {folds} folds of {prompts} prompts, {repeats} repeats")
    evaluation = CrossValidation(
        out=config.out / "evaluation", raters=raters | trained, repeats=repeats, **shared
    )
    evaluations = [crossvalidate(evaluation, _PROGRAM, made.pairs)]
    if split is None:
        shutil.rmtree(config.out / "evaluation_reward", ignore_errors=True)
    else:
        print(f"reward model: trained on {folds - 1} of {folds} folds, judged on the other one")
        held_out = CrossValidation(
            out=config.out / "evaluation_reward",
            judged_folds=1,
            raters={**raters, **trained, "reward": split},
            **shared,
        )
        evaluations.append(crossvalidate(held_out, _PROGRAM, made.pairs))
    return evaluations


def _learning_curve(config: Fit, made: OwnPairs) -> Evaluation:
    """Cross-validate the features on shares of the training prompts."""
    raters: dict[str, Any] = {"longer": {"kind": "longer"}}
    raters |= {name: {"kind": "features", "share": share} for name, share in _SHARES.items()}
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
    """What writes the audit of pairs; None where that extension is not installed."""
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
        out, program=_PROGRAM, config={"name": name, "model": model.name}, inputs=inputs
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
