"""Writes docs/conformance.md and conformance/results.csv from the rows in conformance/results."""

import csv
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path

from conformance import runs_table, versions
from conformance.explanation import NO, OTHER, UNKNOWN, YES
from conformance.measure import order

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "conformance/results"
CSV = ROOT / "conformance/results.csv"

# The columns: what heads them, and the files that have their rows; of several, the first that has measured a row counts
COLUMNS = {
    "ours": (
        "ppo",
        "ppo_continuous_action",
        "ppo_multidiscrete",
        "ppo_multidiscrete_mask",
        "ppo_atari",
        "ppo_atari_lstm",
    ),
    "ppo2": ("ppo2",),
    "the post's": ("ppo-implementation-details",),
    "CleanRL": ("cleanrl",),
    "LeanRL": ("leanrl",),
    "SB3": ("sb3",),
    "masked": ("sb3_contrib",),
    "recurrent": ("sb3_recurrent",),
    "SBX": ("sbx",),
    "ikostrikov": ("a2c_ppo_acktr",),
    "tianshou": ("tianshou",),
    "skrl": ("skrl",),
    "rsl_rl": ("rsl_rl",),
    "rl_games": ("rl_games",),
    "RLlib": ("rllib",),
    "TorchRL": ("torchrl",),
    "Brax": ("brax",),
    "PureJaxRL": ("purejaxrl",),
    "Rejax": ("rejax",),
    "Stoix": ("stoix",),
    "Spinning Up": ("spinningup",),
    "verl": ("verl",),
    "TRL": ("trl",),
}

OURS = ", ".join(f"`{name}.py`" for name in COLUMNS["ours"])

# Short words for cells
SHORT = {
    "after it": "after",
    "bootstrapped from the final observation": "V(final)",
    "bootstrapped from V(s_T)": "V(s_T)",
    "bootstrapped from the next reset's observation": "V(reset)",
    "its step has no delta": "left out",
    "leaks over time limits": "leaks",
    "over the whole rollout": "rollout",
    "not normalized": "none",
    "not clipped": "none",
    "the clipped loss alone": "clipped alone",
    "vf_coef times 1": "x 1",
    "vf_coef times 1/4": "x 1/4",
    "vf_coef times 2": "x 2",
    "the last minibatch is smaller": "smaller last",
    "the last minibatch is larger": "larger last",
    "the rest is left out": "left out",
    "over the whole rollout, with a step behind each end": "rollout, more",
    "the last minibatch is filled up": "filled up",
    "the whole rollout in each step": "whole",
    "0.2 times the KL divergence": "0.2 KL",
    "squared, at most 10": "at most 10",
    "shuffled once": "once",
    "in order, from another step in each epoch": "rotated",
    "the same minibatches in each epoch": "same sets",
    "mean of ratio - 1 - log ratio": "k3",
    "mean of -log ratio": "k1",
    "mean square of the log ratio": "2 x k2",
    "exact, old to new": "exact",
    "exact, new to old": "exact, reverse",
    "torch's default, uniform to 1/sqrt(inputs)": "torch's",
    "LeCun's normal": "LeCun, normal",
    "LeCun's uniform": "LeCun, uniform",
    "it is an output of the network": "an output",
    "orthogonal, gain 1.41": "gain 1.41",
    "bonus, but with continuous actions bonus, averaged over the components": "averaged",
    "a parameter that starts at -0.5": "starts at -0.5",
    "discounted rewards": "rewards",
    "one network": "shared",
    "two networks": "separate",
    "the deviation itself is the parameter": "deviation",
    "clipped to [-1, 1], scaled to the bounds": "scaled",
    "over all, without the first observations": "not the first",
    "for each, with last observations": "each alone, final too",
    "by that of each environment, an end drops what came before it": "each alone, ends early",
    "by that of each environment": "each alone",
    "by the deviation of the return, an end drops what came before it": "ends early",
    "resized, then gray": "resized first",
    "the first frame, repeated": "repeated",
    "32 of 8 x 8 / 4, 64 of 4 x 4 / 2, 32 of 3 x 3 / 1, 512": "32 at last",
    "torch's default, uniform to 1/sqrt(units)": "torch's",
    "2 are trained": "two",
    "consecutive steps, cut anywhere": "cut anywhere",
}

