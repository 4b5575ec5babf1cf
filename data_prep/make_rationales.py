"""Distil rationales from a judge: explanations to train a generative verifier on.

    python data_prep/make_rationales.py --config configs/data/make_rationales.yaml

Reads pairs. For each of them a judge, any model that inspect-ai knows, reads the prompt and both
stories, is not told which one readers preferred, explains and decides. An explanation is kept when
its verdict agrees with the readers; the verdict itself is cut off. Which story stands as A is dealt
by the seed, exactly balanced.

Writes into `out`: `pairs.parquet`, all pairs with two more columns, `rationale` (null where none
is kept) and `rationale_first` (chosen or rejected: the side that it calls Story A);
`rejected.jsonl`, the pairs without a rationale, with reasons; and `manifest.json` with counts,
tokens and how often the judge agreed. Every answer is kept in `out/answers` as soon as it is there:
a killed run goes on where it was, and no stored answer is asked for again.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from litbench.artifact import Artifact
from litbench.config import run_program
from litbench.errors import ConfigError, DataError, ModelError
from litbench.judges.client import Budget, Traffic, ask, estimate_tokens
from litbench.judges.prices import Price, dollars_of, load_prices, price_of
from litbench.judges.store import Answer, AnswerStore, Sampling, keys_of, local_folder
from litbench.records import PAIRS, RejectedRows, write_table
from litbench.tables import ROW, read_table
from litbench.templates import (
    Label,
    Template,
    assign_positions,
    has_verdict_line,
    load_template,
    split_verdict,
)

COLUMNS = ("rationale", "rationale_first")


@dataclass
class Config:
    """What to explain, by whom, and what to keep.

    Attributes:
        pairs: pairs table: a file, a folder saved by datasets, or owner/name[@revision][:split].
        out: folder to write.
        model: a name that inspect-ai knows, see litbench.judges.client.
        template: one that comes with LitBench, or a file; asks for an explanation.
        where: SQL condition on the columns of `pairs`; other pairs are left out.
        keep: agreeing keeps an explanation whose verdict is the readers'; all keeps the others
            too, which argue for the wrong story: for reading, not for training.
        hint: ask a second time where the verdict was not the readers', with theirs told. Such an
            explanation is made up after the fact, so it is off by default; it fills the gaps that
            are left where the judge is weak.
        seed: of the deal of A and B.
        sampling: temperature, length and the like.
        traffic: connections, retries and limits.
        prices: file of prices that go before the packaged ones, see litbench.judges.prices.
        accept_errors: finish although some pairs have got no answer, for good: the product is
            then complete, and the same command says "unchanged" and asks for nothing. Else the run
            ends with an error, and the same command asks for them again, as does this one once
            the key is false.
        dry_run: only tell what would be asked.
    """

    pairs: str
    out: Path
    model: str
    template: str = "rationale"
    where: str | None = None
    keep: Literal["agreeing", "all"] = "agreeing"
    hint: bool = False
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    traffic: Traffic = field(default_factory=Traffic)
    prices: Path | None = None
    accept_errors: bool = False
    dry_run: bool = False


@dataclass
class Case:
    """One pair as the judge sees it, and what became of it.

    Attributes:
        row: number of the pair in its table, from 1.
        prompt: the prompt's text.
        stories: story A and story B.
        label: the letter of the story that readers preferred.
        rationale: the explanation that is kept.
        reason: why there is none.
        said: start of the answer, or of the error.
    """

    row: int
    prompt: str
    stories: tuple[str, str]
    label: Label
    rationale: str | None = None
    reason: str | None = None
    said: str | None = None

    def question(self, template: Template) -> str:
        """What the judge is asked."""
        return template.render(self.prompt, *self.stories)


def read_cases(pairs: pa.Table, rows: Sequence[int], seed: int) -> list[Case]:
    """Deal A and B for every pair."""
    cases = []
    chosen_as_a = assign_positions(pairs["pair_id"].to_pylist(), seed)
    texts = (pairs[name].to_pylist() for name in ("prompt", "chosen", "rejected"))
    for row, as_a, prompt, chosen, rejected in zip(rows, chosen_as_a, *texts, strict=True):
        stories = (chosen, rejected) if as_a else (rejected, chosen)
        cases.append(Case(row, prompt, stories, "A" if as_a else "B"))
    return cases


def judge(case: Case, answer: Answer, keep: str) -> str:
    """Take the explanation out of an answer, where it is one to keep.

    An answer that explains nothing before its verdict, or that has another verdict besides, is
    unparsed whatever its last verdict says.

    Returns:
        What the answer is: agrees, disagrees, unparsed, refused, cut or error.
    """
    case.rationale, case.said = None, answer.text or answer.detail
    if answer.outcome != "answered":
        case.reason = answer.outcome
        return answer.outcome
    explanation, label = split_verdict(answer.text)
    if label is None or not explanation or has_verdict_line(explanation):
        case.reason = "unparsed"
        return "unparsed"
    result = "agrees" if label == case.label else "disagrees"
    case.reason = None if result == "agrees" or keep == "all" else result
    if case.reason is None:
        case.rationale = explanation
    return result


def lean(cases: Sequence[Case], answers: Sequence[Answer]) -> dict[str, int]:
    """How often the judge preferred each letter."""
    labels = Counter(
        split_verdict(answer.text)[1] for answer in answers if answer.outcome == "answered"
    )
    return {
        "A": labels["A"],
        "B": labels["B"],
        "kept_where_A_is_right": sum(c.label == "A" for c in cases if c.rationale is not None),
        "kept_where_B_is_right": sum(c.label == "B" for c in cases if c.rationale is not None),
    }


def tokens(answers: Sequence[Answer]) -> dict[str, int]:
    """Tokens of all answers, as far as the provider counted them."""
    names = ("input_tokens", "cached_tokens", "output_tokens")
    return {name: sum(getattr(answer, name) or 0 for answer in answers) for name in names}


def tell(config: Config, questions: Sequence[str], price: Price | None) -> None:
    """Say what a run would ask for."""
    keys = dict(zip(keys_of(config.model, questions, config.sampling), questions, strict=True))
    with AnswerStore(config.out / "answers", read_only=True) as store:
        open_questions = [question for key, question in keys.items() if key not in store]
    read = sum(map(estimate_tokens, open_questions))
    print(
        f"dry run: {len(open_questions):,} calls of {config.model} "
        f"({len(keys) - len(open_questions):,} answers are there already)"
    )
    print(f"  about {read:,} input tokens (one for 4 bytes)")
    if config.sampling.max_tokens is not None:
        written = len(open_questions) * config.sampling.max_tokens
        print(f"  at most {written:,} output tokens (max_tokens {config.sampling.max_tokens})")
        if price is not None:
            print(f"  at most ${price.of(read, written):.2f}")
    if config.hint:
        print("  and once more for each pair on which the judge disagrees (hint)")


def explain(
    config: Config,
    template: Template,
    cases: Sequence[Case],
    questions: Sequence[str],
    price: Price | None,
) -> dict[str, Any]:
    """Ask for every case, with a hint a second time where that is wanted.

    Returns:
        Counts for the manifest.

    Raises:
        ModelError: some questions have got no answer, and that is not accepted.
    """
    with AnswerStore(config.out / "answers") as store:
        if store.unreadable:
            print(f"  {store.unreadable:,} stored lines hold no answer and are not used")
        options = (store, config.sampling, config.traffic)
        budget = Budget(config.traffic, price)
        budget.note_stored(store, keys_of(config.model, questions, config.sampling))
        answers = ask(config.model, questions, *options, about="rationales", budget=budget)
        results = [judge(c, a, config.keep) for c, a in zip(cases, answers, strict=True)]
        counts: dict[str, Any] = {"answers": dict(sorted(Counter(results).items()))}
        again = [case for case, result in zip(cases, results, strict=True) if result == "disagrees"]
        hinted: list[Answer] = []
        if config.hint and again:
            asked = [case.question(template.hinted(case.label)) for case in again]
            hinted = ask(config.model, asked, *options, about="with a hint", budget=budget)
            second = [judge(c, a, config.keep) for c, a in zip(again, hinted, strict=True)]
            counts["answers_with_hint"] = dict(sorted(Counter(second).items()))
    errors = sum(answer.outcome == "error" for answer in [*answers, *hinted])
    if errors and not config.accept_errors:
        said = next(a.detail for a in [*answers, *hinted] if a.outcome == "error")
        raise ModelError(
            f"{errors} of {len(answers) + len(hinted)} questions have got no answer, such as: "
            f"{said}: run the same command again to ask for these alone, or set accept_errors"
        )
    decided = sum(result in ("agrees", "disagrees") for result in results)
    agreeing = results.count("agrees")
    counts["agreement"] = {
        "n": decided,
        "agrees": agreeing,
        "share": round(agreeing / decided, 4) if decided else None,
    }
    counts["preferred"] = lean(cases, answers)
    counts["tokens"] = tokens([*answers, *hinted])
    counts["cost_usd"] = dollars_of([*answers, *hinted], price)
    counts["models"] = sorted({a.model for a in [*answers, *hinted] if a.model is not None})
    return counts


def check(config: Config, template: Template) -> None:
    """Refuse what can be refused before anything is asked.

    Raises:
        ConfigError: the template asks for no explanation, or has no hint and one is wanted.
    """
    if config.hint and config.keep == "all":
        raise ConfigError("hint fills the gaps that keep: all does not leave: give one of them")
    if template.answer != "explanation":
        raise ConfigError(
            f"template {template.name} asks for a {template.answer}: give one whose answer is "
            "explanation, such as rationale"
        )
    if config.hint:
        template.hinted("A")
    config.traffic.check()


def main(config: Config) -> None:
    """Deal, ask, keep what agrees, write."""
    template = load_template(config.template)
    check(config, template)
    price = price_of(config.model, load_prices(config.prices))
    Budget(config.traffic, price)
    folder = local_folder(config.model)
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"pairs": config.pairs, "template": template.path},
        # Any other model is its name, which stands in the config.
        models={} if folder is None else {"model": folder},
        runtime_keys=("traffic", "prices", "dry_run"),
    )
    if not config.dry_run and artifact.is_current():
        return
    rejected_rows = RejectedRows()
    pairs = read_table(
        config.pairs, PAIRS, rejected_rows=rejected_rows, where=config.where, numbered=True
    )
    for name in COLUMNS:
        if name in pairs.column_names:
            raise DataError(
                f"{config.pairs}: there is a column '{name}' already: give pairs without it"
            )
    rows = pairs[ROW].to_pylist()
    pairs = pairs.drop_columns([ROW])
    cases = read_cases(pairs, rows, config.seed)
    questions = [case.question(template) for case in cases]
    if config.dry_run:
        tell(config, questions, price)
        return
    counts = explain(config, template, cases, questions, price)
    for case in cases:
        if case.reason is not None:
            rejected_rows.add(config.pairs, case.row, "rationale", case.reason, case.said)
    kept = [case.rationale is not None for case in cases]
    first = [
        ("chosen" if case.label == "A" else "rejected") if is_kept else None
        for case, is_kept in zip(cases, kept, strict=True)
    ]
    text = pa.large_string()
    pairs = pairs.append_column("rationale", pa.array([case.rationale for case in cases], text))
    pairs = pairs.append_column("rationale_first", pa.array(first, text))
    artifact.write("pairs.parquet", lambda path: write_table(pairs, path))
    artifact.write("rejected.jsonl", rejected_rows.write)
    artifact.counts = {
        "pairs": pairs.num_rows,
        "not_selected": rejected_rows.not_selected,
        "rationales": sum(kept),
        **counts,
        "rejected_rows": rejected_rows.counts(),
    }
    artifact.finish()
    say(config, artifact.counts)
    print(rejected_rows.summary(), end="")


def say(config: Config, counts: dict[str, Any]) -> None:
    """Sum up."""
    agreement, preferred = counts["agreement"], counts["preferred"]
    print(
        f"{config.out / 'pairs.parquet'}: {counts['pairs']:,} pairs, {counts['rationales']:,} with "
        "a rationale"
    )
    print(
        f"  the judge agrees with the readers on {agreement['agrees']:,} of {agreement['n']:,} "
        f"pairs; it preferred A {preferred['A']:,} times and B {preferred['B']:,} times"
    )
    kept = (preferred["kept_where_A_is_right"], preferred["kept_where_B_is_right"])
    if max(kept) > 2 * min(kept):
        print(
            f"  care: of the rationales kept, {kept[0]:,} end in A and {kept[1]:,} in B: a model "
            "trained on them learns the letter"
        )
    used = counts["tokens"]
    print(
        f"  {used['input_tokens']:,} tokens read ({used['cached_tokens']:,} from a cache), "
        f"{used['output_tokens']:,} written"
        + ("" if counts["cost_usd"] is None else f", ${counts['cost_usd']:.2f}")
    )


if __name__ == "__main__":
    run_program(main, Config, __doc__)
