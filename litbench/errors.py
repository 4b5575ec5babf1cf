"""The public names of the exceptions: `except litbench.errors.DataError`."""

from litbench.runs.errors import (
    ConfigError,
    DataError,
    LitBenchError,
    MissingExtraError,
    ModelError,
)

__all__ = ["ConfigError", "DataError", "LitBenchError", "MissingExtraError", "ModelError"]
