"""Checks an edited script and an environment before a long run: check.py is the program.

page.py prints what is found, and finds places in the user's code. environment.py takes random steps. watched.py trains
with the script, while the classes of policies.py, rollouts.py, gradient_steps.py and parts.py look on; the functions
beside each class check what it saw. resume.py continues from a checkpoint, and learn.py trains on small environments.
"""
