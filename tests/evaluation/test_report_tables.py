"""Tables and figures of the paper: the leaderboard's numbers, and a name is only text."""

import csv
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from litbench.evaluation.report.csv_table import write_csv
from litbench.evaluation.report.tables import (
    GROUPS,
    Entry,
    draw_figure_4,
    draw_figure_5,
    group_of,
    load_published,
    match_published,
    table_3,
    table_3_latex,
)
from litbench.metrics.leaderboard import leaderboard
from litbench.runs.terminal import latex_escape

HOSTILE = (
    '=cmd|"/c calc"!A1 <script>alert(1)</script> \\input{x} $x^2_3$ 50 % & ~ [a](http://b) | `c`'
)
KINDS = {"longer": "longer", "gpt-4.1": "judge", "mine": "reward", HOSTILE: "generative"}


@pytest.fixture
def entries(pair_table, verdict_table):
    """Entries of a leaderboard: judges explain, cost and judge in both orders."""

    def build(n=24, parameters=None):
        pairs = pair_table([{"pair_id": f"p{k}"} for k in range(n)])
        rows = []
        for rank, (rater, kind) in enumerate(KINDS.items()):
            for k in range(n):
                for order in ("chosen", "rejected") if kind in ("judge", "generative") else (None,):
                    right = k < 8 + 3 * rank or order == "chosen"
                    row = {
                        "pair_id": f"p{k}",
                        "rater": rater,
                        "kind": kind,
                        "order": order,
                        "outcome": "chosen" if right else "rejected",
                    }
                    if kind == "judge":
                        row |= {
                            "explanation": "it has life " * 2,
                            "cost_usd": 0.004,
                            "input_tokens": 90,
                            "output_tokens": 9,
                        }
                    rows.append(row)
        result = leaderboard(verdict_table(rows), pairs, "longer")
        stated = match_published([row.rater for row in result], {})
        return [
            Entry(
                row.rater,
                row,
                group_of(row, is_trained=False),
                (parameters or {}).get(row.rater),
                None,
                stated.get(row.rater),
            )
            for row in result
        ]

    return build


def test_published_shares_are_those_of_their_counts():
    counted = [row for row in load_published()["other_test_sets"] if "correct" in row]
    assert len(counted) == 5
    assert all(f"{row['correct'] / row['pairs']:.4f}" == row["stated"] for row in counted)


def read_csv(table, path):
    write_csv(table, path)
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_and_latex_have_the_numbers_of_the_leaderboard(entries, tmp_path):
    arguments, published = entries(), load_published()
    table = table_3(arguments)
    latex = table_3_latex(table)
    assert "The column “published” has" in latex.replace("``", "“").replace("''", "”")
    for entry, row in zip(arguments, read_csv(table, tmp_path / "t.csv"), strict=True):
        agreement = entry.row.agreement
        for key, value in (
            ("agreement", agreement.mean),
            ("agreement_low", agreement.low),
            ("agreement_high", agreement.high),
            ("coverage", entry.row.coverage),
            ("pairs", agreement.n),
            ("prompts", agreement.clusters),
        ):
            assert float(row[key]) == pytest.approx(value, abs=1e-6)
        assert latex_escape(str(agreement)) in latex
        assert latex_escape(entry.name) in latex
        wanted = published["rows"].get(entry.name, {})
        assert row["published_agreement"] == wanted.get("stated", "")
        assert row["published_where"] == wanted.get("where", "")
    quiet = table_3_latex(table_3([entry for entry in arguments if entry.name == "longer"]))
    assert "flip rate" not in quiet, "columns without a value are in CSV alone"
    assert "published" not in quiet
    assert "coverage" in quiet


def test_a_hostile_name_is_text_in_every_format(entries, tmp_path):
    named = entries(parameters={HOSTILE: 1e9, "mine": 22_700_000.0})
    table = table_3(named)
    assert "\\input" not in table_3_latex(table)
    cells = [cell for row in read_csv(table, tmp_path / "t.csv") for cell in row.values()]
    assert not [cell for cell in cells if cell[:1] in ("=", "@")]
    assert f"'{HOSTILE}" in cells
    for draw in (draw_figure_4, draw_figure_5):
        svg = draw(named).drawing.source
        tree = ET.fromstring(svg)  # noqa: S314
        assert not [node for node in tree.iter() if node.tag.endswith("script")]
        assert "=cmd" in "".join(tree.itertext())
    assert ">22.7M<" in svg
    assert draw_figure_5(entries()) is None


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (r"\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ("50 % & $x_1^2$ #", r"50 \% \& \$x\_1\textasciicircum{}2\$ \#"),
        ("[2pt]*", "{[}2pt{]}{*}"),
        ("a--b~c", r"a{-}{-}b\textasciitilde{}c"),
        ("two\nlines\x00\x1b", "two lines"),
        ("<|>", r"\textless{}\textbar{}\textgreater{}"),
    ],
)
def test_latex_prints_a_name_as_it_is(name, written):
    assert latex_escape(name) == written


def test_raters_are_grouped_by_kind(entries):
    row = next(entry.row for entry in entries() if entry.name == HOSTILE)
    explaining = replace(row, explanation_words=3.0)
    assert group_of(row, is_trained=False) == "zero-shot judges"
    assert group_of(row, is_trained=True) == "GenRM"
    assert group_of(explaining, is_trained=True) == "GenRM-CoT"
    assert group_of(replace(row, kind="of a plugin"), is_trained=False) == "others"
    svg = draw_figure_4(entries()).drawing.source
    places = [svg.index(f">{name}<") for name in ("zero-shot judges", "Bradley-Terry", "baselines")]
    assert places == sorted(places)


def test_the_published_numbers_are_those_of_the_paper():
    published = load_published()
    stated = {name: row["stated"] for name, row in published["rows"].items()}
    assert stated == {
        "claude-3-5-haiku": "0.675",
        "claude-3-7-sonnet": "0.731",
        "gpt-4.1": "0.702",
        "gpt-4.1-mini": "0.630",
        "o4-mini": "0.700",
        "deepseek-v3": "0.700",
        "deepseek-r1": "0.710",
        "gemma-3-12b-it": "0.657",
        "llama-3.1-8b": "0.581",
        "qwen-2.5-7b": "0.599",
        "bt-llama-8b": "0.78",
        "genrm-qwen-7b": "0.78",
        "genrm-cot": "0.72",
        "genrm-cot-largest": "0.74",
        "sae-features": "0.612",
        "bt-llama-1b-naive-upvotes": "0.65",
        "bt-llama-1b-upvotes-and-timestamps": "0.70",
    }
    lengths = [row.get("explanation") for row in published["rows"].values()]
    assert lengths[:10] == [292.4, 280.2, 202.3, 246.7, 131.5, 167.4, 142.8, 497.0, 332.0, 174.0]
    assert published["test_pairs"] == 2480
    assert {row["group"] for row in published["rows"].values()} <= set(GROUPS)
