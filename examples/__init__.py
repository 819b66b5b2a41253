"""Worked examples, each to be run as it is: ``python examples/NAME.py``."""
