"""The litbench command: what an installed user needs without a checkout.

litbench score --model runs/verifier/model --input stories.jsonl --out scored.jsonl
litbench serve --model runs/verifier/model
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from litbench import __version__
from litbench.config import clear_exit
from litbench.errors import ConfigError, DataError
from litbench.raters import RaterSpec
from litbench.scoring import (
    CHUNK_STORIES,
    SUFFIXES,
    ScoringJob,
    finite_rewards,
    load_scorer,
    score_files,
    scorer_entry,
    scorer_spec,
)
from litbench.serving import command as serving


def _rater(arguments: argparse.Namespace) -> RaterSpec:
    """The rater that the command line names.

    Raises:
        ConfigError: a rater that is no mapping, or beside options of a model folder.
    """
    if arguments.model is not None:
        entry = scorer_entry(arguments.model, arguments.device, arguments.batch_tokens)
        return scorer_spec(entry)
    if arguments.device is not None or arguments.batch_tokens is not None:
        raise ConfigError(
            "--device and --batch-tokens go with --model: write them into --rater as device and "
            "batch_tokens"
        )
    try:
        return scorer_spec(yaml.safe_load(arguments.rater))
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise ConfigError(
            f"--rater is no YAML ({line}): write it as '{{kind: longer}}', in quotes"
        ) from error


def _score_one(spec: RaterSpec, prompt: str | None, story: str) -> None:
    """Print the reward of one story; of standard input where it is a dash.

    Raises:
        ConfigError: there is no prompt or no story.
        DataError: standard input is no UTF-8, or the reward is not finite.
    """
    if story == "-":
        try:
            story = sys.stdin.buffer.read().decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"standard input is no UTF-8 at byte {error.start}: convert it"
            ) from error
    if prompt is None or not prompt.strip():
        raise ConfigError(
            "--story has no prompt, and a reward is that of a prompt and a story: "
            "give --prompt TEXT"
        )
    if not story.strip():
        raise ConfigError("--story is empty: give a text, or - to read one from standard input")
    (reward,) = finite_rewards(load_scorer(spec), [prompt], [story])
    print(f"{reward:.6f}")
    print("  it can be compared with rewards of the same prompt only", file=sys.stderr)


def score(arguments: argparse.Namespace) -> None:
    """Score files of stories, or one story from the command line."""
    spec = _rater(arguments)
    if arguments.story is not None:
        of_files = ("input", "out", "where", "reference", "reference_where")
        if given := [name for name in of_files if getattr(arguments, name) is not None]:
            named = ", ".join("--" + name.replace("_", "-") for name in given)
            raise ConfigError(f"--story is scored by itself: leave out {named}")
        _score_one(spec, arguments.prompt, arguments.story)
        return
    if arguments.input is None or arguments.out is None:
        raise ConfigError("give --input FILE and --out FILE, or --story TEXT with --prompt TEXT")
    job = ScoringJob(
        spec,
        tuple(arguments.input),
        arguments.out,
        prompt_column=arguments.prompt_column,
        text_column=arguments.text_column,
        prompt=arguments.prompt,
        where=arguments.where,
        reference=arguments.reference,
        reference_where=arguments.reference_where,
        chunk_stories=arguments.chunk_stories,
    )
    manifest = score_files(job)
    if manifest is None:
        return
    if manifest.get("unchanged"):
        print(f"unchanged: {job.out}")
        return
    _tell(job, manifest)


def _tell(job: ScoringJob, manifest: dict[str, Any]) -> None:
    """Print what was scored, and what a reader should know about it."""
    counts = manifest["counts"]
    print(f"{job.out}: {counts['stories']:,} stories scored")

    def note(line: str) -> None:
        print(f"  {line}", file=sys.stderr)

    scored, seconds = manifest["stories_scored"], max(manifest["scoring_seconds"], 0.01)
    before = counts["stories"] + counts.get("reference_stories", 0) - scored
    went_on = f"; {before:,} were scored before" if before else ""
    note(f"{scored:,} scored in {seconds:,.1f} s, {scored / seconds:,.1f} a second{went_on}")
    note(manifest["across_prompts"]["warning"])
    if "stories_with_reference" in counts:
        note(
            f"beats_reference: {counts['stories_with_reference']:,} stories have one of the "
            f"{counts['reference_stories']:,} reference stories at their prompt"
        )
    if counts["stories_cut"]:
        note(f"stories_cut: {counts['stories_cut']:,} did not fit and lost their end")
    if lost := counts["not_finite_made_null"]:
        named = ", ".join(f"{name} ({count:,})" for name, count in lost.items())
        note(f"null, since JSON has neither NaN nor infinity: {named}")
    if "layout" in manifest["notes"]:
        note(f"layout: {manifest['notes']['layout']}")
    if manifest["replaced_columns"]:
        note(f"replaced: {', '.join(manifest['replaced_columns'])} of the input")
    if counts["left_out_by_where"]:
        note(f"left out by --where: {counts['left_out_by_where']:,} rows")
    of_reference = counts.get("reference_set_aside", {})
    rows = sum(counts["rejected_rows"].values()) + sum(of_reference.values())
    if rows:
        note(f"set aside: {rows:,} rows, reasons in {job.rejected_rows}")


def _add_score(commands: Any) -> None:
    scoring = commands.add_parser(
        "score",
        help="score stories with any rater that gives rewards",
        description="Score stories. A killed run goes on where it was; several processes: "
        "accelerate launch -m litbench.cli score ...",
    )
    which = scoring.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", help="model folder, or a reward model's name on the Hub")
    which.add_argument("--rater", help="a rater as in a config, such as '{kind: longer}'")
    scoring.add_argument(
        "--input",
        nargs="+",
        help="Parquet, JSONL, CSV or a datasets name; or .txt files or folders of them (--prompt)",
    )
    scoring.add_argument(
        "--out",
        type=Path,
        help="same rows plus reward, rank_within_prompt and with --reference beats_reference; "
        f"ends in {', '.join(SUFFIXES)}",
    )
    scoring.add_argument("--prompt-column", default="prompt", help="default: prompt")
    scoring.add_argument("--text-column", default="text", help="default: text")
    scoring.add_argument("--where", help="SQL condition on a row of --input; others are left out")
    scoring.add_argument("--reference", help="human stories of the same prompts, same columns")
    scoring.add_argument("--reference-where", help="SQL condition on a row of --reference")
    scoring.add_argument(
        "--story", help="score this one text, or - for standard input, and print its reward"
    )
    scoring.add_argument("--prompt", help="the prompt that --story or all text files answer")
    scoring.add_argument("--device", help="such as cuda or cpu")
    scoring.add_argument("--batch-tokens", type=int, help="most tokens of one forward pass")
    scoring.add_argument(
        "--chunk-stories",
        type=int,
        default=CHUNK_STORIES,
        help=f"stories scored between two saves, default: {CHUNK_STORIES}",
    )
    scoring.set_defaults(run=score)


def main() -> None:
    """Parse the command line and run, and end as `clear_exit` does."""
    parser = argparse.ArgumentParser(prog="litbench", description="Verifiers of creative writing.")
    parser.add_argument("--version", action="version", version=f"litbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_score(commands)
    serving.add_parser(commands)
    arguments = parser.parse_args()
    with clear_exit():
        arguments.run(arguments)


if __name__ == "__main__":
    main()
