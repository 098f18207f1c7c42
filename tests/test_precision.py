"""--compile and --bf16: faster, and the same but for rounding."""

import copy
import os
import shutil

import pytest
import torch
from golden_data import CONFIGS, load
from test_golden import recorded_batch
from toy_envs import ATARI, SCRIPTS, finish, start

import ppo

ppo_script = SCRIPTS[0]
# Where there is no C++ compiler what --compile compiles is only traced, and its graph run by torch's own operations.
BACKEND = "inductor" if shutil.which(os.environ.get("CXX", "g++")) else "aot_eager"


def test_compiled_equals_eager_after_50_updates():
    """From ppo2's recorded batch, 50 steps: the same weights but for rounding; everything is compiled once."""
    config, data = CONFIGS["mlp_copy_discrete"], load("b_mlp_copy_discrete")
    batch = recorded_batch(config, data)
    eager = config.agent()
    compiled = copy.deepcopy(eager)
    compiles = torch._dynamo.utils.counters["stats"]
    before = compiles["unique_graphs"]
    for agent, loss_function in ((eager, ppo.ppo_loss), (compiled, torch.compile(ppo.ppo_loss, backend=BACKEND))):
        optimizer = torch.optim.Adam(agent.parameters(), 2.5e-4, fused=True)
        for _ in range(50):
            ppo.gradient_step(agent, optimizer, batch, 0.2, ppo.Args(), loss_function)
    assert compiles["unique_graphs"] == before + 1
    start = config.agent()
    for name, weights in eager.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[name], weights, rtol=0, atol=2e-6)
        assert not torch.equal(weights, start.state_dict()[name])


def test_bf16_is_close_to_float32():
    """Of ppo2's Atari batch, policy and values within bfloat16's rounding, and not nearer; the heads are float32."""
    config, data = CONFIGS["cnn"], load("b_cnn")
    torch.manual_seed(1)
    agent, obs = config.agent(), config.obs(data["obs"])
    with torch.no_grad():
        policy, values = agent(obs)
        agent.bf16 = True
        rounded_policy, rounded_values = agent(obs)
    assert rounded_values.dtype == rounded_policy.logits.dtype == torch.float32
    error = (rounded_values - values).abs().max() / values.abs().max()
    assert 1e-5 < error < 0.03
    torch.testing.assert_close(rounded_policy.logits, policy.logits, rtol=0, atol=1e-3)


# A program for another process: a script, as its command line says, where compiling is done by a certain backend.
WITH_BACKEND = """
import functools, runpy, sys, torch
torch.compile = functools.partial(torch.compile, backend=sys.argv.pop(1))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("script, option", [(ppo_script, "--compile"), (ATARI, "--bf16")], ids=["compile", "bf16"])
def test_a_run_with_the_option(script, option, tmp_path):
    command = ["-c", WITH_BACKEND, BACKEND, script.module.__file__, *script.tiny.split(), option]
    status, _, errors = finish(start(command, tmp_path))
    assert status == 0, errors


def test_the_lstm_is_not_compiled(tmp_path):
    status, _, errors = finish(start([ATARI.module.__file__.replace("atari", "atari_lstm"), "--compile"], tmp_path))
    assert status == 1 and "error: --compile" in errors and not list(tmp_path.glob("runs/*"))
