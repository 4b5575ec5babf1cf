"""Power: known values, what must hold of any design, and simulated experiments."""

import csv
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from litbench.errors import ConfigError
from litbench.metrics.comparisons import paired_difference
from litbench.metrics.intervals import clustered_mean, effective_clusters, jackknife_interval
from litbench.metrics.power import (
    Design,
    Difference,
    Lead,
    Plan,
    corrected_alpha,
    detectable,
    draw_kinds,
    intra_prompt_correlation,
    pairs_needed,
    plan,
    power,
    prompts_needed,
    seen_differences,
    seen_leads,
    simulated_power,
    write_power_csv,
)
from litbench.tables import write_table

DIFFERENCES = st.builds(
    lambda share, disagreement, within: Difference(
        difference=share * disagreement, disagreement=disagreement, intra_prompt=within
    ),
    st.floats(0.05, 0.8),
    st.floats(0.05, 0.9),
    st.floats(0, 0.6),
)
LEADS = st.builds(
    lambda agreement, within: Lead(agreement=agreement, intra_prompt=within),
    st.floats(0.52, 0.85),
    st.floats(0, 0.6),
)
DESIGNS = st.builds(
    lambda prompts, each, evenness: Design(
        prompts=prompts, pairs_per_prompt=each, evenness=evenness
    ),
    st.integers(5, 400),
    st.floats(1.5, 20),
    st.floats(0.3, 1),
)


def one_pair_each(prompts):
    return Design(prompts=prompts, pairs_per_prompt=1)


@pytest.mark.parametrize(("won", "lost"), [(0.20, 0.10), (0.15, 0.08), (0.05, 0.02)])
def test_one_pair_a_prompt_takes_as_many_pairs_as_mcnemar(won, lost):
    # Miettinen's (1968) and Connor's (1987) number of pairs for McNemar's test, which has the
    # variance without a difference in its critical value; with hundreds of pairs they are near.
    z_alpha, z_beta = stats.norm.isf(0.025), stats.norm.isf(0.2)
    share, gap = won + lost, won - lost
    mcnemar = (z_alpha * math.sqrt(share) + z_beta * math.sqrt(share - gap**2)) ** 2 / gap**2
    effect = Difference(difference=gap, disagreement=share)
    assert prompts_needed(effect, one_pair_each(2)) == pytest.approx(mcnemar, rel=0.02)


def test_power_is_that_of_the_paired_t_test_by_hand():
    # 100 pairs, variance 0.3 - 0.1^2: noncentrality 0.1 / sqrt(0.29 / 100) = 1.857. With 1.984
    # as the bound of 99 degrees of freedom, the normal distribution gives 0.4495 + 0.0001.
    found = power(Difference(difference=0.1, disagreement=0.3), one_pair_each(100))
    assert found == pytest.approx(0.450, abs=0.006)


def test_a_lead_of_one_rater_takes_as_many_pairs_as_the_log_odds_need():
    logit = math.log(0.612 / 0.388)
    z = stats.norm.isf(0.025) + stats.norm.isf(0.2)
    expected = z**2 / (0.612 * 0.388 * logit**2)
    needed = prompts_needed(Lead(agreement=0.612), one_pair_each(2))
    assert needed == pytest.approx(expected, rel=0.02)


@given(DESIGNS, st.floats(0.01, 0.99), st.floats(0, 1), st.floats(0.001, 0.2))
def test_without_a_difference_power_is_alpha(design, disagreement, within, alpha):
    nothing = Difference(difference=0, disagreement=disagreement, intra_prompt=within)
    assert power(nothing, design, alpha) == pytest.approx(alpha)
    assert power(Lead(agreement=0.5, intra_prompt=within), design, alpha) == pytest.approx(alpha)


@given(DIFFERENCES, DESIGNS)
def test_power_is_the_same_for_the_better_and_the_worse_rater(effect, design):
    assert power(effect.at(-effect.difference), design) == pytest.approx(power(effect, design))


