"""check.py names what an edit or an environment gets wrong."""

import os
import re
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from script_table import ROOT

import check
import ppo
from checker import environment, learn
from checker.page import Page
from checker.policies import Policies, check_first_minibatch
from checker.spaces import check_spaces
from checker.tools import quiet

TINY = "--num-envs 2 --num-steps 32 --update-epochs 1"


class Walk(gym.Env):
    """Four numbers, of which `change` makes others: each subclass or `change` is one mistake."""

    action_space = gym.spaces.Discrete(2)

    def __init__(
        self, change=None, space=None, reward=1.0, length=20, torch_setting=None, draw=None, stride=1, truncates=False
    ):
        self.change = change or (lambda obs: obs)
        self.observation_space = space or gym.spaces.Box(-1, 1, (4,), np.float32)
        self.reward = reward
        self.length = length
        self.draw = draw or (lambda: 0.0)
        self.stride = stride  # that of action 1
        self.truncates = truncates
        if torch_setting is not None:
            function, argument = torch_setting
            function(argument)

    def observe(self):
        obs = self.np_random.uniform(-0.5, 0.5, 4).astype(np.float32)
        obs[0] += self.draw() + self.place / 100
        return self.change(obs)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self.observe(), {}

    def step(self, action):
        self.place += 1 + self.stride * int(np.sum(action))
        is_end = self.place >= self.length
        return self.observe(), self.reward, is_end and not self.truncates, is_end and self.truncates, {}


class Unknown(gym.spaces.Space):
    """A space that does not say whether it can be flattened, as MiniGrid's MissionSpace."""

    def sample(self, mask=None, probability=None):
        return "go"

    def contains(self, x):
        return isinstance(x, str)


MODULE_GENERATOR = np.random.default_rng()
IMAGE = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
SPEED = gym.spaces.Box(-1, 1, (1,))
ENVIRONMENTS = {
    "too high": (dict(change=lambda obs: np.float32([0, 0, 0, 950])), "ERROR  observation 3 is 950, .* ends at 1, at"),
    "shape": (dict(change=lambda obs: obs[:3]), r"ERROR  observation has the shape \[3\], and its space \[4\]"),
    "fractions": (dict(space=gym.spaces.Box(-9, 9, (4,), np.int64)), "ERROR  observation has fractions"),
    "nan": (dict(change=lambda obs: obs * np.nan), "ERROR  observation has a value that is nan"),
    "text": (dict(change=lambda obs: np.array(["a"] * 4)), "ERROR  observation has the type <U1"),
    "two rewards": (dict(reward=np.ones(2)), "ERROR  reward .* is not one number"),
    "no reward": (dict(reward=None), "ERROR  reward None at step 1 is not one number"),
    "infinite reward": (dict(reward=np.inf), "ERROR  reward at step 1 is inf"),
    "rewards of 0": (dict(reward=0.0), "warn   all rewards are 0"),
    "endless": (dict(length=np.inf), "warn   no episode ended: .* max_episode_steps"),
    "ignored actions": (dict(stride=0), "warn   other actions change neither observations nor rewards"),
    "truncated ends": (dict(truncates=True), r"warn   .* truncated, after 1\d to \d+ steps: an end is terminated"),
    "terminated limit": (dict(stride=0), "note   50 episodes of 20 steps, .* all terminated: if that is a time limit"),
    "numpy's generator": (dict(draw=lambda: np.random.rand() / 9), r"warn   .* whole process: np.random \(test_check"),
    "torch's generator": (dict(draw=lambda: torch.rand(()).item() / 9), "warn   .* whole process: torch "),
    "a module's generator": (dict(draw=lambda: MODULE_GENERATOR.random() / 9), "warn   reset.* do not repeat"),
    "dtype": (dict(torch_setting=(torch.set_default_dtype, torch.float64)), "ERROR  .* default dtype to torch.float64"),
    "gradients": (dict(torch_setting=(torch.set_grad_enabled, False)), "ERROR  .* gradient mode to False"),
    "image": (
        dict(space=gym.spaces.Dict(camera=IMAGE), change=lambda obs: {"camera": IMAGE.low}),
        r"warn   observation\['camera'\] is an image \[8, 8, 3\]",
    ),
    "unknown space": (
        dict(space=gym.spaces.Dict(speed=SPEED, goal=Unknown()), change=lambda obs: {"speed": SPEED.low, "goal": "go"}),
        r"ERROR  observation\['goal'\] is of the space .*Unknown",
    ),
    "large": (
        dict(space=gym.spaces.Box(-999, 999, (4,), np.float32), change=lambda obs: obs * 999),
        r"warn   observations of up to [4-7]\d\d",
    ),
}  # fmt: skip


def check_environment(make, capsys):
    """The part of the page on an environment."""
    gym.register("Checked-v0", make)
    try:
        environment.check_environment(ppo, ppo.Args(env_id="Checked-v0"), Page())
    finally:
        del gym.registry["Checked-v0"]
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments(name, capsys):
    options, text = ENVIRONMENTS[name]
    page = check_environment(lambda: Walk(**options), capsys)
    assert re.search(text, page), page
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()


def test_a_time_limit_around_the_wrapper_that_logs(capsys):
    env = gym.wrappers.TimeLimit(ppo.Episodes(Walk()), 13)
    steps = environment.RandomSteps(env, 1)
    steps.take(200)
    environment.check_episodes(steps, Page())
    assert re.search("warn   .* would not be logged: is a TimeLimit around", capsys.readouterr().out)


def test_integers_of_8_bits_at_their_bound(capsys):
    space = gym.spaces.Box(-128, 127, (4,), np.int8)
    page = check_environment(
        lambda: Walk(space=space, change=lambda obs: (254 * obs).clip(-127, 127).astype(np.int8)), capsys
    )
    assert "ERROR" not in page


def test_an_environment_without_a_mistake(capsys):
    page = check_environment(Walk, capsys)
    assert not any(word in page for word in ("ERROR", "warn", "note", "skip")), page


def test_statistics_of_a_wrapper(capsys):
    page = check_environment(lambda: gym.wrappers.NormalizeObservation(Walk()), capsys)
    assert "ERROR  NormalizeObservation keeps running statistics" in page


