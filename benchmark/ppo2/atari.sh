#!/usr/bin/env bash
# ppo2 on Atari, at its defaults with 8 environments, 10M steps.
cd "$(dirname "$0")/../.." || exit
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo2_atari --env=BreakoutNoFrameskip-v4 --network=cnn --num_env=8 --num_timesteps=1e7
ppo2_atari --env=PongNoFrameskip-v4 --network=cnn --num_env=8 --num_timesteps=1e7
ppo2_atari --env=BeamRiderNoFrameskip-v4 --network=cnn --num_env=8 --num_timesteps=1e7
END
