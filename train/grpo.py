"""Train a policy on a rater's rewards with trl's GRPO, and show what it learns.

    litbench train grpo --config configs/train/sample_grpo.yaml

Reads `stories` and the models of the raters. Some prompts are held out: no rater was trained on
them, and neither the policy nor the reward uses their stories. The other prompts are for training.
GRPO trains the causal language model `model_name_or_path` on the rewards of `rater`, shaped by
`shaping` with the training stories as references (litbench/rl/rewards.py).

Writes into `out`: `policy/` (model and tokenizer), `curve.json` (trl's log), `results.json`
(length, diversity and unshaped rewards by all raters on the held-out prompts before and after, with
intervals clustered by prompt), `samples.jsonl` (the stories written for the held-out prompts) and
`manifest.json`. trl's trackers (`grpo.report_to`) draw the curves. A killed run resumes from its
last checkpoint.

Runs in one process. For several GPUs, use `PolicyReward` in your own trl script
(docs/reinforcement.md).
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from litbench.data.records import STORIES
from litbench.data.tables import read_table
from litbench.data.text import count_words_of, digest, prompt_key
from litbench.evaluation.scoring import finite_rewards, load_scorer
from litbench.metrics.diversity import distinct_trigrams
from litbench.metrics.intervals import mean_interval
from litbench.models.backbone import load_backbone, quiet
from litbench.models.training import (
    add_callbacks,
    checkpoint_folder,
    train_from_last_checkpoint,
)
from litbench.raters.entries import files_of, parse_raters
from litbench.rl.rewards import PolicyReward, RewardShaping
from litbench.runs.config import build, run_program
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact, only_writer, write_json

# Separates prompt and story for a policy without a chat template.
BREAK = "\n\n"
REQUEST = "Write a short story for this prompt. Give the story alone.\n\n"
MIN_WORDS = 50


@dataclass(kw_only=True)
class PolicyTraining(GRPOConfig):  # type: ignore[misc]
    """trl's keys, with other defaults."""

    bf16: bool | None = False
    # trl's default is True, under the old name of activation_checkpointing.
    gradient_checkpointing: bool | None = None
    dataloader_pin_memory: bool = False
    logging_steps: float = 1
    save_steps: float = 20
    lr_scheduler_type: str = "constant"


@dataclass
class Config:
    """The policy, the rater that rewards it, and the stories.

    Attributes:
        stories: stories table with human stories.
        rater: entry of the rater whose rewards are used, such as {kind: features, path: ...}.
        out: folder to write.
        model_name_or_path: causal language model to train.
        other_raters: named entries of raters that score the results but give no rewards.
        shaping: see litbench.rl.rewards.RewardShaping.
        max_words: longer stories are left out, as are stories with fewer than 50 words.
        held_out: number of prompts for evaluation only; no rater was trained on them.
        samples_per_prompt: stories written for each held-out prompt, before and after.
        grpo: keys of trl's GRPOConfig, such as max_steps, learning_rate, beta or seed.
    """

    stories: Path
    rater: dict[str, Any]
    out: Path
    model_name_or_path: str
    other_raters: dict[str, Any] = field(default_factory=dict)
    shaping: RewardShaping = field(default_factory=RewardShaping)
    held_out: int = 10
    max_words: int = 2_000
    samples_per_prompt: int = 8
    grpo: dict[str, Any] = field(default_factory=dict)


Stories = dict[str, list[str]]


def flat(stories: Stories) -> tuple[list[str], list[str]]:
    """Return prompts and texts, one entry per story."""
    prompts = [prompt for prompt, texts in stories.items() for _ in texts]
    return prompts, [text for texts in stories.values() for text in texts]


