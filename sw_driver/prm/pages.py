"""The device's doorbell pages: each belongs to one client at a time, or to none."""

from __future__ import annotations

from collections.abc import Callable

from ...hdl.spec import regs
from ..base.errors import ResourceExhausted
from ..transports.transport import PageFile
from ..verbs.context import Context


class Page:
    """A doorbell page that a client has.

    Attributes
    ----------
    number
        Its number, from 1.
    file
        The file through which the client maps the page; None: the manager rings for the client.
    descriptor
        What :meth:`~..transports.transport.PageFile.lend` has returned; None without a file.
    """

    def __init__(
        self, number: int, file: PageFile | None, log: Callable[..., None], count: int
    ) -> None:
        self.number, self.file = number, file
        self.descriptor = None if file is None else file.lend()
        self._log, self._count = log, count

    def note(self, count: int) -> None:
        """Logs that the device has ignored doorbells, if its count of them is another one."""
        if ignored := (count - self._count) % (1 << 16):
            self._count = count
            self._log("ignored", page=self.number, doorbells=ignored)


class Pages:
    """Allots the doorbell pages.

    A page is free again when nothing in the device has it any more, and no process has it mapped.

    Parameters
    ----------
    context
        The device.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        files = context.transport.page_files
        self._free: list[tuple[int, PageFile | None]] = [
            (number, files[number - 1] if number <= len(files) else None)
            for number in range(1, regs.PAGES + 1)
        ]
        self.allotted: list[Page] = []
        self._leaving: list[Page] = []  # their clients have gone, but may have them mapped
        self._ignored = context.registers.read("DOORBELLS_IGNORED")

    @property
    def free(self) -> int:
        """The number of pages that a client can get."""
        self._settle()
        return len(self._free)

    @property
    def used(self) -> bool:
        """True if a client has a page, or one that has left may still have it mapped."""
        return bool(self.allotted or self._leaving)

    def allot(self, log: Callable[..., None]) -> Page:
        """Gives a client a page, if possible one that it can map; ``log`` takes an event and its
        details for the audit log.
        """
        self._settle()
        if not self._free:
            raise ResourceExhausted(
                f"all {regs.PAGES} doorbell pages of the device are taken: use CQ and Stream"
                " without one, or try again when another client has left"
            )
        number, file = self._free[0]
        page = Page(number, file, log, self._count(number))
        self._free.pop(0)
        self.allotted.append(page)
        return page

    def give_back(self, page: Page) -> None:
        """Takes a page back from its client, after its streams and queues are closed."""
        self.look()
        self.allotted.remove(page)
        self._leaving.append(page)

    def look(self) -> None:
        """Logs which clients have rung doorbells that the device has ignored since the last
        look.
        """
        count = self._context.registers.read("DOORBELLS_IGNORED")
        if count != self._ignored:
            self._ignored = count
            for page in self.allotted + self._leaving:
                page.note(self._count(page.number))

    def _settle(self) -> None:
        for page in list(self._leaving):
            if page.file is None or not page.file.lent:
                self._leaving.remove(page)
                self._free.append((page.number, page.file))
                self._free.sort(key=lambda each: (each[1] is None, each[0]))

    def _count(self, number: int) -> int:
        with self._context.lock:
            self._context.registers.write("DOORBELL_PAGE", number)
            return self._context.registers.read("PAGE_IGNORED")
