"""What the site does beyond Markdown: outputs of the tutorial, links out of docs, generated pages."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Pages whose snippets are run when the site is built: what they print and draw stands below them.
EXECUTED = {"tutorial.md"}
# Pages that a command writes; in the menu and linked to once they are there.
GENERATED = {"results.md": ("Results", {"What came of it here": "results.md"})}

_SNIPPET = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)[^)]*\)")


def on_config(config: Any) -> Any:
    """Adds the generated pages that are there to the menu."""
    for page, (section, entry) in GENERATED.items():
        if (ROOT / "docs" / page).exists():
            next(part[section] for part in config.nav if section in part).insert(0, entry)
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with its outputs, and without links that a site cannot follow."""
    if page.file.src_uri in EXECUTED:
        markdown = run(markdown)
    return _LINK.sub(_followed, markdown)


def _followed(link: re.Match[str]) -> str:
    """A link to a file of the project outside docs, or to a page not generated yet, is its text alone."""
    target = ROOT / "docs" / link[2]
    is_source = link[2].startswith("../") and target.exists()
    is_missing = link[2] in GENERATED and not target.exists()
    return link[1] if is_source or is_missing else link[0]


def run(markdown: str) -> str:
    """The page with what each snippet prints, and the figures it saves as SVG, below it.

    Snippets see the names of those before them. An error ends the build.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return _SNIPPET.sub(lambda snippet: snippet[0] + _outcome(snippet[1], namespace), markdown)


def _outcome(source: str, namespace: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "a snippet of the site", "exec"), namespace)
    text = f'\n```text title="prints"\n{printed.getvalue().rstrip()}\n```\n' if printed.getvalue() else ""
    for name in sorted(name for name in os.listdir() if name.endswith(".svg")):
        drawing = base64.b64encode(Path(name).read_bytes()).decode()
        text += f'\n<img alt="{name}" src="data:image/svg+xml;base64,{drawing}">\n'
        Path(name).unlink()
    return text
