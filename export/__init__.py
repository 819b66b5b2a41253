"""Exports the RNIC for other tools: Verilog, IP-XACT, the register map, and examples."""
