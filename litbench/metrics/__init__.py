"""Agreement, bias, calibration and intervals: pure functions of verdicts."""
