"""What a training leaves beside the weights: `run.json`, a model card, what was set aside.

`run.json` says what was done and what came out; the card, `README.md`, is written from it alone and
is what the Hub shows. Both lie in the model's folder, so that they go wherever it goes; neither
holds a text of the pairs, only hashes of their prompts. Folders of who trained it are left out.
"""

import re
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import yaml

from litbench.artifact import Artifact, write_json
from litbench.errors import DataError
from litbench.markdown import as_text, escape, make_rows, without_folders
from litbench.metrics.leaderboard import leaderboard, leaderboard_json
from litbench.raters import LengthRater, Rater, judge_pairs

# A name on the Hub; anything else is a folder or a package, which no card can point to.
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)
_CURVE_ROWS = 20
# Pairs that training did not use, with the reason.
REJECTED = "rejected.jsonl"

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
_LOAD = {
    "reward": """\
    from litbench.models.reward import RewardModel

    model = RewardModel.load("FOLDER")
    rewards = model.score(["a prompt", "a prompt"], ["a story", "another"])""",
    "generative": """\
    from litbench.models.generative import GenerativeModel
    from litbench.raters import BlindPair

    model = GenerativeModel.load("FOLDER")
    (readings,) = model.judge([BlindPair("a prompt", "a story", "another")])""",
}
# Run by the tests against RewardModel.score.
_PLAIN_TRANSFORMERS = """\
    import json
    from pathlib import Path

    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder, prompt, story = "FOLDER", "a prompt", "a story"
    form = json.loads(Path(folder, "litbench.json").read_text(encoding="utf-8"))["form"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype="auto").eval()

    def tokens(text):
        return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    start = form["prefix"] + tokens(prompt)[: form["max_prompt_tokens"]] + form["middle"]
    room = form["max_length"] - len(start) - len(form["suffix"])
    ids = torch.tensor([start + tokens(story)[:room] + form["suffix"]])
    with torch.no_grad():
        reward = model(input_ids=ids).logits[0, 0].item()"""


class TrainedModel(Rater, Protocol):
    """What a trainer of this package returns: a rater with a record of its training."""

    prompts: frozenset[str]
    training_record: dict[str, Any]
    adapter: Any

    def save(self, folder: Path) -> None:
        """Write the model's folder."""


def judge_held_out(rater: Rater, pairs: pa.Table) -> dict[str, Any]:
    """Let a trained model and both length baselines judge pairs it was not trained on.

    Args:
        rater: the model.
        pairs: table by the schema PAIRS; the caller has seen to it that no prompt was trained on.

    Returns:
        Plain values: pairs, prompts, where the labels are from, and the leaderboard's rows.
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
    """Judge, then write the model's folder, `rejected.jsonl` and the manifest.

    Args:
        artifact: of the program.
        model: as its trainer returned it.
        pairs: the pairs it was given to train on.
        held_out: pairs to judge at the end; they choose nothing.
        checkpoints: the trainer's folder; removed when all is written. It is not there when the
            model was trained before and only judged now.
        fingerprint: of `litbench.models.training.training_fingerprint`.

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
        "evaluation": None if held_out is None else judge_held_out(model, held_out),
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
    training = run["training"]
    counts = training["counts"]
    return (
        f"{counts['pairs']:,} pairs ({counts['pairs_cut']} cut to fit), {training['steps']} steps "
        f"in {training['seconds']:.0f} s, last loss {training['curve'][-1]['loss']:.3f}; "
        f"{_agreement_text(run)}"
    )


def _agreement_text(run: Mapping[str, Any]) -> str:
    if run["evaluation"] is None:
        return "no pairs were given to judge at the end"
    row = next(row for row in run["evaluation"]["raters"] if row["kind"] == run["kind"])
    found = run["evaluation"]
    return (
        f"agreement {_interval(row['agreement'])} on {found['pairs']:,} pairs of "
        f"{found['prompts']:,} prompts"
    )


def _interval(found: Mapping[str, Any]) -> str:
    bounds = [found[key] for key in ("low", "high")]
    shown = " to ".join("?" if bound is None else f"{bound:.3f}" for bound in bounds)
    mean = "?" if found["mean"] is None else f"{found['mean']:.3f}"
    return f"{mean} ({shown})"


def model_card(run: Mapping[str, Any]) -> str:
    """The card.

    Args:
        run: content of `run.json`.

    Raises:
        DataError: it lacks something, as one that LitBench did not write.
    """
    try:
        return "\n".join(
            [
                _front_matter(run),
                f"# {_title(run)}",
                "",
                _ABOUT[run["kind"]],
                "",
                *_describe_loading(run),
                *_describe_data(run),
                *_describe_training(run),
                *_describe_agreement(run),
                *_describe_limits(run),
                *_describe_versions(run),
            ]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"run.json lacks {error}, which the card tells: train the model again"
        ) from error


def _base_model(run: Mapping[str, Any]) -> str | None:
    name = str(run["training"]["options"]["model_name_or_path"]).partition("@")[0]
    return name if _HUB_NAME.fullmatch(name) else None


def _title(run: Mapping[str, Any]) -> str:
    about = {"reward": "Reward model", "generative": "Generative reward model"}[run["kind"]]
    return f"{about} on {escape(as_text(run['training']['options']['model_name_or_path']))}"


def _front_matter(run: Mapping[str, Any]) -> str:
    content: dict[str, Any] = {"library_name": "peft" if run["adapter"] else "transformers"}
    base = _base_model(run)
    if base is not None:
        content |= {
            "base_model": base,
            "base_model_relation": "adapter" if run["adapter"] else "finetune",
        }
    is_reward = run["kind"] == "reward"
    content |= {
        "pipeline_tag": "text-classification" if is_reward else "text-generation",
        "tags": [
            "litbench",
            "reward-model" if is_reward else "generative-reward-model",
            "creative-writing",
            "preference",
        ],
    }
    return f"---\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}---\n"


