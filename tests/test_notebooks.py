"""The rules of a notebook that is a report, each with a planted fault; then every notebook of this project by them."""

from __future__ import annotations

import copy
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import psutil
import pytest

from perflab import notebooks
from perflab.errors import PerflabError

FOLDER = Path(__file__).parent.parent / "notebooks"
SHIPPED = sorted(FOLDER.glob("*.ipynb"))
LIMIT_BYTES = 500_000
CLAIM_WORDS = 4
# A number with the unit of a result. "16x16" is a shape and "float4" a type, neither is a speed-up.
RESULT = re.compile(r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?)\s?(us|µs|μs|ms|[GT]B/s|[GT]FLOP/s|%|x|×)(?![\w/])")


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def valid(notebook: dict) -> Iterator[str]:
    if (notebook.get("nbformat"), notebook.get("nbformat_minor")) != (4, 5):
        yield f"nbformat {notebook.get('nbformat')}.{notebook.get('nbformat_minor')}, not 4.5"
    try:
        nbformat.validate(nbformat.from_dict(notebook))
    except nbformat.ValidationError as error:
        yield f"not valid: {error.message}"


def executed(notebook: dict) -> Iterator[str]:
    """A notebook that never ran passes strict nbval, which then compares nothing."""
    counts = [cell.get("execution_count") for cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"code cells ran as {counts}, not 1 to {len(counts)} in order: make notebooks"


def no_errors(notebook: dict) -> Iterator[str]:
    for k, cell in enumerate(notebook["cells"], 1):
        errors = [output for output in cell.get("outputs", []) if output["output_type"] == "error"]
        if errors and "raises-exception" not in notebooks.tags(cell):
            yield f"cell {k} ends in {errors[0]['ename']}"


def no_semicolons(notebook: dict) -> Iterator[str]:
    """nbval runs cells without history, where IPython ignores a trailing `;` and prints what it was to hide."""
    for k, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] == "code" and notebooks.joined(cell["source"]).rstrip().endswith(";"):
            yield f"cell {k} ends in ';': assign the value to _ instead"


def no_clocks(notebook: dict) -> Iterator[str]:
    for k, cell in enumerate(notebook["cells"], 1):
        ignored = "nbval-ignore-output" in notebooks.tags(cell)
        if cell["cell_type"] == "code" and not ignored and re.search(r"%time", notebooks.joined(cell["source"])):
            yield f"cell {k} prints raw times: tag it nbval-ignore-output, or read records"


def titled(notebook: dict) -> Iterator[str]:
    first = notebook["cells"][0] if notebook["cells"] else {"cell_type": "none", "source": ""}
    lines = notebooks.joined(first["source"]).splitlines() or [""]
    if first["cell_type"] != "markdown" or not lines[0].startswith("# "):
        yield "the first cell is not a title ('# 03 What is claimed')"
    elif len(re.findall(r"[^\W\d_]+", lines[0])) < CLAIM_WORDS:
        yield f"the title {lines[0]!r} claims nothing: say it in a sentence"


def parametrised(notebook: dict) -> Iterator[str]:
    count = sum("parameters" in notebooks.tags(cell) for cell in notebook["cells"])
    if count != 1:
        yield f"{count} cells are tagged parameters, not one"


def plain_metadata(notebook: dict) -> Iterator[str]:
    metadata = notebook.get("metadata", {})
    if metadata.get("kernelspec", {}).get("name") != "python3":
        yield "the kernelspec is not python3"
    if "widgets" in metadata:
        yield "it holds widget state"
    if json.loads(notebooks.file_text(notebook)) != json.loads(nbformat.writes(nbformat.from_dict(notebook))):
        yield "metadata or cell ids are not canonical: make notebooks"


def results_in(text: str) -> set[str]:
    """Numbers with the unit of a result, in one spelling."""
    units = {"µs": "us", "μs": "us", "×": "x"}
    return {f"{number.replace(',', '')} {units.get(unit, unit)}" for number, unit in RESULT.findall(text)}


