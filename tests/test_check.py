"""Error measures with right values; unwritten, NaN and wrong outputs found and named."""

import numpy as np
import pytest

from perflab.check import Check, compare, parity_line, poison
from perflab.errors import PerflabError
from perflab.studies import Tolerance

LOOSE = Tolerance("norm_relative", 1e-3, "test")


def test_measures_by_hand():
    got = np.array([3.0, 4.0, 0.5], np.float32)
    want = np.array([3.0, 5.0, 0.0])
    found = compare("out", got, want, LOOSE)
    assert found.max_abs == 1.0
    assert found.max_rel == 0.2  # the zero is left out
    assert found.norm_relative == pytest.approx(np.sqrt(1.25) / np.sqrt(34))
    assert not found.passed and "over 1.00e-03 (test)" in found.problem and "at (1,)" in found.problem


def test_exactly_at_the_limit_passes():
    got, want = np.array([1.5], np.float32), np.array([1.0])
    assert compare("out", got, want, Tolerance("max_abs", 0.5, "")).passed
    assert not compare("out", got, want, Tolerance("max_abs", 0.4999, "")).passed


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_unwritten_is_told_from_nan(dtype):
    got = poison((2, 3), dtype)
    assert np.isnan(got).all()
    got[0] = 1
    got[1, 0] = np.nan
    problem = compare("out", got, np.ones((2, 3)), LOOSE).problem
    assert problem == "2 of 6 values were never written and 1 of 6 are NaN or infinite; the first at (1, 0)"


def test_infinite_never_passes():
    assert not compare("out", np.array([np.inf], np.float32), np.array([np.inf]), LOOSE).passed


def test_integer_poison_is_not_a_likely_value():
    assert (poison((3,), "int32") == int.from_bytes(b"\xbe" * 4, "little", signed=True)).all()


def test_shapes_must_agree():
    with pytest.raises(PerflabError, match=r"shape \(2,\), its reference \(3,\)"):
        compare("out", np.zeros(2, np.float32), np.zeros(3), LOOSE)


def test_check_survives_json_and_prints_a_parity_line():
    one = np.ones(2, np.float32)
    check = Check("naive", (compare("out", one, one.astype(float), LOOSE), compare("lse", one * 2, one, LOOSE)))
    assert Check.from_dict("naive", check.to_dict()) == check and not check.passed
    line = parity_line(check, "h8", {"B": 1, "kv_len": 9})
    assert line.splitlines()[0] == (
        "FAIL  [naive] h8  B=1 kv_len=9  max_abs=0.00e+00 max_rel=0.00e+00 norm_rel=0.00e+00 max_lse_err=1.00e+00"
    )
