"""Turn stories into preference pairs: filters, splits, pairing, caps, length symmetry.

    python data_prep/make_pairs.py --config configs/data/sample_pairs.yaml

Reads `stories`, a table written by make_stories.py, with story_id, prompt_id, prompt, text,
n_words, source, score, score_utc, created_utc, author, flair and n_tokens. The steps follow section
3.2 of the paper (docs/curation.md). Each step is counted, and skipped if its key is null or false.

Writes into `out`: `pairs.parquet`, `pairs_before_symmetry.parquet` (without the last step),
`examples.jsonl` (a few rows that each step removed), `leakage.parquet` (if `must_be_clean` is
given) and `manifest.json` with the funnel. The bytes depend only on the stories, the rules and the
seed, not on row order or engine. With `variants`, each variant is written to its own folder.
"""

import re
from dataclasses import dataclass
from typing import Any

from litbench.config import as_plain, build, run_program
from litbench.curation.pair_making import PairMaking, make_pairs
from litbench.errors import ConfigError


@dataclass(kw_only=True)
class Config(PairMaking):
    """Configuration of `make_pairs.py`: rules, and variants of them.

    Attributes:
        variants: maps names to the keys that they change; each variant is written into the folder
            of its name in `out`. The other keys apply to all variants.
    """

    variants: dict[str, dict[str, Any]] | None = None


def variants_of(config: Config) -> dict[str, Config]:
    """Return the checked config of every variant, by name."""
    variants = {}
    shared = {key: value for key, value in as_plain(config).items() if key != "variants"}
    for name, keys in (config.variants or {}).items():
        if not re.fullmatch(r"[\w-][\w.-]*", name) or {"stories", "out", "variants"} & set(keys):
            raise ConfigError(
                f"variants: {name!r} must be a folder name (letters, digits, -, _ and .), and must "
                "not set stories, out or variants"
            )
        values = {**shared, "out": config.out / name, **keys}
        variants[name] = build(Config, values, f"variants: {name}")
        variants[name].check()
    return variants


def main(config: Config) -> None:
    """Make the pairs of the config or of each variant."""
    for variant in variants_of(config).values() if config.variants else [config]:
        make_pairs(variant, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