def printed_numbers(notebook: dict) -> Iterator[str]:
    """nbval never looks at Markdown: a number there is right only as long as code prints it too."""
    printed = results_in("\n".join(text for cell in notebook["cells"] for text in notebooks.output_texts(cell)))
    for k, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] == "markdown":
            prose = re.sub(r"^```.*?^```", "", notebooks.joined(cell["source"]), flags=re.DOTALL | re.MULTILINE)
            for result in sorted(results_in(prose) - printed):
                yield f"cell {k} says {result}, which no output of this notebook says"


RULES: tuple[Callable[[dict], Iterator[str]], ...] = (
    executed, no_errors, no_semicolons, no_clocks, titled, parametrised, plain_metadata, printed_numbers,
)  # fmt: skip


def complaints(notebook: dict) -> list[str]:
    """What is wrong, each with its rule; of an invalid notebook only that."""
    invalid = [f"valid: {words}" for words in valid(notebook)]
    return invalid or [f"{rule.__name__}: {words}" for rule in RULES for words in rule(notebook)]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_notebook(path):
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert complaints(notebook) == []
    assert len(text.encode()) < LIMIT_BYTES, "over 500 kB: fewer or smaller pictures"
    assert text == notebooks.file_text(notebooks.read(path)), "not as `make notebooks` writes it"


def good() -> dict:
    """A notebook without fault, as plain JSON."""
    cells = [
        nbformat.v4.new_markdown_cell("# 01 Splitting the range fills the GPU"),
        nbformat.v4.new_code_cell("gpu = 'h200'", execution_count=1, metadata={"tags": ["parameters"]}),
        nbformat.v4.new_markdown_cell("336 µs, 1,234.5 us before: 66.2 % of the roof, 1.84× faster, tiles of 16x16."),
        nbformat.v4.new_code_cell(
            "say()",
            execution_count=2,
            outputs=[nbformat.v4.new_output("stream", name="stdout", text="336 us, 1234.5 us, 66.2 % 1.84x\n")],
        ),
    ]
    return json.loads(notebooks.file_text(nbformat.v4.new_notebook(cells=cells)))


def test_a_good_notebook_has_no_complaints():
    assert complaints(good()) == []


def edited(edit: Callable[[dict], object]) -> dict:
    notebook = copy.deepcopy(good())
    edit(notebook)
    return notebook


def add_output(notebook: dict, **output: object) -> None:
    notebook["cells"][3]["outputs"].append(output)


