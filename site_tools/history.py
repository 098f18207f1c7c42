"""Writes the tables of docs/history.md: scores of libraries, and the hyperparameters of all scripts.

python -m site_tools.history
"""

import ast
import re

from benchmark.experiments import experiments_of
from benchmark.report import table_head, table_row
from benchmark.results import RESULTS, ROOT, load
from benchmark.scores import mean_and_deviation, scores
from benchmark.scripts import SCRIPTS
from conformance import page

HISTORY = ROOT / "docs" / "history.md"
TASKS = "Breakout", "Pong", "BeamRider", "Hopper", "Walker2d", "HalfCheetah"
# What the post reports: library, source of the scores, the scores of TASKS, and the column of docs/conformance.md
LIBRARIES = [
    ("Baselines, pposgd (da99706)", "paper, v1", "274.8", "20.7", "1590", "~2250", "~3000", "~1750", None),
    ("Baselines, ppo2 (7bfbcf1, ea68f3b)", "docs, v2", "114", "13.7", "1299", "2316", "3425", "1669", None),
    (
        "Baselines, ppo2 (ea25b9e)", "the post, v2",
        "409 ± 31", "20.6 ± 0.4", "2628 ± 626", "2449 ± 596", "3142 ± 982", "2149 ± 1166", None,
    ),
    (
        "Stable-Baselines3", "docs, v3, 1 seed",
        "398 ± 33", "21.0 ± 0.1", "3397 ± 1662", "2410 ± 10", "3479 ± 822", "5819 ± 664", "SB3",
    ),
    ("CleanRL", "docs, v2, 2M, 2 seeds", "~402", "~20.4", "~2131", "~2685", "~3753", "~1683", "CleanRL"),
    ("RLlib", "repository, v2, 25M and 44M, 1 seed", "201", "", "4480", "", "", "9664", "RLlib"),
    ("Spinning Up", "docs, v3, 3M, 10 seeds", "", "", "", "~2500", "~2500", "~3000", "Spinning Up"),
    ("ChainerRL", "paper, v2, 2M, 10 seeds", "", "", "", "2719 ± 67", "2994 ± 113", "2404 ± 185", None),
    (
        "Tianshou", "paper, v3, 3M, 10 seeds; docs, 1 seed",
        "~400", "~20", "", "7337 ± 1508", "3128 ± 413", "4896 ± 704", "tianshou",
    ),
    ("Tonic", "paper, v3, 5M, 10 seeds", "", "", "", "~2000", "~4500", "~5000", None),
]  # fmt: skip
# Our experiments of TASKS
OURS = [
    ("ppo_atari", "BreakoutNoFrameskip-v4"),
    ("ppo_atari", "PongNoFrameskip-v4"),
    ("ppo_atari", "BeamRiderNoFrameskip-v4"),
    ("ppo_continuous_action", "Hopper-v4"),
    ("ppo_continuous_action", "Walker2d-v4"),
    ("ppo_continuous_action", "HalfCheetah-v4"),
]
# Options of a run and of its machine, which are no hyperparameters
RUN = {
    "seed", "exp_name", "runs_folder", "cuda", "tf32", "bf16", "threads", "compile", "track", "capture_video",
    "save_every", "resume", "env_id", "async_envs", "concurrency", "actor_device",
}  # fmt: skip


def short_marks(marks):
    """Marks of details as a text: "core 3, 4, 7; continuous 6"."""
    sets = {}
    for mark in marks:
        name, number = mark.split()
        sets.setdefault(name, []).append(int(number))
    return "; ".join(f"{name} {', '.join(map(str, sorted(numbers)))}" for name, numbers in sets.items())


def library_table(experiments):
    """The lines of the table of scores in Markdown, with ours, and what was measured to differ from ppo2."""
    lines = table_head(["implementation", "source", *TASKS, "[differs](conformance.md) in"])
    differing = page.differing()
    for *cells, column in LIBRARIES:
        marks = [mark for mark, names in differing.items() if column in names]
        lines.append(table_row([*cells, short_marks(marks)]))
    furthest = {}
    for experiment in experiments:  # of those of a pair the first came furthest
        furthest.setdefault((experiment.script, experiment.env_id), experiment)
    cells = ["this repository", "[results](results.md#all-scores), v4"]
    for pair in OURS:
        values = scores(furthest[pair].scored_runs)
        cells.append(f"{mean_and_deviation(values)} ({furthest[pair].steps_text}, {len(values)})")
    lines.append(table_row([*cells, ""]))
    return lines


def defaults(script):
    """{option: its default as the file of a script has it}."""
    source = script.read_text()
    [args] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Args"]
    source = ast.get_source_segment(source, args)  # the class alone, as each segment takes a pass over the source
    fields = [node for node in ast.parse(source).body[0].body if isinstance(node, ast.AnnAssign)]
    return {field.target.id: ast.get_source_segment(source, field.value) for field in fields}


def hyperparameter_table(scripts):
    """The lines of a table in Markdown: the default of each hyperparameter, {default: scripts} where they differ.

    scripts: files, of which the first has the defaults that the others are compared with."""
    tables = {script.stem: defaults(script) for script in scripts}
    names = list(dict.fromkeys(name for table in tables.values() for name in table if name not in RUN))
    lines = table_head(["option", f"`{scripts[0].name}`", "in other scripts"])
    for name in names:
        usual = tables[scripts[0].stem].get(name, "absent")
        others = {}
        for stem, table in tables.items():
            value = table.get(name, "absent")  # "None" is a default
            if value != usual:
                others.setdefault(value, []).append(stem)
        texts = [f"{value}: {', '.join(stems)}" for value, stems in others.items()]
        lines.append(table_row([f"`{name}`", usual, "<br>".join(texts)]))
    return lines


def with_tables(text, experiments, scripts):
    """The text of docs/history.md with new tables between its marks."""

    def section(match):
        begin, name, end = match.groups()
        lines = library_table(experiments) if name == "libraries" else hyperparameter_table(scripts)
        return "\n".join([begin, *lines, end])

    return re.sub(r"(?s)(<!-- (libraries|hyperparameters) -->).*?(<!-- /\w+ -->)", section, text)


def all_scripts():
    """The files of the scripts, ppo.py first."""
    names = sorted(SCRIPTS, key=lambda name: (name != "ppo", name))
    return [ROOT / f"{name}.py" for name in names]


def main():
    experiments = experiments_of(load(RESULTS))
    HISTORY.write_text(with_tables(HISTORY.read_text(), experiments, all_scripts()))


if __name__ == "__main__":
    main()
