r"""Measure how well the lists of words find what people say that a comment is about.

    python benchmarks/explanation_words.py --storyer aspect_comments.parquet \
        --ttcw expert_verdicts.parquet --ttcw_judges llm_judge_verdicts.parquet

Reads comments with a label of what was asked for: those of StoryER (columns `aspect`, `comment`)
and of the Torrance tests of creative writing (`test_no` and `explanation`, or `response` of
language models), each with `prompt_id`; any of the three may be left out. For a feature of
`litbench.metrics.explanation_text` and the labels that mean the same: recall, the share of
the comments with these labels that have the feature; elsewhere, the share of the others; and
precision, the share of the comments with the feature that have these labels. The labels tell what
was asked for, not all that a comment talks of, so that precision is a lower bound: a comment on
the ending may rightly speak of a character. Writes no file; prints tables and, as last line, one
JSON object. Seconds on one core.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from litbench.config import run_program
from litbench.errors import ConfigError
from litbench.metrics.explanation_text import WORDS, fold
from litbench.metrics.intervals import jackknife_interval
from litbench.metrics.leaderboard import plain

# Feature -> labels that mean the same. No label asks for the plot, so its list is not measured.
STORYER = {
    "character": {"character shaping"},
    "ending": {"ending"},
    "structure": {"opening/beginning", "middle/twist/flow"},
    "imagery": {"scene description"},
    "setting": {"scene description"},
    "originality": {"novel/idea"},
    "humour": {"funny/hilarious/laugh"},
    "suspense": {"horror/scary"},
    "emotion": {"sad/crying/tear", "heartwarming/touch"},
}
# By the names of the tests, in their order 1 to 14.
TESTS = (
    "Narrative Ending", "Understandability and Coherence", "Scene vs Summary", "Narrative Pacing",
    "Language Proficiency and Literary Devices", "Emotional Flexibility", "Structural Flexibility",
    "Perspective and Voice Flexibility", "Originality in Thought",
    "Originality in Form and Structure", "Originality in Theme and Content",
    "Rhetorical Complexity", "World Building and Setting", "Character Development",
)  # fmt: skip
TTCW = {
    "character": {"Character Development"},
    "ending": {"Narrative Ending"},
    "structure": {
        "Narrative Pacing", "Understandability and Coherence", "Originality in Form and Structure",
    },
    "imagery": {"Language Proficiency and Literary Devices"},
    "style": {"Language Proficiency and Literary Devices", "Perspective and Voice Flexibility"},
    "setting": {"World Building and Setting"},
    "originality": {"Originality in Thought", "Originality in Theme and Content",
                    "Originality in Form and Structure"},
    "emotion": {"Emotional Flexibility"},
    "theme": {"Rhetorical Complexity"},
}  # fmt: skip


@dataclass
class Config:
    """Which comments to read.

    Attributes:
        storyer: comments on aspects, or None.
        ttcw: reasons of experts, or None.
        ttcw_judges: answers of language models, or None.
    """

    storyer: Path | None = None
    ttcw: Path | None = None
    ttcw_judges: Path | None = None


def measure(
    path: Path, label: str, text: str, meant: dict[str, set[str]]
) -> dict[str, dict[str, object]]:
    """Measure every feature that some label means."""
    columns = pq.read_table(path, columns=["prompt_id", label, text]).to_pylist()
    rows = [row for row in columns if (row[text] or "").strip()]
    if label == "test_no":
        rows = [{**row, label: TESTS[row[label] - 1]} for row in rows]
    folded = [fold(row[text]) for row in rows]
    prompts = np.array([row["prompt_id"] for row in rows])
    print(f"\n{path.name}: {len(rows)} comments, {len(set(prompts.tolist()))} prompts")
    print(f"{'feature':<12} labelled  recall [95 %]         elsewhere  precision")
    measured = {}
    for feature, labels in meant.items():
        has = np.array([WORDS[feature].find(one) is not None for one in folded])
        asked = np.array([row[label] in labels for row in rows])
        recall = jackknife_interval(has[asked].astype(float), prompts[asked])
        elsewhere, precision = float(has[~asked].mean()), float(asked[has].mean())
        print(f"{feature:<12} {asked.sum():>8}  {recall!s:<20}  {elsewhere:>9.3f}  {precision:.3f}")
        measured[feature] = {
            "labelled": int(asked.sum()),
            "recall": plain(recall),
            "elsewhere": elsewhere,
            "precision": precision,
        }
    return measured


def main(config: Config) -> None:
    """Measure all tables that are given."""
    given = {
        "storyer": (config.storyer, "aspect", "comment", STORYER),
        "ttcw": (config.ttcw, "test_no", "explanation", TTCW),
        "ttcw_judges": (config.ttcw_judges, "test_no", "response", TTCW),
    }
    results = {
        name: measure(path, label, text, meant)
        for name, (path, label, text, meant) in given.items()
        if path is not None
    }
    if not results:
        raise ConfigError("no table is given: name storyer, ttcw or ttcw_judges")
    print(json.dumps(results))


if __name__ == "__main__":
    run_program(main, Config, __doc__)
