# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium[mujoco]>=1.4", "numpy>=2.0", "tensorboard>=2.20", "torch>=2.13,<2.16", "tqdm>=4.67",
#   "tyro>=1.0",
#   "ale-py>=0.12", "opencv-python-headless>=4.11", "moviepy>=2.2", "pygame-ce>=2.5",
# ]
# ///
"""Plays whole games with a saved agent, and prints their returns; shows or records them; exports the agent to ONNX.

    python enjoy.py runs/CartPole-v1__ppo__1__2026-11-24-05-15-44-284436150        (--help lists every option)

The script in the run's folder rebuilds environment and agent, so edited scripts play too; its options, for example
--num-levels 0, may follow. A checkpoint outside its folder is played by the script of that name beside enjoy.py.
"""

import contextlib
import dataclasses
import inspect
import io
import logging
import runpy
import sys
import tempfile
import time
import types
import warnings
import zipfile
from pathlib import Path
from unittest import mock

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import nn

STEP = "[0-9]" * 12  # the global step in the names of checkpoints, and of the copies of the script that a resume makes


@dataclasses.dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]  # the folder of a run, or a checkpoint
    episodes: int = 20  # number of whole games
    greedy: bool = False  # take the most likely action instead of a sample
    opponent: str | None = None  # in a game of two: a run, a checkpoint or "random"; by default the agent itself
    seed: int = 0  # seed of the games and of the samples
    render: bool = False  # show the games in a window
    video: bool = False  # record the games; the videos go beside the checkpoint
    export: Path | None = None  # write the greedy policy to this ONNX file, and check it while playing greedily


def load(path, words=()):
    """Reads a checkpoint, or a run folder's newest, without running code from it; then runs the script that made it.

    Returns (script, options, state, file): the script as a namespace, the run's options, changed by `words` of the
    command line, and the state in the checkpoint file."""
    file = max(path.glob(f"checkpoint_{STEP}.pt"), default=path / "checkpoint_*.pt") if path.is_dir() else path
    data, state = file.read_bytes(), {}
    with contextlib.suppress(Exception):  # damaged bytes raise errors of many kinds
        if zipfile.ZipFile(io.BytesIO(data)).testzip() is None:  # torch.load does not verify the checksums
            state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or not {"script", "args", "parts", "global_step", "returns"} <= state.keys():
        sys.exit(f"error: {file} is damaged, or not a checkpoint of these scripts")

    name = Path(state["script"]).stem
    beside = Path(__file__).resolve().with_name(f"{name}.py")
    copies = [*file.parent.glob(f"{name}.py"), *sorted(file.parent.glob(f"{name}_{STEP}.py"))]
    later = f"{name}_{state['global_step']:012}.py"  # copies of this step or later were made after the checkpoint
    source = [beside, *(copy for copy in copies if copy.name < later)][-1]
    script = sys.modules["<run_path>"] = types.SimpleNamespace(**runpy.run_path(str(source)))  # tyro reads its source
    options = tyro.cli(script.Args, args=words, default=script.Args(**state["args"]), prog=source.name)
    if source.resolve() == beside and ":" in options.env_id and not any(options.env_id in word for word in words):
        sys.exit(f"error: {file} imports a module; if you trust {options.env_id}, add --env-id {options.env_id}")
    return script, options, state, file


def layers(envs):
    """The vector of environments and what it wraps, one by one, down to the first single environment."""
    while envs is not None:
        yield envs
        envs = vars(envs).get("env") or next(iter(vars(envs).get("envs", ())), None)


