"""Protection domains, and the memory regions registered in them."""

from __future__ import annotations

from typing import Any, Self

from ...hdl.spec import commands
from ...hdl.spec.stag import Access
from ..base.buffers import copy_of, octets_of
from ..base.checks import any_integer, instance, integer
from ..base.closing import Closing
from ..base.errors import InvalidRequest, ResourceExhausted, StateError
from ..transports.memory import Arena, Steps, finish
from .context import Context, Mapping
from .known import KnownStream

_ALL = ~Access.NONE
_REMOTE = Access.REMOTE_WRITE | Access.REMOTE_READ


class PD(Closing):
    """A protection domain: a stream can use the regions of its own domain, and no others.

    Closing the domain closes its streams and revokes its regions.

    Parameters
    ----------
    slots
        The slots of the page table that the domain's memory may use; None: all slots.
    """

    def __new__(cls, context: Context, *arguments: Any, **named: Any) -> Self:
        instance("a protection domain's context", context, Context)
        return super().__new__(context.kinds.get(cls, cls))

    def __init__(self, context: Context, *, slots: Arena | None = None) -> None:
        with context.lock:
            context.check()
            if not context.domains:
                raise ResourceExhausted("all 65535 protection domains are in use: close one")
            self.context = context
            self.slots = context.slots if slots is None else slots
            self.number = context.domains.popleft()
            self.regions: set[MR] = set()
            self.streams: set[KnownStream] = set()
            self.closed = False
            context.pds.add(self)

    def register(
        self,
        buffer: object,
        access: Access = Access.LOCAL_WRITE | Access.REMOTE_WRITE,
        *,
        to: int = 0,
        stream: KnownStream | None = None,
    ) -> MR:
        """Lets the device write a buffer, and a peer access it as the remote rights allow.

        The buffer stays where it is, and keeps its size, until the region is revoked.

        Parameters
        ----------
        buffer
            A bytearray, memoryview, numpy array, mmap, or any other buffer that is writable and
            contiguous.
        access
            The rights. If the device sends, it may send octets of each region. If not, a region
            without remote rights has no STag, and is for receive buffers only.
        to
            Tagged Offset of the buffer's first octet.
        stream
            The one stream that may name the region; None: every stream of the domain may. An STag
            that several streams may name cannot be invalidated by a peer.
        """
        return MR(self, buffer, access, to=to, stream=stream)

    def check(self) -> None:
        """Raises where the domain cannot be used."""
        self.context.check()
        if self.closed:
            raise StateError("the protection domain is closed")

    def close(self) -> None:
        """Closes the domain's streams and revokes its regions. A second call does nothing."""
        with self.context.lock:
            if self.closed:
                return
            for stream in list(self.streams):
                stream.close()
            for region in list(self.regions):
                region.close()
            self._remove()
            self.closed = True
            self.context.pds.discard(self)

    def _remove(self) -> None:
        self.context.domains.append(self.number)


