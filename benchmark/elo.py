"""Rates checkpoints of a self-play run: some of them and a random player play each other. Ratings are like Elo's.

    python -m benchmark.elo runs/FOLDER

Prints a table in Markdown. Ratings are those of a logistic model with 0 for the random player: 400 more mean ten wins
for each loss. The run's script needs recipes/with/selfplay-evaluation.diff, which keeps its older selves.
"""

import contextlib
import dataclasses
import itertools
import sys
from pathlib import Path

import numpy as np
import torch
import tyro
from tqdm import tqdm

import enjoy
from saved import load


@dataclasses.dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]  # folder of a run of ppo_selfplay.py with recipes/with/selfplay-evaluation.diff
    games: int = 64  # games of each pair, half of them in either seat; the random player always has seat 1
    env_id: str | None = None  # a game other than that of the training, such as SlimeVolleyMatch-v0: whole matches
    players: int = 8  # number of checkpoints, evenly spaced, with the last
    seed: int = 1  # seed of the games and the samples


def ratings(wins):
    """Ratings [P], the first of them 0, from wins [P, P]: how often i beat j, half a win for a draw.

    They maximize the likelihood under P(i beats j) = 1 / (1 + 10 ** ((rating j - rating i) / 400)), by Zermelo's
    iteration. One draw added to each pair keeps the rating of a player that never lost finite."""
    wins = wins + 0.5 * (1 - np.eye(len(wins)))
    games = wins + wins.T
    strength = np.ones(len(wins))
    for _ in range(10_000):
        strength = wins.sum(1) / (games / (strength[:, None] + strength)).sum(1)
        strength /= strength[0]
    return 400 * np.log10(strength)


def tournament(script, agents, args, games, seed):
    """Wins [P, P] of the agents, of which None plays at random, in `games` games of each pair."""
    wins = np.zeros((len(agents), len(agents)))
    pairs = list(itertools.combinations(range(len(agents)), 2))
    for i, j in tqdm(pairs, unit=" pairs"):
        for first, second in [(j, i), (i, j)]:
            if agents[first] is None:  # the random player has seat 1, here as `second`
                first, second = second, first
            seed += 1
            torch.manual_seed(seed)
            match = dataclasses.replace(args, seed=seed, eval_games=games // 2)
            rate = script.win_rate(agents[first], agents[second], match, torch.device("cpu"))
            wins[first, second] += rate * games / 2
            wins[second, first] += (1 - rate) * games / 2
    return wins


def checkpoints(run):
    """The checkpoints of a run, one of each step, in the order of their steps."""
    files = {}
    # in reverse order: "checkpoint_..." comes after "older_checkpoint_..." of the same step, and replaces it
    for file in sorted(run.glob("*checkpoint_*.pt"), reverse=True):
        files[file.stem[-12:]] = file
    return [files[steps] for steps in sorted(files)]


def evenly_spaced(files, count):
    """At most `count` of the files, with the last."""
    places = np.linspace(len(files) - 1, 0, count)  # from the last one down, so that a count of 1 gives the last
    return [files[i] for i in sorted({round(place) for place in places})]


def rate(args):
    """Plays the games of the options, and prints the table of ratings."""
    files = checkpoints(args.run)
    if not files:
        sys.exit(f"error: {args.run} has no checkpoint_*.pt")
    if args.games % 2:  # wins count half the games of each seat
        sys.exit("error: --games must be even")
    torch.set_num_threads(1)
    agents = [None]
    labels = ["random"]
    for file in evenly_spaced(files, args.players):
        saved = load(file)
        with contextlib.closing(enjoy.make_envs(saved)) as envs:
            agents.append(enjoy.Player(saved, envs).agent)
        labels.append(f"{saved.state['global_step']:,}")
    options = saved.options  # of the last checkpoint
    if args.env_id is not None:
        options = dataclasses.replace(options, env_id=args.env_id)
    wins = tournament(saved.script, agents, options, args.games, args.seed)

    rates = wins / args.games
    print(f"{options.env_id}, {args.games} games of each pair. A draw is half a win.\n")
    print("| steps | rating | wins against random | against the one before | against the last |")
    print("|---|---|---|---|---|")
    last = len(agents) - 1
    for player, rating in enumerate(ratings(wins)):
        cells = [labels[player], f"{rating:.0f}"]
        for other in (0, player - 1, last):
            plays = other >= 0 and other != player
            cells.append(f"{rates[player, other]:.1%}" if plays else "")
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    rate(tyro.cli(Args, description=__doc__))
