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
--num-levels 0, may follow. A checkpoint outside its folder is played by the script of that name beside enjoy.py.
"""

import contextlib
import dataclasses
import glob
import importlib.util
import inspect
import io
import re
import sys
import time
import typing
import zipfile
from pathlib import Path
from types import ModuleType

import gymnasium as gym
import numpy as np
import torch
import tyro

# What enjoy.py and export.py use of a script, and so what an edited copy must keep:
#
#   Args                   its options
#   make_envs(args)        the vector of environments; without a folder it records nothing, and capture_video renders
#   Agent(envs, ...)       further parameters are options by their names, or `args` for all of them
#   policy, value, *rest = agent(obs)
#                          with initial_state(num_envs), it is agent(obs, state, dones), and rest[0] is the next state
#   policy.sample(generator) and policy.mode()
#                          actions as tensors
#   action_masks(infos)    where it exists, the policy is policy.masked(action_masks(infos))
#   Normalize              where it exists, a wrapper of the vector; its statistics stay as they were saved
#   Seats                  where it exists, the two players of a game are two environments
#   infos["final_info"]    "episode" (with "r" and "l") and "_episode" of whole games, and perhaps "is_success"

STEP = "[0-9]" * 12  # the global step in the names of checkpoints, and of the copies of the script that a resume makes
FIRST_SEED = 1_000_000_000  # the games' seeds are far from those of training, which begin at --seed
PICTURES = "--render and --video need render() to return uint8 [H, W, 3] in rgb_array mode; MuJoCo needs libegl1"
SECONDS_OF_SILENCE = 10  # after this time a long game prints how far it is


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


def load(path, words=()):
    """Reads a checkpoint, or the newest of a run's folder, and imports the script that made it: a Saved.

    `words` are options of the script from the command line. No code in the checkpoint runs. Ends the program with a
    line if the file or its contents are not those of a checkpoint."""
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
    default = saved_options(script, state["args"], file)
    options = tyro.cli(script.Args, args=words, default=default, prog=source.name)
    if source.resolve() == beside and ":" in options.env_id and not any(options.env_id in word for word in words):
        sys.exit(f"error: {file} imports a module; if you trust {options.env_id}, add --env-id {options.env_id}")
    return Saved(file, state, script, options)


def read_state(file):
    """The contents of a checkpoint: plain values and tensors, of the types that the scripts save."""
    data = file.read_bytes()
    state = None
    try:
        if zipfile.ZipFile(io.BytesIO(data)).testzip() is None:  # torch.load does not verify the checksums
            state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception:  # damaged bytes raise errors of many kinds
        pass
    if not isinstance(state, dict):
        sys.exit(f"error: {file} is damaged, or not a checkpoint of these scripts")
    for key, kind in {"script": str, "args": dict, "global_step": int, "returns": list, "parts": dict}.items():
        if not isinstance(state.get(key), kind):
            value = type(state[key]).__name__ if key in state else "missing"
            sys.exit(f"error: {file} is not a checkpoint of these scripts: {key} is {value}, not {kind.__name__}")
    if not all(isinstance(number, int | float) for number in state["returns"]):
        sys.exit(f"error: {file} is not a checkpoint of these scripts: returns are not all numbers")
    return state


def find_script(file, state, beside):
    """The script that made a checkpoint: the newest copy in its folder from before it, or the script `beside`."""
    name = Path(state["script"]).stem
    resumes = sorted(file.parent.glob(f"{glob.escape(name)}_{STEP}.py"), reverse=True)
    earlier = [copy for copy in resumes if int(copy.stem[-12:]) < state["global_step"]]
    for source in [*earlier, file.with_name(f"{name}.py"), beside]:
        if source.exists():
            return source
    sys.exit(f"error: {file} was made by {name}.py, which is neither in its folder nor beside enjoy.py")


def import_script(source):
    """Imports a script, under a name of its own, as two runs may have different scripts of one name."""
    name = re.sub(r"\W", "_", str(source.resolve()))
    spec = importlib.util.spec_from_file_location(name, source)
    script = importlib.util.module_from_spec(spec)
    sys.modules[name] = script  # tyro finds the source of Args, with the help texts, by it
    # exec_module() would leave a __pycache__ in the run's folder
    exec(spec.loader.source_to_code(source.read_bytes(), str(source)), vars(script))
    for needed in ("Args", "make_envs", "Agent"):
        if not hasattr(script, needed):
            sys.exit(f"error: {source} is not a script of this repository: it has no {needed}")
    required = [each for each in inspect.signature(script.make_envs).parameters.values() if each.default is each.empty]
    if len(required) > 1:  # the folder is one of them
        sys.exit(f"error: {source} is of an earlier version; the enjoy.py of that version plays it (run.json: commit)")
    return script


def saved_options(script, saved, file):
    """The script's Args with the options in a checkpoint; those that the script lacks are named and left out."""
    types = typing.get_type_hints(script.Args)
    unknown = sorted(str(name) for name in saved.keys() - types.keys())
    if unknown:
        print(f"options of the checkpoint that {Path(script.__file__).name} does not have: {', '.join(unknown)}")
    options = {name: value for name, value in saved.items() if name in types}
    for name, value in options.items():
        if not has_type(value, types[name]):
            sys.exit(f"error: {file} is not a checkpoint of {Path(script.__file__).name}: {name} is {value!r}")
    return script.Args(**options)


