"""Optimizers, waits and memory on a GPU, cheap and decisive checks first. None has a bound on time."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import descend
import descend.optim
from descend.errors import NumericalError
from descend.optim.compiler import nvrtc
from descend.runtime.communicator import Communicator
from descend.runtime.gpu_copies import send_to_gpu
from descend.runtime.gradient_check import GradientCheck
from tests.cuda.steps import give_gradients, milliseconds, parameters, resnet50_like, with_gradients

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Figure = Callable[[str, object], None]


def test_01_host(figure: Figure) -> None:
    figure("device", torch.cuda.get_device_name())
    figure("compute capability", torch.cuda.get_device_capability())
    figure("torch, CUDA, cuDNN", f"{torch.__version__}, {torch.version.cuda}, {torch.backends.cudnn.version()}")
    figure("CUDA_HOME", os.environ.get("CUDA_HOME", "not set"))
    for tool in ("g++", "nvcc", "ptxas"):
        figure(tool, shutil.which(tool) or "not on the path")
    figure("NVRTC compiles for it", nvrtc.target(torch.cuda.get_device_capability()))
    allowed = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    figure("TF32 in products, in cuDNN", allowed)


BUILD = """
import time, torch, descend.optim
p = torch.nn.Parameter(torch.randn(5000, device="cuda"))
ours = descend.optim.AdamW([p], lr=1e-3, runner="compiled")
p.grad = torch.randn_like(p)
begin = time.perf_counter()
ours.step()
torch.cuda.synchronize()
assert ours.is_compiled
print(time.perf_counter() - begin)
"""


def test_02_build_without_a_toolkit(figure: Figure, tmp_path: Path) -> None:
    """Kernels are built where there is no toolkit and no compiler, and found in the cache by the next process."""
    environment = {k: v for k, v in os.environ.items() if k not in ("CUDA_HOME", "CUDA_PATH")}
    environment |= {"PATH": str(tmp_path), "DESCEND_CACHE_DIR": str(tmp_path / "cache")}
    for name in ("first step, kernels built", "first step, kernels in the cache"):
        done = subprocess.run(
            [sys.executable, "-c", BUILD], env=environment, text=True, capture_output=True, check=False, timeout=200
        )
        assert done.returncode == 0, done.stderr
        figure(name, f"{float(done.stdout):.2f} s")
    assert list((tmp_path / "cache" / "kernels").glob("*.cubin"))


@pytest.mark.parametrize("name", ["AdamW", "Adafactor"])
@pytest.mark.parametrize("policy", ["raise", "allow"])
def test_04_no_wait(policy: Any, name: str) -> None:
    """The host has launched a step before the device has done what was launched before it."""
    params = with_gradients([*resnet50_like(), nn.Parameter(torch.randn(512, 100, device="cuda"))])
    ours = getattr(descend.optim, name)(params, lr=1e-3, runner="compiled", on_nonfinite=policy)
    for _ in range(3):
        ours.step()
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    slept = torch.cuda.Event()
    slept.record()
    torch.cuda.set_sync_debug_mode("error")
    ours.step()
    assert not slept.query()


GRAPH = """
import sys, torch, descend.optim
from tests.cuda.steps import milliseconds, parameters, with_gradients

def prepared():
    torch.manual_seed(0)
    params = with_gradients(parameters())
    ours = getattr(descend.optim, sys.argv[1])(params, lr=1e-2, runner="compiled")
    for _ in range(3):
        ours.step()
    return params, ours

params, ours = prepared()
for _ in range(59):
    ours.step()
expected = [p.detach().clone() for p in params]

params, ours = prepared()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    ours.step()
for _ in range(4):
    graph.replay()
us = 1e3 * milliseconds(graph.replay)  # 55 more
ours.settle()
assert ours.updates == 3 + 4 + 55, ours.updates
assert all(map(torch.equal, [p.detach() for p in params], expected))
for group in ours.param_groups:
    group["lr"] = 1e-3
again = torch.cuda.CUDAGraph()
with torch.cuda.graph(again):
    ours.step()
