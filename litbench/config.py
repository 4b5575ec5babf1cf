"""From a YAML file and the command line to a checked dataclass.

    config = load_config(Config, sys.argv[1:], about=__doc__)

reads `--config file.yaml`, then lets every further `--key value` (or `--key=value`, dotted for
nested keys: `--raters.minilm.epochs 1`) win over the file. `$NAME` and `~` in strings are
expanded. An unknown key, at any depth, is an error that names the nearest valid one; so is a value
of the wrong type. Files are read as plain YAML: nothing in them is executed.
"""

import contextlib
import dataclasses
import difflib
import errno
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from litbench.errors import ConfigError, LitBenchError

C = TypeVar("C")

_COMMAND_LINE = "command line"
# Aliases of aliases can make billions of values out of ten lines.
_MOST_VALUES = 1_000_000


# YAML -----------------------------------------------------------------------------------------


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        ConfigError: the file is missing, is not YAML, holds no mapping, gives a key twice, or its
            aliases are cyclic or expand without bound.
    """
    try:
        content = _parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"config {path} is not UTF-8 text: save it as UTF-8") from error
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


def _parse(text: str) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _count_values(node, frozenset(), {}) > _MOST_VALUES:
            raise ConfigError(f"its aliases expand to more than {_MOST_VALUES:,} values: use fewer")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count_values(node: yaml.Node, above: frozenset[int], counts: dict[int, int]) -> int:
    """Count the values of a document with aliases expanded; refuse cycles and double keys."""
    if id(node) in above:
        line = node.start_mark.line + 1
        raise ConfigError(f"the value on line {line} is an alias of itself: write it out")
    if id(node) not in counts:
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, _ in children:
                name = (key.tag, str(key.value))
                if name in seen and not key.tag.endswith(":merge"):
                    # The second would silently win.
                    line = key.start_mark.line + 1
                    raise ConfigError(
                        f"key '{key.value}' is given twice, on line {line}: keep one of them"
                    )
                seen.add(name)
            children = [child for pair in children for child in pair]
        below = above | {id(node)}
        counts[id(node)] = 1 + sum(_count_values(child, below, counts) for child in children)
    return counts[id(node)]


# Checked dataclasses --------------------------------------------------------------------------


def nearest(word: str, choices: Sequence[str], prefix: str = "") -> str:
    """Name the most similar choice for an error message, or all; `prefix` stands before each."""
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{prefix}{close[0]}'?"
    return f"valid: {', '.join(prefix + choice for choice in sorted(choices))}"


def build(cls: type[C], values: Mapping[str, Any], where: str = "config") -> C:
    """Make a dataclass, and those inside it, from plain values.

    Args:
        cls: the dataclass.
        values: keys and values as YAML gives them.
        where: named in messages, such as the config's path.

    Raises:
        ConfigError: an unknown key (the nearest valid one is named), a missing key, or a value
            of the wrong type.
    """
    return _build(cls, values, lambda _: where)


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    # A dataclass takes no config from outside, but those inside another type inherit its.
    return TypeAdapter(tuple[cls], config=ConfigDict(extra="forbid"))


def _build(cls: type[C], values: Mapping[str, Any], where: Callable[[Sequence[str]], str]) -> C:
    hint: Any = cls
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where([])}: holds {values!r:.80}: write key: value lines")
    try:
        built: C = _adapter(hint).validate_python((_with_defaults(cls, values),))[0]
        return built
    except ValidationError as error:
        unknown = ("unexpected_keyword_argument", "invalid_key")
        problem = min(error.errors(), key=lambda problem: problem["type"] not in unknown)
        path: list[str] = []
        steps = [str(step) for step in problem["loc"][1:]]
        # Beyond the keys themselves pydantic names members of unions.
        while len(path) < len(steps) and (below := _below(hint, steps[len(path)])) is not None:
            hint, path = below, steps[: len(path) + 1]
        if problem["type"] in unknown:
            keys = [f.name for part in _parts(hint) for f in _fields(part)]
            prefix = "".join(f"{step}." for step in path)
            message = f"unknown key '{prefix}{steps[-1]}': {nearest(steps[-1], keys, prefix)}"
            path = [*path, steps[-1]]
        elif problem["type"] == "missing":
            message = f"key '{'.'.join(path)}' is missing: give it a value"
        else:
            message = f"key '{'.'.join(path)}' is {problem['input']!r:.120}: {problem['msg']}"
        raise ConfigError(f"{where(path)}: {message}") from error


def _with_defaults(cls: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Add what a dataclass has as defaults for the keys of one inside it."""
    filled = dict(values)
    for field in dataclasses.fields(cls):
        inner, factory = filled.get(field.name), field.default_factory
        # A class as the factory gives no other defaults than its own.
        if isinstance(inner, dict) and callable(factory) and not isinstance(factory, type):
            default = factory()
            filled[field.name] = {**(as_plain(default) if _fields(default) else {}), **inner}
    return filled


