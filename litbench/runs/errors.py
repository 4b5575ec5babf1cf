"""Exceptions that LitBench raises.

Every message has three parts: what was found, where (file, row, column or key), what to do.
Programs catch `LitBenchError` at the top and print it without a traceback.
"""


class LitBenchError(Exception):
    """Base class of all errors that the user can act on."""


class ConfigError(LitBenchError):
    """A config file or command line is not valid for its program."""


class DataError(LitBenchError):
    """A table cannot be read, or its rows violate its schema."""


class ModelError(LitBenchError):
    """A model cannot be loaded, or does not support the requested operation."""


class MissingExtraError(LitBenchError):
    """A library of an optional extra is not installed."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(
            f"this needs {library}, which is not installed: run pip install 'litbench[{extra}]'"
        )
