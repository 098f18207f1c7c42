#!/usr/bin/env bash
# The core details on CartPole with thirty seeds, most of them side by side in one process:
# SEEDS="$(seq -s " " 30)" AGENTS=30 benchmark/ablation/thirty_seeds.sh
# core-1 and core-6 do not fit ppo_seeds.py, and are compared with ppo.py. Options stand for core-4 and core-11.
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/ablation/results}"
cartpole="--env-id CartPole-v1 --total-timesteps 50000 --no-cuda"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_seeds.py + with/seeds-vector $cartpole
ppo_seeds.py + without/core-2 + with/seeds-vector $cartpole
ppo_seeds.py + without/core-3 + with/seeds-vector $cartpole
ppo_seeds.py + without/core-3-torch + with/seeds-vector $cartpole
ppo_seeds.py + with/seeds-vector $cartpole --no-anneal-lr
ppo_seeds.py + without/core-5 + with/seeds-vector $cartpole
ppo_seeds.py + without/core-7 + with/seeds-vector $cartpole
ppo_seeds.py + without/core-8 + with/seeds-vector $cartpole
ppo_seeds.py + without/core-9 + with/seeds-vector $cartpole
ppo_seeds.py + without/core-10 + with/seeds-vector $cartpole
ppo_seeds.py + with/seeds-vector $cartpole --max-grad-norm 1e9
ppo_seeds.py + without/core-13 + with/seeds-vector $cartpole
ppo.py $cartpole
ppo.py + without/core-1 $cartpole
ppo.py + without/core-6 $cartpole
ppo.py + without/core-6-in-order $cartpole
END
