"""Proofs of what the gateware must never do; :mod:`ddp_rnic.hdl.proofs.run` tells how."""
