"""Published sets of human judgements: fetched or copied, checked, and made into pairs."""

import hashlib
import json
from dataclasses import replace

import pyarrow as pa
import pytest
import yaml
from fake_hub import FakeHub, parquet_bytes
from loopback import Handler, Loopback

from litbench.data.records import PAIRS
from litbench.data.sources.registry import PublishedFile, fetch, import_dataset, read_registry
from litbench.data.tables import read_table
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import read_manifest

SETS = read_registry()


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def imported(name, out, copy, dataset=None):
    """The pairs of a set, made from a local copy."""
    import_dataset(name, dataset or SETS[name], out, "", copy=copy)
    return read_table(out / "pairs/pairs.parquet", PAIRS).to_pylist()


# From a local copy ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["style_mimic", "lamp_test", "art_or_artifice", "synthetic_mirror", "lm_arena"]
)
def test_the_writing_quality_benchmark_is_read(name, tmp_path):
    rows = [
        {
            "original_id": f"h-{k}",
            "paragraph1": f"first text {k}",
            "paragraph2": f"second text {k}",
            "reference_preference": str(1 + k % 2),
            "sample_type": "style-mimic",
            "source": f"Author_{k % 3}",
            "text_input": "both",
        }
        for k in range(6)
    ]
    (tmp_path / "pairs.json").write_text(json.dumps(rows))
    pairs = imported(name, tmp_path / "out", tmp_path)
    assert len(pairs) == 6
    for pair in pairs:
        digit = int(pair["chosen"][-1])
        assert pair["chosen"].startswith("second" if digit % 2 else "first")
    assert len({pair["prompt"] for pair in pairs}) > 1, "else all are one cluster"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_published_pairs_of_writing_preference_bench_are_read(language, tmp_path):
    rows = [
        {
            "prompt": f"task {k}",
            "language": name,
            "genre": "fiction",
            "chosen": {"text": f"good {name} {k}", "score": 3},
            "rejected": {"text": f"dull {name} {k}", "score": 1},
        }
        for k in range(3)
        for name in ("en", "zh")
    ]
    source = write_rows(tmp_path / "rows.jsonl", rows)
    pairs = imported(f"wpb_{language}_published", tmp_path / "out", source)
    assert len(pairs) == 3
    for pair in pairs:
        assert pair["chosen"].startswith(f"good {language}")
        assert (pair["chosen_score"], pair["rejected_score"]) == (3, 1)


def test_several_rejected_texts_make_several_pairs(tmp_path):
    rows = [
        (["right 1"], ["wrong a", "wrong b", "wrong c"], "Focus"),
        (["tie"], ["x"], "Ties"),
        (["right 3"], [], "Math"),
        ([None], ["x"], "Math"),
        (["same"], ["same", "wrong"], "Math"),
    ]
    columns = [
        {
            "id": str(k),
            "prompt": f"task {k}",
            "chosen": chosen,
            "rejected": rejected,
            "subset": subset,
        }
        for k, (chosen, rejected, subset) in enumerate(rows, 1)
    ]
    source = write_rows(tmp_path / "rows.jsonl", columns)
    pairs = imported("reward_bench_2", tmp_path / "out", source)
    assert {(pair["chosen"], pair["rejected"], pair["subset"]) for pair in pairs} == {
        ("right 1", "wrong a", "Focus"),
        ("right 1", "wrong b", "Focus"),
        ("right 1", "wrong c", "Focus"),
        ("same", "wrong", "Math"),
        ("tie", "x", "Ties"),
    }
    assert {(pair["chosen"], pair["item_id"]) for pair in pairs} >= {("right 1", "1"), ("tie", "2")}
    lines = (tmp_path / "out/pairs/rejected.jsonl").read_text().splitlines()
    noted = [(item["row"], item["column"]) for item in map(json.loads, lines)]
    assert noted == [(3, "rejected"), (4, "rejected"), (5, "rejected")]


