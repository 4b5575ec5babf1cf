"""Improve a policy against a rater with trl's GRPO, and show what the policy makes of it.

    python train/grpo.py --config configs/train/sample_grpo.yaml

Reads `stories` and the models that the raters name. Some prompts are held out: no rater was
trained on them, and neither the policy nor the reward sees their stories. Without
`model_name_or_path`, a tiny policy is made: a tokenizer and a small Llama, trained on the other
prompts' stories until it writes words. GRPO then raises its reward, shaped by `shaping` with the
other prompts' stories as references (litbench/rewards.py).

Every `eval_steps` steps the policy writes for the held-out prompts, and its unshaped reward, length
and diversity are kept. Writes into `out`:
`policy/` (model and tokenizer), `curve.json` (every step of training, every evaluation),
`curve.svg` and `.png`, `results.json` (before and after, with intervals clustered by prompt, by
`other_raters` too, and what each feature of a feature model added), `samples.jsonl` (what was
written before and after) and `manifest.json`. A killed run goes on from its last checkpoint.

One process. For several GPUs use `PolicyReward` in a trl script of your own
(docs/reinforcement.md).
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from litbench.artifact import Artifact, write_atomically, write_json
from litbench.config import run_program
from litbench.errors import ConfigError, DataError, MissingExtraError
from litbench.metrics.diversity import distinct_trigrams
from litbench.metrics.intervals import mean_interval
from litbench.models.backbone import load_backbone, quiet
from litbench.models.features import FEATURES, FeatureModel, feature_matrix
from litbench.models.training import checkpoint_folder, last_whole_checkpoint
from litbench.raters import check_options, files_of, parse_raters
from litbench.records import STORIES
from litbench.report.figures import policy_curves
from litbench.rewards import PolicyReward, RewardShaping
from litbench.scoring import finite_rewards, load_scorer
from litbench.tables import read_table
from litbench.text import count_words_of, digest, prompt_key

# What the tiny policy reads between a prompt and its story.
_BREAK = "\n\n"
_HEADS = 4
_LAYERS = 2
_PRETRAINING_RATE = 2e-3
_PRETRAINING_BATCH = 16
_MIN_WORDS = 50


@dataclass
class Config:
    """What to improve, against what, and for how long; keys of trl's GRPOConfig have its names.

    Attributes:
        stories: stories file; human stories for the prompts.
        rater: entry of the rater that rewards, as {kind: features, path: ...}; any with rewards.
        out: folder to write.
        other_raters: named entries of raters that only score the same stories.
        shaping: see litbench.rewards.RewardShaping.
        max_words: longer stories are left out, and those of less than 50 words.
        held_out: prompts for evaluation only; none that a rater was trained on is taken.
        model_name_or_path: causal language model to improve; null for a tiny one made here.
        vocabulary: tokens of the tiny policy.
        hidden_size: its width, a multiple of 8.
        pretraining_epochs: passes over the stories before GRPO.
        max_steps: of GRPO.
        learning_rate: of GRPO, constant.
        prompts_per_step: prompts of a step.
        num_generations: completions of a prompt, one group.
        max_completion_length: most tokens of a completion.
        temperature: of sampling.
        beta: weight of the KL divergence from the policy before GRPO.
        eval_steps: steps between evaluations, and between checkpoints.
        samples_per_prompt: stories written per held-out prompt in each.
        seed: of everything random.
    """

    stories: Path
    rater: dict[str, Any]
    out: Path
    other_raters: dict[str, Any] = field(default_factory=dict)
    shaping: RewardShaping = field(default_factory=RewardShaping)
    held_out: int = 10
    max_words: int = 2_000
    model_name_or_path: str | None = None
    vocabulary: int = 4_000
    hidden_size: int = 128
    pretraining_epochs: int = 15
    max_steps: int = 100
    learning_rate: float = 3e-4
    prompts_per_step: int = 4
    num_generations: int = 8
    max_completion_length: int = 256
    temperature: float = 1.0
    beta: float = 0.0
    eval_steps: int = 20
    samples_per_prompt: int = 8
    seed: int = 0


Stories = dict[str, list[str]]


def flat(stories: Stories) -> tuple[list[str], list[str]]:
    """Prompts and texts, one entry per story."""
    pairs = [(prompt, text) for prompt, texts in stories.items() for text in texts]
    return [prompt for prompt, _ in pairs], [text for _, text in pairs]


def divide(config: Config, raters: Mapping[str, Any]) -> tuple[Stories, Stories]:
    """Read the stories and hold out prompts that no rater was trained on.

    Returns:
        The texts by prompt, first those to train with, then those held out.

    Raises:
        DataError: too few such prompts, or no others.
    """
    table = read_table(str(config.stories), STORIES)
    columns = (table[name].to_pylist() for name in ("prompt", "text", "n_words"))
    rows = [
        (prompt, text)
        for prompt, text, words in zip(*columns, strict=True)
        if _MIN_WORDS <= words <= config.max_words
    ]
    trained = frozenset().union(*(rater.training_prompts() for rater in raters.values()))
    order = sorted({prompt_key(p) for p, _ in rows}, key=lambda key: digest(config.seed, key))
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


def make_policy(config: Config, stories: Stories, folder: Path) -> None:
    """Make a tokenizer and a small Llama, train it on stories and save both."""
    import torch  # noqa: PLC0415
    from tokenizers import ByteLevelBPETokenizer  # noqa: PLC0415
    from transformers import (  # noqa: PLC0415
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    prompts, texts = flat(stories)
    bpe = ByteLevelBPETokenizer()
    end, pad = "<|end|>", "<|pad|>"
    bpe.train_from_iterator(
        sorted({*prompts, *texts}), vocab_size=config.vocabulary, special_tokens=[end, pad],
        show_progress=False,
    )  # fmt: skip
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token=end, pad_token=pad
    )
    torch.manual_seed(config.seed)
    with quiet():
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer), hidden_size=config.hidden_size,
                intermediate_size=3 * config.hidden_size, num_hidden_layers=_LAYERS,
                num_attention_heads=_HEADS, max_position_embeddings=2_048, tie_word_embeddings=True,
                bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )  # fmt: skip
    # Prompt and story apart, as they will be when the policy writes.
    rows = [
        tokenizer.encode(prompt + _BREAK) + tokenizer.encode(text) + [tokenizer.eos_token_id]
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    size = _PRETRAINING_BATCH
    steps = config.pretraining_epochs * -(-len(rows) // size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_PRETRAINING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _PRETRAINING_RATE, total_steps=max(steps, 2), pct_start=0.1
    )
    order = np.random.default_rng(config.seed)
    model.train()
    with tqdm(total=steps, desc="pretraining", leave=False, disable=None) as bar:
        for _ in range(config.pretraining_epochs):
            shuffled = order.permutation(len(rows))
            for start in range(0, len(rows), size):
                batch = [torch.tensor(rows[row]) for row in shuffled[start : start + size]]
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
    save_policy(model, tokenizer, folder)


def save_policy(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save model and tokenizer."""
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def as_asked(prompt: str, tokenizer: Any) -> Any:
    """The prompt for the policy: a message if it has a chat template, else text."""
    if tokenizer.chat_template is None:
        return prompt + _BREAK
    request = f"Write a short story for this prompt. Give the story alone.\n\n{prompt}"
    return [{"role": "user", "content": request}]


