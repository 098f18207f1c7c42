#!/usr/bin/env bash
# What a machine with a GPU is asked for, in the order of its worth, in eight minutes: benchmark/gpu.sh [FOLDER]
#
# FOLDER has checkouts of cleanrl and LeanRL, for the last step. PYTHON has this project's packages (extras atari,
# envpool and mujoco) and, for their scripts, gym, tensordict and wandb. A machine without network needs them as wheels:
# pip download --no-deps --only-binary=:all: --python-version 3.12 -d FOLDER envpool gym tensordict tyro ...
cd "$(dirname "$0")/.." || exit
PYTHON="${PYTHON:-python}"
THEIRS="${1:+--theirs $(realpath "$1")}"
export OMP_NUM_THREADS=1
END=$((SECONDS + ${BUDGET:-470}))

# step SECONDS TITLE COMMAND...: runs a command for so long at most, and none after the end
step() {
    local limit=$(($1 < END - SECONDS ? $1 : END - SECONDS))
    echo "== $2 (second $SECONDS)"
    if ((limit > 5)); then
        timeout "$limit" "${@:3}" || echo "   ended with status $?"
    else
        echo "   no time is left"
    fi
}

step 10 "the machine" "$PYTHON" -c "import torch; print(torch.__version__, torch.cuda.get_device_name())"
step 40 "where the time of an environment's step goes" "$PYTHON" -m benchmark.gpu.environments --steps 1000
step 60 "captured equals eager: continuous actions" "$PYTHON" -m benchmark.gpu.exact continuous_action
step 60 "captured equals eager: Atari" "$PYTHON" -m benchmark.gpu.exact atari_envpool
step 150 "speed: Atari" "$PYTHON" -m benchmark.gpu.turns --groups atari_envpool --repeats 1 $THEIRS
step 120 "speed: continuous actions" "$PYTHON" -m benchmark.gpu.turns --groups continuous_action --repeats 1 $THEIRS
step 60 "captured equals eager: Procgen" "$PYTHON" -m benchmark.gpu.exact procgen
step 90 "speed: Procgen" "$PYTHON" -m benchmark.gpu.turns --groups procgen --repeats 1
step 120 "speed again: Atari" "$PYTHON" -m benchmark.gpu.turns --groups atari_envpool --repeats 1 $THEIRS
echo "== end (second $SECONDS)"
