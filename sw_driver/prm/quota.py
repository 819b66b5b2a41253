"""The share of the device that each client may use. The shares of all clients together fit
the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from ..base.errors import InvalidRequest, ResourceExhausted
from ..verbs.context import Capabilities

#: For each limit: the name of the counted objects, and how a client frees some.
_TEXT = {
    "stags": ("Steering Tags", "revoke a region"),
    "regions": ("regions", "revoke one"),
    "octets": ("octets of regions and receive buffers", "revoke a region"),
    "buffers": ("posted receive buffers", "take completions first"),
    "streams": ("streams", "close one"),
    "pages": ("slots of the page table", "revoke a region"),
    "completions": ("completions of its queues", "close a completion queue"),
    "domains": ("protection domains", "close one"),
    "queues": ("completion queues", "close one"),
    "memory": ("octets of memory passed", "give some back"),
    "memories": ("pieces of memory passed", "give one back"),
}
#: The limits whose sum over all clients must fit the device.
_OF_DEVICE = ("stags", "streams", "buffers", "pages")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one client's use of the device. None means an equal share of the device.

    Parameters
    ----------
    stags, streams
        Steering Tags; DDP Streams.
    buffers
        Posted receive buffers.
    pages
        Slots of the page table.
    regions
        Regions, with Steering Tags or without.
    octets
        Octets of regions, and of receive buffers outside of regions.
    completions
        Completions that all its completion queues together can hold.
    domains, queues
        Protection domains; completion queues.
    memory, memories
        Octets of memory that the client has passed; in how many pieces.
    """

    stags: int | None = None
    streams: int | None = None
    buffers: int | None = None
    pages: int | None = None
    regions: int = 1024
    octets: int = 64 << 20
    completions: int = 4096
    domains: int = 16
    queues: int = 16
    memory: int = 64 << 20
    memories: int = 64

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidRequest(f"{name} must be at least 1, not {value!r}")

    def within(self, capabilities: Capabilities, clients: int) -> Limits:
        """Returns these limits with each None replaced, for this many clients of a device.

        Raises
        ------
        InvalidRequest
            The device is too small for all clients together.
        """
        shares = {}
        for name in _OF_DEVICE:
            there, asked = getattr(capabilities, name), getattr(self, name)
            if (share := there // clients if asked is None else asked) * clients > there:
                raise InvalidRequest(
                    f"{clients} clients with {asked} {_TEXT[name][0]} each need more than the"
                    f" device's {there}: give less to each, or allow fewer clients"
                )
            if not share:
                raise InvalidRequest(
                    f"the device's {there} {_TEXT[name][0]} are too few for {clients} clients:"
                    " allow fewer clients"
                )
            shares[name] = share
        return replace(self, **shares)


def limits_of(texts: Iterable[str]) -> Limits:
    """Returns limits given as texts NAME=NUMBER; the others keep their defaults."""
    found = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if equals and name in _TEXT and not (number.isascii() and number.isdigit()):
            raise InvalidRequest(f"the share of {name} must be a number, not {number!r}")
        if not equals or name not in _TEXT:
            raise InvalidRequest(
                "a share must be NAME=NUMBER, where NAME is one of"
                f" {', '.join(_TEXT)}, not {text!r}"
            )
        found[name] = int(number)
    return Limits(**found)


class Share:
    """Counts how much of its limits a client uses."""

    def __init__(self, limits: Limits) -> None:
        self._limits: dict[str, int] = asdict(limits)
        self.used: Counter[str] = Counter()

    def limit(self, name: str) -> int:
        """Returns a limit."""
        return self._limits[name]

    def take(self, **amounts: int) -> None:
        """Counts further use: all of the amounts, or none if one is over its limit."""
        for name, amount in amounts.items():
            if self.used[name] + amount > self._limits[name]:
                what, remedy = _TEXT[name]
                raise ResourceExhausted(
                    f"{amount} more would exceed this client's share of {self._limits[name]}"
                    f" {what} ({self.used[name]} are in use): {remedy}"
                )
        self.used.update(amounts)

    def give(self, **amounts: int) -> None:
        """Counts the end of a use."""
        self.used.subtract(amounts)
