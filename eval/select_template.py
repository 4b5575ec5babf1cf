"""Choose the template that a family of models is asked with (paper, A.3), on training pairs.

    python eval/select_template.py --config configs/eval/select_template.yaml

For each family of models the config names one, a midrange one as a rule. It judges a validation
sample of training pairs with every template, in both orders, and the template with the highest
headline agreement is the family's. The sample is drawn by a seed, from as many prompts as there
are: a second pair of a prompt is taken only when every prompt has given one. Test pairs choose
nothing: the split test is refused, and so are prompts shared with the test pairs.

The highest of several is high by luck too. So beside its agreement stands that of the choice
itself: the prompts are cut into parts, the template is chosen without a part and scored on it.
Where the best is within the noise of others, it is chosen all the same, and the output says so.

Reads `pairs` (and `test_pairs`, when given). Writes `verdicts.parquet`, `selection.json` (also
`.md` and `.txt`) and `manifest.json` into `out`. What a model said under one template is kept as
soon as it is done, and judges keep each answer as soon as it is there, in `out/answers`: a killed
run goes on, and a template added later is the only one to be asked. With `--dry_run true` the
program tells calls, tokens, dollars and minutes, and asks nothing. A limit among a judge's options,
such as `traffic.max_cost_usd`, holds for each template.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from litbench.artifact import Artifact, code_digest, write_json
from litbench.config import run_program
from litbench.errors import ConfigError, DataError
from litbench.evaluation import (
    JUDGING_CODE,
    VerdictParts,
    check_training_prompts,
    estimates_text,
    named_models,
    read_pairs,
    ready_rater,
)
from litbench.markdown import escape, make_rows
from litbench.metrics.agreement import PairFacts, PairScores, pair_scores
from litbench.metrics.intervals import Interval, jackknife_interval
from litbench.metrics.leaderboard import (
    LeaderboardRow,
    leaderboard,
    leaderboard_text,
    plain,
    write_dollars,
)
from litbench.raters import (
    Asks,
    Estimate,
    RaterSpec,
    blind,
    check_options,
    judge_pairs,
    parse_raters,
)
from litbench.records import prompt_keys
from litbench.tables import write_table
from litbench.templates import AnswerForm, family_names, load_template, packaged_names
from litbench.text import digest

_TEXT = "selection.txt"
_TEST = "test"
# Ten leave nine tenths of the sample to choose by.
_PARTS = 10
# Below it a template may have lost by its form of answer and not by its criteria.
_ENOUGH_COVERAGE = 0.95


@dataclass
class Config:
    """Which models, which templates, which pairs.

    Attributes:
        pairs: pairs file.
        out: folder to write.
        raters: one entry per family of models, named after it, see litbench.raters; of a kind that
            takes a template, such as judge or generative. `template` is left out, `answer` may be
            given where it is not the one below.
        templates: names or paths; all families of templates that come with LitBench when empty.
        answer: the form of the answer; explanation when null, and what it says itself for a fixed
            template.
        split: draw from this split; never test.
        test_pairs: pairs that no prompt of `split` may be in; the rows of split test of `pairs`,
            if any, when null.
        test_split: only `test_pairs` of this split; null for all.
        sample: pairs to draw; all where there are fewer.
        seed: draws them.
        dry_run: tell what it would take, and ask nothing.
    """

    pairs: Path
    out: Path
    raters: dict[str, Any] = field(default_factory=dict)
    templates: list[str] = field(default_factory=list)
    answer: AnswerForm | None = None
    split: str = "train"
    test_pairs: Path | None = None
    test_split: str | None = None
    sample: int = 500
    seed: int = 0
    dry_run: bool = False


@dataclass(frozen=True)
class Variant:
    """A family's model under one template.

    Attributes:
        entry: the family's entry in the config.
        template: as the config names it.
        answer: the form that is asked for.
        spec: the rater.
    """

    entry: RaterSpec
    template: str
    answer: AnswerForm
    spec: RaterSpec

    @property
    def family(self) -> str:
        """The family of models."""
        return self.entry.name


@dataclass(frozen=True)
class Selection:
    """What came out for one family of models.

    Attributes:
        family: its name.
        rows: one per template, the highest agreement first; all compared with that one.
        variants: theirs, in the same order.
        chosen_anew: agreement of the choice: of each part of the prompts under the template that
            the others choose.
        as_often: in how many parts that is the template chosen from all.
        parts: how many parts there were.
    """

    family: str
    rows: list[LeaderboardRow]
    variants: list[Variant]
    chosen_anew: Interval
    as_often: int
    parts: int

    @property
    def picked(self) -> Variant:
        """The variant with the highest agreement."""
        return self.variants[0]

    @property
    def unclear(self) -> list[str]:
        """Templates whose difference from the chosen one is within the noise."""
        return [
            variant.template
            for variant, row in zip(self.variants, self.rows, strict=True)
            if row.comparison is not None and not row.comparison.is_clear
        ]


def list_variants(config: Config) -> list[Variant]:
    """Every model under every template, checked before any is asked."""
    if config.split.strip().casefold() == _TEST:
        raise ConfigError(
            "split is test, and test pairs choose nothing: draw from the split train, or from "
            "another that is not tested on"
        )
    if config.sample < 2:
        raise ConfigError(f"sample is {config.sample}: give at least 2 pairs, better 500")
    names = config.templates or family_names()
    if len(set(names)) < max(2, len(names)):
        raise ConfigError(f"templates is {names}: give two or more, each once")
    variants = []
    for entry in parse_raters(config.raters):
        if "template" in entry.options:
            raise ConfigError(
                f"{entry.where}: template is given, and here the templates are tried out: name "
                "them under the key templates"
            )
        options = dict(entry.options)
        wanted = options.pop("answer", config.answer)
        for name in names:
            answer = load_template(name, wanted).answer
            ready = {**options, "template": name, "answer": answer}
            spec = RaterSpec(f"{entry.name}@{name}", entry.kind, ready)
            check_options(spec, "raters")
            variants.append(Variant(entry, name, answer, spec))
    return variants


def read_sample(config: Config) -> tuple[pa.Table, int]:
    """The validation sample, in the order of the file, and how many pairs it is drawn from."""
    pairs = read_pairs(config.pairs, None, config.split).headline
    if config.test_pairs is None:
        everything = read_pairs(config.pairs, None, None).headline
        is_test = [split == _TEST for split in everything["split"].to_pylist()]
        test, where = everything.filter(pa.array(is_test, pa.bool_())), config.pairs
    else:
        test = read_pairs(config.test_pairs, None, config.test_split).headline
        where = config.test_pairs
    tested = set(prompt_keys(test))
    shared = {
        prompt
        for key, prompt in zip(prompt_keys(pairs), pairs["prompt"].to_pylist(), strict=True)
        if key in tested
    }
    if shared:
        raise DataError(
            f"{len(shared)} prompts of the pairs to draw from ({config.pairs}, split "
            f"{config.split}) are in the test pairs too ({where}), such as {min(shared)!r:.80}: "
            "test pairs choose nothing; take these prompts out of one of them"
        )
    rows = draw(pairs, config.sample, config.seed)
    return pairs.take(pa.array(rows, pa.int64())), pairs.num_rows


def draw(pairs: pa.Table, sample: int, seed: int) -> list[int]:
    """Rows of a sample that is spread over as many prompts as there are, rising.

    A smaller sample is contained in a larger one of the same seed.
    """
    by_prompt: dict[str, list[tuple[str, int]]] = {}
    for row, (key, pair_id) in enumerate(
        zip(prompt_keys(pairs), pairs["pair_id"].to_pylist(), strict=True)
    ):
        by_prompt.setdefault(key, []).append((digest("pair", seed, pair_id), row))
    places = [
        (turn, digest("prompt", seed, key), row)
        for key, of_prompt in by_prompt.items()
        for turn, (_, row) in enumerate(sorted(of_prompt))
    ]
    return sorted(row for _, _, row in sorted(places)[:sample])


def best_of(credits: np.ndarray) -> int:
    """The template with the highest mean; the first one listed, where several have it.

    Args:
        credits: agreement by template and pair, 0 to 1; shape (templates, n).
    """
    # What rounding makes of equal sums is no difference.
    return int(np.argmax(credits.mean(axis=1).round(12)))


def choose_anew(credits: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Choose without a part of the prompts, and score the choice on it.

    Args:
        credits: agreement by template and pair, 0 to 1; shape (templates, n).
        clusters: prompt of each pair, from two prompts on; shape (n,).

    Returns:
        Agreement of each pair under the template that the other parts choose, shape (n,); and the
        choices, by part.
    """
    order = sorted(set(clusters.tolist()), key=lambda key: digest("part", key))
    count = min(_PARTS, len(order))
    part_of = {key: place % count for place, key in enumerate(order)}
    parts = np.array([part_of[key] for key in clusters.tolist()])
    credit, choices = np.empty(credits.shape[1]), []
    for part in range(count):
        inside = parts == part
        choices.append(best_of(credits[:, ~inside]))
        credit[inside] = credits[choices[-1], inside]
    return credit, choices


