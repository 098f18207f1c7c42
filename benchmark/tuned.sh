#!/usr/bin/env bash
# Settings that solve the usual tasks: SEEDS="1 2 3 4 5 6 7 8 9 10" WORKERS=2 benchmark/tuned.sh
# To run a line in a shell, put python in front of it; where it names a recipe, apply that first:
#     python -m recipes.apply normalization my_ppo.py
# The last two lines need PettingZoo's packages: pip install pettingzoo mpe2
# games.py makes the table of the first twelve lines: .venv/bin/python -m benchmark.games build/tuned/runs/[A-Z]*__*
cd "$(dirname "$0")/.." || exit
export FOLDER="${FOLDER:-build/tuned}" RESULTS="${RESULTS-benchmark/results/tuned}"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" <<END
ppo.py + without/core-9 --env-id CartPole-v1 --total-timesteps 100000 --num-envs 8 --num-steps 64 --num-minibatches 2 --update-epochs 6 --learning-rate 5e-3 --gamma 0.98 --gae-lambda 0.8 --ent-coef 0 --vf-coef 1 --anneal-clip --bootstrap-truncated
ppo.py + with/normalization --env-id Acrobot-v1 --total-timesteps 500000 --num-envs 16 --num-steps 128 --num-minibatches 16 --update-epochs 4 --learning-rate 2e-3 --gae-lambda 0.94 --ent-coef 0 --bootstrap-truncated
ppo.py + with/normalization --env-id MountainCar-v0 --total-timesteps 150000 --num-envs 16 --num-steps 64 --num-minibatches 16 --update-epochs 10 --learning-rate 1e-3 --gae-lambda 0.98 --ent-coef 0
ppo_continuous_action.py + with/colored-noise --env-id MountainCarContinuous-v0 --total-timesteps 30000 --num-envs 4 --num-steps 512 --gamma 0.999 --noise-color 1
ppo_continuous_action.py + with/symmetry-continuous + without/core-9 --env-id Pendulum-v1 --total-timesteps 100000 --num-envs 16 --num-steps 64 --num-minibatches 4 --learning-rate 2e-3 --gamma 0.95 --bootstrap-truncated
ppo.py + with/normalization + with/recompute-advantages + without/core-9 --env-id LunarLander-v3 --total-timesteps 500000 --num-envs 16 --num-steps 256 --num-minibatches 32 --learning-rate 1e-3 --gamma 0.999 --gae-lambda 0.98 --ent-coef 0 --bootstrap-truncated
ppo_continuous_action.py --env-id LunarLanderContinuous-v3 --total-timesteps 500000 --num-envs 16 --num-steps 256 --num-minibatches 16 --learning-rate 1e-3 --gamma 0.999 --gae-lambda 0.98 --bootstrap-truncated
ppo_continuous_action.py + with/recompute-advantages + without/core-9 --env-id BipedalWalker-v3 --total-timesteps 2000000 --num-envs 16 --num-steps 256 --bootstrap-truncated --compile
ppo_continuous_action.py + with/wide + without/core-9 --env-id HalfCheetah-v5 --total-timesteps 1000000 --num-envs 8 --num-steps 256 --learning-rate 1e-4 --gamma 0.98 --gae-lambda 0.92 --clip-coef 0.1 --bootstrap-truncated --compile
ppo_continuous_action.py + with/recompute-advantages + without/core-9 --env-id Hopper-v5 --total-timesteps 1000000 --num-envs 8 --num-steps 256 --bootstrap-truncated --compile
ppo_continuous_action.py + with/recompute-advantages + without/core-9 --env-id Walker2d-v5 --total-timesteps 1000000 --num-envs 8 --num-steps 256 --bootstrap-truncated --compile
ppo_continuous_action.py + with/wide + without/core-9 --env-id Ant-v5 --total-timesteps 1000000 --num-envs 8 --num-steps 256 --learning-rate 1e-4 --gamma 0.98 --gae-lambda 0.92 --clip-coef 0.1 --target-kl 0.02 --bootstrap-truncated --compile
ppo_continuous_action.py + without/core-9 + with/envpool-continuous --env-id envpool/CartpoleSwingup-v1 --total-timesteps 500000 --num-envs 8 --num-steps 256 --num-minibatches 16 --learning-rate 1e-3 --bootstrap-truncated
ppo_continuous_action.py + without/core-9 + with/envpool-continuous --env-id envpool/CheetahRun-v1 --total-timesteps 1000000 --num-envs 8 --num-steps 256 --num-minibatches 16 --learning-rate 1e-3 --bootstrap-truncated
ppo.py + with/mask + with/envpool --env-id envpool/Snake-v1 --total-timesteps 1000000 --num-envs 32 --num-steps 128 --num-minibatches 8 --learning-rate 1e-3 --bootstrap-truncated
ppo.py + with/envpool --env-id envpool/Snake-v1 --total-timesteps 1000000 --num-envs 32 --num-steps 128 --num-minibatches 8 --learning-rate 1e-3 --bootstrap-truncated
ppo.py + with/lstm + with/envpool + with/codes --env-id envpool/MiniGrid-MemoryS7-v0 --total-timesteps 200000 --num-envs 128 --num-steps 16 --learning-rate 1e-3 --value-trains-memory
ppo.py + with/envpool + with/codes --env-id envpool/MiniGrid-MemoryS7-v0 --total-timesteps 200000 --num-envs 128 --num-steps 16 --learning-rate 1e-3
ppo_selfplay.py + with/turns --env-id pettingzoo.classic.connect_four_v3:env --total-timesteps 1000000 --num-minibatches 8 --ent-coef 0.05
ppo_selfplay.py + with/pettingzoo + without/core-9 --env-id mpe2.simple_spread_v3:parallel_env --total-timesteps 1000000 --num-envs 48 --num-steps 100 --num-minibatches 8 --gamma 0.95 --bootstrap-truncated
END
