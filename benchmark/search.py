"""Searches the hyperparameters of a script of PPO with Optuna.

    pip install ".[benchmark,search]"
    python -m benchmark.search ppo.py --trials 50 --seeds 3 --env-id CartPole-v1 --total-timesteps 50000

Other options are passed to the script; "ppo.py + with/muon" is a script with a recipe. A trial is one choice of
hyperparameters, run with each seed by benchmark/sweep.py. Trial 0 has those of the command line. The score of a trial
is the mean return of the last 100 episodes, averaged over the seeds. Once five trials are complete, a trial ends early
if the best of its scores so far is below the median of theirs at the same time; the first look is in the middle of its
first run. At the end the best trial and trial 0 are trained with as many other seeds, as the best of many scores is too
high. The study is kept in a file: the same command continues it, also in several processes at once. To search other
hyperparameters, or to fix one, change `suggest`, which starts another study.
"""

import argparse
import hashlib
import inspect
import math
import shlex
import signal
import sys
import time
from pathlib import Path

import numpy as np
import optuna

from benchmark import sweep
from saved import checkpoint_files, import_script, newest_checkpoint, read_state

NUM_STEPS = [32, 64, 128, 256, 512, 1024, 2048]
MINIBATCH_SIZES = [32, 64, 128, 256, 512]  # smaller ones are noisy
MIN_UPDATES = 10  # a run of fewer would hardly learn
LOOKS = 4  # a run's score is looked at so many times, the last time at its end
stopped = []  # the signals that came


def suggest(trial, rollouts):
    """The options of a trial, {name: value}; `rollouts` is what find_rollouts() returns."""
    num_steps = trial.suggest_categorical("num-steps", list(rollouts))
    minibatch_size = trial.suggest_categorical("minibatch size", MINIBATCH_SIZES)
    return {
        "learning-rate": trial.suggest_float("learning-rate", 1e-5, 1e-2, log=True),
        "num-steps": num_steps,
        "num-minibatches": rollouts[num_steps][minibatch_size],
        "update-epochs": trial.suggest_int("update-epochs", 1, 16),
        "gamma": 1 - trial.suggest_float("1 - gamma", 1e-3, 1e-1, log=True),
        "gae-lambda": trial.suggest_float("gae-lambda", 0.8, 1.0),
        "clip-coef": trial.suggest_float("clip-coef", 0.1, 0.4),
        "ent-coef": trial.suggest_float("ent-coef", 1e-5, 1e-1, log=True),
    }


