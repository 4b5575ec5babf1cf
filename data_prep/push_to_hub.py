"""Write a pairs table as a data set with a card, and push it to the Hub when told to.

    python data_prep/push_to_hub.py --config configs/data/push_to_hub.yaml

Reads the folder of make_pairs.py, import_pairs.py or rehydrate.py (`pairs.parquet` and
`manifest.json`). Writes into `out` the folder `data` with one or more Parquet files per split, a
generated card `README.md` and `manifest.json`. With `dry_run: false` it then makes the data set
on the Hub, private unless `private: false`, and replaces its data and card in one commit; the
token comes from `hf auth login` or HF_TOKEN and from nowhere else. With `ids_only: true` no text
is published: only the ids of comments and their labels, which rehydrate.py turns into pairs.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from litbench.artifact import Artifact, read_manifest_of, without_runtime_keys
from litbench.config import as_plain, run_program
from litbench.errors import ConfigError, DataError
from litbench.hub import parse_name, replace_files
from litbench.markdown import as_text, escape, make_rows
from litbench.records import PAIRS
from litbench.sources.posts import THING_ID
from litbench.tables import check_parquet, write_table

SIDES = ("chosen", "rejected")
TEXTS = ("prompt", "chosen", "rejected")
COMMENT_ID = f"t1_{THING_ID}"
POST_ID = f"t3_{THING_ID}"
# As litbench.sources.posts.hash_author writes them.
AUTHOR_HASH = "[0-9a-f]{16}"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# What the Hub calls the sizes of data sets.
SIZES = (
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
    (10**8, "10M<n<100M"),
)
LABEL_SOURCES = {
    "votes": "The chosen story of a pair has more votes of readers than the rejected one.",
    "people": "People said which story of a pair is better.",
    "model": "A model said which story of a pair is better, not people.",
    "planted": "**The votes behind these labels are simulated. No claim about readers, writers or "
    "models can be made from them.**",
}


@dataclass
class Config:
    """What to publish, where, and what the card says.

    Attributes:
        artifact: folder with pairs.parquet and manifest.json.
        repository: owner/name on the Hub.
        contact: where authors write to have a story removed: an address or a page.
        out: folder to write.
        title: heading of the card; the name of the repository when null.
        about: what the set is, in words.
        license: the Hub's key for the licence of the selection and the labels.
        language: codes of the texts' languages, such as en.
        task_categories: the Hub's names of tasks.
        tags: further words to find the set by.
        ids_only: publish ids of comments and labels, and no text.
        authors: also publish the salted hashes of authors' names; plain names are refused.
        rows_per_file: most pairs in one Parquet file.
        private: make the data set private.
        dry_run: write the folder and push nothing.
    """

    artifact: Path
    repository: str
    contact: str
    out: Path
    title: str | None = None
    about: str = ""
    license: str = "other"
    language: list[str] = field(default_factory=list)
    task_categories: list[str] = field(default_factory=lambda: ["text-classification"])
    tags: list[str] = field(default_factory=lambda: ["preference", "reward-model"])
    ids_only: bool = False
    authors: bool = False
    rows_per_file: int = 50_000
    private: bool = True
    dry_run: bool = True


def check(config: Config) -> None:
    """Check what the types cannot."""
    if str(parse_name(config.repository)) != parse_name(config.repository).repository:
        raise ConfigError(f"repository is '{config.repository}': give owner/name and no more")
    if not config.contact.strip():
        raise ConfigError(
            "contact is empty: give an address or a page where authors can ask to be removed"
        )
    if config.rows_per_file < 1:
        raise ConfigError("rows_per_file is below 1: give at least 1")


# The data ------------------------------------------------------------------------------------


def published_columns(names: Sequence[str], config: Config) -> dict[str, str]:
    """Columns to publish, by their name in pairs.parquet."""
    columns = {name: name for name in names}
    if not config.authors or config.ids_only:
        # With the id of a comment anybody can look its author up, and so undo the hash.
        columns = {name: new for name, new in columns.items() if not name.endswith("_author")}
    if not config.ids_only:
        return columns
    # Extra columns may hold texts, such as rationales.
    declared = {column.name for column in PAIRS.columns} - set(TEXTS)
    renamed = {"prompt_id": "post_id"}
    for side in SIDES:
        # As rehydrate.py reads them.
        renamed[f"{side}_story_id"] = f"{side}_comment_id"
        renamed[f"{side}_score"] = f"{side}_upvotes"
    return {name: renamed.get(name, new) for name, new in columns.items() if name in declared}


def check_ids(path: Path) -> None:
    """Refuse to publish ids that Reddit does not know.

    Raises:
        DataError: a story or prompt has another id than Reddit gives.
    """
    columns = {f"{side}_story_id": COMMENT_ID for side in SIDES} | {"prompt_id": POST_ID}
    table = pq.read_table(path, columns=list(columns))
    for name, pattern in columns.items():
        fits = pc.match_substring_regex(table[name], pattern=f"^{pattern}$")
        wrong = table[name].filter(pc.invert(fits))
        if len(wrong):
            raise DataError(
                f"{path}: column {name}: {wrong[0].as_py()!r:.60} and {len(wrong) - 1:,} more are "
                "no ids of Reddit: ids_only needs pairs of Reddit's comments, as from "
                "collect_reddit.py or import_archive.py"
            )


def check_authors(path: Path, config: Config) -> None:
    """Refuse to publish authors' names as they are.

    Raises:
        DataError: an author column holds anything but salted hashes.
    """
    columns = published_columns(pq.read_schema(path).names, config)
    for name in (name for name in columns if name.endswith("_author")):
        authors = pq.read_table(path, columns=[name])[name].cast(pa.large_string())
        hashed = pc.match_substring_regex(authors, pattern=f"^{AUTHOR_HASH}$")
        wrong = pc.indices_nonzero(pc.invert(hashed))
        if len(wrong):
            # The message may end up in a log, so the name is not in it.
            raise DataError(
                f"{path}: column {name}: {len(wrong):,} values, the first in row "
                f"{wrong[0].as_py() + 1:,}, are no salted hashes of 16 hexadecimal digits and may "
                "be plain names: set authors to false, or make the pairs again of stories whose "
                "authors are hashed"
            )


def split_names(splits: Sequence[str]) -> dict[str, str]:
    """The name each split has on the Hub, where `all` means every split and cannot be one.

    Raises:
        DataError: two splits would have the same name.
    """
    names = {
        split: "train" if split == "all" else re.sub(r"\W", "_", split, flags=re.ASCII)
        for split in sorted(splits)
    }
    twice = [name for name, count in Counter(names.values()).items() if count > 1]
    if twice:
        raise DataError(
            f"splits {sorted(splits)} would both be called '{twice[0]}' on the Hub: rename one"
        )
    return names


def read_split(path: Path, split: str, columns: Mapping[str, str], rows: int) -> Iterator[pa.Table]:
    """A split's pairs, `rows` at a time, in the order of the file."""
    waiting: list[pa.Table] = []
    held = 0
    names = list(columns)
    for batch in pq.ParquetFile(path).iter_batches(
        batch_size=2_048, columns=[*dict.fromkeys([*names, "split"])]
    ):
        part = pa.Table.from_batches([batch])
        part = part.filter(pc.equal(part["split"], split)).select(names)
        waiting.append(part)
        held += part.num_rows
        while held >= rows:
            table = pa.concat_tables(waiting)
            yield table.slice(0, rows).rename_columns(list(columns.values()))
            waiting, held = [table.slice(rows)], held - rows
    if held:
        yield pa.concat_tables(waiting).rename_columns(list(columns.values()))


