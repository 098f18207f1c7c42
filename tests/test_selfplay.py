"""Self-play: the seats of a game as environments, the recipes for it, Slime Volleyball, and ratings."""

import importlib.util
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from in_process import loaded_parts, train
from run_files import checkpoint, equal, same_weights, scalars
from script_table import SELFPLAY
from torch import nn

import ppo_selfplay as script
from benchmark import elo

with_slimevolley = pytest.mark.skipif(
    importlib.util.find_spec("slimevolleygym") is None, reason="needs slimevolleygym: pip install .[selfplay]"
)
ENDS = [(3, "truncated"), (5, "terminated"), (2, "both"), (4, "truncated"), (7, "terminated")]


class Duel(gym.Env):
    """Shows each seat (game, episode, step, a secret); the reward is random. `log` has what happened."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2, 4), np.float32)
    action_space = gym.spaces.MultiDiscrete([5, 5])
    made = []

    def __init__(self, render_mode=None):
        self.index, self.episode, self.log = len(self.made), -1, []
        self.made.append(self)
        self.chance = np.random.default_rng(self.index)

    def observe(self):
        secrets = self.chance.integers(1, 1000, 2)
        return np.float32([(self.index, self.episode, self.steps, secret) for secret in secrets])

    def reset(self, seed=None, options=None):
        self.episode, self.steps = self.episode + 1, 0
        self.obs = self.observe()
        return self.obs, {}

    def step(self, actions):
        before, self.steps = self.obs, self.steps + 1
        length, kind = ENDS[(self.index + self.episode) % len(ENDS)]
        over = self.steps == length
        terminated, truncated = over and kind != "truncated", over and kind != "terminated"
        self.obs, reward = self.observe(), float(np.float32(self.chance.normal()))
        self.log.append(SimpleNamespace(obs=before, actions=actions.tolist(), reward=reward, terminated=terminated,
                                        truncated=truncated, next_obs=self.obs))  # fmt: skip
        return self.obs, reward, terminated, truncated, {}


class Higher(gym.Env):
    """The higher action wins a step. Game 0 ends after 1 step, game 1 after 6, ...; with `flip`, the first episode of
    game 0 goes the other way; with `once`, every episode has one step."""

    observation_space = gym.spaces.Box(0, 1, (2, 1), np.float32)
    action_space = gym.spaces.MultiDiscrete([3, 3])
    made = []

    def __init__(self, render_mode=None, flip=False, cut=False, once=False):
        self.index, self.flip, self.cut, self.once, self.episode = len(self.made), flip, cut, once, 0
        self.made.append(self)

    def reset(self, seed=None, options=None):
        self.steps, self.episode = 0, self.episode + 1
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions):
        self.steps += 1
        sign = -1 if self.flip and (self.index, self.episode) == (0, 1) else 1
        over = self.once or self.steps == 5 * self.index + 1
        reward = sign * float(np.sign(actions[0] - actions[1]))
        return np.zeros((2, 1), np.float32), reward, over and not self.cut, over and self.cut, {}


gym.register("Duel-v0", Duel, disable_env_checker=True)
gym.register("Higher-v0", Higher, disable_env_checker=True)
gym.register("HigherLost-v0", Higher, disable_env_checker=True, kwargs={"flip": True})
gym.register("HigherCut-v0", Higher, disable_env_checker=True, kwargs={"flip": True, "cut": True})
gym.register("HigherOnce-v0", Higher, disable_env_checker=True, kwargs={"once": True})
SIGNS = "--env-id Signs-v0 --num-envs 8 --num-steps 32 --num-minibatches 4 --total-timesteps"


def test_each_seat_is_an_environment():
    """It acts for itself, does not see the other's observation, gets its sign of the reward, and ends with the game."""
    duels = Duel.made
    duels.clear()
    random = np.random.default_rng(1)
    envs = script.make_envs(script.Args(env_id="Duel-v0", num_envs=6), None)
    assert envs.single_observation_space.shape == (4,) and envs.single_action_space == gym.spaces.Discrete(5)
    obs, _ = envs.reset(seed=1)
    assert len(duels) == 3 and obs.shape == (6, 4) and obs.dtype == np.float32
    ends = 0
    for t in range(100):
        shown = obs
        actions = random.integers(5, size=6)
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        ended = infos.get("final_info", {}).get("_episode", np.zeros(3, bool))
        np.testing.assert_array_equal(ended, (terminated | truncated)[::2])  # one score of each game
        for row in range(6):
            game, seat = divmod(row, 2)
            step = duels[game].log[t]
            np.testing.assert_array_equal(shown[row], step.obs[seat])
            assert step.actions[seat] == actions[row]
            assert rewards[row] == (step.reward if seat == 0 else -step.reward)
            assert (terminated[row], truncated[row]) == (step.terminated, step.truncated)
            if step.terminated or step.truncated:
                ends += 1
                np.testing.assert_array_equal(infos["final_obs"][row], step.next_obs[seat])
            assert obs[row, 2] == (0 if step.terminated or step.truncated else shown[row, 2] + 1)
    assert ends > 100
    envs.close()


