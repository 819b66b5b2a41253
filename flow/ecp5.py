"""Declares the sizes of the ECP5's devices."""

from __future__ import annotations

#: LUT4 (and as many flip-flops) and block RAMs of a device, by the end of the device's name. Those
#: of the 12F are from its data sheet; open tools treat it as a 25F, whose die it has.
CAPACITY = {"12F": (12_000, 32), "25F": (24_288, 56), "45F": (43_848, 108), "85F": (83_640, 208)}
