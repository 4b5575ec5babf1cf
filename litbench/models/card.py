"""Write the model card and the one-line summary of a training from its record, `run.json`.

The card is what the Hub shows. It contains no texts of the pairs and no local paths.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from litbench.markdown import as_text, escape, make_rows

# A name on the Hub. A card cannot link to anything else, such as a folder or a package.
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)
_TITLES = {"reward": "Reward model", "generative": "Generative reward model"}
_LABELS = {
    "votes": "The chosen story of a pair has more reader votes than the rejected one.",
    "people": "Annotators chose the better story of a pair.",
    "model": "A model, not a person, chose the better story of a pair.",
    "planted": "**The votes behind these labels are simulated. No claim about readers, writers or "
    "models can be made from them.**",
}
# Tests run the examples.
_CARD = """\
---
{{ card_data }}
---
# {{ title }} on {{ base }}

{% if is_reward -%}
A Bradley-Terry reward model: one number for a prompt and a story, higher for stories that readers
are predicted to prefer.
{%- else -%}
A generative reward model: it reads a prompt and two stories, A and B, and names the one that
readers are predicted to prefer.
{%- endif %}

## Use

With LitBench, from this folder or by the model's name on the Hub:

{% if is_reward %}    from litbench.models.reward import RewardModel

    model = RewardModel.load("FOLDER")
    rewards = model.score(["a prompt"], ["a story"])

The prompt is the user's message and the story the assistant's; the folder's chat template holds all
special tokens. transformers 5 without LitBench gives the same number:

    import torch
{%- if run.adapter %}
    from peft import AutoPeftModelForSequenceClassification as AutoModel
{%- else %}
    from transformers import AutoModelForSequenceClassification as AutoModel
{%- endif %}
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained("FOLDER")
    model = AutoModel.from_pretrained("FOLDER", num_labels=1).eval()
    model.config.pad_token_id = tokenizer.pad_token_id
    messages = [
        {"role": "user", "content": "a prompt"},
        {"role": "assistant", "content": "a story"},
    ]
    inputs = tokenizer.apply_chat_template(
        messages, return_dict=True, return_tensors="pt", truncation=True
    )
    with torch.no_grad():
        reward = model(**inputs).logits[0, 0].item()

In trl: `GRPOTrainer(reward_funcs="FOLDER", ...)`, or `RewardTrainer(model="FOLDER", ...)`.
{%- else %}    from litbench.models.generative import GenerativeModel
    from litbench.raters import BlindPair

    model = GenerativeModel.load("FOLDER")
    (readings,) = model.judge([BlindPair("a prompt", "a story", "another")])

transformers 5 loads the folder with `AutoModelForCausalLM`; `litbench.json` holds the question.
{%- endif %}

As a rater in a config:

    raters:
      verifier: {kind: {{ run.kind }}, path: FOLDER}

## Training data

{{ table(("input", "name", "SHA-256, or the commit"), inputs) }}
{{ table(("count", "number"), counts.items()) }}
{{ table(("label source", "pairs"), run.label_source.items()) }}
{{ labels }}

`run.json` and `litbench.json` hold hashes of the training prompts. LitBench refuses to evaluate the
model on these prompts.

## Training

{{ table(("option", "value"), run.training.options.items()) }}
{{ run.training.steps }} steps; the losses are in `run.json`.

## Agreement with the labels

{% if run.evaluation -%}
{{ held_out }}; not used for training or model selection. 95 % intervals, clustered by prompt.

{{ table(("rater", "agreement", "chosen is longer", "chosen is shorter", "judged"), agreement) }}
{%- else -%}
Not measured: no held-out pairs were given.
{% endif %}
## Limits

- Rewards are comparable within a prompt only: training leaves a free offset per prompt.
- The model was trained on the labels above and on texts of this kind. Its quality on other kinds of
  text, other languages, or texts optimised against it is not known.
- Licence: these weights are derived from {{ base }}, whose licence applies to them; see its page.
  The authors of the training texts keep their rights.

