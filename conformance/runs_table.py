"""The part of docs/conformance.md on whole runs, from the files in conformance/results/saving, which runs.py writes."""

import json

ROWS = {
    "repeat": "a repeat of a seed ends with the same bits",
    "resumed": "a run that is saved and resumed ends like one that was not stopped",
    "seeded": "so it does if both begin new episodes with the same seed at that place",
    "evaluation": "evaluation leaves the statistics of observations as they are",
}
COLUMNS = {"ours": "ours", "cleanrl": "CleanRL", "sb3": "SB3", "skrl": "skrl", "rsl_rl": "rsl_rl"}

HEAD = """
## Runs, saving and evaluation

Two updates with each library's own loop, on the CPU, with Pendulum-v1 (CleanRL: CartPole-v1). "yes" means the same
bits; a number is the largest difference of two weights, or of two means of observations. An empty cell was not
measured.
"""

TAIL = """
None of them saves the episodes that it plays and the state of its generators, so no resumed run ends with the same
bits. For `ppo.py`, the recipe [exact-resume](../recipes/with/exact-resume.diff) saves both. The third row shows whether
anything else is lost, as weights, Adam's means or statistics. Evaluation is by `enjoy.py`, by SB3's `evaluate_policy()`
on the `VecNormalize` of training, whose `training` is True unless it is set, by skrl's `trainer.eval()`, and by the
policy of rsl_rl's `get_inference_policy()`. The command that measures a column:

```
python -m conformance.runs sb3 --json conformance/results/saving/sb3.json
```
"""


def lines(folder):
    """The lines of the part; folder: conformance/results."""
    saved = {name: json.loads((folder / f"saving/{name}.json").read_text()) for name in COLUMNS}
    headings = [f"{heading} {saved[name]['version']}" for name, heading in COLUMNS.items() if name != "ours"]
    found = [HEAD.strip(), "", f"| | ours | {' | '.join(headings)} |", "|---|" + "---|" * len(COLUMNS)]
    for name, title in ROWS.items():
        cells = [about["rows"].get(name, "").removeprefix("no: ") for about in saved.values()]
        found.append(f"| {title} | {' | '.join(cells)} |")
    return [*found, "", TAIL.strip()]
