"""Reward shaping for reinforcement learning: length, clipping, scaling, and trl's interface."""

import json
import logging
import math
from types import SimpleNamespace

import numpy as np
import pytest

from litbench.data.sample import read_sample
from litbench.data.text import count_words_of, prompt_key
from litbench.metrics.diversity import distinct_trigrams
from litbench.rl.rewards import PolicyReward, RewardShaping
from litbench.runs.config import build
from litbench.runs.errors import ConfigError, DataError, ModelError

PLAIN = RewardShaping(penalty=0)


class Stars:
    """Rewards a story by its number of stars and its number of words."""

    def __init__(self, per_word=0.0):
        self.per_word, self.seen = per_word, 0

    def score(self, prompts, stories):
        assert len(prompts) == len(stories)
        self.seen += len(stories)
        return np.array(
            [
                math.nan if "nan" in s else s.count("*") + self.per_word * count_words_of(s)
                for s in stories
            ]
        )


def words(count, stars=0):
    return " ".join(["word"] * count) + " *" * stars


def human_stories(stars, prompt="p", count=10):
    return [prompt] * len(stars), [words(count, n) for n in stars]


def with_metrics(reward, prompts, stories):
    """The rewards, and the logged metrics without the reward's name."""
    metrics = {}
    result = reward(prompts, stories, log_metric=metrics.__setitem__, trainer_state=None)
    return result, {name.removeprefix(f"{reward.__name__}/"): metrics[name] for name in metrics}


def test_messages_and_texts_get_the_same_reward():
    reward = PolicyReward(Stars(), PLAIN, story_of=lambda text: text.removeprefix("* thought "))
    message = {"role": "assistant", "content": "* thought a *"}
    parts = {"role": "assistant", "content": [{"type": "text", "text": "* thought a *"}]}
    asked = [{"role": "system", "content": "s"}, {"role": "user", "content": "p"}]
    tool = {"role": "tool", "content": "* * * * *"}
    forms = [[message], [parts], [message, tool], message, "* thought a *"]
    assert reward([asked] * 3 + [asked[1], "p"], forms) == [1.0] * 5


@pytest.mark.parametrize("prompt", [None, " ", [], [{"role": "system", "content": "s"}]])
def test_empty_prompt(prompt):
    reward = PolicyReward(Stars(), PLAIN)
    with pytest.raises(DataError, match="no user message"):
        reward(["p", prompt], ["a", "b"])


def test_the_prompt_is_read_from_its_column():
    prompts = []

    class Keeps(Stars):
        def score(self, asked, stories):
            prompts.extend(asked)
            return super().score(asked, stories)

    reward = PolicyReward(Keeps(), PLAIN, prompt_column="writing_prompt")
    reward(["Write about p"], ["a *"], completion_ids=[[1]], writing_prompt=["p"])
    assert prompts == ["p"]
    with pytest.raises(ConfigError, match="prompt_column is writing_prompt, but"):
        reward(["Write about p"], ["a *"], completion_ids=[[1]])


def test_clipping_at_human_quantile():
    references = human_stories([0, 1, 2, 3])
    reward = PolicyReward(Stars(), RewardShaping(penalty=0, clip=1.0), references=references)
    result, metrics = with_metrics(reward, ["p", "p", "q"], [words(5, n) for n in (2, 3, 20)])
    assert result == [2.0, 3.0, 3.0]
    assert metrics["clipped_share"] == pytest.approx(1 / 3)
    assert metrics["raw"] == pytest.approx(np.mean([2, 3, 20]))
    half = RewardShaping(penalty=0, clip=0.5)
    assert PolicyReward(Stars(), half, references=references)(["p"], [words(5, 20)]) == [1.5]


@pytest.mark.parametrize("per_word", [1.0, -1.0])
def test_too_long_story_gets_less_than_its_prefix(per_word):
    # Even with a rater that strongly prefers length.
    shaping = RewardShaping(min_words=5, max_words=20, penalty=0.1)
    reward = PolicyReward(Stars(1_000 * per_word), shaping)
    beginning, whole = words(20), words(21, 500)
    longer = words(200)
    result, metrics = with_metrics(reward, ["p"] * 3, [beginning, whole, longer])
    assert result[0] > result[1] > result[2]
    assert metrics["guarded_share"] == pytest.approx(2 / 3)
    assert metrics["words"] == pytest.approx(np.mean([20, 21, 200]))


def test_penalty_formula():
    shaping = RewardShaping(min_words=10, max_words=20, penalty=2.0)
    reward = PolicyReward(Stars(), shaping)
    texts = [words(15, 1), words(30, 0), words(5, 3)]
    assert reward(["p"] * 3, texts) == [1.0, -2.0 * 10 / 20, 3 - 2.0 * 5 / 10]