def _parts(hint: Any) -> list[Any]:
    """The members of a union but None, or the type itself."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return [
        part
        for part in (typing.get_args(hint) if is_union else [hint])
        if part is not types.NoneType
    ]


def _fields(hint: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(hint) if dataclasses.is_dataclass(hint) else ()


def _below(hint: Any, key: str) -> Any:
    """The type that a type holds under a key; None where it says nothing about the key."""
    for part in _parts(hint):
        if any(field.name == key for field in _fields(part)):
            return typing.get_type_hints(part)[key]
        if typing.get_origin(part) in (dict, Mapping, list) and not key.startswith("["):
            return typing.get_args(part)[-1]
    return None


def as_plain(config: Any) -> Any:
    """Turn a config into plain values that JSON and YAML can hold."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: as_plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {str(key): as_plain(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [as_plain(value) for value in config]
    return str(config) if isinstance(config, Path) else config


# The command line -----------------------------------------------------------------------------


def load_config(cls: type[C], arguments: Sequence[str], about: str | None = None) -> C:
    """Build a program's config from its command line.

    Args:
        cls: the program's `Config` dataclass.
        arguments: the command line without the program's name.
        about: the program's docstring, printed by `--help`.

    Raises:
        ConfigError: see `build`; also when a `--config` file cannot be read.
        SystemExit: after `--help`.
    """
    if not {"-h", "--help"}.isdisjoint(arguments):
        keys = "\n".join(_describe(cls))
        print(f"{inspect.cleandoc(about or '')}\n\nKeys, all of which --key value sets:\n\n{keys}")
        raise SystemExit(0)
    files, overrides = _split(cls, arguments)
    values: dict[str, Any] = {}
    origins: dict[tuple[str, ...], str] = {}
    for file in files:
        content = read_yaml(file)
        values |= content
        origins |= {(str(key),): str(file) for key in content}
    for path, value in overrides:
        target = values
        for step in path[:-1]:
            inner = target.get(step)
            if not isinstance(inner, dict | None):
                raise ConfigError(
                    f"--{'.'.join(path)}: '{step}' is {inner!r:.80} and holds no keys: "
                    f"set --{step} itself"
                )
            # A copy, since an alias may stand for the same mapping elsewhere.
            target[step] = dict(inner or {})
            target = target[step]
        target[path[-1]] = value
        origins[tuple(path)] = _COMMAND_LINE

    def where(path: Sequence[str]) -> str:
        keys = (tuple(path[:end]) for end in range(len(path), 0, -1))
        otherwise = str(files[-1]) if files else _COMMAND_LINE
        return next((origins[key] for key in keys if key in origins), otherwise)

    return _build(cls, _expand(values, [], where), where)


