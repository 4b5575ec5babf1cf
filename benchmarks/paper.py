"""Every table and figure of the papers on one page, from invented data or from your runs.

    python benchmarks/paper.py                # invented data, shape only: make paper
    python benchmarks/paper.py --from runs    # the folders that the configs of configs/paper write

`docs/results/papers.csv` says for each item in which page of a run it is. Without --from the pages
are made first: by the commands, from the embedded sample and from writers and judges of a server on
loopback, whose answers follow rules. The page has copies of the sections, not other results.
"""

import argparse
import csv
import html
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.data.records import GRADES, RATINGS
from litbench.data.tables import read_table, write_table
from litbench.raters.templates.rubric import load_rubric
from litbench.runs.outputs import Artifact, read_manifest
from litbench.study.pairs import PairStudy
from litbench.study.simulation import SimulatedReaders
from litbench.writers.compare import WritersConfig, compare_writers
from litbench.writers.run import Run, run
from litbench.writers.webnovel.placement import ReferenceDistribution

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/writers")]
ITEMS = ROOT / "docs/results/papers.csv"
STYLE = ROOT / "litbench/evaluation/report/style.css"
INVENTED = "Invented data: it shows the shape only, not the paper's numbers."
MISSING = "No page has it here"
WRITERS, JUDGES = ("ash", "birch", "cedar"), ("strict", "mild", "fair")


