"""Benchmark raters on one or several sets of pairs: verdicts and a leaderboard.

    litbench eval benchmark --config configs/eval/sample_benchmark.yaml

Reads `pairs` and the raters of the config; with `ratings`, also the recorded judges and annotators
of data_prep/import_ratings.py. Writes `verdicts.parquet`, `leaderboard.json` (also `.csv` and
`.txt`), `manifest.json` and, with `ratings`, `annotators.json` into `out`.

`pairs` may name several sets. Each set is then evaluated separately in `out/NAME`, and `sets.json`
(also `.csv` and `.md`) in `out` has a row per set and rater, and means over the sets that all
raters share. A missing file is noted. A set that cannot be used is reported at the end, with exit
status 2. Neither stops the other sets.

With `select`, the template of each judge is first selected on validation pairs (paper, A.3); the
results are in `out/selection`.

If a rater judged no pair, the exit status is 1. If a limit of `traffic` was reached, the results
are those of the pairs that were judged, and marked as partial.

Each rater's verdicts on a set are stored when complete: a killed run resumes with the next rater,
and a rater or set added later is the only one to run. Judges store each answer in `out/answers` and
logs for `inspect view` in `out/logs`. `--dry_run true` estimates the cost of the judges without
sending requests.
"""

from litbench.evaluation.benchmark import Benchmark, run_benchmark
from litbench.evaluation.loop import check_judged
from litbench.runs.config import run_program

Config = Benchmark


def main(config: Benchmark) -> None:
    """Read the sets, select templates, judge, and write the results."""
    evaluations = run_benchmark(config, __file__)
    if "" in evaluations:
        folder = config.out
        print(f"next: litbench eval report --evaluations.results {folder} --out {folder}/report")
    check_judged(evaluations.values())


if __name__ == "__main__":
    run_program(main, Config, __doc__)
