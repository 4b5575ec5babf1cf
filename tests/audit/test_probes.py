"""Probes: what each change does to a story, and what raters of known taste make of it."""

import itertools
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from chinese_writers import rate_by_length
from fake_openai import FakeOpenAI, longer_story, shown_story
from hypothesis import given, settings
from hypothesis import strategies as st

from litbench.audit.probes import (
    PROBES,
    Original,
    Subject,
    change,
    check_strengths,
    draw_originals,
    join_sentences,
    probe_pairs,
    select_probes,
    split_sentences,
)
from litbench.audit.probing import probe_results, probes_text
from litbench.data.records import PAIRS, VERDICTS
from litbench.data.tables import write_table
from litbench.data.text import count_words
from litbench.models.baselines import LengthRater, RandomRater
from litbench.raters.interface import Judgement, Rater, ScoreRater, judge_pairs
from litbench.runs.config import load_config
from litbench.runs.errors import ConfigError, DataError
from litbench.testing import rename_sides

STRENGTHS = (0.25, 0.5, 1.0)
ENGLISH = (
    'The old house was quiet. "Who is there?" Ada whispered, and nobody answered.\n\n'
    "She began to climb the stairs; perhaps the cat had found a mouse. Nearly every step "
    "creaked... Dr. Moss would have laughed at her!\n\n"
    'At the top there was a large door. She opened it quickly. "It\'s only me," said the '
    "lamplighter. He smiled.\n\n"
    "They drank tea until morning, and the strange light over the road vanished."
)
CHINESE = (
    "老房子很安静。“谁在那儿？”她小声问，但是没有人回答。\n\n"
    "她慢慢地走上楼，也许是猫找到了老鼠。每一级台阶都在响。\n\n"
    "楼上有一扇门，她突然推开了它！“是我。”点灯人高兴地说。\n\n"
    "他们喝茶喝到天亮，路上那道奇怪的光已经不见了。"
)
OTHER = (
    "The kettle sang all winter. Nobody in the village knew why. In spring they buried it under "
    "the pear tree. Every year since then the pears taste of smoke."
)


def originals(texts=(ENGLISH, OTHER, CHINESE, CHINESE[::-1])):
    return [
        Original(f"s{index}", f"p{index}", f"[WP] Prompt number {index}", text)
        for index, text in enumerate(texts)
    ]


def subject(text, seed=0, other=OTHER):
    return Subject(text, seed, lambda _: other)


def changed(name, text, strength, seed=0):
    result = change(PROBES[name], subject(text, seed), strength)
    assert result is not None
    return result


def test_dropped_paragraphs_are_whole_and_at_most_three():
    for text, separator in ((ENGLISH + "\n\n" + OTHER, "\n\n"), (OTHER, ". ")):
        parts = [part.rstrip(".") for part in text.split(separator)]
        dropped = []
        for strength in STRENGTHS:
            left = [
                part.rstrip(".")
                for part in changed("drop_paragraphs", text, strength).split(separator)
            ]
            assert [part for part in parts if part in left] == left
            dropped.append(set(parts) - set(left))
        assert [len(item) for item in dropped] == [1, 2, 3]
        assert dropped[0] < dropped[1] < dropped[2]
    assert change(PROBES["drop_paragraphs"], subject("One sentence only."), 1.0) is None


def test_repeated_paragraphs_stand_beside_their_originals():
    # Tree-of-Writing copies at most three paragraphs to other places; ours stay in place, and at
    # strength 1 all are repeated.
    paragraphs = CHINESE.split("\n\n")
    assert changed("repetition", CHINESE, 1.0).split("\n\n") == [
        paragraph for paragraph in paragraphs for _ in range(2)
    ]
    assert len(changed("repetition", CHINESE, 0.25).split("\n\n")) in (5, 6)