def write_stories(model: Any, tokenizer: Any, prompts: Sequence[str], config: Config) -> list[str]:
    """Let the policy write for every prompt, with the same random numbers at every call."""
    import torch  # noqa: PLC0415
    from transformers import GenerationConfig  # noqa: PLC0415

    asked = [as_asked(prompt, tokenizer) for prompt in prompts]
    if tokenizer.chat_template is not None:
        asked = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    batch = tokenizer(
        asked, return_tensors="pt", padding=True, padding_side="left",
        add_special_tokens=tokenizer.chat_template is None, return_token_type_ids=False,
    ).to(model.device)  # fmt: skip
    was_training = model.training
    model.eval()
    # Training goes on with its own random numbers.
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
    step: int, prompts: Sequence[str], texts: Sequence[str], raters: Mapping[str, Any]
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


def trl_config(config: Config, folder: Path) -> Any:
    """The settings of trl, which checks them.

    Raises:
        ConfigError: trl refuses them.
        MissingExtraError: trl is not installed.
    """
    try:
        import torch  # noqa: PLC0415
        from trl import GRPOConfig  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("trl", "rl") from error
    same = ("max_steps", "learning_rate", "num_generations", "max_completion_length",
            "temperature", "beta", "seed")  # fmt: skip
    try:
        return GRPOConfig(
            output_dir=str(folder),
            **{key: getattr(config, key) for key in same},
            save_steps=config.eval_steps,
            lr_scheduler_type="constant",
            per_device_train_batch_size=config.prompts_per_step * config.num_generations,
            logging_steps=1,
            save_total_limit=2,
            bf16=False,
            dataloader_pin_memory=torch.cuda.is_available(),
            gradient_checkpointing=None,
            activation_checkpointing=False,
            report_to="none",
            disable_tqdm=not sys.stderr.isatty(),
        )
    except ValueError as error:
        raise ConfigError(f"trl refuses the config ({error}): change it") from error


