#!/usr/bin/env bash
# Procgen, easy levels, 25M steps.
cd "$(dirname "$0")/../.." || exit
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_procgen.py --env-id starpilot
ppo_procgen.py --env-id bossfight
ppo_procgen.py --env-id bigfish
END