def test_actions_changed_in_place(capsys):
    class Mirrored(Walk):
        action_space = gym.spaces.MultiDiscrete([2, 2])

        def step(self, action):
            action[:] = 1 - action
            return super().step(action)

    env = Mirrored()
    innermost = environment.Innermost(env)
    env.reset(seed=1)
    env.step(np.array([0, 1]))
    assert innermost.changes_actions


@pytest.fixture
def check_script(tmp_path, capsys, monkeypatch):
    """A function that edits a script, [(text, text in its place), ...], and returns its page."""
    monkeypatch.setitem(sys.modules, "my_ppo", None)  # removed after the test

    def check_edited(*edits, script="ppo.py", options=TINY, status=1, **more):
        text = (ROOT / script).read_text()
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "my_ppo.py"
        path.write_text(text)
        found = check.check(path, options.split(), **more)
        page = capsys.readouterr().out
        assert found == status, page
        return page

    return check_edited


def line_of(page, word):
    """The line of a page that has a word."""
    [line, *_] = [line for line in page.splitlines() if word in line]
    return line


def test_healthy(check_script):
    page = check_script(status=0, options=f"{TINY} --env-id Acrobot-v1")
    assert "my_ppo.py on Acrobot-v1 (as my_ppo.make_env makes it), seed 1" in page
    assert "get_policy() = forward()" in page and "ratio 1 ±" in page and "update 2 begins with the same" in page
    assert "0 errors, 0 warnings, " in page and "500,000 steps will take about" in page
    assert "2 episodes of 500 steps, with a mean return of -500" in page
    assert "become more likely (correlation 1.00); at ratios of 2 and 1/2, the clip lets the policy only move" in page


FORWARD = "        return self.get_policy(obs), values\n"
START = "    run.start(device, agent=agent, optimizer=optimizer)\n"
OPTION = "    ent_coef: float = 0.01"
AGENT = "        self.value = layer_init(nn.Linear(64, 1), std=1.0)\n"
LAYERS = "layer_init(nn.Linear(64, 64)), nn.Tanh()"


def test_values_with_an_axis_too_many(check_script):
    page = check_script((FORWARD, FORWARD.replace("values", "values.unsqueeze(-1)")))
    assert "my_ppo.py:" in line_of(page, "ERROR  values have the shape [16, 1], and must have [16]")


def test_two_policies(check_script):
    page = check_script((FORWARD, FORWARD.replace("(obs)", "(obs + 1)")))
    assert "my_ppo.py:" in line_of(page, "ERROR  get_policy() and forward() differ by")


@pytest.mark.parametrize("layer", ["nn.BatchNorm1d(64)", "nn.Dropout(0.1)"])
def test_layers_that_depend_on_more_than_the_observation(layer, check_script):
    page = check_script((LAYERS, f"{LAYERS}, {layer}"))
    line = line_of(page, "ERROR  get_policy() and forward() differ by")
    assert layer[3:7] in line and "policy_trunk.4 (my_ppo.py:" in line


def test_a_rollout_that_stores_something_else(check_script):
    returns = '        batch["returns"] = returns\n'
    page = check_script((returns, f'{returns}        batch["logprobs"] += 0.01\n        batch["values"] += 0.1\n'))
    assert "ERROR  in the first minibatch, logprobs differ" in page
    assert "ERROR  in the first minibatch, values differ" in page


def test_a_layer_in_one_of_two_functions(check_script):
    norm = (AGENT, f"{AGENT}        self.norm = nn.LayerNorm(64)\n")
    used = ("self.value(self.value_trunk(obs.float()))", "self.value(self.norm(self.value_trunk(obs.float())))")
    assert check_script(norm, used, status=0)
    policy = (FORWARD, "        return Categorical(self.policy(self.norm(self.policy_trunk(obs.float())))), values\n")
    assert "ERROR  get_policy() and forward() differ" in check_script(norm, policy)


def test_what_an_update_leaves_out(check_script):
    """An option, a parameter without gradient, one that is not in the optimizer, and a frozen one."""
    agent = (
        f"{AGENT}        self.second = nn.Linear(64, 1)\n        self.frozen = nn.Linear(1, 1).requires_grad_(False)\n"
    )
    optimizer = ("if p.requires_grad", "if p.requires_grad and p.shape != (1, 64)")
    page = check_script((OPTION, f"    ent_final: float = 0.0\n{OPTION}"), (AGENT, agent), optimizer)
    assert "my_ppo.py:" in line_of(page, "ERROR  option --ent-final is never read")
    assert "my_ppo.py:" in line_of(page, "ERROR  second.weight, second.bias have no gradient")
    assert "my_ppo.py:" in line_of(page, "ERROR  value.weight have gradients and did not move")
    assert "my_ppo.py:" in line_of(page, "note   frozen: frozen.weight, frozen.bias")


def part(state, load="pass"):
    """An edit that adds a part of train(): its state, and what it loads."""
    lines = ["class Part:", "    level = 0.0", f"    def state_dict(self): return {state}"]
    lines += [f"    def load_state_dict(self, state): {load}", "part = Part()", "part.level += run.global_step"]
    text = "".join(f"    {line}\n" for line in lines)
    return START, text + START.replace("optimizer)", "optimizer, part=part)")


@pytest.mark.parametrize("state", ["{'level': np.float64(0)}", "{'level': [np.zeros(2)]}"])
def test_a_part_that_holds_numpy(state, check_script):
    page = check_script(part(state))
    assert "of numpy" in line_of(page, "ERROR  part part: state_dict()['level']")


def test_a_part_that_becomes_numpy(check_script):
    later = ("        run.log_update(scalars)", "        part.level = np.mean([1.0])\n        run.log_update(scalars)")
    page = check_script(part("{'level': self.level}"), later)
    assert "float64" in line_of(page, "ERROR  part part: state_dict()['level']")


def test_a_part_that_does_not_load(check_script):
    later = ("        run.log_update(scalars)", "        part.level = 0.25\n        run.log_update(scalars)")
    page = check_script(part("{'level': self.level}"), later)
    assert "0.25 before, 64.0 after" in line_of(page, "ERROR  part part: state_dict()['level']")
    assert "my_ppo.py:" in line_of(page, "ERROR  part part")


def test_an_optimizer_that_is_no_part(check_script):
    page = check_script((START, START.replace(", optimizer=optimizer", "")))
    assert "ERROR  the optimizer is not a part" in page


