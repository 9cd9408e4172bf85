"""The documentation holds together: every link leads somewhere, every page can be reached from the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def _anchor(heading: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Files and headings."""
    for link in _links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in map(_anchor, headings), link


def test_every_page_is_in_the_index() -> None:
    """Directly or by its folder."""
    index = ROOT / "docs" / "README.md"
    told = {(index.parent / link.partition("#")[0]).resolve() for link in _links(index)}
    pages = {p for p in (ROOT / "docs").rglob("*.md") if p != index}
    assert [str(p) for p in pages if p not in told and p.parent not in told] == []
