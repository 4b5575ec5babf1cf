"""Improve a policy against a rater with trl's GRPO, and show what it costs.

    python train/grpo.py --config configs/train/sample_grpo.yaml

Reads `stories` and the models that the raters name. Some prompts are held out: no rater was
trained on them, and neither the policy nor the reward sees their stories. Without `policy`, a tiny
one is made on the spot: a tokenizer and a small Llama, trained to continue the other prompts'
stories until it writes words. GRPO then raises its reward, shaped by `shaping` with the other
prompts' stories as references (litbench.rewards.py).

Every `evaluate_every` steps the policy writes for the held-out prompts, and its unshaped reward,
length and diversity are kept. Writes into `out`:
`policy/` (model and tokenizer), `curve.csv` and `curve.json` (every step of training, every
evaluation), `curve.svg` and `.png`, `results.json` (before and after, with intervals clustered by
prompt, in the eyes of `other_raters` too, and what moved in a feature model), `samples.jsonl` (what
was written before and after) and `manifest.json`. A killed run goes on from its last checkpoint.

One process: for a policy of billions of weights use `PolicyReward` in a trl script of your own
(docs/reinforcement.md).
"""

import csv
import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from litbench.artifact import Artifact, write_atomically, write_json
from litbench.config import run_program
from litbench.errors import ConfigError, DataError, MissingExtraError
from litbench.evaluation import named_models
from litbench.metrics.comparisons import paired_difference
from litbench.metrics.diversity import distinct_trigrams
from litbench.metrics.intervals import jackknife_interval, mean_interval
from litbench.models.backbone import load_backbone, quiet
from litbench.models.features import FEATURES, FeatureModel, feature_matrix
from litbench.models.training import checkpoint_folder, last_whole_checkpoint
from litbench.rewards import PolicyReward, RewardShaping
from litbench.raters import RaterSpec, check_options, parse_raters
from litbench.records import STORIES
from litbench.report.figures import policy_curves
from litbench.scoring import finite_rewards, load_scorer
from litbench.tables import read_table
from litbench.text import count_words_of, digest, prompt_key

# What the tiny policy reads between a prompt and its story.
_BREAK = "\n\n"
# Of attention, in the tiny policy.
_HEADS = 4


@dataclass
class Config:
    """What to improve, against what, and for how long.

    Attributes:
        stories: stories file; people's stories for the prompts.
        rater: entry of the rater that rewards, as {kind: features, path: ...}; any with rewards.
        out: folder to write.
        other_raters: named entries of raters that only look on.
        shaping: see litbench.rewards.RewardShaping.
        held_out: prompts that only evaluate; none that a rater was trained on is taken.
        min_words: shorter stories are left out.
        max_words: longer ones too.
        policy: causal language model to improve, a folder or a name on the Hub; null for a tiny
            one made on the spot.
        vocabulary: tokens of the tiny policy.
        hidden_size: its width.
        layers: its depth.
        pretraining_epochs: passes over the stories before reinforcement.
        pretraining_learning_rate: highest rate of these passes.
        pretraining_batch_size: stories per step of these passes.
        steps: of GRPO.
        learning_rate: of GRPO, constant.
        prompts_per_step: prompts of a step.
        num_generations: completions of a prompt, one group.
        max_completion_length: tokens after which a completion is cut off.
        temperature: at which completions are drawn.
        beta: weight of the KL divergence from the policy before GRPO.
        evaluate_every: steps between evaluations.
        samples_per_prompt: stories written per held-out prompt in each.
        save_steps: steps between checkpoints.
        seed: of everything drawn.
    """

    stories: Path
    rater: dict[str, Any]
    out: Path
    other_raters: dict[str, Any] = field(default_factory=dict)
    shaping: RewardShaping = field(default_factory=RewardShaping)
    held_out: int = 10
    min_words: int = 50
    max_words: int = 2_000
    policy: str | None = None
    vocabulary: int = 4_000
    hidden_size: int = 128
    layers: int = 2
    pretraining_epochs: int = 15
    pretraining_learning_rate: float = 2e-3
    pretraining_batch_size: int = 16
    steps: int = 100
    learning_rate: float = 3e-4
    prompts_per_step: int = 4
    num_generations: int = 8
    max_completion_length: int = 256
    temperature: float = 1.0
    beta: float = 0.0
    evaluate_every: int = 20
    samples_per_prompt: int = 8
    save_steps: int = 20
    seed: int = 0


