"""Placement on a reference distribution. GOLDEN and WEBNOVELBENCH name the published data."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import percentileofscore

from litbench.errors import DataError
from litbench.metrics.placement import ReferenceDistribution

NAMES = ("devices", "detail", "dialogue", "coherence")
published = pytest.mark.skipif(
    not {"GOLDEN", "WEBNOVELBENCH"} <= set(os.environ), reason="GOLDEN or WEBNOVELBENCH not set"
)


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
    eigenvalues, vectors = np.linalg.eigh(np.corrcoef(ratings.T))
    loadings = np.abs(vectors[:, -1])
    assert fitted.weights == pytest.approx(loadings / loadings.sum())
    assert fitted.weights.sum() == pytest.approx(1)
    assert fitted.weights.argmin() == 1
    assert fitted.explained_variance == pytest.approx(eigenvalues[-1] / 4)


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


def test_reversed_columns_keep_the_composite():
    ratings = planted()
    fitted = ReferenceDistribution.fit(ratings, NAMES)
    mirrored = ReferenceDistribution.fit(ratings[:, ::-1], NAMES[::-1])
    assert mirrored.composite(ratings[:, ::-1]) == pytest.approx(fitted.composite(ratings))


def test_percentiles_are_those_of_scipy_with_ties():
    ratings = np.repeat(planted(40), 2, axis=0)
    fitted = ReferenceDistribution.fit(ratings, NAMES)
    places = np.vstack([ratings, planted(20, seed=1)])
    for kind, rank in (("weak", False), ("rank", True)):
        expected = [percentileofscore(fitted.values, v, kind) for v in fitted.value(places)]
        assert fitted.percentile(places, rank=rank) == pytest.approx(expected)


def test_a_missing_rating_has_no_place():
    fitted = ReferenceDistribution.fit(planted(), NAMES)
    placed = fitted.percentile(np.array([[3, 3, 3, np.nan], [3, 3, 3, 3]]))
    assert np.isnan(placed).tolist() == [True, False]


def test_a_file_reads_back_the_same(tmp_path):
    fitted = ReferenceDistribution.fit(planted(), NAMES)
    fitted.write(tmp_path / "first.json")
    again = ReferenceDistribution.read(tmp_path / "first.json", NAMES)
    again.write(tmp_path / "second.json")
    assert (tmp_path / "first.json").read_bytes() == (tmp_path / "second.json").read_bytes()
    values = fitted.values[::-1].tolist()
    unsorted = written(tmp_path, normalized_existing_scores=values)
    for read in (again, ReferenceDistribution.read(unsorted, NAMES)):
        places = read.percentile(planted(seed=1))
        assert places.tolist() == fitted.percentile(planted(seed=1)).tolist()


def test_bad_tables_are_refused():
    ratings = planted()
    constant, missing = ratings.copy(), ratings.copy()
    constant[:, 2] = 3.1
    missing[5, 0] = np.nan
    against = ratings * [1, 1, 1, -1]
    for table, message in (
        (ratings[:9], "9 works: a reference needs at least 10"),
        (ratings[:0], "0 works"),
        (ratings[:, :3], r"shape \(300, 3\) for 4 criteria"),
        (constant, "dialogue has no positive deviation"),
        (missing, "1 of 300 works lack a rating"),
        (against, "coherence runs against the first principal component"),
    ):
        with pytest.raises(DataError, match=message):
            ReferenceDistribution.fit(table, NAMES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"std": [0.1, 0, 0.2, 0.1]}, r"reference\.json: detail has no positive deviation"),
        ({"normalized_existing_scores": [0.5] * 9}, "9 works: a reference needs at least 10"),
        ({"mean": [3, 3, 3]}, "3 means, 4 deviations and 4 weights for 4 criteria"),
        ({"weights": "equal"}, "not a reference distribution"),
        ({"criteria": ["plot", *NAMES[1:]]}, "made for criteria plot, detail.*fit one for these"),
        ({"max_score": "high"}, r"not a reference distribution .*fixed_parameters\.json"),
        ({"mean": [3, 3, 3, float("nan")]}, "a number is not finite"),
        ({"max_score": -9}, "min_score not below max_score"),
    ],
)
def test_bad_files_are_refused(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        ReferenceDistribution.read(written(tmp_path, **changes), NAMES)


@published
def test_published_parameters():
    path = Path(os.environ["WEBNOVELBENCH"]) / "fixed_parameters.json"
    reference = ReferenceDistribution.read(path, [f"D{k}" for k in range(1, 9)])
    example = [3.5, 3.5, 4.0, 3.8, 4.1, 3.9, 4.1, 4.0]
    assert round(float(reference.composite(example)), 5) == 1.96726
    assert round(float(reference.value(example)), 4) == 0.8749
    assert round(float(reference.percentile(example)), 2) == 99.31
    same = np.array([[mark] * 8 for mark in (2.5, 3, 3.5, 4)])
    assert reference.percentile(same).round(2).tolist() == [0.58, 23.38, 79.29, 99.75]
    deciles = np.quantile(reference.values, np.arange(0.1, 1, 0.1)).round(4).tolist()
    assert deciles == [0.3889, 0.4397, 0.4821, 0.523, 0.5625, 0.6044, 0.6479, 0.6898, 0.7414]
    assert round(reference.explained_variance, 4) == 0.7559


@published
def test_places_are_as_published():
    path = Path(os.environ["WEBNOVELBENCH"]) / "fixed_parameters.json"
    reference = ReferenceDistribution.read(path, [f"D{k}" for k in range(1, 9)])
    file = Path(os.environ["GOLDEN"]) / "webnovel" / "scoring.json"
    cases = json.loads(file.read_text(encoding="utf-8"))["scoring"]
    vectors = [case for case in cases if "scores" in case]
    ties = [case for case in cases if "normalized_given" in case]
    assert (len(vectors), len(ties)) == (84, 5)
    ratings = [case["scores"] for case in vectors]

    def column(name, rows=vectors):
        return [row[name] for row in rows]

    assert reference.composite(ratings) == pytest.approx(column("combined"), abs=1e-9)
    assert reference.value(ratings) == pytest.approx(column("normalized_unrounded"), abs=1e-9)
    assert reference.value(ratings).round(4).tolist() == column("expected_normalized")
    ranks = reference.percentile(ratings, rank=True)
    assert ranks.round(2).tolist() == column("expected_percentile")
    weak = reference.percentile(ratings) / 100
    assert weak == pytest.approx(column("ecdf_weak"), abs=1e-9)
    given = column("normalized_given", ties)
    weak, ranks = (reference.percentile_of_value(given, rank=rank) for rank in (False, True))
    assert weak == pytest.approx(column("percentile_weak", ties), abs=1e-9)
    assert ranks == pytest.approx(column("percentile_rank", ties), abs=1e-9)