OWN = """
mine:
  title: Two stories
  language: en
  kind: stories
  judged: votes
  origin: https://example.org/owner/name
  files: {posts.jsonl: {}}
  stories: {input: posts.jsonl, columns: {text: story}}
  pairing: {min_score: null, max_tokens: null, min_words: null, chosen_later: false,
            symmetry_buckets: null}
"""


def test_a_set_of_ones_own_is_an_entry(tmp_path, program):
    row = {"prompt_id": "p", "prompt": "A door"}
    rows = [{"story_id": f"s{k}", "story": f"text {k}", "score": 10 ** (k + 1)} for k in range(2)]
    write_rows(tmp_path / "posts.jsonl", [row | item for item in rows])
    (tmp_path / "own.yaml").write_text(OWN)
    out = tmp_path / "out"
    done = program(
        *("data_prep/import.py", "mine", "--registry", tmp_path / "own.yaml"),
        *("--from", tmp_path, "--out", out),
    )
    assert done.returncode == 0, done.stderr
    (pair,) = read_table(out / "pairs/pairs.parquet", PAIRS).to_pylist()
    assert (pair["chosen"], pair["rejected"]) == ("text 1", "text 0")
    sets = read_registry(tmp_path / "own.yaml")
    with pytest.raises(DataError, match=r"nowhere/posts\.jsonl"):
        imported("mine", out, tmp_path / "nowhere", sets["mine"])
    digest = hashlib.sha256((tmp_path / "posts.jsonl").read_bytes()).hexdigest()
    pinned = replace(sets["mine"], files={"posts.jsonl": PublishedFile(sha256=digest)})
    assert imported("mine", out, tmp_path, pinned) == [pair]
    with (tmp_path / "posts.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(DataError, match="sha256 of its entry"):
        imported("mine", out, tmp_path, pinned)
    with pytest.raises(DataError, match=r"posts\.jsonl in this form"):
        import_dataset("mine", sets["mine"], out, "")
    with pytest.raises(ConfigError, match="use its pairs"):
        imported("mine", out, out / "pairs", sets["mine"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "poem"}, "set mine: key 'kind' is 'poem'"),
        ({"pairing": {"min_scor": 3}}, "did you mean 'min_score'"),
        ({"stories": None}, "give one of pairs, ratings and stories"),
        (
            {"stories": None, "ratings": {"stories": "a", "people": {"table": "b", "ratr": "c"}}},
            "unknown key 'people.ratr': did you mean 'people.rater'",
        ),
    ],
)
def test_a_wrong_entry_is_refused_when_it_is_read(change, message, tmp_path):
    entry = yaml.safe_load(OWN)["mine"] | change
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"mine": entry}))
    with pytest.raises(ConfigError, match=message):
        read_registry(tmp_path / "own.yaml")
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"hanna": entry}))
    with pytest.raises(ConfigError, match="'hanna' already"):
        read_registry(tmp_path / "own.yaml")


def test_all_errors_of_an_entry_are_reported_at_once(tmp_path):
    entry = yaml.safe_load(OWN)["mine"] | {"kind": "poem", "pairing": {"min_scor": 3}, "licens": 1}
    del entry["title"], entry["origin"]
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"mine": entry}))
    with pytest.raises(ConfigError) as raised:
        read_registry(tmp_path / "own.yaml")
    lines = str(raised.value).splitlines()
    for line, named in zip(
        lines, ("licens", "'title' and 'origin'", "kind", "min_scor"), strict=True
    ):
        assert named in line


# From a server -------------------------------------------------------------------------------


class Repositories(Loopback):
    """A host of repositories: serves `/raw/REVISION/PATH`, `most` bytes of a file."""

    def __init__(self, files):
        self.files = files
        self.most = None
        self.asked = []
        super().__init__(RepositoriesHandler)


