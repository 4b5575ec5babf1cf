"""Write the record of a training: `run.json`, a model card, rejected pairs.

`run.json` holds the config and the results; the card, `README.md`, is written from `run.json` only
and is what the Hub shows. Neither contains texts of the pairs (only hashes of their prompts) or
local paths.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import pyarrow as pa

from litbench.artifact import Artifact, write_json
from litbench.markdown import as_text, escape, make_rows, without_folders
from litbench.metrics.leaderboard import leaderboard, leaderboard_json
from litbench.raters import LengthRater, Rater, ScoreRater, judge_pairs

# A name on the Hub. A card cannot link to anything else, such as a folder or a package.
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)
# Pairs that training did not use, with the reason.
REJECTED = "rejected.jsonl"

_TITLES = {"reward": "Reward model", "generative": "Generative reward model"}
_ABOUT = {
    "reward": "A Bradley-Terry reward model: one number for a prompt and a story, higher for "
    "stories that readers are predicted to prefer.",
    "generative": "A generative reward model: it reads a prompt and two stories, A and B, and "
    "names the one that readers are predicted to prefer.",
}
_LABELS = {
    "votes": "The chosen story of a pair has more reader votes than the rejected one.",
    "people": "Annotators chose the better story of a pair.",
    "model": "A model, not a person, chose the better story of a pair.",
    "planted": "**The votes behind these labels are simulated. No claim about readers, writers or "
    "models can be made from them.**",
}
# Tests run these examples.
_USE = {
    "reward": """\
    from litbench.models.reward import RewardModel

    model = RewardModel.load("FOLDER")
    rewards = model.score(["a prompt"], ["a story"])

The prompt is the user's message and the story the assistant's; the folder's chat template holds all
special tokens. transformers 5 without LitBench gives the same number:

    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained("FOLDER")
    model = LOADER
    messages = [
        {"role": "user", "content": "a prompt"},
        {"role": "assistant", "content": "a story"},
    ]
    inputs = tokenizer.apply_chat_template(
        messages, return_dict=True, return_tensors="pt", truncation=True
    )
    with torch.no_grad():
        reward = model(**inputs).logits[0, 0].item()

In trl: `GRPOTrainer(reward_funcs="FOLDER", ...)`, or `RewardTrainer(model="FOLDER", ...)`.""",
    "generative": """\
    from litbench.models.generative import GenerativeModel
    from litbench.raters import BlindPair

    model = GenerativeModel.load("FOLDER")
    (readings,) = model.judge([BlindPair("a prompt", "a story", "another")])

transformers 5 loads the folder with `AutoModelForCausalLM`; `litbench.json` holds the question.""",
}
_WHOLE = 'AutoModelForSequenceClassification.from_pretrained("FOLDER").eval()'
_ADAPTER = """\
AutoPeftModelForSequenceClassification.from_pretrained("FOLDER", num_labels=1).eval()
    model.config.pad_token_id = tokenizer.pad_token_id"""


class TrainedModel(Protocol):
    """A rater with a record of its training, as the trainers of this package return it."""

    kind: str
    prompts: frozenset[str]
    training_record: dict[str, Any]
    adapter: Any

    def save(self, folder: Path) -> None:
        """Write the model's folder."""


def judge_held_out(rater: Rater, pairs: pa.Table) -> dict[str, Any]:
    """Judge held-out pairs with a trained model and both length baselines.

    Returns:
        Number of pairs and prompts, label sources, and one leaderboard row per rater, as JSON
        values.
    """
    raters = [rater, LengthRater("longer", "longer", 1), LengthRater("shorter", "shorter", -1)]
    verdicts = pa.concat_tables([judge_pairs(one, pairs) for one in raters])
    rows = leaderboard_json(leaderboard(verdicts, pairs, "longer"))
    return {
        "pairs": pairs.num_rows,
        "prompts": rows[0]["agreement"]["clusters"],
        "label_source": dict(Counter(pairs["label_source"].to_pylist())),
        "raters": rows,
    }


