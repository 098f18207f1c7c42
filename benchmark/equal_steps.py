"""Compares runs of Atari with those of ppo2 after equal steps of the same schedule: a table, and a picture.

Few runs there came to the end of their 10M steps. A stopped run is one of the same experiment up to where it stopped,
as the learning rate depends on the step alone.
"""

import numpy as np

from benchmark.curves import COLORS, CYCLE, plot, write_picture
from benchmark.experiments import GAMES
from benchmark.results import WINDOW, Run
from benchmark.scores import compare, mean_and_deviation, short_steps, with_count

STEPS = (100_000, 200_000, 250_000, 500_000, 1_000_000)
PICTURED = 500_000  # the last step of the picture
SPAN = 50_000  # a score is the mean return of the games that ended in as many steps before
SCRIPTS = {"ppo_atari": COLORS["ours"], "ppo_atari_envpool": CYCLE[2]}


def score_at(run, step):
    """The mean return of the games that ended in the SPAN steps up to a step; None where there is none of them, or
    where the run ended before."""
    if run.updates["step"][-1] < step:
        return None
    ended = run.episodes["step"]
    returns = run.episodes["return"][(ended > step - SPAN) & (ended <= step)]
    return float(returns.mean()) if len(returns) else None


def scores_at(runs, step):
    """The scores after a step of the runs that have one there, float64 [runs]."""
    values = [score_at(run, step) for run in runs]
    return np.array([value for value in values if value is not None])


def rows(experiments):
    """[(Experiment, step, scores of ours, scores of ppo2), ...]: where both have a score."""
    with_scores = []
    for experiment in experiments:
        for step in STEPS:
            ours = scores_at(experiment.ours, step)
            ppo2 = scores_at(experiment.beside, step)
            if len(ours) and len(ppo2):
                with_scores.append((experiment, step, ours, ppo2))
    return with_scores


def cells(experiment, step, ours, ppo2):
    """The texts of a row of the table: the last is our mean minus that of ppo2, with its 95% interval by Welch."""
    sides = [with_count(mean_and_deviation(values), values) for values in (ours, ppo2)]
    difference = compare(ours, ppo2).text(max(ours.mean(), ppo2.mean(), key=abs))
    return [f"`{experiment.script}.py`", experiment.env_id, short_steps(step), *sides, difference]


NAMES = ["script", "environment", "after", "ours (runs)", "`ppo2` (runs)", "difference"]


def until(run, step):
    """The Run up to a step."""
    tables = []
    for table in (run.episodes, run.updates):
        inside = table["step"] <= step
        tables.append({name: column[inside] for name, column in table.items()})
    return Run(run.about, *tables)


def panels(experiments):
    """{game: [(label, colour, runs up to the step PICTURED), ...]}: ppo2 and the scripts beside it."""
    sides_by_game = {}
    for experiment in experiments:
        if not experiment.beside:
            continue
        game = GAMES.get(experiment.env_id, experiment.env_id)
        if game not in sides_by_game:
            sides_by_game[game] = [("ppo2", COLORS["ppo2"], experiment.beside)]
        sides_by_game[game].append((f"{experiment.script}.py", SCRIPTS[experiment.script], experiment.ours))
    return {
        game: [(label, color, [until(run, PICTURED) for run in runs]) for label, color, runs in sides]
        for game, sides in sides_by_game.items()
    }


def picture(experiments, path):
    """Draws the returns up to the step PICTURED, a panel for each game; writes nothing without runs of ppo2."""
    games = panels(experiments)
    if not games:
        return

    def draw(figure):
        for i, (game, sides) in enumerate(games.items()):
            axes = figure.add_subplot(1, len(games), i + 1)
            plot(axes, sides, draws_each_run=True)
            axes.set(title=game, xlabel="steps", xlim=(0, PICTURED))
            axes.set_ylabel(f"mean return of the last {WINDOW} games")
            axes.legend(frameon=False, fontsize=7.5)

    write_picture((5.5 * len(games), 4), path, draw)
