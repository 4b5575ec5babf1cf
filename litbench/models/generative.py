"""Generative reward models: a language model that reads both stories and names the better one.

    model = GenerativeModel.load("runs/genrm/model")

The label form is read off the model's probabilities where the answer starts: P(A) / (P(A) + P(B)),
each summed over the tokens that spell the label, and their sum kept as the label mass. Where the
mass is low the model did not answer the question, and the verdict is `unparsed`. All other forms
are written greedily (temperature 0) and read as `litbench.templates` reads answers. Every pair is
read in both orders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from litbench.config import build
from litbench.errors import ConfigError, ModelError
from litbench.models.attention import can_pack
from litbench.models.backbone import answer_logits, collate, is_packed, set_attention, to_device
from litbench.models.folder import Adapter, Loaded, load_folder, save_folder
from litbench.models.question import Question
from litbench.raters import BlindPair, Judgement, Preference, Rater
from litbench.templates import (
    AnswerForm,
    Template,
    Verdict,
    load_template,
    read_answer,
    template_files,
)

# Half of the mass on other tokens means that something else was about to be said.
LEAST_LABEL_MASS = 0.5
# Verdicts alone are shorter; the rest is for Markdown around them.
ANSWER_TOKENS: dict[AnswerForm, int] = {
    "label": 1,
    "verdict": 16,
    "explanation": 512,
    "json_verdict": 32,
    "json_explanation": 512,
}
_DEFAULT_MAX_LENGTH = 4_096
_PREFERENCE_OF: dict[Verdict, Preference] = {
    "A": "first",
    "B": "second",
    "tie": "tie",
    "unparsed": "unparsed",
    "refused": "refused",
}
_SWAPPED: dict[Preference, Preference] = {"first": "second", "second": "first"}


def require_packing(model: Any, name: str) -> None:
    """Check that a language model runs on sequences laid end to end."""
    if not is_packed(model) and can_pack(model):
        raise ConfigError(
            f"attention: '{model.config.get_text_config()._attn_implementation}' works on rows "
            "with padding, which generative raters do not use: leave the key attention null, or "
            "take flash_attention_2 or flash_attention_3"
        )
    if not is_packed(model):
        raise ModelError(
            f"{name}: {type(model).__name__} does not let its attention be exchanged, which "
            "generative raters need: take a Llama, Qwen, Gemma or Mistral, or another newer one"
        )


def make_question(
    tokenizer: Any,
    model: Any,
    template: Template,
    max_length: int,
    max_prompt_tokens: int | None = None,
    max_answer_tokens: int | None = None,
) -> Question:
    """Fit a template to a model; see Question.make."""
    return Question.make(
        tokenizer,
        model,
        template.parts(),
        answer=template.answer,
        max_length=max_length,
        max_prompt_tokens=256 if max_prompt_tokens is None else max_prompt_tokens,
        max_answer_tokens=max_answer_tokens or ANSWER_TOKENS[template.answer],
    )


@dataclass(frozen=True)
class _Read:
    """One reading of one pair: what stood as A, and what came out."""

    prefers: Preference
    p_a: float | None = None
    mass: float | None = None
    explanation: str | None = None
    output_tokens: int = 0


class GenerativeModel(Rater):
    """A language model as a rater.

    `question` joins prompt and stories and reads the answer; below `least_label_mass` a verdict is
    `unparsed`; `pairs_cut` counts pairs that did not fit and were cut.
    """

    kind = "generative"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        question: Question,
        *,
        name: str = "generative",
        prompts: frozenset[str] = frozenset(),
        batch_tokens: int | None = None,
        least_label_mass: float = LEAST_LABEL_MASS,
        training: Mapping[str, Any] | None = None,
        adapter: Adapter | None = None,
    ) -> None:
        require_packing(model, name)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.question = question
        self.name = name
        self.prompts = prompts
        on_cpu = next(model.parameters()).device.type == "cpu"
        self.batch_tokens = batch_tokens or (4_096 if on_cpu else 32_768)
        self.least_label_mass = least_label_mass
        self.pairs_cut = 0
        self.training_record = dict(training or {})
        self.adapter = adapter

    @classmethod
    def load(
        cls, path: str | Path, *, name: str = "generative", **options: Any
    ) -> "GenerativeModel":
        """Load a model folder, or any causal language model as a zero-shot judge.

        Args:
            path: a folder written by `save`, another model's folder, adapter or GGUF file, or a
                name on the Hub.
            name: the rater's name.
            options: see `GenerativeRaterOptions`.

        Raises:
            ConfigError: an unknown option, no such template, one that asks for another form of
                answer, or the model was trained on a question and another one is asked for.
            DataError: a name on the Hub that cannot be fetched.
            ModelError: it cannot be loaded, or cannot be read as a generative rater.
            MissingExtraError: torch or transformers is not installed.
        """
        return rater_from_options(name, {"path": str(path), **options}, "GenerativeModel.load")

    def save(self, folder: Path) -> None:
        """Write weights (safetensors), config, tokenizer and `litbench.json` into a folder."""
        loaded = Loaded(
            self.model, self.tokenizer, self.prompts, self.training_record, self.adapter,
            self.question.stored(),
        )  # fmt: skip
        save_folder(folder, self.kind, loaded)

    def training_prompts(self) -> frozenset[str]:
        """`prompt_key` of the training prompts; empty when the model folder does not tell."""
        return self.prompts

    def notes(self) -> dict[str, Any]:
        """Weights, pairs cut so far, and how it was trained."""
        found: dict[str, Any] = {
            "parameters": self.model.num_parameters(),
            "pairs_cut": self.pairs_cut,
        }
        if self.training_record:
            found["training"] = self.training_record
        return found

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Read every pair in both orders."""
        prompts = [pair.prompt for pair in pairs]
        first, second = [pair.first for pair in pairs], [pair.second for pair in pairs]
        straight = self.question.ask(self.tokenizer, prompts, first, second)
        swapped = self.question.ask(self.tokenizer, prompts, second, first)
        self.pairs_cut += sum(straight.cut)
        questions = [*straight.ids, *swapped.ids]
        read = self._weigh if self.question.answer == "label" else self._write
        answers = read(questions)
        judgements = []
        for place, answer in enumerate(answers):
            p_first, prefers = answer.p_a, answer.prefers
            shown: Literal["first", "second"] = "first" if place < len(pairs) else "second"
            if shown == "second":
                p_first = None if p_first is None else 1 - p_first
                prefers = _SWAPPED.get(prefers, prefers)
            judgements.append(
                Judgement(
                    prefers, p_first, first_shown=shown, explanation=answer.explanation,
                    input_tokens=len(questions[place]), output_tokens=answer.output_tokens,
                    label_mass=answer.mass,
                )
            )  # fmt: skip
        return list(zip(judgements[: len(pairs)], judgements[len(pairs) :], strict=True))

    def _batches(self, questions: Sequence[list[int]], room: int | None) -> list[list[int]]:
        """Rows of questions by falling length, at most `batch_tokens` in each batch.

        With `room` for an answer all rows of a batch are as long as its first, and that room.
        """
        order = sorted(range(len(questions)), key=lambda row: -len(questions[row]))
        batches: list[list[int]] = []
        filled = self.batch_tokens + 1
        for row in order:
            length = len(questions[row])
            if room is not None:
                first = batches[-1][0] if batches else row
                length = len(questions[first]) + room
            if filled + length > self.batch_tokens:
                batches.append([])
                filled = 0
                length = len(questions[row]) + (room or 0)
            batches[-1].append(row)
            filled += length
        return batches

    def _bar(self, total: int) -> Any:
        from tqdm import tqdm  # noqa: PLC0415

        about = f"judge {self.name}"
        return tqdm(total=total, desc=about, unit=" readings", leave=False, disable=None)

    def _weigh(self, questions: Sequence[list[int]]) -> list[_Read]:
        """Label probabilities of every question; the likelier label is the verdict."""
        import torch  # noqa: PLC0415

        device = next(self.model.parameters()).device
        found: list[_Read | None] = [None] * len(questions)
        with torch.inference_mode(), self._bar(len(questions)) as bar:
            for rows in self._batches(questions, None):
                batch = collate([questions[row] for row in rows], packed=True, pooling="last")
                batch = to_device(batch, device)
                logits = answer_logits(self.model, batch, batch["read"])
                p_a, mass = self.question.read_label(logits)
                if not np.isfinite(p_a).all():
                    raise ModelError(
                        f"rater {self.name}: logits are not finite: check weights and dtype"
                    )
                for row, p, labelled in zip(rows, p_a, mass, strict=True):
                    found[row] = self._verdict(float(p), float(labelled))
                bar.update(len(rows))
        return [read for read in found if read is not None]

    def _verdict(self, p_a: float, mass: float) -> _Read:
        if mass < self.least_label_mass:
            return _Read("unparsed", None, mass, output_tokens=1)
        prefers: Preference = "tie"
        if p_a != 0.5:
            prefers = "first" if p_a > 0.5 else "second"
        return _Read(prefers, p_a, mass, output_tokens=1)

    def _write(self, questions: Sequence[list[int]]) -> list[_Read]:
        """Answers, written greedily and then read."""
        import torch  # noqa: PLC0415
        from transformers import GenerationConfig  # noqa: PLC0415

        device = next(self.model.parameters()).device
        room = self.question.max_answer_tokens
        ends = self._ends()
        # Masked, so that any token will do.
        pad = self.tokenizer.pad_token_id or 0
        greedy = GenerationConfig(
            do_sample=False,
            max_new_tokens=room,
            eos_token_id=ends,
            pad_token_id=pad,
        )
        found: list[_Read | None] = [None] * len(questions)
        # Generation works on rows with padding; the packed attention is put back in any case.
        packed, habits = self.model.config._attn_implementation, self.model.generation_config
        set_attention(self.model, "sdpa")
        # What a model asks for by itself, such as a penalty on words said before, fills every gap
        # in the options of `generate`, and an answer would not be the likeliest one.
        self.model.generation_config = greedy
        try:
            with torch.inference_mode(), self._bar(len(questions)) as bar:
                for rows in self._batches(questions, room):
                    width = max(len(questions[row]) for row in rows)
                    ids = torch.full((len(rows), width), pad)
                    mask = torch.zeros_like(ids)
                    for place, row in enumerate(rows):
                        ids[place, width - len(questions[row]) :] = torch.tensor(questions[row])
                        mask[place, width - len(questions[row]) :] = 1
                    written = self.model.generate(
                        input_ids=ids.to(device),
                        attention_mask=mask.to(device),
                        generation_config=greedy,
                    )[:, width:].tolist()
                    for row, answer in zip(rows, written, strict=True):
                        found[row] = self._parse(answer, ends)
                    bar.update(len(rows))
        finally:
            set_attention(self.model, packed)
            self.model.generation_config = habits
        return [read for read in found if read is not None]

    def _ends(self) -> list[int]:
        """What ends an answer: the end of turn, and whatever the model itself stops at.

        Models that nobody trained on this question may stop at either; one that is led past its
        own end talks on, and its answer would be `cut`.
        """
        own = self.model.generation_config.eos_token_id
        listed = own if isinstance(own, list) else [own]
        known = (*self.question.end, *listed, self.tokenizer.eos_token_id)
        return [token for token in dict.fromkeys(known) if token is not None]

    def _parse(self, ids: list[int], ends: Sequence[int]) -> _Read:
        """What an answer says; one that did not end within its room is `cut`."""
        stops = [place for place, token in enumerate(ids) if token in ends]
        kept = ids[: stops[0]] if stops else ids
        text = self.tokenizer.decode(kept, skip_special_tokens=True)
        reading = read_answer(text, self.question.answer)
        prefers = _PREFERENCE_OF[reading.verdict] if stops else "cut"
        return _Read(prefers, explanation=reading.explanation, output_tokens=len(kept))


