#!/usr/bin/env bash
# ppo_atari.py without each of its details, 500k steps: SEEDS=1 benchmark/ablation/atari.sh
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/ablation/results}"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_atari.py --env-id BreakoutNoFrameskip-v4 --total-timesteps 500000 --no-cuda
ppo_atari.py + without/atari-* --env-id BreakoutNoFrameskip-v4 --total-timesteps 500000 --no-cuda
END