@pytest.mark.parametrize("past", [False, True])
def test_it_learns(past, with_recipe, tmp_path):
    """To choose the right action for each sign, from both seats or from one against an older self."""
    tested, options = (with_recipe("with/selfplay-past"), " --past-every 32") if past else (SELFPLAY, "")
    run = train(tested, f"{SIGNS} 16384 --learning-rate 3e-3{options}", tmp_path)
    agent = script.Agent(script.make_envs(script.Args(env_id="Signs-v0", num_envs=2), None))
    agent.load_state_dict(checkpoint(run)["parts"]["agent"])
    policy, _ = agent(torch.eye(4))
    assert (policy.logits.argmax(-1) == torch.arange(4)).all()


def test_the_opponent_changes_now_and_then(with_recipe, tmp_path):
    """Every --past-every updates it becomes the current agent; it survives a resume."""
    tested = with_recipe("with/selfplay-past")
    run = train(tested, f"{SIGNS} 1024 --past-every 2 --save-every 1", tmp_path)
    last, before = (checkpoint(run, which)["parts"] for which in (-1, -2))
    assert equal(last["past"], last["agent"]) and not equal(before["past"], before["agent"])
    with loaded_parts(tested) as loaded:
        train(tested, f"--resume {min(run.glob('checkpoint_*.pt'))}", tmp_path)
    assert equal(loaded["past"], before["past"])


class Always(nn.Module):
    """An agent that takes one action, whatever it sees."""

    def __init__(self, action):
        super().__init__()
        self.logits = nn.Parameter(torch.where(torch.arange(3) == action, 0.0, -1e8))

    def forward(self, obs):
        return script.Categorical(self.logits.expand(len(obs), 3)), torch.zeros(len(obs))


@pytest.fixture
def win_rate(with_recipe):
    """The recipe's function as win_rate(agent, other, env_id, games)."""

    def call(agent, other, env_id, games):
        module, state = with_recipe("with/selfplay-evaluation").module, torch.get_rng_state()
        args = module.Args(env_id=env_id, eval_games=games)
        rate = module.win_rate(agent, other, args, torch.device("cpu"))
        assert torch.equal(state, torch.get_rng_state())  # it takes no random numbers from the training
        return rate

    Higher.made.clear()
    return call


@pytest.mark.parametrize(("mine", "other", "rate"), [(2, 0, 1.0), (0, 1, 0.0), (1, 1, 0.5)])
def test_win_rate(mine, other, rate, win_rate):
    assert win_rate(Always(mine), Always(other), "Higher-v0", 4) == rate


@pytest.mark.parametrize("env_id", ["HigherLost-v0", "HigherCut-v0"])
def test_one_game_of_each_counts(env_id, win_rate):
    """The agent loses the shortest of four games, and would win it fifteen times before the longest ends."""
    assert win_rate(Always(2), Always(0), env_id, 4) == 0.75


@pytest.mark.slow
def test_random_play_is_uniform(win_rate):
    assert win_rate(Always(1), None, "HigherOnce-v0", 3000) == pytest.approx(0.5, abs=0.03)
    assert win_rate(Always(2), None, "HigherOnce-v0", 3000) == pytest.approx(5 / 6, abs=0.03)


def test_older_selves_stay(with_recipe, tmp_path):
    """Matches do not change the training; each leaves a checkpoint, from which a run can start."""
    tested, options = with_recipe("with/selfplay-evaluation"), f"{SIGNS} 1536 --save-every 2"
    run = train(tested, f"{options} --eval-every 1 --eval-games 4", tmp_path)
    assert same_weights(checkpoint(run), checkpoint(train(SELFPLAY, options, tmp_path / "without")))
    assert [step for step, _ in scalars(run)["charts/win_rate_past"]] == list(range(256, 1537, 256))
    older = sorted(run.glob("older_checkpoint_*.pt"))
    assert [int(file.stem[17:]) for file in older] == list(range(256, 1537, 256))
    before, *_, last = (torch.load(file, weights_only=True) for file in older)
    assert same_weights(last, checkpoint(run)) and not same_weights(before, last)
    with loaded_parts(tested) as loaded:
        resumed = train(tested, f"--resume {older[0]}", tmp_path)
    assert equal(loaded["evaluated"], before["parts"]["agent"])
    assert resumed != run and checkpoint(resumed)["global_step"] == 1536


def test_an_odd_number_of_environments(tmp_path):
    with pytest.raises(SystemExit, match=r"^error: [^\n]*even[^\n]*$"):
        train(SELFPLAY, "--num-steps 64 --env-id Signs-v0 --num-envs 7", tmp_path)


