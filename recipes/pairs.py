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
order.
"""
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
    "whose mean rpo perturbs, which these have not": "beta discrete-actor hybrid-action rpo",
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
            merge_scripts(source, texts[one], texts[other], script)
        except ValueError as error:
            found[one, other] = str(error)
    return found


def show():
    """Prints the pairs that do not fit and how many do, and writes pairs.md."""
    lines = [PAGE]
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
            not_with.setdefault(one, []).append(other)
            not_with.setdefault(other, []).append(one)
    fitting = sum(reason is None for reason in found.values())
    count = f"{fitting} of {len(found)} pairs fit ({fitting / len(found):.0%})."
    lines = [f"## {script}", "", count, "", "| recipe | does not fit |", "|---|---|"]
    for name, others in sorted(not_with.items()):
        links = ", ".join(f"[{other}](with/{other}.diff)" for other in sorted(others))
        lines.append(f"| [{name}](with/{name}.diff) | {links} |")
    return [*lines, ""]
