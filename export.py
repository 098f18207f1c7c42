# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "filelock>=3.20", "gymnasium[mujoco]>=1.4", "numpy>=2.0", "tensorboard>=2.21", "torch>=2.13,<2.16", "tqdm>=4.67",
#   "tyro>=1.0",
#   "ale-py>=0.12", "opencv-python-headless>=4.11", "onnx>=1.20", "onnxscript>=0.6", "onnxruntime>=1.24",
# ]
# ///
"""Exports the greedy policy of a saved agent to ONNX, and compares the file with the agent as it plays.

    python export.py runs/FOLDER agent.onnx        (--help lists every option)

The file takes observations as the script's Normalize gets them, of any batch size: normalization is inside. Its output
"action" is what the environment takes; others are the parameters of the distribution. A recurrent agent has further
inputs, its state and "dones", true where an observation is the first of its episode, and as outputs the next state. A
script with masks has the input "masks". As for enjoy.py, options of the script may follow.
"""

import dataclasses
import logging
import sys
import typing
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import nn

import enjoy
from saved import load, missing_extra_named


@dataclasses.dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]  # the folder of a run or of several runs, or a checkpoint
    file: tyro.conf.Positional[Path]  # the ONNX file to write
    steps: int = 500  # number of steps on which the file is compared with the agent
    seed: int = 0  # seed of these steps


class Step(typing.NamedTuple):
    """A step of the greedy agent."""

    inputs: dict  # of the exported graph: tensors by name
    policy: typing.Any  # the agent's distribution
    next_state: dict  # the agent's state after the step: tensors by name
    actions: np.ndarray  # what the environment got


def state_by_name(state, prefix=""):
    """The tensors of a recurrent state by name: hidden and cell as in nn.LSTM, then state_2, ..."""
    if state is None:
        return {}
    tensors = (state,) if isinstance(state, torch.Tensor) else tuple(state)
    names = ["hidden", "cell"][: len(tensors)]
    names += [f"state_{i}" for i in range(2, len(tensors))]
    return {f"{prefix}{name}": tensor for name, tensor in zip(names, tensors, strict=True)}


def record_steps(envs, recorder, player, args):
    """Plays args.steps steps of the most likely actions, over several games: a list of Step."""
    seed = args.seed + enjoy.FIRST_SEED
    torch.manual_seed(seed)  # for agents that draw noise in their networks
    obs, infos = envs.reset(seed=seed)
    player.start_game(seed, batch_size=len(obs))
    dones = np.ones(len(obs), dtype=bool)  # the first observations begin episodes
    steps = []
    for _ in range(args.steps):
        # before next_policy() replaces the state, and step() the observations
        inputs = {"obs": torch.from_numpy(recorder.obs)}
        if hasattr(player.agent, "policy_inputs"):
            inputs["obs"] = inputs["obs"][:, : player.agent.policy_inputs]
        if player.state is not None:
            inputs |= state_by_name(player.state)
            inputs["dones"] = torch.from_numpy(dones)
        masks = player.get_masks(infos)
        if masks is not None:
            inputs["masks"] = masks
        policy = player.next_policy(obs, dones, masks)
        next_state = state_by_name(player.state, "next_")
        obs, _, terminated, truncated, infos = envs.step(enjoy.as_array(policy.mode()))
        dones = terminated | truncated
        steps.append(Step(inputs, policy, next_state, recorder.actions))
    return steps


def clip_to_bounds(actions, space):
    """Actions, float32 [B, A], clipped to the bounds of their Box, as the scripts' Normalize does."""
    return actions.clip(torch.from_numpy(space.low), torch.from_numpy(space.high))


