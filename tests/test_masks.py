"""The recipes for Discrete actions of which some are invalid, without and with memory."""

import importlib
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from in_process import patched, train, watched
from rounding import ROUNDING
from run_files import checkpoint, same_weights, without_speed
from script_table import PPO, ROOT

import enjoy
from recipes import apply

ACTIONS = 5
SMALL = "--no-cuda --num-envs 2 --num-steps 32 --num-minibatches 2 --update-epochs 1 --total-timesteps 192"
masking = pytest.mark.parametrize("name", ["mask", "mask-lstm"])


@pytest.fixture
def made(name, with_recipe):
    """The script of a recipe."""
    return with_recipe(f"with/{name}")


@pytest.fixture
def masks():
    """Masks, bool [500, 5], each with a valid action."""
    masks = torch.from_numpy(np.random.default_rng(1).random((500, ACTIONS)) < 0.4)
    masks[torch.arange(500), torch.arange(500) % ACTIONS] = True
    assert masks.sum(-1).unique().tolist() == [1, 2, 3, 4, 5]
    return masks


@masking
def test_probabilities_and_entropy_are_of_the_valid_actions(made, masks):
    torch.manual_seed(1)
    logits = 5 * torch.randn(500, ACTIONS)
    policy = made.module.Categorical(logits).masked(masks)
    weights = logits.double().exp() * masks
    expected = weights / weights.sum(-1, keepdim=True)
    for action in range(ACTIONS):
        chosen = torch.full((500,), action)
        valid = masks[:, action]
        log_prob = policy.log_prob(chosen)
        torch.testing.assert_close(log_prob[valid].double(), expected[valid, action].log(), atol=1e-5, rtol=0)
        assert (log_prob[~valid].exp() == 0).all()
    torch.testing.assert_close(policy.entropy().double(), torch.special.entr(expected).sum(-1), atol=1e-5, rtol=0)
    assert masks[torch.arange(500), policy.mode()].all()
    for _ in range(20):
        assert masks[torch.arange(500), policy.sample()].all()


@masking
def test_gradients_of_invalid_logits_are_zero(made, masks):
    """Exactly zero through the whole loss; the others are not, unless the action is the only one, and none is NaN."""
    torch.manual_seed(1)
    logits = torch.randn(500, ACTIONS, requires_grad=True)
    policy = made.module.Categorical(logits)
    with torch.no_grad():
        masked = policy.masked(masks)
        batch = {name: torch.randn(500) for name in ("obs", "values", "returns")}
        batch |= {"actions": masked.sample(), "masks": masks, "state": None, "dones": None}
        batch["logprobs"] = masked.log_prob(batch["actions"]) + 0.2 * torch.randn(500)
    loss, stats = made.module.ppo_loss(lambda *_: (policy, torch.zeros(500)), batch, made.module.Args())
    loss.backward()
    assert loss.isfinite() and all(scalar.isfinite() for scalar in stats.values())
    assert (logits.grad[~masks] == 0).all() and logits.grad.isfinite().all()
    several = masks & (masks.sum(-1, keepdim=True) > 1)
    assert (logits.grad[several] != 0).float().mean() > 0.9


class Masked(gym.Env):
    """Shows the mask of each step, and asserts that the action is valid. Episodes have 3 steps.

    `where` says where the mask is: in the info of "reset" or "step", in a method, in an "attribute" action_mask, or in
    a Dict observation. In the last state of an episode no action is valid."""

    action_space = gym.spaces.Discrete(ACTIONS)

    def __init__(self, where):
        self.where = where
        self.observation_space = gym.spaces.Box(0, 1, (ACTIONS,))
        if "Dict" in where:
            mask_space = gym.spaces.Box(0, 1, (ACTIONS,), np.int8)
            self.observation_space = gym.spaces.Dict(action_mask=mask_space, zero=gym.spaces.Box(0, 0, (1,)))
        for method in ("action_mask", "action_masks"):
            if method in where:
                setattr(self, method, lambda: self.mask.astype(np.int32))

    def answer(self, moment):
        self.mask = self.np_random.random(ACTIONS) < 0.5
        self.mask[self.np_random.integers(ACTIONS)] = True
        if self.steps == 3:
            self.mask[:] = False
        obs = self.mask.astype(np.float32)
        if "attribute" in self.where:
            self.action_mask = self.mask.copy()
        if "Dict" in self.where:
            obs = {"action_mask": self.mask.astype(np.int8), "zero": np.zeros(1, np.float32)}
        return obs, {"action_mask": self.mask} if moment in self.where else {}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = int(self.np_random.integers(2))  # episodes end at different times
        return self.answer("reset")

    def step(self, action):
        assert self.mask[action]
        self.steps += 1
        obs, info = self.answer("step")
        return obs, 1.0, self.steps == 3, False, info


