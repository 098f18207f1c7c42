"""The list of the scripts, which the report, the site and the tests share."""

from typing import NamedTuple


class Script(NamedTuple):
    """A script. A new one is one more entry of SCRIPTS, of tests/script_table.py and of the README's table."""

    parent: str | None  # the script that it was derived from
    extra: str | None  # the extra of pyproject.toml that its default environment needs
    env_id: str  # its default environment


# In the order of the report
SCRIPTS = {
    "ppo": Script(None, None, "CartPole-v1"),
    "ppo_shared": Script("ppo", None, "CartPole-v1"),
    "ppo_continuous_action": Script("ppo", "mujoco", "HalfCheetah-v5"),
    "ppo_atari": Script("ppo_shared", "atari", "BreakoutNoFrameskip-v4"),
    "ppo_atari_lstm": Script("ppo_atari", "atari", "BreakoutNoFrameskip-v4"),
    "ppo_atari_envpool": Script("ppo_atari", "envpool", "Breakout-v5"),
    "ppo_procgen": Script("ppo_shared", "procgen", "starpilot"),
    "ppo_multidiscrete": Script("ppo_shared", "microrts", "MicrortsMining-v1"),
    "ppo_multidiscrete_mask": Script("ppo_multidiscrete", "microrts", "MicrortsMining-v1"),
    "ppo_selfplay": Script("ppo", "selfplay", "SlimeVolley-v0"),
    "ppo_seeds": Script("ppo", None, "CartPole-v1"),
    "ppo_atari_multigpu": Script("ppo_atari_envpool", "envpool", "Breakout-v5"),
    "ppo_atari_cleanba": Script("ppo_atari_multigpu", "envpool", "Breakout-v5"),
    "impala_atari_cleanba": Script("ppo_atari_cleanba", "envpool", "Breakout-v5"),
}
