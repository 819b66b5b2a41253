"""The manager: owns an open device, and serves its clients in turns, each for a slice of time."""

from __future__ import annotations

import array
import grp
import os
import pwd
import resource
import select
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..base.closing import Closing
from ..base.errors import InvalidRequest, ResourceExhausted, RnicError, RnicTimeout, TransportError
from ..transports.memory import Arena, Steps
from ..verbs.context import Context
from . import protocol
from .audit import Audit
from .protocol import LONGEST_REQUEST, Decoder, Kind, ProtocolError
from .quota import Limits, Share
from .session import Session

#: Seconds between two looks at the sockets, while the device may have something for a client.
INTERVAL = 0.002
#: Seconds after which what the device did not finish is tried again.
RETRY = 1.0
#: Seconds of work for one client, after which the others have their turn. With 16 clients that ask
#: for as much as they can, the next one waits 16 slices, and 16 steps that began within a slice.
SLICE = 0.00025
#: Refused requests of a connection that are logged; of more, the number is at the end.
REFUSALS = 16
_PEER = struct.Struct("3i")
_RECEIVE = 4096
#: Descriptors that the manager has open besides those of clients.
_DESCRIPTORS = 64


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Who may connect, and what each may have.

    Parameters
    ----------
    users
        Their numbers.
    group
        The number of a group whose members may too.
    clients
        That the shares are for. A client that is gone counts until all it had is revoked.
    per_user
        Of these, connections that one user may have; otherwise half of them.
    limits
        Of each client.
    """

    users: frozenset[int] = field(default_factory=lambda: frozenset([os.geteuid()]))
    group: int | None = None
    clients: int = 8
    per_user: int | None = None
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise InvalidRequest(f"clients must be at least 1, not {self.clients!r}")
        if self.per_user is not None and not 1 <= self.per_user <= self.clients:
            raise InvalidRequest(
                f"per_user must be from 1 to the {self.clients} clients, not {self.per_user!r}"
            )

    @property
    def most_of_user(self) -> int:
        """Connections that one user may have."""
        return -(-self.clients // 2) if self.per_user is None else self.per_user

    def admits(self, uid: int, gid: int) -> bool:
        """Whether a user may connect."""
        if uid in self.users or self.group == gid:
            return True
        if self.group is None:
            return False
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            return False
        return self.group in os.getgrouplist(name, gid)


class Connection:
    """A client's socket, with who is at its other end."""

    def __init__(self, client: socket.socket, uid: int, pid: int, seat: int) -> None:
        self.socket, self.uid, self.pid, self.seat = client, uid, pid, seat
        self.decoder = Decoder(LONGEST_REQUEST)
        self.output = bytearray()
        self.descriptor: int | None = None
        self.refused = 0
        self.retry = 0.0
        self.session: Session
        self.number = 0  #: of the request that is being done
        self.work: Steps[bytes | None] | None = None

    def receive(self) -> None:
        """Take what has come.

        Raises
        ------
        ProtocolError
            Descriptors came that may not.
        EOFError
            The client is gone.
        """
        try:
            octets, extras, flags, _ = self.socket.recvmsg(
                _RECEIVE, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
            )
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise EOFError from error
        descriptors = array.array("i")
        for level, kind, data in extras:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(data[: len(data) // 4 * 4])
        for descriptor in descriptors:
            if self.descriptor is None:
                self.descriptor = descriptor
            else:
                os.close(descriptor)
        if flags & socket.MSG_CTRUNC or len(descriptors) > 1:
            raise ProtocolError("one file descriptor may come at a time")
        if not octets:
            raise EOFError
        self.decoder.feed(octets)

    def take_descriptor(self) -> int | None:
        """The descriptor that has come."""
        descriptor, self.descriptor = self.descriptor, None
        return descriptor

    def flush(self) -> None:
        """Send what waits to be sent, as far as the client takes it."""
        try:
            while self.output:
                sent = self.socket.send(self.output, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                del self.output[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise EOFError from error

    def close(self) -> None:
        """Let go of the socket."""
        self.socket.close()
        if (descriptor := self.take_descriptor()) is not None:
            os.close(descriptor)


class Manager(Closing):
    """Serves clients at a Unix socket, until it is closed.

    Each has a seat, and with it an equal part of the device that no other can take; the seat is
    given to another when all that its client had is revoked. In each turn each client has one
    request begun, or a slice of a long one done, so that none waits for another's many or large
    ones.

    Parameters
    ----------
    context
        The device, which is the manager's; the caller closes it after the manager.
    path
        Of the socket.
    policy
        Who may connect, and what each may have.
    audit
        Where decisions are logged.
    """

    def __init__(self, context: Context, path: Path | str, policy: Policy, audit: Audit) -> None:
        self.context, self.path, self.policy = context, Path(path), policy
        self._audit = audit
        self.limits = policy.limits.within(context.capabilities, policy.clients)
        _raise_descriptors(_DESCRIPTORS + policy.clients * (2 + self.limits.memories))
        pages = self.limits.pages or 0
        self._slots = [
            Arena(seat * pages, pages, "slots of this client's page table")
            for seat in range(policy.clients)
        ]
        self._seats = list(range(policy.clients))
        self.connections: dict[int, Connection] = {}
        self.leaving: list[Connection] = []
        self._stopping = False
        self._listener = _listen(self.path, policy)
        self._wake, self._woken = socket.socketpair()
        status = self.path.stat()
        self._identity = status.st_dev, status.st_ino

    # -- the loop ---------------------------------------------------------------------------------

    def serve(self) -> None:
        """Serve until :meth:`stop`."""
        while not self._stopping:
            self.turn(RETRY)

    def stop(self) -> None:
        """End :meth:`serve`; from another thread, or from a signal's handler."""
        self._stopping = True
        with suppress(OSError):
            self._wake.send(b"\0", socket.MSG_DONTWAIT)

    def turn(self, timeout: float = 0.0) -> None:
        """Do what there is to do, after so many seconds at the most."""
        receiving = any(each.session.receiving for each in self.connections.values())
        waiting = any(each.session.waits for each in self.connections.values())
        asked = any(self._asked())  # or has one that is being done
        busy = asked or any(each.retry <= time.monotonic() for each in self.leaving)
        ready = self._select(0 if busy or receiving else INTERVAL if waiting else timeout)
        if self._listener.fileno() in ready:
            self._accept()
        if self._woken.fileno() in ready:
            self._woken.recv(64)
        if receiving:
            self.context.transport.wait(0 if busy or ready else INTERVAL)
            self.context.events()
        for connection in list(self.connections.values()):
            self._tend(connection, connection.socket.fileno() in ready)
        for connection in list(self.connections.values()):
            self._answer_waits(connection)
        self._remove_some()
        self._audit.expire()

    def _asked(self) -> Iterator[bool]:
        """Of each client that takes its answers: whether there is a request to be done."""
        for each in self.connections.values():
            yield not each.output and (each.work is not None or each.decoder.whole)

    def _select(self, timeout: float) -> set[int]:
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        for fileno, each in self.connections.items():
            if each.output:
                # No more requests until it has taken the answers.
                poller.register(fileno, select.POLLOUT)
            elif each.work is None and not each.decoder.whole:
                poller.register(fileno, select.POLLIN)
        return {fileno for fileno, _ in poller.poll(timeout * 1000)}

    # -- clients ----------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        pid, uid, gid = _PEER.unpack(
            client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        )
        everyone = [*self.connections.values(), *self.leaving]
        refusal = None
        if not self.policy.admits(uid, gid):
            refusal = f"user {uid} may not use this device: ask who runs the manager"
        elif sum(each.uid == uid for each in everyone) >= self.policy.most_of_user:
            refusal = f"user {uid} has {self.policy.most_of_user} connections already: close one"
        elif not self._seats:
            refusal = f"all {self.policy.clients} places of the manager are taken: try again later"
        if refusal is not None:
            self._audit.write("refuse", uid, pid, reason=refusal)
            body = protocol.encode_error(ResourceExhausted(refusal))
            with suppress(OSError):
                client.send(protocol.frame(Kind.ERROR, 0, body), socket.MSG_DONTWAIT)
            client.close()
            return
        seat = self._seats.pop(0)
        connection = Connection(client, uid, pid, seat)

        def log(event: str, **details: str | int) -> None:
            self._audit.write(event, uid, pid, **details)

        connection.session = Session(self.context, Share(self.limits), self._slots[seat], log)
        self.connections[client.fileno()] = connection
        log("connect", gid=gid)

    def _tend(self, connection: Connection, ready: bool) -> None:
        """Does a slice of a client's request, if it has one and took the answers of before."""
        try:
            if connection.output:
                connection.flush()
                return
            if connection.work is None:
                if ready and not connection.decoder.whole:
                    connection.receive()
                if (taken := connection.decoder.take()) is not None:
                    self._begin(connection, *taken)
            if connection.work is not None:
                self._go_on(connection, connection.work)
            if connection.descriptor is not None and not connection.decoder:
                raise ProtocolError("a file descriptor must come with MEMORY")
            connection.flush()
        except ProtocolError as error:
            self._refuse(connection, error)
            # It may be read or not: the connection ends.
            connection.output += protocol.frame(Kind.ERROR, 0, protocol.encode_error(error))
            with suppress(EOFError):
                connection.flush()
            self._leave(connection, f"protocol: {error}")
        except EOFError:
            self._leave(connection, "closed by the client")

    def _begin(self, connection: Connection, kind: int, number: int, body: bytes) -> None:
        if not number:
            raise ProtocolError("a request's number must not be 0, which is of the connection")
        request = protocol.decode(kind, body)
        descriptor = None
        if isinstance(request, protocol.Memory) and connection.session.greeted:
            descriptor = connection.take_descriptor()
        connection.number = number
        connection.work = connection.session.request(number, request, descriptor)

    def _go_on(self, connection: Connection, work: Steps[bytes | None]) -> None:
        """Does a slice of a client's request, and answers if it is done then."""
        end = time.perf_counter() + SLICE
        answer: bytes | None
        try:
            while True:
                next(work)
                if time.perf_counter() >= end:
                    return
        except StopIteration as done:
            kind, answer = Kind.ANSWER, done.value
        except (ProtocolError, TransportError):
            raise
        except RnicError as error:
            self._refuse(connection, error)
            kind, answer = Kind.ERROR, protocol.encode_error(error)
        connection.work = None
        if answer is not None:
            connection.output += protocol.frame(kind, connection.number, answer)

    def _refuse(self, connection: Connection, error: RnicError) -> None:
        connection.refused += 1
        if connection.refused <= REFUSALS:
            reason = f"{type(error).__name__}: {error}"
            self._audit.write("refuse", connection.uid, connection.pid, reason=reason)

    def _answer_waits(self, connection: Connection) -> None:
        try:
            for number, body in connection.session.answers():
                connection.output += protocol.frame(Kind.ANSWER, number, body)
            connection.flush()
        except EOFError:
            self._leave(connection, "closed by the client")

    # -- what a client leaves ---------------------------------------------------------------------

    def _leave(self, connection: Connection, reason: str) -> None:
        """A client is gone: nothing comes in for it any more, and what it had is revoked."""
        del self.connections[connection.socket.fileno()]
        connection.close()
        self._audit.write(
            "disconnect", connection.uid, connection.pid, reason=reason, refused=connection.refused
        )
        self.leaving.append(connection)
        if connection.work is not None:
            connection.work.close()
        self._try(connection, connection.session.stop)
        connection.work = connection.session.removing()

    def _remove_some(self) -> None:
        """Does a slice of the removal of what a client has left."""
        for connection in self.leaving:
            if connection.retry <= time.monotonic():
                if self._try(connection, partial(self._remove, connection)):
                    self.leaving.remove(connection)
                    self._seats.append(connection.seat)
                return

    def _remove(self, connection: Connection) -> bool:
        end = time.perf_counter() + SLICE
        assert connection.work is not None
        for _ in connection.work:
            if time.perf_counter() >= end:
                return False
        return True

    def _try(self, connection: Connection, step: Callable[[], bool | None]) -> bool:
        try:
            return bool(step())
        except TransportError:
            raise
        except RnicTimeout as error:
            # The device may still write: nothing of this is given to anybody.
            self._refuse(connection, error)
            connection.retry = time.monotonic() + RETRY
            connection.work = connection.session.removing()
            return False

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Disconnect the clients, and revoke all they had; the second time does nothing."""
        if self._listener.fileno() < 0:
            return
        self._listener.close()
        with suppress(OSError):
            status = self.path.stat()
            # Another manager's by now, perhaps.
            if (status.st_dev, status.st_ino) == self._identity:
                self.path.unlink()
        # With a device that is gone nothing can be revoked: closing the context tells of it.
        for connection in list(self.connections.values()):
            with suppress(RnicError):
                self._leave(connection, "the manager ends")
        with suppress(RnicError):
            while any(each.retry <= time.monotonic() for each in self.leaving):
                self._remove_some()
        self._audit.finish()
        self._wake.close()
        self._woken.close()


def _raise_descriptors(count: int) -> None:
    """Let this process have so many file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise InvalidRequest(
            f"the clients may need {count} file descriptors, and this process may have {hard}:"
            " give fewer memories to each, or raise ulimit -n"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _listen(path: Path, policy: Policy) -> socket.socket:
    """A socket that those may connect to who are admitted; the kernel tells who they are."""
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise InvalidRequest(f"{path} is there and is no socket: give another path")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _answers(path):
            raise InvalidRequest(f"a manager serves {path} already: end it, or give another path")
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        if policy.users - {os.geteuid()}:
            path.chmod(0o666)
        elif policy.group is not None:
            os.chown(path, -1, policy.group)
            path.chmod(0o660)
        listener.listen(64)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise InvalidRequest(f"{path} cannot be served: {error.strerror or error}") from error
    except BaseException:
        listener.close()
        raise
    return listener


def _answers(path: Path) -> bool:
    """Whether somebody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def group_number(name: str) -> int:
    """The number of a group."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise InvalidRequest(f"there is no group {name!r}") from None


def user_number(name: str) -> int:
    """The number of a user."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise InvalidRequest(f"there is no user {name!r}") from None
