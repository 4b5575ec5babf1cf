"""Input format of a reward model: tokenise a prompt and a story as one sequence.

The prompt is the user's message and the story the assistant's. The chat template in the model's
folder renders them; its tokenizer adds no tokens to the rendered text and truncates it on the right
at `model_max_length`. The format is stored nowhere else, so transformers' pipeline, trl, peft and
RewardBench tokenise as LitBench does, from messages and from rendered text.
"""

import contextlib
import json
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from litbench.runs.errors import ModelError

Form = Literal["chat", "pair", "text", "story"]

# For models without a chat template.
_TEMPLATE = (
    "{{{{- {start} }}}}{{%- for message in messages %}}{{{{- message.content }}}}"
    "{{{{- {end} if message.role == 'assistant' else {between} }}}}{{%- endfor %}}"
)
# For models that do not see the prompt.
_STORY_TEMPLATE = (
    "{{{{- {start} }}}}{{%- for message in messages if message.role == 'assistant' %}}"
    "{{{{- message.content }}}}{{{{- {end} }}}}{{%- endfor %}}"
)
# Every reader must tokenise a spelled-out special token as text, hence a space in it.
# sentence-transformers' CrossEncoder names the sides of a pair query and document.
_PREPARED = "{%- set read = namespace("
_READS_TEXT = (
    "{{%- set read = namespace(messages=[], content='') %}}{{%- for message in messages %}}"
    "{{%- set read.content = message.content if message.content is string "
    "else message.content | map(attribute='text') | join %}}"
    "{{%- for token in {special} %}}{{%- set read.content = "
    "read.content.replace(token, token[0] ~ ' ' ~ token[1:]) %}}{{%- endfor %}}"
    "{{%- set roles = {{'query': 'user', 'document': 'assistant'}} %}}"
    "{{%- set read.messages = read.messages + [{{'content': read.content, "
    "'role': roles.get(message.role, message.role)}}] %}}"
    "{{%- endfor %}}{{%- set messages = read.messages %}}"
)
# trl appends EOS to text that does not end with it; many templates end with a newline.
_ENDS_ON_EOS = (
    "{{% set conversation %}}{template}{{% endset %}}{{{{- conversation if add_generation_prompt "
    "else conversation.rstrip().removesuffix({end}) + {end} }}}}"
)
# Templates of Llama 3.2 insert today's date, so that rewards would change from day to day.
_DATE = "26 Jul 2024"
_FIXED_DATE = "{%- macro strftime_now(format) %}" + _DATE + "{% endmacro %}"
_PROBE = (["prompt"], ["story"])
# Templates render thousands of stories in a second.
_TEMPLATE_SECONDS = 10


@dataclass(frozen=True)
class EncodedStories:
    """Tokenised sequences.

    Attributes:
        ids: token ids of each sequence.
        cut: whether each sequence was truncated.
        token_types: token type ids of each sequence, if the tokenizer returns any but 0.
    """

    ids: list[list[int]]
    cut: list[bool]
    token_types: list[list[int]] | None = None


def prepare_tokenizer(
    tokenizer: Any, model: Any, max_length: int, form: Literal["chat", "story"] = "chat"
) -> None:
    """Store the input format in a model's tokenizer, before training; idempotent.

    Afterwards the tokenizer adds no special tokens and has no BOS token: the chat template contains
    all of them. A rendered conversation ends with the EOS token, the pad token differs from it
    where possible, and padding and truncation are on the right.

    Args:
        tokenizer: a fast tokenizer of transformers; changed in place.
        model: the tokenizer's model; its `config.pad_token_id` is set.
        max_length: maximum number of tokens, lowered to the model's number of positions.
        form: `chat` for prompt and story; with `story` the chat template leaves out the prompt.
    """
    from tokenizers import processors  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    words, special = tokenizer.convert_ids_to_tokens, []
    pair = single = "$A:0"
    if is_encoder(model):
        probe = tokenizer("a", "b", return_special_tokens_mask=True)
        ids = probe["input_ids"]
        first, last = (i for i, added in enumerate(probe["special_tokens_mask"]) if not added)
        around = [words(ids[:first]), words(ids[first + 1 : last]), words(ids[last + 1 :])]
        start, between, end = map("".join, around)
        tokenizer.eos_token = around[-1][-1]
        # One segment, so that text rendered by the template gives the same token types.
        pair = " ".join(f"{part}:0" for part in (*around[0], "$A", *around[1], "$B", *around[2]))
        special = [
            (word, tokenizer.convert_tokens_to_ids(word)) for part in around for word in part
        ]
        existing = None
    else:
        if tokenizer.eos_token is None:
            raise ModelError(
                f"the tokenizer of {model.config.name_or_path or 'this model'} has no EOS token, "
                "at which a decoder's reward is read: set its eos_token"
            )
        adds_bos = tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
        start, between, end = tokenizer.bos_token if adds_bos else "", "\n\n", tokenizer.eos_token
        pair = f"{single} $B:0"
        existing = tokenizer.get_chat_template() if tokenizer.chat_template else None
    if form == "story" and not (existing or "").startswith(_PREPARED):
        existing = None
    template = existing or {"chat": _TEMPLATE, "story": _STORY_TEMPLATE}[form].format(
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
    if not tokenizer.chat_template.startswith(_PREPARED):
        reads_text = _READS_TEXT.format(special=json.dumps(_special_tokens(tokenizer)))
        tokenizer.chat_template = reads_text + tokenizer.chat_template
    rendered = _render(tokenizer, *_PROBE)[0]
    if form == "story" and shows_prompt(tokenizer):
        raise ModelError(
            f"form: story on a model that was trained with its prompts, as {rendered!r}: use form: "
            "chat, or a base model"
        )
    if "story" not in rendered or (form == "chat" and not shows_prompt(tokenizer)):
        raise ModelError(f"the chat template leaves out the prompt or the story: {rendered!r}")
    tokenizer.bos_token = None
    tokenizer.add_bos_token = tokenizer.add_eos_token = False
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=special
    )
    # Model-specific classes such as BertTokenizer would add their own special tokens again.
    tokenizer.__class__ = PreTrainedTokenizerFast
    settings = {
        "padding_side": "right",
        "truncation_side": "right",
        "model_max_length": longest_of(model, max_length),
        "model_input_names": ["input_ids", "attention_mask"],
    }
    for name, value in settings.items():
        setattr(tokenizer, name, value)
        # Some settings are only saved from here.
        tokenizer.init_kwargs[name] = value
    _choose_pad_token(tokenizer, model, rendered)


