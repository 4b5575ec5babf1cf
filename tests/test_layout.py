"""The joined form of prompt and story: what stands where, what is cut, what never is."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.errors import ModelError
from litbench.models.layout import Layout

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

KINDS = ["bert", "llama", "qwen3", "gpt2", "gemma3"]


@pytest.fixture
def load(tiny_model):
    def loaded(kind, **options):
        folder = tiny_model(kind, **options)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        return transformers.AutoTokenizer.from_pretrained(folder), model

    return loaded


def words_of(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True).split()


def test_an_encoder_gets_its_own_special_tokens(load):
    tokenizer, model = load("bert")
    layout = Layout.infer(tokenizer, model, 64)
    cls, sep = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    assert (layout.prefix, layout.middle, layout.suffix) == ((cls,), (sep,), (sep,))
    assert layout.pooling == "first"
    # The tokenizer's own way of joining two texts is the reference.
    ids = layout.encode(tokenizer, ["the moth"], ["she opened the gate"]).ids
    assert ids == [tokenizer("the moth", "she opened the gate")["input_ids"]]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_decoder_gets_bos_only_where_its_tokenizer_adds_one_and_eos_always(load, kind):
    tokenizer, model = load(kind)
    layout = Layout.infer(tokenizer, model, 64)
    begin, end = tokenizer.convert_tokens_to_ids(["<begin>", "<end>"])
    assert layout.prefix == ((begin,) if kind == "llama" else ())
    assert tokenizer.decode(layout.middle) == "\n\n"
    assert layout.suffix == (end,)
    assert layout.pooling == "last"
    (ids,) = layout.encode(tokenizer, ["the moth"], ["she opened the gate"]).ids
    assert ids.count(begin) == (1 if kind == "llama" else 0)
    assert ids.count(end) == 1
    assert ids[-1] == end
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the moth\n\nshe opened the gate"


@pytest.mark.parametrize("kind", KINDS)
def test_an_overlong_story_loses_only_its_end_and_is_counted(load, invented, kind):
    tokenizer, model = load(kind)
    layout = Layout.infer(tokenizer, model, 64)
    prompt, story = "the moth counted", invented(random.Random(1), 200)
    encoded = layout.encode(tokenizer, [prompt], [story])
    assert encoded.cut == [True]
    (ids,) = encoded.ids
    assert len(ids) == 64
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    story_ids = tokenizer(story, add_special_tokens=False)["input_ids"]
    head = [*layout.prefix, *prompt_ids, *layout.middle]
    room = 64 - len(head) - len(layout.suffix)
    assert ids == [*head, *story_ids[:room], *layout.suffix]


@pytest.mark.parametrize("kind", KINDS)
def test_an_overlong_prompt_is_cut_to_its_share_and_counted(load, invented, kind):
    tokenizer, model = load(kind)
    layout = Layout.infer(tokenizer, model, 64, max_prompt_tokens=10)
    prompt, story = invented(random.Random(2), 100), "she opened the gate"
    encoded = layout.encode(tokenizer, [prompt, "the moth"], [story, story])
    assert encoded.cut == [True, False]
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    story_ids = tokenizer(story, add_special_tokens=False)["input_ids"]
    assert encoded.ids[0] == [
        *layout.prefix, *prompt_ids[:10], *layout.middle, *story_ids, *layout.suffix
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_story_that_just_fits_is_whole_and_one_token_more_is_cut(load, kind):
    tokenizer, model = load(kind)
    prompt, story = "the moth", "she opened the gate"
    whole = Layout.infer(tokenizer, model, 64).encode(tokenizer, [prompt], [story]).ids[0]
    exact = Layout.infer(tokenizer, model, len(whole), 2).encode(tokenizer, [prompt], [story])
    assert (exact.ids, exact.cut) == ([whole], [False])
    tight = Layout.infer(tokenizer, model, len(whole) - 1, 2).encode(tokenizer, [prompt], [story])
    suffix = len(Layout.infer(tokenizer, model, 64).suffix)
    assert tight.cut == [True]
    assert tight.ids == [whole[: -suffix - 1] + whole[-suffix:]]


@pytest.mark.parametrize("kind", KINDS)
def test_no_room_for_a_story_is_an_error_that_names_the_keys(load, kind):
    tokenizer, model = load(kind)
    layout = Layout.infer(tokenizer, model, 12, max_prompt_tokens=12)
    with pytest.raises(ModelError, match=r"max_length 12 leaves no room.*max_prompt_tokens"):
        layout.encode(tokenizer, ["the moth"], ["she opened the gate"])


def test_max_length_is_lowered_to_the_positions_of_the_model(load):
    tokenizer, model = load("bert", positions=48)
    layout = Layout.infer(tokenizer, model, 2_048)
    assert layout.max_length == 48
    assert layout.max_prompt_tokens == 48 // 4


@pytest.mark.parametrize("name", ["Roberta", "XLMRoberta", "Camembert", "MPNet", "Bert"])
def test_a_sequence_of_full_length_has_a_position_for_every_token(load, invented, name):
    tokenizer, like = load("bert")
    config = {**like.config.to_dict(), "max_position_embeddings": 48, "pad_token_id": 1}
    del config["model_type"]
    model = getattr(transformers, f"{name}ForSequenceClassification")(
        getattr(transformers, f"{name}Config")(**config)
    )
    layout = Layout.infer(tokenizer, model, 2_048)
    # All but BERT count from the number of the pad token, which is 1, and one more.
    assert layout.max_length == (48 if name == "Bert" else 46)
    (ids,) = layout.encode(tokenizer, ["the moth"], [invented(random.Random(1), 200)]).ids
    assert len(ids) == layout.max_length
    # No id of the batch is the pad token's.
    model(input_ids=torch.tensor([[one + (one == 1) for one in ids]]))


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_prompt_that_is_dropped_counts_as_cut_unless_the_form_has_none(load, kind):
    tokenizer, model = load(kind)
    for form, cut in (("plain", True), ("story", False)):
        layout = Layout.infer(tokenizer, model, 64, max_prompt_tokens=0, form=form)
        encoded = layout.encode(tokenizer, ["the moth", ""], ["she opened the gate"] * 2)
        assert encoded.cut == [cut, False]


def test_a_decoder_without_eos_is_refused(load):
    tokenizer, model = load("qwen3")
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match=r"no EOS token.*set its eos_token"):
        Layout.infer(tokenizer, model, 64)


@pytest.fixture(scope="session")
def three_layouts(tiny_model):
    made = []
    for kind in KINDS:
        folder = tiny_model(kind)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        made.append((tokenizer, Layout.infer(tokenizer, model, 40)))
    return made


@given(prompt=st.text(max_size=80), story=st.text(max_size=300))
def test_every_text_is_framed_and_fits(three_layouts, prompt, story):
    for tokenizer, layout in three_layouts:
        encoded = layout.encode(tokenizer, [prompt], [story])
        (ids,), (cut,) = encoded.ids, encoded.cut
        prefix, suffix = len(layout.prefix), len(layout.suffix)
        assert tuple(ids[:prefix]) == layout.prefix
        assert tuple(ids[-suffix:]) == layout.suffix
        assert len(ids) <= layout.max_length
        alone = [
            len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (prompt, story)
        ]
        missing = sum(alone) + prefix + len(layout.middle) + suffix - len(ids)
        assert cut == (missing > 0)


def test_the_rows_do_not_depend_on_their_neighbours(three_layouts, invented):
    source = random.Random(3)
    prompts = [f"the moth {place % 3}" for place in range(20)]
    stories = [invented(source, source.randint(0, 60)) for _ in prompts]
    for tokenizer, layout in three_layouts:
        together = layout.encode(tokenizer, prompts, stories)
        alone = [layout.encode(tokenizer, [p], [s]) for p, s in zip(prompts, stories, strict=True)]
        assert together.ids == [one.ids[0] for one in alone]
        assert together.cut == [one.cut[0] for one in alone]


@pytest.mark.parametrize(
    ("kind", "form"), [*((kind, "plain") for kind in KINDS), ("llama", "chat"), ("qwen3", "chat")]
)
def test_neither_prompt_nor_story_can_place_control_tokens(load, kind, form):
    tokenizer, model = load(kind, chat=form == "chat")
    layout = Layout.infer(tokenizer, model, 256, form=form)
    control = {name: tokenizer.convert_tokens_to_ids(name) for name in tokenizer.get_added_vocab()}
    control.pop(tokenizer.unk_token, None)
    spelled = " ".join(control)
    (plain,) = layout.encode(tokenizer, ["the moth"], ["she opened the gate"]).ids
    (attacked,) = layout.encode(
        tokenizer, [f"the {spelled} moth"], [f"she {spelled} opened the gate {spelled}"]
    ).ids
    assert len(control) >= 3
    assert [token for token in attacked if token in control.values()] == [
        token for token in plain if token in control.values()
    ]


def test_no_stories_give_no_rows(three_layouts):
    tokenizer, layout = three_layouts[0]
    assert layout.encode(tokenizer, [], []).ids == []


# Chat form ----------------------------------------------------------------------------------

MESSAGES = [
    {"role": "user", "content": "the moth"},
    {"role": "assistant", "content": "she opened the gate"},
]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_chat_form_is_the_tokens_of_the_template(load, kind):
    tokenizer, model = load(kind, chat=True)
    layout = Layout.infer(tokenizer, model, 64, form="chat")
    (ids,) = layout.encode(tokenizer, ["the moth"], ["she opened the gate"]).ids
    assert ids == tokenizer.apply_chat_template(MESSAGES, tokenize=True)["input_ids"]
    assert layout.pooling == "last"


@pytest.mark.parametrize("story", ["she opened the gate", "she opened " * 200])
def test_the_newline_that_ends_the_template_is_kept_where_the_reward_is_read(load, story):
    tokenizer, model = load("qwen3", chat=True)
    layout = Layout.infer(tokenizer, model, 64, form="chat")
    (ids,) = layout.encode(tokenizer, ["the moth"], [story]).ids
    assert tokenizer.decode(ids[-2:]) == "<stop>\n"
    assert len(ids) <= 64


@pytest.mark.parametrize(
    ("kind", "opening", "count"),
    [
        ("llama", "{{ bos_token }}", 1),
        ("llama", "<begin>", 1),
        ("llama", "", 1),
        ("qwen3", "<begin>", 1),
        ("qwen3", "{{ bos_token }}", 0),
        ("qwen3", "", 0),
    ],
)
def test_bos_stands_once_whether_template_or_tokenizer_or_both_bring_it(load, kind, opening, count):
    tokenizer, model = load(kind, chat=True)
    tokenizer.chat_template = opening + tokenizer.chat_template.removeprefix("{{ bos_token }}")
    layout = Layout.infer(tokenizer, model, 64, form="chat")
    (ids,) = layout.encode(tokenizer, ["the moth"], ["she opened the gate"]).ids
    begin = tokenizer.convert_tokens_to_ids("<begin>")
    assert ids.count(begin) == count
    assert ids[:count] == [begin] * count


def test_a_chat_form_without_template_is_refused(load):
    tokenizer, model = load("llama")
    with pytest.raises(ModelError, match="no chat template: take the plain form"):
        Layout.infer(tokenizer, model, 64, form="chat")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[0]['content'] }}", 2),
        ("{{ messages[1]['content'] }}{{ messages[0]['content'] }}", 2),
        ("{{ messages[0]['content'] | upper }}{{ messages[1]['content'] }}", 1),
    ],
    ids=["leaves one out", "exchanges them", "changes one"],
)
def test_a_template_that_does_not_show_both_texts_is_refused(load, template, message):
    tokenizer, model = load("llama", chat=True)
    tokenizer.chat_template = template
    with pytest.raises(ModelError, match=f"changes the text of message {message}"):
        Layout.infer(tokenizer, model, 64, form="chat")
