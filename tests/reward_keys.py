"""Writes litbench/models/reward_keys.py, the keys of training, from the installed trl.

python tests/reward_keys.py
"""

import dataclasses
import types
import typing
from pathlib import Path

from litbench.models.reward_training import RewardTraining

FILE = Path(__file__).resolve().parent.parent / "litbench" / "models" / "reward_keys.py"
HEAD = '''"""The keys of training a reward model, so that reading them imports no torch.

Written by `python tests/reward_keys.py` from the installed trl and transformers; the type of a key
is `object` where it is a type of these libraries.
"""

from dataclasses import dataclass
from typing import Any


@dataclass
class RewardKeys:
    """The keys of `litbench.models.reward_training.RewardTraining`, with their types."""

'''


def plain(hint: object) -> str:
    """The source of a type in which only Python's own types are left."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return plain(arguments[0])
    if origin in (typing.Union, types.UnionType):
        members = dict.fromkeys(map(plain, arguments))
        return " | ".join(sorted(members, key="None".__eq__))
    if origin is typing.Literal:
        return plain(type(arguments[0]))
    if origin is not None and arguments:
        return f"{origin.__name__}[{', '.join(map(plain, arguments))}]"
    if hint is dict:
        return "dict[str, Any]"
    if hint in (typing.Any, type(None)):
        return "Any" if hint is typing.Any else "None"
    is_own = isinstance(hint, type) and hint.__module__ == "builtins"
    return hint.__name__ if is_own else "object"


def source() -> str:
    hints = typing.get_type_hints(RewardTraining)
    names = sorted(field.name for field in dataclasses.fields(RewardTraining))
    return HEAD + "".join(f"    {name}: {plain(hints[name])}\n" for name in names)


if __name__ == "__main__":
    FILE.write_text(source(), encoding="utf-8")
    print(FILE)
