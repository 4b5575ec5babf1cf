"""The judge card: of a loopback judge with planted faults, and of recorded judges."""

import json
import re
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import pair_table
from fake_openai import FakeOpenAI, shown_story, uncoded
from test_page import estimate

from litbench.data.tables import write_table
from litbench.data.text import digest
from litbench.evaluation.command import Judge, judge
from litbench.evaluation.report.document import Page, render
from litbench.evaluation.results import Evaluation
from litbench.runs.errors import ConfigError
from litbench.suite.card import CardKeys, card_section, cards_of, pairs_of, write_card
from litbench.suite.passport import JudgeCard, MissingFigures

PRICE = {"input": 1.0, "output": 1.0}


def planted_judge():
    """Prefers its own family, else the first story, but in one of eight answers the second."""
    times = {}

    def answer(question):
        text = uncoded(question)
        times[text] = times.get(text, 0) + 1
        by_first = [shown_story(question, label).startswith("Ours") for label in "AB"]
        label = "A" if by_first[0] or not by_first[1] else "B"
        if not any(by_first) and int(digest(text, times[text]), 16) % 8 == 0:
            label = "B"
        return f"So it is.\n\nPreferred: {label}"

    return answer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A judge with three answers on 24 pairs by four writers under six prompts."""
    folder = tmp_path_factory.mktemp("card")
    rows, writers = [], ["gpt-5", "claude", "llama", "gemini"]
    for number in range(24):
        chosen, rejected = writers[number % 4], writers[(number + 1 + number // 12) % 4]
        texts = [
            f"{'Ours' if name == 'gpt-5' else 'Theirs'} {number} {name}"
            for name in (chosen, rejected)
        ]
        rows.append(
            {"chosen": texts[0], "rejected": texts[1], "prompt_id": f"p{number % 6}"}
            | {"chosen_system": chosen, "rejected_system": rejected}
        )
    table = pair_table.__wrapped__()(rows)
    for name in ("chosen_system", "rejected_system"):
        table = table.append_column(name, pa.array([row[name] for row in rows]))
    write_table(table, folder / "pairs.parquet")
    (folder / "prices.yaml").write_text(json.dumps({FakeOpenAI.model: PRICE}))
    shared = {"pairs": folder / "pairs.parquet", "model": [FakeOpenAI.model]}
    shared |= {"prices": folder / "prices.yaml"}
    with FakeOpenAI(planted_judge()):
        judge(Judge(**shared, out=folder / "once"))
        judge(Judge(**shared, out=folder / "run", samples=3))
    return folder


def cards_in(folder, **keys):
    write_card(CardKeys(run=folder, **keys))
    return json.loads((folder / "card/card.json").read_text())


@pytest.fixture(scope="module")
def card(run):
    path = run / "families.yaml"
    path.write_text("OpenAI: gpt|fake/judge\n")
    return cards_in(run / "run", families=path)[FakeOpenAI.model]


def test_planted_faults_are_on_the_card(card):
    means = {name: figure["mean"] for name, figure in card["figures"].items()}
    assert (card["family"], card["samples"]) == ("OpenAI", 3)
    assert means["own_family"] == 1
    assert means["own_family_excess"] == pytest.approx(1 - means["own_family_people"])
    assert means["position_bias"] > 0.7
    assert 0 < means["by_repeats"] < means["by_repeats"] + means["by_order"]
    assert means["self_agreement"] == pytest.approx(1 - means["by_repeats"])
    assert [(calls["orders"], calls["samples"]) for calls in card["calls"]] == [
        (1, 1),
        (2, 1),
        (2, 3),
    ]
    assert card["calls"][2]["agreement"]["mean"] == means["agreement"]
    assert card["dollars"] == pytest.approx(6 * card["calls"][0]["dollars"], rel=0.01)
    assert card["resolution"][FakeOpenAI.model]["dollars"] == pytest.approx(24 * card["dollars"])
    assert set(card["resolution"]) == {FakeOpenAI.model, "longer", "people"}
    assert card["resolution"][FakeOpenAI.model]["writers"] == 4
    parts = {part["part"] for part in card["missing"]}
    assert parts == {"one annotator", "content-blind share", "other forms"}


def test_a_judge_without_repeats_says_what_they_would_cost(run):
    card = cards_in(run / "once")[FakeOpenAI.model]
    assert card["calls"] == []
    assert "self_agreement" not in card["figures"]
    missing = {part["part"]: part for part in card["missing"]}
    assert missing["repeats"]["calls"] == 24 * 2 * 2
    assert missing["repeats"]["dollars"] == pytest.approx(2 * 24 * card["dollars"], rel=0.01)
    assert "families" in missing["own family"]["why"]


def test_the_page_escapes_and_has_the_figures(run, card):
    text = (run / "run/card/card.html").read_text()
    assert "What does a pair cost?" in text
    excess = card["figures"]["own_family_excess"]["mean"]
    assert f"{excess:+.3f}" in text
    missing = MissingFigures("part", "<script>why</script>", "do")
    # A stranger's passport may have a figure without those that explain it.
    alone = {name: estimate(0.1) for name in ("by_order", "own_family_excess")}
    hostile = JudgeCard(alone, 1, [], "<script>", None, {}, 0.5, [missing])
    section = card_section("<b>", hostile, "<script>rater</script>", "card-0")
    page = render(Page("title", "lead", "facts", [section]), {})
    assert "&lt;script&gt;why" in page
    assert "&lt;script&gt;rater" in page
    assert "<script>" not in page
    with pytest.raises(ValueError, match="between -1 and 1"):
        replace(hostile, figures={"gain": estimate(1.5)})


def test_a_verdict_without_an_order_has_its_price_and_no_repeats_to_buy(run):
    evaluation = Evaluation.find(run / "once")
    table = evaluation.verdicts
    rows = table.filter(pc.not_equal(pc.fill_null(table["order"], ""), "rejected")).to_pylist()
    rows = [row | {"order": None} for row in rows]
    vars(evaluation)["verdicts"] = pa.Table.from_pylist(rows, table.schema)
    (card,) = cards_of(evaluation, pairs_of(evaluation), [FakeOpenAI.model], {}, {}).values()
    costs = [row["cost_usd"] for row in rows if row["rater"] == FakeOpenAI.model]
    assert card.dollars == pytest.approx(sum(costs) / 24, rel=0.01)
    missing = {part.part: part.calls for part in card.missing}
    assert missing["repeats"] is None
    assert "other forms" not in missing


@pytest.mark.parametrize(
    ("keys", "message"),
    [({"rater": ["jugde"]}, "no rater 'jugde'"), ({"dry_run": True}, "without ask")],
)
def test_what_cannot_be_shown_is_refused(run, keys, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        write_card(CardKeys(run=run / "run", **keys))


def test_only_judges_are_asked_in_other_forms(run, capsys):
    write_card(CardKeys(run=run / "run", rater=["longer"], ask=2, dry_run=True))
    assert "longer: only a judge" in capsys.readouterr().out
