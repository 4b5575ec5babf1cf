"""The feature model: logistic regression on differences of surface features.

The baseline that every other rater should beat. It has interpretable coefficients and
probabilities, and is stored as JSON.
"""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.data.records import connected_prompts, pair_weights
from litbench.data.text import count_words, digest
from litbench.models.linear_preference import LinearRater, fit_to_pairs, leave_out_each
from litbench.models.record import FeaturesRecord, read_record
from litbench.raters.interface import blind, check_stories, quantiles_of, training_prompts_of
from litbench.raters.nonstories import add_negatives
from litbench.raters.scope import Scope
from litbench.runs.errors import ConfigError, DataError, ModelError
from litbench.runs.outputs import versions, write_sealed

_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
# Possessive quantifiers and the lookbehind keep the time linear; without them a page of dots takes
# minutes.
_SENTENCE_END = re.compile(r"(?<![.!?…。！？])[.!?…。！？]++[\"'”’)\]]*+\s+|\n+|[。！？]")
_QUOTED = re.compile(r"[\"“][^\"“”]{1,400}[\"”]")


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_PRONOUNS = {
    "rate_i": _words("i i'm i'd i've i'll me my mine myself"),
    "rate_you": _words("you your yours you're you'd you've you'll"),
    "rate_third_person": _words("he she him her his hers they them their it its"),
}
_FUNCTION_WORDS = _words(
    "the a an and but or of to in on at by for with from as that which who is was were be been had "
    "have has not no so if then than there this these those"
)


def _features(prompt: str, story: str, n_words: int) -> dict[str, float]:
    """Surface features of a story by name, all finite; rates are per word."""
    per_word = 1 / max(n_words, 1)
    paragraphs = [part for part in story.split("\n") if part.strip()]
    sentences = [part for part in _SENTENCE_END.split(story) if part and part.strip()]
    sentence_lengths = np.array([len(part.split()) for part in sentences] or [0], dtype=float)
    tokens = _TOKEN.findall(story)
    word_lengths = np.array([len(token) for token in tokens] or [0], dtype=float)
    # Longer texts repeat more words; a window makes texts of different lengths comparable.
    window = [_folded(token) for token in tokens[:200]]
    prompt_words = {w.lower() for w in _TOKEN.findall(prompt)} - _FUNCTION_WORDS
    quoted = sum(len(match) for match in _QUOTED.findall(story))
    # Counting distinct characters and words first is several times faster.
    characters, spellings = Counter(story), Counter(tokens)
    vocabulary: Counter[str] = Counter()
    for token, n in spellings.items():
        vocabulary[_folded(token)] += n
    letters = sum(n for letter, n in characters.items() if letter.isalpha())
    return {
        "log_words": math.log1p(n_words),
        "log_paragraphs": math.log1p(len(paragraphs)),
        "words_per_paragraph": math.log1p(n_words / max(len(paragraphs), 1)),
        "sentence_length": math.log1p(sentence_lengths.mean()),
        "sentence_length_sd": math.log1p(sentence_lengths.std()),
        "word_length": word_lengths.mean(),
        "word_length_sd": word_lengths.std(),
        "type_token_ratio": len(set(window)) / max(len(window), 1),
        "function_words": _total(vocabulary, _FUNCTION_WORDS) * per_word,
        **{name: _total(vocabulary, words) * per_word for name, words in _PRONOUNS.items()},
        "lower_case_i": float(len(re.findall(r"(?<![\w.])i(?![\w.])", story)) > 0),
        "quoted_share": quoted / max(len(story), 1),
        "commas": story.count(",") * per_word,
        "exclamations": story.count("!") * per_word,
        "questions": story.count("?") * per_word,
        "ellipses": (story.count("...") + story.count("…")) * per_word,
        "dashes": (story.count("—") + story.count("–") + story.count(" - ") + story.count("--"))
        * per_word,
        "semicolons": (story.count(";") + story.count(":")) * per_word,
        "asterisks": math.log1p(story.count("*") + story.count("_")),
        "digits": sum(n for letter, n in characters.items() if letter.isdigit()) * per_word,
        "capitals": sum(n for letter, n in characters.items() if letter.isupper())
        / max(letters, 1),
        "all_caps_words": sum(n for t, n in spellings.items() if len(t) > 1 and t.isupper())
        * per_word,
        "ends_in_quote": float(story.rstrip()[-1:] in ('"', "”", "*")),
        "last_sentence_length": math.log1p(sentence_lengths[-1]),
        "prompt_overlap": len(prompt_words & vocabulary.keys()) / max(len(prompt_words), 1),
    }


def _folded(token: str) -> str:
    return token.lower().replace("’", "'")


def _total(counts: Counter[str], words: Collection[str]) -> int:
    return sum(counts[word] for word in words)