def make_envs(script, options, state, **changes):
    """One environment of the run, or the two seats of one game, with the statistics in the checkpoint."""
    changes |= {"num_envs": 2 if hasattr(script, "Seats") else 1, "num_minibatches": 1, "async_envs": False}
    changes = {name: changes[name] for name in changes.keys() & vars(options).keys()}
    with tempfile.TemporaryDirectory() as folder:
        envs = script.make_envs(dataclasses.replace(options, **changes), Path(folder))
    if "envs" in state["parts"]:
        envs.load_state_dict(state["parts"]["envs"])
    for layer in layers(envs):  # Normalize does not update its statistics, and RecordVideo records nothing
        layer.frozen, layer.episode_trigger = True, lambda episode: False
    return envs


class Player(nn.Module):
    """A saved agent. Some agents need more than observations: masks, or a recurrent state and where episodes begin."""

    def __init__(self, script, options, state, envs, greedy=False):
        super().__init__()
        self.script, self.envs, self.greedy, self.memory = script, envs, greedy, {}
        known = vars(options) | {"args": options}
        names = inspect.signature(script.Agent).parameters.keys() & known.keys() - {"bf16"}  # plays in float32
        self.agent = script.Agent(envs, **{name: known[name] for name in names}).eval().requires_grad_(False)
        self.agent.load_state_dict(state["parts"]["agent"])
        if "state" in inspect.signature(self.agent.forward).parameters:
            [core] = [module for module in self.agent.modules() if isinstance(module, nn.RNNBase)]
            names = ("hidden", "cell") if isinstance(core, nn.LSTM) else ("hidden",)
            self.memory = {name: torch.zeros(core.num_layers, 1, core.hidden_size) for name in names}

    def inputs(self, obs, dones, infos):
        """The agent's inputs as tensors by name; dones, bool [B], is true where obs, [B, ...], begins an episode."""
        inputs = {"obs": torch.from_numpy(obs)}
        if self.memory:
            inputs |= {name: state.expand(-1, len(obs), -1) for name, state in self.memory.items()}
            inputs["dones"] = torch.from_numpy(dones)
        if hasattr(self.script, "action_masks"):
            inputs["masks"] = self.script.action_masks(self.envs, infos)
        return inputs

    def policy(self, inputs):
        """The policy, and the next recurrent state by name."""
        state = tuple(inputs[name] for name in self.memory)
        state = state if len(state) != 1 else state[0]  # a GRU has one tensor
        policy, _, *state = self.agent(inputs["obs"], *([state, inputs["dones"]] if self.memory else []))
        policy = policy.masked(inputs["masks"]) if "masks" in inputs else policy
        return policy, dict(zip(self.memory, state[0] if len(self.memory) > 1 else state, strict=True))

    def act(self, obs, dones, infos):
        """The actions for observations [B, ...] and their infos, as a numpy array."""
        self.given = self.inputs(obs, dones, infos)
        policy, self.memory = self.policy(self.given)
        return (mode(policy) if self.greedy else policy.sample()).numpy()

    def forward(self, inputs):
        """The graph of the ONNX file: from the environment's own observations to the actions that it gets."""
        obs, space = inputs["obs"], self.envs.single_action_space
        for stats in (layer.obs_stats for layer in layers(self.envs) if hasattr(layer, "obs_stats")):
            mean, std = torch.as_tensor(stats.mean), torch.as_tensor(stats.var + 1e-8).sqrt()
            obs = ((obs.double() - mean) / std).clip(-10, 10).float()
        policy, state = self.policy(inputs | {"obs": obs})
        outputs = {"action": mode(policy)}
        if isinstance(space, gym.spaces.Box):
            outputs["action"] = outputs["action"].clip(torch.as_tensor(space.low), torch.as_tensor(space.high))
        for name in ("logits", "mean", "std"):
            if name in vars(policy):
                value = torch.cat(value, -1) if isinstance(value := vars(policy)[name], list) else value
                outputs[name] = value.expand(obs.shape[0], *value.shape[1:])
        return outputs | {f"next_{name}": tensor for name, tensor in state.items()}


