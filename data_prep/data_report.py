"""Write data_report.html: the contents of a pairs file and how it was made, on one page.

    python data_prep/data_report.py --config configs/paper/litbench_figure2.yaml --preset sample

Reads the output of make_pairs.py, import_pairs.py or rehydrate.py: `pairs.parquet` and, if they
exist, `pairs_before_symmetry.parquet`, `manifest.json` and `examples.jsonl`. Reads no texts of
stories except the examples. Writes `data_report.html` and `manifest.json` into `out`.
"""

from dataclasses import dataclass
from pathlib import Path

from litbench.config import run_program
from litbench.report.data_page import PairsFolder
from litbench.store import Artifact


@dataclass
class Config:
    """Configuration of `data_report.py`.

    Attributes:
        pairs: folder of a pairs artifact.
        out: folder to write.
        title: heading of the page.
        examples: show examples of removed stories; if false, the page has no texts of stories.
    """

    pairs: Path
    out: Path
    title: str = "LitBench data report"
    examples: bool = True


def main(config: Config) -> None:
    """Write the data report."""
    folder = PairsFolder.find(config.pairs, examples=config.examples)
    artifact = Artifact(config.out, program=__file__, config=config, inputs=folder.files)
    page_path = (config.out / "data_report.html").resolve()
    if not artifact.is_current():
        page = folder.report(config.title, page_path)
        artifact.write_text(page_path.name, page)
        artifact.finish()
    print(f"data report: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
