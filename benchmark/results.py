"""Reads and writes results: everything that was collected about runs, in three files for each script.

A folder of results has two folders: ours/ for the runs of our scripts, ppo2/ for those of openai/baselines. In them the
runs of a script, with any recipes, are in three files:

    ppo.json               a list with one line for each run: its number, script, options, seed, steps, versions, ...
    ppo.episodes.csv.xz    a row for each episode that ended
    ppo.updates.csv.xz     a row for each update

The runs in these files are a family, which is named by the file of the list. The first column of both tables is the
number of the run in the list. A cell is empty where the run lacks the column.
"""

import itertools
import json
import lzma
import os
import uuid
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmark" / "results"
WINDOW = 100  # episodes in a score
FIRST_FRESH_SEED = 101  # Settings are tuned with the seeds below this one, and reported with those from it on.
KINDS = {"episodes": 7, "updates": 4}  # the two tables, and the significant digits of their numbers
# Presets of lzma: QUICK is ten times as fast and makes files that are a third larger.
SMALL = 6
QUICK = 1


class Run(NamedTuple):
    """A run: what is known about it, and its tables as {column: float64 [rows]}."""

    about: dict
    episodes: dict
    updates: dict

    @property
    def score(self):
        """The mean return of the last 100 episodes."""
        return float(self.episodes["return"][-WINDOW:].mean())

    @property
    def finished(self):
        """Whether the run made all the steps that it was started for."""
        return self.about["steps"] == self.about["steps_wanted"]


def fresh(rows):
    """The rows of a table whose seeds no tuning has used."""
    return [row for row in rows if int(row["seed"]) >= FIRST_FRESH_SEED]


def option_words(name, value):
    """An option as words of a script's command line: ["--num-envs", "16"], ["--bf16"] or ["--no-anneal-lr"]."""
    name = name.replace("_", "-")
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def option_text(name, value):
    """An option as one text: "--num-envs 16", "--bf16" or "--no-anneal-lr"."""
    return " ".join(option_words(name, value))


def name_of(about, side="ours"):
    """The name that tells a run apart in the results, such as "CartPole-v1__ppo__1__gamma=0.9".

    side: "ours" or "ppo2". Runs of ours also differ by the options that are not the script's defaults. Each experiment
    of ppo2 has a name of its own."""
    words = [about["env_id"], about["script"], str(about["seed"])]
    if side == "ours":
        words += [f"{option}={value}" for option, value in about["options"].items()]
    if "repeat" in about:  # a further run of the same seed, which played other games
        words.append(f"repeat={about['repeat']}")
    return "__".join(words)


def family_of(results, about, side="ours"):
    """The family of a run, as the file of its list: "ours/ppo.json" for ppo.py with any recipes."""
    script = about["script"].partition("+")[0]
    return Path(results, side, f"{script}.json")


def table_file(family, kind):
    """The file of the table that belongs to a list of runs."""
    return family.with_name(f"{family.stem}.{kind}.csv.xz")


def read_list(family):
    """What is known about the runs of a family, [dict, ...]; an empty list where there is no file."""
    return json.loads(family.read_text()) if family.exists() else []


def find(results, about, side="ours"):
    """What the results know about a run: the entry of the list that has its name, or None."""
    for other in read_list(family_of(results, about, side)):
        if name_of(other, side) == name_of(about, side):
            return other
    return None


def read_table(path):
    """{number of a run: {column: float64 [rows]}} of a table; a run has the columns that are not empty."""
    tables = {}
    with lzma.open(path, "rt") as file:
        names = file.readline().strip().split(",")
        for number, lines in itertools.groupby(file, key=number_of):  # the rows of a run follow each other
            lines = list(lines)
            # a cell is empty only if the run lacks the column; a missing value is written "nan"
            first_row = lines[0].rstrip("\n").split(",")
            columns = [i for i, cell in enumerate(first_row) if i > 0 and cell]
            rows = np.loadtxt(lines, delimiter=",", usecols=columns, ndmin=2)
            tables[number] = dict(zip([names[i] for i in columns], rows.T, strict=True))
    return tables


