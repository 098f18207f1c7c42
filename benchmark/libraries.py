"""Finds the Python that has other libraries, and installs them into a virtual environment if necessary."""

import os
import shutil
import subprocess
import sys

from benchmark.results import ROOT


def absolute(program):
    """The absolute path of a program, as a relative one is not found from another folder; as it is where there is none.

    Links are kept, as that of a virtual environment's Python leads out of the environment."""
    found = shutil.which(program)
    return os.path.abspath(found) if found else program


def find_python(variable, folder, packages):
    """The Python that an environment variable names, or that of a folder in the checkout, which gets the packages."""
    if os.environ.get(variable):
        return absolute(os.environ[variable])
    folder = ROOT / folder
    stamp = folder / "stamp"  # what is installed there
    wanted = "\n".join(packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {', '.join(packages)} into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin/python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt"]
        subprocess.run([*pip, *packages], check=True)
        stamp.write_text(wanted)
    return str(folder / "bin/python")
