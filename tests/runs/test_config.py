"""Configs from YAML and the command line; locations of models."""

import errno
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from litbench.runs.config import (
    Passed,
    Positional,
    as_plain,
    build,
    load_config,
    nearest,
    read_yaml,
    run_program,
)
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.locations import resolve


@dataclass
class Inner:
    """A nested config."""

    epochs: int = 2
    name: str = "inner"


@dataclass
class Config:
    """A config with all types of keys that the programs use.

    Attributes:
        out: folder to write.
    """

    out: Path
    seed: int = 0
    learning_rate: float = 0.1
    min_gap: float | None = None
    where: str | None = None
    shuffle: bool = False
    when: Literal["refuse", "flag"] = "refuse"
    columns: dict[str, str] = field(default_factory=dict)
    splits: dict[str, float] = field(default_factory=lambda: {"all": 1.0})
    drop: list[str] = field(default_factory=list)
    raters: dict[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)


@dataclass(kw_only=True)
class Derived(Inner):
    """Nested dataclasses in all supported types.

    Attributes:
        spare: one that need not be there,
            told in two lines.
    """

    spare: Inner | None = None
    named: dict[str, Inner] = field(default_factory=dict)
    listed: list[Inner] = field(default_factory=list)
    either: Inner | str = ""
    given: Inner = field(default_factory=lambda: Inner(epochs=7))


def from_yaml(folder, text, *arguments):
    file = folder / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(Config, ["--config", str(file), *arguments])


def test_values_of_a_file_reach_the_config(tmp_path):
    config = from_yaml(
        tmp_path,
        "out: runs/x\nseed: 3\nshuffle: true\nsplits: {train: 0.8, test: 0.2}\ndrop: [a, b]\n"
        "inner:\n  epochs: 5\n",
    )
    splits = {"train": 0.8, "test": 0.2}
    assert config == Config(
        Path("runs/x"), 3, shuffle=True, splits=splits, drop=["a", "b"], inner=Inner(epochs=5)
    )
    plain = as_plain(config)
    assert yaml.safe_load(yaml.safe_dump(plain)) == plain
    assert build(Config, plain) == config


# Invalid configs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "right"), [("sede", "seed"), ("Out", "out"), ("inner.epoch", "inner.epochs")]
)
def test_unknown_key_names_the_nearest(tmp_path, wrong, right):
    message = f"unknown key '{wrong}': did you mean '{right}'"
    outer, _, inner = wrong.partition(".")
    line = f"{outer}: {{{inner}: 1}}" if inner else f"{outer}: 1"
    with pytest.raises(ConfigError, match=f"config.yaml: {message}"):
        from_yaml(tmp_path, f"out: x\n{line}\n")
    with pytest.raises(ConfigError, match=f"command line: {message}"):
        load_config(Config, ["--out", "x", f"--{wrong}", "1"])


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"spare": {"epoch": 1}}, "spare"),
        ({"named": {"a": {"epochs": 1}, "b": {"epoch": 1}}}, "named.b"),
        ({"listed": [{"epoch": 1}]}, "listed.0"),
        ({"either": {"epoch": 1}}, "either"),
    ],
)
def test_unknown_key_at_any_depth(values, path):
    message = rf"here: unknown key '{path}\.epoch': did you mean '{path}\.epochs'\?"
    with pytest.raises(ConfigError, match=message):
        build(Derived, values, "here")


def test_other_invalid_keys_are_named():
    assert nearest("zzzz", ["b", "a"]) == "valid: a, b"
    with pytest.raises(ConfigError, match=r"valid: columns, drop, inner, .*where"):
        load_config(Config, ["--out=x", "--zzzzzz=1"])
    with pytest.raises(ConfigError, match="key 'out'"):
        load_config(Config, [])
    with pytest.raises(ConfigError, match=r"--seed.x: 'seed'"):
        load_config(Config, ["--out=x", "--seed=3", "--seed.x=1"])
    with pytest.raises(ConfigError, match=r"'caf\\udce9'"):
        load_config(Config, ["--out", "caf\udce9"])
    for argument in ("out", "-o", "--", "x=1"):
        with pytest.raises(ConfigError, match="unexpected argument"):
            load_config(Config, [argument, "x"])


