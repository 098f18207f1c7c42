#!/usr/bin/env bash
# ppo2 on Atari with an LSTM, 10M steps. baselines.run stacks 4 frames, as ppo_atari_lstm.py --frame-stack 4 does.
cd "$(dirname "$0")/../.." || exit
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo2_lstm --env=BreakoutNoFrameskip-v4 --network=cnn_lstm --num_env=8 --num_timesteps=1e7
ppo2_lstm --env=PongNoFrameskip-v4 --network=cnn_lstm --num_env=8 --num_timesteps=1e7
ppo2_lstm --env=BeamRiderNoFrameskip-v4 --network=cnn_lstm --num_env=8 --num_timesteps=1e7
END