def test_an_option_that_a_resume_changes(check_script):
    """The coefficient falls from update to update, and no part holds it."""
    first = (START, f"{START}    ent_coef = args.ent_coef\n")
    falls = (
        "        annealed_args = dataclasses.replace(args, learning_rate",
        "        ent_coef *= 0.5\n        annealed_args = dataclasses.replace(args, ent_coef=ent_coef, learning_rate",
    )
    assert "ERROR  option ent_coef is 0.0025 in update 2, and 0.005 after a resume" in check_script(first, falls)


END_OF_UPDATE = "        run.log_update(scalars)\n"
VALUE_TRUNK = "        self.value_trunk = mlp(inputs)\n"


def learns_too(name):
    """The lines of train() that make an optimizer of a module, and those of a step at the end of each update."""
    made = f"    other_optimizer = torch.optim.SGD({name}.parameters(), lr=0.1)\n"
    step = f"        {name}(torch.ones(1, 4)).mean().backward()\n        other_optimizer.step()\n"
    return made, (END_OF_UPDATE, step + END_OF_UPDATE)


def test_what_learns_and_is_no_part(check_script):
    """A module and an optimizer of torch."""
    optimizer, step = learns_too("other")
    made = f"    other = nn.Linear(4, 4)\n{optimizer}"
    page = check_script((START, made + START), step, status=0)
    assert "training uses an object Linear that is in no part" in page
    assert "training uses an object SGD that is in no part" in page
    parts = START.replace("=optimizer", "=optimizer, other=other, other_optimizer=other_optimizer")
    assert "in no part" not in check_script((START, made + parts), step, status=0)


def test_an_optimizer_of_a_module_inside_the_agent(check_script):
    """The loss of PPO does not use the module, which moves all the same."""
    module = (VALUE_TRUNK, f"{VALUE_TRUNK}        self.other = nn.Linear(4, 4)\n")
    made, step = learns_too("agent.other")
    parts = START.replace("=optimizer", "=optimizer, other_optimizer=other_optimizer")
    check_script(module, (START, made + parts), step, status=0)
    assert "ERROR  other.weight, other.bias have no gradient" in check_script(module)


def test_statistics_that_the_rollout_updates(check_script):
    """The loss reads a buffer of the agent that each step of the rollout changes, as in the recipe rnd."""
    buffer = (VALUE_TRUNK, f"{VALUE_TRUNK}        self.register_buffer('total', torch.zeros(()))\n")
    reward = "                rewards[t] = reward\n"
    rollout = (reward, f"{reward}                agent.total += 10 * float(next_obs[0, 0])\n")
    loss = ("args.vf_coef * value_loss", "args.vf_coef * value_loss * agent.total")
    assert "update 2 begins with the same gradient step" in check_script(buffer, rollout, loss, status=0)


@pytest.mark.parametrize("line, warned", [("", True), ("nn.Conv2d(3, 32, 8)", False)])
def test_an_image_for_a_network_with_convolutions(line, warned, tmp_path, capsys):
    file = tmp_path / "my_ppo.py"
    file.write_text(line)
    image = gym.spaces.Box(0, 255, (3, 64, 64), np.uint8)
    check_spaces(SimpleNamespace(__file__=str(file)), image, Page())
    assert ("which the script makes a part of a vector" in capsys.readouterr().out) == warned


@pytest.mark.parametrize("line, warned", [("", True), ("nn.Conv2d(3, 32, 8)", False)])
def test_large_observations_for_a_network_with_convolutions(line, warned, tmp_path, capsys):
    file = tmp_path / "my_ppo.py"
    file.write_text(line)
    steps = environment.RandomSteps(Walk(), 1)
    steps.observations = [np.array([255.0])]
    environment.check_observations(SimpleNamespace(__file__=str(file)), steps, {}, Page())
    assert ("observations of up to 255" in capsys.readouterr().out) == warned


def test_environments_of_envpool_come_as_a_vector(capsys):
    assert environment.check_environment(ppo, ppo.Args(env_id="envpool/CartPole-v1"), Page())
    assert "skip   random steps: only a whole vector" in capsys.readouterr().out


def test_dropout_is_no_missing_part(check_script):
    page = check_script(
        ("self.value_trunk = mlp(inputs)", "self.value_trunk = nn.Sequential(mlp(inputs), nn.Dropout(0.1))")
    )
    assert "values differ from those of the rollout" in line_of(page, "ERROR  in the first minibatch")
    assert "update 2 begins with the same gradient step" in page


def test_a_default_that_a_resume_does_not_take(tmp_path, check_script):
    state = {"args": vars(ppo.Args(ent_coef=0.25)), "parts": {}}
    torch.save(state, tmp_path / "checkpoint_000000000064.pt")
    page = check_script(status=0, options=f"{TINY} --resume {tmp_path} --num-envs 2")
    assert "the checkpoint's 0.25 holds" in line_of(page, "note   --ent-coef is 0.01 in the script (my_ppo.py:")
    page = check_script(status=0, options=f"{TINY} --resume {tmp_path} --num-envs 2 --ent_coef 0.5")
    assert "holds" not in page


@pytest.mark.parametrize("low, high, warned", [([5, -1], [8, 1], True), ([-3, -1], [1, 2], False)])
def test_actions_that_cannot_be_0(low, high, warned, capsys):
    """The first policy draws from about 0; ppo_continuous_action.py has a hint, too."""
    env = Walk()
    env.action_space = gym.spaces.Box(np.float32(low), np.float32(high))
    environment.check_rewards(env, [1.0], Page())
    assert ("scale them to [-1, 1]" in capsys.readouterr().out) == warned


def test_a_term_of_the_loss_with_a_function_of_its_own(check_script):
    term = "def smooth_loss(agent, minibatch):\n    return 0.0 * agent(minibatch['obs'])[1].mean()\n\n\ndef ppo_loss("
    added = "args.vf_coef * value_loss + smooth_loss(agent, minibatch)"
    check_script(("def ppo_loss(", term), ("args.vf_coef * value_loss", added), status=0)


def test_an_agent_with_memory_learns_nothing_here(capsys):
    """The answers are those of an agent that sees one observation."""
    script = SimpleNamespace(make_env=None, Agent=SimpleNamespace(initial_state=None))
    learn.check_learning(script, ppo.Args(), None, Page())
    assert "skip   its agent has a memory" in capsys.readouterr().out