class Graph(nn.Module):
    """What the file computes: from the observations that Normalize gets to the actions that it passes on."""

    def __init__(self, player, normalize, space):
        super().__init__()
        self.agent = player.agent
        # an agent whose value network sees more has the number of the columns of obs that are for its policy
        self.policy_inputs = getattr(player.agent, "policy_inputs", None)
        self.state_is_tensor = isinstance(player.state, torch.Tensor)
        self.state_names = list(state_by_name(player.state))
        # Procgen's Normalize has none, as it normalizes only rewards
        self.obs_stats = getattr(normalize, "obs_stats", None)
        self.space = space
        # an edited copy has bound_actions() if its Normalize does not clip actions
        self.bound_actions = getattr(player.script, "bound_actions", clip_to_bounds)

    def normalized(self, obs):
        """Observations as the agent gets them: what Normalize.scale() computes in numpy, in torch."""
        if self.obs_stats is None:
            return obs
        mean = torch.as_tensor(self.obs_stats.mean)
        std = torch.as_tensor(self.obs_stats.var + 1e-8).sqrt()
        if mean.dim() == obs.dim() + 1:  # of an agent of seeds-continuous, [1, 1, D]
            mean = mean[0, 0]
            std = std[0, 0]
        if self.policy_inputs is not None:
            mean = mean[: self.policy_inputs]
            std = std[: self.policy_inputs]
        return ((obs.double() - mean) / std).clip(-10, 10).float()

    def forward(self, inputs):
        """Outputs by name, for inputs by name."""
        state = None
        if self.state_names:
            state = tuple(inputs[name] for name in self.state_names)
            if self.state_is_tensor:
                state = state[0]
        obs = self.normalized(inputs["obs"])
        dones = inputs.get("dones")
        masks = inputs.get("masks")
        if self.policy_inputs is not None:
            policy, next_state = self.agent.get_policy(obs), None
        else:
            policy, next_state = enjoy.policy_and_state(self.agent, obs, state, dones, masks)
        action = policy.mode()
        if isinstance(self.space, gym.spaces.Box):
            action = self.bound_actions(action, self.space)
        outputs = {"action": action}
        outputs |= parameters(policy, obs.shape[0])
        outputs |= state_by_name(next_state, "next_")
        return outputs


def check_normalization(graph, normalize):
    """Ends the program if observations are normalized otherwise than in the script.

    Games hardly reach the bounds of normalized observations, so these are 7 and 30 deviations from the mean."""
    if graph.obs_stats is None:
        return
    mean = torch.as_tensor(graph.obs_stats.mean).reshape(1, -1)
    std = torch.as_tensor(graph.obs_stats.var).sqrt().reshape(1, -1)
    takes_tensors = isinstance(graph.obs_stats.mean, torch.Tensor)
    for deviations in (-30, -7, 7, 30):
        obs = (mean + deviations * std).float()
        scaled = torch.as_tensor(normalize.scale(obs if takes_tensors else obs.numpy()))
        in_script = scaled.reshape(obs.shape)[:, : graph.policy_inputs]
        in_file = graph.normalized(obs[:, : graph.policy_inputs])
        if not torch.allclose(in_file, in_script, rtol=1e-3, atol=1e-3):
            sys.exit("error: no export: the script's scale() is not normalized() of export.py; change that, too")


def parameters(policy, size):
    """The parameters of a distribution by name, each as a tensor [size, ...]; those that it has."""
    names = [name for name in ("logits", "mean", "std") if hasattr(policy, name)]
    return {name: one_tensor(getattr(policy, name), size) for name in names}


def one_tensor(parameter, size):
    """A parameter of a distribution, [size, ...] or [1, ...], as one tensor [size, ...].

    A MultiDiscrete has a list of logits."""
    if isinstance(parameter, list):
        parameter = torch.cat(parameter, dim=-1)
    return parameter.expand(size, *parameter.shape[1:])


def write_onnx(graph, inputs, file):
    """Writes the graph to a file, for inputs of any batch size; `inputs` are an example."""
    # a recurrent state is [layers, B, ...], as in nn.LSTM
    batch_axis = {name: 1 if name in graph.state_names else 0 for name in inputs}
    example = {}
    for name, tensor in inputs.items():
        # twice, as torch.export takes an axis of size 1 for a constant
        example[name] = torch.cat([tensor, tensor], batch_axis[name])
    shapes = {name: {axis: torch.export.Dim("batch")} for name, axis in batch_axis.items()}
    logging.disable(logging.WARNING)  # the exporter warns of the versions of operators
    try:
        with warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(
                graph,
                kwargs={"inputs": example},
                dynamic_shapes={"inputs": shapes},
                input_names=list(example),
                output_names=list(graph(example)),
                verbose=False,
            )
    finally:
        logging.disable(logging.NOTSET)
    program.save(file)