def select(variants: Sequence[Variant], verdicts: pa.Table, sample: pa.Table) -> Selection:
    """The figures of one family of models, and its template."""
    scores: dict[str, PairScores] = {one.rater: one for one in pair_scores(verdicts, sample)}
    credits = np.stack([scores[variant.spec.name].credit for variant in variants])
    clusters = np.asarray(PairFacts.of(sample).clusters)
    best = best_of(credits)
    rows = {row.rater: row for row in leaderboard(verdicts, sample, variants[best].spec.name)}
    means = credits.mean(axis=1).round(12)
    order = sorted(range(len(variants)), key=lambda place: (-means[place], place))
    ordered = [variants[place] for place in order]
    anew, choices = choose_anew(credits, clusters)
    return Selection(
        variants[best].family,
        [rows[variant.spec.name] for variant in ordered],
        ordered,
        jackknife_interval(anew, clusters),
        choices.count(best),
        len(choices),
    )


def conclusion(selection: Selection) -> str:
    """What was chosen, and how much that says."""
    picked, first = selection.picked, selection.rows[0].agreement
    said = f"{selection.family}: {picked.template} (answer {picked.answer}), agreement {first}. "
    shared = [
        variant.template
        for variant, row in zip(selection.variants[1:], selection.rows[1:], strict=True)
        if math.isclose(row.agreement.mean, first.mean, abs_tol=1e-12)
    ]
    if shared:
        said += f"Taken as the first listed of all with that agreement ({', '.join(shared)}). "
    others = len(selection.variants) - 1
    if selection.unclear:
        said += (
            f"Within the noise of {len(selection.unclear)} of the {others} others: on these pairs "
            "none is higher, and it is not shown to be the best. "
        )
    else:
        said += f"Outside the noise of all {others} others. "
    poor = [
        f"{variant.template} {row.coverage:.3f}"
        for variant, row in zip(selection.variants, selection.rows, strict=True)
        if row.coverage < _ENOUGH_COVERAGE
    ]
    if poor:
        said += (
            f"Low coverage ({', '.join(poor)}): where no verdict could be had a pair counts one "
            "half, so this compares how often the model keeps to the form too; see the outcomes. "
        )
    return said + (
        "Its agreement is optimistic, being the highest of several on the very pairs that chose "
        f"it; chosen on the other prompts and scored on prompts left out: {selection.chosen_anew} "
        f"({selection.as_often} of {selection.parts} times the same template)."
    )