@dataclass(frozen=True)
class Stories:
    """People's stories of some prompts, one entry per story."""

    prompts: list[str]
    texts: list[str]

    def by_prompt(self) -> dict[str, list[str]]:
        """The texts of every prompt."""
        found: dict[str, list[str]] = {}
        for prompt, text in zip(self.prompts, self.texts, strict=True):
            found.setdefault(prompt, []).append(text)
        return found


def divide(config: Config, raters: Mapping[str, Any]) -> tuple[Stories, Stories]:
    """Read the stories and hold prompts out that no rater was trained on.

    Raises:
        DataError: too few such prompts, or no others.
    """
    table = read_table(str(config.stories), STORIES)
    rows = [
        (prompt, text)
        for prompt, text, words in zip(
            *(table[name].to_pylist() for name in ("prompt", "text", "n_words")), strict=True
        )
        if config.min_words <= words <= config.max_words
    ]
    trained = frozenset().union(*(rater.training_prompts() for rater in raters.values()))
    order = sorted({prompt_key(p) for p, _ in rows}, key=lambda key: digest(config.seed, key))
    held = {key for key in order if key not in trained}
    held = set([key for key in order if key in held][: config.held_out])
    if len(held) < max(config.held_out, 2) or len(held) == len(order):
        raise DataError(
            f"{config.stories}: {len(order)} prompts, {len(held)} of them unknown to every rater, "
            f"and held_out is {config.held_out}: give more prompts, or hold out 2 or more, not all"
        )
    parts = [], []
    for prompt, text in rows:
        parts[prompt_key(prompt) in held].append((prompt, text))
    rest, held_out = (Stories([p for p, _ in part], [t for _, t in part]) for part in parts)
    return rest, held_out


def make_policy(config: Config, stories: Stories, folder: Path) -> None:
    """Make a tokenizer and a small Llama, train it on stories and save both."""
    import torch  # noqa: PLC0415
    from tokenizers import ByteLevelBPETokenizer  # noqa: PLC0415
    from transformers import (  # noqa: PLC0415
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    bytes_and_pairs = ByteLevelBPETokenizer()
    end, pad = "<|end|>", "<|pad|>"
    texts = sorted({*stories.prompts, *stories.texts})
    bytes_and_pairs.train_from_iterator(
        texts, vocab_size=config.vocabulary, special_tokens=[end, pad], show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_and_pairs._tokenizer, eos_token=end, pad_token=pad
    )
    torch.manual_seed(config.seed)
    with quiet():
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer), hidden_size=config.hidden_size,
                intermediate_size=3 * config.hidden_size, num_hidden_layers=config.layers,
                num_attention_heads=_HEADS, max_position_embeddings=2_048, tie_word_embeddings=True,
                bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )  # fmt: skip
    # Prompt and story apart, as they will be when the policy writes.
    rows = [
        tokenizer.encode(prompt + _BREAK) + tokenizer.encode(text) + [tokenizer.eos_token_id]
        for prompt, text in zip(stories.prompts, stories.texts, strict=True)
    ]
    size = config.pretraining_batch_size
    steps = config.pretraining_epochs * -(-len(rows) // size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.pretraining_learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.pretraining_learning_rate, total_steps=max(steps, 2), pct_start=0.1
    )
    order = np.random.default_rng(config.seed)
    model.train()
    with tqdm(total=steps, desc="pretraining", leave=False, disable=None) as bar:
        for _ in range(config.pretraining_epochs):
            shuffled = order.permutation(len(rows))
            for start in range(0, len(rows), size):
                batch = [torch.tensor(rows[place]) for place in shuffled[start : start + size]]
                ids = torch.nn.utils.rnn.pad_sequence(batch, True, tokenizer.pad_token_id)
                real = ids != tokenizer.pad_token_id
                loss = model(ids, attention_mask=real, labels=ids.masked_fill(~real, -100)).loss
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                bar.set_postfix_str(f"loss {loss.item():.2f}")
                bar.update()
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def as_asked(prompt: str, tokenizer: Any) -> Any:
    """The prompt as the policy gets it: a message where it has a chat template, else text."""
    if tokenizer.chat_template is None:
        return prompt + _BREAK
    request = f"Write a short story for this prompt. Give the story alone.\n\n{prompt}"
    return [{"role": "user", "content": request}]


