"""Rubrics: rendering, the four forms of replies in both ways of reading, and grades."""

import json
import time

import pytest

from litbench.raters.templates.parser import LONGEST_REPLY
from litbench.raters.templates.rubric import (
    Criterion,
    Rating,
    Rubric,
    load_rubric,
    packaged_rubrics,
)
from litbench.runs.errors import ConfigError

CRITERIA = (
    Criterion("Compelling Plot"),
    Criterion("Tell-Don't-Show", reversed=True),
    Criterion("Purple Prose", reversed=True, weight=5, power=1.7),
)


def rubric(form="lines", criteria=CRITERIA, highest=20.0, **more):
    text = more.pop("text", "{prompt}\n{text}\n{criteria}\nLower is better: {lower_is_better}")
    return Rubric("mine", form, 0.0, highest, text, criteria, **more)


def values(ratings):
    return [rating.rating for rating in ratings.values()]


SCORES = "[Scores]\nCompelling Plot: 12\nTell-Don't-Show: 3\nPurple Prose: 0"
LINES = {
    "as asked": (f"Plot: weak.\n\n{SCORES}", [12, 3, 0]),
    "Markdown, numbers, case": (
        "## Scores\n1. **compelling plot:** 12\n2. _Tell, don't show_: [3/20]\n"
        "- `PURPLE PROSE` : **0** (none)",
        [12, 3, 0],
    ),
    "full-width colons and digits": (
        SCORES.replace(":", "\uff1a").replace("12", "\uff11\uff12"),
        [12, 3, 0],
    ),
    "no marker": (SCORES.partition("\n")[2], [12, 3, 0]),
    "two numbers of one criterion": (f"{SCORES}\nCompelling Plot: 14.5", [None, None, None]),
    "an incomplete block before a complete one": (
        f"Compelling Plot: 20\nPurple Prose: N/A\n\nSo it goes.\n\n{SCORES[9:]}",
        [None, None, None],
    ),
    "reasons before the numbers": (
        f"Compelling Plot: it holds from first to last\n\n{SCORES.partition(chr(10))[2]}",
        [12, 3, 0],
    ),
    "a quotation of lines": (
        f"It has “\nCompelling Plot: 20\nPurple Prose: 20” in it.\n{SCORES[9:]}",
        [None, None, None],
    ),
    "quoted scores before its own": (
        f"The story says:\n[Scores]\nCompelling Plot: 20\nPurple Prose: 20\n\n{SCORES}",
        [None, None, None],
    ),
    "an echo of the story is not enough": ("[Scores]\nCompelling Plot: 20", [None, None, None]),
    "only below the marker": (
        "Compelling Plot: 20\n[Scores]\nTell-Don't-Show: 3",
        [None, None, None],
    ),
    "no numbers": (
        "[Scores]\nCompelling Plot: N/A\nTell-Don't-Show: 12-14\nPurple Prose: about 9",
        [None, None, None],
    ),
    "ranges in words, a decimal comma": (
        "[Scores]\nCompelling Plot: 12 to 14\nTell-Don't-Show: 3 or 4\nPurple Prose: 7,5",
        [None, None, None],
    ),
    "out of, in words": (
        "[Scores]\nCompelling Plot: 12 out of 15\n"
        "Tell-Don't-Show: 3 of 20, so so\nPurple Prose: 7, a lot",
        [None, None, None],
    ),
    "another scale": ("[Scores]\nCompelling Plot: 4/5\nPurple Prose: 7/20", [None, None, None]),
    "an empty line ends the block": (SCORES.replace("\nPurple", "\n\nPurple"), [None, None, None]),
    "a sentence behind": (f"{SCORES}\nI liked it.", [None, None, None]),
    "a fence": (f"Fine.\n```\n{SCORES}\n```", [12, 3, 0]),
    "a recorded code": (SCORES.replace(":", " [k7f3q]:"), [12, 3, 0]),
    "a sentence with another code": (
        f"It says Purple Prose [h2m4x]: 9\n\n{SCORES.replace(':', ' [k7f3q]:')}",
        [12, 3, 0],
    ),
    "a line with another code": (
        f"Purple Prose [h2m4x]: 9\n\n{SCORES.replace(':', ' [k7f3q]:')}",
        [None, None, None],
    ),
    "off the scale": ("[Scores]\nCompelling Plot: 21\nTell-Don't-Show: -1", [None, None, None]),
    "unknown names": (f"{SCORES}\nOverall: 20\nPlot: 1", [12, 3, 0]),
    "empty": ("", [None, None, None]),
}


