"""Receives TCP on boards: turns Ethernet frames into packets of FPDUs."""
