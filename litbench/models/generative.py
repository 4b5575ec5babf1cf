"""Generative reward models: a language model that reads both stories and names the better one.

    model = GenerativeModel.load("runs/genrm/model")

A label is read from the next-token probabilities after the question: P(A) / (P(A) + P(B)), each
summed over the tokens that spell the label. P(A) + P(B) is stored as the label mass; a low mass
means that the model did not answer the question, and the verdict is `unparsed`. All other forms of
answer are generated greedily (temperature 0) and parsed by `litbench.raters.templates`. Every pair
is read in both orders.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from litbench.models.attention import can_pack
from litbench.models.backbone import (
    answer_logits,
    attention_of,
    batches,
    collate,
    is_packed,
    set_attention,
    to_device,
)
from litbench.models.folder import FolderOptions, FolderRater, load_folder
from litbench.models.question import Question
from litbench.raters.interface import PREFERENCES, BlindPair, Judgement, Preference, swap
from litbench.raters.templates.parser import AnswerForm, read_answer
from litbench.raters.templates.template import Template, load_template, template_files
from litbench.runs.config import build
from litbench.runs.errors import ConfigError, ModelError
from litbench.runs.progress import ProgressBar

# Below this the model is more likely to continue with something other than a label.
MIN_LABEL_MASS = 0.5


def require_packing(model: Any, name: str) -> None:
    """Check that a language model runs on packed sequences."""
    if not is_packed(model) and can_pack(model):
        raise ConfigError(
            f"attention: '{attention_of(model.config.get_text_config())}' works on rows "
            "with padding, which generative raters do not use: set attention to null, "
            "flash_attention_2 or flash_attention_3"
        )
    if not is_packed(model):
        raise ModelError(
            f"{name}: {type(model).__name__} does not support packed sequences, which generative "
            "raters need: use a Llama, Qwen, Gemma, Mistral or another recent decoder"
        )


def choose_template(
    name: str | None, answer: AnswerForm | None, form: Literal["chat", "story"]
) -> Template:
    """Load a template; by default `verdict_label`, or `minimal` for another answer or form."""
    if name is None and answer is None and form == "chat":
        return load_template("verdict_label")
    if name is None:
        name, answer = "minimal", answer or "label"
    return load_template(name, answer, shows_prompt=form == "chat")


def _swapped(judgement: Judgement) -> Judgement:
    """The judgement when the second story was shown as A."""
    p, prefers = judgement.p_first, judgement.prefers
    return replace(
        judgement,
        prefers=swap(prefers),
        p_first=None if p is None else 1 - p,
        first_shown="second",
    )


class GenerativeModel(FolderRater):
    """A language model as a rater.

    Attributes:
        question: joins prompt and stories into token ids, and reads label probabilities.
        min_label_mass: a lower label mass gives the verdict `unparsed`.
        pairs_cut: number of judged pairs that did not fit and were truncated.
    """

    kind = "generative"
    usual_batch_tokens = (4_096, 32_768)

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        question: Question,
        *,
        name: str = "generative",
        min_label_mass: float = MIN_LABEL_MASS,
        **stored: Any,
    ) -> None:
        require_packing(model, name)
        super().__init__(model, tokenizer, name=name, **stored)
        self.question = question
        self.reads_prompt = "prompt" in question.slots
        self.min_label_mass = min_label_mass
        self.pairs_cut = 0

    @classmethod
    def load(
        cls, path: str | Path, *, name: str = "generative", **options: Any
    ) -> "GenerativeModel":
        """Load a model folder, or any causal language model as a zero-shot judge.

        Args:
            path: a folder written by `save`, the folder, adapter or GGUF file of another model, or
                a name on the Hub.
            name: the rater's name.
            options: see `GenerativeRaterOptions`.
        """
        return build(
            GenerativeRaterOptions, {"path": str(path), **options}, "GenerativeModel.load"
        ).load(name)

    def stored(self) -> dict[str, Any]:
        return {"question": self.question}

    def notes(self) -> dict[str, Any]:
        """Number of parameters, number of truncated pairs so far, and the training record."""
        return {**super().notes(), "pairs_cut": self.pairs_cut}

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Read every pair in both orders."""
        import torch  # noqa: PLC0415

        prompts = [pair.prompt for pair in pairs]
        first, second = [pair.first for pair in pairs], [pair.second for pair in pairs]
        straight = self.question.ask(self.tokenizer, prompts, first, second)
        swapped = self.question.ask(self.tokenizer, prompts, second, first)
        self.pairs_cut += sum(straight.cut)
        questions = [*straight.ids, *swapped.ids]
        reads_label = self.question.answer == "label"
        room = 0 if reads_label else self.question.max_answer_tokens
        answers: dict[int, Judgement] = {}
        with (
            torch.inference_mode(),
            contextlib.nullcontext() if reads_label else self._greedy(),
            ProgressBar(
                total=len(questions),
                desc=f"judge {self.name}",
                unit=" readings",
                leave=False,
            ) as bar,
        ):
            for rows in batches(questions, self.batch_tokens, room):
                some = [questions[row] for row in rows]
                read = self._read_labels(some) if reads_label else self._generate(some)
                answers.update(zip(rows, read, strict=True))
                bar.update(len(rows))
        judged = [answers[index] for index in range(len(questions))]
        return list(zip(judged[: len(pairs)], map(_swapped, judged[len(pairs) :]), strict=True))

    def _read_labels(self, questions: Sequence[list[int]]) -> list[Judgement]:
        """Read label probabilities; the more likely label is the verdict. A is the first story."""
        batch = collate(questions, packed=True, pooling="last")
        batch = to_device(batch, self.model.device)
        p_a, masses = self.question.read_label(answer_logits(self.model, batch, batch["read"]))
        if not np.isfinite(p_a).all():
            raise ModelError(f"rater {self.name}: logits are not finite: check weights and dtype")
        judged = []
        for ids, p, mass in zip(questions, p_a.tolist(), masses.tolist(), strict=True):
            prefers: Preference = "tie" if p == 0.5 else "first" if p > 0.5 else "second"
            is_answer = mass >= self.min_label_mass
            judged.append(
                Judgement(
                    prefers if is_answer else "unparsed",
                    p if is_answer else None,
                    first_shown="first",
                    input_tokens=len(ids),
                    output_tokens=1,
                    label_mass=mass,
                )
            )
        return judged

    @contextlib.contextmanager
    def _greedy(self) -> Iterator[None]:
        """Generate greedily, on padded rows; packed attention is restored at the end."""
        from transformers import GenerationConfig  # noqa: PLC0415

        packed, own_config = attention_of(self.model.config), self.model.generation_config
        greedy = GenerationConfig(
            do_sample=False,
            max_new_tokens=self.question.max_answer_tokens,
            eos_token_id=self._end_tokens(),
            # Any token works as padding, since it is masked.
            pad_token_id=self.tokenizer.pad_token_id or 0,
        )
        set_attention(self.model, "sdpa")
        # `generate` fills unset options from the model's own generation config, such as a
        # repetition penalty, and the answer would not be greedy.
        self.model.generation_config = greedy
        try:
            yield
        finally:
            set_attention(self.model, packed)
            self.model.generation_config = own_config

    def _generate(self, questions: Sequence[list[int]]) -> list[Judgement]:
        """Generate answers and parse them; an answer without an end token is `cut`."""
        import torch  # noqa: PLC0415
        from torch.nn.utils.rnn import pad_sequence  # noqa: PLC0415

        greedy, rows = self.model.generation_config, list(map(torch.tensor, questions))
        ids = pad_sequence(rows, True, greedy.pad_token_id, "left")
        mask = pad_sequence([torch.ones_like(row) for row in rows], True, 0, "left")
        answers = self.model.generate(
            input_ids=ids.to(self.model.device),
            attention_mask=mask.to(self.model.device),
            generation_config=greedy,
        )[:, ids.shape[1] :].tolist()
        judged = []
        for question, answer_ids in zip(questions, answers, strict=True):
            ends = (index for index, token in enumerate(answer_ids) if token in greedy.eos_token_id)
            end = next(ends, None)
            text = self.tokenizer.decode(answer_ids[:end], skip_special_tokens=True)
            answer = read_answer(text, self.question.answer)
            prefers = "cut" if end is None else PREFERENCES[answer.verdict]
            judged.append(
                Judgement(
                    prefers,
                    first_shown="first",
                    explanation=answer.explanation,
                    input_tokens=len(question),
                    output_tokens=len(answer_ids[:end]),
                )
            )
        return judged

    def _end_tokens(self) -> list[int]:
        """Tokens that end an answer: the end of turn and the model's own EOS tokens.

        A model that was not trained on this question may stop at any of them. If one were missing,
        the model would generate past the end of its answer, and the outcome would be `cut`.
        """
        stated = self.model.generation_config.eos_token_id
        listed = stated if isinstance(stated, list) else [stated]
        tokens = (*self.question.end, *listed, self.tokenizer.eos_token_id)
        return [token for token in dict.fromkeys(tokens) if token is not None]


