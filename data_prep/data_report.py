"""Write data_report.html: the contents of a pairs file and how it was made, on one page.

    python data_prep/data_report.py --config configs/data/sample_data_report.yaml

Reads the output of make_pairs.py, import_pairs.py or rehydrate.py: `pairs.parquet` and, if they
exist, `pairs_before_symmetry.parquet`, `manifest.json` and `examples.jsonl`. Reads no texts of
stories except the examples. Writes `data_report.html` and `manifest.json` into `out`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litbench.artifact import Artifact, is_output, read_manifest_of
from litbench.config import run_program
from litbench.records import PAIRS
from litbench.report.data_page import read_examples, render_data_report
from litbench.tables import check_parquet


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
    files = {"pairs": config.pairs / "pairs.parquet"}
    check_parquet(files["pairs"], PAIRS)
    # External pairs have no manifest; the page then has no funnel.
    manifest, notes = None, []
    if (config.pairs / "manifest.json").is_file():
        files["manifest"] = config.pairs / "manifest.json"
        manifest = read_manifest_of(files["pairs"])
    for name in ("pairs_before_symmetry.parquet", "examples.jsonl"):
        path = config.pairs / name
        if not path.is_file() or (name == "examples.jsonl" and not config.examples):
            continue
        if manifest is None or is_output(manifest, path):
            files[path.stem] = path
        else:
            notes.append(f"{path} is left out: the run that wrote these pairs did not write it.")
    if "pairs_before_symmetry" in files:
        check_parquet(files["pairs_before_symmetry"], PAIRS)
    artifact = Artifact(config.out, program=__file__, config=config, inputs=files)
    page_path = (config.out / "data_report.html").resolve()
    if not artifact.is_current():
        examples: dict[str, Any] | None = {} if config.examples else None
        if "examples" in files:
            examples = read_examples(files["examples"])
        page = render_data_report(
            title=config.title,
            pairs=files["pairs"],
            before=files.get("pairs_before_symmetry"),
            manifest=manifest,
            examples=examples,
            notes=notes,
            page=page_path,
        )
        artifact.write(page_path.name, lambda path: path.write_text(page, encoding="utf-8"))
        artifact.finish()
    print(f"data report: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
