"""Data sets on the Hub: names, commits and rows, read by the real libraries from a fake Hub."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from fake_hub import TOKEN, FakeHub, parquet_bytes

from litbench.runs import hub
from litbench.runs.errors import DataError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a/b", ("a/b", None, None, None)),
        ("SAA-Lab/LitBench-Train", ("SAA-Lab/LitBench-Train", None, None, None)),
        ("a/b-v1.1_c:test", ("a/b-v1.1_c", None, None, "test")),
        ("a/b@main", ("a/b", "main", None, None)),
        ("a/b@refs/pr/1:train", ("a/b", "refs/pr/1", None, "train")),
        (f"a/b@{COMMIT}:x", ("a/b", COMMIT, None, "x")),
        ("a/b:hard/test", ("a/b", None, "hard", "test")),
    ],
)
def test_parse_name_round_trip(text, parts):
    name = hub.parse_name(text)
    assert (name.repository, name.revision, name.configuration, name.split) == parts
    assert str(name) == text
    assert hub.is_name(text)


@pytest.mark.parametrize(
    "text", ["", "a", "a/b/c", "/a/b", "./a", "~/a", "a/", "a/b@", "a/b:", "a/b:c:d", "a /b", "a/ü"]
)
def test_invalid_names(text):
    assert not hub.is_name(text)
    with pytest.raises(DataError, match="owner/name"):
        hub.parse_name(text)


def test_local_paths_are_not_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hub.is_name("runs/pairs")
    (tmp_path / "runs" / "pairs").mkdir(parents=True)
    assert not hub.is_name("runs/pairs")
    assert not hub.is_name(Path("runs/pairs"))
    for name in ("runs/x.parquet", "runs/x.CSV", "runs/x.jsonl", "runs/RC_2020-01.zst"):
        assert not hub.is_name(name)
    assert hub.is_name("owner/name-v1.1")


def test_model_code_is_fetched_only_if_trusted(monkeypatch):
    import huggingface_hub  # noqa: PLC0415

    asked = []

    def download(*_, allow_patterns, **__):
        asked.append(allow_patterns)
        return "/"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    hub.fetch_model("a/b")
    hub.fetch_model("a/b", with_code=True)
    assert ["*.py" in patterns for patterns in asked] == [False, True]


CLIENT = """
import json, sys
from litbench.runs import hub
from litbench.runs.errors import LitBenchError

answers = {}
for source in json.loads(sys.argv[1]):
    try:
        batches = list(hub.open_stream(source))
        answers[source] = {
            "rows": [row for batch in batches for row in batch.to_pylist()],
            "batches": [batch.num_rows for batch in batches],
            "metadata": [batch.schema.metadata for batch in batches if batch.schema.metadata],
        }
    except LitBenchError as error:
        answers[source] = f"{type(error).__name__}: {error}"