def write_trained_model(
    artifact: Artifact,
    model: TrainedModel,
    pairs: pa.Table,
    held_out: pa.Table | None,
    checkpoints: Path,
    fingerprint: str,
) -> dict[str, Any]:
    """Judge the held-out pairs, then write the model's folder, `rejected.jsonl` and the manifest.

    `held_out` is not used for model selection. `checkpoints` is the trainer's folder. It is removed
    at the end, and does not exist if the model was trained before and is only judged now.

    Returns:
        The content of `run.json`.
    """
    if isinstance(model, ScoreRater):
        model.score_training_stories(pairs)
    record = model.training_record
    manifest = artifact.as_manifest()
    artifact.counts = {
        "prompts": len(model.prompts),
        **record["counts"],
        "training": record,
        "training_fingerprint": fingerprint,
    }
    run = {
        **{key: manifest[key] for key in ("program", "finished_utc", "versions")},
        "kind": model.kind,
        "adapter": model.adapter is not None,
        "config": without_folders(manifest["config"]),
        "inputs": without_folders(manifest["inputs"]),
        "label_source": dict(Counter(pairs["label_source"].to_pylist())),
        "training": {**record, "options": without_folders(record["options"])},
        "evaluation": None if held_out is None else judge_held_out(cast(Rater, model), held_out),
        "training_prompts": sorted(model.prompts),
    }

    def write(folder: Path) -> None:
        model.save(folder)
        write_json(run, folder / "run.json")
        (folder / "README.md").write_text(model_card(run), encoding="utf-8")

    artifact.write_folder("model", write)
    fresh = checkpoints / REJECTED
    rejected_rows = fresh if fresh.exists() else artifact.folder / REJECTED
    artifact.write(REJECTED, lambda path: shutil.copyfile(rejected_rows, path))
    if run["evaluation"] is not None:
        artifact.counts["evaluation"] = run["evaluation"]
    artifact.finish()
    shutil.rmtree(checkpoints, ignore_errors=True)
    return run


def run_text(run: Mapping[str, Any]) -> str:
    """Summary of a training and its evaluation in one line."""
    training, evaluation = run["training"], run["evaluation"]
    counts = training["counts"]
    result = "no held-out pairs were given"
    if evaluation is not None:
        result = (
            f"agreement {_interval(_own_row(run)['agreement'])} on {evaluation['pairs']:,} pairs "
            f"of {evaluation['prompts']:,} prompts"
        )
    return (
        f"{counts['pairs']:,} pairs ({counts['pairs_cut']} truncated), {training['steps']} steps "
        f"in {training['seconds']:.0f} s, last loss {training['curve'][-1]['loss']:.3f}; {result}"
    )


def _own_row(run: Mapping[str, Any]) -> Mapping[str, Any]:
    rows: list[Mapping[str, Any]] = run["evaluation"]["raters"]
    return next(row for row in rows if row["kind"] == run["kind"])


def _interval(estimate: Mapping[str, Any]) -> str:
    low, mean, high = (
        "?" if estimate[key] is None else f"{estimate[key]:.3f}" for key in ("low", "mean", "high")
    )
    return f"{mean} ({low} to {high})"


