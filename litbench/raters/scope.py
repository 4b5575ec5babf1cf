"""Scope: whether a text is prose at all, and whether it is like a rater's training stories.

    scope = Scope.learn(prompts, stories)
    flags = scope.flags(["It opened.", "def f(x): return x"])

Quantities of a text (shares of characters, frequencies of character n-grams, words and neighbouring
words) are compared with those of windows of training stories that have about as many words. A
quantity is given as its distance from the median of the windows, in units of the distance from the
median to the 1 % or 99 % quantile. The windows come from prompts on which the frequencies were not
counted, and the largest distance that passes is chosen so that 1 % of the windows are flagged.

`is_prose` does not depend on length, and its units have the size of `_FLOORS`, so that poems,
dialogue and other people's stories pass. `like_training` uses all quantities and the range of
lengths. One quantity compares the common words of a text with those of the training stories and of
`other_prose.yaml`.
"""

import base64
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.data.text import count_words, digest, valid_unicode
from litbench.raters.quantities import (
    MAX_CHARACTERS,
    NAMES,
    TABLE,
    Frequencies,
    count_frequencies,
    quantities,
    windows_of,
)
from litbench.runs.errors import ModelError
from litbench.runs.outputs import read_sealed, write_sealed

FILE = "scope.json"
MIN_STORIES, MIN_PROMPTS = 40, 4
NOT_LEARNT = (
    "not known: the model does not store what its training stories look like; train it on "
    f"{MIN_STORIES} stories or more"
)
NO_WORDS = "no words"
SIZES = (10, 20, 40, 80, 160, 320, 640, 1_280)
_MAX_STORIES = 1_000
_WINDOWS_PER_SIZE = 300
_ENOUGH = 100
_FOLDS = 2
_SHARE_FLAGGED = 0.01
# Less than this is no evidence that a text is not prose.
_MIN_PROSE_DISTANCE = 2.3
_MAX_REASONS = 3
_MAX_WORDS_PER_CHARACTER = 0.5
# Quantities: the reason if it is too low, and if it is too high.
_REASONS = {
    "characters": ("", "garbled characters"),
    "letters": ("few letters", "few spaces and punctuation marks"),
    "known_letters": ("letters of another script or language", ""),
    "symbols": ("little punctuation", "many symbols, as in code or markup"),
    "digits": ("", "many digits"),
    "capitals": ("few capitals", "many capitals"),
    "repeated": ("", "repeats itself"),
    "words": ("", "uncommon words"),
    "order": ("words in an unusual order", ""),
    "stretch": ("", "a passage of garbled words, code or markup"),
    "lines": ("long paragraphs", "short lines, as in lists or verse"),
    "story": ("words of other prose than stories, such as manuals", ""),
}
# A direction without a reason is not flagged. Final frequencies come from more stories than those
# of the windows, so texts are less surprising than the windows were.
_HAS_REASON = np.array([[bool(_REASONS[name][side]) for name in NAMES] for side in (0, 1)])
_MAX_DISTANCE = 20
# Most stories repeat nothing, so their quantiles give no unit.
_MIN_UNITS = np.where(np.array(NAMES) == "repeated", 0.05, 0.01)
# Larger units than this would let a few broken training stories hide the rest.
_MAX_FLOORS = 1.5
_CODE = "code or markup"
_CODE_WEIGHT = 4 / 3
_NO_LANGUAGE = "characters and words unlike the language of the training stories"
# Of `is_prose`: quantities with their direction (-1: too low), and the smallest unit.
_FLOORS = {
    ("letters", -1): 0.08,
    ("letters", 1): 0.035,
    ("known_letters", -1): 0.05,
    ("symbols", 1): 0.045,
    ("digits", 1): 0.03,
    ("capitals", 1): 0.1,
    ("repeated", 1): 0.2,
}
# Together they tell whether a text is of the language; units in bits.
_LANGUAGE = {"characters": (1, 1.0), "words": (1, 1.0), "order": (-1, 0.8)}
_LANGUAGE_COLUMNS = [NAMES.index(name) for name in _LANGUAGE]
# Of `like_training`: reasons with a limit each. Others share one: many limits flag many stories.
_ALONE = (
    _REASONS["story"][0],
    _REASONS["order"][0],
    _REASONS["repeated"][1],
    _REASONS["stretch"][1],
    _NO_LANGUAGE,
)
# Stories of other prompts differ more from the training stories than those of the folds.
_MARGIN = 1.25
_LENGTH_MARGINS = (0.9, 1.1)
_MIN_LIMIT, _MIN_REMAINING = 0.5, 0.95