def load(results):
    """{("ours" or "ppo2", script, environment, options as JSON, steps wanted): [Run, ...]} of every run, by seed."""
    runs = []
    for family in sorted(Path(results).glob("*/*.json")):
        side = family.parent.name
        # First the list, as add() writes it last: the tables have the rows of all of its runs, perhaps of more.
        abouts = read_list(family)
        tables = {kind: read_table(table_file(family, kind)) for kind in KINDS}
        for about in abouts:
            run = Run(about, tables["episodes"][about["number"]], tables["updates"][about["number"]])
            runs.append((name_of(about, side), side, run))
    experiments = defaultdict(list)
    for _, side, run in sorted(runs, key=lambda row: row[0]):
        options = run.about["options"] if side == "ours" else {}  # those of ppo2 have no defaults to differ from
        key = side, run.about["script"], run.about["env_id"], json.dumps(options), run.about["steps_wanted"]
        experiments[key].append(run)
    for group in experiments.values():
        group.sort(key=lambda run: run.about["seed"])
    return dict(experiments)


def load_finished(results):
    """As load(), without the runs that did not make all of their steps, which it names."""
    found = {}
    for key, runs in load(results).items():
        for run in runs:
            if run.finished:
                found.setdefault(key, []).append(run)
            else:
                _, script, env_id, options, _ = key
                made = f"{run.about['steps']:,} of {run.about['steps_wanted']:,} steps"
                print(f"left out: {script} on {env_id}, {options}, seed {run.about['seed']}: {made}")
    return found


def replace_file(path, data):
    """Writes a file so that it is never there in part, also where several processes do so at once."""
    new = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    new.write_bytes(data)
    os.replace(new, path)


def text_of(name, value, digits):
    """The text of a cell: a step as an integer, seconds with one decimal, other columns with `digits` digits."""
    if name == "step":
        return f"{value:.0f}"
    if name == "seconds":
        return f"{value:.1f}"
    return f"{value:.{digits}g}"


def lines_of(number, table, names, digits):
    """The lines of a run in a table with these columns; a cell is empty where the run lacks the column."""
    columns = {name: [text_of(name, value, digits) for value in values] for name, values in table.items()}
    count = len(table["step"])
    columns["run"] = [str(number)] * count
    empty = [""] * count
    return [",".join(cells) for cells in zip(*(columns.get(name, empty) for name in names), strict=True)]


def number_of(line):
    """The number of the run that a line of a table is about."""
    return int(line.partition(",")[0])


def write_table(path, tables, digits, preset):
    """Puts the tables of runs, {number: {column: [number, ...]}}, into a file.

    A table replaces the one with its number."""
    names = ["run"]
    lines = []
    if path.exists():
        head, *lines = lzma.decompress(path.read_bytes()).decode().splitlines()
        names = head.split(",")
    new_names = []
    for table in tables.values():
        new_names += [name for name in table if name not in names and name not in new_names]
    names += new_names
    kept = [line for line in lines if number_of(line) not in tables]
    lines = [line + "," * len(new_names) for line in kept]  # the old runs lack the new columns
    for number, table in tables.items():
        lines += lines_of(number, table, names, digits)
    lines.sort(key=number_of)
    text = "\n".join([",".join(names), *lines, ""])
    replace_file(path, lzma.compress(text.encode(), preset=preset))


def add(family, new, side="ours", preset=SMALL):
    """Adds runs, [Run, ...], to the three files of a family; a run replaces the one with the same name.

    Returns those that it left out, as the one with the same name has more steps. Several processes may add runs at
    once. The list is written last. If a process dies before that, the rows that it wrote belong to no run of the list;
    load() ignores them, and the next run with their number replaces them."""
    family.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(family.with_suffix(".lock")):
        known = {name_of(about, side): about for about in read_list(family)}
        free = max((about["number"] for about in known.values()), default=0) + 1
        runs = {}  # the new ones, by their numbers
        left_out = []
        for run in new:
            name = name_of(run.about, side)
            if name in known and known[name]["steps"] > run.about["steps"]:
                left_out.append(run)
                continue
            if name in known:
                number = known[name]["number"]
            else:
                number = free
                free += 1
            known[name] = run.about | {"number": number}
            runs[number] = run
        for kind, digits in KINDS.items():
            tables = {number: getattr(run, kind) for number, run in runs.items()}
            write_table(table_file(family, kind), tables, digits, preset)
        abouts = sorted(known.values(), key=lambda about: about["number"])
        lines = [json.dumps(about, sort_keys=True) for about in abouts]
        replace_file(family, ("[\n" + ",\n".join(lines) + "\n]\n").encode())
    return left_out
