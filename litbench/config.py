"""From a YAML file and the command line to a checked dataclass.

    config = load_config(Config, sys.argv[1:], about=__doc__)

reads `--config file.yaml`, then lets every further `--key value` (or `--key=value`, dotted for
nested keys: `--raters.minilm.epochs 1`) win over the file. `$NAME` and `~` in strings are
expanded. An unknown key is an error that names the nearest valid one; so is a value of the
wrong type. Files are read as plain YAML: nothing in them is executed.
"""

import contextlib
import dataclasses
import difflib
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from litbench.errors import ConfigError, LitBenchError

C = TypeVar("C")


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                continue
            key = self.construct_object(key_node, deep=deep)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise ConfigError(f"key '{key}' is given twice, on line {line}: keep one of them")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        ConfigError: the file is missing, is not YAML, or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"config {path} is not UTF-8 text: save it as UTF-8") from error
    try:
        # _Loader is a SafeLoader with one more check, so this is safe_load.
        content = yaml.load(text, _Loader)  # noqa: S506
    except ConfigError as error:
        raise ConfigError(f"config {path}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: something that looks like a date and is none.
        raise ConfigError(f"config {path} is not valid YAML: {error}: mend it") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"config {path} holds a {type(content).__name__}: write key: value lines")
    return content


def _expand(value: Any, where: str) -> Any:
    if isinstance(value, str):
        for name in re.findall(r"\$\{?([A-Za-z_]\w*)", value):
            if name not in os.environ:
                raise ConfigError(
                    f"{where}: the environment variable {name} is not set: export {name}=... first"
                )
        expanded = os.path.expandvars(value)
        return str(Path(expanded).expanduser()) if expanded.startswith("~") else expanded
    if isinstance(value, dict):
        return {key: _expand(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, f"{where}[{place}]") for place, item in enumerate(value)]
    return value


def nearest(word: str, choices: Sequence[str]) -> str:
    """Name the choices for an error message, the most similar one first."""
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"valid: {', '.join(sorted(choices))}"


def build(cls: type[C], values: Mapping[str, Any], where: str = "config") -> C:
    """Make a dataclass from plain values.

    Args:
        cls: the dataclass; nested dataclasses are checked too.
        values: keys and values as YAML gives them.
        where: named in messages, such as the config's path.

    Raises:
        ConfigError: an unknown key (the nearest valid one is named), a missing key, or a value
            of the wrong type.
    """
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            raise ConfigError(f"{where}: unknown key '{key}': {nearest(str(key), list(fields))}")
    ready: dict[str, Any] = {}
    for name, field in fields.items():
        if name not in values:
            required = (
                field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING
            )
            if required:
                raise ConfigError(f"{where}: key '{name}' is missing: give it a value")
            continue
        value, hint = values[name], hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
            ready[name] = build(typing.cast(type[Any], hint), value, f"{where}: {name}")
            continue
        try:
            ready[name] = TypeAdapter(hint).validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]
            inner = ".".join(str(step) for step in problem["loc"])
            key = f"{name}.{inner}" if inner else name
            raise ConfigError(
                f"{where}: key '{key}' is {problem['input']!r:.120}: {problem['msg']}"
            ) from error
    return cls(**ready)


def _takes_text_only(cls: Any, path: Sequence[str]) -> bool:
    """Whether the key at a dotted path is declared as text or a path, perhaps optional."""
    hint = cls
    for step in path:
        if dataclasses.is_dataclass(hint):
            hint = typing.get_type_hints(hint).get(step)
        elif typing.get_origin(hint) in (dict, Mapping):
            hint = typing.get_args(hint)[1]
        else:
            return False
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = set(typing.get_args(hint) if is_union else [hint]) - {type(None)}
    return bool(kinds) and kinds <= {str, Path}


def _overrides(
    cls: type[Any], arguments: Sequence[str]
) -> tuple[list[Path], list[tuple[list[str], Any]]]:
    files: list[Path] = []
    overrides: list[tuple[list[str], Any]] = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if not argument.startswith("--") or argument == "--":
            raise ConfigError(
                f"unexpected argument '{argument}': write --config FILE or --key value"
            )
        key, equals, text = argument[2:].partition("=")
        if not equals:
            following = arguments[position] if position < len(arguments) else "--"
            if following.startswith("--"):
                text = "true"
            else:
                text = following
                position += 1
        if key == "config":
            files.append(Path(text))
            continue
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):
            value = text
        path = key.split(".")
        # "{title}: {body}" and "2024" are texts where a text belongs, whatever YAML makes of them.
        if _takes_text_only(cls, path) and not (isinstance(value, str) or value is None):
            value = text
        overrides.append((path, value))
    return files, overrides


