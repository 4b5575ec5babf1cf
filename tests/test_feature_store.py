"""The store of features: each story computed once, whatever the processes, kills and disks."""

import subprocess
import sys

from litbench.models.features import FeatureOptions, FeatureStore, feature_matrix, fit_features


def test_store_computes_each_story_once(pair_table, tmp_path, monkeypatch):
    texts = [
        f"Story {place}, with {'more, ' * (place % 7)}words; and, perhaps" for place in range(40)
    ]
    rows = [
        {"chosen": texts[place], "rejected": texts[-1 - place], "prompt_id": f"p{place % 5}"}
        for place in range(20)
    ]
    pairs = pair_table(rows)
    plain = fit_features(pairs, FeatureOptions(c=[0.1, 1.0]))
    options = FeatureOptions(c=[0.1, 1.0], store=tmp_path / "store")
    stored = fit_features(pairs, options)
    assert stored.coefficients.tolist() == plain.coefficients.tolist()
    prompts = ["a prompt"] * 40
    # Not what this process remembers: what lies on disk.
    again = FeatureStore(tmp_path / "store")
    counted = []
    compute = feature_matrix
    monkeypatch.setattr(
        "litbench.models.features.feature_matrix",
        lambda p, s: counted.append(len(s)) or compute(p, s),
    )
    prompts = pairs["prompt"].to_pylist()
    given = pairs["chosen"].to_pylist()
    assert again.matrix(prompts, given).tolist() == compute(prompts, given).tolist()
    assert counted == []
    assert plain.score(prompts, given).tolist() == stored.score(prompts, given).tolist()
    other = ["Another prompt"] * 3 + prompts[:1]
    mixed = [given[0], given[0], given[1], given[0]]
    assert again.matrix(other, mixed).tolist() == compute(other, mixed).tolist()
    assert counted == [len(given), 2], "one plain score, then the two new ones of four"


def test_a_store_uses_several_processes_for_many_stories(tmp_path, monkeypatch):
    monkeypatch.setattr("litbench.models.features._STORIES_PER_PROCESS", 5)
    monkeypatch.setattr("litbench.models.features._STORIES_AT_ONCE", 3)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    stories = [f"A story, {'really ' * place} number {place}." for place in range(11)]
    prompts = [f"prompt {place}" for place in range(11)]
    found = FeatureStore(tmp_path).matrix(prompts, stories)
    assert found.tolist() == feature_matrix(prompts, stories).tolist()


def test_a_broken_file_of_a_store_is_made_again(tmp_path):
    store = FeatureStore(tmp_path)
    found = store.matrix(["p"], ["A story."])
    (path,) = store.folder.glob("*.arrow")
    whole = path.read_bytes()
    for broken in (b"", whole[:-20], whole[: len(whole) // 2]):
        path.write_bytes(broken)
        assert FeatureStore(tmp_path).matrix(["p"], ["A story."]).tolist() == found.tolist()


def test_two_processes_fill_one_store(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from litbench.models.features import FeatureStore\n"
        "store = FeatureStore(Path(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "for start in range(0, 60, 6):\n"
        "    store.matrix(['p'] * 9, [f'Story, number {n}' for n in range(start, start + 9)])\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    store = FeatureStore(tmp_path)
    texts = [f"Story, number {n}" for n in range(66)]
    with other:
        assert other.stdout.readline() == b"ready\n"
        for start in range(54, -1, -6):
            store.matrix(["p"] * 9, texts[start : start + 9])
    assert other.returncode == 0
    texts = texts[:60]
    store = FeatureStore(tmp_path)
    files = set(store.folder.iterdir())
    assert store.matrix(["p"] * 60, texts).tolist() == feature_matrix(["p"] * 60, texts).tolist()
    assert set(store.folder.iterdir()) == files, "nothing was missing"