def test_a_random_action_is_one_that_the_mask_allows():
    one = gym.spaces.Discrete(5, seed=1)
    mask = {"action_mask": np.array([False, True, False, False, True])}
    assert {int(environment.sample_action(one, mask)) for _ in range(50)} == {1, 4}
    two = gym.spaces.MultiDiscrete([2, 3], seed=1)
    assert {tuple(environment.sample_action(two, mask).tolist()) for _ in range(50)} == {(1, 2)}


def test_vectors(check_script):
    """Another autoreset mode, and observations that each step changes in place."""
    edit = ("autoreset_mode=gym.vector.AutoresetMode.SAME_STEP", "autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP")
    text = (ROOT / "ppo.py").read_text()
    if edit[0] not in text:  # the mode has a name of its own
        edit = ("mode = gym.vector.AutoresetMode.SAME_STEP", "mode = gym.vector.AutoresetMode.NEXT_STEP")
    page = check_script(edit, ("SyncVectorEnv(makers,", "SyncVectorEnv(makers, copy=False,"))
    assert "my_ppo.py:" in line_of(page, "ERROR  make_envs() returns AutoresetMode.NEXT_STEP")
    assert "my_ppo.py:" in line_of(page, "ERROR  step() of make_envs() changes in place")


OWN_ENVIRONMENT = """
class Own(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, True, False, {}


gym.register("Own-v0", Own)
"""


@pytest.mark.slow
def test_an_environment_of_the_script_in_processes(check_script):
    """They import the script, as with `python my_ppo.py`, so its environment is registered there as well."""
    start = "\n\ndef make_env("
    options = f"{TINY} --async-envs --env-id Own-v0"
    page = check_script((start, f"\n\n{OWN_ENVIRONMENT}{start}"), options=options, status=0)
    assert "update 2 begins with the same" in page


def test_a_column_of_another_length(check_script):
    edit = (
        '            batch["values"] = values\n',
        '            batch["values"] = values\n            batch["x"] = values[1:]\n',
    )
    page = check_script(edit)
    assert "my_ppo.py:" in line_of(page, "ERROR  the run ended after 0 of 2 updates")


TWO_PARTS = """class TwoParts:
    def __init__(self, logits):
        self.parts = [Categorical(logits), Categorical(logits)]

    def sample(self, generator=None):
        return self.parts[0].sample(generator)

    def log_prob(self, actions):
        return sum(part.log_prob(actions) for part in self.parts)

    def entropy(self):
        return sum(part.entropy() for part in self.parts)


def layer_init("""


def test_a_policy_of_several_parts(check_script):
    edits = ("def layer_init(", TWO_PARTS), ("return Categorical(self.policy(", "return TwoParts(self.policy(")
    assert "ratio 1 ±" in check_script(*edits, status=0)


def test_a_policy_that_inherits_its_log_probabilities(check_script):
    """What acted is what its own sample() returns."""
    mirrored = "class Mirrored(Categorical):\n    def sample(self, generator=None):\n"
    mirrored += "        return 1 - super().sample(generator)\n\n\ndef layer_init("
    edits = ("def layer_init(", mirrored), ("return Categorical(self.policy(", "return Mirrored(self.policy(")
    assert "ratio 1 ±" in check_script(*edits, status=0)


def test_a_clip_of_the_larger_surrogate(check_script):
    page = check_script(("max(-surrogate, -clipped_surrogate)", "min(-surrogate, -clipped_surrogate)"))
    assert "move on from the old one, and not back: the loss must take the smaller" in line_of(page, "ERROR")


def test_a_loss_that_goes_down_the_advantages(check_script):
    page = check_script(("max(-surrogate, -clipped_surrogate)", "max(surrogate, clipped_surrogate)"))
    assert "ERROR  the loss makes actions of higher advantages less likely (correlation -1.00)" in page


TERMS = {
    "ent_coef": ("- args.ent_coef * entropy", "+ args.ent_coef * entropy", "the loss grows with the entropy"),
    "vf_coef": ("+ args.vf_coef * value_loss", "- args.vf_coef * value_loss", "the loss falls with the value loss"),
}


@pytest.mark.parametrize("name", TERMS)
def test_a_term_with_the_wrong_sign(name, check_script):
    old, new, text = TERMS[name]
    assert f"ERROR  {text}" in check_script((old, new))


def test_a_gradient_that_is_not_clipped(check_script):
    """By Adam of the script, and by an optimizer of torch."""
    page = check_script(("gradient * scale", "gradient"), status=0)
    assert "--max-grad-norm 0.5 does not clip it" in line_of(page, "warn   the optimizer gets a gradient of norm")
    step = """    for parameter, part in zip(agent.parameters(), gradients, strict=True):
        parameter.grad = part * scale
    optimizer.step()
"""
    torch_adam = [
        ("    optimizer = Adam(agent)\n", "    optimizer = torch.optim.Adam(agent.parameters(), args.learning_rate)\n"),
        ("(loss, optimizer.parameters, ", "(loss, list(agent.parameters()), "),
        ("    adam_step(optimizer, gradient * scale, args.learning_rate)\n", step),
    ]
    assert "warn   the optimizer gets a gradient" not in check_script(*torch_adam, status=0)
    page = check_script(*torch_adam, ("part * scale", "part"), status=0)
    assert "warn   the optimizer gets a gradient" in page


def test_a_script_without_the_option_that_clips(check_script):
    option = ("    max_grad_norm: float = 0.5  # maximum norm of the gradient\n", "")
    check_of_options = ("args.clip_coef < 0 or args.max_grad_norm <= 0", "args.clip_coef < 0")
    page = check_script(option, check_of_options, ("args.max_grad_norm", "1e9"), status=0)
    assert "clipped in 0 of 4" in page and "0 warnings" in page


def test_a_mask_of_another_step():
    """The probability of the action that was taken is 0."""
    page = Page()
    minibatch = {"logprobs": torch.tensor([-0.5, -1e8])}
    run = SimpleNamespace(policies=None, first_steps=[SimpleNamespace(minibatch=minibatch)])
    check_first_minibatch(run, None, None, page)
    assert page.counts["ERROR"] == 1


def test_a_memory_that_begins_anew_in_the_update(check_script):
    """In update 1 it is 0 in the rollout, too."""
    state = 'minibatch["state"] = tuple(s[:, chosen] for s in initial_state)'
    edit = (state, 'minibatch["state"] = tuple(0 * s[:, chosen] for s in initial_state)')
    options = "--num-envs 2 --num-steps 16 --num-minibatches 2 --update-epochs 1"
    page = check_script(edit, script="ppo_atari_lstm.py", options=options)
    assert "does the minibatch begin with the state of the rollout?" in line_of(
        page, "ERROR  in update 2, values differ"
    )