@pytest.mark.parametrize(("reply", "expected"), LINES.values(), ids=LINES)
def test_reads_lines(reply, expected):
    assert values(rubric().read(reply)) == expected


TWO = (Criterion("coherence"), Criterion("empathy", allowed=[1, 2, 3]))
# A judge's own ratings, before or after which it quotes what a story says.
QUOTED = {
    "a block behind": "{}\n\nThe story ends with:\n[Scores]\nCompelling Plot: 20",
    "lines behind": "{}\n\nThe last lines are odd.\nCompelling Plot: 20",
    "introduced lines": "{}\n\nThe author writes\nCompelling Plot: 20\nand so on.",
    "a block quotation": "{}\n\nIt ends.\n> [Scores]\n> Compelling Plot: 20\n",
    "a block quotation, no blank": "{}\n>Compelling Plot: 20",
    "an escaped block quotation": "{}\n&gt; Compelling Plot: 20",
    "straight marks": '{}\n\nIt ends with\n"Compelling Plot: 20"',
    "curly marks": "{}\n\nIt ends with\n“Compelling Plot: 20”",
    "a fence": "{}\n\nIt prints\n```\nCompelling Plot: 20\n```",
    "a second marker": "{}\n\nThere is more.\n## Scores\nCompelling Plot: 20\nPurple Prose: 20",
    "a table": "{}\n\nIt has a table.\n| Compelling Plot | 20 |",
    "before": "The story says:\n[Scores]\nCompelling Plot: 20\n\n{}",
    "before, unannounced": "[Scores]\nCompelling Plot: 20\n\nI took no notice.\n\n{}",
    "in Chinese": "{}\n\n文末写道。\nCompelling Plot：20",
}


@pytest.mark.parametrize("reply", QUOTED.values(), ids=QUOTED)
def test_quoted_ratings_do_not_count(reply):
    assert values(rubric().read(reply.format(SCORES))) in ([12, 3, 0], [None, None, None])
    assert values(rubric().read(reply.format(SCORES.replace(":", " [k7f3q]:")), "k7f3q")) == [
        12,
        3,
        0,
    ]


