# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium[mujoco]>=1.4", "numpy>=2.0", "tensorboard>=2.20", "torch>=2.13,<2.16", "tqdm>=4.67",
#   "tyro>=1.0",
#   "ale-py>=0.12", "opencv-python-headless>=4.11", "moviepy>=2.2", "pygame-ce>=2.5",
# ]
# ///
"""Plays whole games with a saved agent, and prints their returns; shows or records them.

    python enjoy.py runs/FOLDER        (--help lists every option)

The script in the run's folder makes the environment and the agent, so edited copies play too; its options, for example
--num-levels 0, may follow. A checkpoint without a script in its folder is played by the script beside enjoy.py that has
the name of the one that trained it.
"""

import contextlib
import dataclasses
import glob
import importlib.util
import inspect
import io
import os
import re
import sys
import time
import typing
import zipfile
from functools import partial
from pathlib import Path
from types import ModuleType

import gymnasium as gym
import numpy as np
import torch
import tyro

# What enjoy.py and export.py use of a script, and so what an edited copy must keep. "If any" is
# what a script may lack.
#
#   Args
#       a dataclass with env_id; of num_envs, num_minibatches, async_envs, capture_video, cuda and
#       bf16, those it has are set
#   make_envs(args)
#       a vector of environments. Without a folder it writes no files; with args.capture_video,
#       render() gives pictures
#   envs.load_state_dict(state)
#       of the vector or one of its wrappers, if the checkpoint has a part "envs"
#   Normalize
#       if any, a wrapper of the vector with `frozen`, which stops its statistics; if it
#       normalizes observations, then with obs_stats.mean and obs_stats.var
#   Seats
#       if any, the two players of a game are two environments, and there is no action_masks: a
#       mask is a part of the player's observation
#   valid_actions(obs, num_actions)
#       if any, which actions the observations of a player allow, bool [B, num_actions]; for --opponent random
#   Episodes
#       if any, a wrapper of each environment, which flattens observations to vectors
#   Agent(envs, ...)
#       an nn.Module; each further parameter has the name of an option, or is `args`, which has
#       all of them
#   agent(obs)
#       returns the policy, the values, and perhaps more
#   agent.initial_state(B)
#       if any, the agent is recurrent: agent(obs, state, dones) returns the policy, the values,
#       the next state, and perhaps more. A state is a tensor [layers, B, ...] or a tuple of such
#       tensors
#   policy.sample(generator), policy.mode()
#       actions as tensors
#   policy.log_prob(actions)
#       for export.py, unless the actions are those of a Box
#   policy.logits, policy.mean, policy.std
#       if any, outputs of the file that export.py writes: tensors [B, ...], or [1, ...] where one
#       row is for all observations; logits may be a list of them
#   action_masks(infos), policy.masked(masks)
#       if any, which actions are valid, and the policy of these; not beside Seats, as a Match
#       gives each player its own observations, but the infos of both
#   bound_actions(actions, space)
#       if any, what Normalize does to the actions of a Box, in torch; without it export.py clips
#       them
#   infos
#       of whole games: "episode", with "r" and "l", and "_episode", and perhaps "is_success", each
#       an array with one value for each game, also where Seats makes two environments of a game;
#       where a game is reset in the step that ends it, they are in infos["final_info"]


# The global step in the names of checkpoints, and of the copies of the script that a resume makes, as a pattern. It is
# the one in checkpoint_files() of the scripts and in benchmark/collect.py, each of which stands alone.
STEP = "[0-9]" * 12
FIRST_SEED = 1_000_000_000  # the games' seeds are far from those of training, which begin at --seed
PICTURES_HINT = "--render and --video need render() to return uint8 [H, W, 3] in rgb_array mode; MuJoCo needs libegl1"
SECONDS_OF_SILENCE = 10  # after this time a long game prints how far it is
# the extras that contain the packages which enjoy.py and export.py import only where they need them
EXTRAS = {"moviepy": "video", "onnx": "export", "onnxruntime": "export", "onnxscript": "export", "pygame": "video"}


