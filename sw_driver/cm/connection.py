"""One end of an MPA connection (RFC 5044 section 7, RFC 6581), without input and output."""

from __future__ import annotations

from collections.abc import Callable

from ..base.buffers import copy_of
from ..base.checks import flag, instance, integer
from ..base.crc32c import crc32c
from ..base.errors import InvalidRequest, StateError, UnsupportedDevice
from ..rdmap import CQ, QP, Layer, Opcode, QPState, Source, Terminate
from ..rdmap.wire import Message, Queue, control
from ..verbs.pd import PD
from ..verbs.sending import SendSettings
from .errors import (
    ConnectError,
    ConnectionLost,
    InsufficientIrd,
    InvalidStartup,
    LocalFailure,
    NoCommonRtr,
    Rejected,
    Terminated,
)
from .framing import MULPDU, Cutter, MpaSource, mulpdu_of
from .startup import BEGINS, UNSAID, Enhanced, Rtr, StartupFrame, answer_to, least, said

__all__ = ["Connection"]

#: How many octets are kept of a peer that sends before its request is answered.
_EARLY = 1 << 16
#: "TCP connection closed, terminated, or lost", RFC 5044 section 8.
_CLOSED = 0x01
#: Errors of MPA for which the initiator sends a Terminate, RFC 6581.
_LOCAL = 0x05
_INSUFFICIENT_IRD, _NO_RTR = 0x06, 0x07
#: The order of preference: of several messages an initiator sends, and a responder names, the
#: first.
_OPCODES = {
    Rtr.WRITE: Opcode.RDMA_WRITE,
    Rtr.READ: Opcode.RDMA_READ,
    Rtr.SEND: Opcode.SEND,
}