def prose(invented, seed, words):
    """Invented words as sentences that begin with a capital and end, on every line."""
    # A single capital before a stop would be taken for initials.
    text = re.sub(r"\ba\b", "one", invented(random.Random(seed), words).strip().rstrip(".!"))
    text = re.sub(r"(?<=\w)\n", ".\n", text)
    text = re.sub(r"(^|[.!]\s+|\n)(\w)", lambda match: match[1] + match[2].upper(), text)
    return f"{text}."


def words_of(texts):
    return count_words(pa.array(texts, pa.large_string())).to_pylist()


def sentences(text):
    return [sentence.text.strip() for sentence in split_sentences(text)]


# What a probe does ---------------------------------------------------------------------------


@given(st.text(alphabet=st.sampled_from('ab Z.!?…"”»)\n\r\t 。！？」他1\u2028'), max_size=60))
def test_sentences_join_to_their_text(text):
    assert join_sentences(split_sentences(text)) == (text if text.strip() else "")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Dr. Moss and J. Hill met. They left.", ["Dr. Moss and J. Hill met.", "They left."]),
        ('"Wait." She did... not. “So?” He', ['"Wait."', "She did... not.", "“So?”", "He"]),
        ("It cost 3.50 a day\nA title\n\nEnd", ["It cost 3.50 a day", "A title", "End"]),
        ("他说：“走吧。”她走了！真的吗？", ["他说：“走吧。”", "她走了！", "真的吗？"]),
        ("  \n ", []),
    ],
)
def test_sentences_end_where_readers_end_them(text, parts):
    assert sentences(text) == parts


@pytest.mark.parametrize(
    "text",
    ["a" + "." * 100_000 + "b", "a" + " " * 200_000 + "b", "A. " * 40_000],
    ids=["stops", "blanks", "capitals"],
)
def test_sentence_splitting_is_linear_in_time(text):
    started = time.process_time()
    assert join_sentences(split_sentences(text)) == text
    # From every letter to the last one it would be a minute and more.
    assert time.process_time() - started < 20


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["en", "zh"])
def test_changes_depend_only_on_the_seed(name, text):
    for strength in STRENGTHS:
        first = changed(name, text, strength)
        assert first != text
        assert first == changed(name, text, strength)
    drawn = {changed(name, text, 0.5, seed) for seed in range(8)}
    # Endings and stories of one other prompt leave nothing to draw.
    assert len(drawn) > 1 or name in {"cut_ending", "other_story"}


def shared_start(text, other):
    same = (first == two for first, two in zip(text, other, strict=False))
    return next((k for k, is_same in enumerate(same) if not is_same), min(len(text), len(other)))


def edit_size(name, text, other):
    """How much of a text a probe has changed, in the probe's own unit."""
    if name in ("cut_ending", "drop_paragraphs"):
        return len(text) - len(other)
    if name == "other_story":
        return -shared_start(text, other)
    if name == "shuffle":
        pairs = zip(sentences(text), sentences(other), strict=True)
        return sum(first != two for first, two in pairs)
    return len(other) - len(text)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), words=st.integers(20, 400), name=st.sampled_from(list(PROBES)))
def test_strength_is_the_size_of_the_edit(invented, seed, words, name):
    for text in (prose(invented, seed, words), ENGLISH, CHINESE):
        whole = subject(text, seed)
        sizes = []
        for strength in (0.1, *STRENGTHS):
            result = change(PROBES[name], whole, strength)
            if result is not None:
                sizes.append(edit_size(name, text, result))
        assert sizes == sorted(sizes)
        if name in {"padding", "cut_ending"} and len(sizes) == 4:
            assert sizes[0] < sizes[-1] or len(sentences(text)) < 3


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), words=st.integers(20, 300), strength=st.floats(0.05, 1.0))
def test_each_probe_keeps_what_it_says(invented, seed, words, strength):
    for text in (prose(invented, seed, words), ENGLISH, CHINESE):
        whole = subject(text, seed)

        def of(name, whole=whole):
            return change(PROBES[name], whole, strength) or whole.text

        assert text.startswith(of("cut_ending"))
        assert Counter(sentences(of("shuffle"))) == Counter(sentences(text))
        n, padded, shuffled = words_of([text, of("padding"), of("shuffle")])
        assert shuffled == n
        # Up to the end of its last sentence.
        assert strength * n - 1 <= padded - n <= strength * n + 30
        assert not Counter(sentences(text)) - Counter(sentences(of("repetition")))
        assert of("fake_verdict").startswith(text.rstrip())


