"""Tables and figures of the paper: the leaderboard's numbers, and a name is only text."""

import csv
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from litbench.metrics.csv_table import write_csv
from litbench.metrics.leaderboard import leaderboard
from litbench.report.figures import standalone
from litbench.report.tables import (
    GROUPS,
    Entry,
    Published,
    draw_figure_4,
    draw_figure_5,
    group_of,
    latex_escape,
    table_3,
    table_3_latex,
)

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
                    row = {"pair_id": f"p{k}", "rater": rater, "kind": kind, "order": order,
                           "outcome": "chosen" if right else "rejected"}  # fmt: skip
                    if kind == "judge":
                        row |= {"explanation": "it has life " * 2, "cost_usd": 0.004,
                                "input_tokens": 90, "output_tokens": 9}  # fmt: skip
                    rows.append(row)
        published = Published.load()
        found = leaderboard(verdict_table(rows), pairs, "longer")
        stated = published.match([row.rater for row in found], {})
        return [
            Entry(
                row.rater, row, group_of(row, is_trained=False),
                (parameters or {}).get(row.rater), None, stated.get(row.rater),
            )
            for row in found
        ]  # fmt: skip

    return build


def read_csv(table, path):
    write_csv(table, path)
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_and_latex_have_the_numbers_of_the_leaderboard(entries, tmp_path):
    given, published = entries(), Published.load()
    table = table_3(given)
    latex = table_3_latex(table, published)
    assert latex_escape(published.note.split(",")[0]) in latex
    for entry, row in zip(given, read_csv(table, tmp_path / "t.csv"), strict=True):
        known = entry.row.agreement
        for key, value in (
            ("agreement", known.mean), ("agreement_low", known.low), ("agreement_high", known.high),
            ("coverage", entry.row.coverage), ("pairs", known.n), ("prompts", known.clusters),
        ):  # fmt: skip
            assert float(row[key]) == pytest.approx(value, abs=1e-6)
        assert latex_escape(str(known)) in latex
        assert latex_escape(entry.name) in latex
        wanted = published.rows.get(entry.name)
        assert row["published_agreement"] == ("" if wanted is None else wanted.stated)
        assert row["published_where"] == ("" if wanted is None else wanted.where)
    alone = [entry for entry in given if entry.name == "longer"]
    quiet = table_3_latex(table_3(alone), published)
    assert "flip rate" not in quiet, "columns without a value are in CSV alone"
    assert "published" not in quiet
    assert "coverage" in quiet


def test_one_prompt_has_a_mean_and_no_interval(entries, tmp_path):
    given = entries(n=1)
    assert math.isnan(given[0].row.agreement.low)
    table = table_3(given)
    assert read_csv(table, tmp_path / "t.csv")[0]["agreement_low"] == ""
    assert "nan" not in table_3_latex(table, Published.load())


def test_a_hostile_name_is_text_in_every_format(entries, tmp_path):
    given, published = entries(parameters={HOSTILE: 1e9, "mine": 22_700_000.0}), Published.load()
    table = table_3(given)
    assert "\\input" not in table_3_latex(table, published)
    cells = [cell for row in read_csv(table, tmp_path / "t.csv") for cell in row.values()]
    assert not [cell for cell in cells if cell[:1] in ("=", "@")]
    assert f"'{HOSTILE}" in cells
    for draw in (draw_figure_4, draw_figure_5):
        svg = standalone(draw(given, published).drawing.svg)
        tree = ET.fromstring(svg)  # noqa: S314
        assert not [node for node in tree.iter() if node.tag.endswith("script")]
        assert "=cmd" in "".join(tree.itertext())
    assert ">22.7M<" in svg
    assert draw_figure_5(entries(), published) is None


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


def test_no_special_letter_of_latex_is_left_alone(entries):
    text = table_3_latex(table_3(entries()), Published.load())
    table = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    bare = re.sub(r"\\(text\w+\{\}|dots\{\}|[\\{}$&#%_]|toprule|midrule)|\{\\char\d+\}", "", table)
    bare = re.sub(r"\{[\[\]*'-]\}", "", bare)
    assert not set(bare) & set("\\{}$#%_^~<>|\"`[]*'"), bare
    assert len({row.replace(r"\&", "").count("&") for row in table.splitlines() if "&" in row}) == 1


def test_raters_are_grouped_by_kind(entries):
    row = next(entry.row for entry in entries() if entry.name == HOSTILE)
    explaining = replace(row, explanation_words=3.0)
    assert group_of(row, is_trained=False) == "zero-shot judges"
    assert group_of(row, is_trained=True) == "GenRM"
    assert group_of(explaining, is_trained=True) == "GenRM-CoT"
    assert group_of(replace(row, kind="of a plugin"), is_trained=False) == "others"
    svg = draw_figure_4(entries(), Published.load()).drawing.svg
    places = [svg.index(f">{name}<") for name in ("zero-shot judges", "Bradley-Terry", "baselines")]
    assert places == sorted(places)


def test_the_published_numbers_are_those_of_the_paper():
    published = Published.load()
    table = {name: row for name, row in published.rows.items() if row.where == "Table 3"}
    assert {name: (row.stated, row.explanation) for name, row in table.items()} == {
        "claude-3-5-haiku": ("0.675", 292.4),
        "claude-3-7-sonnet": ("0.731", 280.2),
        "gpt-4.1": ("0.702", 202.3),
        "gpt-4.1-mini": ("0.630", 246.7),
        "o4-mini": ("0.700", 131.5),
        "deepseek-v3": ("0.700", 167.4),
        "deepseek-r1": ("0.710", 142.8),
        "gemma-3-12b-it": ("0.657", 497.0),
        "llama-3.1-8b": ("0.581", 332.0),
        "qwen-2.5-7b": ("0.599", 174.0),
    }
    others = {name: row.stated for name, row in published.rows.items() if name not in table}
    assert others == {
        "bt-llama-8b": "0.78", "genrm-qwen-7b": "0.78", "genrm-cot": "0.72",
        "genrm-cot-largest": "0.74", "sae-features": "0.612",
    }  # fmt: skip
    assert published.test_pairs == 2480
    assert {row.group for row in published.rows.values()} <= set(GROUPS)
