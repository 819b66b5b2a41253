"""Declares AXI4 and AXI4-Lite signatures, with the signals that this design drives or reads.

A channel is a stream, so that ``valid`` and ``ready`` follow one rule everywhere.
"""

from amaranth import *
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["AWCACHE", "AxiLite", "AxiRead", "AxiWrite", "Response"]

#: AWCACHE of every write: Normal Non-cacheable Non-bufferable memory. AMBA AXI (IHI 0022) section
#: A4.4: "The write response must be obtained from the final destination". A completion is written,
#: on another port, once the responses for its payload have arrived. With bufferable writes (0b0011)
#: an interconnect might respond before the payload is in memory.
AWCACHE = 0b0010


class Response(enum.Enum, shape=2):
    """xRESP encodings."""

    OKAY = 0
    EXOKAY = 1
    SLVERR = 2
    DECERR = 3


class AxiWrite(wiring.Signature):
    """The write channels of an AXI4 manager: INCR bursts of full-width beats, one ID.

    Members
    -------
    aw : Out(stream of {addr: 64, len: 8})
        ``addr`` in octets, aligned to a beat; ``len`` is beats less one.
    w : Out(stream of {data: width, strb: width // 8, last: 1})
    b : In(stream of {resp: 2})
    """

    def __init__(self, width):
        self.width = width
        super().__init__(
            {
                "aw": Out(stream.Signature(data.StructLayout({"addr": 64, "len": 8}))),
                "w": Out(
                    stream.Signature(
                        data.StructLayout({"data": width, "strb": width // 8, "last": 1})
                    )
                ),
                "b": In(stream.Signature(data.StructLayout({"resp": 2}))),
            }
        )


class AxiRead(wiring.Signature):
    """The read channels of an AXI4 manager: INCR bursts of full-width beats, many IDs.

    Beats of bursts with different IDs may come in any order, also mixed.

    Parameters
    ----------
    width : int
    ids : int
        Number of IDs, from 0 on.

    Members
    -------
    ar : Out(stream of {addr: 64, len: 8, id: range(ids)})
        ``addr`` in octets, aligned to a beat; ``len`` is beats less one.
    r : In(stream of {data: width, resp: 2, last: 1, id: range(ids)})
    """

    def __init__(self, width, ids):
        self.width, self.ids = width, ids
        super().__init__({
            "ar": Out(stream.Signature(
                data.StructLayout({"addr": 64, "len": 8, "id": range(ids)}))),
            "r": In(stream.Signature(
                data.StructLayout({"data": width, "resp": 2, "last": 1, "id": range(ids)}))),
        })


class AxiLite(wiring.Signature):
    """An AXI4-Lite interface, 32 bits of data, seen from the manager.

    Members
    -------
    aw : Out(stream of {addr: addr_width})
    w : Out(stream of {data: 32, strb: 4})
    b : In(stream of {resp: 2})
    ar : Out(stream of {addr: addr_width})
    r : In(stream of {data: 32, resp: 2})
    """

    def __init__(self, addr_width):
        self.addr_width = addr_width
        address = data.StructLayout({"addr": addr_width})
        super().__init__(
            {
                "aw": Out(stream.Signature(address)),
                "w": Out(stream.Signature(data.StructLayout({"data": 32, "strb": 4}))),
                "b": In(stream.Signature(data.StructLayout({"resp": 2}))),
                "ar": Out(stream.Signature(address)),
                "r": In(stream.Signature(data.StructLayout({"data": 32, "resp": 2}))),
            }
        )
