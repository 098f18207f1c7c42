#!/usr/bin/env bash
# Atari with an LSTM in place of stacked frames, 10M steps.
cd "$(dirname "$0")/../.." || exit
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_atari_lstm.py --env-id BreakoutNoFrameskip-v4
ppo_atari_lstm.py --env-id PongNoFrameskip-v4
ppo_atari_lstm.py --env-id BeamRiderNoFrameskip-v4
END
