"""Build a checked dataclass from a YAML file and the command line: one grammar for all commands.

    config = load_config(Config, sys.argv[1:], about=__doc__)

reads `--config file.yaml`; `--key value` and `--key=value` override the file, nested keys as
`--cleaning.cut_vote_talk false`. A boolean key may stand alone, and a key that holds a list may be
repeated. Keys marked `Positional` can be given without their name. `$NAME` and `~` in strings are
expanded. A file may hold `presets`, mappings of keys by name; `--preset NAME` overrides the file's
other keys with one of them. A value of the wrong type is an error, and so is an unknown key at any
depth; the message names the nearest valid key. Keys are not abbreviated; `-` and `_` are the same
in a key.
"""

import contextlib
import dataclasses
import difflib
import errno
import importlib
import importlib.metadata
import importlib.util
import inspect
import keyword
import os
import re
import sys
import textwrap
import types
import typing
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from litbench.runs.errors import ConfigError, LitBenchError, MissingExtraError

C = TypeVar("C")
# A help of `--help` with its keys is about as long as a screen.
_SCREEN_LINES, _MIN_KEYS, _WIDTH = 40, 12, 90


class Positional:
    """Marks a key whose name may be left out: `input: Annotated[str, Positional]`."""


class Runtime:
    """Marks a key that does not change the results.

    It may contain passwords, so it is in no manifest and no fingerprint.
    """


@dataclasses.dataclass(frozen=True)
class Passed:
    """Marks a mapping that takes every key unknown to its dataclass.

    Attributes:
        to: "module:dataclass" with the valid keys of the mapping, imported when it gets one.
    """

    to: str


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping; ConfigError if the file is not one or repeats a key."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is a folder, a pipe or a device, not a file")
        content = _parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, ConfigError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read config {path} as YAML: {error}: fix the file") from error
    if not isinstance(content, dict | None):
        raise ConfigError(f"config {path} holds a {type(content).__name__}: write key: value lines")
    return content or {}


