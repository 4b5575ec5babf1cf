"""What the audit of a set states: sides, numbers, sentences, severity and order."""

import numpy as np
import pyarrow as pa
import pytest

from litbench.audit.findings import audit_pairs
from litbench.metrics.annotators import AnnotatorAgreement
from litbench.metrics.intervals import Interval

PROMPTS, PER_PROMPT = 30, 4


STEMS = [a + b + c for a in ("am", "bir", "ce", "dri") for b in "aeiou" for c in "lmnrst"]


def text_of(random, words):
    """A story without any cue but its length."""
    return " ".join(random.choice(STEMS, words))


def rows_of(wins=0.75, **columns):
    """Pairs of which a share is won by the longer story."""
    random = np.random.default_rng(1)
    rows = []
    for index in range(PROMPTS * PER_PROMPT):
        is_longer = random.permutation(PER_PROMPT)[0] / PER_PROMPT < wins
        lengths = (24, 20) if is_longer else (20, 24)
        chosen, rejected = (text_of(random, n) for n in lengths)
        ids = [f"s{number}" for number in random.permutation(2) + 2 * index + 1_000]
        row = {
            "chosen_story_id": ids[0],
            "rejected_story_id": ids[1],
            "prompt_id": f"p{index // PER_PROMPT}",
            "prompt": f"Prompt number {index // PER_PROMPT}.",
            "chosen": chosen,
            "rejected": rejected,
            "split": "train" if index // PER_PROMPT < 20 else "test",
        }
        rows.append(row | {name: value(index) for name, value in columns.items()})
    return rows


def found(table, kind, annotators=None, **options):
    """The only finding of a kind."""
    (finding,) = [f for f in audit_pairs(table, annotators, **options).findings if f.kind == kind]
    return finding


@pytest.mark.parametrize(
    ("wins", "side", "shares_words"),
    [(0.75, "longer", True), (0.25, "shorter", True), (0.75, "longer", False)],
)
def test_a_cue_names_the_side_that_wins_with_its_share(pair_table, wins, side, shares_words):
    rows = rows_of(wins)
    for row in [] if shares_words else rows:
        for name in ("chosen", "rejected"):
            ending = f"{row[f'{name}_story_id']} "
            row[name] = row[name].replace(" ", ending) + ending
    table = pair_table(rows)
    difference = np.subtract(
        *(table[f"{name}_n_words"].to_numpy() for name in ("chosen", "rejected"))
    )
    share = float((difference > 0).mean())
    expected = max(share, 1 - share)
    audited = audit_pairs(table)
    (finding,) = [f for f in audited.findings if f.kind == "longer"]
    is_noted = "words: differs in 0 pairs, too few to test." in audited.notes
    assert is_noted is not shares_words
    start = f"The {side} story wins in {100 * expected:.1f} % ["
    assert finding.sentence.startswith(start)
    assert "pairs that differ in it" not in finding.sentence, "all pairs differ in length"
    assert finding.number == pytest.approx(expected)
    assert finding.low < finding.number < finding.high
    assert finding.low > 0.5
    assert finding.severity == pytest.approx(2 * expected - 1)
    assert 0 < finding.p_holm < 0.05
    assert "symmetry_buckets" in finding.advice


def test_a_cue_that_differs_in_few_pairs_has_its_share_of_these(pair_table):
    rows = rows_of(0.5)
    notes = "\n\nEdit: thanks for reading, visit my subreddit!"
    for row in rows[::2]:
        row["chosen"] += notes
    for row in rows[1::10]:
        row["rejected"] += notes
    # 60 of 120 pairs for the chosen story, 12 for the rejected one, 48 equal.
    finding = found(pair_table(rows), "notes")
    assert "wins in 70.0 %" in finding.sentence
    assert finding.sentence.endswith("and in 83.3 % of the 72 pairs that differ in it.")


def test_findings_are_sorted_by_severity(pair_table):
    rows = rows_of(0.75)
    rows[1]["rejected"] = rows[0]["rejected"]
    rows[-1]["prompt"] = "Another prompt."
    audited = audit_pairs(pair_table(rows))
    kinds = [finding.kind for finding in audited.findings]
    severities = [finding.severity for finding in audited.findings]
    assert severities == sorted(severities, reverse=True)
    assert kinds == ["longer", "prompt_ids", "copies"]


def test_copies_and_contradictions_are_counted(pair_table):
    rows = rows_of(0.5)
    # The same two texts are preferred both ways, under other ids and with other spaces and case.
    first = rows[0]
    rows[1] = first | {
        "chosen": first["rejected"].upper(),
        "rejected": f"  {first['chosen']}  ",
        "pair_id": "again",
    }
    table = pair_table(rows)
    contradictions, copies = found(table, "contradictions"), found(table, "copies")
    assert contradictions.sentence.startswith(f"In 2 pairs ({100 * 2 / len(rows):.1f} %)")
    assert contradictions.number == pytest.approx(2 / len(rows))
    stories = 2 * len(rows) - 2
    assert copies.sentence == f"2 stories ({100 * 2 / stories:.1f} %) have several ids."
    assert contradictions.low is contradictions.p_holm is None
    same_way = [first, first | {"pair_id": "again", "chosen_story_id": "other"}, *rows[2:]]
    kinds = {finding.kind for finding in audit_pairs(pair_table(same_way)).findings}
    assert "contradictions" not in kinds
    assert "copies" in kinds


