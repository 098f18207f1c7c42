# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium[mujoco]>=1.4", "numpy>=2.0", "tensorboard>=2.21", "torch>=2.13,<2.16", "tqdm>=4.67",
#   "tyro>=1.0",
#   "ale-py>=0.12", "opencv-python-headless>=4.11", "moviepy>=2.2", "pygame-ce>=2.5",
# ]
# ///
"""Plays whole games with a saved agent, and prints their returns; shows or records them.

    python enjoy.py runs/FOLDER        (--help lists every option)

A folder of several runs, such as runs, stands for the run in it that saved last.
The script in the run's folder makes the environment and the agent, so edited copies play too; its options, for example
--num-levels 0, may follow. A checkpoint without a script in its folder is played by the script beside enjoy.py that has
the name of the one that trained it.
"""

import dataclasses
import inspect
import os
import sys
import time
import typing
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import tyro

from saved import load, missing_extra_named

FIRST_SEED = 1_000_000_000  # the games' seeds are far from those of training, which begin at --seed
RECORDED = "obs", "actions", "rewards", "dones"  # the arrays of --record
SECONDS_OF_SILENCE = 10  # after this time a long game prints how far it is


@dataclasses.dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]  # the folder of a run or of several runs, or a checkpoint
    episodes: int = 20  # number of whole games
    greedy: bool = False  # take the most likely action instead of a sample, which may repeat itself forever
    opponent: str | None = None  # in a game of two: a run, a checkpoint or "random"; by default the agent itself
    seed: int = 0  # seed of the first game; each next game has the next seed
    render: bool = False  # show the games in a window
    video: bool = False  # record the games: into the run's folder, or into videos/ for a checkpoint without one
    record: Path | None = None  # a new file, .npz, for the observations and actions of the games
    max_steps: int = 50_000  # a game that has not ended after so many steps is given up


def make_envs(saved, render=False):
    """One environment of the run, or the two players of one game, with the checkpoint's statistics.

    render: whether envs.render() returns pictures."""
    env_id = saved.options.env_id
    if ":" in env_id and not saved.trusted:
        sys.exit(f"error: {saved.file} imports a module; if you trust {env_id}, add --env-id {env_id}")
    envs = saved.script.make_envs(options_of_one_game(saved, render))
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
    """Loads the statistics of the environments from the checkpoint, and freezes them."""
    keeper = next((layer for layer in layers(envs) if hasattr(layer, "load_state_dict")), None)
    if keeper is not None:
        keeper.load_state_dict(saved.state["parts"]["envs"])
    elif "envs" in saved.state["parts"]:
        script_name = Path(saved.script.__file__).name
        sys.exit(f"error: {saved.file} has statistics of environments, which {script_name} does not keep")
    for layer in layers(envs):
        if "frozen" in vars(layer):  # Normalize, or a wrapper like it
            layer.frozen = True


def find_normalize(script, envs):
    """The script's Normalize among the wrappers of a vector of environments, or None.

    Ends the program if another wrapper has statistics, such as the recipe codes's: a file would lack them."""
    for layer in layers(envs):
        if isinstance(layer, getattr(script, "Normalize", ())):
            return layer
        if hasattr(layer, "load_state_dict"):
            sys.exit(f"error: the statistics of {type(layer).__name__} fit no file; those of a Normalize alone do")
    return None


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

    Prints a line where a parameter that is no option has its default, as training may have given it a value that the
    checkpoint does not hold."""
    available = vars(options) | {"args": options}
    _, *parameters = inspect.signature(script.Agent).parameters.values()
    arguments = {}
    for parameter in parameters:
        name = parameter.name
        if name in available:
            arguments[name] = available[name]
        elif parameter.default is not parameter.empty:
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
        self.agent.load_state_dict(saved.state["parts"]["agent"])

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


class Recorder(gym.vector.VectorWrapper):
    """Keeps copies, as arrays, of the last observations and actions that passed through this wrapper.

    `steps` has (observation, action, reward, done) of each step of the first environment."""

    def __init__(self, env):
        super().__init__(env)
        self.steps = []

    def reset(self, **options):
        obs, infos = self.env.reset(**options)
        self.obs = as_array(torch.as_tensor(obs))
        return obs, infos

    def step(self, actions):
        obs_before = self.obs
        self.actions = as_array(torch.as_tensor(actions))
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        self.obs = as_array(torch.as_tensor(obs))
        done = bool(terminated[0] or truncated[0])
        self.steps.append((obs_before[0], self.actions[0], float(rewards[0]), done))
        return obs, rewards, terminated, truncated, infos

    def save(self, file):
        """Writes the steps as numpy's arrays obs, actions, rewards and dones; docs/runs.md describes the format."""
        columns = zip(*self.steps, strict=True)
        arrays = {name: np.stack(column) for name, column in zip(RECORDED, columns, strict=True)}
        with open(file, "xb") as opened:
            np.savez_compressed(opened, **arrays)


