"""Proves that the gateware never does certain things; :mod:`.tests.run` runs the proofs."""
