#!/usr/bin/env bash
# Agents that have learned CartPole and lose it again, as the learning rate is not annealed, and what keeps it:
# AGENTS=10 SEEDS="1 2 3 4 5 6 7 8 9 10" benchmark/ablation/collapse.sh
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/results/collapse}"
seeds="ppo_seeds.py + with/seeds-vector"
options="--env-id CartPole-v1 --total-timesteps 300000 --no-cuda"
rate="--learning-rate 5e-3"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
$seeds $options $rate --no-anneal-lr
$seeds $options $rate
$seeds $options $rate --anneal-clip
$seeds $options --learning-rate 1e-3 --no-anneal-lr
$seeds $options $rate --no-anneal-lr --bootstrap-truncated
$seeds $options $rate --no-anneal-lr --num-envs 16
$seeds $options $rate --no-anneal-lr --clip-coef 0.1
$seeds + without/core-9 $options $rate --no-anneal-lr
ppo.py + with/l2-init $options $rate --no-anneal-lr
ppo.py + with/value-normalization $options $rate --no-anneal-lr
END
