from __future__ import annotations

import base64
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from perflab import notebooks, report
from perflab.errors import PerflabError
from perflab.records import Record

PNG = base64.b64encode(b"\x89PNG not a real one").decode()


def record(gpu: str, driver: str, commit: str, utc: str) -> str:
    provenance = {"driver": driver, "commit": commit * 40, "utc": utc}
    return Record("k", "v", {}, "check", {}, {"name": gpu}, provenance).to_json() + "\n"


RECORD = record("NVIDIA H200", "580.65.06", "a", "2026-11-29T10:00:00Z")


def write_notebook(path: Path, title: str, source: str = "print('ran')") -> None:
    headline = nbformat.v4.new_code_cell(source, metadata={"tags": ["headline"]})
    markdown = nbformat.v4.new_markdown_cell(f"# {title}\nSee [next](01_b.ipynb#end), [source](../kernels/k.cu).")
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=[markdown, headline]), path)


@pytest.fixture
def root(tmp_path):
    write_notebook(tmp_path / "notebooks/00_a.ipynb", "00 `kv_split` fills <the> GPU")
    write_notebook(tmp_path / "notebooks/01_b.ipynb", "01 Another claim of four words")
    (tmp_path / "kernels/k").mkdir(parents=True)
    (tmp_path / "kernels/k/00.cu").write_text("// a kernel\n")
    (tmp_path / "data/records/h200").mkdir(parents=True)
    (tmp_path / "data/records/h200/k.jsonl").write_text(RECORD)
    return tmp_path


@pytest.fixture
def runs(monkeypatch):
    """Stands for the kernels: each notebook 'runs' at once, its last cell shows text and a picture. Lists what ran."""
    ran: list[str] = []

    def run(paths, done):
        for path in paths:
            notebook = notebooks.read(path)
            data = {"image/png": PNG, "text/plain": "Roofline <H200>\n  naive 1.10 TFLOP/s"}
            printed = nbformat.v4.new_output("stream", name="stdout", text="\n1.84x faster\nmore\n")
            notebook.cells[-1].outputs = [printed, nbformat.v4.new_output("display_data", data=data)]
            notebook.cells[-1].execution_count = 1
            ran.append(path.stem)
            done(path, notebook, 0.1)

    monkeypatch.setattr(report.notebooks, "run", run)
    return ran


def test_only_what_changed_runs_again(root, runs):
    index = report.build(root)
    assert index == root / "site/index.html" and runs == ["00_a", "01_b"]
    report.build(root)
    assert runs == ["00_a", "01_b"]
    write_notebook(root / "notebooks/01_b.ipynb", "01 Another claim of five words")
    report.build(root)
    assert runs == ["00_a", "01_b", "01_b"]
    assert "five words" in index.read_text()
    report.build(root, force=True)
    assert len(runs) == 5


@pytest.mark.parametrize("name", ["kernels/k/00.cu", "data/records/h200/k.jsonl", "data/published/new.csv"])
def test_a_kernel_or_data_runs_all_again(root, runs, name):
    report.build(root)
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text(RECORD + RECORD)
    report.build(root)
    assert runs == ["00_a", "01_b"] * 2


@pytest.mark.parametrize(
    "name", ["kernels/k/__pycache__/study.pyc", "data/records/.hidden", "data/records/h200/k.jsonl.lock", "README.md"]
)
def test_what_no_notebook_reads_runs_nothing(root, runs, name):
    report.build(root)
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("changed\n")
    report.build(root)
    assert runs == ["00_a", "01_b"]


def test_the_package_and_the_settings_are_part_of_the_inputs(root, tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "gpus.py").write_text("x = 1\n")
    monkeypatch.setattr(report, "PACKAGE", package)
    monkeypatch.delenv("PERFLAB_GPU", raising=False)
    first = report._shared_digest(root)
    (package / "site.css").write_text("only the look\n")
    assert report._shared_digest(root) == first
    (package / "gpus.py").write_text("x = 2\n")
    second = report._shared_digest(root)
    monkeypatch.setenv("PERFLAB_GPU", "a100")
    assert len({first, second, report._shared_digest(root)}) == 3


def test_saved_outputs_of_a_notebook_are_no_input(root):
    path = root / "notebooks/00_a.ipynb"
    before = report.notebook_digest(path, "shared")
    notebook = notebooks.read(path)
    notebook.cells[-1].execution_count = 3
    notebooks.save(notebook, path)
    assert report.notebook_digest(path, "shared") == before
    notebook.cells[-1].metadata["tags"] = []
    notebooks.save(notebook, path)
    assert report.notebook_digest(path, "shared") != before


def test_the_tree_stays_as_it_is(root, runs):
    def tree():
        return {p: p.read_bytes() for p in root.rglob("*") if p.is_file() and "site" not in p.relative_to(root).parts}

    before = tree()
    report.build(root)
    assert tree() == before


