"""Notebooks -> `site/`: pages that open from disk, an index of cards, and where their numbers come from.

A notebook runs again only when its cells, the package, the kernels or the data changed. It runs on a copy: the
notebook in the tree stays as it is (`rerun` is what saves one in place). Nothing heavy is imported while all is fresh.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perflab import notebooks
from perflab.errors import unknown

PACKAGE = Path(__file__).parent
TEMPLATES = PACKAGE / "report_templates"
SETTINGS = ("PERFLAB_GPU", "PERFLAB_LIVE")  # the environment that changes what a notebook shows
HASH_DIGITS = 12
SHOWN_COMMITS = 3


@dataclass(frozen=True)
class Page:
    """One notebook as the index shows it.

    title: its first heading; headline: the first line that its cell tagged `headline` says, '' without one;
    picture: file name of its first PNG in `site/`, '' without one.
    """

    name: str
    title: str
    headline: str
    picture: str


@dataclass(frozen=True)
class Evidence:
    """What the recorded measurements rest on, for the footer: read from the records, not from this machine."""

    records: int
    gpus: tuple[str, ...]
    drivers: tuple[str, ...]
    commits: tuple[str, ...]
    data_hash: str

    def facts(self) -> list[tuple[str, str]]:
        """Name and value of each line of the footer."""
        if not self.records:
            return [("GPU", "no measurements recorded"), ("data", self.data_hash)]
        commits = [commit[:HASH_DIGITS] for commit in self.commits[-SHOWN_COMMITS:]]
        more = len(self.commits) - len(commits)
        return [
            ("GPU", ", ".join(self.gpus) or "unnamed"),
            ("driver", ", ".join(self.drivers) or "not recorded"),
            ("commit", (", ".join(commits) or "not recorded") + (f" and {more} earlier" if more else "")),
            ("data", f"{self.data_hash} ({self.records:,} records)"),
        ]


def build(root: Path, *, force: bool = False) -> Path:
    """Bring `root/site` up to date with `root/notebooks`; the path of its index.html.

    Prints a line a notebook. `force` runs every notebook again. PerflabError when a cell fails: the pages of the
    notebooks that ran are kept for the next call, the site is not rewritten.
    """
    root = Path(root).resolve()
    site, sources = root / "site", sorted((root / "notebooks").glob("*.ipynb"))
    _run_stale(root, sources, force)
    index, stamp = site / "index.html", site / ".executed" / "site.stamp"
    executed = [_executed(site, source) for source in sources]
    wanted = _digest(root, [*_record_files(root), *executed], extra=[_digest(TEMPLATES, _files(TEMPLATES))])
    written = [index, stamp, *(site / f"{source.stem}.html" for source in sources)]
    if not force and all(path.exists() for path in written) and stamp.read_text() == wanted:
        print(f"{_shown(index)}: nothing changed")
        return index
    _render(root, sources)
    stamp.write_text(wanted)
    print(f"{_shown(index)}: {len(sources)} pages")
    return index


def rerun(root: Path, names: Sequence[str] | None = None) -> list[Path]:
    """Run notebooks and save them in place, byte-stable; the paths. `names` are file names with or without .ipynb,
    none = all of `root/notebooks`. PerflabError for an unknown name or a failing cell (that file stays as it was)."""
    known = {path.stem: path for path in sorted((Path(root).resolve() / "notebooks").glob("*.ipynb"))}
    asked = [Path(name).name.removesuffix(".ipynb") for name in names] if names else list(known)
    for name in asked:
        if name not in known:
            raise unknown("notebook", name, known)

    def done(path: Path, notebook: Any, seconds: float) -> None:
        notebooks.save(notebook, path)
        print(f"{path.stem}: saved, ran in {seconds:.1f} s", flush=True)

    paths = [known[name] for name in dict.fromkeys(asked)]
    notebooks.run(paths, done)
    return paths


def _run_stale(root: Path, sources: Sequence[Path], force: bool) -> None:
    """Run those whose inputs changed since the executed copy under `site/.executed` was made."""
    site, shared = root / "site", _shared_digest(root)
    wanted = {source: notebook_digest(source, shared) for source in sources}
    stale = [source for source in sources if force or not _is_fresh(_executed(site, source), wanted[source])]
    for source in sources:
        print(f"{source.stem}: {'to run' if source in stale else 'unchanged'}", flush=True)

    def done(path: Path, notebook: Any, seconds: float) -> None:
        copy = _executed(site, path)
        notebooks.save(notebook, copy)
        copy.with_suffix(".stamp").write_text(wanted[path])
        print(f"{path.stem}: ran in {seconds:.1f} s", flush=True)

    (site / ".executed").mkdir(parents=True, exist_ok=True)
    notebooks.run(stale, done)


def _executed(site: Path, source: Path) -> Path:
    return site / ".executed" / source.name


def _is_fresh(copy: Path, wanted: str) -> bool:
    stamp = copy.with_suffix(".stamp")
    return copy.exists() and stamp.exists() and stamp.read_text() == wanted


def notebook_digest(source: Path, shared: str) -> str:
    """A hash of what makes a notebook's outputs: its cells' kind, tags and source (not its saved outputs), and
    `shared`, the hash of everything that all notebooks use."""
    cells = notebooks.read_json(source)["cells"]
    said = [[cell["cell_type"], notebooks.tags(cell), notebooks.joined(cell["source"])] for cell in cells]
    return hashlib.sha256(json.dumps([shared, said]).encode()).hexdigest()


def _shared_digest(root: Path) -> str:
    """A hash of the package's code and facts, the kernels, the data and the settings: what any notebook may use."""
    package = [path for path in _files(PACKAGE) if path.suffix in (".py", ".csv")]
    settings = [f"{name}={os.environ.get(name, '')}" for name in SETTINGS]
    used = [*_files(root / "kernels"), *_files(root / "data")]
    return _digest(root, used, extra=[_digest(PACKAGE, package), *settings])


