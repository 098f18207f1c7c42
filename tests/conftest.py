"""Settings of all tests, and the fixtures that several files share."""

import functools
import importlib
import os
import re
import signal
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from script_table import ROOT, needs_procgen

from recipes import merge
from recipes import recipe as recipe_files

# The number of threads may change the last bit of a result; as OMP_NUM_THREADS=1 in `processes.start`.
torch.set_num_threads(1)

# Tests that are started in the background ignore these signals, and so would every script that they start.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)

# What the environment of a user, a launcher or a git hook may hold for other programs: a repository, another language,
# no progress bar, the ranks of a job, an account.
OTHERS = ("GIT_", "LANGUAGE", "LC_", "MV2_", "OMPI_", "PMI_", "SLURM_", "TQDM_", "WANDB_", "WORLD_SIZE")
for name in list(os.environ):
    if name.startswith(OTHERS):
        del os.environ[name]
os.environ["LC_ALL"] = "C.UTF-8"

FORKING = {"test_multigpu.py", "test_cleanba.py", "test_impala.py"}


IDS = set()  # of all tests in the files that were collected


def pytest_collection_modifyitems(items):
    """Tests that fork ranks come first: later ones leave threads behind, with which a process cannot be forked."""
    IDS.update(item.nodeid for item in items)
    items.sort(key=lambda item: item.path.name not in FORKING)


@pytest.fixture
def ids():
    return IDS


@pytest.fixture(autouse=True)
def environment():
    """Undoes what a test sets in the environment, such as MUJOCO_GL for a film."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="session")
def with_recipe(tmp_path_factory):
    """A function from a recipe's name, such as with/muon, to the script that it makes, of its own or another.

    `second` names a recipe that is applied after it."""
    folder = tmp_path_factory.mktemp("recipes")
    sys.path.insert(0, str(folder))

    @functools.cache
    def make(name, script=None, second=None):
        recipe = recipe_files.read(ROOT / f"recipes/{name}.diff")
        source = ROOT / script if script else recipe.script
        text = merge.with_recipe(source.read_text(), recipe)
        module = re.sub(r"\W", "_", f"{name}_{source.stem}")
        if second:
            text = merge.with_recipe(text, recipe_files.read(ROOT / f"recipes/{second}.diff"))
            module += re.sub(r"\W", "_", f"_{second}")
        (folder / f"{module}.py").write_text(text)
        return SimpleNamespace(name=module, module=importlib.import_module(module))

    yield make
    sys.path.remove(str(folder))


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