def masked_envs(where):
    """In place of a script's make_env: Masked environments in its own wrapper."""
    return lambda module: lambda args, index, folder: module.Episodes(Masked(where))


PLACES = [("reset", "step"), ("action_mask",), ("action_masks",), ("attribute",), ("Dict",), ("action_masks", "reset")]


@masking
@pytest.mark.parametrize("where", PLACES, ids="+".join)
def test_the_mask_in_the_batch_is_that_of_its_observation(made, where, tmp_path):
    """Also in the first step of an episode, and in enjoy.py. An update begins with ratios of 1."""
    module = made.module

    def look(agent, minibatch, args):
        state = [minibatch[name] for name in ("state", "dones") if name in minibatch]
        policy, *_ = agent(minibatch["obs"], *state)
        logprobs = policy.masked(minibatch["masks"]).log_prob(minibatch["actions"])
        return minibatch | {"difference": (logprobs - minibatch["logprobs"]).abs().max().item()}

    with (
        patched((module, "make_env", masked_envs(where)(module))),
        watched(module, "ppo_loss", look) as batches,
    ):
        run = train(made, SMALL, tmp_path)
    assert len(batches) == 3 * 2
    assert max(batch["difference"] for batch in batches[::2]) < ROUNDING
    for batch in batches:
        masks = batch["masks"]
        assert masks.dtype == torch.bool and torch.equal(masks.float(), batch["obs"][:, :ACTIONS].float())
        assert masks.gather(1, batch["actions"].unsqueeze(1)).all()

    # enjoy.py imports the run's copy of the script, whose environments are CartPole's
    load = enjoy.load

    def load_masked(*args):
        saved = load(*args)
        saved.script.make_env = masked_envs(where)(saved.script)
        return saved

    with patched((enjoy, "load", load_masked)):
        assert len(enjoy.enjoy(enjoy.Args(run, episodes=5))) == 5


@masking
def test_masks_of_envpool(name, tmp_path, monkeypatch):
    """The recipe envpool gives them to the recipes here: those of the observation, to its action and to the loss."""
    stem = f"{name.replace('-', '_')}_with_envpool"
    text, _ = apply.applied([apply.find(name), apply.find("envpool")], ROOT / "ppo.py")
    (tmp_path / f"{stem}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    made = SimpleNamespace(name=stem, module=importlib.import_module(stem))
    with watched(made.module, "ppo_loss", lambda agent, minibatch, args: minibatch) as batches:
        train(made, f"{SMALL} --env-id envpool/Snake-v1", tmp_path)
    masks = torch.cat([batch["masks"] for batch in batches])
    actions = torch.cat([batch["actions"] for batch in batches])
    obs = torch.cat([batch["obs"] for batch in batches])
    assert torch.equal(masks.float(), obs[:, -4:])  # the last key of the Dict
    some = masks.any(dim=1)
    assert masks.gather(1, actions.unsqueeze(1))[some].all() and not masks[some].all()
    with pytest.raises(KeyError, match="action_mask"):  # CartPole has none
        train(made, f"{SMALL} --env-id envpool/CartPole-v1", tmp_path)


def all_valid(env, obs, info):
    """In place of Episodes.action_mask."""
    return np.ones(env.env.action_space.n, bool)


@pytest.mark.parametrize("name, plain", [("mask", None), ("mask-lstm", "lstm")])
def test_a_full_mask_changes_no_bit_of_a_run(name, plain, with_recipe, tmp_path):
    other = PPO if plain is None else with_recipe(f"with/{plain}")
    made = with_recipe(f"with/{name}")
    with patched((made.module.Episodes, "action_mask", all_valid)):
        masked_run = train(made, SMALL, tmp_path / "masked")
    run = train(other, SMALL, tmp_path / "other")
    assert without_speed(run) == without_speed(masked_run) and same_weights(checkpoint(run), checkpoint(masked_run))
