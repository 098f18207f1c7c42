"""What differs between versions 2.3 to 5 of rsl-rl-lib: how its networks and its algorithm are made."""

import importlib.metadata
import inspect

from rsl_rl.algorithms import PPO
from rsl_rl.storage import RolloutStorage

VERSION = importlib.metadata.version("rsl-rl-lib")
MAJOR = int(VERSION.split(".")[0])
HAS_MODELS = MAJOR >= 4  # of policy and value; before, one module has both networks
NORMAL = "rsl_rl.modules.distribution:GaussianDistribution"
GROUPS = {"actor": ["policy"], "policy": ["policy"], "critic": ["policy"]}


def make_models(obs, outputs, std_type="scalar"):
    """The arguments of PPO that are networks: a policy and a value function, or one module with both."""
    if not HAS_MODELS:
        from rsl_rl.modules import ActorCritic

        of_observations = (obs, GROUPS) if MAJOR == 3 else (obs["policy"].shape[1],) * 2
        return [ActorCritic(*of_observations, outputs, noise_std_type=std_type)]
    from rsl_rl.models import MLPModel

    if MAJOR == 4:
        distribution = {"stochastic": True, "noise_std_type": std_type}
    else:
        distribution = {"distribution_cfg": {"class_name": NORMAL, "std_type": std_type}}
    return [MLPModel(obs, GROUPS, "actor", outputs, **distribution), MLPModel(obs, GROUPS, "critic", 1)]


def parts(models):
    """(the policy's layers, the value's layers, what has the parameter of the deviation, the ending of its name).

    The ending is "" or "_param", behind "std" or "log_std"."""
    if not HAS_MODELS:
        [module] = models
        return module.actor, module.critic, module, ""
    actor, critic = models
    if MAJOR == 4:
        return actor.mlp, critic.mlp, actor, ""
    return actor.mlp, critic.mlp, actor.distribution, "_param"


def put_tables(models, recorder):
    """Puts the tables of a recorder in place of the layers and of the log standard deviation."""
    if HAS_MODELS:
        actor, critic = models
        actor.mlp = recorder.policy
        critic.mlp = recorder.value
    else:
        [module] = models
        module.actor = recorder.policy
        module.critic = recorder.value
    _, _, owner, ending = parts(models)
    setattr(owner, f"log_std{ending}", recorder.logstd)


class OfTensors(PPO):
    """Version 2, called as the later ones, which get the observations in a TensorDict."""

    def act(self, obs):
        return super().act(obs["policy"], obs["policy"])

    def process_env_step(self, obs, rewards, dones, extras):
        super().process_env_step(rewards, dones, extras)

    def compute_returns(self, obs):
        super().compute_returns(obs["policy"])


def make_algorithm(models, world, obs, **options):
    """PPO with a storage for a rollout of a world."""
    if "storage" in inspect.signature(PPO).parameters:
        storage = RolloutStorage("rl", world.num_envs, world.num_steps, obs, [world.num_outputs])
        return PPO(*models, storage, **options)
    if MAJOR == 3:
        algorithm = PPO(*models, **options)
        algorithm.init_storage("rl", world.num_envs, world.num_steps, obs, [world.num_outputs])
    else:
        algorithm = OfTensors(*models, **options)
        width = [obs["policy"].shape[1]]
        algorithm.init_storage("rl", world.num_envs, world.num_steps, width, width, [world.num_outputs])
    return algorithm