# What the rows are about, for the sentence of a column; a row that is not here has its title
SUBJECTS = {
    "hidden layers: orthogonal weights, gain sqrt 2": "hidden weights",
    "policy head: orthogonal weights, gain 0.01": "weights of the policy's head",
    "value head: orthogonal weights, gain 1": "weights of the value's head",
    "biases are zero": "biases",
    "Adam's epsilon is 1e-5": "Adam's epsilon",
    "it is added before the bias correction": "place of Adam's epsilon",
    "by default the learning rate falls linearly to 0": "learning rate",
    "a time limit counts as an end": "bootstrap at a time limit",
    "no advantage reaches over a time limit": "advantages over a time limit",
    "an advantage is the discounted sum of the deltas": "form of an advantage",
    "each epoch shuffles anew and uses every step once": "order of the steps",
    "sizes that do not divide are refused": "sizes that do not divide",
    "advantages are normalized within the minibatch": "normalization of advantages",
    "by the population's standard deviation (N)": "deviation of advantages",
    "there is no penalty on the KL divergence": "penalty",
    "the change of the value is clipped, the larger loss counts": "value clip",
    "the value's error is squared": "error of the value",
    "the value's factor is vf_coef / 2": "factor of the value loss",
    "the gradient is clipped by the norm of all parameters": "bound of the gradient",
    "approximate KL: half the mean square of the log ratio": "KL divergence that is logged",
    "frames become gray, then 84 x 84 by area interpolation": "frames",
    "black frames precede an episode's first one": "frames before an episode's first",
    "convolutions and a dense layer as in Mnih et al. (2015)": "filters of the convolutions",
    "the rollout stores them as bytes": "stored pixels",
    "the log standard deviation is a parameter that starts at 0": "standard deviation of actions",
    "the environment gets the clipped action": "actions that the environment gets",
    "observations are normalized over all environments": "statistics of observations",
    "normalized observations are clipped to [-10, 10]": "clip of observations",
    "rewards are divided by the deviation of the discounted return": "statistics of rewards",
    "scaled rewards are clipped to [-10, 10]": "clip of rewards",
    "recurrent layer: orthogonal weights, gain 1, all gates as one": "recurrent weights",
    "its biases are zero": "recurrent biases",
    "one bias of it is trained": "trained biases of the recurrent layer",
    "a minibatch is the whole sequences of some environments": "sequences",
}


@dataclass
class Move:
    """What follows for those who move from one implementation to another."""

    one: str  # a column
    other: str  # a column
    titles: list  # of the rows in which the two differ, on which the sentence rests
    sentence: str


MOVES = [
    Move(
        "SB3",
        "CleanRL",
        ["a time limit counts as an end", "the value's factor is vf_coef / 2"],
        "**From Stable-Baselines3 to CleanRL**, `vf_coef` must be doubled for the same value loss, and the value is "
        "clipped. A time limit ends an episode without a bootstrap, so value targets differ on tasks with time limits.",
    ),
    Move(
        "rsl_rl",
        "skrl",
        ["a time limit counts as an end", "the gradient is clipped by the norm of all parameters"],
        "**From rsl_rl to skrl**, policy and value share one bound of the gradient instead of having one each, and the "
        "value loss is that of the clipped value alone. At time limits, advantages run on into the next episode, "
        "unless `time_limit_bootstrap` is set.",
    ),
    Move(
        "CleanRL",
        "ours",
        ["it is added before the bias correction", "by the population's standard deviation (N)"],
        "**From CleanRL to this project**, the steps of Adam are smaller at first, because epsilon is added before the "
        "bias correction. All environments share the statistics of observations and rewards.",
    ),
]


@dataclass
class Column:
    """The results of one implementation."""

    name: str
    version: str
    rows: dict  # {(detail, title): a row as in the files}


