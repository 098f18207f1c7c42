#!/usr/bin/env bash
# ppo_continuous_action.py with each recipe that fits, 200k steps.
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/ablation/results}"
options="--total-timesteps 200000 --compile --no-cuda"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" < <(
    for env_id in HalfCheetah-v4 Hopper-v4; do
        echo "ppo_continuous_action.py --env-id $env_id $options"
        echo "ppo_continuous_action.py + without/continuous-* --env-id $env_id $options"
    done
    for name in "1[!2]*" "[!1]*"; do  # of those that fit, all but core-12, which changes the log alone
        echo "ppo_continuous_action.py + without/core-$name --env-id HalfCheetah-v4 $options"
    done
    for idea in beta squashed-gaussian state-dependent-std; do
        echo "ppo_continuous_action.py + with/$idea --env-id HalfCheetah-v4 $options"
    done
)