def compare(session, steps, is_box):
    """Ends the program with a line if an ONNX session differs from the agent in some step."""
    names = [value.name for value in session.get_outputs()]
    for value in session.get_inputs():
        if "batch" not in value.shape:  # torch may fall back to a graph for the example's size
            problem = f"the agent's forward() needs {value.name} of the shape {value.shape}"
            sys.exit(f"error: no export: {problem}")
    for number, step in enumerate(steps):
        arrays = session.run(names, {name: tensor.numpy() for name, tensor in step.inputs.items()})
        text = difference(step, dict(zip(names, arrays, strict=True)), is_box)
        if text is not None:
            hint = "perhaps a wrapper of the script changes observations or actions (docs/runs.md, Export)"
            sys.exit(f"error: no export: in step {number} {text}; {hint}")


def difference(step, outputs, is_box):
    """How a file's outputs, arrays by name, differ from a step of the agent, in words, or None."""
    action = outputs["action"]
    if is_box:
        same_action = is_close(action, step.actions)
    else:  # where two actions are equally likely, rounding decides: either will do
        log_prob = step.policy.log_prob(torch.from_numpy(action))
        played = torch.from_numpy(step.actions.reshape(action.shape))
        same_action = is_close(log_prob, step.policy.log_prob(played))
    if not same_action:
        return f"its action is {action.tolist()}, and the environment got {step.actions.tolist()}"
    for name, tensor in (parameters(step.policy, len(action)) | step.next_state).items():
        if not is_close(outputs[name], tensor):
            return f"its output {name} differs from the agent's"
    return None


def is_close(one, other):
    """Whether two arrays or tensors have one shape, and differ by no more than rounding, which a network enlarges."""
    return np.shape(one) == np.shape(other) and np.allclose(one, other, rtol=1e-4, atol=1e-4)


def describe_layout(script, envs):
    """A line that says which wrapper makes vectors of the environment's own observations, or None if they are vectors.

    envs: the environments, as enjoy.py makes them."""
    vector = envs.unwrapped
    if not isinstance(vector, gym.vector.SyncVectorEnv):  # EnvPool's have no Episodes
        return None
    if hasattr(script, "Seats"):  # the agent gets a player's row of the observation, a vector
        return None
    env = vector.envs[0]
    while isinstance(env, gym.Wrapper):
        space = env.env.observation_space
        if is_vector(env.observation_space) and not is_vector(space):
            if hasattr(script, "Episodes") and isinstance(env, script.Episodes):
                return f"obs is gymnasium.spaces.flatten(space, observation), of the space {space}"
            return f"obs comes from the wrapper {type(env).__name__}, which makes a vector of the space {space}"
        env = env.env
    return None


def is_vector(space):
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 1


def export(args, script_options=()):
    """Writes the ONNX file, and prints its inputs and outputs; ends if it differs from the agent.

    `script_options` are words of the command line, options of the script."""
    import onnxruntime

    torch.set_num_threads(1)  # one observation at a time has no work for more
    saved = load(args.run, script_options)
    envs = enjoy.make_envs(saved)
    normalize = enjoy.find_normalize(saved.script, envs)
    envs, recorder = enjoy.record_inside(envs, normalize)
    player = enjoy.Player(saved, envs)
    steps = record_steps(envs, recorder, player, args)
    space = envs.single_action_space
    layout = describe_layout(saved.script, envs)

    unfinished = args.file.with_name(f"{args.file.name}.tmp")
    try:
        graph = Graph(player, normalize, space)
        check_normalization(graph, normalize)
        write_onnx(graph, steps[0].inputs, unfinished)
        session = onnxruntime.InferenceSession(unfinished)
        compare(session, steps, is_box=isinstance(space, gym.spaces.Box))
        unfinished.replace(args.file)
    finally:
        unfinished.unlink(missing_ok=True)
        envs.close()

    for value in session.get_inputs() + session.get_outputs():
        print(f"{args.file}: {value.name} {value.type} {value.shape}")
    if layout is not None:
        print(layout)
    print(f"{args.file}: the same as {saved.file} in {len(steps)} steps of {saved.options.env_id}")


def main():
    args, script_options = tyro.cli(Args, description=__doc__, return_unknown_args=True)
    with missing_extra_named():
        export(args, script_options)


if __name__ == "__main__":
    main()
