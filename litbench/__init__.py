"""LitBench: reward models for creative writing, trained on human votes, and their evaluation.

Importing `litbench` needs neither torch nor any optional extra; `RewardModel` and `FeatureModel`
are imported on first use.
"""

from typing import TYPE_CHECKING, Any

from litbench.errors import ConfigError, DataError, LitBenchError, MissingExtraError, ModelError

if TYPE_CHECKING:
    from litbench.models.features import FeatureModel
    from litbench.models.reward import RewardModel

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "DataError",
    "FeatureModel",
    "LitBenchError",
    "MissingExtraError",
    "ModelError",
    "RewardModel",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "RewardModel":
        from litbench.models.reward import RewardModel  # noqa: PLC0415

        return RewardModel
    if name == "FeatureModel":
        from litbench.models.features import FeatureModel  # noqa: PLC0415

        return FeatureModel
    raise AttributeError(f"module 'litbench' has no attribute '{name}'")
