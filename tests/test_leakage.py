"""Whatever two splits share is named with an id on either side, and nothing else is."""

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.curation.leakage import KINDS, by_split, leakage_report
from litbench.errors import ConfigError, DataError
from litbench.text import prompt_key


def text_of(seed, words=120):
    source = random.Random(seed)
    return " ".join(
        f"{source.choice('bdfglmnprst')}{source.randrange(3_000)}" for _ in range(words)
    )


def row(high, low, prompt="p", **more):
    """A pair of the stories named, whose texts their names decide."""
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
    """The report of splits given as rows of pairs."""

    def make(near_duplicates=True, **splits):
        tables = {name: pair_table(rows) for name, rows in splits.items()}
        return leakage_report(tables, near_duplicates=near_duplicates)

    return make


def rows_of(report, kind):
    return [found for found in report.found.to_pylist() if found["kind"] == kind]


def shared(report):
    """By kind: how many are shared, and the pairs on either side, over all pairs of splits."""
    counts = {}
    for one in report.counts["shared"]:
        counts.setdefault(one["kind"], []).append((one["shared"], one["pairs_a"], one["pairs_b"]))
    return counts


def test_splits_that_share_nothing_are_clean(report):
    made = report(train=[row("a", "b", "p"), row("c", "d", "q")], test=[row("e", "f", "r")])
    assert made.found.num_rows == 0
    assert shared(made) == {kind: [(0, 0, 0)] for kind in KINDS}
    made.check(["prompts", "stories", "near_duplicates"])
    assert made.counts["splits"]["train"] == {
        "pairs": 2,
        "prompts": 2,
        "stories": 4,
        "authors": 0,
        "stories_by_unknown": 4,
        "near_duplicates_within": 0,
    }


def test_a_near_duplicate_in_test_fails_the_check_with_both_ids_named(report):
    copy = text_of("b").replace(text_of("b").split()[60], "edited") + " EDIT: thanks!"
    train = [row("a", "b", "p"), row("c", "d", "q")]
    test = [row("e", "copy", "r", rejected=copy, pair_id="pair_of_copy"), row("g", "h", "s")]
    made = report(train=train, test=test)
    with pytest.raises(DataError) as error:
        made.check(["prompts", "stories", "near_duplicates"])
    message = str(error.value)
    assert "train and test share a near-duplicate story: b (train, pair " in message
    assert "copy (test, pair pair_of_copy), similarity 0." in message
    assert "Remove the pairs of one side" in message
    assert "a prompt" not in message
    assert shared(made)["near_duplicates"] == [(1, 1, 1)]
    made.check(["prompts", "stories"])
    (found,) = rows_of(made, "near_duplicates")
    assert (found["id_a"], found["id_b"]) == ("b", "copy")
    assert (found["split_a"], found["split_b"]) == ("train", "test")
    assert 0.8 <= found["similarity"] < 1
    assert (found["pairs_a"], found["pairs_b"]) == (1, 1)


def test_a_prompt_is_shared_whatever_its_tag_and_spacing(report):
    train = [row("a", "b", "t3_1", prompt_text="[WP] The clock, again!"), row("c", "d", "t3_2")]
    test = [row("e", "f", "t3_9", prompt_text="the clock   again"), row("g", "h", "t3_8")]
    for one in (*train, *test):
        one["prompt"] = one.pop("prompt_text", f"something of {one['prompt_id']}")
    made = report(train=train, test=test)
    (found,) = rows_of(made, "prompts")
    assert (found["id_a"], found["id_b"]) == ("t3_1", "t3_9")
    assert found["shared"] == prompt_key("The clock, again!")
    with pytest.raises(DataError, match=r"share a prompt: t3_1 \(train, .*t3_9 \(test"):
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
    found = {(one["id_a"], one["id_b"]): one for one in rows_of(made, "stories")}
    assert {names: one["shared"] for names, one in found.items()} == {
        ("a", "a"): "id",
        ("b", "other_b"): "text",
        ("c", "c"): "text",
    }
    assert found["a", "a"]["pairs_a"] == 2
    assert shared(made)["stories"] == [(3, 2, 3)]
    # The same text, in whatever dress, is a near-duplicate too; another text of one id is not.
    near = {(one["id_a"], one["id_b"]): one["similarity"]
            for one in rows_of(made, "near_duplicates")}  # fmt: skip
    assert near == {("b", "other_b"): 1.0, ("c", "c"): 1.0}


def test_authors_are_shared_where_they_are_known(report):
    train = [
        row("a", "b", "p", chosen_author="x", rejected_author="y"),
        row("c", "b", "p", chosen_author=None, rejected_author="y"),
    ]
    test = [row("e", "f", "q", chosen_author=None, rejected_author="y")]
    made = report(train=train, test=test)
    (found,) = rows_of(made, "authors")
    assert (found["id_a"], found["id_b"], found["shared"]) == ("b", "f", "y")
    assert shared(made)["authors"] == [(1, 2, 1)]
    assert made.counts["splits"]["train"]["stories_by_unknown"] == 1
    with pytest.raises(DataError, match=r"share an author: b \(train, .* f \(test"):
        made.check(["authors"])