# Names of the surface features, in the order of the columns of `feature_matrix`.
FEATURES = tuple(_features("", "", 0))
# What pages call them, after "higher in" or "lower in".
FEATURE_TEXTS = {
    "log_words": "words",
    "log_paragraphs": "paragraphs",
    "words_per_paragraph": "words per paragraph",
    "sentence_length": "words per sentence",
    "sentence_length_sd": "variation of sentence length",
    "word_length": "letters per word",
    "word_length_sd": "variation of word length",
    "type_token_ratio": "variety of words",
    "function_words": "function words",
    "rate_i": "“I” and “my”",
    "rate_you": "“you”",
    "rate_third_person": "“he”, “she”, “it”, “they”",
    "lower_case_i": "use of a small “i”",
    "quoted_share": "dialogue",
    "commas": "commas",
    "exclamations": "exclamation marks",
    "questions": "question marks",
    "ellipses": "ellipses",
    "dashes": "dashes",
    "semicolons": "semicolons and colons",
    "asterisks": "asterisks and underscores",
    "digits": "digits",
    "capitals": "capital letters",
    "all_caps_words": "words in capitals",
    "ends_in_quote": "dialogue at the end",
    "last_sentence_length": "words in the last sentence",
    "prompt_overlap": "words of the prompt",
}


