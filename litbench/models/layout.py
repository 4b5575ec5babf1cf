"""How prompt and story become one sequence of tokens.

Decided once when a reward model is made, stored in its folder, and used by training and scoring
alike:

    prefix + prompt (its first `max_prompt_tokens`) + middle + story (cut at its end) + suffix

An encoder gets its own special tokens ([CLS] prompt [SEP] story [SEP]); a decoder gets BOS where
its tokenizer adds one, a blank line in the middle and EOS at the end. The parts are tokenised
apart, so that no token straddles their border and cutting never touches the prompt or the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from litbench.errors import ModelError

_BLANK_LINE = "\n\n"


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
    """

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    max_length: int
    max_prompt_tokens: int
    pooling: Literal["first", "last"]

    @classmethod
    def infer(
        cls, tokenizer: Any, model: Any, max_length: int, max_prompt_tokens: int | None = None
    ) -> "Layout":
        """Find the form that suits a model.

        Args:
            tokenizer: a fast tokenizer of transformers.
            model: its sequence-classification model.
            max_length: most tokens; lowered to what the model has positions for.
            max_prompt_tokens: a quarter of `max_length` when not given.

        Raises:
            ModelError: a decoder's tokenizer has no EOS token.
        """
        config = model.config.get_text_config()
        positions = getattr(config, "max_position_embeddings", None)
        if positions is not None:
            # RoBERTa counts positions from pad_token_id + 1.
            offset = (config.pad_token_id or 0) + 1 if "roberta" in config.model_type else 0
            max_length = min(max_length, positions - offset)
        if max_prompt_tokens is None:
            max_prompt_tokens = max_length // 4
        if hasattr(model, "score"):
            if tokenizer.eos_token_id is None:
                raise ModelError(
                    f"the tokenizer of {model.config.name_or_path or 'this model'} has no EOS "
                    "token, which marks where a decoder reads the reward: set its eos_token"
                )
            probe = tokenizer("a")["input_ids"]
            has_bos = tokenizer.bos_token_id is not None and probe[0] == tokenizer.bos_token_id
            prefix = (tokenizer.bos_token_id,) if has_bos else ()
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
        prompt_ids = dict(zip(distinct, _tokenize(tokenizer, distinct), strict=True))
        ids, cut = [], []
        for prompt, story in zip(prompts, _tokenize(tokenizer, stories), strict=True):
            kept_prompt = prompt_ids[prompt][: self.max_prompt_tokens]
            room = self.max_length - fixed - len(kept_prompt)
            ids.append([*self.prefix, *kept_prompt, *self.middle, *story[:room], *self.suffix])
            cut.append(len(story) > room or len(prompt_ids[prompt]) > self.max_prompt_tokens)
        return Encoded(ids, cut)


def _tokenize(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    # A story that spells out "</s>" or "[SEP]" must not place that token: it stays plain text.
    # verbose=False: the warning about sequences longer than the model is ours to give, as `cut`.
    encoded = tokenizer(
        list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False
    )
    return list(encoded["input_ids"])