def mode(policy):
    """The most likely actions: the policy's own mode, or the argmax of its logits, or its mean."""
    if hasattr(policy, "mode"):
        return policy.mode
    if not hasattr(policy, "logits"):
        return policy.mean
    several = isinstance(policy.logits, list)
    return torch.stack([x.argmax(-1) for x in policy.logits], -1) if several else policy.logits.argmax(-1)


def export(player, path):
    """Writes the greedy policy to an ONNX file; play() then checks its actions from the second step on."""
    import onnxruntime

    obs, infos = player.envs.reset()
    inputs = player.inputs(obs, np.ones(len(obs), dtype=bool), infos)
    batch_axis = {name: int(name in player.memory) for name in inputs}
    inputs = {name: torch.cat([tensor, tensor], batch_axis[name]) for name, tensor in inputs.items()}
    shapes = {name: {axis: torch.export.Dim("batch")} for name, axis in batch_axis.items()}
    options = {"kwargs": {"inputs": inputs}, "dynamic_shapes": {"inputs": shapes}, "verbose": False}
    names = {"input_names": list(inputs), "output_names": list(player(inputs))}
    logging.disable(logging.WARNING)
    # What torch.export cannot trace: the ends of episodes in an LSTM's sequence, and the parts of a batch of images.
    one_step = mock.patch.object(torch.Tensor, "nonzero", lambda x: x.new_zeros(0, 1))
    split = torch.Tensor.split
    one_part = mock.patch.object(torch.Tensor, "split", lambda x, *a, **k: [x] if x.ndim == 4 else split(x, *a, **k))
    with warnings.catch_warnings(action="ignore"), one_step, one_part:
        torch.onnx.export(player, **options, **names).save(path)
    session = onnxruntime.InferenceSession(path)
    for value in session.get_inputs() + session.get_outputs():
        print(f"{path}: {value.name} {value.type} {value.shape}")

    core = player.envs.unwrapped
    core_step, obs = core.step, None

    def step(actions):
        nonlocal obs
        if obs is not None:  # an observation as the environment returned it, without the script's wrappers
            inputs = {name: tensor.numpy() for name, tensor in player.given.items()}
            given = inputs["obs"]  # of the first player, where there are two
            inputs["obs"] = obs.reshape(-1, *given.shape[1:])[: len(given)].astype(given.dtype)
            [exported] = session.run(["action"], inputs)
            if not np.allclose(actions.ravel()[: exported.size], exported.ravel(), atol=1e-4):
                path.unlink()
                sys.exit(f"error: no export: the script's wrappers change the action {exported} to {actions}")
        obs, *rest = core_step(actions)
        return obs, *rest

    core.step = step


def match(player, args):
    """player.act, but with seat 1 of a game of two played by --opponent."""
    if not hasattr(player.script, "Seats"):
        sys.exit(f"error: --opponent: {player.script.__file__} is not for games of two players")
    space = player.envs.single_action_space
    space.seed(args.seed)
    other = lambda *_: np.array([space.sample()])  # noqa: E731
    if args.opponent != "random":
        other = Player(*load(Path(args.opponent))[:3], player.envs, args.greedy).act
    return lambda obs, dones, infos: np.append(player.act(obs[:1], dones[:1], infos), other(obs[1:], dones[1:], infos))


def picture(envs, obs):
    """The picture to show, uint8 [H, W, 3]: what the environment renders, or the board of Gym-µRTS from its planes."""
    if envs.render_mode == "rgb_array":
        return envs.render()[0]
    if obs.dtype != np.uint8 or obs.shape[1:2] != (27,):
        sys.exit("error: this environment draws no pictures")
    from PIL import Image, ImageDraw

    resources, owners, units = (obs[0, planes].argmax(0) for planes in (slice(5, 10), slice(10, 13), slice(13, 21)))
    draw = ImageDraw.Draw(image := Image.new("RGB", (40 * units.shape[1], 40 * units.shape[0]), "#202020"))
    names = "", "ore", "base", "barr.", "work.", "light", "heavy", "rang."
    for y, x in np.argwhere(units):
        color = ("#30a050", "#3b7dd8", "#d04030")[owners[y, x]]  # nobody's, the agent's, the enemy's
        draw.rectangle((40 * x + 2, 40 * y + 2, 40 * x + 37, 40 * y + 37), color)
        draw.text((40 * x + 20, 40 * y + 20), f"{names[units[y, x]]} {resources[y, x] or ''}", "white", anchor="mm")
    return np.asarray(image)