@dataclass
class GenerativeRaterOptions:
    """A generative model as a rater.

    Attributes:
        path: of the model; see GenerativeModel.load.
        device: such as cuda or cpu; a GPU where there is one when not given.
        dtype: weights' type; bfloat16 on a GPU and float32 elsewhere when not given.
        batch_tokens: most tokens of one forward pass; 4,096 on a CPU and 32,768 elsewhere when not
            given.
        template: the question of an untrained model, by a template's name or path; `verdict_label`
            when not given, or the family `minimal` where `answer` is given.
        answer: the form of the answer that a family of templates is to ask for.
        max_length: most tokens of its question and answer; 4,096 when not given.
        max_answer_tokens: room for its answer; by the form of the answer when not given.
        least_label_mass: below it a verdict is `unparsed`.
        trust_remote_code: run code from the model's repository.
    """

    path: str
    device: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    batch_tokens: int | None = None
    template: str | None = None
    answer: AnswerForm | None = None
    max_length: int | None = None
    max_answer_tokens: int | None = None
    least_label_mass: float = LEAST_LABEL_MASS
    trust_remote_code: bool = False

    def files(self) -> dict[str, str]:
        """The model, and a template of the user's own."""
        return {"path": self.path, **template_files(self.template)}


def rater_from_options(name: str, options: Mapping[str, Any], where: str) -> GenerativeModel:
    """The kind `generative` of a config."""
    given = build(GenerativeRaterOptions, options, where)
    loaded = load_folder(
        given.path, "language", "generative", device=given.device, dtype=given.dtype,
        trust_remote_code=given.trust_remote_code,
    )  # fmt: skip
    model, tokenizer = loaded.model, loaded.tokenizer
    require_packing(model, given.path)
    if loaded.question is None:
        family = "minimal" if given.answer else "verdict_label"
        question = make_question(
            tokenizer, model, load_template(given.template or family, given.answer),
            given.max_length or _DEFAULT_MAX_LENGTH, max_answer_tokens=given.max_answer_tokens,
        )  # fmt: skip
    else:
        own = ("template", "answer", "max_length", "max_answer_tokens")
        named = [key for key in own if getattr(given, key) is not None]
        if named:
            raise ConfigError(
                f"rater {name}: {given.path} was trained on one question and keeps it: leave out "
                + ", ".join(named)
            )
        try:
            question = Question.make(tokenizer, model, **loaded.question)
        except TypeError as error:
            raise ModelError(f"{given.path}: litbench.json holds no question ({error})") from error
    return GenerativeModel(
        model, tokenizer, question, name=name, prompts=loaded.prompts,
        batch_tokens=given.batch_tokens, least_label_mass=given.least_label_mass,
        training=loaded.training, adapter=loaded.adapter,
    )  # fmt: skip
