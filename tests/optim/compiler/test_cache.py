"""Compiled kernels: never waited for by a run that does not need them, and not needed at all."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from other_users import ATTACKER, VICTIM, as_user, needs_root, status_of
from system_needs import needs_compiler

import descend.optim
from descend.errors import RuleError
from descend.files.private_folder import PrivateFolder, load_library
from descend.optim.compiler import cache as kernels
from descend.optim.compiler import native
from descend.optim.compiler.trace import trace
from descend.optim.engine import arena_manager
from descend.optim.engine.settings import GroupSettings
from descend.optim.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def workshop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> kernels.KernelCompiler:
    """An empty cache, and a process that remembers no kernel."""
    monkeypatch.setenv("DESCEND_CACHE_DIR", str(tmp_path))
    fresh = kernels.KernelCompiler()
    monkeypatch.setattr(arena_manager, "_compiler", fresh)
    return fresh


def optimizer(runner: str = "auto") -> Any:
    p = torch.nn.Parameter(torch.ones(100))
    p.grad = torch.ones(100)
    return descend.optim.Adam([p], runner=runner)


def stored(job: kernels.CompileJob, cache: Path, content: bytes) -> Path:
    """A file of the cache."""
    PrivateFolder(cache / "kernels").write(job.file, content)
    return cache / "kernels" / job.file


def test_a_short_run_starts_no_compiler(workshop: kernels.KernelCompiler, tmp_path: Path) -> None:
    ours = optimizer()
    for _ in range(20):
        ours.step()
    assert not workshop.building
    assert not list(tmp_path.iterdir())


def test_without_a_compiler_everything_works_and_one_line_says_so(
    workshop: kernels.KernelCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(kernels, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(kernels.CompilePolicy, "is_due", lambda _: True)
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler is on the path; this optimizer runs eagerly"):
        optimizer().step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer().step()
    with pytest.raises(RuleError, match='runner="compiled" is not available here'):
        optimizer("compiled").step()


@pytest.fixture
def eager(workshop: kernels.KernelCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizers that order kernels at their first step and look for them at each."""
    monkeypatch.setattr(kernels, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(kernels.CompilePolicy, "is_due", lambda _: True)


def fake_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A compiler that is a shell script; it gets the path of its output as `$out`."""
    folder.mkdir()
    script = folder / "cc"
    script.write_text(f"#!/bin/sh\nfor word; do out=$word; done\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))


def goes_on_as_plain(until: Callable[[], bool] = lambda: False, seconds: float = 20.0) -> list[str]:
    """Take steps; returns what was said. Weights are those of the reference updates."""
    ours, plain, steps = optimizer(), optimizer("plain"), 0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        end = time.monotonic() + seconds
        while steps < 3 or (not until() and time.monotonic() < end):
            ours.step()
            plain.step()
            time.sleep(0.01)
            steps += 1
    torch.testing.assert_close(ours.param_groups[0]["params"][0], plain.param_groups[0]["params"][0])
    return [str(one.message) for one in said]


COMPILERS = {
    "fails": ("echo 'no such flag' >&2; exit 1", "compiling a kernel failed (no such flag)"),
    "fails without a word": ("exit 3", "compiling a kernel failed (it ended with code 3)"),
    "is killed": ("kill -9 $$", "compiling a kernel failed (it ended with code -9)"),
    "writes nothing": ("exit 0", "compiling a kernel failed (["),
    "writes no library": ("echo text > $out", "a compiled kernel cannot be loaded ("),
    "writes an empty file": ("> $out", "a compiled kernel cannot be loaded ("),
    "talks without end": ("head -c 1000000 /dev/zero | tr '\\0' 'x' >&2; echo >&2; echo last >&2; exit 1", "(last)"),
}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("what", COMPILERS)
def test_whatever_a_compiler_does_training_goes_on_and_one_line_says_so(
    workshop: kernels.KernelCompiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    body, expected = COMPILERS[what]
    fake_compiler(tmp_path / "bin", monkeypatch, body)
    said = goes_on_as_plain(lambda: len(workshop.failed) == 2)
    assert len(said) == 1
    assert expected in said[0]
    assert "runs eagerly" in said[0]
    with pytest.raises(RuleError, match='runner="compiled" is not available here'):
        optimizer("compiled").step()


@pytest.mark.usefixtures("eager")
def test_a_compiler_that_hangs_is_stopped(
    workshop: kernels.KernelCompiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor does it hold up a run that it does not read its source, or ignores requests to end."""
    fake_compiler(tmp_path / "bin", monkeypatch, "trap '' TERM INT; while true; do sleep 1; done")
    monkeypatch.setattr(kernels, "COMPILER_SECONDS", 0.5)
    said = goes_on_as_plain(lambda: len(workshop.failed) == 2)
    assert len(said) == 1
    assert "compiling a kernel failed (it ended with code -9)" in said[0]
    with pytest.raises(RuleError, match="not available"):
        optimizer("compiled").step()


PLACES = {
    "a file": lambda path: path.touch(),
    "of everybody": lambda path: (path.mkdir(), path.chmod(0o777)),
    "the folder is a file": lambda path: (path.mkdir(), (path / "kernels").touch()),
    "below a device": None,
}


@needs_compiler
@pytest.mark.slow(seconds=20)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("what", PLACES)
def test_whatever_the_cache_is_kernels_are_made_and_one_line_says_so(
    workshop: kernels.KernelCompiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    place = tmp_path / "cache"
    monkeypatch.setenv("DESCEND_CACHE_DIR", "/dev/null/cache" if PLACES[what] is None else str(place))
    if (make := PLACES[what]) is not None:
        make(place)
    before = sorted(tmp_path.rglob("*"))
    said = goes_on_as_plain(lambda: adam_job() in workshop.loaded)
    assert len(said) == 1
    assert said[0].startswith("descend: compiled kernels are kept for this process alone (")
    assert adam_job() in workshop.loaded
    assert sorted(tmp_path.rglob("*")) == before


TEMPORARY = ("no place for temporary files", "everybody's place for temporary files")


@needs_compiler
@pytest.mark.slow(seconds=20)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("what", ["no home", "a full disk", "deleted", *TEMPORARY])
def test_a_cache_that_fails_costs_a_line(
    workshop: kernels.KernelCompiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    if what == "no home":
        for name in ("DESCEND_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
    elif what in TEMPORARY:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        if what == "everybody's place for temporary files":
            (tmp_path / "temporary").mkdir()
            (tmp_path / "temporary").chmod(0o777)
    else:

        def write(folder: PrivateFolder, name: str, content: bytes) -> None:
            if what == "deleted":
                shutil.rmtree(folder.path)
                return real(folder, name, content)
            raise OSError(errno.ENOSPC, "No space left on device")

        real = PrivateFolder.write
        monkeypatch.setattr(PrivateFolder, "write", write)
    said = goes_on_as_plain(lambda: bool(workshop.failed) or adam_job() in workshop.loaded)
    assert len(said) == 1
    reason = {"no home": "HOME is not set", "a full disk": "No space left", "deleted": "No such file"}
    assert reason.get(what, "a kernel cannot be made (") in said[0]


@needs_compiler
def test_a_library_without_its_functions_is_left_aside(workshop: kernels.KernelCompiler, tmp_path: Path) -> None:
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(tmp_path / "made.so")]
    subprocess.run(command, input=b"int nothing() { return 0; }", check=True)
    stored(adam_job(), tmp_path, (tmp_path / "made.so").read_bytes())
    with pytest.warns(UserWarning, match=r"a compiled kernel cannot be loaded \(.*key"):
        assert workshop.take([adam_job()]) == []


def test_a_child_leaves_the_compilers_of_its_parent_alone(workshop: kernels.KernelCompiler, tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "30"], start_new_session=True)
    (tmp_path / "own").mkdir()
    with tempfile.TemporaryFile() as said:
        workshop.building["x"] = kernels.CompilerProcess(process, tmp_path / "own" / "x", said)
    child = os.fork()
    if not child:
        os._exit(len(workshop.building))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert process.poll() is None
    workshop.building["x"].stop()
    workshop.building.clear()


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


@pytest.mark.parametrize("content", [b"", b"not a kernel", b"x" * 1000])
def test_a_kernel_that_was_damaged_is_removed_and_not_loaded(
    workshop: kernels.KernelCompiler, tmp_path: Path, content: bytes
) -> None:
    ours, path = optimizer("blocks"), stored(adam_job(), tmp_path, b"a kernel")
    path.write_bytes(content)
    ours.step()
    auto = optimizer()
    auto.step()
    torch.testing.assert_close(auto.param_groups[0]["params"][0], ours.param_groups[0]["params"][0])
    assert not path.exists()


def test_a_kernel_that_others_may_have_written_is_not_loaded(workshop: kernels.KernelCompiler, tmp_path: Path) -> None:
    stored(adam_job(), tmp_path, b"a kernel").chmod(0o666)
    assert workshop.take([adam_job()]) == []
    assert not workshop.failed


def test_a_kernel_that_cannot_be_loaded_is_left_aside(workshop: kernels.KernelCompiler, tmp_path: Path) -> None:
    ours = optimizer("blocks")
    ours.step()
    stored(arena_manager.jobs_of(ours._arenas.arenas[0])[0], tmp_path, b"whole, and no library")
    auto = optimizer()
    with pytest.warns(UserWarning, match="a compiled kernel cannot be loaded .*; this optimizer runs eagerly"):
        auto.step()
    torch.testing.assert_close(auto.param_groups[0]["params"][0], ours.param_groups[0]["params"][0])


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
    here = adam_job().file
    package = Path(kernels.__file__).parents[1]
    for name in kernels.SOURCES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((package / name).read_bytes())
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "compiler" / "cache.py"))
    kernels.digest.cache_clear()
    assert adam_job().file == here
    (tmp_path / "compiler" / "partition.py").write_bytes(b"# another meaning")
    kernels.digest.cache_clear()
    there = adam_job().file
    monkeypatch.undo()
    kernels.digest.cache_clear()
    assert there != here == adam_job().file


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
def test_a_kernel_under_another_name_is_left_aside(workshop: kernels.KernelCompiler, tmp_path: Path) -> None:
    ours = optimizer("compiled")
    ours.step()
    (job,) = arena_manager.jobs_of(ours._arenas.arenas[0])
    other = dataclasses.replace(job, dtype="float64")
    shutil.copy(tmp_path / "kernels" / job.file, tmp_path / "kernels" / other.file)
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
        "print([running.process.pid for running in arena_manager._compiler.building.values()][0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "DESCEND_CACHE_DIR": str(tmp_path)},
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


