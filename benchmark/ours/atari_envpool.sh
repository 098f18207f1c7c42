#!/usr/bin/env bash
# Atari in EnvPool, 10M steps.
cd "$(dirname "$0")/../.." || exit
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_atari_envpool.py --env-id Breakout-v5
ppo_atari_envpool.py --env-id Pong-v5
ppo_atari_envpool.py --env-id BeamRider-v5
END