def divide(config: Config, raters: Mapping[str, Any], seed: int) -> tuple[Stories, Stories]:
    """Read the stories and return them by prompt: training prompts, then held-out prompts."""
    stories = read_table(str(config.stories), STORIES).to_pylist()
    rows = [
        (row["prompt"], row["text"])
        for row in stories
        if MIN_WORDS <= row["n_words"] <= config.max_words
    ]
    trained = frozenset().union(*(rater.training_prompts() for rater in raters.values()))
    order = sorted({prompt_key(p) for p, _ in rows}, key=lambda key: digest(seed, key))
    held = [key for key in order if key not in trained][: config.held_out]
    if len(held) < max(config.held_out, 2) or len(held) == len(order):
        raise DataError(
            f"{config.stories}: {len(order)} prompts, {len(held)} of them in no rater's training "
            f"data, but held_out is {config.held_out}: give more prompts, or hold out 2 or more"
        )
    parts: tuple[Stories, Stories] = ({}, {})
    for prompt, text in rows:
        parts[prompt_key(prompt) in held].setdefault(prompt, []).append(text)
    used, kept_back = (sum(map(len, part.values())) for part in parts)
    print(
        f"stories: {len(stories):,} read, {used:,} used as references, {kept_back:,} held out, "
        f"{len(stories) - len(rows):,} rejected: not {MIN_WORDS} to {config.max_words} words"
    )
    return parts


def policy_prompt(prompt: str, tokenizer: Any) -> Any:
    """Return the prompt for the policy: a message if it has a chat template, otherwise text."""
    if tokenizer.chat_template is None:
        return prompt + BREAK
    return [{"role": "user", "content": REQUEST + prompt}]


