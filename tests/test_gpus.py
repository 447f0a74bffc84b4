"""The table of GPUs: every fact checks against another where it can, names are found, unknown ones are refused."""

from __future__ import annotations

import csv
import pickle
import re
import subprocess
import sys

import pytest

from perflab import gpus
from perflab.errors import PerflabError
from perflab.gpus import Gpu, capabilities, default_gpu, from_device, gpu, gpu_names, limits_of

# FP16/BF16 tensor FLOP per clock and SM, dense, FP32 accumulate: one figure a chip family, from NVIDIA's whitepapers.
TENSOR_RATES = {512, 1024, 2048, 4096, 8192}


def rows(name: str) -> list[dict[str, str]]:
    with (gpus.FACTS / name).open(newline="") as stream:
        return list(csv.DictReader(stream))


def listed_with(dtype: str) -> list[str]:
    """The rows that can be checked: a blank cell is unknown, and there is nothing to check it against."""
    return [name for name in gpu_names() if gpu(name).clock_hz and dtype in gpu(name).peaks]


def test_most_rows_can_be_checked() -> None:
    assert len(listed_with("float32")) >= 20 and len(listed_with("float16")) >= 18


@pytest.mark.parametrize("name", listed_with("float32"))
def test_fp32_peak_is_lanes_times_clock(name: str) -> None:
    found = gpu(name)
    assert found.sm_count and found.clock_hz
    computed = found.sm_count * found.limits.fp32_lanes_per_sm * 2 * found.clock_hz
    assert found.peaks["float32"] == pytest.approx(computed, rel=0.03)


@pytest.mark.parametrize("name", listed_with("float16"))
def test_tensor_peak_is_dense_at_a_plausible_clock(name: str) -> None:
    """A sparse peak, or another variant's, is off by a factor of two: no clock explains it."""
    found = gpu(name)
    assert found.sm_count and found.clock_hz
    per_clock = found.peaks["float16"] / found.sm_count / found.clock_hz
    assert any(0.91 < per_clock / rate < 1.01 for rate in TENSOR_RATES), per_clock
    for dtype, ratio in {"bfloat16": 1, "tf32": 0.5, "float8": 2}.items():
        if dtype in found.peaks:
            assert found.peaks[dtype] / found.peaks["float16"] == pytest.approx(ratio, rel=0.03), dtype


@pytest.mark.parametrize("file", ["gpus.csv", "capabilities.csv"])
def test_every_row_has_a_readable_source_and_no_zero(file: str) -> None:
    for row in rows(file):
        source = row["source"]
        assert len(source) > 15, row
        assert source.count("(") == source.count(")") and not re.search(r"\s{2}|;\s*;|\(\s|;\s*$|/work|/home|/usr", source)
        assert "0" not in [value for key, value in row.items() if key not in ("source", "shared_reserved_bytes")]


def test_capabilities_are_consistent() -> None:
    for capability in capabilities():
        sm = limits_of(capability)
        assert sm.threads_per_sm == 32 * sm.warps_per_sm
        assert sm.shared_per_sm_bytes == sm.carveout_bytes[-1] == max(sm.carveout_bytes)
        assert list(sm.carveout_bytes) == sorted(set(sm.carveout_bytes))
        assert sm.shared_per_block_optin_bytes + sm.shared_reserved_bytes == sm.shared_per_sm_bytes
        assert (sm.barriers_per_sm is None) == (float(capability) < 9)
    assert {gpu(name).capability for name in gpu_names()} <= set(capabilities())


def test_no_two_gpus_share_a_name() -> None:
    names = [gpus._key(name) for row in rows("gpus.csv") for name in (row["name"], *filter(None, row["aliases"].split("|")))]
    assert len(names) == len(set(names))
    assert not any(gpus._ARCHITECTURE.fullmatch(name) for name in names)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("H200", "H200"),
        ("NVIDIA H200", "H200"),
        ("h200 sxm", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("Tesla T4", "T4"),
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("RTX PRO 6000", "RTX PRO 6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server"),
        ("NVIDIA GB10", "GB10"),
    ],
)
def test_names_that_people_and_drivers_use(asked: str, name: str) -> None:
    assert gpu(asked).name == name


@pytest.mark.parametrize("capability", capabilities())
def test_an_architecture_has_limits_and_nothing_else(capability: str) -> None:
    digits = capability.replace(".", "")
    for asked in (capability, f"sm_{digits}", f"sm_{digits}a", f"SM_{digits}f", f"compute_{digits}"):
        found = gpu(asked)
        assert (found.capability, found.architecture, found.name) == (capability, f"sm_{digits}", f"sm_{digits}")
        assert found.sm_count is None and found.clock_hz is None and not found.peaks
        assert found.limits == limits_of(capability)


