"""Make a study with human readers: the command `litbench study make`."""

import shutil
from collections import Counter
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.columns import PairColumns
from litbench.data.records import STORIES, has_texts
from litbench.data.sources.evaluation_pairs import read_pairs
from litbench.data.tables import read_table, write_table
from litbench.data.text import digest
from litbench.evaluation.report.document import publish, show_results
from litbench.raters.templates.rubric import load_rubric
from litbench.runs.config import as_plain
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact, write_json
from litbench.study.pairs import PairStudy
from litbench.study.plan import PLANS, Count, PairPlan, RatingPlan, SessionPlan, Study, StudyPlan
from litbench.study.ratings import RatingStudy, run_of
from litbench.study.sessions import PROTOCOL, SessionStudy
from litbench.writers.protocol import load_protocol


@dataclass(kw_only=True)
class StudyMaking(PairColumns, PairPlan, RatingPlan, SessionPlan):
    """Make a study with human readers, and estimate its cost.

        litbench study make --config configs/data/sample_study.yaml --preset pairs

    Reads pairs, such as the best and worst stories of eval/best_of_n.py, or, with `kind: ratings`,
    stories, such as those of a run, and a rubric; sessions (`kind: session`) need neither. Writes
    them, `plan.json`, `estimate.txt` and `manifest.json` into `out`, and prints the estimate:
    readers, hours and, by the formulas of docs/power.md, the difference that the study can find.

    Then `litbench study simulate OUT` tries the study with simulated readers, `litbench study serve
    OUT` shows it to people, and `litbench study export OUT` writes their choices, which litbench
    study analyse analyses, or ratings, which litbench writers compare does (docs/human_study.md).

    The other keys are those of the plans in litbench.study.plan.

    Attributes:
        out: folder to write.
        pairs: pairs file; the chosen side is the one whose agreement with readers is asked.
        split: split of the pairs; null for all.
        max_pairs: number of pairs to draw, by the seed; null for all.
        stories: in ratings, file of the stories, such as `stories.parquet` of a run.
    """

    out: Path
    pairs: Path | None = None
    split: str | None = None
    max_pairs: Count | None = None
    stories: Path | None = None

    def __post_init__(self) -> None:
        self.plan()

    def plan(self) -> StudyPlan:
        """The plan of the kind; ConfigError for a key of another kind."""
        changed = {
            key.name: getattr(self, key.name)
            for key in fields(self)
            if getattr(self, key.name)
            != (key.default if key.default_factory is MISSING else key.default_factory())
        }
        shared = {key.name for key in fields(StudyPlan)}
        keys = {kind: [key.name for key in fields(plan)] for kind, plan in PLANS.items()}
        for kind, names in keys.items():
            if kind != self.kind and (other := (changed.keys() - shared) & set(names)):
                raise ConfigError(f"{min(other)} is a key of the kind {kind}: leave it out")
        return PLANS[self.kind](
            **{name: changed[name] for name in keys[self.kind] if name in changed}
        )


def write_pairs(config: StudyMaking, plan: PairPlan, artifact: Artifact) -> Study:
    """Write the pairs of a study."""
    assert config.pairs is not None
    read = read_pairs(config.pairs, None, config.split, columns=config.columns())
    pairs = read.headline.sort_by("pair_id")
    without = int((~has_texts(pairs)).sum())
    copies = pc.sum(pc.equal(pairs["chosen"], pairs["rejected"])).as_py()
    if without or copies:
        raise DataError(
            f"{config.pairs}: {without} pairs have no texts and {copies} have the same text twice: "
            "leave them out"
        )
    if config.max_pairs is not None:
        names = sorted(pairs["pair_id"].to_pylist(), key=lambda name: digest(plan.seed, name))
        drawn = pa.array(names[: config.max_pairs], pairs["pair_id"].type)
        pairs = pairs.filter(pc.is_in(pairs["pair_id"], drawn))
    study = PairStudy(config.out, plan, pairs)
    artifact.write("pairs.parquet", partial(write_table, pairs))
    return study


def with_samples(stories: pa.Table) -> pa.Table:
    """Add the columns that tell a writer's stories for a prompt apart, where a run did not."""
    if "sample" not in stories.column_names:
        seen: Counter[tuple[str, str]] = Counter()
        samples = []
        for key in zip(
            stories["source"].to_pylist(), stories["prompt_id"].to_pylist(), strict=True
        ):
            samples.append(seen[key])
            seen[key] += 1
        stories = stories.append_column("sample", pa.array(samples, pa.int64()))
    if "step" not in stories.column_names:
        steps = pa.array(["story"] * stories.num_rows, pa.large_string())
        stories = stories.append_column("step", steps)
    return stories


def write_ratings(config: StudyMaking, plan: RatingPlan, artifact: Artifact) -> Study:
    """Write the stories and the rubric of a study."""
    assert config.stories is not None
    stories = read_table(config.stories, STORIES).sort_by("story_id")
    without = pc.sum(pc.equal(pc.utf8_trim_whitespace(stories["text"]), "")).as_py()
    if without or not stories.num_rows:
        raise DataError(
            f"{config.stories}: {without} of {stories.num_rows} stories have no text: leave them "
            "out, and give at least one"
        )
    stories, rubric = with_samples(stories), load_rubric(str(plan.rubric))
    artifact.write("stories.parquet", partial(write_table, stories))
    artifact.write("rubric.yaml", partial(shutil.copyfile, rubric.path or ""))
    artifact.counts = run_of(config.stories)
    return RatingStudy(config.out, plan, rubric, stories)


def make_study(config: StudyMaking) -> None:
    """Check the plan, write the study and print the estimate."""
    plan = config.plan()
    inputs: dict[str, Path | str | None] = {"pairs": config.pairs, "stories": config.stories}
    if isinstance(plan, SessionPlan):
        inputs |= load_protocol(PROTOCOL, plan.options).files()
    artifact = Artifact(config.out, program=__file__, config=config, inputs=inputs)
    if artifact.is_current():
        show_results(config.out, "estimate")
        return
    for kind, path in (("pairs", config.pairs), ("ratings", config.stories)):
        if (path is None) == (kind == plan.kind):
            name = "pairs" if kind == "pairs" else "stories"
            needs = "needs" if kind == plan.kind else "does not read"
            raise ConfigError(
                f"a study of the kind {plan.kind} {needs} {name}: correct one of them"
            )
    if (config.out / "study.sqlite").exists():
        raise DataError(f"{config.out} has readers of an earlier plan: write to another folder")
    study: Study
    if isinstance(plan, SessionPlan):
        # Checks the writers.
        study = SessionStudy.of(config.out, plan)
    elif isinstance(plan, RatingPlan):
        study = write_ratings(config, plan, artifact)
    else:
        assert isinstance(plan, PairPlan)
        study = write_pairs(config, plan, artifact)
    estimate = study.estimate()
    artifact.counts |= estimate
    text = study.estimate_text(estimate)
    artifact.write("plan.json", partial(write_json, as_plain(plan)))
    publish(artifact, "estimate", text)
    if plan.reader_ids is not None:
        for name in ("plan.json", "manifest.json"):
            (config.out / name).chmod(0o600)
    print(f"study: {config.out}")