class RepositoriesHandler(Handler):
    def do_GET(self):
        fake = self.server.fake
        content = fake.files.get(self.path.partition("/raw/")[2])
        if content is None:
            self.send_error(404)
            return
        if self.command == "GET":
            fake.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[: fake.most])
            # Fewer bytes: the connection ends in the middle of the file.
            self.close_connection = fake.most is not None

    do_HEAD = do_GET


@pytest.fixture
def host():
    """A host with two revisions of a file, and a set that it publishes."""
    files = {f"{name}/data/rows.bin": name.encode() * 750_000 for name in ("HEAD", "0ld1")}
    with Repositories(files) as server:
        file = PublishedFile("data/rows.bin")
        origin = f"{server.url}/owner/name"
        yield server, replace(SETS["wqrm"], origin=origin, revision=None, files={"rows.bin": file})


def test_only_whole_files_are_kept(host, tmp_path):
    server, dataset = host
    server.most = 2_000_000
    with pytest.raises(DataError, match=r"rows\.bin.*run the same command again"):
        fetch("mine", dataset, tmp_path)
    assert not list(tmp_path.iterdir())
    server.most = None
    path = fetch("mine", dataset, tmp_path)["rows.bin"]
    content = server.files["HEAD/data/rows.bin"]
    assert path.read_bytes() == content
    server.asked = []
    fetch("mine", dataset, tmp_path)
    assert not server.asked, "what is there is not fetched again"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_another_revision_is_refused(host, tmp_path):
    server, dataset = host
    old = hashlib.sha256(server.files["0ld1/data/rows.bin"]).hexdigest()
    pinned = PublishedFile("data/rows.bin", old)
    files = fetch("mine", replace(dataset, revision="0ld1", files={"rows.bin": pinned}), tmp_path)
    assert files["rows.bin"].read_bytes() == b"0ld1" * 750_000
    with pytest.raises(DataError, match=f"is damaged or of another revision.*not {old}"):
        fetch("mine", replace(dataset, files={"rows.bin": pinned}), tmp_path)
    assert files["rows.bin"].read_bytes() == b"0ld1" * 750_000, "the good file stays"
    gone = {"rows.bin": PublishedFile("data/gone.bin")}
    with pytest.raises(DataError, match=r"cannot fetch .*/raw/HEAD/data/gone\.bin"):
        fetch("mine", replace(dataset, files=gone), tmp_path)


# From the Hub --------------------------------------------------------------------------------


def texts(n, side):
    return f"A text on side {side} with the number {n}."


N = 130
PUBLISHED = {
    "litbench_train": {
        "prompt": [f"[WP] prompt {n}" for n in range(N)],
        "chosen_story": [texts(n, "a") for n in range(N)],
        "rejected_story": [texts(n, "b") for n in range(N)],
        "chosen_timestamp": [1_600_000_000.0 + n for n in range(N)],
        "rejected_timestamp": [1_500_000_000.0 + n for n in range(N)],
        "chosen_upvotes": [100 + n for n in range(N)],
        "rejected_upvotes": [10 + n for n in range(N)],
    },
    "litbench_rationales": {
        "prompt": [f"[WP] prompt {n}" for n in range(N)],
        "story_a": [texts(n, "ab"[n % 2]) for n in range(N)],
        "story_b": [texts(n, "ba"[n % 2]) for n in range(N)],
        "chosen_story": ["AB"[n % 2] for n in range(N)],
        "rationale": [
            f"because of {n}" + ("" if n % 3 else f"\n\n**Preferred: {'AB'[n % 2]}**")
            for n in range(N)
        ],
    },
    "shp": {
        "history": [f"[WP] prompt {n}" for n in range(N)],
        "human_ref_A": [texts(n, "ab"[n % 2]) for n in range(N)],
        "human_ref_B": [texts(n, "ba"[n % 2]) for n in range(N)],
        "labels": [1 - n % 2 for n in range(N)],
        "score_A": [[100, 10][n % 2] + n for n in range(N)],
        "score_B": [[10, 100][n % 2] + n for n in range(N)],
        "created_at_utc_A": [[1_600_000_000, 1_500_000_000][n % 2] + n for n in range(N)],
        "created_at_utc_B": [[1_500_000_000, 1_600_000_000][n % 2] + n for n in range(N)],
        "upvote_ratio": [0.9] * N,
        "domain": ["somewhere"] * N,
    },
    "reward_bench": {
        "prompt": [f"[WP] prompt {n}" for n in range(N)],
        "chosen": [texts(n, "a") for n in range(N)],
        "rejected": [texts(n, "b") for n in range(N)],
        "subset": ["some"] * N,
        "id": list(range(N)),
    },
}
# One process for several runs: importing datasets takes most of the time.
RUNS = """
import json, runpy, sys

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["data_prep/import.py", *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
ON_HUB = """
on_hub:
  title: A file on the Hub
  language: en
  kind: stories
  judged: votes
  origin: owner/one-file
  files: {rows.jsonl: {path: data/rows.jsonl}}
  pairs: {pairs: rows.jsonl}