def test_prompts_and_their_ids_are_one_to_one(pair_table):
    rows = rows_of(0.5)
    rows[0]["prompt_id"] = "another id"
    finding = found(pair_table(rows), "prompt_ids")
    share = PER_PROMPT / len(rows)
    assert finding.sentence == (
        f"1 prompts have several prompt_ids, in {100 * share:.1f} % of the pairs."
    )
    assert finding.severity == pytest.approx(share)
    rows = rows_of(0.5)
    rows[0]["prompt"] = "Another prompt."
    finding = found(pair_table(rows), "prompt_ids")
    assert finding.sentence.startswith("1 prompt_ids have several prompts, in 3.3 %")


def test_what_splits_share_is_a_share_of_the_second(pair_table):
    rows = rows_of(0.5)
    # One of the ten prompts of the test split is in training.
    for row in rows[-PER_PROMPT:]:
        row["prompt"] = rows[0]["prompt"]
    table = pair_table(rows)
    finding = found(table, "leakage")
    assert finding.sentence.startswith("The splits train and test share 1 prompts")
    assert finding.sentence.endswith("up to 10.0 % of those of test.")
    assert finding.severity == pytest.approx(0.1)
    assert "Leave them out of test" in finding.advice
    alone = audit_pairs(pair_table([row | {"split": "all"} for row in rows]))
    assert alone.leakage is None
    assert "leakage: there is one split." in alone.notes


def test_shared_authors_weigh_a_quarter(pair_table):
    rows = rows_of(0.5, chosen_author=lambda index: f"author {index}")
    rows[-1]["chosen_author"] = "author 0"
    finding = found(pair_table(rows), "shared_authors")
    assert finding.severity == pytest.approx(finding.number / 4)
    assert "1 authors" in finding.sentence


def agreeing(mean, spread=0.1):
    """Annotators, two of whom agree in a share of the pairs that both decide."""
    two = Interval(mean, mean - 0.02, mean + 0.02, 400, 30, 30.0)
    fields = dict.fromkeys(AnnotatorAgreement.__dataclass_fields__)
    return AnnotatorAgreement(**{**fields, "two_decided": two, "difficulty_spread": spread})


@pytest.mark.parametrize(("spread", "bound"), [(0.1, "with about"), (float("nan"), "at most")])
def test_label_noise_is_stated_with_the_ceiling(pair_table, spread, bound):
    table = pair_table(rows_of(0.5))
    audited = audit_pairs(table, agreeing(0.7, spread), per_story=3)
    (finding,) = [f for f in audited.findings if f.kind == "label_noise"]
    assert "the same one in 70.0 % [68.0 % to 72.0 %]" in finding.sentence
    assert f"{bound} {100 * audited.ceiling.mean:.1f} %" in finding.sentence
    assert finding.severity == pytest.approx(2 * (1 - audited.ceiling.mean))
    assert finding.p_holm < 0.05
    assert audited.tests == len(audited.results) + 1


@pytest.mark.parametrize("mean", [0.93, 0.895])
def test_annotators_who_agree_enough_are_no_finding(pair_table, mean):
    audited = audit_pairs(pair_table(rows_of(0.5)), agreeing(mean), per_story=3)
    assert "label_noise" not in [finding.kind for finding in audited.findings]


def test_sizes_tests_and_what_was_not_tested(pair_table):
    rows = rows_of(0.5)
    for row in rows[:9]:
        row["chosen"] += "\n\nEdit: thanks for reading, visit my subreddit!"
    table = pair_table(rows)
    audited = audit_pairs(table, by_rule=["longer"])
    assert audited.size["pairs"] == PROMPTS * PER_PROMPT
    assert audited.size["prompts"] == PROMPTS
    assert audited.size["effective_prompts"] == pytest.approx(PROMPTS)
    assert audited.size["stories"] == 2 * PROMPTS * PER_PROMPT
    assert audited.size["stories_per_prompt"] == pytest.approx(2 * PER_PROMPT)
    names = [result.cue.name for result in audited.results]
    assert "longer" not in names
    assert "longer: a pairing rule decides it; keep it from raters." in audited.notes
    assert "notes: differs in 9 pairs, too few to test." in audited.notes
    assert audited.tests == len(names)
    more = audit_pairs(table, by_rule=["longer"], others=[0.5, float("nan")])
    assert more.tests == len(names) + 1
    assert more.detectable > audited.detectable, "one test more leaves less for each"


def test_pairs_that_share_a_story_are_one_prompt(pair_table):
    rows = rows_of(0.5)
    rows[-1]["chosen_story_id"] = rows[0]["chosen_story_id"] = "shared"
    assert audit_pairs(pair_table(rows)).size["prompts"] == PROMPTS - 1


def test_a_table_of_another_order_has_the_same_findings(pair_table):
    table = pair_table(rows_of(0.75))
    order = pa.array(np.random.default_rng(0).permutation(table.num_rows))
    assert audit_pairs(table.take(order)).findings == audit_pairs(table).findings
