"""Experiments: the runs of one script on one environment with the same options, and those of ppo2 beside them."""

import json
import re
from typing import NamedTuple

from benchmark.results import option_text
from benchmark.scores import mean_and_deviation, number, scores, short_steps, with_count
from benchmark.scripts import SCRIPTS

# Which runs of ppo2 our scripts repeat
PAIRS = {
    "ppo": "ppo2_copy",
    "ppo_shared": "ppo2_shared",
    "ppo_continuous_action": "ppo2_mujoco",
    "ppo_atari": "ppo2_atari",
    "ppo_atari_lstm": "ppo2_lstm",
    "ppo_seeds": "ppo2_copy",
}
# Scripts whose runs with the defaults are also compared with stopped runs of ppo2, at equal steps of the same schedule
BESIDE = {"ppo_atari": "ppo2_atari", "ppo_atari_envpool": "ppo2_atari"}
# What ppo2 calls the games of EnvPool
GAMES = {"Breakout-v5": "BreakoutNoFrameskip-v4", "Pong-v5": "PongNoFrameskip-v4"}
# The environments that come first among those of a script
FIRST = {"CartPole-v1", "HalfCheetah-v4", "BreakoutNoFrameskip-v4", "Breakout-v5", "starpilot", "MicrortsMining-v1"}
# What the blog post on PPO's implementation details (Huang et al., 2022) reports of ppo2 (ea25b9e)
PUBLISHED = {
    "BreakoutNoFrameskip-v4": (409.265, 30.98),
    "PongNoFrameskip-v4": (20.59, 0.40),
    "BeamRiderNoFrameskip-v4": (2627.96, 625.751),
    "Hopper-v4": (2448.73, 596.13),
    "Walker2d-v4": (3142.24, 982.25),
    "HalfCheetah-v4": (2148.77, 1166.023),
}
# What collect.py writes of an option that a resume changed: "True, from step 5513216 False"
CHANGED = re.compile(r"(?P<first>[^,]+), from step (?P<step>\d+) (?P<next>[^,]+)")


def option_texts(options):
    """Options {name: value}, each as a text: "--num-envs 32".

    An option that a resume changed is "--bf16 until step 5513216"; the steps do not say what it was later."""
    texts = []
    for name, value in options.items():
        changed = CHANGED.match(value) if isinstance(value, str) else None
        if changed is None:
            texts.append(option_text(name, value))
            continue
        first = changed["first"]
        if first in ("True", "False"):
            first = first == "True"
        texts.append(f"{option_text(name, first)} until step {changed['step']}")
    return texts


class Experiment(NamedTuple):
    """Our runs of one script on one environment, and the runs of ppo2 of as many steps, which may be none.

    `beside` are runs of ppo2 with the same schedule, stopped ones too, for comparisons at equal steps."""

    script: str
    env_id: str
    options: dict
    ours: list
    ppo2: list
    beside: tuple = ()

    @property
    def name(self):
        """The script with its options, as on a command line but for those that a resume changed."""
        return " ".join([f"{self.script}.py", *self.words_without()])

    @property
    def has_options(self):
        """Whether the runs have options of their own, beside their length and a name."""
        return bool(self.words_without("total_timesteps", "exp_name"))

    def words_without(self, *hidden):
        """The options without those in `hidden`, as option_texts() has them."""
        return option_texts({name: value for name, value in self.options.items() if name not in hidden})

    @property
    def published(self):
        """(mean, standard deviation) of the score of ppo2 in the post, or None."""
        if self.script in ("ppo_atari", "ppo_continuous_action"):
            return PUBLISHED.get(self.env_id)
        return None

    @property
    def reference(self):
        """The scores of ppo2, "455 ± 105 (3); published: 409 ± 31"; empty without any."""
        texts = []
        if self.ppo2:
            values = scores(self.ppo2)
            texts.append(with_count(mean_and_deviation(values), values))
        if self.published:
            mean, deviation = self.published
            texts.append(f"published: {number(mean)} ± {number(deviation, mean)}")
        return "; ".join(texts)

    @property
    def most_steps(self):
        """The steps of the run that came furthest."""
        return max(run.about["steps"] for run in self.ours)

    @property
    def finished(self):
        """Whether some run made all the steps that it was started for."""
        return any(run.finished for run in self.ours)

    @property
    def steps_text(self):
        """The steps that the command asks for, "500k", or where no run is finished "300k of 500k"."""
        asked = self.options.get("total_timesteps")
        if not isinstance(asked, int):  # the script's default, or changed by a resume
            asked = max(run.about["steps_wanted"] for run in self.ours)
        if self.finished:
            return short_steps(asked)
        return f"{short_steps(self.most_steps)} of {short_steps(asked)}"

    @property
    def scored_runs(self):
        """The runs whose scores count: the finished ones; without any, those with the most steps."""
        finished = [run for run in self.ours if run.finished]
        return finished or [run for run in self.ours if run.about["steps"] == self.most_steps]


def experiments_of(runs_by_key):
    """The experiments in what results.load() returns, [Experiment, ...].

    The scripts are in the order of SCRIPTS, and others after them."""
    experiments = []
    for (side, script, env_id, options, wanted), runs in runs_by_key.items():
        if side != "ours":
            continue
        ppo2 = []
        if any(run.finished for run in runs):
            # "{}", as load() gives all runs of ppo2 no options
            ppo2 = runs_by_key.get(("ppo2", PAIRS.get(script), env_id, "{}", wanted), [])
            ppo2 = [run for run in ppo2 if run.finished]
        beside = ()
        if options == "{}":  # the defaults
            game = GAMES.get(env_id, env_id)
            beside = tuple(runs_by_key.get(("ppo2", BESIDE.get(script), game, "{}", wanted), []))
        experiments.append(Experiment(script, env_id, json.loads(options), runs, ppo2, beside))

    known = list(SCRIPTS)

    def place(experiment):
        return (
            known.index(experiment.script) if experiment.script in known else len(known),
            experiment.script,  # of those that SCRIPTS lacks
            experiment.env_id not in FIRST,
            experiment.env_id,
            -experiment.most_steps,  # the longest runs first
            len(experiment.options),  # then those with the fewest options
            str(experiment.options),
        )

    return sorted(experiments, key=place)


def left_out(runs_by_key, experiments):
    """A line for each run that is in no score, with the reason."""
    # The sets have the ids of runs, as runs hold arrays and cannot be compared.
    scored = set()
    compared = set()
    for experiment in experiments:
        scored.update(id(run) for run in [*experiment.scored_runs, *experiment.ppo2])
        if experiment.beside:
            compared.update(id(run) for run in [*experiment.ours, *experiment.beside])
    lines = []
    for (side, script, env_id, options, wanted), runs in runs_by_key.items():
        for run in runs:
            if id(run) in scored:
                continue
            name = " ".join([script, *option_texts(json.loads(options))])
            stopped = f"it was stopped at {run.about['steps']:,} of {wanted:,} steps"
            if id(run) in compared:
                why = f"{stopped}, and is compared at equal steps"
            elif run.finished:
                why = f"none of our runs has its {wanted:,} steps, so there is nothing to compare it with"
            elif side == "ppo2":
                why = f"{stopped}, and we compare with finished runs of ppo2 alone"
            else:
                why = f"{stopped}, and another run came further"
            lines.append(f"{name} on {env_id}, seed {run.about['seed']}: {why}")
    return lines
