#!/usr/bin/env bash
# ppo.py with ideas at ten times its learning rate, and with five times its epochs as well:
# SEEDS="1 2 3 4 5 6 7 8 9 10" benchmark/ablation/high_rate.sh
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/ablation/results}"
options="--env-id CartPole-v1 --total-timesteps 50000 --learning-rate 2.5e-3 --no-cuda"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" < <(
    echo "ppo.py $options"
    echo "ppo.py + without/core-8 $options"
    for idea in adam-relative average-policy clip-higher drift equal-betas layer-norm outer-step recompute-advantages spo; do
        echo "ppo.py + with/$idea $options"
    done
    for ideas in "" " + with/layer-norm" " + with/plasticity-log" " + with/plasticity-log + with/layer-norm"; do
        echo "ppo.py$ideas $options --update-epochs 20"
    done
)
