"""Tables and figures: every format has the leaderboard's numbers, and a name is only text."""

import csv
import html.parser
import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from litbench.artifact import Artifact
from litbench.errors import ConfigError, DataError
from litbench.evaluation import EvaluationPairs, finish_evaluation
from litbench.metrics.explanations import (
    ExplanationStudy,
    FeatureDifference,
    explanations_json,
)
from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import leaderboard
from litbench.report.tables import (
    GROUPS,
    Published,
    group_of,
    latex_escape,
)
from litbench.tables import write_table
from litbench.text import clean_name

HOSTILE = (
    '=cmd|"/c calc"!A1 <script>alert(1)</script> \\input{x} $x^2_3$ 50 % & ~ [a](http://b) | `c`'
)
KINDS = {"longer": "longer", "gpt-4.1": "judge", "mine": "reward", HOSTILE: "generative"}


def judged(rater, kind, n, right):
    """Verdicts of a rater; it names the chosen story in the first order of the first pairs."""
    rows = []
    for place in range(n):
        for order in ("chosen", "rejected") if kind in ("judge", "generative") else (None,):
            outcome = "chosen" if place < right or order == "chosen" else "rejected"
            row = {"pair_id": f"p{place}", "rater": rater, "kind": kind, "order": order}
            if kind == "judge":
                row |= {"explanation": "it has life " * 2, "cost_usd": 0.004, "input_tokens": 90,
                        "output_tokens": 9}  # fmt: skip
                outcome = "cut" if place == n - 1 else outcome
            rows.append({**row, "outcome": outcome, "seconds": 0.5})
    return rows


@pytest.fixture
def evaluated(pair_table, verdict_table, tmp_path):
    """Write an evaluation's folder; returns the folder and its leaderboard by rater."""

    def build(name="one", kinds=None, n=24, text="a tale", notes=None, right=None):
        kinds = kinds or KINDS
        pairs = pair_table([{"pair_id": f"p{k}", "chosen": f"{text} {k}"} for k in range(n)])
        path = tmp_path / f"{name}.parquet"
        write_table(pairs, path)
        rows = []
        for place, (rater, kind) in enumerate(kinds.items()):
            rows += judged(rater, kind, n, (right or {}).get(rater, 8 + 3 * place))
        verdicts = verdict_table(rows)
        reference = next(iter(kinds))
        artifact = Artifact(
            tmp_path / name, program=__file__, config={"reference": reference, "split": None},
            inputs={"pairs": path},
        )  # fmt: skip
        records = {rater: [{"notes": (notes or {}).get(rater, {})}] for rater in kinds}
        finish_evaluation(artifact, [verdicts], records, EvaluationPairs(pairs, None), reference)
        rows = leaderboard(verdicts, pairs, reference)
        return tmp_path / name, {row.rater: row for row in rows}

    return build


@pytest.fixture
def tables(load_program, tmp_path):
    """Run eval/tables.py; returns the folder."""
    program = load_program("eval/tables.py")

    def run(evaluations, **options):
        out = tmp_path / "out"
        program.main(program.Config(evaluations=evaluations, out=out, **options))
        return out

    return run


