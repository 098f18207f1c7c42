# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium[mujoco]>=1.4", "numpy>=2.0", "tensorboard>=2.20", "torch>=2.13,<2.16", "tqdm>=4.67",
#   "tyro>=1.0",
#   "ale-py>=0.12", "opencv-python-headless>=4.11", "moviepy>=2.2", "pygame-ce>=2.5",
# ]
# ///
"""Plays whole games with a saved agent of any of the scripts, or of an edited copy of one; tells, shows or films them.

    python enjoy.py runs/CartPole-v1__ppo__1__20261122-092953-204117        (python enjoy.py --help lists every option)

The run's folder holds the script that made it: environments and agent are rebuilt by that very file. A checkpoint
that lies without it is rebuilt by the script of that name beside enjoy.py.
"""

import dataclasses
import importlib.util
import inspect
import json
import os
import pickle
import re
import signal
import sys
import tempfile
import time
import zipfile
from pathlib import Path

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the imports below without a traceback

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import nn

NEW_GAMES = 1_000_000  # what is added to the seed: a run's own games have its seed and those that follow
LONGEST_FILM = 10_000  # frames; each stays in memory until its film is written
# The planes of Gym-µRTS: hit points, resources, owner (nobody, the agent, its enemy), unit, and what it is doing
MICRORTS = (5, 5, 3, 8, 6)
UNITS = "", "ore", "base", "barr.", "work.", "light", "heavy", "rang."


@dataclasses.dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]  # folder of a run, or one of its checkpoints
    episodes: int = 20  # whole games to play
    greedy: bool = False  # take the likeliest action, not a sample
    opponent: str | None = None  # in a game of two, a run, a checkpoint or "random"; without, the agent plays itself
    seed: int = 0  # of the games and the samples
    set: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()  # options of the script, as in num_levels=0
    video: bool = False  # film every game
    video_folder: Path | None = None  # where the films go instead of the run's folder
    render: bool = False  # show the games in a window
    trust: bool = False  # load a checkpoint even if it can run code or imports a module: it is your own


def is_whole(path):
    """Whether a checkpoint is all there: a zip file, every part of which has its checksum."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except PermissionError:
        raise
    except Exception:  # damaged bytes can raise anything
        return False


def load(path, trust=False):
    """(state, file) of a run's newest checkpoint, or of the one given. Runs no code out of it, unless trusted.

    Raises SystemExit where there is none, or it is damaged (names the one before), or needs trust."""
    files = sorted(path.glob("checkpoint_*.pt")) if path.is_dir() else [path]
    if not files or not files[-1].exists():
        sys.exit(f"error: {path}: " + ("there is no checkpoint in this folder" if path.is_dir() else "no such file"))
    file = files[-1]
    if not is_whole(file):
        before = [f for f in sorted(file.parent.glob("checkpoint_*.pt")) if f.name < file.name and is_whole(f)]
        offer = f"the one before is whole: python enjoy.py {before[-1]}" if before else "there is none before it"
        sys.exit(f"error: {file} is no whole checkpoint: damaged or cut off; {offer}")
    try:
        state = torch.load(file, map_location="cpu", weights_only=not trust)
    except pickle.UnpicklingError:
        sys.exit(f"error: {file} is refused: loading it can run code; if it is your own work, --trust loads it")
    except RuntimeError:
        state = None
    if not isinstance(state, dict) or not {"script", "args", "parts"} <= state.keys():
        sys.exit(f"error: {file} is no checkpoint of these scripts")
    if ":" in str(state["args"].get("env_id")) and not trust:
        sys.exit(f"error: {file}: its environment {state['args']['env_id']} imports a module; --trust lets it")
    return state, file


def import_script(name, folder):
    """The script as a module: the run's own source in `folder`, or else the script of that name beside enjoy.py."""
    beside = Path(__file__).parent
    first = re.sub(r"(_\d{12,})+\.py$", ".py", name)  # a resume's copy has its step in its name
    found = [path for path in (folder / name, beside / first) if Path(name).name == name and path.is_file()]
    if not found:
        sys.exit(f"error: the checkpoint needs its script {name}, which is neither in {folder} nor in {beside}")
    if found[0].parent != folder:
        print(f"{folder} has no {name}: taking {found[0]}")
    spec = importlib.util.spec_from_file_location(f"played_{found[0].stem}", found[0])
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing new in the run's folder
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        sys.exit(f"error: {found[0]}: {error}: install it, or name its folder in PYTHONPATH if it is a file of yours")
    except SyntaxError as error:
        sys.exit(f"error: {found[0]}: {error}")
    finally:
        sys.dont_write_bytecode = writes
    if lacks := [part for part in ("Args", "make_envs", "Agent") if not hasattr(module, part)]:
        sys.exit(f"error: {found[0]} has no {', '.join(lacks)}, which enjoy.py rebuilds a run with")
    return module