def show(image, fps):
    """Shows an image, uint8 [H, W, 3], in a window for one frame. Closing the window acts as Ctrl-C."""
    import pygame

    screen = pygame.display.get_surface() or pygame.display.set_mode(image.shape[1::-1], pygame.SCALED)
    pygame.surfarray.blit_array(screen, image.swapaxes(0, 1))
    pygame.display.flip()
    time.sleep(1 / fps)
    if pygame.event.get(pygame.QUIT):
        raise KeyboardInterrupt


def play(envs, act, args, folder):
    """Yields the return and the length of each game; shows or records it."""
    fps, video, games = envs.metadata.get("render_fps", 15), None, 0
    obs, infos = envs.reset(seed=args.seed + 1_000_000)  # far from the seeds of training, which begin at --seed
    dones = np.ones(len(obs), dtype=bool)  # the first observations begin episodes
    while games < args.episodes:
        image = picture(envs, obs) if args.render or args.video else None
        if args.render:
            show(image, fps)
        if args.video:
            from moviepy.video.io.ffmpeg_writer import FFMPEG_VideoWriter

            folder.mkdir(exist_ok=True)
            video = video or FFMPEG_VideoWriter(str(folder / f"game-{games + 1}.mp4"), image.shape[1::-1], fps)
            video.write_frame(image)
        obs, _, terminated, truncated, infos = envs.step(act(obs, dones, infos))
        dones, ended = terminated | truncated, infos.get("final_info", infos)  # with NEXT_STEP in infos itself
        if any(ended.get("_episode", ())):  # a whole game; a lost life of an Atari game is only in dones
            video, games = video and video.close(), games + 1
            yield ended["episode"]["r"].item(), ended["episode"]["l"].item()


def enjoy(args, words=()):
    """Plays the games, prints their returns, and returns these."""
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    script, options, state, file = load(args.run, words)
    rendered = hasattr(script, "make_env") and not options.env_id.lower().startswith("microrts")
    envs = make_envs(script, options, state, capture_video=rendered and (args.render or args.video))
    player = Player(script, options, state, envs, args.greedy or args.export)
    if args.export:
        export(player, args.export)
    act = match(player, args) if args.opponent else player.act
    print(f"{file}: {options.env_id}, mean return in training {np.mean(state['returns'] or np.nan):.4g}")
    returns, folder = [], file.parent / time.strftime("videos-%Y%m%d-%H%M%S")
    try:
        for score, length in play(envs, act, args, folder):
            returns.append(score)
            print(f"game {len(returns)}: return {score:g}, length {length}", flush=True)
    finally:
        envs.close()
        if returns:
            text = f"mean {np.mean(returns):.4g}, std {np.std(returns):.4g}, min {min(returns):g}, max {max(returns):g}"
            if args.opponent:
                text += ", won {}, drawn {}, lost {}".format(*(sum(np.sign(returns) == sign) for sign in (1, 0, -1)))
            print(f"{len(returns)} games: {text}")
        if folder.exists():
            print(f"videos: {folder}")
    return returns


def main():
    """Plays as the command line says; an error that the user can put right is one line, without a traceback."""
    try:
        enjoy(*tyro.cli(Args, description=__doc__, return_unknown_args=True))
    except KeyboardInterrupt:
        sys.exit(130)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        sys.exit(f"error: {error} (an extra of docs/install.md, or a folder that PYTHONPATH lacks)")
    except (OSError, gym.error.Error) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
