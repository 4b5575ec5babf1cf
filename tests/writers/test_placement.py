"""Placement on a reference distribution. WEBNOVELBENCH names the folder of the published data."""

import json

import numpy as np
import pytest
from chinese_writers import folder_of, golden
from scipy.stats import percentileofscore

from litbench.runs.errors import DataError
from litbench.writers.webnovel.placement import ReferenceDistribution

NAMES = ("devices", "detail", "dialogue", "coherence")


def planted(n=300, seed=0):
    """Ratings that share one factor, with different loadings."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=(n, len(NAMES)))
    return 3 + 0.3 * (random.normal(size=(n, 1)) * [1.0, 0.6, 0.8, 0.9] + 0.5 * noise)


def written(tmp_path, **changes):
    path = tmp_path / "reference.json"
    ReferenceDistribution.fit(planted(), NAMES).write(path)
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_fit_weights_by_the_first_principal_component():
    ratings = planted()
    fitted = ReferenceDistribution.fit(ratings, NAMES)
    shares, vectors = np.linalg.eigh(np.corrcoef(ratings.T))
    loadings = np.abs(vectors[:, -1])
    assert fitted.weights == pytest.approx(loadings / loadings.sum())
    assert fitted.weights.sum() == pytest.approx(1)
    assert fitted.weights.argmin() == 1
    assert fitted.explained == pytest.approx(shares[::-1] / len(NAMES))


def test_a_fit_places_its_own_table_uniformly():
    ratings = planted()
    fitted = ReferenceDistribution.fit(ratings, NAMES)
    assert fitted.composite(ratings).mean() == pytest.approx(0, abs=1e-12)
    expected = 100 * np.arange(1, 301) / 300
    assert np.sort(fitted.percentile(ratings)) == pytest.approx(expected)
    assert (fitted.value(ratings).min(), fitted.value(ratings).max()) == (0, 1)
    assert fitted.value(np.full(4, 9.0)) > 1


def test_a_place_does_not_depend_on_the_other_rows():
    ratings = np.hstack([planted(), planted() ** 1.1])
    fitted = ReferenceDistribution.fit(ratings, [f"criterion {k}" for k in range(8)])
    alone = [float(fitted.percentile(row)) for row in ratings]
    assert fitted.percentile(np.asfortranarray(ratings)).tolist() == alone


def test_percentiles_are_those_of_scipy_with_ties_and_gaps():
    ratings = np.repeat(planted(40), 2, axis=0)
    fitted = ReferenceDistribution.fit(ratings, NAMES)
    places = np.vstack([ratings, planted(20, seed=1)])
    for kind, rank in (("weak", False), ("rank", True)):
        expected = [percentileofscore(fitted.values, v, kind) for v in fitted.value(places)]
        assert fitted.percentile(places, rank=rank) == pytest.approx(expected)
    placed = fitted.percentile(np.array([[3, 3, 3, np.nan], [3, 3, 3, 3]]))
    assert np.isnan(placed).tolist() == [True, False]


def test_a_file_reads_back_the_same(tmp_path):
    fitted = ReferenceDistribution.fit(planted(), NAMES)
    fitted.write(tmp_path / "first.json")
    again = ReferenceDistribution.read(tmp_path / "first.json", NAMES)
    again.write(tmp_path / "second.json")
    assert (tmp_path / "first.json").read_bytes() == (tmp_path / "second.json").read_bytes()
    reversed_values = written(tmp_path, normalized_existing_scores=fitted.values[::-1].tolist())
    unsorted = ReferenceDistribution.read(reversed_values, NAMES)
    assert unsorted.values.tolist() == fitted.values.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ratings: ratings[:9], "9 works: a reference needs at least 10"),
        (lambda ratings: ratings[:0], "0 works"),
        (lambda ratings: ratings[:, :3], r"shape \(300, 3\) for 4 criteria"),
        (lambda ratings: ratings * [1, 1, 0, 1] + 0.1, "dialogue has no positive deviation"),
        (
            lambda ratings: ratings + np.where(np.arange(300) == 5, np.nan, 0)[:, None],
            "1 of 300 works lack a rating",
        ),
        (lambda ratings: ratings * [1, 1, 1, -1], "coherence runs against the first principal"),
    ],
)
def test_bad_tables_are_refused(change, message):
    with pytest.raises(DataError, match=message):
        ReferenceDistribution.fit(change(planted()), NAMES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"std": [0.1, 0, 0.2, 0.1]}, r"reference\.json: detail has no positive deviation"),
        ({"normalized_existing_scores": [0.5] * 9}, "9 works: a reference needs at least 10"),
        ({"mean": [3, 3, 3]}, "mean, std and weights are not of 4 criteria each"),
        ({"weights": "equal"}, "not a reference distribution"),
        ({"criteria": ["plot", *NAMES[1:]]}, "made for criteria plot, detail.*fit one for these"),
        ({"max_score": "high"}, r"not a reference distribution .*fixed_parameters\.json"),
        ({"mean": [3, 3, 3, float("nan")]}, "a number is not finite"),
        ({"max_score": -9}, "min_score is not below max_score"),
    ],
)
def test_bad_files_are_refused(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        ReferenceDistribution.read(written(tmp_path, **changes), NAMES)


@pytest.fixture
def benchmark():
    path = folder_of("WEBNOVELBENCH") / "fixed_parameters.json"
    return ReferenceDistribution.read(path, [f"D{k}" for k in range(1, 9)])


def test_published_parameters(benchmark):
    example = [3.5, 3.5, 4.0, 3.8, 4.1, 3.9, 4.1, 4.0]
    assert round(float(benchmark.composite(example)), 5) == 1.96726
    assert round(float(benchmark.value(example)), 4) == 0.8749
    assert round(float(benchmark.percentile(example)), 2) == 99.31
    same = np.array([[mark] * 8 for mark in (2.5, 3, 3.5, 4)])
    assert benchmark.percentile(same).round(2).tolist() == [0.58, 23.38, 79.29, 99.75]
    deciles = np.quantile(benchmark.values, np.arange(0.1, 1, 0.1)).round(4).tolist()
    assert deciles == [0.3889, 0.4397, 0.4821, 0.523, 0.5625, 0.6044, 0.6479, 0.6898, 0.7414]


def test_places_are_as_published(benchmark):
    cases = golden("webnovel/scoring")["scoring"]
    vectors = [case for case in cases if "scores" in case]
    ties = [case for case in cases if "normalized_given" in case]
    assert (len(vectors), len(ties)) == (129, 8)

    def column(name, rows=vectors):
        return [row[name] for row in rows]

    ratings = column("scores")
    assert benchmark.composite(ratings) == pytest.approx(column("combined"), abs=1e-9)
    assert benchmark.value(ratings) == pytest.approx(column("normalized_unrounded"), abs=1e-9)
    assert benchmark.value(ratings).round(4).tolist() == column("expected_normalized")
    ranks = benchmark.percentile(ratings, rank=True)
    assert ranks.round(2).tolist() == column("expected_percentile")
    assert benchmark.percentile(ratings) / 100 == pytest.approx(column("ecdf_weak"), abs=1e-9)
    # A rating that is its own composite and value.
    plain = ReferenceDistribution(
        ("value",), np.zeros(1), np.ones(1), np.ones(1), 0.0, 1.0, benchmark.values
    )
    values = np.array(column("normalized_given", ties))[:, None]
    for kind in ("weak", "rank"):
        expected = column(f"percentile_{kind}", ties)
        assert plain.percentile(values, rank=kind == "rank") == pytest.approx(expected, abs=1e-9)