def layers(envs):
    """The environments and, one by one, what they wrap, down to the first single environment."""
    while envs is not None:
        yield envs
        envs = vars(envs).get("env") or next(iter(vars(envs).get("envs", ())), None)


def freeze(envs):
    """Lets no running statistics change any more: by the switch of a wrapper that has one, else whatever they are."""
    for layer in layers(envs):
        if hasattr(layer, "frozen"):
            layer.frozen = True
            continue
        for stats in vars(layer).values():
            if all(hasattr(stats, name) for name in ("mean", "var", "update")):
                stats.update = lambda *args, **kwargs: None


def rebuild(script, state, folder, **options):
    """One environment and the agent, as in the checkpoint's run but for the `options` that the script has."""
    known = {field.name for field in dataclasses.fields(script.Args)}
    one = {"num_envs": 2 if hasattr(script, "Seats") else 1, "num_minibatches": 1, "async_envs": False}  # or one of two
    options = one | options
    try:
        args = script.Args(**state["args"] | {name: value for name, value in options.items() if name in known})
        envs = script.make_envs(args, folder)
        wanted = known & inspect.signature(script.Agent).parameters.keys() - {"bf16"}  # weights are float32
        agent = script.Agent(envs, **{name: getattr(args, name) for name in wanted})
        agent.load_state_dict(state["parts"]["agent"])
        if "envs" in state["parts"]:
            envs.load_state_dict(state["parts"]["envs"])
    except (TypeError, RuntimeError, AttributeError) as error:
        reason = " ".join(str(error).split("\n")[:2])
        drawing = f" (MuJoCo draws with MUJOCO_GL={gl}, if that is it)" if (gl := os.environ.get("MUJOCO_GL")) else ""
        sys.exit(f"error: the checkpoint does not fit {script.__file__}: {reason}{drawing}")
    freeze(envs)
    return envs, agent.eval()


def changed(args, settings):
    """The options of a run, {name: value}, that settings such as "num_levels=0" change; each keeps its type."""
    options = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        name = name.strip("-").replace("-", "_")
        names = [known for known in args if known != "num_envs"]  # one game is played at a time
        if name not in names or not text:
            sys.exit(f"error: --set {setting}: it must be name=value, the name one of {', '.join(names)}")
        try:
            value = json.loads({"None": "null", "True": "true", "False": "false"}.get(text, text))
        except ValueError:
            value = text
        kinds = {float: (int, float), type(None): (int, float, str)}.get(type(args[name]), type(args[name]))
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            sys.exit(f"error: --set {setting}: {name} is {args[name]!r} in the run, and the value of another type")
        options[name] = value
    return options


def initial_state(agent, num_games):
    """Zeros for the agent's LSTM or GRU, float32 [layers, num_games, hidden]; two of them for an LSTM."""
    recurrent = [module for module in agent.modules() if isinstance(module, nn.RNNBase)]
    if len(recurrent) != 1:
        sys.exit(f"error: the agent has {len(recurrent)} recurrent networks; enjoy.py can carry the state of one")
    zeros = torch.zeros(recurrent[0].num_layers, num_games, recurrent[0].hidden_size)
    return (zeros, zeros) if isinstance(recurrent[0], nn.LSTM) else zeros


class Player:
    """Gives the agent what it asks for besides observations: a recurrent state and dones, or masks of valid actions."""

    def __init__(self, script, envs, agent, greedy):
        self.script, self.envs, self.agent, self.greedy = script, envs, agent, greedy
        self.wants = list(inspect.signature(agent.forward).parameters)[1:]
        if not set(self.wants) <= {"state", "dones"}:
            sys.exit(f"error: Agent.forward wants {', '.join(self.wants)}; enjoy.py can give it state and dones")
        self.state = None

    def act(self, obs, done, infos):
        """The actions in observations [B, ...] that came with `infos`; done, bool [B]: they open an episode."""
        if self.state is None and "state" in self.wants:
            self.state = initial_state(self.agent, len(obs))
        given = {"state": self.state, "dones": torch.from_numpy(done)}
        policy, _, *rest = self.agent(torch.from_numpy(obs), *(given[name] for name in self.wants))
        self.state = rest[0] if rest else None
        if hasattr(policy, "masked"):
            masks, known = self.script.action_masks, {"envs": self.envs, "infos": infos}
            policy = policy.masked(masks(**{name: known[name] for name in inspect.signature(masks).parameters}))
        return (mode(policy) if self.greedy else policy.sample()).numpy()