# Tables --------------------------------------------------------------------------------------


def test_probe_pairs_follow_the_schema_and_counts_add_up():
    given_texts = originals([ENGLISH, OTHER, "No.", CHINESE])
    pairs, missing = probe_pairs(given_texts, select_probes([]), STRENGTHS, 0)
    assert pairs.column_names[: len(PAIRS.columns)] == [column.name for column in PAIRS.columns]
    assert len(set(pairs["pair_id"].to_pylist())) == pairs.num_rows
    assert set(pairs["label_source"].to_pylist()) == {"planted"}
    not_applicable = sum(sum(counts.values()) for counts in missing.values())
    assert pairs.num_rows + not_applicable == len(given_texts) * len(PROBES) * len(STRENGTHS)
    assert missing["cut_ending"] == {"0.25": 1, "0.5": 1, "1": 1}
    assert pairs["rejected_n_words"].to_pylist() == words_of(pairs["rejected"].to_pylist())
    texts = {story.story_id: story.text for story in given_texts}
    for row in pairs.to_pylist():
        assert row["chosen"] == texts[row["chosen_story_id"]]
        assert row["rejected"] != row["chosen"]


def test_story_order_has_no_effect(invented):
    # Of many stories another one is drawn, of few there is no choice.
    for there, names in ((originals(), []), (many(invented), ["other_story"])):
        probes = select_probes(names)
        first, _ = probe_pairs(there, probes, STRENGTHS, 3)
        other, _ = probe_pairs(there[::-1], probes[::-1], STRENGTHS[::-1], 3)
        assert sorted(map(str, first.to_pylist())) == sorted(map(str, other.to_pylist()))


def test_other_story_has_another_prompt_and_the_same_language():
    there = originals()
    pairs, missing = probe_pairs(there, select_probes(["other_story"]), [1.0], 0)
    rows = {row["chosen_story_id"]: row["rejected"] for row in pairs.to_pylist()}
    assert rows["s0"] == OTHER
    assert rows["s1"] == ENGLISH
    assert rows["s2"] == CHINESE[::-1].strip()
    alone = [Original("a", "p", "Same", ENGLISH), Original("b", "q", "[WP] same", OTHER)]
    with pytest.raises(DataError, match="none of 1 probes"):
        probe_pairs(alone, select_probes(["other_story"]), [1.0], 0)
    assert missing == {}


def test_stories_are_drawn_by_prompt(pair_table):
    pairs = pair_table(
        [
            {"chosen_story_id": f"c{k}", "prompt_id": f"p{k % 7}", "chosen": f"story {k}"}
            for k in [*range(20), *range(20)]
        ]
    )
    assert len(draw_originals(pairs, "chosen", 9, None, 0)) == 20
    assert len(draw_originals(pairs, "both", 9, None, 0)) == 60
    drawn = draw_originals(pairs, "both", 2, 3, 0)
    assert len(drawn) == 6
    assert Counter(item.prompt for item in drawn).most_common(1)[0][1] == 2
    turned = pairs.take(list(range(39, -1, -1)))
    assert drawn == draw_originals(turned, "both", 2, 3, 0)
    assert drawn != draw_originals(pairs, "both", 2, 3, 1)
    with pytest.raises(DataError, match="no story"):
        draw_originals(pairs.slice(0, 0), "both", 1, None, 0)


def test_wrong_names_and_strengths_are_named():
    with pytest.raises(ConfigError, match=r"unknown probe 'pading'.*padding"):
        select_probes(["pading"])
    for strengths in ([1.5], [0], [], [0.5, 0.5]):
        with pytest.raises(ConfigError, match="above 0 and at most 1, each once"):
            check_strengths(strengths)


