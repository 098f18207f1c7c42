#!/usr/bin/env bash
# ppo2 on classic control, separate (copy) and shared networks, 500k steps. It has no defaults for these: they are ours.
cd "$(dirname "$0")/../.." || exit
OPTIONS="--num_timesteps=5e5 --num_env=4 --network=mlp --nsteps=128 --nminibatches=4 --noptepochs=4 --cliprange=0.2 \
    --ent_coef=0.01 --gamma=0.99 --lam=0.95 --lr='lambda f: f * 2.5e-4'"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo2_copy --env=CartPole-v1 --value_network=copy $OPTIONS
ppo2_copy --env=Acrobot-v1 --value_network=copy $OPTIONS
ppo2_copy --env=MountainCar-v0 --value_network=copy $OPTIONS
ppo2_shared --env=CartPole-v1 --value_network=shared $OPTIONS
ppo2_shared --env=Acrobot-v1 --value_network=shared $OPTIONS
ppo2_shared --env=MountainCar-v0 --value_network=shared $OPTIONS
END