def reinforce(
    config: Config,
    args: Any,
    policy: Path | str,
    reward: PolicyReward,
    rest: Stories,
    held_out: Sequence[str],
    raters: Mapping[str, Any],
) -> tuple[Any, Any, list[dict[str, Any]], list[dict[str, Any]]]:
    """Run GRPO.

    Returns:
        The policy, its tokenizer, a record per step, and one per evaluation.
    """
    from datasets import Dataset  # noqa: PLC0415
    from transformers import PrinterCallback, TrainerCallback  # noqa: PLC0415
    from transformers.trainer_callback import ProgressCallback  # noqa: PLC0415
    from trl import GRPOTrainer  # noqa: PLC0415

    model, tokenizer = load_backbone(str(policy), "language", attention="sdpa")
    asked = [prompt for prompt in held_out for _ in range(config.samples_per_prompt)]
    evaluations = Path(args.output_dir) / "evaluations"

    def evaluate_now(step: int, model: Any) -> None:
        record = evaluate(step, asked, write_stories(model, tokenizer, asked, config), raters)
        write_json(record, evaluations / f"{step:06d}.json")

    class Evaluate(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del args, control
            if state.global_step == 0:
                evaluate_now(0, kwargs["model"])

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del args, control
            if state.global_step % config.eval_steps == 0 or state.global_step == state.max_steps:
                evaluate_now(state.global_step, kwargs["model"])

    class Progress(ProgressCallback):
        def on_log(self, *_: Any, **kwargs: Any) -> None:
            """Without the forty numbers of a step, which are in curve.json."""

    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict(
            {"prompt": [as_asked(p, tokenizer) for p in rest], "writing_prompt": list(rest)}
        ),
        args=args,
        callbacks=[Evaluate()],
    )
    for loud in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(loud)
    if not args.disable_tqdm:
        trainer.add_callback(Progress())
    with quiet():
        trainer.train(resume_from_checkpoint=last_whole_checkpoint(Path(args.output_dir)))
    steps = [line for line in trainer.state.log_history if "reward" in line]
    kept = sorted(evaluations.glob("*.json"))
    found = [json.loads(path.read_text(encoding="utf-8")) for path in kept]
    return trainer.model, tokenizer, steps, found


