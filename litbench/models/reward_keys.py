"""The keys of training a reward model, so that reading them imports no torch.

Written by `python tests/reward_keys.py` from the installed trl and transformers; the type of a key
is `object` where it is a type of these libraries.
"""

from dataclasses import dataclass
from typing import Any


@dataclass
class RewardKeys:
    """The keys of `litbench.models.reward_training.RewardTraining`, with their types."""

    accelerator_config: dict[str, Any] | str | None
    activation_checkpointing: bool | None
    activation_checkpointing_kwargs: dict[str, Any] | str | None
    activation_offloading: bool
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    attn_implementation: str | None
    auto_find_batch_size: bool
    average_tokens_across_devices: bool
    batch_eval_metrics: bool
    bf16: bool | None
    bf16_full_eval: bool
    bnb_4bit_quant_storage: str | None
    bnb_4bit_quant_type: str
    center_rewards_coefficient: float | None
    chat_template_path: str | None
    data_seed: int | None
    dataloader_drop_last: bool
    dataloader_in_order: bool
    dataloader_multiprocessing_context: str | None
    dataloader_num_workers: int
    dataloader_persistent_workers: bool
    dataloader_pin_memory: bool
    dataloader_prefetch_factor: int | None
    dataset_num_proc: int | None
    ddp_backend: str | None
    ddp_broadcast_buffers: bool | None
    ddp_bucket_cap_mb: int | None
    ddp_find_unused_parameters: bool | None
    ddp_static_graph: bool | None
    ddp_timeout: int
    debug: str | list[object]
    deepspeed: dict[str, Any] | str | None
    disable_dropout: bool
    disable_tqdm: bool | None
    do_eval: bool
    do_predict: bool
    do_train: bool
    dtype: str | None
    enable_jit_checkpoint: bool
    eos_token: str | None
    eval_accumulation_steps: int | None
    eval_delay: float
    eval_do_concat_batches: bool
    eval_on_start: bool
    eval_steps: float | None
    eval_strategy: object | str
    eval_use_gather_object: bool
    form: str
    fp16: bool
    fp16_full_eval: bool
    fsdp: str | None
    fsdp_config: dict[str, Any] | str | None
    full_determinism: bool
    gradient_accumulation_steps: int
    gradient_checkpointing: bool | None
    gradient_checkpointing_kwargs: dict[str, Any] | str | None
    greater_is_better: bool | None
    hub_always_push: bool
    hub_model_id: str | None
    hub_private_repo: bool | None
    hub_revision: str | None
    hub_strategy: object | str
    hub_token: str | None
    ignore_data_skip: bool
    include_for_metrics: list[str]
    include_num_input_tokens_seen: str | bool
    label_names: list[str] | None
    label_smoothing_factor: float
    learning_rate: float
    length_column_name: str
    liger_kernel_config: dict[str, bool] | None
    load_best_model_at_end: bool
    load_in_4bit: bool
    load_in_8bit: bool
    local_rank: int
    log_level: str
    log_level_replica: str
    log_on_each_node: bool
    logging_first_step: bool
    logging_nan_inf_filter: bool
    logging_steps: float
    logging_strategy: object | str
    lora_alpha: int
    lora_dropout: float
    lora_modules_to_save: list[str] | None
    lora_r: int
    lora_target_modules: list[str] | None
    lora_target_parameters: list[str] | None
    lora_task_type: str
    lr_scheduler_kwargs: dict[str, Any] | str | None
    lr_scheduler_type: object | str
    max_grad_norm: float
    max_length: int
    max_steps: int
    merge_adapter: bool
    metric_for_best_model: str | None
    model_init_kwargs: dict[str, Any] | str | None
    model_name_or_path: str
    model_revision: str
    neftune_noise_alpha: float | None
    negatives: bool
    num_train_epochs: float
    optim: object | str
    optim_args: str | None
    optim_target_modules: str | list[str] | None
    output_dir: str | None
    pad_to_multiple_of: int | str | None
    pad_token: str | None
    parallelism_config: object | None
    per_device_eval_batch_size: int
    per_device_train_batch_size: int
    prediction_loss_only: bool
    project: str
    push_to_hub: bool
    remove_unused_columns: bool
    report_to: str | list[str] | None
    restore_callback_states_from_checkpoint: bool
    resume_from_checkpoint: str | None
    run_name: str | None
    save_on_each_node: bool
    save_only_model: bool
    save_steps: float
    save_strategy: object | str
    save_total_limit: int | None
    seed: int
    skip_memory_metrics: bool
    tf32: bool | None
    torch_compile: bool
    torch_compile_backend: str | None
    torch_compile_mode: str | None
    torch_empty_cache_steps: int | None
    trackio_bucket_id: str | None
    trackio_space_id: str | None
    trackio_static_space_id: str | bool | None
    train_sampling_strategy: str
    trust_remote_code: bool
    use_bnb_nested_quant: bool
    use_cache: bool
    use_cpu: bool
    use_dora: bool
    use_liger_kernel: bool
    use_peft: bool
    use_rslora: bool
    validation: float
    warmup_steps: float
    weight_decay: float
