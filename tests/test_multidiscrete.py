"""Several choices at once, the mask of those that are valid, and the games of Gym-µRTS."""

import signal

import gymnasium as gym
import numpy as np
import processes
import pytest
import run_files
import script_table
import torch
import toy_envs
from in_process import patched, train, watched
from processes import finish, start
from rounding import ROUNDING
from run_files import checkpoint, without_speed
from script_table import MASK, MULTIDISCRETE

import ppo_multidiscrete as plain
import ppo_multidiscrete_mask as masking

NVEC = [3, 4, 2]
SIZE = sum(NVEC)


@pytest.fixture
def masks():
    """Masks, bool [500, 9]; some of them leave no action of a component."""
    masks = torch.from_numpy(np.random.default_rng(1).random((500, SIZE)) < 0.5)
    assert all((~part.any(-1)).any() and part.all(-1).any() for part in masks.split(NVEC, dim=-1))
    return masks


def test_only_valid_actions_are_drawn(masks):
    """10,000 samples; where a component has no valid action, any action."""
    torch.manual_seed(1)
    logits = 5 * torch.randn(500, SIZE)
    logits[~masks] += 50
    actions = torch.stack([masking.MultiDiscrete(logits, NVEC).masked(masks).sample() for _ in range(20)])
    for k, mask in enumerate(masks.split(NVEC, dim=-1)):
        drawn = actions[..., k]
        assert 0 <= drawn.min() and drawn.max() < NVEC[k]
        valid = mask.expand(20, -1, -1).gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
        assert (valid | ~mask.any(-1)).all()


def test_probabilities_and_entropy_are_of_the_valid_actions(masks):
    """A component without a valid action is uniform: it adds a constant to the log probability and no entropy."""
    torch.manual_seed(1)
    logits = torch.randn(500, SIZE)
    policy = masking.MultiDiscrete(logits, NVEC).masked(masks)
    actions = policy.sample()
    log_prob, entropy = torch.zeros(500, dtype=torch.float64), torch.zeros(500, dtype=torch.float64)
    parts = zip(logits.double().split(NVEC, dim=-1), masks.split(NVEC, dim=-1), strict=True)
    for k, (part, mask) in enumerate(parts):
        weights, some = part.exp() * mask, mask.any(-1)
        p = weights / weights.sum(-1, keepdim=True)
        taken = p.gather(-1, actions[:, k : k + 1]).squeeze(-1)
        log_prob += torch.where(some, taken.log(), -np.log(NVEC[k]))
        entropy += torch.where(some, torch.special.entr(p).sum(-1), 0.0)
    torch.testing.assert_close(policy.log_prob(actions).double(), log_prob, atol=1e-5, rtol=0)
    torch.testing.assert_close(policy.entropy().double(), entropy, atol=1e-5, rtol=0)


def test_gradients_of_invalid_logits_are_zero(masks):
    """Exactly zero through the whole loss, also where no action is valid; the others are not, and none is NaN."""
    torch.manual_seed(1)
    logits = torch.randn(500, SIZE, requires_grad=True)
    policy = masking.MultiDiscrete(logits, NVEC)
    with torch.no_grad():
        masked = policy.masked(masks)
        batch = {name: torch.randn(500) for name in ("obs", "values", "returns")} | {"actions": masked.sample()}
        batch |= {"logprobs": masked.log_prob(batch["actions"]) + 0.2 * torch.randn(500), "masks": masks}
    loss, stats = masking.ppo_loss(lambda obs: (policy, torch.zeros(500)), batch, masking.Args())
    loss.backward()
    assert loss.isfinite() and all(scalar.isfinite() for scalar in stats.values())
    assert (logits.grad[~masks] == 0).all() and logits.grad.isfinite().all()
    alone = torch.cat([(mask.sum(-1, keepdim=True) < 2).expand_as(mask) for mask in masks.split(NVEC, -1)], dim=-1)
    assert (logits.grad[masks & ~alone] != 0).float().mean() > 0.9


def test_a_full_mask_changes_no_bit_of_a_run(tmp_path):
    options = f"{MULTIDISCRETE.tiny} --ent-coef 0.01"  # the defaults differ
    runs = [train(script, options, tmp_path / script.name) for script in (MULTIDISCRETE, MASK)]
    assert without_speed(runs[0]) == without_speed(runs[1]) and run_files.same_weights(*map(checkpoint, runs))