@dataclasses.dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]  # the folder of a run, or a checkpoint
    episodes: int = 20  # number of whole games
    greedy: bool = False  # take the most likely action instead of a sample
    opponent: str | None = None  # in a game of two: a run, a checkpoint or "random"; by default the agent itself
    seed: int = 0  # seed of the first game; each next game has the next seed
    render: bool = False  # show the games in a window
    video: bool = False  # record the games: into the run's folder, or into videos/ for a checkpoint without one
    max_steps: int = 50_000  # a game that has not ended after so many steps is given up


class Saved(typing.NamedTuple):
    """A checkpoint, and the script that made it."""

    file: Path  # the checkpoint
    state: dict  # its contents: script, args, global_step, returns, parts
    script: ModuleType
    options: typing.Any  # script.Args
    trusted: bool = False  # whether a module that env_id names may be imported


def load(path, script_options=()):
    """Reads a checkpoint, or the newest of a run's folder, and imports its script: a Saved.

    `script_options` are words of the command line, which change the options in the checkpoint. No code in the
    checkpoint runs. Ends the program with a line if the contents are not those of a checkpoint; a damaged one is not
    replaced by an older one, as that would play another agent than the newest."""
    file = path
    if path.is_dir():
        files = sorted(path.glob(f"checkpoint_{STEP}.pt"))
        if not files:
            sys.exit(f"error: {path} has no checkpoint_<step>.pt")
        file = files[-1]
    state = read_state(file)
    beside = Path(__file__).resolve().with_name(f"{Path(state['script']).stem}.py")
    source = find_script(file, state, beside)
    script = import_script(source)
    default = options_of_checkpoint(script, state["args"], file)
    options = tyro.cli(script.Args, args=script_options, default=default, prog=source.name)
    # Security: whoever plays a folder runs the script in it anyway. A checkpoint alone must run no code but this
    # repository's, so the module of an env_id "module:Id" is imported only if the user has named it.
    has_own_script = source.resolve() != beside.resolve()
    is_named = False
    for word in script_options:  # "--env-id", "module:Id" or "--env-id=module:Id"
        if options.env_id in (word, word.partition("=")[2]):
            is_named = True
    return Saved(file, state, script, options, trusted=has_own_script or is_named)


def read_state(file):
    """The contents of a checkpoint: values and tensors, of the types that the scripts save."""
    data = file.read_bytes()
    state = None
    try:
        # torch.load does not verify the checksums
        damaged_part = zipfile.ZipFile(io.BytesIO(data)).testzip()
        if damaged_part is None:
            state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception:  # damaged bytes raise errors of many kinds
        pass
    if not isinstance(state, dict):
        sys.exit(f"error: {file} is damaged, or not a checkpoint of these scripts")
    kinds = {"script": str, "args": dict, "global_step": int, "returns": list, "parts": dict}
    for key, kind in kinds.items():
        if not isinstance(state.get(key), kind):
            value = type(state[key]).__name__ if key in state else "missing"
            sys.exit(f"error: {file} is not a checkpoint of these scripts: {key} is {value}, not {kind.__name__}")
    if not all(isinstance(number, int | float) for number in state["returns"]):
        sys.exit(f"error: {file} is not a checkpoint of these scripts: returns are not all numbers")
    return state


def find_script(file, state, beside):
    """The script that made a checkpoint: of the copies in its folder the newest older than the checkpoint, or `beside`.

    A resume adds a copy of the script, whose name ends with the step at which training was resumed."""
    name = Path(state["script"]).stem
    copies = sorted(file.parent.glob(f"{glob.escape(name)}_{STEP}.py"), reverse=True)
    candidates = []
    for copy in copies:
        _, _, step = copy.stem.rpartition("_")
        if int(step) < state["global_step"]:
            candidates.append(copy)
    candidates += [file.with_name(f"{name}.py"), beside]
    for source in candidates:
        if source.exists():
            return source
    sys.exit(f"error: {file} was made by {name}.py, which is neither in its folder nor beside enjoy.py")


