"""ppo_procgen.py on EnvPool's Procgen, where the system has Qt 5, and on games that behave as its do, everywhere."""

import copy
import sys
from types import SimpleNamespace

import envpool
import gymnasium as gym
import numpy as np
import pytest
import torch
from toy_envs import (
    CLASSIC_CONTROL,
    PROCGEN,
    SCRIPTS,
    checkpoint,
    finish,
    patched,
    same_weights,
    scalars,
    start,
    train,
)

import ppo_procgen as script

try:
    import envpool.procgen

    has_qt = envpool.procgen.ProcgenGymnasiumEnvPool is not None
except ImportError:
    has_qt = False
with_qt = pytest.mark.skipif(
    not has_qt, reason="no Qt 5 here (Debian: libqt5gui5), so EnvPool's own Procgen is not tried, only games like it"
)
every_script_with_its_games = pytest.mark.parametrize(
    "script",
    [pytest.param(script, marks=with_qt if script == PROCGEN else (), id=script.name) for script in SCRIPTS],
)

N = 8


class Games:
    """In place of EnvPool's Procgen: a step after the end of a game ignores the action and opens the next one.

    An observation shows (game, step in it, environment), one in each channel. Every third end is a truncation.
    `log` has of each environment every step that counted: (game, step), action, reward, whether and how it ended.
    """

    observation_space, action_space = gym.spaces.Box(0, 255, (3, 64, 64), np.uint8), gym.spaces.Discrete(15)
    made = []

    def __init__(self, game, num_envs, seed, num_levels, start_level):
        self.made.append(self)
        self.asked = {"game": game, "num_envs": num_envs, "seed": seed}
        self.asked |= {"num_levels": num_levels, "start_level": start_level}
        self.random = np.random.default_rng(seed)
        self.game, self.steps, self.over = np.zeros((3, num_envs), dtype=int)
        self.log = [[] for _ in range(num_envs)]

    def show(self, i):
        numbers = np.array([self.game[i], self.steps[i], i], np.uint8)
        return np.broadcast_to(numbers[:, None, None], (3, 64, 64))

    def answer(self, ids, rewards, terminated, truncated):
        obs = np.stack([self.show(i) for i in ids])
        info = {"elapsed_step": self.steps[ids].astype(np.int32)}
        return obs, np.float32(rewards), np.array(terminated), np.array(truncated), info

    def reset(self):
        return self.answer(np.arange(len(self.game)), 0, False, False)[::4]

    def step(self, actions, ids=None):
        ids, answers = np.arange(len(self.game)) if ids is None else ids, []
        for i, action in zip(ids, actions, strict=True):
            if self.over[i]:
                self.game[i], self.steps[i], self.over[i] = self.game[i] + 1, 0, False
                answers.append((0.0, False, False))
                continue
            before, self.steps[i] = (self.game[i], self.steps[i], i), self.steps[i] + 1
            self.over[i] = self.steps[i] == 1 + (5 * i + 3 * self.game[i]) % 9
            cut = self.over[i] and (self.game[i] + i) % 3 == 2
            answers.append((self.random.normal(), bool(self.over[i] and not cut), bool(cut)))
            self.log[i].append((before, action, *answers[-1]))
        return self.answer(np.asarray(ids), *zip(*answers, strict=True))


@pytest.fixture
def games(monkeypatch):
    """The list of the pools that the script makes from now on, which are not EnvPool's."""
    monkeypatch.setattr(Games, "made", [])
    monkeypatch.setattr(envpool, "make_gymnasium", Games)
    return Games.made


class Asked:
    """Between the script and its pool: keeps every call and every answer."""

    def __init__(self, pool):
        self.pool, self.calls = pool, []

    def step(self, actions, ids=None):
        answer = self.pool.step(actions) if ids is None else self.pool.step(actions, ids)
        kept = [np.array(part) for part in answer[:4]]
        self.calls.append((np.arange(N) if ids is None else np.array(ids), np.array(actions), *kept, answer[4]))
        return answer


