"""Checks the first update of a run."""

import dataclasses

from checker.gradient_steps import check_left_over, check_losses, check_parameters, check_policy_loss, check_rows
from checker.page import describe
from checker.parts import check_options_saved
from checker.rollouts import check_advantages, check_ends, check_gae, check_resets, check_rollout


def check_update(run, args, source, page):
    """Looks at the gradient steps of the first update."""
    stats = run.stats[0] if run.stats else []
    page.section("update 1", f", {len(stats)} gradient steps")
    check_options_saved(args, source, page)
    if stats:
        with page.check("parameters"):
            check_parameters(run, stats, args, source, page)
            check_left_over(run, page)
        with page.check("losses"):
            check_losses(stats, args, page)
        with page.check("options"):
            check_options_read(run, source, page)
        with page.check("policy loss"):
            check_policy_loss(run, page)
        with page.check("advantages"):
            check_advantages(run, page)
            check_gae(run, args, page)
            check_ends(run, page)
        with page.check("rollout"):
            check_resets(run, page)
            check_rollout(run, args, source, page)
            check_rows(run, page)
    if run.error is None:
        return
    name = f"the run ended after {len(run.update_times)} of 2 updates"
    if page.counts["ERROR"] > 0:
        page.skip(f"{name}, perhaps for an error above: {describe(run.error)}")
    else:
        page.failure(name, run.error)


def check_options_read(run, source, page):
    """Finds options that neither the run nor any line of the script reads."""
    names = [field.name for field in dataclasses.fields(run.script.Args)]
    unread = [name for name in names if name not in run.options_read and name not in source.names()]
    for name in unread:
        page.error(f"option --{name.replace('_', '-')} is never read{source.option(name)}")
    if not unread:
        page.ok(f"all {len(names)} options are read")
