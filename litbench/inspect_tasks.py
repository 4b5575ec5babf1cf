"""All tasks of LitBench for inspect-ai: `inspect eval litbench/TASK`."""

from litbench.suite.tasks import preference, suite
from litbench.writers.tasks import longform, narra, stories, tow, webnovel

__all__ = ["longform", "narra", "preference", "stories", "suite", "tow", "webnovel"]
