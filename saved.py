"""Finds, loads and imports a run's script and checkpoint, for enjoy.py, export.py, check.py and the tools.

docs/runs.md says what they use of a script.
"""

import contextlib
import glob
import importlib.util
import io
import pickle
import re
import sys
import typing
import zipfile
from pathlib import Path
from types import ModuleType

import gymnasium as gym
import torch
import tyro

# The global step in the names of checkpoints, and of the copies of the script that a resume makes, as a pattern. It is
# the one in checkpoint_files() of the scripts, which import nothing from here.
STEP = "[0-9]" * 12
# What a library's modules are called, and the extra of pyproject.toml that installs it
EXTRAS = {
    "ale_py": "atari",
    "cv2": "atari",
    "mujoco": "mujoco",
    "Box2D": "box2d",
    "envpool": "envpool",
    "gym_microrts": "microrts",
    "slimevolleygym": "selfplay",
    "moviepy": "video",
    "pygame": "video",
    "onnx": "export",
    "onnxscript": "export",
    "onnxruntime": "export",
}


class Saved(typing.NamedTuple):
    """A checkpoint, and the script that made it."""

    file: Path  # the checkpoint
    state: dict  # its contents: script, args, first_step, global_step, returns, parts
    script: ModuleType
    options: typing.Any  # script.Args
    trusted: bool = False  # whether a module that env_id names may be imported


def load(path, script_options=()):
    """Reads a checkpoint, or the newest of a folder, and imports its script: a Saved.

    The folder is a run's, or has folders of runs in it. `script_options` are words of the command line, which change
    the options in the checkpoint. No code in the checkpoint runs."""
    file = newest_checkpoint(path) if path.is_dir() else path
    state = read_state(file)
    source, has_own_script = find_script(file, state)
    script = import_script(source)
    default = options_of_checkpoint(script, state["args"])
    options = tyro.cli(script.Args, args=script_options, default=default, prog=source.name)
    # Security: whoever plays a folder runs the script in it anyway. A checkpoint alone must run no code but this
    # repository's, so the module of an env_id "module:Id" is imported only if the user has named it.
    is_named = False
    for word in script_options:  # "--env-id", "module:Id" or "--env-id=module:Id"
        if options.env_id in (word, word.partition("=")[2]):
            is_named = True
    return Saved(file, state, script, options, trusted=has_own_script or is_named)


@contextlib.contextmanager
def missing_extra_named():
    """Ends the program with a command that installs a missing library, where an extra has it.

    gymnasium's own message names an extra of gymnasium, which may not fit constraints.txt."""
    try:
        yield
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        cause = error if isinstance(error, ImportError) else error.__cause__
        name, _, _ = str(getattr(cause, "name", None)).partition(".")
        if name not in EXTRAS:
            raise
        command = f'pip install -c constraints.txt ".[{EXTRAS[name]}]"'
        sys.exit(f"error: {name} is not installed; in the folder of the scripts: {command}")


def checkpoint_files(folder):
    """The checkpoints in a run's folder, oldest first."""
    return sorted(folder.glob(f"checkpoint_{STEP}.pt"))


def newest_checkpoint(folder):
    """The newest checkpoint of a run's folder, or of the run in `folder` that saved last.

    It counts also where it is damaged: an older one would be another agent."""
    files = checkpoint_files(folder)
    if not files:
        of_runs = folder.glob(f"*/checkpoint_{STEP}.pt")
        last_saved = max(of_runs, key=lambda file: file.stat().st_mtime, default=None)
        if last_saved is None:
            sys.exit(f"error: neither {folder} nor a folder in it has a checkpoint_<step>.pt")
        files = checkpoint_files(last_saved.parent)
    return files[-1]


def read_state(file):
    """The contents of a checkpoint. Runs no code from it.

    Ends the program if the file is damaged, or has the name of a checkpoint of another step."""
    data = file.read_bytes()
    state = None
    try:
        # torch.load() takes what does not begin as a zip archive for its older format, and verifies no checksums
        if data.startswith(b"PK") and zipfile.ZipFile(io.BytesIO(data)).testzip() is None:
            state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # it holds objects whose loading could run code
        raise
    except Exception:  # damaged bytes raise errors of many kinds
        pass
    if state is None:
        sys.exit(f"error: {file} is damaged, or no checkpoint")
    step = re.fullmatch(f"checkpoint_({STEP})", file.stem)
    if step is not None and int(step[1]) != state["global_step"]:
        sys.exit(f"error: {file} holds the agent of step {state['global_step']}, and not the one that its name says")
    return state


def find_script(file, state):
    """The script that made a checkpoint, and whether it is a copy in the checkpoint's folder.

    A resume adds a copy, whose name ends with the step at which training was resumed. Of the copies the newest that is
    older than the checkpoint counts. A folder without a copy has the script beside saved.py."""
    name = Path(state["script"]).stem
    repository_script = Path(__file__).resolve().with_name(f"{name}.py")
    candidates = []
    for copy in sorted(file.parent.glob(f"{glob.escape(name)}_{STEP}.py"), reverse=True):
        _, _, step = copy.stem.rpartition("_")
        if int(step) < state["global_step"]:
            candidates.append(copy)
    candidates.append(file.with_name(f"{name}.py"))
    for source in candidates:
        if source.exists():
            return source, source.resolve() != repository_script
    if not repository_script.exists():
        sys.exit(f"error: {file} was made by {name}.py, which is neither in its folder nor beside enjoy.py")
    return repository_script, False


def import_script(source, name=None):
    """Imports a script as the module `name`.

    By default the name is made of the whole path, as two runs may have different scripts of one name. No other process
    can import such a module."""
    if name is None:
        name = re.sub(r"\W", "_", str(source.resolve()))
    spec = importlib.util.spec_from_file_location(name, source)
    script = importlib.util.module_from_spec(spec)
    sys.modules[name] = script  # tyro finds the source of Args, with the help texts, by it
    # not spec.loader.exec_module(script), which would leave a __pycache__ in the run's folder
    code = compile(source.read_bytes(), source, "exec")
    exec(code, vars(script))
    return script


def options_of_checkpoint(script, args):
    """The script's Args with the options in a checkpoint, {name: value}.

    Options that the script does not have are named and left out."""
    names = script.Args.__dataclass_fields__.keys()
    unknown = sorted(args.keys() - names)
    if unknown:
        print(f"options of the checkpoint that {Path(script.__file__).name} does not have: {', '.join(unknown)}")
    return script.Args(**{name: value for name, value in args.items() if name in names})
