"""Power: known values, properties of any design, and simulated experiments."""

import math
from dataclasses import replace

import numpy as np
import pyarrow.csv as pa_csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from litbench.data.tables import write_table
from litbench.metrics.comparisons import paired_difference
from litbench.metrics.intervals import clustered_mean, effective_clusters, jackknife_interval
from litbench.metrics.power import (
    Case,
    detectable,
    intra_prompt_correlation,
    measure,
    needed,
    plan,
    power,
)
from litbench.research.power import (
    GradeCase,
    grade_plan,
    spread_of,
)
from litbench.runs.config import build
from litbench.runs.errors import ConfigError

SIZES = {
    "prompts": st.integers(5, 400),
    "each": st.floats(1.5, 20),
    "intra_prompt": st.floats(0, 0.6),
}


def _case(prompts, each, **keys):
    return Case(prompts=prompts, pairs=math.ceil(prompts * each), **keys)


TWO = st.builds(
    lambda difference, reference, **keys: _case(
        agreement=reference + difference, reference=reference, **keys
    ),
    difference=st.floats(0.02, 0.3),
    reference=st.floats(0.4, 0.65),
    **SIZES,
)
ONE = st.builds(_case, agreement=st.floats(0.52, 0.85), **SIZES)


def two(difference, disagreement, **keys):
    """Two raters around one half."""
    sides = {"agreement": 0.5 + difference / 2, "reference": 0.5 - difference / 2}
    return Case(**{"pairs": 100, "prompts": 100, "disagreement": disagreement, **sides, **keys})


@pytest.mark.parametrize(("won", "lost"), [(0.20, 0.10), (0.15, 0.08), (0.05, 0.02)])
def test_one_pair_per_prompt_matches_mcnemar(won, lost):
    # Miettinen's (1968) and Connor's (1987) number of pairs for McNemar's test, whose critical
    # value has the variance without a difference; with hundreds of pairs they are close.
    z_alpha, z_beta = stats.norm.isf(0.025), stats.norm.isf(0.2)
    share, gap = won + lost, won - lost
    mcnemar = (z_alpha * math.sqrt(share) + z_beta * math.sqrt(share - gap**2)) ** 2 / gap**2
    assert needed("prompts", two(gap, share)) == pytest.approx(mcnemar, rel=0.02)


def test_power_of_paired_t_test():
    # 100 pairs, variance 0.3 - 0.1^2: noncentrality 0.1 / sqrt(0.29 / 100) = 1.857. With 1.984
    # as the bound of 99 degrees of freedom, the normal distribution gives 0.4495 + 0.0001.
    assert power(two(0.1, 0.3)) == pytest.approx(0.450, abs=0.006)


def test_one_rater_needs_pairs_of_log_odds():
    z = stats.norm.isf(0.025) + stats.norm.isf(0.2)
    expected = z**2 / (0.612 * 0.388 * math.log(0.612 / 0.388) ** 2)
    first = Case(agreement=0.612, pairs=10, prompts=10)
    assert needed("prompts", first) == pytest.approx(expected, rel=0.02)


@settings(max_examples=30)
@given(TWO | ONE, st.floats(0.001, 0.2))
def test_without_an_effect_power_is_alpha(case, alpha):
    nothing = replace(case, agreement=0.5 if case.reference is None else case.reference)
    assert power(nothing, alpha) == pytest.approx(alpha)


@settings(max_examples=20)
@given(TWO | ONE, st.sampled_from([0.5, 0.8, 0.95]), st.sampled_from([0.05, 0.01]))
def test_needed_is_the_smallest_number(case, wanted, alpha):
    for what, least in (("prompts", 2), ("pairs", case.prompts)):
        enough = needed(what, case, wanted, alpha)
        each = case.pairs / case.prompts
        if enough is None:
            assert what == "pairs"
            assert power(replace(case, pairs=10**8), alpha) < wanted + 1e-3
            continue

        def reached(number, what=what, each=each):
            changes = {"prompts": number, "pairs": number * each}
            return power(replace(case, **changes if what == "prompts" else {what: number}), alpha)

        assert reached(enough) > wanted - 1e-6
        assert enough == least or reached(enough - 1) < wanted


@settings(max_examples=30)
@given(TWO | ONE, st.sampled_from([0.5, 0.8, 0.95]))
def test_the_detectable_value_is_found_just_so_often(case, wanted):
    least = detectable(case, wanted)

    def power_at(value):
        if case.reference is None:
            return power(replace(case, agreement=value))
        # Raters that disagree as often as those of the case.
        return power(
            two(
                value,
                case.square,
                pairs=case.pairs,
                prompts=case.prompts,
                intra_prompt=case.intra_prompt,
            )
        )

    if least is None:
        values = np.linspace(0.5, 0.999, 50) if case.reference is None else [case.square * 0.999]
        assert all(power_at(float(value)) < wanted for value in values)
    else:
        # Power can jump to 1 where the raters disagree only in favour of one.
        assert power_at(least) > wanted - 1e-6
        assert power_at(least - 1e-5) < wanted


