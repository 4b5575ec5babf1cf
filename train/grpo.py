"""Improve a policy against a rater with trl's GRPO, and show what the policy makes of it.

    python train/grpo.py --config configs/train/sample_grpo.yaml

Reads `stories` and the models that the raters name. Some prompts are held out: no rater was
trained on them, and neither the policy nor the reward sees their stories. Without
`model_name_or_path`, a tiny policy is made: a tokenizer and a small Llama, trained on the other
prompts' stories until it writes words. GRPO then raises its reward, shaped by `shaping` with the
other prompts' stories as references (litbench/rewards.py).

Writes into `out`: `policy/` (model and tokenizer), `curve.json` (trl's log), `curve.svg` and
`.png`, `results.json` (unshaped rewards on the held-out prompts before and after, with intervals
clustered by prompt, by `other_raters` too, length and diversity), `samples.jsonl` (what was written
for them) and `manifest.json`. A killed run goes on from its last checkpoint.

One process. For several GPUs use `PolicyReward` in a trl script of your own
(docs/reinforcement.md).
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from litbench.artifact import Artifact, write_json
from litbench.config import nearest, run_program
from litbench.errors import ConfigError, DataError, MissingExtraError
from litbench.metrics.diversity import distinct_trigrams
from litbench.metrics.intervals import mean_interval
from litbench.models.backbone import load_backbone, quiet
from litbench.models.training import checkpoint_folder, last_whole_checkpoint
from litbench.raters import check_options, files_of, parse_raters
from litbench.records import STORIES
from litbench.report.figures import policy_curves
from litbench.rewards import PolicyReward, RewardShaping
from litbench.scoring import finite_rewards, load_scorer
from litbench.tables import read_table
from litbench.text import count_words_of, digest, prompt_key

# What the tiny policy reads between a prompt and its story.
BREAK = "\n\n"
REQUEST = "Write a short story for this prompt. Give the story alone.\n\n"
MIN_WORDS = 50
# Of the tiny policy.
VOCABULARY, WIDTH, LAYERS, EPOCHS = 4_000, 128, 2, 15
# Where the defaults differ from trl's.
DEFAULTS = {
    "bf16": False,
    "gradient_checkpointing": None,
    "activation_checkpointing": False,
    "dataloader_pin_memory": False,
    "report_to": "none",
}


@dataclass
class Config:
    """What to improve, and against what.

    Attributes:
        stories: stories file; human stories for the prompts.
        rater: entry of the rater that rewards, as {kind: features, path: ...}; any with rewards.
        out: folder to write.
        other_raters: named entries of raters that only score the same stories.
        shaping: see litbench.rewards.RewardShaping.
        max_words: longer stories are left out, and those of less than 50 words.
        held_out: prompts for evaluation only; none that a rater was trained on is taken.
        samples_per_prompt: stories written for each of them, before and after.
        model_name_or_path: causal language model to improve; null for a tiny one made here.
        grpo: keys of trl's GRPOConfig, such as max_steps, learning_rate, beta or seed.
    """

    stories: Path
    rater: dict[str, Any]
    out: Path
    other_raters: dict[str, Any] = field(default_factory=dict)
    shaping: RewardShaping = field(default_factory=RewardShaping)
    held_out: int = 10
    max_words: int = 2_000
    samples_per_prompt: int = 8
    model_name_or_path: str | None = None
    grpo: dict[str, Any] = field(default_factory=dict)


Stories = dict[str, list[str]]


def flat(stories: Stories) -> tuple[list[str], list[str]]:
    """Prompts and texts, one entry per story."""
    pairs = [(prompt, text) for prompt, texts in stories.items() for text in texts]
    return [prompt for prompt, _ in pairs], [text for _, text in pairs]


def divide(config: Config, raters: Mapping[str, Any], seed: int) -> tuple[Stories, Stories]:
    """Read the stories by prompt, those to train with and those of held-out prompts.

    Raises:
        DataError: too few prompts that no rater was trained on, or no others.
    """
    table = read_table(str(config.stories), STORIES)
    columns = (table[name].to_pylist() for name in ("prompt", "text", "n_words"))
    rows = [
        (prompt, text)
        for prompt, text, words in zip(*columns, strict=True)
        if MIN_WORDS <= words <= config.max_words
    ]
    trained = frozenset().union(*(rater.training_prompts() for rater in raters.values()))
    order = sorted({prompt_key(p) for p, _ in rows}, key=lambda key: digest(seed, key))
    held = [key for key in order if key not in trained][: config.held_out]
    if len(held) < max(config.held_out, 2) or len(held) == len(order):
        raise DataError(
            f"{config.stories}: {len(order)} prompts, {len(held)} of them unknown to every rater, "
            f"and held_out is {config.held_out}: give more prompts, or hold out 2 or more, not all"
        )
    parts: tuple[Stories, Stories] = ({}, {})
    for prompt, text in rows:
        parts[prompt_key(prompt) in held].setdefault(prompt, []).append(text)
    return parts


def grpo_config(given: Mapping[str, Any], folder: Path) -> Any:
    """The settings of trl; ConfigError where it does not know a key or refuses a value."""
    try:
        from trl import GRPOConfig  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("trl", "rl") from error
    known = [one.name for one in fields(GRPOConfig)]
    for key in given:
        if key not in known:
            raise ConfigError(f"unknown key 'grpo.{key}': {nearest(key, known, 'grpo.')}")
    schedule = {"logging_steps": 1, "save_steps": 20, "lr_scheduler_type": "constant"}
    try:
        return GRPOConfig(output_dir=str(folder), **{**DEFAULTS, **schedule, **given})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"trl refuses the keys of grpo ({error}): change them") from error


def make_policy(stories: Stories, folder: Path, seed: int) -> None:
    """Make a tokenizer and a small Llama, train it on stories and save both."""
    from datasets import Dataset  # noqa: PLC0415
    from tokenizers import ByteLevelBPETokenizer  # noqa: PLC0415
    from transformers import (  # noqa: PLC0415
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        set_seed,
    )
    from trl import SFTConfig, SFTTrainer  # noqa: PLC0415

    prompts, texts = flat(stories)
    bpe, end, pad = ByteLevelBPETokenizer(), "<|end|>", "<|pad|>"
    bpe.train_from_iterator(
        sorted({*prompts, *texts}), vocab_size=VOCABULARY, special_tokens=[end, pad],
        show_progress=False,
    )  # fmt: skip
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token=end, pad_token=pad
    )
    set_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=3 * WIDTH,
            num_hidden_layers=LAYERS, num_attention_heads=4, max_position_embeddings=2_048,
            tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )  # fmt: skip
    args = SFTConfig(
        output_dir=str(folder), num_train_epochs=EPOCHS, learning_rate=2e-3, warmup_steps=0.1,
        lr_scheduler_type="cosine", per_device_train_batch_size=16, max_length=None, seed=seed,
        completion_only_loss=False, save_strategy="no", **DEFAULTS,
    )  # fmt: skip
    rows = {"prompt": [prompt + BREAK for prompt in prompts], "completion": texts}
    data = Dataset.from_dict(rows)
    trainer = SFTTrainer(model, args=args, train_dataset=data, processing_class=tokenizer)
    with quiet():
        trainer.train()
    trainer.save_model(str(folder))


def as_asked(prompt: str, tokenizer: Any) -> Any:
    """The prompt for the policy: a message if it has a chat template, else text."""
    if tokenizer.chat_template is None:
        return prompt + BREAK
    return [{"role": "user", "content": REQUEST + prompt}]


def write_stories(model: Any, tokenizer: Any, prompts: Sequence[str], args: Any) -> list[str]:
    """Let the policy write for every prompt, with the same random numbers at every call."""
    import torch  # noqa: PLC0415

    asked = [as_asked(prompt, tokenizer) for prompt in prompts]
    is_chat = tokenizer.chat_template is not None
    if is_chat:
        asked = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    batch = tokenizer(
        asked, return_tensors="pt", padding=True, padding_side="left",
        add_special_tokens=not is_chat, return_token_type_ids=False,
    ).to(model.device)  # fmt: skip
    model.eval()
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(args.seed)
        written = model.generate(
            **batch, do_sample=True, temperature=args.temperature, top_k=0,
            max_new_tokens=args.max_completion_length, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
    return tokenizer.batch_decode(written[:, batch["input_ids"].shape[1] :], True)


def compare(
    before: np.ndarray, after: np.ndarray, people: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Compare one rater's rewards, shape (prompts, samples), and those of human stories."""

    def beaten(rewards: np.ndarray) -> float:
        """Share of human stories of the same prompt that a story beats, ties one half."""
        pairs = zip(rewards, people.values(), strict=True)
        return float(
            np.mean([(np.sign(own[:, None] - human).mean() + 1) / 2 for own, human in pairs])
        )

    return {
        "before": float(before.mean()),
        "after": float(after.mean()),
        "people": float(np.mean([human.mean() for human in people.values()])),
        "gain": vars(mean_interval(after.mean(1) - before.mean(1), list(people))),
        "people_beaten_before": beaten(before),
        "people_beaten_after": beaten(after),
    }


