"""Progress where there is no terminal: lines in a log, and the last one shows the end."""

import pytest

from litbench.runs import progress


@pytest.mark.parametrize(("steps", "last"), [(10, "100%"), (7, "70%")])
def test_the_last_line_shows_the_end(steps, last, monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SECONDS", 0.0)
    with progress.ProgressBar(total=10, desc="training", mininterval=0) as bar:
        bar.update(3)
        # Later steps come before the next line is due.
        bar.mininterval = bar.miniters = 1e9
        bar.update(steps - 3)
    lines = capsys.readouterr().err.splitlines()
    assert " 30% " in lines[-2]
    assert f" {last} " in lines[-1]


def test_short_work_writes_no_line(capsys):
    with progress.ProgressBar(total=10, desc="training", mininterval=0) as bar:
        bar.update(10)
    assert not capsys.readouterr().err


def test_nested_bars_move_no_cursor(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SECONDS", 0.0)
    for _ in progress.ProgressBar(range(2), desc="outer", mininterval=0):
        for _ in progress.ProgressBar(range(2), desc="inner", mininterval=0):
            pass
    lines = capsys.readouterr().err.splitlines()
    assert {line.partition(":")[0] for line in lines} == {"outer", "inner"}
