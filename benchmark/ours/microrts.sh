#!/usr/bin/env bash
# Gym-microRTS, without and with invalid action masking, 2M steps.
cd "$(dirname "$0")/../.." || exit
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_multidiscrete.py --env-id MicrortsMining-v1
ppo_multidiscrete.py --env-id MicrortsProduceCombatUnitsShapedReward-v1
ppo_multidiscrete.py --env-id MicrortsAttackShapedReward-v1
ppo_multidiscrete.py --env-id MicrortsRandomEnemyShapedReward3-v1
ppo_multidiscrete_mask.py --env-id MicrortsMining-v1
ppo_multidiscrete_mask.py --env-id MicrortsProduceCombatUnitsShapedReward-v1
ppo_multidiscrete_mask.py --env-id MicrortsAttackShapedReward-v1
ppo_multidiscrete_mask.py --env-id MicrortsRandomEnemyShapedReward3-v1
END
