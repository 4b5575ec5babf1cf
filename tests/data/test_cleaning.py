"""Cleaning of prompts and stories: removed passages, kept passages, unchanged columns."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.data.curation.cleaning import Cleaning, clean_table
from litbench.data.curation.funnel import Examples
from litbench.data.sources.posts import PROMPT_TAGS, prompt_tag
from litbench.data.text import prompt_key

# What a cut must leave alone: long enough that edges and middle are apart.
STORY = "\n\n".join(
    f"{who} walked to the harbour and counted the {what}, as the tide had asked."
    for who in ("Ana", "The keeper", "My sister", "Nobody")
    for what in ("lamps", "herons", "drowned bells")
)
WORDS = st.lists(
    st.sampled_from(
        ["the", "a door", "prompt", "[WP]", "edit:", "Edit 2:", "gold", "thanks for", ">", "**"]
    )
    | st.sampled_from("""*_#.!()"“’門é \n""")
    | st.sampled_from(["---", "r/x", "\n\n", "[EU]"]),
    max_size=40,
).map(" ".join)


def table_of(texts, prompts=None, **columns):
    prompts = prompts if prompts is not None else ["[WP] A door."] * len(texts)
    columns = {
        "story_id": [f"s{index}" for index in range(len(texts))],
        "prompt": pa.array(prompts, pa.large_string()),
        "text": pa.array(texts, pa.large_string()),
        **columns,
    }
    return pa.table(columns)


def clean(text, prompt="[WP] A door.", **switches):
    """Return a text after the named cleaning steps."""
    cleaning = Cleaning(**{**vars(Cleaning.none()), **switches})
    table, _ = clean_table(table_of([text], [prompt]), cleaning, {"text": "story_id"})
    return table["text"][0].as_py()


def clean_prompt(prompt, flair=None):
    cleaning = Cleaning(cut_quoted_prompt=False, cut_vote_talk=False)
    table = table_of(["A story."], [prompt], flair=pa.array([flair], pa.large_string()))
    table, counts = clean_table(table, cleaning, {"text": "story_id"})
    return table["prompt"][0].as_py(), table["flair"][0].as_py(), counts["strip_prompt_tags"]


# Tags of prompts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "rest", "flair"),
    [
        ("[WP] A door.", "A door.", "WP"),
        ("[wp]A door.", "A door.", "WP"),
        ("**[WP] A door.**", "A door.", "WP"),
        ("[WP][EU] A door.", "A door.", "WP"),
        ("[EU] [ WP ]  A door.", "A door.", "EU"),
        ("> [WP]: A door.", "A door.", "WP"),
        ("[WP] [Redacted] woke up.", "[Redacted] woke up.", "WP"),
        ("[Redacted] woke up.", "[Redacted] woke up.", None),
        ("A door. [WP]", "A door. [WP]", None),
        ("A door.", "A door.", None),
        ("[WP]", "[WP]", None),
        ("", "", None),
    ],
)
def test_leading_tags_go_from_prompt_to_flair(prompt, rest, flair):
    assert clean_prompt(prompt) == (rest, flair, int(rest != prompt))


def test_only_a_flair_that_is_unknown_is_filled():
    assert clean_prompt("[WP] A door.", flair="Writing Prompt") == ("A door.", "Writing Prompt", 1)
    unknown = pa.nulls(2, pa.large_string())
    table = table_of(["A story."] * 2, ["[EU] A door.", "A door."], flair=unknown)
    table, _ = clean_table(table, Cleaning(), {"text": "story_id"})
    assert table["flair"].to_pylist() == ["EU", None]


@given(
    tags=st.lists(st.sampled_from([*(f"[{tag}]" for tag in PROMPT_TAGS), "**[WP]**", "[x]"])),
    rest=st.one_of(WORDS, st.text(max_size=30)),
)
def test_stripping_tags_keeps_the_split(tags, rest):
    prompt = " ".join([*tags, rest])
    stripped, flair, _ = clean_prompt(prompt)
    assert prompt_key(stripped) == prompt_key(prompt)
    assert flair in (None, prompt_tag(prompt))
    assert clean_prompt(stripped)[0] == stripped or stripped != prompt


# The prompt, quoted ---------------------------------------------------------------------------

PROMPT = "[WP] The lighthouse keeper's lamp has gone out, and something far below is pleased."
BARE = PROMPT.removeprefix("[WP] ")


