"""Builders of small tables and a way to run the programs, shared by all tests."""

import atexit
import contextlib
import functools
import gc
import importlib.util
import io
import os
import random
import runpy
import shutil
import string
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import rooms
from hypothesis import HealthCheck, settings

from litbench import cli
from litbench.data.records import PAIRS, STORIES, VERDICTS, empty_columns, pair_id
from litbench.data.text import count_words
from litbench.evaluation.report import figures
from litbench.raters.interface import Rater
from litbench.raters.scope import Flags

ROOT = Path(__file__).resolve().parent.parent

# The first example of a test may import scipy, and a busy machine draws slowly: no test asserts
# speed. The fixtures that examples share build tables and keep nothing.
settings.register_profile(
    "litbench",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("litbench")

# `make test-core`: the core must work where no extension can be imported.
if os.environ.get("LITBENCH_CORE_ONLY"):
    sys.modules.update(dict.fromkeys([f"litbench.{name}" for name in rooms.extensions()]))


# At the end of the process DuckDB's bindings report what Python frees after them as leaks.
atexit.register(lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 2))

_last_look = (Path(), 0)


def pytest_runtest_setup(item):
    """Keep what stays, such as torch, out of the collector's sight: a third of the time went there.

    A trainer collects after every run, and walks millions of objects each time.
    """
    global _last_look  # noqa: PLW0603
    file, modules = _last_look
    if item.path != file or len(sys.modules) > modules + 100:
        gc.collect()
        gc.freeze()
        _last_look = (item.path, len(sys.modules))


def _table(schema, rows):
    types = {name: column.type for name, column in empty_columns(schema, 0).items()}
    return pa.table({n: pa.array([row.get(n) for row in rows], t) for n, t in types.items()})


@pytest.fixture
def story_table():
    """Build a stories table from partial rows; what a row leaves out gets a harmless value."""

    def build(rows):
        full = []
        texts = [r.get("text", f"story number {k} has some words") for k, r in enumerate(rows)]
        # One call: each compiles its expressions, which takes milliseconds.
        words = count_words(pa.array(texts, pa.large_string())).to_pylist()
        for index, row in enumerate(rows):
            base = {
                "story_id": f"s{index:04d}",
                "prompt_id": "p0",
                "text": texts[index],
                "source": "test",
                "n_words": words[index],
            }
            merged = {**base, **row}
            merged.setdefault("prompt", f"[WP] Prompt of {merged['prompt_id']}")
            full.append(merged)
        return _table(STORIES, full)

    return build


@pytest.fixture
def pair_table():
    """Build a pairs table from partial rows; `chosen` and `rejected` are texts."""

    def build(rows):
        full = []
        chosen = [r.get("chosen", f"the chosen story number {k}") for k, r in enumerate(rows)]
        rejected = [r.get("rejected", f"a rejected one, number {k}") for k, r in enumerate(rows)]
        words = count_words(pa.array(chosen + rejected, pa.large_string())).to_pylist()
        for index, row in enumerate(rows):
            base = {
                "prompt_id": f"p{index % 7}",
                "label_source": "people",
                "split": "all",
                "chosen": chosen[index],
                "rejected": rejected[index],
                "chosen_story_id": f"c{index}",
                "rejected_story_id": f"r{index}",
                "chosen_n_words": words[index],
                "rejected_n_words": words[len(rows) + index],
            }
            merged = {**base, **row}
            merged.setdefault("prompt", f"[WP] Prompt of {merged['prompt_id']}")
            merged.setdefault(
                "pair_id", pair_id(merged["chosen_story_id"], merged["rejected_story_id"])
            )
            full.append(merged)
        return _table(PAIRS, full)

    return build


@pytest.fixture
def verdict_table():
    """Build a verdicts table from partial rows."""

    def build(rows):
        base = {"rater": "rater", "kind": "test", "outcome": "chosen"}
        return _table(VERDICTS, [{**base, **row} for row in rows])

    return build


@pytest.fixture(scope="session")
def load_program():
    """The `main` and `Config` of a program's path, or of a command such as `litbench power`."""

    @functools.cache
    def load(name):
        if name.startswith("litbench "):
            main, config, _ = cli.find_command(name.removeprefix("litbench "))
            return SimpleNamespace(main=main, Config=config)
        # Named apart from any module of the tests; a Config's type hints are looked up by it.
        spec = importlib.util.spec_from_file_location(f"program_{Path(name).stem}", ROOT / name)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        # As `python PROGRAM` does: the benchmarks import each other.
        sys.path.insert(0, str((ROOT / name).parent))
        try:
            spec.loader.exec_module(module)
        finally:
            del sys.path[0]
        return module

    return load


