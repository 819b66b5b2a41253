"""SCTP associations whose DDP Streams the device receives (RFC 5043).

The device places segments and delivers messages in order. The host's own SCTP sets the association
up, and acknowledges the chunks that the device reports. It also sends, unless the device does, see
:mod:`.chunks`. A chunk that the device cannot take yet is forwarded to the host, which keeps it and
hands it back later.
"""

from __future__ import annotations

import ipaddress
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...hdl.spec import commands, regs
from ...hdl.spec.completion import AnyStatus, ChunkStatus, Completion, Kind
from ...hdl.spec.net import AssociationKey, Move, insert
from ...hdl.spec.path import SendPath
from ...hdl.spec.sctp import INITIATES, Diversion, Function, State
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
from .chunks import AssociationSender
from .context import Context
from .cq import CQ
from .handed_back import HeldChunks, frame_of, ssn_of, stream_of
from .known import KnownAssociation
from .pd import PD
from .stream import QUEUES, Stream

_WORD = 0xFFFFFFFF
#: The answers that fit one kind of Initiate alone, and the other kind.
_UNFIT = {
    Function.ACCEPT: "an Enhanced Initiate",
    Function.ENHANCED_ACCEPT: "an Initiate",
    Function.ENHANCED_REJECT: "an Initiate",
}
#: After every ``_MOVE`` TSNs the driver reports to the device that all but the last ``_RECENT`` are
#: past.
_MOVE, _RECENT = 1 << 30, 1 << 29


@dataclass(frozen=True)
class Report:
    """A report of the device to the host's SCTP.

    Parameters
    ----------
    kind
        Reports of the kinds CHUNK and PACKET come in the order of arrival, those of the kind
        CONTROL in the order of their stream's DDP-SSNs.
    status
        CHUNK: a ChunkStatus; SESSION: a Reason. The host acknowledges all chunks except those that
        are OUTSIDE; those that are HELD it acknowledges once it has them, see
        :meth:`Association.hold`. A DUPLICATE whose TSN no earlier report has named, or only a HELD
        one, is no repetition: the host then ends the session with ABORT (RFC 5043 section 6.1).
        After that, and after a SESSION report, the host sends a Terminate.
    stream
        The SCTP stream; PACKET: 0.
    tsn, ssn
        CHUNK: its TSN and DDP-SSN.
    length
        CHUNK: how many octets were placed; PACKET: how many chunks it had.
    ends
        CHUNK: it is the last of its packet, for which no PACKET report follows.
    function
        CONTROL: its Function Code.
    state
        SESSION: the state that the session was in.
    """

    kind: Kind
    status: AnyStatus
    stream: int = 0
    tsn: int = 0
    ssn: int = 0
    length: int = 0
    function: Function | None = None
    state: State | None = None
    ends: bool = False


