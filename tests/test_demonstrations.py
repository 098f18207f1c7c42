"""Games that enjoy.py records, and the recipes that learn from them or keep a trained policy."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from in_process import loaded_parts, patched, train, watched
from run_files import scalars
from script_table import CONTINUOUS, PPO

import enjoy

FEW = "--no-cuda --num-envs 2 --num-steps 32 --total-timesteps 128 --num-minibatches 2 --save-every 1"
SCRIPTS = [("ppo.py", "CartPole-v1"), ("ppo_continuous_action.py", "Pendulum-v1")]
both_scripts = pytest.mark.parametrize("script, env_id", SCRIPTS)


def recorded(script, env_id, folder):
    """The file of a game of an agent that has hardly learned."""
    run = train(PPO if script == "ppo.py" else CONTINUOUS, f"{FEW} --env-id {env_id}", folder / "expert")
    file = folder / "new" / "games.npz"
    enjoy.enjoy(enjoy.Args(run, episodes=2, record=file))
    return run, file


@both_scripts
def test_games_are_recorded(script, env_id, tmp_path):
    """What the environment showed and got; played again, the actions give the same observations and returns."""
    run, file = recorded(script, env_id, tmp_path)
    games = np.load(file)
    returns = enjoy.enjoy(enjoy.Args(run, episodes=2))
    lengths = np.diff(np.flatnonzero(games["dones"]), prepend=-1)
    env = gym.make(env_id)
    row = 0
    for number, length in enumerate(lengths):
        obs, _ = env.reset(seed=enjoy.FIRST_SEED + number)
        for _ in range(length):
            np.testing.assert_array_equal(games["obs"][row], obs)
            obs, reward, *_ = env.step(games["actions"][row])
            assert games["rewards"][row] == pytest.approx(reward)
            row += 1
        assert games["rewards"][row - length : row].sum() == pytest.approx(returns[number])
    assert row == len(games["obs"]) == len(games["actions"]) and len(lengths) == 2
    with pytest.raises(SystemExit, match="exists"):
        enjoy.enjoy(enjoy.Args(run, episodes=1, record=file))


@both_scripts
def test_the_policy_repeats_what_was_shown(script, env_id, with_recipe, tmp_path):
    """Before the first rollout: its actions are likelier than without cloning, and Normalize knows the observations."""
    made = with_recipe("with/demonstrations", script)
    _, file = recorded(script, env_id, tmp_path)
    games = dict(np.load(file))
    # actions that the observations tell
    games["actions"] = (games["obs"][:, 0] > 0).astype(int) if script == "ppo.py" else games["obs"][:, :1]
    np.savez(file, **games)
    options = f"{FEW} --env-id {env_id} --demonstrations {file} --learning-rate 0 --clone-epochs"
    losses = []
    for epochs in (0, 50):
        with loaded_parts(made) as parts:
            run = train(made, f"{options} {epochs}", tmp_path / str(epochs))
        losses.append(scalars(run)["losses/clone_loss"][0][1])
        if script != "ppo.py":
            mean, _, count = parts["envs"]["obs"]
            assert count == pytest.approx(len(games["obs"]), abs=0.01)
            np.testing.assert_allclose(mean, games["obs"].mean(axis=0), atol=1e-3)
    assert losses[1] < losses[0] - 0.1


@both_scripts
def test_the_loss_of_cloning_fades(script, env_id, with_recipe, tmp_path):
    """The coefficient is that of the update, and the rows are of the file, in the scale of the environments."""
    made = with_recipe("with/demonstrations", script)
    _, file = recorded(script, env_id, tmp_path)

    def look(agent, minibatch, args):
        return args.clone_coef, minibatch["demonstrated_obs"], minibatch["demonstrated_actions"]

    options = f"{FEW} --env-id {env_id} --demonstrations {file} --clone-coef 0.5 --clone-decay 0.1 --update-epochs 1"
    with watched(made.module, "ppo_loss", look) as seen:
        train(made, options, tmp_path / "run")
    assert [coef for coef, *_ in seen] == pytest.approx([0.5, 0.5, 0.05, 0.05])
    assert all(len(obs) == len(actions) == 32 for _, obs, actions in seen)
    actions = torch.cat([actions for *_, actions in seen])
    assert np.isin(actions.numpy(), np.load(file)["actions"]).all()


def test_the_gradient_has_the_loss_of_cloning(with_recipe):
    """0.5 times the mean of -log pi(a | s) is a part of the loss."""
    made = with_recipe("with/demonstrations")
    obs, actions = torch.randn(8, 4), torch.randint(2, (8,))
    agent = made.module.Agent(made.module.make_envs(made.module.Args()))
    minibatch = {"obs": torch.randn(8, 4), "actions": torch.randint(2, (8,)), "logprobs": torch.randn(8)}
    minibatch |= {"values": torch.randn(8), "returns": torch.randn(8)}
    minibatch |= {"demonstrated_obs": obs, "demonstrated_actions": actions}
    losses = [made.module.ppo_loss(agent, minibatch, made.module.Args(clone_coef=coef))[0] for coef in (0.0, 0.5)]
    expected = -0.5 * agent.get_policy(obs).log_prob(actions).mean()
    torch.testing.assert_close(losses[1] - losses[0], expected)


@both_scripts
def test_the_policy_waits_for_its_critic(script, env_id, with_recipe, tmp_path):
    """For the first updates of a run from a checkpoint, whose optimizer has momentum; values learn."""
    made = with_recipe("with/critic-warm-up", script)
    options = f"{FEW} --env-id {env_id}"
    file = train(made, f"{options} --warm-up-updates 0", tmp_path / "first") / "checkpoint_000000000128.pt"
    run = train(made, f"{options} --resume {file} --total-timesteps 320 --warm-up-updates 2", tmp_path / "next")
    old = torch.load(file, weights_only=True)["parts"]
    states = [torch.load(path, weights_only=True)["parts"] for path in sorted(run.glob("checkpoint_*.pt"))]
    frozen, free = states[-2:]  # after two updates, and after three
    for name, weight in old["agent"].items():
        is_of_values = name.startswith("value")
        assert torch.equal(weight, frozen["agent"][name]) != is_of_values
        assert not torch.equal(weight, free["agent"][name])
    assert torch.equal(old["optimizer"]["mean"], frozen["optimizer"]["mean"])
    assert scalars(run)["losses/approx_kl"][1][1] == 0 < scalars(run)["losses/approx_kl"][2][1]


def test_a_resume_does_not_clone_again(with_recipe, tmp_path):
    made = with_recipe("with/demonstrations")
    _, file = recorded("ppo.py", "CartPole-v1", tmp_path)
    run = train(made, f"{FEW} --env-id CartPole-v1 --demonstrations {file}", tmp_path / "run")

    def fail(*_):
        raise AssertionError

    with patched((made.module, "clone", fail)):
        train(made, f"--resume {run} --total-timesteps 192", tmp_path / "run")
