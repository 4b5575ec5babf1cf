"""Every table and figure of the papers on one page, from invented data or from your runs.

    python benchmarks/paper.py                # invented data, shape only: make paper
    python benchmarks/paper.py --from runs    # the folders that the configs of configs/paper write

`docs/results/papers.csv` says for each item in which page of a run it is. Without --from the pages
are made first: by the commands, from the embedded sample and from writers and judges of a server on
loopback, whose answers follow rules. The page has copies of the sections, not other results. Its
column `here` has what the repository's configs compute from published data.
"""

import argparse
import contextlib
import csv
import html
import json
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
import yaml

from litbench.data.records import GRADES, RATINGS
from litbench.data.tables import read_table, write_table
from litbench.evaluation.report.document import Cell, Page, Section, Table, render, written_now
from litbench.raters.templates.rubric import load_rubric
from litbench.runs.config import load_config
from litbench.runs.outputs import Artifact, read_manifest
from litbench.study.pairs import PairStudy
from litbench.study.simulation import SimulatedReaders
from litbench.writers.compare import WritersConfig, compare_writers
from litbench.writers.import_turns import TurnImport, import_turns
from litbench.writers.run import Run, RunCommand, command, run
from litbench.writers.webnovel.placement import ReferenceDistribution

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/writers")]
ITEMS = ROOT / "docs/results/papers.csv"
INVENTED, YOURS = "invented data, shape only", "your runs"
MISSING = "No page has it here"
# Instructions that the configs of Table 7 draw.
HASHED = ("i4", "i10", "i16", "i31", "i50", "i121")
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
    quick = ("--embedding.max_tokens", 64, "--embedding.long_stories", "cut", "--folds", 2)
    units = ("--pairs", pairs, "--autoencoder.epochs", 10, "--out", out / "litbench_table2")
    litbench("preferences", *units, *quick)
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
    run_howtobench(out)


def run_howtobench(out: Path) -> None:
    """Run the presets of HoWToBench's config that need published texts or people, on invented ones.

    A person's ratings are a judge's, so that judge agrees with people.
    """
    chinese, fake = map(import_module, ("chinese_writers", "fake_openai"))
    config, work = ROOT / "configs/paper/howtobench_table4.yaml", out / "inputs/howtobench"
    work.mkdir(parents=True, exist_ok=True)
    tasks = zip(HASHED, cycle(("guide", "open", "completion")))
    rows = [{"instruction_id": name, "task": task} for name, task in tasks]
    chinese.write_instructions(work / "instructions.parquet", rows)
    changes = (ROOT / "configs/data/howtobench_changes.yaml").read_text(encoding="utf-8")
    models = re.findall(r"'([^']+-[^']+)'", yaml.safe_load(changes)["selects"][0]["where"])
    texts = [
        {"instruction_id": name, "model": model, "text": "船到了渡口。\n" * (4 + (i * j + j) % 9)}
        for i, name in enumerate(HASHED)
        for j, model in enumerate(models)
    ]
    write_table(pa.Table.from_pylist(texts), work / "outputs.parquet")
    with contextlib.suppress(FileExistsError):
        (work / "runs").symlink_to(out)
    os.environ |= {"HOWTOBENCH": str(work), "HOWTOBENCH_EN": str(work)}
    answers = {name: as_model(chinese.answer, name) for name in (*WRITERS, *JUDGES)}
    with contextlib.chdir(work), fake.FakeOpenAI(others=answers, question_of=fake.messages_of):
        called = {name: fake.FakeOpenAI.model_called(name) for name in answers}
        for name in ("turns", "changes"):
            path = ROOT / f"configs/data/howtobench_{name}.yaml"
            import_turns(load_config(TurnImport, [f"--config={path}"]))
        for preset in yaml.safe_load(config.read_text(encoding="utf-8"))["presets"]:
            if preset in ("recorded", "inconsistency"):
                continue
            planned = load_config(RunCommand, [f"--config={config}", f"--preset={preset}"])
            asked = WRITERS if preset == "table_8" else planned.writers
            model = called[WRITERS[0]]
            planned.writers = {name: called.get(name, model) for name in asked}
            planned.judges = {n: called[n] for n in JUDGES[:2]} if planned.judges else {}
            command(planned)
    for number in (3, 8, 11, 12):
        folder = out / f"howtobench_table{number}"
        runs = [folder, as_people(folder, work / f"people{number}")]
        compare_writers(WritersConfig(runs, folder / "page", by=["task"]))
    changed = out / "howtobench_table7"
    compare_writers(WritersConfig(changed, changed / "page", reference="initial"))


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
            {"by": ["genre", "task", "cluster", "judge"]},
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
        if row["printed"]:
            about.append(f"Printed: {row['printed']}. From published data here: {row['here']}.")
        about += [f"Not exactly the paper's: {row['why not exactly']}.", MISSING * (not is_shown)]
        lines = "".join(f'<p class="soft">{html.escape(line)}</p>' for line in about if line)
        parts.append(f'<h2 id="i{number}">{name}</h2>{lines}{shown}')
        here = row["here"] or (note if is_shown else "–")
        link = Cell(f"{row['paper']}, {row['item']}", address=f"#i{number}")
        texts = (Cell(text, is_text=True) for text in (row["about"], row["printed"] or "–", here))
        contents.append([link, row["state"], *texts])
    table = Table(["item", "state", "about", "printed by the paper", "here"], contents)
    sections_above = [Section("Items", table=table)]
    lead = f"Below: {note}. The column here has results from published data."
    page_above = Page("The papers' tables and figures", lead, written_now(), sections_above)
    text = render(page_above, {"papers.csv": json.dumps(rows, ensure_ascii=False, indent=1)})
    return text.replace('<h2 id="manifest">', "".join(parts) + '<h2 id="manifest">', 1)


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
    note = YOURS if options.runs else INVENTED
    page.write_text(paper_page(rows, runs, note), encoding="utf-8")
    print(f"page: {page.resolve()}")


if __name__ == "__main__":
    main()