def write_stories(model: Any, tokenizer: Any, prompts: Sequence[str], config: Config) -> list[str]:
    """Let the policy write for every prompt; the draws are the same ones at every call."""
    import torch  # noqa: PLC0415
    from transformers import GenerationConfig  # noqa: PLC0415

    asked = [as_asked(prompt, tokenizer) for prompt in prompts]
    if tokenizer.chat_template is not None:
        asked = [
            tokenizer.apply_chat_template([one], tokenize=False, add_generation_prompt=True)[0]
            for one in asked
        ]
    batch = tokenizer(
        asked, return_tensors="pt", padding=True, padding_side="left",
        add_special_tokens=tokenizer.chat_template is None, return_token_type_ids=False,
    ).to(model.device)  # fmt: skip
    was_training = model.training
    model.eval()
    # Training goes on with its own draws.
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(config.seed)
        written = model.generate(
            **batch,
            generation_config=GenerationConfig(
                do_sample=True, temperature=config.temperature, top_k=0,
                max_new_tokens=config.max_completion_length,
                eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
            ),
        )  # fmt: skip
    model.train(was_training)
    new = written[:, batch["input_ids"].shape[1] :]
    return tokenizer.batch_decode(new, skip_special_tokens=True)


def evaluate(
    step: int,
    prompts: Sequence[str],
    texts: Sequence[str],
    raters: Mapping[str, Any],
) -> dict[str, Any]:
    """What one evaluation keeps: the texts, every rater's rewards, length and diversity.

    Raises:
        DataError: a reward is not finite.
    """
    return {
        "step": step,
        "texts": list(texts),
        "rewards": {name: finite_rewards(r, prompts, texts).tolist() for name, r in raters.items()},
        "words": [count_words_of(text) for text in texts],
        "distinct_trigrams": distinct_trigrams(texts),
    }


def watch_class() -> Any:
    """The callback that evaluates; its class can be told only once transformers is there."""
    from transformers import TrainerCallback  # noqa: PLC0415

    class Watch(TrainerCallback):
        def __init__(self, every: int, evaluate_at: Any) -> None:
            self.every, self.evaluate_at = every, evaluate_at

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del args, control
            if state.global_step == 0:
                self.evaluate_at(0, kwargs["model"])

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del args, control
            if state.global_step % self.every == 0 or state.global_step == state.max_steps:
                self.evaluate_at(state.global_step, kwargs["model"])

    return Watch


