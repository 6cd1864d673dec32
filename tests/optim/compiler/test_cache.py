"""Compiled kernels: never waited for by a run that does not need them, and not needed at all."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from system_needs import needs_compiler

import descend.optim
from descend.errors import RuleError
from descend.optim.compiler import cache as kernels
from descend.optim.compiler import native
from descend.optim.compiler.trace import trace
from descend.optim.engine import arena_manager
from descend.optim.engine.settings import GroupSettings
from descend.optim.rules import Rule


@pytest.fixture
def workshop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> kernels.KernelCompiler:
    """An empty cache, and a process that remembers no kernel."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    fresh = kernels.KernelCompiler()
    monkeypatch.setattr(arena_manager, "_compiler", fresh)
    return fresh


def optimizer(runner: str = "auto") -> Any:
    p = torch.nn.Parameter(torch.ones(100))
    p.grad = torch.ones(100)
    return descend.optim.Adam([p], runner=runner)


def test_a_short_run_starts_no_compiler(workshop: kernels.KernelCompiler) -> None:
    ours = optimizer()
    for _ in range(20):
        ours.step()
    assert not workshop.building
    assert not kernels.folder().exists()


def test_without_a_compiler_everything_works_and_one_line_says_so(
    workshop: kernels.KernelCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(kernels, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(kernels.CompilePolicy, "may_look", lambda _: True)
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler is on the path; this optimizer runs eagerly"):
        optimizer().step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer().step()
    with pytest.raises(RuleError, match='runner="compiled" is not available here'):
        optimizer("compiled").step()


@dataclass(frozen=True)
class Unwritten(Rule):
    def direction(self, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.sinc(g), None


def test_a_rule_that_has_no_form_in_cpp_runs_eagerly_and_one_line_says_so(
    workshop: kernels.KernelCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", sys.executable)  # not asked, since there is nothing to compile
    monkeypatch.setattr(kernels, "PATIENCE_SECONDS", -1.0)
    p = torch.nn.Parameter(torch.zeros(4))
    p.grad = torch.tensor([0.0, 0.5, 1.0, -0.5])
    with pytest.warns(UserWarning, match=r"a kernel cannot be made \(sinc has no form in C\+\+ here\)"):
        descend.optim.Optimizer([p], Unwritten(), lr=1.0).step()
    torch.testing.assert_close(p.detach(), torch.tensor([-1.0, -2 / math.pi, 0.0, -2 / math.pi]))


def test_a_kernel_that_cannot_be_loaded_or_trusted_is_left_aside(workshop: kernels.KernelCompiler) -> None:
    ours = optimizer("blocks")
    ours.step()
    path = arena_manager.jobs_of(ours._arenas.arenas[0])[0].path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a kernel")
    path.chmod(0o666)
    auto = optimizer()
    with pytest.warns(UserWarning, match="may have been written by another user"):
        auto.step()
    torch.testing.assert_close(auto.param_groups[0]["params"][0], ours.param_groups[0]["params"][0])
    path.chmod(0o600)
    workshop.failed.clear()
    with pytest.warns(UserWarning, match="cannot be loaded"):
        optimizer().step()


def test_one_kernel_serves_all_sizes_rates_and_constants() -> None:
    def jobs(shape: tuple[int, ...], **options: Any) -> list[kernels.CompileJob]:
        p = torch.nn.Parameter(torch.ones(shape))
        p.grad = torch.ones(shape)
        ours = descend.optim.Adam([p], runner="blocks", **options)
        ours.step()
        return [*arena_manager.jobs_of(ours._arenas.arenas[0])]

    assert jobs((3,)) == jobs((500, 70), lr=0.3, beta1=0.5, eps=1e-3)
    assert jobs((3,), weight_decay=0.1) == jobs((4, 5), weight_decay=0.2)
    assert jobs((3,)) != jobs((3,), weight_decay=0.1)


def adam_structure() -> str:
    return trace(GroupSettings(descend.optim.rules.Adam(), 0.1, 0.0, "coupled", 1.0, None, True), False).structure


def adam_job() -> native.CpuCompileJob:
    return native.CpuCompileJob(adam_structure(), "float32", None)


def test_kernels_of_other_sources_are_other_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = adam_job().path
    package = Path(kernels.__file__).parents[1]
    for name in kernels.SOURCES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((package / name).read_bytes())
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "compiler" / "cache.py"))
    kernels.digest.cache_clear()
    assert adam_job().path == here
    (tmp_path / "compiler" / "partition.py").write_bytes(b"# another meaning")
    kernels.digest.cache_clear()
    there = adam_job().path
    monkeypatch.undo()
    kernels.digest.cache_clear()
    assert there != here == adam_job().path


def test_sources_are_all_files_of_the_compiler_that_decide_what_a_kernel_does() -> None:
    folder = Path(kernels.__file__).parent
    files = {f"compiler/{x.name}" for x in folder.iterdir() if x.is_file()}
    # The cache itself only stores; the interpreter computes without a compiled kernel.
    assert files - {f"compiler/{name}.py" for name in ("__init__", "cache", "interpreter")} == {
        name for name in kernels.SOURCES if name.startswith("compiler/")
    }
    assert all((folder.parent / name).is_file() for name in kernels.SOURCES)


@pytest.mark.slow
@pytest.mark.timeout(400)
@needs_compiler
def test_a_kernel_under_another_name_is_left_aside(workshop: kernels.KernelCompiler) -> None:
    ours = optimizer("compiled")
    ours.step()
    (job,) = arena_manager.jobs_of(ours._arenas.arenas[0])
    other = dataclasses.replace(job, dtype="float64")
    shutil.copy(job.path, other.path)
    assert workshop.take([job])
    with pytest.warns(UserWarning, match="holds another kernel than its name says"):
        assert not workshop.take([other])


@pytest.mark.slow
@pytest.mark.timeout(400)
@needs_compiler
def test_a_long_run_gets_its_kernel_in_the_background(
    workshop: kernels.KernelCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "PATIENCE_SECONDS", 0.0)
    ours, plain = optimizer(), optimizer("plain")
    until = time.monotonic() + 300.0
    while ours._arenas.arenas == [] or (not ours._arenas.arenas[0].native and time.monotonic() < until):
        ours.step()
        plain.step()
        time.sleep(0.05)
    assert ours._arenas.arenas[0].native
    torch.testing.assert_close(ours.param_groups[0]["params"][0], plain.param_groups[0]["params"][0])


@pytest.mark.slow
def test_nothing_is_left_running_when_a_run_ends_early(tmp_path: Path) -> None:
    script = (
        "import torch, descend.optim\n"
        "from descend.optim.compiler import cache\n"
        "from descend.optim.engine import arena_manager\n"
        "cache.PATIENCE_SECONDS = -1.0\n"
        "p = torch.nn.Parameter(torch.ones(10)); p.grad = torch.ones(10)\n"
        "descend.optim.Adam([p]).step()\n"
        "print([process.pid for process in arena_manager._compiler.building.values()][0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    pid = int(done.stdout)
    until = time.monotonic() + 10.0
    while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < until:
        if b"c++" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            break
        time.sleep(0.1)
    else:
        assert not Path(f"/proc/{pid}").exists()
