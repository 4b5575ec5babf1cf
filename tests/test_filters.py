"""Filters of single stories: each at its border, by name, by wording, and copies of a story."""

from typing import Any

import ibis
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from litbench.curation import filters
from litbench.curation.funnel import Funnel
from litbench.curation.tokens import count_tokens
from litbench.errors import ConfigError

OFF = {
    "drop_deleted": False,
    "drop_bots": False,
    "needs_score": False,
    "needs_time": False,
    "min_score": None,
    "max_tokens": None,
    "min_words": None,
}
ON = {
    "drop_deleted": True,
    "drop_bots": True,
    "needs_score": True,
    "needs_time": True,
    "min_score": 10,
    "max_tokens": 2_048,
    "min_words": 50,
}


def removed_by(stories: pa.Table, **options: Any) -> list[str | None]:
    table = ibis.memtable(stories)
    rules = filters.story_rules(table, **{**OFF, **options})
    marked = table.select("story_id", step=filters.removed_by(rules)).to_pyarrow().to_pylist()
    steps = {row["story_id"]: row["step"] for row in marked}
    return [steps[story_id] for story_id in stories["story_id"].to_pylist()]


def kept_of_copies(stories: pa.Table) -> set[str]:
    table = ibis.memtable(stories)
    table = table.mutate(duplicate_key=filters.duplicate_key(table))
    marked = table.select("story_id", repeated=filters.is_repeat(table)).to_pyarrow().to_pylist()
    return {row["story_id"] for row in marked if not row["repeated"]}


@pytest.mark.parametrize(
    ("option", "column", "stays", "goes"),
    [
        ("min_score", "score", 10, 9),
        ("max_tokens", "n_tokens", 2_048, 2_049),
        ("min_words", "n_words", 50, 49),
    ],
)
def test_a_limit_keeps_the_value_it_names(story_table, option, column, stays, goes):
    stories = story_table([{column: stays}, {column: goes}])
    assert removed_by(stories, **{option: ON[option]}) == [None, option]


def test_no_limit_removes_nothing(story_table):
    stories = story_table([{"score": -40, "n_tokens": 10**6, "n_words": 1, "text": "[removed]"}])
    assert removed_by(stories) == [None]


def test_the_first_rule_that_fits_is_the_one_counted(story_table):
    stories = story_table(
        [
            {"text": "[removed]", "score": 1, "n_tokens": 3, "n_words": 1, "created_utc": 5},
            {"score": None, "n_tokens": 3, "n_words": 1},
            {"score": 1, "n_tokens": 3_000, "n_words": 1},
            {"score": 1, "n_tokens": 3_000, "n_words": 1, "created_utc": 5},
            {"score": 11, "n_tokens": 3_000, "n_words": 1, "created_utc": 5},
            {"score": 11, "n_tokens": 3, "n_words": 1, "created_utc": 5},
            {"score": 11, "n_tokens": 60, "n_words": 50, "created_utc": 5},
        ]
    )
    assert removed_by(stories, **ON) == [
        "drop_deleted",
        "has_score",
        "has_time",
        "min_score",
        "max_tokens",
        "min_words",
        None,
    ]


@pytest.mark.parametrize(
    "body",
    [
        "[deleted]",
        "[removed]",
        "  [Removed]\n",
        "\t[DELETED]\r\n",
        "[deleted by user]",
        "[ Removed by Reddit ]",
        "[removed by reddit]",
        "[ Removed by Reddit on account of violating the [content policy](/help). ]",
        "",
        " \n ",
    ],
)
def test_a_body_that_is_gone_is_removed(story_table, body):
    assert removed_by(story_table([{"text": body}]), drop_deleted=True) == ["drop_deleted"]


@pytest.mark.parametrize(
    "body",
    [
        "[removed] was stamped across every page of her file, and still she read on.",
        "The archivist typed [deleted]",
        "[deleted scene] The harbour at night, without boats.",
        "[removed] [deleted] [removed], said the wall, in three hands.",
        "deleted",
    ],
)
def test_a_story_that_mentions_deletion_stays(story_table, body):
    assert removed_by(story_table([{"text": body}]), drop_deleted=True) == [None]


@pytest.mark.parametrize(
    "author", ["AutoModerator", "automoderator", "tidy-up-bot", "haiku_BOT", "WikiTextBot", "bot"]
)
def test_a_bot_is_known_by_its_name(story_table, author):
    stories = story_table([{"author": author}])
    assert removed_by(stories, drop_bots=True) == ["drop_bots"]


@pytest.mark.parametrize(
    "author", [None, "Talbot", "jane_abbot", "botanist", "robot_lover", "MrRobot", "9f2c41aab0"]
)
def test_a_person_whose_name_looks_like_a_bots_stays(story_table, author):
    assert removed_by(story_table([{"author": author}]), drop_bots=True) == [None]


SIGNATURE = "*I am a bot, and this action was performed automatically. Please contact the mods.*"


@pytest.mark.parametrize(
    "text",
    [
        "**Off-Topic Discussion**: All top-level comments must be a story or a poem.",
        "**Off-topic talk about this prompt goes here.** Top-level replies must be stories.",
        "Welcome to the Prompt! All top-level comments must be a story or a poem.",
        "Welcome to the prompt!\n\nReminder: be kind to each other.",
        SIGNATURE,
        "Your post has no tag. " + "Please read the list of tags. " * 40 + SIGNATURE,
    ],
)
def test_a_bot_is_known_by_its_template(story_table, text):
    assert removed_by(story_table([{"text": text}]), drop_bots=True) == ["drop_bots"]