def import_script(source):
    """Imports a script, under a name of its own: two runs may have different scripts of one name."""
    name = re.sub(r"\W", "_", str(source.resolve()))
    spec = importlib.util.spec_from_file_location(name, source)
    script = importlib.util.module_from_spec(spec)
    sys.modules[name] = script  # tyro finds the source of Args, with the help texts, by it
    # not spec.loader.exec_module(script), which would leave a __pycache__ in the run's folder
    code = compile(source.read_bytes(), source, "exec")
    exec(code, vars(script))
    for needed in ("Args", "make_envs", "Agent"):
        if not hasattr(script, needed):
            sys.exit(f"error: {source} is not a script of this repository: it has no {needed}")
    try:
        inspect.signature(script.make_envs).bind(None)
    except TypeError:  # make_envs(args) is not possible
        hint = "the enjoy.py of that version plays it, and run.json has its commit"
        sys.exit(f"error: {source} is of an earlier version, whose make_envs() needs more than the options; {hint}")
    return script


def options_of_checkpoint(script, args, file):
    """The script's Args with the options in a checkpoint, {name: value}.

    Options that the script does not have are named and left out."""
    script_name = Path(script.__file__).name
    annotations = typing.get_type_hints(script.Args)
    unknown = sorted(str(name) for name in args.keys() - annotations.keys())
    if unknown:
        print(f"options of the checkpoint that {script_name} does not have: {', '.join(unknown)}")
    options = {name: value for name, value in args.items() if name in annotations}
    for name, value in options.items():
        if not has_type(value, annotations[name]):
            sys.exit(f"error: {file} is not a checkpoint of {script_name}: {name} is {value!r}")
    return script.Args(**options)


def has_type(value, annotation):
    """Whether a value fits a type such as float or int | None; an integer is a float, too."""
    try:
        takes_floats = isinstance(0.0, annotation)
        return isinstance(value, annotation) or (takes_floats and isinstance(value, int))
    except TypeError:  # isinstance cannot tell, as for tuple[int, ...]
        return True


def describe_error(error):
    """An exception as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def make_envs(saved, render=False):
    """One environment of the run, or the two players of one game, with the checkpoint's statistics.

    render: whether envs.render() returns pictures."""
    env_id = saved.options.env_id
    if ":" in env_id and not saved.trusted:
        sys.exit(f"error: {saved.file} imports a module; if you trust {env_id}, add --env-id {env_id}")
    options = options_of_one_game(saved, render)
    try:
        envs = saved.script.make_envs(options)
    except (gym.error.Error, ModuleNotFoundError):
        raise  # an unknown env_id, a missing library: errors_as_lines() prints them
    except Exception as error:
        if not render:
            raise
        # of many kinds: an __init__ without render_mode, MuJoCo without EGL
        problem = f"with pictures, {env_id} cannot be made: {describe_error(error)}"
        sys.exit(f"error: {problem}; {PICTURES_HINT}")
    restore_statistics(envs, saved)
    return envs


def options_of_one_game(saved, render):
    """The options of a run, changed where the script has them: one game, in this process, on the CPU."""
    changes = {
        "num_envs": 2 if hasattr(saved.script, "Seats") else 1,
        "num_minibatches": 1,  # make_envs() of a recurrent script checks that it divides num_envs
        "async_envs": False,
        "capture_video": render,
        "cuda": False,
    }
    changes = {name: value for name, value in changes.items() if hasattr(saved.options, name)}
    return dataclasses.replace(saved.options, **changes)


def layers(envs):
    """A vector of environments from its outermost wrapper to the vector itself.

    It does not go into the environments, which may have attributes of any name."""
    yield envs
    while isinstance(envs, gym.vector.VectorWrapper):
        envs = envs.env
        yield envs


def restore_statistics(envs, saved):
    """Loads the statistics of the environments from the checkpoint, and freezes those of Normalize."""
    keepers = [layer for layer in layers(envs) if hasattr(layer, "load_state_dict")]
    if keepers:
        restore(keepers[0], "envs", saved)
    elif "envs" in saved.state["parts"]:
        script_name = Path(saved.script.__file__).name
        problem = f"it has statistics of environments, which {script_name} does not keep"
        sys.exit(f"error: {saved.file} is of an edited copy: {problem}")
    normalize = find_normalize(saved.script, envs)
    if normalize is not None:
        normalize.frozen = True


def find_normalize(script, envs):
    """The script's Normalize among the wrappers of a vector of environments, or None."""
    if hasattr(script, "Normalize"):
        for layer in layers(envs):
            if isinstance(layer, script.Normalize):
                return layer
    return None


