"""pl.time on the fake GPU: any callable, cold and hot by the one engine, in this process, and its text says so."""

import sys

import numpy as np
import pytest
from fake_gpu import FakeGpu, Kernel

from perflab import callables
from perflab.callables import NOT_ISOLATED, WAITED, _one_stream
from perflab.compile import Binary
from perflab.errors import PerflabError
from perflab.timing import TimingSpec

QUICK = TimingSpec.quick()
TOOLS = Binary(**{**dict.fromkeys(Binary.__dataclass_fields__, ""), "cubin": b"tools"})


@pytest.fixture
def device(monkeypatch):
    """A fake GPU with a kernel "twice" of 50 us, in place of the real one."""
    made = FakeGpu(kernels={"twice": Kernel(seconds=5e-5), "waits": Kernel(seconds=5e-5, does="wait")})
    monkeypatch.setattr(callables, "open_device", lambda: made)
    return made


def launcher(device, name="twice"):
    return device.launcher(device.load(b"mine", name), (1,), (32,), (), 0)


def test_a_callable_is_timed_without_the_launch_gap(device):
    twice = launcher(device)
    timed = callables.time(twice, spec=QUICK, label="twice", tools=TOOLS)
    assert timed.seconds == pytest.approx(5e-5, rel=0.01)
    assert timed.timing.hot.median_seconds == pytest.approx(5e-5, rel=0.01)
    assert timed.interval[0] <= timed.seconds <= timed.interval[1]
    text = str(timed)
    assert text.startswith("twice on H200") and NOT_ISOLATED in text and WAITED not in text
    assert "an empty kernel measured the same way" in text and "hot L2" in text


def test_several_launches_and_a_result_are_one_callable(device):
    one = launcher(device)
    timed = callables.time(lambda: (one(), one(), "a result"), spec=QUICK, tools=TOOLS)
    assert timed.seconds == pytest.approx(1e-4, rel=0.01)
    assert timed.label == "<lambda>"


def test_what_waits_for_the_gpu_is_timed_and_says_so(device):
    waits = launcher(device, "waits")
    timed = callables.time(waits, spec=QUICK, tools=TOOLS)
    assert not timed.timing.held and WAITED in timed.markdown()


def test_inputs_are_uploaded_or_taken_over(device):
    class Foreign:
        """An array of another library."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **more):
            return self.array.__dlpack__(**more)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    seen, launch = [], launcher(device)
    mine, theirs = np.arange(4.0), np.arange(3.0)
    callables.time(lambda *given: (seen.append(given), launch()), inputs=(mine, Foreign(theirs)), spec=QUICK, tools=TOOLS)
    first, second = seen[0]
    assert first.tolist() == mine.tolist() and first is not mine
    assert second.tolist() == theirs.tolist() and np.shares_memory(second, theirs)
    assert all(given[0] is first for given in seen)


def test_wrong_inputs_are_told(device):
    with pytest.raises(PerflabError, match="speaks DLPack; got list"):
        callables.time(lambda x: None, inputs=([1, 2],), tools=TOOLS)
    with pytest.raises(PerflabError, match="wants a function that queues GPU work"):
        callables.time(3, tools=TOOLS)


def test_what_the_callable_raises_comes_through(device):
    def wrong():
        raise ValueError("shapes differ")

    with pytest.raises(ValueError, match="shapes differ"):
        callables.time(wrong, tools=TOOLS)


def test_without_a_gpu_the_error_says_what_to_do(monkeypatch):
    monkeypatch.delenv("PERFLAB_DEVICE", raising=False)
    try:
        import cupy

        if cupy.cuda.runtime.getDeviceCount():
            pytest.skip("there is a GPU here")
    except Exception:
        pass
    with pytest.raises(PerflabError, match="perflab measure STUDY --on"):
        callables.time(lambda: None)


def test_the_clock_follows_torch_s_own_stream(monkeypatch):
    """Where PyTorch queues on another stream, events on the default one would time nothing."""
    from types import SimpleNamespace

    device = FakeGpu()
    stream = SimpleNamespace(cuda_stream=4711)
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True, current_stream=lambda: stream))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with _one_stream(device):
        pass
    stream.cuda_stream = 0
    with _one_stream(device):
        pass
    assert device.log == [("stream", 4711)]