@given(DIFFERENCES | LEADS, DESIGNS, st.floats(1.05, 3))
def test_more_of_anything_that_helps_never_loses_power(effect, design, factor):
    # scipy's noncentral t is right to about seven digits.
    before = power(effect, design) - 1e-6
    none, most = effect.span
    assert power(effect.at(min(none + (effect.value - none) * factor, most)), design) >= before
    more = Design(
        prompts=math.ceil(design.prompts * factor),
        pairs_per_prompt=design.pairs_per_prompt,
        evenness=design.evenness,
    )
    assert power(effect, more) >= before
    assert power(effect, design.with_pairs_per_prompt(design.pairs_per_prompt * factor)) >= before
    assert power(effect, design, 0.05 / factor) <= before + 2e-6


@given(DIFFERENCES, DESIGNS)
def test_pairs_that_are_alike_are_worth_fewer(effect, design):
    apart = Difference(difference=effect.difference, disagreement=effect.disagreement)
    assert power(effect, design) <= power(apart, design) + 1e-6


def test_the_design_effect_by_hand():
    # 10 prompts with 7 pairs and 10 with 1: 80 pairs, worth 80^2 / 500 = 12.8 prompts of 6.25.
    design = Design.of(np.repeat(np.arange(20), [7, 1] * 10))
    assert (design.prompts, design.pairs, design.pairs_per_prompt) == (20, 80, 4.0)
    assert design.effective_prompts == pytest.approx(12.8)
    assert design.design_effect(0.2) == pytest.approx(1 + 5.25 * 0.2)
    assert design.independent_pairs(0.2) == pytest.approx(80 / 2.05)
    assert design.independent_pairs(0.0) == 80
    # Prompts whose pairs are all the same are one pair each.
    even = Design(prompts=20, pairs_per_prompt=4)
    assert even.independent_pairs(1.0) == pytest.approx(20)


@given(st.integers(2, 60), st.integers(0, 300))
def test_one_pair_a_prompt_is_even_and_knows_no_likeness(prompts, seed):
    design = Design.of(np.random.default_rng(seed).permutation(prompts))
    assert design == one_pair_each(prompts)
    assert design.design_effect(0.7) == 1


@given(st.integers(20, 200), st.floats(2.5, 20), st.floats(0.4, 1))
def test_sizes_add_up_and_are_as_even_as_asked(prompts, each, evenness):
    design = Design(prompts=prompts, pairs_per_prompt=each, evenness=evenness)
    sizes = design.sizes()
    assert len(sizes) == prompts
    assert sizes.min() >= 1
    assert sizes.sum() == design.pairs
    # Whole pairs cannot be more even than this, nor hit it to the digit.
    assert effective_clusters(sizes) == pytest.approx(
        min(design.effective_prompts, effective_clusters(Design(prompts=prompts,
            pairs_per_prompt=each).sizes())), rel=0.12)  # fmt: skip


@given(
    DIFFERENCES | LEADS, DESIGNS, st.sampled_from([0.5, 0.8, 0.95]), st.sampled_from([0.05, 0.01])
)
def test_what_is_needed_reaches_the_power_and_one_less_does_not(effect, design, wanted, alpha):
    prompts = prompts_needed(effect, design, wanted, alpha)
    assert prompts is not None

    def reached(count):
        return power(effect, Design(prompts=count, pairs_per_prompt=design.pairs_per_prompt,
                                    evenness=design.evenness), alpha)  # fmt: skip

    assert reached(prompts) >= wanted
    assert prompts == 2 or reached(prompts - 1) < wanted
    pairs = pairs_needed(effect, design, wanted, alpha)
    if pairs is None:
        limit = design.with_pairs_per_prompt(1e8)
        assert power(effect, limit, alpha) < wanted + 1e-3
        return
    assert power(effect, design.with_pairs_per_prompt(pairs / design.prompts), alpha) >= wanted
    fewer = (pairs - 1) / design.prompts
    assert fewer < 1 or power(effect, design.with_pairs_per_prompt(fewer), alpha) < wanted


@given(DIFFERENCES | LEADS, DESIGNS, st.sampled_from([0.5, 0.8, 0.95]))
def test_the_detectable_value_is_found_just_so_often(effect, design, wanted):
    least = detectable(effect, design, wanted)
    if least is None:
        assert power(effect.at(effect.span[1]), design) < wanted
    else:
        assert power(effect.at(least), design) == pytest.approx(wanted, abs=1e-4)


def test_pairs_of_too_few_prompts_never_suffice():
    effect = Difference(difference=0.05, disagreement=0.37, intra_prompt=0.2)
    design = Design(prompts=100, pairs_per_prompt=24.8)
    assert pairs_needed(effect, design) is None
    assert prompts_needed(effect, design) == 270
    assert prompts_needed(effect.at(0.0), design) is None
    assert pairs_needed(effect.at(0.0), design) is None


