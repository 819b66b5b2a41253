"""The TCP registers of a board, in front of the golden model of its receiver."""

from __future__ import annotations

from ddp_rnic.hdl.spec import board
from ddp_rnic.hdl.spec.net import TcpField
from ddp_rnic.sim.model.tcp import Connection, TcpReceiver

_NAMES = {board.address(register.name): register.name for register in board.TCP_REGISTERS}


class VirtualTcp:
    """Simulates the TCP registers.

    Parameters
    ----------
    connections, window
        The board's sizes.

    Attributes
    ----------
    receiver
        The golden model, which takes the frames.
    """

    def __init__(self, connections: int, window: int) -> None:
        self.receiver = TcpReceiver(connections, window)
        self._fields = [dict.fromkeys(range(16), 0) for _ in range(connections)]
        self._values = {"CAP_CONNECTIONS": connections, "CAP_TCP_WINDOW": window}
        self._values |= {"TCP_SELECT": 0, "TCP_WORD": 0}

    def read(self, address: int) -> int | None:
        """Returns a register of TCP, or None where the address has none."""
        name = _NAMES.get(address)
        number = board.unpack("TCP_SELECT", self._values["TCP_SELECT"])["connection"]
        acknowledged, window = self.receiver.peer(number)
        broken = self.receiver.broken(number)
        shown = {
            "TCP_NEXT": self.receiver.next(number),
            "TCP_ACKNOWLEDGED": acknowledged,
            "TCP_STATE": board.pack("TCP_STATE", window=window, broken=broken),
        }
        return None if name is None else (self._values | shown)[name]

    def write(self, address: int, word: int) -> bool:
        """Writes a register; returns whether the address has one."""
        name = _NAMES.get(address)
        if name == "TCP_WRITE":
            selected = board.unpack("TCP_SELECT", self._values["TCP_SELECT"])
            self._fields[selected["connection"]][selected["field"]] = self._values["TCP_WORD"]
            if selected["field"] == TcpField.SETTINGS:
                self._set_up(selected["connection"])
            elif selected["field"] == TcpField.SENT:
                self.receiver.set_sent(selected["connection"], self._values["TCP_WORD"])
        elif name is not None:
            self._values[name] = word
        return name is not None

    def _set_up(self, number: int) -> None:
        words = self._fields[number]
        settings = words[TcpField.SETTINGS]
        if not settings & 1:
            self.receiver.connect(number, None)
            return
        length = 16 if settings & 2 else 4
        source, destination, ports = (
            b"".join(words[first + k].to_bytes(4, "little") for k in range(4))
            for first in (TcpField.SOURCE, TcpField.DESTINATION, TcpField.PORTS)
        )
        self.receiver.connect(
            number,
            Connection(
                source[:length], destination[:length],
                int.from_bytes(ports[:2], "big"), int.from_bytes(ports[2:4], "big"),
                stream=settings >> 16, sequence=words[TcpField.SEQUENCE],
                markers=bool(settings & 4), sent=words[TcpField.SENT], span=words[TcpField.SPAN],
            ),
        )  # fmt: skip
