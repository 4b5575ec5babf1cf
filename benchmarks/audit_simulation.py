"""Does `litbench audit` find what is planted? Simulated sets of pairs, audited one by one.

    python benchmarks/audit_simulation.py
    python benchmarks/audit_simulation.py --sets 40 --pairs '[2000, 5000]'
    python benchmarks/audit_simulation.py --confounds '[8, 10, 15, 20]' --sets 30

Sets have invented texts. In a set without a plant, labels are independent of everything. A cue of
size s is planted by choosing, in every pair that differs in it, the story with more of it with
probability s. Each set has up to two plants. With `confounds`, sets of that many prompts have one
cue that decides every pair that differs in it, at even and uneven sizes of prompts, or none.

Writes `sets.csv` (a row per set and plant), `audit_simulation.csv` (how often plants of
a size that the power calculation calls detectable were found and named, and how often something
else was) into `out`. A killed run resumes; more `sets` add to those that are stored. One CPU core,
about 3 s a set.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from invented_texts import STYLES, invented_prompts, invented_texts

from litbench.audit.findings import ALPHA, NOISELESS, POWER, audit_pairs
from litbench.data.records import PAIRS, SIDES, connected_prompts, empty_columns, pair_id
from litbench.data.text import count_words
from litbench.evaluation.report.csv_table import write_csv
from litbench.evaluation.report.document import Table
from litbench.metrics.annotators import AnnotatorAgreement, annotator_agreement
from litbench.metrics.intervals import jackknife_interval
from litbench.metrics.power import Case, power
from litbench.runs.config import run_program
from litbench.runs.errors import ConfigError
from litbench.runs.outputs import Cache, write_atomically
from litbench.runs.progress import ProgressBar

# Increase it when a change of the code changes the findings of the same set.
VERSION = 1
_NOTE = "\n\nEdit: thanks for the gold, more stories are on my subreddit!"
# By plant: the kinds of finding that name it.
PLANTS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "longer": ("longer",),
    "later": ("later",),
    "notes": ("notes",),
    "quotes": ("quotes",),
    "structure": ("structure",),
    "prompt": ("prompt",),
    "position": ("id",),
    "style": ("name:model",),
    "duplicates": ("leakage",),
    "merged_ids": ("prompt_ids",),
    "label_noise": ("label_noise",),
}
# Maximum number of plants in a set.
_MAX_PLANTS = 2
# Plants that are counted, and so need no power.
_COUNTED = ("duplicates", "merged_ids")
# Sizes of the other plants: in how many of the pairs that differ in the cue the chosen side has it.
_SIZES = [0.55, 0.6, 0.7, 0.8, 1.0]
_FALSE = "false alarms"
# The log-odds of a plant of size 1.
_CERTAIN = 40.0
# Plants that change half of the texts, by text and prompt.
_CHANGES: dict[str, Callable[[str, str], str]] = {
    "quotes": lambda text, _: text.replace("“", '"').replace("”", '"'),
    "structure": lambda text, _: f"# One\n\n{text}\n\n- two\n- three",
    "prompt": lambda text, prompt: f"{prompt}\n\n{text}",
}


@dataclass
class Config:
    """Sets to simulate and audit.

    Attributes:
        out: output folder.
        sets: number of sets; with `confounds`, for each cue, number of prompts and kind of sizes.
            Plants, sizes and numbers of pairs are drawn with each set's number as seed, so that
            more sets go on where fewer stopped.
        pairs: numbers of pairs to draw from.
        words: median number of words of a story.
        confounds: numbers of prompts of sets with one perfect confound; empty for none.
    """

    out: Path = Path("runs/audit_simulation")
    sets: int = 100
    pairs: list[int] = field(default_factory=lambda: [200, 500, 1_000])
    words: float = 60.0
    confounds: list[int] = field(default_factory=list)


def planted_set(
    plants: Mapping[str, float],
    pairs: int | np.ndarray,
    random: np.random.Generator,
    words: float = 60.0,
) -> tuple[pa.Table, AnnotatorAgreement | None]:
    """Pairs with planted cues, and the agreement of simulated annotators.

    Args:
        plants: names of PLANTS and their sizes; of a counted one, the share of pairs.
        pairs: number of pairs, about five a prompt; or the number of pairs of each prompt.
        random: source of random numbers.
        words: median number of words of a story.
    """
    if isinstance(pairs, int):
        prompts = max(pairs // 5, 4)
        prompt = np.sort(random.integers(prompts, size=pairs))
    else:
        prompts, prompt = len(pairs), np.repeat(np.arange(len(pairs)), pairs)
        pairs = len(prompt)
    n_words = np.maximum(np.exp(random.normal(np.log(words), 0.5, 2 * pairs)), 12).astype(int)
    # Two models write: the style of their texts differs, and their names are known.
    model = random.integers(2, size=2 * pairs)
    styles = random.standard_normal((2 * pairs, STYLES)) + 0.8 * model[:, None]
    texts = np.array(invented_texts(styles, n_words, random).to_pylist(), dtype=object)
    noted = random.random(2 * pairs) < 0.3
    texts[noted] += _NOTE
    texts_of_prompts = np.array(invented_prompts(prompts, random).to_pylist(), dtype=object)
    changed = {name: random.random(2 * pairs) < 0.5 for name in _CHANGES if name in plants}
    for name, where in changed.items():
        for row in np.flatnonzero(where):
            texts[row] = _CHANGES[name](texts[row], texts_of_prompts[prompt[row % pairs]])
    time = random.integers(1_500_000_000, 1_600_000_000, 2 * pairs)
    counted = count_words(pa.array(texts, pa.large_string())).to_numpy().copy()
    values = {"longer": counted, "later": time, "notes": noted, "style": model, **changed}
    first, second = np.arange(pairs), np.arange(pairs, 2 * pairs)
    log_odds = np.zeros(pairs)
    for name, size in plants.items():
        odds = np.log(size / (1 - size)) if size < 1 else _CERTAIN
        if name == "position":
            log_odds += odds
        elif name in values:
            column = values[name].astype(float)
            log_odds += odds * np.sign(column[first] - column[second])
    first_wins = random.random(pairs) < 1 / (1 + np.exp(-log_odds))
    rows = {
        "chosen": np.where(first_wins, first, second),
        "rejected": np.where(first_wins, second, first),
    }
    split = np.where(prompt < 0.8 * prompts, "train", "test")
    ids = np.array([f"p{number}" for number in prompt], dtype=object)
    if share := plants.get("merged_ids"):
        # The prompt of the pair before keeps its id there.
        several = np.flatnonzero(prompt[1:] == prompt[:-1]) + 1
        ids[random.permutation(several)[: max(round(share * pairs), 1)]] += "b"
    if share := plants.get("duplicates"):
        # A story of the test split is that of a training pair.
        test = np.flatnonzero(split == "test")
        copied = test[: max(round(share * len(test)), 1)]
        source = random.choice(np.flatnonzero(split == "train"), len(copied), replace=False)
        texts[rows["chosen"][copied]] = texts[rows["chosen"][source]]
        counted[rows["chosen"][copied]] = counted[rows["chosen"][source]]
    # The position of a story shows in its id: those shown first sort last.
    names = np.array([f"s{k % pairs:05d}-{int(k < pairs)}" for k in range(2 * pairs)], dtype=object)
    content: dict[str, Any] = empty_columns(PAIRS, pairs)
    content |= {"prompt_id": ids, "prompt": texts_of_prompts[prompt], "split": split}
    content["label_source"] = ["planted"] * pairs
    for side in SIDES:
        content[side] = texts[rows[side]]
        content[f"{side}_story_id"] = names[rows[side]]
        content[f"{side}_n_words"] = counted[rows[side]]
        content[f"{side}_created_utc"] = time[rows[side]]
        content[f"{side}_model"] = np.array(["a", "b"], dtype=object)[model[rows[side]]]
    both = zip(content["chosen_story_id"], content["rejected_story_id"], strict=True)
    content["pair_id"] = [pair_id(*names_of) for names_of in both]
    table = pa.table(
        {
            name: column if isinstance(column, pa.Array) else pa.array(column)
            for name, column in content.items()
        }
    )
    types = PAIRS.arrow()
    table = table.cast(
        pa.schema([types.field(f.name) if f.name in types.names else f for f in table.schema])
    )
    noise = plants.get("label_noise")
    return table, None if noise is None else _annotators(table, noise, random)


def _annotators(
    table: pa.Table, size: float, random: np.random.Generator
) -> AnnotatorAgreement | None:
    """Three annotators, of whom each names the chosen story with probability `size`."""
    sides = [table[f"{side}_story_id"].to_pylist() for side in SIDES]
    ratings: dict[str, dict[str, float]] = {name: {} for name in "abc"}
    for rated in ratings.values():
        right = random.random(table.num_rows) < size
        rated |= dict(zip(sides[0], right.astype(float).tolist(), strict=True))
        rated |= dict(zip(sides[1], (~right).astype(float).tolist(), strict=True))
    return annotator_agreement(ratings, sides[0], sides[1], connected_prompts(table), {})


def draw_plants(config: Config, number: int) -> tuple[dict[str, float], int]:
    """The plants of a set and their sizes, and its number of pairs, by the set's number."""
    random = np.random.default_rng([number, 1])
    names = [name for name in PLANTS if name != "nothing"]
    count = random.integers(_MAX_PLANTS + 1)
    drawn = random.permutation(names)[:count].tolist()
    return (
        {
            name: float(random.choice([0.01, 0.05] if name in _COUNTED else _SIZES))
            for name in drawn
        },
        int(random.choice(config.pairs)),
    )


