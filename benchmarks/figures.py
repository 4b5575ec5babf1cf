"""Figures of the benchmarks: ratios measured in turn, their goals, and the baseline of a machine.

A benchmark measures ways of doing the same work in one process, in turn, and ends with `report`: a
table, and one JSON object as last line. A figure is a ratio of two ways within a repeat, since the
speed of a machine drifts between repeats; its median and range over repeats are shown. Benchmarks
show absolute speeds on a GPU only: on a CPU they say more about its other work.

    python benchmarks/figures.py                    # run all benchmarks and compare
    python benchmarks/figures.py scoring training   # some of them
    python benchmarks/figures.py --save             # and keep this run as the machine's baseline

Compares with benchmarks/baselines/MACHINE.json, which has one run per machine. A figure got worse
if its median is outside the baseline's range, and the baseline's median outside its own range.
"""

import argparse
import gc
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
BENCHMARKS = ("pairing", "reading", "training", "scoring", "judging")
# Noise of a figure that was measured once.
_MARGIN = 0.05
# Common English words, so that random texts have a realistic number of tokens per word.
WORDS = """
    the a of and to in was her his she he it that with for on as had at but they from this river
    lantern winter window silence mountain brother letter kitchen shadow doorway evening
    remembered whispered carried opened turned looked waited forgot trembling quietly slowly
"""


@dataclass(frozen=True)
class Figure:
    """A ratio, and what it should reach.

    Attributes:
        name: what is compared with what.
        ratios: the ratio of each repeat.
        goal: the least median, or the greatest if `at_most`; None for a figure without a goal.
        at_most: whether less is better.
    """

    name: str
    ratios: Sequence[float]
    goal: float | None = None
    at_most: bool = False

    def row(self) -> dict[str, Any]:
        """The figure as a JSON object; numbers have three digits."""
        middle, low, high = (float(f"{pick(self.ratios):.3g}") for pick in (median, min, max))
        met = None
        if self.goal is not None:
            met = middle <= self.goal if self.at_most else middle >= self.goal
        return {
            "figure": self.name,
            "median": middle,
            "low": low,
            "high": high,
            "repeats": len(self.ratios),
            "goal": self.goal,
            "at_most": self.at_most,
            "met": met,
        }


def in_turn(
    ways: Mapping[str, Callable[[], Any]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Time ways of doing the same work, in turn; every other repeat has the reverse order.

    Each way starts without the garbage of the one before.

    Returns:
        The seconds of each repeat and the last value, by way.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    values = {}
    for repeat in range(repeats):
        for name in list(ways)[:: -1 if repeat % 2 else 1]:
            gc.collect()
            started = clock()
            values[name] = ways[name]()
            seconds[name].append(clock() - started)
    return dict(seconds), values


def quotients(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """The quotient of each repeat."""
    return [a / b for a, b in zip(first, second, strict=True)]


def report(benchmark: str, figures: Sequence[Figure], **facts: Any) -> None:
    """Print the figures as a table, then all as one JSON object."""
    rows = [figure.row() for figure in figures]
    width = max(len(row["figure"]) for row in rows)
    for row in rows:
        goal = ""
        if row["goal"] is not None:
            sign, answer = "<=" if row["at_most"] else ">=", "met" if row["met"] else "NOT met"
            goal = f"  goal {sign} {row['goal']:g}: {answer}"
        print(
            f"{row['figure']:<{width}}  {row['median']:>7.3g} "
            f"({row['low']:.3g} to {row['high']:.3g}, n={row['repeats']}){goal}"
        )
    print(json.dumps({"benchmark": benchmark, "figures": rows, **facts}))


def machine() -> str:
    """Name this machine by its GPU, or its processor and number of cores."""
    import torch  # noqa: PLC0415

    if torch.cuda.is_available():
        return _slug(torch.cuda.get_device_name())
    processor = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        named = re.search(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE)
        processor = named[1] if named else processor
    return f"{_slug(processor)}-{os.cpu_count()}-cores"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def changes(
    before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Return the figures that got worse or better by more than their noise, one line each.

    The noise is the range of the repeats; of a single one, 5 % around it.
    """

    def is_within(median: float, row: Mapping[str, Any]) -> bool:
        margin = _MARGIN if row["repeats"] == 1 else 0.0
        low, high = row["low"] * (1 - margin), row["high"] * (1 + margin)
        return bool(low <= median <= high)

    rows = {row["figure"]: row for row in before}
    named: dict[str, list[str]] = {"worse": [], "better": []}
    for row in now:
        was = rows.get(row["figure"])
        if was is None or is_within(row["median"], was) or is_within(was["median"], row):
            continue
        grew = row["median"] > was["median"]
        line = f"{row['figure']}: {was['median']:g} -> {row['median']:g}"
        named["worse" if grew == row["at_most"] else "better"].append(line)
    return named


def main() -> None:
    """Run benchmarks, compare with the baseline, and save it if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--save", action="store_true", help="keep the run as baseline")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"no benchmark {', '.join(unknown)}: give any of {', '.join(BENCHMARKS)}")
    path = HERE / "baselines" / f"{machine()}.json"
    baseline = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    worse = []
    for name in arguments.names or BENCHMARKS:
        print(f"== {name}", flush=True)
        command = [sys.executable, str(HERE / f"{name}.py")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, end="", flush=True)
        if done.returncode:
            raise SystemExit(f"{name} ended with code {done.returncode}")
        result = json.loads(done.stdout.splitlines()[-1])
        changed = changes(baseline.get(name, {}).get("figures", []), result["figures"])
        for kind, lines in changed.items():
            for line in lines:
                print(f"{kind} than the baseline by more than the noise: {line}")
        worse += changed["worse"]
        if arguments.save:
            baseline[name] = result
            path.write_text(json.dumps(baseline, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if worse:
        raise SystemExit(f"{len(worse)} figures got worse")


if __name__ == "__main__":
    main()
