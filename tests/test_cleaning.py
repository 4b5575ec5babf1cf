"""Cleaning: what must go, what must stay, and that nothing else changes."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.curation.cleaning import Cleaning, clean_table
from litbench.curation.funnel import Examples
from litbench.sources.posts import PROMPT_TAGS, prompt_tag
from litbench.text import prompt_key

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
        "story_id": [f"s{place}" for place in range(len(texts))],
        "prompt": pa.array(prompts, pa.large_string()),
        "text": pa.array(texts, pa.large_string()),
        **columns,
    }
    return pa.table(columns)


def clean(text, prompt="[WP] A door.", **switches):
    """One text after cleaning, with only the named steps."""
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
        ("**[WP]** A door.", "A door.", "WP"),
        ("**[WP] A door.**", "A door.", "WP"),
        ("[WP][EU] A door.", "A door.", "WP"),
        ("[EU] [ WP ]  A door.", "A door.", "EU"),
        ("> [WP]: A door.", "A door.", "WP"),
        ("[TT] Theme Thursday - Doors", "Theme Thursday - Doors", "TT"),
        ("[WP] [Redacted] woke up.", "[Redacted] woke up.", "WP"),
        ("[Redacted] woke up.", "[Redacted] woke up.", None),
        ("A door. [WP]", "A door. [WP]", None),
        ("A door.", "A door.", None),
        ("[WP]", "[WP]", None),
        ("", "", None),
    ],
)
def test_leading_tags_come_off_the_prompt_and_the_first_is_kept_as_flair(prompt, rest, flair):
    assert clean_prompt(prompt) == (rest, flair, int(rest != prompt))


def test_a_flair_that_is_known_stays():
    assert clean_prompt("[WP] A door.", flair="Writing Prompt") == (
        "A door.",
        "Writing Prompt",
        1,
    )


def test_a_flair_column_without_values_is_filled():
    table = table_of(["A story."] * 2, ["[EU] A door.", "A door."], flair=pa.nulls(2))
    table, _ = clean_table(table, Cleaning(), {"text": "story_id"})
    assert table["flair"].to_pylist() == ["EU", None]


@given(
    tags=st.lists(st.sampled_from([*(f"[{tag}]" for tag in PROMPT_TAGS), "**[WP]**", "[x]"])),
    rest=st.one_of(WORDS, st.text(max_size=30)),
)
def test_stripping_tags_never_moves_a_prompt_to_another_split(tags, rest):
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
        f">{PROMPT}",
        PROMPT,
        BARE,
        f"**{BARE}**",
        f"***{BARE}***",
        f"*{BARE.rstrip('.')}*",
        f"**Prompt:** {BARE}",
        f"Prompt: {PROMPT}",
        f"The prompt: {BARE}",
        f"# {BARE}",
        f"> {BARE.upper()}",
        f"{BARE.replace(chr(39), chr(0x2019))}",
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
        f"> Something far below is pleased.\n\n{STORY}",
        f"“{BARE}”\n\n{STORY}",
        f"{BARE} {STORY}",
    ],
)
def test_a_story_that_uses_the_prompt_stays(text):
    assert clean(text, PROMPT, cut_quoted_prompt=True) == text


def test_a_short_title_is_cut_only_where_it_is_marked_as_quoted():
    for text in (f"The lamp room\n\n{STORY}", f"**The lamp room**\n\n{STORY}"):
        assert clean(text, "The lamp room", cut_quoted_prompt=True) == text
    text = f"> The lamp room\n\n{STORY}"
    assert clean(text, "The lamp room", cut_quoted_prompt=True) == STORY


def test_a_prompt_in_chinese_is_cut():
    prompt = "[WP] 灯塔看守人的灯熄灭了,而海底深处有什么东西很高兴。"
    text = "灯塔看守人的灯熄灭了,而海底深处有什么东西很高兴。\n\n那天夜里没有月亮。"
    assert clean(text, prompt, cut_quoted_prompt=True) == "那天夜里没有月亮。"


# Talk to the readers --------------------------------------------------------------------------

# Each must go from the end of a story.
TALK = [
    "EDIT: Thanks for the gold!",
    "Edit: thank you for the gold, kind stranger!",
    "Edit 2: wow this blew up",
    "EDIT 2 - wow, this really blew up overnight",
    "edit1: typo",
    "Edit - spelling",
    "*Edit: Holy crap, gold? Thank you so much!*",
    "**EDIT:** My first platinum, I am speechless, thanks!",
    "(edit: formatting)",
    "[Edit: grammar]",
    "^(Edit: fixed a few typos)",
    "Edited for clarity.",
    "EDITED FOR SPACING",
    "Edit: part 2 is in the comments below",
    "EDIT: Obligatory front page edit, thanks all!",
    "ETA: Thank you all for the upvotes!",
    "Update: thanks for all the karma, this is my most upvoted post",
    "Edit:\n\nWow, thanks for the silver, whoever you are!",
    "Edit: You guys are amazing, I never expected so many replies",
    "Edit (two hours later): RIP my inbox",
    "P.S. Thank you all for the kind words, and for the reddit gold!",
    "Thank you kind stranger for the gold!",
    "Thanks for the gold, anonymous redditor!",
    "Wow, thank you so much for all the upvotes!",
    "Holy cow, thanks for the silver!",
    "Thank you everyone for the support and all the comments!",
    "Many thanks to whoever gilded me!",
    "OMG thank you guys so much for the awards!",
    "RIP my inbox",
    "R.I.P. inbox",
    "Front page!",
    "We made it to the front page! Thanks everyone!",
    "My first gold! Thank you!!",
    "Well, this blew up. Thank you, everybody.",
    "I can't believe this got so many upvotes!",
    "Never expected this to blow up, thank you all",
    "2.5k upvotes?!",
    "Please upvote if you enjoyed this story!",
    "Please don't downvote me, I am new to this",
    "Why the downvotes?",
    "This is now my highest rated comment, thank you",
    "r/the_lamp_room",
    "/r/thelamproom",
    "[r/thelamproom](https://www.reddit.com/r/thelamproom)",
    "[/r/thelamproom](https://old.reddit.com/r/thelamproom/)",
    "more at r/thelamproom",
    "More stories at /r/thelamproom",
    "*If you liked this, I write more of it at r/thelamproom!*",
    "Check out my subreddit for more: r/thelamproom",
    "If you liked this story, subscribe to /r/thelamproom for more like it!",
    "If you enjoyed this, please consider subscribing to my sub, upvotes are welcome too",
    "Find more of my writing [here](https://www.reddit.com/r/thelamproom)",
    "Support me on Patreon for early chapters, or follow me there",
    "Check out my profile for more stories :)",
    "Thanks for reading!",
    "Thank you all so much for reading this :)",
    "Thanks for reading! More of my stories at r/thelamproom",
    "Hope you enjoyed it!",
    "I hope you guys liked it :)",
    "Any feedback is appreciated!",
    "Constructive criticism welcome",
    "Critique is very welcome, it's my first story here",
    "This is my first time posting here, please be gentle",
    "First time poster, sorry for the formatting, I'm on mobile",
    "Let me know what you think!",
    "Let me know if you want more!",
    "Part 2 coming soon!",
    "I'll write a part two if there's interest",
    "Sorry for any typos, I wrote this on my phone",
    "Written on mobile, so excuse the formatting",
    "A/N: this prompt would not let me sleep",
]

# Each must stay, at the end as at the head.
FICTION = [
    '"Thanks for the gold," he said.',
    "“Thanks for the gold, kind stranger,” said the ferryman, and pushed off.",
    "‘Please upvote this,’ the machine begged.",
    '"Visit r/thelamproom for more," the poster said.',
    "Thank you, she said to the empty chair.",
    "Thank you for the gold, my lord, and for the horses.",
    "Thanks to the gold, the children ate that winter.",
    "Thank God, the bells had stopped.",
    "Thank you for everything.",
    "Thank you for coming.",
    "Thank you for reading me stories when I could not sleep.",
    "Thanks for nothing.",
    "Gold.",
    "First gold, then silver, then the long road home.",
    "The first gold of autumn lay on the water.",
    "Platinum, he thought. Nobody gets platinum.",
    "Silver for the dead, and gold for whoever rows them.",
    "Edit the footage, she told herself, and nobody will know.",
    "Edit.",
    "Edited highlights of his life played on the wall.",
    "He edited for a living, and lived for very little else.",
    "The editor blew up the photograph until it was all grain.",
    "EDIT: they are at the door now. I can hear them breathing.",
    "Update: the signal is getting closer. We have shut off the lights.",
    "Update complete, said the house, and locked itself.",
    "ETA: two minutes.",
    "ETA - forty seconds to impact.",
    "Note: the subject no longer casts a shadow.",
    "P.S. I love you.",
    "P.S. The keys are under the third stone, as always.",
    "The front page had her photograph, and under it another name.",
    "On the front page of the evening paper there was nothing but a date.",
    "Front page or not, it was still a lie.",
    "The bomb blew up the bridge at noon.",
    "It blew up.",
    "This blew up the last of the bridges, and the war was over.",
    "The letters in her inbox were all from herself.",
    "My inbox. My keys. My own front door. All of it belonged to somebody else.",
    "Rest in peace, said the stone.",
    "A kind stranger had left bread on the sill.",
    "The kind stranger thanked me and was gone.",
    "I never expected to see the sea again.",
    "I never got any gold, not even a ring.",
    "I didn't believe in so much love until the tide brought him back.",
    "We voted, and the upvotes won, and the town went dark.",
    "An upvote, he called it, when the mob raised its thumbs.",
    "If you enjoyed this meal, said the ogre, you will love the next one.",
    "If you want more, you must come down to the water.",
    "If you liked her, you never knew her.",
    "Subscribe to nothing, my grandmother said.",
    "Follow me, said the lantern.",
    "Visit my grave when it rains.",
    "Read my letters, all of them, when I am gone.",
    "Find me, said the sea.",
    "I hope you like it here.",
    "I hope you enjoyed your stay, said the hotel.",
    "I hope it was worth it.",
    "Let me know when it is over.",
    "Tell me what you want, said the well.",
    "It was my first time on the water.",
    "This was my first time flying without her.",
    "The first time I died, it rained.",
    "Sorry, said the door.",
    "Forgive me my spelling, Mother, for my hands are cold and there is no light here at all.",
    "Part two of the plan was to survive part one.",
    "I will tell you the rest tomorrow, if there is one.",
    "The critics were kind. The feedback from the speakers was not.",
    "There was feedback on the line, and then a voice.",
    "Comment on the weather, the manual said, and then leave the room.",
    "The end.",
    "To be continued, said the gravestone.",
    "He wrote and/or dreamt it all, I was told.",
    "Karma, my aunt would have called it.",
    "The award went to nobody.",
    "Reddit was the first of them to fall silent, and then the radio.",
]


@pytest.mark.parametrize("talk", TALK)
def test_talk_at_the_end_is_cut(talk):
    assert clean(f"{STORY}\n\n{talk}", cut_vote_talk=True) == STORY


@pytest.mark.parametrize("line", FICTION)
def test_fiction_stays_at_either_end_and_in_between(line):
    for text in (f"{STORY}\n\n{line}", f"{line}\n\n{STORY}", f"{STORY}\n{line}\n{STORY}"):
        assert clean(text, cut_vote_talk=True) == text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"EDIT: front page, wow!\n\n{STORY}", STORY),
        (f"(This is my first time posting here, be gentle)\n\n---\n\n{STORY}", STORY),
        (f"{STORY}\n\n---\n\nThanks for the gold, kind stranger!", STORY),
        (f"{STORY}\n\n&#x200B;\n\n***\n\n/r/thelamproom\n\n&nbsp;\n", STORY),
        (f"{STORY}\n\nEdit: gold!! Thank you!\n\nEdit 2: typos\n\nr/thelamproom", STORY),
        (f"{STORY}\r\n\r\nEDIT: typo\r\n", STORY),
        (f"{STORY} (Edit: thanks for the gold!)", STORY),
        (f"{STORY} **EDIT:** Thanks for the gold!", STORY),
        (f"{STORY}\n\nEDIT: Thanks for the gold!\n\nIt made my week.\n\nReally.", STORY),
        (
            f"{STORY}\n\nEDIT: thanks for the gold!\n\n{STORY}",
            f"{STORY}\n\n{STORY}",
        ),
    ],
)
def test_talk_goes_wherever_an_author_puts_it_with_the_rule_that_sets_it_off(text, left):
    assert clean(text, cut_vote_talk=True) == left


@pytest.mark.parametrize(
    "line",
    [
        "My favourite place has always been r/thelamproom, and I join it every night.",
        "I hope you enjoyed it.",
        "r/thelamproom",
        "I will write part two of this soon, the letter said.",
    ],
)
def test_some_talk_is_talk_only_at_the_end(line):
    assert clean(f"{line}\n\n{STORY}", cut_vote_talk=True) == f"{line}\n\n{STORY}"


def test_a_story_in_the_form_of_posts_keeps_its_edits():
    text = (
        f"{STORY}\n\nEDIT: There is somebody at the window.\n\n"
        "EDIT 2: Thanks to everyone in the comments, I have locked the door."
    )
    assert clean(text, cut_vote_talk=True) == text
    marked = f"{text}\n\nEDIT 3: thank you for the gold!"
    assert clean(marked, cut_vote_talk=True) == text


@pytest.mark.parametrize(
    "text",
    [
        "Thanks for reading!",
        "EDIT: thanks for the gold!\n\n---\n\nr/thelamproom",
        "… (Edit: thanks for the gold!)",
        "***",
        "",
    ],
)
def test_a_text_is_never_left_empty(text):
    assert clean(text, cut_vote_talk=True) == text


def test_a_line_that_only_looks_like_talk_in_the_middle_stays():
    text = f"{STORY}\n\nThanks for reading!\n\n{STORY}"
    assert clean(text, cut_vote_talk=True) == text


# The whole step -------------------------------------------------------------------------------


@given(
    rows=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6),
    switches=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_cleaning_keeps_rows_order_and_other_columns_and_is_done_once(rows, switches):
    prompts, texts = (list(column) for column in zip(*rows, strict=True))
    table = table_of(texts, prompts, extra=list(range(len(rows))), flair=pa.nulls(len(rows)))
    cleaning = Cleaning(*switches)
    cleaned, counts = clean_table(table, cleaning, {"text": "story_id"})
    assert cleaned.column_names == table.column_names
    for name in ("extra", "story_id"):
        assert cleaned[name] == table[name]
    assert set(counts) == {name for name, on in vars(cleaning).items() if on}
    changed = sum(
        before != after for before, after in zip(texts, cleaned["text"].to_pylist(), strict=True)
    )
    cells = counts.get("cut_quoted_prompt", 0) + counts.get("cut_vote_talk", 0)
    assert changed <= cells <= 2 * changed
    for before, after in zip(texts, cleaned["text"].to_pylist(), strict=True):
        # What is left was there, in its order, and is not nothing.
        kept = iter(before.split("\n"))
        assert all(any(line in whole for whole in kept) for line in after.split("\n"))
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
        "edit: x\n" * 30_000,
        "edit: thanks for the gold\n" * 20_000,
        ("thanks so much " * 90 + "\n") * 700,
        "[" * 1_000_000 + "edit",
        "[a](" * 250_000 + "r/x",
        "*" * 1_000_000 + "\nedit: typo",
        "> " * 500_000,
        ". (edit: " * 110_000,
        ("r/aa " * 280 + "\n") * 700,
        "&nbsp;" * 160_000 + "gold",
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