FAULTS: dict[str, tuple[str, Callable[[dict], object]]] = {
    "old format": ("valid", lambda nb: nb.update(nbformat_minor=4)),
    "no metadata": ("valid", lambda nb: nb["cells"][0].pop("metadata")),
    "never run": ("executed", lambda nb: [cell.update(execution_count=None, outputs=[]) for cell in code_cells(nb)]),
    "run out of order": ("executed", lambda nb: nb["cells"][3].update(execution_count=7)),
    "error": ("no_errors", lambda nb: add_output(nb, output_type="error", ename="E", evalue="", traceback=[])),
    "semicolon": ("no_semicolons", lambda nb: nb["cells"][3].update(source="plot();\n")),
    "raw time": ("no_clocks", lambda nb: nb["cells"][3].update(source="%timeit f()")),
    "cell magic": ("no_clocks", lambda nb: nb["cells"][3].update(source="%%time\nf()")),
    "no title": ("titled", lambda nb: nb["cells"][0].update(source="Splitting the range fills the GPU")),
    "no claim": ("titled", lambda nb: nb["cells"][0].update(source="# 01 Occupancy")),
    "no parameters": ("parametrised", lambda nb: nb["cells"][1].update(metadata={})),
    "parameters twice": ("parametrised", lambda nb: nb["cells"][3].update(metadata={"tags": ["parameters"]})),
    "other kernel": ("plain_metadata", lambda nb: nb["metadata"]["kernelspec"].update(name="conda")),
    "widgets": ("plain_metadata", lambda nb: nb["metadata"].update(widgets={})),
    "times of execution": ("plain_metadata", lambda nb: nb["cells"][1]["metadata"].update(execution={"t": "1"})),
    "random cell id": ("plain_metadata", lambda nb: nb["cells"][0].update(id="a1b2c3")),
    "time": ("printed_numbers", lambda nb: nb["cells"][2].update(source="It takes 337 us.")),
    "rate": ("printed_numbers", lambda nb: nb["cells"][2].update(source="That is 4,812 GB/s (`44.3 TFLOP/s`).")),
    "share": ("printed_numbers", lambda nb: nb["cells"][2].update(source="66 % of the roof")),
    "speed-up": ("printed_numbers", lambda nb: nb["cells"][2].update(source="It is 2x faster.")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault(fault):
    rule, edit = FAULTS[fault]
    found = complaints(edited(edit))
    assert found and {words.split(":")[0] for words in found} >= {rule}
    assert complaints(good()) == []


def test_a_never_run_notebook_is_refused():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print('compared with nothing')")])
    assert any(words.startswith("executed: ") for words in complaints(json.loads(notebooks.file_text(notebook))))


def test_an_expected_exception_is_no_fault():
    def edit(notebook: dict) -> None:
        add_output(notebook, output_type="error", ename="E", evalue="", traceback=[])
        notebook["cells"][3]["metadata"] = {"tags": ["raises-exception"]}

    assert complaints(edited(edit)) == []


def test_numbers_in_fenced_code_are_no_claims():
    assert complaints(edited(lambda nb: nb["cells"][2].update(source="So:\n```\n9 us\n```\n"))) == []


def test_canonical_is_a_fixed_point_and_leaves_its_argument_alone():
    notebook = nbformat.from_dict(edited(lambda nb: nb["cells"][0].update(id="zz", metadata={"collapsed": True})))
    before = copy.deepcopy(notebook)
    once = notebooks.canonical(notebook)
    assert notebook == before
    assert once.cells[0].id == "cell-00" and once.cells[0].metadata == {}
    assert once.cells[1].metadata.tags == ["parameters"]
    assert notebooks.canonical(once) == once


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"worksheets": []}'])
def test_a_file_that_is_no_notebook_is_named(tmp_path, text):
    path = tmp_path / "x.ipynb"
    path.write_text(text)
    for read in (notebooks.read, notebooks.cells_of):
        with pytest.raises(PerflabError, match="x.ipynb is not a notebook"):
            read(path)


def kernels() -> set[int]:
    """Process ids of the kernels that this process started and did not end."""
    return {child.pid for child in psutil.Process().children(recursive=True) if "ipykernel_launcher" in child.cmdline()}


def test_a_run_is_byte_stable_and_a_failing_cell_is_named(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    running = kernels()

    def write(name: str, *sources: str) -> Path:
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / name)
        return tmp_path / name

    streams = "import os, sys\nfor k in range(3):\n    print(k, flush=True)\n    print('e', file=sys.stderr)"
    sources = [streams, "os.getcwd()"]
    paths = [write("a.ipynb", *sources), write("b.ipynb", *sources), write("bad.ipynb", "x = 1", "x / 0  # two", "x")]
    before = [path.read_bytes() for path in paths]
    texts = {}
    with pytest.raises(PerflabError) as caught:
        notebooks.run(paths, lambda path, notebook, seconds: texts.update({path.name: notebooks.file_text(notebook)}))
    said = str(caught.value)
    assert said == "bad.ipynb: cell 2 of 3 failed:\n    x / 0  # two\nZeroDivisionError: division by zero"
    assert texts.keys() == {"a.ipynb", "b.ipynb"} and texts["a.ipynb"] == texts["b.ipynb"]
    assert str(tmp_path) in texts["a.ipynb"] and "iopub" not in texts["a.ipynb"]
    assert [path.read_bytes() for path in paths] == before
    assert kernels() <= running and not list((tmp_path / "temporary").iterdir())  # nothing runs on, no file stays behind