@pytest.mark.parametrize("asked", ["H20", "sm_99", "90", "", "RTX 409", "NVIDIA H200 NVL", "9.9"])
def test_unknown_names_list_what_is_known(asked: str) -> None:
    with pytest.raises(PerflabError) as error:
        gpu(asked)
    for name in (*gpu_names(), "sm_90", "sm_121"):
        assert name in str(error.value)


def test_did_you_mean() -> None:
    with pytest.raises(PerflabError, match='Did you mean "H200"'):
        gpu("H20")


def test_facts_of_the_h200() -> None:
    h200 = gpu("H200")
    assert (h200.sm_count, h200.clock_hz, h200.memory_bytes_per_second) == (132, 1.98e9, 4.8e12)
    assert h200.l2_bytes == 60 * 1024 * 1024
    assert h200.peaks["bfloat16"] == pytest.approx(989.5e12)
    assert gpu(h200) is h200


def test_unknown_is_none_and_never_zero() -> None:
    server = gpu("RTX PRO 6000 Server")
    assert server.clock_hz is None and "bfloat16" not in server.peaks and gpu("GH200").l2_bytes is None


def test_a_gpu_is_a_value() -> None:
    h200 = gpu("H200")
    assert pickle.loads(pickle.dumps(h200)) == h200
    assert len({h200, gpu("NVIDIA H200"), gpu("H100")}) == 2


def test_default_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERFLAB_GPU", raising=False)
    assert default_gpu().name == "H200"
    assert default_gpu(lambda: None).name == "H200"
    assert default_gpu(lambda: gpu("T4")).name == "T4"
    monkeypatch.setenv("PERFLAB_GPU", "sm_120")
    assert default_gpu(lambda: gpu("T4")).name == "sm_120"
    monkeypatch.setenv("PERFLAB_GPU", "H2000")
    with pytest.raises(PerflabError, match="H2000"):
        default_gpu()


def test_a_live_device_overrides_the_table() -> None:
    found = from_device({"name": "NVIDIA H200", "capability": "9.0", "clock_hz": 1.7e9, "l2_bytes": 1, "sm_count": None})
    assert (found.name, found.clock_hz, found.l2_bytes, found.sm_count) == ("NVIDIA H200", 1.7e9, 1, 132)
    assert found.peaks == gpu("H200").peaks and found.limits == gpu("H200").limits
    other = from_device({"name": "NVIDIA H200", "capability": "9.0", "shared_per_sm_bytes": 100_000, "warps_per_sm": 48})
    assert (other.limits.shared_per_sm_bytes, other.limits.warps_per_sm) == (100_000, 48)


def test_a_slice_of_a_gpu_keeps_no_peak_of_the_whole() -> None:
    found = from_device({"name": "NVIDIA H200", "capability": "9.0", "sm_count": 16})
    assert found.sm_count == 16 and not found.peaks and found.memory_bytes_per_second is None


def test_an_unlisted_device_has_the_limits_of_its_capability() -> None:
    found = from_device({"name": "NVIDIA RTX 5000 Whatever", "capability": "12.0", "sm_count": 99})
    assert (found.name, found.sm_count, found.limits) == ("NVIDIA RTX 5000 Whatever", 99, limits_of("12.0"))
    assert not found.peaks and found.clock_hz is None
    # A known name on another chip is not the product of the table.
    assert from_device({"name": "NVIDIA H200", "capability": "12.0"}).sm_count is None


def test_a_device_of_an_unknown_capability() -> None:
    with pytest.raises(PerflabError, match="99.0.*Known: 7.0"):
        from_device({"name": "NVIDIA X1", "capability": "99.0"})


def test_a_reader_sees_a_table() -> None:
    text = str(gpu("H200"))
    assert "4,800 GB/s" in text and "60 MiB" in text and "990 TFLOP/s" in text and "published" in text
    assert "text/html" in gpu("H200")._repr_mimebundle_() and "| SMs | 132 |" in gpu("H200").markdown().replace("  ", " ")
    assert "| SMs | - |" in gpu("sm_90").markdown()


def test_import_is_cheap() -> None:
    heavy = "{'numpy', 'pandas', 'matplotlib', 'cupy', 'cuda'}"
    code = (
        "import sys; from perflab import gpus, occupancy_model as o, roofline; gpus.gpu('H200'); str(o.occupancy('H200'));"
        f"roofline.datasheet_roofs('H200', 'float32'); sys.exit(str(sorted({heavy} & set(sys.modules)) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""


def test_gpu_is_frozen() -> None:
    with pytest.raises(AttributeError):
        gpu("H200").name = "other"  # type: ignore[misc]
    assert isinstance(gpu("H200"), Gpu)