@dataclass(frozen=True)
class Flags:
    """A rater's flags for the texts of a batch; shape (n,) each.

    Attributes:
        is_prose: whether each text is prose at all; None if the rater has not learnt it.
        like_training: whether each text is like the training stories; None as above.
        reasons: reasons in words; empty if both are true.
    """

    is_prose: list[bool | None]
    like_training: list[bool | None]
    reasons: list[list[str]]

    @classmethod
    def unknown(cls, count: int) -> "Flags":
        """The flags of a rater without a scope."""
        return cls([None] * count, [None] * count, [[NOT_LEARNT] for _ in range(count)])


@dataclass
class Bounds:
    """Quantities of training windows; arrays have a row per size.

    Attributes:
        sizes: words of a window, ascending; shape (sizes,).
        middle: medians; shape (sizes, quantities).
        low: 1 % quantiles; shape (sizes, quantities).
        high: 99 % quantiles; shape (sizes, quantities).
        prose: largest distance of prose; shape (sizes,).
        prose_units: factor of the units of each reason of `prose_distances`; shape (reasons,).
        training: largest distance of the reasons that share a limit; shape (sizes,).
        training_units: limit of each group of `_groups_of`; shape (groups,).
        words: shortest and longest training story.
        words_per_character: mean of the training stories.
        words_are_spaced: whether words have several characters.
    """

    sizes: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    prose: np.ndarray
    prose_units: np.ndarray
    training: np.ndarray
    training_units: np.ndarray
    words: np.ndarray
    words_per_character: float
    words_are_spaced: bool

    def has_other_length(self, words: int) -> bool:
        """Whether a text is more than 10 % shorter or longer than all training stories."""
        shortest, longest = (self.words * _LENGTH_MARGINS).tolist()
        return not shortest <= words <= longest

    def distances(self, values: np.ndarray, row: int) -> np.ndarray:
        """Signed distances of quantities from the median; 0 in a direction without a reason."""
        middle, low, high = self.middle[row], self.low[row], self.high[row]
        unit = np.where(values > middle, high - middle, middle - low)
        distances = np.clip(
            (values - middle) / np.maximum(unit, _MIN_UNITS), -_MAX_DISTANCE, _MAX_DISTANCE
        )
        has_reason = np.where(distances > 0, _HAS_REASON[1], _HAS_REASON[0])
        counted: np.ndarray = distances * has_reason
        return counted

    def prose_distances(self, values: np.ndarray, row: int) -> dict[str, float]:
        """Distances of `is_prose`, by reason."""

        def distance(name: str, direction: int, floor: float) -> float:
            column = NAMES.index(name)
            middle = self.middle[row, column]
            bound = (self.low, self.high)[direction > 0][row, column]
            unit = np.clip(abs(bound - middle), floor, _MAX_FLOORS * floor)
            return float(direction * (values[column] - middle) / unit)

        distances = {key: distance(*key, floor) for key, floor in _FLOORS.items()}
        # Where a word is a character, garbled text has the same words.
        names = [name for name in _LANGUAGE if name != "words" or self.words_are_spaced]
        language = sum(distance(name, *_LANGUAGE[name]) for name in names) / len(names)
        # Code has a little of each.
        code = (language + distances["symbols", 1] + distances["letters", -1]) / 3 * _CODE_WEIGHT
        by_reason = {_reason(*key): value for key, value in distances.items()}
        by_reason |= {_NO_LANGUAGE: language, _CODE: code}
        units = self.prose_units.tolist()
        return {
            key: value / unit for (key, value), unit in zip(by_reason.items(), units, strict=True)
        }

    def training_distances(self, values: np.ndarray, row: int) -> dict[str, float]:
        """Distances of `like_training`, by reason."""
        distances = self.distances(values, row)
        by_reason = {
            _reason(name, distance): abs(distance)
            for name, distance in zip(NAMES, distances.tolist(), strict=True)
            if distance
        }
        # Garbled words are a little unusual in each.
        by_reason[_NO_LANGUAGE] = float(np.abs(distances[_LANGUAGE_COLUMNS]).mean())
        *alone, others = self.training_units.tolist()
        units = dict(zip(_ALONE, alone, strict=True))
        return {
            reason: distance / units.get(reason, others * self.training[row])
            for reason, distance in by_reason.items()
        }


def _groups_of(distances: dict[str, float]) -> list[float]:
    """Distances of the reasons in `_ALONE`, then the largest of the others."""
    alone = [distances.get(reason, 0.0) for reason in _ALONE]
    others = (value for reason, value in distances.items() if reason not in _ALONE)
    return [*alone, max(others, default=0.0)]


def _reason(name: str, direction: float) -> str:
    return _REASONS[name][direction > 0]