def test_a_memory_that_goes_on_into_the_next_episode(check_script):
    edit = ("state = tuple(s * ~done[0, :, None] for s in state)", "pass")
    options = "--num-envs 2 --num-steps 16 --num-minibatches 2 --update-epochs 1"
    page = check_script(edit, script="ppo_atari_lstm.py", options=options)
    assert "ERROR  the memory of an episode changes the values of the next one" in page


SECOND_LOSS = """
def bonus_loss(agent, minibatch, args):
    _, values = agent(minibatch["obs"])
    loss = (values**2).mean()
    return loss, {"bonus": loss.detach()}


def gradient_step("""


def test_a_second_loss_with_scalars(check_script):
    page = check_script(
        ("def gradient_step(", SECOND_LOSS.lstrip("\n")),
        (
            "    loss, stats = ppo_loss(agent, minibatch, args)\n",
            "    loss, stats = ppo_loss(agent, minibatch, args)\n"
            "    bonus, more = bonus_loss(agent, minibatch, args)\n    loss = loss + 0.01 * bonus\n    stats |= more\n",
        ),
        status=0,
    )
    assert "(correlation 1.00); at ratios" in page


def test_a_policy_that_does_not_learn_yet(check_script):
    page = check_script(("    loss = policy_loss - args", "    loss = 0 * policy_loss - args"), status=0)
    assert "warn   the loss of the first minibatch has no gradient for the policy" in page


def test_a_script_that_is_compiled_without_its_option(check_script):
    """It is looked at as it stands, without the minutes of a compiler."""
    page = check_script(("    take_step = gradient_step\n", "    take_step = torch.compile(gradient_step)\n"), status=0)
    assert "0 warnings" in page and "update 2 begins with the same" in page


class Masked(Walk):
    """It takes valid actions alone."""

    action_space = gym.spaces.MultiDiscrete([3, 2])

    def mask(self):
        return {"action_mask": np.array([self.place % 2 == 0, self.place % 2 == 1, False, True, True])}

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        return obs, self.mask()

    def step(self, action):
        assert action[0] == self.place % 2
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, self.mask()


def test_an_environment_that_ends_with_an_invalid_action(check_script):
    gym.register("Masked-v0", Masked)
    try:
        page = check_script(script="ppo_multidiscrete_mask.py", options=f"{TINY} --env-id Masked-v0", status=0)
    finally:
        del gym.registry["Masked-v0"]
    assert "skip   gymnasium's check_env: it knows no masks" in page and "get_policy() = forward()" in page


def test_advantages_that_broadcast(check_script):
    lines = (ROOT / "ppo.py").read_text().splitlines(keepends=True)
    [check_of_shapes] = [line for line in lines if line.startswith("    assert ratio.shape == advantages.shape")]
    page = check_script((check_of_shapes, "    advantages = advantages.unsqueeze(-1)\n"), status=0)
    assert "warn   the loss does not follow the advantages" in page


def test_the_rollout_of_another_thread_keeps_its_values():
    """While check.py adds to the values of the loss, an actor of ppo_atari_cleanba.py may compute some, too."""
    policies = Policies(SimpleNamespace(is_in_step=lambda number: False, stats=[[]]))
    policies.added_to_values = torch.ones(2)

    def forward(agent):
        return None, torch.zeros(2)

    assert policies.forward(forward, None)[1].tolist() == [1, 1]
    with torch.no_grad():
        assert policies.forward(forward, None)[1].tolist() == [0, 0]


def test_a_loss_without_clip(check_script):
    page = check_script(("max(-surrogate, -clipped_surrogate)", "max(-surrogate, -surrogate)"), status=0)
    assert line_of(page, "ok     actions of higher advantages").endswith("(correlation 1.00)")


LEAKS = {
    "values": ("next_values * nonterminal - values", "next_values - values"),
    "advantages": ("gae_lambda * nonterminal[t] * advantage", "gae_lambda * advantage"),
}


@pytest.mark.parametrize("name", LEAKS)
def test_advantages_that_run_on_into_the_next_episode(name, check_script):
    page = check_script(LEAKS[name])
    assert "my_ppo.py:" in line_of(page, "ERROR  gae(): rewards and values after an episode's end change")


def test_dones_that_are_not_the_ends_of_episodes(check_script):
    """Without time limits, and of the step before."""
    dones = "                dones[t] = terminated | truncated\n"
    pendulum = dict(script="ppo_continuous_action.py", status=0)
    options = "--env-id Pendulum-v1 --num-envs 2 --num-steps 128 --update-epochs 1"
    page = check_script((dones, "                dones[t] = terminated\n"), options=options, **pendulum)
    assert "step 71 of environment 0 in update 2 is False, and an episode ended there" in line_of(page, "warn")
    page = check_script((dones, "                dones[t - 1] = terminated | truncated\n"), options=options, **pendulum)
    assert "step 70 of environment 0 in update 2 is True, and no episode ended (my_ppo.py:" in line_of(page, "warn")
    page = check_script(options=options, **pendulum)
    assert "ok     the dones of gae() are the ends of episodes: 2 in 2 updates" in page


WRONG_ADVANTAGES = {
    "gamma and lambda in each other's place": ("args.gamma, args.gae_lambda)", "args.gae_lambda, args.gamma)"),
    "values of the wrong step": ("np.append(values[1:], [next_value]", "np.append(values[:-1], [next_value]"),
}


@pytest.mark.parametrize("name", WRONG_ADVANTAGES)
def test_advantages_that_are_not_those_of_gae(name, check_script):
    page = check_script(WRONG_ADVANTAGES[name], status=0)
    assert "of GAE with --gamma 0.99 and --gae-lambda 0.95" in line_of(page, "warn   gae(): advantages are up to")


def test_returns_in_place_of_advantages(check_script):
    advantages = 'advantages = minibatch["returns"]'
    page = check_script((f'{advantages} - minibatch["values"]', advantages), status=0)
    assert "warn   the loss follows the returns" in page


