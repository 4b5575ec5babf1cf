"""Attention over sequences laid end to end: none sees another, and both ways of computing agree."""

import random
from itertools import pairwise

import numpy as np
import pytest
from tolerance import assert_same

from litbench.models import attention
from litbench.models.attention import can_pack, packed_attention
from litbench.models.backbone import collate, is_packed, load_backbone, rewards_of, set_attention
from litbench.models.input_format import encode_stories, prepare_tokenizer
from litbench.runs.errors import ConfigError, ModelError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LENGTHS = (1, 40, 7, 23)


def by_hand(query, key, value, starts, scale, window, *, causal):
    """Softmax of all scores that may be seen, spelled out; (tokens, heads, width) in and out."""
    key, value = (
        part.repeat_interleave(query.shape[1] // part.shape[1], 1) for part in (key, value)
    )
    out = torch.zeros_like(query)
    for start, end in pairwise(starts.tolist()):
        for token in range(start, end):
            last = token + 1 if causal else end
            first = start
            if window is not None:
                first = max(start, token - window + 1)
                last = last if causal else min(end, token + window)
            scores = torch.einsum("hw,khw->hk", query[token], key[first:last]) * scale
            out[token] = torch.einsum("hk,khw->hw", scores.softmax(-1), value[first:last])
    return out


def reference_kernel(calls):
    """Stands for torch's kernel, which needs a GPU; notes what it was called with."""

    def varlen(query, key, value, starts, key_starts, longest, longest_key, **options):
        calls.append(options | {"heads": query.shape[1], "key_heads": key.shape[1]})
        assert query.is_contiguous()
        assert key.is_contiguous()
        assert value.is_contiguous()
        assert query.dtype == key.dtype == value.dtype
        assert query.dtype in (torch.bfloat16, torch.float16)
        assert starts.dtype == key_starts.dtype == torch.int32
        assert starts[-1] == len(query) == len(key) == len(value)
        assert longest == longest_key >= int((starts[1:] - starts[:-1]).max())
        # The kernel's own rule: without the flag, heads must be as many as key heads.
        assert options["enable_gqa"] or query.shape[1] == key.shape[1]
        back, ahead = options["window_size"]
        assert ahead in (0, -1)
        return by_hand(
            query.float(),
            key.float(),
            value.float(),
            starts,
            options["scale"] or query.shape[-1] ** -0.5,
            None if back == -1 else back + 1,
            causal=ahead == 0,
        ).to(query.dtype)

    return varlen


@pytest.fixture
def kernel(monkeypatch):
    """Send attention to the stand-in of the kernel; gives the calls."""
    calls = []
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(varlen, "varlen_attn", reference_kernel(calls))
    monkeypatch.setattr(attention, "_has_kernel", lambda *_: True)
    return calls


class Layer:
    """As much of an attention layer as is looked at."""

    is_causal = True


def parts(key_heads):
    """Queries, keys, values as transformers gives them, and the boundaries."""
    source = torch.Generator().manual_seed(0)
    shapes = [(1, heads, sum(LENGTHS), 16) for heads in (4, key_heads, key_heads)]
    starts = torch.tensor(np.cumsum([0, *LENGTHS]), dtype=torch.int32)
    return [torch.randn(shape, generator=source) for shape in shapes], starts


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 8, 64])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("computes", ["one by one", "padded", "kernel"])
def test_both_ways_compute_attention_within_each_sequence(
    computes, key_heads, window, causal, request, monkeypatch
):
    calls = request.getfixturevalue("kernel") if computes == "kernel" else None
    if computes == "padded":
        # As on a GPU in 32 bits.
        monkeypatch.setattr(attention, "_one_by_one", attention._padded)
    (query, key, value), starts = parts(key_heads)
    if calls is not None:
        query, key, value = (part.to(torch.float16) for part in (query, key, value))
    out, weights = packed_attention(
        Layer(),
        query,
        key,
        value,
        None,
        scaling=0.3,
        sliding_window=window,
        cu_seq_lens_q=starts,
        max_length_q=256,
        is_causal=causal,
    )
    assert weights is None
    flat = [part[0].transpose(0, 1).float() for part in (query, key, value)]
    expected = by_hand(*flat, starts, 0.3, window, causal=causal).to(query.dtype)
    assert_same(out[0], expected)
    if calls is not None:
        (call,) = calls
        assert call["window_size"] == (-1 if window is None else window - 1, 0 if causal else -1)
        assert call["enable_gqa"] == (key_heads != 4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [None, 8])