def _bounds(windows: dict[int, np.ndarray], words: np.ndarray, per_character: float) -> Bounds:
    """Bounds from the quantities of windows by size; shape (windows, quantities) each."""
    sizes = list(windows)
    quantiles = [np.quantile(values, (0.5, 0.01, 0.99), 0) for values in windows.values()]
    middle, low, high = (np.array(part) for part in zip(*quantiles, strict=True))
    ones = np.ones(len(sizes))
    bounds = Bounds(
        np.array(sizes),
        middle,
        low,
        high,
        ones.copy(),
        np.ones(len(_FLOORS) + 2),
        ones.copy(),
        np.ones(len(_ALONE) + 1),
        words,
        per_character,
        per_character < _MAX_WORDS_PER_CHARACTER,
    )
    for row, values in enumerate(windows.values()):
        farthest = [max(bounds.prose_distances(value, row).values()) for value in values]
        bounds.prose[row] = max(np.quantile(farthest, 1 - _SHARE_FLAGGED), _MIN_PROSE_DISTANCE)
        farthest = [_groups_of(bounds.training_distances(value, row))[-1] for value in values]
        bounds.training[row] = np.quantile(farthest, 1 - _SHARE_FLAGGED)
    return bounds


def _held_out_quantities(
    rows: Sequence[tuple[str, str]], prompts: Sequence[str]
) -> tuple[dict[int, list[list[float]]], list[tuple[str, list[float]]]]:
    """Quantities of windows by size, and of whole stories, by frequencies of other prompts."""
    fold_of = {prompt: number % _FOLDS for number, prompt in enumerate(prompts)}
    by_size: dict[int, list[list[float]]] = {size: [] for size in SIZES}
    whole: list[tuple[str, list[float]]] = []
    max_texts = _WINDOWS_PER_SIZE // _FOLDS
    for fold in range(_FOLDS):
        counted = count_frequencies([story for prompt, story in rows if fold_of[prompt] != fold])
        held_out = [story for prompt, story in rows if fold_of[prompt] == fold]
        for size, values in by_size.items():
            parts = (part for story in held_out for part in windows_of(story, size, 2))
            values += [quantities(part, counted) for part in itertools.islice(parts, max_texts)]
        whole += [(story, quantities(story, counted)) for story in held_out]
    return by_size, whole


