"""A reader's first minute: JupyterLab opens a fresh notebook, shows its recorded outputs, runs all its cells."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("jupyterlab", reason="jupyterlab is not installed (extra: lab)")

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
START_SECONDS, RUN_MILLISECONDS = 60, 180_000
# A news dialog would lie over the notebook, and the extension manager would ask PyPI.
DISABLED = {"@jupyterlab/apputils-extension:announcements": True, "@jupyterlab/extensionmanager-extension": True}

CODE_CELLS = "window.jupyterapp.shell.currentWidget.content.widgets.filter(w => w.model.type === 'code')"
KERNEL_READY = """() => {
  const context = window.jupyterapp?.shell.currentWidget?.sessionContext, kernel = context?.session?.kernel;
  return context?.isReady && kernel?.connectionStatus === 'connected' && kernel.status === 'idle' }"""
ALL_RAN = f"() => {CODE_CELLS}.every(w => w.model.executionState === 'idle' && w.model.executionCount !== null)"
OUTPUTS = f"() => {CODE_CELLS}.flatMap(w => w.model.outputs.toJSON())"


def workspace(folder: Path) -> Path:
    """A copy of what notebooks use: JupyterLab writes checkpoints beside what it opens."""
    for name in ("kernels", "data", "notebooks"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def is_up(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/api", timeout=1):
        return True
    return False


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab's address, over a copy of the workspace and with none of the reader's own settings."""
    home, root = tmp_path_factory.mktemp("jupyter"), workspace(tmp_path_factory.mktemp("workspace"))
    (home / "config/labconfig").mkdir(parents=True)
    (home / "config/labconfig/page_config.json").write_text(json.dumps({"disabledExtensions": DISABLED}))
    places = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime",
              "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "JUPYTERLAB_SETTINGS_DIR": "settings"}  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
               "--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--ServerApp.root_dir={root}",
               "--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly"]  # fmt: skip
    environment = {**os.environ, **{name: str(home / place) for name, place in places.items()}}
    url, log = f"http://127.0.0.1:{port}", home / "lab.log"
    with log.open("w") as stream:
        server = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
    try:
        until = time.monotonic() + START_SECONDS
        while not is_up(url):
            assert server.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait(20)


@pytest.fixture
def watched(chromium, lab):
    """A page, and the list of what went wrong in it."""
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    ours = (lab, lab.replace("http", "ws"), "data:", "blob:", "about:")
    wrong: list[str] = []
    page.on("request", lambda request: None if request.url.startswith(ours) else wrong.append(request.url))
    page.on("pageerror", lambda error: wrong.append(f"script error: {error}"))
    yield page, wrong
    page.close()


@pytest.mark.skipif(not NOTEBOOKS, reason="no notebooks")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_in_jupyterlab(watched, lab, screenshots, path):
    page, wrong = watched
    page.goto(f"{lab}/lab/tree/notebooks/{path.name}?reset")
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=RUN_MILLISECONDS)
    page.wait_for_function(KERNEL_READY, timeout=RUN_MILLISECONDS)
    recorded = page.evaluate(OUTPUTS)
    page.screenshot(path=screenshots / f"lab_{path.stem}_as_cloned.png")
    # Without this the recorded outputs would satisfy every wait below, even with a dialog over the page.
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    assert page.evaluate(OUTPUTS) == []
    page.get_by_role("menuitem", name="Run", exact=True).click()
    run_all = ('.lm-Menu-item[data-command="notebook:run-all-cells"]', '.lm-Menu-item[data-command="runmenu:run-all"]')
    page.locator(", ".join(run_all)).first.click()
    page.wait_for_function(ALL_RAN, timeout=RUN_MILLISECONDS)
    outputs = page.evaluate(OUTPUTS)
    page.screenshot(path=screenshots / f"lab_{path.stem}.png")
    assert [o for o in outputs if o["output_type"] == "error"] == []
    assert len(outputs) == len(recorded), "other outputs than the file records"
    assert wrong == []
