"""Writers are compared by grades, with judges' offsets, raters and people beside them."""

import csv
import json
import math

import narra_script
import numpy as np
import pyarrow as pa
import pytest
from fake_openai import FakeOpenAI, messages_of
from test_run_command import write_text
from test_tasks import SPEAKERS, options_of

from litbench.data.records import GRADES, RATINGS, STORIES
from litbench.data.tables import write_table
from litbench.metrics.intervals import clustered_mean, jackknife_interval
from litbench.raters.templates.rubric import load_rubric
from litbench.runs.config import build
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact, write_json
from litbench.writers.grades import GradeTable, agreements_with_people, repeats_of
from litbench.writers.metrics import (
    GradeCell,
    additive_grades,
    correlate,
    fit_offsets,
    grade_agreement,
    pair_credits,
    text_agreements,
    win_rates,
    writer_rows,
)
from litbench.writers.run import Run
from litbench.writers.run import run as run_protocol

WRITERS = {"ash": 50.0, "birch": 40.0, "cedar": 60.0, "<b>oak</b>": 30.0}
JUDGES = {"strict": -10.0, "mild": 4.0, "fair": 6.0}
PROMPTS = {f"p{number}": 3.0 * (number - 3) for number in range(7)}


def planted(skip=()):
    return [
        GradeCell(writer, prompt, judge, level + ease + offset)
        for writer, level in WRITERS.items()
        for prompt, ease in PROMPTS.items()
        for judge, offset in JUDGES.items()
        if (writer, prompt, judge) not in skip
    ]


def test_repeated_judgements_have_quartiles_and_a_variance():
    """WebNovelBench, 5.3, by hand; a sample is a text of its own."""
    rows = [
        {"writer": "w", "prompt_id": "p", "sample": sample, "rater": "j", "quantity": name}
        | {"grade": grade, "flags": None, "repeat": number}
        for name, sample, grades in (
            ("value", 0, (1, 2, 3, 4, 10)),
            ("value", 1, (5, 7)),
            ("x", 0, (9, 9)),
        )
        for number, grade in enumerate(grades)
    ]
    graded = GradeTable([], 0, set(), None, {}, "value", [], rows)
    first, second = repeats_of(graded, "value")
    assert (first.quartiles, first.variance) == ((2, 3, 4), pytest.approx(12.5))
    assert (second.prompt, second.variance) == ("p, sample 1", pytest.approx(2))


def test_a_missing_judge_does_not_move_a_writer():
    skip = {("ash", prompt, "strict") for prompt in ("p0", "p1", "p2")}
    for cells in (planted(), planted(skip)):
        assert fit_offsets(cells)[0] == pytest.approx(JUDGES, abs=1e-9)
        means = {row.writer: row.grade.mean for row in writer_rows(cells)}
        assert means == pytest.approx(WRITERS, abs=1e-9)
    rows = {row.writer: row for row in writer_rows(planted(skip), "birch")}
    assert rows["ash"].plain > 51, "the plain mean rises without the strict judge"
    assert rows["ash"].difference.mean == pytest.approx(10, abs=1e-9)
    assert rows["birch"].difference is None


def test_offsets_are_unknown_where_judges_share_no_writer():
    cells = [GradeCell("ash", "p", "strict", 1.0), GradeCell("birch", "p", "mild", 5.0)]
    assert fit_offsets(cells) == ({"strict": 0, "mild": 0}, False)
    means = {row.writer: row.grade.mean for row in writer_rows(cells)}
    assert means == pytest.approx({"ash": 1, "birch": 5})