@pytest.mark.parametrize(
    "quotation",
    [
        f"> {PROMPT}",
        f"> {BARE}",
        PROMPT,
        BARE,
        f"**{BARE}**",
        f"**Prompt:** {BARE}",
        f"Prompt: {PROMPT}",
        f"> {BARE.upper()}",
        f"**Prompt**\n\n{BARE}",
        "> The lighthouse keeper's lamp has gone out,\n> and something far below is pleased.",
        f"{BARE}\n\n---",
        f"---\n\n{BARE}\n\n&nbsp;",
    ],
)
def test_a_prompt_quoted_at_the_head_is_cut(quotation):
    assert clean(f"{quotation}\n\n{STORY}", PROMPT, cut_quoted_prompt=True) == STORY


@pytest.mark.parametrize(
    "text",
    [
        BARE,
        f"> {PROMPT}\n\n---\n\n",
        f"{BARE} So it was told to me.\n\n{STORY}",
        f"They said: {BARE}\n\n{STORY}",
        f"{STORY}\n\n{BARE}",
        f"The lighthouse keeper's lamp has gone out.\n\n{STORY}",
        f"“{BARE}”\n\n{STORY}",
        f"{BARE} {STORY}",
    ],
)
def test_a_story_that_uses_the_prompt_stays(text):
    assert clean(text, PROMPT, cut_quoted_prompt=True) == text


def test_short_title_is_cut_only_if_quoted():
    for text in (f"The lamp room\n\n{STORY}", f"**The lamp room**\n\n{STORY}"):
        assert clean(text, "The lamp room", cut_quoted_prompt=True) == text
    text = f"> The lamp room\n\n{STORY}"
    assert clean(text, "The lamp room", cut_quoted_prompt=True) == STORY


# Talk to the readers --------------------------------------------------------------------------

# Each must go from the end of a story.
TALK = [
    "EDIT: Thanks for the gold!",
    "EDIT 2 - wow, this really blew up overnight",
    "edit1: typo",
    "*Edit: Holy crap, gold? Thank you so much!*",
    "(edit: formatting)",
    "Edited for clarity.",
    "ETA: Thank you all for the upvotes!",
    "Edit:\n\nWow, thanks for the silver, whoever you are!",
    "Thank you kind stranger for the gold!",
    "Thank you everyone for the support and all the comments!",
    "RIP my inbox",
    "Front page!",
    "My first gold! Thank you!!",
    "Well, this blew up. Thank you, everybody.",
    "I can't believe this got so many upvotes!",
    "2.5k upvotes?!",
    "Please upvote if you enjoyed this story!",
    "Why the downvotes?",
    "This is now my highest rated comment, thank you",
    "r/the_lamp_room",
    "[r/thelamproom](https://www.reddit.com/r/thelamproom)",
    "Check out my subreddit for more: r/thelamproom",
    "If you enjoyed this, please consider subscribing to my sub, upvotes are welcome too",
    "Check out my profile for more stories :)",
    "Thanks for reading!",
    "Hope you enjoyed it!",
    "Any feedback is appreciated!",
    "This is my first time posting here, please be gentle",
    "Let me know what you think!",
    "Part 2 coming soon!",
    "Sorry for any typos, I wrote this on my phone",
    "A/N: this prompt would not let me sleep",
]

# Each must stay, at the end as at the head.
FICTION = [
    '"Thanks for the gold," he said.',
    "“Thanks for the gold, kind stranger,” said the ferryman, and pushed off.",
    "‘Please upvote this,’ the machine begged.",
    '"Visit r/thelamproom for more," the poster said.',
    "Thank you for the gold, my lord, and for the horses.",
    "Thanks to the gold, the children ate that winter.",
    "Thank you for coming.",
    "Thank you for reading me stories when I could not sleep.",
    "First gold, then silver, then the long road home.",
    "Edit the footage, she told herself, and nobody will know.",
    "Edit.",
    "EDIT: they are at the door now. I can hear them breathing.",
    "Update: the signal is getting closer. We have shut off the lights.",
    "ETA: two minutes.",
    "The front page had her photograph, and under it another name.",
    "Front page or not, it was still a lie.",
    "This blew up the last of the bridges, and the war was over.",
    "My inbox. My keys. My own front door. All of it belonged to somebody else.",
    "We voted, and the upvotes won, and the town went dark.",
    "If you want more, you must come down to the water.",
    "I hope you enjoyed your stay, said the hotel.",
    "Tell me what you want, said the well.",
    "This was my first time flying without her.",
    "Forgive me my spelling, Mother, for my hands are cold and there is no light here at all.",
    "Part two of the plan was to survive part one.",
    "The critics were kind. The feedback from the speakers was not.",
    "Reddit was the first of them to fall silent, and then the radio.",
]


