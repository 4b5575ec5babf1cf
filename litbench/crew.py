"""Several processes on one job: which of them this one is, and what is its share.

Work is cut into parts that do not need each other, and every process takes each so many of them.
Processes come from a launcher (`accelerate launch`, torchrun), from jobs of a cluster that know
their number (`part: 2/4`), or from both.
"""

import os
import re
import sys
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from litbench.errors import ConfigError

T = TypeVar("T")

# Seconds of waiting after which a process says so.
_PATIENCE_SECONDS = 30
# What tells libraries of models that this process is one of a group. LOCAL_WORLD_SIZE and
# ACCELERATE_USE_CPU stay: alone they make no group, and say among how many processes this machine's
# cores are divided and that its GPUs are not meant.
_OF_A_GROUP = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED",
)  # fmt: skip


@dataclass(frozen=True)
class Crew:
    """The processes that work on one job, and which of them this one is.

    Attributes:
        index: of this process, from 0.
        count: of all.
    """

    index: int = 0
    count: int = 1

    @classmethod
    def of_launcher(cls) -> "Crew":
        """As `accelerate launch` and torchrun tell; else one process alone."""
        return cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    @classmethod
    def of_part(cls, part: str | None) -> "Crew":
        """As a config tells: "2/4" is the second of four jobs; None is one alone.

        Raises:
            ConfigError: anything else.
        """
        if part is None:
            return cls()
        match = re.fullmatch(r"(\d+)/(\d+)", part)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(
                f"part is '{part}': give the number of this job and of all, such as 2/4, or null"
            )
        return cls(int(match[1]) - 1, int(match[2]))

    @property
    def leads(self) -> bool:
        """Whether this process does what is done once."""
        return self.index == 0

    def within(self, outer: "Crew") -> "Crew":
        """This process's place when each job of `outer` is a crew like this one."""
        return Crew(outer.index * self.count + self.index, outer.count * self.count)

    def share(self, work: Sequence[T]) -> list[T]:
        """Every so many pieces of work; those of all processes together are all."""
        return list(work[self.index :: self.count])

    def wait(self, is_ready: Callable[[], bool], what: str) -> None:
        """Wait for what another process writes."""
        started, said = time.monotonic(), False
        while not is_ready():
            time.sleep(0.1)
            if not said and time.monotonic() - started > _PATIENCE_SECONDS:
                said = True
                print(f"process {self.index} of {self.count}: waiting for {what}", file=sys.stderr)


def leave_the_group(environment: MutableMapping[str, str]) -> None:
    """Make this process one of its own, so that a model trained in it is trained by it alone.

    Call it before any library of models is imported: it leaves the process the one GPU that the
    launcher meant for it, or none where it meant the CPU.

    Args:
        environment: such as `os.environ`; changed.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if environment.get("ACCELERATE_USE_CPU", "").lower() == "true":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    # An empty text hides all GPUs from everybody.
    elif int(environment.get("WORLD_SIZE", "1")) > 1 and visible != "":
        local = int(environment.get("LOCAL_RANK", "0"))
        devices = visible.split(",") if visible is not None else [str(local)]
        environment["CUDA_VISIBLE_DEVICES"] = devices[local % len(devices)]
    for name in _OF_A_GROUP:
        environment.pop(name, None)
