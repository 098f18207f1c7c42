#!/usr/bin/env bash
# CartPole with N environments in about 10 seconds of a core, side by side:
# SEEDS="1 2 3 4 5 6 7 8 9 10" AGENTS=10 benchmark/ablation/equal_time.sh
# The steps are those that ppo.py makes in 10 seconds of CPU time with these N and M (benchmark/ablation/README.md).
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/ablation/results}"
script="ppo_seeds.py + with/seeds-vector --env-id CartPole-v1 --no-cuda"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
$script --num-envs 1 --num-steps 512 --total-timesteps 43000
$script --num-envs 4 --num-steps 128 --total-timesteps 73000
$script --num-envs 16 --num-steps 32 --total-timesteps 97000
$script --num-envs 64 --num-steps 8 --total-timesteps 112000
$script --num-envs 256 --num-steps 2 --total-timesteps 117000
$script --num-envs 1 --num-minibatches 1 --total-timesteps 43000
$script --num-envs 16 --num-minibatches 16 --total-timesteps 111000
$script --num-envs 64 --num-minibatches 64 --total-timesteps 113000
$script --num-envs 256 --num-minibatches 256 --total-timesteps 107000
END
