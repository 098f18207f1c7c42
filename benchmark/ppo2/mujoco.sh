#!/usr/bin/env bash
# ppo2 on MuJoCo, at its defaults, 1M steps; v2 are the environments of its day.
cd "$(dirname "$0")/../.." || exit
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo2_mujoco --env=HalfCheetah-v2 --network=mlp --num_env=1 --num_timesteps=1e6
ppo2_mujoco --env=Walker2d-v2 --network=mlp --num_env=1 --num_timesteps=1e6
ppo2_mujoco --env=Hopper-v2 --network=mlp --num_env=1 --num_timesteps=1e6
END
