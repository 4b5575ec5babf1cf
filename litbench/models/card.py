"""Write the model card and the one-line summary of a training from its record, `run.json`.

The card is what the Hub shows. It contains no texts of the pairs and no local paths.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from litbench.data.records import LABEL_TEXTS
from litbench.raters.nonstories import COLUMNS, NEGATIVES
from litbench.runs.markdown import as_text, escape
from litbench.runs.terminal import show

# The manifest's digest of a data set or model on the Hub; others are of files and packages.
_ON_HUB = re.compile(r"name:([\w-][\w.-]*/[\w.-]+)(?:[@:].*)?", re.ASCII)
_TITLES = {"reward": "Reward model", "generative": "Generative reward model"}
# Tests run its examples.
_CARD = Path(__file__).with_suffix(".md")


def model_card(
    run: Mapping[str, Any], suite: Sequence[Sequence[str]] = (), suite_date: str = ""
) -> str:
    """Write the model card from the content of `run.json`.

    Args:
        run: the content.
        suite: rows of published sets: set, agreement, that of the longer story, and agreement
            relative to people.
        suite_date: when these were computed.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData  # noqa: PLC0415

    training, evaluation, is_reward = run["training"], run["evaluation"], run["kind"] == "reward"
    base, title = str(training["options"]["model_name_or_path"]), _TITLES[run["kind"]]
    matches = {key: _ON_HUB.fullmatch(str(entry["sha256"])) for key, entry in run["inputs"].items()}
    on_hub = {key: match[1] for key, match in matches.items() if match}
    name = next((dataset for dataset in on_hub.values() if dataset == base.partition("@")[0]), None)
    results, agreement, held_out = [], [], ""
    if evaluation is not None:
        held_out = f"{evaluation['pairs']:,} held-out pairs of {evaluation['prompts']:,} prompts"
        for row in evaluation["raters"]:
            is_this = row["kind"] == run["kind"]
            columns = ("agreement", "chosen_longer", "chosen_shorter")
            agreement.append(
                (
                    "this model" if is_this else f"the {row['rater']} story",
                    *(_interval(row[column]) for column in columns),
                    f"{row['coverage']:.1%}",
                )
            )
            if is_this and (mean := row["agreement"]["mean"]) is not None:
                result = EvalResult("preference", "pairs", held_out, "accuracy", round(mean, 4))
                result.metric_name = "agreement"
                results.append(result)
    labels = {**LABEL_TEXTS, NEGATIVES: "texts that are not stories, made by code, as rejected"}
    data = ModelCardData(
        library_name="peft" if run["adapter"] else "transformers",
        base_model=name,
        language=run["config"].get("language"),
        license="other",
        license_name="licence-of-the-base-model",
        license_link=name and f"https://huggingface.co/{name}",
        datasets=[on_hub["pairs"]] if "pairs" in on_hub else None,
        pipeline_tag="text-classification" if is_reward else "text-generation",
        tags=["litbench", f"{'' if is_reward else 'generative-'}reward-model", "preference"],
        model_name=title if results else None,
        eval_results=results or None,
    )
    card = ModelCard.from_template(
        data,
        template_path=str(_CARD),
        run=run,
        is_reward=is_reward,
        title=title,
        base=escape(as_text(base)),
        inputs=[
            (key, Path(entry["path"]).name, _digest(str(entry["sha256"])))
            for key, entry in run["inputs"].items()
        ],
        counts={"prompts": len(run["training_prompts"]), **training["counts"]},
        labels="; ".join(labels.get(name, escape(name)) for name in run["label_source"]),
        held_out=held_out,
        agreement=agreement,
        suite=suite,
        suite_date=suite_date,
        program=escape(run["program"]),
        finished=escape(run["finished_utc"]),
        nonstories=[[row[name] for name in COLUMNS] for row in run.get("nonstories", ())],
        table=_table,
    )
    return str(card)


def run_text(run: Mapping[str, Any]) -> str:
    """Summary of a training and its evaluation in one line."""
    training, evaluation = run["training"], run["evaluation"]
    counts = training["counts"]
    results = []
    if training["validation"]:
        step = min(training["validation"], key=lambda row: abs(row["step"] - training["kept_step"]))
        accuracy = step.get("accuracy", step.get("mean_token_accuracy"))
        shown = "" if accuracy is None else f", accuracy {accuracy:.3f}"
        results.append(
            f"step {training['kept_step']} kept, loss {step['loss']:.3f}{shown} on "
            f"{training['validation_counts']['pairs']:,} validation pairs"
        )
    if evaluation is not None:
        (row,) = (row for row in evaluation["raters"] if row["kind"] == run["kind"])
        (longer,) = (row for row in evaluation["raters"] if row["kind"] == "longer")
        results.append(
            f"agreement {_interval(row['agreement'])} on {evaluation['pairs']:,} pairs "
            f"of {evaluation['prompts']:,} prompts; longer story {_interval(longer['agreement'])} "
            "on the same pairs"
        )
    return (
        f"{counts['pairs']:,} pairs ({counts['pairs_cut']} truncated), {training['steps']} steps "
        f"in {training['seconds']:.0f} s, last loss {training['curve'][-1]['loss']:.3f}; "
        + ("; ".join(results) or "no held-out pairs were given")
    )


def _digest(digest: str) -> str:
    return digest.removeprefix("name:") if digest.startswith("name:") else digest[:24]


def _interval(estimate: Mapping[str, Any]) -> str:
    low, mean, high = (
        "?" if estimate[key] is None else f"{estimate[key]:.3f}" for key in ("low", "mean", "high")
    )
    return f"{mean} ({low} to {high})"


def _table(heading: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    texts = [
        tuple(f"{cell:,}" if type(cell) is int else as_text(cell) for cell in row) for row in rows
    ]
    return show([heading, *texts], "md") + "\n"
