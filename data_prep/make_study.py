"""Make a study with human readers from a pairs file, and say what it takes.

    python data_prep/make_study.py --config configs/data/sample_study.yaml

Reads pairs, such as the best and worst stories of eval/best_of_n.py. Writes `pairs.parquet`,
`plan.json`, `estimate.txt` and `manifest.json` into `out`, and prints the estimate: readers, hours
and, by the formulas of docs/power.md, the difference that the study can find. No reader is needed
for that.

Then `litbench study simulate OUT` tries the study with simulated readers, `litbench study serve
OUT` shows it to people, `litbench study export OUT` writes their choices, and eval/study.py
analyses them (docs/human_study.md).
"""

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated

import pyarrow.compute as pc

from litbench.config import Input, as_plain, run_program
from litbench.errors import DataError
from litbench.human_study.plan import Plan, Study, check_plan, estimate, estimate_text
from litbench.metrics.agreement import has_texts
from litbench.sources.evaluation_pairs import read_pairs
from litbench.store import Artifact, write_json
from litbench.tables import write_table


@dataclass(kw_only=True)
class Config(Plan):
    """Configuration of `make_study.py`; the other keys are those of litbench.human_study.plan.Plan.

    Attributes:
        pairs: pairs file; the chosen side is the one whose agreement with readers is asked.
        out: folder to write.
        split: split of the pairs; null for all.
    """

    pairs: Annotated[Path, Input]
    out: Path
    split: str | None = None


def main(config: Config) -> None:
    """Check the plan, write the study and print the estimate."""
    artifact = Artifact(config.out, program=__file__, config=config)
    if artifact.is_current():
        print((config.out / "estimate.txt").read_text(encoding="utf-8"), end="")
        return
    pairs = read_pairs(config.pairs, None, config.split).headline.sort_by("pair_id")
    without = int((~has_texts(pairs)).sum())
    copies = pc.sum(pc.equal(pairs["chosen"], pairs["rejected"])).as_py()
    if without or copies:
        raise DataError(
            f"{config.pairs}: {without} pairs have no texts and {copies} twice the same: leave "
            "them out"
        )
    plan = Plan(**{key.name: getattr(config, key.name) for key in fields(Plan)})
    check_plan(plan, pairs)
    study = Study(config.out, plan, pairs)
    if study.database.exists():
        raise DataError(f"{study.database} has readers of an earlier plan: write to another folder")
    found = estimate(study)
    text = estimate_text(plan, found)
    artifact.write("pairs.parquet", partial(write_table, pairs))
    artifact.write("plan.json", partial(write_json, as_plain(plan)))
    artifact.write("estimate.txt", lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = found
    artifact.finish()
    if plan.reader_ids is not None:
        for name in ("plan.json", "manifest.json"):
            (config.out / name).chmod(0o600)
    print(f"{text}study: {config.out}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
