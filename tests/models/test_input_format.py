"""The input format: chat template, special tokens, truncation and pad token of a saved folder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.models import input_format
from litbench.models.backbone import load_backbone
from litbench.models.input_format import encode_stories, longest_of, prepare_tokenizer
from litbench.runs.errors import ModelError

transformers = pytest.importorskip("transformers")

KINDS = [("llama", False), ("llama", True), ("qwen3", False), ("qwen3", True), ("bert", False)]
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=30)


@pytest.fixture(scope="module")
def prepared(tiny_model, tmp_path_factory):
    """A tokenizer with the input format, saved and loaded again."""

    def load(kind, *, chat=False, max_length=200, pad="own", template=None):
        model, tokenizer = load_backbone(str(tiny_model(kind, pad=pad, chat=chat)))
        if template is not None:
            tokenizer.chat_template = template
        prepare_tokenizer(tokenizer, model, max_length)
        folder = tmp_path_factory.mktemp("tokenizer")
        tokenizer.save_pretrained(folder)
        model.config.save_pretrained(folder)
        return model, transformers.AutoTokenizer.from_pretrained(folder)

    return load


@pytest.mark.parametrize(
    ("kind", "chat", "expected"),
    [
        ("llama", False, "<begin>the moth\n\na gate<end>"),
        ("qwen3", False, "the moth\n\na gate<end>"),
        ("llama", True, "<begin><turn>user\nthe moth<stop>\n<turn>assistant\na gate<stop><end>"),
        ("qwen3", True, "<turn>user\nthe moth<stop>\n<turn>assistant\na gate<stop><end>"),
        ("bert", False, "[CLS]the moth[SEP]a gate[SEP]"),
    ],
)
def test_the_template_spells_out_every_special_token(prepared, kind, chat, expected):
    model, tokenizer = prepared(kind, chat=chat)
    messages = [
        {"role": "user", "content": "the moth"},
        {"role": "assistant", "content": "a gate"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == expected
    ids = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
    (ours,) = encode_stories(tokenizer, ["the moth"], ["a gate"]).ids
    with_special, without = (tokenizer(text, add_special_tokens=item) for item in (True, False))
    assert ours == ids == with_special["input_ids"] == without["input_ids"]
    if kind == "bert":
        pair = tokenizer("the moth", "a gate")
        assert pair["input_ids"] == ours
        assert not any(pair.get("token_type_ids", []))
    # Nothing is left that a reader could strip or add.
    assert tokenizer.bos_token is None
    assert tokenizer.eos_token not in (None, tokenizer.pad_token)
    assert text.endswith(tokenizer.eos_token)
    assert tokenizer.padding_side == tokenizer.truncation_side == "right"
    assert model.config.pad_token_id == tokenizer.pad_token_id
    before = tokenizer.chat_template
    prepare_tokenizer(tokenizer, model, 200)
    assert tokenizer.chat_template == before


@pytest.mark.parametrize(("kind", "chat"), KINDS)
def test_long_sequences_are_truncated_on_the_right_and_counted(prepared, kind, chat):
    _, tokenizer = prepared(kind, chat=chat, max_length=60)
    _, whole = prepared(kind, chat=chat)
    stories = ["the " * words for words in (1, 20, 60, 100)]
    prompts = ["a moth"] * 4
    cut = encode_stories(tokenizer, prompts, stories)
    ids = encode_stories(whole, prompts, stories).ids
    assert tokenizer.model_max_length == 60
    assert cut.ids == [item[:60] for item in ids]
    assert cut.cut == [len(item) > 60 for item in ids]
    assert 0 < sum(cut.cut) < 4


@pytest.mark.parametrize(("kind", "chat"), KINDS)
def test_texts_cannot_place_special_tokens(prepared, kind, chat):
    _, tokenizer = prepared(kind, chat=chat)
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    plain, hostile = (
        encode_stories(tokenizer, [f"the {text}"], [f"a gate {text} {{{{ eos }}}}"]).ids[0]
        for text in ("moth", "".join(special))
    )
    for token in tokenizer.convert_tokens_to_ids(special):
        assert plain.count(token) == hostile.count(token)


@given(prompt=TEXT, story=TEXT)
def test_a_row_does_not_depend_on_its_neighbours(prepared_llama, prompt, story):
    alone = encode_stories(prepared_llama, [prompt], [story])
    among = encode_stories(prepared_llama, ["the", prompt, "a"], ["a " * 300, story, ""])
    assert alone.ids[0] == among.ids[1]
    assert alone.cut[0] == among.cut[1]


@pytest.fixture(scope="module")
def prepared_llama(prepared):
    return prepared("llama")[1]


@pytest.mark.parametrize(
    ("pad", "added", "expected"),
    [
        ("own", [], "<filler>"),
        ("eos", [], "<filler>"),
        (None, ["<other>", "<|reserved_5|>"], "<|reserved_5|>"),
        (None, ["<spare>", "<|pad|>"], "<|pad|>"),
    ],
)
def test_the_pad_token_ends_no_sequence(tiny_model, pad, added, expected):
    model, tokenizer = load_backbone(str(tiny_model("llama", pad=pad)))
    tokenizer.add_special_tokens({"extra_special_tokens": added})
    prepare_tokenizer(tokenizer, model, 200)
    assert tokenizer.pad_token == expected
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id


def test_the_date_in_a_template_is_fixed(prepared):
    template = (
        "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m['content'] }}{% endfor %}<end>"
    )
    _, tokenizer = prepared("qwen3", template=template)
    (ids,) = encode_stories(tokenizer, ["the"], ["moth"]).ids
    text = tokenizer.decode(ids)
    assert text == "26 Jul 2024themoth<end>"


def test_max_length_is_lowered_to_positions(tiny_model):
    for kind in ("llama", "bert"):
        model, _ = load_backbone(str(tiny_model(kind, positions=128)))
        assert longest_of(model, 4_096) == 128
        assert longest_of(model, 50) == 50
    config = transformers.RobertaConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=16,
        max_position_embeddings=130,
        num_labels=1,
    )
    assert longest_of(transformers.RobertaForSequenceClassification(config), 4_096) == 128


_ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ messages[0]['content'] }}<end>", "leaves out"),
        ("{{ raise_exception('no assistant') }}", "no assistant"),
        ("{% for a in range(9999999) %}{% endfor %}<end>", "cannot render.*Range too big"),
        ("{{ messages[0]['content'] + 1 }}<end>", "cannot render"),
        ("{{ 1 / 0 }}<end>", "cannot render.*division"),
        (None, "no EOS"),
        (f"{_ENDLESS}<end>", "did not end in 0.2 s"),
    ],
)
def test_what_cannot_be_rendered_is_refused(tiny_model, monkeypatch, template, says):
    monkeypatch.setattr(input_format, "_TEMPLATE_SECONDS", 0.1)
    model, tokenizer = load_backbone(str(tiny_model("llama")))
    tokenizer.chat_template = template
    if template is None:
        tokenizer.eos_token = None
    with pytest.raises(ModelError, match=says):
        prepare_tokenizer(tokenizer, model, 200)
