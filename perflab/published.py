"""Figures from elsewhere, as they were printed: data/published/<name>.csv, whose comment lines are the source and notes."""

from __future__ import annotations

import csv

from perflab.errors import PerflabError, unknown
from perflab.origins import Origin
from perflab.tables import Table
from perflab.workspaces import Workspace


def published_table(here: Workspace, name: str) -> Table:
    """data/published/<name>.csv: comment lines are its source and notes; blank cells are shown as n/a."""
    file = here.published / f"{name}.csv"
    if not file.is_file():
        raise unknown("published table", name, sorted(f.stem for f in here.published.glob("*.csv")))
    lines = file.read_text().splitlines()
    notes = [line.lstrip("# ") for line in lines if line.startswith("#")]
    columns, *rows = csv.reader(line for line in lines if line and not line.startswith("#"))
    source = next((note.removeprefix("source: ") for note in notes if note.startswith("source: ")), "")
    if not source:
        raise PerflabError(f"{file.name} names no source: its first line is '# source: …'")
    return Table(f"Published: {name}", columns, [[value or "n/a" for value in row] for row in rows],
                 str(Origin("published", source)), [n for n in notes if not n.startswith("source: ")])
