"""The steps of a training program: train, judge held-out pairs, write the folder, push it.

`model/run.json` holds the config and the results; the card is written from it. Neither contains
texts of the pairs (only hashes of their prompts) or local paths. Only safetensors, JSON and text
are pushed, to a private repository by default.
"""

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from litbench.data.sources.evaluation_pairs import read_held_out, read_training_pairs
from litbench.data.sources.pairs import find_pair_columns
from litbench.metrics.leaderboard import leaderboard, plain
from litbench.models.baselines import LengthRater
from litbench.models.card import model_card, run_text
from litbench.models.folder import prompts_of
from litbench.models.training import REJECTED, checkpoint_folder, is_main_process
from litbench.raters.interface import Rater, ScoreRater, judge_pairs
from litbench.raters.nonstories import NEGATIVES, compare_nonstories, nonstories_text
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.hub import check_token, parse_name, replace_files
from litbench.runs.locations import resolve
from litbench.runs.markdown import without_folders
from litbench.runs.outputs import Artifact, only_writer, write_json

# File types that transformers, tokenizers and LitBench write; no code and no pickles.
_ENDINGS = (".safetensors", ".json", ".txt", ".md", ".jinja", ".model")

# A small network on a CPU scores about 15 texts a second; a generative one takes seconds per pair.
_MAX_STORIES = {"reward": 10, "generative": 3}


def train_and_write(
    train_model: Callable[[pa.Table, Any, Path], Any], config: Any, program: str
) -> None:
    """Train, evaluate, write and push a model; a killed run resumes.

    Args:
        train_model: `train_reward_model` or `train_generative_model`.
        config: the program's config, a `ProgramOptions`.
        program: path of the program.
    """
    check_push(config)
    out = Path(config.output_dir)
    # The processes of one training share the lock of the main process.
    with only_writer(out) if is_main_process() else contextlib.nullcontext():
        _train_and_write(train_model, config, program, out)


def _train_and_write(
    train_model: Callable[[pa.Table, Any, Path], Any], config: Any, program: str, out: Path
) -> None:
    artifact = Artifact(
        out, program=program, config=config.record(), inputs=config.inputs(), models=config.files()
    )
    if not artifact.is_current():
        path, columns = Path(config.pairs), config.columns()
        pairs = read_training_pairs(path, config.split, columns, numbered=True)
        held_out = read_held_out(
            config.evaluation_pairs,
            config.evaluation_split,
            pairs,
            path,
            prompts_of(config.model_name()),
            columns,
        )
        checkpoints = checkpoint_folder(out, artifact.fingerprint)
        model = train_model(pairs, config, checkpoints)
        if model is None:
            return
        model.columns = find_pair_columns(path, columns)
        run = write_trained_model(artifact, model, pairs, held_out, checkpoints)
        rows = (run["evaluation"] or {"raters": []})["raters"]
        row: dict[str, Any] = next(
            (row["agreement"] for row in rows if row["kind"] == model.kind), {}
        )
        agreement = {f"test_agreement_{name}": row.get(name) for name in ("mean", "low", "high")}
        model.report({name: value for name, value in agreement.items() if value is not None})
        print(f"{out / 'model'}: {run_text(run)}")
        print(nonstories_text(model.name, run["nonstories"]))
    if is_main_process():
        push_model(out / "model", config)


def write_trained_model(
    artifact: Artifact, model: Any, pairs: pa.Table, held_out: pa.Table | None, checkpoints: Path
) -> dict[str, Any]:
    """Judge the held-out pairs, write the folder and the manifest; return `run.json`'s content."""
    scored = model.score_training_stories(pairs) if isinstance(model, ScoreRater) else None
    model.learn_scope(pairs)
    nonstories = compare_nonstories(model, pairs, _MAX_STORIES[model.kind])
    record = model.training_record
    labels = Counter(pairs["label_source"].to_pylist())
    if negatives := record["counts"].get(NEGATIVES):
        labels[NEGATIVES] = negatives
    manifest = artifact.as_manifest()
    run = {
        **{key: manifest[key] for key in ("program", "finished_utc", "versions")},
        "kind": model.kind,
        "adapter": model.adapter is not None,
        "reads_prompt": model.reads_prompt,
        **({"answer": model.question.answer} if model.kind == "generative" else {}),
        "config": without_folders(manifest["config"]),
        "inputs": without_folders(manifest["inputs"]),
        "label_source": dict(labels),
        "training": {**record, "options": without_folders(record["options"])},
        "evaluation": None if held_out is None else _judge_held_out(model, held_out),
        "scope": None if model.scope is None else model.scope.held_out,
        "nonstories": nonstories,
        "training_prompts": sorted(model.prompts),
    }

    def write(folder: Path) -> None:
        model.save(folder)
        if scored is not None:
            run["bfloat16"] = model.bfloat16_error(folder, *scored)
        write_json(run, folder / "run.json")
        (folder / "README.md").write_text(model_card(run), encoding="utf-8")

    artifact.write_folder("model", write)
    artifact.write(REJECTED, lambda path: shutil.copyfile(checkpoints / REJECTED, path))
    artifact.counts |= {
        "prompts": len(model.prompts),
        **record["counts"],
        "training": record,
        "nonstories": {**artifact.counts.get("nonstories", {}), model.name: nonstories},
        **({} if held_out is None else {"evaluation": run["evaluation"]}),
    }
    artifact.finish()
    shutil.rmtree(checkpoints, ignore_errors=True)
    return run


def _judge_held_out(rater: Rater, pairs: pa.Table) -> dict[str, Any]:
    """Judge held-out pairs with a trained model and the longer story; as JSON values."""
    raters = [rater, LengthRater("longer", "longer", 1)]
    verdicts = pa.concat_tables([judge_pairs(rater, pairs) for rater in raters])
    rows = plain(leaderboard(verdicts, pairs, "longer"))
    return {
        "pairs": pairs.num_rows,
        "prompts": rows[0]["agreement"]["clusters"],
        "label_source": dict(Counter(pairs["label_source"].to_pylist())),
        "raters": rows,
    }


def check_push(config: Any) -> None:
    """Check before training that the model can be pushed afterwards."""
    if not config.push_to_hub:
        return
    name = config.hub_model_id
    if name is None or str(parsed := parse_name(name)) != parsed.repository:
        raise ConfigError(f"push_to_hub: hub_model_id is '{name}': set it to owner/name")
    base = config.model_name_or_path
    if config.use_peft and not config.merge_adapter and Path(resolve(base)).exists():
        raise ConfigError(
            f"the adapter's base model is the local folder {base}: set merge_adapter: true, or "
            "train a model from the Hub"
        )
    check_token()


def push_model(folder: Path, config: Any) -> None:
    """Push a model's folder in one commit if the config sets `push_to_hub`."""
    if not config.push_to_hub:
        return
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or (path.is_file() and not path.name.endswith(_ENDINGS)):
            raise DataError(f"{path} is not a model file ({', '.join(_ENDINGS)}): remove it")
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = path
    if not any(name.endswith(".safetensors") for name in files):
        raise DataError(f"{folder} has no weights in safetensors: train the model again")
    address = replace_files(
        config.hub_model_id,
        files,
        "model",
        private=config.hub_private_repo,
        is_ours=lambda path: path.endswith(_ENDINGS),
    )
    print(f"pushed: {address}")
