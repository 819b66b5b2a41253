"""TCP's receive side for boards: from Ethernet frames to packets of FPDUs."""
