"""Placement: the byte rotation and the AXI4 write engine."""
