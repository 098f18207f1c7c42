"""The recipe turns: the agents of a game in turns as environments, each of which learns from its own turns."""

import functools

import gymnasium as gym
import numpy as np
import pytest
import torch
import toy_envs
from in_process import patched, train, watched
from toy_envs import Table, Turn

import enjoy
from recipes.environments import TicTacToe


@pytest.fixture
def made(with_recipe):
    return with_recipe("with/turns")


@pytest.fixture
def games(monkeypatch):
    """The list that the games of Table come into; the first one only tells the number of agents."""
    monkeypatch.setattr(Table, "made", [])
    return Table.made


def expected_advantages(rewards, values, ended, turns, gamma, gae_lambda):
    """By the definition, for one agent: {step: advantage} of its turns whose outcome is known."""
    own = np.flatnonzero(turns).tolist()
    advantages = {}
    for t, following in reversed(list(zip(own, [*own[1:], len(rewards)], strict=True))):
        ends = [step for step in range(t, following) if ended[step]]
        if ends:
            advantages[t] = rewards[t : ends[0] + 1].sum() - values[t]
        elif following < len(rewards):
            delta = rewards[t:following].sum() + gamma * values[following] - values[t]
            advantages[t] = delta + gamma * gae_lambda * advantages.get(following, 0)
    return advantages


def test_advantages_of_own_turns(made):
    chance = np.random.default_rng(1)
    shape = (60, 40)
    rewards, values = chance.normal(size=(2, *shape)).astype(np.float32)
    dones, turns = chance.random(shape) < 0.1, chance.random(shape) < 0.4
    advantages, known = made.module.gae(rewards, values, dones, turns, 0.9, 0.8)
    assert advantages.dtype == np.float32 and known.dtype == bool
    for n in range(40):
        columns = (column[:, n] for column in (rewards, values, dones, turns))
        expected = expected_advantages(*columns, 0.9, 0.8)
        assert np.flatnonzero(known[:, n]).tolist() == sorted(expected)
        for t, advantage in expected.items():
            assert advantages[t, n] == pytest.approx(advantage, abs=1e-4)


def test_each_agent_is_an_environment(made, games):
    """It is shown its turns alone, with the valid actions, and gets what it earns until its next one."""
    envs = made.module.make_envs(made.module.Args(env_id="toy_envs:Table", num_envs=6))
    assert envs.single_observation_space.shape == (9,) and envs.single_action_space == gym.spaces.Discrete(5)
    chance = np.random.default_rng(1)
    obs, _ = envs.reset(seed=1)
    games = games[1:]
    taken = [[] for _ in games]
    current = [None] * 6  # each row's last Turn
    for _ in range(100):
        masks = made.module.valid_actions(torch.from_numpy(obs), 5).numpy()
        turns = masks.any(axis=1)
        assert turns.reshape(2, 3).sum(1).tolist() == [1, 1]
        assert not obs[~turns].any()
        actions = np.array([chance.choice(np.flatnonzero(mask)) if mask.any() else 4 for mask in masks])
        for row in np.flatnonzero(turns):
            game, agent = divmod(row, 3)
            index, episode, move, shown_agent = obs[row, 5:].astype(int).tolist()
            assert index == games[game].index and shown_agent == agent
            current[row] = Turn("abc"[agent], (index, episode, move), actions[row])
            taken[game].append(current[row])
        obs, rewards, terminated, truncated, _ = envs.step(actions)
        for row in range(6):
            if current[row] is not None:
                current[row].earned += rewards[row]
                current[row].ended = bool(terminated[row])
            if terminated[row]:
                current[row] = None
        assert not truncated.any()
    envs.close()
    for game, steps in zip(games, taken, strict=True):
        assert len(steps) == len(game.log) == 100
        assert steps[:80] == game.log[:80]  # the outcome of the last ones is still open


def test_only_own_turns_are_learned_from(made, games, tmp_path):
    """Each once in an epoch, but for an agent's last one whose outcome is open; actions are valid ones.

    With lambda and gamma of 1, a return is what the agent earns to its end, or to its last turn and the value there."""

    class Agent(made.module.Agent):
        """Values every state at 100."""

        def forward(self, obs):
            policy, values = super().forward(obs)
            return policy, 100 + 0 * values

    options = "--env-id toy_envs:Table --num-envs 6 --num-steps 50 --total-timesteps 300 --num-minibatches 3 --no-cuda"
    patches = patched((made.module, "Agent", Agent))
    with patches, watched(made.module, "ppo_loss", lambda agent, minibatch, args: minibatch) as batches:
        train(made, f"{options} --update-epochs 1 --gamma 1 --gae-lambda 1", tmp_path)
    assert len(batches) == 3
    for batch in batches:
        masks = batch["obs"][:, :5]
        assert masks.gather(1, batch["actions"].unsqueeze(1)).all()
    rows = torch.cat([batch["obs"][:, 5:] for batch in batches]).int().tolist()
    returns = torch.cat([batch["returns"] for batch in batches]).tolist()
    learned = {("abc"[agent], (*place,)): value for (*place, agent), value in zip(rows, returns, strict=True)}
    expected = {}
    for game in games[1:]:
        for name in "abc":
            turns = [turn for turn in game.log if turn.agent == name]
            worth = None
            for turn in reversed(turns):
                if turn.ended:
                    worth = 0.0
                if worth is None:
                    worth = 100.0  # an open outcome
                else:
                    worth += turn.earned
                    expected[name, turn.place] = worth
    assert len(learned) == len(rows) and learned == pytest.approx(expected, abs=1e-4)