def check_stream(pool, least, cuts):
    """5,000 steps of chance: who ended restarts at once, no other action is ignored, a score is the sum of rewards."""
    envs = script.EnvPool(pool, N)
    assert envs.single_action_space.n == 15 and envs.single_observation_space.shape == (3, 64, 64)
    obs, _ = envs.reset(seed=3)
    assert obs.dtype == np.uint8 and obs.shape == (N, 3, 64, 64)
    envs.pool = asked = Asked(envs.pool)
    random, scores, lengths = np.random.default_rng(1), np.zeros(N), np.zeros(N, dtype=int)
    earlier, ends, truncations = [], 0, 0
    for _ in range(5000 // N):
        actions, first = random.integers(15, size=N), len(asked.calls)
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        done = terminated | truncated
        _, sent, frames, paid, ended, cut, info = asked.calls[first]
        np.testing.assert_array_equal(sent, actions)
        for ours, theirs in ((rewards, paid), (terminated, ended), (truncated, cut), (obs[~done], frames[~done])):
            np.testing.assert_array_equal(ours, theirs)
        scores, lengths = scores + paid, lengths + 1
        np.testing.assert_array_equal(info["elapsed_step"], lengths)  # so each action has been a step of its game
        assert len(asked.calls) - first == 1 + done.any() and ("final_info" in infos) == done.any()
        if done.any():
            ids, _, opening, paid, ended, cut, later = asked.calls[first + 1]
            np.testing.assert_array_equal(ids, np.flatnonzero(done))
            assert not paid.any() and not ended.any() and not cut.any() and not later["elapsed_step"].any()
            np.testing.assert_array_equal(obs[done], opening)
            np.testing.assert_array_equal(infos["final_obs"][done], frames[done])
            assert (obs[done] != frames[done]).any(axis=(1, 2, 3)).all()
            statistics = infos["final_info"]
            np.testing.assert_array_equal(statistics["_episode"], done)
            np.testing.assert_allclose(statistics["episode"]["r"][done], scores[done], rtol=1e-12)
            np.testing.assert_array_equal(statistics["episode"]["l"][done], lengths[done])
            scores[done], lengths[done] = 0, 0
            ends, truncations = ends + done.sum(), truncations + truncated.sum()
        earlier.append((obs, obs.copy()))  # the learner keeps what it is given: nothing may be written into it later
    assert all(np.array_equal(*pair) for pair in earlier)
    assert ends >= least and (truncations > 0) == cuts


def test_the_stream_that_the_learner_sees():
    def make(seed):
        return Games("", N, seed, 0, 0)

    check_stream(make, least=500, cuts=True)


@with_qt
@pytest.mark.parametrize("game, least, cuts", [("StarpilotEasy-v0", 30, False), ("MazeHard-v0", N, True)])
def test_the_stream_of_procgen(game, least, cuts):
    """A starpilot that is hit has ended, a maze without a way out by chance is cut after 500 steps."""
    check_stream(lambda seed: envpool.make_gymnasium(game, num_envs=N, seed=seed), least, cuts)


def rolled_out(options, folder):
    """(updates, run): a run with one gradient step each update, and what `gae` and that step were given."""
    updates, gae, gradient_step = [], script.gae, script.gradient_step

    def recording_gae(rewards, values, dones, *rest):
        updates.append(SimpleNamespace(rewards=np.array(rewards), values=values, dones=np.array(dones)))
        return gae(rewards, values, dones, *rest)

    def recording_step(agent, optimizer, minibatch, *rest):
        updates[-1].agent, updates[-1].batch = copy.deepcopy(agent), minibatch
        return gradient_step(agent, optimizer, minibatch, *rest)

    with patched((script, "gae", recording_gae), (script, "gradient_step", recording_step)):
        run = train(PROCGEN, f"--num-minibatches 1 --update-epochs 1 {options}", folder)
    return updates, run


SMALL = "--num-envs 6 --num-steps 8 --total-timesteps 192"


def normalised(log, gamma):
    """What VecNormalize makes of the rewards in a log of Games, and the returns whose deviation it takes.

    Both are [steps, environments], from the definition.
    """
    returns, seen, rewards = np.zeros(len(log)), [], []
    for happened in zip(*log, strict=True):
        paid = np.array([reward for _, _, reward, _, _ in happened])
        returns = returns * gamma + paid
        seen.append(returns)
        count, start = np.size(seen), 1e-4  # returns so far; as if one ten-thousandth of one came before
        mean = np.sum(seen) / (count + start)
        variance = (np.sum((seen - mean) ** 2) + start * (1 + mean**2)) / (count + start)
        rewards.append(np.clip(paid / np.sqrt(variance + 1e-8), -10, 10))
        returns = np.where([ended or cut for *_, ended, cut in happened], 0, returns)
    return np.array(rewards), np.array(seen)


@pytest.mark.parametrize("gamma", [0.99, 0.5])
def test_every_step_of_a_batch_is_what_happened_in_the_game(gamma, games, tmp_path):
    """Observation, action and scaled reward are of one step, which the game played; and every game is logged."""
    updates, run = rolled_out(f"{SMALL} --reward-gamma {gamma}", tmp_path)
    log = games[-1].log
    assert len(updates) == 4 and {len(steps) for steps in log} == {32}
    rewards, _ = normalised(log, gamma)
    for number, update in enumerate(updates):
        batch = update.batch
        assert batch["obs"].dtype == torch.uint8 and batch["obs"].shape == (48, 3, 64, 64)
        rows = {tuple(key): row for row, key in enumerate(batch["obs"][:, :, 0, 0].tolist())}
        assert len(rows) == 48
        for i, steps in enumerate(log):
            for t, (shown, action, *_) in enumerate(steps[8 * number : 8 * number + 8]):
                row = rows[tuple(map(int, shown))]
                assert (batch["obs"][row] == torch.tensor(shown)[:, None, None]).all()
                assert batch["actions"][row] == action and batch["values"][row] == update.values[t, i]
                assert update.rewards[t, i] == pytest.approx(rewards[8 * number + t, i], rel=1e-5)
                assert update.dones[t, i] == (shown[1] == 0 and 8 * number + t > 0)
    expected = []
    for i, steps in enumerate(log):
        score = length = 0
        for t, (_, _, reward, ended, cut) in enumerate(steps, 1):
            score, length = score + np.float32(reward), length + 1
            if ended or cut:
                expected.append((6 * t, i, score, length))
                score = length = 0
    expected.sort()
    written = scalars(run)
    assert written["charts/episodic_length"] == [(step, length) for step, _, _, length in expected]
    assert [step for step, _ in written["charts/episodic_return"]] == [step for step, *_ in expected]
    returns = [value for _, value in written["charts/episodic_return"]]
    np.testing.assert_allclose(returns, [score for _, _, score, _ in expected], rtol=1e-5)


def test_a_game_that_is_cut_may_be_worth_what_its_last_image_is(games, tmp_path):
    """With --bootstrap-truncated, and only there: the first update of two runs that are else alike."""
    [plain, *_], _ = rolled_out(SMALL, tmp_path)
    [update, *_], _ = rolled_out(f"{SMALL} --bootstrap-truncated --gamma 0.9", tmp_path)
    pool, cuts = games[-1], 0
    for i, steps in enumerate(pool.log):
        for t, (shown, *_, cut) in enumerate(steps[:8]):
            expected = plain.rewards[t, i]
            if cut:
                image = torch.tensor([shown[0], shown[1] + 1, i], dtype=torch.uint8)
                with torch.no_grad():
                    value = update.agent(image[None, :, None, None].expand(1, 3, 64, 64))[1].item()
                expected, cuts = expected + 0.9 * value, cuts + 1
            assert update.rewards[t, i] == pytest.approx(expected, abs=1e-5)
    assert cuts >= 2


def test_a_run_goes_on_where_it_was_stopped(games, tmp_path):
    """With the scale of its rewards, in other levels; and the same seed gives the same run."""
    _, run = rolled_out(f"{SMALL} --total-timesteps 96", tmp_path / "one")
    _, again = rolled_out(f"{SMALL} --total-timesteps 96", tmp_path / "again")
    assert same_weights(checkpoint(run), checkpoint(again))
    scale = checkpoint(run)["parts"]["envs"]
    assert scale["count"] == pytest.approx(96 + 1e-4) and scale == checkpoint(again)["parts"]["envs"]
    _, on = rolled_out(f"--resume {run} --total-timesteps 192", tmp_path / "one")
    later = checkpoint(on)["parts"]["envs"]
    assert on == run and later["count"] == pytest.approx(192 + 1e-4)
    _, seen = normalised(games[-1].log, 0.99)
    assert later["mean"] * later["count"] == pytest.approx(scale["mean"] * scale["count"] + seen.sum(), rel=1e-6)
    assert [pool.asked["seed"] for pool in (games[1], games[3], games[5])] == [1, 1, 1 + 96]


def test_what_envpool_is_asked_for(games, tmp_path):
    options = "--env-id heist --distribution-mode memory --num-levels 7 --start-level 100 --num-envs 3 --seed 5"
    train(PROCGEN, f"{options} --num-steps 8 --num-minibatches 1 --total-timesteps 24", tmp_path)
    asked = {"game": "HeistMemory-v0", "num_envs": 3, "seed": 5, "num_levels": 7, "start_level": 100}
    assert games[-1].asked == asked


def test_a_seed_beyond_what_envpool_takes(games):
    """As it may be at the resume of a very long run."""
    script.make_envs(script.Args(num_envs=3), None).reset(seed=2**31 + 5)
    assert games[-1].asked["seed"] == 5


@with_qt
def test_levels():
    """--num-levels from --start-level on, by an order that --seed decides; the first as those of procgen 0.10.7."""

    def levels(options, seed=1):
        envs = script.make_envs(script.Args(num_envs=4, **options), None)
        envs.reset(seed=seed)
        pool, seen = envs.env.pool, []
        for _ in range(150):
            seen.append(pool.step(np.full(4, 4))[4]["level_seed"].tolist())
        return seen

    drawn = levels({"num_levels": 5, "start_level": 100})
    assert set(sum(drawn, [])) == {100, 101, 102, 103, 104}
    assert drawn == levels({"num_levels": 5, "start_level": 100}) != levels({"num_levels": 5, "start_level": 100}, 2)
    everything = levels({})
    assert len(set(sum(everything, []))) > 10
    assert everything[0] == [1028862084, 1350755646, 171461426, 1650001247]  # rand_seed=1, num=4 there


@with_qt
def test_a_run_on_procgen(tmp_path):
    run = train(PROCGEN, "--num-envs 8 --num-steps 64 --total-timesteps 1024 --update-epochs 1", tmp_path)
    log = scalars(run)
    assert [step for step, _ in log["losses/value_loss"]] == [512, 1024]
    assert log["charts/episodic_return"] and all(value >= 0 for _, value in log["charts/episodic_return"])


@torch.no_grad()
def test_rows_do_not_meet_in_the_network():
    """However many there are, and on a CPU taken in parts: the last part may be a smaller one."""
    torch.manual_seed(1)
    spaces = {"single_observation_space": Games.observation_space, "single_action_space": Games.action_space}
    agent = script.Agent(SimpleNamespace(**spaces))
    torch.nn.init.normal_(agent.policy.weight)
    obs = torch.randint(0, 256, (150, 3, 64, 64), dtype=torch.uint8)
    policy, values = agent(obs)
    assert policy.logits.shape == (150, 15) and values.shape == (150,) and values.std() > 0.01
    for row in (0, 63, 64, 127, 128, 149):
        one, value = agent(obs[row : row + 1])
        torch.testing.assert_close(policy.logits[row : row + 1], one.logits, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(values[row : row + 1], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options, named",
    [
        ("--env-id starpilt", "no game starpilt, but starpilot$"),
        ("--env-id LeaperEasy", "no game LeaperEasy, but leaper$"),
        ("--env-id maze --distribution-mode extreme", "extreme, but easy, hard, memory, exploration$"),
        ("--env-id CartPole-v1", "CartPole-v1, but bigfish, bossfight, .*, starpilot$"),
    ],
)
def test_what_there_is_not(options, named, games, tmp_path):
    with pytest.raises(SystemExit, match=rf"^error: .*{named}"):
        train(PROCGEN, f"{SMALL} {options}", tmp_path)
    assert not list(tmp_path.glob("runs/*")) and not games


# A program for another process: the script where the library that EnvPool's Procgen needs is not in the system.
WITHOUT_QT = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *rest):
        if name == "envpool.procgen.procgen_envpool":
            raise ImportError("libQt5Gui.so.5: cannot open shared object file: No such file or directory")
sys.meta_path.insert(0, Missing())
import ppo_procgen
sys.argv = ["ppo_procgen.py"]
ppo_procgen.main()
"""


def test_without_qt(tmp_path):
    """One line, which names what to install."""
    status, output, errors = finish(start(["-c", WITHOUT_QT], tmp_path))
    assert status == 1 and not output and errors.count("\n") == 1
    assert errors.startswith("error: ") and "Qt 5" in errors and "libqt5gui5" in errors
    assert not list(tmp_path.glob("runs/*"))


def test_without_envpool(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(SystemExit, match=r"^error: .*envpool.*: pip install envpool$"):
        train(PROCGEN, "", tmp_path)
    assert not list(tmp_path.glob("runs/*"))


def test_defaults():
    expected, args = CLASSIC_CONTROL | PROCGEN.defaults, vars(script.Args())
    assert {name: args[name] for name in expected} == expected
