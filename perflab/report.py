"""Notebooks -> `site/`: pages that open from disk, an index of cards, and where their numbers come from.

A notebook runs again only when its cells, the package, the kernels or the data changed. It runs on a copy: the
notebook in the tree stays as it is (`rerun` is what saves one in place).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perflab import notebooks
from perflab.errors import unknown
from perflab.records import RecordFile

PACKAGE = Path(__file__).parent
TEMPLATES = PACKAGE / "report_templates"
SETTINGS = ("PERFLAB_GPU", "PERFLAB_LIVE")  # the environment that changes what a notebook shows
HASH_DIGITS = 12
SHOWN_COMMITS = 3


@dataclass(frozen=True)
class Page:
    """One notebook as the index shows it.

    title: its first heading; headline: the first line that its cell tagged `headline` says, '' without one;
    picture: its first PNG, b'' without one.
    """

    name: str
    title: str
    headline: str
    picture: bytes


def build(root: Path, *, force: bool = False) -> Path:
    """Bring `root/site` up to date with `root/notebooks`; the path of its index.html.

    Prints a line a notebook. `force` runs every notebook again. PerflabError when a cell fails: the pages of the
    notebooks that ran are kept for the next call, the site is not rewritten.
    """
    root = Path(root).resolve()
    site, sources = root / "site", sorted((root / "notebooks").glob("*.ipynb"))
    copies = site / ".executed"
    copies.mkdir(parents=True, exist_ok=True)
    shared = _shared_digest(root)
    wanted = {source: notebook_digest(source, shared) for source in sources}
    _run_stale(wanted, copies, force)
    index, stamp = site / "index.html", copies / "site.stamp"
    whole = "\n".join([*wanted.values(), _digest(TEMPLATES, "*")])
    written = [index, *(site / f"{source.stem}.html" for source in sources)]
    if not force and _is_fresh(stamp, whole) and all(page.exists() for page in written):
        return index
    pages = {source.stem: notebooks.read(copies / source.name) for source in sources}
    for path in [*site.glob("*.html"), *site.glob("*.png"), *copies.iterdir()]:
        if path.stem not in pages:
            path.unlink()
    _render(root, pages)
    stamp.write_text(whole)
    return index


def rerun(root: Path, names: Sequence[str] | None = None) -> list[Path]:
    """Run notebooks and save them in place, byte-stable; the paths. `names` are file names with or without .ipynb,
    none = all of `root/notebooks`. PerflabError for an unknown name or a failing cell (that file stays as it was)."""
    known = {path.stem: path for path in sorted((Path(root).resolve() / "notebooks").glob("*.ipynb"))}
    asked = [Path(name).name.removesuffix(".ipynb") for name in names or known]
    for name in asked:
        if name not in known:
            raise unknown("notebook", name, known)

    def done(path: Path, notebook: Any, seconds: float) -> None:
        notebooks.save(notebook, path)
        print(f"{path.stem}: saved, ran in {seconds:.1f} s", flush=True)

    paths = [known[name] for name in dict.fromkeys(asked)]
    notebooks.run(paths, done)
    return paths


def _run_stale(wanted: Mapping[Path, str], copies: Path, force: bool) -> None:
    """Run those whose inputs changed since their executed copy was made; the stamp beside a copy is their hash."""

    def stamp(source: Path) -> Path:
        return copies / f"{source.stem}.stamp"

    def done(source: Path, notebook: Any, seconds: float) -> None:
        notebooks.save(notebook, copies / source.name)
        stamp(source).write_text(wanted[source])
        print(f"{source.stem}: ran in {seconds:.1f} s", flush=True)

    stale = [source for source, digest in wanted.items() if force or not _is_fresh(stamp(source), digest)]
    for source in wanted:
        print(f"{source.stem}: {'to run' if source in stale else 'unchanged'}", flush=True)
    notebooks.run(stale, done)


def _is_fresh(stamp: Path, wanted: str) -> bool:
    return stamp.exists() and stamp.read_text() == wanted


def notebook_digest(source: Path, shared: str) -> str:
    """A hash of what makes a notebook's outputs: its cells' kind, tags and source (not its saved outputs), and
    `shared`, the hash of everything that all notebooks use."""
    cells = notebooks.cells_of(source)
    said = [[cell["cell_type"], notebooks.tags(cell), notebooks.joined(cell["source"])] for cell in cells]
    return hashlib.sha256(json.dumps([shared, said]).encode()).hexdigest()


def _shared_digest(root: Path) -> str:
    """A hash of the package's code and facts, the kernels, the data and the settings: what any notebook may use."""
    settings = [f"{name}={os.environ.get(name, '')}" for name in SETTINGS]
    return "\n".join([_digest(PACKAGE, "**/*.py", "**/*.csv"), _digest(root, "kernels/**/*", "data/**/*"), *settings])


