"""Continues from a checkpoint."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import torch

from checker.page import describe, place_of
from checker.parts import difference
from checker.watched import Watched


def check_checkpoint(script, args, run, source, page):
    """Resumes from the checkpoint of update 1, and compares update 2 with that of the run that was not interrupted."""
    page.section("checkpoint")
    for name, problem in run.parts.unsavable.items():
        page.error(f"part {name}: {problem}")
    for thing in run.parts.outside():
        name = type(thing).__name__
        hint = "a resume begins it anew, unless train() loads it from a file"
        page.warn(f"training uses an object {name} that is in no part of run.start(): {hint}{source.call(name)}")
    if run.error is not None or not run.first_steps:
        page.skip("resume: the run did not end")
        return
    [file, _] = sorted(run.runs[0].folder.glob("checkpoint_*.pt"))
    folder = Path(args.runs_folder, "resumed")
    shutil.copytree(run.runs[0].folder, folder, ignore=shutil.ignore_patterns("lock", "*.pt"))
    shutil.copy(file, folder)
    words = ["--env-id", args.env_id]
    resumed = Watched(script, dataclasses.replace(args, resume=str(folder)), words, run.first_steps[1])
    errors = page.counts["ERROR"]
    saved = torch.load(file, map_location="cpu", weights_only=True)["parts"]
    for name, state in resumed.parts.states.items():
        text = difference(saved[name], state, "state_dict()")
        if text:
            page.error(f"part {name}: {text}{place_of(type(resumed.parts.named[name]).load_state_dict)}")
    other = []
    for (kind, *numbers), (_, *loaded) in zip(
        run.parts.statistics_saved, resumed.parts.statistics_loaded, strict=False
    ):
        if not all(map(np.allclose, numbers, loaded)):
            other.append(kind)
    if other and resumed.error is None:
        hint = "is it a part of run.start(), and does its state_dict() have all of them?"
        page.error(f"statistics of {other[0].__name__} are others after a resume: {hint}{place_of(other[0])}")
    if resumed.error is not None:
        page.error(f"the resume ended: {describe(resumed.error)}")
    elif page.counts["ERROR"] > errors:
        page.skip("update 2 after a resume: the part above")
    else:
        compare_first_steps(run.first_steps[1], resumed, page)


def compare_first_steps(first, resumed, page):
    """Compares the first gradient step of update 2, on the same minibatch, with that after a resume."""
    second = resumed.first_steps[0]
    not_resumed = {"resume", *getattr(resumed.script, "NOT_RESUMED", ())}
    for name, value in first.options.items():
        other = second.options.get(name)
        if name not in not_resumed and not np.array_equal(value, other):
            page.error(f"option {name} is {value} in update 2, and {other} after a resume: keep it in a part")
            return
    moved = max((first.after[name] - before).abs().max().item() for name, before in first.before.items())
    gap = max((first.after[name] - after).abs().max().item() for name, after in second.after.items())
    if gap <= 0.01 * moved:
        page.ok(f"{', '.join(resumed.parts.named)} saved and loaded; update 2 begins with the same gradient step")
    elif second.optimizer not in resumed.parts.named.values() and "optimizer" not in resumed.parts.named:
        page.error("the optimizer is not a part: name it in run.start(), or a resume starts it anew")
    else:
        hint = ", or gradients of earlier steps are left over"
        page.error(f"update 2 begins with another step after a resume, by {gap / moved:.0%}: a part is missing{hint}")


def check_resume_option(script, args, options, source, page):
    """With --resume: which options have another value in the checkpoint than the script's default, and so keep it."""
    path = Path(args.resume)
    page.section("resume", f" of {path}")
    file = sorted(path.glob("checkpoint_*.pt"))[-1] if path.is_dir() else path
    state = torch.load(file, map_location="cpu", weights_only=True)
    # tyro also takes --learning_rate
    named = {option.partition("=")[0].replace("_", "-").replace("--no-", "--") for option in options}
    for field in dataclasses.fields(script.Args):
        option = f"--{field.name.replace('_', '-')}"
        value = state["args"].get(field.name, field.default)
        if value != field.default and option not in named and field.name not in {"env_id", *script.NOT_RESUMED}:
            place = source.option(field.name)
            page.note(f"{option} is {field.default} in the script{place}, and the checkpoint's {value} holds")
