"""LitBench: verifiers of creative writing from human votes, and how far they agree with people.

Importing it needs neither torch nor any optional extra; `RewardModel` and `FeatureModel` are
loaded when they are first used.
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
