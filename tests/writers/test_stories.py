"""The protocol stories: several of each prompt, none paid for twice, none missing unflagged."""

import threading

import pytest
from fake_openai import KEY, FakeOpenAI

from litbench.data.records import GRADES, RATINGS, STORIES
from litbench.data.tables import read_table, write_table
from litbench.raters.templates.rubric import load_rubric
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import read_manifest
from litbench.writers.run import Run, run

pytest.importorskip("inspect_ai")
pytest.importorskip("openai")

QUICK = {"first_wait_seconds": 0.01, "timeout_seconds": 60}
PROMPTS = [
    "[WP] A lighthouse keeper answers a letter.",
    "[WP] The last bus has one seat {words} left, and a {prompt}.",
    "A map that is wrong on purpose",
]


class Writer:
    """Answers every question with another story each time."""

    def __init__(self):
        self.count = 0
        self.lock = threading.Lock()

    def __call__(self, question):
        with self.lock:
            self.count += 1
            return f"\n Story {self.count} of {len(question)} letters, and then it ends. \n"


@pytest.fixture
def generate(tmp_path):
    """Run the protocol with some options; its counts."""

    def call(*, writer=None, out="out", dry_run=False, samples=3, **options):
        entry = {"model": FakeOpenAI.model, "traffic": QUICK, **(writer or {})}
        judges = {"critic": FakeOpenAI.model_called("critic")} if options.pop("judge", 0) else {}
        prices = options.pop("prices", None)
        run(
            Run(
                "stories",
                tmp_path / out,
                {"w": entry},
                judges,
                options={"prompts": PROMPTS, **options},
                samples=samples,
                prices=prices,
                dry_run=dry_run,
            )
        )
        return {} if dry_run else dict(read_manifest(tmp_path / out)["counts"])

    return call


def rows_of(tmp_path, name="stories", schema=STORIES):
    return read_table(tmp_path / f"out/{name}.parquet", schema).to_pylist()


def test_every_prompt_gets_its_stories(generate, tmp_path):
    with FakeOpenAI(Writer()) as server:
        counts = generate()
        assert server.requests == 9
        bodies = list(server.bodies.values())
    assert counts["dialogues"] == {"finished": 9}
    rows = rows_of(tmp_path)
    assert len({row["text"] for row in rows}) == len({row["story_id"] for row in rows}) == 9
    for prompt in PROMPTS:
        stories = [row for row in rows if row["prompt"] == prompt]
        assert [row["sample"] for row in stories] == [0, 1, 2]
        assert len({row["prompt_id"] for row in stories}) == 1
    assert all(row["text"] == row["text"].strip() for row in rows)
    assert {(row["score"], row["source"]) for row in rows} == {(None, "w")}
    assert {body["temperature"] for body in bodies} == {1.0}


def test_the_task_is_filled_in_once(generate):
    with FakeOpenAI(Writer()) as server:
        generate(words=[1000, 1200], samples=1)
        asked = list(server.asked)
    assert len(asked) == 3
    assert all("Length: 1,000 to 1,200 words." in question for question in asked)
    assert sum("one seat {words} left, and a {prompt}." in question for question in asked) == 1


def test_more_samples_and_a_judge_request_only_what_is_new(generate, tmp_path, capsys):
    ratings = load_rubric("story").example().replace(": 5", ": 7")
    with FakeOpenAI(Writer(), others={"critic": lambda _: ratings}) as server:
        generate(samples=2)
        before = {row["story_id"]: row["text"] for row in rows_of(tmp_path)}
        generate(samples=5, words=[300, 800], dry_run=True)
        words = capsys.readouterr().out.split()
        assert words[words.index("w") + 2 : words.index("w") + 4] == ["9", "6"]
        generate(samples=5, judge=True)
        assert server.requests == 15 + 15
        generate(samples=5, judge=True)
        assert "unchanged" in capsys.readouterr().out
    after = {row["story_id"]: row["text"] for row in rows_of(tmp_path)}
    assert before.items() <= after.items()
    grades = [row for row in rows_of(tmp_path, "grades", GRADES) if row["rater"] == "critic"]
    assert [(row["quantity"], row["grade"]) for row in grades] == [("grade", 7.0)] * 15
    digests = {row["story_digest"] for row in rows_of(tmp_path, "ratings", RATINGS)}
    assert len(digests) == 15
    assert KEY not in "".join(
        path.read_text(errors="ignore") for path in (tmp_path / "out").rglob("*.json*")
    )


def test_the_estimate_follows_the_length_asked_for(generate, tmp_path, capsys):
    prices = tmp_path / "prices.yaml"
    prices.write_text(f"{FakeOpenAI.model}: {{input: 0, output: 100}}\n")
    sampling = {"temperature": 1.0, "max_tokens": 1000}
    generate(prices=prices, writer={"sampling": sampling}, words=[75, 75], dry_run=True)
    # 9 times 100 tokens, and 9 times 1000 of them, at $100 a million.
    assert ["0.09", "0.90"] in [line.split()[-3:-1] for line in capsys.readouterr().out.split("\n")]


@pytest.mark.parametrize(
    ("manner", "reason"), [("refusal", "refused"), ("filter", "refused"), ("length", "cut")]
)
def test_answers_without_a_story_are_flagged(generate, tmp_path, manner, reason):
    with FakeOpenAI(Writer(), manners=lambda q: manner if "lighthouse" in q else None) as server:
        counts = generate()
        assert counts["turns"] == {"answered": 6, reason: 3}
        assert len(rows_of(tmp_path)) == 6
        flags = [row["flags"] for row in rows_of(tmp_path, "grades", GRADES)]
        assert sorted(flags, key=str) == [None] * 6 + [f"no story: {reason}"] * 3
        generate()
        assert server.requests == 9


def test_prompts_come_from_a_table_once_each(generate, tmp_path, pair_table):
    rows = [
        {
            "prompt": f"[WP] Task {k // 3}",
            "prompt_id": f"p{k // 3}",
            "split": "train" if k < 6 else "test",
        }
        for k in range(18)
    ]
    # The same prompt under another tag.
    rows.append({"prompt": "task 5!", "prompt_id": "z", "split": "test"})
    write_table(pair_table(rows), tmp_path / "pairs.parquet")
    keys = {
        "prompts": str(tmp_path / "pairs.parquet"),
        "where": "split = 'test'",
        "samples": 1,
    }
    with FakeOpenAI(Writer()) as server:
        counts = generate(**keys)
        assert (counts["dialogues"], counts["not_selected"]) == ({"finished": 4}, 6)
        assert {row["prompt_id"] for row in rows_of(tmp_path)} == {"p2", "p3", "p4", "p5"}
        (tmp_path / "out/manifest.json").unlink()
        assert generate(**keys, max_prompts=2)["dialogues"] == {"finished": 2}
        assert server.requests == 4, "those drawn were asked for already"


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ({"writer": {"sampling": {"temperature": 0}}}, ConfigError, "all samples are the same"),
        ({"writer": {"sampling": {"seed": 1}}}, ConfigError, "all samples are the same"),
        ({"task": "Write."}, ConfigError, r"\{prompt\}"),
        ({"words": [300, 200]}, ConfigError, "minimum and maximum"),
        ({"max_prompts": 0}, ConfigError, "max_prompts"),
        ({"prompts": ["  "]}, DataError, "no prompt has a text"),
    ],
)
def test_invalid_options_raise_before_requests(generate, keys, error, says):
    with pytest.raises(error, match=says):
        generate(**keys)
