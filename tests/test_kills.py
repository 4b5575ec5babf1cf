"""Killed at random moments and started again, every long program ends in the results of one run.

    LITBENCH_KILLS=300 python -m pytest -m long -s tests/test_kills.py

The programs run in forks of a process that has imported the libraries, so that the kills fall into
their work and not into their imports.
"""

import itertools
import json
import multiprocessing
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import chinese_writers
import narra_script
import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from dumps import three_months
from fake_openai import (
    FAULTS,
    KEY,
    FakeOpenAI,
    drawn_manners,
    longer_story,
    messages_of,
    stored_keys,
)
from fake_reddit import FakeReddit, make_published, make_world
from longform_script import rate_text, write_text
from story_script import rate, write

from litbench.data.tables import write_table
from litbench.runs.outputs import write_atomically
from litbench.writers.webnovel.placement import ReferenceDistribution

for library in ("fastapi", "inspect_ai", "peft", "praw", "trl"):
    pytest.importorskip(library)
pytestmark = pytest.mark.long

# Over all programs.
KILLS = int(os.environ.get("LITBENCH_KILLS", "40"))
SEED = int(os.environ.get("LITBENCH_SEED", random.randrange(10**6)))
TRAFFIC = {
    "connections": 8,
    "max_retries": 12,
    "first_wait_seconds": 0.01,
    "timeout_seconds": 60,
    "give_up_after": 1_000,
}
JUDGE = {"model": FakeOpenAI.model, "traffic": TRAFFIC}
TRAINING = {
    "pairs": "$data/short_pairs.parquet",
    "output_dir": "$out",
    "learning_rate": 3e-3,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "num_train_epochs": 2,
    "save_strategy": "steps",
    "save_steps": 1,
    "use_cpu": True,
}
CHECKPOINTS = "checkpoints-*/*/trainer_state.json"


class NoServer:
    """Stands for a server that a program does not need."""

    requests = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@dataclass
class LongProgram:
    """A program and what is compared.

    Attributes:
        program: its path, or the name of a module.
        arguments: values of its options, in which $data, $out and $llama are filled in.
        results: files that must be equal.
        parts: pattern of the files of finished work, which no later run may write again.
        server: the server that it sends requests to.
        lost: the most answers that one kill may cost.
    """

    program: str
    arguments: dict[str, Any]
    results: list[str]
    parts: str = "nothing"
    server: Callable[[], AbstractContextManager[Any]] = NoServer
    lost: int = 0


def slow_judge(answer=longer_story, **behaviour):
    """A server with a judge, of whose requests every fifth fails in a killed run."""
    return FakeOpenAI(answer, seconds=0.01, hang_seconds=0.5, **behaviour)