def test_a_writer_that_lacks_the_hard_prompts_gains_nothing():
    """Six writers; the worst has no grades on the hardest third of 12 prompts."""
    random = np.random.default_rng(8)
    levels, covered, ranks = np.linspace(0.5, -0.5, 6), [], []
    for _ in range(100):
        ease = random.normal(0, 1, 12)
        grades = levels[:, None] + ease + random.normal(0, 0.3, (6, 12))
        hard = np.argsort(ease)[:4]
        cells = [
            GradeCell(f"w{w}", f"p{p}", "fair", grades[w, p])
            for w in range(6)
            for p in range(12)
            if w < 5 or p not in hard
        ]
        rows = {row.writer: row for row in writer_rows(cells, "w0")}
        worst = rows["w5"]
        covered += [worst.grade.low < -0.5 < worst.grade.high]
        covered += [worst.difference.low < -1 < worst.difference.high]
        ranks.append(list(rows).index("w5") + 1)
        assert (worst.missing, rows["w0"].missing, worst.grade.clusters) == (4, 0, 8)
    # By the mean of its own prompts it ranks 4.0, and 61 % of the intervals cover its level.
    assert np.mean(ranks) > 5.8
    assert 0.93 < np.mean(covered) < 0.99


def test_without_missing_grades_an_additive_grade_is_the_mean():
    random = np.random.default_rng(9)
    means = {w: {p: random.normal() for p in "pqrst"} for w in "abc"}
    result, gaps = additive_grades(means, "a")
    plain = {
        w: clustered_mean(np.array(list(grades.values())), list(grades))
        for w, grades in means.items()
    }
    for writer, grades in plain.items():
        assert result[writer].mean == pytest.approx(grades.mean)
        assert result[writer].error == pytest.approx(grades.error)
    paired = [means["b"][p] - means["a"][p] for p in "pqrst"]
    assert gaps["b"].error == pytest.approx(clustered_mean(np.array(paired), list("pqrst")).error)
    # Only q connects c with the others, so its place cannot be checked by leaving prompts out.
    means["c"] = {"q": 2.0, "u": 1.0}
    result, _ = additive_grades(means)
    assert math.isnan(result["c"].error)
    assert math.isfinite(result["c"].mean)


def test_rows_are_sorted_and_compared_on_shared_prompts():
    noise = np.random.default_rng(0).normal(0, 1, 40)
    cells = [GradeCell("ash", f"p{k}", "fair", 10 + noise[k]) for k in range(20)]
    cells += [GradeCell("birch", f"p{k}", "fair", 12 + noise[20 + k]) for k in range(20)]
    cells += [GradeCell("cedar", f"q{k}", "fair", 90.0) for k in range(3)]
    rows = writer_rows(cells, "ash")
    assert [row.writer for row in rows] == ["cedar", "birch", "ash"]
    assert rows[0].difference is None, "no prompt in common"
    gaps = noise[20:] - noise[:20] + 2
    assert rows[1].difference.mean == pytest.approx(gaps.mean())
    assert rows[1].difference.low < 2 < rows[1].difference.high
    assert rows[1].p_holm < 0.001


def test_win_rates_count_other_writers_only():
    rewards = [3.0, 1.0, 2.0, 2.0, 9.0]
    writers = ["ash", "birch", "birch", "cedar", "ash"]
    groups = ["p", "p", "p", "p", "q"]
    shares = win_rates(rewards, writers, groups, groups)
    assert shares["ash"].mean == 1, "a group with one writer compares nothing"
    assert shares["ash"].n == 1
    # birch: 1.0 beats neither; 2.0 loses to 3.0 and ties with 2.0.
    assert shares["birch"].mean == pytest.approx((0 + 0.25) / 2)
    assert shares["cedar"].mean == pytest.approx((0 + 1 + 0.5) / 3)


def test_agreement_on_pairs_leaves_out_ties_of_the_reference():
    prompts, writers = ["p"] * 3 + ["q"], ["ash", "birch", "cedar", "ash"]
    result = pair_credits([1, 2, 2, 5], [1, 3, 0, 3], prompts, prompts, writers)
    # 1 < 2 agrees, 1 < 2 does not, 2 = 2 is left out, and the last text is alone.
    assert result.credits.tolist() == [1, 0]
    assert result.writers.tolist() == [["ash", "birch"], ["ash", "cedar"]]
    assert result.interval().mean == 0.5
    tied = pair_credits([1, 2], [7, 7], ["p", "p"], ["p", "p"], ["ash", "birch"]).interval()
    assert tied.mean == 0.5
    assert math.isnan(tied.low), "two writers and one prompt"