class MR(Closing):
    """A memory region. A ``with`` block revokes the region at its end.

    Attributes
    ----------
    to
        Tagged Offset of the buffer's first octet.
    length
        Length in octets.
    posted
        How many receive buffers in it wait for a message.
    written
        Whether a tagged message has written octets of a copy that the host does not see yet.
    """

    def __new__(cls, pd: PD, *arguments: Any, **named: Any) -> Self:
        instance("a region's protection domain", pd, PD)
        return super().__new__(pd.context.kinds.get(cls, cls))

    def __init__(
        self,
        pd: PD,
        buffer: object,
        access: Access,
        *,
        to: int = 0,
        stream: KnownStream | None = None,
    ) -> None:
        if any_integer("access", access, f"a combination of {_ALL!r}") not in range(
            1, int(_ALL) + 1
        ):
            raise InvalidRequest(f"access must be a combination of {_ALL!r}, not {access!r}")
        access = Access(any_integer("access", access))
        if stream is not None:
            instance("a region's stream", stream, KnownStream, called="Stream")
            if not access & _REMOTE:
                raise InvalidRequest("a region bound to a stream must have a remote right")
        view = octets_of(buffer)
        rule = f"from 0 to 2**64 less the {len(view)} octets of the region"
        to = integer("to", to, 0, (1 << 64) - len(view), rule)
        self.pd, self.access, self.to, self.length = pd, access, to, len(view)
        self.stream = stream
        self._stag: int | None = None
        self.posted = 0
        self.written = False
        self.revoked = False
        with pd.context.lock:
            pd.check()
            if stream is not None:
                stream.check()
                if stream.pd is not pd:
                    raise InvalidRequest("the stream must belong to the region's protection domain")
            self._open(view)

    def _open(self, view: memoryview) -> None:
        """Maps the buffer, and writes the region's entry to the device."""
        context = self.pd.context
        stag = context.stags.take() if self._tagged else None
        try:
            self.mapping = self._map(view)
        except BaseException:
            if stag is not None:
                context.stags.free(stag)
            raise
        # From here on the device may know the region, even if the link fails: closing revokes it.
        context.regions.add(self)
        self._belongs()
        if stag is not None:
            self._stag = stag
            context.tags[stag] = self
            self._enter(stag)

    @property
    def _tagged(self) -> bool:
        """True if the region has a Steering Tag."""
        return bool(self.access & _REMOTE) or self.pd.context.sends

    def _map(self, view: memoryview) -> Mapping:
        return self.pd.context.map(view, self.pd.slots)

    def _belongs(self) -> None:
        self.pd.regions.add(self)
        if self.stream is not None:
            self.stream.bound.add(self)

    def _enter(self, stag: int) -> None:
        """Writes the region's entry of the device's table."""
        # As in ibverbs, the device may send octets of each region.
        command = commands.set_stag(
            stag,
            self.access | Access.LOCAL_READ if self.pd.context.sends else self.access,
            pd=self.pd.number if self.stream is None else None,
            stream=None if self.stream is None else self.stream.number,
            to=self.to,
            length=self.length,
            address=self.mapping.address,
            pages=self.mapping.layout.code,
        )
        self.pd.context.registers.start(command)

    @property
    def stag(self) -> int:
        """The region's Steering Tag."""
        if self._stag is None:
            raise InvalidRequest("the region has no STag, because it has no remote right")
        return self._stag

    @property
    def view(self) -> memoryview:
        """The region's octets."""
        self.check()
        return self.mapping.memory.view[:]

    def check(self) -> None:
        """Raises where the region cannot be used."""
        self.pd.check()
        if self.revoked:
            raise StateError("the region is revoked")

    def read(self, length: int, offset: int = 0) -> bytes:
        """Returns octets as the device has written them."""
        with self.pd.context.lock:
            self.check()
            offset, length = self._within(offset, length)
            self.mapping.memory.pull(offset, length)
            return bytes(self.view[offset : offset + length])

    def write(self, octets: bytes, offset: int = 0) -> None:
        """Writes octets, also to the device's copy if there is one."""
        octets = copy_of(octets)
        with self.pd.context.lock:
            self.check()
            offset, _ = self._within(offset, len(octets))
            self.view[offset : offset + len(octets)] = octets
            self.mapping.memory.push(offset, len(octets))

    def refresh(self) -> None:
        """Shows the host all octets that tagged messages have written."""
        if self.written and not self.revoked:
            self._pull()
        self.written = False

    def _pull(self) -> None:
        self.mapping.memory.pull_written()

    def _within(self, offset: int, length: int) -> tuple[int, int]:
        """Returns offset and length as ints; raises where the region does not have these octets."""
        offset, length = any_integer("offset", offset), any_integer("length", length)
        if not 0 <= offset <= offset + length <= self.length:
            raise InvalidRequest(
                f"{length} octets from {offset} on are not within the region's {self.length}"
            )
        return offset, length

    def revoke(self) -> None:
        """Takes the STag back: once this returns, the device writes and reads not one octet more.

        If this raises :class:`~..base.errors.RnicTimeout`, the device may still do so: the buffer
        stays registered, and the caller can call this again.
        """
        with self.pd.context.lock:
            finish(self.disabling())
            if self._stag is not None:
                self._pull()
            self.forget()

    def disabling(self) -> Steps[None]:
        """Stops the device from writing the region, in steps. The copy's last octets are
        pulled afterwards.
        """
        context = self.pd.context
        self.check()
        if self.posted:
            raise StateError(
                f"{self.posted} receive buffers of the region are posted: take their"
                " completions, or close their streams, and then revoke it"
            )
        if self._stag is not None:
            context.registers.start(commands.revoke_stag(self._stag))
            yield from context.fencing(
                "the device does not finish the revocation: call revoke() again"
            )

    def forget(self) -> None:
        """Drops the driver's record of the region, after the device has revoked it."""
        if self._stag is not None:
            del self.pd.context.tags[self._stag]
            self.pd.context.stags.free(self._stag)
        self.revoked = True
        if self.stream is not None:
            self.stream.bound.discard(self)
        self.pd.regions.discard(self)
        self.pd.context.regions.discard(self)
        if not self.posted:
            self.mapping.close()

    def hold(self) -> None:
        """Counts a receive buffer that is posted in the region."""
        self.posted += 1

    def release(self) -> None:
        """Counts a receive buffer that is no longer posted; frees the memory after the last one."""
        self.posted -= 1
        if self.revoked and not self.posted:
            self.mapping.close()

    def close(self) -> None:
        """Revokes the region, unless it is revoked already."""
        if not self.revoked:
            self.revoke()

    def __repr__(self) -> str:
        name = "without STag" if self._stag is None else f"STag {self._stag:#010x}"
        return f"<MR {name}, {self.length} octets{', revoked' * self.revoked}>"