def compare(
    before: np.ndarray, after: np.ndarray, people: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Compare one rater's rewards after GRPO with those before, within each prompt.

    Args:
        before: shape (prompts, samples).
        after: likewise.
        people: rewards of human stories, by prompt, in the same order.
    """

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


def added_by_feature(
    model: FeatureModel, prompts: Sequence[str], before: Sequence[str], after: Sequence[str]
) -> dict[str, float]:
    """What each feature added to the mean reward, largest first."""
    columns = [FEATURES.index(name) for name in model.names]
    shift = feature_matrix(prompts, after).mean(0) - feature_matrix(prompts, before).mean(0)
    added = shift[columns] / model.scale * model.coefficients
    order = np.argsort(-np.abs(added))
    return {model.names[column]: round(float(added[column]), 4) for column in order}


def results_of(
    raters: Mapping[str, Any], people: Stories, asked: Sequence[str], evaluations: Sequence[Any]
) -> dict[str, Any]:
    """Before and after GRPO: rewards of every rater, length and diversity, beside people's."""
    first, last = evaluations[0], evaluations[-1]
    samples = len(asked) // len(people)
    results: dict[str, Any] = {"held_out_prompts": len(people), "raters": {}}
    for name, rater in raters.items():
        own = {p: finite_rewards(rater, [p] * len(t), t) for p, t in people.items()}
        before, after = (
            np.array(one["rewards"][name]).reshape(len(people), samples) for one in (first, last)
        )
        results["raters"][name] = compare(before, after, own)
        if isinstance(rater, FeatureModel):
            added = added_by_feature(rater, asked, first["texts"], last["texts"])
            results["raters"][name]["added_by_feature"] = added
    # Shares of distinct trigrams are comparable between equally many texts only.
    some = [text for texts in people.values() for text in texts[:samples]]
    of_people = {
        "words": np.mean([count_words_of(text) for text in flat(people)[1]]),
        "distinct_trigrams": distinct_trigrams(some),
    }
    for key, value in of_people.items():
        values = {"before": np.mean(first[key]), "after": np.mean(last[key]), "people": value}
        results[key] = {name: float(one) for name, one in values.items()}
    return results


def main(config: Config) -> None:
    """Make a policy, improve it, and write how it went."""
    if "reward" in config.other_raters:
        raise ConfigError("other_raters.reward: this name is taken by the rater: choose another")
    if config.hidden_size < 1 or config.hidden_size % (2 * _HEADS):
        raise ConfigError(f"hidden_size is {config.hidden_size}: give a multiple of {2 * _HEADS}")
    for key in ("eval_steps", "samples_per_prompt", "prompts_per_step"):
        if getattr(config, key) < 1:
            raise ConfigError(f"{key} is {getattr(config, key)}: give at least 1")
    specs = parse_raters({"reward": config.rater, **config.other_raters})
    for spec in specs:
        check_options(spec, "raters")
    given = config.model_name_or_path
    models = files_of(specs) | ({} if given is None else {"model_name_or_path": given})
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={"stories": config.stories},
        models=models,
    )
    if artifact.is_current():
        return
    checkpoints = checkpoint_folder(config.out, artifact.fingerprint)
    args = trl_config(config, checkpoints)
    raters: dict[str, Any] = {spec.name: load_scorer(spec) for spec in specs}
    rest, people = divide(config, raters)
    reward = PolicyReward(
        raters["reward"], config.shaping, references=flat(rest), prompt_column="writing_prompt"
    )
    policy = checkpoints / "policy"
    if given is None and not (checkpoints / "policy.done").exists():
        make_policy(config, rest, policy)
        write_atomically(checkpoints / "policy.done", lambda path: path.write_text(""))
    model, tokenizer, steps, found = reinforce(
        config, args, given or policy, reward, rest, list(people), raters
    )
    asked = [prompt for prompt in people for _ in range(config.samples_per_prompt)]
    results = results_of(raters, people, asked, found)
    curve = {
        "training": steps,
        "held_out": [{key: value for key, value in one.items() if key != "texts"} for one in found],
    }
    artifact.write("results.json", lambda path: write_json(results, path))
    artifact.write("curve.json", lambda path: write_json(curve, path))
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
            ("distinct trigrams", "", lambda one: one["distinct_trigrams"],
             results["distinct_trigrams"]["people"]),
        )
    ]  # fmt: skip
    for file, write in policy_curves(panels).files("curve").items():
        artifact.write(file, write)
    rows = [
        {"prompt": prompt, "step": one["step"], "text": text, "reward": value}
        for one in (found[0], found[-1])
        for prompt, text, value in zip(asked, one["texts"], one["rewards"]["reward"], strict=True)
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    artifact.write("samples.jsonl", lambda path: path.write_text(lines, encoding="utf-8"))
    artifact.write_folder("policy", lambda folder: save_policy(model, tokenizer, folder))
    artifact.counts = {
        "training_prompts": len(rest),
        "reference_stories": len(flat(rest)[1]),
        "held_out_prompts": len(people),
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
    for name in ("words", "distinct_trigrams"):
        one = results[name]
        print(f"{name}: {one['before']:.2f} -> {one['after']:.2f}, people {one['people']:.2f}")


if __name__ == "__main__":
    run_program(main, Config, __doc__)
