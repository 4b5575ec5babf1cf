"""Filters of single stories: thresholds, bots, comments on the prompt, and copies."""

import ibis
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.data.curation import filters
from litbench.data.curation.funnel import Funnel
from litbench.data.curation.rules import PairRules

OFF = {
    **dict.fromkeys(("drop_deleted", "drop_bots", "drop_talk", "chosen_later"), False),
    **dict.fromkeys(("min_score", "max_tokens", "min_words")),
}
ON = {
    **dict.fromkeys(("drop_deleted", "drop_bots", "chosen_later"), True),
    **{"min_score": 10, "max_tokens": 2_048, "min_words": 50},
}


def removed_by(stories, **options):
    table = ibis.memtable(stories)
    rules = filters.story_rules(table, PairRules(**{**OFF, **options}))
    # Whether the score is known is always asked: only tests of this ask for it.
    rules = [rule for rule in rules if rule.name != "has_score" or "min_score" in options]
    marked = table.select("story_id", step=filters.removed_by(rules)).to_pyarrow().to_pylist()
    steps = {row["story_id"]: row["step"] for row in marked}
    return [steps[story_id] for story_id in stories["story_id"].to_pylist()]


def steps_of(story_table, column, values, **options):
    """Return the step that removes each value, all in one table to save time."""
    rows = [{column: value} for value in values]
    return dict(zip(values, removed_by(story_table(rows), **options), strict=True))


def kept_of_copies(stories):
    table = ibis.memtable(stories)
    table = table.mutate(duplicate_key=filters.duplicate_key(table))
    marked = table.select("story_id", repeated=filters.is_repeat(table)).to_pyarrow().to_pylist()
    return {row["story_id"] for row in marked if not row["repeated"]}


def test_first_matching_rule_is_counted(story_table):
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


def test_deleted_texts_are_removed(story_table):
    gone = [
        "[deleted]",
        "[removed]",
        "  [Removed]\n",
        "\t[DELETED]\r\n",
        "[deleted by user]",
        "[ Removed by Reddit ]",
        "",
        " \n ",
        "[ Removed by Reddit on account of violating the [content policy](/help). ]",
    ]
    stories = [
        "[removed] was stamped across every page of her file, and still she read on.",
        "The archivist typed [deleted]",
        "[removed] [deleted] [removed], said the wall, in three hands.",
        "[removed from the wall by night, the notice ended up in a museum]",
        "deleted",
    ]
    steps = steps_of(story_table, "text", gone + stories, drop_deleted=True)
    assert steps == dict.fromkeys(gone, "drop_deleted") | dict.fromkeys(stories)


BODIES = st.builds(
    "".join,
    st.lists(
        st.sampled_from(
            [
                "[",
                "]",
                " ",
                "\n",
                "removed",
                "Deleted",
                " by ",
                "user",
                "Reddit",
                "moderator",
                "s",
                "é",
                "_",
                "x" * 120,
                "\u00a0",
                "\u2028",
                ".",
            ]
        ),
        max_size=9,
    ),
)


@settings(max_examples=20)
@given(st.lists(BODIES, min_size=1, max_size=40))
def test_filter_and_reddit_client_agree_on_deleted_texts(story_table, bodies):
    text_state = pytest.importorskip("litbench.collect.reddit").text_state
    bodies += ["[removed by moderator]", "[deleted by user]", "[ removed ]", "", "[removed"]
    bodies += ["[\u00a0removed]", "[removed\u2028]", "[removed by moderatoré]", "[deleted]\u00a0"]
    steps = removed_by(story_table([{"text": body} for body in bodies]), drop_deleted=True)
    for body, step in zip(bodies, steps, strict=True):
        assert (text_state(body) == "present") == (step is None), repr(body)


def test_a_bot_is_known_by_its_name(story_table):
    bots = ["AutoModerator", "automoderator", "tidy-up-bot", "haiku_BOT", "WikiTextBot", "bot"]
    people = [None, "Talbot", "jane_abbot", "botanist", "robot_lover", "MrRobot", "9f2c41aab0"]
    steps = steps_of(story_table, "author", bots + people, drop_bots=True)
    assert steps == dict.fromkeys(bots, "drop_bots") | dict.fromkeys(people)


SIGNATURE = "*I am a bot, and this action was performed automatically. Please contact the mods.*"


