#!/usr/bin/env bash
# Classic control, separate (ppo.py, and ppo_seeds.py side by side) and shared networks (ppo_shared.py), 500k steps.
cd "$(dirname "$0")/../.." || exit
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo.py --env-id CartPole-v1
ppo.py --env-id Acrobot-v1
ppo.py --env-id MountainCar-v0
ppo_seeds.py --env-id CartPole-v1
ppo_shared.py --env-id CartPole-v1
ppo_shared.py --env-id Acrobot-v1
ppo_shared.py --env-id MountainCar-v0
END
