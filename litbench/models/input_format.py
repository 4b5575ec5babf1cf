"""The input format of a reward model: how a prompt and a story become one sequence of tokens.

The prompt is a user's message and the story an assistant's. The chat template of the model's folder
renders them; its tokenizer adds no tokens to the rendered text and truncates it on the right at
`model_max_length`. Nothing else is stored, so transformers' pipeline, trl, peft and RewardBench
read what LitBench reads, from messages and from rendered text.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from litbench.errors import ModelError

Form = Literal["chat", "pair", "text", "story"]

# For a backbone without a chat template.
_TEMPLATE = (
    "{{{{- {start} }}}}{{%- for message in messages %}}{{{{- message.content }}}}"
    "{{{{- {end} if message.role == 'assistant' else {between} }}}}{{%- endfor %}}"
)
# trl appends EOS to text that does not end on it; many templates put a newline there.
_ENDS_ON_EOS = (
    "{{% set conversation %}}{template}{{% endset %}}{{{{- conversation if add_generation_prompt "
    "else conversation.rstrip().removesuffix({end}) + {end} }}}}"
)
# Templates of Llama 3.2 write today's date, and a reward would change overnight.
_DATE = "26 Jul 2024"
_FIXED_DATE = "{%- macro strftime_now(format) %}" + _DATE + "{% endmacro %}"
_PROBE = (["prompt"], ["story"])


@dataclass(frozen=True)
class Encoded:
    """Token ids of some stories, each after its prompt.

    Attributes:
        ids: one list of token ids per story, each at most `model_max_length` long.
        cut: whether the sequence was truncated.
        token_types: numbers of segments, for encoders whose tokenizer gives any but 0.
    """

    ids: list[list[int]]
    cut: list[bool]
    token_types: list[list[int]] | None = None


def prepare_tokenizer(tokenizer: Any, model: Any, max_length: int) -> None:
    """Write the input format into a backbone's tokenizer, before training; may be repeated.

    Afterwards the tokenizer adds no special tokens of its own and has no BOS token: the chat
    template spells out all of them. A rendered conversation ends on the EOS token, the pad token
    is another one, and both padding and truncation are on the right.

    Args:
        tokenizer: a fast tokenizer of transformers; changed in place.
        model: its model; `config.pad_token_id` is set.
        max_length: most tokens of a sequence; lowered to what the model has positions for.

    Raises:
        ModelError: no EOS token, or a chat template without the user's or assistant's message.
    """
    from tokenizers import processors  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    words, special = tokenizer.convert_ids_to_tokens, []
    pair = single = "$A:0"
    if is_encoder(model):
        probe = tokenizer("a", "b", return_special_tokens_mask=True)
        ids = probe["input_ids"]
        first, last = (at for at, flag in enumerate(probe["special_tokens_mask"]) if not flag)
        around = [words(ids[:first]), words(ids[first + 1 : last]), words(ids[last + 1 :])]
        start, between, end = map("".join, around)
        tokenizer.eos_token = around[-1][-1]
        # One segment, so that text rendered by the template gives the same token types.
        pair = " ".join(f"{part}:0" for part in (*around[0], "$A", *around[1], "$B", *around[2]))
        special = [
            (word, tokenizer.convert_tokens_to_ids(word)) for part in around for word in part
        ]
        template = _TEMPLATE
    else:
        if tokenizer.eos_token is None:
            raise ModelError(
                f"the tokenizer of {model.config.name_or_path or 'this model'} has no EOS token, "
                "on which a decoder reads the reward: set its eos_token"
            )
        adds_bos = tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
        start, between, end = tokenizer.bos_token if adds_bos else "", "\n\n", tokenizer.eos_token
        pair = f"{single} $B:0"
        template = tokenizer.get_chat_template() if tokenizer.chat_template else _TEMPLATE
    if template is _TEMPLATE:
        template = template.format(
            start=json.dumps(start), between=json.dumps(between), end=json.dumps(end)
        )
    if tokenizer.bos_token is not None and "bos_token" in template:
        template = f"{{%- set bos_token = {json.dumps(tokenizer.bos_token)} %}}{template}"
    if "strftime_now" in template and _FIXED_DATE not in template:
        template = _FIXED_DATE + template
    tokenizer.chat_template = template
    if not _render(tokenizer, *_PROBE)[0].endswith(tokenizer.eos_token):
        tokenizer.chat_template = _ENDS_ON_EOS.format(
            template=template, end=json.dumps(tokenizer.eos_token)
        )
    rendered = _render(tokenizer, *_PROBE)[0]
    if not all(text in rendered for (text,) in _PROBE):
        raise ModelError(f"the chat template leaves out the prompt or the story: {rendered!r}")
    tokenizer.bos_token = None
    tokenizer.add_bos_token = tokenizer.add_eos_token = False
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=special
    )
    # Classes of single models, such as BertTokenizer, would put their own special tokens back.
    tokenizer.__class__ = PreTrainedTokenizerFast
    settings = {"padding_side": "right", "truncation_side": "right",
                "model_max_length": longest_of(model, max_length),
                "model_input_names": ["input_ids", "attention_mask"]}  # fmt: skip
    for name, value in settings.items():
        setattr(tokenizer, name, value)
        # Else some of them are not saved.
        tokenizer.init_kwargs[name] = value
    _choose_pad_token(tokenizer, model, rendered)


def encode_stories(
    tokenizer: Any, prompts: Sequence[str], stories: Sequence[str], form: Form = "chat"
) -> Encoded:
    """Tokenise stories after their prompts.

    A prompt or story that spells a special token gets a space into it, and stays text.

    Args:
        tokenizer: of the model's folder.
        prompts: shape (n,).
        stories: shape (n,).
        form: `chat`, the folder's chat template, for every model trained here. Other people's
            models may take a `pair` (encoders), the `text` of prompt, blank line, story and EOS,
            or the `story` alone, each with the special tokens that their tokenizer adds.
    """
    if not stories:
        return Encoded([], [])
    spelled = sorted(_special_tokens(tokenizer), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, spelled)) or "(?!)")
    prompts, stories = (
        [pattern.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text) for text in texts]
        for texts in (prompts, stories)
    )
    texts: tuple[list[str], ...] = (stories,)
    if form == "chat":
        texts = (_render(tokenizer, prompts, stories),)
    elif form == "pair":
        texts = (prompts, stories)
    elif form == "text":
        end = tokenizer.eos_token or ""
        texts = (
            [f"{prompt}\n\n{story}{end}" for prompt, story in zip(prompts, stories, strict=True)],
        )
    encoded = tokenizer(
        *texts, truncation=True, add_special_tokens=form != "chat", padding=False, verbose=False
    )
    types = encoded.get("token_type_ids")
    for ids in encoded["input_ids"]:
        # transformers reads a decoder's reward at the last token that is not the pad token.
        while len(ids) > 1 and ids[-1] == tokenizer.pad_token_id:
            ids.pop()
    return Encoded(
        encoded["input_ids"],
        [bool(one.overflowing) for one in encoded.encodings],
        types if types and any(map(any, types)) else None,
    )


def _render(tokenizer: Any, prompts: Sequence[str], stories: Sequence[str]) -> list[str]:
    from jinja2 import TemplateError  # noqa: PLC0415

    conversations = [
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": story}]
        for prompt, story in zip(prompts, stories, strict=True)
    ]
    try:
        rendered: list[str] = tokenizer.apply_chat_template(
            conversations, tokenize=False, date_string=_DATE
        )
    except (TemplateError, ValueError) as error:
        raise ModelError(
            f"the chat template cannot render a prompt and a story: {error}"
        ) from error
    return rendered


def is_encoder(model: Any) -> bool:
    """Whether a model reads its reward at the first position."""
    return not hasattr(model, "score") and model.get_output_embeddings() is None


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


def _choose_pad_token(tokenizer: Any, model: Any, rendered: str) -> None:
    """Set a pad token that ends no sequence: transformers reads the last token that is not pad.

    GPT-2 has EOS alone, which stays the pad token: every reader then skips it.
    """
    if tokenizer.pad_token is None or tokenizer.pad_token in rendered:
        unused = [text for text in _special_tokens(tokenizer) if text not in rendered]
        unused.sort(key=lambda text: re.search("pad|reserved", text) is None)
        tokenizer.pad_token = [*unused, tokenizer.eos_token][0]
    model.config.pad_token_id = model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id


def _special_tokens(tokenizer: Any) -> list[str]:
    return [one.content for one in tokenizer.added_tokens_decoder.values() if one.special]