def write_data(
    folder: Path, path: Path, counts: Mapping[str, int], names: Mapping[str, str], config: Config
) -> None:
    """Write `SPLIT-00000-of-0000N.parquet` for every split."""
    columns = published_columns(pq.read_schema(path).names, config)
    for split, name in names.items():
        files = -(-counts[split] // config.rows_per_file)
        for place, table in enumerate(read_split(path, split, columns, config.rows_per_file)):
            write_table(table, folder / f"{name}-{place:05d}-of-{files:05d}.parquet")


# The statistics ------------------------------------------------------------------------------


def day(seconds: int) -> str:
    """A time as its day in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def describe_split(pairs: pa.Table) -> dict[str, str]:
    """A split's statistics in words and numbers; what the source does not have is left out."""
    sides = {
        name: [pairs[f"{side}_{name}"] for side in SIDES]
        for name in ("story_id", "n_words", "score", "created_utc")
    }
    stories = {}
    for ids, words in zip(sides["story_id"], sides["n_words"], strict=True):
        stories |= dict(zip(ids.to_pylist(), words.to_pylist(), strict=True))
    lengths = np.fromiter(stories.values(), np.int64)
    longer = pc.greater(*sides["n_words"])
    level = pc.equal(*sides["n_words"])
    rows = {
        "pairs": f"{pairs.num_rows:,}",
        "prompts": f"{pc.count_distinct(pairs['prompt_id']).as_py():,}",
        "stories": f"{len(stories):,}",
        "words in all stories": f"{lengths.sum():,}",
        "words per story, median": f"{np.median(lengths):,.0f}",
        "chosen story longer": f"{pc.mean(longer).as_py():.2%}",
        "both equally long": f"{pc.mean(level).as_py():.2%}",
    }
    for side, scores in zip(SIDES, sides["score"], strict=True):
        known = scores.drop_null().to_numpy()
        if known.size:
            shown = ", ".join(f"{value:,.0f}" for value in np.quantile(known, QUANTILES))
            rows[f"score of {side}: 5, 25, 50, 75, 95 %"] = shown
    times = np.concatenate([part.drop_null().to_numpy() for part in sides["created_utc"]])
    if times.size:
        rows["stories posted"] = f"{day(int(times.min()))} to {day(int(times.max()))}"
    return rows


# The card ------------------------------------------------------------------------------------


def front_matter(config: Config, names: Mapping[str, str], pairs: int) -> str:
    """The card's head, which the Hub reads."""
    size = next((name for limit, name in SIZES if pairs < limit), "n>100M")
    content: dict[str, Any] = {"license": config.license}
    if config.language:
        content["language"] = config.language
    content |= {
        "pretty_name": config.title or config.repository,
        "task_categories": config.task_categories,
        "tags": [*config.tags, "litbench"],
        "size_categories": [size],
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    {"split": name, "path": f"data/{name}-*"} for name in names.values()
                ],
            }
        ],
    }
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return f"---\n{text}---\n"


