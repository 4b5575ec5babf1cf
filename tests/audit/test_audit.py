"""The audit: it finds what is planted, its numbers are those of the pairs, texts stay texts."""

import json
import math
import random
import re
from collections import Counter
from dataclasses import replace

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from manifests import list_outputs
from pages import ATTACK, Page

from litbench.audit.command import Audit, audit, audit_files, nothing_found
from litbench.audit.cues import Cue
from litbench.audit.findings import audit_pairs, effects, screen
from litbench.data.curation.funnel import Examples
from litbench.data.curation.pairing import breaks_symmetry
from litbench.data.tables import write_table
from litbench.data.text import prompt_key
from litbench.evaluation.report.data_sections import PairsFolder, read_examples, split_statistics
from litbench.metrics.annotators import annotator_agreement, label_ceiling
from litbench.metrics.intervals import jackknife_interval
from litbench.metrics.leaderboard import leaderboard
from litbench.models.baselines import LengthRater
from litbench.raters.interface import judge_pairs
from litbench.runs.errors import DataError
from litbench.runs.outputs import write_sealed

DAY = 86_400
SIDES = ("chosen", "rejected")


@pytest.fixture
def random_pairs(pair_table):
    """Pairs that share stories, prompts in two spellings, ties in length, missing votes."""

    def build(seed=0, rows=200, **changes):
        source = random.Random(seed)
        stories = [
            {
                "words": source.choice([5, 50, 90, 400, 900]) + source.randint(0, 5),
                "score": source.choice([None, -3, 0, *range(10, 60)]),
                "created_utc": source.choice([None, *range(1_400_000_000, 1_600_000_000, DAY)]),
            }
            for _ in range(140)
        ]
        built, seen = [], set()
        while len(built) < rows:
            a, b = sorted(source.sample(range(140), 2))
            if a % 7 != b % 7 or (a, b) in seen:
                continue
            seen.add((a, b))
            sides = source.sample([a, b], 2)
            row = {"prompt_id": f"p{a % 7}", "prompt": source.choice(["[WP] P {}", "p  {}."])}
            row["prompt"] = row["prompt"].format(a % 7)
            row["split"] = "test" if a % 7 < 2 else "train"
            for side, story in zip(("chosen", "rejected"), sides, strict=True):
                row[f"{side}_story_id"] = f"s{story}"
                row[f"{side}_n_words"] = stories[story]["words"]
                # What LengthRater counts in the text itself.
                row[side] = "word " * stories[story]["words"]
                row[f"{side}_score"] = stories[story]["score"]
                row[f"{side}_created_utc"] = stories[story]["created_utc"]
            built.append({**row, **changes})
        return pair_table(built)

    return build


def splits_of(pairs):
    return {split.name: split for split in split_statistics(pairs)}


@pytest.fixture
def render(tmp_path):
    """The page of pairs, and of what else a run left."""

    def build(pairs, before=None, manifest=None, examples="", notes=(), title="A title"):
        files = {"pairs": tmp_path / "pairs.parquet", "examples": tmp_path / "examples.jsonl"}
        write_table(pairs, files["pairs"])
        files["examples"].write_text(examples, encoding="utf-8")
        if before is not None:
            files["pairs_before_symmetry"] = tmp_path / "before.parquet"
            write_table(before, files["pairs_before_symmetry"])
        folder = PairsFolder(files, manifest, True, list(notes))
        # Pages link to those in sibling folders, so the page has a folder of its own.
        page = tmp_path / "out/audit.html"
        page.parent.mkdir(exist_ok=True)
        audit_files(folder, title, page)["audit.html"](page)
        return page.read_text(encoding="utf-8")

    return build


def funnel_manifest(**counts):
    steps = [
        ("read", "stories read", "stories", 90, 0),
        ("min_words", "at least 50 words", "stories", 60, 30),
        ("within_prompt", "pairs within a prompt", "pairs", 500, 0),
        ("symmetry_buckets", "mirrored", "pairs", 200, 300),
    ]
    names = ("step", "about", "unit", "kept", "removed")
    funnel = [dict(zip(names, step, strict=True)) for step in steps]
    return {"program": "make_pairs.py", "config": {}, "counts": {"funnel": funnel, **counts}}


