"""What plays a plan: the RTL, its gates, a board; and live peers."""
