#!/usr/bin/env bash
# The initial state of the LSTM, on Breakout: benchmark/ablation/lstm.sh
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS:-benchmark/ablation/results}"
options="--env-id BreakoutNoFrameskip-v4 --total-timesteps 200000 --no-cuda --bf16"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_atari_lstm.py $options
ppo_atari_lstm.py + without/lstm-2-ones $options
END
