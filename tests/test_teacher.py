"""The recipe teacher: KL(teacher || policy) beside PPO's loss, of a saved agent that may see more."""

import pytest
import torch
from in_process import loaded_parts, patched, train, watched
from run_files import checkpoint, scalars
from script_table import CONTINUOUS, ROOT
from test_demonstrations import recorded
from test_export import written

import enjoy

FEW = "--no-cuda --num-envs 2 --num-steps 32 --total-timesteps 128 --num-minibatches 2"
HIDDEN = [
    ("ppo.py", "--env-id recipes.environments:CartPoleHiddenLimit-v1", 4, 5),
    ("ppo_continuous_action.py", "--env-id recipes.environments:PendulumNoVelocity-v1 --privileged state", 2, 4),
]


def policies(script, rows):
    """A teacher and a policy, each for `rows` equal observations, and the same as torch's distributions."""
    made, logits, logstd = script.module, torch.tensor([[0.5, -1.0], [0.0, 0.3]]), torch.tensor([[-0.5], [0.1]])
    if hasattr(made, "Categorical"):
        ours = [made.Categorical(each.expand(rows, 2)) for each in logits]
        return ours, [torch.distributions.Categorical(logits=each) for each in logits]
    means = logits[:, :1]
    ours = [made.Normal(mean.expand(rows, 1), std[None]) for mean, std in zip(means, logstd, strict=True)]
    theirs = [torch.distributions.Normal(mean, std.exp()) for mean, std in zip(means, logstd, strict=True)]
    return ours, theirs


@pytest.mark.parametrize("script", ["ppo.py", "ppo_continuous_action.py"])
def test_the_divergence_is_a_part_of_the_loss(script, with_recipe):
    """The mean over many actions of the teacher is KL(teacher || policy) as torch has it."""
    made = with_recipe("with/teacher", script)
    torch.manual_seed(1)
    (teacher, policy), theirs = policies(made, 200_000)
    actions = teacher.sample()
    minibatch = {name: torch.randn(200_000) for name in ("logprobs", "values", "returns")}
    minibatch |= {"obs": None, "actions": policy.sample()}
    minibatch |= {"teacher_actions": actions, "teacher_logprobs": teacher.log_prob(actions)}

    def agent(obs):
        return policy, torch.zeros(200_000)

    losses = [made.module.ppo_loss(agent, minibatch, made.module.Args(teacher_coef=coef)) for coef in (0.0, 0.5)]
    expected = torch.distributions.kl_divergence(*theirs).item()
    assert expected > 0.1
    assert losses[0][1]["teacher_kl"].item() == pytest.approx(expected, rel=0.05)
    assert (losses[1][0] - losses[0][0]).item() == pytest.approx(0.5 * expected, rel=0.05)


@pytest.mark.parametrize("script, options, shown, all_inputs", HIDDEN)
def test_the_teacher_sees_more_than_the_policy(script, options, shown, all_inputs, with_recipe, tmp_path):
    """Its advice is for whole observations, in its own scale; the exported file has no part of it."""
    alone = with_recipe("with/privileged-critic", script)
    file = train(alone, f"{FEW} {options} --policy-sees-all", tmp_path / "teacher")
    made = with_recipe("with/privileged-critic", script, "with/teacher")
    teachers = []

    def keep(args, envs, load=made.module.load_teacher):
        teachers.append(load(args, envs))
        return teachers[-1]

    def look(agent, minibatch, args):
        return minibatch, args.teacher_coef

    with patched((made.module, "load_teacher", keep)), watched(made.module, "ppo_loss", look) as seen:
        options = f"{FEW} {options} --teacher {file} --teacher-coef 0.5 --teacher-decay 0.1 --update-epochs 1"
        run = train(made, options, tmp_path / "student")
    assert [coef for _, coef in seen] == pytest.approx([0.5, 0.5, 0.05, 0.05])
    weights = checkpoint(file)["parts"]["agent"]
    assert all(torch.equal(weights[name], weight) for name, weight in teachers[0].state_dict().items())
    for minibatch, _ in seen:
        assert minibatch["obs"].shape == (32, all_inputs)
        advice = teachers[0].get_policy(minibatch["obs"]).log_prob(minibatch["teacher_actions"])
        torch.testing.assert_close(advice, minibatch["teacher_logprobs"])
        blind = minibatch["obs"].clone()
        blind[:, shown:] += 1
        other = teachers[0].get_policy(blind).log_prob(minibatch["teacher_actions"])
        assert not torch.allclose(other, advice)
    student = checkpoint(run)["parts"]
    assert student["agent"]["policy_trunk.0.weight"].shape[1] == shown
    if "envs" in student:
        assert student["envs"] == checkpoint(file)["parts"]["envs"]
    assert len(enjoy.enjoy(enjoy.Args(run, episodes=1))) == 1
    assert written(run, tmp_path).get_inputs()[0].shape == ["batch", shown]


