"""Proofs of what the gateware must never do; :mod:`ddp_rnic.hdl.proofs.tests.run` tells how."""
