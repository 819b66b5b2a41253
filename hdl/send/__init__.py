"""Sends messages: takes turns, cuts segments, reports ends (RFC 5041 section 5.2)."""