def encode_stories(
    tokenizer: Any, prompts: Sequence[str], stories: Sequence[str], form: Form = "chat"
) -> EncodedStories:
    """Tokenise each story with its prompt.

    Where a text spells a special token, a space is inserted so that it is tokenised as text.

    Args:
        tokenizer: the tokenizer of the model's folder.
        prompts: n prompts.
        stories: n stories.
        form: `chat` for the folder's chat template; every model trained by LitBench uses it. For
            other models: `pair` (two texts, for encoders), `text` (prompt, blank line, story and
            EOS) or `story` (without the prompt), with the special tokens that the tokenizer adds.
    """
    if not stories:
        return EncodedStories([], [])
    for token in _special_tokens(tokenizer):
        prompts, stories = (
            [text.replace(token, f"{token[0]} {token[1:]}") for text in texts]
            for texts in (prompts, stories)
        )
    texts: tuple[Sequence[str], ...] = (stories,)
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
        # transformers reads a decoder's reward at the last token that is not padding.
        while len(ids) > 1 and ids[-1] == tokenizer.pad_token_id:
            ids.pop()
    return EncodedStories(
        encoded["input_ids"],
        [bool(encoding.overflowing) for encoding in encoded.encodings],
        types if types and any(map(any, types)) else None,
    )


@contextlib.contextmanager
def check_template(stories: int) -> Iterator[None]:
    """Raise a ModelError if a chat template fails or takes too long: one of a stranger may.

    Only the main thread can be interrupted, in which models are loaded.
    """
    from jinja2 import TemplateError  # noqa: PLC0415

    def stop(*_: Any) -> None:
        raise ModelError(
            f"the chat template did not end in {seconds:g} s for {stories:,} stories: use a model "
            "with another template"
        )

    seconds = _TEMPLATE_SECONDS + stories / 10
    is_limited = threading.current_thread() is threading.main_thread()
    if is_limited:
        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ModelError(
            f"the chat template cannot render a prompt and a story: {error}"
        ) from error
    finally:
        if is_limited:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _render(tokenizer: Any, prompts: Sequence[str], stories: Sequence[str]) -> list[str]:
    conversations = [
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": story}]
        for prompt, story in zip(prompts, stories, strict=True)
    ]
    with check_template(len(stories)):
        rendered: list[str] = tokenizer.apply_chat_template(
            conversations, tokenize=False, date_string=_DATE
        )
    return rendered


def shows_prompt(tokenizer: Any) -> bool:
    """Whether the chat template shows the prompt; that of `form: story` leaves it out."""
    return _PROBE[0][0] in _render(tokenizer, *_PROBE)[0]


def is_encoder(model: Any) -> bool:
    """Whether a model is an encoder, whose reward is read at the first token."""
    return not hasattr(model, "score") and model.get_output_embeddings() is None


def longest_of(model: Any, max_length: int) -> int:
    """Return `max_length`, lowered to the model's number of positions."""
    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return max_length
    # RoBERTa and similar models number positions from padding_idx + 1.
    embeddings = getattr(model.base_model, "embeddings", None)
    padding = getattr(embeddings, "padding_idx", None)
    return min(max_length, int(positions) - (0 if padding is None else padding + 1))


def _choose_pad_token(tokenizer: Any, model: Any, rendered: str) -> None:
    """Set a pad token that ends no sequence, since transformers reads the last non-pad token.

    GPT-2 has no special token but EOS, which stays the pad token: all programs then skip it.
    """
    if tokenizer.pad_token is None or tokenizer.pad_token in rendered:
        unused = [text for text in _special_tokens(tokenizer) if text not in rendered]
        unused.sort(key=lambda text: re.search("pad|reserved", text) is None)
        tokenizer.pad_token = [*unused, tokenizer.eos_token][0]
    model.config.pad_token_id = model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id


def _special_tokens(tokenizer: Any) -> list[str]:
    """Special tokens, longest first."""
    added = tokenizer.added_tokens_decoder.values()
    return sorted((token.content for token in added if token.special), key=len, reverse=True)
