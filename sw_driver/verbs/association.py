"""SCTP associations whose DDP Streams the device receives (RFC 5043).

The device places, and delivers in order; the host's own SCTP does all the rest: it sets the
association up, acknowledges what the reports say, and sends. Chunks that the device cannot take
yet, it forwards to the host, which keeps them and hands them back.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...hdl.spec import regs
from ...hdl.spec.completion import ChunkStatus, Completion, Kind, Status
from ...hdl.spec.net import AssociationKey, Move, insert
from ...hdl.spec.sctp import Diversion, Function, Reason, State
from ..base.checks import any_integer, instance, integer, shown
from ..base.errors import (
    CompletionOverrun,
    InvalidRequest,
    ResourceExhausted,
    RnicTimeout,
    StateError,
    UnsupportedDevice,
    WrongType,
)
from .context import PATIENCE, Context
from .cq import CQ
from .handed_back import HeldChunks, frame_of
from .known import KnownAssociation
from .pd import PD
from .stream import QUEUES, Stream

_WORD = 0xFFFFFFFF
#: After ``_MOVE`` TSNs the driver tells the device which are past: all but the last ``_RECENT``.
_MOVE, _RECENT = 1 << 30, 1 << 29


@dataclass(frozen=True)
class Report:
    """What the device tells the host's SCTP.

    Parameters
    ----------
    kind
        CHUNK and PACKET come in the order of arrival, CONTROL in that of their stream's DDP-SSNs.
    status
        CHUNK: a ChunkStatus; SESSION: a Reason. The host acknowledges all chunks but those that are
        OUTSIDE, and those that are HELD once it has them, see :meth:`Association.hold`. A DUPLICATE
        whose TSN no report but HELD has named before is no repetition: the host then ends the
        session with ABORT (RFC 5043 section 6.1). After that, and after a SESSION report, it sends
        a Terminate.
    stream
        The SCTP stream; PACKET: 0.
    tsn, ssn
        CHUNK: its TSN and DDP-SSN.
    length
        CHUNK: octets placed; PACKET: its chunks.
    ends
        CHUNK: its packet ends with it, and no PACKET comes of that.
    function
        CONTROL: its Function Code.
    state
        SESSION: what the session was in.
    """

    kind: Kind
    status: ChunkStatus | Reason | Status
    stream: int = 0
    tsn: int = 0
    ssn: int = 0
    length: int = 0
    function: Function | None = None
    state: State | None = None
    ends: bool = False


class Association(KnownAssociation):
    """An association, from its set-up on. As a context manager it is closed at the end.

    Parameters
    ----------
    context
        Of a device with SCTP.
    paths
        Pairs of addresses, the peer's and this end's, that its packets may have.
    ports
        The peer's port, and this end's.
    tag
        Verification Tag of what comes from the peer.
    tsn
        The peer's initial TSN.
    streams
        SCTP streams from 0 on that are DDP Streams.
    reports
        Reports that are kept for :meth:`poll`; when one more comes, it and those after it are
        dropped, and ``poll`` says so.

    Attributes
    ----------
    number
        The device's.
    """

    def __init__(
        self,
        context: Context,
        *,
        paths: Sequence[tuple[str, str]],
        ports: tuple[int, int],
        tag: int,
        tsn: int,
        streams: int = 1,
        reports: int = 1 << 16,
    ) -> None:
        instance("an association's context", context, Context)
        keys = _keys(paths, ports, tag)
        tsn = integer("tsn", tsn, 0, _WORD, "from 0 to 2**32 - 1")
        streams = integer("streams", streams, 1, math.inf, "at least 1")
        reports = integer("reports", reports, 1, math.inf, "at least 1")
        self.context, self.count, self.closed = context, streams, False
        self._reports: deque[Report] = deque()
        self._room, self._overrun = reports, False
        self._ends = paths[0], ports, tag
        self._held = HeldChunks()
        # The TSN up to which all streams know of the past, and the last one that was taken.
        self._past = self._latest = tsn - 1 & _WORD
        with context.lock:
            context.check()
            if context.sctp is None:
                raise UnsupportedDevice(
                    "the device has no SCTP: build it with RnicConfig(sctp=True)"
                )
            if not context.free_associations:
                raise ResourceExhausted(
                    f"all {context.sctp.associations} associations are in use: close one"
                )
            self.first = _row(context.numbers, streams)
            self.number = context.free_associations.popleft()
            for number in range(self.first, self.first + streams):
                context.numbers.remove(number)
            self.free = set(range(self.first, self.first + streams))
            context.associations[self.number] = self
            try:
                for sid in range(streams):
                    self.tell(sid, Function.FORGET, tsn=tsn - 1 & _WORD)
                for key in keys:
                    self._enter(key)
            except BaseException:
                self.close()
                raise

    def _enter(self, key: AssociationKey) -> None:
        """Write a key to the table; others may have to move."""
        assert self.context.sctp is not None
        places, most = self.context.places, self.context.sctp.associations
        try:
            moves = insert({place: known for place, (known, _) in places.items()}, key, most)
        except ValueError as error:
            known = any(key == each for each, _ in places.values())
            raise (StateError if known else ResourceExhausted)(str(error)) from error
        owners = {known: owner for known, owner in places.values()}
        for way, place, moved in moves:
            owner = owners.get(moved, self)
            entry = regs.association(
                Move(way, place, moved),
                first=owner.first, count=owner.count, number=owner.number,
            )  # fmt: skip
            self.context.registers.write_all("ASSOC", **entry, COMMIT=1)
            places[way, place] = moved, owner

    def check(self) -> None:
        """Raise unless it can be used."""
        self.context.check()
        if self.closed:
            raise StateError(f"association {self.number} is closed")

    def stream(self, sid: int, pd: PD, cq: CQ, *, queues: Iterable[int] = range(QUEUES)) -> Stream:
        """The DDP Stream of an SCTP stream, receiving once its session is established."""
        return Stream(pd, cq, number=self._number(sid), queues=queues, association=self)

    def _number(self, sid: int) -> int:
        most = self.count - 1
        return self.first + integer("an SCTP stream of the association", sid, 0, most)

    def tell(
        self,
        sid: int,
        function: Function,
        *,
        tsn: int | None = None,
        outstanding: int | None = None,
    ) -> State:
        """Tell the device of a session message, before it is sent; what the session is in then.

        Parameters
        ----------
        sid
            The SCTP stream.
        function
            Of the message. Three go with no message: FORGET, when the association is a new one;
            ABORT, which ends the session after what the device cannot know to be illegal; PAST,
            which :meth:`poll` sends, so that the device can tell old TSNs from new ones.
        tsn
            With FORGET, INITIATE and PAST: what the peer sent up to this TSN is of the past.
        outstanding
            With INITIATE: how many chunks of the stream the peer has not acknowledged.

        Raises
        ------
        StateError
            The message must not be sent now (RFC 5043 section 6).
        """
        number = self._number(sid)
        try:
            function = Function(function)
        except ValueError as error:
            raise InvalidRequest(
                f"function must be one of {[*Function]}, not {shown(function)}"
            ) from error
        if tsn is not None:
            tsn = any_integer("tsn", tsn)
        if outstanding is not None:
            outstanding = integer("outstanding", outstanding, 0, math.inf, "at least 0")
        if (tsn is not None) != (function in (Function.FORGET, Function.INITIATE, Function.PAST)):
            raise InvalidRequest(
                "tsn goes with FORGET, INITIATE and PAST, and with no other function"
            )
        if (outstanding is not None) != (function is Function.INITIATE):
            raise InvalidRequest("outstanding goes with INITIATE, and with no other function")
        if outstanding:
            raise StateError(
                f"INITIATE must not be sent on SCTP stream {sid} while {outstanding} of its chunks"
                " are not acknowledged (RFC 5043 section 6.6): wait for that"
            )
        registers = self.context.registers
        with self.context.lock:
            self.check()
            if tsn is not None:
                registers.write("SESSION_TSN", tsn & _WORD)
            registers.write_all("SESSION", STREAM=number, FUNCTION=function, COMMAND=1)
            deadline = time.monotonic() + PATIENCE
            busy, taken = (regs.pack("SESSION_ANSWER", **{each: 1}) for each in ("busy", "taken"))
            while (answer := registers.read("SESSION_ANSWER")) & busy:
                if time.monotonic() > deadline:
                    raise RnicTimeout("the device does not take the session's message: reset it")
            state = State(answer & 7)
            if not answer & taken:
                raise StateError(
                    f"{function.name} must not be sent on SCTP stream {sid}, whose session is"
                    f" {state.name}"
                )
            if function in (Function.FORGET, Function.ABORT, Function.INITIATE):
                self._held.end(sid)
            if function is Function.INITIATE and tsn is not None:
                self._held.ask(sid, tsn & _WORD)
        return state

    def guide(self, sid: int) -> int:
        """The next DDP-SSN that a stream delivers.

        DDP-SSNs less than ``context.sctp.window`` ahead can be taken (RFC 5041 appendix A).
        """
        number, registers = self._number(sid), self.context.registers
        with self.context.lock:
            self.check()
            registers.write("SESSION_STREAM", number)
            return registers.read("GUIDE_NEXT")

    # -- chunks that the device forwards, and gets back -------------------------------------------

    def hold(self, reason: int, chunk: bytes) -> None:
        """Keep a chunk of the exception stream for which the device reported HELD.

        The host gives each TSN once: its SCTP drops what the network repeats. From then on it may
        acknowledge the chunk.

        Parameters
        ----------
        reason
            The packet's: ``Diversion.EARLY`` or ``Diversion.FRAGMENT``.
        chunk
            Its octets.

        Raises
        ------
        InvalidRequest
            It is another packet; or a fragment of a message that no packet can hold, whose session
            has to be ended with ABORT.
        """
        reason = any_integer("reason", reason)
        instance("a chunk that is kept", chunk, bytes)
        if reason not in (Diversion.EARLY, Diversion.FRAGMENT) or len(chunk) < 16:
            raise InvalidRequest(
                "a chunk that is kept must be a packet of the exception stream whose reason is"
                f" {Diversion.EARLY:#x} or {Diversion.FRAGMENT:#x}, not one of {len(chunk)} octets"
                f" with reason {reason:#x}"
            )
        self._number(int.from_bytes(chunk[8:10], "big"))
        with self.context.lock:
            self.check()
            self._held.take(reason, chunk)

    def hand_back(self, send: Callable[[bytes], None]) -> int:
        """Hand back what the device can take now. Returns how many chunks these were.

        A chunk that overtook the answer to an Initiate goes back once that has come; a message in
        fragments, once it is whole. The host calls this after it has taken reports.

        Parameters
        ----------
        send
            Gives an Ethernet frame, without FCS, to the device's input for frames, as
            ``SimTransport.send_frame`` does. A board has no such input for its host: frames that
            come by its host link leave by the PHY, which has to send them back, as with
            ``BoardEthernet.looped_back``.
        """
        with self.context.lock:
            self.check()
            self.context.service()
            due = self._held.due()
            count = len(due)
            while due:
                send(frame_of(*self._ends, due[0]))
                due.popleft()
        return count

    # -- reports ----------------------------------------------------------------------------------

    def take(self, completion: Completion) -> None:
        """The device has told something."""
        self._follow(completion)
        if len(self._reports) >= self._room:
            self._overrun = True
        self.context.wake()
        if self._overrun:
            return
        kind, tag = completion.kind, completion.tag
        sid = 0 if kind is Kind.PACKET else completion.stream - self.first
        chunk, control, session = (
            kind is each for each in (Kind.CHUNK, Kind.CONTROL, Kind.SESSION)
        )
        self._reports.append(
            Report(
                kind,
                completion.status,
                sid,
                tag if chunk else 0,
                completion.cookie & 0xFFFF if chunk else 0,
                completion.length,
                Function(tag) if control else None,
                State(tag) if session else None,
                completion.ends,
            )
        )

    def _follow(self, completion: Completion) -> None:
        """Follow what the session of a stream comes to."""
        sid = completion.stream - self.first
        if completion.kind is Kind.CHUNK and completion.status == ChunkStatus.TAKEN:
            self._latest = completion.tag
        if completion.kind is Kind.SESSION:
            self._held.end(sid)
        elif completion.kind is Kind.CONTROL:
            if completion.tag == Function.INITIATE:
                self._held.end(sid)
            else:
                self._held.answer(sid)

    def poll(self, count: int = 64) -> list[Report]:
        """Up to so many reports that are there, the oldest first."""
        count = integer("count", count, 1, math.inf, "at least 1")
        with self.context.lock:
            self.check()
            self.context.service()
            if _MOVE <= (self._latest - self._past & _WORD) < 1 << 31:
                self._past = self._latest - _RECENT & _WORD
                for sid in range(self.count):
                    self.tell(sid, Function.PAST, tsn=self._past)
            taken = [self._reports.popleft() for _ in range(min(count, len(self._reports)))]
            if not taken and self._overrun:
                self._overrun = False
                raise CompletionOverrun(
                    f"reports of association {self.number} were dropped, as more than"
                    f" {self._room} waited: poll more often"
                )
            return taken

    def wait(self, timeout: float | None = None, count: int = 64) -> list[Report]:
        """Up to so many reports, at least one: waits for it."""
        if not self.context.wait_for(lambda: bool(self._reports or self._overrun), timeout):
            raise RnicTimeout(f"no report came within {timeout} seconds")
        return self.poll(count)

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Take it out of the table, and close its streams; the second time does nothing.

        Packets of it go to the host from then on.
        """
        context = self.context
        with context.lock:
            if self.closed:
                return
            context.check()
            for (way, place), (_, owner) in list(context.places.items()):
                if owner is self:
                    clear_entry(context, way, place)
                    del context.places[way, place]
            for number in range(self.first, self.first + self.count):
                if (stream := context.streams.get(number)) is not None:
                    stream.close()
            context.settle()
            self.closed = True
            context.numbers.extend(range(self.first, self.first + self.count))
            del context.associations[self.number]
            context.free_associations.append(self.number)


