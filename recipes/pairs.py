"""Which recipes of recipes/with can be applied together."""

import itertools

from recipes.merge import merge_scripts, with_recipe
from recipes.recipe import ROOT, recipes

SCRIPTS = "ppo.py", "ppo_continuous_action.py"
FILE = ROOT / "recipes" / "pairs.md"
PAGE = """# Which recipes fit together

*For those who apply two recipes to one script.*

All pairs of recipes of `with/` that do not take each other's place ([the groups](pairs.py)) were put together by
`python -m recipes --pairs`, which prints the lines that both change. Those that are not named here fit, in either
order, and were trained for two updates.

Some texts fit, and training ends with an error, or one of the two recipes does not do what it says.
`python -m recipes.apply` prints the reason. They count as pairs that do not fit, and are in italics:

"""
# Recipes that take each other's place, so that no two of a group make sense together
ALTERNATIVES = {
    "the policy's objective": "ano average-policy bounded-ratio clip-higher drift dual-clip kl-penalty "
    "kl-penalty-continuous rollback spo truly-ppo truly-ppo-continuous",
    "what values are, or how their loss is clipped": "symlog-values two-hot value-clip value-normalization",
    "the entropy bonus": "entropy-critic entropy-reward entropy-schedule",
    "the optimizer": "a2c adam-relative equal-betas muon",
    "the learning rate": "kl-learning-rate schedule",
    "how minibatches are made of a rollout": "lstm lstm-continuous mask-lstm prioritized-segments",
    "masks": "mask mask-lstm",
    "the distribution of continuous actions": "beta clipped-action discrete-actor hybrid-action squashed-gaussian "
    "state-dependent-std state-dependent-std-detached",
    "whose mean rpo perturbs, which these have not": "beta discrete-actor hybrid-action rpo",
    "where observations come from": "codes device-tensors envpool envpool-continuous image-continuous",
}
# {reason: (recipes, others)}: each of the first with each of the others fits, and training ends with an error, or one
# of them does not do what it says
ERRORS = {
    "games of EnvPool take no options of a reset, and their state cannot be saved": (
        "envpool envpool-continuous",
        "curriculum exact-resume",
    ),
    "symmetries are those of a few tasks, with the observations that these have": (
        "symmetry symmetry-continuous",
        "codes envpool envpool-continuous hybrid-action mask mask-lstm privileged-critic time-left",
    ),
    "observations are codes alone": ("codes", "normalization time-left"),
    "the learning rate is a part of Adam's state, and these make an Adam of their own": (
        "kl-learning-rate",
        "critic-warm-up demonstrations ppg",
    ),
    "Muon's layers are found by their place in the script's network": (
        "muon",
        "critic-warm-up discrete-actor image-continuous layer-norm lstm-continuous",
    ),
    "Muon's rate falls by an option that schedule takes out": ("muon", "schedule"),
    "an agent with memory takes a state, which these do not hand on": (
        "lstm lstm-continuous mask-lstm",
        "demonstrations evaluation plasticity-log ppg recompute-advantages symmetry symmetry-continuous teacher",
    ),
    "the state of a memory is in no checkpoint, so a resume is not exact": ("exact-resume", "lstm mask-lstm"),
    "the value network has no trunk of its own": ("lstm-continuous", "critic-warm-up"),
    "the evaluation does not mask actions": ("evaluation", "mask mask-lstm"),
    "actions are of one kind": ("hybrid-action", "colored-noise image-continuous torchrun-continuous"),
    "the policy's network is another one": ("discrete-actor", "teacher two-hot"),
    "their distributions have no mean or no standard deviation to keep": (
        "beta discrete-actor hybrid-action",
        "kl-penalty-continuous truly-ppo-continuous",
    ),
    "an image has no place for the time that is left": ("image-continuous", "time-left"),
    "observations stay on the device": ("device-tensors", "demonstrations evaluation"),
    "environments of EnvPool have none of the wrappers of make_env()": (
        "envpool envpool-continuous",
        "staggered-resets time-left",
    ),
    "environments of EnvPool have no attributes to ask for": (
        "envpool envpool-continuous",
        "hybrid-action privileged-critic",
    ),
    "normalized observations have no exact mirror image": ("symmetry", "normalization"),
    "demonstrations have no mirror images in the statistics of observations": ("demonstrations", "symmetry-continuous"),
    "it also moves the policy, which is to stay as it is in the warm-up": ("shrink-perturb", "critic-warm-up"),
    "the policy does not move in the warm-up, so the coefficient of the penalty falls to its minimum": (
        "critic-warm-up",
        "kl-penalty kl-penalty-continuous",
    ),
    "each process computes these from its own part of the rollout, as if it were the whole": (
        "torchrun-continuous",
        "curriculum entropy-critic plasticity-log recompute-advantages staggered-resets value-normalization",
    ),
    "only the first process has a log": ("torchrun-continuous", "evaluation"),
    "a teacher without this distribution fits, and its actions are others than it was trained with": (
        "teacher",
        "squashed-gaussian",
    ),
    "each minibatch has the values of now, so the clip of their change never acts": (
        "prioritized-segments",
        "value-clip",
    ),
    "the evaluation counts games of two players": ("pettingzoo", "selfplay-evaluation"),
}


