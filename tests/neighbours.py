"""Write the table of docs/neighbours.md: which packages of the field install beside LitBench.

pip install uv && python tests/neighbours.py

uv resolves the newest release of each package, once alone and once together with LitBench's extras
for training, judges and serving. Nothing is installed. It takes about ten minutes.
"""

import datetime
import re
import subprocess
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/neighbours.md"
_PYTHON = "3.12"
_PLATFORM = "x86_64-manylinux_2_28"
_MAX_CONFLICTS = 3
_EXTRAS = ("data", "judge", "report", "serve", "train")
# Package, and what to do where it does not install beside LitBench.
_PACKAGES = {
    "alpaca-eval": "run it in its own environment, and import its annotations as pairs",
    "axolotl": "train there, and give the saved folder to `litbench score`",
    "deepeval": "run it in its own environment, and call `litbench serve` over HTTP",
    "inspect-evals": "run it in its own environment",
    "lighteval": "run it in its own environment",
    "lm-eval": "run it in its own environment",
    "openrlhf": "run it in its own environment, and call `litbench serve` as its remote reward",
    "rewardbench": "give it the saved folder in its own environment",
    "sentence-transformers": "load the saved folder in its own environment",
    "sglang": "run its server in its own environment, and name its address as `base_url`",
    "unsloth": "train there, and give the saved folder to `litbench score`",
    "verifiers": "run it in its own environment, and call `litbench serve` over HTTP",
    "vllm": "run its server in its own environment, and name its address as `base_url`",
}
_START, _END = "<!-- neighbours -->\n", "<!-- end -->\n"


def resolve(requirements: list[str]) -> dict[str, str] | None:
    """Resolve requirements to versions by package; None if nothing satisfies them all."""
    with tempfile.NamedTemporaryFile("w", suffix=".in") as file:
        file.write("\n".join(requirements))
        file.flush()
        options = ["--no-annotate", "--no-header", "--quiet", "--python-version", _PYTHON]
        run = subprocess.run(
            ["uv", "pip", "compile", file.name, *options, "--python-platform", _PLATFORM],
            capture_output=True,
            text=True,
            check=False,
        )
    if run.returncode and "No solution" not in run.stderr:
        raise SystemExit(f"uv failed on {requirements[-1]}: {run.stderr}")
    return None if run.returncode else dict(re.findall(r"^([\w.-]+)==(\S+)", run.stdout, re.M))


def bounds() -> dict[str, Requirement]:
    """LitBench's requirements for the extras of the table, by package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras, names, texts = project["optional-dependencies"], [*_EXTRAS], [*project["dependencies"]]
    for name in names:
        for text in extras[name]:
            requirement = Requirement(text)
            if requirement.name == "litbench":
                names += requirement.extras - set(names)
            else:
                texts.append(text)
    return {requirement.name: requirement for requirement in map(Requirement, texts)}


def row(package: str, advice: str) -> str:
    """The table's row of a package."""
    alone = resolve([package])
    if alone is None:
        raise SystemExit(f"{package} has no release for Python {_PYTHON}")
    version, ours = alone[package], bounds()
    if resolve([*map(str, ours.values()), f"{package}=={version}"]):
        return f"| {package} | {version} | yes | |"
    conflicts = [
        f"{name} {alone[name]} (not {requirement.specifier})"
        for name, requirement in ours.items()
        if name in alone and alone[name] not in requirement.specifier
    ]
    reason = ", ".join(conflicts[-_MAX_CONFLICTS:]) or "one of its indirect requirements"
    return f"| {package} | {version} | no: {reason} | {advice} |"


def main() -> None:
    """Resolve each package, and replace the table."""
    rows = [row(package, advice) for package, advice in _PACKAGES.items()]
    today = datetime.datetime.now(datetime.UTC).date()
    table = "\n".join(
        [
            f"Resolved on {today} for Python {_PYTHON} on Linux.",
            "",
            "| package | newest release | installs beside LitBench | otherwise |",
            "| --- | --- | --- | --- |",
            *rows,
        ]
    )
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_START)
    after = rest.partition(_END)[2]
    PAGE.write_text(f"{before}{_START}{table}\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
