"""An RDMA peer for others: MPA's start-up and its sending side by the model, RDMAP by the driver.

The gateware receives only, so what a queue pair sends goes through the model's Data Source.
"""

from __future__ import annotations

from collections.abc import Callable

from ..sw_driver.errors import StateError
from ..sw_driver.pd import PD
from ..sw_driver.rdmap import CQ, QP, Layer, QPState, Terminate
from .model.ddp import DataSource
from .model.events import ProtocolError
from .model.mpa import Agreement, Enhanced, Kind, MpaReceiver, MpaSender, StartupFrame, negotiate
from .model.rdmap import Opcode, rsvdulp

__all__ = ["Connection", "MpaSource"]

#: RFC 6581: an IRD or ORD that is not negotiated.
_UNSAID = 0x3FFF
#: Errors of MPA that the initiator tells with a Terminate, RFC 6581.
_INSUFFICIENT_IRD, _NO_RTR = 0x06, 0x07


class MpaSource:
    """A Data Source over MPA: a queue pair's :class:`~..sw_driver.rdmap.Source`."""

    def __init__(self, mulpdu: int, *, crc: bool, markers: bool) -> None:
        self._source, self._sender = DataSource(mulpdu), MpaSender(crc=crc, markers=markers)

    def tagged(self, stag: int, to: int, message: bytes, *, rsvdulp: int) -> bytes:
        return self._frame(self._source.tagged(stag, to, message, rsvdulp=rsvdulp))

    def untagged(self, qn: int, message: bytes, *, rsvdulp: int) -> bytes:
        return self._frame(self._source.untagged(qn, message, rsvdulp=rsvdulp))

    def _frame(self, segments: list[bytes]) -> bytes:
        return b"".join(map(self._sender.send, segments))


