"""Make the pairs of a published set of human judgements, by its entry in the registry.

    litbench data import hanna --from FOLDER
    litbench data import --config mine.yaml

Without `from`, the set's files are fetched from their origin into `out/files`; an interrupted
download resumes, and files whose SHA-256 the entry has are checked. With it, a local copy is read.
Without `name`, the sets are listed. Their entries are in litbench/data/sources/datasets.yaml; a set
of your own is an entry of the same form in a file named by `registry`.

Writes into `out`: `pairs`, the folder of import_pairs.py, import_ratings.py or make_pairs.py, and
`stories` if the set is stories with scores.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from litbench.data.sources.registry import find_dataset, import_dataset, list_sets, read_registry
from litbench.runs.config import Positional, run_program


@dataclass
class Config:
    """Configuration of `import.py`.

    Attributes:
        name: name of the set; it can be the first argument, without --name. Null lists the sets.
        from_: folder with the set's files, or a file with the rows of a set on the Hub; null
            fetches them.
        out: output folder; null for runs/NAME.
        registry: YAML file with further entries.
    """

    name: Annotated[str | None, Positional] = None
    from_: Path | None = None
    out: Path | None = None
    registry: Path | None = None


def main(config: Config) -> None:
    """Import the set."""
    sets = read_registry(config.registry)
    if config.name is None:
        print(list_sets(sets))
        return
    dataset = find_dataset(sets, config.name)
    out = config.out or Path("runs") / config.name
    import_dataset(config.name, dataset, out, __file__, copy=config.from_)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
