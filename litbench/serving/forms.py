"""What the server is asked and what it answers, in three forms.

Its own (`/score`), that of vLLM's `/classify` (as documented for vLLM 0.16 and in its repository
since: the request's `input` or `messages`, the answer's `data[].probs`), and that of OpenRLHF's
`/get_reward` (as its `openrlhf.cli.serve_rm` answers). Texts are never changed, but for what the
forms of others put around them.
"""

import math
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from litbench.serving.joined import Joint
from litbench.serving.limits import Limits, Refusal

# More than any form has; each unknown one would be an error to be gathered.
_MOST_FIELDS = 32

# Checking stops at the first wrong entry: millions of errors would hold up all other requests.
_Texts = Annotated[list[str], Field(fail_fast=True)]


class _Strict(BaseModel):
    # A typo, or a number where a text should be, is an error and never a guess.
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > _MOST_FIELDS:
            raise ValueError(f"{len(given):,} fields, and no form has as many")
        return given


class Item(_Strict):
    """A story and the prompt it answers."""

    prompt: str
    story: str


class ScoreRequest(_Strict):
    """Stories to score: several of one prompt, or items with a prompt each."""

    prompt: str | None = Field(None, description="what all of `stories` answer")
    stories: _Texts | None = Field(None, description="stories of one prompt")
    items: Annotated[list[Item], Field(fail_fast=True)] | None = Field(
        None, description="stories with a prompt each"
    )

    def texts(self) -> tuple[list[str], list[str]]:
        """Prompts and stories, shape (n,) each."""
        if self.items is not None and self.prompt is None and self.stories is None:
            return [item.prompt for item in self.items], [item.story for item in self.items]
        if self.items is None and self.prompt is not None and self.stories is not None:
            return [self.prompt] * len(self.stories), self.stories
        raise Refusal(
            422,
            'body: give either "prompt" and "stories", for stories of one prompt, or "items", a '
            'list of {"prompt": ..., "story": ...}',
        )


class ScoreResponse(BaseModel):
    """Rewards, in the order of the stories."""

    model: str
    rewards: list[float]
    comparable: str = Field(description="where rewards can be compared: within a prompt only")


class Message(_Strict):
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    content: str


class ClassifyRequest(_Strict):
    """A request of vLLM's /classify: texts, or one conversation."""

    model: str | None = None
    input: str | _Texts | None = Field(
        None, description="prompt and story in the model's joined form, as one text"
    )
    messages: Annotated[list[Message], Field(fail_fast=True)] | None = Field(
        None, description="the prompt as the user's message, the story as the assistant's"
    )
    use_activation: bool | None = Field(
        None, description="sigmoid of the reward (also when not given), or the reward itself"
    )
    truncate_prompt_tokens: Annotated[int, Field(le=-1, ge=-1)] | None = None
    add_special_tokens: bool | None = None
    request_id: str | None = None
    priority: int | None = None
    user: str | None = None

    def texts(self, joint: Joint) -> tuple[list[str], list[str]]:
        """Prompts and stories, shape (n,) each.

        Raises:
            Refusal: neither or both are given, a text has no border between prompt and story, or
                the messages are not a prompt and a story.
        """
        if (self.input is None) == (self.messages is None):
            raise Refusal(422, 'body: give either "input" or "messages"')
        if self.messages is not None:
            if [message.role for message in self.messages] != ["user", "assistant"]:
                raise Refusal(
                    422,
                    "body.messages: give two, the prompt with the role user and the story with the "
                    "role assistant",
                )
            return [self.messages[0].content], [self.messages[1].content]
        assert self.input is not None
        given = [self.input] if isinstance(self.input, str) else self.input
        prompts, stories = [], []
        for place, text in enumerate(given):
            parts = joint.split(text)
            if parts is None:
                raise Refusal(
                    422,
                    f"body.input.{place}: no {joint.middle!r} between prompt and story: join them "
                    'with it, or send them apart, as "messages" or to /score',
                )
            prompts.append(parts[0])
            stories.append(parts[1])
        return prompts, stories


class ClassifyData(BaseModel):
    """One text's answer."""

    index: int
    label: str | None = "LABEL_0"
    probs: list[float] = Field(description="shape (1,): the reward, through a sigmoid or as it is")
    num_classes: int = 1


