"""The JSON files of saved models, checked on reading: a schema for each kind."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, FiniteFloat

from litbench.models.input_format import Form
from litbench.models.question import Question
from litbench.runs.config import build
from litbench.runs.errors import ConfigError, ModelError
from litbench.runs.outputs import read_sealed

R = TypeVar("R", bound="ModelRecord")

# Of `litbench.json`.
FORMAT: Literal[3] = 3
_PERCENTILES = 101


@dataclass(kw_only=True)
class ModelRecord:
    """The record of every saved model.

    Attributes:
        kind: kind of rater.
        training_prompts: `prompt_key` of the training prompts.
        versions: versions of libraries at the time of saving.
        reward_quantiles: see `litbench.raters.interface.ScoreRater`.
        columns: see `litbench.raters.interface.Rater`.
    """

    kind: str
    training_prompts: list[str]
    versions: dict[str, str] = field(default_factory=dict)
    reward_quantiles: list[FiniteFloat] | None = None
    columns: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        quantiles = self.reward_quantiles
        if quantiles is not None and not (
            len(quantiles) == _PERCENTILES and quantiles == sorted(quantiles)
        ):
            raise ValueError(
                f"reward_quantiles has {len(quantiles)} numbers: {_PERCENTILES} in ascending order "
                "are expected"
            )


@dataclass(kw_only=True)
class FeatureRecord:
    """One feature of a feature model: its name, mean, scale and coefficient."""

    name: str
    mean: FiniteFloat
    scale: Annotated[FiniteFloat, Field(gt=0)]
    coefficient: FiniteFloat


@dataclass(kw_only=True)
class FeaturesRecord(ModelRecord):
    """Content of `features.json`.

    Attributes:
        c: inverse regularisation strength.
        features: the features.
        negatives: number of negatives in training.
        reward_quantiles: must be there, as every feature model has them.
    """

    kind: Literal["features"]
    c: Annotated[FiniteFloat, Field(gt=0)]
    features: Annotated[list[FeatureRecord], Field(min_length=1)]
    negatives: int = 0
    # Without `field` it would inherit the default.
    reward_quantiles: list[FiniteFloat] | None = field()


@dataclass(kw_only=True)
class AdapterRecord:
    """Base model of an adapter, and whether its weights have four bits."""

    base: str
    quantized: bool


@dataclass(kw_only=True)
class FolderRecord(ModelRecord):
    """Content of `litbench.json`.

    Attributes:
        format: version of the format.
        adapter: the adapter, if the weights are not merged.
        form: input form of a model that LitBench did not train but saved; None for `chat`.
        question: question of a generative rater.
        training: record of the training.
    """

    kind: Literal["reward", "generative"]
    format: Literal[3]
    adapter: AdapterRecord | None = None
    form: Form | None = None
    question: Question | None = None
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (question := self.question) is not None:
            stories = sorted(slot for slot in question.slots if slot != "prompt")
            sizes = {len(question.parts), len(question.fixed), len(question.slots) + 1}
            if len(sizes) > 1 or stories != ["story_a", "story_b"]:
                raise ValueError(
                    f"question has {len(question.parts)} parts and {len(question.fixed)} fixed "
                    f"texts around {question.slots}"
                )
        if (self.kind == "generative") != (self.question is not None):
            raise ValueError("only a generative rater has a question")


def read_record(path: Path, cls: type[R], advice: str) -> R:
    """Read the file of a saved model; ModelError if it is missing, damaged or not of its schema."""
    content = read_sealed(path, ModelError, advice)
    try:
        return build(cls, content, path.name)
    except ConfigError as error:
        raise ModelError(f"{path} is broken ({error}): {advice}") from error