# Slime Volleyball


@pytest.fixture
def volley():
    """gymnasium's function that makes a game, whose id is known once the script has made one."""
    script.make_env(script.Args(), 0, None).close()
    return gym.make


@with_slimevolley
@pytest.mark.parametrize(("env_id", "lives"), [("SlimeVolley-v0", 1), ("SlimeVolleyMatch-v0", 5)])
def test_slime_volleyball_is_the_packages(env_id, lives, volley):
    """Frame by frame the package's own environment, which its second action makes a game of two; 3 frames an action."""
    ours = volley(env_id)
    obs, _ = ours.reset(seed=5)
    library = sys.modules["slimevolleygym.slimevolley"]
    theirs = library.SlimeVolleyEnv()
    theirs.game = library.Game(np.random.Generator(np.random.PCG64(np.random.SeedSequence(5))))
    random, points, ends = np.random.default_rng(1), [], 0
    for _ in range(3000):
        right, left = random.integers(6, size=2)
        frames = [theirs.step(theirs.action_table[right], theirs.action_table[left]) for _ in range(3)]
        obs, reward, terminated, truncated, _ = ours.step(np.array([right, left]))
        np.testing.assert_array_equal(obs, np.float32([frames[-1][0], frames[-1][3]["otherObs"]]))
        assert reward == sum(frame[1] for frame in frames)
        if reward != 0:
            points.append(reward)
        assert terminated == (max(points.count(1), points.count(-1)) == lives) and not truncated
        assert terminated == frames[-1][2] or lives == 1  # a match is the package's own episode
        if terminated:
            ends += 1
            points = []
            obs, _ = ours.reset()
            theirs.game = library.Game(theirs.game.np_random)
            theirs.t = 0
            np.testing.assert_array_equal(obs, np.float32([p.getObservation() for p in ours.unwrapped.players]))
    assert ends > 40 / lives


@with_slimevolley
def test_slime_volleyball_has_a_time_limit(volley):
    """It is cut after 3000 frames."""
    env = volley("SlimeVolley-v0", render_mode="rgb_array")
    env.reset(seed=1)
    env.unwrapped.game.ball.checkEdges = lambda: 0  # nobody ever scores
    ends = [env.step(np.array([1, 1]))[2:4] for _ in range(1000)]
    assert ends[-1] == (False, True) and not any(any(end) for end in ends[:-1])
    assert env.render().shape == (160, 384, 3)


# Ratings by benchmark/elo.py


def test_ratings_are_the_likeliest():
    """Ratings of two players follow from the share of wins; of four, the likelihood has its maximum there."""
    # with half a win more for each, 25 and 75
    assert elo.ratings(np.array([[0, 24.5], [74.5, 0]])) == pytest.approx([0, 400 * np.log10(3)])
    chance = np.random.default_rng(1)
    wins = chance.integers(1, 50, (4, 4)) * (1 - np.eye(4))

    def likelihood(ratings):
        share = 1 / (1 + 10 ** ((ratings - ratings[:, None]) / 400))
        return ((wins + 0.5 * (1 - np.eye(4))) * np.log(share)).sum()

    found = elo.ratings(wins)
    assert all(likelihood(found + chance.normal(0, 10, 4)) < likelihood(found) for _ in range(100))


def test_the_tournament_counts_for_whom_it_should(with_recipe):
    """The higher action wins, in either seat; a random player of three actions is as good as the middle one."""
    agents, module = [None, Always(0), Always(1), Always(2)], with_recipe("with/selfplay-evaluation").module
    wins = elo.tournament(module, agents, module.Args(env_id="HigherOnce-v0"), games=200, seed=1)
    assert wins[1:, 1:].tolist() == [[0, 0, 0], [200, 0, 0], [200, 200, 0]]
    assert wins[0, 1:] == pytest.approx([200 * 5 / 6, 100, 200 / 6], abs=25)
    assert (wins + wins.T == 200 * (1 - np.eye(4))).all()


@pytest.mark.slow
def test_elo_of_a_run(with_recipe, tmp_path, capsys):
    """A row for each player, the random one first; the later, the stronger."""
    options = f"{SIGNS} 6144 --eval-every 8 --eval-games 4 --learning-rate 5e-4"
    run = train(with_recipe("with/selfplay-evaluation"), options, tmp_path)
    capsys.readouterr()
    elo.rate(elo.Args(run, games=20, players=3))
    title, *lines = capsys.readouterr().out.splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    assert [row[0] for row in rows] == ["steps", "random", "2,048", "4,096", "6,144"]
    ratings = [float(row[1]) for row in rows[1:]]
    assert ratings == sorted(ratings) and ratings[0] == 0 and ratings[-1] > 200
    assert rows[-1][2] == "100.0%" and rows[2][2] == rows[2][3]
