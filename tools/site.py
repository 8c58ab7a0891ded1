"""Hooks of MkDocs: pages at the top of the tree become pages of the site, with links that hold there."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent

PAGES = {
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "bench/README.md": "bench.md",
}
"""Each page outside of docs/, and its name in the site."""

IN_THE_REPOSITORY = re.compile(r"\[([^\]]+)\]\((?:\.\./)*(?:bench/)?((?:results|decisions)/README\.md)\)")
"""A link to a page that the site does not have."""

PLACES = {"results/README.md": "bench/results", "decisions/README.md": "docs/decisions"}
"""Where such a page is."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside of docs/."""
    for source, name in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=relinked(text, Path(source).parent)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links of the pages in docs/ lead to the pages that lie outside."""
    markdown = IN_THE_REPOSITORY.sub(lambda m: f"{m[1]} (`{PLACES[m[2]]}` of the repository)", markdown)
    depth = page.file.src_uri.count("/")
    for source, name in PAGES.items():
        markdown = markdown.replace(f"]({'../' * (depth + 1)}{source}", f"]({'../' * depth}{name}")
    return markdown


def relinked(text: str, folder: Path) -> str:
    """Rewrite the links of a page outside of docs/ for the top folder of the site."""

    def target(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        if "://" in path or not path or path.endswith("results/README.md"):
            return match[0]  # the other is for `on_page_markdown`
        place = (ROOT / folder / path).resolve().relative_to(ROOT).as_posix()
        place = PAGES.get(place, place.removeprefix("docs/"))
        return f"]({place}{anchor})"

    return re.sub(r"\]\(([^)#]*)(#[^)]*)?\)", target, text)
