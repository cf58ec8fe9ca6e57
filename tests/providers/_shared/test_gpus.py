"""GPUs of a replica: exporters before and after DCGM 4.6, MIG slices, blanks, and who is not there at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers._shared.gpus import GPU_NAMES, Gpus, gpu_use
from providers._shared.metrics_page import read_page

BLANK = "9223372036854775794"


def use(text: str, how: Gpus = Gpus.MEAN) -> float | None:
    page = read_page(text.encode(), GPU_NAMES)
    assert page.fault == ""
    return gpu_use(page, how)


DEV = 'DCGM_FI_DEV_GPU_UTIL{{gpu="{0}",UUID="GPU-{0}"}} {1}\n'
ACTIVE = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="{0}",UUID="GPU-{0}"}} {1}\n'
SLICE = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="{0}",UUID="GPU-{0}",GPU_I_PROFILE="1g.10gb",GPU_I_ID="{1}"}} {2}\n'


@pytest.mark.parametrize(
    ("page", "mean", "largest"),
    [
        # 0..100 or 0..1, by exporter
        (DEV.format(0, 80) + DEV.format(1, 40), 0.6, 0.8),
        (ACTIVE.format(0, 0.8), 0.8, 0.8),
        ('DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{gpu="0"} 0.7\n', 0.7, 0.7),
        ('nvidia_smi_utilization_gpu_ratio{uuid="a"} 1\nnvidia_smi_utilization_gpu_ratio{uuid="b"} 0\n', 0.5, 1.0),
        ('nv_gpu_utilization{gpu_uuid="GPU-a"} 0.25\n', 0.25, 0.25),
        ('GPUUtilization{Level="Host",DeviceId="0",Hostname="h",} 50\n', 0.5, 0.5),
        # one field for a GPU, not both; the first that has a value
        (DEV.format(0, 90) + ACTIVE.format(0, 0.1), 0.9, 0.9),
        (DEV.format(0, BLANK) + ACTIVE.format(0, 0.1), 0.1, 0.1),
        # a MIG card beside a whole one: its slices, each by itself, and never the card's own sum
        (DEV.format(0, 90) + SLICE.format(1, 3, 0.5) + SLICE.format(1, 4, 0.1), 0.5, 0.9),
        (DEV.format(1, BLANK) + ACTIVE.format(1, 0.9) + SLICE.format(1, 3, 0.5) + SLICE.format(1, 4, 0.1), 0.3, 0.5),
        # one whose values are blank is left out, not counted as idle
        (DEV.format(0, 80) + DEV.format(1, BLANK), 0.8, 0.8),
        (DEV.format(0, 80) + DEV.format(1, -1), 0.8, 0.8),
        # idle is 0, absence is not
        (DEV.format(0, 0), 0.0, 0.0),
        (DEV.format(0, BLANK), None, None),
        ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\n', None, None),
        # the name that meant 0..100 in one version and 0..1 in the next is not guessed at
        ('DCGM_FI_DEV_GPU_UTIL_RATIO{gpu="0"} 1\n', None, None),
        ("", None, None),
    ],
)
def test_what_the_gpus_of_a_replica_do(page: str, mean: float | None, largest: float | None) -> None:
    assert use(page) == (None if mean is None else pytest.approx(mean))
    assert use(page, Gpus.MAX) == (None if largest is None else pytest.approx(largest))


def test_two_exporters_of_one_host_tell_of_one_gpu() -> None:
    assert use(DEV.format(0, 60) + 'nv_gpu_utilization{gpu_uuid="GPU-0"} 0.1\n') == pytest.approx(0.6)


@given(values=st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=8), how=st.sampled_from(Gpus))
def test_it_is_a_share_or_nothing(values: list[float], how: Gpus) -> None:
    found = use("".join(DEV.format(gpu, value) for gpu, value in enumerate(values)), how)
    assert found is None or 0.0 <= found <= 1.0
