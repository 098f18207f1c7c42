#!/usr/bin/env bash
# The clip and other objectives, each at three learning rates: docs/losses.md.
# SEEDS="$(seq -s " " 30)" AGENTS=30 benchmark/ablation/losses.sh ppo_seeds.py
# SEEDS="1 2 3 4 5 6 7 8 9 10" benchmark/ablation/losses.sh ppo.py
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/results/losses}"
cartpole="--env-id CartPole-v1 --total-timesteps 50000 --no-cuda"
seeds="with/seeds-vector $cartpole"
for rate in 2.5e-4 1e-3 2.5e-3; do
    cat <<END
ppo_seeds.py + $seeds --learning-rate $rate
ppo_seeds.py + $seeds --learning-rate $rate --clip-coef 0.1
ppo_seeds.py + $seeds --learning-rate $rate --clip-coef 0.3
ppo_seeds.py + without/core-8 + $seeds --learning-rate $rate
ppo_seeds.py + with/ano + $seeds --learning-rate $rate
ppo_seeds.py + with/ano + $seeds --learning-rate $rate --clip-coef 0.1
ppo_seeds.py + with/clip-higher + $seeds --learning-rate $rate
ppo_seeds.py + with/drift + $seeds --learning-rate $rate
ppo_seeds.py + with/dual-clip + $seeds --learning-rate $rate
ppo_seeds.py + with/rollback + $seeds --learning-rate $rate
ppo_seeds.py + with/rollback + $seeds --learning-rate $rate --rollback 1
ppo_seeds.py + with/spo + $seeds --learning-rate $rate
ppo_seeds.py + with/truly-ppo + $seeds --learning-rate $rate
ppo_seeds.py + with/bounded-ratio + $seeds --learning-rate $rate
ppo_seeds.py + with/bounded-ratio + $seeds --learning-rate $rate --clip-coef 0.3
ppo_seeds.py + $seeds --learning-rate $rate --ent-coef 0
ppo.py $cartpole --learning-rate $rate
ppo.py + with/entropy-critic $cartpole --learning-rate $rate --ent-coef 0.02
ppo.py + with/entropy-reward $cartpole --learning-rate $rate
ppo.py + with/kl-penalty $cartpole --learning-rate $rate
END
done | "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@"
