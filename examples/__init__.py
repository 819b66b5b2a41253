"""Worked examples, each to be run as it is: ``python -m ddp_rnic.examples.<name>``."""
