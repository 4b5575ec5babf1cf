"""Private and undocumented names of other packages: a release that drops one fails here.

ruff's SLF001 shows further uses.
"""

import importlib
import inspect
import re

import pytest

# A module, and the names in its source that LitBench reads, sets or overrides.
NAMES = {
    "inspect_ai._util.registry": ["registry_find", "registry_unqualified_name"],
    "inspect_ai.model._model": ["retry_wait"],
    "inspect_ai.model._providers.openai_compatible": ["http_client", "base_url"],
    "transformers.configuration_utils": ["_attn_implementation"],
    "transformers.modeling_gguf_pytorch_utils": ["tqdm"],
    "transformers.modeling_utils": ["_keep_in_fp32_modules_strict"],
    "transformers.trainer": ["_get_train_sampler", "_internal_call"],
    "transformers.trainer_callback": ["PrinterCallback", "ProgressCallback"],
    "transformers.trainer_pt_utils": [
        *("class BatchRebalanceSampler", "def _yield_global_batch", "def _group_cost"),
        *("def _cost", "num_global_batches", "effective_batch_size"),
    ],
    "transformers.training_args": ["_n_gpu"],
    "trl.trainer.base_trainer": ["_send_telemetry"],
    "trl.trainer.reward_trainer": ["_total_train_tokens", "_metrics"],
    "trl.trainer.sft_trainer": ["_total_train_tokens"],
    "trl.trainer.utils": ["_name_or_path"],
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in NAMES.items() for name in names]
)
def test_private_names_are_there(module, name):
    pytest.importorskip(module.partition(".")[0])
    source = inspect.getsource(importlib.import_module(module))
    assert re.search(rf"\b{name}(?!\w)", source), f"{module} has no {name}: find another way"