## Versions

Written by `{{ program }}` on {{ finished }}.

{{ table(("package", "version"), run.versions.items()) }}"""


def model_card(run: Mapping[str, Any]) -> str:
    """Write the model card from the content of `run.json`."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData  # noqa: PLC0415

    training, evaluation, is_reward = run["training"], run["evaluation"], run["kind"] == "reward"
    base, title = str(training["options"]["model_name_or_path"]), _TITLES[run["kind"]]
    on_hub = _HUB_NAME.fullmatch(name := base.partition("@")[0]) is not None
    inputs = [
        (key, str(one["path"]), str(one["sha256"])[:24]) for key, one in run["inputs"].items()
    ]
    datasets = [path.partition("@")[0] for _, path, _ in inputs]
    results, agreement, held_out = [], [], ""
    if evaluation is not None:
        held_out = f"{evaluation['pairs']:,} held-out pairs of {evaluation['prompts']:,} prompts"
        for row in evaluation["raters"]:
            own = row["kind"] == run["kind"]
            columns = ("agreement", "chosen_longer", "chosen_shorter")
            agreement.append(
                (
                    "this model" if own else f"the {row['rater']} story",
                    *(_interval(row[column]) for column in columns),
                    f"{row['coverage']:.1%}",
                )
            )
            if own and (mean := row["agreement"]["mean"]) is not None:
                result = EvalResult("preference", "pairs", held_out, "accuracy", round(mean, 4))
                result.metric_name = "agreement"
                results.append(result)
    data = ModelCardData(
        library_name="peft" if run["adapter"] else "transformers",
        base_model=name if on_hub else None,
        license="other",
        license_name="licence-of-the-base-model",
        license_link=f"https://huggingface.co/{name}" if on_hub else None,
        datasets=[one for one in datasets if _HUB_NAME.fullmatch(one)] or None,
        pipeline_tag="text-classification" if is_reward else "text-generation",
        tags=["litbench", f"{'' if is_reward else 'generative-'}reward-model", "preference"],
        model_name=title if results else None,
        eval_results=results or None,
    )
    card = ModelCard.from_template(
        data,
        template_str=_CARD,
        run=run,
        is_reward=is_reward,
        title=title,
        base=escape(as_text(base)),
        inputs=[(key, Path(path).name, digest) for key, path, digest in inputs],
        counts={"prompts": len(run["training_prompts"]), **training["counts"]},
        labels=" ".join(_LABELS.get(source, escape(source)) for source in run["label_source"]),
        held_out=held_out,
        agreement=agreement,
        program=escape(run["program"]),
        finished=escape(run["finished_utc"]),
        table=_table,
    )
    return str(card)


def run_text(run: Mapping[str, Any]) -> str:
    """Summary of a training and its evaluation in one line."""
    training, evaluation = run["training"], run["evaluation"]
    counts = training["counts"]
    result = "no held-out pairs were given"
    if evaluation is not None:
        (own,) = (row for row in evaluation["raters"] if row["kind"] == run["kind"])
        result = (
            f"agreement {_interval(own['agreement'])} on {evaluation['pairs']:,} pairs "
            f"of {evaluation['prompts']:,} prompts"
        )
    return (
        f"{counts['pairs']:,} pairs ({counts['pairs_cut']} truncated), {training['steps']} steps "
        f"in {training['seconds']:.0f} s, last loss {training['curve'][-1]['loss']:.3f}; {result}"
    )


def _interval(estimate: Mapping[str, Any]) -> str:
    low, mean, high = (
        "?" if estimate[key] is None else f"{estimate[key]:.3f}" for key in ("low", "mean", "high")
    )
    return f"{mean} ({low} to {high})"


def _table(heading: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    texts = [
        tuple(f"{cell:,}" if type(cell) is int else as_text(cell) for cell in row) for row in rows
    ]
    return "\n".join(make_rows(heading, texts))