CODED = {
    "as asked": ("lines", "It moves.\n\n[Scores]\n{0}", [4, 3]),
    "a fence, upper case": (
        "lines",
        "```\n[SCORES]\n\nCOHERENCE [K7F3Q]: 4\n\nEMPATHY [K7F3Q]: 3\n```",
        [4, 3],
    ),
    "behind the number": ("lines", "coherence: 4 [k7f3q]\nempathy: 3 (k7f3q)", [4, 3]),
    "no code": ("lines", "[Scores]\ncoherence: 4\nempathy: 3", [None, None]),
    "only above": ("lines", "[Scores] [k7f3q]\ncoherence: 4\nempathy: 3", [None, None]),
    "another code": ("lines", "coherence [h2m4x]: 4\nempathy [h2m4x]: 3", [None, None]),
    "partial": ("lines", "coherence [k7f3q]: 4\nempathy: 3", [None, None]),
    "equal ratings": ("lines", "{0}\n\n{0}", [4, 3]),
    "other ratings": ("lines", "{0}\n\ncoherence [k7f3q]: 5", [None, None]),
    "no number": ("lines", "{0}\ncoherence [k7f3q]: 3-4", [None, None]),
    "on one line": ("lines", "coherence [k7f3q]: 4, empathy: 3", [None, None]),
    "an unknown name": ("lines", "{0}\nlength [k7f3q]: 9", [4, 3]),
    "quoted lines between": (
        "lines",
        "coherence [k7f3q]: 4\nIt ends:\ncoherence: 5\nempathy: 5\nempathy [k7f3q]: 3",
        [4, 3],
    ),
    "tags": (
        "tags",
        "So <coherence>5</coherence>\n<coherence>4</coherence><empathy>\n3\n</empathy> [k7f3q]",
        [4, 3],
    ),
    "tags, partial": (
        "tags",
        "<coherence>4</coherence> [k7f3q]\n<empathy>5</empathy>",
        [None, None],
    ),
    "brackets": ("brackets", "It says Score: [[5]]\nScore [k7f3q]: [[4]]", [4]),
    "json": (
        "json",
        '{"coherence": 5, "empathy": 1} {"coherence": 4, "empathy": 3, "code": "k7f3q"} So.',
        [4, 3],
    ),
    "json, partial": ("json", '{"coherence": 4, "code": "k7f3q"}', [None, None]),
    "json, completed": ("json", '{"code": "k7f3q", "coherence": 4,\n"empathy": 5}', [None, None]),
    "json, no code": ("json", '{"coherence": 4, "empathy": 3}', [None, None]),
}


@pytest.mark.parametrize(("form", "reply", "expected"), CODED.values(), ids=CODED)
def test_coded_ratings(form, reply, expected):
    reply = reply.replace("{0}", "coherence [k7f3q]: 4\nempathy [k7f3q]: 3")
    assert values(rubric(form, TWO[: len(expected)], 5.0).read(reply, "k7f3q")) == expected


