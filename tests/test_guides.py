"""Every command of the guides runs, on the sample and a tiny model, and prints what the page shows.

A block `console` has commands after `$ ` and what they print. A line `...` stands for any lines, at
the end of a line for its rest. Numbers may differ by 0.02 or 5 %; those before a unit of time, and
all of a block `console shape`, may differ by any amount. Blocks `python` run; of blocks `sh`, which
need a GPU, a provider or other data, the names of commands and keys are checked.
"""

import contextlib
import dataclasses
import io
import math
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_openai import KEY, FakeOpenAI

from litbench.cli import command_names, find_command, main

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "guides"
# In this order: later guides use the folders of earlier ones.
GUIDES = ["tutorial", "train", "judges", "score", "ablate", "how_do_i"]
BLOCK = re.compile(r"^```(console shape|console|python|sh)\n(.*?)^```$", re.M | re.S)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
TIME = re.compile(r"[\d,.]+ s\b")
# Printed on slow machines only.
PROGRESS = re.compile(r"\w.*: +\d+%  \S+<")


def blocks(guide, *kinds):
    """The kind and the text of a guide's blocks."""
    text = (FOLDER / f"{guide}.md").read_text(encoding="utf-8")
    return [(kind, block) for kind, block in BLOCK.findall(text) if kind in kinds]


def commands(block):
    """The commands of a block, each with the lines that it prints."""
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        lines = part.splitlines()
        end = next(k for k, line in enumerate(lines) if not line.endswith("\\")) + 1
        yield "\n".join(lines[:end]), [line for line in lines[end:] if line.strip()]


def is_same(shown, printed, *, is_shape):
    """Whether a printed line is the shown one, within tolerance."""
    shown, printed = (" ".join(TIME.sub("T", line).split()) for line in (shown, printed))
    if shown.endswith("..."):
        shown = shown.removesuffix("...").rstrip()
        # As many words as are shown.
        printed = " ".join(printed.split()[: len(shown.split())])
    numbers = [[float(n.replace(",", "")) for n in NUMBER.findall(s)] for s in (shown, printed)]
    has_same_words = NUMBER.sub("N", shown) == NUMBER.sub("N", printed)
    return has_same_words and (
        is_shape
        or all(
            math.isclose(a, b, rel_tol=0.05, abs_tol=0.02) for a, b in zip(*numbers, strict=True)
        )
    )


def check_output(shown, printed, *, is_shape=False):
    """Assert that the shown lines are printed, in their order and without others between them."""
    position, may_skip = 0, False
    for line in shown:
        if line.strip() == "...":
            may_skip = True
            continue
        places = range(position, len(printed) if may_skip else min(position + 1, len(printed)))
        index = next((k for k in places if is_same(line, printed[k], is_shape=is_shape)), None)
        assert index is not None, f"not printed: {line!r}, but {printed[position:]}"
        position, may_skip = index + 1, False
    assert may_skip or position == len(printed), f"not shown: {printed[position:]}"


@pytest.mark.parametrize(
    ("shown", "printed", "is_right"),
    [
        (["a 0.80", "b"], ["a  0.81", "b"], True),
        (["a 0.80"], ["a 0.90"], False),
        (["took 3 s"], ["took 80 s"], True),
        (["a"], ["a", "b"], False),
        (["a", "..."], ["a", "b"], True),
        (["...", "c"], ["a", "b", "c"], True),
        (["a", "c"], ["a", "b", "c"], False),
        (["a 1 ..."], ["a 1 anything"], True),
        (["a 1 ..."], ["a 7 anything"], False),
        (["word"], ["other"], False),
    ],
)
def test_a_page_that_shows_something_else_is_found(shown, printed, is_right):
    if is_right:
        check_output(shown, printed)
    else:
        with pytest.raises(AssertionError):
            check_output(shown, printed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("guides")


@pytest.fixture(scope="module")
def judge_server():
    with FakeOpenAI() as server:
        yield server


@pytest.fixture(scope="module")
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def adapted(judge_server, port, tiny_model):
    """A shown command with addresses of this test, and a tiny model."""
    # The shown training takes minutes with MiniLM.
    training = f"--model_name_or_path {tiny_model('bert')} --config"
    replaced = {
        "http://localhost:8000/v1": judge_server.url,
        "localhost:8000": f"localhost:{port}",
        "serve --model": f"serve --port {port} --model",
        "API_KEY=none": f"API_KEY={KEY}",
        "bradley_terry --config": f"bradley_terry {training}",
    }

    def adapt(command):
        for old, new in replaced.items():
            command = command.replace(old, new)
        return command

    return adapt


@pytest.mark.parametrize("guide", GUIDES)
def test_commands_print_what_the_guide_shows(guide, folder, adapted, port, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with contextlib.ExitStack() as servers:
        for kind, block in blocks(guide, "console", "console shape", "python"):
            if kind == "python":
                exec(block, {})  # noqa: S102
                continue
            for shown_command, shown in commands(block):
                command = adapted(shown_command)
                if command.startswith("export "):
                    for word in shlex.split(command)[1:]:
                        monkeypatch.setenv(*word.split("=", 1))
                elif command.endswith(" &"):
                    server = subprocess.Popen(shlex.split(command)[:-1])
                    servers.enter_context(server)
                    servers.callback(server.terminate)
                    wait_for(port)
                else:
                    monkeypatch.setattr(sys, "argv", shlex.split(command.replace("\\\n", " ")))
                    output = in_process() if sys.argv[0] == "litbench" else in_shell(command)
                    lines = output.replace(str(folder.resolve()), "").splitlines()
                    printed = [n for n in lines if n.strip() and not PROGRESS.match(n)]
                    check_output(shown, printed, is_shape=kind == "console shape")


def in_process():
    """What `litbench` prints on both streams; without a process of its own, which takes seconds."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        main()
    return printed.getvalue()


def in_shell(command):
    """What a command of the shell prints on both streams."""
    return subprocess.run(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=True,
    ).stdout


def wait_for(port):
    """Wait until a server's port opens."""
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"nothing listens on port {port}")


@pytest.mark.parametrize("guide", GUIDES)
def test_commands_that_need_more_have_known_names_and_keys(guide):
    lines = [
        line
        for _, block in blocks(guide, "sh")
        for line in block.replace("\\\n", " ").splitlines()
        if "litbench " in line
    ]
    for line in lines:
        words = shlex.split(line)
        words = words[words.index("litbench") + 1 :]
        name = words[0] if words[0] in command_names() else " ".join(words[:2])
        _, config, _ = find_command(name)
        keys = {field.name.rstrip("_") for field in dataclasses.fields(config)}
        for word in words:
            if word.startswith("--") and word not in ("--config", "--preset"):
                assert word[2:].partition(".")[0] in keys, f"{line}: {word}"


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_is_short(guide):
    text = (FOLDER / f"{guide}.md").read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    # Of how_do_i, each section.
    parts = prose.split("\n## ") if guide == "how_do_i" else [prose]
    limit = 200 if guide == "how_do_i" else 500
    assert max(len(part.split()) for part in parts) <= limit
