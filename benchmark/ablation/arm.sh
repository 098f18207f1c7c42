#!/usr/bin/env bash
# An arm with torques of different scales (arm.py): SEEDS="1 2 3 4 5" benchmark/ablation/arm.sh
# The defaults and the large batch of docs/environment.md, and this one where the goal is hidden from the policy, with a
# critic that does not see it either and with one that does. heavy_arm.py goes on with the agents of the second line.
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/results/arm}"
settings="ppo_continuous_action.py + without/core-9 + with/squashed-gaussian"
options="--total-timesteps 100000 --no-cuda"
copied="$options --num-envs 8 --num-steps 256 --num-minibatches 16 --learning-rate 1e-3 --bootstrap-truncated"
arm="--env-id benchmark.ablation.arm:Arm-v0"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_continuous_action.py $arm $options
$settings $arm $copied
$settings --env-id benchmark.ablation.arm:BlindArm-v0 $copied
$settings + with/privileged-critic $arm $copied --privileged goal
END
