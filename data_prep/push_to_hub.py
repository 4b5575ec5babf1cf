"""Write a pairs table as a data set with a card, and push it to the Hub if asked to.

    litbench data push_to_hub --config configs/data/push_to_hub.yaml

Reads the folder of make_pairs.py, import_pairs.py or rehydrate.py (`pairs.parquet` and
`manifest.json`). Writes into `out` the folder `data` with a Parquet file for each split, a card
`README.md` and `manifest.json`. With `dry_run: false` it then creates the data set on the Hub,
private unless `private: false`, and replaces its data and card in one commit; the token comes from
`hf auth login` or HF_TOKEN. With `ids_only: true` no texts are published, only comment ids and
labels, which rehydrate.py turns into pairs again. With `conversational: true` the texts are
messages, which trl's RewardTrainer and DPOTrainer join by the model's chat template:

    train = datasets.load_dataset("parquet", data_files="OUT/data/train.parquet", split="train")
"""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import yaml

from litbench.data.records import PAIRS, SIDES, as_conversations, label_text
from litbench.data.sources.evaluation_pairs import read_audit
from litbench.data.sources.posts import THING_ID
from litbench.data.tables import check_parquet
from litbench.runs.config import as_plain, run_program
from litbench.runs.errors import ConfigError, DataError, MissingExtraError
from litbench.runs.hub import parse_name, replace_files
from litbench.runs.markdown import escape, without_folders
from litbench.runs.outputs import Artifact, read_manifest_of, write_json
from litbench.runs.terminal import show

TEXTS = ("prompt", "chosen", "rejected")
STATISTICS = """
    SELECT split, label_source AS label, count(*) AS pairs, count(DISTINCT prompt_id) AS prompts,
      round(avg((chosen_n_words + rejected_n_words) / 2), 1) AS "words per story, mean",
      round(avg((chosen_n_words > rejected_n_words)::INT), 4) AS "chosen story longer, share"
    FROM read_parquet($path) GROUP BY ALL ORDER BY ALL
"""
RIGHTS_OF_IDS = """\
This data set contains no stories and no prompts, only comment ids and labels derived from votes.
`litbench data rehydrate` of LitBench fetches the comments that still exist and makes full
pairs. Fetching them is subject to Reddit's User Agreement and its Data API terms. A comment that
its author has deleted cannot be fetched."""
RIGHTS_OF_TEXTS = """\
The stories and prompts belong to their authors. This data set grants no rights to them beyond the
law and the terms of their source. Texts from Reddit are subject to Reddit's User Agreement and its
Data API terms, and texts that their authors have deleted there must no longer be used."""


@dataclass
class Config:
    """The data set to publish, its place, and the texts of the card.

    Attributes:
        artifact: folder with pairs.parquet and manifest.json.
        repository: owner/name on the Hub.
        contact: address or page where authors can ask to have a story removed.
        out: folder to write.
        about: description of the data set, for the card.
        license: the Hub's identifier of the licence of the selection and the labels.
        language: language codes of the texts, such as en.
        audit: folder of `litbench audit` on these pairs; its findings go into the card, and its
            audit.json is published.
        ids_only: publish comment ids and labels without texts.
        conversational: publish prompt, chosen and rejected as lists of messages.
        private: make the data set private.
        dry_run: write the folder without pushing it.
    """

    artifact: Path
    repository: str
    contact: str
    out: Path
    about: str = ""
    license: str = "other"
    language: list[str] = field(default_factory=list)
    audit: Path | None = None
    ids_only: bool = False
    conversational: bool = False
    private: bool = True
    dry_run: bool = True


def published_columns(path: Path, config: Config) -> dict[str, str]:
    """Return the columns to publish: published names to names in the pairs file.

    Columns that are null in all pairs are left out: trl would take a null margin for a number.
    """
    pairs = pa_dataset.dataset(path)
    allowed = [
        name
        for name in pairs.schema.names
        if not name.endswith("_author")
        and pairs.head(1, columns=[name], filter=pa_dataset.field(name).is_valid()).num_rows
    ]
    if not config.ids_only:
        return {name: name for name in allowed}
    # Extra columns may contain texts, such as rationales.
    declared = {column.name for column in PAIRS.columns} - set(TEXTS)
    renamed = {"prompt_id": "post_id"}
    for side in SIDES:
        # The names that rehydrate.py reads.
        renamed[f"{side}_story_id"] = f"{side}_comment_id"
        renamed[f"{side}_score"] = f"{side}_upvotes"
    return {renamed.get(name, name): name for name in allowed if name in declared}