def read_csv(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


class Page(html.parser.HTMLParser):
    """Tags, and the cells of all tables as text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.cells, self.inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        self.inside = tag == "td"
        if self.inside:
            self.cells.append("")

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "td"

    def handle_data(self, data):
        if self.inside:
            self.cells[-1] += data


def test_every_format_has_the_numbers_of_the_leaderboard(evaluated, tables):
    folder, rows = evaluated()
    out = tables({"one": folder})
    written = {row["rater"].removeprefix("'"): row for row in read_csv(out / "table3.csv")}
    assert len(written) == len(rows) == 4
    cells = Page((out / "tables.html").read_text("utf-8")).cells
    markdown = (out / "tables.md").read_text("utf-8").replace("\\", "")
    latex = re.sub(r"\{([\[\]-])\}", r"\1", (out / "tables.tex").read_text("utf-8"))
    for rater, row in rows.items():
        found = written[clean_name(rater)]
        for key in ("agreement", "flip_rate", "position_lean", "consistent", "both_orders"):
            interval = getattr(row, key)
            if interval is None:
                assert found[key] == found[f"{key}_low"] == found[f"{key}_high"] == ""
                continue
            for end, value in (
                ("", interval.mean), ("_low", interval.low), ("_high", interval.high),
            ):  # fmt: skip
                assert float(found[key + end]) == pytest.approx(value, abs=1e-6)
            assert str(interval) in cells
            assert str(interval) in markdown
            # A printed page has room for the columns that tell raters apart.
            in_print = key in ("agreement", "flip_rate", "position_lean")
            assert (str(interval) in latex) == (in_print or str(interval) == str(row.agreement))
        assert int(found["pairs"]) == row.agreement.n
        assert float(found["coverage"]) == pytest.approx(row.coverage, abs=1e-6)
        assert sum(int(found[name]) for name in row.outcomes) == sum(row.outcomes.values())
    judge = written["gpt-4.1"]
    assert float(judge["explanation_words"]) == rows["gpt-4.1"].explanation_words == 6
    assert float(judge["cost_usd"]) == pytest.approx(48 * 0.004)
    assert float(judge["cost_per_1000_pairs"]) == pytest.approx(8)
    assert (judge["input_tokens"], judge["output_tokens"], judge["cut"]) == ("4320", "432", "2")
    for shown in ("8.00", "0.19", "4,320", "6.0"):
        assert shown in cells
        assert f"| {shown} |" in markdown
        assert (f"& {shown} " in latex) == (shown in ("8.00", "6.0"))
    figure = {row["rater"].removeprefix("'"): row for row in read_csv(out / "figure4.csv")}
    for rater, row in rows.items():
        drawn = figure[clean_name(rater)]
        assert float(drawn["agreement"]) == pytest.approx(row.agreement.mean, abs=1e-6)
        assert float(drawn["agreement_low"]) == pytest.approx(row.agreement.low, abs=1e-6)


def test_a_hostile_name_is_text_in_every_format(evaluated, tables):
    folder, _ = evaluated(notes={HOSTILE: {"parameters": 10**9}, "mine": {"parameters": 10**8}})
    out = tables({HOSTILE: folder}, title=HOSTILE, families={HOSTILE: HOSTILE})
    source = (out / "tables.html").read_text("utf-8")
    page = Page(source)
    assert not {"script", "img", "iframe", "link"} & set(page.tags)
    assert HOSTILE in page.cells
    assert "<script>" not in (out / "tables.md").read_text("utf-8")
    (line,) = [
        line for line in (out / "tables.md").read_text("utf-8").splitlines()
        if "cmd" in line and "zero-shot" in line and "24" in line
    ]  # fmt: skip
    assert len(re.findall(r"(?<!\\)\|", line)) == len(
        re.findall(r"(?<!\\)\|", (out / "tables.md").read_text("utf-8").splitlines()[4])
    ), "a name is one cell"
    assert "\\[a\\](http" in line
    assert "\\input" not in (out / "tables.tex").read_text("utf-8")
    for path in out.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert not [cell for cell in cells if cell[:1] in ("=", "@")], path
        assert path.name == "published.csv" or f"'{HOSTILE}" in cells
    for path in out.glob("*.svg"):
        tree = ET.parse(path)  # noqa: S314
        assert not [node for node in tree.iter() if node.tag.endswith("script")]
        assert "=cmd" in "".join(tree.getroot().itertext())


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


def test_no_special_letter_of_latex_is_left_alone(evaluated, tables):
    folder, _ = evaluated()
    text = (tables({"one": folder}, title="a\nb") / "tables.tex").read_text("utf-8")
    table = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    bare = re.sub(r"\\(text\w+\{\}|dots\{\}|[\\{}$&#%_]|toprule|midrule)|\{\\char\d+\}", "", table)
    bare = re.sub(r"\{[\[\]*'-]\}", "", bare)
    assert not set(bare) & set("\\{}$#%_^~<>|\"`[]*'"), bare
    lengths = {row.replace(r"\&", "").count("&") for row in table.splitlines() if "&" in row}
    assert len(lengths) == 1
    assert text.splitlines()[0] == "% a b", "a title is one comment"


def test_names_lose_what_cannot_be_seen():
    assert clean_name("a\u202eb\u200b\r\n c\x07") == "ab c"


def test_what_is_published_never_stands_in_a_measured_column(evaluated, tables):
    folder, rows = evaluated()
    published = Published.load()
    for options in ({}, {"published": {"mine": "bt-llama-8b"}}):
        out = tables({"one": folder}, **options)
        stated = {"gpt-4.1": "gpt-4.1", **options.get("published", {})}
        for name in ("table3", "figure4"):
            for row in read_csv(out / f"{name}.csv"):
                rater = row["rater"]
                known = rows.get(rater) or rows[HOSTILE]
                assert float(row["agreement"]) == pytest.approx(known.agreement.mean, abs=1e-6)
                wanted = published.rows[stated[rater]] if rater in stated else None
                assert row["published_agreement"] == ("" if wanted is None else wanted.stated)
                assert row["published_where"] == ("" if wanted is None else wanted.where)
        # A measured row and a row of the paper's own table are never one.
        assert not {row["published_name"] for row in read_csv(out / "published.csv")} & {
            "mine", "longer",
        }  # fmt: skip
        for text in ((out / "tables.md").read_text("utf-8"), (out / "tables.html").read_text()):
            assert "published (Fein et al., 2025)" in text
            assert "not measured here" in text


def test_nothing_published_is_shown_beside_raters_that_no_one_named(evaluated, tables):
    kinds = {"longer": "longer", "gpt-4.1-nano": "judge", "genrm-cot": "generative"}
    folder, _ = evaluated(kinds=kinds)
    out = tables({"one": folder})
    assert "not measured here" not in (out / "figure4.svg").read_text("utf-8")
    assert all(row["published_agreement"] == "" for row in read_csv(out / "table3.csv"))
    assert "published (Fein et al., 2025)" not in (out / "tables.md").read_text("utf-8")


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
    others = {name: row.agreement for name, row in published.rows.items() if name not in table}
    assert others == {
        "bt-llama-8b": 0.78, "genrm-qwen-7b": 0.78, "genrm-cot": 0.72, "genrm-cot-largest": 0.74,
        "sae-features": 0.612,
    }  # fmt: skip
    assert published.test_pairs == 2480
    assert {row.group for row in published.rows.values()} <= set(GROUPS)


def test_raters_are_grouped_by_kind_and_as_the_config_says(evaluated, tables):
    folder, rows = evaluated()
    out = tables({"one": folder}, groups={"mine": "my own kind"})
    groups = {row["rater"]: row["group"] for row in read_csv(out / "figure4.csv")}
    assert groups["gpt-4.1"] == "zero-shot judges"
    assert groups["longer"] == "baselines"
    assert groups["mine"] == "my own kind"
    written = rows[HOSTILE]
    explaining = replace(written, explanation_words=3.0)
    assert group_of(written, is_trained=False) == "zero-shot judges"
    assert group_of(written, is_trained=True) == "GenRM"
    assert group_of(explaining, is_trained=True) == "GenRM-CoT"
    assert group_of(replace(written, kind="cascade"), is_trained=False) == "mixes"
    assert group_of(replace(written, kind="of a plugin"), is_trained=False) == "others"
    svg = (out / "figure4.svg").read_text("utf-8")
    places = [svg.index(f">{name}<") for name in ("zero-shot judges", "baselines", "my own kind")]
    assert places == sorted(places)


def test_sizes_come_from_the_record_or_from_the_config(evaluated, tables):
    folder, rows = evaluated(notes={"mine": {"parameters": 22_700_000}})
    out = tables({"one": folder}, parameters={"gpt-4.1": 8.0e9}, families={"mine": "bert"})
    drawn = read_csv(out / "figure5.csv")
    assert [(row["rater"], float(row["parameters"]), row["family"]) for row in drawn] == [
        ("mine", 22_700_000, "bert"), ("gpt-4.1", 8.0e9, ""),
    ]  # fmt: skip
    assert float(drawn[0]["agreement"]) == pytest.approx(rows["mine"].agreement.mean, abs=1e-6)
    svg = (out / "figure5.svg").read_text("utf-8")
    assert ">22.7M<" in svg
    assert ">8B<" in svg
    assert (
        not (tables({"one": folder}, raters=["longer"]) / "manifest.json")
        .read_text("utf-8")
        .count('"figure5.svg"')
    )


def test_evaluations_of_the_same_pairs_stand_together(evaluated, tables):
    one, _ = evaluated("one", {"longer": "longer", "judge": "judge"})
    two, _ = evaluated("two", {"longer": "longer", "judge": "judge", "verifier": "reward"},
                       right={"judge": 20})  # fmt: skip
    out = tables({"one": one, "two": two})
    rows = read_csv(out / "table3.csv")
    names = ["judge (one)", "judge (two)", "longer", "verifier"]
    assert sorted(row["rater"] for row in rows) == names
    assert {row["pairs_of"] for row in rows} == {""}
    assert (out / "figure4.svg").exists()


def test_other_pairs_and_other_texts_are_never_put_together(evaluated, tables):
    one, _ = evaluated("one", {"longer": "longer"})
    cut, _ = evaluated("cut", {"longer": "longer"}, text="another tale")
    out = tables({"one": one, "cut": cut})
    rows = read_csv(out / "table3.csv")
    assert [(row["pairs_of"], row["rater"]) for row in rows] == [
        ("one", "longer"), ("cut", "longer"),
    ]  # fmt: skip
    assert {path.name for path in out.glob("figure4-*.*")} == {
        "figure4-1.svg", "figure4-1.png", "figure4-2.svg", "figure4-2.png"
    }  # fmt: skip


def explained(folder, study):
    """What eval/explanations.py leaves."""
    artifact = Artifact(folder, program=__file__, config={}, inputs={})
    content = json.dumps(explanations_json(study))
    artifact.write("explanations.json", lambda path: path.write_text(content))
    artifact.finish()
    return folder


def difference(**changes):
    interval = Interval(0.14, 0.05, 0.23, 90, 9, 8.5)
    base = FeatureDifference(
        level="all", of="all raters", feature="plot", group="subject", present=40,
        rate=replace(interval, mean=0.4), agreement_present=interval, agreement_absent=None,
        difference=interval, p_value=0.001, p_holm=0.01, p_bh=0.002, same_length=None, reason=None,
    )  # fmt: skip
    return replace(base, **changes)


def test_figure_8_is_shown_where_it_is_given(evaluated, tables, tmp_path):
    folder, _ = evaluated()
    differences = [
        difference(),
        difference(feature="<b>style</b>", difference=None, reason="too few", p_holm=math.nan),
        difference(level="rater", of="judge", feature="of one judge"),
    ]
    given = explained(tmp_path / "explanations", ExplanationStudy([], differences))
    out = tables({"one": folder}, explanations=given)
    rows = read_csv(out / "figure8.csv")
    assert [row["feature"] for row in rows] == ["plot", "<b>style</b>"]
    assert [float(rows[0][f"difference{end}"]) for end in ("", "_low", "_high")] == [
        0.14, 0.05, 0.23,
    ]  # fmt: skip
    assert [row["noise"] for row in rows] == ["outside the noise", "too few"]
    page = (out / "tables.html").read_text("utf-8")
    assert ">plot</text>" in page
    assert "&lt;b&gt;style" in page
    assert "0.140 [0.050, 0.230]" in Page(page).cells
    # Drawn anew: in the colours of the page, and nothing that lies in the folder is put into it.
    drawn = page[page.index("Features of explanations and agreement") :]
    assert "var(--ink)" in drawn[: drawn.index("</svg>")]
    assert "var(" not in (out / "figure8.svg").read_text("utf-8")
    (given / "explanations.json").write_text('{"raters": [], "differences": [{}]}')
    with pytest.raises(DataError, match=r"explanations\.json is not the file that manifest\.json"):
        tables({"one": folder}, explanations=given)
    assert "figure8" not in (tables({"one": folder}) / "manifest.json").read_text("utf-8")


def test_what_cannot_be_named_is_refused(evaluated, tables):
    folder, _ = evaluated()
    for key, value in (
        ("raters", ["gpt-4.2"]), ("groups", {"gpt-4.2": "x"}), ("parameters", {"gpt-4.2": 1.0}),
        ("families", {"gpt-4.2": "x"}), ("published", {"gpt-4.2": "gpt-4.1"}),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"{key}: 'gpt-4.2' is no rater.*'gpt-4.1'"):
            tables({"one": folder}, **{key: value})
    with pytest.raises(ConfigError, match=r"published\.mine: 'gpt-4.11' is no published row"):
        tables({"one": folder}, published={"mine": "gpt-4.11"})
    with pytest.raises(ConfigError, match="evaluations is empty"):
        tables({})


def test_changed_pairs_and_other_folders_are_refused(evaluated, tables, pair_table):
    folder, _ = evaluated()
    write_table(pair_table([{"pair_id": "p0"}]), folder.parent / "one.parquet")
    with pytest.raises(DataError, match=r"one.parquet has changed since .*one judged it"):
        tables({"one": folder})
    (folder / "manifest.json").write_text('{"inputs": {"pairs": {"path": "x", "sha256": "y"}}}')
    with pytest.raises(DataError, match="its manifest is of no evaluation"):
        tables({"one": folder})


def test_the_same_inputs_are_drawn_once(evaluated, tables, capsys):
    folder, _ = evaluated()
    out = tables({"one": folder})
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    capsys.readouterr()
    tables({"one": folder})
    assert "unchanged" in capsys.readouterr().out
    (out / "manifest.json").unlink()
    tables({"one": folder})
    for path in out.glob("*.svg"):
        assert path.read_bytes() == before[path.name], path


def test_columns_that_say_nothing_are_in_csv_alone(evaluated, tables):
    folder, _ = evaluated(kinds={"longer": "longer"})
    out = tables({"one": folder})
    assert "unparsed" in read_csv(out / "table3.csv")[0]
    assert "unparsed" not in (out / "tables.md").read_text("utf-8")
    assert "flip rate" not in (out / "tables.md").read_text("utf-8")
    assert "coverage" in (out / "tables.md").read_text("utf-8")


def test_one_prompt_has_a_mean_and_no_interval(evaluated, tables):
    folder, rows = evaluated(kinds={"longer": "longer"}, n=1)
    assert math.isnan(rows["longer"].agreement.low)
    out = tables({"one": folder})
    assert read_csv(out / "table3.csv")[0]["agreement_low"] == ""
    assert "nan" not in (out / "tables.md").read_text("utf-8")
