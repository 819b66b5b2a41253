"""Builds the site into ``docs/_build/html``, and checks the links between its pages.

``python3 run.py docs`` calls this. A warning of Sphinx is an error. Links to other sites are not
fetched.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent


class Page(HTMLParser):
    """Collects the links of a page and the anchors that others can link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name == "id" or (tag, name) == ("a", "name")):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.links.append(value)


def broken_links(site: Path) -> Iterator[str]:
    """Yields a sentence for each link of a page under ``site`` that leads nowhere in it."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            where = path.relative_to(site)
            if not target.is_file():
                yield f"{where}: there is no file for the link {link}"
            elif parts.fragment and target in pages:
                if unquote(parts.fragment) not in pages[target].anchors:
                    yield f"{where}: there is no anchor for the link {link}"


def main(out: Path = HERE / "_build" / "html") -> int:
    """Builds the site and returns an exit code: 0, or 1 after a warning or for a broken link."""
    from sphinx.cmd.build import build_main

    # Pages of an earlier build that are no more must not count as targets of links.
    shutil.rmtree(out, ignore_errors=True)
    options = ["-q", "-W", "--keep-going", "-j", "auto", "-b", "html"]
    cache = out.with_name("cache")
    if build_main([*options, "-d", str(cache), str(HERE), str(out)]):
        return 1
    broken = list(broken_links(out))
    for sentence in broken:
        print(sentence, file=sys.stderr)
    if broken:
        return 1
    print(f"the site is in {out}: open {out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
