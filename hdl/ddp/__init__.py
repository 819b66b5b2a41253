"""Checks DDP segments (RFC 5041 section 7.1), commits and delivers them; keeps the STag table."""