def test_authors_that_nobody_knows_are_not_called_clean(report):
    made = report(train=[row("a", "b", chosen_author="x")], test=[row("e", "f", "q")])
    with pytest.raises(DataError, match="no story of test has a known author"):
        made.check(["authors"])


def test_a_kind_that_was_not_looked_for_is_not_called_clean(report):
    made = report(near_duplicates=False, train=[row("a", "b")], test=[row("e", "f", "q")])
    made.check(["prompts", "stories"])
    assert "near_duplicates_within" not in made.counts["splits"]["train"]
    for kind in ("near_duplicates", "poems"):
        with pytest.raises(ConfigError, match=f"names '{kind}', which was not looked for"):
            made.check([kind])


def test_every_two_splits_are_compared(report):
    made = report(
        train=[row("a", "b", "p")],
        test=[row("c", "d", "q"), row("e", "f", "r")],
        validation=[row("a", "c", "q"), row("g", "h", "r")],
    )
    found = {(one["kind"], one["split_a"], one["split_b"], one["id_a"], one["id_b"])
             for one in made.found.to_pylist()}  # fmt: skip
    assert found == {
        ("prompts", "test", "validation", "q", "q"),
        ("prompts", "test", "validation", "r", "r"),
        ("stories", "train", "validation", "a", "a"),
        ("stories", "test", "validation", "c", "c"),
        ("near_duplicates", "train", "validation", "a", "a"),
        ("near_duplicates", "test", "validation", "c", "c"),
    }


def test_the_message_names_a_few_and_the_table_all(report):
    names = [f"s{place:02d}" for place in range(9)]
    made = report(
        train=[row(name, f"x{name}", f"p{name}") for name in names],
        test=[row(name, f"y{name}", f"q{name}") for name in names],
    )
    with pytest.raises(DataError) as error:
        made.check(["stories"])
    assert "; 6 more" in str(error.value)
    assert [one["id_a"] for one in rows_of(made, "stories")] == names
    assert "train and test share 9 stories, in 9 and 9 pairs" in str(made)
    assert "9 near-duplicates" in str(made)


def test_near_duplicates_within_a_split_are_counted_and_no_leak(report):
    copies = [row(f"s{place}", f"x{place}", "p", chosen=text_of("one")) for place in range(4)]
    made = report(train=copies, test=[row("e", "f", "q")])
    assert made.counts["splits"]["train"]["near_duplicates_within"] == 3
    assert made.found.num_rows == 0


split_rows = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from("uvwxyz"), st.sampled_from("pqr")),
    min_size=1,
    max_size=6,
    unique_by=lambda one: one[:2],
)


@settings(max_examples=8)
@given(train=split_rows, test=split_rows)
def test_what_is_shared_is_what_sets_share(pair_table, train, test):
    tables = {
        name: pair_table([row(*one, chosen_author=one[0], rejected_author=one[1]) for one in rows])
        for name, rows in (("train", train), ("test", test))
    }
    made = leakage_report(tables)
    stories = {one for pair in train for one in pair[:2]} & {
        one for pair in test for one in pair[:2]
    }
    prompts = {pair[2] for pair in train} & {pair[2] for pair in test}
    expected = {
        "prompts": prompts,
        "authors": stories,
        "stories": stories,
        "near_duplicates": stories,
    }
    for kind, ids in expected.items():
        assert [one["id_a"] for one in rows_of(made, kind)] == sorted(ids), kind
        held = prompts if kind == "prompts" else stories
        (counted,) = (one for one in made.counts["shared"] if one["kind"] == kind)
        for side, rows in (("a", train), ("b", test)):
            assert counted[f"pairs_{side}"] == sum(bool(held & set(one)) for one in rows)
    shuffled = {
        name: table.take(pa.array(range(len(table))[::-1])) for name, table in tables.items()
    }
    again = leakage_report(shuffled)
    assert again.found.equals(made.found)
    assert again.counts == made.counts


def test_one_table_is_divided_by_its_column(pair_table):
    names = ["validation", "train", "test", "train"]
    pairs = pair_table([row(f"a{k}", f"b{k}", split=name) for k, name in enumerate(names)])
    divided = by_split(pairs)
    assert list(divided) == ["train", "test", "validation"]
    assert [table.num_rows for table in divided.values()] == [2, 1, 1]


def test_one_split_has_nothing_to_leak_to(pair_table):
    table = pair_table([row("a", "b")])
    with pytest.raises(DataError, match="the only split is all"):
        leakage_report({"all": table})
    with pytest.raises(DataError, match="split test holds no pairs"):
        leakage_report({"train": table, "test": table.slice(1)})


def test_odd_ids_are_shown_and_cut(report):
    long = "x" * 5_000
    made = report(train=[row(long, "b")], test=[row(long, "'; drop table sides; --", "q")])
    with pytest.raises(DataError) as error:
        made.check(["stories"])
    assert len(str(error.value)) < 600
