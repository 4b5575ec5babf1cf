"""The pipeline's numbers stay the same unless a change is meant to change them."""

import json
from pathlib import Path

import pytest
from frozen_numbers import compute

FROZEN = json.loads(Path(__file__).with_name("frozen.json").read_text(encoding="utf-8"))


def approximate(value):
    """The value, with its floats compared to 1e-6: another BLAS adds in another order."""
    if isinstance(value, dict):
        return {key: approximate(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [approximate(inner) for inner in value]
    return pytest.approx(value, abs=1e-6) if isinstance(value, float) else value


def test_numbers_are_as_frozen(tmp_path):
    for name, numbers in compute(tmp_path).items():
        assert numbers == approximate(FROZEN[name]), name


@pytest.mark.long
def test_the_quickstart_with_minilm_is_as_frozen(tmp_path):
    result = compute(tmp_path, minilm=True)
    assert result["quickstart"] == approximate(FROZEN["quickstart_minilm"])