def test_what_is_shown_tells_the_actions(tmp_path):
    """Seeds 1 to 5 earned 31.4 to 31.6 of 32 over the last 50 episodes; chance earns 13."""
    options = "--env-id toy_envs:Choices-v0 --total-timesteps 8192 --num-envs 4 --learning-rate 0.0025 --gamma 0.5"
    run = train(MULTIDISCRETE, options, tmp_path)
    assert np.mean(checkpoint(run)["returns"][-50:]) > 29


def test_choices_of_a_continuous_environment():
    """The values of an engine are the middles of 11 parts of its range from -1 to 1: -10/11, -8/11, ..., 10/11."""
    pytest.importorskip("Box2D")  # has no wheel for Python 3.14
    choices = gym.make("recipes.environments:LunarLanderChoices-v3")
    continuous = gym.make("LunarLanderContinuous-v3")
    assert choices.action_space == gym.spaces.MultiDiscrete([11, 11])
    assert (choices.reset(seed=1)[0] == continuous.reset(seed=1)[0]).all()
    for action, values in [([0, 10], [-10 / 11, 10 / 11]), ([10, 0], [10 / 11, -10 / 11]), ([9, 5], [8 / 11, 0])]:
        obs, reward, *_ = choices.step(np.array(action))
        expected_obs, expected_reward, *_ = continuous.step(np.array(values, np.float32))
        np.testing.assert_allclose(obs, expected_obs, rtol=1e-5, atol=1e-6)
        assert reward == pytest.approx(expected_reward, rel=1e-5, abs=1e-5)


class Masked(toy_envs.Toy):
    """Shows the mask of each step and asserts that the action is valid. Episodes last 3 steps.

    The mask is in the info of `where` ("reset", "step"), and what the method action_mask() returns if "method"."""

    observation_space, action_space = gym.spaces.Box(0, 1, (5,)), gym.spaces.MultiDiscrete([3, 2])

    def __init__(self, where):
        self.where = where
        if "method" in where:
            self.action_mask = lambda: self.mask.astype(np.int32)
        else:
            self.action_mask = lambda: pytest.fail("the infos have all masks that are needed")

    def answer(self, moment):
        self.mask = self.np_random.random(5) < 0.5
        self.mask[[self.np_random.integers(3), 3 + self.np_random.integers(2)]] = True
        return self.mask.astype(np.float32), {"action_mask": self.mask} if moment in self.where else {}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = int(self.np_random.integers(2))  # episodes end at different times
        return self.answer("reset")

    def step(self, action):
        assert self.mask[action[0]] and self.mask[3 + action[1]]
        self.steps += 1
        obs, info = self.answer("step")
        is_over = self.steps == 3
        return obs, 1.0, is_over, False, {} if is_over else info  # no action follows the end, so it has no mask


@pytest.mark.parametrize("where", [("reset", "step"), ("method",), ("method", "reset")], ids="+".join)
def test_the_mask_in_the_batch_is_that_of_its_observation(where, tmp_path):
    """Also in the first step of an episode."""
    make_env = lambda args, index, folder: masking.Episodes(Masked(where))  # noqa: E731
    minibatches = watched(masking, "ppo_loss", lambda agent, minibatch, *_: minibatch)
    with patched((masking, "make_env", make_env)), minibatches as batches:
        train(MASK, "--num-envs 2 --num-steps 32 --total-timesteps 192 --update-epochs 1", tmp_path)
    assert len(batches) == 3 * 4
    for batch in batches:
        masks = batch["masks"]
        assert masks.dtype == torch.bool and torch.equal(masks.float(), batch["obs"])
        assert masks.gather(1, batch["actions"] + torch.tensor([0, 3])).all()


# Gym-µRTS


def expected_mask(obs):
    """From the planes uint8 [B, 27, 10, 10], bool [B, 229]: own units (plane 11) that are free as actors, the enemy's
    (plane 12) that are free as targets; free is who is there (not plane 13) and does nothing (plane 21)."""
    free = (obs[:, 13] == 0) & (obs[:, 21] == 1)
    own, enemy = ((obs[:, plane] == 1) & free for plane in (11, 12))
    return torch.cat([own.flatten(1), torch.ones(len(obs), 29, dtype=torch.bool), enemy.flatten(1)], dim=1)


