r"""How many texts that are no stories are flagged, by kind, and how many stories of people.

    python benchmarks/nonstories.py --data DATA --out runs/nonstories.json

30 kinds of 100 texts, made by code and seeded; damaged stories are made of held-out stories. The
kinds in `ASIDE` were not measured while `litbench.raters.scope` was written.
"""

import argparse
import base64
import codecs
import itertools
import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from litbench.data.text import digest
from litbench.raters.nonstories import (
    NAMES,
    capitals,
    code_lines,
    json_rows,
    prose,
    read_sentences,
    repetition,
    reversed_letters,
    shuffled_words,
    split_words,
)
from litbench.raters.scope import FILE, Flags, Scope

TEXTS = 100
PARTS = 5


@cache
def _sentences() -> dict[str, Any]:
    further = yaml.safe_load(Path(__file__).with_name("nonstories_texts.yaml").read_text("utf-8"))
    return {
        language: pool | further[language] | {"fill": pool["fill"] | further[language]["fill"]}
        for language, pool in read_sentences().items()
    }


def _html(draw: random.Random, story: str, language: str) -> str:
    del story, language
    rows = [
        f'<li class="{draw.choice(NAMES)}"><a href="/{draw.choice(NAMES)}">'
        f"{draw.choice(NAMES).title()}</a> <span>{draw.randint(1, 99)}</span></li>"
        for _ in range(draw.randint(8, 40))
    ]
    return "<!DOCTYPE html>\n<html>\n<body>\n<ul>\n" + "\n".join(rows) + "\n</ul>\n</body>\n</html>"


def _log(draw: random.Random, story: str, language: str) -> str:
    del story, language
    return "\n".join(
        f"2026-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}T{draw.randint(0, 23):02}:"
        f"{draw.randint(0, 59):02}:{draw.randint(0, 59):02}Z {draw.choice(['INFO', 'WARN'])} "
        f"worker-{draw.randint(1, 32)} {draw.choice(NAMES)} {draw.choice(['done', 'failed'])} "
        f"in {draw.randint(1, 9_000)} ms {draw.choice(NAMES)}={draw.randint(1, 10**6)}"
        for _ in range(draw.randint(8, 40))
    )


def _base64(draw: random.Random, story: str, language: str) -> str:
    del story, language
    text = base64.b64encode(draw.randbytes(draw.randint(200, 2_000))).decode()
    return "\n".join(text[k : k + 76] for k in range(0, len(text), 76))


def _numbers(draw: random.Random, story: str, language: str) -> str:
    del story, language
    return draw.choice([" ", ", ", "\n"]).join(
        str(draw.randint(0, 10 ** draw.randint(1, 7))) for _ in range(draw.randint(80, 500))
    )


def _other_script(draw: random.Random, story: str, language: str) -> str:
    del story, language
    first = draw.choice([0x3B1, 0x430, 0x5D0, 0x905])
    return " ".join(
        "".join(chr(first + draw.randint(0, 21)) for _ in range(draw.randint(2, 9)))
        + draw.choice(["", "", "", "", "", ",", "."])
        for _ in range(draw.randint(100, 500))
    )


def _no_words(draw: random.Random, story: str, language: str) -> str:
    del story, language
    return draw.choice(["...", '"', "!?", "\U0001f600", "-", "* ", "。"]) * draw.randint(1, 300)


def _letters(draw: random.Random, word: str) -> str:
    letters = list(word)
    draw.shuffle(letters)
    return "".join(letters)


def _shuffled_letters(draw: random.Random, story: str, language: str) -> str:
    if language == "zh":
        return _letters(draw, story)
    return re.sub(r"\w+", lambda match: _letters(draw, match[0]), story)


def _rot13(draw: random.Random, story: str, language: str) -> str:
    del draw
    if language == "en":
        return codecs.encode(story, "rot13")
    return re.sub(
        r"[\u4e00-\u9fff]", lambda m: chr(0x4E00 + (ord(m[0]) - 0x4E00 + 10_000) % 20_900), story
    )


def _no_spaces(draw: random.Random, story: str, language: str) -> str:
    del draw
    return re.sub(r"[\W_]" if language == "zh" else r"\s", "", story)