def restore(part, name, saved):
    """Loads the state of a part from the checkpoint. Ends the program with a message if it does not fit."""
    if name not in saved.state["parts"]:
        sys.exit(f"error: {saved.file} has no part {name}")
    try:
        part.load_state_dict(saved.state["parts"][name])
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        script_name = Path(saved.script.__file__).name
        sys.exit(f"error: {saved.file}: its part {name} does not fit {script_name}: {describe_error(error)}")


def policy_and_state(agent, obs, state, dones, masks):
    """The policy for observations [B, ...], and the agent's next state.

    `state` is None if the agent has none; `masks`, bool [B, ...], is None if all actions are valid."""
    next_state = None
    if state is None:
        policy, *_ = agent(obs)
    else:
        policy, _values, next_state, *_ = agent(obs, state, dones)
    if masks is not None:
        policy = policy.masked(masks)
    return policy, next_state


def agent_arguments(script, options):
    """The arguments of a script's Agent after `envs`, {name: value}: options, and `args`, which has all of them.

    Ends the program if another one is needed. Prints a line where another one has its default, as training may have
    given it a value that the checkpoint does not hold."""
    available = vars(options) | {"args": options}
    _, *parameters = inspect.signature(script.Agent).parameters.values()
    arguments = {}
    for parameter in parameters:
        name = parameter.name
        if name in available:
            arguments[name] = available[name]
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue  # *args and **kwargs may stay empty
        elif parameter.default is parameter.empty:
            hint = "it must be args or have the name of an option"
            sys.exit(f"error: Agent in {script.__file__} has the parameter {name}: {hint}")
        else:
            hint = f"if it was trained with another value, {name} must become the name of an option"
            print(f"warning: Agent has {name}={parameter.default!r}, the default, as no option has this name: {hint}")
    return arguments


class Player:
    """A saved agent that plays, with its recurrent state and the generator of its samples."""

    def __init__(self, saved, envs, greedy=False):
        self.script = saved.script
        self.greedy = greedy
        self.generator = torch.Generator()
        self.state = None
        options = saved.options
        if hasattr(options, "bf16"):  # agents play in float32
            options = dataclasses.replace(options, bf16=False)
        self.agent = self.script.Agent(envs, **agent_arguments(self.script, options)).eval().requires_grad_(False)
        restore(self.agent, "agent", saved)

    def start_game(self, seed, batch_size):
        """Seeds the samples and forgets the last game.

        act() will get `batch_size` observations at a time."""
        self.generator.manual_seed(seed)
        if hasattr(self.agent, "initial_state"):
            self.state = self.agent.initial_state(batch_size)

    def get_masks(self, infos):
        """The masks of the valid actions as a tensor, or None where all are valid."""
        if hasattr(self.script, "action_masks"):
            return self.script.action_masks(infos)
        return None

    def next_policy(self, obs, dones, masks):
        """The policy for observations, an array [B, ...]; the agent goes on to its next state.

        dones, bool [B], is true where an observation is the first of its episode; masks is what get_masks() returns."""
        obs = torch.from_numpy(obs)
        dones = torch.from_numpy(dones)
        policy, self.state = policy_and_state(self.agent, obs, self.state, dones, masks)
        return policy

    def act(self, obs, dones, infos):
        """The actions for observations, an array [B, ...], as an array."""
        policy = self.next_policy(obs, dones, self.get_masks(infos))
        actions = policy.mode() if self.greedy else policy.sample(self.generator)
        return as_array(actions)


