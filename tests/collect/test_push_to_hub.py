"""Published columns, the card, and the files on the Hub."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from fake_hub import TOKEN, FakeHub
from manifests import list_outputs

from litbench.audit.command import Audit, audit
from litbench.data.tables import write_table
from litbench.runs.config import load_config
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.markdown import escape
from litbench.runs.outputs import read_manifest, write_sealed

COUNTS = {
    "funnel": [
        {"step": "read", "about": "stories read", "unit": "stories", "kept": 987, "removed": 0},
        {
            "step": "min_score",
            "about": "score | at least 10",
            "unit": "stories",
            "kept": 765,
            "removed": 222,
        },
    ],
    "stories": {"stories": 987, "rejected_rows": {"text: null": 13}},
    "lengths": {"after": {}},
}


def rewrite(artifact, column, values):
    """Rewrite the pairs with another column."""
    pairs = pq.read_table(artifact / "pairs.parquet")
    index = pairs.column_names.index(column)
    pairs = pairs.set_column(index, column, pa.array(values, pa.large_string()))
    write_table(pairs, artifact / "pairs.parquet")
    list_outputs(artifact)


@pytest.fixture
def artifact(pair_table, tmp_path):
    """The folder of a program that makes pairs: 40 in train, 12 in test."""
    rows = [
        {
            "split": "test" if n < 12 else "train",
            "label_source": "votes",
            "prompt": f"[WP] Secret prompt {n % 7}",
            "prompt_id": f"t3_post{n % 7}",
            "chosen": f"Secret story {n} told well",
            "rejected": f"Secret tale {n}" if n % 4 else f"Secret tale {n} told at great length",
            "chosen_story_id": f"t1_c{n}",
            "rejected_story_id": f"t1_r{n}",
            "chosen_score": 100 + n,
            "rejected_score": 10 + n,
            "chosen_created_utc": 1_600_000_000 + n,
            "rejected_created_utc": 1_500_000_000 + n,
            "chosen_author": f"{n:016x}",
            "rejected_author": f"{n + 1:016x}" if n else None,
        }
        for n in range(52)
    ]
    pairs = pair_table(rows)
    pairs = pairs.append_column("rationale", pa.array([f"Secret reason {n}" for n in range(52)]))
    folder = tmp_path / "artifact"
    folder.mkdir()
    write_table(pairs, folder / "pairs.parquet")
    manifest = {
        "program": "make_pairs.py",
        "config": {
            "stories": str(tmp_path / "stories.parquet"),
            "out": str(folder),
            "seed": 3,
            "min_score": 10,
            "scratch": str(tmp_path / "scratch"),
            "where": "a | b <c>",
            "drop_bots": True,
            "max_tokens": None,
        },
        "inputs": {
            "stories": {"path": str(tmp_path / "stories.parquet"), "sha256": "ab" * 32},
            "more": {"path": "owner/name", "sha256": f"name:owner/name@{'1' * 40}"},
            "salt": {"path": "Secret hash", "sha256": "name:Secret hash"},
        },
        "counts": COUNTS,
        "versions": {"litbench": "9.8.7"},
        "finished_utc": "2026-01-02T03:04:05+00:00",
    }
    write_sealed(manifest, folder / "manifest.json")
    list_outputs(folder)
    return folder


@pytest.fixture
def publish(load_program, artifact, tmp_path):
    """Write the folder to publish with some config keys; returns it and its card."""
    module = load_program("data_prep/push_to_hub.py")

    def run(**keys):
        values = {
            "artifact": artifact,
            "repository": "me/pairs",
            "contact": "mail@example.org",
            "out": tmp_path / "push",
            **keys,
        }
        arguments = [f"--{key}={json.dumps(value, default=str)}" for key, value in values.items()]
        module.main(load_config(module.Config, arguments))
        return tmp_path / "push", (tmp_path / "push" / "README.md").read_text(encoding="utf-8")

    return run


def published(folder):
    return pa.concat_tables([pq.read_table(file) for file in sorted(folder.rglob("*.parquet"))])


def test_each_pair_is_published_once(publish, artifact):
    folder, card = publish()
    assert sorted(path.name for path in (folder / "data").iterdir()) == [
        "test.parquet",
        "train.parquet",
    ]
    table = pq.read_table(artifact / "pairs.parquet")
    # Authors are not published, not even as hashes.
    assert "author" not in "".join(re.findall(r"^\| \w.*", card, re.MULTILINE))
    names = [name for name in table.column_names if not name.endswith("_author")]
    # Columns that the source does not have are left out.
    names = [name for name in names if name not in ("margin", "weight", "fold", "item_id")]
    for split in ("train", "test"):
        wanted = table.filter(pc.equal(table["split"], split)).select(names)
        assert pq.read_table(folder / "data" / f"{split}.parquet").equals(wanted)
    assert read_manifest(folder)["counts"] == {"test": 12, "train": 40}


def test_pairs_without_matching_manifest(publish, artifact):
    pairs = pq.read_table(artifact / "pairs.parquet")
    # make_pairs.py failed on leakage: new pairs beside an older manifest.
    write_table(pairs.slice(1), artifact / "pairs.parquet")
    with pytest.raises(DataError, match=r"pairs.parquet does not match"):
        publish()
    write_table(pairs, artifact / "pairs.parquet")
    publish()
    (artifact / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"cannot read manifest.json"):
        publish()


def test_card_content(publish):
    _, card = publish(about="Pairs of mine", license="cc-by-4.0", language=["en"])
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["license"] == "cc-by-4.0"
    assert head["language"] == ["en"]
    assert head["configs"][0]["data_files"] == [
        {"split": "test", "path": "data/test.parquet"},
        {"split": "train", "path": "data/train.parquet"},
    ]
    for line in (
        "# me/pairs",
        "Pairs of mine",
        "    program: make_pairs.py\n    version of LitBench: 9.8.7\n",
        "      min_score: 10",
        "      drop_bots: true",
        f"      stories: {'ab' * 32}",
        f"      more: name:owner/name@{'1' * 40}",
        "| stories read | 987 stories | 0 |",
        "| score \\| at least 10 | 765 stories | 222 |",
        "| test | votes | 12 | 7 |",
        "| train | votes | 40 | 7 |",
        "| chosen\\_score | integer | net upvotes or rating of chosen |",
        "| rationale |  | kept from the source |",
        "write to mail@example.org",
        "belong to their authors",
        "Data API terms",
    ):
        assert line in card, line


def test_the_card_has_the_findings_of_the_audit_of_these_pairs(publish, artifact, tmp_path):
    audit(Audit(pairs=str(artifact), out=tmp_path / "audit"))
    result = json.loads((tmp_path / "audit" / "audit.json").read_text())
    folder, card = publish(audit=tmp_path / "audit")
    assert result["findings"]
    assert all(escape(finding["sentence"]) in card for finding in result["findings"])
    assert json.loads((folder / "audit.json").read_text()) == result
    write_table(pq.read_table(artifact / "pairs.parquet").slice(1), artifact / "pairs.parquet")
    list_outputs(artifact)
    with pytest.raises(DataError, match="other pairs"):
        publish(audit=tmp_path / "audit")


def test_card_has_no_stories_or_folders(publish, tmp_path):
    folder, card = publish()
    assert "Secret" not in card
    assert str(tmp_path) not in card
    assert "      scratch: scratch\n" in card
    for file in (folder / "data").iterdir():
        assert str(tmp_path).encode() not in file.read_bytes()


def test_card_escapes_config_texts(publish):
    hostile = 'x" \n---\n\n# <script>alert(1)</script> | [link](http://a) `code` *bold*'
    _, plain = publish()
    _, card = publish(contact=hostile, about=hostile, license=hostile)
    head, body = card.removeprefix("---\n").split("\n---\n", 1)
    assert yaml.safe_load(head)["license"] == hostile
    assert "<script>" not in body
    assert "](http" not in body.replace("\\](http", "")
    assert "`code`" not in body.replace("\\`", "")
    headings = [line for line in body.split("\n") if line.startswith("#")]
    assert len(headings) == len([line for line in plain.split("\n") if line.startswith("#")])
    assert "      where: a | b <c>\n" in plain, "a block of code needs no escapes"


def test_ids_without_texts(publish, artifact, load_program):
    folder, card = publish(ids_only=True)
    table = published(folder)
    for file in [*(folder / "data").iterdir(), folder / "README.md"]:
        assert b"Secret" not in file.read_bytes()
    assert not [name for name in table.column_names if "author" in name]
    assert not {"prompt", "chosen", "rejected", "rationale"} & set(table.column_names)
    rows_by_id = {
        row["pair_id"]: row for row in pq.read_table(artifact / "pairs.parquet").to_pylist()
    }
    assert table.num_rows == len(rows_by_id)
    for row in table.to_pylist():
        pair = rows_by_id[row["pair_id"]]
        for side in ("chosen", "rejected"):
            assert row[f"{side}_comment_id"] == pair[f"{side}_story_id"]
            assert row[f"{side}_upvotes"] == pair[f"{side}_score"]
    # rehydrate.py can read the published columns.
    needed = load_program("data_prep/rehydrate.py").IDS.columns
    assert {column.name for column in needed if column.required} <= set(table.column_names)
    assert "no stories and no prompts" in card
    assert "litbench data rehydrate" in card
    assert "| chosen\\_comment\\_id | text | story\\_id of chosen |" in card


@pytest.mark.parametrize("name", ["Reward", "DPO"])
def test_trl_trains_on_published_conversations(name, publish, artifact, tiny_model, tmp_path):
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl")
    transformers = pytest.importorskip("transformers")
    folder, _ = publish(conversational=True)
    files = {split: str(folder / "data" / f"{split}.parquet") for split in ("train", "test")}
    rows = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))
    published = {
        row["pair_id"]: row for row in pq.read_table(artifact / "pairs.parquet").to_pylist()
    }
    row = rows["train"][0]
    pair = published[row["pair_id"]]
    assert row["prompt"] == [{"role": "user", "content": pair["prompt"]}]
    assert row["chosen"] == [{"role": "assistant", "content": pair["chosen"]}]
    assert row["rejected"] == [{"role": "assistant", "content": pair["rejected"]}]
    assert None not in row.values()

    head = {"Reward": "reward", "DPO": "language"}[name]
    model = tiny_model("llama", head=head, chat=True)
    trainer = getattr(trl, f"{name}Trainer")(
        model=str(model),
        train_dataset=rows["train"],
        eval_dataset=rows["test"],
        args=getattr(trl, f"{name}Config")(
            output_dir=str(tmp_path / "run"),
            max_steps=1,
            per_device_train_batch_size=4,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            gradient_checkpointing=None,
        ),
    )
    trainer.train()
    assert np.isfinite(trainer.evaluate()["eval_loss"])
    if name == "Reward":
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        joined = tokenizer.apply_chat_template(row["prompt"] + row["chosen"], return_dict=False)
        assert trainer.train_dataset[0]["chosen_ids"][: len(joined)] == joined


@pytest.mark.parametrize(
    ("column", "value"), [("chosen_story_id", "s0001"), ("prompt_id", "[WP] a whole prompt")]
)
def test_ids_must_be_reddit_ids(column, value, publish, artifact):
    table = pq.read_table(artifact / "pairs.parquet")[column].to_pylist()
    rewrite(artifact, column, [value, *table[1:]])
    with pytest.raises(DataError, match=f"column {column}: 1 values are not Reddit ids"):
        publish(ids_only=True)
    publish()


def test_split_all_is_published_as_train(publish, artifact):
    rewrite(artifact, "split", ["all"] * 52)
    folder, _ = publish()
    assert [path.name for path in (folder / "data").iterdir()] == ["train.parquet"]
    rewrite(artifact, "split", ["all", *["train"] * 51])
    with pytest.raises(DataError, match="same name"):
        publish()


def test_invalid_configs(publish):
    with pytest.raises(ConfigError, match="contact is empty"):
        publish(contact=" ")
    with pytest.raises(DataError, match="on the Hub"):
        publish(repository="me")
    with pytest.raises(ConfigError, match="ids_only publishes no texts"):
        publish(ids_only=True, conversational=True)


# The Hub --------------------------------------------------------------------------------------


@pytest.fixture
def server():
    with FakeHub() as running:
        yield running


def test_push_is_one_commit(server, artifact, tmp_path):
    def push(*more, token=TOKEN):
        done = server.run(
            tmp_path,
            "data_prep/push_to_hub.py",
            "--artifact",
            artifact,
            "--repository",
            "me/pairs",
            "--contact",
            "mail@example.org",
            "--out",
            tmp_path / "push",
            *more,
            token=token,
        )
        assert "Traceback" not in done.stderr
        assert not server.strange
        return done.stdout + done.stderr

    assert "nothing was pushed; to push, run the same command with --dry_run false" in push()
    assert not server.requests, "a dry run does not even ask"
    assert "no token for the Hub: sign in" in push("--dry_run", "false", token=None)
    assert not server.repositories

    assert "pushed: http" in push("--dry_run", "false")
    repository = server.repositories["me/pairs"]
    assert repository.private
    assert len(repository.commits) == 2, "the Hub's own first one, and ours"
    files = dict(repository.files())
    folder = tmp_path / "push"
    assert files.pop(".gitattributes")
    assert files == {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }, "the manifest, which names folders of this machine, stays here"
    assert len(files) == 3

    # Older data files are deleted; other files are kept.
    server.publish("me/pairs", {**repository.files(), "data/old.parquet": b"", "mine.txt": b""})
    push("--dry_run", "false")
    assert sorted(repository.files()) == [
        ".gitattributes",
        "README.md",
        "data/test.parquet",
        "data/train.parquet",
        "mine.txt",
    ]

    # Private texts are not pushed to a public data set.
    repository.private = False
    commits = len(repository.commits)
    assert "me/pairs is public on the Hub" in push("--dry_run", "false")
    assert len(repository.commits) == commits
