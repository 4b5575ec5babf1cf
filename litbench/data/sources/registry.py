"""The registry of published sets of human judgements: where each comes from, how it becomes pairs.

    sets = read_registry()
    import_dataset("hanna", sets["hanna"], Path("runs/hanna"), "", copy=Path("folder/with/files"))

`litbench/data/sources/datasets.yaml` has an entry per set; a user's own file has entries of the
same form. The texts are fetched from their origin or read from a local copy; LitBench ships none.
"""

import importlib.resources
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from litbench.data.curation.pair_making import PairMaking, make_pairs
from litbench.data.curation.story_making import StoryMaking, make_stories
from litbench.data.sources.pairs import PairImport, import_pairs
from litbench.data.sources.ratings import RatingImport, import_ratings
from litbench.runs.config import build, nearest, read_yaml
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.hub import fetch_file, parse_name
from litbench.runs.outputs import Cache, file_digest

# Placeholder in an entry's import: the data set on the Hub, or a local copy of it.
_ORIGIN = "origin"
# A tag of BCP 47, such as en or zh-TW.
Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{1,8})*$")]
Kind = Literal["stories", "openings", "paragraphs", "plots", "posts", "answers"]
Judged = Literal["votes", "ratings", "ranks", "experts", "mixed"]


@dataclass
class PublishedFile:
    """A file of a set.

    Attributes:
        path: its path at the origin; null if the origin does not publish it in this form.
        sha256: its digest; null until someone has fetched it.
    """

    path: str | None = None
    sha256: str | None = None


@dataclass
class Dataset:
    """An entry of the registry.

    Attributes:
        title: full name.
        about: one line: what is compared, and who judged it.
        paper: authors, year and title; null if there is none.
        licence: SPDX identifier as the origin states it; null if it states none.
        language: language of the texts, such as en.
        kind: kind of text.
        judged: what people gave.
        origin: address of a repository, or a data set's owner/name[:split] on the Hub.
        revision: commit at the origin; null for the newest.
        files: the files that the import reads, by the name it uses. Without files, a data set on
            the Hub is read whole, and named `origin` in the import.
        pairs: published pairs: keys of `litbench.data.sources.pairs.PairImport` without `out`.
        ratings: published ratings: keys of `litbench.data.sources.ratings.RatingImport` without
            `out`.
        stories: stories with scores: keys of `litbench.data.curation.story_making.StoryMaking`
            without `out`, to be paired by `pairing`.
        pairing: keys of `litbench.data.curation.pair_making.PairMaking` without `out` and
            `stories`.
        split: the split to evaluate on; null for all pairs.
        suite: whether `litbench suite` evaluates on it.
    """

    title: str
    language: Language
    kind: Kind
    judged: Judged
    origin: str
    about: str = ""
    paper: str | None = None
    licence: str | None = None
    revision: str | None = None
    files: dict[str, PublishedFile] = field(default_factory=dict)
    pairs: dict[str, Any] | None = None
    ratings: dict[str, Any] | None = None
    stories: dict[str, Any] | None = None
    pairing: dict[str, Any] = field(default_factory=dict)
    split: str | None = None
    suite: bool = True

    def __post_init__(self) -> None:
        """Check that there is one way to make pairs; ValueError otherwise."""
        if sum(way is not None for way in (self.pairs, self.ratings, self.stories)) != 1:
            raise ValueError("give one of pairs, ratings and stories")

    def place(self) -> str:
        """The origin with its revision, for people to read."""
        return self.origin if self.revision is None else f"{self.origin}, commit {self.revision}"


def read_registry(file: Path | None = None) -> dict[str, Dataset]:
    """Return all sets by name, those of a user's own file after the packaged ones.

    Raises:
        ConfigError: an entry is not valid, or a name is in both files.
    """
    packaged = importlib.resources.files("litbench.data.sources") / "datasets.yaml"
    with importlib.resources.as_file(packaged) as path:
        entries = read_yaml(path)
    for name, entry in (read_yaml(file) if file is not None else {}).items():
        if name in entries:
            raise ConfigError(
                f"{file}: the registry has a set '{name}' already: choose another name"
            )
        entries[name] = entry
    return {name: _read_entry(name, entry) for name, entry in entries.items()}


def _read_entry(name: str, entry: Any) -> Dataset:
    """Check an entry with its import, before anything is fetched; ConfigError with all problems."""
    problems, dataset = [], None
    try:
        dataset = build(Dataset, entry, f"set {name}")
    except ConfigError as error:
        problems.append(str(error))
    parts = entry if isinstance(entry, Mapping) else {}
    for key, (options, more) in _IMPORTS.items():
        if isinstance(parts.get(key), Mapping):
            try:
                build(options, {**parts[key], **more, "out": Path()}, f"set {name}: {key}")
            except ConfigError as error:
                problems.append(str(error))
    if dataset is None or problems:
        raise ConfigError("\n".join(problems))
    return dataset


# The keys of an entry that are configs, with the keys that an import fills in.
_IMPORTS: dict[str, tuple[type, dict[str, Any]]] = {
    "pairs": (PairImport, {}),
    "ratings": (RatingImport, {}),
    "stories": (StoryMaking, {}),
    "pairing": (PairMaking, {"stories": Path()}),
}


