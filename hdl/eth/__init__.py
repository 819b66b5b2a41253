"""Gigabit Ethernet: from the RGMII pins to beats of frames, and back; MDIO."""