def selection_json(selection: Selection) -> dict[str, Any]:
    """A selection as JSON can hold it."""
    picked = selection.picked
    return {
        "family": selection.family,
        "kind": picked.spec.kind,
        "template": picked.template,
        "answer": picked.answer,
        "agreement": plain(selection.rows[0].agreement),
        "within_noise_of": selection.unclear,
        "chosen_anew": plain(selection.chosen_anew),
        "parts": selection.parts,
        "parts_with_the_same_choice": selection.as_often,
        "templates": [
            {"template": variant.template, "answer": variant.answer, **plain(row)}
            for variant, row in zip(selection.variants, selection.rows, strict=True)
        ],
        "conclusion": conclusion(selection),
    }


def as_markdown(selections: Sequence[Selection], about: str) -> str:
    """The page for people."""
    lines = ["# Templates by family of models", "", escape(about), ""]
    heading = [
        "template", "answer", "agreement", "95 % interval", "against the chosen one", "p (Holm)",
        "coverage", "flip rate", "position lean", "tokens read", "tokens written", "$",
    ]  # fmt: skip
    for selection in selections:
        lines += [f"## {escape(selection.family)}", ""]
        cells = []
        for variant, row in zip(selection.variants, selection.rows, strict=True):
            versus = row.comparison
            cells.append(
                [
                    variant.template,
                    variant.answer,
                    f"{row.agreement.mean:.3f}",
                    f"{row.agreement.low:.3f} to {row.agreement.high:.3f}",
                    "chosen" if versus is None else f"{versus.difference}",
                    "–" if versus is None else f"{versus.p_holm:.3f}",
                    f"{row.coverage:.3f}",
                    "–" if row.flip_rate is None else f"{row.flip_rate}",
                    "–" if row.position_lean is None else f"{row.position_lean}",
                    "–" if row.input_tokens is None else f"{row.input_tokens:,}",
                    "–" if row.output_tokens is None else f"{row.output_tokens:,}",
                    write_dollars(row.cost_usd),
                ]
            )
        lines += [*make_rows(heading, cells), escape(conclusion(selection)), ""]
    return "\n".join(lines)


