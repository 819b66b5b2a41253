"""Declares the facts of the protocols and of the register maps, each once, in pure Python."""