@dataclass
class Scope:
    """A description of a rater's training stories.

    Attributes:
        counted: frequencies in all training stories.
        bounds: bounds of the quantities.
        held_out: number of held-out training stories, and the share of them flagged by each flag.
    """

    counted: Frequencies
    bounds: Bounds
    held_out: dict[str, float]

    @classmethod
    def learn(cls, prompts: Sequence[str], stories: Sequence[str]) -> "Scope | None":
        """Learn from at most 1,000 stories, drawn by hash; None if there are too few.

        Args:
            prompts: shape (n,).
            stories: shape (n,).
        """
        rows = sorted(
            set(zip(prompts, stories, strict=True)), key=lambda row: digest("scope", *row)
        )[:_MAX_STORIES]
        groups = sorted({prompt for prompt, _ in rows}, key=digest)
        if len(rows) < MIN_STORIES or len(groups) < MIN_PROMPTS:
            return None
        windows, whole = _held_out_quantities(rows, groups)
        enough = {size: np.array(rows) for size, rows in windows.items() if len(rows) >= _ENOUGH}
        if not enough:
            return None
        texts = [story for _, story in rows]
        words = _count_words(texts)
        ends = np.quantile(words, (_SHARE_FLAGGED / 4, 1 - _SHARE_FLAGGED / 4)).round()
        bounds = _bounds(enough, ends, float(words.sum() / sum(map(len, texts))))
        scope = cls(count_frequencies(texts), bounds, {})
        scope._calibrate(whole)
        return scope

    def _calibrate(self, whole: Sequence[tuple[str, list[float]]]) -> None:
        """Widen the bounds until 1 % of whole held-out stories are flagged, and note the shares."""
        words = _count_words([story for story, _ in whole]).tolist()
        located = [
            (np.array(values), self._row(story, n)[0])
            for (story, values), n in zip(whole, words, strict=True)
        ]
        bounds = self.bounds
        prose = np.array(
            [
                np.array(list(bounds.prose_distances(values, row).values())) / bounds.prose[row]
                for values, row in located
            ]
        )
        # Each reason is widened alone: a few stories that repeat themselves must not hide code.
        bounds.prose_units = np.maximum(_limits(prose, 1.0), 1.0)
        flagged = float((prose > bounds.prose_units).any(axis=1).mean())
        training = np.array(
            [_groups_of(bounds.training_distances(values, row)) for values, row in located]
        )
        bounds.training_units = _limits(training, _MARGIN)
        is_unlike = (training > bounds.training_units).any(axis=1)
        is_unlike |= np.array([bounds.has_other_length(n) for n in words])
        self.held_out = {
            "stories": len(whole),
            "is_prose": flagged,
            "like_training": float(is_unlike.mean()),
        }

    def _row(self, story: str, words: int) -> tuple[int, float]:
        """The row of the bounds for a text, and the scale of its distances."""
        sizes = self.bounds.sizes
        # Text without spaces has few words.
        characters = min(len(story), MAX_CHARACTERS)
        length = max(words, 0.7 * characters * self.bounds.words_per_character)
        row = max(int(np.searchsorted(sizes, length, side="right")) - 1, 0)
        # The standard error of a mean of fewer words is larger.
        return row, math.sqrt(min(length / sizes[0], 1))

    def flags(self, stories: Sequence[str]) -> Flags:
        """Flag stories; a story without words is no prose."""
        flags = Flags([], [], [])
        for story, words in zip(stories, _count_words(stories).tolist(), strict=True):
            prose, training = self._reasons(story, words)
            flags.is_prose.append(not prose)
            flags.like_training.append(not (prose or training))
            flags.reasons.append(list(dict.fromkeys([*prose, *training])))
        return flags

    def _reasons(self, story: str, words: int) -> tuple[list[str], list[str]]:
        """Why a text is no prose, and why it is unlike the training stories."""
        if not words:
            return [NO_WORDS], []
        bounds = self.bounds
        values = np.array(quantities(story, self.counted))
        row, scale = self._row(story, words)
        prose, training = (
            [
                reason
                for reason, distance in sorted(distances.items(), key=lambda item: -item[1])
                if scale * distance > bound
            ][:_MAX_REASONS]
            for distances, bound in (
                (bounds.prose_distances(values, row), bounds.prose[row]),
                (bounds.training_distances(values, row), 1.0),
            )
        )
        if bounds.has_other_length(words):
            shortest, longest = bounds.words.astype(int).tolist()
            training.append(f"{words:,} words; training stories have {shortest:,} to {longest:,}")
        return prose, training

    def save(self, folder: Path) -> None:
        """Write `scope.json`."""
        content = {
            part: {
                name: _plain(value)
                for name, value in vars(values).items()
                if name in values.__dataclass_fields__
            }
            for part, values in (("counted", self.counted), ("bounds", self.bounds))
        }
        write_sealed({**content, "held_out": self.held_out}, folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> "Scope | None":
        """Read `scope.json`; None if the folder has none, ModelError if it is broken."""
        path = folder / FILE
        if not path.exists():
            return None
        content = read_sealed(path, ModelError, "train the model again")
        try:
            counted, bounds = (
                {name: _value(value) for name, value in content[part].items()}
                for part in ("counted", "bounds")
            )
            return cls(Frequencies(**counted), Bounds(**bounds), dict(content["held_out"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(f"{path} is broken ({error}): train the model again") from error


def _limits(distances: np.ndarray, margin: float) -> np.ndarray:
    """Limits by reason that together flag at most 1 % of the stories, rounded up.

    They are the largest distances, times a margin, without the stories that are farthest by any
    reason, of which as many are left out as possible.

    Args:
        distances: shape (stories, reasons).
        margin: the factor, 1 or more.
    """
    usual = np.maximum(np.quantile(distances, 1 - _SHARE_FLAGGED, axis=0), _MIN_LIMIT)
    ordered = distances[np.argsort((distances / usual).max(axis=1), kind="stable")]
    max_flagged = math.ceil(_SHARE_FLAGGED * len(distances))
    for remaining in range(int(_MIN_REMAINING * len(ordered)), len(ordered) + 1):
        largest = ordered[:remaining].max(axis=0)
        limits: np.ndarray = margin * np.maximum(largest, _MIN_LIMIT)
        if (distances > limits).any(axis=1).sum() <= max_flagged:
            break
    return limits


def _count_words(texts: Sequence[str]) -> np.ndarray:
    counted = count_words(pa.array(map(valid_unicode, texts), pa.large_string()))
    words: np.ndarray = counted.to_numpy(zero_copy_only=False)
    return words


def _plain(value: Any) -> Any:
    """An array as its type, shape and base64; floats with half or single precision."""
    if not isinstance(value, np.ndarray):
        return value
    small = "<f2" if value.size > TABLE / 8 else "<f4"
    kind = "<i4" if value.dtype.kind == "i" else small
    data = base64.b64encode(value.astype(kind).tobytes()).decode()
    return {"type": kind, "shape": list(value.shape), "base64": data}


def _value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value["type"] not in ("<f2", "<f4", "<i4"):
        raise ValueError(f"unknown type {value['type']}")
    data = np.frombuffer(base64.b64decode(value["base64"]), np.dtype(value["type"]))
    array = data.reshape(value["shape"])
    return array.astype(np.int64 if array.dtype.kind == "i" else np.float64)