again.replay()
ours.settle()
assert ours.updates == 63, ours.updates
print(us)
"""


@pytest.mark.parametrize("name", ["LAMB", "AdamW"])
def test_05_graph(name: str, figure: Figure) -> None:
    """Captured steps, replayed, are the same bits as steps one by one. In a process, since a failed capture lasts."""
    done = subprocess.run([sys.executable, "-c", GRAPH, name], text=True, capture_output=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    figure(f"{name}, small tensors, in a graph", f"{float(done.stdout):.1f} us")


@pytest.mark.parametrize("name", ["AdamW", "SGD", "LAMB"])
def test_06_launches(name: str, figure: Figure) -> None:
    params = with_gradients(resnet50_like())
    options: dict[str, Any] = {"momentum": 0.9} if name == "SGD" else {}
    ours = getattr(descend.optim, name)(params, lr=1e-5, runner="compiled", on_nonfinite="allow", **options)
    checked = getattr(descend.optim, name)(with_gradients(resnet50_like()), lr=1e-5, runner="compiled", **options)
    torch_class = getattr(torch.optim, name, None)
    for _ in range(3):
        ours.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        ours.step()
        torch.cuda.synchronize()
    kernels = [event.name for event in profile.events() if event.name.startswith(("stage", "numbers", "check"))]
    figure(f"{name}: launches of a step", len(kernels))
    figure(f"{name} on ResNet-50's size", f"{milliseconds(ours.step):.3f} ms, {milliseconds(checked.step):.3f} checked")
    if torch_class is not None:
        theirs = torch_class(with_gradients(resnet50_like()), lr=1e-5, fused=True, **options)
        figure(f"torch {name}, fused", f"{milliseconds(theirs.step):.3f} ms")
    assert sum(kernel.startswith("stage") for kernel in kernels) == (2 if name == "LAMB" else 1)


CAPTURE = """
import sys, torch, descend.optim
from descend.errors import ConfigurationError
from tests.cuda.steps import parameters, with_gradients
params = [p for p in with_gradients(parameters()) if p.ndim == 2]
ours = getattr(descend.optim, sys.argv[1])(params, lr=1e-2, on_nonfinite="allow", runner="compiled")
for _ in range(3):
    ours.step()
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        ours.step()
except ConfigurationError as problem:
    print(problem)
"""


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_05_a_capture_with_numbers_of_the_host_is_refused(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CAPTURE, name], text=True, capture_output=True, check=False, timeout=200
    )
    assert "leave rules of whole matrices out of it" in done.stdout, done.stderr


CPU_FIT = """
import torch, descend
from torch import nn
x, y = torch.randn(64, 5), torch.randint(0, 3, (64,))
optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
descend.fit(nn.Linear(5, 3), "cross_entropy", (x, y), optimizer=optimizer, batch_size=16, stop=descend.Steps(4))
assert not torch.cuda.is_initialized()
"""


def test_07_a_fit_on_the_cpu_leaves_cuda_alone() -> None:
    done = subprocess.run([sys.executable, "-c", CPU_FIT], text=True, capture_output=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr


def fitted(steps: int, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to("cuda")
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(1024, 64, generator=draw), torch.randint(0, 10, (1024,), generator=draw)
    given = {"optimizer": functools.partial(descend.optim.AdamW, lr=1e-3), "batch_size": 64, **options}
    descend.fit(module, "cross_entropy", (x, y), stop=descend.Steps(steps), verbose=False, **given)
    return module


@pytest.mark.parametrize("policy", ["stop", "allow"])
def test_08_waits_of_fit(policy: str, figure: Figure) -> None:
    """How often a step of `fit` waits for the device: never, also with the check that the next step settles."""

    def waits(steps: int) -> int:
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fitted(steps, on_nonfinite=policy)
        torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(warning.message) for warning in caught)

    fitted(3, on_nonfinite=policy)
    each = (waits(12) - waits(4)) / 8
    figure(f"waits of a step of fit, on_nonfinite={policy}", each)
    assert each == 0


def test_09_nonfinite_gradients() -> None:
    params = parameters()
    ours = descend.optim.AdamW(params, lr=1e-2, runner="compiled")
    for step in range(2):
        give_gradients(params, step)
        ours.step()
    before = [p.detach().clone() for p in params]
    assert params[3].grad is not None
    params[3].grad[-1] = float("nan")
    ours.step()
    assert all(map(torch.equal, [p.detach() for p in params], before))
    with pytest.raises(NumericalError, match="weights 3"):
        ours.step()
    assert ours.updates == 2

    module = nn.Linear(8, 8, device="cuda")
    scaled = descend.optim.AdamW(module.parameters(), lr=1e-2, runner="compiled")
    twin = nn.Linear(8, 8, device="cuda")
    twin.load_state_dict(module.state_dict())
    theirs = torch.optim.AdamW(twin.parameters(), lr=1e-2, fused=True, weight_decay=scaled.defaults["weight_decay"])
    for net, optimizer in ((module, scaled), (twin, theirs)):
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=3)
        for step in range(8):
            x = torch.ones(4, 8, device="cuda") * (float("inf") if step == 4 else 1 + step)
            optimizer.zero_grad()
            scaler.scale(net(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    scaled.settle()
    assert (scaled.updates, scaled.skipped) == (7, 1)
    torch.testing.assert_close(module.weight, twin.weight, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("elements", [1000, 10_000_000])  # looked at in one launch, and read only
def test_09_a_bad_gradient_of_any_optimizer_is_named(elements: int) -> None:
    params = {f"p{i}": nn.Parameter(torch.ones(n, device="cuda")) for i, n in enumerate((3, elements, 5))}
    for p in params.values():
        p.grad = torch.full_like(p, 1e38)
    check = GradientCheck(params)
    assert check.nonfinite() == []
    for bad in (float("nan"), float("inf"), -float("inf")):
        params["p1"].grad = torch.full_like(params["p1"], 1e38)
        params["p1"].grad[-1] = bad
        assert check.nonfinite() == ["p1"]
        params["p1"].grad[-1] = 0.0
        assert check.nonfinite() == []
    assert float(params["p2"].grad[0]) == float(torch.tensor(1e38))


class Wide(nn.Module):
    """A module that takes about 64 MB a sample in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 4096), nn.Linear(4096, 3)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.inner(x)[:, None].expand(-1, 2048, -1) * torch.ones((), device=x.device)
        return self.outer(torch.relu(wide).mean(1))


