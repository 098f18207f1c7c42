"""Puts runs on Atari beside published runs of ppo2 on 57 games: returns, and human-normalized scores.

    python -m benchmark.atari57 runs

For each experiment, a script with options, and each form of ids, such as NAME-v5, a table has its games. A return is
the mean of the last 100 episodes, with the standard deviation over the runs. A human-normalized score is 0 for random
play and 1 for a person. Below the table are statistics of all games (Agarwal et al., 2021), of ours and of ppo2 on the
same games; those of ppo2 are of its means, as no single runs are published. benchmark/results/README.md names the
sources of all numbers.
"""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmark import aggregate
from benchmark.collect import attempt, gathered
from benchmark.compare import find_runs
from benchmark.results import RESULTS
from benchmark.scores import mean_and_deviation, number, scores, short_steps
from benchmark.tables import read_rows


class Published(NamedTuple):
    """What is published of a game: scores of random play, of a person and of ppo2 after 10M steps, three seeds."""

    random: float
    human: float
    ppo2_mean: float
    ppo2_std: float

    def normalize(self, returns):
        """Human-normalized scores."""
        return (np.array(returns) - self.random) / (self.human - self.random)


def read_published():
    """{game: Published}"""
    rows = read_rows(RESULTS / "published" / "atari57.csv")
    return {row["game"]: Published(*(float(row[name]) for name in Published._fields)) for row in rows}


def game_of(env_id):
    """The game of BreakoutNoFrameskip-v4, Breakout-v5 or ALE/Breakout-v5."""
    return re.sub(r"(NoFrameskip)?-v\d+$", "", env_id).removeprefix("ALE/")


def returns_by_experiment(folder, published):
    """{(experiment, ids, steps): {game: float64 [runs]}} of the finished runs in a folder; names what is left out.

    Games with ids of another form, such as NAME-v5, have other rules, so `ids` tells them apart."""
    experiments = {}
    for env_id, named in find_runs(folder).items():
        for name, runs in named.items():
            for run_folder, _ in runs:
                run, why = attempt(gathered, run_folder)
                if run is None or not run.finished:
                    print(f"left out: {why or f'{run_folder}: it is not finished'}")
                elif game_of(env_id) not in published:
                    print(f"left out: {run_folder}: {env_id} is none of the 57 games")
                else:
                    game = game_of(env_id)
                    key = name, env_id.replace(game, "NAME"), run.about["steps"]
                    by_seed = experiments.setdefault(key, {}).setdefault(game, {})
                    seed = run.about["seed"]
                    if seed in by_seed:
                        print(f"left out: {run_folder.parent / by_seed[seed].about['run']}: seed {seed} is there twice")
                    by_seed[seed] = run  # the one of the later name, and so time, counts
    return {
        key: {game: scores(by_seed.values()) for game, by_seed in games.items()} for key, games in experiments.items()
    }


def statistics_line(who, values):
    """A line with the statistics of human-normalized scores [games, runs], with intervals if there are several runs."""
    cells = []
    for statistic in aggregate.STATISTICS.values():
        text = f"{statistic(values):.2f}"
        if values.shape[1] > 1:
            low, high = aggregate.interval(statistic, values)
            text += f" [{low:.2f}, {high:.2f}]"
        cells.append(text)
    return f"| {who} | {' | '.join(cells)} |"


def report(games, published):
    """The lines of an experiment's tables; `games` is {game: float64 [runs]}."""
    names = ["game", "random", "human", "ppo2 (10M)", "ours", "runs", "ppo2, normalized", "ours, normalized"]
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for game, returns in sorted(games.items()):
        known = published[game]
        theirs = f"{number(known.ppo2_mean)} ± {number(known.ppo2_std, known.ppo2_mean)}"
        cells = [
            game,
            number(known.random),
            number(known.human),
            theirs,
            mean_and_deviation(returns),
            str(len(returns)),
        ]
        cells += [f"{known.normalize(each):.2f}" for each in (known.ppo2_mean, returns.mean())]
        lines.append(f"| {' | '.join(cells)} |")
    runs = min(map(len, games.values()))  # the statistics need as many runs of each game
    ours = np.array([published[game].normalize(returns[:runs]) for game, returns in games.items()])
    theirs = np.array([[published[game].normalize(published[game].ppo2_mean)] for game in games])
    lines += ["", f"{len(games)} games, {runs} of the runs of each:", ""]
    lines += [f"| | {' | '.join(aggregate.STATISTICS)} |", "|---" * (len(aggregate.STATISTICS) + 1) + "|"]
    return [*lines, statistics_line("ours", ours), statistics_line("ppo2", theirs)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the runs")
    published = read_published()
    experiments = returns_by_experiment(parser.parse_args().folder, published)
    for (name, ids, steps), games in experiments.items():
        print(f"\n{name} on {ids}, {short_steps(steps)} steps\n")
        print("\n".join(report(games, published)))


if __name__ == "__main__":
    main()
