"""An RDMA peer for other implementations: the model does MPA's start-up and sending, the driver
RDMAP.

The gateware only receives, so the messages of a queue pair are sent through the model's Data
Source.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Flag, auto

from ...sw_driver import rdmap
from ...sw_driver.base.buffers import copy_of
from ...sw_driver.base.checks import flag, instance, integer
from ...sw_driver.base.errors import InvalidRequest, StateError
from ...sw_driver.rdmap import CQ, QP, Layer, QPState, Terminate
from ...sw_driver.verbs.pd import PD
from ..model.ddp import DataSource
from ..model.events import ProtocolError
from ..model.mpa import Agreement, Enhanced, Kind, MpaReceiver, MpaSender, StartupFrame, negotiate

__all__ = ["Connection", "MpaSource", "Rtr"]

#: RFC 6581: the value of an IRD or ORD that is not negotiated.
_UNSAID = 0x3FFF
#: RFC 5044 section 3: "between 128 octets and 64768 octets, inclusive".
_MULPDU = range(128, 64768 + 1)
#: How many octets are kept of a peer that sends before its request is answered.
_EARLY = 1 << 16
#: "TCP connection closed, terminated, or lost", RFC 5044 section 8.
_CLOSED = 0x01
#: Errors of MPA for which the initiator sends a Terminate, RFC 6581.
_INSUFFICIENT_IRD, _NO_RTR = 0x06, 0x07


class Rtr(Flag):
    """Messages of no octets by which an initiator shows that it can receive (RFC 6581
    section 9.2).
    """

    WRITE = auto()
    READ = auto()
    SEND = auto()


#: The order of preference: of several messages an initiator sends, and a responder names, the
#: first.
_OPCODES = {
    Rtr.WRITE: rdmap.Opcode.RDMA_WRITE,
    Rtr.READ: rdmap.Opcode.RDMA_READ,
    Rtr.SEND: rdmap.Opcode.SEND,
}


class MpaSource:
    """A Data Source over MPA, for a queue pair: :class:`~...sw_driver.rdmap.Source`."""

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

    :meth:`receive` takes octets of the TCP stream, and :meth:`data_to_send` returns the octets to
    send. The initiator calls :meth:`connect`; the responder calls :meth:`accept` or :meth:`reject`
    once ``request`` is there. After that there is a ``qp``.

    Parameters
    ----------
    deliver
        Takes whole FPDUs for the device: number of the stream, position, octets. For the simulated
        device this is :meth:`~.live.SimTransport.send`.
    pd, cq
        Protection domain and completion queue of the queue pair.
    ird, ord
        The most RDMA Reads that may be outstanding, inbound and outbound.
    crc, markers
        If set, this side wants CRCs, or markers in the stream that it receives.
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
        order = "Connection(deliver, pd, cq)"
        instance("a connection's deliver", deliver, Callable, order)
        instance("a connection's protection domain", pd, PD, order)
        instance("a connection's completion queue", cq, CQ, f"{order}, with the CQ of RDMAP")
        self._deliver, self._pd, self._cq = deliver, pd, cq
        self._ird = integer("ird", ird, 0, pd.context.capabilities.queue)
        self._ord = integer("ord", ord, 0, (1 << 14) - 1)
        self._crc, self._markers = flag("crc", crc), flag("markers", markers)
        self._mulpdu = integer("mulpdu", mulpdu, _MULPDU[0], _MULPDU[-1])
        self.request: StartupFrame | None = None
        self.reply: StartupFrame | None = None
        self._qp: QP | None = None
        self.error: str | None = None
        self._asked: StartupFrame | None = None  # the request that this side sent
        self._rtr, self._rtr_stag = Rtr(0), 0  # the messages that it offered
        self._cutter: MpaReceiver | None = None
        self._in, self._out = bytearray(), bytearray()
        self._silent = False  # True for a responder before the initiator's first FPDU
        self._ended = False  # whether the peer has closed its half of TCP

    @property
    def qp(self) -> QP:
        """The queue pair, once start-up is done."""
        if self._qp is None:
            raise StateError(self.error or "the connection's start-up is not complete")
        return self._qp

    @property
    def closed(self) -> bool:
        """True if TCP must be closed once all octets are sent."""
        return self.error is not None or (
            self._qp is not None and self._qp.state is not QPState.RTS
        )

    @property
    def finished(self) -> bool:
        """True if this side's half of TCP must be closed once all octets are sent."""
        if self.closed or self._qp is None:
            return self.closed
        # A responder's messages wait for the initiator's first FPDU, which may still arrive.
        return self._qp.finished and (self._ended or not self._silent)

    # -- start-up ---------------------------------------------------------------------------------

    def connect(
        self,
        private_data: bytes = b"",
        *,
        revision: int = 2,
        peer_to_peer: bool = False,
        rtr: Rtr = Rtr.WRITE,
        rtr_stag: int = 0,
    ) -> None:
        """Asks for a connection. If it is peer to peer, either side may send first (RFC 6581).

        Parameters
        ----------
        rtr
            Peer to peer: the messages offered as the first one. The peer chooses; of several a
            Write is preferred to a Read, and a Read to a Send.
        rtr_stag
            The Steering Tag that this message names, because some responders accept only one that
            they know.
        """
        private_data = copy_of(private_data)
        revision = integer("revision", revision, 1, 2)
        _check_rtr(rtr)
        if self._asked is not None or self.request is not None or self.error is not None:
            raise StateError(self.error or "the connection's start-up has begun already")
        enhanced = None
        if flag("peer_to_peer", peer_to_peer) and revision != 2:
            raise InvalidRequest(f"revision must be 2 for peer to peer, not {revision!r}")
        if revision == 2:
            enhanced = _enhanced(self._ird, self._ord, rtr if peer_to_peer else Rtr(0))
        self._rtr = rtr
        self._rtr_stag = integer("rtr_stag", rtr_stag, 0, (1 << 32) - 1, "from 0 to 2**32 - 1")
        asked = self._frame("request", private_data, revision, enhanced)
        self._out += asked.encode()
        self._asked = asked

    def accept(self, private_data: bytes = b"", *, rtr: Rtr = Rtr.WRITE | Rtr.READ) -> QP:
        """Accepts the peer's request. The queue pair's messages wait for the peer's first FPDU.

        Parameters
        ----------
        rtr
            Peer to peer: the messages that the peer may begin with. The reply names one: the first
            of Write, Read and Send that the peer has offered, too, or else the first of these.
        """
        private_data = copy_of(private_data)
        _check_rtr(rtr)
        request, enhanced, begins = self._waiting(), None, Rtr(0)
        ird, ord = self._ird, self._ord
        if (asked := request.enhanced) is not None:
            ird, ord = _least(ird, asked.ord), _least(ord, asked.ird)
            if asked.peer_to_peer:
                begins = self._choose(rtr, _offered(asked))
            # A Read uses one of the IRD, even if the peer asks for none.
            ird = max(ird, int(begins is Rtr.READ))
            enhanced = _enhanced(
                _UNSAID if asked.ord == _UNSAID else ird,
                _UNSAID if asked.ird == _UNSAID else ord,
                begins,
            )
        reply = self._frame("reply", private_data, request.revision, enhanced)
        octets = reply.encode()
        agreed = negotiate(request, reply)
        qp = self._begin(agreed, agreed.markers_to_initiator, agreed.markers_to_responder, ird, ord)
        if begins is Rtr.SEND:
            qp.expect_rtr()
        self._out += octets
        self._silent = True
        self._feed()
        return qp

    def _choose(self, can: Rtr, offered: Rtr) -> Rtr:
        """Returns the message that the peer shall begin with."""
        possible = can & ~Rtr.READ if not self._ird else can
        if not possible:
            raise InvalidRequest("rtr must have a Write or a Send, because ird is 0")
        return _first(possible & offered or possible)

    def reject(self, private_data: bytes = b"") -> None:
        """Refuses the peer's request."""
        private_data = copy_of(private_data)
        request = self._waiting()
        enhanced = request.enhanced and Enhanced(ird=self._ird, ord=self._ord)
        reply = self._frame("reply", private_data, request.revision, enhanced, reject=True)
        self._out += reply.encode()
        self._end("this side refused the request")

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
        """Begins the full operation phase; ``out`` and ``into`` say whether each direction
        has markers.
        """
        source = MpaSource(self._mulpdu, crc=agreed.crc, markers=out)
        # Octets are cut into FPDUs here; the device checks their CRCs.
        self._cutter = MpaReceiver(crc=False, markers=into)
        self._qp = QP(self._pd, self._cq, source, crc=agreed.crc, markers=into, ird=ird, ord=ord)
        return self._qp

    def _answered(self, reply: StartupFrame) -> None:
        """Takes the responder's reply."""
        assert self._asked is not None
        self.reply = reply
        if reply.kind != "reply" or reply.revision != self._asked.revision:
            self._end("the answer is not a reply of the requested revision")
            return
        if reply.reject:
            self._end("the peer refuses the connection")
            return
        ird, ord = self._ird, self._ord
        if (answer := reply.enhanced) is not None:
            ird, ord = _least(ird, answer.ord), _least(ord, answer.ird)
        agreed = negotiate(self._asked, reply)
        qp = self._begin(agreed, agreed.markers_to_responder, agreed.markers_to_initiator, ird, ord)
        if answer is not None and answer.ord != _UNSAID and answer.ord > self._ird:
            qp.terminate(Terminate(Layer.LLP, 0, _INSUFFICIENT_IRD))
        elif self._asked.enhanced is not None and self._asked.enhanced.peer_to_peer:
            # A reply that is not peer to peer offers nothing: "On reception, if Control Flag A is
            # set to 0, then Control Flags B, C, and D MUST be ignored".
            agreed_on = self._rtr & _offered(answer) if answer is not None else Rtr(0)
            if not agreed_on:
                qp.terminate(Terminate(Layer.LLP, 0, _NO_RTR))
            else:
                qp.send_rtr(_OPCODES[_first(agreed_on)], self._rtr_stag)

    # -- octets -----------------------------------------------------------------------------------

    def receive(self, octets: bytes) -> None:
        """Takes octets of the TCP stream, in order. Octets after an error are dropped."""
        octets = copy_of(octets)
        if self._ended and octets and not self.closed:
            # RFC 5041 section 6.2.1: "any further data received after the request is considered an
            # error and MUST cause the DDP Stream to be abortively torn down".
            self.qp.terminate(Terminate(Layer.LLP, 0, _CLOSED))
        if self.closed:
            self._in.clear()
            return
        self._in += octets
        if self.error is None and self._cutter is None and self.request is None:
            try:
                parsed = StartupFrame.parse(bytes(self._in))
            except ProtocolError as error:
                self._end(str(error))
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
                self._end("a connection must begin with an MPA Request Frame")
        self._feed()

    def _feed(self) -> None:
        """Passes whole FPDUs to the device."""
        if self._cutter is None:
            # RFC 5044 section 7.1.2: before the Reply Frame sending FPDUs "is not possible".
            if self.request is not None and len(self._in) > _EARLY:
                self._end(f"the peer sent more than {_EARLY} octets before its request's answer")
            return
        for fpdu in self._cutter.receive(bytes(self._in)):
            self._silent = False
            if self.qp.state is QPState.RTS:
                self._deliver(self.qp.stream.number, fpdu.position % 2**32, fpdu.raw)
        self._in.clear()

    def _end(self, error: str) -> None:
        """Notes why there is no connection, and drops its octets."""
        self.error = error
        self._in.clear()

    def data_to_send(self) -> bytes:
        """Returns octets for the TCP stream."""
        if self._qp is not None and not self._silent:
            self._out += self._qp.data_to_send()
        octets = bytes(self._out)
        self._out.clear()
        return octets

    def shutdown(self) -> None:
        """Ends the connection gracefully: see :meth:`~...sw_driver.rdmap.QP.shutdown`."""
        self.qp.shutdown()

    def eof(self) -> None:
        """Notes that the peer has closed its half of TCP gracefully. This side may send further
        messages.

        For a connection that is lost, :meth:`~...sw_driver.rdmap.QP.disconnect` is called instead.
        """
        if self._qp is None or self._cutter is None:
            self._end(self.error or "the peer closed the connection during start-up")
            return
        self._ended = True
        if self._cutter.close():  # within an FPDU
            self._qp.terminate(Terminate(Layer.LLP, 0, _CLOSED))
        else:
            self._qp.half_close()