def _held_dataclass(hint: Any) -> type[Any] | None:
    """Name the dataclass that a key holds, also where it may be null instead."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    parts = typing.get_args(hint) if is_union else (hint,)
    return next((part for part in parts if dataclasses.is_dataclass(part)), None)  # type: ignore[return-value]


def _told(cls: type[Any], prefix: str, given: Any) -> tuple[list[str], list[str]]:
    """Tell a dataclass's keys, those of the dataclasses it holds dotted, and what they mean.

    Args:
        cls: the dataclass.
        prefix: stands before its keys, such as "cleaning.".
        given: an instance whose values are the defaults; None where there is none.
    """
    keys, meanings = [], []
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if given is not None:
            default = getattr(given, field.name)
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        else:
            default = field.default
        hint, name = hints[field.name], f"{prefix}{field.name}"
        held = _held_dataclass(hint)
        # "pathlib.Path" and "typing.Literal" are told without their modules.
        kind = re.sub(r"(?:[A-Za-z_]\w*\.)+(?=[A-Z])", "", inspect.formatannotation(hint))
        if default is dataclasses.MISSING:
            value = " (to be given)"
        elif dataclasses.is_dataclass(default):
            value = ""
        else:
            value = f" = {as_plain(default)!r}"
        keys.append(f"  {name}: {kind}{value}")
        if held is not None:
            is_given = dataclasses.is_dataclass(default)
            inner_keys, inner_meanings = _told(held, f"{name}.", default if is_given else None)
            keys += inner_keys
            meanings += [f"{name}: {inspect.cleandoc(held.__doc__ or '')}", *inner_meanings]
    return keys, meanings


def _help(cls: type[Any], about: str | None) -> str:
    keys, meanings = _told(cls, "", None)
    # The keys of a base are told by the base.
    bases = [base for base in cls.__mro__ if dataclasses.is_dataclass(base)]
    parts = [
        inspect.cleandoc(about or ""),
        "Keys, all of which --key value overrides:",
        "\n".join(keys),
        *[inspect.cleandoc(base.__doc__ or "") for base in bases],
        *meanings,
    ]
    return "\n\n".join(parts)


def load_config(cls: type[C], arguments: Sequence[str], about: str | None = None) -> C:
    """Build a program's config from its command line.

    Args:
        cls: the program's `Config` dataclass.
        arguments: the command line without the program's name.
        about: the program's docstring, printed by `--help`.

    Raises:
        ConfigError: see `build`; also when no `--config` file can be read.
        SystemExit: after `--help`.
    """
    if any(argument in ("-h", "--help") for argument in arguments):
        print(_help(cls, about))
        raise SystemExit(0)
    files, overrides = _overrides(cls, arguments)
    values: dict[str, Any] = {}
    for file in files:
        values.update(read_yaml(file))
    for path, value in overrides:
        target = values
        for step in path[:-1]:
            inner = target.setdefault(step, {})
            if not isinstance(inner, dict):
                raise ConfigError(
                    f"--{'.'.join(path)}: '{step}' is {inner!r:.80} and holds no keys: "
                    f"set --{step} itself"
                )
            target = inner
        target[path[-1]] = value
    where = str(files[-1]) if files else "command line"
    return build(cls, _expand(values, where), where)


def as_plain(config: Any) -> Any:
    """Turn a config into plain values that JSON and YAML can hold."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: as_plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {str(key): as_plain(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [as_plain(value) for value in config]
    if isinstance(config, Path):
        return str(config)
    return config


@contextlib.contextmanager
def clear_exit() -> Iterator[None]:
    """End the process with one line: on a LitBenchError with exit code 2, on Ctrl+C with 130."""
    try:
        yield
    except LitBenchError as error:
        # Libraries' messages may run over lines; one error is one line.
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("stopped; run the same command again to go on", file=sys.stderr)
        raise SystemExit(130) from None


def run_program(main: Callable[[C], None], cls: type[C], about: str | None) -> None:
    """Run a program's `main` on its command line, and end as `clear_exit` does."""
    with clear_exit():
        main(load_config(cls, sys.argv[1:], about))