def reinforce(
    config: Config,
    policy: Path | str,
    reward: PolicyReward,
    rest: Stories,
    held_out: Sequence[str],
    raters: Mapping[str, Any],
    checkpoints: Path,
) -> tuple[Any, Any, list[dict[str, Any]], list[dict[str, Any]]]:
    """Run GRPO.

    Returns:
        The policy, its tokenizer, a record per step, and one per evaluation.
    """
    try:
        import torch  # noqa: PLC0415
        from datasets import Dataset  # noqa: PLC0415
        from trl import GRPOConfig, GRPOTrainer  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("trl", "rl") from error

    model, tokenizer = load_backbone(str(policy), "language", attention="sdpa")
    prompts = list(dict.fromkeys(rest.prompts))
    data = Dataset.from_dict(
        {"prompt": [as_asked(p, tokenizer) for p in prompts], "writing_prompt": prompts}
    )
    asked = [prompt for prompt in held_out for _ in range(config.samples_per_prompt)]
    evaluations = checkpoints / "evaluations"

    def evaluate_at(step: int, model: Any) -> None:
        record = evaluate(step, asked, write_stories(model, tokenizer, asked, config), raters)
        write_json(record, evaluations / f"{step:06d}.json")

    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=data,
        args=GRPOConfig(
            output_dir=str(checkpoints),
            max_steps=config.steps,
            learning_rate=config.learning_rate,
            lr_scheduler_type="constant",
            per_device_train_batch_size=config.prompts_per_step * config.num_generations,
            num_generations=config.num_generations,
            max_completion_length=config.max_completion_length,
            temperature=config.temperature,
            beta=config.beta,
            seed=config.seed,
            logging_steps=1,
            save_steps=config.save_steps,
            save_total_limit=2,
            bf16=False,
            dataloader_pin_memory=torch.cuda.is_available(),
            gradient_checkpointing=None,
            activation_checkpointing=False,
            report_to="none",
        ),
        callbacks=[watch_class()(config.evaluate_every, evaluate_at)],
    )
    from transformers import PrinterCallback  # noqa: PLC0415
    from transformers.trainer_callback import ProgressCallback  # noqa: PLC0415

    # A line of forty numbers a step; all of them are kept.
    for loud in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(loud)
    trainer.add_callback(_bar_class()(config.steps))
    with quiet():
        trainer.train(resume_from_checkpoint=last_whole_checkpoint(checkpoints))
    steps = [line for line in trainer.state.log_history if "reward" in line]
    kept = sorted(evaluations.glob("*.json"))
    found = [json.loads(path.read_text(encoding="utf-8")) for path in kept]
    return trainer.model, tokenizer, steps, found


def _bar_class() -> Any:
    from transformers import TrainerCallback  # noqa: PLC0415

    class Bar(TrainerCallback):
        def __init__(self, steps: int) -> None:
            self.bar = tqdm(total=steps, desc="GRPO", leave=False, disable=None)

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del args, control
            self.bar.n = state.global_step
            logged = kwargs["logs"].get("reward")
            if logged is not None:
                self.bar.set_postfix_str(f"reward {logged:.2f}")
            self.bar.refresh()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del args, state, control, kwargs
            self.bar.close()

    return Bar


