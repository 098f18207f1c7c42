"""--compile and --bf16: faster, and the same but for rounding."""

import copy
import os
import shutil
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from golden_data import CONFIGS, load
from in_process import patched, put_in_place_of_games, train
from run_files import scalars
from script_table import ATARI, CLEANBA, ENVPOOL, LSTM, MASK, MULTIGPU, PPO, PROCGEN, of_scripts
from test_golden import recorded_batch
from toy_envs import Clock

import ppo

# Where there is no C++ compiler what --compile compiles is only traced, and its graph run by torch's own operations.
BACKEND = "inductor" if shutil.which(os.environ.get("CXX", "g++")) else "aot_eager"


@pytest.fixture
def as_it_was():
    """Undoes what --compile sets for the whole process."""
    with torch._dynamo.config.patch(trace_autograd_ops=False):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("as_it_was")
def test_compiled_equals_eager_after_50_updates():
    """From ppo2's recorded batch, 50 steps: the same weights but for rounding; everything is compiled once.

    The learning rate and the clip range change in each step, as with --anneal-lr and --anneal-clip."""
    torch._dynamo.config.trace_autograd_ops = True  # as train() does
    config, data = CONFIGS["mlp_copy_discrete"], load("b_mlp_copy_discrete")
    batch = recorded_batch(config, data)
    eager = config.agent()
    compiled = copy.deepcopy(eager)
    compiles = torch._dynamo.utils.counters["stats"]
    before = compiles["unique_graphs"]
    whole = torch.compile(ppo.gradient_step, backend=BACKEND, fullgraph=True)
    for agent, gradient_step in ((eager, ppo.gradient_step), (compiled, whole)):
        optimizer = ppo.Adam(agent)
        for update in range(50):
            left = 1 - update / 50
            args = ppo.Args(learning_rate=2.5e-4 * left, clip_coef=0.2 * left)
            gradient_step(agent, optimizer, batch, ppo.floats_as_tensors(args))
    assert compiles["unique_graphs"] == before + 1
    start = config.agent()
    # Where rounding lets one of 128 rows leave the clip range a step earlier, a weight differs by about 2.5e-4 / 128.
    for name, weights in eager.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[name], weights, rtol=0, atol=2e-5)
        assert not torch.equal(weights, start.state_dict()[name])


@pytest.mark.usefixtures("as_it_was")
def test_compile_is_of_the_gradient(tmp_path, monkeypatch):
    """And no script lets a GPU round to TF32 unless asked to."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function: compiled.append(function) or function)
    for option in ("--tf32", "--compile"):
        train(PPO, f"--num-envs 2 --num-steps 8 --total-timesteps 16 {option}", tmp_path)
        assert {torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32} == {option == "--tf32"}
    assert compiled == [ppo.gradient_step] and torch._dynamo.config.trace_autograd_ops


@pytest.mark.usefixtures("as_it_was")
@of_scripts([PPO, MASK, pytest.param(ATARI, marks=pytest.mark.slow), pytest.param(MULTIGPU, marks=pytest.mark.slow)])
def test_schedules_compile_nothing_anew(script, tmp_path, monkeypatch):
    """Of a run whose learning rate and clip range change with each update, the gradient step is compiled once."""
    compile_eagerly = partial(torch.compile, backend="eager")  # it is traced alone, which takes no compiler
    monkeypatch.setattr(torch, "compile", compile_eagerly)
    torch._dynamo.reset()
    compiles = torch._dynamo.utils.counters["stats"]
    before = compiles["unique_graphs"]
    put_in_place_of_games(script, lambda images, index: Clock(images), monkeypatch.setattr)
    options = "--num-envs 4 --num-steps 8 --total-timesteps 160 --num-minibatches 2 --update-epochs 1"
    run = train(script, f"{options} --compile --anneal-lr --anneal-clip", tmp_path)
    assert len(scalars(run)["losses/policy_loss"]) == 5
    assert compiles["unique_graphs"] == before + 1


# the scripts that have --bf16, and ppo2's name of each one's network
HAVE_BF16 = [
    *((script, "cnn") for script in (ATARI, ENVPOOL, MULTIGPU, CLEANBA)), (LSTM, "cnn_lstm"), (PROCGEN, "impala")
]  # fmt: skip
for_bf16 = pytest.mark.parametrize("script, network", HAVE_BF16, ids=[script.name for script, _ in HAVE_BF16])


@for_bf16
def test_bf16_is_close_to_float32(script, network):
    """Of ppo2's batch of images, policy and values within bfloat16's rounding, and not nearer; the heads are float32.

    The gradient too, and the weights stay float32."""
    config, data = CONFIGS[network]._replace(script=script.module), load(f"b_{network}")
    obs, agents, results = config.obs(data["obs"]), [], []
    rest = [(torch.ones(1, len(obs), 128),) * 2, torch.zeros(len(obs), dtype=torch.bool)] if config.memory else []
    for bf16 in (False, True):
        torch.manual_seed(1)
        agents.append(config.agent(bf16=bf16))
        results.append(agents[-1](obs, *rest))
        results[-1][1].sum().backward()
    (policy, values, *_), (rounded_policy, rounded_values, *_) = results
    assert rounded_values.dtype == rounded_policy.logits.dtype == torch.float32
    for weights, rounded in zip(*(agent.parameters() for agent in agents), strict=True):
        assert rounded.dtype == torch.float32 and torch.equal(weights, rounded)
    exact, rounded = (agent.trunk[0].weight.grad for agent in agents)
    assert 1e-3 < (rounded - exact).norm() / exact.norm() < 0.1
    error = (rounded_values - values).abs().max() / values.abs().max()
    assert 1e-5 < error < (0.1 if script is PROCGEN else 0.03)  # 15 layers, each rounded
    torch.testing.assert_close(rounded_policy.logits, policy.logits, rtol=0, atol=1e-3)


@for_bf16
@pytest.mark.parametrize("bf16", [False, True])
def test_the_option_reaches_the_agent(script, network, bf16, tmp_path):
    def agent(envs, asked, *others):
        raise SystemExit(f"bf16: {asked}")

    no_envs = SimpleNamespace(metadata={})
    with patched((script.module, "make_envs", lambda args, folder: no_envs), (script.module, "Agent", agent)):
        with pytest.raises(SystemExit, match=f"^bf16: {bf16}$"):
            train(script, "--bf16" if bf16 else "", tmp_path)
