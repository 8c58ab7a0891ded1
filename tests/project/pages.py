"""What the pages for users have in them: commands, how they are used, and samples of code."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from tests.support import ROOT

PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "bench/README.md")]
PAGES += sorted((ROOT / "docs").glob("**/*.md"))

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_COMMAND = re.compile(r"(?:(?:logclient|make|pip|git)(?: |$)|python -m |source <|spark-submit -)")
# The name of a command or target, and no more: that is talk about it.
_NAME = re.compile(r"(?:logclient|make|pip|python)(?: -m [\w.]+| [a-z-]+)?")
_PLACEHOLDER = re.compile(r"\b(?:URL|TABLE|TARGET)\b|…|<\w+>|\w\|\w|\[--")


class Text(NamedTuple):
    """A piece of a page, as it is written there."""

    page: str  # from the top of the tree
    text: str
    language: str = ""

    def __str__(self) -> str:
        return f"{Path(self.page).name}: {self.text.splitlines()[0]}"


class Found(NamedTuple):
    commands: list[Text]  #: to be run as they are
    usages: list[Text]  #: with placeholders
    names: list[Text]  #: commands and targets that are only named
    samples: list[Text]  #: of code, with a language


def read(page: Path) -> Found:
    """Take a page apart. What is in a shell's comment is no part of a command."""
    name = str(page.relative_to(ROOT))
    found = Found([], [], [], [])

    def take(line: str, inline: bool = False) -> None:
        command = re.split(r"\s+#", line)[0].strip()
        if not _COMMAND.match(command):
            return
        if _PLACEHOLDER.search(command):
            found.usages.append(Text(name, command))
        elif inline and _NAME.fullmatch(command):
            found.names.append(Text(name, command))
        else:
            found.commands.append(Text(name, command))

    def lines(block: str) -> str:
        for line in re.sub(r" \\\n +", " ", block).splitlines():
            take(line)
        return ""

    def fenced(match: re.Match[str]) -> str:
        if not match[1]:
            return lines(match[2])
        found.samples.append(Text(name, match[2], match[1]))
        return ""

    # Inline commands come last, whatever their place: no page has an order that mixes them with blocks.
    rest = _FENCED.sub(fenced, page.read_text(encoding="utf-8"))
    rest = _INDENTED.sub(lambda match: lines(match[0]), rest)
    for text in _INLINE.findall(rest):
        take(text, inline=True)
    return found


FOUND = Found(*([*chain(*lists)] for lists in zip(*map(read, PAGES), strict=True)))
"""Of all pages, in their order."""