class Match:
    """Plays seat 0 of a game of two with a Player, seat 1 with another, or at random where that is None."""

    def __init__(self, player, other):
        self.envs, self.player, self.other = player.envs, player, other

    def act(self, obs, done, infos):
        """The actions in observations [2, ...], one of each seat."""
        if self.other is None:
            theirs = np.array([self.envs.single_action_space.sample()])
        else:
            theirs = self.other.act(obs[1:], done[:1], infos)
        return np.concatenate([self.player.act(obs[:1], done[:1], infos), theirs])


def against(player, args, env_id):
    """The player in a match with --opponent. Raises SystemExit where that is no player of the same game of two."""
    if not hasattr(player.script, "Seats"):
        sys.exit(f"error: --opponent: {env_id} is no game of two players")
    player.envs.single_action_space.seed(args.seed)
    if args.opponent == "random":
        return Match(player, None)
    state, file = load(Path(args.opponent), args.trust)
    if state["args"].get("env_id") != env_id:
        sys.exit(f"error: --opponent {file} plays {state['args'].get('env_id')}, not {env_id}")
    script = import_script(state["script"], file.parent)
    envs, agent = rebuild(script, state, None, capture_video=False)
    envs.close()
    return Match(player, Player(script, player.envs, agent, args.greedy))


def mode(policy):
    """The likeliest actions: the policy's own mode, or of logits [B, A], or of a list of such, or else its mean."""
    if hasattr(policy, "mode"):
        return policy.mode
    if not hasattr(policy, "logits"):
        return policy.mean
    if isinstance(policy.logits, torch.Tensor):
        return policy.logits.argmax(-1)
    return torch.stack([logits.argmax(-1) for logits in policy.logits], dim=-1)


def picture(envs, obs):
    """What is to be seen, uint8 [H, W, 3]: as the environment draws it, or else the agent's newest frame."""
    if envs.render_mode == "rgb_array":
        return envs.render()[0]
    if obs.dtype == np.uint8 and obs.ndim == 4 and obs.shape[1] == sum(MICRORTS):
        return board(obs[0])
    if obs.dtype != np.uint8 or obs.ndim != 4 or sorted(obs.shape[1:])[1] < 32:
        sys.exit("error: the environment draws no pictures, and what the agent sees is none: nothing to show")
    # Procgen's colours come first; of frames stacked last, the newest in grey
    return obs[0].transpose(1, 2, 0) if obs.shape[1] == 3 else obs[0, ..., -1:].repeat(3, axis=-1)


def board(planes):
    """A board of Gym-µRTS as a picture, uint8 [40 H, 40 W, 3], from its planes [27, H, W].

    Green is nobody's, blue the agent's, red its enemy's; a number is of resources, 4 of that many or more."""
    from PIL import Image, ImageDraw

    _, resources, owners, units, _ = np.split(planes, np.cumsum(MICRORTS)[:-1])
    image = Image.new("RGB", (40 * planes.shape[2], 40 * planes.shape[1]), "#202020")
    draw = ImageDraw.Draw(image)
    for y, x in np.ndindex(planes.shape[1:]):
        left, top = 40 * x, 40 * y
        draw.rectangle((left, top, left + 39, top + 39), outline="#404040")
        if unit := units[:, y, x].argmax():
            color = ("#30a050", "#3b7dd8", "#d04030")[owners[:, y, x].argmax()]
            draw.rectangle((left + 3, top + 3, left + 36, top + 36), fill=color)
            carried = resources[:, y, x].argmax()
            draw.text((left + 20, top + 20), UNITS[unit] + (f" {carried}" if carried else ""), "white", anchor="mm")
    return np.asarray(image)