def test_default_penalty_has_the_scale_of_the_references():
    # Within a prompt the rewards are 0 and 2, or 10 and 12: the standard deviation is sqrt(2).
    prompts, stories = ["p", "p", "q", "q"], [words(10, stars) for stars in (0, 2, 10, 12)]
    shaping = RewardShaping(min_words=10, max_words=20)
    reward = PolicyReward(Stars(), shaping, references=(prompts, stories))
    result, metrics = with_metrics(reward, ["p"] * 2, [words(15, 4), "* * * * " + words(40)])
    assert result == pytest.approx([4.0, 4.0 - math.sqrt(2)])
    assert metrics["penalty_share"] == 1.0
    _, metrics = with_metrics(reward, ["p"] * 2, [words(15, 4), words(15, 2)])
    assert metrics["penalty_share"] == 0.0
    with pytest.raises(ConfigError, match="within a prompt"):
        PolicyReward(Stars(), shaping, references=(["p", "q"], stories[:2]))


def test_empty_completion_gets_the_lowest_reward():
    texts = ["", " *** ", words(3, 2), words(3, 4)]
    shaping = RewardShaping(min_words=1, max_words=9, penalty=0.5)
    reward = PolicyReward(Stars(), shaping)
    result, metrics = with_metrics(reward, ["p"] * 4, texts)
    assert result[:2] == [2.0 - 0.5] * 2
    assert metrics["empty_share"] == 0.5
    assert reward(["p"], [""]) == [-0.5]


def test_a_completion_that_is_no_prose_gets_the_lowest_reward():
    rater = Stars()
    rater.scope = SimpleNamespace(
        flags=lambda texts: SimpleNamespace(is_prose=["{" not in text for text in texts])
    )
    reward = PolicyReward(rater, RewardShaping(min_words=1, max_words=9, penalty=0.5))
    texts = ["{ a * * * * * * }", "", words(3, 2), words(3, 4)]
    result, metrics = with_metrics(reward, ["p"] * 4, texts)
    assert result == [1.5, 1.5, 2.0, 4.0]
    assert (metrics["no_prose_share"], metrics["empty_share"]) == (0.25, 0.25)


def test_non_finite_rewards():
    reward = PolicyReward(Stars(), RewardShaping(penalty=0))
    result, metrics = with_metrics(reward, ["p"] * 3, ["a *", "nan", "b * *"])
    assert result == [1.0, None, 2.0]
    assert metrics["unscored_share"] == pytest.approx(1 / 3)
    with pytest.raises(ModelError, match="2 completions"):
        reward(["p"] * 2, ["nan", "nan"])


def test_missing_references():
    with pytest.raises(ConfigError, match="clip, penalty, min_words and max_words"):
        PolicyReward(Stars(), RewardShaping(clip=0.9))
    for text in ("!", "nan"):
        with pytest.raises(DataError, match="no finite reward"):
            PolicyReward(Stars(), PLAIN, references=(["p"], [text]))
    for wrong in ({"clip": 0}, {"penalty": -1}, {"penalty": math.nan}):
        with pytest.raises(ConfigError, match=f"key '{next(iter(wrong))}' is"):
            build(RewardShaping, wrong)


def test_load_from_folder(tmp_path, pair_table):
    from litbench.models.features import FeatureOptions, fit_features  # noqa: PLC0415

    rows = [{"chosen": words(9 + k), "rejected": words(3 + k)} for k in range(8)]
    model = fit_features(pair_table(rows), FeatureOptions())
    model.save(tmp_path)
    reward = PolicyReward.load(tmp_path, PLAIN)
    assert reward(["p"], [words(7)]) == model.score(["p"], [words(7)]).tolist()


def test_distinct_trigrams():
    assert distinct_trigrams(["a b c d", "e f g"]) == 1.0
    assert distinct_trigrams(["a b c"] * 4) == 0.25
    assert distinct_trigrams(["A, b c!", "a b c"]) == 0.5
    assert distinct_trigrams([" ".join(map(str, [*range(50), 0, 1, 2]))]) == 1.0
    assert distinct_trigrams(["你好吗", "你好吗"]) == 0.5
    assert math.isnan(distinct_trigrams(["", "a b"]))


