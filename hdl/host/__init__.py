"""Connects a host to the RNIC on a board: its UART link, the board's registers and frames."""
