"""The memory of ppo_atari_lstm.py: sequences equal single steps, and what it is for."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from in_process import patched, put_in_place_of_games, train, watched
from rounding import ROUNDING
from run_files import checkpoint
from script_table import LSTM
from torch import nn
from toy_envs import Counting, spaces

import ppo_atari_lstm as script

T, E = 6, 3
SPACES = spaces(gym.spaces.Box(0, 255, (84, 84, 1), np.uint8), gym.spaces.Discrete(4))


@pytest.fixture(scope="module")
def agent():
    torch.manual_seed(1)
    agent = script.Agent(SPACES)
    torch.nn.init.normal_(agent.policy.weight)  # so that the policy tells states apart
    return agent


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_a_sequence_equals_its_steps(agent, seed):
    """With episodes that open in any place, the first and the last step and neighbours among them."""
    random = np.random.default_rng(seed)
    obs = torch.from_numpy(random.integers(0, 256, (T, E, 84, 84, 1), dtype=np.uint8))
    dones = torch.from_numpy(random.random((T, E)) < (0.0, 0.3, 0.7, 1.0)[seed])
    state = tuple(torch.from_numpy(random.normal(size=(1, E, 128)).astype(np.float32)) for _ in range(2))
    policy, values, end = agent(obs.flatten(0, 1), state, dones.flatten())
    for t in range(T):
        if dones[t].any():  # from the definition: an opened episode knows nothing of what was before
            state = tuple(torch.where(dones[t, :, None], 0.0, s) for s in state)
        step, value, state = agent(obs[t], state, torch.zeros(E, dtype=torch.bool))
        torch.testing.assert_close(values[t * E : (t + 1) * E], value, rtol=ROUNDING, atol=ROUNDING)
        torch.testing.assert_close(policy.logits[t * E : (t + 1) * E], step.logits, rtol=ROUNDING, atol=ROUNDING)
    for ours, theirs in zip(end, state, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=ROUNDING, atol=ROUNDING)


def test_the_second_bias_of_torch_stays_zero():
    torch.manual_seed(1)
    agent = script.Agent(SPACES)
    B = T * E
    batch = {"obs": torch.randint(256, (B, 84, 84, 1), dtype=torch.uint8), "actions": torch.randint(4, (B,))}
    batch |= {"logprobs": torch.zeros(B), "values": torch.zeros(B), "returns": torch.randn(B)}
    batch |= {"dones": torch.zeros(B, dtype=torch.bool), "state": (torch.zeros(1, E, 128),) * 2}
    script.gradient_step(agent, script.Adam(agent), batch, script.Args())
    assert not agent.lstm.bias_hh_l0.any() and agent.lstm.bias_ih_l0.any()


class Recall(gym.Env):
    """Shows a sign, white or black, in the first step alone; the fourth asks for it: its number as action pays 1."""

    observation_space, action_space = SPACES.single_observation_space, gym.spaces.Discrete(2)

    def show(self):
        level = 255 * self.sign if self.steps == 0 else 128
        return np.full((84, 84, 1), level, np.uint8)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.sign, self.steps = int(self.np_random.integers(2)), 0
        return self.show(), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == 4
        return self.show(), float(over and action == self.sign), over, False, {}


RECALL = "--num-envs 8 --num-steps 32 --num-minibatches 2 --total-timesteps 8192 --learning-rate 0.003 --gamma 0.9"


def small_cnn(channels):
    """In place of the network for images, as Recall's are of one level."""
    return nn.Sequential(nn.AvgPool2d(84), nn.Flatten(), script.layer_init(nn.Linear(channels, 512)), nn.ReLU())


@pytest.mark.slow
def test_memory_solves_what_needs_memory(tmp_path):
    """A guess, all that an agent without memory has in the fourth step, earns 0.5."""
    with patched((script, "nature_cnn", small_cnn)) as patch:
        put_in_place_of_games(LSTM, lambda images, index: Recall(), patch.setattr)
        run = train(LSTM, RECALL, tmp_path)
    assert np.mean(checkpoint(run)["returns"]) > 0.9


class Ages(nn.Module):
    """In place of the agent: it values an observation of Counting by what its state tells of the episode so far.

    The hidden state counts the observations of an episode; the cell keeps what the first one showed: which it is."""

    def __init__(self, envs, bf16):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def initial_state(self, num_envs):
        return torch.zeros(1, num_envs, 1), torch.zeros(1, num_envs, 1)

    def forward(self, obs, state, dones):
        age, which = (s * ~dones[:, None] for s in state)
        index, episode = obs[:, 0, 0, :2].float().T[..., None]
        age, which = age + 1, torch.where(age == 0, 100 * episode + 10 * index + 10, which)
        return script.Categorical(self.weight.expand(len(obs), 2)), (which + age)[0, :, 0], (age, which)


def test_every_value_is_of_the_state_up_to_its_observation(tmp_path):
    """Those of the steps, of the observation after the last one, and of those where a time limit cuts an episode."""

    def look(rewards, values, dones, next_value, *_):
        return rewards, np.append(values, [next_value], axis=0)

    def no_step(*_):
        return {"policy_loss": torch.zeros(()), "value_loss": torch.zeros(())}

    cuts, kinds = 0, [(3, "truncated"), (5, "both"), (2, "truncated"), (4, "terminated")]
    patches = (script, "Agent", Ages), (script, "gradient_step", no_step)
    with patched(*patches) as patch, watched(script, "gae", look) as rollouts:
        toy = lambda images, index: Counting(images, index, kinds[index % 3 :] + kinds[: index % 3])  # noqa: E731
        games = put_in_place_of_games(LSTM, toy, patch.setattr)
        options = "--num-envs 4 --num-steps 8 --total-timesteps 128 --bootstrap-truncated"  # two are cut at once
        train(LSTM, options, tmp_path)
    assert len(rollouts) == 4
    for update, (rewards, values) in enumerate(rollouts):
        for index, game in enumerate(games):
            steps = game.log[8 * update : 8 * update + 9]
            for t, step in enumerate(steps):
                _, episode, age, _ = step.obs
                assert values[t, index] == 100 * episode + 10 * index + 10 + age + 1
                if t < 8:
                    cut = step.truncated and not step.terminated
                    worth = step.reward + cut * 0.99 * (values[t, index] + 1)
                    assert rewards[t, index] == pytest.approx(worth, rel=1e-5)
                    cuts += cut
    assert cuts > 8


def test_the_state_before_the_first_step_is_zero(agent):
    for state in agent.initial_state(E):
        assert state.shape == (1, E, 128) and state.dtype == torch.float32 and not state.any()


def test_a_minibatch_holds_whole_environments(tmp_path):
    """The default is 8 environments."""
    with pytest.raises(SystemExit, match="^error: --num-minibatches"):
        train(LSTM, "--num-minibatches 16 --total-timesteps 1024", tmp_path)
    assert not list(tmp_path.glob("runs/*"))
