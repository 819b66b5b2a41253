"""Worked examples. Run each as ``python examples/NAME.py``."""
