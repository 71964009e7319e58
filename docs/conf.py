"""Sphinx: `tox run -e docs`. The pages are plain Markdown, which a code forge shows as well."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

project = "django-idempotency"
author = "the django-idempotency authors"
project_copyright = author
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser"]
myst_heading_anchors = 3
nitpicky = True
html_theme = "furo"
html_title = f"{project} {release}"
exclude_patterns = ["_build"]
pygments_style = "default"


def adapt(app, docname, content):
    """What a code forge shows by itself and Sphinx does not."""
    # Files beside this folder, such as the README, are offered as they are.
    content[0] = content[0].replace("](../", "](path:../")
    if docname == "index":
        content[0] += "".join(toctrees(content[0]))


def toctrees(index):
    """Each part of index.md whose entries begin with a page is a part of the navigation: the list is kept once."""
    for part in re.split(r"(?m)^## ", index)[1:]:
        pages = "\n".join(re.findall(r"(?m)^\* \[[^]]*\]\(([\w-]+)\.md\)", part))
        if pages:
            yield f"\n```{{toctree}}\n:hidden:\n:caption: {part.splitlines()[0]}\n\n{pages}\n```\n"


def setup(app):
    app.connect("source-read", adapt)