@needs_root
@needs_compiler
@pytest.mark.slow(seconds=30)
def test_the_code_of_another_user_who_made_the_cache_first_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor does that user stop the training: kernels are compiled for the process alone."""
    with tempfile.TemporaryDirectory(prefix="descend-public-") as name:
        public, mark = Path(name), Path(name, "ran")
        public.chmod(0o1777)
        job = adam_job()
        source = (
            "#include <cstdio>\n"
            f'__attribute__((constructor)) void run() {{ std::fclose(std::fopen("{mark}", "w")); }}\n'
            f'extern "C" const char* key() {{ return "{job.key}"; }}\n'
        )
        command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(tmp_path / "evil.so")]
        subprocess.run(command, input=source.encode(), check=True)
        evil = (tmp_path / "evil.so").read_bytes()

        def plant() -> None:
            folder = PrivateFolder(public / "cache" / "kernels")
            folder.write(job.file, evil)
            for path in (public / "cache", public / "cache" / "kernels", public / "cache" / "kernels" / job.file):
                path.chmod(0o777)

        def train() -> None:
            monkeypatch.setattr(kernels, "PATIENCE_SECONDS", -1.0)
            monkeypatch.setattr(kernels.CompilePolicy, "is_due", lambda _: True)
            monkeypatch.setenv("DESCEND_CACHE_DIR", str(public / "cache"))
            monkeypatch.setattr(arena_manager, "_compiler", kernels.KernelCompiler())
            said = goes_on_as_plain(lambda: job in arena_manager._compiler.loaded, seconds=60.0)
            assert job in arena_manager._compiler.loaded
            assert "another user may have written" in said[0]

        goes_on_as_plain()  # imports what that user could not read
        assert status_of(as_user(ATTACKER, plant)) == 0
        load_library(evil)
        assert mark.exists()  # it would have run
        mark.unlink()
        assert status_of(as_user(VICTIM, train)) == 0
        assert not mark.exists()
