"""Which recipes of recipes/with can be applied together."""

import itertools

from recipes.merge import merge, repeated, with_recipe
from recipes.recipe import ROOT, recipes

SCRIPTS = "ppo.py", "ppo_continuous_action.py"
# Recipes that take each other's place, so that no two of a group make sense together
ALTERNATIVES = {
    "the policy's objective": "ano average-policy clip-higher drift dual-clip kl-penalty rollback spo",
    "what values are, or how their loss is clipped": "symlog-values two-hot value-clip value-normalization",
    "the entropy bonus": "entropy-reward entropy-schedule",
    "the optimizer": "a2c adam-relative equal-betas muon",
    "the learning rate": "kl-learning-rate schedule",
    "how minibatches are made of a rollout": "lstm lstm-continuous mask-lstm prioritized-segments",
    "masks": "mask mask-lstm",
    "the distribution of continuous actions": "beta clipped-action discrete-actor hybrid-action squashed-gaussian "
    "state-dependent-std state-dependent-std-detached",
    "where observations come from": "codes device-tensors envpool envpool-continuous image-continuous",
}


def are_alternatives(one, other):
    """Whether two recipes, by the names of their files, are in one group of ALTERNATIVES."""
    groups = [names.split() for names in ALTERNATIVES.values()]
    return any(one in names and other in names for names in groups)


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
        found[one, other] = None
        try:
            merged = merge(source, texts[one], texts[other], script)
            twice = repeated(merged) - repeated(source)
            if twice:
                found[one, other] = f"both define {', '.join(sorted(twice))}"
        except ValueError as error:
            found[one, other] = str(error)
    return found


def show():
    """Prints the pairs that do not fit, and how many do."""
    for script in SCRIPTS:
        found = conflicts(script)
        for (one, other), reason in found.items():
            if reason is not None:
                print(f"{script}: {one} and {other}: {' | '.join(line.strip() for line in reason.splitlines()[-3:])}")
        fitting = sum(reason is None for reason in found.values())
        print(f"{script}: {fitting} of {len(found)} pairs fit ({fitting / len(found):.0%}), alternatives aside")
