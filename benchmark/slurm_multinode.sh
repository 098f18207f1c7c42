#!/usr/bin/env bash
#SBATCH --job-name=ppo-multinode
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
# One run on all GPUs of several nodes, from the root of a checkout on a disk that they share:
#     sbatch benchmark/slurm_multinode.sh --env-id Breakout-v5 --num-envs 128
# One torchrun a node; the job's number is the run's id, so that a job that is requeued, by Slurm after a node's failure or
# by `scontrol requeue`, goes on from the run's newest checkpoint. 120 seconds before the time limit all ranks stop after
# the update under way.
set -euo pipefail

HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun no longer takes it from sbatch
export HEAD TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 TORCH_ELASTIC_SHUTDOWN_TIMEOUT=100
# shellcheck disable=SC2016  # SLURM_PROCID differs from node to node
exec srun bash -c '
    exec torchrun --nnodes="$SLURM_NNODES" --nproc-per-node="${RANKS_PER_NODE:-gpu}" --max-restarts=3 \
        --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$HEAD:29400" \
        --rdzv-conf="is_host=$((SLURM_PROCID == 0))" ppo_atari_multigpu.py "$@"' torchrun "$@"
