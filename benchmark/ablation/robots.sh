#!/usr/bin/env bash
# Ideas on robots, at a learning rate at which the clip acts: SEEDS="1 2 3 4 5" benchmark/ablation/robots.sh Hopper-v5
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/ablation/results}"
options="--total-timesteps 300000 --num-envs 64 --num-steps 32 --num-minibatches 8 --learning-rate 1e-3"
options="$options --bootstrap-truncated --no-cuda"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" < <(
    for env_id in HalfCheetah-v5 Hopper-v5; do
        echo "ppo_continuous_action.py --env-id $env_id $options"
        echo "ppo_continuous_action.py --env-id $env_id ${options/ --bootstrap-truncated/}"
        echo "ppo_continuous_action.py + without/core-8 --env-id $env_id $options"
        for idea in adam-relative clip-higher colored-noise drift equal-betas layer-norm outer-step \
            recompute-advantages rpo spo; do
            echo "ppo_continuous_action.py + with/$idea --env-id $env_id $options"
        done
    done
    for idea in clipped-action discrete-actor state-dependent-std state-dependent-std-detached; do
        echo "ppo_continuous_action.py + with/$idea --env-id HalfCheetah-v5 $options"
    done
)
