"""A host beside the RNIC: its link over UART, and what it reaches besides the registers."""