@pytest.fixture
def program(monkeypatch):
    """Run a program or command, such as `program("data_prep/make_pairs.py", "--seed", "1")`.

    All that a process of its own would do is done, but for its start, which takes seconds.
    """

    def run(name, *arguments):
        is_command = name.startswith("litbench ")
        start = name.split() if is_command else [str(ROOT / name)]
        command = [*start, *map(str, arguments)]
        said, complained, code = io.StringIO(), io.StringIO(), 0
        with (
            monkeypatch.context() as patch,
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(complained),
        ):
            patch.chdir(ROOT)
            patch.setattr(sys, "argv", command)
            try:
                if is_command:
                    cli.main()
                else:
                    # As `python PROGRAM` does: the benchmarks import each other.
                    patch.syspath_prepend(str((ROOT / name).parent))
                    runpy.run_path(command[0], run_name="__main__")
            except SystemExit as stopped:
                code = int(stopped.code or 0)
        return subprocess.CompletedProcess(command, code, said.getvalue(), complained.getvalue())

    return run


@pytest.fixture
def program_process():
    """Run a program, or a command such as `litbench power`, in a process of its own."""

    def run(name, *arguments, timeout=300):
        start = ["-m", *name.split()] if name.startswith("litbench ") else [str(ROOT / name)]
        return subprocess.run(
            [sys.executable, *start, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=ROOT,
            check=False,
        )

    return run


WORDS = [
    *("the", "a", "of", "and", "lantern", "river", "copper", "moth", "window", "ladder"),
    *("winter", "kettle", "orchard", "whisper", "salt", "gate", "she", "he", "carried", "opened"),
    *("forgot", "counted", "painted", "under", "over", "beyond", "toward", "slowly", "never"),
]


# As instruct models have it: BOS as text, a newline behind the token that ends a turn.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<turn>{{ message['role'] }}\n"
    "{{ message['content'] | trim }}<stop>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)


def _tiny_tokenizer(kind, pad, padding_side, *, chat):
    """A tokenizer with every character and `WORDS`: built, as training differs by process."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    if kind == "bert":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        letters = [letter for letter in string.printable if not letter.isspace()]
        pieces = [*special, *letters, *(f"##{letter}" for letter in letters), *WORDS]
        made = Tokenizer(
            models.WordPiece(
                {piece: k for k, piece in enumerate(dict.fromkeys(pieces))},
                unk_token="[UNK]",  # noqa: S106
            )
        )
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        ends = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
        )
        names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
        return PreTrainedTokenizerFast(
            tokenizer_object=made,
            padding_side=padding_side,
            **{f"{role}_token": token for role, token in names.items()},
        )
    special = ["<begin>", "<end>", "<filler>", *(["<turn>", "<stop>"] if chat else [])]
    # Bytes are written as letters: "Ġ" is the space before a word, "Ċ" the end of a line.
    words = [*WORDS, *("\u0120" + word for word in WORDS), "\u010a\u010a"]
    merges = [(word[:end], word[end]) for word in words for end in range(1, len(word))]
    pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    made = Tokenizer(
        models.BPE(
            {piece: k for k, piece in enumerate(dict.fromkeys(pieces))},
            list(dict.fromkeys(merges)),
            ignore_merges=True,
        )
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(special)
    roles = {"eos_token": "<end>"}
    if kind == "llama":
        roles["bos_token"] = "<begin>"  # noqa: S105
        made.post_processor = processors.TemplateProcessing(
            single="<begin> $A",
            pair="<begin> $A <begin> $B",
            special_tokens=[("<begin>", made.token_to_id("<begin>"))],
        )
    if pad is not None:
        roles["pad_token"] = {"own": "<filler>", "eos": "<end>"}[pad]
    ready = PreTrainedTokenizerFast(tokenizer_object=made, padding_side=padding_side, **roles)
    if chat:
        ready.chat_template = CHAT_TEMPLATE
    return ready


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Make the folder of a tiny random model: `tiny_model("llama", pad="eos")`.

    Kinds: `bert` (encoder), and the decoders `llama` (its tokenizer adds BOS), `qwen3`, `gpt2` and
    `gemma3` (without BOS; the last with a sliding window of 16 in one of its layers). `pad` is
    `own`, `eos` or None for no pad token at all. `head` is `reward`, in which two stories differ by
    far more than rounding, or `language`. With `chat` the tokenizer has a chat template and tokens
    `<turn>` and `<stop>` around a message.
    """

    @functools.cache
    def build(
        kind,
        pad="own",
        padding_side="right",
        num_labels=1,
        positions=512,
        head="reward",
        chat=False,
    ):
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")

        # Models this small only wait for their threads, for minutes on a busy machine.
        torch.set_num_threads(1)
        torch.manual_seed(0)
        tokenizer = _tiny_tokenizer(kind, pad, padding_side, chat=chat)
        shape = {
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": positions,
            "num_labels": num_labels,
            "pad_token_id": tokenizer.pad_token_id,
            # Wide enough that stories differ; at the usual 0.02 they all score alike.
            "initializer_range": 0.2,
        }
        if kind != "bert":
            shape |= {
                "bos_token_id": tokenizer.bos_token_id,
                "eos_token_id": tokenizer.eos_token_id,
            }
        if kind in ("llama", "qwen3", "gemma3"):
            shape["num_key_value_heads"] = 1
        if kind in ("qwen3", "gemma3"):
            shape["head_dim"] = 16
        if kind == "gemma3":
            layers = ["sliding_attention", "full_attention"]
            shape |= {"sliding_window": 16, "layer_types": layers, "query_pre_attn_scalar": 16}
        names = {"bert": "Bert", "llama": "Llama", "qwen3": "Qwen3", "gpt2": "GPT2"}
        name = names.get(kind, "Gemma3Text")
        config = getattr(transformers, f"{name}Config")(**shape)
        if head == "language":
            classes = {"gpt2": "GPT2LMHeadModel", "gemma3": "Gemma3ForCausalLM"}
            model = getattr(transformers, classes.get(kind, f"{name}ForCausalLM"))(config)
        else:
            model = getattr(transformers, f"{name}ForSequenceClassification")(config)
            last = model.classifier if kind == "bert" else model.score
            torch.nn.init.normal_(last.weight, std=1.0)
        folder = tmp_path_factory.mktemp(f"{kind}-{head}-{pad}-{padding_side}")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return build


@pytest.fixture(scope="session")
def invented():
    """Make up a text of so many words: `invented(random.Random(0), 40)`; no commas in it."""

    def write(source, words):
        ends = source.choices([" ", ". ", "! ", "\n\n"], weights=[12, 2, 1, 1], k=words)
        return "".join(w + e for w, e in zip(source.choices(WORDS, k=words), ends, strict=True))

    return write


@pytest.fixture
def some_pairs(pair_table, invented):
    """Pairs of invented stories, each of its own prompt: `some_pairs(8, chosen=texts)`.

    `words` has the fewest and most words of a story; `columns` replace what is invented.
    """

    def build(n, seed=0, words=(3, 25), **columns):
        source = random.Random(seed)
        rows = [
            {
                "prompt": f"[WP] {invented(source, 4)}",
                "prompt_id": f"p{seed}-{index}",
                "chosen": invented(source, source.randint(*words)),
                "rejected": invented(source, source.randint(*words)),
                "chosen_story_id": f"c{seed}-{index}",
                "rejected_story_id": f"r{seed}-{index}",
                **{name: values[index] for name, values in columns.items()},
            }
            for index in range(n)
        ]
        return pair_table(rows)

    return build


# A short template of one's own; the packaged ones are long for tiny models.
TEXT = "text: |-\n  {prompt}\n  A: {story_a}\n  B: {story_b}\n"
LABEL = f"answer: label\n{TEXT}  Preferred:"
EXPLANATION = f"answer: explanation\n{TEXT}  Say why, then Preferred: A or Preferred: B."


@pytest.fixture
def braces_are_code(monkeypatch):
    """Every rater has a scope to which a text with a brace is no prose."""

    def flags(stories):
        prose = ["{" not in story for story in stories]
        return Flags(prose, prose, [[] if good else ["code", "braces"] for good in prose])

    monkeypatch.setattr(Rater, "scope", SimpleNamespace(flags=flags))


@pytest.fixture
def undrawn(monkeypatch):
    """No time for pictures, where a test is not about them: each takes 0.1 to 0.5 s."""
    figure = SimpleNamespace(savefig=lambda path, **_: path.touch(), get_figwidth=lambda: 1)
    picture = figures.Drawing('<svg width="1"></svg>', figure)
    monkeypatch.setattr(figures, "drawing", lambda *_: picture)


@pytest.fixture
def template(tmp_path):
    """Write a short template, of a label by default; returns its path."""

    def write(text=LABEL):
        path = tmp_path / f"own-{text is LABEL}.yaml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture(scope="session")
def headless(tiny_model, tmp_path_factory):
    """A decoder as it comes from pretraining: no reward head, pad token EOS."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("headless")
    source = tiny_model("llama", "eos")
    transformers.AutoModel.from_pretrained(source).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


# Not for the session: while it is open, an event loop runs, in which other tests could not run one.
@pytest.fixture(scope="module")
def chromium():
    """A headless Chromium; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        # Its sandbox needs rights that containers do not give.
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Open a tab that notes its requests and what its console says."""
    contexts = []

    def build(**options):
        context = chromium.new_context(**options)
        context.set_default_timeout(30_000)
        contexts.append(context)
        page = context.new_page()
        page.requests, page.console = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("console", lambda message: page.console.append(message.text))
        return page

    yield build
    for context in contexts:
        context.close()