# Tic-tac-toe


@functools.cache
def score(own, other):
    """What the player to move earns by best play; squares are bits."""
    return max(-outcome(own | 1 << square, other) for square in free(own, other))


def outcome(mover, other):
    """What the opponent of the player who has just moved earns by best play."""
    if any((mover & line) == line for line in LINES):
        return -1
    return score(other, mover) if free(mover, other) else 0


def free(own, other):
    return [square for square in range(9) if not (own | other) >> square & 1]


LINES = [sum(1 << int(square) for square in line) for line in TicTacToe.lines]


def best_moves(own, other):
    """The squares that keep the best outcome."""
    worths = {square: -outcome(own | 1 << square, other) for square in free(own, other)}
    return [square for square, worth in worths.items() if worth == max(worths.values())]


def play(agent, seat, chance):
    """The agent's reward of a game with its most likely actions, against best play with equal chances of best moves."""
    game = TicTacToe()
    game.reset()
    while not game.is_over:
        obs, *_ = game.last()
        if game.agent_selection == game.possible_agents[seat]:
            row = np.append(obs["action_mask"], obs["observation"]).astype(np.float32)
            game.step(agent.get_policy(torch.from_numpy(row)[None]).mode().item())
        else:
            own, other = (sum(1 << int(square) for square in np.flatnonzero(marks)) for marks in obs["observation"])
            game.step(chance.choice(best_moves(own, other)))
    return game.rewards[game.possible_agents[seat]]


def losses(agent):
    """How many of 200 games the agent loses, 100 in each seat."""
    chance = np.random.default_rng(1)
    return sum(play(agent, seat, chance) < 0 for seat in (0, 1) for _ in range(100))


def test_best_play_is_a_draw():
    assert score(0, 0) == 0
    assert best_moves(0b000000011, 0b000011000) == [2]  # it wins
    assert best_moves(0b000000001, 0b000011000) == [5]  # it must not lose


def blank_agent(module):
    return module.Agent(toy_envs.spaces(gym.spaces.Box(0, 1, (27,)), gym.spaces.Discrete(9)))


def test_random_play_loses(made):
    torch.manual_seed(1)
    assert losses(blank_agent(made.module)) > 100


def test_minibatches_have_two_turns_or_more(made, tmp_path):
    """The known turns of a rollout are fewer than its steps, and their number has no divisors that are asked for."""
    options = "--env-id toy_envs:Table --num-envs 6 --num-steps 50 --total-timesteps 300 --num-minibatches 60 --no-cuda"
    with watched(made.module, "ppo_loss", lambda agent, minibatch, args: len(minibatch["obs"])) as sizes:
        train(made, f"{options} --update-epochs 1", tmp_path)
    assert min(sizes) >= 2 and len(sizes) == min(60, sum(sizes) // 2)
    with pytest.raises(SystemExit, match="^error: --num-steps is so small"):
        train(made, options.replace("--num-steps 50", "--num-steps 1").replace("60", "2"), tmp_path)


def test_it_plays_at_random_against_valid_moves(made, tmp_path):
    """A move to a square that is not free is an error of the game."""
    run = train(made, "--env-id recipes.environments:TicTacToe --num-envs 2 --total-timesteps 256 --no-cuda", tmp_path)
    assert len(enjoy.enjoy(enjoy.Args(run, episodes=20, opponent="random"))) == 20


def test_what_it_cannot_train_on(made, tmp_path):
    with pytest.raises(SystemExit, match="^error: --num-envs 4 must be a multiple of 3"):
        train(made, "--env-id toy_envs:Table --num-envs 4", tmp_path)


def test_an_agent_that_leaves_before_its_turn(made, tmp_path):
    """Its last reward is told in that turn, so training without it would be wrong in silence."""
    with pytest.raises(ValueError, match="^an agent has left the game too early"):
        train(made, "--env-id toy_envs:Clearing --num-envs 6 --num-minibatches 2", tmp_path)