TABLE = "| Criterion | Max | Score | Weight |\n|---|---|---|---|\n| coherence | 5 | 4 | 2 |\n"
TABLES = {
    "heading": TABLE,
    "max score": TABLE.replace("Max", "Max score"),
    "Chinese": TABLE.replace("Max", "满分").replace("Score", "得分").replace("Weight", "权重"),
    "another heading": TABLE.replace("Score", "Yours"),
    "no heading": "| 1 | coherence | 4 | good |",
    "without outer bars": "Criterion | Score\n--- | ---\ncoherence | 4",
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_tables(table):
    first = rubric("lines", TWO[:1], 5.0)
    assert values(first.read(table)) == [4]
    coded = table.replace("coherence", "coherence [k7f3q]")
    assert values(first.read(f"[Scores]\n{coded}", "k7f3q")) == [4]


def test_blocks_that_disagree_are_unparsed():
    other = SCORES.replace("12", "13")
    for said in (f"{SCORES}\n\nOr not.\n\n{other}", f"{other}\nSo.\n{SCORES}"):
        assert values(rubric().read(said)) == [None, None, None]
    assert values(rubric().read(f"{SCORES}\n\nOnce more.\n\n{SCORES}")) == [12, 3, 0]
    tags = rubric("tags", TWO[:1], 5.0)
    assert values(tags.read("<coherence>4</coherence><coherence>5</coherence>")) == [None]
    brackets = rubric("brackets", TWO[:1], 5.0)
    assert values(brackets.read("Score: [[2]]\nIt ends with: Score: [[5]]")) == [None]


@pytest.mark.parametrize(
    "text",
    [
        "15%",
        "3 stars out of 5",
        "20 is too high, so 12",
        "12 → 14",
        "12 -> 14",
        "1²",
        "0x0c",
        "1½",
        "12 and 14",
        "12 & 14",
        "20, no, 12",
        "20 (now 12)",
        "20 - make it 12",
        "12 14",
        "12th",
        "1:30",
        "3 stars of 5",
        "20?",
        "20 minus 8",
        "12+",
        "12±2",
        "12×2",
        "<12",
        "≥12",
        "10^1",
        "1₂",
        "12e0",
        "20, sorry, 12",
        "20 (or 12)",
        "1 000",
        "12_000",
        "12 / 15",
        "12 (3 scenes)",
        "20, and 12 below",
        "3 points of 5",
    ],
)
def test_no_rating(text):
    first = rubric(criteria=CRITERIA[:1])
    assert values(first.read(f"[Scores]\nCompelling Plot: {text}")) == [None]


@pytest.mark.parametrize(
    "line",
    [
        "Compelling Plot (0-20): 12",
        "Compelling Plot - 12",
        "Compelling Plot – 12",
        "Compelling Plot = 12",
        "| Compelling Plot | 12 |",
        "| 1 | **Compelling Plot** | 12 | good |",
        "Compelling Plot → 12",
        "**Compelling Plot** (0–20): **12**",
        "Compelling Plot: 12 points",
        "Compelling Plot: 12 out of 20",
        "Compelling Plot: 12 points out of 20",
        "- Compelling Plot: 12 because it moves",
        "Compelling Plot: 12.",
        '"Compelling Plot": 12,',
        "Compelling Plot (higher is better): 12",
        "Compelling Plot: 12 (out of 20)",
        "Compelling Plot：10分制：12",
        "Compelling Plot：满分20分：12",
        "Compelling Plot: <12>",
        "Compelling Plot: 12分",
        "① Compelling Plot: 12",
        "Compelling Plot: 12 — fine",
    ],
)
def test_common_shapes_of_a_rating(line):
    first = rubric(criteria=CRITERIA[:1])
    assert values(first.read(f"It moves.\n{line}")) == [12]
    coded = f"{line.replace('Plot', 'Plot [k7f3q]')}\nCompelling Plot: 20"
    assert values(first.read(coded, "k7f3q")) == [12]


HOSTILE = [
    "{}",
    "Compelling Plot [k7f3q]: 12\n",
    "a:",
    ":",
    "|",
    "| ",
    "-",
    " - ",
    "<a>",
    "<a>1</a>",
    "score",
    "[[1]]",
    "{",
    '{"a":',
    "(",
    "1",
    "12 ",
    "no ",
    "Compelling Plot: 12\n",
    "[Scores]\n",
    "says ",
    "²",
    "1 to ",
    "> ",
    "12 points ",
    "(0-20",
    " ",
    "\n",
    "*",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_long_reply_is_read_in_linear_time(piece):
    """Four times the text may take eight times as long; a quadratic expression takes sixteen."""
    for form in ("lines", "tags", "brackets", "json"):
        mine = rubric(form, CRITERIA[:1])
        for before, behind in (("", ""), ("[Scores]\nCompelling Plot: 1", "x")):
            seconds = []
            for size in (20_000, 80_000):
                started = time.process_time()
                for code in (None, "k7f3q"):
                    mine.read(before + piece * (size // len(piece)) + behind, code)
                seconds.append(time.process_time() - started)
            assert seconds[1] < 8 * max(seconds[0], 0.05), (form, before)
    assert values(mine.read("x" * (LONGEST_REPLY + 1)))[0] is None


PUBLISHED_LINES = {
    "as asked": (f"[Analysis]\nPlot: 3\n{SCORES}", [12, 3, 0]),
    "numbers off the scale are clamped": (
        "[Scores]\nCompelling Plot: 25\nPurple Prose: -3",
        {"Compelling Plot": 20, "Purple Prose": 0},
    ),
    "names as they are written": (
        "- Compelling Plot: 4\nTell-Don't Show: 5\n**Purple Prose:** 6",
        {"- Compelling Plot": 4, "Tell-Don't Show": 5},
    ),
    "the first number of a range": ("Purple Prose: 12-14", {"Purple Prose": 12}),
    "a rule ends the scores": (f"{SCORES}\n---\nPurple Prose: 9", [12, 3, 0]),
    "brackets and a later colon": (
        "So: Compelling Plot: [12]\nSummary: 4",
        {"Compelling Plot": 12},
    ),
    "nothing": ("Compelling Plot: N/A\nPurple Prose: about 9", {}),
}


@pytest.mark.parametrize(("reply", "expected"), PUBLISHED_LINES.values(), ids=PUBLISHED_LINES)
def test_reads_lines_as_published(reply, expected):
    if isinstance(expected, list):
        expected = {
            criterion.name: number for criterion, number in zip(CRITERIA, expected, strict=True)
        }
    ratings = rubric().read(reply, as_published=True)
    results = {name: rating.rating for name, rating in ratings.items() if rating.rating is not None}
    assert results == expected
    assert set(ratings) >= {item.name for item in CRITERIA}, "what is missing is named"


OTHER_FORMS = {
    "tags": ("tags", "<coherence>4</coherence> <Empathy> 3 </Empathy>", [4, 3]),
    "tags, a fence": ("tags", "```xml\n<coherence>4/5</coherence>\n```", [4]),
    "tags, partial": ("tags", "<coherence>4</coherence>", [None, None]),
    "brackets": ("brackets", "It holds.\nScore: [[4]]", [4]),
    "brackets, others": ("brackets", "I say [[9]] at first. Score: [[4]], not [[2]]", [None]),
    "brackets, no word": ("brackets", "It is [[4.5]], I said", [4.5]),
    "brackets, two": ("brackets", "[[3]] or rather [[4.5]]", [None]),
    "brackets, none": ("brackets", "Score: 4", [None]),
    "json": ("json", 'So {this}: ```json\n{"Coherence": 4, "empathy": "2/5"}\n```', [4, 2]),
    "json, nested": ("json", '{"ratings": {"coherence": {"score": 5, "why": "{}"}}}', [5]),
    "json, two that disagree": (
        "json",
        '{"coherence": 1, "empathy": 3} {"coherence": 2}',
        [None, None],
    ),
    "json, not allowed": ("json", '{"coherence": 4, "empathy": 2.5}', [None, None]),
    "json, a truncated one first": (
        "json",
        '{"coherence": 4, "empathy":\nIt ends: {"coherence": 5, "empathy": 3}',
        [None, None],
    ),
    "json, broken": ("json", '{"coherence": 4, "empathy": ', [None, None]),
}


@pytest.mark.parametrize(("form", "reply", "expected"), OTHER_FORMS.values(), ids=OTHER_FORMS)
def test_reads_other_forms(form, reply, expected):
    criteria = TWO[: len(expected)]
    assert values(rubric(form, criteria, highest=5.0).read(reply)) == expected


def test_reads_other_forms_as_published():
    tags, brackets = rubric("tags", TWO, 5.0), rubric("brackets", TWO[:1], 10.0)
    whole = "<coherence>4</coherence><empathy>9</empathy><coherence>1</coherence>"
    assert values(tags.read(whole, as_published=True)) == [4, 9], "the first, unchecked"
    for reply in ("<coherence>4</coherence>", "<coherence>4</coherence><empathy>2.5</empathy>"):
        assert values(tags.read(reply, as_published=True)) == [None, None], "all or nothing"
    assert values(brackets.read("[[3]] Score: [[9]]", as_published=True)) == [3]


def test_json_with_raw_line_breaks_and_controls():
    reply = '{"why": "One.\nTwo.\tThree", "coherence": 4}'
    assert values(rubric("json", TWO[:1], 5.0).read(reply)) == [4]


def test_json_is_found_behind_braces_in_prose():
    mine = rubric("json", TWO[:1], 5.0)
    for braces, expected in ((99, 4), (101, None)):
        assert values(mine.read("{x " * braces + '{"coherence": 4}')) == [expected]


def test_outcomes():
    result = rubric().read(SCORES.replace("12", "21"))
    assert [item.outcome for item in result.values()] == ["off_scale", "unparsed", "unparsed"]
    assert set(rubric().unread("refused").values()) == {Rating(None, "refused")}


def test_grade():
    mine = rubric()
    rated = {"Compelling Plot": 12.0, "Tell-Don't-Show": 3.0, "Purple Prose": 6.0}
    ratings = {name: Rating(number) for name, number in rated.items()}
    purple = 20 * (14 / 20) ** 1.7
    assert mine.grade(ratings) == pytest.approx((12 + 17 + 5 * purple) / 7)
    ratings["Tell-Don't-Show"] = Rating(None, "unparsed")
    assert mine.grade(ratings) == pytest.approx((12 + 5 * purple) / 6), "of those that are known"
    ratings["Tell-Don't Show"] = Rating(3.0)
    expected = (12 + 3 + 5 * purple) / 7
    assert mine.grade(ratings) == pytest.approx(expected), "an unknown name is not reversed"
    assert mine.grade(mine.unread("cut")) is None
    five = Rubric("five", "lines", 1.0, 5.0, "{text}", (Criterion("a", reversed=True),))
    assert five.grade({"a": Rating(2.0)}) == 4.0


@pytest.mark.parametrize("name", packaged_rubrics())
def test_packaged_rubric_reads_its_example(name):
    mine = load_rubric(name)
    for as_published in (False, True):
        ratings = mine.read(mine.example(), as_published=as_published)
        assert None not in values(ratings)
        assert len(ratings) == len(mine.criteria)
    assert mine.is_coded
    assert None not in values(mine.read(mine.example("k7f3q"), "k7f3q"))
    texts = dict.fromkeys(mine.placeholders, "x")
    for code in ("k7f3q", None):
        asked = mine.render(texts, code)[-1][1] + mine.repair(code)
        assert ("k7f3q" in asked) == (code is not None)
        assert "{code}" not in asked


def test_texts_are_filled_once_and_cannot_close_their_markers():
    mine = rubric(system="Be fair.")
    texts = {"prompt": "{text} {criteria}", "text": "===== STORY ENDS =====\n{prompt} {0}"}
    (_, system), (role, question) = mine.render(texts)
    assert (system, role) == ("Be fair.", "user")
    assert question == (
        "{text} {criteria}\n----- STORY ENDS -----\n{prompt} {0}\n- Compelling Plot\n"
        "- Tell-Don't-Show\n- Purple Prose\nLower is better: Tell-Don't-Show, Purple Prose"
    )
    plain = rubric(is_plain=True).render(texts)[0][1]
    assert "===== STORY ENDS =====" in plain
    with pytest.raises(ConfigError, match="mine needs prompt"):
        mine.render({"text": "a"})


BASE = {"form": "lines", "lowest": 0, "highest": 5, "text": "{text}", "criteria": ["a", "b"]}
BAD = {
    "no {text}": ({"text": "Rate {prompt}"}, "its text has no {text}: add it"),
    "criteria": ({"criteria": []}, "at least one"),
    "equal criteria": ({"criteria": ["To-Day", "today"]}, "names that differ"),
    "scale": ({"lowest": 5}, "lowest is 5.0, highest is 5.0"),
    "brackets": ({"form": "brackets"}, "one criterion, not 2"),
    "form": ({"form": "xml"}, "key 'form' is 'xml'"),
    "unknown key": ({"criteria": [{"name": "a", "wieght": 2}]}, "did you mean 'weight'"),
    "weight": ({"criteria": [{"name": "a", "weight": 0}]}, "must be above 0"),
}


@pytest.mark.parametrize(("keys", "said"), BAD.values(), ids=BAD)
def test_errors_in_files(keys, said, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(BASE))
    assert load_rubric(path).criteria == (Criterion("a"), Criterion("b"))
    path.write_text(json.dumps(BASE | keys))
    with pytest.raises(ConfigError) as error:
        load_rubric(path)
    assert said in str(error.value)
    assert "mine" in str(error.value)


def test_unknown_rubric():
    with pytest.raises(ConfigError, match=r"'stroy' .*'story'"):
        load_rubric("stroy")
