#!/usr/bin/env bash
# The clip and other objectives, each at three to six learning rates: docs/losses.md.
# SEEDS="$(seq -s " " 30)" AGENTS=30 benchmark/ablation/losses.sh ppo_seeds.py
# SEEDS="1 2 3 4 5 6 7 8 9 10" benchmark/ablation/losses.sh ppo.py
# SEEDS="1 2 3 4 5 6 7 8 9 10" AGENTS=10 benchmark/ablation/losses.sh HalfCheetah-v5
# A word such as Acrobot-v1 chooses an environment.
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
# With continuous actions two objectives have recipes of their own, and no entropy bonus is the default.
continuous=$(sed "
    s/with.truly-ppo + with.seeds-vector/with\/seeds-continuous + with\/truly-ppo-continuous/
    s/seeds-vector/seeds-continuous/
    s/^ppo.py/ppo_continuous_action.py/
    s/kl-penalty/kl-penalty-continuous/
    s/--ent-coef 0$/--ent-coef 0.01/
    s/entropy-reward$/entropy-reward --ent-coef 0.02/" <<<"$objectives")
options="--num-envs 64 --num-steps 32 --num-minibatches 8 --bootstrap-truncated"  # those of robots.sh
print_lines() {  # of the objectives that are its input: the first word holds options, the others are learning rates
    while read -r objective; do
        for rate in "${@:2}"; do
            echo "$objective $1 --no-cuda --learning-rate $rate"
        done
    done
}
{
    print_lines "--env-id CartPole-v1 --total-timesteps 50000" 2.5e-4 1e-3 2.5e-3 5e-3 1e-2 <<<"$objectives"
    print_lines "--env-id Acrobot-v1 --total-timesteps 50000" 2.5e-4 1e-3 2.5e-3 5e-3 1e-2 <<<"$objectives"
    print_lines "--env-id HalfCheetah-v5 --total-timesteps 200000 $options" 3e-4 1e-3 3e-3 <<<"$continuous"
    print_lines "--env-id Hopper-v5 --total-timesteps 200000 $options" 3e-4 1e-3 3e-3 <<<"$continuous"
    # The highest rate above was the best for most of these rows. For those of ppo_continuous_action.py, but the clip,
    # it was the lowest.
    print_lines "--env-id CartPole-v1 --total-timesteps 50000" 2e-2 <<<"$objectives"
    print_lines "--env-id HalfCheetah-v5 --total-timesteps 200000 $options" 1e-2 < <(grep ppo_seeds <<<"$continuous")
} | "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@"
