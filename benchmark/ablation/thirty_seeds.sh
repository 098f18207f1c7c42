#!/usr/bin/env bash
# The core details on CartPole and Acrobot with thirty seeds, most of them side by side in one process:
# SEEDS="$(seq -s " " 30)" AGENTS=30 benchmark/ablation/thirty_seeds.sh
# core-1 and core-6 do not fit ppo_seeds.py, and are compared with ppo.py. Options stand for core-4 and core-11.
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/ablation/results}"
for task in "CartPole-v1 --total-timesteps 50000 --no-cuda" "Acrobot-v1 --total-timesteps 100000 --no-cuda"; do
    cat <<END
ppo_seeds.py + with/seeds-vector --env-id $task
ppo_seeds.py + without/core-2 + with/seeds-vector --env-id $task
ppo_seeds.py + without/core-3 + with/seeds-vector --env-id $task
ppo_seeds.py + without/core-3-torch + with/seeds-vector --env-id $task
ppo_seeds.py + with/seeds-vector --env-id $task --no-anneal-lr
ppo_seeds.py + without/core-5 + with/seeds-vector --env-id $task
ppo_seeds.py + without/core-7 + with/seeds-vector --env-id $task
ppo_seeds.py + without/core-8 + with/seeds-vector --env-id $task
ppo_seeds.py + without/core-9 + with/seeds-vector --env-id $task
ppo_seeds.py + without/core-10 + with/seeds-vector --env-id $task
ppo_seeds.py + with/seeds-vector --env-id $task --max-grad-norm 1e9
ppo_seeds.py + without/core-13 + with/seeds-vector --env-id $task
ppo.py --env-id $task
ppo.py + without/core-1 --env-id $task
ppo.py + without/core-6 --env-id $task
ppo.py + without/core-6-in-order --env-id $task
END
done | "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@"