def planned_faults(number, _kind):
    """Every fifth request fails. Two empty answers in a row would be taken for an answer."""
    return FAULTS[number // 5 % len(FAULTS)] if number % 5 == 0 else None


def judge_manners(question):
    """A question that is never answered would be asked again in each run."""
    manner = drawn_manners(SEED, 0.1)(question)
    return None if manner == "no choice" else manner


def writing(protocol, options, writers=("first", "second"), judges=("judge",), **roles):
    """Arguments of `litbench run`."""

    def role(name):
        return {"model": FakeOpenAI.model_called(name), "traffic": TRAFFIC}

    return {
        "protocol": protocol,
        "out": "$out",
        "options": options,
        "writers": {name: role(name) for name in writers},
        "judges": {name: role(name) for name in judges},
        "roles": {name: role(model) for name, model in roles.items()},
    }


WRITTEN = [f"{name}.parquet" for name in ("turns", "stories", "ratings", "grades")]


def chinese_server():
    """Two writers and a judge, who refuses a few ratings."""

    def writer(name):
        return lambda question: chinese_writers.answer(f"{question}\n{name}")

    return slow_judge(
        chinese_writers.answer,
        others={name: writer(name) for name in ("first", "second")},
        manners=lambda question: (
            "refusal" if "评分" in question and len(question) % 23 == 0 else None
        ),
    )


def longform_server():
    return slow_judge(rate_text, others={"writer": write_text}, question_of=messages_of)


def narra_server():
    models = {"quill": narra_script.writer, "echo": narra_script.repeating_writer}
    models |= {"player": narra_script.reader, "alpha": narra_script.judge}
    return slow_judge(others={**models, "beta": narra_script.lazy_judge})


PROGRAMS = {
    "make_stories": LongProgram(
        "data_prep/make_stories.py",
        {"input": "$data/stories.jsonl", "out": "$out"},
        ["stories.parquet", "rejected.jsonl", "examples.jsonl"],
    ),
    "make_pairs": LongProgram(
        "data_prep/make_pairs.py",
        {"stories": "$data/stories.parquet", "out": "$out", "symmetry_buckets": 20},
        ["pairs.parquet", "pairs_before_symmetry.parquet", "examples.jsonl"],
    ),
    "import_archive": LongProgram(
        "data_prep/import_archive.py",
        {"submissions": ["$data/dumps/RS_*"], "comments": ["$data/dumps/RC_*"], "out": "$out"},
        ["stories.parquet", "rejected.jsonl"],
        "parts/*/counts.json",
    ),
    "collect_reddit": LongProgram(
        "data_prep/collect_reddit.py",
        {"out": "$out", "listings": ["new"], "prompts": ["of number"]},
        ["stories.parquet", "rejected.jsonl"],
        "parts/posts/*.json",
        lambda: FakeReddit(make_world(7, posts=60), page=4),
        # A token, the listings and all requests of one post.
        lost=16,
    ),
    "rehydrate": LongProgram(
        "data_prep/rehydrate.py",
        {"pairs": "$data/ids.jsonl", "out": "$out"},
        ["pairs.parquet", "rejected.jsonl"],
        "parts/*/*.json",
        lambda: FakeReddit(make_published(13, posts=1_500)[0]),
        lost=2,
    ),
    "make_rationales": LongProgram(
        "data_prep/make_rationales.py",
        {"pairs": "$data/pairs.parquet", "out": "$out", **JUDGE},
        ["pairs.parquet", "rejected.jsonl"],
        server=slow_judge,
        lost=8,
    ),
    "benchmark": LongProgram(
        "eval/benchmark.py",
        {
            "pairs": "$data/short_pairs.parquet",
            "out": "$out",
            "raters": {"longer": {"kind": "longer"}, "judge": {"kind": "judge", **JUDGE}},
            "reference": "longer",
        },
        ["verdicts.parquet"],
        "parts/*.parquet",
        lambda: slow_judge(manners=judge_manners),
        lost=8,
    ),
    "until_decided": LongProgram(
        "eval/benchmark.py",
        {
            "pairs": "$data/pairs_of_prompts.parquet",
            "out": "$out",
            "raters": {"longer": {"kind": "longer"}, "judge": {"kind": "judge", **JUDGE}},
            "until": "decided",
            "against": "1/2",
        },
        ["verdicts.parquet"],
        "parts/*.parquet",
        lambda: slow_judge(manners=judge_manners),
        lost=8,
    ),
    "writers_until_decided": LongProgram(
        "litbench run",
        writing("stories", {"prompts": "$data/pairs_of_prompts.parquet"}, ("base", "good"))
        | {"until": "decided", "against": "base"},
        WRITTEN,
        server=lambda: slow_judge(rate, others={name: write(name) for name in ("base", "good")}),
        lost=24,
    ),
    "tow": LongProgram(
        "litbench run",
        writing("tow", {"instructions": "$data/instructions.parquet"}),
        WRITTEN,
        server=chinese_server,
        lost=24,
    ),
    "webnovel": LongProgram(
        "litbench run",
        writing("webnovel", {"books": "$data/books.json", "reference": "$data/reference.json"}),
        WRITTEN,
        server=chinese_server,
        lost=24,
    ),
    "longform": LongProgram(
        "litbench run",
        writing("longform", {}, writers=["writer"]),
        WRITTEN,
        server=longform_server,
        lost=16,
    ),
    "narra": LongProgram(
        "litbench run",
        writing("narra", {}, ("quill", "echo"), ("alpha", "beta"), reader="player"),
        [*WRITTEN, "events.jsonl"],
        server=narra_server,
        lost=40,
    ),
    "crossvalidate": LongProgram(
        "eval/crossvalidate.py",
        {
            "pairs": "$data/pairs.parquet",
            "out": "$out",
            "folds": 3,
            "repeats": 3,
            "raters": {"longer": {"kind": "longer"}, "features": {"kind": "features"}},
            "reference": "longer",
        },
        ["verdicts.parquet"],
        "parts/*.parquet",
    ),
    "ablation": LongProgram(
        "eval/ablation.py",
        {
            "stories": "$data/stories.parquet",
            "out": "$out",
            "splits": {"train": 0.7, "test": 0.3},
            "variants": {"full": {}, "naive": {"chosen_later": False}},
            "reference": "full",
            "raters": {"features": {"kind": "features", "c": [0.1]}, "longer": {"kind": "longer"}},
            "pairs_used": [0.5, 1.0],
            "seeds": [0, 1],
        },
        ["verdicts.parquet", "test_pairs.parquet", "ablation.json", "ablation.csv"],
        "parts/*.parquet",
    ),
    "best_of_n": LongProgram(
        "eval/best_of_n.py",
        {
            "stories": "$data/stories.parquet",
            "out": "$out",
            "raters": {
                "verifier": {"kind": "reward", "path": "$llama"},
                "longer": {"kind": "longer"},
            },
            "min_stories": 4,
        },
        ["stories.parquet", "pairs.parquet", "best_of_n.csv"],
        "parts/*.json",
    ),
    "embeddings": LongProgram(
        "litbench preferences",
        {
            "pairs": "$data/short_pairs.parquet",
            "out": "$out",
            "embedding": {"model": "$bert", "max_tokens": 64},
            "autoencoder": {"epochs": 2},
            "c": [0.1],
            "folds": 3,
        },
        ["units.csv", "units.parquet", "preferences.json", "model/autoencoder.safetensors"],
        "embeddings/*/[!.]*.parquet",
    ),
    "score": LongProgram(
        "litbench score",
        {
            "model": "$bert",
            "input": "$data/short_stories.jsonl",
            "out": "$out/scores.parquet",
        },
        ["scores.parquet"],
        "scores.parquet.parts/input-*/*.json",
    ),
    "bradley_terry": LongProgram(
        "train/bradley_terry.py",
        {**TRAINING, "model_name_or_path": "$llama", "max_length": 96},
        ["model/model.safetensors"],
        CHECKPOINTS,
    ),
    "bradley_terry_lora": LongProgram(
        "train/bradley_terry.py",
        {
            **TRAINING,
            "model_name_or_path": "$llama",
            "max_length": 96,
            "use_peft": True,
            "validation": 0.2,
            "eval_strategy": "steps",
            "eval_steps": 1,
        },
        ["model/model.safetensors"],
        CHECKPOINTS,
    ),
    "generative": LongProgram(
        "train/generative.py",
        {
            **TRAINING,
            "model_name_or_path": "$writer",
            "max_length": 1_536,
            "num_train_epochs": 1,
        },
        ["model/model.safetensors"],
        CHECKPOINTS,
    ),
}


@pytest.fixture(scope="module")
def given(tmp_path_factory, tiny_model, invented):
    """Values of $data and of the models: the sample, and small tables made from a seed."""
    data = tmp_path_factory.mktemp("data")
    for program, config, option in (
        ("make_stories", "sample_stories", "--input=sample"),
        ("make_pairs", "sample_pairs", f"--stories={data}/stories.parquet"),
    ):
        command = [
            sys.executable,
            f"data_prep/{program}.py",
            f"--config=configs/data/{config}.yaml",
        ]
        subprocess.run([*command, option, f"--out={data}"], check=True, cwd=ROOT)
    rows = pq.read_table(data / "stories.parquet").to_pylist()
    with (data / "stories.jsonl").open("w") as file:
        for copy, row in itertools.product(range(4), rows):
            file.write(json.dumps({**row, "story_id": f"{row['story_id']}-{copy}"}) + "\n")
    source = random.Random(0)
    pairs = pq.read_table(data / "pairs.parquet").slice(0, 64)
    for side in ("chosen", "rejected"):
        texts = [invented(source, source.randint(5, 60)) for _ in range(64)]
        pairs = pairs.set_column(pairs.column_names.index(side), side, [texts])
    write_table(pairs, data / "short_pairs.parquet")
    for name in ("prompt", "prompt_id", "chosen_story_id", "rejected_story_id"):
        # Two pairs of each prompt, and no story in two pairs.
        values = [f"{name} {n // 2 if name.startswith('prompt') else n}" for n in range(64)]
        pairs = pairs.set_column(pairs.column_names.index(name), name, [values])
    write_table(pairs, data / "pairs_of_prompts.parquet")
    with (data / "short_stories.jsonl").open("w") as file:
        for number in range(2_500):
            text = invented(source, source.randint(5, 40))
            file.write(json.dumps({"prompt": f"[WP] {number % 99}", "text": text}) + "\n")
    three_months(data / "dumps", stories=2_000, words=100)
    ids = make_published(13, posts=1_500)[1]
    (data / "ids.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in ids))
    draw = np.random.default_rng(0)
    ratings = draw.normal(3, 0.4, (60, 1)) + draw.normal(0, 0.2, (60, 8))
    ReferenceDistribution.fit(ratings, chinese_writers.TAGS).write(data / "reference.json")
    chinese_writers.write_books(data / "books.json", ["a_1.x", "a_1.y", "b"])
    tasks = [
        {"task": "open"},
        {"task": "open", "genre": "公文"},
        {"task": "guide", "information": "人物：老人。情节：等客。"},
        {"task": "guide", "genre": "诗歌"},
        {"task": "completion", "information": "前文。[fill in the blank]后文。"},
        {"task": "completion"},
    ]
    chinese_writers.write_instructions(data / "instructions.parquet", tasks)
    warm_up = FORKS.Process(target=print)
    warm_up.start()
    warm_up.join()
    return {
        "data": str(data),
        "llama": str(tiny_model("llama", positions=2_048)),
        "writer": str(tiny_model("llama", head="language", positions=2_048)),
        "bert": str(tiny_model("bert")),
    }


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "duckdb",
        "matplotlib.pyplot",
        "openai",
        "peft",
        "praw",
        "sklearn.linear_model",
        "transformers.models.llama.modeling_llama",
        "litbench.data.curation.pair_making",
        "litbench.judges.client",
        "litbench.judges.judge",
        "litbench.models.generative_training",
        "litbench.models.reward_training",
        "litbench.evaluation.report.page",
    ]
)