def test_raters_that_err_independently_and_raters_that_err_together():
    apart = Difference.of_raters(0.78, 0.73, correlation=0.0)
    assert apart.disagreement == pytest.approx(0.78 * 0.27 + 0.22 * 0.73)
    assert apart.difference == pytest.approx(0.05)
    # The correlation is that of being right, as numpy has it.
    rights = {(1, 1): 0.645, (1, 0): 0.135, (0, 1): 0.085, (0, 0): 0.135}
    table = np.repeat(np.array(list(rights)), [round(1000 * p) for p in rights.values()], 0)
    phi = float(np.corrcoef(table.T)[0, 1])
    assert Difference.of_raters(0.78, 0.73, correlation=phi).disagreement == pytest.approx(0.22)
    # As far together as they can be: one is right wherever the other is.
    top = math.sqrt(0.73 * 0.22 / (0.78 * 0.27))
    nested = Difference.of_raters(0.78, 0.73, correlation=top)
    assert nested.disagreement == pytest.approx(0.05)
    assert power(nested, one_pair_each(300)) > 0.97


def test_holm_at_its_worst_is_bonferroni():
    assert corrected_alpha(0.05, 4) == 0.0125
    assert corrected_alpha(0.05, 1) == 0.05


def test_the_expected_interval_is_the_one_that_is_reported():
    credit = np.repeat([1.0, 0.0], [78, 22])
    rater = Lead(agreement=0.78)
    low, high = rater.expected_interval(one_pair_each(100))
    found = jackknife_interval(credit, np.arange(100))
    # The jackknife divides by n - 1.
    assert (low, high) == pytest.approx((found.low, found.high), abs=1e-3)


def test_the_half_width_of_a_difference_is_the_one_that_is_reported():
    random = np.random.default_rng(0)
    one, other = (random.random((2, 600)) < [[0.7], [0.6]]).astype(float)
    clusters = np.repeat(np.arange(100), 6)
    (row,) = seen_differences({"one": one, "other": other}, "other", clusters)
    found, p = paired_difference(one, other, clusters)
    assert row.found == found
    assert row.p_holm == p
    assert row.differ == np.mean(one != other)
    assert row.correlation == pytest.approx(np.corrcoef(one, other)[0, 1])
    error = clustered_mean(one - other, clusters).error
    if row.intra_prompt >= 0:
        assert row.plan.half_width == pytest.approx((found.high - found.low) / 2)
    else:
        # Plans do not count on pairs that balance each other.
        assert row.plan.half_width > stats.t.isf(0.025, 99) * error


@given(st.integers(0, 10_000))
def test_the_correlation_within_prompts_gives_the_jackknife_error_back(seed):
    random = np.random.default_rng(seed)
    clusters = random.integers(0, 12, size=60)
    values = random.choice([-1.0, 0.0, 1.0], size=60) + 0.5 * (clusters % 2)
    within = intra_prompt_correlation(values, clusters)
    design = Design.of(clusters)
    if within < 1:
        error = math.sqrt(values.var() / design.independent_pairs(within))
        assert error == pytest.approx(clustered_mean(values, clusters).error)


@pytest.mark.parametrize("truth", [0.0, 0.2, 0.5])
def test_the_correlation_within_prompts_is_found_again(truth):
    random = np.random.default_rng(1)
    found = []
    for _ in range(20):
        clusters = np.repeat(np.arange(150), 6)
        shared = random.standard_normal(150)[clusters]
        values = math.sqrt(truth) * shared + math.sqrt(1 - truth) * random.standard_normal(900)
        found.append(intra_prompt_correlation(values, clusters))
    assert np.mean(found) == pytest.approx(truth, abs=0.02)


def test_where_likeness_cannot_be_told_it_is_not_a_number():
    assert math.isnan(intra_prompt_correlation(np.array([0.0, 1, 1]), [1, 2, 3]))
    assert math.isnan(intra_prompt_correlation(np.ones(4), [1, 1, 2, 2]))
    assert math.isnan(intra_prompt_correlation(np.array([0.0, 1]), [1, 1]))
    assert math.isnan(intra_prompt_correlation(np.array([]), []))