def _parse(text: str) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_keys(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _check_keys(node: yaml.Node) -> None:
    """Raise a ConfigError if a mapping of a document repeats a key."""
    children = node.value if isinstance(node, yaml.CollectionNode) else []
    if isinstance(node, yaml.MappingNode):
        keys = Counter((k.tag, str(k.value)) for k, _ in children if not k.tag.endswith(":merge"))
        if max(keys.values(), default=0) > 1:
            name, line = keys.most_common(1)[0][0][1], node.start_mark.line + 1
            raise ConfigError(f"key '{name}' is given twice, from line {line}: keep one")
        children = [child for pair in children for child in pair]
    for child in children:
        _check_keys(child)


def nearest(word: str, choices: Sequence[str], prefix: str = "") -> str:
    """Suggest the most similar choice, or list all, each with `prefix`; for error messages."""
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{prefix}{close[0]}'?"
    return f"valid: {', '.join(prefix + choice for choice in sorted(choices))}"


def build(
    cls: type[C], values: Mapping[str, Any], where: str = "config", overridden: Collection[str] = ()
) -> C:
    """Build a dataclass, with those nested in it, from plain values such as parsed YAML.

    If the dataclass has an attribute `given`, it is set to the names of the given keys.

    Raises:
        ConfigError: an unknown key, missing keys or a value of the wrong type. The message starts
            with `where`, such as the path of the config, or "command line" for a key in
            `overridden`.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: holds {values!r:.80}: write key: value lines")
    hint: Any = cls
    # Python's keywords cannot name a field: `from` is `from_`.
    filled = {f"{key}_" if keyword.iskeyword(str(key)) else key: values[key] for key in values}
    for field in _fields(hint):
        inner, factory = values.get(field.name), field.default_factory
        # The outer dataclass may override the defaults of a nested one.
        if isinstance(inner, dict) and callable(factory) and _fields(default := factory()):
            filled[field.name] = {**as_plain(default), **inner}
    try:
        built: C = _adapter(hint).validate_python((filled,))[0]
    except ValidationError as error:
        raise ConfigError(_explain(error, hint, where, overridden)) from error
    except (TypeError, ImportError) as error:
        # The checks of other libraries' dataclasses raise these.
        raise ConfigError(f"{where}: {error}") from error
    if hasattr(cls, "given"):
        built.given = list(values)  # type: ignore[attr-defined]
    return built


_UNKNOWN = ("unexpected_keyword_argument", "invalid_key")


def _explain(error: ValidationError, hint: Any, where: str, overridden: Collection[str]) -> str:
    """A line for each problem; one for all missing keys."""
    problems = sorted(error.errors(), key=lambda problem: problem["type"] not in _UNKNOWN)
    lines: dict[str, None] = {}
    shown: set[tuple[Any, ...]] = set()
    for problem in problems:
        steps = [str(step) for step in problem["loc"][1:]]
        keys = len(_known_steps(hint, steps)[0]) + (problem["type"] in _UNKNOWN)
        values = tuple(step for step in problem["loc"] if not isinstance(step, int))
        # Further steps name members of unions, each of which has its problems; of the problems of
        # a list's values, the first is shown.
        if not lines or (keys == len(steps) and values not in shown):
            shown.add(values)
            is_given = any(steps[: len(k)] == k for k in (key.split(".") for key in overridden))
            place = "command line" if is_given else where
            lines[_explain_problem(problem, problems, hint, place)] = None
    return "\n".join(lines)


def _explain_problem(problem: Any, problems: Sequence[Any], hint: Any, where: str) -> str:
    """One line about a problem, or about all missing keys."""
    steps = [str(step) for step in problem["loc"][1:]]
    path, inner = _known_steps(hint, steps)
    if problem["type"] in _UNKNOWN:
        keys = [field.name for part in _parts(inner) for field in _fields(part)]
        prefix = "".join(f"{step}." for step in path)
        for key in keys:
            below = [name.name for part in _parts(_type_at(inner, key)) for name in _fields(part)]
            if steps[-1] in below:
                meant = f"{prefix}{key}.{steps[-1]}"
                return f"{where}: unknown key '{prefix}{steps[-1]}': did you mean '{meant}'?"
        return f"{where}: unknown key '{prefix}{steps[-1]}': {nearest(steps[-1], keys, prefix)}"
    if problem["type"] == "missing":
        paths = [
            _known_steps(hint, map(str, other["loc"][1:]))[0]
            for other in problems
            if other["type"] == "missing"
        ]
        names = [f"'{'.'.join(path)}'" for path in paths]
        if len(names) == 1:
            return f"{where}: key {names[0]} is missing: give it a value"
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        return f"{where}: keys {listed} are missing: give them values"
    if not path:
        # A check of the whole dataclass.
        return f"{where}: {problem['msg'].removeprefix('Value error, ')}"
    return f"{where}: key '{'.'.join(path)}' is {problem['input']!r:.120}: {problem['msg']}"


def _known_steps(hint: Any, steps: Iterable[str]) -> tuple[list[str], Any]:
    """The keys at the start of a location, before names of members of unions; and their type."""
    path: list[str] = []
    for step in steps:
        if (inner := _type_at(hint, step)) is None:
            break
        hint = inner
        path.append(step)
    return path, hint


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    # TypeAdapter takes no config for a dataclass, but one inside a tuple inherits its config.
    return TypeAdapter(tuple[cls], config=ConfigDict(extra="forbid"))


def _parts(hint: Any) -> list[Any]:
    """The members of a union without None, or the type itself."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return [
        part for part in (typing.get_args(hint) if is_union else [hint]) if part is not type(None)
    ]


