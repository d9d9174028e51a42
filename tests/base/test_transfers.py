"""What is fetched is what was there, in one wait; what is uploaded is not waited for."""

import pytest
import simulated
import torch

from llmprobe.base import transfers
from llmprobe.base.transfers import as_float64, fetch, fetch_arrays, upload, widened

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool)
SHAPES = ((), (0, 3), (5,), (2, 3))


def tensors(device):
    generator = torch.Generator().manual_seed(0)
    every = [
        torch.randint(-2, 3, shape, generator=generator).to(dtype)
        for shape in SHAPES
        for dtype in DTYPES
    ]
    return [x.to(device) for x in (*every, torch.arange(12).reshape(3, 4).T[::2])]


def test_many_tensors_come_from_each_device_in_one_copy():
    simulated.start()
    here, there = tensors("cpu"), [*tensors("sim:0"), *tensors("sim:1"), *tensors("cpu")]
    with simulated.watching() as seen:
        found = fetch(there)
    assert seen.waits == {"fetch": 2}
    for x, y in zip(found, here * 3, strict=True):
        assert (x.device.type, x.dtype, x.shape) == ("cpu", y.dtype, y.shape)
        assert torch.equal(x, y)


def test_arrays_share_no_memory_with_tensors():
    x = torch.arange(3.0)
    [array] = fetch_arrays([x])
    x += 1
    assert array.tolist() == [0, 1, 2]


def test_the_host_does_not_wait_for_an_upload():
    simulated.start()
    device = torch.device("sim", 1)
    for x in tensors("cpu"):
        with simulated.watching() as seen:
            there = upload(x, device)
        assert not seen.n_waits
        assert there.device == device
        assert torch.equal(there.cpu(), x)
    assert upload(there, device) is there
    assert upload(torch.ones(2), device, torch.float16).dtype == torch.float16
    assert upload(x, torch.device("cpu")) is x


@pytest.fixture
def narrow(monkeypatch):
    """A device without float64, as Apple's."""
    simulated.start()
    monkeypatch.setattr(transfers, "WITHOUT_FLOAT64", {"sim"})
    with simulated.without_types(torch.float64):
        yield torch.device("sim")


def test_float64_is_where_a_device_has_it(narrow):
    there = torch.ones(3).to(narrow)
    with pytest.raises(TypeError, match=r"no torch\.float64"):
        there.double()
    assert (as_float64(there).dtype, as_float64(there).device.type) == (torch.float64, "cpu")
    assert (widened(there).dtype, widened(there).device.type) == (torch.float32, "sim")
    assert widened(torch.ones(3)).dtype == as_float64(torch.ones(3)).dtype == torch.float64
