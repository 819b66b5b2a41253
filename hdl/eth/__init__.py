"""Implements Gigabit Ethernet: RGMII pins, frames as beats in both directions, and MDIO."""
