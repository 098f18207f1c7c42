#!/usr/bin/env bash
# Atari, 10M steps.
cd "$(dirname "$0")/../.." || exit
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_atari.py --env-id BreakoutNoFrameskip-v4
ppo_atari.py --env-id PongNoFrameskip-v4
ppo_atari.py --env-id BeamRiderNoFrameskip-v4
END