def has_type(value, annotation):
    """Whether a value fits a type such as float or int | None; an integer is a float, too."""
    try:
        return isinstance(value, annotation) or (isinstance(value, int) and isinstance(0.0, annotation))
    except TypeError:  # isinstance cannot tell, as for tuple[int, ...]
        return True


def describe_error(error):
    """An exception as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def make_envs(saved, render=False):
    """One environment of the run, or the two players of one game, with the statistics in the checkpoint.

    render: whether envs.render() returns pictures."""
    players = 2 if hasattr(saved.script, "Seats") else 1
    changes = {"num_envs": players, "num_minibatches": 1, "async_envs": False, "capture_video": render}
    changes = {name: value for name, value in changes.items() if hasattr(saved.options, name)}
    try:
        envs = saved.script.make_envs(dataclasses.replace(saved.options, **changes))
    except (gym.error.Error, ModuleNotFoundError):
        raise
    except Exception as error:
        if not render:
            raise
        # of many kinds: an __init__ without render_mode, MuJoCo without EGL
        sys.exit(f"error: {saved.options.env_id} cannot draw: {describe_error(error)}; {PICTURES}")
    if hasattr(envs, "load_state_dict"):
        restore(envs, "envs", saved)
    elif "envs" in saved.state["parts"]:
        name = Path(saved.script.__file__).name
        sys.exit(f"error: {saved.file} has statistics of environments, and {name} none: it is of an edited copy")
    normalize = find_normalize(saved.script, envs)
    if normalize is not None:
        normalize.frozen = True
    return envs


def find_normalize(script, envs):
    """The script's Normalize among the wrappers of a vector of environments, or None.

    Only wrappers are looked at: an environment may have attributes of any name."""
    while isinstance(envs, gym.vector.VectorWrapper):
        if hasattr(script, "Normalize") and isinstance(envs, script.Normalize):
            return envs
        envs = envs.env
    return None


def restore(part, name, saved):
    """Loads the state of a part from the checkpoint; ends the program with a line if it does not fit."""
    if name not in saved.state["parts"]:
        sys.exit(f"error: {saved.file} has no part {name}")
    try:
        part.load_state_dict(saved.state["parts"][name])
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        source = Path(saved.script.__file__).name
        sys.exit(f"error: {saved.file}: its part {name} does not fit {source}: {describe_error(error)}")


def policy_and_state(agent, obs, state, dones, masks):
    """The policy for observations [B, ...], and the agent's next state.

    `state` is None where the agent has none, and `masks`, bool [B, ...], where all actions are valid."""
    if state is None:
        policy, _, *_ = agent(obs)
        next_state = None
    else:
        policy, _, next_state, *_ = agent(obs, state, dones)
    if masks is not None:
        policy = policy.masked(masks)
    return policy, next_state


class Player:
    """A saved agent that plays: it holds the state of a recurrent agent and the generator of the samples."""

    def __init__(self, saved, envs, greedy=False):
        self.script = saved.script
        self.greedy = greedy
        self.generator = torch.Generator()
        self.state = None
        values = vars(saved.options) | {"args": saved.options}
        parameters = inspect.signature(self.script.Agent).parameters
        # agents play in float32
        arguments = {name: values[name] for name in parameters if name in values and name != "bf16"}
        self.agent = self.script.Agent(envs, **arguments).eval().requires_grad_(False)
        restore(self.agent, "agent", saved)

    def start_game(self, seed, num_envs):
        """Seeds the samples, and forgets the last game; `num_envs` is the number of players in one."""
        self.generator.manual_seed(seed)
        if hasattr(self.agent, "initial_state"):
            self.state = self.agent.initial_state(num_envs)

    def get_masks(self, infos):
        """The masks of the valid actions as a tensor, or None where all are valid."""
        if hasattr(self.script, "action_masks"):
            return self.script.action_masks(infos)
        return None

    def get_policy(self, obs, dones, infos):
        """The policy for observations, an array [B, ...]; dones, bool [B], is true where one begins an episode."""
        inputs = (torch.from_numpy(obs), self.state, torch.from_numpy(dones), self.get_masks(infos))
        policy, self.state = policy_and_state(self.agent, *inputs)
        return policy

    def act(self, obs, dones, infos):
        """The actions for observations, an array [B, ...], as an array."""
        policy = self.get_policy(obs, dones, infos)
        actions = policy.mode() if self.greedy else policy.sample(self.generator)
        return actions.numpy().copy()  # the environment may change its array, and a weight may be the original


class RandomPlayer:
    """Takes actions of equal probability from a space of actions."""

    def __init__(self, space):
        self.space = space

    def start_game(self, seed, num_envs):
        """Seeds the actions."""
        self.space.seed(seed)

    def act(self, obs, dones, infos):
        """One random action, as an array."""
        return np.array([self.space.sample()])


class Match:
    """Two players at one game: the agent has seat 0, and its opponent seat 1."""

    def __init__(self, player, opponent):
        self.player = player
        self.opponent = opponent

    def start_game(self, seed, num_envs):
        """Starts a game for both."""
        self.player.start_game(seed, 1)
        self.opponent.start_game(seed + 2**40, 1)  # the samples of both must not be the same

    def act(self, obs, dones, infos):
        """The actions of both, an array [2], for observations, an array [2, ...]."""
        action = self.player.act(obs[:1], dones[:1], infos)
        answer = self.opponent.act(obs[1:], dones[1:], infos)
        return np.append(action, answer)


def make_match(player, envs, args, words):
    """The Match of a player and args.opponent; ends the program if the game is not one of two players."""
    if not hasattr(player.script, "Seats"):
        sys.exit(f"error: --opponent: {Path(player.script.__file__).name} is not for games of two players")
    if args.opponent == "random":
        return Match(player, RandomPlayer(envs.single_action_space))
    return Match(player, Player(load(Path(args.opponent), words), envs, args.greedy))


def draw(envs):
    """A picture of the first environment, uint8 [H, W, 3]; ends the program with a line if there is none."""
    if envs.render_mode != "rgb_array":
        sys.exit(f"error: the environment's render_mode is {envs.render_mode}; {PICTURES}")
    try:
        image = envs.render()[0]
    except Exception as error:  # of many kinds: MuJoCo without EGL, None instead of a picture
        sys.exit(f"error: the environment cannot draw: {describe_error(error)}; {PICTURES}")
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        sys.exit(f"error: the environment's pictures are of another kind; {PICTURES}")
    return image


def frames_per_second(envs):
    """How many steps a second a game is shown with."""
    fps = envs.metadata.get("render_fps")
    if isinstance(fps, int | float) and fps > 0:
        return fps
    return 15


def show(image, fps):
    """Shows an image, uint8 [H, W, 3], in a window for one frame. Closing the window acts as Ctrl-C."""
    import pygame

    screen = pygame.display.get_surface()
    if screen is None:
        screen = pygame.display.set_mode(image.shape[1::-1], pygame.SCALED)
    pygame.surfarray.blit_array(screen, image.swapaxes(0, 1))
    pygame.display.flip()
    time.sleep(1 / fps)
    if pygame.event.get(pygame.QUIT):
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
            self.writer = FFMPEG_VideoWriter(str(self.path), image.shape[1::-1], self.fps)
            self.shape = image.shape
        if image.shape != self.shape:
            sys.exit(f"error: a video has one size, and the pictures change from {self.shape} to {image.shape}")
        self.writer.write_frame(image)

    def close(self):
        if self.writer is not None:
            self.writer.close()


def video_folder(file):
    """The folder for the videos of a checkpoint: in its run's folder, or without one in videos/ of this folder."""
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
    """Plays a whole game, and returns a Game, or None if it has not ended after args.max_steps steps.

    number: 0, 1, ..., added to the seed; viewers: functions that get a picture before each step."""
    seed = args.seed + FIRST_SEED + number
    torch.manual_seed(seed)  # for agents that draw noise in their networks
    obs, infos = envs.reset(seed=seed)
    player.start_game(seed, len(obs))
    dones = np.ones(len(obs), dtype=bool)  # the first observations begin episodes
    said = time.monotonic()
    for step in range(args.max_steps):
        if time.monotonic() - said > SECONDS_OF_SILENCE:
            print(f"game {number + 1}: {step} steps so far", flush=True)
            said = time.monotonic()
        if viewers:
            image = draw(envs)
            for view in viewers:
                view(image)
        obs, _, terminated, truncated, infos = envs.step(player.act(obs, dones, infos))
        dones = terminated | truncated
        last_info = infos.get("final_info", infos)  # with AutoresetMode.NEXT_STEP it is in infos itself
        if np.any(last_info.get("_episode", False)):  # a whole game: a lost life of an Atari game is only in dones
            score = last_info["episode"]["r"].item()
            length = last_info["episode"]["l"].item()
            success = bool(last_info["is_success"][0]) if "is_success" in last_info else None
            return Game(score, length, success)
    return None