def _fields(hint: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(hint) if dataclasses.is_dataclass(hint) else ()


def _type_at(hint: Any, key: str) -> Any:
    """The type of the value under a key of a dataclass, mapping or list; None if unknown."""
    for part in _parts(hint):
        if any(field.name == key for field in _fields(part)):
            return typing.get_type_hints(part)[key]
        if typing.get_origin(part) in (dict, Mapping, list) and not key.startswith("["):
            return typing.get_args(part)[-1]
    return None


def as_plain(config: Any) -> Any:
    """Turn a config into plain values that JSON and YAML can hold."""
    return to_jsonable_python(
        config, fallback=lambda value: getattr(value, "item", value.__str__)()
    )


def check_utf8(name: str, where: str) -> None:
    """Raise ConfigError if a name is not UTF-8, in which tables and manifests hold paths."""
    if name != name.encode(errors="replace").decode():
        raise ConfigError(f"{where}: {name!r} is not UTF-8: rename the file or folder")


def load_config(cls: type[C], arguments: Sequence[str], about: str | None = None) -> C:
    """Build a program's config from its command line.

    `--help` prints `about` and a line for each of the main keys, `--help_all` all keys.
    """
    if not {"-h", "--help", "--help_all"}.isdisjoint(arguments):
        text = (about or "").strip()
        is_whole = "--help_all" in arguments
        keys = describe(cls, is_whole=True) if is_whole else summarise(cls, text.count("\n"))
        further = getattr(cls, "explain", lambda _: ())(arguments)
        print(text, "\nKeys (set each with --key value):\n", *keys, *further, sep="\n")
        raise SystemExit(0)
    for argument in arguments:
        check_utf8(argument, "command line")
    files, preset, overrides = _read_words(cls, arguments)
    values: dict[str, Any] = {}
    for file in files:
        values |= read_yaml(_find_config(file))
    presets = values.pop("presets", None)
    if preset is not None:
        named = presets if isinstance(presets, dict) else {}
        if not isinstance(named.get(preset), dict):
            problem = nearest(preset, list(named)) if named else "the config has no presets"
            raise ConfigError(f"--preset: no preset '{preset}': {problem}")
        values |= named[preset]
    keys_seen = _override(values, overrides)
    where = ", ".join(files) or "command line"
    return build(cls, _expand(values, where), where, keys_seen)


# The path of a key, the text on the command line, and the key's type.
_Override = tuple[list[str], str, Any]


def _read_words(
    cls: type[C], arguments: Sequence[str]
) -> tuple[list[str], str | None, list[_Override]]:
    """The config files, the preset and the keys of a command line, in their order."""
    marks = marks_of(cls)
    positional = [name for name, marked in marks.items() if Positional in marked]
    files: list[str] = []
    preset: str | None = None
    overrides: list[_Override] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            if not positional:
                raise ConfigError(
                    f"unexpected argument '{word}': write --config FILE or --key value; a list is "
                    "--key '[a, b]', or --key a --key b"
                )
            name = positional[0]
            # A list takes all further words.
            if not any(typing.get_origin(kind) is list for kind in _parts(_type_at(cls, name))):
                positional.pop(0)
            overrides.append(([name], word, _type_at(cls, name)))
            continue
        key, equals, text = word[2:].partition("=")
        if key == "config":
            files.append(text if equals else _next(rest, key, Path))
            continue
        if key == "preset":
            preset = text if equals else _next(rest, key, str)
            continue
        path, hint = _locate(cls, key, marks)
        positional = [name for name in positional if [name] != path]
        overrides.append((path, text if equals else _next(rest, key, hint), hint))
    return files, preset, overrides


def _override(values: dict[str, Any], overrides: Sequence[_Override]) -> set[str]:
    """Set the keys of the command line in the values of a config; returns their names."""
    keys_seen: set[str] = set()
    for path, text, hint in overrides:
        target, name = values, ".".join(path)
        for step in path[:-1]:
            if not isinstance(target.get(step), dict | None):
                raise ConfigError(f"--{name}: '{step}' holds no keys: set --{step}")
            # Copied, since other keys may share the mapping through an alias.
            target[step] = dict(target.get(step) or {})
            target = target[step]
        kinds = set(_parts(hint))
        value: Any = _value_of(text, is_text=hint is not None and kinds <= {str, Path})
        is_nullable = type(None) in typing.get_args(hint)
        if value is None and kinds <= {str, Path} and not (is_nullable and text.strip()):
            value = text
        if any(typing.get_origin(kind) is list for kind in kinds):
            value = value if isinstance(value, list | None) else [text]
            if name in keys_seen:
                value = [*(target[path[-1]] or []), *(value or [])]
        # Only a check, so that the message does not blame the file.
        _expand(value, "command line")
        target[path[-1]] = value
        keys_seen.add(name)
    return keys_seen


def marks_of(cls: Any) -> dict[str, tuple[Any, ...]]:
    """The marks of each key of a dataclass, such as `Runtime`."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}


def _find_config(name: str) -> Path:
    """A config file, or one of the package's, such as configs/data/sample_pairs.yaml."""
    package = Path(__file__).parents[1]
    places = (Path(name), package / "programs" / name, package.parent / name)
    shipped = places[1:] if name.startswith("configs/") else ()
    return next((path for path in (places[0], *shipped) if path.exists()), places[0])


def _next(rest: list[str], key: str, hint: Any) -> str:
    """Take the value of a key from the words after it; a boolean or unknown key may have none."""
    has_value = bool(rest) and (rest[0] == "--" or not rest[0].startswith("--"))
    if set(_parts(hint)) == {bool}:
        has_value = has_value and rest[0].lower() in ("true", "false", "null", "yes", "no")
    if has_value:
        return rest.pop(0)
    if hint not in (None, Any) and set(_parts(hint)) != {bool}:
        raise ConfigError(f"command line: --{key} has no value: write --{key} VALUE")
    return "true"


def _locate(cls: Any, key: str, marks: Mapping[str, Any]) -> tuple[list[str], Any]:
    """The steps of a dotted key and the type of its value, None if unknown."""
    path, hint = _steps(cls, key)
    if any(field.name == path[0] for field in _fields(cls)):
        return path, hint
    for name, marked in marks.items():
        for mark in marked:
            if isinstance(mark, Passed):
                module, _, target = mark.to.partition(":")
                inner = getattr(importlib.import_module(module), target)
                path, hint = _steps(inner, key)
                valid = [field.name for field in (*_fields(cls), *_fields(inner))]
                if path[0] not in valid:
                    raise ConfigError(
                        f"command line: unknown key '{path[0]}': {nearest(path[0], valid)}"
                    )
                return [name, *path], hint
    return path, hint


def _steps(cls: Any, key: str) -> tuple[list[str], Any]:
    """Split a dotted key, with - as _ in the names of fields; return its steps and type."""
    path: list[str] = []
    hint = cls
    for step in key.split("."):
        # Python's keywords cannot name a field: `from` is `from_`.
        name = step.replace("-", "_") + "_" * keyword.iskeyword(step)
        is_field = any(field.name == name for part in _parts(hint) for field in _fields(part))
        path.append(name if is_field else step)
        hint = None if hint is None else _type_at(hint, path[-1])
    return path, hint


def _value_of(text: str, *, is_text: bool) -> Any:
    """Parse a value of the command line as YAML; `is_text` if its key takes text only."""
    try:
        value = _parse(text)
        ends = [t.end_mark.index for t in yaml.scan(text) if t.start_mark.index < t.end_mark.index]
    except (ConfigError, yaml.YAMLError, ValueError, RecursionError):
        return text
    # YAML reads a comment in "run #2", a number in "2024", a mapping in "{title}: {body}".
    has_comment = bool(text[max(ends, default=0) :].strip())
    return text if has_comment or (is_text and not isinstance(value, str | None)) else value


def _expand(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        return {key: _expand(item, where) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, where) for item in value]
    if not isinstance(value, str):
        return value
    names = re.findall(r"\$\{?([A-Za-z_]\w*)", value)
    if unset := [name for name in names if name not in os.environ]:
        raise ConfigError(f"{where}: '{value:.80}': ${unset[0]} is not set: export it first")
    expanded = os.path.expandvars(value)
    return str(Path(expanded).expanduser()) if expanded.startswith("~") else expanded


def _is_foreign(cls: Any, field: dataclasses.Field[Any]) -> bool:
    """Whether a key is trl's or transformers'."""
    declaring = [base for base in cls.__mro__ if field.name in inspect.get_annotations(base)]
    return {base.__module__.partition(".")[0] for base in declaring} <= {"trl", "transformers"}


def _help_order(cls: Any) -> list[dataclasses.Field[Any]]:
    """Required keys first, then the class's own, inherited ones, trl's and transformers'."""

    def rank(field: dataclasses.Field[Any]) -> tuple[bool, bool, bool]:
        defaults = (field.default, field.default_factory)
        is_optional = any(value is not dataclasses.MISSING for value in defaults)
        is_own = field.name in inspect.get_annotations(cls)
        return is_optional, _is_foreign(cls, field), not is_own

    return sorted(dataclasses.fields(cls), key=rank)


def _meanings(cls: Any) -> dict[str, str]:
    """The text of each key, from the docstrings."""
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        meanings |= re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE)
    # trl and transformers keep the meaning in the field's metadata.
    others = {field.name: field.metadata.get("help", "") for field in dataclasses.fields(cls)}
    return {**others, **meanings}


