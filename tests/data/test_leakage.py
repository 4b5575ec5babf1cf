"""Leakage reports name all shared items of two splits, with an id in each."""

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.data.curation.leakage import leakage_report
from litbench.runs.errors import DataError


def text_of(seed, words=120):
    source = random.Random(seed)
    return " ".join(
        f"{source.choice('bdfglmnprst')}{source.randrange(3_000)}" for _ in range(words)
    )


def row(high, low, prompt="p", **more):
    """Return a pair of named stories; their texts follow from their names."""
    return {
        "prompt_id": prompt,
        "chosen_story_id": high,
        "rejected_story_id": low,
        "chosen": text_of(high),
        "rejected": text_of(low),
        **more,
    }


@pytest.fixture
def report(pair_table):
    """Return the report of splits given as rows of pairs."""

    def make(**splits):
        return leakage_report({name: pair_table(rows) for name, rows in splits.items()})

    return make


def rows_of(report, kind):
    return [row for row in report.shared.to_pylist() if row["kind"] == kind]


def test_near_duplicate_fails_and_names_both_ids(report):
    copy = text_of("b").replace(text_of("b").split()[60], "edited") + " EDIT: thanks!"
    train = [row("a", "b", "p"), row("c", "d", "q")]
    test = [row("e", "copy", "r", rejected=copy, pair_id="pair_of_copy"), row("g", "h", "s")]
    made = report(train=train, test=test)
    with pytest.raises(DataError) as error:
        made.check(["prompts", "stories", "near_duplicates"])
    message = str(error.value)
    assert "train and test share 1 near-duplicates, such as b (train) and copy (test)" in message
    assert "Remove the pairs of the second split" in message
    assert "prompts" not in message
    made.check(["prompts", "stories"])
    (result,) = rows_of(made, "near_duplicates")
    assert (result["id_a"], result["id_b"]) == ("b", "copy")
    assert (result["split_a"], result["split_b"]) == ("train", "test")
    assert 0.8 <= result["similarity"] < 1


def test_shared_prompt_ignores_tag_and_spacing(report):
    train = [row("a", "b", "t3_1", prompt_text="[WP] The clock, again!"), row("c", "d", "t3_2")]
    test = [row("e", "f", "t3_9", prompt_text="the clock   again"), row("g", "h", "t3_8")]
    for item in (*train, *test):
        item["prompt"] = item.pop("prompt_text", f"something of {item['prompt_id']}")
    made = report(train=train, test=test)
    (result,) = rows_of(made, "prompts")
    assert (result["id_a"], result["id_b"]) == ("t3_1", "t3_9")
    with pytest.raises(DataError, match=r"1 prompts, .*t3_1 \(train\) .*t3_9 \(test"):
        made.check(["prompts"])
    made.check(["stories", "near_duplicates"])


def test_a_story_is_shared_by_its_id_or_its_text(report):
    train = [row("a", "b", "p"), row("a", "c", "p")]
    test = [
        row("a", "e", "q", chosen=text_of("another version")),
        row("other_b", "f", "r", chosen=text_of("b").upper().replace(" ", "\n")),
        row("c", "g", "s"),
    ]
    made = report(train=train, test=test)
    results = {(item["id_a"], item["id_b"]) for item in rows_of(made, "stories")}
    assert results == {("a", "a"), ("b", "other_b"), ("c", "c")}
    # The same text, in whatever dress, is a near-duplicate too; another text of one id is not.
    near = {
        (item["id_a"], item["id_b"]): item["similarity"]
        for item in rows_of(made, "near_duplicates")
    }
    assert near == {("b", "other_b"): 1.0, ("c", "c"): 1.0}


def test_authors_are_shared_where_they_are_known(report):
    train = [
        row("a", "b", "p", chosen_author="x", rejected_author="y"),
        row("c", "b", "p", chosen_author=None, rejected_author="y"),
    ]
    test = [row("e", "f", "q", chosen_author=None, rejected_author="y")]
    made = report(train=train, test=test)
    (result,) = rows_of(made, "authors")
    assert (result["id_a"], result["id_b"]) == ("b", "f")
    with pytest.raises(DataError, match=r"1 authors, .*b \(train\) .*f \(test"):
        made.check(["authors"])


split_rows = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from("uvwxyz"), st.sampled_from("pqr")),
    min_size=1,
    max_size=6,
    unique_by=lambda item: item[:2],
)


@settings(max_examples=5)
@given(train=split_rows, test=split_rows)
def test_what_is_shared_is_what_sets_share(pair_table, train, test):
    tables = {
        name: pair_table(
            [row(*item, chosen_author=item[0], rejected_author=item[1]) for item in rows]
        )
        for name, rows in (("train", train), ("test", test))
    }
    made = leakage_report(tables)
    stories = {item for pair in train for item in pair[:2]} & {
        item for pair in test for item in pair[:2]
    }
    prompts = {pair[2] for pair in train} & {pair[2] for pair in test}
    expected = {
        "prompts": prompts,
        "authors": stories,
        "stories": stories,
        "near_duplicates": stories,
    }
    for kind, ids in expected.items():
        assert [item["id_a"] for item in rows_of(made, kind)] == sorted(ids), kind
    shuffled = {
        name: table.take(pa.array(range(len(table))[::-1])) for name, table in tables.items()
    }
    again = leakage_report(shuffled)
    assert again.shared.equals(made.shared)
    assert again.counts == made.counts


def test_one_split_has_nothing_to_leak_to(pair_table):
    table = pair_table([row("a", "b")])
    for pairs in ({"all": table}, {"train": table, "test": table.slice(1)}):
        with pytest.raises(DataError, match="two splits"):
            leakage_report(pairs)