def test_a_learning_rate_that_is_not_annealed(check_script):
    step = "take_step(agent, optimizer, minibatch, annealed_args)"
    constant = (step, step.replace("annealed_", ""))
    warning = "warn   the optimizer has the learning rate 0.00025 in both updates"
    assert warning in check_script(constant, status=0)
    assert warning not in check_script(constant, options=f"{TINY} --no-anneal-lr", status=0)


def test_an_optimizer_of_torch_whose_rate_is_not_annealed(check_script):
    gradient = (
        "    adam_step(optimizer, gradient * scale, args.learning_rate)\n",
        "    for parameter, part in zip(optimizer.parameters, gradients):\n        parameter.grad = part * scale\n"
        "    optimizer.of_torch.step()\n",
    )
    made = (
        "    take_step = gradient_step\n",
        "    optimizer.of_torch = torch.optim.Adam(agent.parameters(), 0.001)\n    take_step = gradient_step\n",
    )
    assert "warn   the optimizer has the learning rate 0.001 in both updates" in check_script(gradient, made)


def test_gradients_of_the_step_before(check_script):
    """zero_grad() is called once for each epoch, and then before each backward()."""
    text = (ROOT / "ppo.py").read_text()
    start = text.index("    # zeros for parameters that the loss does not use\n")
    of_script = text[start : text.index("    return stats\n", start)]
    of_torch = """    loss.backward()
    stats["grad_norm"] = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
    optimizer.param_groups[0]["lr"] = args.learning_rate
    optimizer.step()
"""
    made = ("optimizer = Adam(agent)", "optimizer = torch.optim.Adam(agent.parameters(), eps=1e-5)")
    options = f"{TINY} --update-epochs 2"
    once = (EPOCH, f"{EPOCH}            optimizer.zero_grad()\n")
    error = "ERROR  the second step uses the gradient of the first again"
    assert error in check_script(made, (of_script, of_torch), once, options=options)
    assert "0 warnings" in check_script(made, (of_script, f"    optimizer.zero_grad()\n{of_torch}"), status=0)


def test_the_second_of_two_optimizers(check_script):
    """One of them is annealed, and so is no reason to say nothing of the other."""
    step = (
        "    adam_step(optimizer, gradient * scale, args.learning_rate)\n",
        "    for parameter, part in zip(optimizer.parameters, gradients):\n        parameter.grad = part * scale\n"
        "    optimizer.of_policy.param_groups[0]['lr'] = args.learning_rate\n"
        "    optimizer.of_policy.step()\n    optimizer.of_value.step()\n",
    )
    of_policy = "[*agent.policy_trunk.parameters(), *agent.policy.parameters()]"
    of_value = "[*agent.value_trunk.parameters(), *agent.value.parameters()]"
    made = (
        "    take_step = gradient_step\n",
        f"    optimizer.of_policy = torch.optim.Adam({of_policy})\n"
        f"    optimizer.of_value = torch.optim.Adam({of_value}, 0.001)\n    take_step = gradient_step\n",
    )
    assert "warn   the optimizer has the learning rate 0.001 in both updates" in check_script(step, made)


def test_the_second_of_two_groups(check_script):
    step = (
        "    adam_step(optimizer, gradient * scale, args.learning_rate)\n",
        "    for parameter, part in zip(optimizer.parameters, gradients):\n        parameter.grad = part * scale\n"
        "    optimizer.of_torch.param_groups[0]['lr'] = args.learning_rate\n    optimizer.of_torch.step()\n",
    )
    groups = "[{'params': [agent.policy.weight]}, {'params': [agent.value.weight], 'lr': 0.002}]"
    made = (
        "    take_step = gradient_step\n",
        f"    optimizer.of_torch = torch.optim.Adam({groups})\n    take_step = gradient_step\n",
    )
    assert "warn   the optimizer has the learning rate 0.002 in both updates" in check_script(step, made)


LOGITS = "Categorical(self.policy(self.policy_trunk(obs.float())))"
VALUES = "self.value(self.value_trunk(obs.float())).squeeze(-1)"
RANGES = {
    "softmax": (LOGITS, f"{LOGITS[:-1]}.softmax(-1))", "warn   with 16 random weights, no observation has an entropy"),
    "tanh before logits": (LOGITS, f"{LOGITS[:-1]}.tanh())", "warn   .*, no observation has an entropy below 0.[56]"),
    "relu": (VALUES, f"{VALUES}.relu()", "warn   with 16 random weights, the agent has values from 0 to .* from -"),
    "tanh": (VALUES, f"{VALUES}.tanh()", "warn   with 16 random weights, the agent has values from -1 to 1, and"),
}


@pytest.mark.parametrize("name", RANGES)
def test_what_the_agent_cannot_return(name, check_script):
    *edit, text = RANGES[name]
    page = check_script(edit, options=f"{TINY} --env-id Acrobot-v1", status=0)
    assert re.search(text, page), page


def test_returns_of_changed_rewards(check_script):
    returned = "    return Episodes(env)"
    halved = "    return Episodes(gym.wrappers.TransformReward(env, lambda reward: reward / 2))"
    page = check_script((returned, halved), options=f"{TINY} --env-id Acrobot-v1", status=0)
    assert "note   the first return that is logged is -250, and the environment's -500" in page


def test_observations_of_another_step(check_script):
    """The batch gets the observation that follows the action."""
    reward = "                rewards[t] = reward\n"
    page = check_script((reward, f"{reward}                step['obs'] = torch.from_numpy(next_obs)\n"))
    assert "ERROR  the logprobs of the rollout differ from those of the policies that acted by" in page


def test_an_option_that_a_checkpoint_does_not_hold(check_script):
    page = check_script((OPTION, f"    data: Path = Path('data')\n{OPTION}"))
    assert "my_ppo.py:" in line_of(page, "ERROR  option --data is of the type PosixPath")


def test_what_a_library_in_cpp_prints(capfd):
    with quiet():
        os.write(1, b"banner")
        os.write(2, b"warning")
    print("seen")
    assert capfd.readouterr() == ("seen\n", "")


def test_functions_with_another_argument(check_script):
    page = check_script(
        ("def gradient_step(agent, optimizer", "def gradient_step(agent, weight, optimizer"),
        ("take_step(agent, optimizer", "take_step(agent, 1.0, optimizer"),
        ("    def entropy(self):", "    def entropy(self, weight):"),
        ("policy.entropy()", "policy.entropy(1.0)"),
        status=0,
    )
    assert "update 2 begins with the same" in page and "skip   entropy" in page