class Connection:
    """One end of an MPA connection (RFC 5044 section 7, RFC 6581), sans-IO.

    Octets of the TCP stream go in by :meth:`receive` and come out of :meth:`data_to_send`. The
    initiator calls :meth:`connect`; the responder, once ``request`` is there, :meth:`accept` or
    :meth:`reject`. Then there is a ``qp``.

    Parameters
    ----------
    deliver
        Takes whole FPDUs to the device: number of the stream, position, octets. Of the simulated
        one it is :meth:`~.live.SimTransport.send`.
    pd, cq
        Of the queue pair.
    ird, ord
        The most RDMA Reads that may be outstanding, inbound and outbound.
    crc, markers
        Whether this side wants CRCs, and markers in what it receives.
    mulpdu
        Octets of the longest DDP Segment to send.

    Attributes
    ----------
    request, reply
        The peer's start-up frame.
    error
        Why there is no connection.
    """

    def __init__(
        self,
        deliver: Callable[[int, int, bytes], None],
        pd: PD,
        cq: CQ,
        *,
        ird: int = 16,
        ord: int = 16,
        crc: bool = True,
        markers: bool = False,
        mulpdu: int = 1440,
    ) -> None:
        self._deliver, self._pd, self._cq = deliver, pd, cq
        self._ird, self._ord = ird, ord
        self._crc, self._markers, self._mulpdu = crc, markers, mulpdu
        self.request: StartupFrame | None = None
        self.reply: StartupFrame | None = None
        self._qp: QP | None = None
        self.error: str | None = None
        self._asked: StartupFrame | None = None  # the request that this side sent
        self._cutter: MpaReceiver | None = None
        self._in, self._out = bytearray(), bytearray()
        self._silent = False  # a responder, before the initiator's first FPDU

    @property
    def qp(self) -> QP:
        """The queue pair, once start-up is done."""
        if self._qp is None:
            raise StateError(self.error or "the connection's start-up is not done")
        return self._qp

    @property
    def closed(self) -> bool:
        """TCP is to be closed once what is to be sent is sent."""
        return self.error is not None or (
            self._qp is not None and self._qp.state is not QPState.RTS
        )

    # -- start-up ---------------------------------------------------------------------------------

    def connect(
        self, private_data: bytes = b"", *, revision: int = 2, peer_to_peer: bool = False
    ) -> None:
        """Ask for a connection. Peer to peer, either side may send first (RFC 6581)."""
        enhanced = None
        if revision == 2:
            enhanced = Enhanced(
                ird=self._ird, ord=self._ord, peer_to_peer=peer_to_peer, rtr_write=peer_to_peer
            )
        self._asked = self._frame("request", private_data, revision, enhanced)
        self._out += self._asked.encode()

    def accept(self, private_data: bytes = b"") -> QP:
        """Accept the peer's request. What the queue pair sends waits for the peer's first FPDU."""
        request, enhanced = self._waiting(), None
        ird, ord = self._ird, self._ord
        if (asked := request.enhanced) is not None:
            ird, ord = _least(ird, asked.ord), _least(ord, asked.ird)
            # Ready to receive by a Write of no octets, unless a Read is all that the peer can, and
            # there is one to be had.
            read = asked.peer_to_peer and asked.rtr_read and not asked.rtr_write and self._ird > 0
            ird = max(ird, int(read))
            enhanced = Enhanced(
                ird=_UNSAID if asked.ord == _UNSAID else ird,
                ord=_UNSAID if asked.ird == _UNSAID else ord,
                peer_to_peer=asked.peer_to_peer,
                rtr_write=asked.peer_to_peer and not read,
                rtr_read=read,
            )
        reply = self._frame("reply", private_data, request.revision, enhanced)
        octets = reply.encode()
        agreed = negotiate(request, reply)
        qp = self._begin(agreed, agreed.markers_to_initiator, agreed.markers_to_responder, ird, ord)
        self._out += octets
        self._silent = True
        self._feed()
        return qp

    def reject(self, private_data: bytes = b"") -> None:
        """Refuse the peer's request."""
        request = self._waiting()
        enhanced = request.enhanced and Enhanced(ird=self._ird, ord=self._ord)
        reply = self._frame("reply", private_data, request.revision, enhanced, reject=True)
        self._out += reply.encode()
        self.error = "the request was refused here"

    def _frame(
        self,
        kind: Kind,
        private_data: bytes,
        revision: int,
        enhanced: Enhanced | None,
        reject: bool = False,
    ) -> StartupFrame:
        return StartupFrame(
            kind=kind,
            revision=revision,
            markers=self._markers,
            crc=self._crc,
            reject=reject,
            enhanced=enhanced,
            private_data=private_data,
        )

    def _waiting(self) -> StartupFrame:
        if self.request is None or self._qp is not None or self.error is not None:
            raise StateError("there is no request that waits for an answer")
        return self.request

    def _begin(self, agreed: Agreement, out: bool, into: bool, ird: int, ord: int) -> QP:
        """The full operation phase: markers go out, and come in, or not."""
        source = MpaSource(self._mulpdu, crc=agreed.crc, markers=out)
        # Octets are cut into FPDUs here; their CRCs are the device's to look at.
        self._cutter = MpaReceiver(crc=False, markers=into)
        self._qp = QP(self._pd, self._cq, source, crc=agreed.crc, markers=into, ird=ird, ord=ord)
        return self._qp

    def _answered(self, reply: StartupFrame) -> None:
        """The responder's reply has come."""
        assert self._asked is not None
        self.reply = reply
        if reply.kind != "reply" or reply.revision != self._asked.revision:
            self.error = "the answer is no reply of the revision that was asked for"
            return
        if reply.reject:
            self.error = "the peer refuses the connection"
            return
        ird, ord = self._ird, self._ord
        if (answer := reply.enhanced) is not None:
            ird, ord = _least(ird, answer.ord), _least(ord, answer.ird)
        agreed = negotiate(self._asked, reply)
        qp = self._begin(agreed, agreed.markers_to_responder, agreed.markers_to_initiator, ird, ord)
        if answer is not None and answer.ord != _UNSAID and answer.ord > self._ird:
            qp.terminate(Terminate(Layer.LLP, 0, _INSUFFICIENT_IRD))
        elif self._asked.enhanced is not None and self._asked.enhanced.peer_to_peer:
            if answer is None or not (answer.peer_to_peer and answer.rtr_write):
                qp.terminate(Terminate(Layer.LLP, 0, _NO_RTR))
            else:
                self._out += qp.source.tagged(
                    0, 0, b"", rsvdulp=rsvdulp(Opcode.RDMA_WRITE, tagged=True)
                )

    # -- octets -----------------------------------------------------------------------------------

    def receive(self, octets: bytes) -> None:
        """Take octets of the TCP stream, in order."""
        self._in += octets
        if self.error is None and self._cutter is None and self.request is None:
            try:
                parsed = StartupFrame.parse(bytes(self._in))
            except ProtocolError as error:
                self.error = str(error)
                return
            if parsed is None:
                return
            frame, taken = parsed
            del self._in[:taken]
            if self._asked is not None:
                self._answered(frame)
            elif frame.kind == "request" and not frame.reject:
                self.request = frame
            else:
                self.error = "a connection must begin with an MPA Request Frame"
        self._feed()

    def _feed(self) -> None:
        """Whole FPDUs to the device."""
        if self._cutter is None:
            return
        for fpdu in self._cutter.receive(bytes(self._in)):
            self._silent = False
            if self.qp.state is QPState.RTS:
                self._deliver(self.qp.stream.number, fpdu.position % 2**32, fpdu.raw)
        self._in.clear()

    def data_to_send(self) -> bytes:
        """Octets for the TCP stream."""
        if self._qp is not None and not self._silent:
            self._out += self._qp.data_to_send()
        octets = bytes(self._out)
        self._out.clear()
        return octets

    def eof(self) -> None:
        """The peer has closed its side."""
        if self._qp is None:
            self.error = self.error or "the peer closed the connection during start-up"
        else:
            self._qp.disconnect()


def _least(ours: int, theirs: int) -> int:
    """Of two limits the lower one; theirs may be left open."""
    return ours if theirs == _UNSAID else min(ours, theirs)