def test_raters_that_cannot_be_planned_for_are_said_so():
    clusters = np.repeat(np.arange(5), 4)
    same = np.tile([1.0, 0.0], 10)
    right = np.ones(20)
    rows = seen_differences({"base": same, "copy": same, "right": right}, "base", clusters)
    assert [row.plan is None for row in rows] == [True, False]
    assert math.isnan(rows[1].correlation)
    leads = seen_leads({"same": same, "right": right, "ties": right / 2}, clusters)
    assert [row.plan is None for row in leads] == [False, True, True]


def test_ties_make_an_interval_narrower():
    clusters = np.arange(200)
    credit = np.tile([1.0, 0.5, 0.5, 0.5, 0.0], 40)
    (row,) = seen_leads({"tied": credit}, clusters)
    assert row.plan.half_width == pytest.approx((row.found.high - row.found.low) / 2, rel=0.01)


@pytest.mark.parametrize(
    ("effect", "design", "tolerance"),
    [
        (Difference(difference=0.08, disagreement=0.3, intra_prompt=0.1),
         Design(prompts=60, pairs_per_prompt=8), 0.05),
        (Difference(difference=0.0, disagreement=0.3, intra_prompt=0.1),
         Design(prompts=60, pairs_per_prompt=8), 0.025),
        (Lead(agreement=0.6, intra_prompt=0.1), Design(prompts=60, pairs_per_prompt=5), 0.05),
    ],
)  # fmt: skip
def test_simulated_experiments_reach_the_stated_power(effect, design, tolerance):
    # 1,000 experiments: three standard errors are 0.047 at a power of 0.5, 0.021 at 0.05.
    found = simulated_power(effect, design, simulations=1_000, seed=3)
    assert found == pytest.approx(power(effect, design), abs=tolerance)


@pytest.mark.parametrize("within", [0.0, 0.3, 0.6, 1.0])
def test_drawn_pairs_have_the_shares_and_the_likeness_asked_for(within):
    sizes = np.full(40_000, 2)
    kinds = draw_kinds([0.2, 0.1, 0.7], within, sizes, np.random.default_rng(4))
    assert np.bincount(kinds) / len(kinds) == pytest.approx(np.array([0.2, 0.1, 0.7]), abs=0.01)
    credit = np.array([1.0, -1.0, 0.0])[kinds].reshape(-1, 2)
    assert np.corrcoef(credit.T)[0, 1] == pytest.approx(within, abs=0.02)