def _default(field: dataclasses.Field[Any]) -> Any:
    """The default of a key; `dataclasses.MISSING` if it is required."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def summarise(cls: Any, lines_before: int) -> Iterator[str]:
    """Yield lines of a short help: one for each key, as many as a screen has room for.

    Args:
        cls: the config.
        lines_before: number of lines of the help that are above.
    """
    meanings, ordered = _meanings(cls), _help_order(cls)
    room = max(_SCREEN_LINES - lines_before, _MIN_KEYS)
    # A default of ours for a key of trl has no text.
    shown = [field for field in ordered if not _is_foreign(cls, field) and meanings[field.name]]
    shown = shown[:room]
    for field in shown:
        default, meaning = _default(field), " ".join(meanings.get(field.name, "").split())
        first = re.split(r"(?<=[.;])\s", meaning)[0].rstrip(".;")
        shown_default = ""
        if default is dataclasses.MISSING:
            shown_default = " (required)"
        elif isinstance(default, str | int | float | Path) and default not in ("", "guess", False):
            shown_default = f" ({default})"
        brief = textwrap.shorten(first, _WIDTH - len(shown_default), placeholder=" ...")
        yield f"  {field.name.rstrip('_'):<22} {brief}{shown_default}".rstrip()
    hidden = len(ordered) - len(shown)
    yield f"\n  {f'{hidden} further keys and ' if hidden else ''}all texts: --help_all"


def describe(
    cls: Any, prefix: str = "", instance: Any = None, *, is_whole: bool = False
) -> Iterator[str]:
    """Yield lines of help: each key with type, default (of `instance`, if any) and docstring.

    Keys of trl and transformers are only counted, unless `is_whole`.
    """
    meanings, fields = _meanings(cls), _help_order(cls)
    shown = [
        field
        for field in fields
        if is_whole or _default(field) is dataclasses.MISSING or not _is_foreign(cls, field)
    ]
    for field in shown:
        default = getattr(instance, field.name, _default(field))
        hint = typing.get_type_hints(cls)[field.name]
        # Without module names: Path, not pathlib.Path.
        kind = re.sub(r"(?:[A-Za-z_]\w*\.)+(?=[A-Z])", "", inspect.formatannotation(hint))
        value = f" = {as_plain(default)!r}" if not _fields(default) else ""
        if default is dataclasses.MISSING:
            value = " (required)"
        yield f"  {prefix}{field.name.rstrip('_')}: {kind}{value}"
        if meaning := meanings[field.name]:
            yield re.sub(r"\n +", "\n      ", f"      {meaning}")
        for part in _parts(hint):
            if dataclasses.is_dataclass(part):
                inner = f"{prefix}{field.name}."
                yield from describe(part, inner, default if _fields(default) else None)
    if hidden := len(fields) - len(shown):
        yield f"\n  {hidden} further keys of trl and transformers: --help_all"


def is_full_disk(error: Exception) -> bool:
    """Whether an error means a full disk, which libraries report with many exception types."""
    signs = [os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT)]
    # torch.save only notices that its stream failed, or that its file is shorter than expected.
    return any(sign in str(error) for sign in (*signs, "iostream error", "unexpected pos"))


@contextlib.contextmanager
def report_errors() -> Iterator[None]:
    """Turn errors that the user can act on into one line and an exit code.

    The code is 2 for a LitBenchError, a missing library of an extra, a full disk or a long name,
    130 for Ctrl+C, 141 for a closed pipe (`| head`).
    """
    try:
        try:
            yield
        finally:
            # Otherwise a pipe closed by the reader is only noticed at exit.
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("stopped; run the same command again to resume", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # Otherwise Python reports the closed pipe again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except Exception as error:
        told = _missing_extra(error) or error
        is_long_name = isinstance(told, OSError) and told.errno == errno.ENAMETOOLONG
        is_usual = isinstance(told, LitBenchError | UnicodeError) or is_long_name
        if not is_usual and not is_full_disk(told):
            raise
        print(f"error: {' '.join(str(told).split())}", file=sys.stderr)
        raise SystemExit(2) from None


def check_installed(*libraries: str) -> None:
    """Raise MissingExtraError, before any work, if a library of an extra is not installed."""
    for library in libraries:
        if importlib.util.find_spec(library) is None and (extra := _extra_of(library)):
            raise MissingExtraError(library, extra)


def _missing_extra(error: Exception) -> MissingExtraError | None:
    """The first extra that installs a missing library itself; None if none does."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    library = str(error.name).partition(".")[0]
    extra = _extra_of(library)
    return MissingExtraError(library, extra) if extra else None


def _extra_of(library: str) -> str | None:
    # None from a checkout that is not installed.
    for installed in importlib.metadata.distributions(name="litbench"):
        for line in installed.requires or ():
            match = re.match(r"([\w.-]+).*extra == ['\"](\w+)['\"]", line)
            if match and match[1].lower().replace("-", "_") == library.lower():
                return match[2]
    return None


def run_program(main: Callable[[C], None], cls: type[C], about: str | None) -> None:
    """Run `main` with the config of the command line, inside `report_errors`."""

    def work() -> None:
        main(load_config(cls, sys.argv[1:], about))

    with report_errors():
        if "TORCHELASTIC_ERROR_FILE" in os.environ:
            from torch.distributed.elastic.multiprocessing.errors import record  # noqa: PLC0415

            # Lets a multi-process launcher show the error message at the end of its report.
            work = record(work)
        work()
