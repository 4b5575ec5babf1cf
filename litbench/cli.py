"""The litbench command: every program of LitBench under one name, with one grammar.

    litbench fit posts.jsonl --out runs/mine
    litbench data make_pairs --config configs/data/sample_pairs.yaml
    accelerate launch -m litbench train bradley_terry --config configs/paper/bradley_terry.yaml

`litbench` alone lists the commands, `litbench COMMAND --help` the keys of one. The commands of the
groups data, train and eval are the programs of these folders: `litbench eval benchmark` and
`python eval/benchmark.py` are the same.
"""

import ast
import importlib
import importlib.resources
import inspect
import sys
import typing
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from litbench import __version__
from litbench.runs.config import check_installed, nearest, report_errors, run_program
from litbench.runs.errors import ConfigError

# Commands: the function, whose argument is the config, and what it does.
_COMMANDS = {
    "fit": ("litbench.fitting:run_fit", "Train and evaluate on your own stories or pairs."),
    "score": (
        "litbench.evaluation.command:score",
        "Score stories with any rater that gives rewards.",
    ),
    "serve": ("litbench.serve.command:serve", "Score stories over HTTP."),
    "judge": (
        "litbench.evaluation.command:judge",
        "Measure how far language models agree with people on pairs.",
    ),
    "audit": (
        "litbench.audit.command:audit",
        "Audit a set of preferences, and a rater on it.",
    ),
    "probe": (
        "litbench.audit.probing:run_probes",
        "Measure how often raters prefer changed stories.",
    ),
    "power": (
        "litbench.research.power:run_power",
        "Compute power, and the pairs or prompts needed.",
    ),
    "preferences": (
        "litbench.research.preferences:run_preferences",
        "Describe the preferences of readers by units.",
    ),
    "explanations": (
        "litbench.research.explanations:run_explanations",
        "Compare the explanations of right and wrong verdicts.",
    ),
    "run": ("litbench.writers.run:command", "Run a published writing benchmark."),
    "suite": (
        "litbench.suite.command:suite",
        "Measure raters on every published set of judgements.",
    ),
    "card": (
        "litbench.suite.card:write_card",
        "Show whether judges can be trusted, from what a run has recorded.",
    ),
    "drift": (
        "litbench.suite.drift:check_drift",
        "Find out whether a judge has changed since its passport.",
    ),
    "leaderboard": (
        "litbench.suite.command:leaderboard_site",
        "Make a site of the suite's passports.",
    ),
    "tasks": ("litbench.writers.run:print_tasks", "List the writing benchmarks."),
}
_STUDY = {
    "make": ("litbench.study.make:make_study", "Make a study, and estimate its cost."),
    "serve": ("litbench.study.command:serve", "Show the study to readers."),
    "status": ("litbench.study.command:status", "Print the progress of readers and pairs."),
    "look": ("litbench.study.look:look", "Look whether the readers have decided."),
    "export": (
        "litbench.study.command:export",
        "Write the choices, and the pairs with readers as annotators.",
    ),
    "close": ("litbench.study.command:close", "Accept no more readers and answers."),
    "analyse": ("litbench.study.analysis:analyse", "Compare readers and raters."),
    "remove": ("litbench.study.command:remove", "Remove a reader with all answers."),
    "simulate": (
        "litbench.study.command:simulate",
        "Answer the running server by simulated readers.",
    ),
}
_WRITERS = {
    "compare": ("litbench.writers.compare:compare_writers", "Compare writers by their grades."),
    "import_turns": (
        "litbench.writers.import_turns:import_turns",
        "Turn published runs of a writing benchmark into a table of turns.",
    ),
    "import_novels": (
        "litbench.writers.webnovel.import_novels:import_novels",
        "Turn Chinese novels into books of the protocol webnovel.",
    ),
}
# Groups of commands: what they do, and their functions, or the package of their programs.
_GROUPS: dict[str, tuple[str, dict[str, tuple[str, str]] | str]] = {
    "data": ("Make, import and check data", "litbench.programs.data_prep"),
    "train": ("Train raters and policies", "litbench.programs.train"),
    "eval": ("Evaluate raters, writers and filters", "litbench.programs.eval"),
    "study": ("Run a study with human readers", _STUDY),
    "writers": ("Compare writers, and import published texts", _WRITERS),
}


# Finding commands ----------------------------------------------------------------------------


def commands_of(group: str) -> dict[str, str]:
    """The commands of a group, by name, with what they do."""
    members = _GROUPS[group][1]
    if not isinstance(members, str):
        return {name: about for name, (_, about) in members.items()}
    folder = importlib.resources.files(members)
    return {
        file.name.removesuffix(".py"): _first_line(file.read_text(encoding="utf-8"))
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".py") and file.name != "__init__.py"
    }


def command_names() -> list[str]:
    """All commands, such as `fit` and `eval benchmark`."""
    return [
        *_COMMANDS,
        *(f"{group} {member}" for group in _GROUPS for member in commands_of(group)),
    ]


def _first_line(source: str) -> str:
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def overview() -> str:
    """All commands in groups, one line each."""
    lines = ["usage: litbench COMMAND [KEYS]; litbench COMMAND --help lists the keys", ""]
    lines += _table({name: about for name, (_, about) in _COMMANDS.items()})
    for group, (about, _) in _GROUPS.items():
        lines += ["", f"{about}: litbench {group} ...", "", *_table(commands_of(group))]
    return "\n".join(lines)


def _table(rows: dict[str, str]) -> list[str]:
    return [f"  {name:<18} {about}" for name, about in rows.items()]


def find_command(name: str) -> tuple[Callable[[Any], None], type, str | None]:
    """The function of a command such as `fit` or `eval benchmark`, its config, and its help.

    Raises:
        ConfigError: no command has this name.
    """
    first, _, member = name.partition(" ")
    if first in _GROUPS:
        members, names = _GROUPS[first][1], list(commands_of(first))
    else:
        members, member, names = _COMMANDS, first, [*_COMMANDS, *_GROUPS]
    if member not in names:
        raise ConfigError(f"unknown command 'litbench {name}': {nearest(member, names)}")
    if isinstance(members, str):
        if first == "train" and member != "features":
            # The libraries that these import first are in smaller extras too.
            check_installed("trl")
        # Not by runpy: trainers pickle the config, whose class must be found in its module.
        program = importlib.import_module(f"{members}.{member}")
        return program.main, program.Config, program.__doc__
    function = resolve_name(members[member][0])
    (config, *_) = typing.get_type_hints(function).values()
    return function, config, inspect.getdoc(config).partition("Attributes:")[0]  # type: ignore[union-attr]


def _dispatch(name: str, rest: list[str]) -> None:
    if name == "--version":
        print(f"litbench {__version__}")
        return
    if name in ("-h", "--help"):
        print(overview())
        return
    if name in _GROUPS:
        member, *rest = rest or ["--help"]
        if member in ("-h", "--help"):
            about, table = _GROUPS[name][0], _table(commands_of(name))
            print("\n".join([f"{about}: litbench {name} COMMAND [KEYS]", "", *table]))
            return
        name = f"{name} {member}"
    function, config, text = find_command(name)
    sys.argv = [f"litbench {name}", *rest]
    run_program(function, config, text)


def main() -> None:
    """Run the command of the command line, inside `report_errors`."""
    name, *rest = sys.argv[1:] or ["--help"]
    with report_errors():
        _dispatch(name, rest)


if __name__ == "__main__":
    main()