def test_an_option_with_several_values(check_script):
    """Those of a script of one agent are one option, and those of ppo_seeds.py one for each agent."""
    option = (OPTION, f"    sides: tuple[float, float] = (0.1, 0.3)\n{OPTION}")
    used = (START, f"{START}    low, high = args.sides\n")
    assert "update 2 begins with the same" in check_script(option, used, status=0)
    options = f"{TINY} --seeds 1 2 --learning-rate 1e-3 2e-3"
    assert "update 2 begins with the same" in check_script(script="ppo_seeds.py", options=options, status=0)


def test_an_optimizer_made_anew_in_each_update(check_script):
    loop = "    for update in run.updates():"
    page = check_script((loop, f"{loop}\n        optimizer = Adam(agent)"), status=0)
    assert "my_ppo.py:" in line_of(page, "warn   training uses an object Adam that is in no part")


WRONG_SIGNS = {
    "in the deltas": ("rewards + gamma * next_values", "rewards - gamma * next_values", "discounting"),
    "in the sum": ("deltas[t] + gamma * gae_lambda", "deltas[t] - gamma * gae_lambda", "one action"),
    "in the loss": ("max(-surrogate, -clipped_surrogate)", "max(surrogate, clipped_surrogate)", "one action"),
    "of the entropy bonus": ("- args.ent_coef * entropy", "+ args.ent_coef * entropy", "entropy bonus"),
}


@pytest.mark.parametrize("name", WRONG_SIGNS)
def test_a_wrong_sign(name, check_script, monkeypatch):
    old, new, probe = WRONG_SIGNS[name]
    monkeypatch.setattr(learn, "PROBES", [each for each in learn.PROBES if each.name == probe])
    page = check_script((old, new), with_learning=True)
    assert f"ERROR  {probe}: " in page


def test_probes_that_a_wrapper_changes(check_script, monkeypatch):
    """A wrapper that adds to the observations, and one that needs an attribute of the user's environment."""
    monkeypatch.setattr(learn, "PROBES", learn.PROBES[:1])
    timed = ("    return Episodes(env)", "    return Episodes(gym.wrappers.TimeAwareObservation(env))")
    page = check_script(timed, status=0, with_learning=True)
    assert "skip   its make_env() makes (2,) of an observation of one number" in page
    of_cart_pole = (
        "    return Episodes(env)",
        "    env.get_wrapper_attr('theta_threshold_radians')\n    return Episodes(env)",
    )
    page = check_script(of_cart_pole, status=0, with_learning=True)
    assert "skip   its make_env() does not take this environment: AttributeError" in page


def test_probes_for_scaled_rewards(check_script, monkeypatch):
    """The answers are those of rewards as they are, so the options of the recipe reward-shaper do nothing."""
    monkeypatch.setattr(learn, "PROBES", learn.PROBES[:1])
    option = ("    # update\n", "    reward_scale: float = 0.1\n    # update\n")
    scaled = ("rewards[t] = reward\n", "rewards[t] = reward * args.reward_scale\n")
    page = check_script(option, scaled, status=0, with_learning=True)
    assert "ok     constant value: value of 0 is 1.00" in page


