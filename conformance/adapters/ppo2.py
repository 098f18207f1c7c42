"""The recorded numbers of openai/baselines' ppo2, tests/golden, as the answers of one more implementation.

They answer other questions than the ones asked, so each comes with its own problem.
"""

from pathlib import Path

import numpy as np

from conformance.problems import Settings, Step, Stream, Update, World

NAME = "ppo2 (recorded)"
VERSION = "ea25b9e"
KINDS = "discrete", "continuous"
REASONS = {"recurrence": "its LSTM is recorded as it is, and nothing can be put in its place"}
GOLDEN = Path(__file__).parents[2] / "tests/golden"


def load(name):
    """The arrays of a recording."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        return dict(file)


def advantages(world, settings):
    """Those of 128 steps of 8 environments.

    To ppo2 every end is the same. Half of them are called time limits here, and the observations behind those, which it
    does not see, get values of their own."""
    data = {name.partition("/")[2]: array for name, array in load("a_gae").items() if name.startswith("m128n8/")}
    M, N = data["rewards"].shape
    ended = np.concatenate([data["mb_dones"][1:], data["last_dones"][None]])
    truncated = ended & (np.cumsum(ended.reshape(-1)).reshape(M, N) % 2 == 0)
    unseen = np.random.default_rng(1).normal(size=M * N).astype(np.float32)
    values = np.concatenate([data["values"].reshape(-1), data["last_values"], unseen])
    tables = np.zeros((len(values), 2), np.float32)
    problem = World(
        kind="discrete",
        rewards=data["rewards"],
        terminated=ended & ~truncated,
        truncated=truncated,
        old_policy=tables,
        old_value=values,
        policy=tables,
        value=values,
        logstd=tables[0],
        actions=np.zeros((M, N), int),
    )
    settings = Settings(gamma=float(data["gamma"]), gae_lambda=float(data["lam"]))
    return {"advantages": data["advs"], "returns": data["returns"], "problem": (problem, settings)}


class Networks:
    """ppo2's two networks of two tanh layers, in float64, with weights by its own names."""

    def __init__(self, weights):
        self.weights = {name: np.asarray(array, float) for name, array in weights.items()}

    def layers(self, part, obs):
        """The inputs of the three layers of a part, "pi" or "vf", and its outputs [B, A]."""
        first = np.tanh(obs @ self.weights[f"{part}/mlp_fc0/w"] + self.weights[f"{part}/mlp_fc0/b"])
        second = np.tanh(first @ self.weights[f"{part}/mlp_fc1/w"] + self.weights[f"{part}/mlp_fc1/b"])
        return (obs, first, second), second @ self.weights[f"{part}/w"] + self.weights[f"{part}/b"]

    def gradient(self, part, obs, slope):
        """The gradient of a part's weights, from that of its outputs [B, A]."""
        inputs, _ = self.layers(part, obs)
        names = f"{part}/mlp_fc0", f"{part}/mlp_fc1", part
        found = {}
        for number in (2, 1, 0):
            name = names[number]
            found[f"{name}/w"] = inputs[number].T @ slope
            found[f"{name}/b"] = slope.sum(0)
            slope = (slope @ self.weights[f"{name}/w"].T) * (1 - inputs[number] ** 2)
        return found

    def project(self, obs):
        """A function from the gradient of tables to that of the weights, as Step.project."""

        def gradient(tables):
            found = {}
            if "policy" in tables:
                found |= self.gradient("pi", obs, tables["policy"][: len(obs)])
            if "logstd" in tables:
                found["pi/logstd"] = tables["logstd"][None]
            if "value" in tables:
                found |= self.gradient("vf", obs, tables["value"][: len(obs), None])
            return found

        return gradient

    def tables(self, obs):
        """The outputs for observations, as a world's tables have them."""
        found = {"policy": self.layers("pi", obs)[1], "value": self.layers("vf", obs)[1][:, 0]}
        if "pi/logstd" in self.weights:
            found["logstd"] = self.weights["pi/logstd"][0]
        return found


def named(data, prefix):
    """{name: array} of the recorded weights, or of what has their form, below a prefix."""
    return {str(name): data[f"{prefix}/{name}"].astype(float) for name in data["param_names"]}


def world_of(kind, tables, old_values, actions):
    """A world of one long rollout of given outputs; old log probabilities and returns are given with the update."""
    size = len(old_values)
    zeros = np.zeros((size, 1))
    logstd = np.asarray(tables.get("logstd", np.zeros(tables["policy"].shape[1])), np.float32)
    return World(
        kind=kind,
        rewards=zeros,
        terminated=zeros > 0,
        truncated=zeros > 0,
        old_policy=tables["policy"],
        old_value=np.asarray(old_values, float),
        policy=tables["policy"],
        value=tables["value"],
        logstd=logstd,
        actions=actions[:, None],
    )


