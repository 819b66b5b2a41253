"""Engines: each runs the gateware's Verilog over a list of operations."""