def _digest(folder: Path, *patterns: str) -> str:
    """A hash of names and bytes of the files in `folder`, without hidden ones, locks and what Python compiles."""
    total = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if not re.search(r"(^|/)(\.|__pycache__/)|\.lock$", name):
            total.update(f"\0{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def evidence(root: Path) -> list[tuple[str, str]]:
    """Name and value of each line of the footer: what the records rest on (oldest first), whatever this machine is."""
    records = [record for path in sorted((root / "data" / "records").glob("*/*.jsonl")) for record in RecordFile(path).read()]
    records.sort(key=lambda record: record.utc)
    data = _digest(root, "data/records/*/*.jsonl")[:HASH_DIGITS]
    if not records:
        return [("GPU", "no measurements recorded"), ("data", data)]

    def all_of(key: str) -> list[str]:
        return list(dict.fromkeys(str(record.provenance.get(key) or "not recorded") for record in records))

    commits = all_of("commit")
    more = f" and {len(commits) - SHOWN_COMMITS} earlier" if len(commits) > SHOWN_COMMITS else ""
    return [
        ("GPU", ", ".join(dict.fromkeys(record.gpu["name"] for record in records))),
        ("driver", ", ".join(all_of("driver"))),
        ("commit", ", ".join(commit[:HASH_DIGITS] for commit in commits[-SHOWN_COMMITS:]) + more),
        ("data", f"{data} ({len(records):,} records)"),
    ]


def page_of(name: str, notebook: Any) -> Page:
    """The index card of an executed notebook."""
    cells = notebook["cells"]
    prose = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    heading = re.search(r"^#+ *(.+)", prose, re.MULTILINE)
    # A heading without the signs of Markdown.
    title = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", lambda match: match[1] or "", heading[1]).strip() if heading else name
    said = "\n".join(text for cell in cells if "headline" in notebooks.tags(cell) for text in notebooks.output_texts(cell))
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    picture = next((data["image/png"] for data in outputs if "image/png" in data), "")
    return Page(name, title, said.strip().split("\n")[0].strip(), base64.b64decode(picture))


def _render(root: Path, executed: Mapping[str, Any]) -> None:
    """Write all pages, their pictures and the index anew from the executed notebooks, by name."""
    from jinja2 import Environment, FileSystemLoader

    site, facts, exporter = root / "site", evidence(root), _exporter()
    pages = [page_of(name, notebook) for name, notebook in executed.items()]
    for page, before, after in zip(pages, [None, *pages], [*pages[1:], None], strict=False):
        notebook = executed[page.name]
        _link_pages(notebook, executed)
        about = {"title": page.title, "before": before, "after": after}
        resources = {"metadata": {"name": page.name, "path": str(root / "notebooks")}, "page": about, "facts": facts}
        body, _ = exporter.from_notebook_node(notebook, resources)
        (site / f"{page.name}.html").write_text(body, encoding="utf-8")
        if page.picture:
            (site / f"{page.name}.png").write_bytes(page.picture)
    cards = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True).get_template("cards.html.j2")
    (site / "index.html").write_text(cards.render(pages=pages, facts=facts), encoding="utf-8")


def _link_pages(notebook: Any, names: Collection[str]) -> None:
    """Let a link to another notebook lead to its page."""

    def to_page(match: re.Match[str]) -> str:
        return f"]({match[1]}.html" if match[1] in names else match[0]

    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = re.sub(r"\]\((?:\./)?([\w-]+)\.ipynb", to_page, cell["source"])


def _exporter() -> Any:
    """nbconvert with our page, all that it would load from elsewhere blanked, pictures inside the page."""
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    addresses = ("require_js_url", "jquery_url", "mathjax_url", "mermaid_js_url", "mermaid_layout_elk_js_url")
    blank = dict.fromkeys((*addresses, "widget_renderer_url", "jupyter_widgets_base_url"), "")
    return HTMLExporter(
        template_name="lab",
        template_file="page.html.j2",
        extra_template_paths=[str(TEMPLATES)],
        config=Config({"CSSHTMLHeaderPreprocessor": {"style": "default"}}),
        embed_images=True,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        **blank,
    )