def test_the_simulation_repeats_with_its_seed():
    effect, design = Difference(difference=0.2, disagreement=0.5), one_pair_each(40)
    one, same, other = (
        simulated_power(effect, design, simulations=200, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same != other


def test_pairs_that_are_all_alike_are_simulated_as_one():
    effect = Difference(difference=0.3, disagreement=0.6, intra_prompt=1.0)
    alike = simulated_power(effect, Design(prompts=40, pairs_per_prompt=9), simulations=400)
    assert alike == pytest.approx(power(effect, one_pair_each(40)), abs=0.08)


@pytest.mark.long
@pytest.mark.parametrize("disagreement", [0.15, 0.4])
@pytest.mark.parametrize("within", [0.0, 0.1])
@pytest.mark.parametrize("wanted", [0.5, 0.8])
@pytest.mark.parametrize(
    ("prompts", "each", "evenness"),
    [(500, 4.96, 1.0), (137, 6.43, 0.934), (83, 7.46, 0.434), (20, 5.0, 1.0)],
)
def test_what_is_said_to_be_detectable_is_detected_so_often(
    prompts, each, evenness, wanted, within, disagreement
):
    design = Design(prompts=prompts, pairs_per_prompt=each, evenness=evenness)
    nothing = Difference(difference=0.0, disagreement=disagreement, intra_prompt=within)
    least = detectable(nothing, design, wanted)
    found = simulated_power(nothing.at(least), design, simulations=4_000, seed=1)
    # Three standard errors of 4,000 experiments are 0.024. With few or uneven prompts the formula
    # errs on the safe side.
    room = 0.03 if design.effective_prompts > 100 else 0.09
    assert wanted - 0.035 < found < wanted + room


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Design(prompts=1, pairs_per_prompt=5), "prompts is 1"),
        (lambda: Design(prompts=10, pairs_per_prompt=0.5), "0.5 pairs a prompt"),
        (lambda: Design(prompts=10, pairs_per_prompt=5, evenness=0), "evenness is 0"),
        (lambda: Design(prompts=10, pairs_per_prompt=5, evenness=1.1), "evenness is 1.1"),
        (lambda: Design(prompts=10, pairs_per_prompt=1, evenness=0.5), "one pair in each"),
        (lambda: Design(prompts=9, pairs_per_prompt=2, evenness=0.01).sizes(), "so unevenly"),
        (lambda: Design.of([]), "prompts is 0"),
        (lambda: Difference(difference=0.3, disagreement=0.2), "cannot differ by more"),
        (lambda: Difference(difference=0.0, disagreement=0.0), "disagreement is 0"),
        (lambda: Difference(difference=0.1, disagreement=0.2, intra_prompt=-0.1), "intra_prompt"),
        (lambda: Difference.of_raters(0.78, 0.73, disagreement=0.04), "0.050 to 0.490"),
        (lambda: Difference.of_raters(0.78, 0.73, correlation=0.95), "can have -0.323 to 0.873"),
        (lambda: Difference.of_raters(0.78, 0.73), "give one of them"),
        (lambda: Difference.of_raters(1.0, 0.73, correlation=0), "agreement is 1.0"),
        (lambda: Lead(agreement=0.0), "agreement is 0"),
        (lambda: Lead(agreement=0.6, against=1.0), "against is 1.0"),
        (lambda: Lead(agreement=0.6, spread=0), "spread is 0"),
        (lambda: Lead(agreement=0.6, intra_prompt=math.nan), "intra_prompt is nan"),
        (lambda: corrected_alpha(0, 2), "alpha is 0"),
        (lambda: corrected_alpha(0.05, 0), "comparisons is 0"),
        (lambda: detectable(Lead(agreement=0.6), one_pair_each(9), 1.0), "power is 1.0"),
        (lambda: prompts_needed(Lead(agreement=0.6), one_pair_each(9), 0.01), "above alpha"),
        (lambda: simulated_power(Lead(agreement=0.9, spread=0.1), one_pair_each(9)), "cannot be"),
        (lambda: seen_differences({"a": np.ones(4)}, "a", [1, 1, 2, 2]), "beside the reference"),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_are_named(make, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make()


def test_a_name_that_looks_like_a_formula_is_harmless_in_csv(tmp_path):
    one = plan("=2+2", Lead(agreement=0.6), one_pair_each(50))
    write_power_csv([one], tmp_path / "power.csv")
    with (tmp_path / "power.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["case"] == "'=2+2"
    assert float(row["power"]) == pytest.approx(one.power, abs=1e-6)
    assert set(row) == set(Plan.__dataclass_fields__)


@pytest.fixture(scope="module")
def program(load_program):
    return load_program("eval/power.py")


CASE = {
    "agreement": 0.78, "reference": 0.73, "correlation": [0.3, 0.0], "intra_prompt": [0.0, 0.1],
    "pairs": 2480, "prompts": [300, 1000],
}  # fmt: skip


def test_the_program_plans_cases(program, tmp_path, capsys):
    lead = {"agreement": 0.612, "pairs": 2480, "prompts": [300]}
    config = program.Config(out=tmp_path, cases={"two": CASE, "one": lead}, comparisons=3)
    program.main(config)
    text = capsys.readouterr().out
    found = json.loads((tmp_path / "power.json").read_text())
    assert [row["case"] for row in found["plans"]] == ["two"] * 8 + ["one"]
    effect = Difference.of_raters(0.78, 0.73, correlation=0.0, intra_prompt=0.1)
    design = Design(prompts=1000, pairs_per_prompt=2.48)
    assert found["plans"][7]["power"] == pytest.approx(power(effect, design, 0.05 / 3), abs=1e-6)
    alone = power(Lead(agreement=0.612), Design(prompts=300, pairs_per_prompt=2480 / 300))
    assert found["plans"][8]["power"] == pytest.approx(alone, abs=1e-6)
    assert (tmp_path / "power.txt").read_text() == text
    for name in ("two", "one"):
        assert "pairs needed" in (tmp_path / f"power_{name}.svg").read_text()
        assert (tmp_path / f"power_{name}.png").read_bytes().startswith(b"\x89PNG")
    (points, pairs) = found["curves"][0]["lines"]["1 a prompt"][-1]
    assert points == 20
    assert pairs == prompts_needed(effect.at(0.2), one_pair_each(2), 0.8, 0.05 / 3)
    program.main(config)
    assert capsys.readouterr().out.startswith("unchanged")


def test_the_program_measures_an_evaluation(program, load_program, pair_table, tmp_path, capsys):
    random = np.random.default_rng(0)
    words = [" ".join(["word"] * count) for count in range(1, 90)]
    rows = []
    for place in range(120):
        longer, shorter = sorted(random.choice(len(words), 2, replace=False))[::-1]
        sides = (longer, shorter) if random.random() < 0.7 else (shorter, longer)
        rows.append(
            {"chosen": words[sides[0]], "rejected": words[sides[1]], "prompt_id": f"p{place % 30}"}
        )
    write_table(pair_table(rows), tmp_path / "pairs.parquet")
    benchmark = load_program("eval/benchmark.py")
    benchmark.main(
        benchmark.Config(
            pairs=tmp_path / "pairs.parquet", out=tmp_path / "judged", reference="random",
            raters={name: {"kind": name} for name in ("longer", "shorter", "random")},
        )
    )  # fmt: skip
    capsys.readouterr()
    program.main(program.Config(out=tmp_path / "out", evaluation=tmp_path / "judged"))
    assert "120 pairs, 30 prompts" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "power.json").read_text())
    board = json.loads((tmp_path / "judged" / "leaderboard.json").read_text())
    by_name = {row["rater"]: row for row in board}
    assert [row["rater"] for row in found["differences"]] == ["longer", "shorter"]
    for row in found["differences"]:
        comparison = by_name[row["rater"]]["comparison"]
        assert row["found"] == comparison["difference"]
        assert row["p_holm"] == comparison["p_holm"]
        assert row["reference"] == "random"
    assert {row["rater"]: row["found"] for row in found["leads"]} == {
        name: row["agreement"] for name, row in by_name.items()
    }
    assert (tmp_path / "out" / "power_seen_2.svg").exists()
    program.main(
        program.Config(
            out=tmp_path / "two", evaluation=tmp_path / "judged", raters=["shorter"],
            reference="longer",
        )
    )  # fmt: skip
    (row,) = json.loads((tmp_path / "two" / "power.json").read_text())["differences"]
    assert (row["rater"], row["reference"]) == ("shorter", "longer")
    assert row["correlation"] == pytest.approx(-1)
    with pytest.raises(ConfigError, match=r"raters: 'longr' has no verdicts.*longer"):
        program.main(
            program.Config(out=tmp_path / "no", evaluation=tmp_path / "judged", raters=["longr"])
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference": None}, "give reference too"),
        ({"disagreement": [0.3]}, "one of them"),
        ({"correlation": []}, "one of them"),
        ({"prompts": []}, "prompts and intra_prompt"),
        ({"prompts": [5000]}, "no more prompts"),
        ({"prompts": [300, 0]}, "prompts is"),
        ({"prompt": [300]}, "prompts"),
    ],
)
def test_a_case_that_cannot_be_is_named(program, tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        program.main(program.Config(out=tmp_path, cases={"two": {**CASE, **change}}))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "cases and evaluation are empty"),
        ({"cases": {"../two": CASE}}, "name of a plot"),
        ({"cases": {"two": 3}}, "give it keys"),
        ({"cases": {"two": CASE}, "alpha": 2}, "alpha is 2"),
        ({"cases": {"two": CASE}, "power": 1}, "power is 1"),
        ({"cases": {"two": CASE}, "comparisons": -1}, "comparisons is -1"),
        ({"cases": {"two": CASE}, "comparisons": 0}, "comparisons is 0"),
        ({"cases": {"two": CASE}, "simulations": -5}, "simulations is -5"),
        ({"cases": {"two": CASE}, "points": [5, 0]}, r"points is \[5, 0\]"),
        ({"cases": {"two": CASE}, "pairs_per_prompt": [0.5]}, "pairs_per_prompt is"),
    ],
)
def test_a_config_that_cannot_be_is_named(program, tmp_path, keys, message):
    with pytest.raises(ConfigError, match=message):
        program.main(program.Config(out=tmp_path, **keys))
