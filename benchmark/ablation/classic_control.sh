#!/usr/bin/env bash
# Scripts with each recipe that fits, CartPole, Acrobot, MountainCar and Pendulum:
# SEEDS="1 2 3 4 5 6 7 8 9 10" benchmark/ablation/classic_control.sh
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/ablation/results}"
cartpole="--env-id CartPole-v1 --total-timesteps 50000 --no-cuda"
acrobot="--env-id Acrobot-v1 --total-timesteps 100000 --no-cuda"
mountain_car="--env-id MountainCar-v0 --total-timesteps 150000 --num-envs 32 --num-steps 32 --num-minibatches 16"
mountain_car="$mountain_car --update-epochs 10 --learning-rate 1e-3 --gae-lambda 0.98 --ent-coef 0 --no-cuda"
pendulum="--env-id Pendulum-v1 --total-timesteps 60000 --num-envs 4 --num-steps 256 --num-minibatches 16"
pendulum="$pendulum --learning-rate 1e-3 --gamma 0.95 --bootstrap-truncated --no-cuda"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" < <(
    echo "ppo.py $cartpole"
    for name in 1 "1[!2]*" "[!1]*"; do  # all but core-12, which changes the log alone
        echo "ppo.py + without/core-$name $cartpole"
    done
    for idea in adam-relative churn dual-clip equal-betas kl-learning-rate kl-penalty l2-init muon outer-step ppg \
        prioritized-segments recompute-advantages reward-shaper schedule shrink-perturb symlog-values symmetry two-hot \
        value-clip value-normalization; do
        echo "ppo.py + with/$idea $cartpole"
    done
    echo "ppo.py + with/a2c $cartpole --num-steps 5 --num-minibatches 1 --update-epochs 1 --gae-lambda 1" \
        "--learning-rate 7e-4 --vf-coef 1"
    echo "ppo.py $acrobot"
    for name in 1 "1[!2]*" "[!1]*"; do
        echo "ppo.py + without/core-$name $acrobot"
    done
    for idea in adam-relative average-policy clip-higher drift equal-betas layer-norm outer-step recompute-advantages spo \
        time-left; do
        echo "ppo.py + with/$idea $acrobot"
    done
    for idea in "" " + with/staggered-resets"; do
        echo "ppo.py + with/normalization$idea $mountain_car"
    done
    for idea in "" " + with/symmetry-continuous"; do
        echo "ppo_continuous_action.py + without/core-9$idea $pendulum"
    done
)