def compare(
    before: np.ndarray, after: np.ndarray, people: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Hold one rater's rewards after against those before, within each prompt.

    Args:
        before: shape (prompts, samples).
        after: likewise.
        people: rewards of people's stories, by prompt, in the same order.
    """
    names = list(people)
    gain = mean_interval(after.mean(1) - before.mean(1), names)

    def beaten(rewards: np.ndarray, others: Iterable[np.ndarray]) -> np.ndarray:
        """Share of a prompt's others that its rewards beat, ties one half; shape (prompts,)."""
        return np.array(
            [
                (np.sign(own[:, None] - theirs).mean() + 1) / 2
                for own, theirs in zip(rewards, others, strict=True)
            ]
        )

    wins = beaten(after, before)
    people_before, people_after = (beaten(one, people.values()) for one in (before, after))
    difference, p_value = paired_difference(people_after, people_before, names)
    # Within prompts, where alone rewards can be compared.
    squares = sum(float(((own - own.mean()) ** 2).sum()) for own in people.values())
    spread = math.sqrt(squares / max(sum(len(own) - 1 for own in people.values()), 1))
    return {
        "before": float(before.mean()),
        "after": float(after.mean()),
        "people": float(np.mean([own.mean() for own in people.values()])),
        "gain": vars(gain),
        "gain_in_deviations_of_people": gain.mean / spread if spread else None,
        "after_beats_before": vars(jackknife_interval(wins, names)),
        "people_beaten_before": float(people_before.mean()),
        "people_beaten_after": float(people_after.mean()),
        "people_beaten_difference": {**vars(difference), "p_value": p_value},
    }


def moved_features(
    model: FeatureModel, prompts: Sequence[str], before: Sequence[str], after: Sequence[str]
) -> dict[str, float]:
    """What each feature added to the mean reward, in its units; largest first."""
    places = [FEATURES.index(name) for name in model.names]
    shift = feature_matrix(prompts, after).mean(0) - feature_matrix(prompts, before).mean(0)
    added = shift[places] / model.scale * model.coefficients
    order = np.argsort(-np.abs(added))
    return {model.names[place]: round(float(added[place]), 4) for place in order}


def write_csv(
    steps: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], path: Path
) -> None:
    """Write a line per step of training and per evaluation."""
    columns = ("step", "part", "reward", "raw_reward", "words", "distinct_trigrams")
    name = "litbench_reward"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "clipped_share", "guarded_share"])
        for line in steps:
            shares = [line.get(f"{name}/{key}") for key in ("clipped_share", "guarded_share")]
            own = [line.get(f"{name}/{key}") for key in ("raw", "words", "distinct_trigrams")]
            writer.writerow([line["step"], "training", line["reward"], *own, *shares])
        for one in found:
            writer.writerow(
                [
                    one["step"], "held out", None, np.mean(one["rewards"]["reward"]),
                    np.mean(one["words"]), one["distinct_trigrams"], None, None,
                ]
            )  # fmt: skip


def check(config: Config) -> None:
    """Refuse what could only fail once a policy has been made.

    Raises:
        ConfigError: see the messages.
    """
    if "reward" in config.other_raters:
        raise ConfigError("other_raters.reward: this name is taken by the rater: choose another")
    numbers = (
        "held_out", "steps", "evaluate_every", "save_steps", "samples_per_prompt", "layers",
        "pretraining_batch_size", "prompts_per_step", "max_completion_length",
    )  # fmt: skip
    # Of one completion alone nothing is better than the others.
    for key, least in (*((key, 1) for key in numbers), ("num_generations", 2)):
        if getattr(config, key) < least:
            raise ConfigError(f"{key} is {getattr(config, key)}: give at least {least}")
    for key in ("temperature", "learning_rate", "pretraining_learning_rate"):
        if not getattr(config, key) > 0:
            raise ConfigError(f"{key} is {getattr(config, key)}: give a number above 0")
    if config.hidden_size < 1 or config.hidden_size % (2 * _HEADS):
        raise ConfigError(
            f"hidden_size is {config.hidden_size}: give a multiple of {2 * _HEADS}, an even number "
            "for each head"
        )


