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
from collections import deque
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
from .pages import Pages
from .protocol import LONGEST_REQUEST, Decoder, Kind, ProtocolError
from .quota import Limits, Share
from .session import Passing, Seat, Session

#: Seconds between two polls of the sockets, while the device may have something for a client.
INTERVAL = 0.002
#: Seconds after which unfinished work of the device is tried again.
RETRY = 1.0
#: Seconds of work for one client before the others have their turn. If 16 clients ask for as much
#: as they can, the next one waits for 16 slices, and for 16 steps that began within a slice.
SLICE = 0.00025
#: How many refused requests of a connection are logged; the total is logged at its end.
REFUSALS = 16
_PEER = struct.Struct("3i")
_RECEIVE = 4096
#: How many descriptors the manager itself has open, besides those of clients.
_DESCRIPTORS = 96


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The rules: which users may connect, and how much each client may use.

    Parameters
    ----------
    users
        The numbers of the users who may connect.
    group
        The number of a group whose members may connect, too.
    clients
        How many clients share the device. A client that has gone counts until all its objects are
        revoked.
    per_user
        How many of these connections one user may have; None: half of them.
    limits
        The limits of each client.
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
        """The number of connections that one user may have."""
        return -(-self.clients // 2) if self.per_user is None else self.per_user

    def admits(self, uid: int, gid: int) -> bool:
        """Returns whether a user may connect."""
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
    """A client's socket, with the user and process at its other end."""

    def __init__(self, client: socket.socket, uid: int, pid: int, seat: int) -> None:
        self.socket, self.uid, self.pid, self.seat = client, uid, pid, seat
        self.decoder = Decoder(LONGEST_REQUEST)
        self.output = bytearray()
        self.descriptor: int | None = None
        self.passing: deque[int] = deque()  #: descriptors for the client, the oldest first
        self.refused = 0
        self.retry = 0.0
        self.session: Session
        self.number = 0  #: number of the request in progress
        self.work: Steps[bytes | Passing | None] | None = None

    def receive(self) -> None:
        """Reads the octets and the descriptor that have come.

        Raises
        ------
        ProtocolError
            More than one descriptor came.
        EOFError
            The client has gone.
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
        """Returns the descriptor that has come, or None, and forgets it."""
        descriptor, self.descriptor = self.descriptor, None
        return descriptor

    def flush(self) -> None:
        """Sends the octets of answers, as far as the client accepts them."""
        try:
            flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            while self.output:
                if self.passing:
                    sent = socket.send_fds(self.socket, [self.output], [self.passing[0]], flags)
                    os.close(self.passing.popleft())
                else:
                    sent = self.socket.send(self.output, flags)
                del self.output[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise EOFError from error

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()
        if (descriptor := self.take_descriptor()) is not None:
            os.close(descriptor)
        while self.passing:
            os.close(self.passing.popleft())


class Manager(Closing):
    """Serves clients at a Unix socket, until it is closed.

    Each client has a seat, and with it an equal part of the device that no other client can use.
    A client that asks for one has a doorbell page too, as long as there are any.
    The seat is free again once everything that its client had is revoked. In each turn the manager
    starts one request of each client, or does a slice of a long one, so that no client waits for
    another's many or large requests.

    Parameters
    ----------
    context
        The device, which the manager owns. The caller closes it after the manager.
    path
        The path of the socket.
    policy
        The rules for clients.
    audit
        The log of decisions.
    """

    def __init__(self, context: Context, path: Path | str, policy: Policy, audit: Audit) -> None:
        context.receiving("be shared by clients, which receive")
        self.context, self.path, self.policy = context, Path(path), policy
        self._audit = audit
        self.limits = policy.limits.within(context.capabilities, policy.clients)
        _raise_descriptors(_DESCRIPTORS + policy.clients * (2 + self.limits.memories))
        self._seats = list(range(policy.clients))
        self.pages, self._looked = Pages(context), 0.0
        self.connections: dict[int, Connection] = {}
        self.leaving: list[Connection] = []
        self._stopping = False
        self._listener = _listen(self.path, policy)
        pages = self.limits.pages or 0
        own = len(context.queues) // policy.clients
        self._places = [
            Seat(
                Arena(seat * pages, pages, "slots of this client's page table"),
                [context.queues.popleft() for _ in range(own)],
            )
            for seat in range(policy.clients)
        ]
        self._wake, self._woken = socket.socketpair()
        status = self.path.stat()
        self._identity = status.st_dev, status.st_ino

    # -- the loop ---------------------------------------------------------------------------------

    def serve(self) -> None:
        """Serves until :meth:`stop` is called."""
        while not self._stopping:
            self.turn(RETRY)

    def stop(self) -> None:
        """Ends :meth:`serve`. Another thread or a signal handler may call this."""
        self._stopping = True
        with suppress(OSError):
            self._wake.send(b"\0", socket.MSG_DONTWAIT)

    def turn(self, timeout: float = 0.0) -> None:
        """Does the work that is due, after waiting for at most ``timeout`` seconds."""
        receiving = any(each.session.receiving for each in self.connections.values())
        waiting = any(each.session.waits for each in self.connections.values())
        asked = any(self._asked())  # a request waits or is in progress
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
        if self.pages.used and self._looked <= time.monotonic():
            self.pages.look()
            self._looked = time.monotonic() + RETRY
        self._audit.expire()

    def _asked(self) -> Iterator[bool]:
        """Yields for each client that takes its answers whether a request waits or is in
        progress.
        """
        for each in self.connections.values():
            yield not each.output and (each.work is not None or each.decoder.whole)

    def _select(self, timeout: float) -> set[int]:
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        for fileno, each in self.connections.items():
            if each.output:
                # The client's further requests wait until it has taken its answers.
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

        connection.session = Session(
            self.context, Share(self.limits), self._places[seat], self.pages, log
        )
        self.connections[client.fileno()] = connection
        log("connect", gid=gid)

    def _tend(self, connection: Connection, ready: bool) -> None:
        """Does a slice of a client's request, if the client has one and took its earlier
        answers.
        """
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
            # Whether the client reads this or not, the connection ends.
            connection.output += protocol.frame(Kind.ERROR, 0, protocol.encode_error(error))
            with suppress(EOFError):
                connection.flush()
            self._leave(connection, f"protocol: {error}")
        except EOFError:
            self._leave(connection, "closed by the client")

    def _begin(self, connection: Connection, kind: int, number: int, body: bytes) -> None:
        if not number:
            raise ProtocolError("a request's number must not be 0, which stands for the connection")
        request = protocol.decode(kind, body)
        descriptor = None
        if isinstance(request, protocol.Memory) and connection.session.greeted:
            descriptor = connection.take_descriptor()
        connection.number = number
        connection.work = connection.session.request(number, request, descriptor)

    def _go_on(self, connection: Connection, work: Steps[bytes | Passing | None]) -> None:
        """Does a slice of a client's request, and answers if the request is done then."""
        end = time.perf_counter() + SLICE
        answer: bytes | Passing | None
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
        if isinstance(answer, Passing):
            kind = Kind.PASSED
            connection.passing.append(answer.descriptor)
            answer = answer.body
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

    # -- after a client has gone ------------------------------------------------------------------

    def _leave(self, connection: Connection, reason: str) -> None:
        """Stops a client's streams, and begins to revoke everything that the client had."""
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
        """Does a slice of the removal of a client that has gone."""
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
            # The device may still write: no part of this is given to another client.
            self._refuse(connection, error)
            connection.retry = time.monotonic() + RETRY
            connection.work = connection.session.removing()
            return False

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Disconnects the clients and revokes everything they had. A second call does nothing."""
        if self._listener.fileno() < 0:
            return
        self._listener.close()
        with suppress(OSError):
            status = self.path.stat()
            # The socket may be another manager's by now.
            if (status.st_dev, status.st_ino) == self._identity:
                self.path.unlink()
        # If the device is gone nothing can be revoked; closing the context reports that.
        for connection in list(self.connections.values()):
            with suppress(RnicError):
                self._leave(connection, "the manager ends")
        with suppress(RnicError):
            while any(each.retry <= time.monotonic() for each in self.leaving):
                self._remove_some()
        for place in self._places:
            self.context.queues.extend(place.queues)
        self._audit.finish()
        self._wake.close()
        self._woken.close()


def _raise_descriptors(count: int) -> None:
    """Raises this process's limit of file descriptors to ``count``, if it is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise InvalidRequest(
            f"the clients may need {count} file descriptors, but this process may have {hard}:"
            " give fewer memories to each, or raise ulimit -n"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _listen(path: Path, policy: Policy) -> socket.socket:
    """Returns a socket that admitted users may connect to; the kernel reports who connects."""
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise InvalidRequest(f"{path} exists and is not a socket: give another path")
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
    """Returns whether a process listens at a socket's path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def group_number(name: str) -> int:
    """Returns the number of a group."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise InvalidRequest(f"there is no group {name!r}") from None


def user_number(name: str) -> int:
    """Returns the number of a user."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise InvalidRequest(f"there is no user {name!r}") from None
