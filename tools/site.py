"""Gather the pages of the site in build/pages: those of docs/ and some others, with links that hold."""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "build" / "pages"

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


def main() -> None:
    """Write the pages anew."""
    shutil.rmtree(TARGET, ignore_errors=True)
    # The decisions are for those who change the code; they read them in the repository.
    shutil.copytree(ROOT / "docs", TARGET, ignore=shutil.ignore_patterns("decisions"))
    for source, name in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        (TARGET / name).write_text(from_above(text, Path(source).parent), encoding="utf-8")
    for page in TARGET.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        page.write_text(to_above(text, len(page.relative_to(TARGET).parts) - 1), encoding="utf-8")


def from_above(text: str, folder: Path) -> str:
    """Rewrite the links of a page outside of docs/ for the top folder of the site."""

    def target(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        if "://" in path or not path or path.endswith("results/README.md"):
            return match[0]  # the other is for `to_above`
        place = (ROOT / folder / path).resolve().relative_to(ROOT).as_posix()
        place = PAGES.get(place, place.removeprefix("docs/"))
        return f"]({place}{anchor})"

    return re.sub(r"\]\(([^)#]*)(#[^)]*)?\)", target, text)


def to_above(text: str, depth: int) -> str:
    """Let links of a page, so many folders down, lead to the pages that lie outside of docs/."""
    text = IN_THE_REPOSITORY.sub(lambda m: f"{m[1]} (`{PLACES[m[2]]}` of the repository)", text)
    for source, name in PAGES.items():
        text = text.replace(f"]({'../' * (depth + 1)}{source}", f"]({'../' * depth}{name}")
    return text


if __name__ == "__main__":
    main()