def _files(folder: Path) -> Iterator[Path]:
    """All files below `folder` in a fixed order, but hidden ones, locks and what Python compiles beside its sources."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not hidden and path.suffix != ".lock":
            yield path


def _digest(folder: Path, paths: Iterable[Path], extra: Sequence[str] = ()) -> str:
    """A hash of the bytes of `paths`, their names as seen from `folder`, and `extra`: the same wherever `folder` is."""
    total = hashlib.sha256("\0".join(extra).encode())
    for path in paths:
        total.update(f"\0{path.relative_to(folder).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _record_files(root: Path) -> list[Path]:
    return [path for path in _files(root / "data" / "records") if path.suffix == ".jsonl"]


def evidence(root: Path) -> Evidence:
    """What the records under `root/data/records` say of GPU, driver and commit (oldest first), and their hash.

    A line that is no JSON object (half written, or a merge gone wrong) is passed over here; reading records for
    their numbers complains about it.
    """
    files = _record_files(root)
    records = [record for path in files for record in _records(path)]
    records.sort(key=lambda record: str(record.get("provenance", {}).get("utc", "")))

    def all_of(part: str, key: str) -> tuple[str, ...]:
        values = [(record.get(part) or {}).get(key) for record in records]
        return tuple(dict.fromkeys(str(value) for value in values if value))

    return Evidence(
        records=len(records),
        gpus=all_of("gpu", "name"),
        drivers=all_of("provenance", "driver"),
        commits=all_of("provenance", "commit"),
        data_hash=_digest(root, files)[:HASH_DIGITS],
    )


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict):
            yield record


def page_of(name: str, notebook: Any) -> Page:
    """The index card of an executed notebook."""
    headings = [
        line.lstrip("# ").strip()
        for cell in notebook["cells"]
        if cell["cell_type"] == "markdown"
        for line in notebooks.joined(cell["source"]).splitlines()
        if line.startswith("#")
    ]
    said = [t for cell in notebook["cells"] if "headline" in notebooks.tags(cell) for t in notebooks.output_texts(cell)]
    lines = [line.strip() for line in "\n".join(said).splitlines() if line.strip()]
    picture = f"{name}.png" if first_png(notebook) else ""
    return Page(name, _plain(headings[0]) if headings else name, lines[0] if lines else "", picture)


def _plain(markdown: str) -> str:
    """A heading without the signs of Markdown."""
    return re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", lambda match: match.group(1) or "", markdown)


def first_png(notebook: Any) -> bytes:
    """The first PNG among the outputs, b'' when there is none."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                return base64.b64decode(notebooks.joined(output["data"]["image/png"]))
    return b""


def _render(root: Path, sources: Sequence[Path]) -> None:
    """Write all pages, pictures, index and summary anew from the executed copies; what is no longer asked for goes."""
    site, found = root / "site", evidence(root)
    executed = [notebooks.read(_executed(site, source)) for source in sources]
    pages = [page_of(source.stem, notebook) for source, notebook in zip(sources, executed, strict=True)]
    _remove_all_but(site, {page.name for page in pages})
    exporter = _exporter()
    for k, (page, notebook) in enumerate(zip(pages, executed, strict=True)):
        about = {"title": page.title, "before": pages[k - 1] if k else None, "after": next(iter(pages[k + 1 :]), None)}
        _link_pages(notebook, {other.name for other in pages})
        resources = {"metadata": {"name": page.name, "path": str(root / "notebooks")}, "page": about}
        body, _ = exporter.from_notebook_node(notebook, {**resources, "facts": found.facts()})
        (site / f"{page.name}.html").write_text(body, encoding="utf-8")
        if page.picture:
            (site / page.picture).write_bytes(first_png(notebook))
    (site / "index.html").write_text(_index(pages, found), encoding="utf-8")
    summary = {"schema": 1, "pages": [asdict(page) for page in pages], "evidence": asdict(found)}
    (site / "summary.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _remove_all_but(site: Path, names: set[str]) -> None:
    """Take away pages, pictures and executed copies of notebooks that are gone; only such files live in `site/`."""
    for path in [*site.glob("*.html"), *site.glob("*.png"), *(site / ".executed").glob("*.ipynb")]:
        if path.stem not in names:
            path.unlink()
            path.with_suffix(".stamp").unlink(missing_ok=True)


def _link_pages(notebook: Any, names: set[str]) -> None:
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


def _index(pages: Sequence[Page], found: Evidence) -> str:
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
    return environment.get_template("cards.html.j2").render(pages=pages, facts=found.facts())


def _shown(path: Path) -> str:
    """`path` as short as it can be from where the reader stands."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
