"""Configures the PLL of an ECP5."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Pll", "dividers"]

#: Range in Hz; ECP5 and ECP5-5G Family Data Sheet (FPGA-DS-02012), sysCLOCK PLL timing.
VCO = (400_000_000, 800_000_000)
PHASE_DETECTOR = (3_125_000, 400_000_000)
LARGEST = 128


def dividers(source, main, other):
    """Returns the dividers that make two clocks from one; all frequencies are in Hz.

    They are those of the source, of the feedback, of the main output and of the other output.
    """
    for reference in range(1, LARGEST + 1):
        if not PHASE_DETECTOR[0] <= source / reference <= PHASE_DETECTOR[1]:
            continue
        feedback, rest = divmod(main * reference, source)
        if rest or not 1 <= feedback <= LARGEST:
            continue
        for output in range(1, LARGEST + 1):
            vco = main * output
            if VCO[0] <= vco <= VCO[1] and vco % other == 0 and vco // other <= LARGEST:
                return reference, feedback, output, vco // other
    raise ValueError(f"the PLL cannot make {main} Hz and {other} Hz from {source} Hz")


class Pll(wiring.Component):
    """Makes two clocks from one.

    If the platform has a method ``get_pll``, that provides a replacement: the cell itself cannot be
    simulated.

    Latency, Throughput: none. Reset: ``reset`` removes the lock. Errors: ``locked`` is low.

    Parameters
    ----------
    source, main, other : int
        Hz.

    Members
    -------
    i, reset : In(1)
    main, other, locked : Out(1)
    """

    i: In(1)
    reset: In(1)
    main: Out(1)
    other: Out(1)
    locked: Out(1)

    def __init__(self, *, source, main, other):
        self.dividers = dividers(source, main, other)
        super().__init__()

    def elaborate(self, platform):
        if hasattr(platform, "get_pll"):
            return platform.get_pll(self)
        m = Module()
        reference, feedback, main, other = self.dividers
        m.submodules.pll = Instance(
            "EHXPLLL",
            # Settings of the loop filter as Lattice's tools choose them for this use.
            a_ICP_CURRENT="12", a_LPF_RESISTOR="8",
            a_MFG_ENABLE_FILTEROPAMP="1", a_MFG_GMCREF_SEL="2",
            p_PLLRST_ENA="ENABLED", p_INTFB_WAKE="DISABLED", p_STDBY_ENABLE="DISABLED",
            p_DPHASE_SOURCE="DISABLED", p_FEEDBK_PATH="CLKOP",
            p_OUTDIVIDER_MUXA="DIVA", p_OUTDIVIDER_MUXB="DIVB",
            p_OUTDIVIDER_MUXC="DIVC", p_OUTDIVIDER_MUXD="DIVD",
            p_CLKI_DIV=reference, p_CLKFB_DIV=feedback,
            p_CLKOP_ENABLE="ENABLED", p_CLKOP_DIV=main, p_CLKOP_CPHASE=main - 1, p_CLKOP_FPHASE=0,
            p_CLKOS_ENABLE="ENABLED", p_CLKOS_DIV=other, p_CLKOS_CPHASE=other - 1,
            p_CLKOS_FPHASE=0,
            i_CLKI=self.i, i_CLKFB=self.main, i_RST=self.reset, i_STDBY=0,
            i_PHASESEL0=0, i_PHASESEL1=0, i_PHASEDIR=0, i_PHASESTEP=0, i_PHASELOADREG=0,
            i_PLLWAKESYNC=0, i_ENCLKOP=0, i_ENCLKOS=0,
            o_CLKOP=self.main, o_CLKOS=self.other, o_LOCK=self.locked,
        )
        return m
