"""conformance/: this project's scripts, ppo2's recordings, recipes by their names, wrong adapters, distinct answers."""

import csv
import dataclasses
import itertools
import json
import random
import re
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from script_table import ROOT

from conformance import __main__ as command
from conformance import adapter as template
from conformance import answers, atari, explanation, measure, normalization, page, reference, updates
from conformance import images as network
from conformance import recurrence as recurrent
from conformance.adapters import ours, ppo2, single_file
from conformance.problems import Refused, Settings, Step, Update, make_world, split_updates
from recipes import recipe as recipe_files

RECIPES = {recipe.file.stem: recipe for recipe in recipe_files.recipes() if recipe.file.parent.name == "without"}

# What a script does not share with ppo2's settings, or has in another form.
OTHER_NETWORK = "hidden layers: orthogonal weights, gain sqrt 2"
OTHER_IMAGES = "convolutions and a dense layer as in Mnih et al. (2015)"
PROCGEN = {OTHER_NETWORK, "by default the learning rate falls linearly to 0"}
SCRIPTS = {
    "ppo": set(), "ppo_shared": set(), "ppo_atari": set(), "ppo_atari_envpool": set(),
    "ppo_atari_lstm": {"the newest 4 frames are stacked"}, "ppo_atari_multigpu": set(), "ppo_atari_cleanba": set(),
    "impala_atari_cleanba": {OTHER_NETWORK, OTHER_IMAGES}, "ppo_continuous_action": set(), "ppo_multidiscrete": set(),
    "ppo_multidiscrete_mask": set(), "ppo_procgen": PROCGEN, "ppo_selfplay": set(),
}  # fmt: skip
ENVPOOL = "ppo_atari_envpool", "ppo_atari_multigpu", "ppo_atari_cleanba", "impala_atari_cleanba", "ppo_procgen"
# Why rows of a script are not measured: EnvPool's games, one frame, IMPALA, and threads that are an update ahead
NOT_MEASURED = "EnvPool plays the game", "an observation is one frame", "V-trace's", "its actors play the next rollout"

# The recipes that change numbers of an update, of a rollout's preparation, or the initial weights
CHANGES = [
    name for name in RECIPES
    if name.startswith(("core-", "continuous-", "multidiscrete-", "lstm-", "aux-4", "atari-8", "atari-9"))
    and name not in ("core-1", "core-1-episodes", "core-1-next-step", "core-12")  # the environments, and what is logged
]  # fmt: skip


def slow_except(cases, quick):
    """Parameters of a test, of which all but the quick ones are marked as slow."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def results(module):
    """{title: row} of an adapter's module; a title that two details share has the detail before it."""
    return {f"{row.detail}: {row.title}": row for row in measure.measure(module)}


def named(rows):
    """The details that are reported to differ."""
    return {row.detail for row in rows.values() if row.result in (explanation.NO, explanation.OTHER)}


def detail(recipe_name):
    """core-7-batch is about core 7."""
    group, number, *_ = recipe_name.split("-")
    return f"{group} {number}"


@pytest.mark.parametrize("name", slow_except(SCRIPTS, ["ppo", "ppo_continuous_action", "ppo_multidiscrete"]))
def test_a_script_has_all_details(name):
    if name in ENVPOOL:
        pytest.importorskip("envpool")
    rows = results(ours.load(ROOT / f"{name}.py"))
    for row in rows.values():
        if row.result == explanation.UNKNOWN:
            assert any(words in row.found for words in NOT_MEASURED), row
            continue
        expected = explanation.NO if row.title in SCRIPTS[name] else explanation.YES
        assert row.result == expected, row
    assert all(any(row.title == title for row in rows.values()) for title in SCRIPTS[name])
    assert sum(row.result != explanation.UNKNOWN for row in rows.values()) >= (6 if name.startswith("impala") else 20)


def test_the_recorded_ppo2_has_all_details():
    """What its recordings cannot tell is not measured; nothing differs."""
    rows = results(ppo2)
    assert not named(rows)
    assert sum(row.result == explanation.YES for row in rows.values()) >= 32


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """A function from recipes of one script to the adapter of the script that they make together."""
    folder = tmp_path_factory.mktemp("changed")

    def load(*recipes):
        source = recipes[0].script.read_text()
        for recipe in recipes:
            source = recipe_files.apply(recipe, source)
        file = folder / ("with_" + "_and_".join(recipe.file.stem.replace("-", "_") for recipe in recipes) + ".py")
        file.write_text(source)
        return ours.load(file)

    return load


QUICK = ["core-3", "core-9", "continuous-8", "multidiscrete-1", "lstm-3", "aux-4-naive"]


# The recipes that change two details
BOTH = {"continuous-6-each": {"continuous 6", "continuous 8"}}


@pytest.mark.parametrize("name", slow_except(CHANGES, QUICK))
def test_a_recipe_is_named_alone(name, make):
    recipe = RECIPES[name]
    rows = results(make(recipe))
    rows = {key: row for key, row in rows.items() if row.title not in SCRIPTS[recipe.script.stem]}
    assert named(rows) == BOTH.get(name, {detail(name)})