def test_annotators_of_a_pair_by_hand():
    # Annotators who agree in 80 % of pairs: their labels correlate at 0.6, so four of them have
    # 0.6 + 0.4 / 4 of the variance.
    case = two(0.0, 0.3, annotator_agreement=0.8, annotators=4)
    assert float(case.error(case.agreement)) == pytest.approx(math.sqrt(0.3 * 0.7 / 100))


def draw(case, random, simulations):
    """How often the real tests find the effect of a case with even prompts.

    Prompts differ in their shares by a Dirichlet distribution, so that two pairs of one prompt
    correlate as they should.
    """
    each = case.pairs // case.prompts
    clusters = np.repeat(np.arange(case.prompts), each)
    shares = [case.agreement, 1 - case.agreement]
    if case.reference is not None:
        half, lead = case.square / 2, (case.agreement - case.reference) / 2
        shares = [half + lead, half - lead, 1 - case.square]
    values = np.array([1.0, -1.0, 0.0] if case.reference is not None else [1.0, 0.0])
    spread = (1 - case.intra_prompt) / case.intra_prompt
    result = 0
    for _ in range(simulations):
        drawn = random.dirichlet(np.array(shares) * spread, case.prompts)
        kinds = (random.random((len(clusters), 1)) > drawn.cumsum(1)[clusters, :-1]).sum(1)
        credit = values[kinds]
        if case.reference is None:
            interval = jackknife_interval(credit, clusters)
            result += not interval.low <= 0.5 <= interval.high
        else:
            result += paired_difference(credit, np.zeros(len(credit)), clusters)[1] < 0.05
    return result / simulations


@pytest.mark.parametrize(
    ("case", "tolerance"),
    [
        (two(0.08, 0.3, intra_prompt=0.1, prompts=60, pairs=480), 0.05),
        (two(0.0, 0.3, intra_prompt=0.1, prompts=60, pairs=480), 0.025),
        (Case(agreement=0.6, intra_prompt=0.1, prompts=60, pairs=300), 0.05),
    ],
)
def test_simulated_experiments_reach_the_stated_power(case, tolerance):
    # 1,000 experiments: three standard errors are 0.047 at a power of 0.5, 0.021 at 0.05.
    result = draw(case, np.random.default_rng(3), 1_000)
    assert result == pytest.approx(power(case), abs=tolerance)


def test_a_plan_has_the_interval_that_is_reported():
    credit = np.repeat([1.0, 0.0], [78, 22])
    result = jackknife_interval(credit, np.arange(100))
    made = plan(Case(agreement=0.78, pairs=100, prompts=100))
    # The jackknife divides by n - 1.
    assert 2 * made["half_width"] == pytest.approx(result.high - result.low, abs=1e-3)
    random = np.random.default_rng(0)
    first, other = (random.random((2, 600)) < [[0.7], [0.6]]).astype(float)
    clusters = np.repeat(np.arange(100), 6)
    case = measure({"one": first, "other": other}, "other", clusters)["one - other"]
    result, _ = paired_difference(first, other, clusters)
    half = plan(case)["half_width"]
    if case.intra_prompt:
        assert 2 * half == pytest.approx(result.high - result.low)
    else:
        assert 2 * half > result.high - result.low


def test_a_rater_that_never_differs_is_left_out():
    clusters = np.repeat(np.arange(5), 4)
    same = np.tile([1.0, 0.0], 10)
    credits = {"base": same, "copy": same, "right": np.ones(20)}
    assert list(measure(credits, "base", clusters)) == ["right - base"]


def test_half_of_every_pair_is_chance():
    random = np.random.default_rng(0)
    right = (random.random(400) < 0.85).astype(float)
    credits = {"1/2": np.full(400, 0.5), "strong": right, "perfect": np.ones(400)}
    (case,) = measure(credits, "1/2", np.arange(400)).values()
    assert case == Case(agreement=right.mean(), pairs=400, prompts=400)


@given(st.integers(0, 10_000))
def test_the_correlation_within_prompts_gives_the_jackknife_error_back(seed):
    random = np.random.default_rng(seed)
    clusters = random.integers(0, 12, size=60)
    values = random.choice([-1.0, 0.0, 1.0], size=60) + 0.5 * (clusters % 2)
    within = intra_prompt_correlation(values, clusters)
    _, sizes = np.unique(clusters, return_counts=True)
    if within < 1:
        spread = (1 - within) / 60 + within / effective_clusters(sizes)
        error = clustered_mean(values, clusters).error
        assert math.sqrt(values.var() * spread) == pytest.approx(error)


GOOD = {"agreement": 0.78, "reference": 0.73, "pairs": 2480, "prompts": 300}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": 1}, "'prompts' is 1"),
        ({"prompts": 5000}, "5000 prompts have 2480 pairs"),
        ({"disagreement": 0.04}, "0.050 to 0.490"),
        ({"reference": None, "disagreement": 0.3}, "one rater"),
        ({"intra_prompt": math.nan}, "'intra_prompt' is nan"),
        ({"annotators": 3}, "annotators is 3"),
    ],
)
def test_a_case_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        build(Case, GOOD | changes)
    with pytest.raises(ConfigError, match="power is 1"):
        plan(Case(**GOOD), 1.0)