"""


@pytest.fixture(scope="module")
def from_hub(tmp_path_factory):
    """By set: its commit on a Hub, and the folder of its pairs."""
    home = tmp_path_factory.mktemp("published")
    (home / "own.yaml").write_text(ON_HUB)
    row = {"prompt": "A door", "chosen": "Good.", "rejected": "Dull."}
    with FakeHub() as server:
        commits = {}
        for name, columns in PUBLISHED.items():
            repository, _, split = SETS[name].origin.partition(":")
            file = parquet_bytes(pa.table(columns))
            path = f"data/{split or 'train'}-00000-of-00001.parquet"
            commits[name] = server.publish(repository, {path: file})
        server.publish("owner/one-file", {"data/rows.jsonl": json.dumps(row).encode()})
        runs = [[name, "--out", home / name] for name in (*PUBLISHED, "on_hub")]
        runs = [[*run, "--registry", home / "own.yaml"] for run in runs]
        done = server.run(home, "-c", RUNS, json.dumps(runs, default=str))
        assert done.returncode == 0, done.stderr
        assert not server.strange, "the fake knows every request that was made"
    return {name: (commits.get(name), home / name / "pairs") for name in (*PUBLISHED, "on_hub")}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_set_on_the_hub_becomes_pairs(name, from_hub):
    commit, out = from_hub[name]
    pairs = read_table(out / "pairs.parquet", PAIRS).to_pylist()
    assert len(pairs) == N
    for pair in pairs:
        n = int(pair["prompt"].removeprefix("[WP] prompt "))
        assert (pair["chosen"], pair["rejected"]) == (texts(n, "a"), texts(n, "b"))
        if name in ("litbench_train", "shp"):
            assert (pair["chosen_score"], pair["rejected_score"]) == (100 + n, 10 + n)
            assert pair["chosen_created_utc"] == 1_600_000_000 + n
            assert pair["rejected_created_utc"] == 1_500_000_000 + n
        if name == "litbench_rationales":
            assert pair["rationale"] == f"because of {n}"
            assert pair["rationale_first"] == ("rejected" if n % 2 else "chosen")
        if name == "reward_bench":
            assert (pair["subset"], pair["id"]) == ("some", n)
    digest = read_manifest(out)["inputs"]["pairs"]["sha256"]
    repository = SETS[name].origin.partition(":")[0]
    assert digest.startswith(f"name:{repository}@{commit}"), "the manifest names it"


def test_a_file_on_the_hub_is_fetched(from_hub):
    (pair,) = read_table(from_hub["on_hub"][1] / "pairs.parquet", PAIRS).to_pylist()
    assert (pair["prompt"], pair["chosen"], pair["rejected"]) == ("A door", "Good.", "Dull.")