def check_ids(path: Path) -> None:
    """Raise DataError for ids in another format than Reddit's, which may contain texts."""
    kinds = {"chosen_story_id": "t1", "rejected_story_id": "t1", "prompt_id": "t3"}
    for name, kind in kinds.items():
        values = pq.read_table(path, columns=[name])[name].to_pylist()
        wrong = sum(not re.fullmatch(f"{kind}_{THING_ID}", value) for value in values)
        if wrong:
            # Without the values, since messages end up in logs.
            raise DataError(
                f"{path}: column {name}: {wrong:,} values are not Reddit ids: ids_only needs "
                "pairs of Reddit comments"
            )


def split_names(path: Path) -> dict[str, str]:
    """Return the name of each split on the Hub, where `all` is reserved for the union."""
    splits = sorted(set(pq.read_table(path, columns=["split"])["split"].to_pylist()))
    names = {
        split: "train" if split == "all" else re.sub(r"\W", "_", split, flags=re.ASCII)
        for split in splits
    }
    if len(set(names.values())) < len(names):
        raise DataError(f"splits {splits} would get the same name on the Hub: rename one")
    return names


def write_data(
    folder: Path,
    path: Path,
    columns: Mapping[str, str],
    names: Mapping[str, str],
    *,
    conversational: bool,
) -> None:
    """Write `SPLIT.parquet` for every split, with rows in their original order."""
    convert = as_conversations if conversational else lambda table: table
    fields = {new: pa_dataset.field(old) for new, old in columns.items()}
    for split, name in names.items():
        rows = pa_dataset.dataset(path).scanner(
            columns=fields, filter=pa_dataset.field("split") == split, batch_size=2_048
        )
        schema = convert(rows.projected_schema.empty_table()).schema
        with pq.ParquetWriter(folder / f"{name}.parquet", schema, compression="zstd") as writer:
            for batch in rows.to_batches():
                writer.write_table(convert(pa.Table.from_batches([batch])))


def write_card(
    manifest: Mapping[str, Any],
    path: Path,
    columns: Mapping[str, str],
    config: Config,
    audit: Mapping[str, Any] | None = None,
) -> str:
    """Return the card of the pairs in `path`, as Markdown."""
    try:
        from huggingface_hub import DatasetCardData  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "data") from error
    files = [{"split": name, "path": f"data/{name}.parquet"} for name in split_names(path).values()]
    data = DatasetCardData(
        license=config.license,
        language=config.language or None,
        pretty_name=config.repository,
        task_categories=["text-classification"],
        tags=["preference", "reward-model", "litbench"],
        configs=[{"config_name": "default", "data_files": files}],
    )
    with duckdb.connect() as connection:
        result = connection.execute(STATISTICS, {"path": str(path)})
        heading, rows = [column[0] for column in result.description], result.fetchall()
    provenance = {
        "program": manifest["program"],
        "version of LitBench": manifest.get("versions", {}).get("litbench"),
        "finished": manifest.get("finished_utc"),
        "inputs": {
            name: source["sha256"]
            for name, source in manifest.get("inputs", {}).items()
            # The hash of the salt would let others test guesses of it.
            if name != "salt"
        },
        "config": {key: value for key, value in manifest.get("config", {}).items() if key != "out"},
        "rejected rows": manifest.get("counts", {}).get("rejected_rows", {}),
    }
    # A code block needs no escaping.
    code = yaml.safe_dump(without_folders(provenance), sort_keys=False, allow_unicode=True)
    counts = manifest.get("counts", {})
    # make_pairs.py stores the counts of make_stories.py under "stories".
    stories = counts.get("stories")
    stories = stories if isinstance(stories, Mapping) else {}
    funnel = [
        (step["about"], f"{step['kept']:,} {step['unit']}", f"{step['removed']:,}")
        for step in [*stories.get("funnel", []), *counts.get("funnel", [])]
    ]
    types = pq.read_schema(path)
    scores = {
        name: "number" if pa.types.is_floating(types.field(name).type) else "integer"
        for name in (f"{side}_score" for side in SIDES)
    }
    about = {
        column.name: (scores.get(column.name, column.kind), column.about)
        for column in PAIRS.columns
    }
    described = [
        (new, *about.get(old, ("", "kept from the source"))) for new, old in columns.items()
    ]
    parts = [
        f"---\n{data.to_yaml()}\n---",
        f"# {escape(config.repository)}",
        escape(config.about),
        "Pairs of stories written to the same prompt, one of them preferred.",
        f"Labels: {label_text(sorted({row[1] for row in rows}))}.",
        show([heading, *rows], "md") + "\n",
        *audit_parts(audit),
        "## How it was made",
        textwrap.indent(code, "    ", lambda _: True),
        show([("step", "kept", "removed"), *funnel], "md") + "\n",
        "## Columns",
        "Times are in seconds since 1970-01-01 UTC. Values that the source does not have are null.",
        show([("column", "kind", "about"), *described], "md") + "\n",
        "## Rights",
        f"The licence above ({escape(config.license)}) covers the selection and the labels.",
        RIGHTS_OF_IDS if config.ids_only else RIGHTS_OF_TEXTS,
        f"**To have a story removed**, write to {escape(config.contact)} and give its id or "
        "URL. It will be removed from the next version of this data set; ask the Hub to remove "
        "older versions.",
    ]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def audit_parts(audit: Mapping[str, Any] | None) -> list[str]:
    """The card's section on the audit; empty without one."""
    if audit is None:
        return []
    about = "By `litbench audit`, worst first, with 95 % intervals; all numbers are in audit.json."
    sentences = [finding["sentence"] for finding in audit["findings"]] or [audit["nothing_found"]]
    return ["## Audit", about, "\n".join(f"- {escape(sentence)}" for sentence in sentences)]