@pytest.fixture(scope="module")
def program(load_program):
    return load_program("litbench power")


def test_the_program_plans_cases(program, tmp_path, capsys):
    swept = {**GOOD, "prompts": [300, 1000], "disagreement": [0.26, 0.37], "intra_prompt": 0.1}
    lead = {"agreement": 0.612, "pairs": 2480, "prompts": 300}
    config = program.Config(out=tmp_path, cases={"two": swept, "one": lead}, comparisons=3)
    program.main(config)
    text = capsys.readouterr().out
    result = pa_csv.read_csv(tmp_path / "power.csv").to_pylist()
    assert [row["name"] for row in result] == ["two"] * 4 + ["one"]
    last = Case(**{**swept, "prompts": 1000, "disagreement": 0.37})
    assert result[3]["power"] == pytest.approx(power(last, 0.05 / 3))
    assert result[4]["power"] == pytest.approx(power(Case(**lead)))
    assert (tmp_path / "power.txt").read_text() == text
    assert {"2,480", "300"} <= set(text.split()), "numbers of pairs and prompts are whole"
    program.main(config)
    assert capsys.readouterr().out.startswith("unchanged")
    with pytest.raises(ConfigError, match=r"cases: two.*prompts"):
        program.main(replace(config, cases={"two": {**swept, "prompt": 3}}))
    with pytest.raises(ConfigError, match="cases, grades and evaluation"):
        program.main(program.Config(out=tmp_path))


def test_the_program_measures_an_evaluation(program, load_program, pair_table, tmp_path, capsys):
    random = np.random.default_rng(0)
    words = [" ".join(["word"] * count) for count in range(1, 90)]
    rows = []
    for index in range(120):
        longer, shorter = sorted(random.choice(len(words), 2, replace=False))[::-1]
        sides = (longer, shorter) if random.random() < 0.7 else (shorter, longer)
        rows.append(
            {"chosen": words[sides[0]], "rejected": words[sides[1]], "prompt_id": f"p{index % 30}"}
        )
    write_table(pair_table(rows), tmp_path / "pairs.parquet")
    benchmark = load_program("eval/benchmark.py")
    benchmark.main(
        benchmark.Config(
            pairs=tmp_path / "pairs.parquet",
            out=tmp_path / "judged",
            reference="random",
            raters={name: {"kind": name} for name in ("longer", "shorter", "random")},
        )
    )
    capsys.readouterr()
    program.main(program.Config(out=tmp_path / "out", evaluation=tmp_path / "judged"))
    text = capsys.readouterr().out
    for name in ("longer - random", "shorter - random"):
        assert name in text
    result = pa_csv.read_csv(tmp_path / "out" / "power.csv").to_pylist()
    assert {(row["pairs"], row["prompts"]) for row in result} == {(120, 30)}
    with pytest.raises(ConfigError, match=r"'longr' .*longer"):
        program.main(
            program.Config(out=tmp_path / "no", evaluation=tmp_path / "judged", reference="longr")
        )


def test_grades_of_two_writers_on_the_same_prompts():
    case = GradeCase(difference=0.5, deviation=0.468, prompts=8)
    result = grade_plan(case)
    rng = np.random.default_rng(3)
    gaps = rng.normal(case.difference, case.deviation, (20_000, case.prompts))
    significant = stats.ttest_1samp(gaps, 0, axis=1).pvalue < 0.05
    assert result["power"] == pytest.approx(significant.mean(), abs=0.01)
    assert grade_plan(replace(case, difference=result["detectable"]))["power"] == pytest.approx(0.8)
    assert result["prompts_needed"] == 9
    for prompts, is_enough in ((8, False), (9, True)):
        assert (grade_plan(replace(case, prompts=prompts))["power"] >= 0.8) == is_enough


def test_the_program_plans_grades(load_program, tmp_path, capsys):
    program = load_program("litbench power")
    grades = {"storyq": {"difference": [0.1, 0.3, 0.5], "deviation": 0.468, "prompts": 8}}
    program.main(build(program.Config, {"out": tmp_path, "grades": grades}))
    needs = [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:4]]
    assert needs == ["174", "22", "9"]
    assert pa_csv.read_csv(tmp_path / "power.csv")["prompts_needed"].to_pylist() == [174, 22, 9]


def test_the_spread_of_ratings_is_found():
    random, rows = np.random.default_rng(3), []
    writers = random.normal(0, 0.6, 6)
    for prompt in range(200):
        people = random.normal(0, 0.4, 5)
        for writer, mean in enumerate(writers):
            quality = mean + random.normal(0, 0.5)
            for rater, offset in enumerate(people):
                text = {"writer": str(writer), "prompt_id": str(prompt), "sample": 0}
                grade = quality + offset + random.normal(0, 1.0)
                rows.append({**text, "rater": f"{prompt} {rater}", "grade": grade})
    spread = spread_of(rows)
    assert (spread.text, spread.rater, spread.noise) == pytest.approx((0.5, 0.4, 1.0), abs=0.04)
