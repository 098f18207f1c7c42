#!/usr/bin/env bash
# An arm with torques of different scales (arm.py): SEEDS="1 2 3 4 5" benchmark/ablation/arm.sh
# First the defaults and the settings to copy of docs/environment.md, and these where the goal is hidden from the policy,
# with a critic that sees it and with one that does not. Then the agents of the settings to copy go on with an arm of
# three times the mass, with and without critic-warm-up; $FOLDER/tuned has these runs, and tuned_arm.py compares them.
cd "$(dirname "$0")/../.." || exit
export FOLDER="${FOLDER:-build/ablation}" RESULTS="${RESULTS-benchmark/ablation/results}"
python="${PYTHON:-.venv/bin/python}"
settings="ppo_continuous_action.py + without/core-9 + with/squashed-gaussian"
options="--total-timesteps 100000 --no-cuda"
copied="$options --num-envs 8 --num-steps 256 --num-minibatches 16 --learning-rate 1e-3 --bootstrap-truncated"
module=benchmark.ablation.arm
"$python" -m benchmark.sweep "$@" <<END || exit
ppo_continuous_action.py --env-id $module:Arm-v0 $options
$settings --env-id $module:Arm-v0 $copied
$settings --env-id $module:BlindArm-v0 $copied
$settings + with/privileged-critic --env-id $module:Arm-v0 $copied --privileged goal
END
mkdir -p "$FOLDER/tuned/build"
"$python" -m recipes.apply core-9 squashed-gaussian "$FOLDER/tuned/build/tuned.py" --script ppo_continuous_action.py || exit
"$python" -m recipes.apply core-9 squashed-gaussian critic-warm-up "$FOLDER/tuned/build/tuned_warm_up.py" \
    --script ppo_continuous_action.py || exit
for seed in ${SEEDS:-1 2 3}; do
    for script in tuned tuned_warm_up; do
        light=("$FOLDER/runs/$module-Arm-v0__ppo_continuous_action+core-9+squashed-gaussian__${seed}__"*/checkpoint_*.pt)
        if compgen -G "$FOLDER/tuned/$module-HeavyArm-v0__${script}__${seed}__*" > /dev/null; then
            continue
        fi
        PYTHONPATH=. "$python" "$FOLDER/tuned/build/$script.py" --resume "${light[-1]}" --seed "$seed" --no-cuda \
            --env-id $module:HeavyArm-v0 --total-timesteps "${TUNED_TIMESTEPS:-200000}" --runs-folder "$FOLDER/tuned" || exit
    done
done
"$python" -m benchmark.ablation.tuned_arm "$FOLDER/tuned"
