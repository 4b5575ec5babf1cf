"""Other forms of a question: what is sent and read, and judges whose verdicts follow the form."""

import json
import re

import pytest
from conftest import pair_table
from fake_openai import FakeOpenAI

from litbench.data.tables import write_table
from litbench.data.text import digest
from litbench.evaluation.command import Judge, judge
from litbench.raters.templates.template import load_template
from litbench.suite.card import CardKeys, write_card
from litbench.suite.invariance import NamedTemplate, without_markdown

CODE = "k2f1q"


@pytest.mark.parametrize("form", ["label", "verdict", "explanation", "json_verdict"])
@pytest.mark.parametrize("names", [("1", "2"), ("X", "Y")])
def test_other_names_of_the_sides_are_asked_for_and_read(form, names):
    template = load_template("writerly", form)
    code = CODE if template.is_coded else None
    named = NamedTemplate.of(template, names)
    stories = ("A moth: A", "Plan B\nSTORY B")
    question = named.render("Task A", *stories, code)
    assert all(story in question for story in stories), "stories and prompts stay as they are"
    fixed = question.replace(stories[0], "").replace(stories[1], "").replace("Task A", "")
    assert f"STORY {names[0]} BEGINS" in fixed
    assert not re.search(r'STORY [AB]|: [AB]$|"[AB]"|A or B', fixed, re.M)
    assert not re.search(r"\b[AB]\b", named.repair(code))
    assert names[1] in named.repair(code)
    answer = {
        "label": "{}",
        "json_verdict": f'{{"preferred [{CODE}]": "{{}}"}}',
    }.get(form, f"A reason with a 1 and an X.\n\nPreferred [{CODE}]: {{}}")
    first, second = (answer.replace("{}", name) for name in names)
    assert named.restored(first) == answer.replace("{}", "A")
    assert named.restored(second) == answer.replace("{}", "B")
    assert named.is_read(first, code)
    assert not named.is_read(answer.replace("{}", "Z"), code)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("# The *door*\n\n- one\n> two", "The door\n\none\ntwo"),
        ("`x` and **bold** _it_ snake_case 2 * 3", "x and bold it snake_case 2  3"),
    ],
)
def test_markdown_is_stripped(text, plain):
    assert without_markdown(text) == plain


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A judge that names the first story if sides are X and Y, else one by the stories alone."""
    folder = tmp_path_factory.mktemp("forms")
    rows = [
        {"chosen": f"*chosen* {n}", "rejected": f"rejected {n}", "prompt_id": f"p{n}"}
        for n in range(30)
    ]
    write_table(pair_table.__wrapped__()(rows), folder / "pairs.parquet")

    def answer(question):
        stories = re.findall(r"BEGINS =====\n\W*(chosen|rejected)\W* (\d+)", question)
        (first, number), _ = stories
        wanted = "chosen" if int(digest(number), 16) % 2 else "rejected"
        letter = "A" if first == wanted else "B"
        if "STORY X BEGINS" in question:
            return "So it is.\n\nPreferred: X"
        if "STORY 1 BEGINS" in question:
            letter = "12"["AB".index(letter)]
        return f"So it is.\n\nPreferred: {letter}"

    with FakeOpenAI(answer) as server:
        judge(Judge(pairs=folder / "pairs.parquet", model=[FakeOpenAI.model], out=folder / "run"))
        yield folder / "run", server


def test_only_the_planted_form_changes_verdicts(run, capsys):
    folder, server = run
    before = server.requests
    write_card(CardKeys(run=folder, ask=15, dry_run=True))
    assert "sides X and Y" in capsys.readouterr().out
    assert server.requests == before
    write_card(CardKeys(run=folder, ask=15))
    # Two answers in two orders of 15 pairs in seven forms, of which the run has stored one each.
    assert server.requests - before == 15 * 2 * (2 * 7 - 1)
    (card,) = json.loads((folder / "card/card.json").read_text()).values()
    forms = {form["form"]: form for form in card["invariance"]}
    assert len(forms) == 6
    for name, form in forms.items():
        is_planted = name == "sides X and Y"
        assert form["changed"]["mean"] == (0.5 if is_planted else 0)
        assert form["beyond"]["mean"] == (0.5 if is_planted else 0)
        assert (form["p_holm"] < 0.05) == is_planted
    assert "other forms" not in {part["part"] for part in card["missing"]}
    again = server.requests
    write_card(CardKeys(run=folder, ask=15))
    assert server.requests == again, "all answers are stored"
