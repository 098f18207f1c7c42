"""One module for each implementation: `python -m conformance NAME` runs adapters/NAME.py."""