def load(names):
    """The Column of some files of conformance/results, or None if there is none of them."""
    column = None
    for name in names:
        file = RESULTS / f"{name}.json"
        if not file.is_file():
            continue
        saved = json.loads(file.read_text())
        if column is None:
            column = Column(saved["name"], saved["version"], {})
        for row in saved["rows"]:
            key = row["detail"], row["title"]
            if key not in column.rows or column.rows[key]["result"] == UNKNOWN:
                column.rows[key] = row
    return column


def load_all():
    """{heading: Column} of the columns that have results."""
    columns = {heading: load(names) for heading, names in COLUMNS.items()}
    return {heading: column for heading, column in columns.items() if column is not None}


def cell(row):
    """The word for a row in the table; row: as in the files, or None."""
    if row is None or row["result"] == UNKNOWN:
        return ""
    if row["result"] in (YES, OTHER):
        return row["result"]
    found = re.sub(r" \[\d+,.*", "", row["found"])  # without the sizes of minibatches
    if re.fullmatch(r"\d+ rows of \d+ in \d+ steps", found):
        return "cycled"
    return SHORT.get(found, found)


def answer_of(row):
    """A row in words, as the CSV has it: yes, no: what instead, other: why, not measured: why."""
    return row["result"] if row["result"] == YES else f"{row['result']}: {row['found']}"


def csv_text():
    """The CSV: a line for each row of each file of conformance/results."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["implementation", "version", "date", "command", "row", "answer"])
    for names in COLUMNS.values():
        for name in names:
            file = RESULTS / f"{name}.json"
            if not file.is_file():
                continue
            saved = json.loads(file.read_text())
            about = [saved["name"], saved["version"], saved.get("date", ""), saved.get("command", "")]
            for row in saved["rows"]:
                writer.writerow([*about, f"{row['detail']}: {row['title']}", answer_of(row)])
    return written.getvalue()


def sentence(heading, column):
    """In which rows a column differs from ppo2, of those that were measured."""
    rows = [row for (_, title), row in column.rows.items() if is_shown(title) and row["result"] != UNKNOWN]
    rows.sort(key=lambda row: order(row["detail"]))
    differing = []
    for row in rows:
        if row["result"] != YES:
            differing.append(f"{SUBJECTS.get(row['title'], row['title'])} ({cell(row)})")
    name = "Six of this project's scripts" if heading == "ours" else column.name
    if not differing:
        return f"- **{name}**: as ppo2 in all {len(rows)} rows."
    return f"- **{name}**: as ppo2 in {len(rows) - len(differing)} of {len(rows)} rows, but for {', '.join(differing)}."


def anchor(detail):
    """A link to a detail in docs/details.md."""
    return f"[{detail}](details.md#{detail.replace(' ', '-')})"


def is_shown(title):
    """Whether the page has a row of this title: not of "two heads", of which "two networks" is the opposite."""
    return not title.startswith("policy and value: two heads")


def table(columns):
    """The lines of the table of rows by columns."""
    keys = []  # in the order in which rows come up
    for column in columns.values():
        for key in column.rows:
            if key not in keys:
                keys.append(key)
    keys.sort(key=lambda key: order(key[0]))  # by details; their rows keep their order
    lines = [f"| detail | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for detail, title in keys:
        if not is_shown(title):
            continue
        cells = [cell(column.rows.get((detail, title))) for column in columns.values()]
        lines.append(f"| {anchor(detail)}: {title} | {' | '.join(cells)} |")
    return lines


def differing():
    """{detail: names of the columns that differ in it}, for docs/details.md."""
    found = {}
    for heading, column in load_all().items():
        if heading in ("ours", "ppo2"):
            continue
        for (detail, _), row in column.rows.items():
            if row["result"] not in (NO, OTHER):
                continue
            headings = found.setdefault(detail, [])
            if heading not in headings:
                headings.append(heading)
    return found


def check_moves(columns):
    """ValueError where two columns do not differ in what a sentence of MOVES rests on."""
    for move in MOVES:
        for title in move.titles:
            words = [word_for(columns[heading], title) for heading in (move.one, move.other)]
            if "" in words:
                raise ValueError(f"{title!r} is not measured for {move.one} or for {move.other}")
            if words[0] == words[1]:
                raise ValueError(f"{move.one} and {move.other} have both {words[0]!r} in {title!r}")


def word_for(column, title):
    """The cell of a column in the first row of a title."""
    return next(cell(row) for (_, its_title), row in column.rows.items() if its_title == title)


def text():
    """The page."""
    columns = load_all()
    check_moves(columns)
    lines = [QUESTION.strip(), ""]
    lines += [sentence(heading, column) for heading, column in columns.items() if heading != "ppo2"]
    lines += ["", HEAD.strip(), ""]
    lines += table(columns)
    lines += ["", WORDS.strip(), ""]
    lines += ["| column | implementation | version | rows measured |", "|---|---|---|---|"]
    for heading, column in columns.items():
        name = OURS if heading == "ours" else column.name
        measured = 0
        for (_, title), row in column.rows.items():
            if is_shown(title) and row["result"] != UNKNOWN:
                measured += 1
        lines.append(f"| {heading} | {name} | {column.version} | {measured} |")
    lines += ["", *versions.lines(RESULTS, cell, anchor)]
    lines += ["", *runs_table.lines(RESULTS)]
    lines += ["", "## Moving from one to another", ""]
    lines += [f"- {move.sentence}" for move in MOVES]
    lines += ["", BETWEEN.strip(), "", OWN.strip()]
    return "\n".join(lines) + "\n"


QUESTION = """
# Which PPO is that?

