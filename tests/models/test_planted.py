"""A preference that depends on the prompt is learned, by both objectives, and noise is not.

Every prompt names a key, and of two stories the one that holds this key wins. Every key wins as
often as it loses against every other, so no word is a mark of the better story: a model that does
not read the prompt cannot do better than chance.
"""

import itertools
import random

import numpy as np
import pytest

from litbench.metrics.intervals import jackknife_interval
from litbench.raters.interface import judge_pairs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("trl")

KEYS = ["salt", "copper", "moth", "river", "kettle", "orchard", "ladder", "winter"]
OTHERS = [
    *("the", "a", "of", "and", "she", "he", "carried", "opened", "forgot", "counted", "painted"),
    *("under", "over", "beyond", "toward", "slowly", "never", "lantern", "window", "gate"),
]
TEMPLATE = "answer: label\ntext: |-\n  : {prompt} A {story_a} B {story_b} ?\n"
# Generative with eight keys and seeds 0, 1, 2: agreement 0.944, 1.000, 0.999 after 5 epochs, and
# 0.997, 1.000, 0.981 after 6.
EPOCHS = {"reward": 2, "generative": 6}
BOTH = pytest.mark.parametrize("objective", ["reward", "generative"])


@pytest.fixture
def planted(pair_table):
    """Pairs of `keys` keys; every ordered two of them equally often.

    Shuffled labels are wrong in exactly half of the pairs of every two keys: thrown freely, a share
    of 0.48 right ones is a faint preference for the wrong story, and is learned.
    """

    def build(rounds, seed, keys, *, shuffled=False):
        source = random.Random(seed)

        def some():
            return " ".join(source.choices(OTHERS, k=source.randint(1, 3)))

        rows = []
        couples = list(itertools.permutations(KEYS[:keys], 2))
        halves = [False, True] * (rounds // 2)
        wrong = {couple: source.sample(halves, rounds) for couple in couples} if shuffled else {}
        for key, other in couples * rounds:
            stories = [f"{some()} {word} {some()}" for word in (key, other)]
            if shuffled and wrong[key, other].pop():
                stories.reverse()
            # The number of the prompt is no token of the model's, so only texts are held out.
            prompt = f"{some()} {some()} {some()} {key}"
            rows.append({"prompt": prompt, "chosen": stories[0], "rejected": stories[1]})
        return pair_table(
            [
                {
                    "prompt_id": f"{seed}-{index}",
                    "chosen_story_id": f"c{seed}-{index}",
                    "rejected_story_id": f"r{seed}-{index}",
                    "label_source": "planted",
                    **row,
                }
                for index, row in enumerate(rows)
            ]
        )

    return build


@pytest.fixture
def learn(tmp_path):
    """Train a decoder of two layers from nothing, through the trainers that people use."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415

    torch.set_num_threads(1)

    def run(objective, pairs, seed=0, **options):
        words = ["[unknown]", "[pad]", "[begin]", "[end]", "A", "B", "?", ":", *KEYS, *OTHERS]
        made = Tokenizer(
            models.WordLevel({word: index for index, word in enumerate(words)}, "[unknown]")
        )
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=made,
            **{
                f"{role}_token": f"[{name}]"
                for role, name in {
                    "unk": "unknown",
                    "pad": "pad",
                    "bos": "begin",
                    "eos": "end",
                }.items()
            },
        )
        config = transformers.LlamaConfig(
            vocab_size=len(words),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=256,
            num_labels=1,
            pad_token_id=1,
            bos_token_id=2,
            eos_token_id=3,
            # At the usual 0.02 so small a model takes thousands of steps to find the match.
            initializer_range=0.1,
        )
        torch.manual_seed(seed)
        kind = {"reward": "SequenceClassification", "generative": "CausalLM"}[objective]
        backbone = tmp_path / "backbone"
        getattr(transformers, f"LlamaFor{kind}")(config).save_pretrained(backbone)
        tokenizer.save_pretrained(backbone)
        ready = {
            "model_name_or_path": str(backbone),
            "max_length": 80,
            "learning_rate": 2e-3,
            "per_device_train_batch_size": 16,
            "gradient_accumulation_steps": 2,
            "seed": seed,
            "save_strategy": "no",
            **options,
        }
        if objective == "reward":
            from litbench.models.reward_training import RewardTraining, train_reward_model  # noqa: PLC0415

            return train_reward_model(pairs, RewardTraining(**ready), tmp_path / "run")
        from litbench.models.generative_training import (  # noqa: PLC0415
            GenerativeTraining,
            train_generative_model,
        )

        template = tmp_path / "short.yaml"
        template.write_text(TEMPLATE)
        ready |= {"template": str(template), "max_prompt_tokens": 16}
        return train_generative_model(pairs, GenerativeTraining(**ready), tmp_path / "run")

    return run


def worth_of(verdicts):
    """1, 0, or one half for a tie or no verdict; one number per pair and order."""
    worth = {"chosen": 1.0, "rejected": 0.0}
    return np.array([worth.get(outcome, 0.5) for outcome in verdicts["outcome"].to_pylist()])


def held_out(planted, train, rounds, keys):
    """Pairs whose prompts and stories stand in no training pair."""
    pairs = planted(rounds, 99, keys)
    seen = {text for name in ("prompt", "chosen", "rejected") for text in train[name].to_pylist()}
    columns = [pairs[name].to_pylist() for name in ("prompt", "chosen", "rejected")]
    fresh = [not seen & set(texts) for texts in zip(*columns, strict=True)]
    assert sum(fresh) > 0.8 * len(fresh)
    return pairs.filter(fresh)


def test_no_word_tells_the_better_story(planted):
    """The best linear model of words that does not join prompt and story stays at chance."""
    train = planted(30, 0, 8)
    test = held_out(planted, train, 20, 8)
    words = [*KEYS, *OTHERS]

    def difference(pairs):
        both = (pairs["chosen"].to_pylist(), pairs["rejected"].to_pylist())
        counts = [[[t.split().count(w) for w in words] for t in texts] for texts in both]
        return np.subtract(*map(np.array, counts)).astype(float)

    seen = difference(train)
    for index in range(len(KEYS)):
        assert (seen[:, index] > 0).sum() == (seen[:, index] < 0).sum() > 0
    weights = np.linalg.lstsq(seen, np.ones(len(seen)), rcond=None)[0]
    right = difference(test) @ weights > 0
    assert abs(right.mean() - 0.5) < 1.96 * 0.5 / np.sqrt(len(right))


@pytest.mark.parametrize(
    "objective", ["reward", pytest.param("generative", marks=pytest.mark.long)]
)
def test_a_planted_preference_is_learned_on_prompts_held_out(planted, learn, objective):
    train = planted(100, 0, 4)
    model = learn(objective, train, num_train_epochs=EPOCHS[objective])
    verdicts = judge_pairs(model, held_out(planted, train, 20, 4))
    assert worth_of(verdicts).mean() > 0.95
    assert verdicts["outcome"].to_pylist().count("unparsed") == 0


@pytest.mark.long
@BOTH
def test_a_planted_preference_of_more_keys_is_learned(planted, learn, objective):
    """Eight keys and 56 ordered couples of them: about 175 or 530 steps."""
    train = planted(50, 0, 8)
    model = learn(objective, train, num_train_epochs=EPOCHS[objective])
    test = held_out(planted, train, 8, 8)
    assert test.num_rows > 400
    assert worth_of(judge_pairs(model, test)).mean() > 0.95


@pytest.mark.long
@BOTH
def test_shuffled_labels_teach_nothing_about_the_preference(planted, learn, objective):
    """As many pairs and steps, every label thrown anew: 0.5 lies in the 95 % interval.

    Judged by the true labels of pairs held out. What a model makes of noise holds for a key as a
    whole, so the eight keys of the prompts are the clusters of the interval, not the prompts.
    """
    train = planted(50, 0, 8, shuffled=True)
    model = learn(objective, train, num_train_epochs=EPOCHS[objective])
    test = held_out(planted, train, 8, 8)
    verdicts = judge_pairs(model, test)
    key_of = {row["pair_id"]: row["prompt"].split()[-1] for row in test.to_pylist()}
    keys = [key_of[pair_id] for pair_id in verdicts["pair_id"].to_pylist()]
    result = jackknife_interval(worth_of(verdicts), keys)
    assert result.low < 0.5 < result.high
    # Wide enough for noise and too narrow for the preference.
    assert result.high < 0.8
