"""The simulated readers: the same seed, the same votes; every weight does what it says."""

from dataclasses import replace

import numpy as np
import pytest

from litbench.curation.simulation import ReaderSimulation, simulate_votes

PROMPTS, STORIES = 150, 12
COUNT = PROMPTS * STORIES
PROMPT_IDS = [f"p{n // STORIES}" for n in range(COUNT)]
_random = np.random.default_rng(7)
QUALITY = _random.integers(1, 11, COUNT)
N_WORDS = np.round(np.exp(_random.normal(6, 0.6, COUNT))).astype(int)
OPTIONS = ReaderSimulation(seed=3)


def votes(**changes):
    return simulate_votes(PROMPT_IDS, QUALITY, N_WORDS, replace(OPTIONS, **changes))


def agreement(score, value):
    """Share of pairs of one prompt, different in both, whose higher score has the higher value."""
    right = unequal = 0
    for start in range(0, COUNT, STORIES):
        s, v = score[start : start + STORIES], value[start : start + STORIES]
        product = np.sign(s[:, None] - s[None, :]) * np.sign(v[:, None] - v[None, :])
        right += int((product > 0).sum())
        unequal += int((product != 0).sum())
    return right / unequal


def test_the_same_seed_gives_the_same_votes():
    first, second = votes(), votes()
    for name in ("created_utc", "score_utc", "score"):
        assert getattr(first, name).tolist() == getattr(second, name).tolist()
        assert getattr(first, name).dtype == np.int64
        assert getattr(first, name).shape == (COUNT,)


def test_another_seed_gives_other_votes():
    first, second = votes(), votes(seed=4)
    assert first.score.tolist() != second.score.tolist()
    assert first.created_utc.tolist() != second.created_utc.tolist()


def test_the_more_quality_weighs_the_more_votes_agree_with_it():
    shares = [agreement(votes(quality_weight=w).score, QUALITY) for w in (0.0, 0.4, 0.8, 1.6)]
    # Pairs share stories; so the share without any weight spreads around a half, by about 0.005.
    assert 0.46 < shares[0] < 0.54
    assert shares == sorted(shares)
    assert shares[-1] > shares[0] + 0.15


def test_a_negative_weight_turns_the_agreement_round():
    assert agreement(votes(quality_weight=-1.6).score, QUALITY) < 0.4


def test_without_a_taste_for_length_the_longer_story_wins_half():
    without = []
    for seed in range(10):
        # Lengths dealt anew: those of the module go with quality a little, by chance.
        n_words = np.random.default_rng(seed).permutation(N_WORDS)
        options = replace(OPTIONS, seed=seed, length_weight=0.0)
        drawn = simulate_votes(PROMPT_IDS, QUALITY, n_words, options)
        without.append(agreement(drawn.score, n_words))
    error = np.std(without, ddof=1) / len(without) ** 0.5
    # 10 seeds leave 9 degrees of freedom: a t of 4.3 is exceeded by chance in 1 of 500.
    assert abs(np.mean(without) - 0.5) < 4.3 * error
    assert error < 0.01


def test_a_taste_for_length_makes_the_longer_story_win():
    assert agreement(votes(length_weight=0.7).score, N_WORDS) > 0.58


def test_later_stories_meet_fewer_readers():
    drawn = votes(quality_weight=0.0, length_weight=0.0, noise=0.0, down=0.0)
    assert agreement(drawn.score, -drawn.created_utc) > 0.6
    lasting = votes(quality_weight=0.0, length_weight=0.0, noise=0.0, down=0.0, decay_hours=1e6)
    assert 0.46 < agreement(lasting.score, -lasting.created_utc) < 0.54


def test_scores_are_read_at_one_time_per_prompt_a_week_after_its_last_story():
    drawn = votes()
    created, read = (a.reshape(PROMPTS, STORIES) for a in (drawn.created_utc, drawn.score_utc))
    assert (read == created.max(axis=1, keepdims=True) + 7 * 24 * 3_600).all()
    assert (created >= OPTIONS.start_utc).all()


def test_only_votes_down_make_a_score_negative():
    assert (votes(down=0.0).score >= 0).all()
    assert (votes(base=-40.0, down=0.5).score <= 0).all()


@pytest.mark.parametrize(
    ("quality", "n_words"), [([5, 5, 5], [80, 90, 70]), ([1, 2, 3], [9, 9, 9])]
)
def test_values_that_are_all_equal_are_no_error(quality, n_words):
    drawn = simulate_votes(["a", "a", "b"], quality, n_words, OPTIONS)
    assert drawn.score.shape == (3,)
