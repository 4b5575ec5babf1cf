"""What the store of features saves an ablation: the same program with it and without.

    python benchmarks/ablation.py --prompts 400

Simulates stories (8 a prompt, a median of 120 words), then runs eval/ablation.py on three variants
at three sizes with three seeds, once with every story's features computed anew by each training
and each judging and once with `store`, which computes each story once; each in a process of its
own. Both must end in the same figures, to the last byte. The last line is one JSON object.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from litbench.curation.simulation import World, simulate_world, stories_table
from litbench.tables import write_table

_ROOT = Path(__file__).resolve().parent.parent
_CONFIG = {
    "drop_deleted": False,
    "drop_bots": False,
    "drop_talk": False,
    "max_tokens": None,
    "min_words": None,
    "min_score": 5,
    "label_source": "planted",
    "reference": "full",
    "variants": {
        "full": {},
        "naive_upvotes": {"chosen_later": False, "symmetry_buckets": None},
        "without_time": {"chosen_later": False},
    },
}


def run(config: Path, out: Path, store: Path | None) -> tuple[float, dict[str, bytes]]:
    """Run the program; returns its seconds and the bytes of its figures."""
    rater = {"kind": "features", "c": [0.1], **({} if store is None else {"store": str(store)})}
    raters = json.dumps({"features": rater})
    command = [sys.executable, "eval/ablation.py", "--config", str(config)]
    started = time.perf_counter()
    subprocess.run(
        [*command, "--out", str(out), "--raters", raters],
        cwd=_ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - started
    names = ("ablation.json", "ablation.csv", "ablation.txt", "verdicts.parquet")
    return seconds, {name: (out / name).read_bytes() for name in names}


def main() -> None:
    """Time, check, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=int, default=400)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        world = World(prompts=given.prompts, stories_per_prompt=8, median_words=120)
        stories = stories_table(simulate_world(world), texts=True)
        write_table(stories, folder / "stories.parquet")
        config = folder / "config.yaml"
        content = {**_CONFIG, "stories": str(folder / "stories.parquet")}
        config.write_text(json.dumps(content), encoding="utf-8")
        anew, plain = run(config, folder / "anew", None)
        stored, same = run(config, folder / "stored", folder / "store")
    if plain != same:
        changed = [name for name, of in plain.items() if same[name] != of]
        raise SystemExit(f"the store changes {', '.join(changed)}")
    print(f"{stories.num_rows:,} stories")
    print(f"features computed anew  {anew:7.1f} s")
    print(f"each story's once       {stored:7.1f} s")
    print(
        json.dumps(
            {
                "stories": stories.num_rows,
                "anew_seconds": round(anew, 1),
                "store_seconds": round(stored, 1),
                "anew_over_store": round(anew / stored, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