def graded_by_two(noise):
    """Texts of 12 writers for 10 prompts: a judge's grades, and rewards that follow writers."""
    random = np.random.default_rng(3)
    levels, effects = random.normal(size=(2, 12))
    at = [(writer, prompt) for writer in range(12) for prompt in range(10)]
    grades = [levels[writer] + noise * random.normal() for writer, _ in at]
    rewards = [effects[writer] + noise * random.normal() for writer, _ in at]
    writers, prompts = ([str(item[index]) for item in at] for index in (0, 1))
    return pair_credits(grades, rewards, prompts, prompts, writers)


def test_agreement_of_raters_is_clustered_by_writer_too():
    result = graded_by_two(noise=0.1)
    by_prompt = jackknife_interval(result.credits, result.prompts)
    # Rewards and grades are independent: which writers are compared decides the agreement.
    interval = result.interval()
    assert interval.mean == by_prompt.mean
    assert interval.high - interval.low > 3 * (by_prompt.high - by_prompt.low)
    # All pairs of a writer are left out together.
    without = [
        result.credits[(result.writers != str(writer)).all(1)].mean() for writer in range(12)
    ]
    by_writer = clustered_mean(result.credits, result.writers)
    assert by_writer.error**2 == pytest.approx(
        sum((mean - by_writer.mean) ** 2 for mean in without) * 11 / 12
    )
    assert (by_writer.clusters, by_writer.effective_clusters) == (12, pytest.approx(12))


def test_raters_are_compared_with_the_longer_text():
    result = graded_by_two(noise=1.0)
    longer = result._replace(credits=1 - result.credits)
    rows = text_agreements({("longer", "j"): longer, ("mine", "j"): result}, "longer")
    assert rows[0].difference is None
    assert rows[1].difference.mean == pytest.approx(2 * result.credits.mean() - 1)
    assert rows[1].difference.low < rows[1].agreement.mean - longer.credits.mean()
    assert 0 <= rows[1].p_holm <= 1
    (alone,) = text_agreements({("mine", "j"): result}, None)
    assert (alone.difference, alone.p_holm) == (None, None)


def test_correlations():
    columns = {
        "a": {"ash": 1.0, "birch": 2.0, "cedar": 3.0, "elm": 9.0},
        "b": {"ash": 1.0, "birch": 4.0, "cedar": 9.0},
        "c": {"ash": 2.0, "birch": 1.0, "cedar": 3.0, "elm": math.nan},
        "same": {"ash": 0.1 + 0.2, "birch": 0.3, "cedar": 0.3},
    }
    result = correlate("a", "b", columns)
    assert (result.writers, result.kendall, result.spearman) == (3, 1, 1)
    assert result.pearson == pytest.approx(np.corrcoef([1, 2, 3], [1, 4, 9])[0, 1])
    assert correlate("a", "c", columns).spearman == 0.5, "writers without a number are left out"
    assert math.isnan(correlate("a", "same", columns).pearson), "equal but for rounding"


def test_grade_agreement_averages_texts_of_a_writer():
    graded = [
        ("ash", "p", 1.0, 1.0),
        ("birch", "p", 2.0, 5.0),
        ("cedar", "p", 3.0, 6.0),
        ("ash", "q", 3.0, 3.0),
        ("birch", "q", 4.0, 1.0),
        ("cedar", "q", 6.0, 9.0),
    ]
    agreement, systems = grade_agreement("judge", "people", graded)
    assert agreement.mean == pytest.approx(5 / 6)
    assert systems.pearson == pytest.approx(np.corrcoef([2, 3, 7.5], [2, 3, 4.5])[0, 1])


# The program ------------------------------------------------------------------------------------


