"""Print the lines of Python of each room: the core, the extensions, the tests.

python tests/rooms.py
"""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Imports run from the last to the first.
CORE = ("runs", "data", "metrics", "raters", "models", "judges", "evaluation")
PROGRAMS = ("data_prep", "train", "eval")


def extensions() -> list[str]:
    """Names of the packages in litbench/ that the core does not know."""
    folders = {path.parent.name for path in (ROOT / "litbench").glob("*/__init__.py")}
    return sorted(folders - {*CORE, "programs"})


def lines_of(folder: Path) -> int:
    """Lines of all Python files below a folder."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


def main() -> None:
    """Count and print."""
    package = ROOT / "litbench"
    door = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in package.glob("*.py"))
    rooms = {
        folder.name: lines_of(folder) for folder in sorted(package.iterdir()) if folder.is_dir()
    }
    core = Counter({"door": door, **{name: rooms[name] for name in CORE}})
    core |= {f"{name}/": lines_of(ROOT / name) for name in PROGRAMS}
    others = Counter({name: rooms[name] for name in extensions()})
    for title, group in (("core", core), ("extensions", others)):
        print(
            f"{title:<12} {group.total():>7,}  ",
            ", ".join(f"{n} {c:,}" for n, c in group.most_common()),
        )
    print(f"{'tests':<12} {lines_of(ROOT / 'tests'):>7,}")


if __name__ == "__main__":
    main()
