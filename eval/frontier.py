"""Draw agreement against cost: a cheap rater that asks an expensive one where it is unsure.

    python eval/frontier.py --config configs/eval/frontier.yaml

Reads the folder of an evaluation (eval/benchmark.py or eval/crossvalidate.py) in which the cheap
and the expensive raters have judged the same pairs. Writes `frontier.json`, `.csv` and `.txt`,
`frontier.html`, its plots `frontier_asked` and, where prices are known, `frontier_dollars` (`.svg`
and `.png`), and `manifest.json` into `out`. Nobody is asked again, and no threshold is chosen: the
curves describe these pairs.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from litbench.artifact import (
    Artifact,
    without_runtime_keys,
    write_json,
)
from litbench.config import run_program
from litbench.errors import ConfigError
from litbench.evaluation import Judged
from litbench.metrics.frontier import frontier, frontier_text, write_frontier_csv
from litbench.metrics.leaderboard import plain
from litbench.report.document import write_panels
from litbench.report.frontier_page import draw_frontier, render_frontier


@dataclass
class Config:
    """What to draw.

    Attributes:
        evaluation: folder of an evaluation.
        out: folder to write.
        cheap: names of raters that judge every pair.
        expensive: names of raters that are asked; every cheap one is drawn with every one of them.
        fallback: the cheap rater's verdict stands where the expensive one ends undecided.
        most_points: thresholds per curve.
        beside: names of raters in the plots besides these, such as juries; null for all.
        title: heading of the page.
    """

    evaluation: Path
    out: Path
    cheap: list[str]
    expensive: list[str]
    fallback: bool = False
    most_points: int = 100
    beside: list[str] | None = None
    title: str = "LitBench: agreement against cost"


def main(config: Config) -> None:
    """Read the evaluation, compute, print, write."""
    judged = Judged.find(config.evaluation)
    artifact = Artifact(config.out, program=__file__, config=config, inputs=judged.inputs())
    page_path = (config.out / "frontier.html").resolve()
    if artifact.is_current():
        print((config.out / "frontier.txt").read_text(encoding="utf-8") + f"page: {page_path}")
        return
    pairs, verdicts = judged.read_pairs().headline, judged.read_verdicts()
    found = frontier(
        verdicts,
        pairs,
        config.cheap,
        config.expensive,
        most_points=config.most_points,
        fallback=config.fallback,
    )
    names = [rater.rater for rater in found.raters]
    beside = names if config.beside is None else config.beside
    unknown = sorted(set(beside) - set(names))
    if unknown:
        raise ConfigError(f"beside: '{unknown[0]}' has no verdicts: {', '.join(sorted(names))} do")
    artifact.write("frontier.json", lambda path: write_json(plain(found), path))
    artifact.write("frontier.csv", lambda path: write_frontier_csv(found, path))
    text = frontier_text(found) + "\n"
    artifact.write("frontier.txt", lambda path: path.write_text(text, encoding="utf-8"))
    panels = draw_frontier(found, beside)
    write_panels(artifact, "frontier", panels)
    written_by = {"evaluation": judged.manifest, "pairs": judged.manifest_of_pairs()}
    manifests = {
        name: json.dumps(without_runtime_keys(manifest), indent=2)
        for name, manifest in written_by.items()
        if manifest is not None
    }
    page = render_frontier(
        title=config.title,
        found=found,
        panels=panels,
        pairs=pairs,
        trained_on=judged.manifest["counts"]["trained_on"],
        manifests=manifests,
    )
    artifact.write("frontier.html", lambda path: path.write_text(page, encoding="utf-8"))
    artifact.counts = {"pairs": pairs.num_rows, "curves": len(found.curves), "raters": len(names)}
    artifact.finish()
    print(f"{text}page: {page_path}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