def write_run(folder, cells, people=(), protocol="longform", stories=True):
    """A folder as of litbench run: a judge's grade of a text is also its rating."""
    grades, ratings, texts = [], [], {}
    for cell in cells:
        key = {"writer": cell.writer, "prompt_id": cell.prompt, "sample": 0}
        grades.append({**key, "rater": cell.judge, "quantity": "overall", "grade": cell.grade})
        name = f"{cell.writer}/{cell.prompt}"
        kind = "person" if cell.judge in people else "model"
        rated = {"story_id": name, "rater": cell.judge, "rater_kind": kind, "rating": cell.grade}
        ratings += [rated, {**rated, "criterion": "plot"}]
        words = max(round(cell.grade or 1), 1)
        texts[name] = {
            "story_id": name,
            "prompt_id": cell.prompt,
            "prompt": f"About {cell.prompt}",
            "text": "word " * words,
            "n_words": words,
            "source": cell.writer,
            "sample": 0,
            "step": "story",
        }
    grades.append({**grades[-1], "quantity": "style", "grade": None})
    artifact = Artifact(folder, program="litbench run", config={}, inputs={})
    tables = {"grades": (grades, GRADES), "ratings": (ratings, RATINGS)}
    for name, (rows, schema) in tables.items():
        table = pa.Table.from_pylist(rows, schema.arrow())
        artifact.write(f"{name}.parquet", lambda path, table=table: write_table(table, path))
    if stories:
        extra = [("sample", pa.int64()), ("step", pa.string())]
        schema = pa.schema([*STORIES.arrow(), *extra])
        table = pa.Table.from_pylist(list(texts.values()), schema)
        artifact.write("stories.parquet", lambda path: write_table(table, path))
    notes = {"not_comparable": ["prompts are our own"]}
    artifact.counts = {"protocol": protocol, "headline": "overall", **notes}
    artifact.finish()
    return folder


@pytest.fixture
def compare(load_program, tmp_path, capsys):
    program = load_program("litbench writers compare")

    def run(runs, **keys):
        program.main(build(program.Config, {"runs": runs, "out": tmp_path / "out", **keys}))
        result = json.loads((tmp_path / "out" / "writers.json").read_text())
        return result, capsys.readouterr().out

    return run


def test_program_compares_runs(compare, tmp_path):
    judged = [cell for cell in planted() if cell.judge == "fair"]
    other = [cell._replace(writer="elm", grade=cell.grade + 20) for cell in judged[:7]]
    runs = [write_run(tmp_path / "a", judged), write_run(tmp_path / "b", other)]
    raters = {"longer": {"kind": "longer"}, "shorter": {"kind": "shorter"}}
    result, text = compare(runs, reference="ash", raters=raters, published={"paper": WRITERS})
    assert [row["writer"] for row in result["rows"]] == [
        "elm",
        "cedar",
        "ash",
        "birch",
        "<b>oak</b>",
    ]
    assert result["rows"][0]["difference"]["mean"] == pytest.approx(20)
    assert result["changes"]["overall"]["elm"] == result["rows"][0]["difference"]
    assert result["columns"]["win rate by longer"]["elm"] == 1
    assert result["columns"]["win rate by shorter"]["<b>oak</b>"] == 1
    agreements = {item["rater"]: item["agreement"]["mean"] for item in result["text_agreement"]}
    assert agreements == {"longer": 1, "shorter": 0}, "the texts' lengths are the grades"
    published = [
        correlation
        for correlation in result["correlations"]
        if correlation["second"] == "published paper"
    ]
    assert published[0]["pearson"] == pytest.approx(1)
    assert result["missing_grades"] == 2
    assert "prompts are our own" in text
    assert text.count("win rate by longer") == 1 + text.count(", win rate by longer") + text.count(
        "win rate by longer, "
    ), "in one table, beside the correlations"
    page = (tmp_path / "out" / "writers.html").read_text()
    assert "<b>oak</b>" not in page
    assert "&lt;b&gt;oak" in page
    assert "elm has the highest mean overall" in page
    assert "Higher is better; means of single prompts are between" in page
    assert page.index("<svg") < page.index("prompts are our own"), "warnings below the figure"
    assert page.count('<article class="card pair">') == 5, "an excerpt of each writer"
    _, again = compare(runs, reference="ash", raters=raters, published={"paper": WRITERS})
    assert again.startswith("unchanged")


def story_ratings(_question):
    return "\n".join(["[Scores]", *(f"{item.name}: 7" for item in load_rubric("story").criteria)])


BY = {"narra": "persona", "tow": "genre", "longform": "step"}
ITEMS = {"longform": ["choir", "repair"], "narra": ["night_nurse"]}


