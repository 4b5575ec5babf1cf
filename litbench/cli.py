"""The litbench command: what an installed user needs without a checkout.

litbench score --model runs/verifier/model --input stories.jsonl --out scored.jsonl
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from litbench import __version__
from litbench.errors import ConfigError, LitBenchError
from litbench.manifest import (
    file_digest,
    source_digest,
    versions,
    write_atomically,
    write_json,
)
from litbench.models.features import FeatureModel
from litbench.models.reward import RewardModel
from litbench.raters import ScoreRater
from litbench.reading import read_table
from litbench.records import Column, Schema, SetAside, prompt_keys, write_table

# What scoring needs of a row; everything else in it is kept.
SCORABLE = Schema(
    "stories to score",
    (
        Column("prompt", "text", "the prompt's text", required=True),
        Column("text", "text", "the story's text", required=True),
    ),
    key=(),
)


def load_model(path: str, batch_tokens: int | None, device: str | None) -> ScoreRater:
    """Load a feature model or a reward model, by what its folder holds."""
    if (Path(path) / "features.json").exists():
        return FeatureModel.load(Path(path))
    return RewardModel.load(path, batch_tokens=batch_tokens, device=device)


def ranks_within_prompt(rewards: Sequence[float], prompts: Sequence[str]) -> list[int]:
    """Rank of each story among those of its prompt, 1 the best; equal rewards share a rank."""
    by_prompt: dict[str, list[float]] = {}
    for prompt, reward in zip(prompts, rewards, strict=True):
        by_prompt.setdefault(prompt, []).append(reward)
    return [
        1 + sum(other > reward for other in by_prompt[prompt])
        for prompt, reward in zip(prompts, rewards, strict=True)
    ]


def score(arguments: argparse.Namespace) -> None:
    """Score a file of stories, or one story from the command line."""
    model = load_model(arguments.model, arguments.batch_tokens, arguments.device)
    if arguments.story is not None:
        reward = model.score([arguments.prompt or ""], [arguments.story])[0]
        print(f"{reward:.6f}")
        return
    if arguments.input is None or arguments.out is None:
        raise ConfigError("give --input FILE and --out FILE, or --story TEXT with --prompt TEXT")
    set_aside = SetAside()
    columns = {"prompt": arguments.prompt_column, "text": arguments.text_column}
    stories = read_table(arguments.input, SCORABLE, columns=columns, set_aside=set_aside)
    rewards = model.score(stories["prompt"].to_pylist(), stories["text"].to_pylist())
    ranks = ranks_within_prompt(rewards.tolist(), prompt_keys(stories))
    for name, values in (("reward", pa.array(rewards)), ("rank_within_prompt", pa.array(ranks))):
        if name in stories.column_names:
            stories = stories.drop_columns([name])
        stories = stories.append_column(name, values)
    write_atomically(arguments.out, lambda path: write_table(stories, path))
    write_json(
        {
            "command": "litbench score",
            "model": {
                "path": arguments.model,
                "sha256": source_digest(arguments.model, is_model=True),
            },
            "input": {"path": arguments.input, "sha256": source_digest(arguments.input)},
            "output": {"path": str(arguments.out), "sha256": file_digest(arguments.out)},
            "counts": {"stories": stories.num_rows, "set_aside": set_aside.counts()},
            "notes": model.notes(),
            "versions": versions(),
        },
        arguments.out.with_name(f"{arguments.out.name}.manifest.json"),
    )
    print(f"{arguments.out}: {stories.num_rows:,} stories scored")
    print("  rewards can be compared within a prompt only", file=sys.stderr)
    for note, value in model.notes().items():
        if note in ("stories_cut", "layout"):
            print(f"  {note}: {value}", file=sys.stderr)
    if set_aside.rows:
        beside = arguments.out.with_suffix(".set_aside.jsonl")
        write_atomically(beside, set_aside.write)
        print(f"  set aside: {len(set_aside.rows):,} rows, reasons in {beside}", file=sys.stderr)


def main() -> None:
    """Parse the command line and run; print a LitBenchError as one line, exit 2."""
    parser = argparse.ArgumentParser(prog="litbench", description="Verifiers of creative writing.")
    parser.add_argument("--version", action="version", version=f"litbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    scoring = commands.add_parser("score", help="score stories with a trained model")
    scoring.add_argument("--model", required=True, help="model folder, or a name on the Hub")
    scoring.add_argument("--input", help="Parquet, JSONL, CSV or a datasets name")
    scoring.add_argument("--out", type=Path, help="same rows plus reward and rank_within_prompt")
    scoring.add_argument("--prompt-column", default="prompt", help="default: prompt")
    scoring.add_argument("--text-column", default="text", help="default: text")
    scoring.add_argument("--story", help="score this one text and print its reward")
    scoring.add_argument("--prompt", help="the prompt that --story answers")
    scoring.add_argument("--device", help="such as cuda or cpu")
    scoring.add_argument("--batch-tokens", type=int, help="most tokens of one forward pass")
    scoring.set_defaults(run=score)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except LitBenchError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