@dataclass
class GenerativeRaterOptions(FolderOptions):
    """A generative model as a rater; see also `FolderOptions`.

    Attributes:
        template: name or path of the template, for a model that LitBench did not train. Default:
            `verdict_label`, or `minimal` if `answer` or `form` is given.
        form: `chat` for prompt and stories, or `story` for the two stories without the prompt.
        answer: form of answer to use from a family of templates.
        max_length: maximum number of tokens of question and answer. Default: 4,096.
        max_answer_tokens: maximum number of tokens of the answer. Default: depends on its form.
        min_label_mass: a lower label mass gives the verdict `unparsed`.
    """

    template: str | None = None
    form: Literal["chat", "story"] | None = None
    answer: AnswerForm | None = None
    max_length: int | None = None
    max_answer_tokens: int | None = None
    min_label_mass: float = MIN_LABEL_MASS

    def files(self) -> dict[str, str]:
        """Model and custom template, by key."""
        return {**super().files(), **template_files(self.template)}

    def load(self, name: str) -> GenerativeModel:
        stored, record = load_folder(self, "language", "generative")
        model = stored["model"]
        require_packing(model, self.path)
        question = None if record is None else record.question
        if question is None:
            question = Question.make(
                stored["tokenizer"],
                model,
                choose_template(self.template, self.answer, self.form or "chat"),
                max_length=self.max_length or 4_096,
                max_answer_tokens=self.max_answer_tokens,
            )
        else:
            names = ("template", "form", "answer", "max_length", "max_answer_tokens")
            named = [key for key in names if getattr(self, key) is not None]
            if named:
                raise ConfigError(
                    f"rater {name}: {self.path} uses the question that it was trained on: remove "
                    + ", ".join(named)
                )
        return GenerativeModel(
            **stored, question=question, name=name, min_label_mass=self.min_label_mass
        )
