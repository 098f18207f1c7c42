#!/usr/bin/env bash
# Ideas for networks of images, on Breakout and StarPilot, in 150,000 steps: benchmark/ablation/images.sh ppo_procgen
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/ablation/results}"
breakout="--env-id BreakoutNoFrameskip-v4 --total-timesteps 150000 --no-cuda --bf16"
starpilot="--env-id starpilot --total-timesteps 150000 --num-envs 32 --num-steps 64 --no-cuda --bf16"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_atari_lstm.py $breakout
ppo_atari_lstm.py + without/lstm-2-ones $breakout
ppo_atari_lstm.py + with/gru $breakout
ppo_atari.py $breakout
ppo_atari.py + with/frame-attention $breakout
ppo_procgen.py $starpilot
ppo_procgen.py + with/average-pool $starpilot
END
