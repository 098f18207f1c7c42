#!/usr/bin/env bash
# Pong in 5 minutes: EnvPool, with the hyperparameters tuned for it, 10M steps at most.
cd "$(dirname "$0")/../.." || exit
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_atari_envpool.py --env-id Pong-v5 --num-envs 16 --num-minibatches 8 --update-epochs 3 --clip-coef 0.2
END
