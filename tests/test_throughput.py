"""Model FLOPs against counts by hand, and which device has which peak."""

import numpy as np
import pytest

from litbench.models.backbone import Lora, add_lora, load_backbone
from litbench.models.throughput import Shape, peak_flops, peak_memory_bytes

# Of tests/conftest.py: two layers, width 32, feed-forward 64, two heads of 16, one key head.
ATTENTION = 32 * 32 + 2 * 32 * 16 + 32 * 32
GATED, PLAIN = 3 * 32 * 64, 2 * 32 * 64
LENGTHS = np.array([3, 5, 7])


@pytest.fixture
def shape(tiny_model):
    def measured(kind, **options):
        return Shape.of(load_backbone(str(tiny_model(kind, **options)))[0])

    return measured


def test_flops_of_a_decoder_are_those_counted_by_hand(shape):
    found = shape("llama")
    matrix = 2 * (ATTENTION + GATED)
    assert (found.matrix, found.layers, found.width, found.is_causal) == (matrix, 2, 32, True)
    # A product costs two FLOPs a weight and token, its backward pass twice that; a token attends
    # to half the sequence on average, by two products of the heads' width.
    forward = 2 * matrix * 15 + sum(2 * (2 * 2 * length * (length / 2) * 32) for length in LENGTHS)
    assert found.training_flops(LENGTHS) == pytest.approx(3 * forward, rel=1e-12)


def test_an_encoder_attends_to_both_sides(shape):
    found = shape("bert")
    matrix = 2 * (4 * 32 * 32 + PLAIN)
    assert (found.matrix, found.is_causal) == (matrix, False)
    forward = 2 * matrix * 15 + sum(2 * (2 * 2 * length * length * 32) for length in LENGTHS)
    assert found.training_flops(LENGTHS) == pytest.approx(3 * forward, rel=1e-12)


def test_layers_of_gpt2_are_counted_too(shape):
    assert shape("gpt2").matrix == 2 * (4 * 32 * 32 + 2 * 32 * 128)


def test_the_head_of_a_language_model_is_left_out(tiny_model):
    model, _ = load_backbone(str(tiny_model("llama", head="language")), "language")
    assert Shape.of(model).matrix == 2 * (ATTENTION + GATED)


def test_frozen_weights_have_no_gradient_to_compute(tiny_model):
    pytest.importorskip("peft")
    model, _ = load_backbone(str(tiny_model("llama")))
    whole = Shape.of(model)
    adapted = Shape.of(add_lora(model, Lora(r=4), "reward"))
    assert adapted.matrix == whole.matrix
    assert 0 < adapted.trained < whole.parameters < adapted.parameters
    saved = 2 * whole.matrix * LENGTHS.sum()
    assert adapted.training_flops(LENGTHS) == pytest.approx(whole.training_flops(LENGTHS) - saved)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA GeForce RTX 4090", None),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA L40", None),
        ("cpu", None),
    ],
)
def test_the_peak_of_a_device_is_found_by_its_name(name, peak):
    assert peak_flops(name) == peak


def test_memory_is_counted_in_bytes():
    held = peak_memory_bytes()
    assert 50 * 2**20 < held < 2**40