def test_a_run_of_mining(tmp_path):
    """Masks are those of their observations, actions are valid, and the first ratios of an update are 1 but for
    rounding.

    A log probability is the sum of those of seven components, of one sign. Each of these is the difference of a logit
    and the logarithm of a sum, and each of four operations on it rounds by half of float32's epsilon of its size; then
    each of seven additions by so much of the whole. Both computations together: 11 epsilons of the log probability.
    The logits themselves, of size 1 or less, come from batches of other sizes."""

    def look(agent, minibatch, *_):
        logprobs = agent(minibatch["obs"])[0].masked(minibatch["masks"]).log_prob(minibatch["actions"]).detach()
        bound = ROUNDING + 11 * torch.finfo(torch.float32).eps * logprobs.abs()
        return minibatch | {"difference": ((logprobs - minibatch["logprobs"]).abs() / bound).max()}

    with watched(masking, "ppo_loss", look) as batches:
        run = train(MASK, "--num-envs 4 --num-steps 64 --total-timesteps 1024 --update-epochs 1", tmp_path)
    assert len(batches) == 4 * 4 and max(batch["difference"] for batch in batches[::4]) < 1
    for batch in batches:
        obs, masks, actions = batch["obs"], batch["masks"], batch["actions"]
        assert obs.dtype == torch.uint8 and obs.shape[1:] == (27, 10, 10)
        assert torch.equal(masks, expected_mask(obs))
        for mask, action in zip(masks.split([100, 29, 100], dim=1), actions[:, [0, 1, 7]].T, strict=True):
            assert mask.gather(1, action.unsqueeze(1)).all()
    log = run_files.scalars(run)
    assert [length for _, length in log["charts/episodic_length"]] == [200] * 4
    assert sum(value for _, value in log["charts/episodic_return"]) > 0


@pytest.mark.slow
def test_games_in_processes_of_their_own_give_the_same_run(tmp_path):
    """Each process starts a Java; it would not live on in a forked process."""
    options = "--env-id MicrortsMining-v1 --no-cuda --num-envs 2 --num-steps 16 --total-timesteps 64"
    several, one = train(MASK, f"{options} --async-envs", tmp_path / "several"), train(MASK, options, tmp_path / "one")
    assert without_speed(several) == without_speed(one) and run_files.same_weights(checkpoint(several), checkpoint(one))


def stream(seed, num_envs=2):
    """Observations of 40 steps of chance against an enemy of chance, uint8 [40, num_envs, 27, 10, 10]."""
    envs = plain.make_envs(plain.Args(env_id="MicrortsRandomEnemyShapedReward3-v1", num_envs=num_envs), None)
    first, _ = envs.reset(seed=seed)
    actions = np.random.default_rng(1).integers(envs.single_action_space.nvec, size=(40, 2, 8))
    steps = [envs.step(action[:num_envs])[0] for action in actions]
    assert all(envs.single_observation_space.contains(obs) for obs in [*first, *steps[-1]])
    envs.close()
    return np.stack(steps)


def test_a_seed_decides_what_the_enemy_does():
    one, again, other = (stream(seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any() and (one[:, 0] != one[:, 1]).any()
    np.testing.assert_array_equal(stream(1, num_envs=1)[:, 0], one[:, 0])  # no other game has a part in it


def test_a_frame_shows_who_is_where():
    """Each cell has 40 by 40 pixels, whose color tells whose unit is there."""
    args = plain.Args(env_id="MicrortsRandomEnemyShapedReward3-v1", num_envs=1, capture_video=True)
    envs = plain.make_envs(args)
    [board], _ = envs.reset(seed=1)
    [frame] = envs.render()
    envs.close()
    assert frame.shape == (400, 400, 3) and frame.dtype == np.uint8
    found = set()
    for y, x in np.ndindex(10, 10):
        owner = "nothing" if board[13, y, x] else ("nobody", "own", "enemy")[board[10:13, y, x].argmax()]
        shown = {"nothing": (32, 32, 32), "nobody": (48, 160, 80), "own": (59, 125, 216), "enemy": (208, 64, 48)}[owner]
        assert tuple(frame[40 * y + 5, 40 * x + 5]) == shown
        found.add(owner)
    assert found == {"nothing", "nobody", "own", "enemy"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_for_python(number, tmp_path):
    """Java would end the run without a checkpoint."""
    process = start([script_table.ROOT / "ppo_multidiscrete.py", "--num-envs", "1", "--num-steps", "16"], tmp_path)
    run = processes.started(process, tmp_path)
    process.send_signal(number)
    assert finish(process)[0] == 128 + number
    assert checkpoint(run)["global_step"] > 0
