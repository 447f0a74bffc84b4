"""Which folder is the workspace."""

from pathlib import Path

import pytest

from perflab import workspaces
from perflab.errors import PerflabError
from perflab.workspaces import Workspace, workspace


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A workspace with one study, nothing chosen before, and the current folder outside of it."""
    (tmp_path / "lab" / "kernels" / "saxpy").mkdir(parents=True)
    (tmp_path / "lab" / "kernels" / "saxpy" / "study.py").write_text("")
    (tmp_path / "lab" / "notebooks").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(workspaces, "_chosen", [])
    monkeypatch.delenv("PERFLAB_WORKSPACE", raising=False)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def test_the_nearest_folder_upwards(place, monkeypatch):
    monkeypatch.chdir(place / "lab" / "notebooks")
    monkeypatch.setenv("PERFLAB_WORKSPACE", str(place / "elsewhere"))
    assert workspace() == Workspace(place / "lab")


def test_the_variable_where_no_folder_is_one(place, monkeypatch):
    monkeypatch.setenv("PERFLAB_WORKSPACE", str(place / "lab"))
    assert workspace().study_names() == ("saxpy",)


def test_a_path_is_kept(place):
    assert workspace(place / "lab").root == place / "lab"
    assert workspace() == Workspace(place / "lab")


def test_none_says_what_was_tried(place, monkeypatch):
    with pytest.raises(PerflabError, match="PERFLAB_WORKSPACE is not set"):
        workspace()
    monkeypatch.setenv("PERFLAB_WORKSPACE", "/nowhere")
    with pytest.raises(PerflabError, match="PERFLAB_WORKSPACE=/nowhere is none either"):
        workspace()
    with pytest.raises(PerflabError, match="holds no kernels/<study>/study.py"):
        workspace(place / "elsewhere")


def test_an_unknown_study_is_named(place):
    with pytest.raises(PerflabError, match='Did you mean "saxpy"'):
        workspace(Path(place / "lab")).study_folder("saxpi")
