"""How a question to a generative rater becomes one sequence of tokens.

    before + prompt + to_a + story A + to_b + story B + after [+ rationale] + label + end

The fixed parts come from a template (`litbench.templates`) inside the model's chat template where
it has one. They are tokenised apart from the texts and never cut: what does not fit is taken from
the prompt beyond `max_prompt_tokens`, then from the end of the longer story until both are of one
length, then from both. The model's folder keeps the template's parts and the lengths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litbench.errors import ModelError
from litbench.models.input_format import Encoded, longest_of
from litbench.templates import AnswerForm, without_delimiters

LABELS = ("A", "B")
# What stands before the label of an answer in words.
VERDICT = "Preferred:"
# Stand-ins for texts in a chat template; no template has them, and none trims them.
_SLOTS = ("⟦the-prompt⟧", "⟦story-one⟧", "⟦story-two⟧")
_ANSWER = "⟦the-answer⟧"


@dataclass(frozen=True)
class Question:
    """A template fitted to a model.

    Attributes:
        parts: the template's four fixed texts, around prompt, story A and story B.
        before: token ids before the prompt.
        to_a: between prompt and the first story.
        to_b: between the stories.
        after: after the second story, up to where the answer starts.
        end: what ends an answer: the end of turn, or EOS.
        label_ids: for A and for B, every single token that spells the label where an answer starts;
            the first of each is the one training teaches.
        answer: the form of the answer; a label is read off the probabilities where the answer
            starts, any other form is written out and read.
        max_length: most tokens, of question and answer together.
        max_prompt_tokens: most tokens of the prompt.
        max_answer_tokens: room kept for the answer.
    """

    parts: tuple[str, ...]
    before: tuple[int, ...]
    to_a: tuple[int, ...]
    to_b: tuple[int, ...]
    after: tuple[int, ...]
    end: tuple[int, ...]
    label_ids: tuple[tuple[int, ...], tuple[int, ...]]
    answer: AnswerForm
    max_length: int
    max_prompt_tokens: int
    max_answer_tokens: int

    @classmethod
    def make(
        cls,
        tokenizer: Any,
        model: Any,
        parts: Sequence[str],
        *,
        answer: AnswerForm = "label",
        max_length: int = 4_096,
        max_prompt_tokens: int = 256,
        max_answer_tokens: int = 1,
    ) -> "Question":
        """Fit a template to a model.

        Args:
            tokenizer: a fast tokenizer of transformers; with a chat template the question is the
                user's message, without one the text as it is.
            model: its language model.
            parts: the template's four fixed texts.
            answer: the form of the answer.
            max_length: lowered to what the model has positions for.
            max_prompt_tokens: most tokens of the prompt.
            max_answer_tokens: room kept for the answer and its end.
        """
        max_length = longest_of(model, max_length)
        slots = (*_SLOTS, "")
        whole = "".join(text for pair in zip(parts, slots, strict=True) for text in pair)
        if tokenizer.chat_template:
            question = {"role": "user", "content": whole}
            before, to_a, to_b, after = _chat_pieces(tokenizer, [question], _SLOTS, asks=True)
            answered = [question, {"role": "assistant", "content": _ANSWER}]
            closing = _chat_pieces(tokenizer, answered, [_ANSWER])[-1]
            # Only the end of turn itself: the newline that templates put after it is never
            # generated, and a model trained on it would learn to go on.
            added = tokenizer.added_tokens_decoder
            special = [one for one in closing if one in added and added[one].special]
            end = tuple(special[:1]) or closing[:1]
        else:
            before, to_a, to_b, after = (tuple(ids) for ids in tokenize(tokenizer, parts))
            if tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id:
                before = (tokenizer.bos_token_id, *before)
            end = (tokenizer.eos_token_id,) if tokenizer.eos_token_id is not None else ()
        if not end:
            raise ModelError(
                "neither the chat template nor the tokenizer has a token that ends an answer: set "
                "the tokenizer's eos_token"
            )
        made = cls(
            tuple(parts), before, to_a, to_b, after, end, _label_ids(tokenizer, after, answer),
            answer, max_length, max_prompt_tokens, max_answer_tokens,
        )  # fmt: skip
        if made.room < 2 * 16:
            raise ModelError(
                f"max_length {max_length} leaves {made.room} tokens for two stories after the "
                "template, the prompt and the answer: raise it"
            )
        return made

    def stored(self) -> dict[str, Any]:
        """What a folder keeps: arguments of `make`."""
        names = ("parts", "answer", "max_length", "max_prompt_tokens", "max_answer_tokens")
        return {name: getattr(self, name) for name in names}

    @property
    def explains(self) -> bool:
        """Whether a rationale and a verdict line make the answer, as training teaches it."""
        return self.answer == "explanation"

    @property
    def room(self) -> int:
        """Tokens that two stories share under the longest prompt and answer."""
        fixed = sum(map(len, (self.before, self.to_a, self.to_b, self.after)))
        return self.max_length - fixed - self.max_prompt_tokens - self.max_answer_tokens

    def ask(
        self, tokenizer: Any, prompts: Sequence[str], first: Sequence[str], second: Sequence[str]
    ) -> Encoded:
        """Tokenise and join, up to where the answer starts.

        Lines of texts that could pass for a template's markers go in without their equals signs.

        `first` are the stories that stand as A.
        """
        distinct = list(dict.fromkeys([*prompts, *first, *second]))
        shown = list(map(without_delimiters, distinct))
        ids_of = dict(zip(distinct, tokenize(tokenizer, shown) if shown else [], strict=True))
        ids, cut = [], []
        for prompt, a, b in zip(prompts, first, second, strict=True):
            head = ids_of[prompt][: self.max_prompt_tokens]
            room = self.room + self.max_prompt_tokens - len(head)
            keep_a, keep_b = share(len(ids_of[a]), len(ids_of[b]), room)
            stories = [*ids_of[a][:keep_a], *self.to_b, *ids_of[b][:keep_b]]
            ids.append([*self.before, *head, *self.to_a, *stories, *self.after])
            whole = (len(ids_of[prompt]), len(ids_of[a]), len(ids_of[b]))
            cut.append((len(head), keep_a, keep_b) != whole)
        return Encoded(ids, cut)

    def read_label(self, logits: Any) -> tuple[np.ndarray, np.ndarray]:
        """Read label probabilities off the logits where the answer starts.

        The probability of a label is the sum over all tokens that spell it.

        Returns:
            P(A) / (P(A) + P(B)) and the label mass P(A) + P(B); float64, shape (n,) each.
        """
        import torch  # noqa: PLC0415

        log = torch.log_softmax(logits.double(), dim=-1)
        a, b = (torch.logsumexp(log[:, list(ids)], dim=-1) for ids in self.label_ids)
        return torch.sigmoid(a - b).cpu().numpy(), (a.exp() + b.exp()).cpu().numpy()


def share(first: int, second: int, room: int) -> tuple[int, int]:
    """Cut the longer of two lengths first, until both fit into `room` together."""
    if first + second <= room:
        return first, second
    half = room // 2
    if first <= half:
        return first, room - first
    return room - min(second, half), min(second, half)


def tokenize(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of plain texts: one that spells out "</s>" does not place that token."""
    # verbose=False: how many texts were too long is counted as `cut`.
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
    """Token ids that a chat template puts before, between and after the slots."""
    rest = tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=asks, enable_thinking=False
    )
    pieces: list[str] = []
    for slot in slots:
        before, found, rest = rest.partition(slot)
        if not found:
            raise ModelError("the chat template leaves out or changes the text of a message")
        pieces.append(before)
    encode = tokenizer([*pieces, rest], add_special_tokens=False)["input_ids"]
    return [tuple(ids) for ids in encode]


def _label_ids(
    tokenizer: Any, after: Sequence[int], answer: AnswerForm
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Single tokens that spell A or B; first the form that follows what stands before it.

    A tokenizer may melt a label with the space before it, so " A" and "A" are two tokens, and
    which of them a model writes depends on how the text before ends.
    """
    tail = VERDICT
    if answer == "label":
        tail = tokenizer.decode(list(after)[-8:], skip_special_tokens=False)
    wants_space = tail.endswith(":")
    found: list[tuple[int, ...]] = []
    for label in LABELS:
        forms = [f" {label}", label] if wants_space else [label, f" {label}"]
        # First what the tokenizer makes of the label where it is to stand. A tokenizer that puts a
        # space before every text would never show the form without one otherwise.
        texts = [start + form for form in forms for start in (tail[-1:], "")]
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"][-1:] for text in texts]
        last = dict.fromkeys(one for ending in ids for one in ending)
        spelled = tuple(one for one in last if tokenizer.decode([one]).strip(" ") == label)
        if not spelled:
            raise ModelError(
                f"the tokenizer has no single token for the label {label}: this model cannot be "
                "read as a generative rater"
            )
        found.append(spelled)
    return found[0], found[1]