@pytest.mark.parametrize(
    "line",
    [
        *("seed: three", "seed: null", "seed: " + "x" * 100_000, "learning_rate: {a: 1}"),
        *("shuffle: maybe", "when: later", "where: 5", "columns: {text: 3}", "drop: a"),
        *("inner: 3", "inner: {epochs: many}"),
    ],
    ids=lambda line: line[:30],
)
def test_wrong_type_is_named_by_key(tmp_path, line):
    key = line.partition(":")[0]
    with pytest.raises(ConfigError, match=f"config.yaml: key '{key}") as caught:
        from_yaml(tmp_path, f"out: x\n{line}\n", "--min_gap=1")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@given(
    st.dictionaries(
        st.sampled_from(["out", "seed", "splits", "drop", "inner", "raters", "other", ""]),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False)
            | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.text(max_size=3), inner, max_size=2)
            ),
            max_leaves=4,
        ),
        max_size=4,
    )
)
def test_any_mapping_gives_config_or_error(values):
    try:
        config = build(Config, values)
    except ConfigError:
        return
    assert build(Config, as_plain(config)) == config


# The command line -----------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["--seed=x", "--sed=1", "--inner.epochs=x", "--name=$NO_NAME"])
def test_wrong_override_is_blamed_on_the_command_line(tmp_path, argument):
    with pytest.raises(ConfigError, match=r"^command line: "):
        from_yaml(tmp_path, "out: x\nseed: 1\ninner: {epochs: 2}\n", argument)


@given(st.lists(st.text(max_size=12).filter(lambda text: text not in ("-h", "--help")), max_size=4))
def test_any_command_line_gives_config_or_error(arguments):
    try:
        config = load_config(Config, ["--out=x", *arguments])
    except ConfigError:
        return
    assert isinstance(config.out, Path)


def test_scientific_notation_is_a_number(tmp_path):
    for text in ("1e-5", "1E-5", "1.e-5", "+1e-5"):
        for config in (
            from_yaml(tmp_path, f"out: x\nlearning_rate: {text}\nmin_gap: {text}\n"),
            load_config(Config, ["--out=x", "--learning_rate", text, f"--min_gap={text}"]),
        ):
            assert (config.learning_rate, config.min_gap) == (1e-5, 1e-5)


def test_precedence_of_command_line_and_files(tmp_path):
    later = tmp_path / "later.yaml"
    later.write_text("seed: 2\n")
    config = from_yaml(tmp_path, "out: x\nseed: 1\nmin_gap: 0.5\n", "--config", str(later))
    assert (config.seed, config.min_gap) == (2, 0.5)
    config = from_yaml(tmp_path, "out: x\nseed: 1\n", "--seed", "7", f"--config={later}")
    assert config.seed == 7


def test_dotted_keys_change_nested_values(tmp_path):
    config = from_yaml(
        tmp_path,
        "out: x\nsplits: {train: 0.5, test: 0.5}\ncolumns: null\n"
        "raters: {small: &base {kind: reward}, same: *base}\n",
        *("--splits.train", "0.75", "--raters.small.epochs", "1", "--inner.epochs=9"),
        *("--raters.other.kind", "longer", "--columns.text", "body"),
    )
    assert config.splits == {"train": 0.75, "test": 0.5}
    assert config.raters == {
        "small": {"kind": "reward", "epochs": 1},
        "same": {"kind": "reward"},
        "other": {"kind": "longer"},
    }
    assert (config.inner, config.columns) == (Inner(epochs=9), {"text": "body"})


@pytest.mark.parametrize(
    "text",
    [
        *("{title}: {body}", "=2024", "2024", "2024-13-45", "true", "a: b", "run #2", "2024 #2"),
        *("#2", "flair LIKE '%: %'", "1e-5", "[WP]", "{"),
    ],
)
def test_text_on_the_command_line_is_kept(text):
    config = load_config(
        Config, ["--out", text, "--where", text, f"--columns.text={text}", "--inner.name", text]
    )
    assert config == Config(
        out=Path(text), where=text, columns={"text": text}, inner=Inner(name=text)
    )


def test_command_line_mappings_lists_null_and_flags():
    arguments = ["--out=x", "--columns", "{text: body}", "--drop=[a, b]", "--where=null"]
    config = load_config(Config, [*arguments, "--seed", "-5", "--shuffle"])
    assert config == Config(Path("x"), -5, columns={"text": "body"}, drop=["a", "b"], shuffle=True)
    assert load_config(Config, ["--shuffle", "--out", "x"]).shuffle


