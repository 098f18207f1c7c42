#!/usr/bin/env bash
# MuJoCo, 1M steps.
cd "$(dirname "$0")/../.." || exit
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_continuous_action.py --env-id HalfCheetah-v4
ppo_continuous_action.py --env-id Walker2d-v4
ppo_continuous_action.py --env-id Hopper-v4
END