def _repeated_paragraphs(draw: random.Random, story: str, language: str) -> str:
    del language
    parts = [part for part in story.split("\n") if part.strip()]
    size = max(len(story) // 5, 1)
    if len(parts) < 3:
        parts = [story[k : k + size] for k in range(0, len(story), size)]
    part = max(draw.sample(parts, min(2, len(parts))), key=len)
    return "\n\n".join([*parts, *[part] * draw.randint(3, 5)])


def _code_inside(draw: random.Random, story: str, language: str) -> str:
    code = code_lines(draw, story, language)
    cut = draw.randint(len(story) // 4, 3 * len(story) // 4)
    return f"{story[:cut]}\n{code}\n{story[cut:]}"


def _garbled_words(draw: random.Random, story: str, language: str) -> str:
    if language == "zh":
        return "".join(
            c if draw.random() < 0.7 else chr(draw.randint(0x4E00, 0x9FA0)) for c in story
        )
    return re.sub(r"\w+", lambda m: m[0] if draw.random() < 0.5 else _letters(draw, m[0]), story)


def _interleaved(draw: random.Random, story: str, language: str) -> str:
    tokens, space = split_words(story, language)
    half = len(tokens) // 2
    del draw
    pairs = zip(tokens[:half], tokens[half:], strict=False)
    return space.join(token for pair in pairs for token in pair)


def _shuffled_sentences(draw: random.Random, story: str, language: str) -> str:
    sentences = re.split(r"(?<=[。！？])" if language == "zh" else r"(?<=[.!?])\s+", story)
    draw.shuffle(sentences)
    return ("" if language == "zh" else " ").join(sentences)


def _cut(words: int) -> Callable[[random.Random, str, str], str]:
    def make(draw: random.Random, story: str, language: str) -> str:
        del draw
        tokens, space = split_words(story, language)
        return space.join(tokens[:words])

    return make


# Kinds by what they are; see the module for `ASIDE`.
NO_PROSE = {
    "code": code_lines,
    "json": json_rows,
    "base64": _base64,
    "reversed": reversed_letters,
    "no_spaces": _no_spaces,
    "repetition": repetition,
    "html": _html,
    "shuffled_letters": _shuffled_letters,
    "rot13": _rot13,
    "numbers": _numbers,
    "log": _log,
    "other_script": _other_script,
}
NO_STORY = {
    k: prose(k, _sentences)
    for k in ("licence", "refusal", "plan", "manual", "review", "recipe", "letter", "essay")
}
DAMAGED = {
    "shuffled_words": shuffled_words,
    "code_inside": _code_inside,
    "capitals": capitals,
    "repeated_paragraphs": _repeated_paragraphs,
    "garbled_words": _garbled_words,
    "interleaved": _interleaved,
}
OTHER = {
    "no_words": _no_words,
    "cut_3": _cut(3),
    "cut_30": _cut(30),
    "shuffled_sentences": _shuffled_sentences,
}
KINDS = NO_PROSE | NO_STORY | DAMAGED | OTHER
ASIDE = {
    "html",
    "shuffled_letters",
    "rot13",
    "numbers",
    "log",
    "other_script",
    "review",
    "recipe",
    "letter",
    "essay",
    "interleaved",
    "cut_30",
    "shuffled_sentences",
}


def texts_of(kind: str, stories: Sequence[str], language: str) -> list[str]:
    """100 texts of a kind, some of them made of stories."""
    draw = random.Random(f"{kind} {language}")
    return [KINDS[kind](draw, draw.choice(stories), language) for _ in range(TEXTS)]


# Sets on which models are trained: file, and the columns that are true of its stories.
TRAINED_ON = {
    "StoryER": ("storyer_pairs/stories", None),
    "LAMP": ("lamp_scores/paragraphs", None),
    "HANNA's models": ("hanna/llm_stories_unrated", None),
    "Chinese": ("wpb_zh/responses", "is_fiction_story"),
}
OTHERS = {
    "csg_short": "csg_short/stories",
    "hanna, people": "hanna/stories",
    "psychdepth": "psychdepth/stories",
    "storyer_aspects": "storyer_aspects/stories",
    "storyer_rated": "storyer_rated/stories",
    "wp_expert400": "wp_expert400/stories",
    "wp_upvotes": "wp_upvotes/stories",
    "wqrm": "wqrm_triplets/paragraphs",
    "ttcw": "ttcw/stories",
    "next_chapter": "next_chapter/stories",
    "scratchplot": "scratchplot/stories",
    "StoryER": "storyer_pairs/stories",
    "LAMP": "lamp_scores/paragraphs",
    "reddit_2013": "reddit_2013/posts",
}


def read_stories(data: Path, file: str, condition: str | None = None) -> list[dict[str, Any]]:
    """Read the stories of a set: `prompt_id`, `story` and, of posts, `subreddit`."""
    rows = pq.read_table(data / f"{file}.parquet").to_pylist()
    rows = [row | {"story": row.get("story", row.get("text")) or ""} for row in rows]
    return [row for row in rows if row["story"].strip() and (condition is None or row[condition])]


def shares(flags: Flags) -> dict[str, Any]:
    """Shares of texts flagged by each flag and by one of the two, and the first reasons."""
    both = list(zip(flags.is_prose, flags.like_training, strict=True))
    first = Counter(
        re.sub(r"^[\d,]+ words;.*", "length", reason) for all_ in flags.reasons for reason in all_
    )
    return {
        "texts": len(both),
        "is_prose": sum(not prose for prose, _ in both) / len(both),
        "like_training": sum(not like for _, like in both) / len(both),
        "either": sum(not (prose and like) for prose, like in both) / len(both),
        "reasons": dict(first.most_common(3)),
    }


def held_out_flags(rows: Sequence[dict[str, Any]], part: int) -> tuple[Scope, list[str], Flags]:
    """Learn from four fifths of the prompts; flag the stories of the others."""
    prompts = sorted({str(row["prompt_id"]) for row in rows}, key=digest)
    apart = set(prompts[len(prompts) * part // PARTS : len(prompts) * (part + 1) // PARTS])
    held_out = [row["story"] for row in rows if str(row["prompt_id"]) in apart]
    trained = [row for row in rows if str(row["prompt_id"]) not in apart]
    scope = Scope.learn(*([str(row[key]) for row in trained] for key in ("prompt_id", "story")))
    if scope is None:
        raise SystemExit("too few stories")
    return scope, held_out, scope.flags(held_out)


def measure(name: str, data: Path) -> dict[str, Any]:
    """Flag each fifth of the stories by the others, and by the first model the kinds and sets."""
    rows = read_stories(data, *TRAINED_ON[name])
    started = time.process_time()
    scope, held_out, flags = held_out_flags(rows, 0)
    seconds = time.process_time() - started
    all_flags = [flags, *(held_out_flags(rows, part)[2] for part in range(1, PARTS))]
    columns = zip(*((f.is_prose, f.like_training, f.reasons) for f in all_flags), strict=True)
    flagged = {"held out": shares(Flags(*(list(itertools.chain(*column)) for column in columns)))}
    with tempfile.TemporaryDirectory() as folder:
        scope.save(Path(folder))
        size = (Path(folder) / FILE).stat().st_size
    started = time.process_time()
    scope.flags(held_out)
    milliseconds = 1_000 * (time.process_time() - started) / len(held_out)
    language = "zh" if name == "Chinese" else "en"
    flagged |= {kind: shares(scope.flags(texts_of(kind, held_out, language))) for kind in KINDS}
    if language == "en":
        for other, file in OTHERS.items():
            if other != name:
                groups: dict[str, list[str]] = {}
                for row in read_stories(data, file):
                    label = f"set {other} {row.get('subreddit', '')}".strip()
                    groups.setdefault(label, []).append(row["story"])
                flagged |= {
                    label: shares(scope.flags(texts[:300])) for label, texts in groups.items()
                }
    return {
        "stories": len(rows) - len(held_out),
        "learning_s": round(seconds, 1),
        "kb": size // 1_024,
        "ms_per_story": round(milliseconds, 2),
        "flagged": flagged,
    }


def main() -> None:
    """Measure every set, print the tables, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results = {name: measure(name, options.data) for name in TRAINED_ON}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    for key in ("stories", "learning_s", "kb", "ms_per_story"):
        print(key, {name: result[key] for name, result in results.items()})
    rows = dict.fromkeys(kind for result in results.values() for kind in result["flagged"])
    print("share flagged by is_prose / by one of the two:", *results, sep=" | ")
    for kind in rows:
        cells = [
            "-"
            if (row := result["flagged"].get(kind)) is None
            else f"{row['is_prose']:.3f} / {row['either']:.3f}"
            for result in results.values()
        ]
        print(f"{kind}{' (aside)' if kind in ASIDE else ''}", *cells, sep=" | ")


if __name__ == "__main__":
    main()
