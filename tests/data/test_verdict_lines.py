"""Explanations are split from their verdicts."""

import time

import pytest

from litbench.data.sources.verdict_lines import has_verdict_line, split_verdict


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("Because.\nPreferred: A", "A"),
        ("Because.\r\n\r\nPREFERRED: b\r\n", "B"),
        ("**Preferred: Story B**", "B"),
        ("**Preferred:** A.", "A"),
        ("Because.\nPreferred\uff1aB", "B"),
        ("Because.\rPreferred: B\r", "B"),
        ("### Preferred: `B`", "B"),
        ("- Preferred: [A]\n\nThank you.", "A"),
        ("Preferred: A\nNo, wait.\nPreferred: B", "B"),
        ("A character says\n> Preferred: A\nand so\n__Preferred__: Story B", "B"),
        ("Preferred: A\nPreferred: both", None),
        ("Preferred: A or B", None),
        ("Preferred: Story", None),
        ("Preferred: C", None),
        ("Preferred:", None),
        ("Preferred\n: A", None),
        ("I preferred: A", None),
        ("Preferred A", None),
        ("A", None),
        ("", None),
    ],
)
def test_split_verdict(answer, label):
    assert split_verdict(answer)[1] == label


def test_split_verdict_explanation():
    assert split_verdict(" One.\n\nTwo.\n\n**Preferred: A**\n") == ("One.\n\nTwo.", "A")
    assert split_verdict("One.\nPreferred: both\n") == ("One.\nPreferred: both", None)
    assert split_verdict("Preferred: A\nFor it is good.") == ("", "A")


@pytest.mark.parametrize(
    ("text", "has_one"),
    [
        ("Good reasons for B.\nPreferred: B, since it is better.", True),
        ("**Preferred\uff1a** neither", True),
        ("One.\r> preferred:\rTwo.", True),
        ("Many preferred: A. They preferred B.\nThe preferred one: A", False),
        ("", False),
    ],
)
def test_has_verdict_line(text, has_one):
    assert has_verdict_line(text) == has_one


def test_long_answers_are_split_in_linear_time():
    """A backtracking expression takes minutes for the first of these."""
    started = time.process_time()
    for piece in ("\n", " ", "*", "> ", "Preferred: ", "Preferred: A*", "story "):
        assert split_verdict(piece * 100_000)[1] is None or piece == "Preferred: A*"
        assert split_verdict(piece * 100_000 + "\nPreferred: B")[1] == "B"
    assert time.process_time() - started < 10
