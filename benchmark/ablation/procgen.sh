#!/usr/bin/env bash
# The average of the last features in the IMPALA network, with short rollouts: benchmark/ablation/procgen.sh
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS:-benchmark/ablation/results}"
options="--env-id starpilot --total-timesteps 150000 --num-envs 32 --num-steps 64 --no-cuda --bf16"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_procgen.py $options
ppo_procgen.py + with/average-pool $options
END
