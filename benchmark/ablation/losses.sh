#!/usr/bin/env bash
# The clip and other objectives, each at three learning rates or four: docs/losses.md.
# SEEDS="$(seq -s " " 30)" AGENTS=30 benchmark/ablation/losses.sh ppo_seeds.py
# SEEDS="1 2 3 4 5 6 7 8 9 10" benchmark/ablation/losses.sh ppo.py
# A second word, such as Acrobot-v1, chooses an environment.
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/results/losses}"
objectives="ppo_seeds.py + with/seeds-vector
ppo_seeds.py + with/seeds-vector --clip-coef 0.1
ppo_seeds.py + with/seeds-vector --clip-coef 0.3
ppo_seeds.py + without/core-8 + with/seeds-vector
ppo_seeds.py + with/ano + with/seeds-vector
ppo_seeds.py + with/ano + with/seeds-vector --clip-coef 0.1
ppo_seeds.py + with/clip-higher + with/seeds-vector
ppo_seeds.py + with/drift + with/seeds-vector
ppo_seeds.py + with/dual-clip + with/seeds-vector
ppo_seeds.py + with/rollback + with/seeds-vector
ppo_seeds.py + with/rollback + with/seeds-vector --rollback 1
ppo_seeds.py + with/spo + with/seeds-vector
ppo_seeds.py + with/truly-ppo + with/seeds-vector
ppo_seeds.py + with/bounded-ratio + with/seeds-vector
ppo_seeds.py + with/bounded-ratio + with/seeds-vector --clip-coef 0.3
ppo_seeds.py + with/seeds-vector --ent-coef 0
ppo.py
ppo.py + with/entropy-critic --ent-coef 0.02
ppo.py + with/entropy-reward
ppo.py + with/kl-penalty"
print_lines() {  # of an environment, at the learning rates that follow it
    while read -r objective; do
        for rate in "${@:2}"; do
            echo "$objective --env-id $1 --total-timesteps 50000 --no-cuda --learning-rate $rate"
        done
    done <<<"$objectives"
}
{
    print_lines CartPole-v1 2.5e-4 1e-3 2.5e-3
    print_lines Acrobot-v1 2.5e-4 1e-3 2.5e-3 5e-3
} | "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@"