def main(config: Config) -> None:
    """Make a policy, improve it, and write how it went."""
    check(config)
    specs: list[RaterSpec] = parse_raters({"reward": config.rater, **config.other_raters})
    for spec in specs:
        check_options(spec, "raters")
    models = named_models(specs) | ({} if config.policy is None else {"policy": config.policy})
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"stories": config.stories},
        models=models,
    )
    if artifact.is_current():
        return
    raters: dict[str, Any] = {spec.name: load_scorer(spec) for spec in specs}
    rest, held_out = divide(config, raters)
    reward = PolicyReward(
        raters["reward"],
        config.shaping,
        references=(rest.prompts, rest.texts),
        prompt_column="writing_prompt",
    )
    checkpoints = checkpoint_folder(config.out, artifact.fingerprint)
    policy: str | Path = config.policy or checkpoints / "policy"
    if config.policy is None and not (checkpoints / "policy.done").exists():
        make_policy(config, rest, checkpoints / "policy")
        write_atomically(checkpoints / "policy.done", lambda path: path.write_text(""))
    people = held_out.by_prompt()
    model, tokenizer, steps, found = reinforce(
        config, policy, reward, rest, list(people), raters, checkpoints
    )
    first, last = found[0], found[-1]
    samples = config.samples_per_prompt
    asked = [prompt for prompt in people for _ in range(samples)]
    results: dict[str, Any] = {"held_out_prompts": len(people), "raters": {}}
    for name, rater in raters.items():
        own = {p: finite_rewards(rater, [p] * len(t), t) for p, t in people.items()}
        before, after = (
            np.array(one["rewards"][name]).reshape(len(people), samples) for one in (first, last)
        )
        results["raters"][name] = compare(before, after, own)
        if isinstance(rater, FeatureModel):
            moved = moved_features(rater, asked, first["texts"], last["texts"])
            results["raters"][name]["added_by_feature"] = moved
    written = [text for texts in people.values() for text in texts[:samples]]
    lengths = [count_words_of(text) for text in held_out.texts]
    for key, low, high, of_people in (
        ("words", np.mean(first["words"]), np.mean(last["words"]), np.mean(lengths)),
        ("distinct_trigrams", first["distinct_trigrams"], last["distinct_trigrams"],
         distinct_trigrams(written)),
    ):  # fmt: skip
        results[key] = {"before": float(low), "after": float(high), "people": float(of_people)}
    curve = {
        "training": steps,
        "held_out": [{key: value for key, value in one.items() if key != "texts"} for one in found],
    }
    artifact.write("results.json", lambda path: write_json(results, path))
    artifact.write("curve.json", lambda path: write_json(curve, path))
    artifact.write("curve.csv", lambda path: write_csv(steps, found, path))
    panels = [
        (
            label,
            [(line["step"], line[f"litbench_reward/{key}"]) for line in steps
             if f"litbench_reward/{key}" in line],
            [(one["step"], float(np.mean(value(one)))) for one in found],
            mark,
        )
        for label, key, value, mark in (
            ("reward", "raw", lambda one: one["rewards"]["reward"],
             results["raters"]["reward"]["people"]),
            ("words", "words", lambda one: one["words"], results["words"]["people"]),
            # Shares of distinct trigrams are comparable between equally many texts only.
            ("distinct trigrams", "", lambda one: one["distinct_trigrams"],
             results["distinct_trigrams"]["people"]),
        )
    ]  # fmt: skip
    for file, write in policy_curves(panels).files("curve").items():
        artifact.write(file, write)
    rows = [
        {"prompt": prompt, "step": one["step"], "text": text, "reward": value}
        for one in (first, last)
        for prompt, text, value in zip(asked, one["texts"], one["rewards"]["reward"], strict=True)
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    artifact.write("samples.jsonl", lambda path: path.write_text(lines, encoding="utf-8"))

    def save(folder: Path) -> None:
        with quiet():
            model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    artifact.write_folder("policy", save)
    artifact.counts = {
        "training_prompts": len(set(rest.prompts)),
        "reference_stories": len(rest.texts),
        "held_out_prompts": len(people),
        "held_out_stories": len(held_out.texts),
        "steps": len(steps),
        "results": results,
        "raters": {name: rater.notes() for name, rater in raters.items()},
    }
    artifact.finish()
    shutil.rmtree(checkpoints, ignore_errors=True)
    for name, one in results["raters"].items():
        gain = one["gain"]
        print(
            f"{name}: {one['before']:.3f} -> {one['after']:.3f}, people {one['people']:.3f}; gain "
            f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}], people beaten "
            f"{one['people_beaten_before']:.2f} -> {one['people_beaten_after']:.2f}"
        )
    for name in ("words", "distinct_trigrams"):
        one = results[name]
        print(f"{name}: {one['before']:.2f} -> {one['after']:.2f}, people {one['people']:.2f}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