@dataclass
class Command:
    """A config with positional keys and keys that are passed on."""

    source: Annotated[str, Positional]
    target: Annotated[Path, Positional] = Path("out")
    model: list[str] = field(default_factory=list)
    dry_run: bool = False
    training: Annotated[dict[str, Any], Passed(f"{__name__}:Inner")] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a"], {"source": "a"}),
        (["a", "b"], {"source": "a", "target": Path("b")}),
        (["--target", "b", "a"], {"source": "a", "target": Path("b")}),
        (["--source=a", "b"], {"source": "a", "target": Path("b")}),
        (["--dry_run", "a"], {"source": "a", "dry_run": True}),
        (["--dry-run", "false", "a"], {"source": "a"}),
        (["a", "--dry_run"], {"source": "a", "dry_run": True}),
        (["--model", "x", "a", "--model=y"], {"source": "a", "model": ["x", "y"]}),
        (["--model", "[x, y]", "a", "--model=z"], {"source": "a", "model": ["x", "y", "z"]}),
        (["a", "--epochs", "3"], {"source": "a", "training": {"epochs": 3}}),
        (["a", "--name", "2024"], {"source": "a", "training": {"name": "2024"}}),
        (["a", "--training.epochs=3"], {"source": "a", "training": {"epochs": 3}}),
        (["-", "-5"], {"source": "-", "target": Path("-5")}),
    ],
)
def test_positional_repeated_boolean_and_passed_keys(arguments, expected):
    assert load_config(Command, arguments) == Command(**expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "b", "c"], "unexpected argument 'c'"),
        (["a", "--target"], "--target has no value: write --target VALUE"),
        (["a", "--target", "--dry_run"], "--target has no value"),
        (["a", "--config"], "--config has no value"),
        (["a", "--epoch=3"], "unknown key 'epoch': did you mean 'epochs'"),
        (["a", "--sorce=3"], "unknown key 'sorce': did you mean 'source'"),
        (["a", "--mod=x"], "unknown key 'mod': did you mean 'model'"),
        (["a", "--dry_run=maybe"], "key 'dry_run' is 'maybe'"),
        (["--model=x"], "key 'source' is missing"),
    ],
)
def test_wrong_commands_are_one_line(arguments, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(Command, arguments)
    assert "\n" not in str(caught.value)


def test_all_missing_keys_are_named_at_once():
    @dataclass
    class Three:
        """Three required keys."""

        out: Path
        pairs: Path
        inner: Inner

    with pytest.raises(ConfigError, match="'out', 'pairs' and 'inner' are missing"):
        load_config(Three, [])
    with pytest.raises(ConfigError, match="key 'pairs'"):
        load_config(Three, ["--out=x", "--inner.epochs=1"])


def test_environment_variables_and_home_are_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("LITBENCH_TEST_FOLDER", "/data")
    monkeypatch.setenv("LITBENCH_TEST_PRICE", "5 $each")
    monkeypatch.setenv("HOME", "/home/reader")
    config = from_yaml(
        tmp_path,
        "out: $LITBENCH_TEST_FOLDER/out\nwhere: '$5 ends$ $LITBENCH_TEST_PRICE'\n"
        "drop: ['a${LITBENCH_TEST_FOLDER}b']\nraters: {a: {path: ~/model}}\n",
    )
    assert config.out == Path("/data/out")
    assert config.where == "$5 ends$ 5 $each", "a dollar that names no variable is kept"
    assert config.drop == ["a/datab"]
    assert config.raters == {"a": {"path": "/home/reader/model"}}
    for form in ("$LITBENCH_TEST_UNSET", "${LITBENCH_TEST_UNSET}"):
        text = f"out: {form}\nraters: {{a: {{path: '{form}/x'}}}}\n"
        with pytest.raises(ConfigError, match=r"yaml: .*LITBENCH_TEST_UNSET is not"):
            from_yaml(tmp_path, text, "--out", "given")


# YAML -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("out: [1, 2\n", "as YAML"),
        ("\tout: x\n", "as YAML"),
        ("out: 2024-13-45\n", "as YAML"),
        ("? [1, 2]\n: 3\n", "as YAML"),
        ("out: !!python/object/apply:os.getcwd []\n", "as YAML"),
        ("out: \x00\n", "as YAML"),
        ("a: *nothing\n", "as YAML"),
        ("- out\n", "holds a list: write key: value lines"),
        ("just words\n", "holds a str"),
        ("5\n", "holds a int"),
        ("out: x\nseed: 1\nseed: 2\n", "key 'seed' is given twice, from line 1"),
        ("out: x\nraters:\n  a: 1\n  a: 2\n", "key 'a' is given twice, from line 3"),
        ("out: x\nraters: &a {b: {c: *a}}\n", "as YAML"),
    ],
)
def test_invalid_yaml_is_one_error(tmp_path, text, message):
    with pytest.raises(ConfigError, match=f"config.yaml .*{message}"):
        from_yaml(tmp_path, text)