def clear_entry(context: Context, way: int, place: int) -> None:
    """Empty a place of the device's table."""
    where = regs.pack("ASSOC_PLACE", way=way, place=place)
    context.registers.write_all("ASSOC", FLAGS=0, PLACE=where, COMMIT=1)


def _row(numbers: Iterable[int], count: int) -> int:
    """The first of so many free numbers in a row."""
    free = sorted(numbers)
    for at in range(len(free) - count + 1):
        if free[at + count - 1] == free[at] + count - 1:
            return free[at]
    raise ResourceExhausted(
        f"{count} DDP Streams in a row are not free ({len(free)} are): close others"
    )


def _keys(
    paths: Sequence[tuple[str, str]], ports: tuple[int, int], tag: int
) -> list[AssociationKey]:
    if not isinstance(ports, Sequence) or len(ports) != 2:
        raise WrongType(f"ports must be the peer's port and this end's, not {shown(ports)}")
    source_port, destination_port = (integer("ports", port, 0, (1 << 16) - 1) for port in ports)
    tag = integer("tag", tag, 0, _WORD, "from 0 to 2**32 - 1")
    if not isinstance(paths, Sequence):
        raise WrongType(f"paths must be pairs of addresses, not {shown(paths)}")
    if not paths:
        raise InvalidRequest("an association must have a path: the peer's address and this end's")
    keys = []
    for pair in paths:
        try:
            source, destination = map(ipaddress.ip_address, pair)
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"a path must be two IP addresses: {error}") from error
        if source.version != destination.version:
            raise InvalidRequest(f"the addresses of a path must be of one version, not {pair!r}")
        ends = [int.from_bytes(each.packed, "little") for each in (source, destination)]
        keys.append(
            AssociationKey(
                ends[0], ends[1], source_port, destination_port, tag, source.version == 6
            )
        )
    return keys
