"""Tokenise a question to a generative rater as one sequence.

    fixed text + prompt + fixed text + story A + fixed text + story B + fixed text
    [+ rationale] + label + end

A template may leave out the prompt or have another order. The fixed parts come from a template
(`litbench.raters.templates`), inside the model's chat template if it has one. They are tokenised
separately from the texts and never truncated. The prompt is truncated to `max_prompt_tokens`; then
the longer story loses its end until both stories have the same length, then both do. The model's
folder stores the question with its token ids, so that other programs can ask it too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from litbench.models.input_format import EncodedStories, check_template, longest_of
from litbench.raters.templates.delimiters import without_delimiters
from litbench.raters.templates.parser import AnswerForm
from litbench.raters.templates.template import SLOTS, Slot, Template
from litbench.runs.errors import ModelError

LABELS = ("A", "B")
# More than the verdicts need, since models put Markdown around them.
ANSWER_TOKENS: dict[AnswerForm, int] = {
    "label": 1,
    "verdict": 16,
    "explanation": 512,
    "json_verdict": 32,
    "json_explanation": 512,
}
# Precedes the label in an answer with a rationale.
VERDICT = "Preferred:"
# Stands for an answer in a chat template, as ⟦prompt⟧ does for a prompt.
_ANSWER = "⟦the-answer⟧"


@dataclass(frozen=True)
class Question:
    """A template fitted to a model, as stored in `litbench.json`.

    Attributes:
        parts: the template's fixed texts, before each slot and after the last.
        slots: names of the template's slots, in its order.
        fixed: token ids of `parts`, with those of the chat template.
        end: token ids that end an answer: the end of turn, or EOS.
        label_ids: for A and for B, every token that spells the label at the start of an answer; the
            first of each is the training target.
        answer: form of the answer. A label is read from the next-token probabilities, any other
            form is generated and parsed.
        max_length: maximum number of tokens of question and answer.
        max_prompt_tokens: maximum number of tokens of the prompt.
        max_answer_tokens: number of tokens reserved for the answer.
    """

    parts: tuple[str, ...]
    slots: tuple[Slot, ...]
    fixed: tuple[tuple[int, ...], ...]
    end: tuple[int, ...]
    label_ids: tuple[tuple[int, ...], tuple[int, ...]]
    answer: AnswerForm
    max_length: Annotated[int, Field(ge=1)]
    max_prompt_tokens: Annotated[int, Field(ge=0)]
    max_answer_tokens: Annotated[int, Field(ge=1)]

    @classmethod
    def make(
        cls,
        tokenizer: Any,
        model: Any,
        template: Template,
        *,
        max_length: int = 4_096,
        max_prompt_tokens: int = 256,
        max_answer_tokens: int | None = None,
    ) -> "Question":
        """Fit a template to a language model and its tokenizer.

        If the tokenizer has a chat template, the question is the user's message, otherwise plain
        text. `max_length` is lowered to the model's number of positions; `max_answer_tokens`
        depends on the form of the answer by default. The question asks for no code.
        """
        template = template.without_code()
        parts, slots, answer = template.pieces, template.slots, template.answer
        max_length = longest_of(model, max_length)
        marks = [f"⟦{slot}⟧" for slot in slots]
        whole = "".join(map("".join, zip(parts, [*marks, ""], strict=True)))
        if tokenizer.chat_template:
            message = {"role": "user", "content": whole}
            fixed = _chat_pieces(tokenizer, [message], marks, asks=True)
            answered = [message, {"role": "assistant", "content": _ANSWER}]
            closing = _chat_pieces(tokenizer, answered, [_ANSWER])[-1]
            # Only the end-of-turn token, without the newline that templates put after it:
            # generation stops before it, and training on it would teach the model to continue.
            added = tokenizer.added_tokens_decoder
            special = [token for token in closing if token in added and added[token].special]
            end = tuple(special[:1]) or closing[:1]
        else:
            fixed = [tuple(ids) for ids in tokenize(tokenizer, parts)]
            if tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id:
                fixed[0] = (tokenizer.bos_token_id, *fixed[0])
            end = (tokenizer.eos_token_id,) if tokenizer.eos_token_id is not None else ()
        if not end:
            raise ModelError(
                "neither the chat template nor the tokenizer has a token that ends an answer: set "
                "the tokenizer's eos_token"
            )
        question = cls(
            parts,
            slots,
            tuple(fixed),
            end,
            _label_ids(tokenizer, fixed[-1], answer),
            answer,
            max_length,
            max_prompt_tokens if "prompt" in slots else 0,
            max_answer_tokens or ANSWER_TOKENS[answer],
        )
        if question.room < 2 * 16:
            raise ModelError(
                f"max_length {max_length} leaves {question.room} tokens for two stories after the "
                "template, the prompt and the answer: raise it"
            )
        return question

    @property
    def explains(self) -> bool:
        """Whether the answer is a rationale followed by a verdict line."""
        return self.answer == "explanation"

    @property
    def room(self) -> int:
        """Number of tokens left for both stories with the longest prompt and answer."""
        fixed = sum(map(len, self.fixed))
        return self.max_length - fixed - self.max_prompt_tokens - self.max_answer_tokens

    def ask(
        self, tokenizer: Any, prompts: Sequence[str], first: Sequence[str], second: Sequence[str]
    ) -> EncodedStories:
        """Tokenise questions up to the start of the answer.

        In lines of a text that look like a template's delimiters, equals signs are replaced. The
        stories `first` are shown as A, `second` as B; n texts each.
        """
        distinct = list(dict.fromkeys([*prompts, *first, *second]))
        safe = list(map(without_delimiters, distinct))
        ids_of = dict(zip(distinct, tokenize(tokenizer, safe) if safe else [], strict=True))
        ids, cut = [], []
        for texts in zip(prompts, first, second, strict=True):
            whole = {slot: ids_of[text] for slot, text in zip(SLOTS, texts, strict=True)}
            head = whole["prompt"][: self.max_prompt_tokens]
            room = self.room + self.max_prompt_tokens - len(head)
            keep_a, keep_b = share(len(whole["story_a"]), len(whole["story_b"]), room)
            parts = {
                "prompt": head,
                "story_a": whole["story_a"][:keep_a],
                "story_b": whole["story_b"][:keep_b],
            }
            pieces = zip(self.fixed, [*(parts[slot] for slot in self.slots), []], strict=True)
            ids.append([token for fixed, text in pieces for token in (*fixed, *text)])
            cut.append(any(len(parts[slot]) < len(whole[slot]) for slot in self.slots))
        return EncodedStories(ids, cut)

    def read_label(self, logits: Any) -> tuple[np.ndarray, np.ndarray]:
        """Compute label probabilities from the logits at the start of the answer.

        The probability of a label is summed over all tokens that spell it.

        Returns:
            P(A) / (P(A) + P(B)) and the label mass P(A) + P(B); float64, shape (n,) each.
        """
        import torch  # noqa: PLC0415

        log = torch.log_softmax(logits.double(), dim=-1)
        a, b = (torch.logsumexp(log[:, list(ids)], dim=-1) for ids in self.label_ids)
        return torch.sigmoid(a - b).cpu().numpy(), (a.exp() + b.exp()).cpu().numpy()


def share(first: int, second: int, room: int) -> tuple[int, int]:
    """Reduce two lengths to a sum of at most `room`, the longer one first."""
    length = min(second, max(room // 2, room - first))
    return min(first, room - length), length


def tokenize(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Tokenise plain texts; spelled-out special tokens such as "</s>" are tokenised as text."""
    # verbose=False: no warning about long texts, which are counted as `cut`.
    encoded = tokenizer(
        list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False
    )
    return list(encoded["input_ids"])


