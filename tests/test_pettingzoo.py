"""The recipe pettingzoo: the agents of a ParallelEnv as environments."""

import importlib.util

import gymnasium as gym
import numpy as np
import pytest
import torch
import toy_envs
from in_process import train, watched
from run_files import checkpoint
from toy_envs import Crowd

import enjoy


@pytest.fixture
def made(with_recipe):
    return with_recipe("with/pettingzoo")


@pytest.fixture
def games(monkeypatch):
    """The list that the games of Crowd come into; the first one only tells the number of agents."""
    monkeypatch.setattr(Crowd, "made", [])
    return Crowd.made


@pytest.mark.parametrize("game", ["Crowd", "Keeping", "Leaving"])
def test_each_agent_is_an_environment(game, made, games):
    """Its observation, action, reward, end and last observation belong together, as long as it is in the game."""
    envs = made.module.make_envs(made.module.Args(env_id=f"toy_envs:{game}", num_envs=6))
    assert envs.single_observation_space.shape == (4,) and envs.single_action_space == gym.spaces.Discrete(4)
    chance = np.random.default_rng(1)
    obs, infos = envs.reset(seed=1)
    games = games[1:]
    taken = [[] for _ in games]
    ends = []
    for _ in range(60):
        shown, present = obs, infos["present"]
        actions = chance.integers(4, size=6)
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        for row in range(6):
            game, agent = divmod(row, 3)
            if not present[row]:
                assert rewards[row] == 0 and terminated[row]
                continue
            assert shown[row, 0] == games[game].index and shown[row, 3] == agent
            step = tuple(shown[row].astype(int).tolist())
            taken[game].append((step, actions[row], rewards[row], terminated[row], truncated[row]))
            index, episode, t, _ = step
            np.testing.assert_array_equal(infos["final_obs"][row], [index, episode, t + 1, agent])
            if terminated[row] or truncated[row]:
                ends.append((agent, bool(truncated[row])))
    assert [game.log for game in games] == taken
    assert set(ends) == {(0, False), (1, False), (2, True)} and len(ends) > 50
    envs.close()


@pytest.mark.parametrize("bootstrap", [False, True])
def test_only_steps_in_the_game_are_learned_from(bootstrap, made, games, tmp_path):
    """Each once in an epoch; with lambda and gamma of 1, a return is the sum of the agent's own rewards to its end."""

    class Agent(made.module.Agent):
        """Values every state at 100."""

        def forward(self, obs):
            policy, values = super().forward(obs)
            return policy, 100 + 0 * values

    options = "--env-id toy_envs:Crowd --num-envs 6 --num-steps 40 --total-timesteps 240 --num-minibatches 4 --no-cuda"
    options += " --update-epochs 1 --gamma 1 --gae-lambda 1" + " --bootstrap-truncated" * bootstrap
    with watched(made.module, "ppo_loss", lambda agent, minibatch, args: minibatch) as batches:
        made.module.Agent, kept = Agent, made.module.Agent
        train(made, options, tmp_path)
        made.module.Agent = kept
    assert len(batches) == 4
    obs = torch.cat([batch["obs"] for batch in batches]).int().tolist()
    returns = torch.cat([batch["returns"] for batch in batches]).tolist()
    learned = {tuple(row): value for row, value in zip(obs, returns, strict=True)}
    log = [step for game in games[1:] for step in game.log]
    assert len(obs) == len(learned) == len(log) and set(learned) == {step[0] for step in log}
    compared = 0
    for row in learned:
        index, episode, t, agent = row
        later = [step for step in log if step[0][:2] == (index, episode) and step[0][3] == agent and step[0][2] >= t]
        *_, terminated, truncated = later[-1]
        if terminated or truncated:
            worth = sum(step[2] for step in later) + 100 * (bootstrap and truncated)
            assert learned[row] == pytest.approx(worth, abs=1e-4)
            compared += 1
    assert compared > 60


@pytest.mark.parametrize("kind", ["cooperative", "competitive"])
def test_it_learns(kind, made, tmp_path):
    """What is shown tells the action; chance is right in one of four."""
    options = f"--env-id toy_envs:{kind} --num-envs 12 --num-steps 32 --num-minibatches 4 --total-timesteps 23040"
    run = train(made, f"{options} --learning-rate 0.0025 --gamma 0.5 --no-cuda", tmp_path)
    agent = made.module.Agent(toy_envs.spaces(gym.spaces.Box(0, 1, (4,)), gym.spaces.Discrete(4)))
    agent.load_state_dict(checkpoint(run)["parts"]["agent"])
    right = agent.get_policy(torch.eye(4)).logits.exp().diagonal()
    assert right.min() > 0.8
    assert len(enjoy.enjoy(enjoy.Args(run, episodes=2))) == 2


def test_what_it_cannot_train_on(made, tmp_path):
    for options, message in [
        ("--env-id toy_envs:Crowd --num-envs 4", "--num-envs 4 must be a multiple of 3"),
        ("--env-id toy_envs:Different", "its agents must have the same spaces; late"),
    ]:
        with pytest.raises(SystemExit, match=f"^error: .*{message}"):
            train(made, options, tmp_path)


def test_a_missing_reward_is_not_zero(made, games):
    envs = made.module.make_envs(made.module.Args(env_id="toy_envs:Unpaid", num_envs=3))
    envs.reset(seed=1)
    with pytest.raises(KeyError, match="early"):
        for _ in range(2):
            envs.step(np.zeros(3, int))


@pytest.mark.skipif(importlib.util.find_spec("pettingzoo") is None, reason="needs pettingzoo")
def test_a_game_of_pettingzoo(made, tmp_path):
    options = "--env-id pettingzoo.butterfly.knights_archers_zombies_v11:parallel_env --num-envs 4 --num-steps 64"
    run = train(made, f"{options} --total-timesteps 512 --no-cuda", tmp_path)
    assert checkpoint(run)["global_step"] == 512