def are_alternatives(one, other):
    """Whether two recipes, by the names of their files, are in one group of ALTERNATIVES."""
    groups = [names.split() for names in ALTERNATIVES.values()]
    return any(one in names and other in names for names in groups)


def error(one, other):
    """Why two recipes do not work together although their texts fit, or None."""
    for reason, (names, others) in ERRORS.items():
        if (one in names.split() and other in others.split()) or (other in names.split() and one in others.split()):
            return reason
    return None


def conflicts(script):
    """For each pair of recipes for a script that make sense together: {(name, name): why they do not fit, or None}."""
    source = (ROOT / script).read_text()
    texts = {}
    for recipe in recipes():
        if recipe.name.startswith("with/") and ROOT / script in recipe.scripts:
            texts[recipe.file.stem] = with_recipe(source, recipe)
    found = {}
    for one, other in itertools.combinations(texts, 2):
        if are_alternatives(one, other):
            continue
        try:
            merge_scripts(source, texts[one], texts[other], script)
        except ValueError as collision:
            found[one, other] = str(collision)
        else:
            found[one, other] = error(one, other)
    return found


def link(name):
    return f"[{name}](with/{name}.diff)"


def errors():
    """The lines of pairs.md about ERRORS."""
    for reason, (names, others) in ERRORS.items():
        yield f"- {', '.join(names.split())} with {', '.join(others.split())}: {reason}"


def show():
    """Prints the pairs that do not fit and how many do, and writes pairs.md."""
    lines = [PAGE + "\n".join(errors()), ""]
    for script in SCRIPTS:
        found = conflicts(script)
        for (one, other), reason in found.items():
            if reason is not None:
                print(f"{script}: {one} and {other}: {' | '.join(line.strip() for line in reason.splitlines()[-3:])}")
        lines += section(script, found)
    FILE.write_text("\n".join(lines) + "\n")


def section(script, found):
    """The lines of pairs.md about a script: how many pairs fit, and for each recipe those that do not."""
    not_with = {}
    for (one, other), reason in found.items():
        if reason is not None:
            for name, peer in ((one, other), (other, one)):
                text = f"*{link(peer)}*" if reason in ERRORS else link(peer)
                not_with.setdefault(name, {})[peer] = text
    fitting = sum(reason is None for reason in found.values())
    count = f"{fitting} of {len(found)} pairs fit ({fitting / len(found):.0%})."
    lines = [f"## {script}", "", count, "", "| recipe | does not fit |", "|---|---|"]
    for name, peers in sorted(not_with.items()):
        links = ", ".join(text for _, text in sorted(peers.items()))
        lines.append(f"| {link(name)} | {links} |")
    return [*lines, ""]
