"""Notebooks as files: their canonical form, and running them from the first cell to the last.

A run is byte-stable: fixed metadata and cell ids, no times, streams joined, a fresh kernel of this very Python (a
"python3" kernel that the reader registered for another environment is not asked).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from perflab.errors import PerflabError

if TYPE_CHECKING:
    from nbclient import NotebookClient

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
CELL_LIMIT_SECONDS = 300
AT_ONCE = 2  # each kernel keeps one core busy, and two cores are the least we plan for

Done = Callable[[Path, Any, float], None]


def read(path: Path) -> Any:
    """The notebook at `path`, as nbformat 4. PerflabError when the file is none."""
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:
        raise PerflabError(f"{path} is not a notebook: {error}") from error


def cells_of(path: Path) -> list[dict[str, Any]]:
    """The cells of the notebook at `path` as plain JSON, without nbformat and its import time."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (ValueError, KeyError, TypeError) as error:
        raise PerflabError(f"{path} is not a notebook of nbformat 4: {error!r}") from error


def canonical(notebook: Any) -> Any:
    """A copy in canonical form: nbformat 4.5, fixed metadata, cells named by position, their metadata only the tags."""
    import nbformat

    copy = nbformat.from_dict({**notebook, "nbformat": 4, "nbformat_minor": 5, "metadata": METADATA})
    for index, cell in enumerate(copy.cells):
        cell["id"] = f"cell-{index:02d}"
        tags = cell.get("metadata", {}).get("tags")
        cell["metadata"] = nbformat.from_dict({"tags": list(tags)} if tags else {})
    return copy


def file_text(notebook: Any) -> str:
    """The text of the file that holds `notebook` in canonical form."""
    import nbformat

    return nbformat.writes(canonical(notebook)) + "\n"


def save(notebook: Any, path: Path) -> None:
    """Write the canonical form to `path`; a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(file_text(notebook), encoding="utf-8")
    os.replace(beside, path)


def tags(cell: Any) -> list[str]:
    """The tags of a cell."""
    return list(cell.get("metadata", {}).get("tags", []))


def joined(text: Any) -> str:
    """A multi-line string of the notebook format, which may be one string or a list of lines."""
    return text if isinstance(text, str) else "".join(text)


def output_texts(cell: Any) -> list[str]:
    """What the outputs of a cell say as plain text, in order: printed streams and the text of displayed objects."""
    texts = []
    for output in cell.get("outputs", []):
        if output["output_type"] == "stream":
            texts.append(joined(output["text"]))
        elif "text/plain" in output.get("data", {}):
            texts.append(joined(output["data"]["text/plain"]))
    return texts


def run(paths: Sequence[Path], done: Done) -> None:
    """Run every notebook in a fresh kernel, in the folder it lies in, two at a time.

    `done(path, notebook, seconds)` gets each one that ran to its end, as it ends; the files are not touched.
    PerflabError, once all have ended, names the notebook, cell, source and error of each that failed.
    """
    if not paths:
        return
    with asyncio.Runner() as runner:
        # nbclient would take SIGINT for one of its kernels and leave the other running; refused, as it is outside
        # the main thread, the Runner's own handler cancels both and their kernels are shut down.
        setattr(runner.get_loop(), "add_signal_handler", _refuse_handler)  # noqa: B010
        failures = runner.run(_run_all(paths, done))
    if failures:
        raise PerflabError("\n\n".join(failures))


def _refuse_handler(*_: object) -> NoReturn:
    raise RuntimeError("signals are handled by asyncio.Runner")


async def _run_all(paths: Iterable[Path], done: Done) -> list[str]:
    """The failures, in words."""
    places = asyncio.Semaphore(AT_ONCE)
    return list(filter(None, await asyncio.gather(*(_run_one(path, done, places) for path in paths))))


async def _run_one(path: Path, done: Done, places: asyncio.Semaphore) -> str:
    """Run one notebook; the failure in words, or '' after `done` has it."""
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook, index = read(path), 0

    def reached(cell: Any, cell_index: int) -> None:
        nonlocal index
        index = cell_index

    client = _client(notebook, path.parent)
    client.on_cell_execute = reached
    try:
        async with places:
            started = time.monotonic()
            # cleanup_kc: nbclient leaves a kernel manager that it was given, and its kernel, running
            await client.async_execute(env={**os.environ, "PYTHONHASHSEED": "0"}, cleanup_kc=True)
            done(path, canonical(notebook), time.monotonic() - started)
            return ""
    except CellTimeoutError:
        reason = f"still running after {CELL_LIMIT_SECONDS} s"
    except DeadKernelError:
        reason = "the kernel died (a crash in native code, or out of memory)"
    except CellExecutionError as error:
        reason = re.sub(r"\x1b\[[0-9;]*m", "", f"{error.ename}: {error.evalue}")  # without the colours of a terminal
    source = textwrap.indent(notebook.cells[index].source, "    ")
    return f"{path.name}: cell {index + 1} of {len(notebook['cells'])} failed:\n{source}\n{reason}"


def _client(notebook: Any, folder: Path) -> NotebookClient:
    """nbclient over this Python: no timestamps, no widget state, stream outputs joined so that chunks do not matter."""
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    class ThisPython(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]
            return KernelSpec(argv=command, display_name="Python 3", language="python")

    return NotebookClient(
        notebook,
        km=AsyncKernelManager(kernel_name="python3", kernel_spec_manager=ThisPython()),
        resources={"metadata": {"path": str(folder)}},
        timeout=CELL_LIMIT_SECONDS,
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
    )
