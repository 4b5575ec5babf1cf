"""The public names of the exceptions, for users of the package.

Modules of LitBench import them from `litbench.runs.errors`, where they are defined.
"""

from litbench.runs.errors import (
    ConfigError,
    DataError,
    LitBenchError,
    MissingExtraError,
    ModelError,
)

__all__ = ["ConfigError", "DataError", "LitBenchError", "MissingExtraError", "ModelError"]