def test_pages(root, runs):
    report.build(root)
    page = (root / "site/00_a.html").read_text()
    assert "<title>00 kv_split fills &lt;the&gt; GPU - perflab</title>" in page
    assert 'href="01_b.html#end"' in page and 'href="../kernels/k.cu"' in page
    assert 'class="after" href="01_b.html"' in page and "<small>before" not in page
    assert 'alt="Roofline &lt;H200&gt;"' in page and "naive 1.10 TFLOP/s</pre></details>" in page
    last = (root / "site/01_b.html").read_text()
    assert 'href="00_a.html"' in last and "<small>next" not in last


def test_no_page_asks_another_machine_for_anything(root, runs):
    report.build(root)
    for path in (root / "site").glob("*.html"):
        text = path.read_text()
        assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//|url\(|@import|<script""", text), path.name


def test_cards_and_footer(root, runs):
    report.build(root)
    index = (root / "site/index.html").read_text()
    assert re.findall(r'class="card" href="(.*?)"', index) == ["00_a.html", "01_b.html"]
    assert index.count('<p class="headline">1.84x faster</p>') == 2
    assert (root / "site/00_a.png").read_bytes() == base64.b64decode(PNG) and 'src="00_a.png"' in index
    for path in (root / "site").glob("*.html"):
        footer = path.read_text().split("<footer>")[1]
        for fact in ("NVIDIA H200", "580.65.06", "a" * 12, dict(report.evidence(root))["data"], "(1 records)"):
            assert fact in footer, (path.name, fact)


def test_a_notebook_that_is_gone_leaves_no_page(root, runs):
    report.build(root)
    (root / "notebooks/00_a.ipynb").unlink()
    report.build(root)
    left = {path.name for path in (root / "site").rglob("*") if path.is_file()}
    assert left == {"index.html", "01_b.html", "01_b.png", "01_b.ipynb", "01_b.stamp", "site.stamp"}
    assert "00_a" not in (root / "site/index.html").read_text()


def test_a_lost_page_is_written_again_without_a_run(root, runs):
    report.build(root)
    (root / "site/01_b.html").unlink()
    report.build(root)
    assert (root / "site/01_b.html").exists() and runs == ["00_a", "01_b"]


def test_no_notebooks_and_no_records(tmp_path):
    index = report.build(tmp_path)
    assert "No notebooks yet" in index.read_text() and "no measurements recorded" in index.read_text()


def test_evidence_takes_all_gpus_and_the_newest_commits_oldest_first(root):
    (root / "data/records/a100").mkdir()
    path = root / "data/records/a100/k.jsonl"
    path.write_text(record("NVIDIA A100", "570.1", "b", "2026-01-01"))
    before = dict(report.evidence(root))
    assert before["GPU"] == "NVIDIA A100, NVIDIA H200" and before["driver"] == "570.1, 580.65.06"
    assert before["commit"] == f"{'b' * 12}, {'a' * 12}" and before["data"].endswith("(2 records)")
    path.write_text("".join(record("NVIDIA A100", "570.1", f"{k}", f"2026-01-0{k}") for k in range(1, 5)))
    found = dict(report.evidence(root))
    assert found["commit"] == f"{'3' * 12}, {'4' * 12}, {'a' * 12} and 2 earlier" and found["data"] != before["data"]


def test_a_notebook_without_heading_headline_or_picture_is_a_card_too():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    assert report.page_of("x", notebook) == report.Page("x", "x", "", b"")


def test_a_failing_cell_names_itself_and_keeps_what_ran(root, capsys):
    """The one test here with real kernels."""
    write_notebook(root / "notebooks/00_a.ipynb", "00 A claim of some words", "raise RuntimeError('no such shape')")
    with pytest.raises(PerflabError, match=r"(?s)00_a.ipynb: cell 2 of 2 failed:.*raise Runtime.*Error: no such shape"):
        report.build(root)
    assert not (root / "site/index.html").exists()
    assert {path.name for path in (root / "site/.executed").glob("*.ipynb")} == {"01_b.ipynb"}
    source = (root / "notebooks/01_b.ipynb").read_bytes()
    assert report.rerun(root, ["01_b.ipynb"]) == [root / "notebooks/01_b.ipynb"]
    saved = (root / "notebooks/01_b.ipynb").read_bytes()
    assert saved != source and b"ran\\n" in saved
    report.rerun(root, ["01_b"])
    assert (root / "notebooks/01_b.ipynb").read_bytes() == saved


def test_rerun_of_an_unknown_notebook_says_which_there_are(root):
    with pytest.raises(PerflabError, match=r'unknown notebook "00_b".*Known: 00_a, 01_b'):
        report.rerun(root, ["00_b"])


def test_nothing_heavy_is_imported_while_nothing_changed(root, runs):
    report.build(root)
    code = (
        "import sys; from pathlib import Path; from perflab import report; report.build(Path(sys.argv[1]));"
        "assert not {'nbconvert', 'nbformat', 'nbclient', 'jinja2', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(root)], check=True)