class Connection:
    """One end of an MPA connection. It has no socket of its own.

    :meth:`receive` takes octets of the TCP stream, and :meth:`data_to_send` returns the octets to
    send. The initiator calls :meth:`connect`; the responder calls :meth:`accept` or :meth:`reject`
    once ``request`` is there. After that there is a ``qp``.

    Parameters
    ----------
    deliver
        Takes whole FPDUs for the device: number of the stream, position, octets. This is
        :meth:`~..transports.transport.Transport.send` of the device's transport.
    pd, cq
        Protection domain and completion queue of the queue pair.
    ird, ord
        The most RDMA Reads that may be outstanding, inbound and outbound.
    crc, markers
        If set, this side wants CRCs, or markers in the stream that it receives.
    mulpdu
        Octets of the longest DDP Segment to send.
    keeps
        Whether TCP keeps copies of the octets that it has sent, as a socket does. Else it asks for
        FPDUs again, see :class:`~..verbs.sending.SendSettings`; the device must send then.
    ahead
        Octets that a device may send before TCP takes them, see
        :class:`~..verbs.sending.SendSettings`.
    prepare
        Called with the queue pair before any message of the peer can arrive: the place to post the
        first receives.

    Attributes
    ----------
    request, reply
        The peer's start-up frame.
    error
        Why there is no connection.
    mss
        If set, octets of the longest TCP segment, which give the MULPDU instead of ``mulpdu``.
    silent
        If True, the queue pair's messages wait for the peer's first FPDU, or for :meth:`speak`.
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
        keeps: bool = True,
        ahead: int = 1 << 18,
        prepare: Callable[[QP], object] | None = None,
    ) -> None:
        order = "Connection(deliver, pd, cq)"
        instance("a connection's deliver", deliver, Callable, order)
        instance("a connection's protection domain", pd, PD, order)
        instance("a connection's completion queue", cq, CQ, f"{order}, with the CQ of RDMAP")
        pd.context.receiving("take what a peer sends")
        self._deliver, self._pd, self._cq = deliver, pd, cq
        depth = pd.context.capabilities.queue
        rule = f"from 0 to {depth}, which is the depth of the device's queues"
        self._ird = integer("ird", ird, 0, depth, rule)
        self._ord = integer("ord", ord, 0, UNSAID)
        self._crc, self._markers = flag("crc", crc), flag("markers", markers)
        self.mss: int | None = None
        self._mulpdu = integer("mulpdu", mulpdu, MULPDU[0], MULPDU[-1])
        if not flag("keeps", keeps) and not pd.context.sends:
            raise UnsupportedDevice(
                "this device does not send, and TCP must keep copies for it: set keeps=True"
            )
        self._keeps, self._prepare = keeps, prepare
        self._ahead = integer("ahead", ahead, 1, 1 << 30)
        self.request: StartupFrame | None = None
        self.reply: StartupFrame | None = None
        self._qp: QP | None = None
        self.error: ConnectError | None = None
        self._asked: StartupFrame | None = None  # the request that this side sent
        self._rtr, self._rtr_stag = Rtr(0), 0  # the messages that this side offered
        self._cutter: Cutter | None = None
        self._checks = True  # whether CRCs are in use
        self._in, self._out = bytearray(), bytearray()
        self.silent = False
        self._listens_first = False
        self._ended = False  # whether the peer has closed its half of TCP

    @property
    def qp(self) -> QP:
        """The queue pair, once start-up is done."""
        if self._qp is None:
            raise StateError(str(self.error or "the connection's start-up is not complete"))
        return self._qp

    @property
    def started(self) -> bool:
        """True once there is a queue pair."""
        return self._qp is not None

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
        # What waits for the peer's first FPDU can still be sent.
        waits = self.silent and self._qp.unsent and not self._ended
        return self._qp.finished and not waits

    def reason(self) -> ConnectError | None:
        """Returns why the connection ended other than gracefully, or None."""
        qp = self._qp
        if self.error is None and qp is not None:
            for terminate, by_peer in ((qp.received, True), (qp.sent, False)):
                if terminate is not None:
                    who = "the peer" if by_peer else "this side"
                    text = f"{who} has terminated the connection: {qp.reason}"
                    return Terminated(text, terminate, by_peer)
        return self.error

    # -- start-up ---------------------------------------------------------------------------------

    def connect(
        self,
        private_data: bytes = b"",
        *,
        revision: int = 2,
        peer_to_peer: bool = False,
        rtr: Rtr = Rtr.WRITE,
        rtr_stag: int = 0,
        listen_first: bool = False,
    ) -> None:
        """Asks for a connection. If it is peer to peer, either side may send first (RFC 6581).

        Parameters
        ----------
        rtr
            Peer to peer: the messages offered as the first one. Of several that the peer names, a
            Write is preferred to a Read, and a Read to a Send.
        rtr_stag
            The Steering Tag that this message names, because some responders accept only one that
            they know.
        listen_first
            This side's first message, too, waits for a message of the peer, or for :meth:`speak`.
        """
        private_data = copy_of(private_data)
        revision = integer("revision", revision, 1, 2)
        _check_rtr(rtr)
        if self._asked is not None or self.request is not None or self.error is not None:
            raise StateError(str(self.error or "the connection's start-up has begun already"))
        self._listens_first = flag("listen_first", listen_first)
        enhanced = None
        if flag("peer_to_peer", peer_to_peer) and revision != 2:
            raise InvalidRequest(f"revision must be 2 for peer to peer, not {revision!r}")
        if revision == 2:
            begins = rtr if peer_to_peer else Rtr(0)
            enhanced = Enhanced(self._ird, self._ord, bool(begins), begins)
        self._rtr = rtr
        self._rtr_stag = integer("rtr_stag", rtr_stag, 0, (1 << 32) - 1, "from 0 to 2**32 - 1")
        asked = self._frame(False, private_data, revision, enhanced)
        self._out += asked.encode()
        self._asked = asked

    def accept(self, private_data: bytes = b"", *, rtr: Rtr = BEGINS) -> QP:
        """Accepts the peer's request. The queue pair's messages wait for the peer's first FPDU.

        Parameters
        ----------
        rtr
            Peer to peer: the messages that the peer may begin with. The reply names those that the
            peer has offered, too, or else all; a Send only if there is no other.
        """
        private_data = copy_of(private_data)
        _check_rtr(rtr)
        request, enhanced = self._waiting(), None
        ird, ord = self._ird, self._ord
        if request.enhanced is not None:
            ird, ord, enhanced = answer_to(request.enhanced, ird, ord, rtr)
        reply = self._frame(True, private_data, request.revision, enhanced)
        octets = reply.encode()
        rtr_send = enhanced is not None and Rtr.SEND in enhanced.rtr
        qp = self._begin(request, ird, ord, rtr_send)
        self._out += octets
        self.silent = True
        self._feed()
        return qp

    def reject(self, private_data: bytes = b"") -> None:
        """Refuses the peer's request.

        IRD, ORD and flags of the reply are those with which :meth:`accept` would accept it.
        """
        private_data = copy_of(private_data)
        request, enhanced = self._waiting(), None
        if request.enhanced is not None:
            enhanced = answer_to(request.enhanced, self._ird, self._ord, BEGINS).fields
        reply = self._frame(True, private_data, request.revision, enhanced, reject=True)
        self._out += reply.encode()
        self._end(ConnectError("this side refused the request"))

    def _frame(
        self,
        is_reply: bool,
        private_data: bytes,
        revision: int,
        enhanced: Enhanced | None,
        reject: bool = False,
    ) -> StartupFrame:
        return StartupFrame(
            reply=is_reply,
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

    def _begin(self, theirs: StartupFrame, ird: int, ord: int, rtr_send: bool = False) -> QP:
        """Begins the full operation phase.

        RFC 5044 section 7.1.1: CRCs are in use if either side wants them; markers go toward each
        side that wants them.
        """
        crc = self._crc or theirs.crc
        mulpdu = self._mulpdu
        if self.mss is not None:
            mulpdu = mulpdu_of(self.mss, markers=theirs.markers)
        source: Source | SendSettings
        if self._pd.context.sends:
            source = SendSettings(mulpdu, crc, theirs.markers, self._keeps, self._ahead)
        else:
            source = MpaSource(mulpdu, crc=crc, markers=theirs.markers)
        qp = QP(self._pd, self._cq, source, crc=crc, markers=self._markers, ird=ird, ord=ord)
        try:
            if rtr_send:
                qp.expect_rtr()
            if self._prepare is not None:
                self._prepare(qp)
        except BaseException:
            qp.close()
            raise
        self._qp, self._cutter, self._checks = qp, Cutter(markers=self._markers), crc
        return qp

    def _answered(self, reply: StartupFrame) -> None:
        """Takes the responder's reply."""
        assert self._asked is not None
        self.reply, asked = reply, self._asked
        if not reply.reply or reply.revision != asked.revision:
            self._end(
                InvalidStartup(
                    f"the answer is not a reply of the requested revision {asked.revision}: try"
                    f" revision={3 - asked.revision}"
                )
            )
            return
        if reply.reject:
            fields = reply.enhanced
            limits = (None, None) if fields is None else (said(fields.ird), said(fields.ord))
            self._end(Rejected(reply.private_data, bytes(self._in), *limits))
            return
        ird, ord = self._ird, self._ord
        if (answer := reply.enhanced) is not None:
            ird, ord = least(ird, answer.ord), least(ord, answer.ird)
        try:
            qp = self._begin(reply, ird, ord)
        except Exception as failure:
            self._fail(reply, failure)
            return
        if answer is not None and answer.ord != UNSAID and answer.ord > self._ird:
            self.error = InsufficientIrd(
                f"the peer insists on {answer.ord} outstanding RDMA Reads: connect with an ird of"
                f" at least {answer.ord}, not {self._ird}"
            )
            qp.terminate(Terminate(Layer.LLP, 0, _INSUFFICIENT_IRD))
        elif asked.enhanced is not None and asked.enhanced.peer_to_peer:
            # A reply that is not peer to peer offers nothing.
            agreed_on = self._rtr & answer.rtr if answer is not None else Rtr(0)
            if agreed_on:
                qp.send_rtr(_OPCODES[_first(agreed_on)], self._rtr_stag)
            else:
                offered = answer.rtr if answer is not None and answer.rtr else "none"
                self.error = NoCommonRtr(
                    f"the peer can begin with {offered}, and this side with {self._rtr}: offer"
                    " another rtr, or connect without peer_to_peer"
                )
                qp.terminate(Terminate(Layer.LLP, 0, _NO_RTR))
        self.silent = self._listens_first

    def _fail(self, reply: StartupFrame, failure: Exception) -> None:
        """Ends because of a failure of this side, with a Terminate (RFC 6581 section 9.3), which no
        queue pair can send.
        """
        if reply.enhanced is not None:
            source = MpaSource(MULPDU[0], crc=self._crc or reply.crc, markers=reply.markers)
            octets = Terminate(Layer.LLP, 0, _LOCAL).encode()
            self._out += b"".join(
                source.untagged(Queue.TERMINATE, octets, rsvdulp=control(Message.TERMINATE) << 32)
            )
        self._end(LocalFailure(failure))

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
            except InvalidStartup as error:
                self._end(error)
                return
            if parsed is None:
                return
            frame, taken = parsed
            del self._in[:taken]
            if self._asked is not None:
                self._answered(frame)
            elif not frame.reply:
                self.request = frame
            else:
                self._end(InvalidStartup("a connection must begin with an MPA Request Frame"))
        self._feed()

    def _feed(self) -> None:
        """Passes whole FPDUs to the device."""
        if self._cutter is None:
            # RFC 5044 section 7.1.2: before the Reply Frame sending FPDUs "is not possible".
            if self.request is not None and len(self._in) > _EARLY:
                self._end(
                    InvalidStartup(
                        f"the peer sent more than {_EARLY} octets before its request's answer"
                    )
                )
            return
        fpdus = self._cutter.receive(bytes(self._in))
        self._in.clear()
        for fpdu in fpdus:
            # RFC 5044 section 7.1.2: a responder must "receive and validate at least one FPDU
            # before sending any FPDUs".
            self.silent = self.silent and not self._valid(fpdu.octets)
        if fpdus and self.qp.state is QPState.RTS:
            packet = b"".join(fpdu.octets for fpdu in fpdus)
            self._deliver(self.qp.stream.number, fpdus[0].position % 2**32, packet)

    def _valid(self, fpdu: bytes) -> bool:
        """Returns whether an FPDU has the right CRC, or needs none."""
        return not self._checks or crc32c(fpdu[:-4]).to_bytes(4, "little") == fpdu[-4:]

    def _end(self, error: ConnectError) -> None:
        """Notes why there is no connection, and drops its octets."""
        self.error = error
        self._in.clear()

    def speak(self) -> None:
        """Lets the queue pair send, although the peer has sent no FPDU yet."""
        self.silent = False

    def data_to_send(self) -> bytes:
        """Returns octets for the TCP stream."""
        return b"".join(self.pieces_to_send())

    def pieces_to_send(self) -> list[bytes]:
        """Returns the same octets in pieces: a start-up frame, or an FPDU each."""
        pieces = [bytes(self._out)] if self._out else []
        self._out.clear()
        if self._qp is not None and not self.silent:
            pieces += self._qp.pieces_to_send()
        return pieces

    def shutdown(self) -> None:
        """Ends the connection gracefully: see :meth:`~..rdmap.QP.shutdown`."""
        self.qp.shutdown()

    def eof(self) -> None:
        """Notes that the peer has closed its half of TCP gracefully. This side may send further
        messages.

        For a connection that is lost, :meth:`lost` is called instead.
        """
        if self._qp is None or self._cutter is None:
            self._end(
                self.error
                or ConnectionLost(
                    "the peer closed the connection during start-up: check that it speaks iWARP at"
                    " this port, or try revision=1"
                )
            )
            return
        self._ended = True
        if self._cutter.within:
            self._qp.settle()
            self._qp.terminate(Terminate(Layer.LLP, 0, _CLOSED))
        else:
            self._qp.half_close()

    def lost(self, error: ConnectError) -> None:
        """Notes that TCP has failed, unless a Terminate that came before ends the connection."""
        if self._qp is not None:
            self._qp.settle()
        if not self.closed:
            self._end(error)
            if self._qp is not None:
                self._qp.disconnect()


def _check_rtr(rtr: object) -> None:
    instance("rtr", rtr, Rtr)
    if not rtr:
        raise InvalidRequest(f"rtr must be a combination of {~Rtr(0)!r}, not {rtr!r}")


def _first(kinds: Rtr) -> Rtr:
    return next(each for each in _OPCODES if each in kinds)
