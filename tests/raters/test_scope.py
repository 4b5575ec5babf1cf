"""The scope of a rater: what it flags, that it does not flag stories, and how it is stored."""

import json
import random
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from litbench.models.features import FeatureModel, FeatureOptions, fit_features
from litbench.raters.nonstories import read_sentences
from litbench.raters.quantities import NAMES, quantities
from litbench.raters.scope import FILE, MIN_STORIES, NO_WORDS, NOT_LEARNT, SIZES, Scope
from litbench.runs.config import read_yaml
from litbench.runs.errors import ModelError

_SUBJECTS = [
    "the old man",
    "a girl",
    "my brother",
    "the captain",
    "she",
    "he",
    "the dog",
    "nobody",
    "her mother",
]
_VERBS = [
    "opened",
    "closed",
    "saw",
    "carried",
    "remembered",
    "left",
    "followed",
    "forgot",
    "painted",
    "heard",
]
_OBJECTS = [
    "the door",
    "a letter",
    "the river",
    "his coat",
    "the lamp",
    "that song",
    "her garden",
    "a boat",
]
_ENDS = [
    "in the rain",
    "before dawn",
    "without a word",
    "that winter",
    "again",
    "for the last time",
]


def _story(source, words):
    """Sentences of a small grammar, so that words have an order."""
    sentences = []
    while sum(len(sentence.split()) for sentence in sentences) < words:
        parts = [source.choice(part) for part in (_SUBJECTS, _VERBS, _OBJECTS, _ENDS)]
        joined = " ".join(parts)
        sentences.append(joined[0].upper() + joined[1:] + source.choice([".", ".", "?", "!"]))
    paragraphs = [" ".join(sentences[k : k + 4]) for k in range(0, len(sentences), 4)]
    return "\n\n".join(paragraphs)


def _stories(seed, n=60):
    source = random.Random(seed)
    return [_story(source, source.randint(100, 200)) for _ in range(n)]


@pytest.fixture(scope="module")
def scope():
    learnt = Scope.learn([f"p{index % 12}" for index in range(120)], _stories(1, 120))
    assert learnt is not None
    return learnt


def _shuffled(text):
    words = text.split()
    random.Random(3).shuffle(words)
    return " ".join(words)


def _garbled(story):
    """A story with the letters of every second word in another order."""
    source = random.Random(4)
    words = story.split()
    for index in range(0, len(words), 2):
        words[index] = "".join(source.sample(words[index], len(words[index])))
    return " ".join(words)


def test_garbled_words_are_flagged_where_the_common_limit_is_wide(scope):
    """As where a few training stories have lists."""

    def flagged(units, texts):
        bounds = replace(scope.bounds, training=20 * scope.bounds.training, training_units=units)
        wide = Scope(scope.counted, bounds, {})
        # Without the reasons of `is_prose`.
        reasons = [wide._reasons(text, len(text.split()))[1] for text in texts]
        return ["unlike the language" in " ".join(each) for each in reasons]

    stories = _stories(2, 5)
    garbled = [_garbled(story) for story in stories]
    assert flagged(scope.bounds.training_units, garbled) == [True] * 5
    assert flagged(scope.bounds.training_units, stories) == [False] * 5
    assert flagged(np.full(6, np.inf), garbled) == [False] * 5


def _repeated(story):
    """A story whose longest paragraph occurs four times."""
    paragraphs = story.split("\n\n")
    return "\n\n".join([*paragraphs, *3 * [max(paragraphs, key=len)]])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(_repeated, "repeats itself", id="repeated paragraphs"),
        pytest.param(lambda story: f"{story}\n{_CODE * 3}", "a passage", id="code inside"),
        pytest.param(_shuffled, "unusual order", id="shuffled words"),
    ],
)
def test_damage_has_its_reason_where_the_common_limit_is_wide(scope, change, reason):
    bounds = replace(scope.bounds, training=np.full_like(scope.bounds.training, np.inf))
    wide = Scope(scope.counted, bounds, {})
    for story in _stories(2, 5):
        assert not wide._reasons(story, len(story.split()))[1]
        damaged = change(story)
        assert reason in " ".join(wide._reasons(damaged, len(damaged.split()))[1])


def test_a_passage_counts_alike_in_a_long_story(scope):
    column = NAMES.index("stretch")
    alone, inside = (
        quantities(text, scope.counted)[column]
        for text in (_CODE * 4, f"{_story(random.Random(9), 1_500)}\n{_CODE * 4}")
    )
    assert inside > 0.9 * alone


def test_other_prose_has_less_of_the_common_words_of_stories(scope):
    paragraphs = read_yaml(files("litbench.raters") / "other_prose.yaml")["en"]
    column = NAMES.index("story")

    def largest(texts):
        return max(quantities(text, scope.counted)[column] for text in texts)

    assert largest(paragraphs) < min(
        quantities(story, scope.counted)[column] for story in _stories(2, 20)
    )


def test_the_paragraphs_of_other_prose_are_none_of_the_texts_that_are_compared():
    other = read_yaml(files("litbench.raters") / "other_prose.yaml")
    for language, pool in read_sentences().items():
        text = " ".join(other[language])
        sentences = [line for kind in ("plan", "refusal") for line in pool[kind]]
        assert not [line for line in sentences if line.rstrip(".。") in text]


