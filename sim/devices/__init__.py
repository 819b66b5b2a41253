"""The devices that play a plan: the RTL, its gates, a board; and live peers."""
