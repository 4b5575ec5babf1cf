"""The examples of docs/extending.md run, in order, and name files that exist."""

import re
from pathlib import Path

import pytest

from litbench.raters import entries

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(python|yaml)\n(.*?)^```$", re.M | re.S)


def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(entries, "KINDS", dict(entries.KINDS))
    namespace = {"__name__": "example"}
    for kind, block in BLOCK.findall(PAGE):
        assert block.count("\n") <= 35, "an example is short"
        if kind == "yaml":
            name = block.partition("\n")[0].removeprefix("# ")
            (tmp_path / name).write_text(block, encoding="utf-8")
        else:
            exec(compile(block, "docs/extending.md", "exec"), namespace)  # noqa: S102


@pytest.mark.parametrize("section", PAGE.split("\n## ")[1:], ids=lambda text: text.split("\n")[0])
def test_the_files_to_touch_exist(section):
    cells = re.findall(r"^\| (`.*?) \|", section, re.M)
    assert cells
    for name in re.findall(r"`([\w/.]+)`", " ".join(cells)):
        paths = [ROOT / name, *ROOT.glob(f"tests/*/{name}")]
        is_new = "NAME" in name
        assert any(
            path.exists() for path in ([path.parent for path in paths] if is_new else paths)
        ), name
