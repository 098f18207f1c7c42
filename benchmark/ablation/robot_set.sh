#!/usr/bin/env bash
# Recipes for robots on Pendulum, with the settings to copy of docs/environment.md: SEEDS="1 2 3 4 5 6 7 8 9 10"
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/ablation/results}"
options="--total-timesteps 40960 --num-envs 8 --num-steps 256 --num-minibatches 16 --learning-rate 1e-3"
options="$options --bootstrap-truncated --gamma 0.95 --no-cuda"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" < <(
    echo "ppo_continuous_action.py --env-id Pendulum-v1 $options"
    for idea in kl-learning-rate schedule reward-shaper staggered-resets value-normalization; do
        echo "ppo_continuous_action.py + with/$idea --env-id Pendulum-v1 $options"
    done
    hidden="--env-id recipes.environments:PendulumNoVelocity-v1 $options"
    echo "ppo_continuous_action.py $hidden"
    echo "ppo_continuous_action.py + with/privileged-critic $hidden --privileged state"
    # demonstrations.npz in $FOLDER: 20 games that enjoy.py --greedy --record wrote, of a run of tuned.sh's line of Pendulum
    options="--env-id Pendulum-v1 --total-timesteps 20480 --num-envs 16 --num-steps 64 --num-minibatches 4"
    options="$options --learning-rate 2e-3 --gamma 0.95 --bootstrap-truncated --no-cuda"
    for names in "" "+ with/demonstrations" "+ with/demonstrations + with/critic-warm-up"; do
        echo "ppo_continuous_action.py $names $options"
    done
    for script in "ppo.py" "ppo.py + with/entropy-schedule"; do
        echo "$script --total-timesteps 50000 --ent-coef 0.05 --no-cuda"
    done
)
