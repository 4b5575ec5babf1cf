"""House rules that the linter cannot check."""

import ast
import importlib.metadata
import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import yaml

import litbench
from litbench.cli import find_command

ROOT = Path(__file__).resolve().parent.parent
PROGRAM_FOLDERS = ("data_prep", "train", "eval")
TOP_FOLDERS = (*PROGRAM_FOLDERS, "configs")
PROGRAMS = sorted(path for folder in PROGRAM_FOLDERS for path in (ROOT / folder).glob("[!_]*.py"))
CONFIGS = [
    path for path in sorted((ROOT / "configs").rglob("*.yaml")) if path.parent.name != "accelerate"
]
DOCS = ROOT / "docs"
FOLDERS = ("guides", "results")
PAGES = sorted(
    [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(p for n in FOLDERS for p in (DOCS / n).glob("*.md"))]
)
MAX_LINE, MAX_PARAGRAPH, MAX_CELL = 120, 6, 15
LAUNCH_CONFIGS = sorted((ROOT / "configs" / "accelerate").glob("*.yaml"))


def test_imports_need_no_heavy_library():
    code = (
        "import importlib, pkgutil, sys, litbench\n"
        "for found in pkgutil.walk_packages(litbench.__path__, 'litbench.'):\n"
        # Only `litbench serve` imports the server, only `litbench study serve` the study's, only
        # `inspect eval` the next, and only training, whose configs and trainers are subclasses
        # of trl's, the last five.
        # Programs import what they need.
        "    if not found.name.startswith('litbench.programs.') and found.name not in ("
        "'litbench.serve.server', 'litbench.study.server', "
        "'litbench.writers.tasks', 'litbench.suite.tasks', 'litbench.judges.scorers', "
        "'litbench.inspect_tasks', 'litbench.models.packing', 'litbench.models.training', "
        "'litbench.models.reward_training', 'litbench.models.generative_training', "
        "'litbench.models.publishing'):\n"
        "        importlib.import_module(found.name)\n"
        "heavy = {'torch', 'nltk', 'jieba', 'transformers', 'trl', 'datasets', "
        "'accelerate', 'peft', 'sklearn', "
        "'matplotlib', 'praw', 'wandb', 'inspect_ai', 'pyspark', 'rensa', "
        "'huggingface_hub', 'fastapi', 'uvicorn', 'prometheus_client'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"imported at once: {done.stderr}"


def test_the_core_can_be_imported_without_extensions():
    code = (
        "import importlib, pkgutil, sys\n"
        f"sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "import litbench, rooms\n"
        "sys.modules.update(dict.fromkeys([f'litbench.{name}' for name in rooms.extensions()]))\n"
        "import litbench.api, litbench.cli\n"
        "for room in rooms.CORE:\n"
        "    package = importlib.import_module(f'litbench.{room}')\n"
        "    for module in pkgutil.walk_packages(package.__path__, f'litbench.{room}.'):\n"
        "        importlib.import_module(module.name)\n"
        "for name in ('fit', 'score', 'judge', 'data make_pairs', 'eval benchmark'):\n"
        "    litbench.cli.find_command(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_program_shadows_a_package():
    installed = {name.lower() for name in importlib.metadata.packages_distributions()}
    shadowing = [path for path in PROGRAMS if path.stem in installed | set(sys.stdlib_module_names)]
    assert not shadowing
    forbidden = {"evaluate", "datasets", "accelerate", "trl", "tokenizers", "wandb", "praw"}
    assert not [path for path in PROGRAMS if path.stem in forbidden]


def test_module_names():
    vague = {"utils", "helpers", "common", "misc"}
    assert not [
        path for path in ROOT.glob("*/**/*.py") if path.stem in vague and ".venv" not in path.parts
    ]
    # Test folders are no packages: pytest cannot collect two files of one name.
    names = Counter(path.stem for path in (ROOT / "tests").rglob("*.py"))
    assert names.most_common(1)[0][1] == 1, names.most_common(1)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_program_reads_from_top_to_bottom(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstring = ast.get_docstring(tree) or ""
    group = path.parent.name.removesuffix("_prep")
    assert f"litbench {group} {path.stem} --config" in docstring, "the docstring names the command"
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assigned = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
    names |= {target.id for target in assigned if isinstance(target, ast.Name)}
    assert {"Config", "main"} <= names
    imported = {
        module.split(".")[0]
        for node in ast.walk(tree)
        for module in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not imported & {program.stem for program in PROGRAMS}, "programs do not import programs"
    runs_at_import = [
        node for node in tree.body if isinstance(node, ast.Expr | ast.For | ast.While)
    ]
    assert len(runs_at_import) == 1, "only the docstring is an expression at module level"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_config_header_and_keys(path, monkeypatch):
    text = path.read_text(encoding="utf-8")
    header = "\n".join(line for line in text.split("\n") if line.startswith("#"))
    shown = re.findall(
        r"((?:data_prep|train|eval)/\w+\.py|litbench \w+(?: \w+)?) --config (\S+)", header
    )
    programs = [name for name, config in shown if config == str(path.relative_to(ROOT))]
    assert len(set(programs)) == 1, "the header shows the command with this very file"
    for name in re.findall(r"\$(\w+)", text):
        monkeypatch.setenv(name, "/somewhere")
    from litbench.runs.config import load_config  # noqa: PLC0415

    if programs[0].startswith("litbench "):
        namespace = {"Config": find_command(programs[0].removeprefix("litbench "))[1]}
    else:
        program = ROOT / programs[0]
        namespace = {"__name__": "program"}
        exec(compile(program.read_text(encoding="utf-8"), program, "exec"), namespace)  # noqa: S102

    # A config for a GPU is refused on a machine without one.
    cpu = ["--use_cpu", "true"] if "bf16: true" in text and programs[0].startswith("train") else []
    content = yaml.safe_load(text)
    presets = content.pop("presets", {})
    for preset in (None, *presets):
        inputs = [] if preset is None else ["--preset", preset]
        config = load_config(namespace["Config"], ["--config", str(path), *inputs, *cpu])
        assert set(content) | set(presets.get(preset, {})) <= set(vars(config))


@pytest.mark.parametrize("path", LAUNCH_CONFIGS, ids=lambda path: path.name)
def test_launch_config(path):
    from accelerate.commands.config.config_args import load_config_from_file  # noqa: PLC0415

    name = path.relative_to(ROOT)
    assert f"accelerate launch --config_file {name} " in path.read_text(encoding="utf-8")
    assert load_config_from_file(str(path)).num_machines == 1


@pytest.mark.parametrize("path", [*CONFIGS, *LAUNCH_CONFIGS], ids=lambda path: path.name)
def test_line_2_of_a_config_says_whether_it_was_run(path):
    status = path.read_text(encoding="utf-8").split("\n")[1]
    words = r"# (run \d{4}-\d\d-\d\d|dry run only|not run \(needs [^()]+\))"
    assert re.fullmatch(words, status), status


def test_the_wheel_holds_programs_and_configs_and_runs(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    source = tmp_path / "source"
    for folder in ("litbench", *TOP_FOLDERS):
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"litbench-{litbench.__version__}-")
    assert wheel.stat().st_size < 1_250_000
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    inside = {"litbench": "litbench", **{n: f"litbench/programs/{n}" for n in TOP_FOLDERS}}
    for folder, index in inside.items():
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                packed = tmp_path / "site" / index / path.relative_to(ROOT / folder)
                assert packed.exists(), f"{path} is not in the wheel: see setup.py"
    config = "configs/data/sample_stories.yaml"
    command = [sys.executable, "-m", "litbench", "data", "make_stories", "--config", config]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [*command, "--out", "made"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made" / "stories.parquet").exists()


def test_every_dependency_is_pinned():
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    needed = [re.match(r"[\w.-]+", line)[0] for line in lines]
    canonical = {re.sub(r"[-_.]+", "-", name).lower() for name in needed} - {"litbench"}
    assert canonical <= pinned, "run: make update"


def anchors_of(path):
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    names = re.findall(r"^#+ (.+?)\s*$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in names}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        if re.match(r"\w+:", target):
            continue
        result = path.parent / file if file else path
        if not result.exists() or (anchor and anchor not in anchors_of(result)):
            broken.append(target)
    assert not broken


def test_every_page_of_docs_is_in_the_contents():
    listed = re.findall(r"^[\w/]+$", (DOCS / "index.md").read_text(), re.M)
    results = re.findall(r"^\w+$", (DOCS / "results/index.md").read_text(), re.M)
    listed += [f"results/{name}" for name in results]
    pages = {path.relative_to(DOCS) for path in PAGES if path.is_relative_to(DOCS)}
    assert {page.with_suffix("").as_posix() for page in pages} - {"index"} <= set(listed)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_have_short_lines_paragraphs_and_cells(path):
    """A row of a table is one line, however long; its cells are short instead."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    lines = text.split("\n")
    rows = [line for line in lines if line.startswith("|")]
    cells = [cell for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert not [cell for cell in cells if len(cell.split()) > MAX_CELL]
    assert not [line for line in lines if len(line) > MAX_LINE and not line.startswith("|")]
    paragraphs = [
        block
        for block in re.split(r"\n\n+|\n(?= *- |\d+\. )", text)
        if not re.match(r"\||    |#", block.lstrip("\n")) and "\n|" not in block
    ]
    assert not [block for block in paragraphs if block.strip("\n").count("\n") >= MAX_PARAGRAPH]
