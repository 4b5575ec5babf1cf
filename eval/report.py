"""Write report.html: how well each rater agrees with the labels, on one self-contained page.

    python eval/report.py --config configs/eval/sample_report.yaml

Reads the folder of an evaluation (eval/benchmark.py or eval/crossvalidate.py) and, for the
funnel, the manifest beside its pairs file. Writes `report.html` and `manifest.json` into `out`.
"""

from dataclasses import dataclass
from pathlib import Path

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.evaluation import Judged
from litbench.report.page import render_report


@dataclass
class Config:
    """What to show.

    Attributes:
        evaluation: folder of an evaluation.
        out: folder to write.
        title: heading of the page.
    """

    evaluation: Path
    out: Path
    title: str = "LitBench report"


def main(config: Config) -> None:
    """Read the evaluation, render, write."""
    judged = Judged.find(config.evaluation)
    artifact = Artifact(config.out, program=__file__, config=config, inputs=judged.inputs())
    if artifact.is_current():
        print(f"report: {(config.out / 'report.html').resolve()}")
        return
    pairs, verdicts = judged.read_pairs(), judged.read_verdicts()
    rows = judged.leaderboard(verdicts, pairs)
    page = render_report(
        title=config.title,
        rows=rows,
        verdicts=verdicts,
        pairs=pairs.headline,
        before_symmetry=pairs.before_symmetry,
        reference=judged.reference,
        evaluation_manifest=judged.manifest,
        # A pairs file from elsewhere has none of its own; the page then has no funnel.
        pairs_manifest=judged.manifest_of_pairs(),
        humans=judged.humans(),
    )
    artifact.write("report.html", lambda path: path.write_text(page, encoding="utf-8"))
    artifact.counts = {"pairs": pairs.headline.num_rows, "raters": len(rows)}
    artifact.finish()
    print(f"report: {(config.out / 'report.html').resolve()}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
