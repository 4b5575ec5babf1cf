"""Train a generative reward model with trl's SFTTrainer (paper 4.2; Zhang et al., 2024).

GenRM learns the label A or B after the question; GenRM-CoT learns a rationale, the verdict line and
the end of turn. The loss is cross-entropy on the tokens of the answer. A seeded hash
assigns the positions, half A and half B. A pair with a rationale keeps its order.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from trl import SFTConfig, SFTTrainer

from litbench.models.generative import (
    GenerativeModel,
    choose_template,
    require_packing,
)
from litbench.models.question import VERDICT, Question, tokenize
from litbench.models.training import (
    PairTrainer,
    TokenisedPairs,
    TrainingOptions,
    load_to_train,
    option,
    train,
    train_inside,
    training_parts,
)
from litbench.raters.templates.template import assign_positions, template_files
from litbench.runs.errors import ConfigError, DataError


@dataclass(kw_only=True)
class GenerativeTraining(TrainingOptions, SFTConfig):  # type: ignore[misc]
    """Configuration of training a generative reward model; see `--help`."""

    max_length: int = option(4_096, "Maximum number of tokens of question and answer.")
    max_prompt_tokens: int = option(256, "Maximum number of tokens of the prompt.")
    max_answer_tokens: int | None = option(
        None,
        "Maximum number of tokens of the answer; 512 with an explanation. Pairs with longer "
        "answers are rejected.",
    )
    template: str | None = option(
        None,
        "Name or path of the question's template; one with an explanation needs pairs with the "
        "columns rationale and rationale_first (data_prep/make_rationales.py). Default: "
        "verdict_label, or minimal with answer or form: story.",
    )
    form: Literal["chat", "story"] = option(
        "chat", "Question: chat for prompt and stories, or story for the two stories alone."
    )
    answer: Literal["label", "explanation"] | None = option(
        None, "Form of answer to use from a family of templates."
    )

    def __post_init__(self) -> None:
        """Train without padding."""
        self.padding_free = True
        super().__post_init__()

    def files(self) -> dict[str, str]:
        """Model and custom template, by key."""
        return {**super().files(), **template_files(self.template)}

    def train(self, name: str, pairs: pa.Table, folder: Path, seed: int) -> Any:
        """Train a rater inside cross-validation; see `train_inside`."""
        return train_inside(train_generative_model, self, name, pairs, folder, seed)


class PackedSFTTrainer(PairTrainer, SFTTrainer):  # type: ignore[misc]
    """trl's SFTTrainer on rows without padding."""


def tokenise(pairs: pa.Table, tokenizer: Any, question: Question, seed: int) -> TokenisedPairs:
    """Tokenise pairs as questions with answers.

    If the table has rationales, pairs without one are rejected for both forms of answer, so that
    GenRM and GenRM-CoT train on the same pairs.
    """
    ids = pairs["pair_id"].to_pylist()
    chosen_is_a: list[bool] = list(assign_positions(ids, seed))
    rationales: list[str | None] = ["none asked for"] * len(ids)
    columns = {"rationale", "rationale_first"}
    if columns <= set(pairs.column_names):
        rationales = pairs["rationale"].to_pylist()
        if question.explains:
            # The rationale's text names Story A and Story B in this order.
            chosen_is_a = [first == "chosen" for first in pairs["rationale_first"].to_pylist()]
    elif question.explains:
        raise DataError(
            "the template asks for an explanation, and the pairs lack the columns rationale and "
            "rationale_first: add them with data_prep/make_rationales.py, or use the template "
            "verdict_label"
        )
    stories = list(zip(pairs["chosen"].to_pylist(), pairs["rejected"].to_pylist(), strict=True))
    ordered = [
        pair if is_a else pair[::-1] for is_a, pair in zip(chosen_is_a, stories, strict=True)
    ]
    first, second = ([pair[side] for pair in ordered] for side in (0, 1))
    questions = question.ask(tokenizer, pairs["prompt"].to_pylist(), first, second)
    rows: list[dict[str, Any]] = []
    reasons: dict[int, str] = {}
    shortened = 0
    for index, pair_id in enumerate(ids):
        answer = [question.label_ids[0 if chosen_is_a[index] else 1][0]]
        if question.explains:
            text = f"{(rationales[index] or '').strip()}\n\n{VERDICT}"
            answer = [*tokenize(tokenizer, [text])[0], *answer, *question.end]
        if not rationales[index]:
            reasons[index] = "no rationale"
        elif len(answer) > question.max_answer_tokens:
            reasons[index] = "answer longer than max_answer_tokens"
        if index in reasons:
            continue
        shortened += questions.cut[index]
        tokens = [*questions.ids[index], *answer]
        labels = [-100] * len(questions.ids[index]) + answer
        rows.append(
            {"pair_id": pair_id, "input_ids": tokens, "labels": labels, "length": len(tokens)}
        )
    return TokenisedPairs.make(rows, pairs, reasons, shortened)


def train_generative_model(
    pairs: pa.Table, options: GenerativeTraining, folder: Path, name: str = "generative"
) -> GenerativeModel | None:
    """Train a generative reward model on preference pairs; see `train_reward_model`."""
    template = choose_template(options.template, options.answer, options.form)
    if template.answer not in ("label", "explanation"):
        raise ConfigError(
            f"template {template.name} asks for the answer form {template.answer}, which cannot "
            "be trained: use one that asks for a label or an explanation"
        )
    reads_prompt = "prompt" in template.slots
    model, tokenizer = load_to_train(pairs, options, "language", reads_prompt=reads_prompt)
    require_packing(model, options.model_name())
    question = Question.make(
        tokenizer,
        model,
        template,
        max_length=options.max_length,
        max_prompt_tokens=options.max_prompt_tokens,
        max_answer_tokens=options.max_answer_tokens,
    )
    parts = [
        tokenise(part, tokenizer, question, options.seed) for part in training_parts(pairs, options)
    ]
    trained = train(PackedSFTTrainer, model, tokenizer, options, parts, pairs, folder, "language")
    return GenerativeModel(question=question, **trained, name=name) if trained else None
