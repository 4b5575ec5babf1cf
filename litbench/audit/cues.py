"""Content-blind cues: what tells the chosen story of a pair without reading it.

Some are counted, such as which story is longer. Others are learnt out of fold from the labels of
other prompts: a writer's or model's name, surface features, a bag of words.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.data.curation.reader_notes import cut_reader_notes
from litbench.data.curation.splits import assign_folds
from litbench.data.records import PAIRS, SIDES, connected_prompts, has_texts
from litbench.data.text import normalise_prompt
from litbench.evaluation.folds import balance_lengths
from litbench.metrics.agreement import length_differences
from litbench.metrics.leaderboard import longer_is_coin
from litbench.models.bag_of_words import word_vectors
from litbench.models.features import FEATURES, shared_matrix
from litbench.models.linear_preference import logistic
from litbench.runs.errors import DataError

# Minimum number of pairs with texts to learn from.
_MIN_PAIRS = 10
_FOLDS, _STRENGTH = 5, 1.0
# A bag of words of more pairs takes more than a minute.
_MAX_FOR_WORDS = 4_000
# A column of more different numbers holds measurements, not categories.
_MAX_NUMBERS = 20
_POSITION = re.compile(r"position|index|row|order|place|turn|slot", re.I)
# Replacement characters, UTF-8 read as Latin-1, HTML entities and control characters.
_DAMAGED = re.compile(r"\ufffd|â€|Ã[\x80-\xbf]|&(?:amp|lt|gt|quot|nbsp|#\w+);|[\x00-\x08\x0e-\x1f]")
_OPENING_WORDS, _OPENING_SHARE = 3, 0.02
_TYPOGRAPHIC, _STRAIGHT = re.compile("[‘’“”„«»]"), re.compile("[\"'`]")
_STRUCTURE = re.compile(r"^[ \t]*(?:#{1,6}[ \t]|[-*+•‣◦–—][ \t]|\(?\d{1,3}[.)、][ \t]?\S)", re.M)
# Copied prompts: minimum length of the prompt in characters, and how many times its length is
# searched at the start of a story.
_PROMPT_CHARACTERS, _OPENING_PROMPTS = 8, 3
_PUNCTUATION = ("commas", "exclamations", "questions", "ellipses", "dashes", "semicolons")

# Cues of something beside the text: other cues are not derived from them.
_BESIDE_TEXT = ("later", "id")

# By cue: the story with more of it, the story with less, and what to do.
_TEXTS = {
    "longer": (
        "the longer story",
        "the shorter story",
        "Balance the lengths (symmetry_buckets of make_pairs.py), or show the longer story beside "
        "every rater.",
    ),
    "later": (
        "the story posted later",
        "the story posted earlier",
        "Keep times from raters. Unless a pairing rule requires it, votes follow the time.",
    ),
    "notes": (
        "the story with notes to readers",
        "the story without notes to readers",
        "Cut the notes (cut_vote_talk of the cleaning) before training.",
    ),
    "paragraphs": ("the story with more paragraphs", "the story with fewer paragraphs", ""),
    "markup": ("the story with more formatting", "the story with less formatting", ""),
    "structure": (
        "the story with more headings and lists",
        "the story with fewer headings and lists",
        "",
    ),
    "quotes": (
        "the story with more typographic quotation marks and apostrophes",
        "the story with more straight quotation marks and apostrophes",
        "Convert all stories to one style.",
    ),
    "prompt": (
        "the story that repeats the prompt",
        "the story that does not repeat the prompt",
        "Cut the prompt from the stories.",
    ),
    "punctuation": (
        "the story with more punctuation per word",
        "the story with less punctuation per word",
        "",
    ),
    "speech": ("the story with more quoted speech", "the story with less quoted speech", ""),
    "damaged": (
        "the story with damaged characters",
        "the story without damaged characters",
        "Repair the encoding, or leave these stories out.",
    ),
    "opening": (
        "the story with a stock opening",
        "the story without a stock opening",
        "Cut openings that many stories share.",
    ),
    "id": (
        "the story whose id sorts last",
        "the story whose id sorts first",
        "Shuffle: an id or a position that reveals the label reaches raters through the order.",
    ),
}


@dataclass(frozen=True)
class Cue:
    """A cue; arrays have shape (n,).

    Attributes:
        name: short name.
        texts: the story with more of it, the one with less, and what to do.
        sign: 1 if the chosen story has more of it, -1 if less, 0 if equal or unknown.
        amount: by how much, as a signed rank from -1 to 1, to hold it fixed.
        is_learnt: whether it is learnt from the labels of other prompts, so that only an effect
            above 0 counts.
        is_of_text: whether it is computed from the texts.
    """

    name: str
    texts: tuple[str, str, str]
    sign: np.ndarray
    amount: np.ndarray
    is_learnt: bool = False
    is_of_text: bool = False

    @property
    def is_rule(self) -> bool:
        """Whether it decides every pair, and all the same way."""
        return abs(float(self.sign.sum())) == len(self.sign)

    @classmethod
    def of(cls, name: str, difference: np.ndarray, texts: tuple[str, str, str], **more: Any) -> Any:
        """The cue of a difference, chosen minus rejected story; NaN if unknown."""
        from scipy.stats import rankdata  # noqa: PLC0415

        differences = np.nan_to_num(difference)
        sign = np.sign(differences)
        return cls(
            name, texts, sign, sign * rankdata(np.abs(differences)) / max(len(sign), 1), **more
        )


@dataclass(frozen=True)
class PairTexts:
    """The distinct stories of the pairs, their prompts and features, and their rows by side."""

    prompts: list[str]
    stories: list[str]
    features: np.ndarray
    rows: dict[str, np.ndarray]

    @classmethod
    def of(cls, pairs: pa.Table) -> "PairTexts":
        prompts = pairs["prompt"].to_pylist()
        texts = {side: list(zip(prompts, pairs[side].to_pylist(), strict=True)) for side in SIDES}
        distinct = dict.fromkeys([*texts["chosen"], *texts["rejected"]])
        row_of = {text: row for row, text in enumerate(distinct)}
        rows = {side: np.array([row_of[text] for text in texts[side]], int) for side in SIDES}
        prompts, stories = [prompt for prompt, _ in row_of], [story for _, story in row_of]
        return cls(prompts, stories, shared_matrix(prompts, stories), rows)

    def difference(self, values: Any) -> Any:
        """Chosen minus rejected, of values per story, which may have several columns."""
        return values[self.rows["chosen"]] - values[self.rows["rejected"]]


def content_blind_cues(pairs: pa.Table, texts: PairTexts, seed: int = 0) -> list[Cue]:
    """All cues of the pairs: those that are counted first, then those that are learnt."""
    have_texts = has_texts(pairs)
    # A copied prompt may bring a list with it, so it is the first of two equal cues.
    both = zip(texts.prompts, texts.stories, strict=True)
    values = {"prompt": np.array([_repeats_prompt(*text) for text in both], float)}
    values |= {
        name: np.array([value(story) for story in texts.stories], float)
        for name, value in {
            "damaged": lambda story: bool(_DAMAGED.search(story)),
            "structure": lambda story: len(_STRUCTURE.findall(story)),
            "quotes": _typographic_share,
        }.items()
    }
    values["notes"] = np.isin(
        np.arange(len(texts.stories)),
        list(cut_reader_notes(pa.array(texts.stories, pa.large_string()))),
    ).astype(float)
    openings = [" ".join(story.lower().split()[:_OPENING_WORDS]) for story in texts.stories]
    often = Counter(openings)
    least = max(_OPENING_SHARE * len(openings), 5)
    values["opening"] = np.array([often[opening] >= least for opening in openings], float)
    column = {name: texts.features[:, index] for index, name in enumerate(FEATURES)}
    values["paragraphs"], values["markup"] = column["log_paragraphs"], column["asterisks"]
    values["punctuation"] = np.sum([column[name] for name in _PUNCTUATION], axis=0)
    values["speech"] = column["quoted_share"]
    differences = {
        "longer": length_differences(pairs),
        "later": _numbers(pairs, "created_utc"),
        **{
            name: np.where(have_texts, texts.difference(difference), 0.0)
            for name, difference in values.items()
        },
        "id": _id_order(pairs),
    }
    cues = [
        Cue.of(name, difference, _TEXTS[name], is_of_text=name not in _BESIDE_TEXT)
        for name, difference in differences.items()
    ]
    prompts = np.array(connected_prompts(pairs))
    for name in _extra_columns(pairs):
        cues += _column_cues(pairs, name, prompts, seed)
    return [*cues, *_learnt_from_texts(pairs, texts, prompts, have_texts, seed)]


def _typographic_share(story: str) -> float:
    """Share of typographic marks of all quotation marks and apostrophes; NaN without any."""
    typographic, straight = (len(marks.findall(story)) for marks in (_TYPOGRAPHIC, _STRAIGHT))
    return typographic / (typographic + straight) if typographic + straight else math.nan


def _repeats_prompt(prompt: str, story: str) -> bool:
    """Whether a story opens with the whole prompt; tags, case and punctuation do not matter."""
    key = normalise_prompt(prompt)
    opening = normalise_prompt(story[: _OPENING_PROMPTS * len(prompt)])
    return len(key) >= _PROMPT_CHARACTERS and key in opening


def _numbers(pairs: pa.Table, name: str) -> np.ndarray:
    chosen, rejected = (
        pairs[f"{side}_{name}"].to_numpy(zero_copy_only=False).astype(float) for side in SIDES
    )
    return np.asarray(chosen - rejected)


def _id_order(pairs: pa.Table) -> np.ndarray:
    """1 if the id of the chosen story sorts after that of the rejected one, by whole numbers."""

    def key(name: str) -> list[tuple[int, str]]:
        return [(int(part or 0), "") if k % 2 else (0, part) for k, part in enumerate(parts(name))]

    def parts(name: str) -> list[str]:
        return re.split(r"([0-9]{1,18})", name)

    ids = (pairs[f"{side}_story_id"].to_pylist() for side in SIDES)
    return np.array(
        [(key(a) > key(b)) - (key(a) < key(b)) for a, b in zip(*ids, strict=True)], float
    )


def _extra_columns(pairs: pa.Table) -> list[str]:
    """Names of the columns that both sides have: that of authors, and those of the source."""
    declared = {column.name for column in PAIRS.columns} - {"chosen_author"}
    return [
        name.removeprefix("chosen_")
        for name in pairs.column_names
        if name.startswith("chosen_")
        and name not in declared
        and f"rejected_{name.removeprefix('chosen_')}" in pairs.column_names
    ]


def _column_cues(pairs: pa.Table, name: str, prompts: np.ndarray, seed: int) -> list[Cue]:
    """The cues of a column that both sides have: a position, and names or few whole numbers."""
    from scipy import sparse  # noqa: PLC0415

    kind, label = pairs[f"chosen_{name}"].type, name.replace("_", " ")
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    is_name = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (is_number or is_name or pa.types.is_boolean(kind)):
        return []
    position = []
    if is_number and _POSITION.search(name):
        texts = (f"the story with the higher {label}", f"the story with the lower {label}", "")
        position = [Cue.of(name, _numbers(pairs, name), texts)]
    sides = [pairs[f"{side}_{name}"].to_pylist() for side in SIDES]
    if is_number:
        sides = [
            [None if value is None or math.isnan(value) else value for value in side]
            for side in sides
        ]
    names = sorted({*sides[0], *sides[1]} - {None})
    # Names repeat: a column of unique values has none. Numbers are names only if they are few.
    most = min(pairs.num_rows / 2, _MAX_NUMBERS if is_number else math.inf)
    is_whole = not is_number or all(float(value).is_integer() for value in names)
    if not 2 <= len(names) <= most or not is_whole or (position and len(names) == 2):
        return position
    advice = f"Give agreement within pairs of equal {label}, and keep it from raters."
    if len(names) == 2:
        has = [np.array([value == names[1] for value in side], float) for side in sides]
        more, less = (f"the story whose {label} is {value}" for value in reversed(names))
        return [Cue.of(f"name:{name}", has[0] - has[1], (more, less, advice))]
    places = {value: index for index, value in enumerate(names)}
    indicators: Any = 0
    for side, weight in zip(sides, (1.0, -1.0), strict=True):
        rows = [row for row, value in enumerate(side) if value is not None]
        at = (rows, [places[side[row]] for row in rows])
        shape = (pairs.num_rows, len(names))
        indicators = sparse.csr_matrix((np.full(len(rows), weight), at), shape) + indicators
    texts = (f"the story whose {label} is preferred on other prompts", "", advice)
    margins = out_of_fold(indicators, prompts, seed, pairs)
    return [*position, Cue.of(f"name:{name}", margins, texts, is_learnt=True)]


def out_of_fold(
    differences: Any, prompts: np.ndarray, seed: int = 0, pairs: pa.Table | None = None
) -> np.ndarray:
    """Log-odds that a linear model of the other folds gives the chosen story; float64, shape (n,).

    Args:
        differences: chosen minus rejected story, scaled; shape (n, columns), may be sparse.
        prompts: prompt of each pair; shape (n,).
        seed: seed of the folds.
        pairs: if their lengths are symmetric, the training rows of each fold are balanced apart.
    """
    margins = np.zeros(len(prompts))
    count = min(_FOLDS, len(set(prompts.tolist())))
    if count < 2:
        return margins
    fold_of = assign_folds(prompts.tolist(), count, seed)
    folds = np.array([fold_of[prompt] for prompt in prompts.tolist()])
    trainings = {fold: np.flatnonzero(folds != fold) for fold in range(count)}
    if pairs is not None and longer_is_coin(pairs):
        trainings = balance_lengths(pairs, trainings, seed)
    for fold, train in trainings.items():
        test = folds == fold
        if test.any() and len(train) > 1:
            # Each row is read in both orders, so that labels that are all True do no harm.
            fitted = logistic(differences[train], np.ones(len(train), bool), _STRENGTH)
            margins[test] = differences[test] @ fitted
    # Rounding must not decide a pair of equal stories.
    return np.where(np.abs(margins) < 1e-9, 0.0, margins)


def scaled_features(texts: PairTexts) -> np.ndarray:
    """Differences of the surface features, scaled; float64, shape (n, features)."""
    difference = texts.difference(texts.features)
    scale = np.sqrt(np.square(difference).mean(0))
    return np.asarray(difference / np.where(scale < 1e-12, 1.0, scale))


def _learnt_from_texts(
    pairs: pa.Table, texts: PairTexts, prompts: np.ndarray, have_texts: np.ndarray, seed: int
) -> list[Cue]:
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    if have_texts.sum() < _MIN_PAIRS:
        return []
    drawn = np.flatnonzero(have_texts)
    random = np.random.default_rng(seed)
    drawn = np.sort(random.permutation(drawn)[:_MAX_FOR_WORDS])
    words = np.zeros(pairs.num_rows)
    with threadpool_limits(1, "blas"):
        learnt = out_of_fold(scaled_features(texts), prompts, seed, pairs)
        features = np.where(have_texts, learnt, 0.0)
        try:
            _, vectors = word_vectors(texts.stories)
        except DataError:
            # No word occurs in two stories: a bag of words prefers none.
            vectors = np.zeros((len(texts.stories), 1))
        rows = texts.difference(vectors)[drawn]
        words[drawn] = out_of_fold(rows, prompts[drawn], seed, pairs.take(pa.array(drawn)))
    return [
        Cue.of(
            name,
            margins,
            (
                f"the story preferred by {what} (learnt on other prompts)",
                "",
                "Show this baseline beside every rater: it agrees this often without reading.",
            ),
            is_learnt=True,
            is_of_text=True,
        )
        for name, what, margins in (
            ("features", "a model of surface features", features),
            ("words", "a bag of words", words),
        )
    ]