def tell(variants: Sequence[Variant], sample: pa.Table, out: Path) -> None:
    """Say what the models that ask others would take."""
    pairs, _ = blind(sample)
    estimates: list[Estimate] = []
    local: list[str] = []
    for variant in variants:
        # A model on this machine may take gigabytes from the Hub, and tells nothing.
        if variant.family in local:
            continue
        rater = None if variant.spec.kind == "generative" else ready_rater(variant.spec, out)
        if isinstance(rater, Asks):
            estimates += rater.estimate(pairs)
        else:
            local.append(variant.family)
    print(estimates_text(estimates) if estimates else "dry run: no rater asks others")
    if local:
        print(f"not counted, since they run on this machine: {', '.join(local)}")


def main(config: Config) -> None:
    """Draw, judge, choose, write."""
    variants = list_variants(config)
    inputs = {"pairs": config.pairs}
    if config.test_pairs is not None:
        inputs["test_pairs"] = config.test_pairs
    models = named_models(variant.entry for variant in variants)
    # Templates of the user's own, each once; what every template of a family shares is the model.
    own = {variant.template for variant in variants} - set(packaged_names())
    models |= {f"templates.{name}": name for name in sorted(own)}
    artifact = Artifact(
        config.out, program=__file__, config=config, inputs=inputs, models=models,
        runtime_keys=("dry_run",),
    )  # fmt: skip
    if artifact.is_current():
        print((config.out / _TEXT).read_text(encoding="utf-8"), end="")
        return
    sample, total = read_sample(config)
    prompts = len(set(prompt_keys(sample)))
    if prompts < 2:
        raise DataError(
            f"{config.pairs}: the {sample.num_rows} pairs of split {config.split} are of one "
            "prompt, which has no interval: give pairs of several"
        )
    about = (
        f"{sample.num_rows:,} of {total:,} pairs of split {config.split}, {prompts:,} prompts, "
        f"seed {config.seed}; both orders; 95 % intervals clustered by prompt; differences with "
        "Holm's correction within a family of models."
    )
    if config.dry_run:
        print(about)
        tell(variants, sample, config.out)
        return
    parts = VerdictParts(config.out / "parts")

    def judge(variant: Variant) -> tuple[pa.Table, dict[str, Any]]:
        rater = ready_rater(variant.spec, config.out)
        # A model that was trained on these pairs likes the question it was trained on.
        check_training_prompts(rater, sample, "refuse")
        verdicts = judge_pairs(rater, sample)
        return verdicts, {"notes": rater.notes()}

    judging_code = code_digest(__file__, *JUDGING_CODE)
    verdicts: dict[str, list[pa.Table]] = {}
    records = {}
    for variant in tqdm(variants, desc="templates", unit=" template", leave=False, disable=None):
        depends_on = [
            variant.spec, artifact.digests["pairs"], sample["pair_id"].to_pylist(), judging_code,
            [artifact.digests[key] for key in named_models([variant.entry])],
            artifact.digests.get(f"templates.{variant.template}"),
        ]  # fmt: skip
        table, record = parts.get_or_make(
            variant.spec.name, depends_on, lambda variant=variant: judge(variant)
        )
        verdicts.setdefault(variant.family, []).append(table)
        records[variant.spec.name] = record
    selections = [
        select([one for one in variants if one.family == family], pa.concat_tables(tables), sample)
        for family, tables in verdicts.items()
    ]
    everything = pa.concat_tables([table for tables in verdicts.values() for table in tables])
    found = [selection_json(selection) for selection in selections]
    page = as_markdown(selections, about)
    text = f"{about}\n"
    for selection in selections:
        text += f"\n{leaderboard_text(selection.rows)}\n\n{conclusion(selection)}\n"
    artifact.write("verdicts.parquet", lambda path: write_table(everything, path))
    artifact.write("selection.json", lambda path: write_json(found, path))
    artifact.write("selection.md", lambda path: path.write_text(page, encoding="utf-8"))
    artifact.write(_TEXT, lambda path: path.write_text(text, encoding="utf-8"))
    artifact.counts = {
        "pairs": total,
        "sample": sample.num_rows,
        "prompts": prompts,
        "verdicts": everything.num_rows,
        "chosen": {one.family: one.picked.template for one in selections},
        "raters": records,
    }
    artifact.finish()
    parts.discard_others()
    print(text, end="")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