def describe_making(manifest: Mapping[str, Any]) -> list[str]:
    """Program, versions, inputs and rules."""
    program = str(manifest.get("program", ""))
    if re.fullmatch(r"\w+\.py", program) is None:
        raise DataError(f"the manifest names the program {program!r:.60}: make the product again")
    versions = manifest.get("versions", {})
    lines = [
        "## How it was made",
        "",
        f"By `{program}` of LitBench {escape(versions.get('litbench', '?'))} on "
        f"{escape(manifest.get('finished_utc', '?'))}:",
        "",
        f"    python data_prep/{program} --config CONFIG",
        "",
        "with these rules:",
        "",
    ]
    inputs = manifest.get("inputs", {})
    rules = [
        (key, as_text(value))
        for key, value in without_runtime_keys(manifest).get("config", {}).items()
        if key != "out" and key not in inputs
    ]
    lines += make_rows(("rule", "value"), rules)
    rows = []
    for name, source in inputs.items():
        # What tells salts apart helps no reader, and a guess of the salt could be tried on it.
        if name == "salt":
            continue
        digest = source["sha256"]
        if digest.startswith("name:"):
            rows.append((name, digest.removeprefix("name:"), "the Hub, at this commit"))
        else:
            rows.append((name, Path(source["path"]).name, f"SHA-256 {digest[:16]}"))
    return lines + (["from:", "", *make_rows(("input", "name", "version"), rows)] if rows else [])


def describe_counts(counts: Mapping[str, Any], before: str = "") -> list[str]:
    """The funnel, and whatever else the program counted."""
    lines: list[str] = []
    if "stories" in counts and isinstance(counts["stories"], Mapping):
        lines += describe_counts(counts["stories"], "stories: ")
    if "funnel" in counts:
        lines += ["What each step kept and removed, in this order:", ""]
        rows = [
            (step["about"], f"{step['kept']:,} {step['unit']}", f"{step['removed']:,}")
            for step in counts["funnel"]
        ]
        lines += make_rows(("step", "kept", "removed"), rows)
    rows = []
    for name, value in counts.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            rows.append((f"{before}{name}".replace("_", " "), f"{value:,}"))
        elif isinstance(value, Mapping) and name not in ("stories", "lengths"):
            numbers = {k: v for k, v in value.items() if isinstance(v, int | float)}
            rows += [
                (f"{before}{name}, {key}".replace("_", " "), f"{number:,}")
                for key, number in numbers.items()
            ]
    return lines + (make_rows(("counted", "number"), rows) if rows else [])


def describe_columns(schema: pa.Schema, config: Config) -> list[str]:
    """The columns of the published files."""
    about = {column.name: (column.kind, column.about) for column in PAIRS.columns}
    new = {
        "chosen_comment_id": "the preferred comment's full name on Reddit",
        "rejected_comment_id": "the other comment's full name on Reddit",
        "post_id": "full name on Reddit of the post both answer",
    }
    rows = []
    for name, published in published_columns(schema.names, config).items():
        kind, text = about.get(name, (str(schema.field(name).type), "kept from the source"))
        rows.append((published, kind, new.get(published, text)))
    return [
        "## Columns",
        "",
        "Times are whole seconds since 1970 in UTC. What the source does not have is null.",
        "",
        *make_rows(("column", "kind", "about"), rows),
    ]


