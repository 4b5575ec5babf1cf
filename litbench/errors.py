"""The exceptions LitBench raises on purpose.

Every message has three parts: what was found, where (file, row, column or key), what to do.
Programs catch `LitBenchError` at the top and print it without a traceback.
"""


class LitBenchError(Exception):
    """Base of every error that tells the user something they can act on."""


class ConfigError(LitBenchError):
    """A config file or command line that does not fit its program."""


class DataError(LitBenchError):
    """A table that cannot be read, or whose rows break its schema."""


class ModelError(LitBenchError):
    """A model folder that cannot be loaded, or a model that cannot do what was asked."""


class MissingExtraError(LitBenchError):
    """A library that belongs to an optional extra is not installed."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(
            f"this needs {library}, which is not installed: run pip install 'litbench[{extra}]'"
        )