def test_attention_on_a_gpu_is_that_by_hand(dtype, window):
    (query, key, value), starts = parts(2)
    moved = [part.to("cuda", getattr(torch, dtype)) for part in (query, key, value)]
    options = {"cu_seq_lens_q": starts.cuda(), "max_length_q": 256, "sliding_window": window}
    out, _ = packed_attention(Layer(), *moved, None, scaling=0.3, is_causal=True, **options)
    flat = [part[0].transpose(0, 1).float().cpu() for part in moved]
    expected = by_hand(*flat, starts, 0.3, window, causal=True)
    # bfloat16 has 8 bits of mantissa.
    bound = 1e-5 if dtype == "float32" else 2e-2
    assert (out[0].float().cpu() - expected).abs().max() <= bound * (1 + expected.abs().max())


def test_kernel_ignores_a_window_wider_than_every_sequence(kernel):
    (query, key, value), starts = parts(4)
    query, key, value = (part.bfloat16() for part in (query, key, value))
    packed_attention(
        Layer(),
        query,
        key,
        value,
        None,
        sliding_window=4_096,
        cu_seq_lens_q=starts,
        max_length_q=256,
    )
    assert kernel[0]["window_size"] == (-1, 0)


def test_kernel_is_used_only_where_supported(monkeypatch):
    query = torch.zeros(4, 2, 16, dtype=torch.bfloat16)
    assert not attention._has_kernel(query, 0.0)
    capability = {"cuda:1": (8, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", capability.__getitem__)

    class OnGpu:
        is_cuda, dtype, shape, device = True, torch.bfloat16, (4, 2, 64), "cuda:1"

    assert attention._has_kernel(OnGpu(), 0.0)
    # Of the generation of a T4.
    capability["cuda:1"] = (7, 5)
    assert not attention._has_kernel(OnGpu(), 0.0)
    capability["cuda:1"] = (9, 0)
    assert not attention._has_kernel(OnGpu(), 0.1)
    OnGpu.shape = (4, 2, 512)
    assert not attention._has_kernel(OnGpu(), 0.0)
    OnGpu.shape, OnGpu.dtype = (4, 2, 64), torch.float32
    assert not attention._has_kernel(OnGpu(), 0.0)


# In models -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def sequences(invented):
    """Texts of 1 to 120 words, most of them longer than the window of the tiny Gemma."""
    source = random.Random(5)
    return [invented(source, words) for words in (1, 120, 3, 60, 30)]


def rewards_by(model, tokenizer, texts, *, packed):
    prepare_tokenizer(tokenizer, model, 256)
    ids = encode_stories(tokenizer, ["The gate"] * len(texts), texts).ids
    batch = collate([np.array(item) for item in ids], packed=packed, pooling="last")
    with torch.inference_mode():
        return rewards_of(model.eval(), batch, "last")[:, 0].numpy()


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "gemma3"])
def test_packed_padded_and_eager_attention_agree(kind, tiny_model, sequences, request):
    folder = str(tiny_model(kind))
    packed, tokenizer = load_backbone(folder)
    assert is_packed(packed)
    expected = rewards_by(packed, tokenizer, sequences, packed=True)
    assert expected.std() > 0.05
    for implementation in ("sdpa", "eager"):
        padded, _ = load_backbone(folder, attention=implementation)
        assert not is_packed(padded)
        result = rewards_by(padded, tokenizer, sequences, packed=False)
        assert_same(result, expected)
    # Weights in fp32 under autocast, as training has it by default.
    with torch.autocast("cpu", torch.bfloat16):
        low = rewards_by(packed, tokenizer, sequences, packed=True)
        calls = request.getfixturevalue("kernel")
        result = rewards_by(packed, tokenizer, sequences, packed=True)
    assert 0 < np.abs(low - expected).max() < 0.1 * expected.std()
    assert np.abs(result - low).max() < 0.1 * expected.std()
    # Of the two layers of the tiny Gemma the first sees 16 tokens, itself among them.
    windows = [call["window_size"] for call in calls]
    assert windows == ([(15, 0), (-1, 0)] if kind == "gemma3" else [(-1, 0)] * 2)
    assert all(call["enable_gqa"] == (call["heads"] != call["key_heads"]) for call in calls)