class ClassifyUsage(BaseModel):
    """Tokens, which vLLM counts and this server does not: always 0."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: None = None


class ClassifyResponse(BaseModel):
    """An answer of vLLM's /classify."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[ClassifyData]
    usage: ClassifyUsage = ClassifyUsage()

    @classmethod
    def of(cls, rewards: Sequence[float], model: str, *, activation: bool) -> "ClassifyResponse":
        """Put rewards into this form."""
        probs = [sigmoid(reward) if activation else reward for reward in rewards]
        return cls(
            id=f"classify-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=model,
            data=[ClassifyData(index=place, probs=[one]) for place, one in enumerate(probs)],
        )


class GetRewardRequest(BaseModel):
    """A request of OpenRLHF: what the policy read and wrote, and what it read."""

    # Versions of OpenRLHF add fields of their own, such as images.
    model_config = ConfigDict(extra="ignore", strict=True)

    query: _Texts = Field(description="prompt and story, as one text")
    prompts: _Texts = Field(description="the prompts, with which the queries begin")
    labels: Any = Field(None, description="not read")

    def texts(self, ends: Sequence[str]) -> tuple[list[str], list[str]]:
        """Prompts and stories, shape (n,) each.

        Args:
            ends: tokens that a policy's tokenizer writes around its text; they are cut off.

        Raises:
            Refusal: a query does not begin with its prompt.
        """
        if len(self.query) != len(self.prompts):
            raise Refusal(
                422,
                f"body: {len(self.query)} in query and {len(self.prompts)} in prompts: give as "
                "many of both",
            )
        stories = []
        for place, (query, prompt) in enumerate(zip(self.query, self.prompts, strict=True)):
            whole = query if query.startswith(prompt) else _without(query, ends, at_end=False)
            if not whole.startswith(prompt):
                raise Refusal(
                    422,
                    f"body.query.{place}: does not begin with body.prompts.{place}, so that the "
                    "story in it cannot be told: send prompt + story",
                )
            stories.append(_without(whole[len(prompt) :], ends, at_end=True))
        return list(self.prompts), stories


class GetRewardResponse(BaseModel):
    """An answer for OpenRLHF."""

    rewards: list[float] = Field(description="for the advantages")
    scores: list[float] = Field(description="from 0 to 1, for its dynamic filtering: the sigmoid")
    extra_logs: dict[str, list[float]]

    @classmethod
    def of(cls, rewards: Sequence[float]) -> "GetRewardResponse":
        """Put rewards into this form."""
        found = list(rewards)
        return cls(rewards=found, scores=[*map(sigmoid, found)], extra_logs={"reward": found})


def sigmoid(reward: float) -> float:
    """1 / (1 + exp(-reward)), for any finite reward."""
    if reward < 0:
        grown = math.exp(max(reward, -700))
        return grown / (1 + grown)
    return 1 / (1 + math.exp(-reward))


def check_texts(
    prompts: Sequence[str], stories: Sequence[str], limits: Limits, *, empty: bool = False
) -> None:
    """Refuse what the model should not get.

    Args:
        prompts: shape (n,).
        stories: shape (n,).
        limits: of the server.
        empty: whether a story may be empty, as a policy's may.

    Raises:
        Refusal: no story, too many, an empty or too long one, or one that is no text.
    """
    if not stories:
        raise Refusal(422, "body: holds no story: send at least one")
    if len(stories) > limits.stories:
        raise Refusal(
            422,
            f"body: holds {len(stories):,} stories, and the limit is {limits.stories:,}: send them "
            "in several requests",
        )
    for place, (prompt, story) in enumerate(zip(prompts, stories, strict=True)):
        if not empty and not story.strip():
            raise Refusal(422, f"story {place}: is empty: leave it out")
        for name, text in (("story", story), ("prompt of story", prompt)):
            if len(text) > limits.story_characters:
                raise Refusal(
                    422,
                    f"{name} {place}: has {len(text):,} characters, and the limit is "
                    f"{limits.story_characters:,}: shorten it",
                )
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise Refusal(
                    422,
                    f"{name} {place}: holds half a character (a lone surrogate) at {error.start}: "
                    "send whole ones",
                ) from None


def _without(text: str, ends: Sequence[str], *, at_end: bool) -> str:
    start, stop = 0, len(text)
    while True:
        # Longest first: an end may begin or finish another. A text of nothing but ends must not be
        # copied once for each.
        if at_end:
            size = next((len(end) for end in ends if end and text.endswith(end, start, stop)), 0)
            stop -= size
        else:
            size = next((len(end) for end in ends if end and text.startswith(end, start)), 0)
            start += size
        if not size:
            return text[start:stop]