def as_array(tensor):
    """A tensor of actions or observations as an array.

    It is a copy: an environment may write into it, and mode() may share memory with a weight."""
    return tensor.cpu().numpy().copy()


class RandomPlayer:
    """Takes actions of equal probability: all of a Discrete space, or those that a script's valid_actions() allows."""

    def __init__(self, space, script):
        self.space = space
        self.valid_actions = getattr(script, "valid_actions", None)

    def start_game(self, seed, batch_size):
        """Seeds the actions."""
        self.space.seed(seed)

    def act(self, obs, dones, infos):
        """One random action, as an array."""
        mask = None
        if self.valid_actions is not None:
            [valid] = self.valid_actions(torch.from_numpy(obs), int(self.space.n))
            mask = valid.numpy().astype(np.int8)
        return np.array([self.space.sample(mask)])


class Match:
    """Two players at one game: the agent has seat 0, and its opponent seat 1."""

    def __init__(self, player, opponent):
        self.player = player
        self.opponent = opponent

    def start_game(self, seed, batch_size):
        """Starts a game for both, each of whom gets one observation at a time."""
        self.player.start_game(seed, batch_size=1)
        # another seed, as both would draw the same samples
        self.opponent.start_game(seed + 2**40, batch_size=1)

    def act(self, obs, dones, infos):
        """The actions of both, an array [2], for observations, an array [2, ...]."""
        player_action = self.player.act(obs[:1], dones[:1], infos)
        opponent_action = self.opponent.act(obs[1:], dones[1:], infos)
        return np.concatenate([player_action, opponent_action])


def make_match(player, envs, args):
    """The Match of a player and args.opponent. Ends the program with a message if there are no two players.

    Options on the command line are the player's: the opponent's script may not have them."""
    if not hasattr(player.script, "Seats"):
        script_name = Path(player.script.__file__).name
        sys.exit(f"error: --opponent: {script_name} is not for games of two players")
    if args.opponent == "random":
        return Match(player, RandomPlayer(envs.single_action_space, player.script))
    saved = load(Path(args.opponent))
    if "envs" in saved.state["parts"]:
        problem = "has statistics of environments of its own, and the game has those of the agent"
        sys.exit(f"error: --opponent: {saved.file} {problem}")
    return Match(player, Player(saved, envs, args.greedy))


def draw(envs):
    """A picture of the first environment, uint8 [H, W, 3]. Ends the program with a message if there is none."""
    if envs.render_mode != "rgb_array":
        sys.exit(f"error: the environment's render_mode is {envs.render_mode}; {PICTURES_HINT}")
    try:
        image = envs.render()[0]
    except (ImportError, gym.error.DependencyNotInstalled):
        raise  # a missing package: errors_as_lines() says what installs it
    except Exception as error:  # of many kinds: MuJoCo without EGL, None instead of a picture
        sys.exit(f"error: the environment cannot draw: {describe_error(error)}; {PICTURES_HINT}")
    is_image = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3
    if not is_image or image.shape[2] != 3:
        sys.exit(f"error: the environment's pictures are of another kind; {PICTURES_HINT}")
    return image


def frames_per_second(envs):
    """How many steps are shown in a second: the environment's render_fps, or 15 if it has none."""
    fps = envs.metadata.get("render_fps")
    if isinstance(fps, int | float) and fps > 0:
        return fps
    return 15


def show(image, fps):
    """Shows an image, uint8 [H, W, 3], in a window for one frame. Closing the window acts as Ctrl-C."""
    import pygame

    screen = pygame.display.get_surface()
    if screen is None:
        height, width, _ = image.shape
        try:
            screen = pygame.display.set_mode((width, height), pygame.SCALED)
        except pygame.error as error:
            sys.exit(f"error: --render has no window: {error}; --video records the games without one")
        # without a display, SDL draws where nobody sees it
        if pygame.display.get_driver() == "offscreen" and not os.environ.get("SDL_VIDEODRIVER"):
            sys.exit("error: --render needs a display; --video records the games without one")
    pygame.surfarray.blit_array(screen, image.swapaxes(0, 1))
    pygame.display.flip()
    time.sleep(1 / fps)
    events = pygame.event.get()  # all kinds, or those that nobody takes would pile up
    if any(event.type == pygame.QUIT for event in events):
        raise KeyboardInterrupt


