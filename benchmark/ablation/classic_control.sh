#!/usr/bin/env bash
# ppo.py with each recipe that fits, CartPole and Acrobot: SEEDS="1 2 3 4 5 6 7 8 9 10" benchmark/ablation/classic_control.sh
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS:-benchmark/ablation/results}"
cartpole="--env-id CartPole-v1 --total-timesteps 50000 --no-cuda"
acrobot="--env-id Acrobot-v1 --total-timesteps 100000 --no-cuda"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" < <(
    echo "ppo.py $cartpole"
    for name in 1 "1[!2]*" "[!1]*"; do  # all but core-12, which changes the log alone
        echo "ppo.py + without/core-$name $cartpole"
    done
    for idea in adam-relative churn dual-clip equal-betas kl-learning-rate kl-penalty l2-init muon outer-step ppg \
        prioritized-segments recompute-advantages shrink-perturb symlog-values symmetry two-hot value-normalization; do
        echo "ppo.py + with/$idea $cartpole"
    done
    echo "ppo.py $acrobot"
    for name in 1 "1[!2]*" "[!1]*"; do
        echo "ppo.py + without/core-$name $acrobot"
    done
    for idea in adam-relative average-policy clip-higher drift equal-betas layer-norm outer-step recompute-advantages spo; do
        echo "ppo.py + with/$idea $acrobot"
    done
)