def test_unreadable_files(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"out: caf\xe9\n")
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / "latin.yaml"):
        with pytest.raises(ConfigError, match=f"cannot read config {path}"):
            load_config(Config, ["--config", str(path)])
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_yaml(tmp_path / "empty.yaml") == {}


# Running --------------------------------------------------------------------------------------


def test_help_lists_keys_defaults_and_descriptions(capsys):
    def told(cls, flag="--help_all"):
        with pytest.raises(SystemExit) as stopped:
            load_config(cls, ["--seed", "1", flag], about="What the program does.")
        assert stopped.value.code == 0
        return capsys.readouterr().out

    brief = told(Config, "--help")
    assert re.search(r"^  out +folder to write \(required\)$", brief, re.M)
    shown = told(Config)
    assert shown.startswith("What the program does.")
    for name in Config.__dataclass_fields__:
        assert f"\n  {name}: " in shown
    assert "\n  out: Path (required)\n      folder to write.\n" in shown
    assert "\n  splits: dict[str, float] = {'all': 1.0}\n" in shown
    shown = told(Derived)
    assert "\n  epochs: int = 2\n" in shown, "of the base"
    spare = "Inner | None = None\n      one that need not be there,\n      told in two lines.\n"
    assert f"\n  spare: {spare}  spare.epochs: int = 2\n" in shown
    assert "\n  given.epochs: int = 7\n" in shown, "the default that the outer config gives"
    assert load_config(Derived, ["--given.name=x"]).given == Inner(7, "x"), "as help says"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (DataError("first\n  second line"), 2, "error: first second line\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: [Errno 28] No space left"),
        (RuntimeError("write failed: No space left on device"), 2, "error: write failed"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), 2, "error: [Errno"),
        (KeyboardInterrupt(), 130, "stopped; run the same command again"),
    ],
)
def test_errors_end_in_one_line_and_exit_code(monkeypatch, capsys, error, code, line):
    def main(_):
        raise error

    monkeypatch.setattr(sys, "argv", ["program", "--out", "x"])
    with pytest.raises(SystemExit) as stopped:
        run_program(main, Config, None)
    assert stopped.value.code == code
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert shown.startswith(line)


# Names of models ------------------------------------------------------------------------------


def test_folders_and_hub_names(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve(str(tmp_path / "model")) == str(tmp_path / "model")
    assert resolve("~/model") == str(tmp_path / "model")
    assert resolve("owner/name") == "owner/name"
    assert resolve("package:litbench/data/sample").endswith("litbench/data/sample")
    for name in ("~/none", "/none/there", "./none", "a/b/c"):
        with pytest.raises(ConfigError, match="no folder"):
            resolve(name)


def test_missing_package():
    for package in ("", ".", "no_such_package", "no_such.package"):
        with pytest.raises(ConfigError, match="is not installed"):
            resolve(f"package:{package}/model")


def test_package_without_folder_or_not_installed():
    with pytest.raises(ConfigError, match="package:litbench/none"):
        resolve("package:litbench/none")
    with pytest.raises(ConfigError, match=r"gt_minilm .*'litbench\[minilm"):
        resolve("package:gt_minilm/model")


def test_a_preset_overrides_the_file_and_is_overridden(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("out: a\nsteps: 1\npresets:\n  long: {steps: 9}\n  none: 3\n")

    @dataclass
    class Config:
        out: str
        steps: int = 0

    def load(*arguments):
        return load_config(Config, ["--config", str(file), *arguments])

    assert load() == Config("a", 1)
    assert load("--preset", "long") == Config("a", 9)
    assert load("--steps", "2", "--preset=long") == Config("a", 2)
    for name in ("lang", "none"):
        with pytest.raises(ConfigError, match="no preset"):
            load("--preset", name)
    with pytest.raises(ConfigError, match="no presets"):
        load_config(Config, ["--out", "a", "--preset", "long"])


def test_a_pipe_is_not_read_as_a_config(tmp_path):
    os.mkfifo(tmp_path / "own.yaml")
    with pytest.raises(ConfigError, match=r"own\.yaml"):
        read_yaml(tmp_path / "own.yaml")