def _least(ours: int, theirs: int) -> int:
    """Returns the lower of two limits; the peer may have left its own open."""
    return ours if theirs == _UNSAID else min(ours, theirs)


def _check_rtr(rtr: object) -> None:
    instance("rtr", rtr, Rtr)
    if not rtr:
        raise InvalidRequest(f"rtr must be a combination of {~Rtr(0)!r}, not {rtr!r}")


def _first(kinds: Rtr) -> Rtr:
    return next(each for each in _OPCODES if each in kinds)


def _offered(frame: Enhanced) -> Rtr:
    """Returns the messages that a frame offers."""
    kinds = {Rtr.WRITE: frame.rtr_write, Rtr.READ: frame.rtr_read, Rtr.SEND: frame.rtr_fpdu}
    there = frame.peer_to_peer
    return Rtr(sum(each.value for each, offered in kinds.items() if offered and there))


def _enhanced(ird: int, ord: int, rtr: Rtr) -> Enhanced:
    """Returns the fields for peer to peer with these messages, or for client and server
    without any.
    """
    return Enhanced(
        ird=ird, ord=ord, peer_to_peer=bool(rtr),
        rtr_write=Rtr.WRITE in rtr, rtr_read=Rtr.READ in rtr, rtr_fpdu=Rtr.SEND in rtr,
    )  # fmt: skip