RETURNS = "        returns = torch.from_numpy(advantages)"
CHUNKS = "            for rows in permutation.chunk(args.num_minibatches):\n"
PERMUTATION = "torch.randperm(run.batch_size, generator=generator, device=device)"
GAE = "gae(rewards, values_by_step, dones, next_value.cpu().numpy(), "
EPOCH = "        for _ in range(args.update_epochs):\n"
REMAINING = "        remaining = 1.0 - (update - 1) / run.num_updates"
RESET = "envs.reset(seed=seed)"
REWARD = "                rewards[t] = reward\n"
BETWEEN = {
    "normalized advantages in the returns": (
        (RETURNS, f"        advantages = advantages / 2\n{RETURNS}"),
        r"warn   the returns of 64 of 64 steps are not the advantages of gae\(\) plus",
    ),
    "returns in another order": (
        (RETURNS, RETURNS.replace("advantages", "advantages.T.copy()")), r"warn   the returns of \d+ of 64 steps",
    ),
    "values in another order": (
        ("values.view(rewards.shape)", "values.view(rewards.T.shape).T"), r"warn   values of gae\(\) differ by",
    ),
    "next value of the last step": (
        ("agent(torch.from_numpy(next_obs).to(device))", "agent(obs)"), r"warn   next_value of gae\(\) differ by",
    ),
    "rewards one step late": (
        (REWARD, "                rewards[t - 1] = reward * (t > 0)\n"),
        r"warn   .* gae\(\) are those of the step after",
    ),
    "no rewards at ends": (
        (REWARD, "                rewards[t] = reward * ~(terminated | truncated)\n"), "warn   .* 0 where episodes end",
    ),
    "rewards of integers": (
        ("args.num_envs), dtype=np.float32)", "args.num_envs), dtype=int)"),
        ("return Episodes(env)", "return gym.wrappers.TransformReward(Episodes(env), lambda reward: reward / 2)"),
        r"warn   the rewards of gae\(\) are integers",
    ),
    "a schedule over steps": (
        (REMAINING, REMAINING.replace("run.num_updates", "args.total_timesteps")),
        "warn   .* rate falls only from 0.00025",
    ),
    "a rate below 0": (
        (REMAINING, REMAINING.replace("(update - 1)", "3 * (update - 1)")), "ERROR  .* rate below 0: -0.000125",
    ),
    "a coefficient below 0": (
        ("clip_coef=clip_coef)", "clip_coef=clip_coef, ent_coef=0.02 - 0.015 * update)"),
        "ERROR  ent_coef is -0.01 in update 2",
    ),
    "steps that are left out": (
        (CHUNKS, f"            permutation = permutation[:-9]\n{CHUNKS}"), "warn   update 1 uses some steps . times",
    ),
    "no permutation": (
        (PERMUTATION, "torch.arange(run.batch_size, device=device)"),
        "warn   two minibatches of update 1 have the same steps",
    ),
    "logprobs of the epoch": (
        (EPOCH, f"{EPOCH}            with torch.no_grad():\n                batch['logprobs'] = agent.get_policy("
        "batch['obs']).log_prob(batch['actions'])\n"),
        "warn   logprobs of a step change by",
    ),
    "no seed": ((RESET, "envs.reset()"), "warn   train.. resets the environments without a seed"),
    "equal seeds": (
        (RESET, "envs.reset(seed=[seed] * args.num_envs)"), r"warn   environments have the same seed: \[1, 1\]",
    ),
    "resets in an update": (
        (EPOCH, f"        next_obs, _ = envs.reset()\n{EPOCH}"), "warn   train.. resets the environments in update 1",
    ),
    "numpy's generator": (
        (PERMUTATION, "torch.from_numpy(np.random.permutation(run.batch_size))"),
        "warn   training draws from np.random",
    ),
    "no sample": (("sample(generator)", "mode()"), "warn   no action of training is drawn by sample"),
    "bounds of the clip": (
        ("clamp(1 - args.clip_coef, 1 + args.clip_coef)", "clamp(1 + args.clip_coef, 1 - args.clip_coef)"),
        "warn   at ratio 1, where no clip acts, .* have no gradient",
    ),
    "values beside all returns": (
        ('(values - minibatch["returns"])', '(values - minibatch["returns"][:, None])'),
        ('(clipped_values - minibatch["returns"])', '(clipped_values - minibatch["returns"][:, None])'),
        "warn   the loss does not draw each value to its return",
    ),
    "a ratio to itself": (
        ('- minibatch["logprobs"]\n', '- policy.log_prob(minibatch["actions"]).detach()\n'),
        "warn   .* its ratio is always 1, so no clip acts",
    ),
    "no gradient of the entropy": (
        ("policy.entropy().mean()", "policy.entropy().mean().detach()"), "warn   the entropy bonus has no gradient",
    ),
    "a flat rollout": (
        (GAE, "gae(rewards.ravel(), values_by_step.ravel(), dones.ravel(), next_value.cpu().numpy()[0], "),
        r"warn   gae\(\) gets dones of the shape \[64\], and needs \[32, 2\]",
    ),
    "another action": (
        ("envs.step(action.cpu().numpy().copy())", "envs.step(1 - action.cpu().numpy())"),
        "warn   in (\\d+) of \\1 steps the environments got another action",
    ),
    "no tanh": (("nn.Tanh()", "nn.Identity()"), "warn   values are a linear function of observations"),
    "a tensor of the agent": (
        (AGENT, f"{AGENT}        self.scale = torch.ones(())\n"), "note   scale is neither trained nor saved",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BETWEEN)
def test_what_passes_between_the_parts_of_an_update(name, check_script):
    *edits, text = BETWEEN[name]
    options = f"{TINY} --num-steps 32 --update-epochs 2"
    page = check_script(*edits, options=options, status=int("ERROR" in text))
    assert re.search(text, page), page


def test_a_policy_of_torch(check_script):
    """Without an import of its name."""
    policy = "Categorical(self.policy(self.policy_trunk(obs.float())))"
    edits = (
        (policy, f"torch.distributions.{policy.replace('(self', '(logits=self', 1)}"),
        ("sample(generator)", "sample()"),
    )
    assert "0 errors, 0 warnings" in check_script(*edits, options=f"{TINY} --num-steps 64", status=0)


def test_minibatches_of_an_unedited_script(check_script):
    page = check_script(options=f"{TINY} --update-epochs 2", status=0)
    assert "ok     minibatches have the returns of their steps, each step 2 times" in page and "0 warnings" in page


def test_time_limits_that_are_bootstrapped_wrongly(check_script):
    options = "--env-id Pendulum-v1 --num-envs 2 --num-steps 256 --update-epochs 1 --bootstrap-truncated"
    added = "rewards[t, cut] += args.gamma * final_value"
    pendulum = dict(script="ppo_continuous_action.py", options=options, status=0)
    warning = "warn   --bootstrap-truncated: rewards where episodes are cut off differ by"
    assert warning in check_script((added, added.replace("args.gamma * ", "3 * ")), **pendulum)
    assert "warn   --bootstrap-truncated" not in check_script(**pendulum)
    scaled = 'infos["final_obs"][i] = self.scale(infos["final_obs"][i])'
    page = check_script((scaled, "pass"), **pendulum)
    assert "final_obs" in line_of(page, "warn   --bootstrap-truncated: the wrappers of the vector")


def test_statistics_that_no_resume_restores(check_script):
    pendulum = dict(script="ppo_continuous_action.py", options=f"{TINY} --env-id Pendulum-v1")
    message = "ERROR  statistics of Normalize are others after a resume"
    assert message in check_script(("optimizer=optimizer, envs=envs)", "optimizer=optimizer)"), **pendulum)
    page = check_script(('{"obs": self.obs_stats, "return": self.return_stats}', '{"obs": self.obs_stats}'), **pendulum)
    assert message in page


def test_a_log_probability_of_another_distribution(check_script):
    """At first the standard deviation is 1, so only other weights tell it."""
    pendulum = dict(script="ppo_continuous_action.py", options=f"{TINY} --env-id Pendulum-v1", status=0)
    edit = ("self.mean + self.std *", "self.mean + self.std**2 *")
    page = check_script(edit, **pendulum)
    assert "the policy's mean of -log_prob(sample()) is" in line_of(page, "warn")


def test_a_scheduler_that_is_no_part(check_script):
    schedule = f"{START}    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(agent.parameters(), 1.0), 1)\n"
    page = check_script((START, schedule), status=0)
    assert "my_ppo.py:" in line_of(page, "warn   training uses an object StepLR that is in no part of run.start()")


class Leaky(gym.Env):
    """A place that reset() forgets (`kind` "used"), or that all environments share ("shared")."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    place = np.zeros(1)

    def __init__(self, kind):
        if kind == "used":
            self.place = np.zeros(1)
        self.kind = kind

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        if self.kind == "shared":
            self.place[:] = self.np_random.uniform(-0.5, 0.5)
        return self.place.astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        self.place *= 0.9
        self.place += 0.1 * (2 * action - 1)
        return self.place.astype(np.float32), 1.0, self.steps == 20, False, {}


@pytest.mark.parametrize(
    ("kind", "text"), [("used", "of an environment that was used does not repeat"), ("shared", "steps of another")]
)
def test_environments_with_a_memory(kind, text, capsys):
    assert text in line_of(check_environment(lambda: Leaky(kind), capsys), "warn")


def test_nothing_to_check(tmp_path, capsys):
    path = tmp_path / "my_ppo.py"
    path.write_text("def train(:")
    assert check.check(path, []) == 2
    assert "SyntaxError" in capsys.readouterr().out