def cells_of(page, row):
    """The cells of the table row that begins with a text."""
    for line in re.findall(r"<tr.*?</tr>", page, re.DOTALL):
        cells = [Page(cell).text.strip() for cell in re.findall(r"<td.*?</td>", line, re.DOTALL)]
        if cells and cells[0] == row:
            return cells
    raise AssertionError(f"no row {row}")


# What is counted ------------------------------------------------------------------------------


def test_every_count_is_the_one_of_a_plain_loop(random_pairs):
    pairs = random_pairs()
    splits = splits_of(pairs)
    rows = pairs.to_pylist()
    assert list(splits) == ["all", "train", "test"], "the largest first"
    for name, split in splits.items():
        here = [row for row in rows if name in (row["split"], "all")]
        by_side = {
            side: {
                row[f"{side}_story_id"]: [
                    row[f"{side}_{name}"] for name in ("n_words", "score", "created_utc")
                ]
                for row in here
            }
            for side in SIDES
        }
        assert len(split.difference) == len(here)
        every = {**by_side["chosen"], **by_side["rejected"]}
        assert split.words.tolist() == sorted(words for words, *_ in every.values())
        for side in SIDES:
            for index, key in enumerate(("words", "score", "day")):
                values = [story[index] for story in by_side[side].values()]
                values = [value for value in values if value is not None]
                if key == "day":
                    values = [value // DAY for value in values]
                assert split.stories[side][key].tolist() == sorted(values), key
        prompts = Counter(prompt_key(row["prompt"]) for row in here)
        assert split.pairs_per_prompt.tolist() == sorted(prompts.values())
        assert len(prompts) < len({row["prompt"] for row in here})
        voted = [(row["chosen_score"], row["rejected_score"]) for row in here]
        voted = [pair for pair in voted if None not in pair]
        leads = [100 * (a - b) / a for a, b in voted if a > 0]
        assert split.gap.tolist() == sorted(
            int(np.floor(min(max(lead, -100), 100))) for lead in leads
        )


def test_the_longer_wins_as_often_as_on_the_leaderboard(random_pairs):
    pairs = random_pairs(4, rows=600)
    for name, split in splits_of(pairs).items():
        keep = [name in (wanted_split, "all") for wanted_split in pairs["split"].to_pylist()]
        part = pairs.filter(pa.array(keep))
        verdicts = judge_pairs(LengthRater("longer", "longer", 1), part)
        wanted = leaderboard(verdicts, part, "longer")[0].agreement
        result = split.longer_wins
        assert (result.n, result.clusters) == (wanted.n, wanted.clusters)
        for key in ("mean", "low", "high", "effective_clusters"):
            assert getattr(result, key) == pytest.approx(getattr(wanted, key), rel=1e-12)
        assert split.counts["equal"], "ties are part of the test"
        assert sum(split.counts.values()) == part.num_rows


def test_pruning_to_symmetry_leaves_mirrored_buckets(random_pairs):
    before = random_pairs(5, rows=400)
    keys = ["pair_id", "split", "chosen_n_words", "rejected_n_words"]
    marked = breaks_symmetry(ibis.memtable(before.select(keys)), 10, 0).to_pyarrow()
    pair_ids = set(marked.filter(pa.compute.invert(marked["removed"]))["pair_id"].to_pylist())
    after = before.filter(pa.array([name in pair_ids for name in before["pair_id"].to_pylist()]))
    splits, wider = splits_of(after), splits_of(before)
    for split in ("train", "test"):
        widest = int(np.abs(wider[split].difference).max())
        wide = wider[split].buckets(widest, 10)
        narrow = splits[split].buckets(widest, 10)
        assert (narrow == narrow[::-1]).all()
        assert (narrow == np.minimum(wide, wide[::-1])).all(), "these are the buckets it used"
        assert (wide != wide[::-1]).any()


# What is shown --------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_numbers_of_the_page(pair_table, render):
    def row(split, prompt, chosen, rejected, score):
        return {
            "split": split,
            "prompt_id": f"p{prompt}",
            "chosen_n_words": chosen,
            "rejected_n_words": rejected,
            "chosen_score": score,
            "rejected_score": 10,
            "chosen_created_utc": 1_600_000_000,
            "rejected_created_utc": 1_500_000_000,
        }

    # Before: 5 of 8 chosen are the longer, 1 is equal; after: 3 of 6.
    before = pair_table(
        [
            row("train", 1, 300, 100, 20),
            row("train", 1, 100, 300, 40),
            row("train", 2, 320, 100, 14),
            row("train", 2, 200, 100, 20),
            row("train", 3, 100, 200, 20),
            row("train", 3, 150, 150, 20),
            row("test", 4, 90, 80, 50),
            row("test", 5, 70, 60, 30),
        ]
    )
    after = before.take(pa.array([0, 1, 3, 4, 5, 6]))
    page = render(before=before, pairs=after, manifest={"counts": {"lengths": {"buckets": 4}}})
    assert cells_of(page, "pairs")[1:] == ["5", "1"]
    assert cells_of(page, "stories")[1:] == ["10", "2"]
    # (300 + 100 + 200 + 100 + 150 + 100 + 300 + 100 + 200 + 150) / 10 and (90 + 80) / 2
    assert cells_of(page, "mean words")[1:3] == ["170", "85"]
    assert cells_of(page, "posted")[1:3] == ["2017-07 to 2020-09"] * 2
    assert cells_of(page, "score of chosen, min / median / max")[1] == "20 / 20 / 40"
    assert cells_of(page, "prompts")[1:3] == ["3 (3 effective)", "1 (1 effective)"]
    assert cells_of(page, "score gap in % of chosen score, min / median / max")[1:3] == [
        "50 / 50 / 75",
        "80 / 80 / 80",
    ]
    rows = re.findall(r"<tr><td>(train|test|all)</td>(.*?)</tr>", page, re.DOTALL)
    table = [
        (split, *(Page(cell).text.strip() for cell in re.findall(r"<td>(.*?)</td>", rest, re.S)))
        for split, rest in rows
    ]
    shown = {(row[0], row[1]): row for row in table}
    # share of all pairs; longer, equal, shorter, pairs
    assert shown["train", "before"][4:9] == ("50.0 %", "3", "1", "2", "6")
    assert shown["train", "after"][3:9] == ("0.500fixed by pruning", "40.0 %", "2", "1", "2", "5")
    assert shown["test", "before"][3].startswith("1.000 [")
    assert shown["test", "after"][3] == "1.000 (one prompt: no interval)"
    assert shown["all", "before"][4:9] == ("62.5 %", "5", "1", "2", "8")
    text = Page(page).text
    assert "6 pairs under 4 prompts." in text
    assert "too small to find anything but a leak" in text


@pytest.mark.usefixtures("undrawn")
def test_the_funnel_and_examples_are_shown(random_pairs, render, tmp_path):
    manifest = funnel_manifest(digest="0123abc")
    examples = Examples()
    for index in range(5):
        examples.add("min_words", f"short{index}", f"Too short, number {index}", f"{index} words")
    examples.write(tmp_path / "examples.jsonl")
    rows = (tmp_path / "examples.jsonl").read_text(encoding="utf-8")
    page = render(random_pairs(), manifest=manifest, examples=rows)
    assert cells_of(page, "at least 50 words")[1:3] == ["60 stories", "30"]
    assert cells_of(page, "mirrored")[1:3] == ["200 pairs", "300"]
    places = [page.index(f'id="{name}"') for name in ("findings", "funnel", "cues")]
    assert places == sorted(places)
    text = Page(page).text
    assert "0123abc" in text
    assert all(f"Too short, number {index}" in text for index in range(5))
    bars = re.findall(r'class="bar (\w+)" style="width:([\d.]+)%"', page)
    assert [(unit, round(float(width), 1)) for unit, width in bars] == [
        ("stories", 100.0),
        ("stories", 66.7),
        ("pairs", 100.0),
        ("pairs", 40.0),
    ]


@pytest.mark.usefixtures("undrawn")
def test_missing_data_are_noted(random_pairs, render):
    names = [f"{side}_{name}" for side in SIDES for name in ("score", "created_utc")]
    page = render(random_pairs(**dict.fromkeys(names)))
    text = Page(page).text
    for line in (
        "before length symmetry are unknown",
        "came without one",
    ):
        assert line in text, line
    for title in ("Dates: ", "Votes: ", "over time", "From stories to pairs", "Chinese"):
        assert title not in text, title
    assert "Words: train" in text
    assert "fixed by pruning" not in text
    assert cells_of(page, "score of chosen, min / median / max")[1] == "–"
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", text)


def test_languages_are_shown_where_there_are_several(pair_table, render):
    chinese, english = "门每年只开一次。" * 5, "The door opens once a year."
    rows = [{"chosen": chinese, "rejected": chinese}, {"chosen": english, "rejected": english}]
    for shown, is_mixed in ((rows, True), (rows[:1], False), (rows[1:], False)):
        assert ("Chinese" in Page(render(pair_table(shown))).text) is is_mixed


def test_one_pair_alone_makes_a_page(pair_table, render):
    same = dict.fromkeys(["chosen_n_words", "rejected_n_words"], 3)
    page = render(pair_table([{**same, "chosen_score": 3, "rejected_score": 3}]))
    assert "1 pairs under 1 prompts" in page
    assert "0.500 (one prompt: no interval)" in page


def test_absurd_values_do_not_break_the_page(pair_table, render):
    rows = [
        {
            "chosen_score": 2**62,
            "rejected_score": -(2**62),
            "chosen_created_utc": -(2**62),
            "rejected_created_utc": 2**62,
            "chosen_n_words": 0,
            "rejected_n_words": 10**9,
        },
        {"chosen_score": 5, "rejected_score": 3, "chosen_created_utc": 9},
    ]
    assert len(render(pair_table(rows))) < 400_000


# Hostile texts --------------------------------------------------------------------------------


def test_page_has_no_scripts_and_escapes_texts(random_pairs, render):
    rows = [
        {"step": "min_words", "name": ATTACK, "text": ATTACK, "about": ATTACK},
        {"step": f"other {ATTACK}", "name": "a", "text": "\x00\u202ebackwards\x1b", "about": ""},
        {"step": "min_words", "name": "half \ud800", "text": "half \udfff", "about": "</style>"},
        {"step": "huge", "name": "b", "text": "<b>" * 400_000, "about": "z\u0335" * 9_000},
    ]
    manifest = funnel_manifest(
        stories={"rejected_rows": {ATTACK: 3}, ATTACK: ATTACK},
        digest=ATTACK,
        note=ATTACK,
    )
    manifest |= {"program": ATTACK}
    manifest["counts"]["funnel"][1]["about"] = ATTACK
    pairs = random_pairs()
    names = [f"$x_{ATTACK}$ 中文 {name}" for name in pairs["split"].to_pylist()]
    index = pairs.column_names.index("split")
    source = render(
        pairs.set_column(index, "split", pa.array(names, pa.large_string())),
        title=ATTACK,
        manifest=manifest,
        examples="".join(json.dumps(row) + "\n" for row in rows),
        notes=[ATTACK],
    )
    source.encode("utf-8")
    page = Page(source)
    page.check_inert()
    assert "b>" not in page.tags
    assert page.text.count(ATTACK) > 20, "each is there, as text"
    assert source.count("</style>") == 1 + source.count("<style type"), "none closes the style"
    assert "7 * 7" in page.text
    assert len(source) < 400_000, "a huge example is cut"
    assert "<b>" * 100 in page.text


def test_a_row_that_is_no_example_is_named(tmp_path):
    path = tmp_path / "examples.jsonl"
    good = json.dumps({"step": "a", "name": "b", "text": "line\u2028end", "about": "d"})
    for bad in ("{", '{"step": 1}', "[]", "7", "[" * 100_000):
        path.write_text(f"{good}\n{bad}\n", encoding="utf-8")
        with pytest.raises(DataError, match=r"examples\.jsonl: row 2"):
            read_examples(path)
    path.write_text(f"{good}\n" * 9, encoding="utf-8")
    assert len(read_examples(path)["a"]) == 5


# The command ----------------------------------------------------------------------------------


@pytest.fixture
def artifact(random_pairs, tmp_path):
    """A folder of pairs, with what the run that made them left."""
    # A star, and a folder that a pattern would find as well.
    pairs = tmp_path / "run *" / "pairs"
    (tmp_path / "run 2" / "pairs").mkdir(parents=True)
    for name in ("pairs.parquet", "pairs_before_symmetry.parquet"):
        write_table(random_pairs(seed=9), tmp_path / "run 2" / "pairs" / name)
    pairs.mkdir(parents=True)
    write_table(random_pairs(), pairs / "pairs.parquet")
    write_table(random_pairs(rows=500), pairs / "pairs_before_symmetry.parquet")
    write_sealed(funnel_manifest(), pairs / "manifest.json")
    examples = Examples()
    examples.add("min_words", "secret id", "SECRET of min_words", "secret facts")
    examples.write(pairs / "examples.jsonl")
    list_outputs(pairs)
    return pairs


@pytest.mark.usefixtures("undrawn")
def test_the_same_pairs_in_another_order_have_the_same_audit(artifact, tmp_path, capsys):
    audit(Audit(pairs=str(artifact), out=tmp_path / "a"))
    text = Page((tmp_path / "a" / "audit.html").read_text(encoding="utf-8")).text
    assert "SECRET of min_words" in text
    table = pq.read_table(artifact / "pairs.parquet")
    order = np.random.default_rng(0).permutation(table.num_rows)
    # In other row groups, too.
    pq.write_table(table.take(pa.array(order)), artifact / "pairs.parquet", row_group_size=7)
    list_outputs(artifact)
    audit(Audit(pairs=str(artifact), out=tmp_path / "b"))
    results = [json.loads((tmp_path / name / "audit.json").read_text()) for name in ("a", "b")]
    assert results[0]["findings"] == results[1]["findings"]
    assert results[0]["set"] == results[1]["set"]
    capsys.readouterr()
    audit(Audit(pairs=str(artifact), out=tmp_path / "b"))
    assert "unchanged" in capsys.readouterr().out


@pytest.mark.usefixtures("undrawn")
def test_a_page_to_share_holds_no_story(artifact, tmp_path):
    audit(Audit(pairs=str(artifact), out=tmp_path / "out", examples=False))
    page = (tmp_path / "out" / "audit.html").read_text(encoding="utf-8")
    assert "secret" not in page.lower()
    assert "Examples were left out" in page
    assert "word word" not in page


@pytest.mark.usefixtures("undrawn")
def test_files_of_another_run_are_refused_or_left_out(artifact, tmp_path):
    config = Audit(pairs=str(artifact), out=tmp_path / "out")
    with (artifact / "examples.jsonl").open("a", encoding="utf-8") as file:
        file.write("\n")
    (artifact / "pairs_before_symmetry.parquet").write_bytes(b"of another run")
    audit(config)
    text = Page((tmp_path / "out" / "audit.html").read_text(encoding="utf-8")).text
    assert "SECRET of min_words" not in text
    for name in ("examples.jsonl", "pairs_before_symmetry.parquet"):
        assert f"{artifact / name} is left out: the run that wrote these pairs" in text
    table = pq.read_table(artifact / "pairs.parquet")
    # As many pairs as the manifest tells of, and still others.
    write_table(table.take(pa.array([0] * table.num_rows)), artifact / "pairs.parquet")
    with pytest.raises(DataError, match=r"pairs.parquet does not match"):
        audit(config)


# What is planted ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulation(load_program):
    return load_program("benchmarks/audit_simulation.py")


@pytest.fixture(scope="module")
def planted(simulation):
    def build(seed=0, pairs=800, **plants):
        return simulation.planted_set(plants, pairs, np.random.default_rng(seed), words=30)

    return build


def kinds_of(audited):
    return [finding.kind for finding in audited.findings]


@pytest.mark.parametrize(
    ("plant", "size", "kinds"),
    [
        ("longer", 0.75, ["longer"]),
        ("later", 0.7, ["later"]),
        ("notes", 0.8, ["notes"]),
        ("quotes", 0.8, ["quotes"]),
        ("structure", 0.7, ["structure"]),
        ("prompt", 0.7, ["prompt"]),
        ("position", 0.7, ["id"]),
        ("style", 0.7, ["name:model"]),
        ("duplicates", 0.05, ["copies", "leakage"]),
        ("merged_ids", 0.05, ["prompt_ids"]),
        ("label_noise", 0.7, ["label_noise"]),
    ],
)
def test_a_plant_is_found_and_nothing_else(planted, plant, size, kinds):
    table, annotators = planted(**{plant: size})
    audited = audit_pairs(table, annotators, per_story=3)
    assert sorted(kinds_of(audited)) == kinds
    (first, *_) = audited.findings
    assert first.sentence.endswith(".")
    assert first.advice


@pytest.mark.parametrize("sizes", [[40] * 8, [150, 70, 40, 25, 15, 10, 6, 4]])
def test_the_p_value_falls_as_a_confound_grows(planted, sizes):
    p_values = []
    for size in (0.8, 0.95, 0.99, 1.0):
        table, _ = planted(pairs=np.array(sizes), position=size)
        audited = audit_pairs(table)
        (result,) = [result for result in audited.results if result.cue.name == "id"]
        p_values.append(result.p_holm)
        assert kinds_of(audited) == ["id"] * result.is_stated
    assert p_values == sorted(p_values, reverse=True)
    assert p_values[-1] < 1e-3


def test_a_story_that_wins_many_pairs_is_one_observation(planted):
    table, _ = planted(pairs=np.array([40] * 5), style=1.0)
    (style,) = [
        result.cue for result in audit_pairs(table).results if result.cue.name == "name:model"
    ]
    group = np.repeat(np.arange(5), 40)
    sign = np.ones(200)
    distinct = np.arange(400).reshape(2, 200)
    winners = np.stack([group, distinct[1]])
    cue = replace(style, sign=sign, amount=sign)
    assert [screen([cue], group, [], ids)[0].is_stated for ids in (distinct, winners)] == [
        True,
        False,
    ]


def test_a_rule_of_the_pairing_does_not_hide_other_cues(planted):
    """Pairs that were copied without their manifest: the chosen story is always the later."""
    table, _ = planted(seed=2, notes=0.8, style=0.7)
    alone = kinds_of(audit_pairs(table))
    assert set(alone) == {"notes", "name:model"}
    times = [table[f"{side}_created_utc"].to_numpy() for side in SIDES]
    for side, times_of_side in zip(SIDES, (np.maximum(*times), np.minimum(*times)), strict=True):
        index = table.column_names.index(f"{side}_created_utc")
        table = table.set_column(index, f"{side}_created_utc", pa.array(times_of_side))
    audited = audit_pairs(table)
    assert kinds_of(audited) == ["later", *alone]
    held_fixed = {result.cue.name: result.held_fixed.mean for result in audited.results}
    assert held_fixed["notes"] > 0.2


@pytest.mark.parametrize("kind", [pa.int32(), pa.float64(), pa.string()])
def test_a_source_coded_as_a_number_is_a_category(planted, kind):
    table, _ = planted()
    random = np.random.default_rng(4)
    sources = random.integers(4, size=(2, table.num_rows))
    # Source 1 wins nearly always, so that the order of the numbers decides little.
    wins = np.where(random.random(table.num_rows) < 0.9, sources == 1, sources[::-1] == 1)
    swap = wins[1] & ~wins[0]
    sources[:, swap] = sources[::-1, swap]
    for side, values in zip(SIDES, sources, strict=True):
        column = pa.array(values).cast(kind)
        table = table.append_column(f"{side}_source", column)
    assert kinds_of(audit_pairs(table)) == ["name:source"]


def test_without_a_plant_the_audit_says_what_it_could_have_found(planted, tmp_path):
    audited = audit_pairs(planted()[0])
    assert not audited.findings
    # The cue that could be found is found: the share is that of a set of this size.
    assert 0.55 < audited.detectable < 0.65
    assert f"{100 * audited.detectable:.1f} %" in nothing_found(audited)
    write_table(planted()[0], tmp_path / "pairs.parquet")
    audit(Audit(pairs=str(tmp_path / "pairs.parquet"), out=tmp_path / "out"))
    result = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert result["findings"] == []
    assert result["nothing_found"] == nothing_found(audited)


def test_an_effect_is_the_difference_of_shares_and_the_fixed_cue_explains_the_other():
    random = np.random.default_rng(3)
    group = np.arange(4_000) // 4
    real = random.choice([-1.0, 1.0], 4_000, p=[0.3, 0.7])
    # A cue that follows the real one, and has no effect of its own.
    shadow = np.where(random.random(4_000) < 0.6, real, random.choice([-1.0, 1.0], 4_000))
    alone = [effects(column[:, None], group)[0].mean for column in (real, shadow)]
    assert alone == pytest.approx([real.mean(), shadow.mean()])
    assert alone[1] > 0.15
    together = effects(np.column_stack([real, shadow]), group)
    assert together[0].mean == pytest.approx(real.mean(), abs=0.03)
    assert abs(together[1].mean) < 3 * together[1].error < 0.1
    # Leaving out each prompt in turn, by hand.
    columns = np.column_stack([real, shadow])
    left_out = [np.linalg.lstsq(columns[group != g], np.ones(3_996))[0] for g in range(1_000)]
    error = np.sqrt(999 / 1_000 * np.square(left_out - np.array([e.mean for e in together])).sum(0))
    assert [effect.error for effect in together] == pytest.approx(error.tolist(), rel=1e-4)


def test_of_twenty_cues_that_say_nothing_one_is_stated_in_few_sets():
    random = np.random.default_rng(7)
    group = np.arange(300) // 3
    alarms = 0
    for _ in range(40):
        signs = random.choice([-1.0, 1.0], (20, 300))
        cues = [Cue.of(f"cue {k}", sign, ("more", "less", "do")) for k, sign in enumerate(signs)]
        alarms += any(
            result.is_stated for result in screen(cues, group, [], np.arange(600).reshape(2, 300))
        )
    # 2 are expected; without correction, 26.
    assert alarms < 7


def test_the_ceiling_is_that_of_simulated_annotators():
    random = np.random.default_rng(5)
    right = random.random((40_000, 3)) < 0.8
    two = (right[:, 0] == right[:, 1]).astype(float)
    interval = jackknife_interval(two, np.arange(40_000))
    assert label_ceiling(interval, 1).mean == pytest.approx(0.8, abs=0.01)
    assert label_ceiling(interval, 3).mean == pytest.approx((right.sum(1) > 1).mean(), abs=0.01)


@pytest.mark.parametrize("people", [3, 5])
def test_pairs_that_differ_in_difficulty_have_a_lower_ceiling(people):
    random = np.random.default_rng(6)
    q = np.clip(random.normal(0.8, 0.2, 8_000), 0, 1)
    chosen = random.random((8_000, people)) < q[:, None]
    ratings = {
        str(k): {
            f"{side}{row}": float(winner == side)
            for row, winner in enumerate(column)
            for side in (0, 1)
        }
        for k, column in enumerate(chosen.T)
    }
    first, second = ([f"{side}{row}" for row in range(8_000)] for side in (1, 0))
    result = annotator_agreement(ratings, first, second, np.arange(8_000), {})
    ceiling = label_ceiling(result.two_decided, people, result.difficulty_spread)
    crowd = ((chosen.sum(1) > people / 2) == (q > 0.5)).mean()
    if people == 5:
        assert ceiling.mean == pytest.approx(crowd, abs=0.015)
    else:
        # The majority of three says nothing about the spread.
        assert math.isnan(result.difficulty_spread)
        assert ceiling.mean > crowd + 0.05


def test_a_rater_that_counts_words_is_found_out(planted, tmp_path):
    """The longer story under another name: nothing of its agreement needs reading."""
    write_table(planted(longer=0.75)[0], tmp_path / "pairs.parquet")
    pairs, rater = str(tmp_path / "pairs.parquet"), {"kind": "longer"}
    audit(Audit(pairs=pairs, out=tmp_path / "out", rater=rater, probe_prompts=5))
    result = json.loads((tmp_path / "out" / "audit.json").read_text())
    kinds = {finding["kind"] for finding in result["findings"]}
    assert {"longer", "rater_length", "rater_mimic"} <= kinds
    assert result["rater"]["prefers_longer"]["mean"] > 0.98
    assert result["rater"]["reproduced"] == pytest.approx(1, abs=0.1)
    assert result["rater"]["groups"]["split"].keys() == {"train", "test"}
    text = Page((tmp_path / "out" / "audit.html").read_text(encoding="utf-8")).text
    assert "What fools it" in text


@pytest.mark.long
def test_detectable_plants_are_found_and_hardly_anything_else(simulation, tmp_path):
    """The share of found plants, and of sets with a false alarm, over 30 sets."""
    simulation.main(simulation.Config(tmp_path / "out", sets=30, words=30.0))
    rows = pa_csv.read_csv(tmp_path / "out" / "sets.csv").to_pylist()
    plants = [row for row in rows if row["plant"] != "false alarms"]
    detectable = [row["found"] for row in plants if row["power"] > 0.8]
    assert len(detectable) > 10
    assert np.mean(detectable) > 0.9
    # At most 5 % are wanted; 5 of 30 or more would happen in 1 of 60 runs.
    assert sum(row["found"] for row in rows if row["plant"] == "false alarms") < 5