def update(world, settings):
    """One recorded step, with discrete or with continuous actions."""
    if world.kind == "multidiscrete" or world.rewards.size % settings.num_minibatches:
        return None
    # Only the recorded step with continuous actions clips the gradient. Its KL divergence, which is asked for with one
    # epoch, tells the estimates apart; that of the other is too small.
    clips = settings.max_grad_norm < 1
    asks_for_divergence = settings.update_epochs == 1
    kind = "discrete"
    data = load("b_mlp_copy_discrete")
    if world.kind == "continuous" or clips or asks_for_divergence:
        kind = "continuous"
        data = load("b_mlp_copy_box")
    networks = Networks(named(data, "theta0"))
    obs = data["obs"].astype(float)
    tables = networks.tables(obs)
    problem = world_of(kind, tables, data["old_values"], data["actions"])
    own = Settings(
        learning_rate=float(data["lr"]),
        clip_coef=float(data["cliprange"]),
        ent_coef=float(data["ent_coef"]),
        vf_coef=float(data["vf_coef"]),
        max_grad_norm=float(data["max_grad_norm"]),
    )
    moments = {f"{which} {name}": data[f"adam_{which}1/{name}"] for which in "mv" for name in networks.weights}
    raw = named(data, "grad_raw")
    clipped = named(data, "grad_clipped")
    step = Step(
        rows=np.arange(len(obs)),
        before=tables,
        after=tables,
        gradient=raw,
        clipped=clipped,
        weights=(named(data, "theta0"), named(data, "theta1")),
        project=networks.project(obs),
        moments=moments,
    )
    returns = data["returns"][:, None]
    return Update(
        actions=problem.actions,
        steps=[step],
        advantages=returns - data["old_values"][:, None],
        returns=returns,
        logged={"approx_kl": float(data["stat/approxkl"])},
        old_log_probs=-data["old_neglogpacs"][:, None],
        problem=(problem, own),
    )


def trace():
    """The first update of a run on CartPole: the rows of all steps, and the weights of the first two."""
    data = load("i_trace_cartpole_copy")
    obs = data["roll_obs"][0].astype(float)
    actions = data["roll_actions"][0]
    points = [named(data, prefix) for prefix in ("theta_init", "theta_after_1", "theta_after_2")]
    problem = world_of("discrete", Networks(points[0]).tables(obs), data["roll_values"][0], actions)
    steps = []
    for order in data["shuffled_inds"][0]:
        for rows in np.split(order, int(data["nminibatches"])):
            step = Step(rows, {}, {})
            number = len(steps)
            if number < 2:
                networks = Networks(points[number])
                step.before = networks.tables(obs)
                step.project = networks.project(obs)
                step.weights = points[number], points[number + 1]
            steps.append(step)
    own = Settings(
        learning_rate=float(data["train_lr"][0]),
        clip_coef=float(data["cliprange"]),
        ent_coef=float(data["ent_coef"]),
        vf_coef=float(data["vf_coef"]),
        max_grad_norm=float(data["max_grad_norm"]),
        update_epochs=int(data["noptepochs"]),
    )
    returns = data["roll_returns"][0][:, None]
    values = data["roll_values"][0][:, None]
    old = -data["roll_neglogpacs"][0][:, None]
    return Update(problem.actions, steps, returns - values, returns, old_log_probs=old, problem=(problem, own))


def initial_weights(seed, kind):
    """Those that it drew with seed 1."""
    if kind == "multidiscrete":
        return None
    data = load("c_init_mlp_copy_box" if kind == "continuous" else "c_init_mlp_copy_discrete")
    found = {}
    for name, part in (("policy", "pi"), ("value", "vf")):
        places = f"{part}/mlp_fc0", f"{part}/mlp_fc1", part
        found[name] = [(data[f"{place}/w/init_seed1"].T, data[f"{place}/b/init_seed1"]) for place in places]
    if kind == "continuous":
        found["logstd"] = data["pi/logstd/init_seed1"][0]
    return found


def recurrent_weights(seed):
    """Those of its LSTM with seed 1. Recorded are its matrices times their transposes, not the matrices themselves."""
    data = load("c_init_cnn_lstm")
    orthogonal = []
    for name in ("pi/lstm/wx", "pi/lstm/wh"):
        squares = data[f"{name}/gram_diag"]
        gain = float(np.sqrt(squares.mean()))
        error = max(np.abs(squares / gain**2 - 1).max(), data[f"{name}/gram_maxabs_offdiag"] / gain**2)
        orthogonal.append((gain, float(error)))
    biases = [name for name in data["param_names"] if str(name).startswith("pi/lstm/b")]
    return {
        "orthogonal": orthogonal,
        "biases": [data[f"{name}/init_seed1"] for name in biases],
        "trained": len(biases),  # it trains all of its parameters
    }


def schedules(updates):
    """Those of its settings for MuJoCo, over 48 updates."""
    data = load("f_schedules")
    return {
        "learning_rate": data["mujoco_1m/lr"],
        "clip_range": data["mujoco_1m/cliprange"],
        "updates": len(data["mujoco_1m/lr"]),
    }


def normalize(stream):
    """What its VecNormalize made of 200 steps of 3 environments."""
    data = load("d_vecnormalize")
    finals = np.zeros_like(data["in_obs"][1:])
    problem = Stream(data["in_obs"], finals, data["in_rews"], data["in_dones"], 0.99)
    seen = np.concatenate([data["full/reset_obs"][None], data["full/obs"]])
    return {"observations": seen, "rewards": data["full/rews"], "problem": problem}
