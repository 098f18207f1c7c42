"""Reads what a run wrote: its scalars and its checkpoints."""

from itertools import chain

import torch
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import SessionLog


def newest_run(folder):
    return max((folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def scalars(folder):
    """{tag: [(step, value), ...]} of a run as TensorBoard reads it: a start drops the points from its step on."""
    files = [list(LegacyEventFileLoader(str(path)).Load()) for path in folder.glob("events.*")]
    files = [file for file in files if file]  # a run that has just begun may have written nothing yet
    points = {}
    for event in chain.from_iterable(sorted(files, key=lambda file: file[0].wall_time)):
        if event.session_log.status == SessionLog.START:
            points = {tag: [point for point in old if point[0] < event.step] for tag, old in points.items()}
        for each in event.summary.value:
            if each.tag != "run/text_summary":  # the options
                points.setdefault(each.tag, []).append((event.step, each.simple_value))
    return points


def checkpoint(folder, which=-1):
    """The contents of a run's newest checkpoint, or of another."""
    return torch.load(sorted(folder.glob("checkpoint_*.pt"))[which], weights_only=True)


def equal(one, other):
    """Whether two states are equal, bit for bit."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def same_weights(one, other):
    """Whether two checkpoints hold the same weights, bit for bit."""
    return equal(one["parts"]["agent"], other["parts"]["agent"])


def without_speed(folder):
    """The log of a run without its speed, as text, in which NaN equals NaN."""
    return {tag: str(points) for tag, points in scalars(folder).items() if tag != "charts/SPS"}