print(json.dumps(answers))
"""


def table(rows, start=0):
    numbers = range(start, start + rows)
    return pa.table({"prompt": [f"prompt {n}" for n in numbers], "n": list(numbers)})


@pytest.fixture(scope="module")
def server():
    with FakeHub() as running:
        yield running


@pytest.fixture(scope="module")
def answers(server, tmp_path_factory):
    """Results of reading many data sets in a process without a token."""
    old = server.publish(
        "owner/name",
        {
            "data/train-00000-of-00002.parquet": parquet_bytes(table(250)),
            "data/train-00001-of-00002.parquet": parquet_bytes(table(30, start=250)),
            "data/test-00000-of-00001.parquet": parquet_bytes(table(7, start=1_000)),
        },
    )
    server.publish("owner/name", {"data/train-0.parquet": parquet_bytes(table(3))})
    server.repositories["owner/name"].refs["v1"] = old
    server.publish("owner/lines", {"pairs.jsonl": b'{"prompt": "p", "n": 1}\n'})
    first = {"data/train-00000-of-00001.parquet": parquet_bytes(table(5))}
    server.publish("owner/private", first, private=True)
    server.publish("owner/script", {"script.py": b"print()", "README.md": b"no data here"})
    server.publish("owner/broken", {"data/train-0.parquet": b"PAR1 and so on, but no Parquet PAR1"})
    sources = [
        "owner/name@v1:train",
        f"owner/name@{old}:test",
        "owner/name",
        "owner/name:train",
        "owner/name@v1",
        "owner/name@v1:dev",
        "owner/name:hard/train",
        "owner/name@v9",
        f"owner/name@{'0' * 40}:train",
        "owner/lines",
        "owner/private",
        "owner/nothing",
        "owner/script",
        "owner/broken",
    ]
    home = tmp_path_factory.mktemp("home")
    done = server.run(home, "-c", CLIENT, json.dumps(sources))
    assert done.returncode == 0, done.stderr
    assert not server.strange, "the fake knows every request that was made"
    return {**json.loads(done.stdout), "old": old, "home": home}


def test_rows_come_whole_and_in_order(answers):
    first = answers["owner/name@v1:train"]
    assert first["rows"] == table(280).to_pylist()
    assert len(first["batches"]) > 1, "they come in batches"
    assert not first["metadata"]
    assert answers[f"owner/name@{answers['old']}:test"]["rows"] == table(7, 1_000).to_pylist()
    assert answers["owner/lines"]["rows"] == [{"prompt": "p", "n": 1}]


def test_default_revision_and_split(answers):
    for name in ("owner/name:train", "owner/name"):
        assert answers[name]["rows"] == table(3).to_pylist()


def test_ambiguous_split(answers):
    assert answers["owner/name@v1"] == (
        "DataError: owner/name@v1 has splits ['test', 'train']: name one, such as "
        "owner/name@v1:test"
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("owner/name@v1:dev", "Available splits"),
        ("owner/name:hard/train", "hard"),
        ("owner/name@v9", "owner/name@v9 is not a local file and cannot be reached on the Hub"),
        (f"owner/name@{'0' * 40}:train", "cannot be reached"),
        ("owner/private", "check the name and the network; if it is private"),
        ("owner/nothing", "owner/nothing is not a local file"),
        ("owner/script", "owner/script cannot be reached"),
        ("owner/broken", "owner/broken cannot be reached"),
    ],
)
def test_unreadable_data_sets(source, message, answers):
    assert answers[source].startswith("DataError: ")
    assert message in answers[source]


ONCE = """
import json, sys
from litbench.runs import hub
from litbench.runs.errors import LitBenchError

pins = {hub.pin(name).revision for name in ("owner/name:train", "owner/name", "owner/name:test")}
private = [row for batch in hub.open_stream("owner/private") for row in batch.to_pylist()]
print(json.dumps([sorted(pins), len(private)]))
"""


def test_token_and_commit_lookup(answers, server, tmp_path):
    assert answers
    server.requests.clear()
    done = server.run(tmp_path, "-c", ONCE, token=TOKEN)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[server.repositories["owner/name"].refs["main"]], 5]
    assert server.requests.count("GET /api/datasets/owner/name") == 1


REPLACE = """
import sys
from pathlib import Path
from litbench.runs import hub
print(hub.replace_files(
    sys.argv[1], {"new.json": Path(sys.argv[2])}, sys.argv[3], private=sys.argv[4] == "private",
    is_ours=lambda path: path.endswith(".json"),
))
"""


@pytest.mark.parametrize("kind", ["dataset", "model"])
def test_replace_files_in_one_commit(server, tmp_path, kind):
    (tmp_path / "new.json").write_bytes(b"{}")
    old = {".gitattributes": b"", "old.json": b"1", "note.txt": b"theirs"}
    name = f"me/{kind}"
    server.publish(name, old, private=True)
    repository = server.repositories[name]
    arguments = (name, tmp_path / "new.json", kind)
    done = server.run(tmp_path, "-c", REPLACE, *arguments, "private", token=TOKEN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("http")
    assert not server.strange
    assert len(repository.commits) == 2
    assert sorted(repository.files()) == [".gitattributes", "new.json", "note.txt"]
    repository.private = False
    refused = server.run(tmp_path, "-c", REPLACE, *arguments, "private", token=TOKEN)
    assert f"{name} is public on the Hub" in refused.stderr
    nobody = server.run(tmp_path, "-c", REPLACE, *arguments, "public", token=None)
    assert "no token for the Hub: sign in" in nobody.stderr
    assert len(repository.commits) == 2


def test_a_path_into_a_local_folder_is_no_name_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for look in (hub.is_name, hub.fetch_model):
        with pytest.raises(DataError, match=r"no file or folder runs/model: .* runs/model@main"):
            look("runs/model")
    assert hub.is_name("runs/model@main")


def test_a_hub_that_does_not_answer_is_given_up(tmp_path):
    """In a process of its own, since the Hub's libraries read the address when imported."""
    code = "from litbench.runs import hub; hub.{}('owner/name')"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path)}
        environment.pop("HF_HUB_OFFLINE", None)
        for look in ("pin", "fetch_model"):
            command = [sys.executable, "-c", code.format(look)]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=120
            )
            assert "owner/name is not a local " in done.stderr
            assert "cannot be reached on the Hub" in done.stderr
