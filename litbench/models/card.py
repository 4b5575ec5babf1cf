"""What a training leaves beside the weights: `run.json`, a model card, rejected pairs.

`run.json` says what was done and what came out; the card, `README.md`, is written from it alone and
is what the Hub shows. Neither holds a text of the pairs, only hashes of their prompts, nor a folder
of who trained it.
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
from litbench.raters import LengthRater, Rater, judge_pairs

# A name on the Hub; anything else is a folder or a package, which no card can point to.
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)
# Pairs that training did not use, with the reason.
REJECTED = "rejected.jsonl"

_TITLES = {"reward": "Reward model", "generative": "Generative reward model"}
_ABOUT = {
    "reward": "A Bradley-Terry reward model: one number for a prompt and a story, higher for the "
    "story that readers are thought to prefer.",
    "generative": "A generative reward model: it reads a prompt and two stories, A and B, and "
    "names the one that readers are thought to prefer.",
}
_LABELS = {
    "votes": "The chosen story of a pair has more votes of readers than the rejected one.",
    "people": "People said which story of a pair is better.",
    "model": "A model said which story of a pair is better, not people.",
    "planted": "**The votes behind these labels are simulated. No claim about readers, writers or "
    "models can be made from them.**",
}
# The examples are run by the tests.
_USE = {
    "reward": """\
    from litbench.models.reward import RewardModel

    model = RewardModel.load("FOLDER")
    rewards = model.score(["a prompt"], ["a story"])

The prompt is the user's message and the story the assistant's; the folder's chat template holds all
special tokens. With transformers 5 alone, for the same number:

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
    """What a trainer of this package returns: a rater with a record of its training."""

    kind: str
    prompts: frozenset[str]
    training_record: dict[str, Any]
    adapter: Any

    def save(self, folder: Path) -> None:
        """Write the model's folder."""


def judge_held_out(rater: Rater, pairs: pa.Table) -> dict[str, Any]:
    """Judge held-out pairs with a trained model and both length baselines; plain values."""
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
    """Judge, then write the model's folder, `rejected.jsonl` and the manifest.

    `held_out` chooses nothing. `checkpoints` is the trainer's folder; it is removed when all is
    written, and not there when the model was trained before and is only judged now.

    Returns:
        What stands in `run.json`.
    """
    record = model.training_record
    made = artifact.as_manifest()
    artifact.counts = {
        "prompts": len(model.prompts),
        **record["counts"],
        "training": record,
        "training_fingerprint": fingerprint,
    }
    run = {
        **{key: made[key] for key in ("program", "finished_utc", "versions")},
        "kind": model.kind,
        "adapter": model.adapter is not None,
        "config": without_folders(made["config"]),
        "inputs": without_folders(made["inputs"]),
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
    """What a training used and what came out, in a line."""
    training, found = run["training"], run["evaluation"]
    counts = training["counts"]
    result = "no pairs were given to judge at the end"
    if found is not None:
        result = (
            f"agreement {_interval(_own_row(run)['agreement'])} on {found['pairs']:,} pairs of "
            f"{found['prompts']:,} prompts"
        )
    return (
        f"{counts['pairs']:,} pairs ({counts['pairs_cut']} cut to fit), {training['steps']} steps "
        f"in {training['seconds']:.0f} s, last loss {training['curve'][-1]['loss']:.3f}; {result}"
    )


def _own_row(run: Mapping[str, Any]) -> Mapping[str, Any]:
    rows: list[Mapping[str, Any]] = run["evaluation"]["raters"]
    return next(row for row in rows if row["kind"] == run["kind"])


def _interval(found: Mapping[str, Any]) -> str:
    low, mean, high = (
        "?" if found[key] is None else f"{found[key]:.3f}" for key in ("low", "mean", "high")
    )
    return f"{mean} ({low} to {high})"


def model_card(run: Mapping[str, Any]) -> str:
    """The card, from the content of `run.json`."""
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

With LitBench, from this folder or by its name on the Hub:

{use}

As a rater in a config:

    raters:
      verifier: {{kind: {kind}, path: FOLDER}}

## Training data

{_table(("input", "name", "SHA-256, or the commit"), inputs)}
{_table(("counted", "number"), counts.items())}
{_table(("label source", "pairs"), sources.items())}
{" ".join(_LABELS.get(name, escape(name)) for name in sources)}

`run.json` and `litbench.json` hold hashes of the training prompts: LitBench refuses to evaluate the
model on one of them.

## Training

{_table(("option", "value"), training["options"].items())}
{training["steps"]} steps; the losses are in `run.json`.

## Agreement with the labels

{_agreement(run)}
## Limits

- Rewards are comparable within a prompt only: training leaves a free offset per prompt.
- It learned what the labels above say, of texts like these. How it judges other kinds of text,
  other languages, or texts written to please it, is not known.
- Licence: these weights are derived from {base}, whose licence applies to them; see its page. Texts
  of the training data keep their authors' rights.

## Versions

By `{escape(run["program"])}` on {escape(run["finished_utc"])}.

{_table(("package", "version"), run["versions"].items())}"""


def _table(heading: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    shown = [
        tuple(f"{cell:,}" if type(cell) is int else as_text(cell) for cell in row) for row in rows
    ]
    return "\n".join(make_rows(heading, shown))


def _metadata(run: Mapping[str, Any]) -> Any:
    """The front matter, which the Hub reads."""
    from huggingface_hub import EvalResult, ModelCardData  # noqa: PLC0415

    is_reward, found = run["kind"] == "reward", run["evaluation"]
    base = str(run["training"]["options"]["model_name_or_path"]).partition("@")[0]
    on_hub = _HUB_NAME.fullmatch(base) is not None
    sources = [str(source["path"]).partition("@")[0] for source in run["inputs"].values()]
    results = None
    if found is not None and (mean := _own_row(run)["agreement"]["mean"]) is not None:
        name = f"{found['pairs']:,} held-out pairs of {found['prompts']:,} prompts"
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
    found = run["evaluation"]
    if found is None:
        return "Not measured: no pairs were given to judge at the end.\n"
    rows = [
        (
            "this model" if row["kind"] == run["kind"] else f"the {row['rater']} story",
            *(_interval(row[key]) for key in ("agreement", "chosen_longer", "chosen_shorter")),
            f"{row['coverage']:.1%}",
        )
        for row in found["raters"]
    ]
    heading = ("rater", "agreement", "chosen is longer", "chosen is shorter", "judged")
    return (
        f"{found['pairs']:,} pairs of {found['prompts']:,} prompts, none of which was trained on; "
        f"they chose nothing. 95 % intervals, clustered by prompt.\n\n{_table(heading, rows)}\n"
    )