def _describe_loading(run: Mapping[str, Any]) -> list[str]:
    lines = ["## Use", "", "With LitBench, from this folder or by its name on the Hub:", ""]
    lines += [_LOAD[run["kind"]], "", "or as a rater in a config:", ""]
    lines += [f"    raters:\n      verifier: {{kind: {run['kind']}, path: FOLDER}}", ""]
    if run["adapter"]:
        return [
            *lines,
            "The folder holds an adapter; LitBench loads the base model beside it. Other tools "
            "need peft, and the joined form of the input in `litbench.json`.",
            "",
        ]
    if run["kind"] == "reward":
        return [
            *lines,
            "With transformers alone, for the same number:",
            "",
            _PLAIN_TRANSFORMERS,
            "",
        ]
    return [
        *lines,
        "transformers loads the folder with `AutoModelForCausalLM`; the question as token ids, and "
        "which tokens are the labels, stand in `litbench.json`.",
        "",
    ]


def _describe_data(run: Mapping[str, Any]) -> list[str]:
    rows = [
        (name, Path(str(source["path"])).name, str(source["sha256"])[:24])
        for name, source in run["inputs"].items()
    ]
    counts = [
        ("prompts", f"{len(run['training_prompts']):,}"),
        *((name.replace("_", " "), f"{n:,}") for name, n in run["training"]["counts"].items()),
    ]
    sources = run["label_source"]
    return [
        "## Training data",
        "",
        *make_rows(("input", "name", "SHA-256, or the commit"), rows),
        *make_rows(("counted", "number"), counts),
        *make_rows(("label source", "pairs"), [(name, f"{n:,}") for name, n in sources.items()]),
        *(line for name in sources for line in (_LABELS.get(name, escape(name)), "")),
        "`run.json` and `litbench.json` hold hashes of the training prompts: LitBench refuses to "
        "evaluate the model on one of them.",
        "",
    ]


def _describe_training(run: Mapping[str, Any]) -> list[str]:
    training = run["training"]
    options = [(key, as_text(value)) for key, value in training["options"].items()]
    figures = [
        (name.replace("_", " "), as_text(training[name]))
        for name in (
            "device", "bf16", "processes", "steps", "kept_step", "seconds", "tokens_per_second",
            "parameters", "parameters_trained",
        )
    ]  # fmt: skip
    curve = training["curve"]
    every = max(1, -(-len(curve) // _CURVE_ROWS))
    shown = [*curve[every - 1 :: every]]
    if curve and (not shown or shown[-1] is not curve[-1]):
        shown.append(curve[-1])
    points = [(p["step"], f"{p['loss']:.4f}", _accuracy(p)) for p in shown]
    lines = [
        "## Training",
        "",
        *make_rows(("option", "value"), options),
        *make_rows(("figure", "value"), figures),
        *make_rows(("step", "loss", "accuracy on the step's own pairs"), points),
    ]
    if training["validation"]:
        validated = [
            (p["step"], f"{p['epoch']:g}", f"{p['loss']:.4f}", _accuracy(p))
            for p in training["validation"]
        ]
        heading = ("step", "epoch", "validation loss", "validation accuracy")
        lines += [
            f"The {training['validation_counts']['pairs']:,} validation pairs are of training "
            "prompts that were held back; their loss chose the checkpoint, so it is too good by "
            "that choice.",
            "",
            *make_rows(heading, validated),
        ]
    return lines


def _accuracy(point: Mapping[str, float]) -> str:
    """Share of pairs, or of an answer's tokens, that the model has right."""
    return f"{point.get('accuracy', point.get('mean_token_accuracy', 0.0)):.3f}"


def _describe_agreement(run: Mapping[str, Any]) -> list[str]:
    found = run["evaluation"]
    lines = ["## Agreement with the labels", ""]
    if found is None:
        return [*lines, "Not measured: no pairs were given to judge at the end.", ""]
    rows = [
        (
            "this model" if row["kind"] == run["kind"] else f"the {row['rater']} story",
            _interval(row["agreement"]),
            _interval(row["chosen_longer"]),
            _interval(row["chosen_shorter"]),
            f"{row['coverage']:.1%}",
        )
        for row in found["raters"]
    ]
    heading = ("rater", "agreement", "chosen is longer", "chosen is shorter", "judged")
    return [
        *lines,
        f"{found['pairs']:,} pairs of {found['prompts']:,} prompts, none of which was trained on; "
        "they chose nothing. 95 % intervals, clustered by prompt.",
        "",
        *make_rows(heading, rows),
        *(line for name in found["label_source"] for line in (_LABELS.get(name, escape(name)), "")),
    ]


def _describe_limits(run: Mapping[str, Any]) -> list[str]:
    base = escape(as_text(run["training"]["options"]["model_name_or_path"]))
    rewards = [
        "- Rewards are comparable within a prompt only: training leaves a free offset per prompt."
    ]
    return [
        "## Limits",
        "",
        *(rewards if run["kind"] == "reward" else []),
        "- It learned what the labels above say, of texts like these. How it judges other kinds of "
        "text, other languages, or texts written to please it, is not known.",
        f"- The licence of {base} applies to these weights as well; see its page.",
        "",
    ]


def _describe_versions(run: Mapping[str, Any]) -> list[str]:
    return [
        "## Versions",
        "",
        f"By `{escape(run['program'])}` on {escape(run['finished_utc'])}.",
        "",
        *make_rows(("library", "version"), list(run["versions"].items())),
    ]
