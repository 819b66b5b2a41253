"""DDP: header, Steering Tag table, checks of RFC 5041 section 7.1, commit."""