def _split(
    cls: type[Any], arguments: Sequence[str]
) -> tuple[list[Path], list[tuple[list[str], Any]]]:
    """The config files of a command line, and its other keys with their values."""
    files: list[Path] = []
    overrides: list[tuple[list[str], Any]] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or argument == "--":
            raise ConfigError(
                f"unexpected argument '{argument}': write --config FILE or --key value"
            )
        key, equals, text = argument[2:].partition("=")
        if not equals:
            text = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        if key == "config":
            files.append(Path(text))
            continue
        path = key.split(".")
        hint: Any = cls
        for step in path:
            hint = _below(hint, step)
        is_text = hint is not None and set(_parts(hint)) <= {str, Path}
        overrides.append((path, _value_of(text, is_text=is_text)))
    return files, overrides


def _value_of(text: str, *, is_text: bool) -> Any:
    """Read a value of the command line as YAML; `is_text` is whether its key holds text."""
    try:
        value = _parse(text)
        ends = [t.end_mark.index for t in yaml.scan(text) if t.start_mark.index < t.end_mark.index]
    except (ConfigError, yaml.YAMLError, ValueError, RecursionError):
        return text
    # In "run #2" YAML sees a comment, in "2024" a number and in "{title}: {body}" a mapping.
    has_comment = bool(text[max(ends, default=0) :].strip())
    return text if has_comment or (is_text and not isinstance(value, str | None)) else value


def _expand(value: Any, path: list[str], where: Callable[[Sequence[str]], str]) -> Any:
    if isinstance(value, dict):
        return {key: _expand(item, [*path, str(key)], where) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, [*path, str(place)], where) for place, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    for name in re.findall(r"\$\{?([A-Za-z_]\w*)", value):
        if name not in os.environ:
            raise ConfigError(
                f"{where(path)}: {'.'.join(path)}: the environment variable {name} is not set: "
                f"export {name}=... first"
            )
    expanded = os.path.expandvars(value)
    return str(Path(expanded).expanduser()) if expanded.startswith("~") else expanded


def _describe(cls: Any, prefix: str = "", given: Any = None) -> Iterator[str]:
    """Lines of help: every key with type, default (of `given`, if any) and its docstring's text."""
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        meanings |= re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE)
    for field in dataclasses.fields(cls):
        default = getattr(given, field.name, field.default)
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        hint = typing.get_type_hints(cls)[field.name]
        # "pathlib.Path" and "typing.Literal" without their modules.
        kind = re.sub(r"(?:[A-Za-z_]\w*\.)+(?=[A-Z])", "", inspect.formatannotation(hint))
        value = f" = {as_plain(default)!r}" if not _fields(default) else ""
        if default is dataclasses.MISSING:
            value = " (to be given)"
        yield f"  {prefix}{field.name}: {kind}{value}"
        if field.name in meanings:
            yield re.sub(r"\n +", "\n      ", f"      {meanings[field.name]}")
        for part in _parts(hint):
            if dataclasses.is_dataclass(part):
                below = f"{prefix}{field.name}."
                yield from _describe(part, below, default if _fields(default) else None)


# Running --------------------------------------------------------------------------------------


@contextlib.contextmanager
def clear_exit() -> Iterator[None]:
    """End the process with one line and an exit code where the user can act on what happened.

    A LitBenchError and a full disk end in 2, Ctrl+C in 130, output that nobody reads any more in
    141 without a line, as in `program | head`.
    """
    try:
        yield
    except LitBenchError as error:
        # Libraries' messages may run over lines; one error is one line.
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("stopped; run the same command again to go on", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # Python would complain once more when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except Exception as error:
        # Libraries raise it under many types.
        if os.strerror(errno.ENOSPC) not in str(error):
            raise
        line = " ".join(str(error).split())
        print(f"error: {line}: free space, then run the same command again", file=sys.stderr)
        raise SystemExit(2) from None


def run_program(main: Callable[[C], None], cls: type[C], about: str | None) -> None:
    """Run a program's `main` on its command line, and end as `clear_exit` does."""
    with clear_exit():
        main(load_config(cls, sys.argv[1:], about))
