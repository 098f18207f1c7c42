#!/usr/bin/env bash
# Slime Volleyball by self-play, 4M steps.
cd "$(dirname "$0")/../.." || exit
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo_selfplay.py + with/selfplay-evaluation --env-id SlimeVolley-v0
END