*For those who use another PPO, compare scores of two, or wrote one.*

Two PPO implementations with the same settings score differently: what does each of them do? In short, measured by
running them, with the words of [the table](#the-table) in brackets; rows that were not measured do not count:
"""

HEAD = """
[Outliers](outliers.md) are what one library does alone, each with the smallest program that shows it.

## The table

`python -m conformance` measures which of the [details](details.md) an implementation has, by running it. The table has
a column for each [implementation](#the-columns). "yes" means that it does what the row says, as `ppo2` does; another
[word](#the-words-in-the-cells) says what is done instead, and an empty cell was not measured. Where the cell of `ppo2`
is empty, what it does was read from its code.

An implementation is handed a rollout whose policy and values are tables instead of networks. The measurement takes the
gradient and the weights of each step of the update, and looks among all combinations of the known alternatives for the
one that gives these numbers. In the rows of advantages, losses, gradient steps and normalization, and in each other row
that has a `nearest_error` in `conformance/results`, a word means that one combination reproduces all numbers to 2e-5 of
their size, and that no combination with another word comes within 2e-3.

The other rows have no such margin. Initial weights are orthogonal if they are so to 1e-4; otherwise their spread, to
about a tenth, tells from which distribution they were drawn. Orders, sizes, layers and types are read from what was
recorded, and compared as they are.

All implementations had the same clip range, coefficients, discount and `max_grad_norm`. Switches were at each library's
default, but for [rl_games](#what-was-run).
"""

WORDS = """
## The words in the cells

| detail | word | meaning |
|---|---|---|
| core 2, lstm 1 | torch's | torch's default: uniform up to 1 / sqrt(inputs), in an LSTM 1 / sqrt(units) |
| core 2, lstm 1 | up to 0.41, up to 0.062 | the largest bias |
| core 4 | adaptive | rsl_rl's own word for a learning rate that changed at each gradient step |
| core 5 | V(final) | a time limit is bootstrapped from the value of the final observation |
| core 5 | V(s_T) | from the value of the observation before the final one |
| core 5 | V(reset) | from the value of the next episode's first observation |
| core 5 | left out | the step of a time limit has no delta |
| core 5 | leaks | advantages run on over a time limit, into the next episode |
| core 5 | rewards | the discounted sum of rewards, with the value that is bootstrapped at the end |
| core 5 | next return | reward + discount x the next step's lambda-return - value |
| core 6 | once | one permutation serves all epochs |
| core 6 | rotated | all steps in order, but each epoch begins at another one |
| core 6 | cycled | RLlib: minibatches count the steps that its learner adds, and run on from one epoch into the next |
| core 6 | smaller last, larger last, filled up | what the last minibatch is, if the sizes do not divide |
| core 6 | whole | there are no minibatches: each step uses the whole rollout |
| core 6 | left out | the rest of the rollout is not used, if the sizes do not divide |
| core 7 | rollout | normalized over all steps of the rollout, before they are divided into minibatches |
| core 7 | rollout, more | RLlib: the mean and the deviation include the steps that its learner adds |
| core 8 | 0.2 KL | the loss has 0.2 times the exact KL divergence, with a factor that changes after an update |
| core 9 | none | the change of the value is not clipped, by default or because there is no such option |
| core 9 | clipped alone | the loss is that of the clipped value, even where the other is larger |
| core 10 | at most 10 | a squared error of the value above 10 has no gradient |
| core 10 | x 1 | the mean squared error times `vf_coef` |
| core 10 | averaged | with continuous actions, the mean over the components takes the place of their sum |
| core 11 | each network | the policy's gradient and the value's are clipped by norms of their own |
| core 11 | each number | each number of the gradient is clipped to the bound, and not its norm |
| core 12 | k1, k3 | the mean of -log ratio; the mean of ratio - 1 - log ratio |
| core 12 | exact | the KL divergence of the distributions, old to new |
| atari 5 | resized first | frames are resized, then turned gray |
| atari 7 | repeated | the first frame stands in the place of the frames before it |
| atari 8 | 32 at last | the third convolution has 32 filters instead of 64 |
| continuous 2 | starts at -0.5 | the parameter starts at -0.5 |
| continuous 2 | deviation | the parameter is the standard deviation, and not its logarithm |
| continuous 2 | an output | it is an output of the network, and no parameter |
| continuous 5 | scaled | clipped to [-1, 1], then scaled to the bounds |
| continuous 6, 8 | each alone | every environment has its own statistics |
| continuous 6 | final too | the statistics include the last observations of episodes |
| continuous 6 | not the first | the first observations of a run are neither normalized nor counted |
| continuous 7, 9 | none | normalized numbers are not clipped |
| continuous 8 | ends early | at the end of an episode, the discounted sum is 0 before its last reward, not after it |
| lstm 1 | two | two biases are trained |
| lstm 4 | cut anywhere | sequences of consecutive steps, which begin and end wherever a minibatch does |

## What was run

- **Not measured.** A cell is empty where the library leaves the matter to its user (models, in TorchRL the loop), has
  no such actions, or is run here without it (Brax's loop is one compiled function). Rows in `conformance/results` say
  why.
- **Updates.** In the columns with an entry in the last row of core 3, two consecutive updates are measured (rows of
  advantages, losses, order and Adam, and core 4), in all others one. Losses are measured in two epochs of two
  minibatches of 24 steps, or of 48 with continuous actions. The columns with two updates, but for Spinning Up, are also
  measured with a single minibatch of 120 steps, or of 384. What begins with a third update, or with larger minibatches,
  would be seen in the rows of the schedules alone. The recordings of [four libraries](between.md) have two updates.
- **Schedules** (core 4, aux 1) are those of a run with the defaults. A number that stands in an option, and that the
  library does not return for an update, is no measurement.
- **Normalization** (continuous 6 to 9) is that which the library offers, whether PPO uses it by default or not.
- **Brax** was run with its normal distribution; its default also squashes actions by tanh. Its loss computes values and
  advantages anew for each minibatch.
- **Spinning Up** was run without its early stop. It has one environment, no `vf_coef`, and a limit of the episode's
  length of its own. An episode that ends in the last step of a rollout is bootstrapped even where its last state is
  terminal, which is in no row.
- **MuJoCo Playground and mjlab** train with rsl_rl. Of the switches behind these rows, Playground's configuration for
  locomotion (d5e6b47) changes one, `schedule="fixed"`: with it, the learning rate is constant. Its configuration for
  manipulation, and that of mjlab 1.6.0, have the values that rsl_rl has by default. Both normalize observations by
  rsl_rl's own running statistics, which are not measured.
- **verl** trains language models. Only its functions for advantages and losses were run, with the rollout of an
  environment in place of a response, which ends with its last token. Its trainer puts their results together, here the
  adapter does, so the entropy's sign is the adapter's.
- **TRL** trains language models, too. 1.9.0 was run, as 1.16.0 has no PPO. Tables took the place of the models, and an
  optimizer of the adapter that of its own, so the rows of Adam and of the gradient's bound are not measured. A response
  is the rollout of an environment whose last step alone has a reward, and the reference model is the policy that acts.
- **Stoix** was run with its `ff_ppo.py`, which is for discrete actions, on one device.
- **RLlib's** learner adds a step to each episode that it is handed.
- **rl_games** has no default for some switches. They were set as in its examples: advantages are normalized, values and
  gradients clipped, observations not normalized, and there is no loss for the bounds of actions.
- **lstm.** These rows are of a recurrent layer: an LSTM, or ikostrikov's GRU. One number takes the place of its state.
  This number tells from which earlier steps, and from which state before them, each step was computed.
- **aux 4** was measured with a rollout in which some actions are invalid.
- **atari.** A scripted emulator plays the games, in the place of ale_py. EnvPool's games are not measured, as EnvPool
  brings its emulator along, in C++. The scripts here that play them have no column; `python -m conformance
  ppo_atari_envpool.py` measures their other rows.
- **`ppo_seeds.py`**, and a copy of it, cannot be measured, as it trains several agents at once. Measure `ppo.py`, from
  which it comes.
- **`impala_atari_cleanba.py`** has no column. It has V-trace and RMSprop in place of the rows from the optimizer to the
  KL divergence; a test of this project measures its other rows.

## The columns

[results.csv](../conformance/results.csv) has each row of each of them with its version, date and command. A date is
that of the measurement, or, for those before 2026-11-28, that of the commit that has it.

"""

BETWEEN = """
[Two PPOs score differently](between.md) turns a script into one of these libraries' PPO, and finds the detail that
makes two scores differ.
"""

OWN = """
## Check your own

An adapter is a file that lets your PPO play a given rollout. [This one](../conformance/example/adapter.py), of 38 lines
without the empty ones, is for a [plain PPO](../conformance/example/plain_ppo.py) in PyTorch. Imitate it, and run:

```
python -m conformance path/to/my_adapter.py
```

In another folder than that of the checkout, it is `python path/to/checkout/conformance my_adapter.py`. It needs numpy
and what the adapter imports; nothing here has to be installed. [The template](../conformance/adapter.py) says
what each function is asked. Any of them may be left out; its rows are then not measured. For an implementation in
torch, [torch_tables.py](../conformance/adapters/torch_tables.py) has the tables and records the steps.

An edited copy of a script of this project needs no adapter, nor does a folder of scripts in CleanRL's style:

```
python -m conformance my_ppo.py
python -m conformance path/to/cleanrl/cleanrl
```

In a copy, tables take the place of the layers `policy` and `value`, and the number of a row that of the trunk's
features. What else it has, such as a second head, stays, and its gradient counts in the norm. Where a row is not
measured, it says which line of the copy failed. Where nothing known reproduces a gradient, it says which rows may be
the reason: with the recipe `rnd`, which has other advantages, these are those of core 7, core 8 and the entropy bonus,
and the other 24 rows are measured.

The adapter of a library runs in a Python environment that has the library and numpy; this project need not be installed
in it. The first command measures Stable-Baselines3, and the second writes this page anew from `conformance/results`:

```
python -m conformance sb3 --json conformance/results/sb3.json
python -m conformance --page
```
"""


def write():
    """Writes the page and the CSV."""
    (ROOT / "docs/conformance.md").write_text(text())
    CSV.write_text(csv_text())