class Video:
    """A video that is written frame by frame, as the frames of a long game may not fit into memory."""

    def __init__(self, path, fps):
        self.path = path
        self.fps = fps
        self.writer = None
        self.shape = None

    def write(self, image):
        """Appends an image, uint8 [H, W, 3]. All must have one size."""
        if self.writer is None:
            from moviepy.video.io.ffmpeg_writer import FFMPEG_VideoWriter

            self.path.parent.mkdir(parents=True, exist_ok=True)
            height, width, _ = image.shape
            self.writer = FFMPEG_VideoWriter(str(self.path), (width, height), self.fps)
            self.shape = image.shape
        if image.shape != self.shape:
            sys.exit(f"error: a video has one size, and the pictures change from {self.shape} to {image.shape}")
        self.writer.write_frame(image)

    def close(self):
        """Ends the file, if anything was written."""
        if self.writer is not None:
            self.writer.close()


def video_folder(file):
    """A new folder for the videos of a checkpoint.

    It is in the run's folder, or in videos/ of the current folder if the checkpoint is in no run's."""
    now = time.strftime("%Y%m%d-%H%M%S")
    if file.with_name("run.json").exists():
        return file.with_name(f"videos-{now}")
    return Path("videos", f"{file.stem}-{now}")


class Game(typing.NamedTuple):
    """The result of a game."""

    score: float  # its return
    length: int
    success: bool | None  # None: the environment does not say


def play_game(envs, player, number, args, viewers=()):
    """Plays a whole game: a Game, or None if it has not ended after args.max_steps steps.

    number: 0, 1, ..., added to the seed; viewers: functions that get a picture before each step.
    The last state is in no picture, as the environment is reset in the step that ends a game."""
    seed = args.seed + FIRST_SEED + number
    torch.manual_seed(seed)  # for agents that draw noise in their networks
    obs, infos = envs.reset(seed=seed)
    player.start_game(seed, batch_size=len(obs))
    dones = np.ones(len(obs), dtype=bool)  # the first observations begin episodes
    last_message = time.monotonic()
    for step in range(args.max_steps):
        if time.monotonic() - last_message > SECONDS_OF_SILENCE:
            print(f"game {number + 1}: {step} steps so far", flush=True)
            last_message = time.monotonic()
        if viewers:
            image = draw(envs)
            for view in viewers:
                view(image)
        obs, _, terminated, truncated, infos = envs.step(player.act(obs, dones, infos))
        dones = terminated | truncated
        # the infos of a last step: with AutoresetMode.SAME_STEP they are in "final_info",
        # and with NEXT_STEP in infos itself
        last_info = infos.get("final_info", infos)
        # not dones: a lost life of an Atari game ends an episode of training, but not the game
        game_has_ended = np.any(last_info.get("_episode", False))
        if game_has_ended:
            # arrays of one number, as there is one game, of one player or two
            score = last_info["episode"]["r"].item()
            length = last_info["episode"]["l"].item()
            success = bool(last_info["is_success"][0]) if "is_success" in last_info else None
            return Game(score, length, success)
    return None


def play_and_show(envs, player, number, args, video):
    """play_game() with the viewers that the options ask for. Closes the Video `video` afterwards.

    Without args.video nothing is written into it, and it makes no file."""
    viewers = []
    if args.render:
        viewers.append(partial(show, fps=video.fps))
    if args.video:
        viewers.append(video.write)
    with contextlib.closing(video):
        return play_game(envs, player, number, args, viewers)