def feature_matrix(prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
    """Surface features of many stories; float64, shape (n, len(FEATURES))."""
    if not stories:
        return np.zeros((0, len(FEATURES)))
    # Count all texts at once: for a single text, Arrow spends its time compiling the expression.
    words = count_words(pa.array(stories, pa.large_string())).to_pylist()
    texts = zip(prompts, stories, words, strict=True)
    rows = [list(_features(prompt, story, n).values()) for prompt, story, n in texts]
    return np.array(rows, dtype=np.float64)


# Minimum number of stories per process, since starting one takes a second.
_STORIES_PER_PROCESS = 2_000
_STORIES_AT_ONCE = 500
# Features by a hash of prompt and story.
_shared: dict[str, np.ndarray] = {}


def shared_matrix(prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
    """`feature_matrix`, computed once per story and process: folds and filters share stories.

    Many stories are computed in a process per core.
    """
    keys = [digest(prompt, story) for prompt, story in zip(prompts, stories, strict=True)]
    missing = {key: row for row, key in enumerate(keys) if key not in _shared}
    rows = list(missing.values())
    values = _on_all_cores([prompts[row] for row in rows], [stories[row] for row in rows])
    _shared.update(zip(missing, values, strict=True))
    return np.array([_shared[key] for key in keys]).reshape(len(keys), len(FEATURES))


def _on_all_cores(prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
    # Processes started by a launcher share the cores of the machine.
    cores = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    processes = min(cores, len(stories) // _STORIES_PER_PROCESS)
    if processes < 2:
        return feature_matrix(prompts, stories)
    from joblib import Parallel, delayed  # noqa: PLC0415

    pieces = (slice(at, at + _STORIES_AT_ONCE) for at in range(0, len(stories), _STORIES_AT_ONCE))
    rows = (delayed(feature_matrix)(prompts[piece], stories[piece]) for piece in pieces)
    return np.concatenate(Parallel(processes)(rows))


@dataclass
class FeatureOptions:
    """Options of a feature model.

    Attributes:
        c: inverse regularisation strengths to select from, in 5 folds of the training prompts.
        drop: features to leave out.
        negatives: add texts that are no stories as rejected sides of training pairs; see
            `litbench.raters.nonstories.add_negatives`.
    """

    c: list[float] = field(default_factory=lambda: [0.001, 0.01, 0.1, 1.0])
    drop: list[str] = field(default_factory=list)
    negatives: bool = False

    def train(self, name: str, pairs: pa.Table, folder: Path, seed: int) -> "FeatureModel":
        """Train in cross-validation, with shared features; deterministic, writes no files."""
        del folder, seed
        return fit_features(pairs, self, name, shared_matrix)


@dataclass
class FeatureModel(LinearRater):
    """Bradley-Terry on surface features: reward = coefficients . (features - mean) / scale.

    Attributes:
        names: names of the features used.
        mean: mean of each feature over the training stories.
        scale: standard deviation of each feature over the training stories; 1 if it never varies.
        coefficients: coefficients of the standardised features; positive means readers preferred
            more of the feature.
        c: the selected inverse regularisation strength.
        prompts: `prompt_key` of the training prompts.
        negatives: number of negatives in training.
        matrix: computes the features; `shared_matrix` in cross-validation.
    """

    name: str
    names: tuple[str, ...]
    mean: np.ndarray
    scale: np.ndarray
    coefficients: np.ndarray
    c: float
    prompts: frozenset[str]
    kind: str = "features"
    negatives: int = 0
    # A factory, as a function that is the default would be a method of the class.
    matrix: Callable[[Sequence[str], Sequence[str]], np.ndarray] = field(
        default_factory=lambda: feature_matrix
    )
    gives_probability = True

    def vectors(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Standardised features; float64, shape (n, features)."""
        columns = [FEATURES.index(name) for name in self.names]
        vectors: np.ndarray = (self.matrix(prompts, stories)[:, columns] - self.mean) / self.scale
        return vectors

    def score(self, prompts: Sequence[str], stories: Sequence[str]) -> np.ndarray:
        """Rewards in log-odds; float64, shape (n,)."""
        check_stories(stories)
        terms = self.vectors(prompts, stories) * self.coefficients
        # The order of numpy's summation depends on memory layout and batch size; fsum rounds once,
        # so a story's reward does not depend on the batch.
        return np.array([math.fsum(row) for row in terms.tolist()], dtype=np.float64)

    def training_prompts(self) -> frozenset[str]:
        return self.prompts

    def notes(self) -> dict[str, Any]:
        """The selected strength and the coefficients, largest first."""
        order = np.argsort(-np.abs(self.coefficients))
        return {
            "c": self.c,
            "coefficients": {self.names[i]: round(float(self.coefficients[i]), 4) for i in order},
        }

    def save(self, folder: Path) -> None:
        """Write `features.json`, and `scope.json` if the scope is known, into a folder."""
        content = {
            "kind": self.kind,
            "c": self.c,
            "negatives": self.negatives,
            "features": [
                {"name": n, "mean": m, "scale": s, "coefficient": w}
                for n, m, s, w in zip(
                    self.names,
                    self.mean.tolist(),
                    self.scale.tolist(),
                    self.coefficients.tolist(),
                    strict=True,
                )
            ],
            "reward_quantiles": self.reward_quantiles,
            "columns": dict(self.columns),
            "training_prompts": sorted(self.prompts),
            "versions": versions(),
        }
        write_sealed(content, folder / "features.json")
        if self.scope is not None:
            self.scope.save(folder)

    @classmethod
    def load(cls, folder: Path, name: str = "features") -> "FeatureModel":
        """Load a model; its scores are exactly those of the saved model."""
        path = folder / "features.json"
        record = read_record(path, FeaturesRecord, "train it with train/features.py")
        names = tuple(feature.name for feature in record.features)
        unknown = sorted(set(names) - set(FEATURES))
        if unknown or len(set(names)) < len(names):
            raise ModelError(f"{path} uses unknown or repeated features {unknown}: train it again")
        mean, scale, coefficients = (
            np.array([getattr(feature, key) for feature in record.features], dtype=np.float64)
            for key in ("mean", "scale", "coefficient")
        )
        prompts = frozenset(record.training_prompts)
        model = cls(name, names, mean, scale, coefficients, record.c, prompts)
        model.negatives = record.negatives
        model.reward_quantiles, model.columns = record.reward_quantiles, record.columns
        model.scope = Scope.load(folder)
        return model


def fit_features(
    pairs: pa.Table,
    options: FeatureOptions,
    name: str = "features",
    matrix: Callable[[Sequence[str], Sequence[str]], np.ndarray] = feature_matrix,
) -> FeatureModel:
    """Fit a feature model to preference pairs.

    Logistic regression without intercept on feature(first) - feature(second), which is the
    Bradley-Terry model with a linear reward (paper 4.1). The strength of the L2 penalty is
    selected by log-loss in folds over the training prompts.

    Args:
        pairs: table with the schema PAIRS.
        options: see FeatureOptions.
        name: name of the rater.
        matrix: computes the features.
    """
    if pairs.num_rows < 2:
        raise DataError(f"{pairs.num_rows} pairs are too few to fit features: give at least two")
    unknown = sorted(set(options.drop) - set(FEATURES))
    if unknown:
        raise ConfigError(f"drop: unknown features {unknown}: valid are {', '.join(FEATURES)}")
    names = tuple(n for n in FEATURES if n not in options.drop)
    if not names:
        raise ConfigError("drop: every feature is dropped: keep at least one")
    columns = [FEATURES.index(n) for n in names]
    n_pairs, prompts = pairs.num_rows, training_prompts_of(pairs)
    if options.negatives:
        pairs = add_negatives(pairs)
    blinded, chosen_first = blind(pairs)
    # The texts of negatives come last.
    sides = [(p.prompt, s) for p in blinded for s in (p.first, p.second)]
    texts = sorted(set(sides[: 2 * n_pairs]))
    n_stories = len(texts)
    texts += sorted(set(sides).difference(texts))
    index = {text: row for row, text in enumerate(texts)}
    features = matrix([p for p, _ in texts], [s for _, s in texts])[:, columns]
    mean, scale = features[:n_stories].mean(0), features[:n_stories].std(0)
    scale[scale < 1e-12] = 1.0
    standard = (features - mean) / scale
    first = standard[[index[p.prompt, p.first] for p in blinded]]
    second = standard[[index[p.prompt, p.second] for p in blinded]]
    differences = first - second
    strength, coefficients = fit_to_pairs(pairs, differences, chosen_first, options.c)
    model = FeatureModel(name, names, mean, scale, coefficients, strength, prompts, matrix=matrix)
    model.negatives = pairs.num_rows - n_pairs
    model.reward_quantiles = quantiles_of(standard[:n_stories] @ coefficients)
    groups, weights = connected_prompts(pairs), pair_weights(pairs)
    model.without_each = partial(
        leave_out_each, differences, chosen_first, groups, strength, coefficients, weights
    )
    return model


@dataclass
class PathOptions:
    """Options of a saved feature model: `path`, a folder with `features.json`."""

    path: Path

    def load(self, name: str) -> FeatureModel:
        return FeatureModel.load(self.path, name)