@pytest.mark.parametrize("protocol", [*SPEAKERS, "stories"])
def test_every_protocol_has_a_page_and_tables(protocol, compare, tmp_path):
    write, grade = SPEAKERS.get(protocol, (write_text, story_ratings))
    models = {"ash": write, "birch": write, "strict": grade, "player": narra_script.reader}
    options = options_of(protocol, tmp_path)
    if protocol == "stories":
        options = {"prompts": ["A letter", "A map"]}
    with FakeOpenAI(others=models, question_of=messages_of):
        names = {name: FakeOpenAI.model_called(name) for name in models}
        config = Run(
            protocol,
            tmp_path / "run",
            {name: names[name] for name in ("ash", "birch")},
            {"strict": names["strict"]},
            {"reader": names["player"]} if protocol == "narra" else {},
            options,
            ITEMS.get(protocol),
        )
        assert run_protocol(config)
    by = BY.get(protocol, "prompt")
    options = {"raters": {"longer": {"kind": "longer"}}, "reference": "ash", "by": [by]}
    result, text = compare(tmp_path / "run", **options)
    assert set(result["groups"][by][0]["cells"]) == {"ash", "birch", "all writers"}
    assert {row["writer"] for row in result["rows"]} == {"ash", "birch"}
    assert {role for role, *_ in result["costs"]} >= {"writer", "strict"}
    assert "Mean grades" in text
    assert "Mean grades" in (tmp_path / "out/writers.html").read_text(encoding="utf-8")
    with (tmp_path / "out/writers.csv").open(encoding="utf-8-sig", newline="") as file:
        assert {row["writer"] for row in csv.DictReader(file)} == {"ash", "birch"}


def test_equal_writers_share_the_first_place(compare, tmp_path):
    cells = [cell for cell in planted() if cell.judge == "fair" and cell.writer != "birch"]
    same = [cell._replace(writer="fir") for cell in cells if cell.writer == "cedar"]
    compare([write_run(tmp_path / "a", [*cells, *same])])
    page = (tmp_path / "out" / "writers.html").read_text()
    assert "cedar and fir share the highest mean overall" in page


def test_people_are_a_reference_and_not_a_judge(compare, tmp_path):
    people = [
        cell._replace(judge=name, grade=cell.grade + shift)
        for cell in planted()
        if cell.judge == "fair"
        for name, shift in (("ann", 1), ("bob", -1))
    ]
    judges = [
        cell._replace(grade=-cell.grade) if cell.judge == "strict" else cell for cell in planted()
    ]
    run = write_run(tmp_path / "a", people + judges, people=("ann", "bob"), stories=False)
    result, _ = compare(run)
    agreement = {item["rater"]: item["agreement"]["mean"] for item in result["people_agreement"]}
    assert agreement == {"strict": 0, "mild": 1, "fair": 1}
    fair = next(item for item in result["people_agreement"] if item["rater"] == "fair")
    for name, mean in (("within", 1), ("offset", 0), ("one_person", 1), ("against_others", 1)):
        assert fair[name]["mean"] == pytest.approx(mean, abs=1e-9)
    assert fair["is_paired"]
    systems = {item["rater"]: item["systems"]["spearman"] for item in result["people_agreement"]}
    assert systems == pytest.approx({"strict": -1, "mild": 1, "fair": 1})
    methods = {judge: by["all"]["spearman"] for _, judge, by in result["method_correlation"]}
    assert methods == pytest.approx(systems)
    assert set(result["judges"]) == set(JUDGES)


def test_people_who_rank_no_writers_are_named(compare, tmp_path):
    people = [
        GradeCell("ash", "p0", "ann", 4.0),
        GradeCell("birch", "p1", "bob", 3.0),
    ]
    for more, is_named in (([], True), ([GradeCell("birch", "p0", "ann", 3.0)], False)):
        run = write_run(
            tmp_path / f"{is_named}",
            planted() + people + more,
            people=("ann", "bob"),
            stories=False,
        )
        _, text = compare(run)
        assert ("no utilities by people" in text) == is_named