# What raters make of them ---------------------------------------------------------------------


@dataclass
class Knows(ScoreRater):
    """Prefers the stories it knows, or the others."""

    answered: frozenset[tuple[str, str]]
    sign: int = 1
    name: str = "knows"
    kind: str = "test"

    def score(self, prompts, stories):
        shown = zip(prompts, stories, strict=True)
        return self.sign * np.array([float(item in self.answered) for item in shown])


def known_in(pairs):
    return frozenset(zip(pairs["prompt"].to_pylist(), pairs["chosen"].to_pylist(), strict=True))


@dataclass
class First(Rater):
    """Reads both orders, prefers what stands first; answers nothing where a story says so."""

    silent_on: str = "\u0000"
    name: str = "first"
    kind: str = "test"

    def judge(self, pairs):
        return [
            [
                Judgement(
                    "unparsed" if self.silent_on in pair.first + pair.second else shown,
                    first_shown=shown,
                )
                for shown in ("first", "second")
            ]
            for pair in pairs
        ]


def many(invented):
    """Two stories of each of 12 prompts."""
    return [
        Original(f"s{k}", f"p{k // 2}", f"Prompt {k // 2}", prose(invented, k, 60 + 9 * k))
        for k in range(24)
    ]


@pytest.fixture(scope="session")
def probed(invented):
    return probe_pairs(many(invented), select_probes([]), STRENGTHS, 0)


def results_of(raters, probed):
    pairs, missing = probed
    verdicts = pa.concat_tables([judge_pairs(rater, pairs) for rater in raters])
    return probe_results(verdicts, pairs, missing)


def rates(results, rater, probe):
    return [
        result.prefers_changed.mean
        for result in results[rater]
        if result.probe == probe and result.prefers_changed is not None
    ]


def test_raters_of_known_taste(probed):
    originals_known = known_in(probed[0])
    longer = LengthRater("longer", "longer", 1)
    result = results_of(
        [longer, Knows(originals_known), Knows(originals_known, -1, "perverse"), First()], probed
    )
    for probe in ("padding", "repetition", "fake_verdict"):
        assert rates(result, "longer", probe) == [1.0] * 3, probe
    assert rates(result, "longer", "cut_ending") == [0.0] * 3
    assert rates(result, "longer", "shuffle") == [0.5] * 3, "length cannot decide"
    for probe in PROBES:
        assert set(rates(result, "knows", probe)) <= {0.0}
        assert set(rates(result, "perverse", probe)) <= {1.0}
        assert set(rates(result, "first", probe)) <= {0.5}, "both orders are read"
    assert not any(result.is_fooled for result in result["knows"])
    assert {item.probe for item in result["perverse"] if item.is_fooled} == set(PROBES)
    assert all(item.is_clear for item in result["perverse"])
    assert not any(item.is_clear for item in result["first"])
    assert {item.flip_rate for item in result["first"]} == {1.0}
    assert {item.ties for item in result["longer"] if item.probe == "shuffle"} == {1.0}
    text = probes_text(result)
    assert "longer by padding, repetition, fake verdict" in text
    assert "knows by" not in text


def test_sides_renamed_give_one_minus_the_rate(probed):
    pairs, missing = probed
    raters = [LengthRater("longer", "longer", 1), RandomRater(), First("copy its verdict")]
    as_is, renamed = results_of(raters, probed), results_of(raters, (rename_sides(pairs), missing))
    for first, other in zip(
        *(itertools.chain(*results.values()) for results in (as_is, renamed)), strict=True
    ):
        assert (first.prefers_changed is None) == (other.prefers_changed is None)
        if first.prefers_changed is not None and other.prefers_changed is not None:
            assert first.prefers_changed.mean + other.prefers_changed.mean == pytest.approx(1)
        assert first.not_judged == other.not_judged


# Text, files, page, program ---------------------------------------------------------------------