def write_stories(model: Any, tokenizer: Any, prompts: Sequence[str], args: Any) -> list[str]:
    """Generate one story per prompt, with the same random seed in every call."""
    inputs = [policy_prompt(prompt, tokenizer) for prompt in prompts]
    is_chat = tokenizer.chat_template is not None
    if is_chat:
        inputs = tokenizer.apply_chat_template(inputs, tokenize=False, add_generation_prompt=True)
    batch = tokenizer(
        inputs,
        return_tensors="pt",
        padding=True,
        padding_side="left",
        add_special_tokens=not is_chat,
        return_token_type_ids=False,
    ).to(model.device)
    model.eval()
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(args.seed)
        written = model.generate(
            **batch,
            do_sample=True,
            temperature=args.temperature,
            top_k=0,
            max_new_tokens=args.max_completion_length,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    texts: list[str] = tokenizer.batch_decode(written[:, batch["input_ids"].shape[1] :], True)
    return texts


def compare(
    before: np.ndarray, after: np.ndarray, human: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Compare a rater's rewards, shape (prompts, samples), with those of human stories."""

    def win_rate(rewards: np.ndarray) -> float:
        """Share of human stories of the same prompt with a lower reward; ties count 1/2."""
        pairs = zip(rewards, human.values(), strict=True)
        return float(
            np.mean(
                [(np.sign(rewards[:, None] - theirs).mean() + 1) / 2 for rewards, theirs in pairs]
            )
        )

    return {
        "before": float(before.mean()),
        "after": float(after.mean()),
        "people": float(np.mean([rewards.mean() for rewards in human.values()])),
        "gain": vars(mean_interval(after.mean(1) - before.mean(1), list(human))),
        "win_rate_people_before": win_rate(before),
        "win_rate_people_after": win_rate(after),
    }


def _train(
    model: Any,
    tokenizer: Any,
    reward: PolicyReward,
    args: PolicyTraining,
    prompts: Sequence[str],
    checkpoints: Path,
) -> GRPOTrainer:
    """Train the policy, from the last checkpoint if there is one."""
    rows = {"prompt": [policy_prompt(p, tokenizer) for p in prompts], "writing_prompt": prompts}
    with quiet():
        if args.beta:
            # trl loads the reference model by the model's name, without its revision or GGUF file.
            reference = checkpoints / "reference"
            model.save_pretrained(reference)
            model.config.name_or_path = str(reference)
        trainer = GRPOTrainer(
            model,
            reward,
            args=args,
            train_dataset=Dataset.from_dict(rows),
            processing_class=tokenizer,
        )
        add_callbacks(trainer)
        train_from_last_checkpoint(trainer, checkpoints)
    return trainer


def _measure(
    raters: Mapping[str, Any],
    texts: Mapping[str, Sequence[str]],
    prompts: Sequence[str],
    held_out: Mapping[str, Sequence[str]],
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Compare the texts of before and after with people's, by every rater.

    Args:
        raters: the reward, under this name, and the others.
        texts: the policy's stories `before` and `after`, one per prompt.
        prompts: each held-out prompt as often as it is answered.
        held_out: people's stories by prompt.

    Returns:
        The results, and the rewards before and after.
    """
    # The share of distinct trigrams depends on the number of texts.
    count = len(prompts) // len(held_out)
    written = {**texts, "people": [text for rest in held_out.values() for text in rest[:count]]}
    rewards = {
        name: {when: finite_rewards(rater, prompts, texts[when]) for when in texts}
        for name, rater in raters.items()
    }
    results = {
        "held_out_prompts": len(held_out),
        "words": {
            key: float(np.mean(list(map(count_words_of, texts)))) for key, texts in written.items()
        },
        "distinct_trigrams": {key: distinct_trigrams(texts) for key, texts in written.items()},
        "raters": {
            name: compare(
                rewards[name]["before"].reshape(len(held_out), -1),
                rewards[name]["after"].reshape(len(held_out), -1),
                {p: finite_rewards(rater, [p] * len(rest), rest) for p, rest in held_out.items()},
            )
            for name, rater in raters.items()
        },
    }
    return results, rewards["reward"]


def main(config: Config) -> None:
    """Train a policy and write it with the results."""
    with only_writer(config.out):
        _train_and_write(config)


def _train_and_write(config: Config) -> None:
    if "reward" in config.other_raters:
        raise ConfigError("other_raters.reward: this name is reserved for `rater`: choose another")
    specs = parse_raters({"reward": config.rater, **config.other_raters})
    args = build(PolicyTraining, config.grpo, "grpo")
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"stories": config.stories},
        models=files_of(specs) | {"model_name_or_path": config.model_name_or_path},
    )
    if artifact.is_current():
        return
    checkpoints = checkpoint_folder(config.out, artifact.fingerprint)
    args.output_dir = str(checkpoints)
    raters: dict[str, Any] = {spec.name: load_scorer(spec) for spec in specs}
    training, held_out = divide(config, raters, args.seed)
    reward = PolicyReward(
        raters["reward"], config.shaping, references=flat(training), prompt_column="writing_prompt"
    )
    model, tokenizer = load_backbone(config.model_name_or_path, "language", attention="sdpa")
    prompts = [prompt for prompt in held_out for _ in range(config.samples_per_prompt)]
    texts = {"before": write_stories(model, tokenizer, prompts, args)}
    trainer = _train(model, tokenizer, reward, args, list(training), checkpoints)
    texts["after"] = write_stories(trainer.model, tokenizer, prompts, args)
    results, rewards = _measure(raters, texts, prompts, held_out)
    steps = [line for line in trainer.state.log_history if "reward" in line]
    artifact.write("results.json", lambda path: write_json(results, path))
    artifact.write("curve.json", lambda path: write_json(steps, path))
    lines = [
        json.dumps({"prompt": prompt, "when": when, "text": text, "reward": float(value)})
        for when in texts
        for prompt, text, value in zip(prompts, texts[when], rewards[when], strict=True)
    ]
    artifact.write("samples.jsonl", lambda path: path.write_text("\n".join(lines) + "\n"))

    def save(folder: Path) -> None:
        with quiet():
            trainer.save_model(str(folder))
        # A pickle.
        (folder / "training_args.bin").unlink()

    artifact.write_folder("policy", save)
    artifact.counts = {
        "training_prompts": len(training),
        "reference_stories": len(flat(training)[1]),
        "held_out_stories": len(flat(held_out)[1]),
        "steps": len(steps),
        "results": results,
        "raters": {name: rater.notes() for name, rater in raters.items()},
    }
    artifact.finish()
    shutil.rmtree(checkpoints, ignore_errors=True)
    for name, row in results["raters"].items():
        gain = row["gain"]
        print(
            f"{name}: {row['before']:.3f} -> {row['after']:.3f}, human {row['people']:.3f}; gain "
            f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}], win rate over human "
            f"stories {row['win_rate_people_before']:.2f} -> {row['win_rate_people_after']:.2f}"
        )


if __name__ == "__main__":
    run_program(main, Config, __doc__)