def main(config: Config) -> None:
    """Write the folder; push it unless `dry_run`."""
    parse_name(config.repository)
    if config.ids_only and config.conversational:
        raise ConfigError("ids_only publishes no texts: leave out conversational")
    if not config.contact.strip():
        raise ConfigError("contact is empty: say where authors can ask to have a story removed")
    path = config.artifact / "pairs.parquet"
    check_parquet(path, PAIRS)
    # The card describes the pairs by their manifest, so it must be theirs.
    manifest = read_manifest_of(path)
    # Pushing does not change the files.
    keys = {
        key: value for key, value in as_plain(config).items() if key not in ("dry_run", "private")
    }
    artifact = Artifact(
        config.out,
        program=__file__,
        config=keys,
        inputs={
            "artifact": config.artifact / "manifest.json",
            "pairs": path,
            **({} if config.audit is None else {"audit": config.audit / "audit.json"}),
        },
    )
    if not artifact.is_current():
        columns, names = published_columns(path, config), split_names(path)
        if config.ids_only:
            check_ids(path)
        audit = None
        if config.audit is not None:
            audit = read_audit(config.audit, artifact.digests["pairs"])
            artifact.write("audit.json", partial(write_json, audit))
        card = write_card(manifest, path, columns, config, audit)
        artifact.write_folder(
            "data",
            lambda folder: write_data(
                folder, path, columns, names, conversational=config.conversational
            ),
        )
        artifact.write("README.md", lambda file: file.write_text(card, encoding="utf-8"))
        artifact.counts = {
            name: pq.read_metadata(config.out / "data" / f"{name}.parquet").num_rows
            for name in names.values()
        }
        artifact.finish()
        print(f"{config.out}: pairs and card written; read README.md before pushing")
    if config.dry_run:
        print("nothing was pushed; to push, run the same command with --dry_run false")
        return
    named = ["README.md"] if config.audit is None else ["README.md", "audit.json"]
    files = [
        *(config.out / name for name in named),
        *sorted((config.out / "data").glob("*.parquet")),
    ]
    address = replace_files(
        config.repository,
        {file.relative_to(config.out).as_posix(): file for file in files},
        "dataset",
        private=config.private,
        is_ours=lambda name: re.fullmatch(r"data/[^/]+\.parquet|audit\.json", name) is not None,
    )
    print(f"pushed: {address}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