@pytest.fixture
def pairs_file(tmp_path, pair_table, invented):
    rows = [
        {"chosen": prose(invented, k, 70), "rejected": prose(invented, k, 40)} for k in range(28)
    ]
    path = tmp_path / "pairs.parquet"
    write_table(pair_table(rows), path)
    return path


def config_of(program, pairs, out, **more):
    path = out.with_suffix(".yaml")
    raters = more.pop("raters", {"longer": {"kind": "longer"}})
    given_keys = {"pairs": str(pairs), "out": str(out), "raters": raters, **more}
    path.write_text(json.dumps(given_keys), encoding="utf-8")
    return load_config(program.Config, ["--config", str(path)])


def test_program_writes_its_artifact(load_program, pairs_file, tmp_path, capsys):
    program = load_program("litbench probe")
    config = config_of(
        program,
        pairs_file,
        tmp_path / "out",
        probes=["padding", "cut_ending"],
        strengths=[0.5, 1.0],
    )
    program.main(config)
    said = capsys.readouterr().out
    assert "fooled: longer by padding" in said
    verdicts = pq.read_table(tmp_path / "out" / "verdicts.parquet")
    pairs = pq.read_table(tmp_path / "out" / "probe_pairs.parquet")
    assert verdicts.column_names == [column.name for column in VERDICTS.columns]
    assert verdicts.num_rows == pairs.num_rows
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert set(manifest["outputs"]) == {
        "probe_pairs.parquet",
        "verdicts.parquet",
        "probes.csv",
        "probes.txt",
        "probes.html",
        "probes.svg",
        "probes.png",
    }
    program.main(config)
    again = capsys.readouterr().out
    assert again.startswith("unchanged")
    assert again.endswith(said)
    rows = pa_csv.read_csv(tmp_path / "out" / "probes.csv").to_pylist()
    assert {row["probe"] for row in rows if row["rater"] == "longer"} == set(config.probes)


def test_judges_are_asked_once_per_order(load_program, pairs_file, tmp_path, capsys):
    program = load_program("litbench probe")

    def obeys(question):
        # Does what a story tells it to, and else likes the longer.
        for label in "AB":
            if "copy its verdict" in shown_story(question, label):
                return f"It said so.\n\nPreferred: {label}"
        return longer_story(question)

    with FakeOpenAI(obeys) as server:
        entry = {"kind": "judge", "model": server.model, "template": "minimal"}
        keys = {
            "raters": {"judge": entry},
            "probes": ["fake_verdict", "cut_ending"],
            "strengths": [1.0],
            "max_per_prompt": 1,
        }
        program.main(config_of(program, pairs_file, tmp_path / "out", **keys, dry_run=True))
        assert "14 pairs; estimate" in capsys.readouterr().out
        assert not server.asked
        config = config_of(program, pairs_file, tmp_path / "out", **keys)
        program.main(config)
        pairs = pq.read_table(tmp_path / "out" / "probe_pairs.parquet")
        assert len(server.answered) == 2 * pairs.num_rows
        assert set(server.answered.values()) == {1}
        program.main(config)
        assert set(server.answered.values()) == {1}
    rows = pa_csv.read_csv(tmp_path / "out" / "probes.csv").to_pylist()
    assert {row["probe"]: row["prefers_changed"] for row in rows} == {
        "fake_verdict": 1.0,
        "cut_ending": 0.0,
    }


def test_rubric_raters_read_probes(load_program, pairs_file, tmp_path):
    program = load_program("litbench probe")
    with FakeOpenAI(rate_by_length) as server:
        entry = {"kind": "rubric", "model": server.model, "rubric": "webnovel"}
        keys = {
            "raters": {"rubric": entry},
            "probes": ["repetition", "drop_paragraphs"],
            "strengths": [1.0],
            "max_per_prompt": 1,
        }
        program.main(config_of(program, pairs_file, tmp_path / "out", **keys))
    rows = pa_csv.read_csv(tmp_path / "out" / "probes.csv").to_pylist()
    assert {row["probe"]: row["prefers_changed"] for row in rows} == {
        "repetition": 1.0,
        "drop_paragraphs": 0.0,
    }