def test_the_policy_comes_closer_to_its_teacher(with_recipe, tmp_path):
    """To an agent of the repository, also after a resume."""
    made = with_recipe("with/teacher")
    teacher = ROOT / "agents/CartPole-v1__ppo__1.pt"
    options = f"--no-cuda --total-timesteps 2048 --learning-rate 5e-3 --vf-coef 0 --teacher {teacher}"
    run = train(made, options, tmp_path)
    with loaded_parts(made) as parts:
        train(made, f"--resume {run} --total-timesteps 4096", tmp_path)
    assert set(parts) == {"agent", "optimizer"}  # the teacher is in its own file
    divergences = [value for _, value in scalars(run)["losses/teacher_kl"]]
    assert len(divergences) == 8 and divergences[-1] < 0.5 * divergences[0]


def test_a_teacher_and_masks(with_recipe, tmp_path):
    """Its actions are valid."""
    options = "--no-cuda --num-envs 2 --num-steps 32 --total-timesteps 64 --env-id Taxi-v4"
    teacher = train(with_recipe("with/mask"), options, tmp_path / "teacher")
    made = with_recipe("with/mask", "ppo.py", "with/teacher")
    with watched(made.module, "ppo_loss", lambda agent, minibatch, args: minibatch) as seen:
        train(made, f"{options} --teacher {teacher}", tmp_path / "student")
    for minibatch in seen:
        assert minibatch["masks"].gather(1, minibatch["teacher_actions"].unsqueeze(1)).all()


def test_a_teacher_of_observations_that_are_not_normalized(with_recipe, tmp_path):
    made = with_recipe("with/normalization", "ppo.py", "with/teacher")
    with pytest.raises(SystemExit, match="one normalizes observations, and one does not"):
        train(made, f"{FEW} --env-id CartPole-v1 --teacher {ROOT / 'agents/CartPole-v1__ppo__1.pt'}", tmp_path)


@pytest.mark.parametrize("names", [("demonstrations", "teacher"), ("teacher", "demonstrations")], ids=" before ".join)
def test_demonstrations_in_the_scale_of_a_teacher(names, with_recipe, tmp_path):
    """The policy is cloned and trained in the scale that the teacher knows, which demonstrations do not change."""
    teacher, file = recorded("ppo_continuous_action.py", "Pendulum-v1", tmp_path)
    first, second = (f"with/{name}" for name in names)
    made = with_recipe(first, "ppo_continuous_action.py", second)

    def look(agent, demonstrations, args):
        return demonstrations.envs.state_dict()

    with watched(made.module, "clone", look) as seen:
        options = f"{FEW} --env-id Pendulum-v1 --demonstrations {file} --teacher {teacher}"
        student = train(made, options, tmp_path / "student")
    assert seen == [checkpoint(teacher)["parts"]["envs"]]
    assert checkpoint(student)["parts"]["envs"] == seen[0]


def test_a_student_that_knows_another_scale_than_its_teacher(with_recipe, tmp_path):
    """One of them would get observations in a scale that it has never seen. The student's own folder goes on."""
    made = with_recipe("with/teacher", "ppo_continuous_action.py")
    options = f"{FEW} --env-id Pendulum-v1"
    teacher, other = (train(CONTINUOUS, f"{options} --seed {seed}", tmp_path / f"{seed}") for seed in (1, 2))
    file = max(other.glob("checkpoint_*.pt"))
    with pytest.raises(SystemExit, match="another scale of observations"):
        train(made, f"--resume {file} --teacher {teacher} --total-timesteps 256", tmp_path / "student")
    student = train(made, f"{options} --teacher {teacher}", tmp_path / "student")
    train(made, f"--resume {student} --total-timesteps 256", tmp_path / "student")
    assert checkpoint(student)["global_step"] == 256


def test_a_teacher_of_other_observations(with_recipe, tmp_path):
    made = with_recipe("with/teacher")
    teacher = ROOT / "agents/CartPole-v1__ppo__1.pt"
    with pytest.raises(RuntimeError, match="size mismatch"):
        train(made, f"{FEW} --env-id Acrobot-v1 --teacher {teacher}", tmp_path)