def list_sets(sets: Mapping[str, Dataset]) -> str:
    """The sets as a table for the terminal."""
    heading = ("set", "", "texts", "judged", "licence", "about")
    rows = [
        (
            name,
            dataset.language,
            dataset.kind,
            dataset.judged,
            dataset.licence or "none stated",
            dataset.about,
        )
        for name, dataset in sets.items()
    ]
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in (heading, *rows))


def find_dataset(sets: Mapping[str, Dataset], name: str) -> Dataset:
    """Return a set; ConfigError with the nearest name if there is none."""
    if name not in sets:
        raise ConfigError(f"the registry has no set '{name}': {nearest(name, list(sets))}")
    return sets[name]


def fetch(name: str, dataset: Dataset, folder: Path) -> dict[str, Path]:
    """Download the files of a set into `folder`, unless they are there; return their paths.

    A file's name has the fingerprint of its address and digest, so that another revision is fetched
    anew.

    Raises:
        DataError: the origin does not publish a file in this form, or cannot be reached, or a file
            does not match its digest.
    """
    if missing := [name for name, file in dataset.files.items() if file.path is None]:
        raise DataError(
            f"{name}: {dataset.place()} does not publish {', '.join(missing)} in this form: make "
            "these tables with the columns of its entry in datasets.yaml, and give their "
            "folder with --from FOLDER"
        )
    cache, paths = Cache(folder), {}
    for local, file in dataset.files.items():
        if "://" in dataset.origin:
            url = f"{dataset.origin}/raw/{dataset.revision or 'HEAD'}/{file.path}"
        else:
            repository = parse_name(dataset.origin).repository
            url = f"hf://datasets/{repository}@{dataset.revision or 'main'}/{file.path}"
        path = Path(local)
        paths[local] = cache.path([url, file.sha256], path.stem, path.suffix)
        if not paths[local].exists():
            print(f"fetching {url}")
            fetch_file(url, paths[local], file.sha256)
    cache.discard_unused()
    return paths


def find_copy(name: str, dataset: Dataset, copy: Path) -> dict[str, Path]:
    """Return the paths of a set's files in a local folder.

    Raises:
        DataError: a file is missing, or does not match its digest.
    """
    paths = {local: copy / local for local in dataset.files}
    if missing := [str(path) for path in paths.values() if not path.exists()]:
        raise DataError(f"{name}: no {', '.join(missing)}: give the folder that has these files")
    for local, file in dataset.files.items():
        if file.sha256 not in (None, file_digest(paths[local])):
            raise DataError(
                f"{name}: {paths[local]} does not match the sha256 of its entry: it is damaged or "
                f"of another revision than {dataset.place()}; fetch it again"
            )
    return paths


def import_dataset(
    name: str, dataset: Dataset, out: Path, program: str, *, copy: Path | None = None
) -> None:
    """Make the pairs of a set in `out/pairs`, and its stories, if it has scores, in `out/stories`.

    Args:
        name: name of the set, for messages and the stories' source.
        dataset: its entry.
        out: folder of the set; downloads are kept in `out/files`.
        program: name or path of the program, for the manifests.
        copy: folder with the set's files; for a data set on the Hub that is read whole, a file or
            folder of its rows. None fetches from the origin.

    Raises:
        DataError: a file is missing, damaged or of another revision, or no pair could be made.
    """
    if copy is not None and copy.resolve() == (out / "pairs").resolve():
        raise ConfigError(f"{name}: {copy} is the output folder: use its pairs, or give --out")
    if dataset.files:
        if copy is None:
            sources = fetch(name, dataset, out / "files")
        else:
            sources = find_copy(name, dataset, copy)
        named = {local: str(path) for local, path in sources.items()}
    else:
        on_hub = parse_name(dataset.origin)
        revision = dataset.revision or on_hub.revision
        named = {_ORIGIN: str(copy or replace(on_hub, revision=revision))}
    for work, config in _steps(name, dataset, named, out):
        work(config, program)


def _steps(
    name: str, dataset: Dataset, named: Mapping[str, str], out: Path
) -> list[tuple[Callable[[Any, str], None], Any]]:
    """The functions that make a set's pairs, with their configs; ConfigError for a wrong key.

    `named` has the path of each file of the set.
    """

    def located(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: located(inner) for key, inner in value.items()}
        return named.get(value, value) if isinstance(value, str) else value

    pairs, stories = out / "pairs", out / "stories"
    where = f"set {name}"
    if dataset.pairs is not None:
        keys = {**located(dataset.pairs), "out": pairs}
        return [(import_pairs, build(PairImport, keys, f"{where}: pairs"))]
    if dataset.ratings is not None:
        keys = {**located(dataset.ratings), "out": pairs}
        return [(import_ratings, build(RatingImport, keys, f"{where}: ratings"))]
    keys = {"source": name, **located(dataset.stories), "out": stories}
    pairing = {**dataset.pairing, "stories": stories / "stories.parquet", "out": pairs}
    return [
        (make_stories, build(StoryMaking, keys, f"{where}: stories")),
        (make_pairs, build(PairMaking, pairing, f"{where}: pairing")),
    ]
