"""The package as a whole: cheap to import, one-way imports, names that nothing shadows, the architecture page true."""

import ast
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import perflab as pl

ROOT = Path(__file__).parent.parent
HEAVY = ("numpy", "pandas", "matplotlib", "cupy", "cuda", "IPython", "nbconvert")
MODULES = [  # "gpus", "emulator.program"
    module.name.removeprefix("perflab.") for module in pkgutil.walk_packages(pl.__path__, "perflab.") if not module.ispkg
]


def source_of(name: str) -> str:
    """The text of a module."""
    return (ROOT / "perflab" / f"{name.replace('.', '/')}.py").read_text()


def imported(node: ast.ImportFrom) -> list[str]:
    """The package's own modules that an import at the top of a module names."""
    module = (node.module or "").removeprefix("perflab").removeprefix(".")
    named = [".".join(filter(None, (module, alias.name))) for alias in node.names]
    return [name for name in (*named, module) if name in MODULES]


def table_order() -> list[str]:
    """The modules in the order in which docs/architecture.md lists them."""
    rows = (ROOT / "docs" / "architecture.md").read_text().splitlines()
    first_cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
    return [name.replace("/", ".") for cell in first_cells for name in re.findall(r"`([\w/]+)\.py`", cell)]


def test_import_loads_nothing_heavy():
    code = f"import sys, perflab; print([m for m in {HEAVY} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize("command", [["gpus"], ["--help"], ["explain", "--help"]])
def test_cheap_commands_load_nothing_heavy(command):
    code = (f"import sys; from perflab import cli\nsys.argv[1:] = {command!r}\ntry:\n    cli.main()\nexcept SystemExit:\n"
            f"    pass\nprint([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.strip() == "[]"


def test_no_module_has_an_exported_name():
    assert not set(pl.__all__) & set(MODULES)


def test_every_exported_name_is_the_same_before_and_after_all_modules_are_imported():
    code = (
        "import importlib, perflab as pl\n"
        "first = {name: getattr(pl, name) for name in pl.__all__}\n"
        f"for module in {MODULES}: importlib.import_module('perflab.' + module)\n"
        "assert all(getattr(pl, name) is value and callable(value) for name, value in first.items())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_each_public_function_works_twice():
    pl.workspace(ROOT)
    kernel = 'extern "C" __global__ void copy(float* x) { x[threadIdx.x] += 1; }'
    calls = {
        "default_gpu": lambda: pl.default_gpu().name,
        "explain": lambda: str(pl.explain(ROOT / "kernels" / "saxpy" / "00_scalar.cu")),
        "gpu": lambda: pl.gpu("H200").name,
        "gpu_names": pl.gpu_names,
        "largest_dynamic_shared": lambda: pl.largest_dynamic_shared("H100", 256, 64, 2),
        "lint": lambda: str(pl.lint(ROOT / "kernels" / "saxpy" / "00_scalar.cu", ["H200"])),
        "live": lambda: pl.live(False),
        "load": lambda: pl.load(kernel, "copy").label,
        "occupancy": lambda: str(pl.occupancy(gpu="sm_90", block=256, registers=64)),
        "occupancy_grid": lambda: pl.occupancy_grid("sm_90", block=[64, 128], registers=32).blocks_per_sm.tolist(),
        "study": lambda: str(pl.study("saxpy")),
        "workspace": lambda: str(pl.workspace()),
    }
    assert set(calls) == set(pl.__all__) - {"PerflabError", "time"}  # pl.time needs a GPU: tests/test_callables.py
    for call in calls.values():
        assert call() == call()


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        getattr(pl, "non" + "sense")


def test_the_architecture_page_lists_every_module_once():
    assert sorted(table_order()) == sorted(MODULES)


def test_modules_import_only_from_above():
    """Imports at the top of a module; a verb may reach to the right at call time, inside its function."""
    order = table_order()
    wrong = []
    for name in MODULES:
        for node in ast.parse(source_of(name)).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("perflab"):
                wrong += [f"{name} <- {source}" for source in imported(node) if order.index(source) >= order.index(name)]
    assert not wrong


def test_the_compiler_and_the_gpu_are_reached_from_one_module_each():
    found = {}
    for name in MODULES:
        text = source_of(name)
        for library in ("cuda.bindings", "cupy", "pynvml"):
            if re.search(rf"^\s*(from|import) {library}\b", text, re.M):
                found.setdefault(library, []).append(name)
    assert found == {"cuda.bindings": ["compile"], "cupy": ["device"], "pynvml": ["device"]}


def test_no_file_names_a_registry_or_a_path_of_this_machine():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    hosts = ("py" "pi.org", "python" "hosted", "registry." "npmjs", "index" "-url", os.path.expanduser("~") + "/")
    host = re.compile("|".join(map(re.escape, hosts)))
    bad = [name for name in tracked.stdout.split() if not name.endswith(".png") and name != "tests/test_package.py"
           and host.search((ROOT / name).read_text(errors="ignore"))]
    assert not bad
