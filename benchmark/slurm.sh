#!/usr/bin/env bash
#SBATCH --job-name=ppo
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:1
#SBATCH --signal=B:USR1@300
# Makes one run of a sweep for each task of a Slurm array, from the root of the checkout:
#     LIST=1 benchmark/ours/atari.sh | wc -l                     # 9 runs: tasks 0 to 8
#     sbatch --array=0-8 benchmark/slurm.sh benchmark/ours/atari.sh
# 300 seconds before the time limit the sweep stops its run, which saves a checkpoint after the update under way. The same
# sbatch command, with more time or again, goes on from there.
TASK="$SLURM_ARRAY_TASK_ID" exec "$@"
