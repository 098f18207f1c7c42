#!/usr/bin/env bash
# Autoregressive actions, with eleven choices for each engine or joint: SEEDS="1 2 3" benchmark/ablation/multidiscrete.sh
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/ablation/results}"
# Policy and value share a network, and returns are large: with the default --vf-coef of 0.5 the value loss takes almost
# all of the clipped gradient, and LunarLander was still at -128 after 300,000 steps (seed 1).
options="--total-timesteps 300000 --num-envs 16 --num-steps 256 --num-minibatches 16 --learning-rate 1e-3 --gamma 0.999"
options="$options --gae-lambda 0.98 --clip-coef 0.2 --ent-coef 0 --vf-coef 0.005 --bootstrap-truncated --no-cuda"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_multidiscrete.py --env-id recipes.environments:LunarLanderChoices-v3 $options
ppo_multidiscrete.py + with/autoregressive --env-id recipes.environments:LunarLanderChoices-v3 $options
ppo_multidiscrete.py --env-id recipes.environments:BipedalWalkerChoices-v3 $options
ppo_multidiscrete.py + with/autoregressive --env-id recipes.environments:BipedalWalkerChoices-v3 $options
END