_CODE = "def f(x):\n    return {x: [i ** 2 for i in range(10) if i % 3 == 0]}\n\n"


@pytest.mark.parametrize(
    ("change", "is_prose"),
    [
        pytest.param(lambda _: "...", False, id="no words"),
        pytest.param(lambda _: '"' * 200, False, id="quotation marks"),
        pytest.param(lambda _: _CODE * 12, False, id="code"),
        pytest.param(lambda _: json.dumps({"a": list(range(300))}), False, id="json"),
        pytest.param(lambda story: story[::-1], False, id="reversed"),
        pytest.param(lambda story: story.upper(), False, id="capitals"),
        pytest.param(lambda story: "".join(story.split()), False, id="no spaces"),
        pytest.param(lambda _: "He left. " * 60, False, id="repetition"),
        pytest.param(lambda _: "она открыла дверь " * 40, False, id="another script"),
        pytest.param(_shuffled, None, id="shuffled words"),
        pytest.param(lambda story: " ".join(story.split()[:3]), True, id="cut"),
        pytest.param(lambda story: f"{story} {story} {story}", None, id="three times as long"),
    ],
)
def test_texts_that_are_no_stories_are_flagged(scope, change, is_prose):
    flags = scope.flags([change(story) for story in _stories(2, 5)])

    assert not any(flags.like_training)
    assert all(flags.reasons)
    if is_prose is not None:
        assert flags.is_prose == [is_prose] * 5


def test_training_stories_that_repeat_themselves_hide_no_other_text():
    stories = [*_stories(1, 114), *["\n\n".join([story] * 12) for story in _stories(8, 6)]]
    scope = Scope.learn([f"p{index % 12}" for index in range(120)], stories)
    _, story = _stories(2, 2)
    flags = scope.flags([_CODE * 12, story[::-1], story.upper(), story])

    assert flags.is_prose == [False, False, False, True]
    assert scope.held_out["is_prose"] <= 0.02


def test_other_stories_of_the_same_kind_are_not_flagged(scope):
    flags = scope.flags(_stories(4, 100))

    assert sum(flags.is_prose) == 100
    assert sum(flags.like_training) >= 90
    assert [bool(reasons) for reasons in flags.reasons] == [
        not like for like in flags.like_training
    ]


def test_a_short_story_is_prose_of_another_length(scope):
    short = scope.flags([_story(random.Random(5), 40)])

    assert (short.is_prose, short.like_training) == ([True], [False])
    assert "training stories have" in short.reasons[0][-1]


def test_flags_do_not_depend_on_the_batch_and_survive_saving(scope, tmp_path):
    texts = [*_stories(6, 4), "...", _CODE, "", "\ud800", "word", *map(_shuffled, _stories(7, 4))]
    scope.save(tmp_path)
    loaded = Scope.load(tmp_path)

    together = loaded.flags(texts)
    alone = [loaded.flags([text]) for text in texts]
    assert together.is_prose == [flags.is_prose[0] for flags in alone]
    assert together.reasons == [flags.reasons[0] for flags in alone]
    assert together.like_training == scope.flags(texts).like_training
    assert together.reasons[texts.index("")] == [NO_WORDS]
    assert loaded.held_out == scope.held_out


def test_a_broken_file_is_named(scope, tmp_path):
    scope.save(tmp_path)
    content = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    (tmp_path / FILE).write_text(json.dumps(content | {"bounds": 3}), encoding="utf-8")

    with pytest.raises(ModelError, match=FILE):
        Scope.load(tmp_path)


def test_bounds_are_those_of_held_out_stories(scope):
    bounds = scope.bounds

    assert bounds.sizes.tolist() == [size for size in SIZES if size <= 80]
    assert (bounds.low <= bounds.middle).all()
    assert (bounds.middle <= bounds.high).all()
    assert scope.held_out["stories"] == 120
    assert scope.held_out["is_prose"] <= 0.02
    assert 100 <= bounds.words[0] < bounds.words[1] <= 210
    assert [bounds.has_other_length(n) for n in (80, 95, 215, 250)] == [True, False, False, True]


def test_too_few_stories_give_no_scope():
    stories = _stories(1, MIN_STORIES - 1)

    assert Scope.learn([f"p{index % 12}" for index in range(len(stories))], stories) is None


def test_a_model_stores_its_scope_and_one_without_says_so(pair_table, tmp_path):
    chosen, rejected = _stories(8, 30), _stories(9, 30)
    rows = [
        {
            "chosen": a,
            "rejected": b,
            "prompt_id": f"p{index % 10}",
            "prompt": f"prompt {index % 10}",
        }
        for index, (a, b) in enumerate(zip(chosen, rejected, strict=True))
    ]
    pairs = pair_table(rows)
    model = fit_features(pairs, FeatureOptions(c=[0.1]))
    texts = [chosen[0], _CODE * 9]

    assert model.flags(texts).reasons == [[NOT_LEARNT]] * 2
    assert model.flags(texts).is_prose == [None, None]
    before = model.score(["a", "b"], texts)
    model.learn_scope(pairs)
    model.save(tmp_path)
    loaded = FeatureModel.load(tmp_path)
    assert loaded.flags(texts).is_prose == [True, False]
    assert np.array_equal(loaded.score(["a", "b"], texts), before)
