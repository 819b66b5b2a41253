"""What other flows need: Verilog, IP-XACT, the register map, and examples."""