def test_notes_at_the_end_are_cut_and_fiction_is_kept():
    for talk in TALK:
        assert clean(f"{STORY}\n\n{talk}", cut_vote_talk=True) == STORY, talk
    for line in FICTION:
        for text in (f"{STORY}\n\n{line}", f"{line}\n\n{STORY}", f"{STORY}\n{line}\n{STORY}"):
            assert clean(text, cut_vote_talk=True) == text, line


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"EDIT: front page, wow!\n\n{STORY}", STORY),
        (f"(This is my first time posting here, be gentle)\n\n---\n\n{STORY}", STORY),
        (f"{STORY}\n\n---\n\nThanks for the gold, kind stranger!", STORY),
        (f"{STORY}\n\n&#x200B;\n\n***\n\n/r/thelamproom\n\n&nbsp;\n", STORY),
        (f"{STORY}\n\nEdit: gold!! Thank you!\n\nEdit 2: typos\n\nr/thelamproom", STORY),
        (f"{STORY}\r\n\r\nEDIT: typo\r\n", STORY),
        (f"{STORY}\n\nEDIT: Thanks for the gold!\n\nIt made my week.\n\nReally.", STORY),
    ],
)
def test_notes_are_cut_with_their_rules(text, left):
    assert clean(text, cut_vote_talk=True) == left


def test_story_written_as_posts_keeps_edits():
    text = (
        f"{STORY}\n\nEDIT: There is somebody at the window.\n\n"
        "EDIT 2: Thanks to everyone in the comments, I have locked the door."
    )
    assert clean(text, cut_vote_talk=True) == text
    marked = f"{text}\n\nEDIT 3: thank you for the gold!"
    assert clean(marked, cut_vote_talk=True) == text


def test_a_text_is_never_left_empty():
    for text in ("Thanks for reading!", "EDIT: thanks for the gold!\n\n---\n\nr/thelamproom", ""):
        assert clean(text, cut_vote_talk=True) == text


# The whole step -------------------------------------------------------------------------------


@given(
    rows=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6),
    switches=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_cleaning_is_idempotent_and_keeps_rows(rows, switches):
    prompts, texts = (list(column) for column in zip(*rows, strict=True))
    flair = pa.nulls(len(rows), pa.large_string())
    table = table_of(texts, prompts, extra=list(range(len(rows))), flair=flair)
    cleaning = Cleaning(*switches)
    cleaned, counts = clean_table(table, cleaning, {"text": "story_id"})
    assert cleaned.column_names == table.column_names
    for name in ("extra", "story_id"):
        assert cleaned[name] == table[name]
    assert set(counts) == {name for name, on in vars(cleaning).items() if on}
    for before, after in zip(texts, cleaned["text"].to_pylist(), strict=True):
        # What is left was there, in its order, and is not nothing.
        lines = iter(before.split("\n"))
        assert all(any(line in whole for whole in lines) for line in after.split("\n"))
        assert bool(after.strip()) == bool(before.strip())


def test_both_sides_of_a_pair_are_cleaned_and_counted():
    table = pa.table(
        {
            "pair_id": ["p0", "p1", "p2"],
            "prompt": ["A door."] * 3,
            "chosen": [f"{STORY}\n\nEDIT: thanks for the gold!", STORY, None],
            "rejected": [STORY, f"{STORY}\n\nFront page!", f"{STORY}\n\nEdit: typo"],
        }
    )
    examples = Examples()
    sides = {"chosen": "pair_id", "rejected": "pair_id"}
    cleaned, counts = clean_table(table, Cleaning(), sides, examples)
    assert cleaned["chosen"].to_pylist() == [STORY, STORY, None]
    assert cleaned["rejected"].to_pylist() == [STORY, STORY, STORY]
    assert counts == {"strip_prompt_tags": 0, "cut_quoted_prompt": 0, "cut_vote_talk": 3}
    assert sorted((row["name"], row["text"], row["about"]) for row in examples.rows()) == [
        ("p0", "EDIT: thanks for the gold!", "cut from chosen"),
        ("p1", "Front page!", "cut from rejected"),
        ("p2", "Edit: typo", "cut from rejected"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "EDIT: " * 160_000,
        "\n" * 1_000_000 + "thanks",
        "edit: thanks for the gold\n" * 20_000,
        "[" * 1_000_000 + "edit",
        "[a](" * 250_000 + "r/x",
        "*" * 1_000_000 + "\nedit: typo",
        ("r/aa " * 280 + "\n") * 700,
        "[WP]" * 250_000,
        " " * 1_000_000 + "prompt",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_a_hostile_text_of_a_million_characters_ends(text):
    # A pattern that backtracks would run for hours; the time itself is not asserted.
    table = table_of([text], ["[WP] " + text])
    cleaned, _ = clean_table(table, Cleaning(), {"text": "story_id"})
    assert cleaned["text"][0].as_py().strip()
