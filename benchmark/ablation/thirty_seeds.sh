#!/usr/bin/env bash
# The core details on six tasks with thirty seeds, most of them side by side in one process:
# SEEDS="$(seq -s " " 30)" AGENTS=30 benchmark/ablation/thirty_seeds.sh
# Recipes that do not fit ppo_seeds.py are compared with a script of one agent. Options stand for core-4 and core-11.
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/ablation/results}"

side_by_side() {  # the recipe for several agents, the options of the task, then the details to take out
    local agents="$1" options="$2"
    shift 2
    echo "ppo_seeds.py + with/$agents $options"
    for detail in "$@"; do
        echo "ppo_seeds.py + without/$detail + with/$agents $options"
    done
    echo "ppo_seeds.py + with/$agents $options --no-anneal-lr"
    echo "ppo_seeds.py + with/$agents $options --max-grad-norm 1e9"
}

one_agent() {  # the script, the options of the task, then the details to take out
    local script="$1" options="$2"
    shift 2
    echo "$script $options"
    for detail in "$@"; do
        echo "$script + without/$detail $options"
    done
}

core="core-2 core-3 core-3-torch core-5 core-7 core-8 core-9"
lander="--env-id LunarLander-v3 --total-timesteps 100000 --num-envs 16 --num-steps 128 --num-minibatches 16"
lander="$lander --learning-rate 1e-3 --gae-lambda 0.98 --bootstrap-truncated --no-cuda"
pendulum="--env-id Pendulum-v1 --total-timesteps 40960 --num-envs 8 --num-steps 256 --num-minibatches 16"
pendulum="$pendulum --learning-rate 1e-3 --gamma 0.95 --bootstrap-truncated --no-cuda"
robot="--num-envs 16 --num-steps 128 --num-minibatches 8 --learning-rate 1e-3 --bootstrap-truncated --no-cuda"
{
    for task in "CartPole-v1 --total-timesteps 50000 --no-cuda" "Acrobot-v1 --total-timesteps 100000 --no-cuda"; do
        side_by_side seeds-vector "--env-id $task" $core core-10 core-13
        one_agent ppo.py "--env-id $task" core-1 core-6 core-6-in-order
    done
    side_by_side seeds-vector "$lander" $core core-10 core-13
    one_agent ppo.py "$lander" core-6
    side_by_side seeds-continuous "$pendulum" $core
    side_by_side seeds-continuous "--env-id Hopper-v5 --total-timesteps 60000 $robot" $core
    side_by_side seeds-continuous "--env-id HalfCheetah-v5 --total-timesteps 120000 $robot" $core
    more="continuous-2 continuous-3 continuous-4 continuous-5 continuous-6 continuous-7 continuous-8 continuous-9"
    one_agent ppo_continuous_action.py "$pendulum" core-6 $more
} | "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@"