def model_card(run: Mapping[str, Any]) -> str:
    """Write the model card from the content of `run.json`."""
    training, kind = run["training"], run["kind"]
    base = escape(as_text(training["options"]["model_name_or_path"]))
    use = _USE[kind].replace("LOADER", _ADAPTER if run["adapter"] else _WHOLE)
    if run["adapter"] and kind == "reward":
        use = use.replace(
            "    from transformers import AutoModelForSequenceClassification, AutoTokenizer",
            "    from peft import AutoPeftModelForSequenceClassification\n"
            "    from transformers import AutoTokenizer",
        )
    inputs = [
        (name, Path(str(source["path"])).name, str(source["sha256"])[:24])
        for name, source in run["inputs"].items()
    ]
    counts = {"prompts": len(run["training_prompts"]), **training["counts"]}
    sources = run["label_source"]
    return f"""---
{_metadata(run).to_yaml()}
---
# {_TITLES[kind]} on {base}

{_ABOUT[kind]}

## Use

With LitBench, from this folder or by the model's name on the Hub:

{use}

As a rater in a config:

    raters:
      verifier: {{kind: {kind}, path: FOLDER}}

## Training data

{_table(("input", "name", "SHA-256, or the commit"), inputs)}
{_table(("count", "number"), counts.items())}
{_table(("label source", "pairs"), sources.items())}
{" ".join(_LABELS.get(name, escape(name)) for name in sources)}

`run.json` and `litbench.json` hold hashes of the training prompts. LitBench refuses to evaluate the
model on these prompts.

## Training

{_table(("option", "value"), training["options"].items())}
{training["steps"]} steps; the losses are in `run.json`.

## Agreement with the labels

{_agreement(run)}
## Limits

- Rewards are comparable within a prompt only: training leaves a free offset per prompt.
- The model was trained on the labels above and on texts of this kind. Its quality on other kinds of
  text, other languages, or texts optimised against it is not known.
- Licence: these weights are derived from {base}, whose licence applies to them; see its page. The
  authors of the training texts keep their rights.

## Versions

Written by `{escape(run["program"])}` on {escape(run["finished_utc"])}.

{_table(("package", "version"), run["versions"].items())}"""


def _table(heading: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    texts = [
        tuple(f"{cell:,}" if type(cell) is int else as_text(cell) for cell in row) for row in rows
    ]
    return "\n".join(make_rows(heading, texts))


def _metadata(run: Mapping[str, Any]) -> Any:
    """Front matter of the card, for the Hub."""
    from huggingface_hub import EvalResult, ModelCardData  # noqa: PLC0415

    is_reward, evaluation = run["kind"] == "reward", run["evaluation"]
    base = str(run["training"]["options"]["model_name_or_path"]).partition("@")[0]
    on_hub = _HUB_NAME.fullmatch(base) is not None
    sources = [str(source["path"]).partition("@")[0] for source in run["inputs"].values()]
    results = None
    if evaluation is not None and (mean := _own_row(run)["agreement"]["mean"]) is not None:
        name = f"{evaluation['pairs']:,} held-out pairs of {evaluation['prompts']:,} prompts"
        result = EvalResult("preference", "pairs", name, "accuracy", round(mean, 4))
        result.metric_name = "agreement"
        results = [result]
    return ModelCardData(
        library_name="peft" if run["adapter"] else "transformers",
        base_model=base if on_hub else None,
        license="other",
        license_name="licence-of-the-base-model",
        license_link=f"https://huggingface.co/{base}" if on_hub else None,
        datasets=[name for name in sources if _HUB_NAME.fullmatch(name)] or None,
        pipeline_tag="text-classification" if is_reward else "text-generation",
        tags=["litbench", f"{'' if is_reward else 'generative-'}reward-model", "preference"],
        model_name=_TITLES[run["kind"]] if results else None,
        eval_results=results,
    )


def _agreement(run: Mapping[str, Any]) -> str:
    evaluation = run["evaluation"]
    if evaluation is None:
        return "Not measured: no held-out pairs were given.\n"
    rows = [
        (
            "this model" if row["kind"] == run["kind"] else f"the {row['rater']} story",
            *(_interval(row[key]) for key in ("agreement", "chosen_longer", "chosen_shorter")),
            f"{row['coverage']:.1%}",
        )
        for row in evaluation["raters"]
    ]
    heading = ("rater", "agreement", "chosen is longer", "chosen is shorter", "judged")
    return (
        f"{evaluation['pairs']:,} held-out pairs of {evaluation['prompts']:,} prompts; not used "
        "for training or model selection. 95 % intervals, clustered by prompt.\n\n"
        f"{_table(heading, rows)}\n"
    )