class Association(KnownAssociation):
    """An association, from its set-up on. A ``with`` block closes it at its end.

    Parameters
    ----------
    context
        The open device, which has SCTP.
    paths
        The pairs of addresses that the association's packets may have: first that of the peer, then
        that of this end.
    ports
        The port of the peer, then the port of this end.
    tag
        Verification Tag of packets from the peer.
    tsn
        The peer's initial TSN.
    streams
        How many SCTP streams, from 0 on, are DDP Streams.
    reports
        How many reports are kept for :meth:`poll`. A report for which there is no room is dropped,
        and so are all after it; ``poll`` raises for that.

    Attributes
    ----------
    number
        The device's number for the association.
    latest
        The TSN of the latest chunk of the peer that the device took.
    sender
        Its sending side, after :meth:`send_by`.
    """

    sender: AssociationSender | None = None

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
        # The TSN up to which the device knows TSNs to be past, and the last one taken.
        self._past = self.latest = tsn - 1 & _WORD
        with context.lock:
            context.check()
            if context.sctp is None:
                raise UnsupportedDevice(
                    "the device has no SCTP: build it with RnicConfig(sctp=True)"
                )
            context.receiving("take the chunks of an association")
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
        """Writes a key to the device's table, whose other keys may have to move for it."""
        assert self.context.sctp is not None
        slots, most = self.context.association_slots, self.context.sctp.associations
        try:
            moves = insert({slot: known for slot, (known, _) in slots.items()}, key, most)
        except ValueError as error:
            known = any(key == each for each, _ in slots.values())
            raise (StateError if known else ResourceExhausted)(str(error)) from error
        owners = {known: owner for known, owner in slots.values()}
        for way, slot, moved in moves:
            owner = owners.get(moved, self)
            entry = commands.set_association(
                Move(way, slot, moved),
                first=owner.first, count=owner.count, number=owner.number,
            )  # fmt: skip
            self.context.registers.start(entry)
            slots[way, slot] = moved, owner

    def check(self) -> None:
        """Raises where the association cannot be used."""
        self.context.check()
        if self.closed:
            raise StateError(f"association {self.number} is closed")

    def stream(self, sid: int, pd: PD, cq: CQ, *, queues: Iterable[int] = range(QUEUES)) -> Stream:
        """Returns the DDP Stream of an SCTP stream. It receives once its session is established."""
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
        """Announces a session message to the device before it is sent; returns the session's new
        state.

        Parameters
        ----------
        sid
            The SCTP stream.
        function
            The message's function. An answer has to fit the Initiate: to an ENHANCED_INITIATE
            ENHANCED_ACCEPT, ENHANCED_REJECT, REJECT or TERMINATE (RFC 6581 section 7), to an
            INITIATE ACCEPT, REJECT or TERMINATE. Three functions have no message: FORGET, with
            which an association begins and ends; ABORT, which ends the session after a chunk that
            the device cannot know to be illegal; and PAST, which :meth:`poll` sends so that the
            device can distinguish old TSNs from new ones.
        tsn
            With FORGET, PAST and an Initiate: chunks of the peer up to this TSN are past.
        outstanding
            With an Initiate: how many chunks of the stream the peer has not acknowledged.

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
        initiates = function in INITIATES
        if (tsn is not None) != (initiates or function in (Function.FORGET, Function.PAST)):
            raise InvalidRequest(
                "tsn goes with FORGET, PAST, INITIATE and ENHANCED_INITIATE, and with no other"
                " function"
            )
        if (outstanding is not None) != initiates:
            raise InvalidRequest(
                "outstanding goes with INITIATE and ENHANCED_INITIATE, and with no other function"
            )
        if outstanding:
            raise StateError(
                f"{function.name} must not be sent on SCTP stream {sid} while {outstanding} of its"
                " chunks are not acknowledged (RFC 5043 section 6.6): wait until they are"
            )
        context = self.context
        with context.lock:
            self.check()
            command = commands.tell_session(number, function, None if tsn is None else tsn & _WORD)
            answer = regs.unpack(
                "SESSION_ANSWER",
                context.carry_out(
                    command,
                    "the device does not accept the session's message: reset the device",
                ),
            )
            state = State(answer["state"])
            if not answer["taken"]:
                raise StateError(
                    f"{function.name} must not be sent on SCTP stream {sid}, whose session is"
                    f" {state.name}{_unfit(function, state)}"
                )
            if initiates or function in (Function.FORGET, Function.ABORT):
                self._held.end(sid)
            if initiates and tsn is not None:
                self._held.ask(sid, tsn & _WORD)
        return state

    def guide(self, sid: int) -> int:
        """Returns the next DDP-SSN that a stream delivers.

        The device can take DDP-SSNs less than ``context.sctp.window`` ahead of it (RFC 5041
        appendix A).
        """
        number, registers = self._number(sid), self.context.registers
        with self.context.lock:
            self.check()
            registers.write("SESSION_STREAM", number)
            return registers.read("GUIDE_NEXT")

    def send_by(self, path: SendPath, **settings: Any) -> AssociationSender:
        """Lets the device send on the association, which must be the first call of this method.

        The arguments are those of :class:`AssociationSender`.
        """
        with self.context.lock:
            self.check()
            if self.sender is not None:
                raise StateError(f"association {self.number} sends already")
            self.sender = AssociationSender(self, path, **settings)
            return self.sender

    # -- chunks that the device forwards and later gets back --------------------------------------

    def hold(self, reason: int, chunk: bytes) -> None:
        """Keeps a chunk of the exception stream for which the device reported HELD.

        The host passes each TSN once: its SCTP drops repetitions by the network. After this call
        the host may acknowledge the chunk. The window that it announces is smaller by :attr:`held`;
        it neither keeps nor acknowledges a chunk beyond that window (RFC 9260 section 6.2), so a
        peer cannot fill its memory.

        Parameters
        ----------
        reason
            The packet's reason: ``Diversion.EARLY`` or ``Diversion.FRAGMENT``.
        chunk
            The chunk's octets.

        Raises
        ------
        InvalidRequest
            The packet has another reason; or it is a fragment of a message that no packet can hold.
            The host then has to end that message's session with ABORT.
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

    @property
    def held(self) -> int:
        """The octets of all chunks that :meth:`hold` keeps."""
        with self.context.lock:
            return self._held.octets

    def hand_back(self, send: Callable[[bytes], None]) -> int:
        """Hands back the chunks that the device can take now, and returns how many these were.

        A chunk that overtook the answer to an Initiate goes back once that answer has come; a
        message in fragments goes back once it is complete. Either one waits until its DDP-SSN is
        less than the window ahead of :meth:`guide`: the device drops others, which the peer does
        not send again. The host calls this after it has taken reports.

        Parameters
        ----------
        send
            Passes an Ethernet frame, without FCS, to the device's input for frames, as
            ``SimTransport.send_frame`` does. A board has no such input for its host: frames from
            its host link leave through the PHY, which must send them back, as with
            ``BoardEthernet.looped_back``.
        """
        assert self.context.sctp is not None
        window = self.context.sctp.window
        with self.context.lock:
            self.check()
            self.context.service()
            due, count = self._held.due(), 0
            guides = {sid: self.guide(sid) for sid in {stream_of(each) for each in due}}
            for _ in range(len(due)):
                ahead = (ssn_of(due[0]) - guides[stream_of(due[0])]) % (1 << 16)
                if window <= ahead < 1 << 15:
                    due.rotate(-1)
                    continue
                send(frame_of(*self._ends, due[0]))
                due.popleft()
                count += 1
        return count

    # -- reports ----------------------------------------------------------------------------------

    def take(self, completion: Completion) -> None:
        """Adds a report of the device."""
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
        """Follows a report's effect on a stream's session."""
        sid = completion.stream - self.first
        if completion.kind is Kind.CHUNK and completion.status == ChunkStatus.TAKEN:
            # A chunk that was lost first arrives after later ones.
            ahead = completion.tag - self.latest & _WORD
            self.latest = completion.tag if ahead < 1 << 31 else self.latest
        if completion.kind is Kind.SESSION:
            self._held.end(sid)
        elif completion.kind is Kind.CONTROL:
            if self.sender is not None:
                self.sender.follow(sid, Function(completion.tag))
            if completion.tag in INITIATES:
                self._held.end(sid)
            else:
                self._held.answer(sid)

    def poll(self, count: int = 64) -> list[Report]:
        """Returns at most ``count`` reports that are present, the oldest first."""
        count = integer("count", count, 1, math.inf, "at least 1")
        with self.context.lock:
            self.check()
            self.context.service()
            return self.pick(count)

    def pick(self, count: int) -> list[Report]:
        """Does the work of :meth:`poll`, without a look at the device before."""
        with self.context.lock:
            if _MOVE <= (self.latest - self._past & _WORD) < 1 << 31:
                self._past = self.latest - _RECENT & _WORD
                for sid in range(self.count):
                    self.tell(sid, Function.PAST, tsn=self._past)
            taken = [self._reports.popleft() for _ in range(min(count, len(self._reports)))]
            if not taken and self._overrun:
                self._overrun = False
                raise CompletionOverrun(
                    f"reports of association {self.number} were dropped, because more than"
                    f" {self._room} waited: poll more often"
                )
            return taken

    def wait(self, timeout: float | None = None, count: int = 64) -> list[Report]:
        """Waits for reports, and returns at least one and at most ``count``."""
        if not self.context.wait_for(lambda: bool(self._reports or self._overrun), timeout):
            raise RnicTimeout(f"no report came within {timeout} seconds")
        return self.poll(count)

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Removes the association from the device, and closes its streams. A second call does
        nothing.

        Packets of the association are forwarded to the host from then on.
        """
        context = self.context
        with context.lock:
            if self.closed:
                return
            context.check()
            for (way, slot), (_, owner) in list(context.association_slots.items()):
                if owner is self:
                    context.registers.start(commands.clear_association(way, slot))
                    del context.association_slots[way, slot]
            for number in range(self.first, self.first + self.count):
                if (stream := context.streams.get(number)) is not None:
                    stream.close()
            context.settle()
            # An Initiate that still waits for an answer would count for the next association that
            # has this number.
            for sid in range(self.count):
                self.tell(sid, Function.FORGET, tsn=self.latest)
            if self.sender is not None:
                context.registers.start(commands.close_path(self.number))
            self.closed = True
            context.numbers.extend(range(self.first, self.first + self.count))
            del context.associations[self.number]
            context.free_associations.append(self.number)


def _row(numbers: Iterable[int], count: int) -> int:
    """Returns the first of ``count`` consecutive free numbers."""
    free = sorted(numbers)
    for at in range(len(free) - count + 1):
        if free[at + count - 1] == free[at] + count - 1:
            return free[at]
    raise ResourceExhausted(
        f"{count} consecutive DDP Streams are not free ({len(free)} are): close others"
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
            raise InvalidRequest(
                f"the addresses of a path must have the same IP version, not {pair!r}"
            )
        ends = [int.from_bytes(each.packed, "little") for each in (source, destination)]
        keys.append(
            AssociationKey(
                ends[0], ends[1], source_port, destination_port, tag, source.version == 6
            )
        )
    return keys


def _unfit(function: Function, state: State) -> str:
    """Returns why an answer that its state allows does not fit, for an error's end."""
    if state is State.INITIATE_RECEIVED and function in _UNFIT:
        return f": the peer has sent {_UNFIT[function]} (RFC 6581 section 7)"
    return ""
