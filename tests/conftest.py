"""Nothing is compiled to list the tests: each worker would do it, all of them at the same time, before the first test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pytest

from perflab import compile as compiler


def refuse() -> NoReturn:
    """In place of the cache's folder, which whatever is compiled is looked up in first."""
    raise AssertionError("a test module compiles a kernel while it is imported: do it inside a test or a fixture")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "cache_folder", refuse)
        return (yield)
