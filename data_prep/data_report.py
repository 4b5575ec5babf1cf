"""Write data_report.html: what a pairs file holds and how it came to, on one self-contained page.

    python data_prep/data_report.py --config configs/data/sample_data_report.yaml

Reads the product of make_pairs.py, import_pairs.py or rehydrate.py: `pairs.parquet` and, where
they lie beside it, `pairs_before_symmetry.parquet`, `manifest.json` and `examples.jsonl`; also
the examples of make_stories.py beside the stories that the manifest names. Reads no story but
the examples. Writes `data_report.html` and `manifest.json` into `out`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litbench.artifact import Artifact, is_output, read_manifest, read_manifest_of
from litbench.config import run_program
from litbench.records import PAIRS
from litbench.report.data_page import read_examples, render_data_report
from litbench.report.pair_profile import read_profile
from litbench.tables import check_parquet


@dataclass
class Config:
    """What to show.

    Attributes:
        pairs: folder of a pairs artifact.
        out: folder to write.
        title: heading of the page.
        examples: show what the steps removed; false leaves every story's text out of the page.
    """

    pairs: Path
    out: Path
    title: str = "LitBench data report"
    examples: bool = True


def find_story_examples(manifest: Mapping[str, Any]) -> tuple[Path | None, str | None]:
    """The examples beside the stories that pairs were made of, and a note if these have changed."""
    stories = manifest.get("inputs", {}).get("stories")
    if stories is None:
        return None, None
    path = Path(stories["path"])
    examples = path.parent / "examples.jsonl"
    if not (examples.is_file() and (path.parent / "manifest.json").is_file()):
        return None, None
    outputs = read_manifest(path.parent).get("outputs", {})
    if outputs.get(path.name, {}).get("sha256") != stories["sha256"]:
        return None, f"{path} is no longer what these pairs were made of: its cuts are left out."
    return examples, None


def find_beside(
    config: Config, manifest: Mapping[str, Any] | None
) -> tuple[dict[str, Path], list[str]]:
    """What else the page shows of the folder, and a note about each file of another run."""
    names = {"before_symmetry": "pairs_before_symmetry.parquet"}
    if config.examples:
        names["examples"] = "examples.jsonl"
    found, notes = {}, []
    for key, name in names.items():
        path = config.pairs / name
        if path.is_file():
            if manifest is None or is_output(manifest, path):
                found[key] = path
            else:
                notes.append(f"{path} is not of the run that wrote these pairs: it is left out.")
    return found, notes


def main(config: Config) -> None:
    """Find the files, count, render, write."""
    files = {"pairs": config.pairs / "pairs.parquet"}
    check_parquet(files["pairs"], PAIRS)
    # Pairs from elsewhere have no manifest; the page then has no funnel.
    manifest, notes = None, []
    if (config.pairs / "manifest.json").is_file():
        files["manifest"] = config.pairs / "manifest.json"
        manifest = read_manifest_of(files["pairs"])
    beside, left_out = find_beside(config, manifest)
    files |= beside
    notes += left_out
    if "before_symmetry" in files:
        check_parquet(files["before_symmetry"], PAIRS)
    if config.examples:
        cuts, note = find_story_examples(manifest or {})
        if cuts is not None:
            files["story_examples"] = cuts
        notes += [note] if note else []
    artifact = Artifact(config.out, program=__file__, config=config, inputs=files)
    page_path = (config.out / "data_report.html").resolve()
    if artifact.is_current():
        print(f"data report: {page_path}")
        return
    profile = read_profile(files["pairs"], files.get("before_symmetry"))
    shown = {
        name: (read_examples(files[name]) if name in files else {}) if config.examples else None
        for name in ("examples", "story_examples")
    }
    page = render_data_report(
        title=config.title,
        profile=profile,
        manifest=manifest,
        examples=shown["examples"],
        cuts=shown["story_examples"],
        notes=notes,
    )
    artifact.write("data_report.html", lambda path: path.write_text(page, encoding="utf-8"))
    artifact.counts = {
        "pairs": profile.pairs,
        "splits": {split.name: split.pairs for split in profile.splits},
    }
    artifact.finish()
    print(f"data report: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