# Mistakes in a script: (its text, what stands there instead, the detail, words of the row)
RATIO = "ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)"
CHANGE = ".clamp(-args.clip_coef, args.clip_coef)"
NONTERMINAL = "nonterminal = 1.0 - dones"
UPDATE = (
    "    for update in run.updates():  # which also saves checkpoints between updates, and ends a run that is stopped"
)
NORMALIZED = "    advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)"
NEAR = "not where much is near the clip range of 0.2: nothing known reproduces it"
MISTAKES = {
    "ratio 0.19": (RATIO, "ratio.clamp(1 - 0.95 * args.clip_coef, 1 + 0.95 * args.clip_coef)", "core 8", NEAR),
    "ratio 0.08": (
        RATIO, "ratio.clamp(1 - 0.4 * args.clip_coef, 1 + 0.4 * args.clip_coef)", "core 8", "with a range of 0.0"
    ),
    "ratio 1 / 1.2": (RATIO, "ratio.clamp(1 / (1 + args.clip_coef), 1 + args.clip_coef)", "core 8", NEAR),
    "value 0.19": (CHANGE, ".clamp(-0.95 * args.clip_coef, 0.95 * args.clip_coef)", "core 9", NEAR),
    "value 0.05": (CHANGE, ".clamp(-0.25 * args.clip_coef, 0.25 * args.clip_coef)", "core 9", "with a range of 0.0"),
    "no minimum": (
        "torch.max(-surrogate, -clipped_surrogate).mean()", "-clipped_surrogate.mean()", "core 8", "without the minimum"
    ),
    "entropy's sign": ("loss - args.ent_coef * entropy", "loss + args.ent_coef * entropy", "core 10", "a penalty"),
    "the step before": (
        NONTERMINAL, "nonterminal = 1.0 - np.append(dones[:1] & False, dones[:-1], axis=0)", "core 5",
        "a sum is cut by the end of the step before",
    ),
    "the step after": (
        NONTERMINAL, "nonterminal = 1.0 - np.append(dones[1:], dones[-1:], axis=0)", "core 5",
        "a sum is cut by the end of the step after",
    ),
    "Adam anew": (UPDATE, f"{UPDATE}\n        optimizer = Adam(agent)\n", "core 3", "they begin anew"),
    "Adam's count anew": (UPDATE, f"{UPDATE}\n        optimizer.steps.zero_()\n", "core 3", "the count begins anew"),
    "a rate of its own": (
        "gradient * scale, args.learning_rate)",
        "gradient * scale, args.learning_rate * (1.0 if optimizer.steps < 20 else 0.5))", "core 4",
        "of two updates, the second has 0.5 times the rate, and its steps are 0.25 times as large",
    ),
    "not normalized later": (
        NORMALIZED, f"    if args.learning_rate > 0.015:\n    {NORMALIZED}", "core 7",
        "but in the second update not normalized",
    ),
    "not normalized if large": (
        NORMALIZED, f"    if len(advantages) < 64:\n    {NORMALIZED}", "core 7",
        "but in a minibatch of 120 not normalized",
    ),
    "half the entropy if large": (
        "loss - args.ent_coef * entropy", "loss - args.ent_coef * entropy * (1.0 if len(values) < 64 else 0.5)",
        "core 7 core 8 core 10", "but in a minibatch of 120 nothing known",
    ),
    "lambda later": (
        "args.gamma, args.gae_lambda)", "args.gamma, args.gae_lambda if update == 1 else 1.0)", "core 5",
        "not in the second update: step 1, advantages",
    ),
    "the same permutations": (
        UPDATE, f"{UPDATE}\n        generator.manual_seed(1)\n", "core 6",
        "but in the second update the permutations of the first",
    ),
    "a KL stop": ("target_kl: float | None = None", "target_kl: float | None = 0.1", "core 6", "1 epoch, and not 2"),
    "no entropy in the second epoch": (
        "minibatch, annealed_args)",
        "minibatch, dataclasses.replace(annealed_args, ent_coef=0.0 if _ else args.ent_coef))",
        "core 7 core 8 core 10", "nothing known reproduces it",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory):
    """A function from a script's name and a mistake to the adapter of an edited copy."""
    folder = tmp_path_factory.mktemp("mistaken")

    def make(script, old, new):
        text = (ROOT / f"{script}.py").read_text()
        assert text.count(old) == 1
        file = folder / f"mistaken_{len(list(folder.iterdir()))}.py"
        file.write_text(text.replace(old, new))
        return ours.load(file)

    return make


@pytest.mark.parametrize(
    "name", slow_except(MISTAKES, ["ratio 0.19", "the step before", "Adam anew", "not normalized if large"])
)
def test_a_mistake_is_named_alone(name, mistaken):
    old, new, mark, words = MISTAKES[name]
    rows = results(mistaken("ppo", old, new))
    assert " ".join(sorted(named(rows), key=measure.order)) == mark
    differing = [row for row in rows.values() if row.result in (explanation.NO, explanation.OTHER)]
    assert all(words in row.found for row in differing)


# An actor with a second head, whose loss changes nothing in the tables but counts in the norm of the gradient
SECOND_HEAD = {
    "        self.value = layer_init(nn.Linear(64, 1), std=1.0)\n": (
        "        self.value = layer_init(nn.Linear(64, 1), std=1.0)\n        self.second = nn.Linear(64, 3)\n"
    ),
    "    loss = policy_loss": (
        "    guess = agent.second(agent.policy_trunk(minibatch['obs'].float()))\n"
        "    loss = (guess - minibatch['obs'][:, :3].float()).square().mean() + policy_loss"
    ),
}


@pytest.mark.parametrize("script", slow_except(["ppo", "ppo_continuous_action"], ["ppo"]))
def test_a_second_head_changes_no_row(script, mistaken, tmp_path):
    text = (ROOT / f"{script}.py").read_text()
    for old, new in SECOND_HEAD.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    file = tmp_path / "two_heads.py"
    file.write_text(text)
    assert {row.result for row in results(ours.load(file)).values()} == {explanation.YES}


def test_a_recipe_that_changes_the_advantages_is_measured_elsewhere(tmp_path):
    """Random network distillation: another advantage, and two losses of other heads."""
    recipe = next(recipe for recipe in recipe_files.recipes() if recipe.file.stem == "rnd")
    file = tmp_path / "my_rnd.py"
    file.write_text(recipe_files.apply(recipe, recipe.script.read_text()))
    rows = results(ours.load(file))
    assert {row.result for row in rows.values()} == {explanation.YES, explanation.OTHER}
    other = {title for title, row in rows.items() if row.result == explanation.OTHER}
    policy_rows = [updates.LOSSES[name] for name in reference.POLICY if name in updates.LOSSES]
    assert other == {f"{mark}: {title}" for mark, title in policy_rows}
    assert all("so at least one of core 7, core 8, core 10 differs" in rows[title].found for title in other)


def test_an_edit_that_cannot_be_measured_is_named(mistaken):
    line = "        self.value = layer_init(nn.Linear(64, 1), std=1.0)"
    rows = results(mistaken("ppo", line, line.replace("self.value", "self.value_of")))
    reasons = {row.found for row in rows.values() if row.result == explanation.UNKNOWN}
    assert any(".py, line " in reason and "self.value(" in reason for reason in reasons)


def test_a_mistake_with_one_kind_of_actions_is_named(mistaken):
    """Of an implementation of two scripts, of which the second has it."""
    old, new, *_ = MISTAKES["ratio 0.19"]
    discrete = ours.load(ROOT / "ppo.py")
    continuous = mistaken("ppo_continuous_action", "policy.entropy().mean()", "policy.entropy().mean() * 0.9")

    def update(world, settings):
        return (continuous if world.kind == "continuous" else discrete).update(world, settings)

    both = SimpleNamespace(KINDS=("discrete", "continuous"), update=update)
    rows = {title: row for title, row in results(both).items() if row.result != explanation.UNKNOWN}
    assert "core 10" in named(rows)
    found = rows["core 10: entropy bonus"].found
    assert found.startswith("bonus, but with continuous actions nothing known reproduces it")


def test_a_wrong_game_is_one_line():
    """An environment that does not play, and one whose observations have another shape."""
    still = SimpleNamespace(
        reset=lambda: np.zeros((4, 84, 84)), step=lambda action: (np.zeros((4, 84, 84)), 0.0, False)
    )
    flat = SimpleNamespace(reset=lambda: np.zeros(128))
    for environment, words in ((still, "do not play 20 games"), (flat, "has the shape [128]")):
        rows = atari.measure_atari(answers.Adapter(SimpleNamespace(atari=lambda game, it=environment: it)))
        for row in rows:
            assert row.result == explanation.UNKNOWN and words in row.found and "\n" not in row.found


def test_a_game_without_the_action_is_one_line():
    """An environment that always goes right, whatever it is asked for."""

    class Right:
        def __init__(self, game):
            self.game = game

        def reset(self):
            self.game.restart()
            return np.zeros((4, 84, 84))

        def step(self, action):
            reward, is_over = self.game.step(2)
            if is_over:
                self.game.restart()
            return np.zeros((4, 84, 84)), reward, is_over

    for row in atari.measure_atari(answers.Adapter(SimpleNamespace(atari=Right))):
        assert row.result == explanation.UNKNOWN and "the game never got the action 3" in row.found


def fit_together(one, other):
    """Whether two recipes change the same script at different places."""
    if one.script != other.script or detail(one.file.stem) == detail(other.file.stem):
        return False
    try:
        return bool(recipe_files.apply(other, recipe_files.apply(one, one.script.read_text())))
    except ValueError:
        return False


def draw_pairs(count):
    """`count` pairs of recipes that fit together, drawn at random but always the same."""
    # Where actions are not normal, what a normal distribution has cannot be measured.
    in_pairs = "core-", "continuous-", "multidiscrete-"
    alone = {"continuous-1", *BOTH}
    names = [name for name in CHANGES if name.startswith(in_pairs) and name not in alone]
    pairs = list(itertools.combinations(names, 2))
    random.Random(0).shuffle(pairs)
    fitting = (pair for pair in pairs if fit_together(RECIPES[pair[0]], RECIPES[pair[1]]))
    return list(itertools.islice(fitting, count))


PAIRS = draw_pairs(20)


@pytest.mark.parametrize("pair", slow_except(PAIRS, PAIRS[:2]), ids="+".join)
def test_a_pair_of_recipes_is_named(pair, make):
    assert named(results(make(*(RECIPES[name] for name in pair)))) == {detail(name) for name in pair}


# The recipes that change an Atari game's preprocessing; atari 8 and 9 are the network
ATARI_CHANGES = [name for name in RECIPES if name.startswith("atari-") and name not in ("atari-8", "atari-9")]
ATARI_PAIRS = [
    pair for pair in itertools.combinations(ATARI_CHANGES, 2) if fit_together(RECIPES[pair[0]], RECIPES[pair[1]])
]


@pytest.mark.parametrize(
    "names",
    [*((name,) for name in ATARI_CHANGES), *slow_except(ATARI_PAIRS, ATARI_PAIRS[:1])],
    ids=lambda names: "+".join(names),
)
def test_recipes_for_games_are_named(names, make):
    """One of them, and two; what a scripted game shows of them takes a second."""
    adapter = answers.Adapter(make(*(RECIPES[name] for name in names)))
    rows = atari.measure_atari(adapter)
    found = {row.detail for row in rows if row.result in (explanation.NO, explanation.OTHER)}
    assert found == {detail(name) for name in names}


# Wrong adapters


def changed(**functions):
    """The template with other functions."""
    names = ["initial_weights", "advantages", "update", "updates", "schedules", "normalize"]
    names += ["environment_actions", "images", "recurrent_weights", "recurrence"]
    own = {name: getattr(template, name) for name in names}
    return SimpleNamespace(**own | {"KINDS": template.KINDS} | functions)


def test_the_template_has_all_details():
    rows = results(template)
    assert {row.result for row in rows.values()} == {explanation.YES}


@pytest.mark.parametrize("part", ["gradient", "after"])
def test_a_lie_in_one_number_is_caught(part):
    """In the gradient of one row, or in one weight after a step: nothing reproduces it, and it is found."""

    def update(world, settings):
        answer = template.update(world, settings)
        table = getattr(answer.steps[1], part)["value"]
        row = answer.steps[1].rows[3]
        table[row] += 0.01 * np.abs(answer.steps[1].gradient["value"]).max() + 1e-3
        return answer

    rows = results(changed(update=update))
    other = {title: row for title, row in rows.items() if row.result == explanation.OTHER}
    details = {row.detail for row in other.values()}
    assert details == ({"core 9", "core 10"} if part == "gradient" else {"core 3", "core 11"}) | (
        {"core 3", "core 11"} if part == "gradient" else set()
    )
    assert all("step 2" in row.found for row in other.values())


def test_a_lie_in_one_advantage_is_caught():
    def advantages(world, settings):
        answer = template.advantages(world, settings)
        answer["advantages"] = answer["advantages"].copy()
        answer["advantages"][4, 2] *= 1.01
        return answer

    rows = results(SimpleNamespace(KINDS=template.KINDS, advantages=advantages))
    assert {row.detail for row in rows.values() if row.result == explanation.OTHER} == {"core 5"}
    assert "advantages[4, 2]" in next(row.found for row in rows.values() if row.result == explanation.OTHER)


def test_a_lie_in_one_state_is_caught():
    """In a state of the rollout, and in one of the update: nothing reproduces it, and it is found."""
    for training in (False, True):

        def recurrence(world, settings, training=training):
            calls = template.recurrence(world, settings)
            last = [call for call in calls if call.training == training][-2]
            last.states[-1, 0] += 0.01
            return calls

        rows = recurrent.measure_states(answers.Adapter(SimpleNamespace(recurrence=recurrence)))
        other = [row for row in rows if row.result == explanation.OTHER]
        assert [row.detail for row in other] == ["lstm 2", "lstm 3", "lstm 5"]
        assert all(("update" if training else "rollout") in row.found for row in other)


def test_a_lie_in_one_pixel_is_caught():
    def images(images):
        answer = template.images(images)
        answer["input"] = answer["input"].copy()
        answer["input"][0, 0, 3, 4] += 0.01
        return answer

    rows = network.measure_images(answers.Adapter(SimpleNamespace(images=images)))
    assert [row.detail for row in rows if row.result == explanation.OTHER] == ["atari 9"]


def with_nan(world, settings):
    answer = template.update(world, settings)
    answer.steps[0].gradient["policy"][0, 0] = np.nan
    return answer


def too_short(world, settings):
    answer = template.update(world, settings)
    answer.steps[0].before["value"] = answer.steps[0].before["value"][:-1]
    return answer


def fails(*arguments):
    raise KeyError("no such\nmodel")


def refuses(*arguments):
    raise Refused("not this one")


@pytest.mark.parametrize(
    "update, words",
    [
        (with_nan, 'step 1, gradient: "policy" has NaN or inf'),
        (too_short, 'step 1, before: "value" has the shape [195], and not [196]'),
        (fails, "the adapter failed: KeyError: 'no such\\nmodel'"),
        (lambda world, settings: None, "the adapter does not answer it"),
        (lambda world, settings: {}, "update must return an Update, and not dict"),
        (lambda world, settings: Update(world.actions, []), "update took no step"),
        (lambda world, settings: Update(world.actions[:2], []), '"actions" has the shape [2, 4, 2]'),
        (
            lambda world, settings: Update(world.actions, [Step(np.array([-1]), {}, {})]),
            "rows must be whole numbers from 0 to 95",
        ),
        (
            lambda world, settings: Update(world.actions, [Step(np.array([0]), None, None)]),
            "step 1, before must be a dict, and not NoneType",
        ),
        (lambda world, settings: Update([[1], [1, 2]], []), '"actions" is not an array of numbers'),
        (refuses, "it refuses: not this one"),
    ],
)
def test_a_bad_update_is_one_line(update, words):
    rows = [row for row in measure.measure(changed(update=update)) if row.detail in ("core 8", "core 9", "core 11")]
    assert len(rows) == 4
    for row in rows:
        assert row.result == explanation.UNKNOWN and words in row.found and "\n" not in row.found


@pytest.mark.parametrize(
    "name, part, words",
    [
        ("advantages", np.zeros((23, 4)), '"advantages" has the shape [23, 4], and not [24, 4]'),
        ("returns", np.zeros((4, 24)), '"returns" has the shape [4, 24], and not [24, 4]'),
        ("returns", torch.zeros(24, 4, requires_grad=True), '"returns" is not an array of numbers'),
        ("old_log_probs", np.full((24, 4), np.nan), '"old_log_probs" has NaN or inf'),
        ("logged", {"approx_kl": [0.1, 0.2]}, 'its "approx_kl" a finite number'),
        ("logged", {"approx_kl": np.nan}, 'its "approx_kl" a finite number'),
        ("logged", [0.1], "logged must be a dict"),
    ],
)
def test_a_bad_part_of_an_update_is_one_line(name, part, words):
    world = make_world("continuous")
    answer = dataclasses.replace(template.update(world, Settings()), **{name: part})
    adapter = answers.Adapter(SimpleNamespace(update=lambda world, settings: answer))
    assert adapter.update(world, Settings()) is None and words in adapter.errors["update"]


def test_parts_of_an_update_may_be_left_out():
    world = make_world("continuous")
    answer = template.update(world, Settings())
    for parts in ({"advantages": None, "returns": None}, {"logged": {}}, {"logged": {"approx_kl": None}}):
        assert answers.check_update(dataclasses.replace(answer, **parts), world).steps


@pytest.mark.parametrize(
    "name, answer, words",
    [
        ("advantages", {"advantages": np.zeros((3, 3))}, '"advantages" has the shape [3, 3], and not [24, 4]'),
        ("advantages", {}, 'neither "advantages" nor "returns"'),
        (
            "initial_weights",
            {"policy": [(np.zeros((2, 2)), np.zeros(3))], "value": []},
            "has the shapes (2, 2) and (3,)",
        ),
        ("initial_weights", {"policy": []}, "not as the template says"),
        ("advantages", (np.zeros((24, 4)), np.zeros((24, 4))), "advantages must return a dict, and not tuple"),
        ("advantages", {"returns": [[1.0], [1.0, 2.0]]}, '"returns" is not an array of numbers'),
        ("schedules", {"learning_rate": [1.0]}, '"learning_rate" has the shape [1], and not [8]'),
        ("schedules", {"learning_rate": [0.0] * 8}, "learning_rate must begin above 0"),
        ("schedules", [1.0] * 8, "schedules must return a dict, and not list"),
        ("normalize", np.zeros(3), "normalize must return a dict, and not ndarray"),
        ("environment_actions", "clip", '"actions" is not an array of numbers'),
        (
            "images",
            {"input": np.zeros((2, 3)), "layers": [], "shared": True},
            "an input of 6 numbers, for 56448 pixels",
        ),
        ("images", {}, "images is not as the template says"),
        ("recurrent_weights", {"input": np.eye(2)}, "recurrent_weights is not as the template says"),
        ("recurrence", [], "0 updates after 0 rollouts, and not 2 after 2"),
        ("recurrence", [1, 2], "AttributeError"),
    ],
)
def test_another_bad_answer_is_one_line(name, answer, words):
    rows = measure.measure(SimpleNamespace(KINDS=template.KINDS, **{name: lambda *arguments: answer}))
    assert any(row.result == explanation.UNKNOWN and words in row.found for row in rows)


@pytest.mark.parametrize("name", ["advantages", "initial_weights", "schedules", "normalize", "images", "recurrence"])
def test_a_refusal_is_one_line(name):
    rows = measure.measure(SimpleNamespace(KINDS=template.KINDS, **{name: refuses}))
    assert any(row.result == explanation.UNKNOWN and "it refuses: not this one" in row.found for row in rows)


def with_weights(world, settings):
    answer = template.update(world, settings)
    answer.steps[0].weights = 3
    return answer


def with_problem(world, settings):
    return dataclasses.replace(template.update(world, settings), problem=3)


@pytest.mark.parametrize(
    "name, answer, words",
    [
        ("update", with_weights, "cannot unpack"),
        ("update", with_problem, "cannot unpack"),
        ("update", lambda world, settings: Update(world.actions, 5), "'int' object is not subscriptable"),
        ("advantages", lambda world, settings: {"advantages": world.rewards, "problem": 3}, "cannot unpack"),
        ("normalize", lambda stream: {"observations": stream.obs, "problem": 3}, "no attribute 'finals'"),
        ("REASONS", ["none"], "'list' object has no attribute 'get'"),
    ],
)
def test_an_answer_of_an_unforeseen_form_is_one_line(name, answer, words):
    """And the rows of the other answers are there."""
    rows = measure.measure(SimpleNamespace(**{"KINDS": template.KINDS, "schedules": template.schedules, name: answer}))
    lines = [row for row in rows if row.result == explanation.UNKNOWN and row.found.startswith("the answer cannot be")]
    assert lines and all(words in row.found and "\n" not in row.found for row in lines)
    assert name == "REASONS" or any(row.detail == "core 4" and row.result == explanation.YES for row in rows)


@pytest.mark.parametrize("kinds", ["continuous", (), None, ("discrete", "box"), 3])
def test_wrong_kinds_of_actions_are_one_line(kinds):
    with pytest.raises(answers.BadAnswer, match=r'KINDS must be a tuple such as \("continuous",\), not'):
        measure.measure(SimpleNamespace(KINDS=kinds))


def test_an_answer_needs_a_prediction_for_each_step():
    step = {"policy": np.ones((2, 2))}
    with pytest.raises(ValueError, match="shorter"):
        explanation.total_error([step, step], [step])


def test_a_difference_within_the_rounding_is_not_named():
    answer = {"change of the weights": np.array([1.0, 2.0])}
    prediction = {"change of the weights": np.array([1.1, 3.0])}
    rounding = {"change of the weights": np.array([0.2, 0.2])}
    assert "[1] is 2, and not 3" in explanation.first_difference([answer], [prediction], [rounding])


def test_a_missing_function_is_not_measured():
    module = changed()
    del module.advantages, module.schedules
    rows = results(module)
    missing = {row.detail for row in rows.values() if row.result == explanation.UNKNOWN}
    assert missing == {"core 5", "core 4", "aux 1"}


@pytest.mark.parametrize(
    "epochs, words",
    [
        ([[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]], "in order"),
        ([[0, 2, 4, 1, 3, 5], [0, 2, 4, 1, 3, 5]], "in order"),
        ([[3, 4, 5, 0, 1, 2], [1, 2, 3, 4, 5, 0]], "in order, from another step in each epoch"),
        ([[4, 1, 3, 5, 0, 2], [5, 0, 2, 4, 1, 3]], "in order, from another step in each epoch"),
        ([[4, 1, 3, 5, 0, 2], [5, 0, 2, 4, 3, 1]], "shuffled anew"),
        ([[5, 1, 3, 4, 0, 2], [5, 1, 3, 4, 0, 2]], "shuffled once"),
        ([[5, 1, 3, 4, 0, 2], [3, 1, 5, 2, 4, 0]], "the same minibatches in each epoch"),
        ([[5, 1, 3, 4, 0, 2], [5, 5, 3, 4, 0, 2]], "not every step once"),
    ],
)
def test_orders_are_told_apart(epochs, words):
    """Two epochs of two minibatches, of three steps of two environments."""
    steps = [Step(np.array(rows), {}, {}) for epoch in epochs for rows in (epoch[:3], epoch[3:])]
    assert updates.describe_order(2 * steps, (3, 2)) == words


def test_an_update_without_minibatches_is_named():
    step = Step(np.arange(6), {}, {})
    assert updates.describe_order([step, step], (3, 2)) == "the whole rollout in each step"


def test_no_adapter_repeats_a_number_as_a_schedule():
    """A list [number] * updates is what an adapter's author believes, and not what the library computed."""
    for file in (ROOT / "conformance/adapters").glob("*.py"):
        assert "] * updates" not in file.read_text(), file.name


# Combinations that could be taken for each other


def apart(answers):
    """The smallest distance between two of several answers, lists of dicts of arrays, as explanations measure it."""

    def flat(answer, function=lambda name, array: array):
        parts = [function(name, np.asarray(array)) for step in answer for name, array in step.items()]
        return np.concatenate([part.reshape(-1) for part in parts])

    numbers, smallest = np.stack([flat(answer) for answer in answers]), np.inf
    for i, answer in enumerate(answers):
        distances = (np.abs(numbers - numbers[i]) / flat(answer, explanation.error_scale)).max(axis=1)
        smallest = min(smallest, np.delete(distances, i).min())
    return smallest


def example(kind, settings):
    """An update with random minibatches, of a policy and a value function that move a little with each step."""
    world, rng, steps = make_world(kind), np.random.default_rng(3), []
    tables = {"policy": world.policy.astype(float), "value": world.value.astype(float)}
    if kind == "continuous":
        tables["logstd"] = world.logstd.astype(float)
    for _ in range(settings.update_epochs):
        for rows in np.split(rng.permutation(world.rewards.size), settings.num_minibatches):
            after = {name: array + rng.normal(size=array.shape) * 0.05 for name, array in tables.items()}
            steps.append(Step(rows, tables, after))
            tables = after
    return world, Update(world.actions, steps)


@pytest.mark.parametrize("kind", ["discrete", "multidiscrete", "continuous"])
def test_losses_are_told_apart(kind):
    world, answer = example(kind, updates.LOSS)
    batch = reference.Batch(world, updates.LOSS, answer)
    components, entropy = reference.POLICY["components"], reference.POLICY["entropy"]
    if kind == "discrete":  # of one component, the sum is the mean
        components, entropy = components[:-1], entropy[:-1]
    policy_choices = reference.choices(reference.POLICY, components=components, entropy=entropy)
    for choices, gradient in (
        (policy_choices, reference.policy_gradient),
        (reference.choices(reference.VALUE), reference.value_gradient),
    ):
        answers = [[gradient(batch, step, choice) for step in answer.steps] for choice in choices]
        assert apart(answers) > explanation.APART * explanation.TOLERANCE


def test_steps_that_only_the_normalization_counts_are_found():
    """RLlib's: an answer that names such steps is explained with them, and not by the rollout alone."""
    world, answer = example("discrete", updates.LOSS)
    answer.added = np.array([3.0, -2.0, 4.0])
    choice = reference.choices(reference.POLICY, scope=(reference.WITH_ADDED,))[0]
    batch = reference.Batch(world, updates.LOSS, answer)
    value = reference.choices(reference.VALUE)[0]
    for step in answer.steps:
        step.gradient = reference.policy_gradient(batch, step, choice) | reference.value_gradient(batch, step, value)
    losses = updates.explain_losses(world, updates.LOSS, answer)
    row = next(
        row for row in updates.loss_rows(*losses) if row.title == "advantages are normalized within the minibatch"
    )
    assert (row.result, row.found, row.nearest) == (explanation.NO, updates.SCOPES[reference.WITH_ADDED], "rollout")


def test_steps_are_told_apart():
    """The change of the weights alone tells how a gradient was clipped and what Adam made of it."""
    world, answer = example("discrete", updates.STEP)
    batch = reference.Batch(world, updates.STEP, answer)
    policy, value = reference.choices(reference.POLICY)[0], reference.choices(reference.VALUE)[0]
    raw = [
        reference.policy_gradient(batch, step, policy) | reference.value_gradient(batch, step, value)
        for step in answer.steps
    ]
    answers = []
    for choice in reference.choices(reference.CLIP | reference.ADAM):
        clipped = [reference.clip_gradient(each, updates.STEP.max_grad_norm, choice) for each in raw]
        befores = [step.before for step in answer.steps]
        changes, _ = reference.adam_changes(clipped, befores, updates.STEP.learning_rate, choice)
        answers.append([{"change": updates.join(change)} for change in changes])
    assert apart(answers) > explanation.APART * explanation.TOLERANCE


def test_advantages_are_told_apart():
    for kind in ("discrete", "continuous"):
        world = make_world(kind, truncations=True)
        choices = reference.choices(reference.ADVANTAGES)
        answers = [[reference.advantages(world, updates.LOSS, choice)] for choice in choices]
        assert apart(answers) > explanation.APART * explanation.TOLERANCE


def test_normalizations_are_told_apart():
    stream = normalization.make_stream()
    for known in (normalization.known_observations(stream), normalization.known_rewards(stream)):
        for limit in (10.0, np.inf):
            answers = [[{"numbers": np.clip(array, -limit, limit)}] for array in known.values()]
            assert apart(answers) > explanation.APART * explanation.TOLERANCE


def test_several_updates_are_divided():
    steps = [Step(np.array([number]), {}, {}) for number in range(6)]
    first, last = split_updates([[[1]], [[2]]], steps, returns=np.ones((1, 1)))
    assert [step.rows.item() for step in first.steps] == [0, 1, 2] and first.returns is None
    assert [step.rows.item() for step in last.steps] == [3, 4, 5] and last.returns == 1
    assert first.actions == 1 and last.actions == 2


def test_masks_are_told_apart():
    for kind in ("discrete", "multidiscrete"):
        _, answer = example(kind, updates.LOSS)
        batch = reference.Batch(make_world(kind, masks=True), updates.LOSS, answer)
        rest = {name: values[:1] for name, values in reference.POLICY.items()}
        choices = reference.choices(rest | reference.MASKS)
        predictions = [[reference.policy_gradient(batch, step, choice) for step in answer.steps] for choice in choices]
        assert apart(predictions) > explanation.APART * explanation.TOLERANCE


@pytest.mark.parametrize("sequences", ["whole", "cut"])
def test_states_are_told_apart(sequences):
    world = make_world("discrete")
    M, N = world.rewards.shape
    if sequences == "whole":
        minibatches = [{(t, n): 0.0 for t in range(M) for n in some} for some in ((0, 2), (1, 3))]
    else:
        places = [(t, n) for n in range(N) for t in range(M)]
        minibatches = [dict.fromkeys(places[5:29], 0.0), dict.fromkeys(places[29:] + places[:5], 0.0)]
    recording = SimpleNamespace(rollout=np.full((2 * M, N), 2.5), minibatches=minibatches)
    choices = reference.choices(recurrent.ALTERNATIVES)
    if sequences == "whole":  # where a rollout begins anew, its first state is the first state
        choices = [
            choice for choice in choices
            if (choice["rollouts"], choice["source"]) != ("begun anew", "recomputed from the first state")
        ]  # fmt: skip
    predictions = [recurrent.predict_states(world, recording, choice) for choice in choices]
    assert apart(predictions) > explanation.APART * explanation.TOLERANCE


# The reference itself


@pytest.mark.parametrize("kind", ["discrete", "multidiscrete", "continuous"])
def test_gradients_are_those_of_the_loss(kind):
    """Differences of the loss, written down once more, agree with the gradient of ppo2's combination."""
    world, answer = example(kind, Settings(num_minibatches=1, update_epochs=1))
    settings = Settings()
    batch, step = reference.Batch(world, settings, answer), answer.steps[0]
    first = {key: values[0] for key, values in (reference.POLICY | reference.VALUE).items()}
    rows = step.rows
    a = batch.advantages[rows]
    a = (a - a.mean()) / a.std()
    old = batch.old_log_probabilities(rows)

    def entropy(outputs, logstd):
        if kind == "continuous":
            return np.full(len(outputs), (logstd + np.log(2 * np.pi * np.e) / 2).sum())
        total = 0.0
        for part in reference.parts(world):
            p = reference.softmax(outputs[:, part])
            total = total - (p * np.log(p)).sum(-1)
        return total

    def loss(tables):
        outputs, values = tables["policy"][rows], tables["value"][rows]
        logstd = tables.get("logstd", world.logstd.astype(float))
        ratio = np.exp(reference.log_probabilities(world, outputs, logstd, batch.actions[rows]) - old)
        surrogate = np.minimum(a * ratio, a * ratio.clip(0.8, 1.2)).mean()
        clipped = batch.old_values[rows] + (values - batch.old_values[rows]).clip(-0.2, 0.2)
        errors = np.maximum((values - batch.returns[rows]) ** 2, (clipped - batch.returns[rows]) ** 2)
        return -surrogate - 0.5 * entropy(outputs, logstd).mean() + 0.5 * 0.5 * errors.mean()

    found = reference.policy_gradient(batch, step, first) | reference.value_gradient(batch, step, first)
    for name, array in step.before.items():
        for place in itertools.islice(np.ndindex(array.shape), 0, None, 3):
            difference = 0.0
            for sign in (1, -1):
                moved = array.copy()
                moved[place] += sign * 1e-6
                difference += sign * loss(step.before | {name: moved}) / 2e-6
            assert found[name][place] == pytest.approx(difference, abs=1e-7)


# The command and the page


def run(*words):
    command = [sys.executable, "-m", "conformance", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_command_prints_rows_and_writes_json(tmp_path):
    done = run("ppo2", "--json", tmp_path / "rows.json")
    assert done.returncode == 0 and "core 8" in done.stdout and "measured" in done.stdout
    saved = json.loads((tmp_path / "rows.json").read_text())
    assert saved["name"] == ppo2.NAME
    for row, found in zip(measure.measure(ppo2), saved["rows"], strict=True):
        assert [row.detail, row.title, row.result] == [found["detail"], found["title"], found["result"]]


@pytest.mark.parametrize(
    "text, words",
    [
        (None, "there is no file"),
        ("import no_such_module", "No module named 'no_such_module'; run this in a Python environment that has it"),
        ("import no_such_module\n\n\ndef train(args, run):\n    pass\n", "cannot be imported: ModuleNotFoundError"),
        ("raise ValueError('two\\nlines')", "cannot be imported: ValueError: two lines"),
        ("def ppo():\n    pass\n", "mine.py is no adapter: it has none of initial_weights, advantages, update,"),
        (
            'KINDS = "continuous"\n\n\ndef update(world, settings):\n    pass\n',
            "KINDS must be a tuple such as (\"continuous\",), not 'continuous'",
        ),
        (
            "OPTIONS_OF_AGENTS = ()\n\n\ndef train(args, run):\n    pass\n",
            "error: mine.py trains several agents at once; measure ppo.py, from which it comes",
        ),
    ],
)
def test_a_file_that_is_no_adapter_is_one_line(text, words, tmp_path):
    file = tmp_path / "mine.py"
    if text:
        file.write_text(text)
    done = run(file)
    assert done.returncode == 1 and words in done.stderr and done.stderr.count("\n") == 1


def test_the_csv_agrees_with_the_page():
    """Each cell of the table follows from the answers of its column in the committed CSV, and none is missing."""
    with page.CSV.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["implementation", "version", "date", "command", "row", "answer"]
    text = (ROOT / "docs/conformance.md").read_text()
    table = [line for line in text.split("| detail |", 2)[1].splitlines()[2:] if line.startswith("| ")]
    columns = page.load_all()
    checked = 0
    for line in table:
        title, *cells = [part.strip() for part in line.strip("|").split(" |")]
        title = re.sub(r"^\[(.+?)\]\(.+?\)", r"\1", title)
        for heading, written in zip(columns, cells, strict=True):
            files = [page.RESULTS / f"{name}.json" for name in page.COLUMNS[heading]]
            implementations = {json.loads(file.read_text())["name"] for file in files if file.is_file()}
            answers_of = [
                each["answer"] for each in lines if each["implementation"] in implementations and each["row"] == title
            ]
            answers_of = [answer for answer in answers_of if not answer.startswith(explanation.UNKNOWN)] or [""]
            result, _, found = answers_of[0].partition(": ")
            expected = page.cell({"result": result, "found": found}) if result else ""
            assert written == expected, (heading, title)
            checked += bool(expected)
    assert checked > 500
    shown = [each for each in lines if page.is_shown(each["row"].partition(": ")[2])]
    assert {each["row"] for each in shown} == {
        re.sub(r"^\[(.+?)\]\(.+?\)", r"\1", line.strip("|").split(" |")[0].strip()) for line in table
    }


def test_outliers_are_alone():
    """The table of docs/outliers.md: each library has the word in its column, and no other library has it."""
    text = (ROOT / "docs/outliers.md").read_text()
    columns = page.load_all()
    table = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    for library, row, word, _ in table:
        with_word = []
        for heading, column in columns.items():
            cells = {f"{mark}: {title}": page.cell(each) for (mark, title), each in column.rows.items()}
            if cells.get(row) == word:
                with_word.append(heading)
        assert with_word == [re.sub(r"\[(.+?)\]\(.+?\)", r"\1", name) for name in library.split(", ")], row
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(programs) == len(table) == text.count("\n## ")
    for program in programs:
        compile(program, "a program of docs/outliers.md", "exec")


def test_the_sentence_of_a_library_names_each_difference():
    column = page.Column("Mine", "1", {
        ("core 3", "Adam's epsilon is 1e-5"): {
            "detail": "core 3", "title": "Adam's epsilon is 1e-5", "result": "no", "found": "1e-8"
        },
        ("core 8", "the ratio is clipped"): {
            "detail": "core 8", "title": "the ratio is clipped", "result": "yes", "found": "clipped"
        },
        ("core 12", "a new row"): {"detail": "core 12", "title": "a new row", "result": "not measured", "found": ""},
    })  # fmt: skip
    assert page.sentence("mine", column) == "- **Mine**: as ppo2 in 1 of 2 rows, but for Adam's epsilon (1e-8)."
    del column.rows["core 3", "Adam's epsilon is 1e-5"]
    assert page.sentence("mine", column) == "- **Mine**: as ppo2 in all 1 rows."


def test_the_example_in_another_folder_is_measured(tmp_path):
    """A copy of it, by the path of the checkout alone."""
    for file in (ROOT / "conformance/example").glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    words = [sys.executable, ROOT / "conformance", "adapter.py", "--json", "rows.json"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    words = {f"{row['detail']}: {row['title']}": row["found"] for row in rows if row["result"] == explanation.NO}
    assert words["core 3: Adam's epsilon is 1e-5"] == "1e-8"
    assert words["core 9: the change of the value is clipped, the larger loss counts"] == "not clipped"
    assert words["core 7: by the population's standard deviation (N)"] == "N - 1"
    assert len(words) == 10 and not any(row["result"] == explanation.OTHER for row in rows)
    not_measured = {row["detail"] for row in rows if row["result"] == explanation.UNKNOWN}
    assert not_measured == {"core 4", "core 12", "aux 1"}


def test_a_folder_without_scripts_is_one_line(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 1 and "has none of ppo.py" in done.stderr and done.stderr.count("\n") == 1


def test_an_adapter_whose_library_is_missing_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)  # an import of it fails
    monkeypatch.delitem(sys.modules, "conformance.adapters.sb3", raising=False)
    with pytest.raises(SystemExit, match="the adapter sb3 cannot be imported: .*; run this in a Python environment"):
        command.load("sb3")


SCRIPT_IN_CLEANRLS_STYLE = """
import sys

import gymnasium as gym
import torch
from torch import nn


class Agent(nn.Module):
    pass


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arguments = sys.argv
"""


def test_a_script_in_cleanrls_style_trains_on_the_cpu(monkeypatch, tmp_path):
    """Also where there is a GPU, as the tables are in the CPU's memory."""
    (tmp_path / "ppo.py").write_text(SCRIPT_IN_CLEANRLS_STYLE)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the adapter adds to it, and to the modules
    words = list(sys.argv)
    with mock.patch.dict(sys.modules):
        namespace, *_ = single_file.Scripts(tmp_path).train(make_world(), Settings())
    assert namespace["device"] == "cpu" and "--num-envs=4" in namespace["arguments"]
    assert torch.cuda.is_available() and sys.argv == words


def test_an_unknown_name_lists_the_adapters():
    done = run("sb4")
    assert done.returncode == 1 and "there is no adapter sb4; there are" in done.stderr and "sb3" in done.stderr
