"""Settings of all tests, and the fixtures that several files share."""

import os
import signal
from unittest import mock

import pytest
import torch
from toy_envs import needs_procgen

# The number of threads may change the last bit of a result; as OMP_NUM_THREADS=1 in `toy_envs.start`.
torch.set_num_threads(1)

# Tests that are started in the background ignore these signals, and so would every script that they start.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)

FORKING = {"test_multigpu.py", "test_cleanba.py", "test_impala.py"}


def pytest_collection_modifyitems(items):
    """Tests that fork ranks come first: later ones leave threads behind, with which a process cannot be forked."""
    items.sort(key=lambda item: item.path.name not in FORKING)


@pytest.fixture(autouse=True)
def environment():
    """Undoes what a test sets in the environment, such as MUJOCO_GL for a film."""
    with mock.patch.dict(os.environ):
        yield


def pytest_runtest_setup(item):
    if item.get_closest_marker("qt"):
        needs_procgen()


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where test_golden.py computes what it compares with ppo2")


@pytest.fixture
def device(request):
    """The device that --device names, without TF32."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return torch.device(request.config.getoption("--device"))