def record_inside(envs, normalize):
    """Puts a Recorder directly inside Normalize: (envs, recorder).

    The Recorder sees the observations that Normalize gets and the actions that it passes on. If `normalize` is None,
    the Recorder is around everything."""
    if normalize is None:
        recorder = Recorder(envs)
        return recorder, recorder
    recorder = Recorder(normalize.env)
    normalize.env = recorder
    return envs, recorder


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
    """The Match of a player and args.opponent.

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


def as_picture(rendered):
    """What an environment's render() returned as uint8 [H, W, 3].

    Of a list of frames it takes the last. Gray is repeated, alpha is dropped, and floats in [0, 1] are scaled."""
    image = np.asarray(rendered[-1] if isinstance(rendered, list) else rendered)
    if image.ndim == 2:
        image = image[..., np.newaxis]
    if image.ndim != 3 or image.shape[-1] not in (1, 3, 4):
        found = f"{type(rendered).__name__} of the shape {image.shape}"
        sys.exit(f"error: the environment's render() must return an image, [H, W, 3], and returns {found}")
    if image.dtype.kind in "bf" and image.max() <= 1:
        image = image * 255.0
    if image.shape[-1] == 1:
        image = image.repeat(3, axis=-1)
    return image[..., :3].clip(0, 255).astype(np.uint8)


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
        screen = pygame.display.set_mode((width, height), pygame.SCALED)
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
        """Ends the file, if there is one."""
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
            image = as_picture(envs.render()[0])
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


def play_and_show(envs, player, number, args, folder):
    """play_game() with the viewers that the options ask for; a video goes into the folder."""
    fps = frames_per_second(envs)
    viewers = []
    video = None
    if args.render:
        viewers.append(partial(show, fps=fps))
    if args.video:
        video = Video(folder / f"game-{number + 1}.mp4", fps)
        viewers.append(video.write)
    try:
        return play_game(envs, player, number, args, viewers)
    finally:
        if video is not None:
            video.close()


def describe_training(saved):
    """The mean return in training, in words, and of which environment if another one is played."""
    returns = saved.state["returns"]
    trained_on = saved.state["args"]["env_id"]
    text = "no episode ended in training"
    if returns:
        text = f"mean return in training {np.mean(returns):.4g}"
    if trained_on != saved.options.env_id:
        text += f" on {trained_on}"
    best = saved.state["parts"].get("best", {})  # of the recipes for evaluation
    if saved.file.name == "best.pt" and "mean" in best:
        text += f", in its evaluation {best['mean']:.4g}"
    return text


def explain_greedy_scores(scores, saved):
    """A line that explains why greedy games have much lower scores than training, or None where they have not.

    Much lower is by the standard deviation of the returns, and by three standard errors of a mean of so many games. The
    returns of training are those of the last 100 episodes, with samples."""
    returns = saved.state["returns"]
    if not scores or not returns:
        return None
    margin = np.std(returns) * max(1, 3 / np.sqrt(len(scores)))
    if np.mean(scores) >= np.mean(returns) - margin:
        return None
    reason = "where states look alike to the agent, its most likely actions may go in circles"
    return f"the greedy games scored lower than training, which samples the actions: {reason}; compare without --greedy"


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


def enjoy(args, script_options=()):
    """Plays the games, prints their results, and returns the returns of those that ended.

    `script_options` are words of the command line, options of the script."""
    torch.set_num_threads(1)  # one observation at a time has no work for more
    saved = load(args.run, script_options)
    envs = make_envs(saved, render=args.render or args.video)
    if args.record is not None:
        if args.record.exists():
            sys.exit(f"error: {args.record} exists")
        args.record.parent.mkdir(parents=True, exist_ok=True)
        envs, recorder = record_inside(envs, find_normalize(saved.script, envs))
    player = Player(saved, envs, args.greedy)
    if args.opponent is not None:
        player = make_match(player, envs, args)
    print(f"{saved.file}: {saved.options.env_id}, {describe_training(saved)}")
    seeds = f"--seed {args.seed} for game 1, --seed {args.seed + 1} for game 2, ..."
    print(f"to replay a game alone: --episodes 1 and {seeds}", flush=True)
    folder = video_folder(saved.file)
    results = []
    try:
        for number in range(args.episodes):
            game = play_and_show(envs, player, number, args, folder)
            results.append(game)
            print(describe_game(number, game, args), flush=True)
    finally:  # after Ctrl-C, too
        if results:
            print(describe(results, args))
        if args.record is not None and recorder.steps:
            recorder.save(args.record)
            print(f"{len(recorder.steps)} steps: {args.record}")
        if folder.exists():  # the first frame of a video makes it
            print(f"videos: {folder}")
        envs.close()
    scores = [game.score for game in results if game is not None]
    if args.greedy and not script_options and args.opponent is None:
        explanation = explain_greedy_scores(scores, saved)
        if explanation is not None:
            print(explanation)
    return scores


def main():
    args, script_options = tyro.cli(Args, description=__doc__, return_unknown_args=True)
    try:
        with missing_extra_named():
            enjoy(args, script_options)
    except KeyboardInterrupt:  # also where the window was closed
        sys.exit(130)


if __name__ == "__main__":
    main()
