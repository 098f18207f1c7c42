#!/usr/bin/env bash
# CartPole and Pendulum without velocities, with and without memory: SEEDS="1 2 3 4 5" benchmark/ablation/memory.sh
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/ablation/results}"
options="--total-timesteps 100000 --no-cuda"
cartpole="--env-id recipes.environments:CartPoleNoVelocities-v1 --num-envs 8 --learning-rate 2.5e-3 $options"
pendulum="--env-id recipes.environments:PendulumNoVelocity-v1 --num-envs 16 --num-steps 128 --num-minibatches 8"
pendulum="$pendulum --gamma 0.9 --learning-rate 1e-3 $options"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo.py $cartpole
ppo.py + with/lstm $cartpole
ppo_continuous_action.py $pendulum
ppo_continuous_action.py + with/lstm-continuous $pendulum
END
