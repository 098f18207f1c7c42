#!/usr/bin/env bash
# Procgen, easy levels, 25M steps, or the first half million of them, for a CPU:
# SEEDS="1 2 3" benchmark/ours/procgen.sh 500000
cd "$(dirname "$0")/../.." || exit
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_procgen.py --env-id starpilot
ppo_procgen.py --env-id bossfight
ppo_procgen.py --env-id bigfish
ppo_procgen.py --env-id fruitbot --total-timesteps 500000
ppo_procgen.py --env-id bossfight --total-timesteps 500000
ppo_procgen.py --env-id bigfish --total-timesteps 500000
ppo_procgen.py --env-id coinrun --total-timesteps 500000
ppo_procgen.py --env-id chaser --total-timesteps 500000
END