def show(image):
    """Shows an image, uint8 [H, W, 3], in the window, 30 in a second. Closing the window is Ctrl-C."""
    import pygame

    height, width = image.shape[:2]
    scale = -(-400 // height)
    screen = pygame.display.get_surface()
    if screen is None:
        screen = pygame.display.set_mode((width * scale, height * scale))
        if pygame.display.get_driver() in ("offscreen", "dummy"):
            print("there is no screen here for a window: the games are played unseen; --video films them")
    pygame.transform.scale(pygame.surfarray.make_surface(image.swapaxes(0, 1)), screen.get_size(), screen)
    pygame.display.flip()
    time.sleep(1 / 30)
    if pygame.event.get(pygame.QUIT):
        raise KeyboardInterrupt


def write_film(pictures, path):
    """Writes images, uint8 [H, W, 3], as a film of 15 pictures a second."""
    from moviepy import ImageSequenceClip

    path.parent.mkdir(parents=True, exist_ok=True)
    ImageSequenceClip(pictures, fps=15).write_videofile(str(path), logger=None)


@torch.no_grad()
def play(player, args, folder):
    """Yields (return, length) of each game. Films into `folder` where the script has no recorder of its own."""
    envs = player.envs
    recorders = [layer for layer in layers(envs) if isinstance(layer, gym.wrappers.RecordVideo)]
    for recorder in recorders:
        recorder.episode_trigger = lambda game: args.video and game < args.episodes
    folder, pictures, games = folder / time.strftime("videos-%Y%m%d-%H%M%S"), [], 0
    try:
        obs, infos = envs.reset(seed=args.seed + NEW_GAMES)
        if args.render:
            show(picture(envs, obs))
    except Exception as error:  # each library that draws has errors of its own
        if not (args.video or args.render):
            raise
        sys.exit(f"error: nothing can be drawn here: {error} (MuJoCo without a screen needs MUJOCO_GL=egl or osmesa)")
    done = np.ones(len(obs), dtype=bool)  # the first observations open episodes
    while games < args.episodes:
        if args.render:
            show(picture(envs, obs))
        for recorder in recorders:
            if len(recorder.recorded_frames) >= LONGEST_FILM:
                recorder.stop_recording()
        if args.video and not recorders and len(pictures) < LONGEST_FILM:
            pictures.append(picture(envs, obs))
        obs, _, terminated, truncated, infos = envs.step(player.act(obs, done, infos))
        done, ended = terminated | truncated, infos.get("final_info", infos)  # infos itself in an edit with NEXT_STEP
        if any(ended.get("_episode", ())):  # a whole game; a lost life is done, too
            if pictures:
                write_film(pictures, folder / f"game-{games}.mp4")
            pictures, games = [], games + 1
            yield ended["episode"]["r"].item(), ended["episode"]["l"].item()


def enjoy(args):
    """Plays and tells of each game; returns the returns. Raises SystemExit where the checkpoint cannot be played."""
    if args.episodes < 1:
        sys.exit(f"error: --episodes must be at least 1, not {args.episodes}")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    if (args.video or args.render) and sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # without a screen
    state, file = load(args.run, args.trust)
    script, returns = import_script(state["script"], file.parent), []
    with tempfile.TemporaryDirectory() as nowhere:
        folder = (args.video_folder or file.parent) if args.video else Path(nowhere)
        options = {"seed": args.seed + NEW_GAMES, "capture_video": False} | changed(state["args"], sum(args.set, ()))
        try:  # where the script makes games one by one, those draw themselves
            draws = (args.video or args.render) and hasattr(script, "make_env")
            envs, agent = rebuild(script, state, folder, **options | {"capture_video": draws})
        except SystemExit:  # the script cannot film: then what the agent sees is shown, if that is a picture
            envs, agent = rebuild(script, state, folder, **options)
        last = state.get("returns")
        trained = f"mean return in training {np.mean(last):.4g} (last {len(last)})" if last else ""
        env_id = options.get("env_id", state["args"].get("env_id"))
        print(f"{file}: {env_id}, {trained or 'no game ended in training'}")
        if others := state["parts"].keys() - {"agent", "optimizer", "envs"}:
            print(f"the part agent plays; not used: {', '.join(sorted(others))}")
        if not (args.video or args.render):
            print("playing unseen: --render shows the games in a window, --video films them")
        try:
            player, words = Player(script, envs, agent, args.greedy), ("lost", "drawn", "won")
            if args.opponent is not None:
                player = against(player, args, state["args"].get("env_id"))  # both were trained on it
            for score, length in play(player, args, folder):
                returns.append(score)
                result = f", {words[int(np.sign(score)) + 1]}" if args.opponent is not None else ""
                print(f"game {len(returns)}: return {score:g}, length {length}{result}", flush=True)
        finally:
            if returns:
                mean, std, least, most = np.mean(returns), np.std(returns), min(returns), max(returns)
                print(f"{len(returns)} games: mean {mean:.4g}, std {std:.4g}, min {least:g}, max {most:g}", flush=True)
            if returns and args.opponent is not None:
                won, drawn, lost = (sum(np.sign(returns) == sign) for sign in (1, 0, -1))
                share = (won + drawn / 2) / len(returns)
                print(f"against {args.opponent}: won {won}, drawn {drawn}, lost {lost}: {share:.0%}", flush=True)
            envs.close()
            if args.video and (films := sorted(folder.glob("videos-*/*.mp4"), key=os.path.getmtime)):
                print(f"films: {films[-1].parent}")
    return returns


def main():
    """Plays as the command line says; an error that the user can put right is one line, without a traceback."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on it is a KeyboardInterrupt
    try:
        enjoy(tyro.cli(Args, description=__doc__))
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, ModuleNotFoundError, gym.error.Error) as error:
        hint = f": pip install {error.name}" if getattr(error, "name", None) else ""
        sys.exit(f"error: {error}{hint}")


if __name__ == "__main__":
    main()