def test_10_out_of_memory(figure: Figure) -> None:
    """With memory for some samples only, micro-batches are halved until they fit, and the memory is given back."""
    total = torch.cuda.get_device_properties(0).total_memory
    before = torch.cuda.memory_allocated()
    torch.manual_seed(0)
    module = Wide().to("cuda")
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 16, generator=draw), torch.randint(0, 3, (64,), generator=draw)
    torch.cuda.set_per_process_memory_fraction(min(1.0, (before + 2**31) / total))
    try:
        result = descend.fit(
            module,
            "cross_entropy",
            (x, y),
            optimizer=functools.partial(descend.optim.SGD, lr=0.01),
            batch_size=64,
            micro_batch_size="auto",
            stop=descend.Steps(2),
            verbose=False,
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert result.module is module
    del result, module
    torch.cuda.empty_cache()
    figure("memory still allocated after running out of it", f"{torch.cuda.memory_allocated() - before:,} bytes")


@pytest.mark.parametrize("name", ["Muon", "SOAP", "Adafactor"])
def test_12_matrices(name: str, figure: Figure) -> None:
    params = with_gradients([nn.Parameter(torch.randn(512, 512, device="cuda") * 0.02) for _ in range(12)])
    ours = getattr(descend.optim, name)(params, lr=1e-3)
    figure(f"{name}, 12 matrices of 512 x 512", f"{milliseconds(ours.step, count=10):.2f} ms")
    assert all(bool(p.isfinite().all()) for p in params)


def test_13_batches(figure: Figure) -> None:
    """Batches arrive whole though the host changes its arrays at once, and while the device is busy."""
    host, device = torch.empty(256, 4096), torch.device("cuda", torch.cuda.current_device())
    for rows in (16, 256):  # in the stream of the step, and in one of its own
        part, sums = host[:rows], list[Tensor]()
        for i in range(20):
            part.fill_(i)
            torch.cuda._sleep(1_000_000)
            sums += [x.sum() for x in send_to_gpu([part, part[:1]], device)]
        assert [float(x) for x in sums] == [i * n for i in range(20) for n in (part.numel(), 4096)]
    begin = time.perf_counter()
    send_to_gpu([host], device)
    figure("host's time to send 4 MB", f"{1e3 * (time.perf_counter() - begin):.2f} ms")
    products = torch.randn(4096, 4096, device=device)
    figure("a product of 4,096 meanwhile", f"{milliseconds(lambda: products @ products, count=10):.2f} ms")


def test_14_resume() -> None:
    """State that was saved while steps go on gives the same bits."""
    params = parameters()
    ours = descend.optim.AdamW(params, lr=1e-2, runner="compiled")
    for step in range(3):
        give_gradients(params, step)
        ours.step()
    weights = [p.detach().clone() for p in params]
    state = ours.state_dict()
    state["state"] = {i: {k: v.clone() for k, v in entry.items()} for i, entry in state["state"].items()}
    for step in range(3, 6):
        give_gradients(params, step)
        ours.step()
    others = [nn.Parameter(x) for x in weights]
    again = descend.optim.AdamW(others, lr=1e-2, runner="compiled")
    again.load_state_dict(state)
    for step in range(3, 6):
        give_gradients(others, step)
        again.step()
    assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))


def test_15_one_rank_of_two_backends(tmp_path: Path) -> None:
    """NCCL takes tensors of the GPU and gloo those of the CPU, in one group."""
    device = torch.device("cuda", torch.cuda.current_device())
    torch.distributed.init_process_group(
        "cpu:gloo,cuda:nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        for place in ("cpu", device):
            x = torch.ones(3, device=place)
            torch.distributed.all_reduce(x)
            assert x.tolist() == [1, 1, 1]
        assert "cpu" in torch.distributed.get_backend_config(None)
        one = Communicator.current(device)
        assert one.all_gather_object({"a": 1}) == [{"a": 1}]
        assert [part.tolist() for part in one.all_gather(torch.ones(2, 1, device=device))] == [[[1.0], [1.0]]]
    finally:
        torch.distributed.destroy_process_group()
