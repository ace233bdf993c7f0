"""README.md as a package index shows it, where a relative link leads nowhere. Pure."""

import re

_LINK = re.compile(r"\[((?:[^][]|`[^`]*`)*)\]\((?![a-z]+:|#)([^)\s]+)\)")
_SOURCE = re.compile(r'\b(src|srcset)="(?![a-z]+:)([^"]+)"')
_PICTURE = re.compile(r"<picture>.*?</picture>\n*", re.DOTALL)


def render_pypi_page(readme: str, home: str) -> str:
    """Links and pictures of the repository at `home`; without one, links become their text and pictures go."""
    if not home:
        return _LINK.sub(r"\1", _PICTURE.sub("", readme))
    text = _LINK.sub(rf"[\1]({home}/blob/HEAD/\2)", readme)
    return _SOURCE.sub(rf'\1="{home}/raw/HEAD/\2"', text)


def render_urls(home: str) -> dict[str, str]:
    """Of the project's page; none where it is not known."""
    pages = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}
    found = {name: f"{home}/blob/HEAD/{page}" for name, page in pages.items()}
    return {"Source": home, "Issues": f"{home}/issues", **found} if home else {}
