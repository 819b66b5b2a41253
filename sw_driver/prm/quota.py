"""What each client may have of the device: shares that all of them can use up at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from ..base.errors import InvalidRequest, ResourceExhausted
from ..verbs.context import Capabilities

#: What each is, and how a client gets some back.
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
#: Of the device: what the clients' shares together must fit in.
_OF_DEVICE = ("stags", "streams", "buffers", "pages")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one client may have at a time. None is an equal share of what the device has.

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
        Of regions, and of receive buffers outside of them.
    completions
        That all its completion queues together hold.
    domains, queues
        Protection domains; completion queues.
    memory, memories
        Octets of memory that it has passed; in how many pieces.
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
        """The same without None, for so many clients of a device.

        Raises
        ------
        InvalidRequest
            They cannot all have so much at once.
        """
        shares = {}
        for name in _OF_DEVICE:
            there, asked = getattr(capabilities, name), getattr(self, name)
            if (share := there // clients if asked is None else asked) * clients > there:
                raise InvalidRequest(
                    f"{clients} clients with {asked} {_TEXT[name][0]} each are too many for the"
                    f" device's {there}: give less to each, or have fewer clients"
                )
            if not share:
                raise InvalidRequest(
                    f"the device's {there} {_TEXT[name][0]} do not go round {clients} clients:"
                    " have fewer"
                )
            shares[name] = share
        return replace(self, **shares)


def limits_of(texts: Iterable[str]) -> Limits:
    """Limits as NAME=NUMBER says them; what is not named is as it is without."""
    found = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in _TEXT or not (number.isascii() and number.isdigit()):
            raise InvalidRequest(
                f"a share must be NAME=NUMBER with a name of {', '.join(_TEXT)}, not {text!r}"
            )
        found[name] = int(number)
    return Limits(**found)


class Share:
    """What a client has used of its limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits: dict[str, int] = asdict(limits)
        self.used: Counter[str] = Counter()

    def limit(self, name: str) -> int:
        """What it may have."""
        return self._limits[name]

    def take(self, **amounts: int) -> None:
        """Use so much more: all of it, or none."""
        for name, amount in amounts.items():
            if self.used[name] + amount > self._limits[name]:
                what, remedy = _TEXT[name]
                raise ResourceExhausted(
                    f"{amount} more would be over this client's share of {self._limits[name]}"
                    f" {what} ({self.used[name]} are in use): {remedy}"
                )
        self.used.update(amounts)

    def give(self, **amounts: int) -> None:
        """Give so much back."""
        self.used.subtract(amounts)