def describe_rights(config: Config) -> list[str]:
    """Whose the texts are and how to have one removed."""
    if config.ids_only:
        rights = (
            "This set holds no story and no prompt, only the ids of comments and what was made of "
            "their votes. Whoever fetches the comments does so under Reddit's User Agreement and "
            "its Data API terms, and a comment that its author has deleted stays deleted."
        )
    else:
        rights = (
            "The stories and prompts belong to those who wrote them. Collecting them here gives "
            "nobody a right to them beyond what the law and the terms of their source give. Where "
            "they come from Reddit, its User Agreement and its Data API terms hold for every use "
            "of them, and a text that its author has deleted there is not to be used any more."
        )
    return [
        "## Rights",
        "",
        f"The licence named above ({escape(config.license)}) is for the selection and the labels.",
        rights,
        "",
        "**To have a story removed**, write to "
        f"{escape(config.contact)} and name it by its id or its address. It goes from the next "
        "version of this set; ask the Hub for the removal of older ones.",
        "",
    ]


def write_card(
    manifest: Mapping[str, Any], pairs: pa.Table, schema: pa.Schema, config: Config
) -> str:
    """The card.

    Args:
        manifest: of the product that is published.
        pairs: its pairs without their texts.
        schema: of its pairs.parquet.
        config: the program's.
    """
    names = split_names(pc.unique(pairs["split"]).to_pylist())
    sources = Counter(pairs["label_source"].to_pylist())
    split_of = {name: pairs.filter(pc.equal(pairs["split"], s)) for s, name in names.items()}
    described = {name: describe_split(table) for name, table in split_of.items()}
    statistics = list(dict.fromkeys(key for rows in described.values() for key in rows))
    ids_only = (
        ["This set holds ids and no texts. `python data_prep/rehydrate.py` of LitBench fetches "
         "the comments that are still there and makes full pairs of them.", ""]
        if config.ids_only else []
    )  # fmt: skip
    paragraphs = [escape(part) for part in re.split(r"\n\s*\n", config.about) if part.strip()]
    return "\n".join(
        [
            front_matter(config, names, pairs.num_rows),
            f"# {escape(config.title or config.repository)}",
            "",
            *(line for part in paragraphs for line in (part, "")),
            f"{pairs.num_rows:,} pairs of stories, each pair written to the same prompt and with "
            "one story preferred to the other.",
            "",
            *ids_only,
            "## Labels",
            "",
            *make_rows(("label source", "pairs"), [(s, f"{n:,}") for s, n in sources.items()]),
            *(line for s in sources for line in (LABEL_SOURCES[s], "")),
            *describe_making(manifest),
            "## Funnel",
            "",
            *describe_counts(manifest.get("counts", {})),
            "## Statistics",
            "",
            *make_rows(
                ("", *described),
                [(key, *(rows.get(key, "") for rows in described.values())) for key in statistics],
            ),
            *describe_columns(schema, config),
            *describe_rights(config),
        ]
    )


# The program ---------------------------------------------------------------------------------


def main(config: Config) -> None:
    """Write the folder; push it when told to."""
    check(config)
    path = config.artifact / "pairs.parquet"
    check_parquet(path, PAIRS)
    # Else the card would tell the funnel and the rules of other pairs.
    manifest = read_manifest_of(path)
    plain = as_plain(config)
    # Where and whether it is pushed says nothing about the files.
    written = {key: value for key, value in plain.items() if key not in ("dry_run", "private")}
    artifact = Artifact(
        config.out,
        program=__file__,
        config=written,
        inputs={"artifact": config.artifact / "manifest.json", "pairs": path},
    )
    if not artifact.is_current():
        if config.ids_only:
            check_ids(path)
        check_authors(path, config)
        schema = pq.read_schema(path)
        pairs = pq.read_table(
            path, columns=[column.name for column in PAIRS.columns if column.name not in TEXTS]
        )
        counts = Counter(pairs["split"].to_pylist())
        names = split_names(list(counts))
        card = write_card(manifest, pairs, schema, config)
        artifact.write_folder(
            "data", lambda folder: write_data(folder, path, counts, names, config)
        )
        artifact.write("README.md", lambda file: file.write_text(card, encoding="utf-8"))
        artifact.counts = {names[split]: number for split, number in sorted(counts.items())}
        artifact.finish()
        print(f"{config.out}: {pairs.num_rows:,} pairs and a card; read README.md before pushing")
    if config.dry_run:
        print("nothing was pushed; to push, run the same command with --dry_run false")
    else:
        files = [config.out / "README.md", *sorted((config.out / "data").glob("*.parquet"))]
        address = replace_files(
            config.repository,
            {file.relative_to(config.out).as_posix(): file for file in files},
            "data set",
            private=config.private,
            is_ours=lambda path: re.fullmatch(r"data/[^/]+\.parquet", path) is not None,
        )
        print(f"pushed: {address}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
