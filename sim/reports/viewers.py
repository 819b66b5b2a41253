"""Writes files with which GTKWave and Surfer open a waveform at a cycle, with its main signals."""

from __future__ import annotations

import re
from pathlib import Path

import pylibfst

from ..engines.waves import CYCLE, Waves, edge

__all__ = ["write"]

#: Ports that are always shown: input, writes, completions, exceptions, interrupt.
_PORTS = (
    "clk", "s_axis_eth_t", "s_axis_t", "m_axi_aw(addr|len|valid|ready)", "m_axi_w", "m_axi_b(?!id)",
    "m_axi_cq_w", "m_axis_exc_t", "irq",
)  # fmt: skip
#: Cycles that are shown before and after the marker.
_BEFORE, _AFTER = 20, 180
#: How GTKWave shows a value: a bit, or hexadecimal.
_BIT, _HEX = "@28", "@22"


def write(waves: Waves, cycle: int) -> list[Path]:
    """Writes ``.gtkw`` for GTKWave and ``.sucl`` for Surfer beside a waveform; returns their paths.

    The marker is at the clock edge that ends ``cycle``.
    """
    signals, length = _contents(waves)
    time = edge(cycle)
    gtkwave = waves.path.with_suffix(".gtkw")
    start = edge(max(cycle - _BEFORE, 0))
    # The first number is the zoom: 200 pixels have 2**zoom units of time. Few windows have 800.
    zoom = ((edge(cycle + _AFTER) - start) // 4).bit_length()
    lines = [f'[dumpfile] "{waves.path.name}"', f"[timestart] {start}", f"*-{zoom}.000000 {time}"]
    for name in signals:
        lines += [_HEX if "[" in name else _BIT, name]
    gtkwave.write_text("\n".join(lines) + "\n", encoding="utf-8")
    surfer = waves.path.with_suffix(".sucl")
    commands = [f"load_file {waves.path.name}"]
    commands += [f"variable_add {name.split('[')[0]}" for name in signals]
    # The view has the whole waveform at first, and each zoom halves it around its middle. Setting
    # the cursor then moves the view there.
    while length > CYCLE * (_BEFORE + _AFTER):
        commands.append("zoom_in")
        length //= 2
    commands += [f"cursor_set {time}", "goto_cursor"]
    surfer.write_text("\n".join(commands) + "\n", encoding="utf-8")
    return [gtkwave, surfer]


def _contents(waves: Waves) -> tuple[list[str], int]:
    """Returns the names of the signals to show, and the time from the waveform's first change to
    its last. The signals are ports, then the streams of each part that the waveform was asked for.
    """
    fst = pylibfst.lib
    reader = fst.fstReaderOpen(str(waves.path).encode())
    try:
        _, found = pylibfst.get_scopes_signals2(reader)
        names = [name.replace(" ", "") for name in found.by_name]
        length = fst.fstReaderGetEndTime(reader) - fst.fstReaderGetStartTime(reader)
    finally:
        fst.fstReaderClose(reader)
    scopes = [("rnic", each) for each in _PORTS]
    scopes += [(f"rnic.{part}", r"\w+__(valid|ready|payload)\b") for part in waves.parts]
    # Of a part inside, the rest of the name begins with a name and a dot; of a field it ends so.
    signals = [
        name
        for scope, pattern in scopes
        for name in names
        if name.startswith(f"{scope}.") and re.match(pattern, name[len(scope) + 1 :])
    ]
    return signals, length