def test_which_models_can_be_packed(tiny_model):
    for kind in ("llama", "qwen3", "gpt2", "gemma3"):
        assert can_pack(load_backbone(str(tiny_model(kind)))[0])
    encoder, _ = load_backbone(str(tiny_model("bert")))
    assert not can_pack(encoder)
    assert not is_packed(encoder)
    capped, _ = load_backbone(str(tiny_model("llama")))
    # Gemma 2 bends the scores of attention, which torch's kernel does not.
    capped.config.attn_logit_softcapping = 50.0
    assert not can_pack(capped)


SMALL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
}
EXPERTS = {"head_dim": 16, "num_local_experts": 2}


def gpt_oss():
    options = {"num_experts_per_tok": 1, "num_labels": 1, "initializer_range": 0.2}
    config = transformers.GptOssConfig(**SMALL, **EXPERTS, **options)
    return transformers.GptOssForSequenceClassification(config)


def lfm2():
    config = transformers.Lfm2Config(**SMALL, layer_types=["conv", "full_attention"])
    return transformers.Lfm2ForCausalLM(config)


def llama4():
    kinds = ["chunked_attention", "full_attention"]
    options = {"intermediate_size_mlp": 32, "attention_chunk_size": 8, "layer_types": kinds}
    return transformers.Llama4ForCausalLM(
        transformers.Llama4TextConfig(**SMALL, **EXPERTS, **options)
    )


@pytest.mark.parametrize("make", [gpt_oss, lfm2, llama4])
def test_models_with_sinks_convolutions_or_chunks_are_not_packed(make):
    model = make()
    assert model._supports_attention_backend
    assert not can_pack(model)


def test_decoder_without_packing_is_scored_on_padded_rows(tiny_model, tmp_path):
    torch.manual_seed(0)
    model = gpt_oss()
    torch.nn.init.normal_(model.score.weight)
    for name, weight in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(weight)
    model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(tiny_model("llama")).save_pretrained(tmp_path)
    loaded, _ = load_backbone(str(tmp_path))
    assert not is_packed(loaded)
    rows = [np.random.default_rng(index).integers(6, 300, n) for index, n in enumerate((40, 7, 25))]
    with torch.inference_mode():
        result = rewards_of(loaded.eval(), collate(rows, packed=False, pooling="last"), "last")
        plain = [model.eval()(input_ids=torch.from_numpy(ids)[None]).logits[0] for ids in rows]
    assert_same(result, torch.stack(plain))
    # Had its attention been exchanged, the sinks would be missed.
    loaded.config._attn_implementation = attention.ATTENTION
    with pytest.raises(ModelError, match=r"\(s_aux\).*attention to eager"):
        rewards_of(loaded, collate(rows, packed=True, pooling="last"), "last")


@pytest.mark.parametrize("wants", [{"softcap": 50.0}, {"s_aux": [0.0] * 4}])
def test_what_packed_attention_does_not_compute_is_refused(wants):
    (query, key, value), starts = parts(2)
    with pytest.raises(ModelError, match=next(iter(wants))):
        packed_attention(Layer(), query, key, value, None, cu_seq_lens_q=starts, **wants)


def test_packed_attention_refuses_padded_rows(tiny_model):
    model, _ = load_backbone(str(tiny_model("llama")))
    ids = torch.tensor([[5, 6, 7], [5, 6, 0]])
    with pytest.raises(ModelError, match=r"rows with padding.*set_attn_implementation\('sdpa'\)"):
        model(input_ids=ids, attention_mask=(ids > 0).long())


def test_unknown_attention_is_an_error(tiny_model):
    model, _ = load_backbone(str(tiny_model("llama")))
    with pytest.raises(ConfigError, match="attention: 'flash'"):
        set_attention(model, "flash")
