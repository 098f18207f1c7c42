"""Learning, in seconds. A floor is well under what seeds 1 to 5 reached, of 16 over the last 50 episodes."""

import numpy as np
import pytest
from in_process import patched, put_in_place_of_games, train
from run_files import checkpoint
from script_table import ATARI, CONTINUOUS, PPO, SHARED
from toy_envs import Identity, Target

SMALL = "--total-timesteps 8192 --learning-rate 0.0025 --gamma 0.5"
IMAGES = "--total-timesteps 1536 --num-envs 8 --num-steps 16 --learning-rate 0.001 --gamma 0.5"
NUMBERS = "--total-timesteps 12288 --num-envs 4 --num-steps 128 --num-minibatches 4 --learning-rate 0.002 --gamma 0.5"


@pytest.mark.parametrize(
    "script, toy, options, floor",
    [
        (PPO, Identity, SMALL, 14),  # 15.9 to 16.0; a random agent earns 4
        (SHARED, Identity, SMALL, 14),  # 15.9 to 16.0
        (ATARI, Identity, IMAGES, 14),  # 15.0 to 15.6
        (CONTINUOUS, Target, NUMBERS, 9),  # 11.2 to 11.4; the agent that they start with earns 1
    ],
)
def test_what_is_shown_tells_the_action(script, toy, options, floor, tmp_path):
    with patched() as patch:
        put_in_place_of_games(script, lambda images, index: toy(images), patch.setattr)
        returns = checkpoint(train(script, options, tmp_path))["returns"][-50:]
    assert len(returns) == 50 and np.mean(returns) > floor