def _chat_pieces(
    tokenizer: Any,
    messages: Sequence[Mapping[str, str]],
    slots: Sequence[str],
    *,
    asks: bool = False,
) -> list[tuple[int, ...]]:
    """Token ids that a chat template puts before, between and after the placeholders."""
    with check_template(1):
        rest = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=asks, enable_thinking=False
        )
    pieces: list[str] = []
    for slot in slots:
        before, match, rest = rest.partition(slot)
        if not match:
            raise ModelError("the chat template leaves out or changes the text of a message")
        pieces.append(before)
    encode = tokenizer([*pieces, rest], add_special_tokens=False)["input_ids"]
    return [tuple(ids) for ids in encode]


def _label_ids(
    tokenizer: Any, after: Sequence[int], answer: AnswerForm
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Single tokens that spell A or B; first the one that the tokenizer gives at this position.

    A tokenizer may merge a label with the space before it, so that " A" and "A" are different
    tokens. Which of them a model generates depends on the end of the preceding text.
    """
    tail = VERDICT
    if answer == "label":
        tail = tokenizer.decode(list(after)[-8:], skip_special_tokens=False)
    wants_space = tail.endswith(":")
    label_ids: list[tuple[int, ...]] = []
    for label in LABELS:
        forms = [f" {label}", label] if wants_space else [label, f" {label}"]
        # Each form is tokenised after the preceding character and alone: a tokenizer that puts a
        # space before every text gives the form without a space only after another character.
        texts = [start + form for form in forms for start in (tail[-1:], "")]
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"][-1:] for text in texts]
        last = dict.fromkeys(token for ending in ids for token in ending)
        spelled = tuple(token for token in last if tokenizer.decode([token]).strip(" ") == label)
        if not spelled:
            raise ModelError(
                f"the tokenizer has no single token for the label {label}: this model cannot be "
                "used as a generative rater"
            )
        label_ids.append(spelled)
    return label_ids[0], label_ids[1]
