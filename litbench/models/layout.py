"""How prompt and story become one sequence of tokens.

Decided once when a reward model is made, stored in its folder, and used by training and scoring
alike:

    prefix + prompt (its first `max_prompt_tokens`) + middle + story (cut at its end) + suffix

An encoder gets its own special tokens ([CLS] prompt [SEP] story [SEP]); a decoder gets BOS where
its tokenizer adds one, a blank line in the middle and EOS at the end, or what its chat template
puts around a user's message and the answer. The parts are tokenised apart, so that no token
straddles their border and cutting never touches the prompt or the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from litbench.errors import ModelError

Form = Literal["plain", "chat", "story"]

# What Llama's templates fall back to where they cannot ask for the day.
_DATE = "26 Jul 2024"
_BLANK_LINE = "\n\n"
# Stand-ins for texts in a chat template; no template has them, and none trims them.
_SLOTS = ("⟦slot-one⟧", "⟦slot-two⟧")


@dataclass(frozen=True)
class Encoded:
    """Token ids of some stories, and which of them had to be cut to fit.

    Attributes:
        ids: one list of token ids per story, each at most `max_length` long.
        cut: whether prompt or story lost tokens.
    """

    ids: list[list[int]]
    cut: list[bool]


@dataclass(frozen=True)
class Layout:
    """The joined form.

    Attributes:
        prefix: token ids before the prompt.
        middle: token ids between prompt and story.
        suffix: token ids after the story; always kept.
        max_length: most tokens of a sequence.
        max_prompt_tokens: most tokens of the prompt.
        pooling: `first` where the model reads its reward off the first position (encoders),
            `last` where off the last real token (decoders).
        reads_prompt: whether the prompt is part of the form; where it is not, none is cut.
    """

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    max_length: int
    max_prompt_tokens: int
    pooling: Literal["first", "last"]
    reads_prompt: bool = True

    @classmethod
    def infer(
        cls,
        tokenizer: Any,
        model: Any,
        max_length: int,
        max_prompt_tokens: int | None = None,
        form: Form = "plain",
    ) -> "Layout":
        """Find the form that suits a model.

        Args:
            tokenizer: a fast tokenizer of transformers.
            model: its sequence-classification model.
            max_length: most tokens; lowered to what the model has positions for.
            max_prompt_tokens: a quarter of `max_length` when not given.
            form: `plain`, or `chat`: the prompt as the user's message and the story as the
                answer, in the tokenizer's own chat template; or `story`: the story alone, in the
                tokenizer's own special tokens, for models that were trained without the prompt.

        Raises:
            ModelError: a decoder's tokenizer has no EOS token, or no chat template where the form
                is `chat`.
        """
        max_length = longest_of(model, max_length)
        pooling: Literal["first", "last"]
        if form == "story":
            around = tokenizer("a", return_special_tokens_mask=True)
            ids = around["input_ids"]
            texts = [place for place, flag in enumerate(around["special_tokens_mask"]) if not flag]
            prefix, suffix = tuple(ids[: texts[0]]), tuple(ids[texts[-1] + 1 :])
            pooling = "last" if hasattr(model, "score") else "first"
            return cls(prefix, (), suffix, max_length, 0, pooling, reads_prompt=False)
        if max_prompt_tokens is None:
            max_prompt_tokens = max_length // 4
        if form == "chat":
            pieces = chat_pieces(
                tokenizer,
                [
                    {"role": "user", "content": _SLOTS[0]},
                    {"role": "assistant", "content": _SLOTS[1]},
                ],
                _SLOTS,
            )
            pooling = "last" if hasattr(model, "score") else "first"
            return cls(pieces[0], pieces[1], pieces[2], max_length, max_prompt_tokens, pooling)
        if hasattr(model, "score"):
            if tokenizer.eos_token_id is None:
                raise ModelError(
                    f"the tokenizer of {model.config.name_or_path or 'this model'} has no EOS "
                    "token, which marks where a decoder reads the reward: set its eos_token"
                )
            prefix = bos_of(tokenizer)
            middle = tuple(tokenizer(_BLANK_LINE, add_special_tokens=False)["input_ids"])
            suffix = (tokenizer.eos_token_id,)
            return cls(prefix, middle, suffix, max_length, max_prompt_tokens, "last")
        # Read the special tokens off a pair of texts: every encoder family has its own.
        probe = tokenizer("a", "b", return_special_tokens_mask=True)
        ids, special = probe["input_ids"], probe["special_tokens_mask"]
        texts = [place for place, flag in enumerate(special) if not flag]
        gap = next((p for p, q in pairwise(texts) if q > p + 1), texts[0])
        after = next(p for p in texts if p > gap)
        return cls(
            tuple(ids[: texts[0]]),
            tuple(ids[gap + 1 : after]),
            tuple(ids[texts[-1] + 1 :]),
            max_length,
            max_prompt_tokens,
            "first",
        )

    def encode(self, tokenizer: Any, prompts: Sequence[str], stories: Sequence[str]) -> Encoded:
        """Tokenise and join.

        Args:
            tokenizer: the model's fast tokenizer.
            prompts: shape (n,).
            stories: shape (n,).

        Raises:
            ModelError: the special tokens and the prompt leave no room for a story.
        """
        if not stories:
            return Encoded([], [])
        fixed = len(self.prefix) + len(self.middle) + len(self.suffix)
        if self.max_length - fixed - self.max_prompt_tokens < 1:
            raise ModelError(
                f"max_length {self.max_length} leaves no room for a story after a prompt of "
                f"{self.max_prompt_tokens} tokens: raise max_length or lower max_prompt_tokens"
            )
        distinct = list(dict.fromkeys(prompts))
        prompt_ids = dict(zip(distinct, tokenize(tokenizer, distinct), strict=True))
        ids, cut = [], []
        for prompt, story in zip(prompts, tokenize(tokenizer, stories), strict=True):
            kept_prompt = prompt_ids[prompt][: self.max_prompt_tokens]
            room = self.max_length - fixed - len(kept_prompt)
            ids.append([*self.prefix, *kept_prompt, *self.middle, *story[:room], *self.suffix])
            prompt_cut = self.reads_prompt and len(kept_prompt) < len(prompt_ids[prompt])
            cut.append(len(story) > room or prompt_cut)
        return Encoded(ids, cut)


def longest_of(model: Any, max_length: int) -> int:
    """Lower `max_length` to what the model has positions for."""
    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return max_length
    # RoBERTa and its like count positions from the pad token's number + 1.
    embeddings = getattr(model.base_model, "embeddings", None)
    padding = getattr(embeddings, "padding_idx", None)
    return min(max_length, int(positions) - (0 if padding is None else padding + 1))


def bos_of(tokenizer: Any) -> tuple[int, ...]:
    """The BOS token where the tokenizer puts one before a text by itself, else nothing."""
    bos = tokenizer.bos_token_id
    return (bos,) if bos is not None and tokenizer("a")["input_ids"][0] == bos else ()


def chat_pieces(
    tokenizer: Any,
    messages: Sequence[Mapping[str, str]],
    slots: Sequence[str],
    *,
    asks: bool = False,
) -> list[tuple[int, ...]]:
    """Tokenise what a chat template puts around the texts of a conversation.

    Args:
        tokenizer: with a chat template.
        messages: whose contents hold the slots.
        slots: stand-ins for the texts, in their order.
        asks: whether an answer is to follow, so that its opening is part of the last piece.

    Returns:
        Token ids before, between and after the slots. BOS stands at the front once where the
        tokenizer or the template wants it, never twice.

    Raises:
        ModelError: no chat template, or one that changes or leaves out a text.
    """
    if not tokenizer.chat_template:
        raise ModelError(
            "the tokenizer has no chat template: take the plain form, or an instruction-tuned model"
        )
    # Llama 3.2's template would write today's date, and a reward would change overnight.
    rendered = tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=asks, enable_thinking=False,
        date_string=_DATE,
    )  # fmt: skip
    pieces: list[str] = []
    rest = rendered
    for slot in slots:
        before, found, rest = rest.partition(slot)
        if not found:
            raise ModelError(
                f"the chat template leaves out or changes the text of message {len(pieces) + 1}: "
                "take the plain form"
            )
        pieces.append(before)
    pieces.append(rest)
    ids = [tuple(tokenizer(piece, add_special_tokens=False)["input_ids"]) for piece in pieces]
    bos = bos_of(tokenizer)
    if bos and ids[0][:1] != bos:
        ids[0] = (*bos, *ids[0])
    return ids


def tokenize(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of plain texts: one that spells out "</s>" does not place that token."""
    # verbose=False: the warning about sequences longer than the model is ours to give, as `cut`.
    encoded = tokenizer(
        list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False
    )
    return list(encoded["input_ids"])
