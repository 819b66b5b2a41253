"""Shows the streams inside the simulated gateware as tables of transfers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pylibfst

from ..engines.waves import CYCLE, EDGE, Waves, enumerations
from .live import SimTransport

__all__ = ["Probe", "Transfer", "probe"]

#: A transfer of a stream: ``cycle``, and each field of the payload by its name. A value has the
#: name that the field's enumeration gives it, or is a number.
Transfer = dict[str, int | str]


class Probe:
    """The streams of the gateware, in the cycles in which :func:`probe` watched.

    ``probe["commit.o"]`` are the transfers of the stream ``o`` of the part ``commit``, and
    ``probe["m_axi_w"]`` those of a port of the device. A payload without fields has the name
    ``payload``.
    """

    def __init__(self) -> None:
        self._reader: Any = None
        self._handles: dict[str, int] = {}
        self._enums: dict[tuple[str, str], Any] = {}

    def read(self, file: Path, verilog: str) -> None:
        """Opens the waveform of the cycles that were watched."""
        self._reader = pylibfst.lib.fstReaderOpen(str(file).encode())
        _, signals = pylibfst.get_scopes_signals2(self._reader)
        self._handles = {
            name.split(" ")[0]: signal.handle for name, signal in signals.by_name.items()
        }
        self._enums = enumerations(verilog)

    def __del__(self) -> None:
        if self._reader is not None:
            pylibfst.lib.fstReaderClose(self._reader)

    def __getitem__(self, stream: str) -> list[Transfer]:
        if self._reader is None:
            raise ValueError("the streams can be read after the block of probe() has ended")
        part, _, port = stream.rpartition(".")
        scope = f"rnic.{part}" if part else "rnic"
        begin = f"{scope}.{port}{'__' if part else ''}"
        found = {
            name.removeprefix(begin): handle
            for name, handle in self._handles.items()
            if name.startswith(begin)
        }
        if "_tvalid" in found:  # the names of AXI4-Stream
            found = {
                name.removeprefix("_t"): handle
                for name, handle in found.items()
                if name.startswith("_t")
            }
        valid, ready = found.pop("valid", None), found.pop("ready", None)
        if valid is None:
            known = ", ".join(self._known(part)) or "no stream"
            raise KeyError(f"there is no stream {stream!r}: {part or 'the device'} has {known}")
        fields = {
            name.removeprefix("payload."): handle
            for name, handle in found.items()
            if "." in name or "payload" not in found or len(found) == 1
        }
        texts = {
            name: dict(table[1])
            for name in fields
            if (table := self._enums.get((f"rnic.{scope}", f"{port}__payload.{name}")))
        }
        return [*self._transfers(valid, ready, fields, texts)]

    def _known(self, part: str) -> list[str]:
        """Returns the names of the streams of a part, or of the device."""
        begin, end = (f"rnic.{part}.", "__valid") if part else ("rnic.", "valid")
        names = (name.removeprefix(begin) for name in self._handles if name.startswith(begin))
        ends = (name.removesuffix(end) for name in names if name.endswith(end) and "." not in name)
        return [name.removesuffix("_t") for name in ends]

    def _transfers(
        self, valid: int, ready: int | None, fields: dict[str, int], texts: dict[str, Any]
    ) -> Iterator[Transfer]:
        fst, values = pylibfst.lib, dict[int, str]()
        fst.fstReaderClrFacProcessMaskAll(self._reader)
        for handle in {valid, *([] if ready is None else [ready]), *fields.values()}:
            fst.fstReaderSetFacProcessMask(self._reader, handle)
        changes: list[tuple[int, int, str]] = []

        def note(_: object, time: int, handle: int, value: Any) -> None:
            changes.append((time, handle, pylibfst.string(value)))

        pylibfst.fstReaderIterBlocks(self._reader, note)
        end = fst.fstReaderGetEndTime(self._reader)
        for number, (time, handle, value) in enumerate(changes):
            values[handle] = value
            until = changes[number + 1][0] if number + 1 < len(changes) else end
            # From this change to the next one, each edge after it meets these values.
            if until == time or values.get(valid) != "1" or values.get(ready or valid) != "1":
                continue
            for cycle in range((time - EDGE) // CYCLE + 1, (until - EDGE) // CYCLE + 1):
                transfer: Transfer = {"cycle": cycle}
                for name, each in fields.items():
                    bits = values.get(each, "0")
                    transfer[name] = texts.get(name, {}).get(bits, int(bits, 2))
                yield transfer


@contextmanager
def probe(sim: SimTransport, *parts: str) -> Iterator[Probe]:
    """Watches the gateware in a block, and then reads what happened: for a ``probed`` transport.

    Yields the :class:`Probe`, which has no stream before the block has ended. ``parts``: those of
    the gateware that are watched, with all parts inside them; none: all.

    Raises
    ------
    ValueError
        The gateware has no such part, or the transport is not ``probed``.
    """
    watched = Probe()
    with tempfile.TemporaryDirectory(prefix="ddp-rnic-") as directory:
        file = Path(directory) / "probe.fst"
        sim.show(Waves(file, parts))
        try:
            yield watched
        finally:
            sim.show(None)
        watched.read(file, sim.verilog)