def test_held_out_prompts_are_unknown_to_raters(tmp_path, load_program, story_table):
    from litbench.data.tables import write_table  # noqa: PLC0415

    program = load_program("train/grpo.py")
    rows = [{"prompt_id": f"p{k}", "prompt": f"Prompt {k}", "text": words(60)} for k in range(6)]
    write_table(story_table(rows), tmp_path / "stories.parquet")
    config = program.Config(
        stories=tmp_path / "stories.parquet",
        rater={},
        out=tmp_path,
        model_name_or_path="none",
        held_out=3,
    )
    hashes = frozenset(prompt_key(f"Prompt {k}") for k in range(3))
    rater = SimpleNamespace(training_prompts=lambda: hashes)
    rest, held_out = program.divide(config, {"reward": rater}, 0)
    assert set(held_out) == {f"Prompt {k}" for k in range(3, 6)}
    assert set(rest) == {f"Prompt {k}" for k in range(3)}
    config.held_out = 4
    with pytest.raises(DataError, match="3 of them in no rater"):
        program.divide(config, {"reward": rater}, 0)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"other_raters": {"reward": {"kind": "longer"}}}, "this name is reserved"),
        ({"grpo": {"num_generations": 1}}, "grpo: .*at least 2 generations"),
        ({"grpo": {"max_step": 1}}, "grpo: unknown key 'max_step': did you mean 'max_steps'"),
    ],
)
def test_invalid_config_fails_before_training(tmp_path, load_program, keys, says):
    program = load_program("train/grpo.py")
    config = program.Config(
        stories=tmp_path / "none.parquet",
        rater={"kind": "longer"},
        out=tmp_path,
        model_name_or_path="none",
        **keys,
    )
    with pytest.raises(ConfigError, match=says):
        program.main(config)


def test_tie_with_human_story_counts_half(load_program):
    compare = load_program("train/grpo.py").compare
    before, after = np.array([[0.0, 2.0], [5.0, 5.0]]), np.array([[2.0, 2.0], [7.0, 5.0]])
    human = {"p": np.array([0.0, 2.0, 4.0]), "q": np.array([5.0])}
    result = compare(before, after, human)
    assert result["win_rate_people_before"] == pytest.approx(((0.5 + 1.5) / 6 + 0.5) / 2)
    assert result["win_rate_people_after"] == pytest.approx((1.5 / 3 + 0.75) / 2)
    assert result["gain"]["mean"] == pytest.approx(1.0)


def test_grpo_program_resumes_and_writes_results(
    tmp_path, load_program, tiny_model, monkeypatch, caplog
):
    from litbench.data.tables import write_table  # noqa: PLC0415

    pytest.importorskip("tensorboard")
    program = load_program("train/grpo.py")
    sample = read_sample()
    write_table(sample.slice(0, 52), tmp_path / "stories.parquet")
    config = program.Config(
        stories=tmp_path / "stories.parquet",
        rater={"kind": "longer"},
        out=tmp_path / "out",
        model_name_or_path=str(tiny_model("llama", head="language", positions=2_048)),
        other_raters={"shorter": {"kind": "shorter"}},
        held_out=2,
        max_words=150,
        samples_per_prompt=2,
        grpo={
            "max_steps": 2,
            "num_generations": 2,
            "per_device_train_batch_size": 2,
            "max_completion_length": 12,
            "beta": 0.04,
            "save_steps": 1,
            "use_cpu": True,
            "report_to": ["tensorboard"],
        },
    )
    load = program.load_backbone

    def nameless(*arguments, **options):
        """Load a model as from a GGUF file, whose name transformers cannot load."""
        model, tokenizer = load(*arguments, **options)
        model.config._name_or_path = "no/such-model"
        return model, tokenizer

    monkeypatch.setattr(program, "load_backbone", nameless)
    caplog.set_level(logging.ERROR)
    trained_to = []
    whole = program.PolicyReward.__call__

    def stops(self, *args, **kwargs):
        trained_to.append(kwargs["trainer_state"].global_step)
        if len(trained_to) == 2:
            raise KeyboardInterrupt
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(program.PolicyReward, "__call__", stops)
    with pytest.raises(KeyboardInterrupt):
        program.main(config)
    program.main(config)
    # Killed in the second step, it resumed with the second.
    assert trained_to == [0, 1, 1]
    results = json.loads((config.out / "results.json").read_text())
    assert results["held_out_prompts"] == 2
    curve = json.loads((config.out / "curve.json").read_text())
    assert [line["step"] for line in curve] == [1, 2]
    assert all("litbench_reward/raw" in line for line in curve)
    gained = results["raters"]["reward"]
    assert gained["gain"]["mean"] == pytest.approx(gained["after"] - gained["before"])
    onlooker = results["raters"]["shorter"]["gain"]["mean"]
    assert onlooker == pytest.approx(-gained["gain"]["mean"])
    assert results["words"]["after"] == pytest.approx(gained["after"])
    assert len((config.out / "samples.jsonl").read_text().splitlines()) == 8
    assert (config.out / "policy" / "model.safetensors").exists()
    assert not list((config.out / "policy").glob("*.bin")), "no pickles"
    assert "reference" not in (config.out / "policy" / "config.json").read_text()
    assert not list(config.out.glob("checkpoints-*"))
    assert list(config.out.glob("tensorboard/events.out.tfevents*"))
