"""All tasks of LitBench for inspect-ai: `inspect eval litbench/TASK`.

inspect-ai finds tasks by file only where they are written: `litbench/writers/tasks.py@longform`.
"""

from litbench.suite.tasks import preference, suite
from litbench.writers.tasks import longform, narra, stories, tow, webnovel

__all__ = ["longform", "narra", "preference", "stories", "suite", "tow", "webnovel"]
