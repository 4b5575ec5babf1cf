"""Write report.html: how well each rater agrees with the labels, on one self-contained page.

    python eval/report.py --config configs/eval/sample_report.yaml

Reads the folder of an evaluation (eval/benchmark.py or eval/crossvalidate.py) and, for the
funnel, the manifest beside its pairs file. Writes `report.html` and `manifest.json` into `out`.
"""

from dataclasses import dataclass
from pathlib import Path

from litbench.config import run_program
from litbench.errors import DataError
from litbench.evaluation import read_pairs
from litbench.manifest import Product, is_output, read_manifest, source_digest
from litbench.metrics.leaderboard import leaderboard
from litbench.reading import read_table
from litbench.records import VERDICTS
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
    manifest = read_manifest(config.evaluation)
    pairs_path = Path(manifest["inputs"]["pairs"]["path"])
    if source_digest(pairs_path) != manifest["inputs"]["pairs"]["sha256"]:
        raise DataError(
            f"{pairs_path} has changed since {config.evaluation} judged it: evaluate it again"
        )
    inputs = {"evaluation": config.evaluation / "manifest.json", "pairs": pairs_path}
    product = Product(config.out, program=__file__, config=config, inputs=inputs)
    if product.is_current():
        print(f"report: {(config.out / 'report.html').resolve()}")
        return
    wider = manifest["inputs"].get("before_symmetry")
    split = manifest["config"].get("split")
    pairs = read_pairs(pairs_path, None if wider is None else Path(wider["path"]), split)
    verdicts = read_table(config.evaluation / "verdicts.parquet", VERDICTS)
    reference = manifest["config"]["reference"]
    rows = leaderboard(
        verdicts,
        pairs.headline,
        reference,
        before_symmetry=pairs.before_symmetry,
        trained_on=manifest["counts"]["trained_on"],
    )
    # A pairs file from elsewhere has none of its own; the page then has no funnel.
    pairs_manifest = None
    if (pairs_path.parent / "manifest.json").is_file():
        beside = read_manifest(pairs_path.parent)
        pairs_manifest = beside if is_output(beside, pairs_path) else None
    page = render_report(
        title=config.title,
        rows=rows,
        verdicts=verdicts,
        pairs=pairs.headline,
        before_symmetry=pairs.before_symmetry,
        reference=reference,
        evaluation_manifest=manifest,
        pairs_manifest=pairs_manifest,
    )
    product.write("report.html", lambda path: path.write_text(page, encoding="utf-8"))
    product.counts = {"pairs": pairs.headline.num_rows, "raters": len(rows)}
    product.finish()
    print(f"report: {(config.out / 'report.html').resolve()}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
