"""The simulated device itself: it computes, refuses to mix, and counts every wait."""

import copy

import pytest
import simulated
import torch
from families import batch, tiny
from torch import nn

simulated.start()
X = torch.arange(12.0).reshape(3, 4)


def there(x, index=0):
    return x.to(f"sim:{index}")


WAITS = {
    "item": lambda x: x.sum().item(),
    "a branch": lambda x: bool(x.sum() > 0),
    "a list": lambda x: x.tolist(),
    "to the host": lambda x: x.cpu(),
    "to the host without waiting, into ordinary memory": lambda x: x.to("cpu", non_blocking=True),
    "nonzero": lambda x: x.nonzero(),
    "a mask as index": lambda x: x[x > 1],
    "numbers under a mask": lambda x: x.__setitem__(x > 1, x[0, :1].expand(10)),
    "masked_select": lambda x: x.masked_select(x > 1),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "unique": lambda x: x.unique(),
    "numbers from the host": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "from ordinary memory": lambda x: X.to(x.device),
    "without waiting, from ordinary memory": lambda x: X.to(x.device, non_blocking=True),
    "a list as index": lambda x: x[[0, 2]],
}
GOES_ON = {
    "arithmetic": lambda x: (x @ x.T).softmax(-1) + 1,
    "a number of the host": lambda x: x * torch.tensor(2.0),
    "a fill under a mask": lambda x: x.__setitem__(x > 1, 0.0),
    "where": lambda x: torch.where(x > 1, x, 0.0),
    "shapes alone": lambda x: x.to("meta"),
    "made there": lambda x: torch.arange(5, device=x.device) + torch.zeros(5, device=x.device),
    "from pinned memory": lambda x: X.pin_memory().to(x.device, non_blocking=True),
    "sorting": lambda x: (x.sort().values, x.topk(2)),
    "a slice": lambda x: x[1:, ::2].clone(),
    "a shape in place": lambda x: x.clone().unsqueeze_(0).squeeze_(0) + x,
    "indices there": lambda x: x[torch.arange(2, device=x.device)],
}


@pytest.mark.parametrize("what", WAITS)
def test_every_wait_is_counted(what):
    x = there(X)
    with simulated.watching() as seen:
        WAITS[what](x)
    assert seen.n_waits == 1


@pytest.mark.parametrize("what", GOES_ON)
def test_other_work_is_queued(what):
    x = there(X)
    with simulated.watching() as seen:
        GOES_ON[what](x)
    assert seen.n_waits == 0
    assert seen.events


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + X,
        lambda x: x @ X.T,
        lambda x: torch.cat([x, X]),
        lambda x: x + there(X, 1),
        lambda x: torch.where(X > 1, x, x),
        lambda x: x.gather(0, torch.zeros(1, 4, dtype=torch.int64)),
        lambda x: x.mul_(X),
    ],
)
def test_devices_do_not_mix(mix):
    with pytest.raises(RuntimeError, match="same device"):
        mix(there(X))


def test_numpy_refuses_what_is_not_on_the_host():
    with pytest.raises(TypeError, match="can't convert sim:0"):
        there(X).numpy()


def test_auto_is_the_cpu_unless_a_suite_runs_on_the_device():
    assert torch.accelerator.is_available() == simulated.module.is_default


def test_a_planted_mixing_and_a_planted_wait_in_hooks_are_caught():
    model = copy.deepcopy(tiny("llama")).to("sim")
    tokens = batch("llama", (6,))["input_ids"].to("sim")
    layers = [block.self_attn for block in model.model.layers]
    with torch.no_grad(), simulated.watching() as plain:
        model(tokens)

    def look(module, args, output):
        output[0].sum().item()

    handles = [layer.register_forward_hook(look) for layer in layers]
    with torch.no_grad(), simulated.watching() as planted:
        model(tokens)
    assert planted.n_waits == plain.n_waits + len(layers)
    handles.append(layers[0].register_forward_hook(lambda m, a, out: (out[0] + X[0, 0:1], None)))
    with pytest.raises(RuntimeError, match="same device"), torch.no_grad():
        model(tokens)
    for handle in handles:
        handle.remove()


def test_gradients_and_steps_are_those_of_the_cpu():
    torch.manual_seed(0)
    here = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    moved = copy.deepcopy(here).to("sim")
    for network, x in ((here, X), (moved, there(X))):
        optimizer = torch.optim.AdamW(network.parameters(), fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            network(x).square().sum().backward()
            optimizer.step()
    for one, other in zip(here.parameters(), moved.parameters(), strict=True):
        assert other.device.type == "sim"
        torch.testing.assert_close(one.detach(), other.detach().cpu(), rtol=0, atol=1e-7)


def test_a_module_that_is_converted_on_the_device_has_the_new_type():
    layer = nn.Linear(4, 2).to("sim").double().to("sim:1")
    assert (layer.weight.dtype, str(layer.weight.device)) == (torch.float64, "sim:1")
    assert layer(there(X, 1).double()).dtype == torch.float64
