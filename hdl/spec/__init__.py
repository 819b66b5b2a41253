"""Facts of the protocols and of the register map, each once, in pure Python."""