def litbench(*words: object) -> None:
    """Run a command of litbench; its output goes to the terminal."""
    command = [sys.executable, "-m", "litbench", *map(str, words)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def make_pages(out: Path) -> None:
    """Run the commands of the configs on invented data, in folders of the configs' names."""
    fake, folders = import_module("fake_openai"), import_module("study_folder")

    litbench("fit", "sample", "--out", out / "fit")
    pairs = out / "fit/pairs/pairs.parquet"
    litbench("audit", "--pairs", out / "fit/pairs", "--out", out / "strict/full/audit")
    stories = ("--stories", out / "fit/stories/stories.parquet", "--max_tokens", "null")
    ablation = ("--config", "configs/eval/sample_ablation.yaml", "--out", out / "litbench_figure6")
    litbench("eval", "ablation", *ablation, *stories)
    words = cycle(["The plot holds.", "The style is plain.", "People come alive."])
    with fake.FakeOpenAI(lambda question: f"{next(words)} {fake.longer_story(question)}"):
        judge = "{kind: judge, model: openai-api/fake/judge, answer: explanation}"
        raters = f"{{longer: {{kind: longer}}, loopback: {judge}}}"
        common = ("--pairs", pairs, "--raters", raters, "--reference", "longer")
        litbench("eval", "benchmark", *common, "--out", out / "litbench_table3")
    judged = f"{{sample: {out / 'litbench_table3'}}}"
    report = ("--tables", "true", "--parameters", "{loopback: 8.0e+9}", "--out")
    litbench("eval", "report", "--evaluations", judged, *report, out / "litbench_table3/report")
    litbench("explanations", "--evaluations", judged, "--out", out / "litbench_figure8")
    study = out / "litbench_figure7/study"
    texts = ("--consent", "You read.", "--contact", "nobody", "--completion_code", "C")
    tags = ("--tags", "[funny, dry, a twist]", "--max_pairs", 40, "--readers_per_pair", 12)
    litbench("study", "make", "--pairs", pairs, "--out", study, *texts, *tags)
    (study / "export").mkdir(exist_ok=True)
    choices = folders.simulate_choices(PairStudy.open(study), SimulatedReaders())
    write_table(choices, study / "export/choices.parquet")
    litbench("study", "analyse", "--study", study, "--out", out / "litbench_figure7/result")
    run_writers(out)


def run_writers(out: Path) -> None:
    """Run the four benchmarks with two writers and three judges on loopback, and compare them."""
    names = ("chinese_writers", "longform_script", "narra_script", "fake_openai")
    chinese, longform, narra, fake = map(import_module, names)

    inputs = out / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    books = chinese.write_books(inputs / "books.json", [f"book_{k}" for k in range(12)], chapters=2)
    rows = [
        {"genre": genre, "task": task, "information": "前文。[fill_in_the_blank]后文。"}
        for genre in ("小说", "议论文", "诗歌", "演讲稿")
        for task in ("guide", "open", "completion")
        for _ in range(2)
    ]
    instructions = chinese.write_instructions(inputs / "instructions.parquet", rows)
    criteria = [criterion.name for criterion in load_rubric("webnovel").criteria]

    quality = np.random.default_rng(0).normal(3, 0.4, (200, 1))
    ratings = quality + np.random.default_rng(1).normal(0, 0.3, (200, len(criteria)))
    novels = inputs / "reference.json"
    ReferenceDistribution.fit(ratings, criteria).write(novels)
    web = {"books": str(books), "reference": str(novels)}
    cases: dict[str, tuple[str, Callable[[str], str], Callable[[str], str], Any, Any, Any]] = {
        "webnovelbench_figure3": (
            *("webnovel", chinese.answer, chinese.answer, web, {"judge_samples": 3}),
            {"by": ["criterion"], "novels": novels, "words": (800, 1200)},
        ),
        "howtobench_table4": (
            *("tow", chinese.answer, chinese.answer, {"instructions": str(instructions)}, {}),
            {"by": ["genre", "task", "judge"]},
        ),
        "narra_table1": (
            *("narra", narra.writer, narra.judge, {}, {}),
            {"by": ["persona", "judge", "criterion"], "collapse": 2.0},
        ),
        "longform_leaderboard": (
            *("longform", longform.write_text, longform.rate_text),
            *({"chapters": 3}, {"items": ["choir", "repair", "ledger"]}, {"by": ["step"]}),
        ),
    }
    for folder, (protocol, write, rate, options, more, compared) in cases.items():
        answers = {name: as_model(write, name) for name in WRITERS}
        answers |= {name: as_model(rate, name) for name in JUDGES}
        answers["player"] = narra.reader
        with fake.FakeOpenAI(others=answers, question_of=fake.messages_of):
            named = fake.FakeOpenAI.model_called
            writers = {name: named(name) for name in WRITERS}
            roles = {"reader": named("player")} if protocol == "narra" else {}
            judges = {name: named(name) for name in JUDGES}
            run(Run(protocol, out / folder, writers, judges, roles, options, **more))
        runs = [out / folder]
        if protocol == "narra":
            runs.append(as_people(out / folder, inputs / "people"))
        compare_writers(WritersConfig(runs, out / folder / "page", **compared))


def as_people(run_folder: Path, folder: Path) -> Path:
    """A judge's ratings of a run as those of a person, in a folder like that of a study."""
    artifact = Artifact(folder, program=__file__, config={}, inputs={})
    for name, schema in (("ratings", RATINGS), ("grades", GRADES)):
        rows = read_table(run_folder / f"{name}.parquet", schema).to_pylist()
        person = {"rater": "ann", "rater_kind": "person"}
        rows = [row | person for row in rows if row["rater"] == JUDGES[0]]
        table = pa.Table.from_pylist(rows, schema.arrow())
        artifact.write(f"{name}.parquet", partial(write_table, table))
    stories = run_folder / "stories.parquet"
    artifact.write(stories.name, partial(shutil.copyfile, stories))
    artifact.counts = read_manifest(run_folder)["counts"]
    artifact.finish()
    return folder


def as_model(answer: Callable[[str], str], name: str) -> Callable[[str], str]:
    """A model that answers by a rule, differently each time."""
    numbers = count()
    return lambda question: answer(f"{question}\n{name} {next(numbers)}")


def sections(page: Path, names: str, prefix: str) -> Iterator[str]:
    """A picture, or a page's sections whose ids begin with these names, with ids of their own."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".svg":
        # A file has the colours of the light theme.
        drawn = own_ids(text[text.index("<svg") :], prefix)
        yield f'<figure style="background: #fff; max-width: 36rem">{drawn}</figure>'
    for name in names.split():
        match = re.search(
            rf'<h2 id="{re.escape(name)}[^"]*">(.*?)(?=<h2 |</main>)', text, re.DOTALL
        )
        if match is None:
            yield f'<p class="warn">{html.escape(f"{page.name} has no section {name}")}</p>'
        else:
            yield "<h3>" + own_ids(match[1].replace("</h2>", "</h3>", 1), prefix)


def own_ids(text: str, prefix: str) -> str:
    """A part of a page whose ids begin with a prefix, so that no other part has them."""
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", text)


def paper_page(rows: list[Mapping[str, str]], runs: Path, note: str) -> str:
    """The page: a table of the items, and the sections that show each."""
    parts, contents = [], []
    for number, row in enumerate(rows, 1):
        name = html.escape(f"{row['paper']}, {row['item']}")
        page, _, names = row["page"].partition("#")
        is_shown = bool(page) and (runs / page).is_file()
        shown = "".join(sections(runs / page, names, f"i{number}")) if is_shown else ""
        about = [row["about"], f"From {row['source']}" if row["source"] else "", note * is_shown]
        about += [f"Not exactly the paper's: {row['why not exactly']}.", MISSING * (not is_shown)]
        lines = "".join(f'<p class="soft">{html.escape(line)}</p>' for line in about if line)
        parts.append(f'<h2 id="i{number}">{name}</h2>{lines}{shown}')
        cells = (f'<a href="#i{number}">{name}</a>', html.escape(row["about"]), row["state"])
        contents.append(
            "".join(f"<td>{cell}</td>" for cell in (*cells, "yes" if is_shown else "–"))
        )
    heading = "".join(f"<th>{name}</th>" for name in ("item", "about", "state", "below"))
    table = "".join(f"<tr>{cells}</tr>" for cells in contents)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>LitBench: the papers' results</title><style>{STYLE.read_text()}</style></head>"
        "<body><header><h1>The papers' tables and figures</h1>"
        f'<p class="lead">{html.escape(note)}</p></header><main><div class="scroll"><table>'
        f"<tr>{heading}</tr>{table}</table></div>{''.join(parts)}</main></body></html>"
    )


def main() -> None:
    """Make the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument(
        "--from", dest="runs", type=Path, help="folder of your runs; default: invented data"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/paper"), help="folder to write")
    options = parser.parse_args()
    runs = options.runs or options.out.resolve()
    if options.runs is None:
        make_pages(runs)
    with ITEMS.open(encoding="utf-8", newline="") as file:
        rows: list[Mapping[str, str]] = [
            r for r in csv.DictReader(file) if r["state"] != "no result"
        ]
    options.out.mkdir(parents=True, exist_ok=True)
    page = options.out / "paper.html"
    note = (
        INVENTED if options.runs is None else "From the runs' own data, beside published numbers."
    )
    page.write_text(paper_page(rows, runs, note), encoding="utf-8")
    print(f"page: {page.resolve()}")


if __name__ == "__main__":
    main()