def main(config: Config) -> None:
    """Make a policy, improve it, and write how it went."""
    if "reward" in config.other_raters:
        raise ConfigError("other_raters.reward: this name is taken by the rater: choose another")
    specs = parse_raters({"reward": config.rater, **config.other_raters})
    for spec in specs:
        check_options(spec, "raters")
    given = config.model_name_or_path
    models = files_of(specs) | ({} if given is None else {"model_name_or_path": given})
    grpo_config(config.grpo, config.out)
    artifact = Artifact(
        config.out, program=__file__, config=config, inputs={"stories": config.stories},
        models=models, version=2,
    )  # fmt: skip
    if artifact.is_current():
        return
    checkpoints = checkpoint_folder(config.out, artifact.fingerprint)
    args = grpo_config(config.grpo, checkpoints)
    raters: dict[str, Any] = {spec.name: load_scorer(spec) for spec in specs}
    rest, people = divide(config, raters, args.seed)
    reward = PolicyReward(
        raters["reward"], config.shaping, references=flat(rest), prompt_column="writing_prompt"
    )
    if given is None and not (checkpoints / "policy").exists():
        make_policy(rest, checkpoints / "new", args.seed)
        (checkpoints / "new").rename(checkpoints / "policy")

    from datasets import Dataset  # noqa: PLC0415
    from transformers import PrinterCallback  # noqa: PLC0415
    from trl import GRPOTrainer  # noqa: PLC0415

    policy = given or str(checkpoints / "policy")
    model, tokenizer = load_backbone(policy, "language", attention="sdpa")
    asked = [prompt for prompt in people for _ in range(config.samples_per_prompt)]
    texts = {"before": write_stories(model, tokenizer, asked, args)}
    rows = {"prompt": [as_asked(p, tokenizer) for p in rest], "writing_prompt": list(rest)}
    trainer = GRPOTrainer(
        model, reward, args=args, train_dataset=Dataset.from_dict(rows), processing_class=tokenizer
    )
    trainer.remove_callback(PrinterCallback)
    with quiet():
        trainer.train(resume_from_checkpoint=last_whole_checkpoint(checkpoints))
    texts["after"] = write_stories(trainer.model, tokenizer, asked, args)

    # Shares of distinct trigrams are comparable between equally many texts only.
    some = [one for own in people.values() for one in own[: config.samples_per_prompt]]
    results: dict[str, Any] = {"held_out_prompts": len(people)}
    for name, measure in (
        ("words", lambda own: float(np.mean([count_words_of(text) for text in own]))),
        ("distinct_trigrams", distinct_trigrams),
    ):
        results[name] = {key: measure(own) for key, own in {**texts, "people": some}.items()}
    rewards = {
        (name, when): finite_rewards(rater, asked, texts[when])
        for name, rater in raters.items()
        for when in texts
    }
    results["raters"] = {
        name: compare(
            *(rewards[name, when].reshape(len(people), -1) for when in texts),
            {p: finite_rewards(rater, [p] * len(own), own) for p, own in people.items()},
        )
        for name, rater in raters.items()
    }
    steps = [line for line in trainer.state.log_history if "reward" in line]
    artifact.write("results.json", lambda path: write_json(results, path))
    artifact.write("curve.json", lambda path: write_json(steps, path))
    panels = []
    for label, key, own in (
        ("reward", "litbench_reward/raw", results["raters"]["reward"]),
        ("words", "litbench_reward/words", results["words"]),
        ("distinct trigrams", "litbench_reward/distinct_trigrams", results["distinct_trigrams"]),
    ):
        ends = [(0, own["before"]), (trainer.state.global_step, own["after"])]
        training = [(line["step"], line[key]) for line in steps if key in line]
        panels.append((label, training, ends, own["people"]))
    for file, write in policy_curves(panels).files("curve").items():
        artifact.write(file, write)
    lines = [
        json.dumps({"prompt": prompt, "when": when, "text": text, "reward": float(value)})
        for when in texts
        for prompt, text, value in zip(asked, texts[when], rewards["reward", when], strict=True)
    ]
    artifact.write("samples.jsonl", lambda path: path.write_text("\n".join(lines) + "\n"))
    artifact.write_folder("policy", lambda folder: trainer.save_model(str(folder)))
    artifact.counts = {
        "training_prompts": len(rest),
        "reference_stories": len(flat(rest)[1]),
        "held_out_stories": len(flat(people)[1]),
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


if __name__ == "__main__":
    run_program(main, Config, __doc__)
