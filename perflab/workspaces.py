"""The folder one works in: it holds kernels/<study>/study.py, data/, notebooks/ and, once built, site/."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from perflab.errors import PerflabError, unknown

VARIABLE = "PERFLAB_WORKSPACE"
_chosen: list[Path] = []  # what workspace(path) set last in this process


@dataclass(frozen=True)
class Workspace:
    """A workspace by its root folder."""

    root: Path

    @property
    def kernels(self) -> Path:
        """A folder a study."""
        return self.root / "kernels"

    @property
    def records(self) -> Path:
        """Measurements: <gpu>/<study>.jsonl."""
        return self.root / "data" / "records"

    @property
    def published(self) -> Path:
        """Figures from elsewhere, with their source: <name>.csv."""
        return self.root / "data" / "published"

    @property
    def notebooks(self) -> Path:
        """The reports' sources."""
        return self.root / "notebooks"

    @property
    def site(self) -> Path:
        """The built report."""
        return self.root / "site"

    def study_names(self) -> tuple[str, ...]:
        """The names of all studies, sorted."""
        return tuple(sorted(file.parent.name for file in self.kernels.glob("*/study.py")))

    def study_folder(self, name: str) -> Path:
        """kernels/<name>; an unknown name is an error that lists the studies there are."""
        if name not in self.study_names():
            raise unknown("study", name, self.study_names())
        return self.kernels / name

    def __str__(self) -> str:
        return f"workspace {self.root.name}: studies {', '.join(self.study_names()) or 'none'}"


def is_workspace(folder: Path) -> bool:
    """True for a folder that holds kernels/<study>/study.py."""
    return any(folder.glob("kernels/*/study.py"))


def workspace(path: str | Path | None = None) -> Workspace:
    """The workspace at `path`, kept for the rest of the process; without one: the kept one, else the nearest folder
    upwards from here that holds kernels/*/study.py, else the one in PERFLAB_WORKSPACE. None of them is an error."""
    if path is not None:
        root = Path(path).expanduser().resolve()
        if not is_workspace(root):
            raise PerflabError(f"{path} is no workspace: it holds no kernels/<study>/study.py")
        _chosen[:] = [root]
    if _chosen:
        return Workspace(_chosen[0])
    here = Path.cwd()
    for folder in (here, *here.parents):
        if is_workspace(folder):
            return Workspace(folder)
    named = os.environ.get(VARIABLE)
    if named and is_workspace(Path(named).expanduser()):
        return Workspace(Path(named).expanduser().resolve())
    tried = f"{VARIABLE}={named} is none either" if named else f"{VARIABLE} is not set"
    raise PerflabError(
        f"no workspace here: neither {here} nor a folder above it holds kernels/<study>/study.py, and {tried}. "
        'Go to one, set the variable, or call pl.workspace("path/to/it")'
    )