def test_people_and_a_judge_of_other_texts():
    """Sessions that people played have no text in common with those that a model played."""
    rows = [
        {
            "writer": writer,
            "prompt_id": prompt,
            "sample": sample + 10 * (rater != "judge"),
            "rater": rater,
            "quantity": "storyq",
            "grade": grade + (0.5 if rater == "judge" else 0) + sample / 4,
        }
        for writer, grade in (("fir", 4.0), ("oak", 3.0), ("yew", 2.0))
        for prompt in ("one", "two", "three")
        for sample, rater in ((0, "judge"), (1, "judge"), (0, "ann"), (1, "bob"))
    ]
    graded = GradeTable(rows, 0, {"ann", "bob"}, None, {}, "storyq", [])
    (result,) = agreements_with_people(graded)
    assert (result.rater, result.is_paired, result.texts) == ("judge", False, 9)
    assert (result.agreement.mean, result.within.mean) == (1, 1)
    assert result.offset.mean == pytest.approx(0.5)


def test_invalid_input(compare, tmp_path):
    first = write_run(tmp_path / "a", planted())
    second = write_run(tmp_path / "b", planted()[:9], protocol="tow", stories=False)
    broken = write_run(tmp_path / "c", planted())
    write_json({}, broken / "grades.parquet")
    empty = write_run(
        tmp_path / "d", [cell._replace(grade=None) for cell in planted()[:2]], stories=False
    )
    cases = [
        ({"runs": [first, first]}, DataError, "two of them have the grade"),
        ({"runs": [first, second]}, ConfigError, "several protocols"),
        ({"runs": broken}, DataError, "does not match manifest.json"),
        ({"runs": empty}, DataError, "all 3 grades are missing"),
        ({"runs": first, "quantity": "overal"}, ConfigError, "did you mean 'overall'"),
        ({"runs": first, "reference": "asch"}, ConfigError, "did you mean 'ash'"),
        ({"runs": first, "raters": {"coin": {"kind": "random"}}}, ConfigError, "gives no rewards"),
        ({"runs": second, "raters": {"longer": {"kind": "longer"}}}, DataError, "stories.parquet"),
        ({"runs": second, "slop": tmp_path}, DataError, "stories.parquet"),
    ]
    for keys, error, says in cases:
        with pytest.raises(error, match=says):
            compare(keys.pop("runs"), **keys)


def test_utilities_of_people_judges_and_verdicts(compare, tmp_path):
    # "ash" loses once to "birch" by one judge, and "cedar" to "ash"; nobody ever loses to the oak.
    swapped = {("birch", "p0", "mild"): 46.0, ("cedar", "p1", "mild"): 40.0}
    judged = [cell._replace(grade=swapped.get(cell[:3], cell.grade)) for cell in planted()]
    people = [cell._replace(judge="ann") for cell in planted() if cell.judge == "fair"]
    run = write_run(tmp_path / "a", judged + people, people=("ann",))
    result, text = compare(run, raters={"longer": {"kind": "longer"}}, collapse=31.0)
    by_judges = result["utilities"]["judges"]
    assert by_judges["rankings"] == 21
    assert by_judges["infinite"] == ["<b>oak</b>"]
    values = by_judges["values"]
    assert values["cedar"] > values["ash"] > values["birch"]
    assert set(result["utilities"]) == {"people", "judges", "longer"}
    assert result["utilities"]["people"]["infinite"] == sorted(WRITERS)
    assert result["utilities"]["longer"]["rankings"] == 42, "six pairs of texts for each prompt"
    assert "by judges, wins do not connect <b>oak</b> with the others both ways" in text
    shrunk, text = compare(run, utility_prior=0.5)
    assert not shrunk["utilities"]["people"]["infinite"]
    assert "shrunk by a prior of strength 0.5" in text


def test_range_over_prompts(compare, tmp_path):
    result, text = compare(write_run(tmp_path / "a", planted()), collapse=31.0)
    assert result["rows"]
    row = next(
        line.split()
        for line in text.splitlines()
        if line.startswith("<b>oak</b>  ") and "p0" in line
    )
    # The grade is 30 + 3 (number - 3): below 31 on four prompts of seven.
    assert row == ["<b>oak</b>", "21.00", "p0", "39.00", "p6", "4"]
