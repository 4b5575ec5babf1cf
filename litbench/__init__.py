"""LitBench: reward models for creative writing, trained on human votes, and their evaluation.

Importing `litbench` needs neither torch nor any optional extra; other names are imported on first
use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from litbench.errors import (
    ConfigError,
    DataError,
    LitBenchError,
    MissingExtraError,
    ModelError,
)

if TYPE_CHECKING:
    from litbench.api import benchmark, fit, make_pairs
    from litbench.models import load
    from litbench.models.features import FeatureModel
    from litbench.models.reward import RewardModel

__version__ = "0.1.2"

__all__ = [
    "ConfigError",
    "DataError",
    "FeatureModel",
    "LitBenchError",
    "MissingExtraError",
    "ModelError",
    "RewardModel",
    "__version__",
    "benchmark",
    "fit",
    "load",
    "make_pairs",
]

_MODULES = {
    "FeatureModel": "litbench.models.features",
    "RewardModel": "litbench.models.reward",
    "benchmark": "litbench.api",
    "fit": "litbench.api",
    "load": "litbench.models",
    "make_pairs": "litbench.api",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'litbench' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
