"""Measures which of PPO's implementation details an implementation has, by running it: docs/conformance.md."""