def describe_training(saved):
    """The mean return in training, in words, and of which environment if another one is played."""
    returns = saved.state["returns"]
    trained_on = saved.state["args"].get("env_id")
    text = f"mean return in training {np.mean(returns):.4g}" if returns else "no episode ended in training"
    return text if trained_on == saved.options.env_id else f"{text} on {trained_on}"


def describe(games, unfinished, args):
    """The results of the games as a line."""
    scores = [game.score for game in games]
    text = f"mean {np.mean(scores):.4g}, std {np.std(scores):.4g}, min {min(scores):g}, max {max(scores):g}"
    if args.opponent is not None:
        won, drawn, lost = (np.sum(np.sign(scores) == sign) for sign in (1, 0, -1))
        text += f", won {won}, drawn {drawn}, lost {lost}"
    if any(game.success is not None for game in games):
        text += f", success in {sum(bool(game.success) for game in games)}"
    if unfinished:
        text += f"; without {unfinished} that did not end"
    return f"{len(games)} games: {text}"


def enjoy(args, words=()):
    """Plays the games, prints their returns, and returns these. `words` are options of the script."""
    if args.episodes < 1 or args.max_steps < 1 or args.seed < 0:
        sys.exit("error: --episodes and --max-steps must be at least 1, --seed at least 0")
    torch.set_num_threads(1)
    saved = load(args.run, words)
    envs = make_envs(saved, render=args.render or args.video)
    player = Player(saved, envs, args.greedy)
    if args.opponent is not None:
        player = make_match(player, envs, args, words)
    print(f"{saved.file}: {saved.options.env_id}, {describe_training(saved)}")
    print(f"--seed {args.seed} is that of game 1; --seed {args.seed + 1} begins with game 2", flush=True)
    fps = frames_per_second(envs)
    folder = video_folder(saved.file)
    games = []
    unfinished = 0
    try:
        for number in range(args.episodes):
            video = Video(folder / f"game-{number + 1}.mp4", fps)
            viewers = []
            if args.render:
                viewers.append(lambda image: show(image, fps))
            if args.video:
                viewers.append(video.write)
            try:
                game = play_game(envs, player, number, args, viewers)
            finally:
                video.close()
            if game is None:
                unfinished += 1
                print(f"game {number + 1}: no end after {args.max_steps} steps, so no return (--max-steps)", flush=True)
                continue
            games.append(game)
            text = f"game {number + 1}: return {game.score:g}, length {game.length}"
            if game.success is not None:
                text += ", success" if game.success else ", no success"
            print(text, flush=True)
    finally:
        if games:
            print(describe(games, unfinished, args))
        if folder.exists():
            print(f"videos: {folder}")
        try:
            envs.close()
        except Exception as error:  # of the environment's own code; the games were played
            print(f"warning: the environment's close() failed: {describe_error(error)}")
    return [game.score for game in games]


@contextlib.contextmanager
def errors_as_lines():
    """Ends the program with one line, without a traceback, after an error that the user can put right."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        sys.exit(f"error: {error} (an extra of docs/install.md, or a folder that PYTHONPATH lacks)")
    except (OSError, gym.error.Error) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")


def main():
    with errors_as_lines():
        args, words = tyro.cli(Args, description=__doc__, return_unknown_args=True)
        if "--export" in words:
            sys.exit(f"error: python export.py {args.run} FILE.onnx exports the agent")
        enjoy(args, words)


if __name__ == "__main__":
    main()
