from __future__ import annotations

import os
import signal

import pytest

from perflab.errors import PerflabError
from perflab.launching import run_tool


def test_what_a_tool_said_and_how_it_ended() -> None:
    ended = run_tool(["sh", "-c", "echo out; echo err >&2; printf '\\377'; exit 3"], 60)
    assert (ended.stdout, ended.stderr, ended.code) == ("out\n\ufffd", "err\n", 3)


def test_one_past_its_limit_is_ended_with_what_it_had_said() -> None:
    ended = run_tool(["sh", "-c", "echo begun; sleep 1000 & sleep 1000"], 0.5)
    assert (ended.stdout, ended.code) == ("begun\n", None)


def test_nobody_is_waited_for_who_left_the_group_with_the_output_open() -> None:
    ended = run_tool(["sh", "-c", "setsid sleep 40 & echo $!"], 20)
    os.kill(int(ended.stdout), signal.SIGKILL)
    assert ended.code == 0, "its output was waited for, not its end"


def test_what_cannot_be_started_is_named() -> None:
    with pytest.raises(PerflabError, match="/no/such/tool cannot be started: No such file"):
        run_tool(["/no/such/tool"], 1)