def test_a_bot_is_known_by_its_template(story_table):
    bots = [
        "**Off-topic talk about this prompt goes here.** Top-level replies must be stories.",
        "Welcome to the Prompt! All top-level comments must be a story or a poem.",
        SIGNATURE,
        "Your post has no tag. " + "Please read the list of tags. " * 40 + SIGNATURE,
    ]
    stories = [
        "Welcome to the prompt corner of the theatre, where we whisper lines to the dead.",
        "Off-topic discussion is forbidden in the reading room, so we spoke of the weather.",
        "The bot swept the chapel every night. I am a bot, it told the candles, and it bowed.",
        "A door. " * 100 + SIGNATURE + " So ended its first letter. " + "A window. " * 100,
    ]
    steps = steps_of(story_table, "text", bots + stories, drop_bots=True)
    assert steps == dict.fromkeys(bots, "drop_bots") | dict.fromkeys(stories)


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


def test_the_funnel_refuses_a_step_that_loses_rows():
    funnel = Funnel()
    funnel.add("read", "rows read", "stories", 10, 0)
    funnel.add("min_score", "score at least 10", "stories", 7, 3)
    with pytest.raises(AssertionError, match=r"5 kept \+ 1 removed is not 7"):
        funnel.add("min_words", "at least 50 words", "stories", 5, 1)


# Talk, bots by mark ---------------------------------------------------------------------------

TALK = [
    "RemindMe! 2 days",
    "UpdateMe!",
    "[OT] How do you come up with these?",
    "Commenting to find this later",
    "Great prompt!",
    "Wow, what an awesome prompt, op.",
    "I really love this prompt.",
    "*Love the prompt!* No time to write though.",
    "This reminds me of a short story I read as a child, about a keeper and a lamp.",
    "Not OP, but I think the lamp stands for sleep.",
    "Not a story, but this happened to my aunt.",
    "You should post this to r/lighthouses",
    "https://example.org/lamps",
    "[the lamp](https://example.org/lamps) [the room](https://example.org/rooms)",
]

SHORT_FICTION = [
    "Great, said the lamp, and went out.",
    "What an awesome sight the harbour was.",
    "I like people who are prompt.",
    "She reminds me of a song.",
    "The sky reminded me of a story my mother told.",
    "Not a story, she insisted, a confession.",
    "Nothing was posted on the door.",
    "Saving the lamp was all that mattered.",
    "Reserved for the dead, said the card on the table.",
    "Remind me to close the window, she said.",
    "Ask either/or/neither, said the oracle.",
    "(Otto was the first to go.)",
    "[Other people's doors]",
    "门后面什么也没有。",
    "",
]


def test_short_comments_on_the_prompt_are_removed(story_table):
    assert steps_of(story_table, "text", TALK, drop_talk=True) == dict.fromkeys(TALK, "drop_talk")
    steps = steps_of(story_table, "text", SHORT_FICTION, drop_talk=True)
    assert steps == dict.fromkeys(SHORT_FICTION)


def test_a_long_text_is_never_talk(story_table):
    words = filters.TALK_WORDS
    rows = [{"text": "Great prompt!", "n_words": n} for n in (words - 1, words)]
    assert removed_by(story_table(rows), drop_talk=True) == ["drop_talk", None]


def test_bot_is_known_by_is_bot(story_table):
    # Sources hash names, so that only the mark tells.
    stories = story_table([{"author": "9f2c41aab0"}] * 3)
    for marks in ([True, False, None], ["true", "false", None]):
        marked = stories.append_column("is_bot", pa.array(marks))
        assert removed_by(marked, drop_bots=True) == ["drop_bots", None, None]


@pytest.mark.parametrize(
    "text",
    [
        "so " * 300_000,
        "[a](" * 250_000,
        "<https://" + "a" * 1_000_000,
        "great " * 160_000,
        "\n" * 1_000_000,
        "[ removed by reddit " + "a" * 1_000_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_a_hostile_text_of_a_million_characters_ends(story_table, text):
    # Words may be few in it: runs of signs are none.
    stories = story_table([{"text": text, "n_words": 1}])
    options = {"drop_deleted": True, "drop_bots": True, "drop_talk": True}
    assert removed_by(stories, **options)[0] in (None, "drop_talk", "drop_deleted")
