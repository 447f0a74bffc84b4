"""Declarations: exact inputs, launches as data, errors in words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.errors import PerflabError
from perflab.studies import Given, Prediction, Scalar, Uniform, i32, i64, load_study, philox_words, triple


def test_uniform_is_the_exact_integer_formula():
    """Against Python integers and fractions, not against numpy's floats."""
    words = [int(w) for w in philox_words(7, "q", 3)]
    twenty_four = [part for w in words for part in (w >> 40, (w >> 8) & 0xFFFFFF)]
    want = [(2 * k + 1 - 2**24) / 2**24 * 4.0 for k in twenty_four]
    got = Uniform((5,), scale=4.0).make(7, "q")
    assert got.dtype == np.float32
    assert got.tolist() == want[:5]


def test_uniform_words_are_pinned():
    """Raw Philox words must never change: recorded measurements name them by recipe only."""
    assert [hex(int(w)) for w in philox_words(20260101, "q", 2)] == PINNED_WORDS


PINNED_WORDS = ["0x8ef5cba49b1f4d5b", "0x80e12ac1668cf90"]


@given(st.integers(0, 2**32), st.text(min_size=1, max_size=5), st.integers(1, 50))
def test_uniform_stays_inside_and_never_hits_zero(seed, name, count):
    values = Uniform((count,)).make(seed, name)
    assert np.all(np.abs(values) < 1) and np.all(values != 0)


def test_a_longer_array_begins_like_a_shorter_one():
    assert np.array_equal(Uniform((100,)).make(1, "kv")[:7], Uniform((7,)).make(1, "kv"))


def test_scale_must_be_a_power_of_two():
    with pytest.raises(PerflabError, match="power of two"):
        Uniform((3,), scale=0.3)


def test_given_digest_follows_values_and_type():
    same = Given(np.arange(4, dtype=np.uint8)).describe()
    assert same == Given(np.arange(4, dtype=np.uint8)).describe()
    assert same != Given(np.arange(4, dtype=np.int8)).describe()
    assert same != Given(np.array([0, 1, 2, 4], np.uint8)).describe()


def test_triple():
    assert triple(5) == (5, 1, 1) and triple((2, 3)) == (2, 3, 1)
    for bad in (0, (1, 2, 3, 4), (), (3, -1)):
        with pytest.raises(PerflabError, match="at least 1"):
            triple(bad)


def test_scalars_refuse_what_does_not_fit():
    assert i32(-(2**31)) == Scalar("i32", -(2**31))
    with pytest.raises(PerflabError, match="i64"):
        i32(2**31)
    assert i64(2**31).type == "i64"


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [((1.6, 2.0), "hit"), ((1.5, 2.5), "hit"), ((2.6, 2.7), "miss"), ((0.1, 1.4), "miss"), ((2.4, 2.6), "tie")],
)
def test_prediction_verdicts(measured, verdict):
    assert Prediction("naive", None, (1.5, 2.5), "x").verdict(*measured) == verdict


STUDY = '''
from dataclasses import dataclass
from perflab.studies import Study
@dataclass(frozen=True)
class Shape:
    size: int = 4
    kind: str = "a"
nothing = lambda *a: {}
study = Study(name="tiny", title="Tiny", shape=Shape, shapes=(Shape(),), inputs=nothing, buffers=nothing,
              reference=nothing, work=nothing, tolerances=nothing, facts=nothing, versions=())
'''


def test_load_study_and_its_shapes(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    with pytest.raises(PerflabError, match="no study.py"):
        load_study(folder)
    (folder / "study.py").write_text("x = 1")
    with pytest.raises(PerflabError, match="defines no"):
        load_study(folder)
    (folder / "study.py").write_text("1 / 0")
    with pytest.raises(PerflabError, match="ZeroDivisionError"):
        load_study(folder)
    (folder / "study.py").write_text(STUDY)
    study = load_study(folder)
    assert study.make_shape(size=5).size == 5
    with pytest.raises(PerflabError, match='Did you mean "size"'):
        study.make_shape(sise=5)
    with pytest.raises(PerflabError, match="wants an integer"):
        study.make_shape(size=5.0)
    with pytest.raises(PerflabError, match="unknown version of tiny"):
        study.version("fast")