def run_program(program, arguments, variables, log):
    """Run a program in this process, as its command line would."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(variables)
    os.chdir(ROOT)
    module, *words = program.split()
    sys.argv = [program, *words, *arguments]
    if program.endswith(".py"):
        sys.path.insert(0, str(ROOT / Path(program).parent))
        runpy.run_path(str(ROOT / program), run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


@dataclass
class Harness:
    """Runs one program, undisturbed or through kills."""

    long: LongProgram
    given: dict[str, str]
    folder: Path
    server: Any
    source: random.Random
    variables: dict[str, str] = field(default_factory=dict)
    seen: bool = False

    def run(self, out, is_due=lambda: False):
        """Run the program, and kill it when that is due; returns whether it finished."""
        plain = Template(json.dumps(self.long.arguments)).substitute(self.given, out=out)
        options = [
            f"--{key}={json.dumps(value) if isinstance(value, list | dict) else value}"
            for key, value in json.loads(plain).items()
        ]
        log = self.folder / "log.txt"
        process = FORKS.Process(
            target=run_program, args=(self.long.program, options, self.variables, log)
        )
        process.start()
        end = time.monotonic() + 900
        while process.is_alive() and not is_due() and time.monotonic() < end:
            process.join(0.002)
        process.kill()
        process.join()
        said = log.read_text()
        assert process.exitcode in (0, -signal.SIGKILL), said[-3_000:]
        assert KEY not in said
        return process.exitcode == 0

    def draw_kill(self, seconds, requests):
        """Whether a kill is due: at a request or a moment of an undisturbed run."""
        if requests and self.source.random() < 0.5:
            goal = self.server.requests + self.source.randint(1, requests)
            return lambda: self.server.requests >= goal
        end = time.monotonic() + self.source.uniform(0, seconds)
        return lambda: time.monotonic() > end

    def run_through_kills(self, out, seconds, requests, kills):
        """Kill the program up to so many times, then let it finish; returns the number of kills."""
        killed, before = 0, {}
        while True:
            if killed < kills:
                finished = self.run(out, self.draw_kill(seconds, requests))
            else:
                finished = self.run(out)
            parts = {path: path.stat().st_mtime_ns for path in out.glob(self.long.parts)}
            # A program may remove all parts once it has finished.
            unused = before.keys() - parts.keys() if parts else set()
            again = [path for path in parts.keys() & before if parts[path] != before[path]]
            if self.long.parts != CHECKPOINTS:
                assert not unused, f"finished work was not used: {unused}"
            assert not again, f"finished work was repeated: {again}"
            if finished:
                return killed
            self.seen = self.seen or bool(parts)
            before = parts
            killed += 1

    def results(self, out):
        """The results by file name; of tables without durations and times of reading."""
        results = {}
        for name in self.long.results:
            results[name] = (out / name).read_bytes()
            if name.endswith(".parquet"):
                table = pq.read_table(out / name)
                names = table.column_names
                timed = [key for key in names if key.endswith(("seconds", "score_utc"))]
                results[name] = table.drop_columns(timed).to_pylist() if timed else results[name]
        return results


@pytest.mark.parametrize("name", PROGRAMS)
def test_killed_runs_end_like_an_undisturbed_one(name, given, tmp_path):
    long, kills = PROGRAMS[name], max(KILLS // len(PROGRAMS), 1)
    with long.server() as server:
        harness = Harness(long, given, tmp_path, server, random.Random(f"{SEED} {name}"))
        asks = isinstance(server, FakeOpenAI)
        if isinstance(server, FakeReddit):
            harness.variables = server.environment(tmp_path / "settings")
        elif asks:
            harness.variables = server.environment()
        harness.variables["LITBENCH_SALT"] = "a salt of the tests"
        started, answers = time.monotonic(), tmp_path / "whole/answers"
        assert harness.run(tmp_path / "whole")
        seconds, requests = time.monotonic() - started, server.requests
        whole = harness.results(tmp_path / "whole")
        if asks:
            server.draw = planned_faults
            assert requests == len(stored_keys(answers))
        killed, outputs = 0, 0
        while killed < kills:
            out = tmp_path / f"out-{outputs}"
            if asks:
                # With the same codes, so that equal questions have equal keys.
                (out / "answers").mkdir(parents=True)
                shutil.copy(answers / "seed.txt", out / "answers")
            before = server.answered.total() if asks else server.requests
            now = harness.run_through_kills(
                out, seconds, requests, min(harness.source.randint(1, 5), kills - killed)
            )
            assert harness.results(out) == whole
            assert not list(out.rglob(".part-*")), "temporary files are left"
            sent = (server.answered.total() if asks else server.requests) - before
            assert sent <= requests + now * long.lost
            assert not asks or stored_keys(out / "answers") == stored_keys(answers)
            killed, outputs = killed + now, outputs + 1
    assert harness.seen or long.parts == "nothing" or killed < 10, f"{long.parts}: nothing found"
    print(f"\n{name}: {killed} kills in {outputs} runs of {seconds:.1f} s, seed {SEED}: equal")


def replace_folder(path):
    """Replace a folder of ten files without end; all files of one version have the same text."""
    for version in itertools.count():

        def write(folder, version=version):
            for number in range(10):
                (folder / str(number)).write_text(f"{os.getpid()} {version}")

        write_atomically(path, write, is_folder=True)


def test_folder_killed_while_replaced_is_whole(tmp_path):
    source = random.Random(SEED)
    first = tmp_path / "model" / "0"
    for _ in range(max(10, KILLS // 2)):
        process = FORKS.Process(target=replace_folder, args=(tmp_path / "model",))
        process.start()
        while not first.exists() or not first.read_text().startswith(f"{process.pid} "):
            assert process.exitcode is None
            time.sleep(0.001)
        process.join(source.uniform(0, 0.4))
        assert process.exitcode is None
        process.kill()
        process.join()
        texts = [file.read_text() for file in (tmp_path / "model").iterdir()]
        assert texts == [texts[0]] * 10
