"""Searches the hyperparameters of a script of PPO with Optuna.

    pip install ".[benchmark,search]"
    python -m benchmark.search ppo.py --trials 50 --seeds 3 --env-id CartPole-v1 --total-timesteps 50000

Other options are passed to the script; "ppo.py + with/muon" is a script with a recipe. A trial is one choice of
hyperparameters, run with each seed by benchmark/sweep.py. Its score is the mean return of the last 100 episodes,
averaged over the seeds. Once five trials are complete, a trial ends early if the best of its mean scores so far is
below their median after as many seeds. The study is kept in a file: the same command continues it, also in several
processes at once. To search other hyperparameters, change `suggest`, which starts another study.
"""

import argparse
import hashlib
import inspect
import shlex
import signal
import sys
import time
from pathlib import Path

import numpy as np
import optuna

from benchmark import sweep
from saved import newest_checkpoint, read_state

NUM_STEPS = [32, 64, 128, 256, 512]
stopped = []  # the signals that came


def suggest(trial, num_steps):
    """The options of a trial, {name: value}; `num_steps` are the lengths of a rollout that fit the other options."""
    return {
        "learning-rate": trial.suggest_float("learning-rate", 1e-5, 1e-2, log=True),
        "num-steps": trial.suggest_categorical("num-steps", num_steps),
        "update-epochs": trial.suggest_int("update-epochs", 1, 16),
        "gamma": 1 - trial.suggest_float("1 - gamma", 1e-3, 1e-1, log=True),
        "gae-lambda": trial.suggest_float("gae-lambda", 0.8, 1.0),
        "clip-coef": trial.suggest_float("clip-coef", 0.1, 0.4),
        "ent-coef": trial.suggest_float("ent-coef", 1e-5, 1e-1, log=True),
    }


def check_others(others):
    """Ends the program if one of the other options is searched, as those of a trial would replace it.

    others: the words that are passed to the script."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # this study is only for the names of what is searched
    searched = suggest(optuna.create_study().ask(), NUM_STEPS)
    optuna.logging.set_verbosity(optuna.logging.INFO)
    for word in others:
        name = word.partition("=")[0].removeprefix("--").replace("_", "-")
        if not word.startswith("--"):
            continue
        if name in searched:
            sys.exit(f"error: --{name} is searched; to fix it, take it out of suggest() in benchmark/search.py")
        if name == "seed":
            sys.exit("error: each trial runs with the seeds 1, 2, ...; --seeds is their number")


def fitting_num_steps(args):
    """Those of NUM_STEPS with which a script's options {name: value} make whole minibatches and a whole rollout.

    A minibatch needs two steps at least, as its advantages are normalized."""
    fitting = []
    for num_steps in NUM_STEPS:
        batch_size = args["num_envs"] * num_steps
        whole = batch_size % args["num_minibatches"] == 0
        if whole and batch_size // args["num_minibatches"] >= 2 and batch_size <= args["total_timesteps"]:
            fitting.append(num_steps)
    return fitting


def words(options):
    """{"gamma": 0.9} as "--gamma=0.9"."""
    return " ".join(f"--{name}={value}" for name, value in options.items())


class Failed(Exception):
    """A run of a trial failed."""


class NoEpisode(Exception):
    """No episode ended in a run of a trial."""


def silence_optuna():
    """Hides the tracebacks that Optuna logs of exceptions in a trial, as warnings."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def note_signal(number, _frame):
    stopped.append(number)


def wait(process):
    """The exit status of a run, once it has ended. A signal stops the run, and KeyboardInterrupt ends the search."""
    while process.poll() is None and not stopped:
        time.sleep(0.2)
    if stopped:
        sweep.stop([process])
        silence_optuna()
        raise KeyboardInterrupt
    return process.returncode


def score(line, folder, seed):
    """The mean return of the last 100 episodes of a run; Failed or NoEpisode where there is none."""
    run = sweep.make_ours(f"{line} --save-every=0", seed, folder)
    with sweep.locked_logs(run, folder) as logs:  # in a folder of this trial, which no other sweep uses
        process = sweep.start(run, folder, logs)
    if wait(process) != 0:
        raise Failed(f"the run ended with an error: {folder}/logs/{run.name}.log")
    returns = read_state(newest_checkpoint(run.run_folder()))["returns"]
    if not returns:
        steps = run.args["total_timesteps"]
        silence_optuna()
        raise NoEpisode(f"no episode ended in {steps} steps, so there is no score: raise --total-timesteps")
    return float(np.mean(returns))


def objective(args, line, num_steps, trial):
    """The score of a trial; TrialPruned where it is too low for another seed."""
    scores = []
    folder = args.folder / f"{trial.datetime_start:%Y%m%d-%H%M%S-%f}"
    options = words(suggest(trial, num_steps))
    for seed in range(1, args.seeds + 1):
        scores.append(score(f"{line} {options} --exp-name=trial-{trial.number}", folder, seed))
        trial.report(np.mean(scores), seed)
        if seed < args.seeds and trial.should_prune():
            raise optuna.TrialPruned
    return np.mean(scores)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.search", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("script", help='such as ppo.py or "ppo.py + with/muon"')
    parser.add_argument("--trials", type=int, default=50, help="trials that this command runs")
    parser.add_argument("--seeds", type=int, default=3, help="runs of a trial")
    parser.add_argument("--folder", type=Path, default=Path("runs/search"), help="of the study and its runs")
    args, others = parser.parse_known_args()
    if args.seeds < 1 or args.trials < 1:
        parser.error("--seeds and --trials must be at least 1")
    args.folder = args.folder.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    check_others(others)
    line = f"{args.script} {shlex.join(others)}"
    num_steps = fitting_num_steps(sweep.make_ours(line, 1, args.folder).args)
    if not num_steps:
        sys.exit(f"error: no --num-steps of {NUM_STEPS} fits --num-envs, --num-minibatches and --total-timesteps")

    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(args.folder / "study")))
    choices = f"{inspect.getsource(suggest)} {num_steps}"  # other choices make another study
    version = hashlib.sha1(choices.encode()).hexdigest()[:8]
    study = optuna.create_study(
        study_name=f"{line}, {args.seeds} seeds, {version}",
        storage=storage,
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
    )
    for number in sweep.STOPPING:
        signal.signal(number, note_signal)
    try:
        study.optimize(lambda trial: objective(args, line, num_steps, trial), args.trials, catch=Failed)
    except NoEpisode as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command continues")

    done = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    if not done:
        sys.exit(f"error: no trial completed; see {args.folder}/*/logs")
    best = words(suggest(optuna.trial.FixedTrial(study.best_params), num_steps))
    print(f"{len(done)} of {len(study.trials)} trials completed; the best scored {study.best_value:.4g}:")
    if "+" in line.split():  # with a recipe
        print(f"echo '{line} {best}' | python -m benchmark.sweep")
    else:
        print(f"python {line} {best}")


if __name__ == "__main__":
    main()