def describe_training(saved):
    """The mean return in training, in words, and of which environment if another one is played."""
    returns = saved.state["returns"]
    trained_on = saved.state["args"].get("env_id")
    text = "no episode ended in training"
    if returns:
        text = f"mean return in training {np.mean(returns):.4g}"
    if trained_on != saved.options.env_id:
        text += f" on {trained_on}"
    return text


def describe_game(number, game, args):
    """The result of game `number`, a Game or None, as a line."""
    if game is None:
        return f"game {number + 1}: no end after {args.max_steps} steps, so no return (--max-steps)"
    text = f"game {number + 1}: return {game.score:g}, length {game.length}"
    if game.success is not None:
        text += ", success" if game.success else ", no success"
    return text


def describe(results, args):
    """The results of all games, each a Game or None, as a line."""
    games = [game for game in results if game is not None]
    unfinished = len(results) - len(games)
    if not games:
        return f"0 games; {unfinished} did not end"
    scores = [game.score for game in games]
    text = f"mean {np.mean(scores):.4g}, std {np.std(scores):.4g}"
    text += f", min {min(scores):g}, max {max(scores):g}"
    if args.opponent is not None:
        signs = [np.sign(score) for score in scores]
        text += f", won {signs.count(1)}, drawn {signs.count(0)}, lost {signs.count(-1)}"
    successes = [game.success for game in games]
    if any(success is not None for success in successes):
        text += f", success in {successes.count(True)}"
    if unfinished:
        text += f"; without {unfinished} that did not end"
    return f"{len(games)} games: {text}"


def close(envs):
    """Closes the environments; what they do wrong then is a warning, as the games were played."""
    try:
        envs.close()
    except Exception as error:
        print(f"warning: the environment's close() failed: {describe_error(error)}")


def enjoy(args, script_options=()):
    """Plays the games, prints their results, and returns the returns of those that ended.

    `script_options` are words of the command line, options of the script."""
    if args.episodes < 1 or args.max_steps < 1:
        sys.exit("error: --episodes and --max-steps must be at least 1")
    if not 0 <= args.seed < 2**31:
        sys.exit("error: --seed must be from 0 to 2**31 - 1")
    torch.set_num_threads(1)  # one observation at a time has no work for more
    saved = load(args.run, script_options)
    envs = make_envs(saved, render=args.render or args.video)
    player = Player(saved, envs, args.greedy)
    if args.opponent is not None:
        player = make_match(player, envs, args)
    print(f"{saved.file}: {saved.options.env_id}, {describe_training(saved)}")
    print(f"to replay a game alone: --seed {args.seed} for game 1, --seed {args.seed + 1} for game 2, ...", flush=True)
    fps = frames_per_second(envs)
    folder = video_folder(saved.file)
    results = []
    try:
        for number in range(args.episodes):
            video = Video(folder / f"game-{number + 1}.mp4", fps)
            game = play_and_show(envs, player, number, args, video)
            results.append(game)
            print(describe_game(number, game, args), flush=True)
    finally:  # after Ctrl-C, too
        if results:
            print(describe(results, args))
        if folder.exists():  # the first frame of a video makes it
            print(f"videos: {folder}")
        close(envs)
    return [game.score for game in results if game is not None]


@contextlib.contextmanager
def errors_as_lines():
    """Ends the program with a line, without a traceback, after an error that a user can put right."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        module_name = getattr(error, "name", None) or ""
        package = module_name.split(".")[0]
        if package in EXTRAS:
            command = f"pip install -c constraints.txt '.[{EXTRAS[package]}]'"
            sys.exit(f"error: {error}; this installs what is missing: {command}")
        hint = "install an extra (docs/install.md), or add the folder of your module to PYTHONPATH"
        sys.exit(f"error: {error} ({hint})")
    except (OSError, gym.error.Error) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")


def main():
    sys.path.append(str(Path(__file__).parent))  # where the script is a symbolic link, Python has only its target's
    with errors_as_lines():
        args, script_options = tyro.cli(Args, description=__doc__, return_unknown_args=True)
        enjoy(args, script_options)


if __name__ == "__main__":
    main()