def find_rollouts(args, is_recurrent):
    """The rollouts that fit the other options, {num_steps: {minibatch size: num_minibatches}}.

    All minibatches have the same size, the one that is asked for or the next larger one. A recurrent agent's have all
    steps of some environments."""
    rollouts = {}
    for num_steps in NUM_STEPS:
        batch_size = args["num_envs"] * num_steps
        if batch_size < MINIBATCH_SIZES[0] or batch_size * MIN_UPDATES > args["total_timesteps"]:
            continue
        parts = args["num_envs"] if is_recurrent else batch_size
        rollouts[num_steps] = {}
        for size in MINIBATCH_SIZES:
            counts = [count for count in range(1, parts + 1) if parts % count == 0 and batch_size // count >= size]
            rollouts[num_steps][size] = max(counts, default=1)
    return rollouts


def example(rollouts):
    """What is searched: the options of an example, {name: value}, and Optuna's distributions, {parameter: ...}."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # this study is only for the names
    trial = optuna.create_study().ask()
    options = suggest(trial, rollouts)
    optuna.logging.set_verbosity(optuna.logging.INFO)
    return options, trial.distributions


def nearest_parameters(args, distributions):
    """The parameters of suggest() that are nearest to a script's options {name: value}."""
    values = {name.replace("_", "-"): value for name, value in args.items()}
    values["1 - gamma"] = 1 - args["gamma"]
    values["minibatch size"] = args["num_envs"] * args["num_steps"] // args["num_minibatches"]
    parameters = {}
    for name, distribution in distributions.items():
        if name not in values:  # a parameter of an edited suggest(), which Optuna then chooses
            continue
        value = values[name]
        if isinstance(distribution, optuna.distributions.CategoricalDistribution):
            parameters[name] = min(distribution.choices, key=lambda choice: abs(choice - value))
        else:
            parameters[name] = min(max(value, distribution.low), distribution.high)
    return parameters


def without_searched(others, searched):
    """The words of the command line without the options that are searched, whose values only trial 0 has."""
    kept = []
    is_value = False  # whether the word is the value of an option that is left out
    for word in others:
        name, equals, _ = word.partition("=")
        if name.startswith("--") and name.removeprefix("--").replace("_", "-") in searched:
            is_value = not equals
        elif is_value:
            is_value = False
        else:
            kept.append(word)
    return kept


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


def wait(process, look):
    """The exit status of a run, once it has ended. A signal stops the run, and KeyboardInterrupt ends the search.

    `look` is called again and again while the run lasts; where it returns True, the trial ends with TrialPruned."""
    while process.poll() is None and not stopped:
        if look():
            sweep.stop([process])
            raise optuna.TrialPruned
        time.sleep(0.5)
    if stopped:
        sweep.stop([process])
        silence_optuna()
        raise KeyboardInterrupt
    return process.returncode


class Progress:
    """Looks at the checkpoints that a run saves on its way, and reports the scores in them."""

    def __init__(self, run, report):
        self.run = run
        self.report = report
        self.last_seen = None

    def look(self):
        """Reports the score of a new checkpoint; returns whether the trial should end."""
        folder = self.run.run_folder()
        file = None if folder is None else max(checkpoint_files(folder), default=None)
        if file is None or file == self.last_seen:
            return False
        self.last_seen = file
        state = read_state(file)
        number = LOOKS * state["global_step"] // self.run.steps
        if not state["returns"] or not 0 < number < LOOKS:
            return False
        return self.report(float(np.mean(state["returns"])), number)


def score(line, folder, seed, report):
    """The mean return of the last 100 episodes of a run; Failed or NoEpisode where there is none.

    report(score, number) gets those on the way, with number 1, 2, ..., and returns whether the trial should end."""
    args = sweep.make_ours(line, seed, folder).args
    num_updates = args["total_timesteps"] // (args["num_envs"] * args["num_steps"])
    run = sweep.make_ours(f"{line} --save-every={math.ceil(num_updates / LOOKS)}", seed, folder)
    with sweep.locked_logs(run, folder) as logs:  # in a folder of this trial, which no other sweep uses
        process = sweep.start(run, folder, logs)
    if wait(process, Progress(run, report).look) != 0:
        raise Failed(f"the run ended with an error: {folder}/logs/{run.name}.log")
    returns = read_state(newest_checkpoint(run.run_folder()))["returns"]
    if not returns:
        steps = run.args["total_timesteps"]
        silence_optuna()
        raise NoEpisode(f"no episode ended in {steps} steps, so there is no score: raise --total-timesteps")
    return float(np.mean(returns))


def objective(args, line_of, trial):
    """The score of a trial; TrialPruned where it is too low to go on.

    line_of: a function from a trial to its line for benchmark/sweep.py."""
    scores = []
    folder = args.folder / f"{trial.datetime_start:%Y%m%d-%H%M%S-%f}"
    line = f"{line_of(trial)} --exp-name=trial-{trial.number}"
    for seed in range(1, args.seeds + 1):

        def report(value, number, first_step=(seed - 1) * LOOKS):
            trial.report(np.mean([*scores, value]), first_step + number)
            return trial.should_prune()

        value = score(line, folder, seed, report)
        should_prune = report(value, LOOKS)
        scores.append(value)
        if should_prune and seed < args.seeds:
            raise optuna.TrialPruned
    return np.mean(scores)


def is_of_command_line(trial):
    """Whether a trial has the hyperparameters of the command line."""
    return "command line" in trial.user_attrs


def enqueue_command_line(study, parameters):
    """Makes the command line's hyperparameters the next trial, unless they have been one.

    parameters: those that Optuna takes for them. It does not know values outside of what is searched, such as an
    entropy bonus of 0; the trial runs with them nevertheless."""
    # a trial that was stopped has failed, or seems to run still
    states = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED, optuna.trial.TrialState.WAITING
    if not any(is_of_command_line(trial) and trial.state in states for trial in study.trials):
        study.enqueue_trial(parameters, user_attrs={"command line": True})


def fresh_scores(line, args, name):
    """The scores of a line with seeds that no trial used, [seeds]."""
    folder = args.folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    seeds = range(args.seeds + 1, 2 * args.seeds + 1)
    return [score(f"{line} --exp-name={name}", folder, seed, lambda *_: False) for seed in seeds]


def show_best(study, args, line_of):
    """Prints the best trial's score with fresh seeds, beside that of the command line's options, and its command."""
    best = study.best_trial
    done = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    print(f"{len(done)} of {len(study.trials)} trials completed; trial {best.number} was the best, {best.value:.4g}")
    print(f"the best of many is too high: with the seeds {args.seeds + 1} to {2 * args.seeds}, which no trial had,")
    lines = {"the best trial": line_of(best)}
    if not is_of_command_line(best):
        lines["the command line's options"] = line_of(None)
    for name, line in lines.items():
        scores = fresh_scores(line, args, "best" if name == "the best trial" else "command-line")
        print(f"  {name}: mean return {np.mean(scores):.4g}, lowest {min(scores):.4g}, highest {max(scores):.4g}")
    line = line_of(best)
    if "+" in line.split():  # with a recipe
        print(f"echo '{line}' | python -m benchmark.sweep")
    else:
        print(f"python {line}")


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
    if any(word.partition("=")[0] == "--seed" for word in others):
        sys.exit("error: each trial runs with the seeds 1, 2, ...; --seeds is their number")
    whole_line = f"{args.script} {shlex.join(others)}".rstrip()
    run = sweep.make_ours(whole_line, 1, args.folder)
    rollouts = find_rollouts(run.args, hasattr(import_script(run.file).Agent, "initial_state"))
    if not rollouts:
        text = f"make {MIN_UPDATES} updates or more of {MINIBATCH_SIZES[0]} steps or more"
        sys.exit(f"error: no --num-steps of {NUM_STEPS} fits --num-envs and --total-timesteps, which should {text}")
    searched, distributions = example(rollouts)
    line = f"{args.script} {shlex.join(without_searched(others, searched))}".rstrip()

    def line_of(trial):
        """The line of a trial, or of the command line."""
        if trial is None:
            return whole_line
        if is_of_command_line(trial):
            if isinstance(trial, optuna.Trial):
                suggest(trial, rollouts)  # so that Optuna knows the trial's parameters
            return whole_line
        return f"{line} {words(suggest(trial, rollouts))}"

    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(args.folder / "study")))
    # other choices make another study, and so does another text of the script
    choices = f"{inspect.getsource(suggest)} {rollouts} {run.file.read_text()}"
    version = hashlib.sha1(choices.encode()).hexdigest()[:8]
    study = optuna.create_study(
        study_name=f"{whole_line}, {args.seeds} seeds, {version}",
        storage=storage,
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=LOOKS // 2),
    )
    enqueue_command_line(study, nearest_parameters(run.args, distributions))
    for number in sweep.STOPPING:
        signal.signal(number, note_signal)
    try:
        study.optimize(lambda trial: objective(args, line_of, trial), args.trials, catch=Failed)
        if not study.get_trials(states=[optuna.trial.TrialState.COMPLETE]):
            sys.exit(f"error: no trial completed; see {args.folder}/*/logs")
        show_best(study, args, line_of)
    except (NoEpisode, Failed) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command continues")


if __name__ == "__main__":
    main()