def run_set(config: Config, number: int) -> list[dict[str, Any]]:
    """Simulate and audit one set; returns a row per plant, and one for false alarms."""
    plants, pairs = draw_plants(config, number)
    random = np.random.default_rng([number, 2])
    table, annotators = planted_set(plants, pairs, random, config.words)
    audit = audit_pairs(table, annotators, per_story=3)
    kinds = {finding.kind for finding in audit.findings}
    named = {kind for name in plants for kind in PLANTS[name]}
    if "duplicates" in plants:
        # A copied story is a copy as well.
        named.add("copies")
    decided = {result.cue.name: result.alone.n for result in audit.results}
    rows = []
    for name, size in plants.items():
        kind = PLANTS[name][0]
        likely = 1.0
        if name == "label_noise":
            likely = float(size**2 + (1 - size) ** 2 < NOISELESS - 0.05)
        elif name not in _COUNTED:
            n = decided.get(kind, 0)
            prompts = min(audit.size["effective_prompts"], n)
            case = None
            if n > 2:
                # The formula has no power for a cue that is always right.
                case = Case(agreement=min(size, 0.99), pairs=n, prompts=max(prompts, 2))
            likely = 0.0 if case is None else power(case, ALPHA / audit.tests)
        rows.append({"plant": name, "size": size, "power": likely, "found": kind in kinds})
    extra = " ".join(sorted(kinds - named))
    rows.append({"plant": _FALSE, "size": 0.0, "power": 1.0, "found": bool(extra)})
    shared = {"set": number, "pairs": pairs, "plants": len(plants), "extra": extra}
    return [row | shared for row in rows]


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By plant, and by its number of pairs: how often it was found.

    `detectable` are the plants whose power is at least 80 %, and `found` is their share, with its
    95 % interval over sets; `expected` is their mean power.
    """
    table = []
    for plant in dict.fromkeys([*PLANTS, _FALSE]):
        plant_rows = [row for row in rows if row["plant"] == plant]
        for pairs in ["all", *sorted({row["pairs"] for row in plant_rows})]:
            here = [row for row in plant_rows if pairs in ("all", row["pairs"])]
            detectable = [row for row in here if row["power"] >= POWER]
            if not detectable:
                continue
            detected = np.array([row["found"] for row in detectable], float)
            share = jackknife_interval(detected, np.arange(len(detected)))
            expected = float(np.mean([row["power"] for row in detectable]))
            table.append(
                {
                    "plant": plant,
                    "pairs": pairs,
                    "sets": len(here),
                    "detectable": len(detectable),
                    "expected": expected,
                    "found": share.mean,
                    "low": share.low,
                    "high": share.high,
                }
            )
    return table


# Plants that decide every pair that differs in them.
_CONFOUNDS = ("nothing", "position", "longer", "quotes", "structure", "prompt", "style", "codes")


def confounded_set(cue: str, sizes: np.ndarray, random: np.random.Generator) -> pa.Table:
    """Pairs of which a cue of _CONFOUNDS decides every one that differs in it.

    Args:
        cue: the cue; `codes` is a source coded as 0 to 3, not in the order of who wins.
        sizes: number of pairs of each prompt; shape (prompts,).
        random: source of random numbers.
    """
    plants = {} if cue in ("nothing", "codes") else {cue: 1.0}
    table, _ = planted_set(plants, sizes, random, words=30.0)
    if cue == "codes":
        # By their rank the numbers are 1, 3, 0, 2, so that more is not better.
        ranks = np.sort(random.integers(4, size=(2, table.num_rows)), axis=0)
        sources = np.array([1, 3, 0, 2])[ranks]
        for side, values in zip(SIDES, sources, strict=True):
            table = table.append_column(f"{side}_source", pa.array(values))
    return table


def run_confound(cue: str, prompts: int, is_even: bool, number: int) -> list[dict[str, Any]]:
    """Audit one set with a perfect confound of about 40 pairs per prompt."""
    random = np.random.default_rng([number, 3, prompts, is_even, _CONFOUNDS.index(cue)])
    sizes = np.full(prompts, 40)
    if not is_even:
        sizes = np.maximum(np.exp(random.normal(math.log(30), 0.8, prompts)).astype(int), 2)
    audit = audit_pairs(confounded_set(cue, sizes, random))
    kinds = {finding.kind for finding in audit.findings}
    kind = "name:source" if cue == "codes" else PLANTS[cue][0] if PLANTS[cue] else ""
    row = {"cue": cue, "prompts": prompts, "sizes": "even" if is_even else "uneven"}
    return [row | {"found": kind in kinds, "extra": " ".join(sorted(kinds - {kind}))}]


def confound_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By cue, number of prompts and sizes: sets, those where it was found, and false alarms."""
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["cue"], row["prompts"], row["sizes"]), []).append(row)
    return [
        dict(zip(("cue", "prompts", "sizes"), key, strict=True))
        | {
            "sets": len(cell),
            "found": sum(row["found"] for row in cell),
            "false_alarms": sum(bool(row["extra"]) for row in cell),
        }
        for key, cell in cells.items()
    ]


def main(config: Config) -> None:
    """Simulate and audit the sets that are not stored yet, and write the tables."""
    if config.sets < 1 or min(config.pairs) < 100:
        raise ConfigError("give at least one set, and sets of 100 pairs or more")
    parts, rows = Cache(config.out / "parts"), []
    drawn = [config.pairs, _SIZES, _MAX_PLANTS, config.words]
    if config.confounds:
        jobs = [
            ([VERSION, *key], partial(run_confound, *key))
            for key in itertools.product(
                _CONFOUNDS, config.confounds, (True, False), range(config.sets)
            )
        ]
    else:
        jobs = [
            ([VERSION, drawn, number], partial(run_set, config, number))
            for number in range(config.sets)
        ]
    for key, job in ProgressBar(jobs, desc="sets", unit=" sets", leave=False):
        rows += parts.get(key, job)
    table = confound_table(rows) if config.confounds else summary(rows)
    text = Table(list(table[0]), [list(row.values()) for row in table]).as_text()
    write_atomically(config.out / "sets.csv", partial(write_csv, rows))
    write_atomically(config.out / "audit_simulation.csv", partial(write_csv, table))
    print(text)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
