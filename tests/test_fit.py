"""litbench fit: columns found or asked for, all steps in one folder, nothing done twice."""

import csv
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_openai import KEY, FakeOpenAI

from litbench.cli import main
from litbench.data.curation.rules import buckets_for
from litbench.data.records import PAIRS
from litbench.data.tables import read_table
from litbench.data.text import prompt_key
from litbench.evaluation import crossvalidation
from litbench.evaluation.report.document import page_links
from litbench.models.features import FeatureModel
from litbench.runs.outputs import only_writer

QUICK = ("--repeats", "1")
# The tutorial's test and the page's own draw the pictures.
pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def fit(monkeypatch, capsys, tmp_path):
    """Run the command in an empty folder; returns its exit code and all it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, is_verbose=True):
        verbose = ["--verbose"] if is_verbose else []
        monkeypatch.setattr(sys, "argv", ["litbench", "fit", *map(str, arguments), *verbose])
        code = 0
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


@pytest.fixture
def posts(invented):
    """Write JSONL of posts, of which those with more commas have more votes."""

    def write(path="posts.jsonl", prompts=6, stories=5, rename=None, **constants):
        source = random.Random(prompts)
        names = {"title": "title", "body": "body", "ups": "ups", "created": "created"}
        names |= rename or {}
        lines = []
        for index in range(prompts * stories):
            commas = source.randint(0, 8)
            row = {
                "title": f"A door, number {index // stories}",
                "body": invented(source, source.randint(60, 120)) + "and so, " * commas,
                "ups": 20 + 30 * commas,
                "created": 1_500_000_000 + source.randint(0, 10_000),
            }
            row = {names[key]: value for key, value in row.items() if names[key]} | constants
            lines.append(json.dumps(row) + "\n")
        Path(path).write_text("".join(lines), encoding="utf-8")
        return path

    return write


def test_one_file_becomes_a_model_that_scores_and_two_linked_pages(fit, posts, monkeypatch, capsys):
    code, said = fit(posts(), "--out", "runs/mine", *QUICK)
    assert code == 0, said
    assert (
        "posts.jsonl: stories; prompt = title, text = body, score = ups, time = created\n" in said
    )
    for part in (
        "buckets",
        "3 folds of 6 prompts, 1 repeats",
        "features ",
        "longer ",
        "6 prompts (",
        "the ranking may not generalise",
    ):
        assert part in said
    out = Path("runs/mine")
    names = {"stories", "pairs", "model", "evaluation", "report", "manifest.json", "fit.log"}
    assert {path.name for path in out.iterdir()} == names
    for page, other in (("report", "audit"), ("audit", "report")):
        path = out / "report" / f"{page}.html"
        assert f'<a href="{other}.html">' in path.read_text(encoding="utf-8")
    assert (
        f"report: {Path('runs/mine/report/report.html').resolve()} (beside it: audit.html)" in said
    )
    command = said.splitlines()[-1].removeprefix("next: ")
    assert command.startswith("litbench score --model runs/mine/model ")
    words = ["--model", "runs/mine/model", "--prompt", "p", "--story", "s"]
    monkeypatch.setattr(sys, "argv", ["litbench", "score", *words])
    main()
    said = capsys.readouterr().out
    assert re.match(
        r"reward -?\d+\.\d+\nreward_percentile \d+\.\d\nis_prose (true|false|null)\n", said
    )


def test_only_what_changed_is_done_again(fit, posts):
    first = fit(posts(), "--out", "mine", *QUICK)[1]
    said = fit("posts.jsonl", "--out", "mine", *QUICK)[1]
    parts = ("mine/stories", "mine/pairs", "mine/evaluation", "mine", "mine/report")
    assert [line for line in said.splitlines() if line.startswith("unchanged")] == [
        f"unchanged: {part}" for part in parts
    ]
    assert said.splitlines()[-3:] == first.splitlines()[-3:]
    said = fit("posts.jsonl", "--out", "mine", "--repeats", "2")[1]
    assert [part for part in parts if f"unchanged: {part}\n" in said] == [*parts[:2], parts[3]]
    said = fit("posts.jsonl", "--out", "mine", *QUICK, "--min_gap", "0.1")[1]
    assert [part for part in parts if f"unchanged: {part}\n" in said] == ["mine/stories"]


def test_columns_are_given_by_name_or_expression(fit, posts):
    rename = {"title": "A Heading", "body": "what they wrote", "ups": "plus", "created": "seen"}
    path = posts(rename=rename, minus=3)
    flags = ("--prompt", "A Heading", "--text", "what they wrote", "--score", "plus - minus")
    code, said = fit(path, "--out", "mine", *flags, "--time", "seen + 1", *QUICK)
    assert code == 0, said
    pairs = read_table("mine/pairs/pairs.parquet", PAIRS).to_pylist()
    assert {row["chosen_score"] % 10 for row in pairs} == {7}
    assert all(row["chosen_created_utc"] > row["rejected_created_utc"] for row in pairs)


def test_pairs_without_times_have_no_time_rule(fit, posts):
    code, said = fit(posts(rename={"created": None}), "--out", "mine", *QUICK)
    assert code == 0, said
    assert "no column of times (--time): the chosen story of a pair may be the earlier one" in said
    steps = json.loads(Path("mine/pairs/manifest.json").read_text())["counts"]["funnel"]
    assert not {"chosen_later", "has_time"} & {step["step"] for step in steps}
    # A column that is there can be left out.
    said = fit(posts(), "--out", "mine", "--time", "null", *QUICK)[1]
    assert "no column of times" in said


def test_times_that_are_all_null_are_no_times(fit, posts):
    path = posts(rename={"created": None}, created=None)
    code, said = fit(path, "--out", "mine", *QUICK)
    assert code == 0, said
    assert "time = created\n" in said
    assert "no column of times" in said


@pytest.mark.parametrize("score", ["ups", "stars"])
def test_ratings_are_numbers_and_need_no_minimum_of_votes(fit, posts, score):
    path = posts(rename={"ups": score}, prompts=9)
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    for row in rows:
        row[score] = row[score] // 30 if score == "stars" else row[score] / 37
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, said = fit(path, "--out", "mine", *QUICK)
    assert code == 0, said
    assert "scores are ratings, not votes" in said
    pairs = read_table("mine/pairs/pairs.parquet", PAIRS)
    assert set(pairs["label_source"].to_pylist()) == {"people"}
    assert max(pairs["chosen_score"].to_pylist()) < 10
    steps = json.loads(Path("mine/pairs/manifest.json").read_text())["counts"]["funnel"]
    assert "min_score" not in {step["step"] for step in steps}
    assert steps[0]["kept"] == len(rows)
    # A minimum that is given applies to ratings too.
    fit(path, "--out", "mine", *QUICK, "--min_score", "1")
    steps = json.loads(Path("mine/pairs/manifest.json").read_text())["counts"]["funnel"]
    assert "min_score" in {step["step"] for step in steps}


def test_a_rule_that_removes_most_rows_is_named(fit, posts):
    rules = ("--min_score", "170", "--chosen_later", "false", "--symmetry_buckets", "null")
    code, said = fit(posts(prompts=12), "--out", "mine", *QUICK, *rules, "--min_gap", "null")
    assert code == 0, said
    assert "note: min_score removed most: lower it, or set it to null" in said


def test_a_second_run_in_the_folder_waits(fit, posts):
    path = posts()
    for folder in ("mine", "mine/stories", "mine/pairs"):
        with only_writer(Path(folder)):
            code, said = fit(path, "--out", "mine", *QUICK)
        assert code == 2
        assert said.splitlines()[-1].startswith(f"error: cannot write {folder}: another program")
    assert fit(path, "--out", "mine", *QUICK)[0] == 0


def test_ids_are_used_only_where_they_identify(fit, posts):
    said = fit(posts(id="always the same", link_id="also"), "--out", "mine", *QUICK)[1]
    assert (
        "posts.jsonl: stories; prompt = title, text = body, score = ups, time = created\n" in said
    )
    rows = [json.loads(line) for line in Path("posts.jsonl").read_text().splitlines()]
    rows = [{**row, "id": k, "link_id": prompt_key(row["title"])} for k, row in enumerate(rows)]
    Path("posts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = fit("posts.jsonl", "--out", "mine", *QUICK)[1]
    assert "time = created, story_id = id, prompt_id = link_id\n" in said


@pytest.mark.parametrize(
    ("given", "arguments", "message"),
    [
        (
            {"rename": {"title": "x", "ups": "y"}},
            [],
            "posts.jsonl: cannot tell which column is the "
            "prompt and the score; the columns are x, body, y, created: give --prompt "
            "COLUMN --score",
        ),
        ({}, ["--score", "upps"], "no column 'upps' (mapped to score)"),
        (
            {"ups": 3},
            [],
            "no pair is left: 30 stories (stories read) → 0 (score at least 10) → 0 "
            "pairs (pairs within a prompt, scores differ); min_score removed most: lower it",
        ),
        ({"prompts": 2}, [], "prompts are left, and 3 are needed: 10 stories"),
        (
            {"prompts": 1},
            [],
            "1 prompts are left, and 3 are needed: 5 stories were read: check the column of the "
            "prompt",
        ),
        ({"stories": 1}, [], "no two stories of a prompt differ in score: check the columns"),
        ({}, ["--min_words", "5000"], "min_words removed most: lower it"),
        ({}, ["--min_gap", "0.99"], "min_gap removed most: lower it"),
        ({}, ["--min_skore", "3"], "unknown key 'min_skore': did you mean 'min_score'?"),
        ({}, ["--learning_rat", "3"], "unknown key 'learning_rat': did you mean 'learning_rate'?"),
        ({}, ["--learning_rate", "3"], "learning_rate is a key of training a reward model: give"),
        ({}, ["--folds", "9"], "folds is 9: give 2 to 6, the number of prompts"),
        ({}, ["--symmetry_buckets", "3"], "'symmetry_buckets' is 3"),
        ({}, ["--model_name_or_path", "package:nowhere/model"], "package nowhere is not installed"),
    ],
)
def test_user_errors_are_one_line(fit, posts, given, arguments, message):
    code, said = fit(posts(**given), "--out", "mine", *QUICK, *arguments)
    assert code == 2
    error = said.splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error


def test_sample_has_its_own_columns(fit):
    code, said = fit("sample", "--out", "mine", "--prompt", "title")
    assert (code, said) == (2, "error: --prompt: the sample has its own columns: leave it out\n")


def test_a_reward_model_is_trained_and_named_where_it_agrees_more(
    fit, posts, tiny_model, monkeypatch
):
    pytest.importorskip("trl")
    jobs, evaluate = [], crossvalidation.evaluate

    def evaluate_and_note(listed, parts):
        jobs.extend(listed)
        return evaluate(listed, parts)

    monkeypatch.setattr(crossvalidation, "evaluate", evaluate_and_note)
    model = tiny_model("bert")
    keys = ("--model_name_or_path", model, "--max_length", "64", "--learning_rate", "1e-3")
    keys = (*keys, "--negatives", "true", "--validation", "0.4")
    code, said = fit(posts(prompts=9), "--out", "mine", *QUICK, *keys)
    assert code == 0, said
    work = {
        kind: max(job.work for job in jobs if job.spec.kind == kind)
        for kind in ("features", "reward")
    }
    assert work["reward"] > 100 * work["features"], "as the time they take, for the progress bar"
    assert sum(job.spec.kind == "reward" for job in jobs) == 1
    every, rows = (
        json.loads(Path(f"mine/{folder}/leaderboard.json").read_text())
        for folder in ("evaluation", "evaluation_reward")
    )
    assert {row["rater"] for row in rows} - {row["rater"] for row in every} == {"reward"}
    (prompts,) = {row["agreement"]["clusters"] for row in rows}
    assert 0 < prompts < every[0]["agreement"]["clusters"], "one test set for all raters"
    assert Path("mine/report/reward.html").is_file()
    agreement = {row["rater"]: row["agreement"]["mean"] for row in rows}
    folders = {"features": "mine/features", "reward": "mine/model"}
    best = max(folders, key=agreement.get)
    assert f"{best} agrees more often" in said
    assert f"litbench score --model {folders[best]} " in said
    assert Path("mine/features/features.json").is_file()
    assert json.loads(Path("mine/model/litbench.json").read_text())["kind"] == "reward"
    run = json.loads(Path("mine/model/run.json").read_text())
    assert run["training"]["options"]["learning_rate"] == 1e-3
    features = json.loads(Path("mine/features/features.json").read_text())
    rejected = run["label_source"].get("negatives", 0)
    counts = {"features": features["negatives"], "reward": rejected}
    assert counts["reward"] < counts["features"], "validation pairs are held out before"
    assert f"; {counts[best]} negatives added to" in said
    jobs.clear()
    code, said = fit("posts.jsonl", "--out", "mine", *QUICK, *keys, "--crossvalidate_model")
    rows = json.loads(Path("mine/evaluation/leaderboard.json").read_text())
    assert {"reward", "features"} <= {row["rater"] for row in rows}
    assert sum(job.spec.kind == "reward" for job in jobs) == 3, "one training per fold"
    said = fit("posts.jsonl", "--out", "mine", *QUICK)[1]
    assert not Path("mine/features").exists()
    assert not Path("mine/evaluation_reward").exists()
    assert Path("mine/model/features.json").is_file()


@pytest.mark.parametrize(
    ("pairs", "buckets"), [(0, 2), (34, 2), (80, 4), (570, 20), (1_999, 50), (43_827, 100)]
)
def test_symmetry_buckets_follow_the_number_of_pairs(pairs, buckets):
    assert buckets_for(pairs) == buckets


def test_pages_of_one_folder_link_to_each_other(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report/report.html").touch()
    links = page_links(tmp_path / "report/audit.html", ["report.html", "audit.html"])
    assert links == [("Report", "report.html")]


def test_the_report_has_a_learning_curve_and_the_next_command(posts, fit):
    code, said = fit(posts(prompts=24), "--out", "mine", *QUICK)
    assert code == 0, said
    assert "learning curve:" in said
    page = Path("mine/report/report.html").read_text("utf-8")
    assert "more prompts will help" in page
    assert "Texts that are not stories" in page
    assert "litbench score --model mine/model --input stories.jsonl --out scored.jsonl" in page
    rows = json.loads(Path("mine/learning_curve/leaderboard.json").read_text())
    assert {row["rater"] for row in rows} >= {"features, 25 % of prompts", "features, 100 %"}


def test_python_of_the_readme_runs(posts, capsys, monkeypatch, tmp_path):
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    posts()
    exec(program, {})  # noqa: S102
    assert re.search(r"\n\[-?[\d.]+\] \[[\d.]+\]\n$", capsys.readouterr().out)
    assert Path("report.html").is_file()


def test_the_terminal_shows_twelve_lines_and_the_log_the_rest(fit, posts):
    _, said = fit(posts(rename={"created": None}), "--out", "mine", *QUICK, is_verbose=False)
    lines = said.splitlines()
    assert len(lines) <= 12
    assert lines[0].startswith("posts.jsonl: stories; ")
    assert lines[-1].startswith("next: litbench score ")
    assert sum(line.startswith("not stories: features prefers ") for line in lines) == 1
    log = Path("mine/fit.log").read_text(encoding="utf-8")
    assert "scores differ by 25%" in log
    assert "scores differ by 25%" not in said
    assert "no column of times" in log


@pytest.fixture
def pairs(invented):
    """Write CSV of pairs under foreign names; chosen stories have more commas."""

    def write(path="pairs.csv", prompts=8, each=3, **constants):
        source = random.Random(prompts)
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["question", "winner", "loser", *constants])
            writer.writeheader()
            for row in range(prompts * each):
                texts = [invented(source, source.randint(60, 120)) for _ in range(2)]
                writer.writerow(
                    {
                        "question": f"A door, number {row // each}",
                        "winner": texts[0] + "and so, " * source.randint(2, 8),
                        "loser": texts[1],
                        **constants,
                    }
                )
        return path

    return write


def test_a_file_of_pairs_becomes_a_model(fit, pairs):
    keys = ("--out", "mine", "--prompt", "question", *QUICK)
    code, said = fit(pairs(), *keys, is_verbose=False)
    assert code == 0, said
    assert said.startswith("pairs.csv: pairs; prompt = question, chosen = winner, rejected = loser")
    assert "folds of 8 prompts, 1 repeats" in said
    assert len(said.splitlines()) <= 12
    assert Path("mine/report/report.html").is_file()
    assert Path("mine/report/audit.html").is_file()
    record = json.loads(Path("mine/model/features.json").read_text())
    columns = {"prompt": "question", "chosen": "winner", "rejected": "loser"}
    assert record["columns"] == columns
    assert "unchanged: mine/pairs" in fit("pairs.csv", *keys)[1]


def test_held_out_prompts_are_in_no_training(fit, pairs):
    keys = ("--prompt", "question", "--test_share", "0.25")
    code, said = fit(pairs(each=7), "--out", "mine", *keys, is_verbose=False)
    assert code == 0, said
    assert "\ntrained on 6 prompts, judged on 2 held-out prompts\n" in said
    table = read_table("mine/pairs/pairs.parquet", PAIRS).to_pylist()
    prompts = {
        split: {prompt_key(row["prompt"]) for row in table if row["split"] == split}
        for split in ("train", "test")
    }
    assert [len(part) for part in prompts.values()] == [6, 2]
    assert set(FeatureModel.load(Path("mine/model")).prompts) == prompts["train"]
    judged = json.loads(Path("mine/evaluation/manifest.json").read_text())["counts"]
    assert judged["pairs"] == 14
    # Pairs that have these splits keep them; negatives are in no file of pairs.
    Path("mine/pairs/pairs.parquet").rename("split.parquet")
    said = fit("split.parquet", "--out", "other", "--negatives", "true", is_verbose=False)[1]
    method = "trained on 6 prompts, judged on 2 held-out prompts; 2 negatives added to 42 pairs\n"
    assert method in said
    assert read_table("other/pairs/pairs.parquet", PAIRS).num_rows == 56
    assert json.loads(Path("other/evaluation/manifest.json").read_text())["counts"]["pairs"] == 14
    assert FeatureModel.load(Path("other/model")).negatives == 2


def test_a_judge_is_asked_beside_the_models(fit, pairs, monkeypatch):
    pytest.importorskip("inspect_ai")
    with FakeOpenAI() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        keys = ("--prompt", "question", "--test_share", "0.25", "--judge", FakeOpenAI.model)
        code, said = fit(pairs(), "--out", "mine", *keys, is_verbose=False)
    assert code == 0, said
    assert re.search(rf"^{FakeOpenAI.model} \(judge\) +[01]\.\d", said, re.M)
    # Progress, such as how long the judge's answers take, is not counted.
    assert len([line for line in said.splitlines() if ": measured: " not in line]) <= 12


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("--min_score", "3", "--min_score is a key of stories, and pairs.csv has pairs"),
        ("--test_share", "1", "'test_share' is 1"),
        ("--chosen", "nothing", "no column 'nothing'"),
    ],
)
def test_keys_that_do_not_fit_pairs_are_named(fit, pairs, key, value, message):
    code, said = fit(pairs(), "--out", "mine", "--prompt", "question", key, value)
    assert code == 2
    assert message in said.splitlines()[-1]


def test_without_extras_fit_audit_and_score_work_and_the_others_name_theirs(posts, tmp_path):
    posts(tmp_path / "posts.jsonl")
    libraries = (
        "torch transformers trl peft accelerate datasets tokenizers huggingface_hub pandas rich "
        "matplotlib jinja2 inspect_ai openai fastapi prometheus_client praw"
    )
    code = (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "class Finder(PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, *path):\n"
        f"        return None if name in {libraries.split()} else super().find_spec(name, *path)\n"
        "sys.meta_path[sys.meta_path.index(PathFinder)] = Finder\n"
        "from litbench.cli import main\n"
        "for words in sys.argv[1:]:\n"
        "    sys.argv = ['litbench', *words.split()]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as stopped:\n"
        "        print('exit', stopped.code)\n"
    )
    pairs = "run/pairs/pairs.parquet"
    commands = {
        f"fit posts.jsonl --out run {' '.join(QUICK)}": "no report: .* 'litbench[report]'$",
        f"audit {pairs} --out audit": "^no page: .* 'litbench[report]'$",
        "score --model run/model --prompt p --story s": r"^reward -?\d",
        f"judge {pairs} --model openai/x --out judge": "inspect_ai, .* 'litbench[judge]'$",
        "serve --model run/model": "'litbench[serve]'$",
        "train bradley_terry --help": "trl, .* 'litbench[train]'$",
        "fit posts.jsonl --out other --model_name_or_path x": "trl, .* 'litbench[train]'$",
        "score --model OWNER/NAME --prompt p --story s": "'litbench[models]'$",
        "fit OWNER/NAME --out hub": "'litbench[data]'$",
    }
    command = [sys.executable, "-c", code, *commands]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    position = 0
    for command, pattern in commands.items():
        match = re.compile(pattern.replace("[", r"\[", 1), re.M).search(done.stdout, position)
        assert match, f"{command}: {done.stdout[position:]}"
        position = match.end()
    assert (tmp_path / "run/model/features.json").exists()
    assert (tmp_path / "audit/audit.json").exists()
    assert not (tmp_path / "other").exists(), "before any work"