@pytest.mark.parametrize(
    "text",
    [
        "Welcome home, said the door, which had never said anything before.",
        "Welcome to the prompt corner of the theatre, where we whisper lines to the dead.",
        "Off-topic discussion is forbidden in the reading room, so we spoke of the weather.",
        "The bot swept the chapel every night. I am a bot, it told the candles, and it bowed.",
        "She built a bot to answer her letters and it fell in love with the postman.",
        "A door. " * 100 + SIGNATURE + " So ended its first letter. " + "A window. " * 100,
    ],
)
def test_a_story_that_merely_mentions_a_bot_or_begins_with_welcome_stays(story_table, text):
    assert removed_by(story_table([{"text": text}]), drop_bots=True) == [None]


def test_of_several_copies_the_earliest_stays(story_table):
    stories = story_table(
        [
            {"story_id": "late", "text": "The fox came back.", "created_utc": 300},
            {"story_id": "early", "text": "the fox\n\n came  back. ", "created_utc": 100},
            {"story_id": "unknown", "text": "THE FOX CAME BACK.", "created_utc": None},
            {"story_id": "other", "text": "The fox came back!", "created_utc": 400},
        ]
    )
    assert kept_of_copies(stories) == {"early", "other"}


def test_copies_of_one_moment_leave_the_smallest_name(story_table):
    stories = story_table(
        [{"story_id": name, "text": "One and the same.", "created_utc": 7} for name in "cab"]
    )
    assert kept_of_copies(stories) == {"a"}


def test_a_copy_under_another_prompt_is_a_copy(story_table):
    stories = story_table(
        [
            {"story_id": "a", "prompt_id": "p1", "text": "Again the sea.", "created_utc": 2},
            {"story_id": "b", "prompt_id": "p2", "text": "Again the sea.", "created_utc": 1},
        ]
    )
    assert kept_of_copies(stories) == {"b"}


nullable = st.one_of(st.none(), st.integers(-3, 25))


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "text": st.sampled_from(["[removed]", "", "I walked on.", "Welcome, all."]),
                "author": st.sampled_from([None, "AutoModerator", "Talbot"]),
                "score": nullable,
                "created_utc": nullable,
                "n_words": st.integers(0, 99),
                "n_tokens": st.integers(1_990, 2_100),
            }
        ),
        min_size=1,
        max_size=20,
    )
)
def test_the_rules_agree_with_the_same_rules_in_plain_python(story_table, rows):
    def first_reason(row):
        checks = [
            ("drop_deleted", row["text"] in ("[removed]", "")),
            ("drop_bots", row["author"] == "AutoModerator"),
            ("has_score", row["score"] is None),
            ("has_time", row["created_utc"] is None),
            ("min_score", row["score"] is not None and row["score"] < 10),
            ("max_tokens", row["n_tokens"] > 2_048),
            ("min_words", row["n_words"] < 50),
        ]
        return next((name for name, removes in checks if removes), None)

    assert removed_by(story_table(rows), **ON) == [first_reason(row) for row in rows]


def test_the_funnel_refuses_a_step_that_loses_rows():
    funnel = Funnel()
    funnel.add("read", "rows read", "stories", 10, 0)
    funnel.add("min_score", "score at least 10", "stories", 7, 3)
    with pytest.raises(AssertionError, match=r"5 kept \+ 1 removed is not 7"):
        funnel.add("min_words", "at least 50 words", "stories", 5, 1)


def test_the_funnel_starts_anew_with_another_unit():
    funnel = Funnel()
    funnel.add("read", "rows read", "stories", 10, 0)
    funnel.add("within_prompt", "pairs", "pairs", 45, 0)
    assert [step["kept"] for step in funnel.plain()] == [10, 45]
    assert "45 pairs" in str(funnel)


def test_steps_counted_at_once_add_up_one_after_the_other():
    funnel = Funnel()
    funnel.add("read", "rows read", "stories", 10, 0)
    rules = [("one", "first"), ("two", "second"), ("three", "third")]
    funnel.add_all(rules, {"one": 4, "three": 1}, 10, "stories")
    # 10 - 4 = 6, 6 - 0 = 6, 6 - 1 = 5
    assert [(step.kept, step.removed) for step in funnel.steps[1:]] == [(6, 4), (6, 0), (5, 1)]


@pytest.fixture
def letters(tmp_path):
    """A tokenizer file with one token per letter that would cut texts at three and pad them."""
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, " ": 2}, merges=[]))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_tokens_are_counted_in_full_whatever_limits_the_tokenizer_has(letters):
    texts = ["", "a", "ab ba", "ab" * 700] * 300  # more than one batch
    for place in (letters, letters / "tokenizer.json"):
        counts = count_tokens(texts, [1] * len(texts), str(place), 20_000)
        assert counts.tolist() == [0, 1, 5, 1_400] * 300


def test_a_text_too_long_to_tokenise_gets_its_words(letters):
    assert count_tokens(["ab", "ab"], [20, 21], str(letters), 20).tolist() == [2, 21]


def test_a_tokenizer_that_cannot_be_loaded_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer '.*': cannot be loaded"):
        count_tokens(["a"], [1], str(tmp_path), 10)
