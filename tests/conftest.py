"""What holds in every test, and the fixtures that several files share."""

import os
import signal
from unittest import mock

import pytest
import torch
from toy_envs import needs_procgen

# Before any script is imported, as one's default is the number of threads that it finds. As OMP_NUM_THREADS=1 in
# `toy_envs.start`: their number may change the last bit of a result.
torch.set_num_threads(1)

# Tests that are started in the background, or by nohup, ignore these, and so would every script that they start.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)

FORKING = {"test_multigpu.py", "test_cleanba.py", "test_impala.py"}
LAST = {"test_device.py"}


def pytest_collection_modifyitems(items):
    """The tests that fork ranks come first: later ones leave threads behind, with which a process cannot be forked.

    Those that make a second device known to torch come last: a process keeps it."""
    items.sort(key=lambda item: (item.path.name not in FORKING, item.path.name in LAST))


@pytest.fixture(autouse=True)
def environment():
    """What a test or a script sets in the environment, as MUJOCO_GL for a film, is gone in the next test."""
    with mock.patch.dict(os.environ):
        yield


def pytest_runtest_setup(item):
    if item.get_closest_marker("qt"):
        needs_procgen()


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where test_golden.py computes what it compares with ppo2")


@pytest.fixture
def device(request):
    """The device that --device names; no product is rounded there, as none is in a run."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return torch.device(request.config.getoption("--device"))


CUDA_BUILD = """
import torch
torch.__version__ = torch.version.__version__ = torch.torch_version.TorchVersion("2.13.0+cu130")
"""


@pytest.fixture
def cuda_build(tmp_path_factory):
    """A folder for PYTHONPATH with which torch calls itself as its CUDA build does, and its metadata do otherwise."""
    folder = tmp_path_factory.mktemp("cuda_build")
    (folder / "sitecustomize.py").write_text(CUDA_BUILD)
    (folder / "torch-2.13.0.dist-info").mkdir()
    (folder / "torch-2.13.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    return folder
