"""Checkpoints that are damaged, foreign, hostile or cannot be written; a directory of another owner."""

import contextlib
import functools
import hashlib
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

import pytest
import torch
from faults.doors import SGD, X, Y, fault, files_of, fit, in_a_process, is_unchanged, net, snapshot
from safetensors.torch import load_file
from system_needs import require
from torch import nn

import descend
from descend.errors import StorageError
from descend.runtime import checkpoint as format_of
from descend.runtime import directory_lock as lease
from descend.runtime.checkpoint_manager import CheckpointManager

FILES = ["weights.safetensors", "training/optimizer.safetensors", "training/state.json", "manifest.json"]
EVERY_TWO = [descend.Checkpoint(every_steps=2)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 6 steps with checkpoints of steps 2, 4 and 6, not to be written to."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    fit(run_dir=folder, callbacks=[descend.Checkpoint(every_steps=2)])
    return folder


@pytest.fixture
def run_dir(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def checkpoints(run_dir):
    return sorted((run_dir / "checkpoints").glob("step-*"))


def go_on(run_dir, module=None, **settings):
    return fit(module, run_dir=run_dir, resume=True, **{"stop": descend.Steps(8), **settings})


# ---- damaged


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-5])


def empty(path):
    path.write_bytes(b"")


def missing(path):
    path.unlink()


def a_folder(path):
    path.unlink()
    path.mkdir()


def a_link(path):
    path.unlink()
    path.symlink_to("/etc/hostname")


DAMAGE = [flip, truncate, empty, missing, a_folder, a_link]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_checkpoint_is_passed_over(run_dir, file, damage):
    """The file is named, the checkpoint before it is used, and the result is that of a run that was left alone."""
    damage(run_dir / "checkpoints/step-6" / file)
    with pytest.warns(UserWarning, match=f"step-6.*{file.split('/')[-1]}.*trying the checkpoint before it"):
        result = go_on(run_dir)
    whole = fit(stop=descend.Steps(8))
    assert all(torch.equal(result.weights[name], value) for name, value in whole.weights.items())


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_no_good_checkpoint_is_left(run_dir, file, damage):
    """Exit 5, module and files as they were."""
    for checkpoint in checkpoints(run_dir):
        damage(checkpoint / file)
    module, files = net(), files_of(run_dir)
    before = snapshot(module)
    with pytest.warns(UserWarning, match="trying"):
        fault(lambda: go_on(run_dir, module), 5, "step-6", "no checkpoint in", "can be used")
    assert is_unchanged(module, before)
    assert files_of(run_dir) == files


@pytest.mark.parametrize("damage", [truncate, missing, empty])
def test_a_damaged_account_of_the_run_is_found_before_anything_is_changed(run_dir, damage):
    damage(run_dir / "run.json")
    module, files = net(), files_of(run_dir)
    before = snapshot(module)
    fault(lambda: go_on(run_dir, module), 5, "run.json is damaged", "put back a copy of it")
    assert is_unchanged(module, before)
    assert files_of(run_dir) == files


def test_a_damaged_tensor_is_named(run_dir):
    path = run_dir / "checkpoints/step-6/weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"weights\.safetensors.*SHA-256 differs, in '"):
        format_of.verify(path.parent)


# ---- another optimizer, model, type, version


class Renamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net()

    def forward(self, x):
        return self.body(x)


def wider():
    return nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 3))


ADAM = functools.partial(torch.optim.Adam, lr=0.1)


@pytest.mark.parametrize(
    ("module", "settings", "exit_code", "words"),
    [
        (net(), {"optimizer": ADAM}, 2, ("optimizer: torch.optim.sgd.SGD -> torch.optim.adam.Adam", "reset_optimizer")),
        (wider(), {}, 5, ("expected", "found", "0.weight", "(9, 5) float32", "(8, 5) float32", "weights_only=True")),
        (Renamed(), {}, 5, ("body.0.weight", "nothing", "weights_only=True")),
        (net(torch.float64), {"data": (X.double(), Y)}, 5, ("(8, 5) float64", "(8, 5) float32")),
        (net(), {"data": (X[:30], Y[:30])}, 2, ("samples: 40 -> 30: refused",)),
        (net(), {"seed": 4}, 2, ("seed: 0 -> 4: refused",)),
        (
            net(),
            {"optimizer": functools.partial(SGD, nesterov=True)},
            2,
            ("optimizer.nesterov: False -> True: refused",),
        ),
    ],
    ids=["optimizer", "shapes", "names", "types", "data", "seed", "option"],
)
def test_a_checkpoint_of_something_else(run_dir, module, settings, exit_code, words):
    """Refused with a table before anything is copied."""
    before, files = snapshot(module), files_of(run_dir)
    fault(lambda: go_on(run_dir, module, **settings), exit_code, *words)
    assert is_unchanged(module, before)
    assert files_of(run_dir) == files


def test_another_optimizer_with_an_empty_state(run_dir):
    result = go_on(run_dir, optimizer=ADAM, reset_optimizer=True)
    assert result.steps == 8


@pytest.mark.parametrize("kind", ["types", "shapes"])
def test_weights_alone(run_dir, kind):
    """The run starts over with what fits; the earlier run lies whole beside it; what does not fit is reported."""
    saved, before = load_file(run_dir / "checkpoints/step-6/weights.safetensors"), files_of(run_dir)
    if kind == "types":
        result = go_on(run_dir, net(torch.float64), data=(X.double(), Y), weights_only=True, stop=descend.Steps(0))
        assert all(torch.equal(value, saved[name].to(value.dtype)) for name, value in result.weights.items())
    else:
        other = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
        with pytest.warns(UserWarning, match=r"3\.weight +\(4, 8\) float32 +\(3, 8\) float32"):
            result = go_on(run_dir, other, weights_only=True, stop=descend.Steps(0))
        assert torch.equal(result.weights["0.weight"], saved["0.weight"])
    assert result.steps == 0
    earlier = files_of(run_dir / "earlier-1")
    assert earlier.keys() == before.keys()
    assert all(earlier[name] == before[name] for name in before if name.startswith("checkpoints/"))


@pytest.mark.parametrize("option", ["reset_optimizer", "weights_only"])
def test_ways_to_continue_without_continuing(option):
    fault(lambda: fit(**{option: True}), 2, option, "resume=True")


def test_a_newer_version(run_dir):
    """`written by vX, this is vY`, and nothing older in its place."""
    path = run_dir / "checkpoints/step-6/manifest.json"
    manifest = {**json.loads(path.read_text()), "format_version": 7, "descend": "9.1"}
    path.write_text(json.dumps({**manifest, "sha256": format_of._seal(manifest)}))
    fault(lambda: go_on(run_dir), 5, "written by descend 9.1 in format 7", f"this is descend {descend.__version__}")


# ---- hostile


def forge(run_dir, file, data):
    """A checkpoint whose checksums all fit."""
    for checkpoint in checkpoints(run_dir):
        (checkpoint / file).write_bytes(data)
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        manifest["files"][file] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (checkpoint / "manifest.json").write_text(json.dumps({**manifest, "sha256": format_of._seal(manifest)}))


def header(entries):
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


HOSTILE = {
    "header longer than the file": ("weights.safetensors", struct.pack("<Q", 2**62) + b"{}"),
    "tensor larger than the file": (
        "weights.safetensors",
        header({"0.weight": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}),
    ),
    "product that overflows": (
        "weights.safetensors",
        header({"0.weight": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]}}),
    ),
    "negative offsets": (
        "training/optimizer.safetensors",
        header({"m": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}),
    ),
    "unknown type": (
        "weights.safetensors",
        header({"0.weight": {"dtype": "X9", "shape": [0], "data_offsets": [0, 0]}}),
    ),
    "header of another kind": ("weights.safetensors", header([1, 2])),
    "pickle": ("weights.safetensors", b"\x80\x04cos\nsystem\n(S'touch evil'\ntR."),
    "deep nesting": ("training/state.json", b"[" * 200_000),
    "no state": ("training/state.json", b"{}"),
    "not text": ("training/state.json", b"\xff\xfe\x00"),
    "number without end": ("training/state.json", b'{"settings": ' + b"9" * 10_000 + b"}"),
}


@pytest.mark.parametrize(("file", "data"), HOSTILE.values(), ids=HOSTILE)
@pytest.mark.filterwarnings("ignore:.*trying the checkpoint")
def test_a_forged_file(run_dir, file, data):
    """Exit 5 before anything is allocated or run."""
    forge(run_dir, file, data)
    module = net()
    before = snapshot(module)
    fault(lambda: go_on(run_dir, module), 5, "step-6")
    assert is_unchanged(module, before)
    assert not list(run_dir.rglob("evil"))


@pytest.mark.parametrize("name", ["../../../x", "/etc/hostname", "training/../../../x", "extra.pkl"])
@pytest.mark.filterwarnings("ignore:.*trying the checkpoint")
def test_an_index_that_names_other_files(run_dir, tmp_path, name, monkeypatch):
    """No file outside the checkpoint is opened, whatever its index says."""
    for sealed in (True, False):
        for checkpoint in checkpoints(run_dir):
            manifest = json.loads((checkpoint / "manifest.json").read_text())
            manifest["files"][name] = {"bytes": 1, "sha256": "0"}
            seal = format_of._seal(manifest) if sealed else "0"
            (checkpoint / "manifest.json").write_text(json.dumps({**manifest, "sha256": seal}))
        opened = []
        monkeypatch.setattr(format_of, "_digest", lambda path, seen=opened: seen.append(path) or "0")
        fault(lambda: go_on(run_dir), 5, "manifest.json" if sealed else "SHA-256")
        assert all(path.resolve().is_relative_to(run_dir.resolve()) for path in opened)
        monkeypatch.undo()


@pytest.mark.filterwarnings("ignore:.*trying the checkpoint")
def test_a_checkpoint_that_is_a_link_out_of_the_directory(run_dir, tmp_path):
    target = shutil.copytree(run_dir / "checkpoints/step-6", tmp_path / "outside")
    before = files_of(target)
    shutil.rmtree(run_dir / "checkpoints")
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints/step-6").symlink_to(target)
    fault(lambda: go_on(run_dir), 5, "link out")
    assert files_of(target) == before


class Named(nn.Module):
    """Weights whose names look like paths."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 3)
        nn.init.ones_(self.body.weight)
        nn.init.zeros_(self.body.bias)
        for name in ("../x", "/abs", "a%2Fb", "__metadata__", "back\\slash"):
            self._parameters[name] = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.body(x) + sum(p for name, p in self._parameters.items() if p is not None)


def test_names_that_look_like_paths(tmp_path):
    """Saved by escaped names, and the same run afterwards."""
    whole = fit(Named(), optimizer=ADAM)
    fit(Named(), optimizer=ADAM, run_dir=tmp_path / "a" / "run", stop=descend.Steps(3))
    parts = fit(Named(), optimizer=ADAM, run_dir=tmp_path / "a" / "run", resume=True)
    assert all(torch.equal(parts.weights[name], value) for name, value in whole.weights.items())
    held = load_file(tmp_path / "a/run/checkpoints/step-6/weights.safetensors")
    assert {"..%2Fx", "%2Fabs", "a%252Fb", "%5F_metadata__", "back%5Cslash"} < set(held)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["run"]


def test_names_of_a_graph_that_look_like_paths(tmp_path, monkeypatch):
    """Weights, layers and the model: whatever names files after them writes none outside the run directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    images = descend.Input(data_field="samples", name="../../images")
    labels = descend.Input(data_field="labels", name="labels")
    kernel = descend.Weights(name="/kernel", initializer=descend.ConstantInitializer(value=0.1))
    fc = descend.FullyConnected(images, num_neurons=10, weights=[kernel], has_bias=False, name="/fc")
    loss = descend.CrossEntropy(descend.Softmax(fc, name="../p"), labels, name="loss")
    watching = [
        descend.DumpWeights(directory="w"),
        descend.SaveModel(dir="m"),
        descend.DumpGradients(basename="g/"),
        descend.DumpOutputs(directory="o", layers="/fc ../p"),
    ]
    model = descend.Model(1, objective_function=loss, callbacks=watching, name="../../model")
    trainer = descend.Trainer(mini_batch_size=600, random_seed=1)
    descend.run(trainer, model, descend.zoo.digits(), descend.SGD(learn_rate=0.1), tmp_path / "here/run")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 10
    assert all(path.is_relative_to(tmp_path / "here/run") for path in written)
    assert "%2Fkernel" in load_file(next((tmp_path / "here/run/checkpoints").glob("*/weights.safetensors")))


# ---- a disk that is full


@contextlib.contextmanager
def full_disk(at_most):
    """No file of this process may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at_most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


class FullBetween(descend.Callback):
    """The disk is full from one step to another."""

    def __init__(self, first, last):
        self.first, self.last, self.stack = first, last, contextlib.ExitStack()

    def before_step(self, step):
        if step.step == self.first:
            self.stack.enter_context(full_disk(3000))
        if step.step == self.last:
            self.stack.close()

    def after_run(self, run):
        self.stack.close()


def big():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 200), nn.Tanh(), nn.Linear(200, 3))


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr("descend.runtime.checkpoint_manager.RETRY_SECONDS", (0.0, 0.0, 0.0))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_disk_that_is_full_for_a_while(tmp_path, no_pauses, asynchronous):
    """Older checkpoints are intact, nothing half-made is left, training continues with a warning and a counter."""
    saving = descend.Checkpoint(every_steps=2, asynchronous=asynchronous)
    with pytest.warns(UserWarning, match=r"NO CHECKPOINT of step \d.*File too large") as reported:
        result = fit(big(), run_dir=tmp_path, callbacks=[FullBetween(3, 7), saving], stop=descend.Steps(8))
    failed = json.loads((tmp_path / "run.json").read_text())["end"]["failed_saves"]
    assert any(f"{failed} saves have failed" in str(w.message) for w in reported)
    left = [path.name for path in checkpoints(tmp_path)]
    assert left == ["step-2", "step-8"] or (asynchronous and left[-1] == "step-8")
    assert not list((tmp_path / "checkpoints").glob(".*"))
    for path in checkpoints(tmp_path):
        format_of.verify(path)
    whole = fit(big(), stop=descend.Steps(8))
    assert all(torch.equal(result.weights[name], value) for name, value in whole.weights.items())


def test_a_save_that_fails_once_is_made_again(tmp_path, no_pauses, monkeypatch):
    fsync, calls = os.fsync, []

    def unwilling(descriptor):
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", unwilling)
    fit(run_dir=tmp_path, callbacks=[descend.Checkpoint(every_steps=2)])
    assert [path.name for path in checkpoints(tmp_path)] == ["step-2", "step-4", "step-6"]


def test_the_last_save_fails(tmp_path, no_pauses):
    """Exit 5; the checkpoints before are as they were."""
    said = fault(
        lambda: fit(big(), run_dir=tmp_path, callbacks=[FullBetween(5, 99), descend.Checkpoint(every_steps=4)]),
        5,
        "step-6",
        "File too large",
        "older ones are as they were",
    )
    assert "the last one of the run" in said
    assert [path.name for path in checkpoints(tmp_path)] == ["step-4"]
    format_of.verify(checkpoints(tmp_path)[0])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_five_saves_in_a_row_fail(tmp_path, no_pauses, asynchronous):
    saving = descend.Checkpoint(every_steps=1, asynchronous=asynchronous)
    with pytest.warns(UserWarning, match="NO CHECKPOINT"):
        fault(
            lambda: fit(big(), run_dir=tmp_path, callbacks=[FullBetween(2, 99), saving], stop=descend.Steps(50)),
            5,
            "5 in a row have failed",
        )
    assert asynchronous or [path.name for path in checkpoints(tmp_path)] == ["step-1"]


def test_logs_that_cannot_be_written_stop_nothing(tmp_path):
    """The rows are all there once they can be."""

    class ReadOnly(descend.Callback):
        def before_epoch(self, epoch):
            path = tmp_path / "metrics.jsonl"
            if epoch.epoch == 1:
                path.rename(tmp_path / "away")
                path.mkdir()
            if epoch.epoch == 3:
                path.rmdir()
                (tmp_path / "away").rename(path)

    with pytest.warns(UserWarning, match=r"cannot write .*metrics\.jsonl.*training continues"):
        result = fit(run_dir=tmp_path, callbacks=[ReadOnly()], stop=descend.Epochs(5))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows == result.history


def test_a_real_file_system_that_is_full(tmp_path, no_pauses):
    """A small tmpfs, where the system lets us have one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", disk]
    done = subprocess.run(mount, capture_output=True, check=False) if shutil.which("mount") else None
    require("the right to mount a file system", done is not None and done.returncode == 0)
    try:
        with pytest.warns(UserWarning, match="NO CHECKPOINT.*No space left"):
            fault(
                lambda: fit(
                    big(), run_dir=disk / "run", callbacks=[descend.Checkpoint(every_steps=1)], stop=descend.Steps(60)
                ),
                5,
                "No space left on device",
            )
        kept = checkpoints(disk / "run")
        assert kept
        for path in kept:
            format_of.verify(path)
        assert not list((disk / "run/checkpoints").glob(".*"))
    finally:
        subprocess.run(["umount", disk], check=False)


# ---- one owner

OWNER = """
import functools, sys, time, torch, descend
class Slow(descend.Callback):
    def after_step(self, step): time.sleep(0.05)
if __name__ == "__main__":
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    data = (torch.zeros(20, 2), torch.zeros(20, 2))
    run = lambda: descend.fit(torch.nn.Linear(2, 2), "mse", data, optimizer=sgd, batch_size=2, stop=descend.Steps(9999),
        run_dir="run", callbacks=[Slow(), descend.Checkpoint(every_steps=5)])
    descend.main(run)
"""


@pytest.fixture
def owner(tmp_path):
    """A process that trains in tmp_path/run."""
    (tmp_path / "owner.py").write_text(OWNER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "owner.py"], cwd=tmp_path, env=environment)
    while not (tmp_path / "run/checkpoints/step-5").exists():
        assert process.poll() is None
        time.sleep(0.05)
    yield process
    process.kill()
    process.wait()


def second(tmp_path, **settings):
    data = (torch.zeros(20, 2), torch.zeros(20, 2))
    given = {"optimizer": functools.partial(torch.optim.SGD, lr=0.1), "batch_size": 2, "run_dir": tmp_path / "run"}
    return descend.fit(nn.Linear(2, 2), "mse", data, stop=descend.Steps(9), **given, **settings)


@pytest.mark.slow
def test_two_processes_in_one_run_directory(tmp_path, owner):
    """The second one exits with 2 and names the first: host, number, start. The first one continues.

    Once it was killed another process has the directory at once, with nothing to delete.
    """
    for resume in (False, True):
        words = (f"process {owner.pid} on ", "started 2", "nothing to delete")
        fault(functools.partial(second, tmp_path, resume=resume), 2, *words)
        assert owner.poll() is None
    owner.kill()
    owner.wait()
    assert (tmp_path / "run" / lease.OWNER).exists()
    began = time.monotonic()
    assert second(tmp_path, resume=True).steps >= 5
    assert time.monotonic() - began < lease.LEASE_SECONDS
    assert not (tmp_path / "run" / lease.OWNER).exists()


@pytest.mark.slow
def test_an_owner_that_is_silent_loses_its_lease_and_finds_out(tmp_path, owner, monkeypatch):
    """Suspended for longer than a lease: another process may take over, and the first one writes nothing more."""
    monkeypatch.setattr(lease, "LEASE_SECONDS", 2.5)
    owner.send_signal(signal.SIGSTOP)
    result = second(tmp_path, resume=True)
    files = files_of(tmp_path / "run")
    # what follows would be undone by the end of `second`, which has given the directory back
    (tmp_path / "run" / lease.OWNER).write_text(json.dumps({"host": "h", "pid": 1, "started": "then", "token": "t"}))
    owner.send_signal(signal.SIGCONT)
    assert owner.wait(timeout=30) == 5
    after = files_of(tmp_path / "run")
    after.pop(lease.OWNER)
    assert {name: after[name] for name in files if name.startswith("checkpoints/")} == {
        name: data for name, data in files.items() if name.startswith("checkpoints/")
    }
    assert result.steps


@pytest.mark.parametrize(
    "content", ['{"host": "elsewhere", "pid": 1, "started": "then", "boot": "b", "token": "t"}', "x", ""]
)
def test_an_owner_on_another_machine_that_is_gone(run_dir, monkeypatch, content):
    """Whose number another process may have by now: taken over after a lease without a beat."""
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.6)
    (run_dir / lease.OWNER).write_text(content)
    assert go_on(run_dir).steps == 8


def test_an_owner_on_another_machine_that_is_alive(run_dir, monkeypatch):
    """Known by its beat alone."""
    import threading

    monkeypatch.setattr(lease, "LEASE_SECONDS", 3.0)
    owner = run_dir / lease.OWNER
    owner.write_text('{"host": "elsewhere", "pid": 77, "started": "then", "boot": "b", "token": "t"}')
    end = threading.Event()

    def beat():
        while not end.wait(0.3):
            os.utime(owner)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        fault(lambda: go_on(run_dir), 2, "process 77 on elsewhere, started then")
    finally:
        end.set()
        thread.join()


# ---- what a killed process leaves


def test_leftovers_of_a_killed_save_are_recognised_and_removed(run_dir, capsys):
    """And only these."""
    folder = run_dir / "checkpoints"
    shutil.copytree(folder / "step-6", folder / ".step-8.4711.part")
    shutil.copytree(folder / "step-2", folder / ".step-2.gone")
    shutil.copytree(folder / "step-4", folder / ".step-4.old")
    (folder / ".mine").mkdir()
    (folder / "notes.txt").write_text("mine")
    go_on(run_dir)
    assert sorted(path.name for path in folder.iterdir()) == [
        ".mine",
        "notes.txt",
        "step-2",
        "step-4",
        "step-6",
        "step-8",
    ]
    assert "removed .step-8.4711.part" in capsys.readouterr().out


def test_a_ledger_that_is_damaged_removes_nothing(run_dir):
    (run_dir / "checkpoints.json").write_text('{"../../x": 3')
    with pytest.warns(UserWarning, match=r"checkpoints\.json is damaged.*older checkpoints are kept"):
        go_on(run_dir, callbacks=[descend.Checkpoint(every_steps=1, keep=1)], stop=descend.Steps(9))
    assert [path.name for path in checkpoints(run_dir)] == ["step-2", "step-4", "step-6", "step-9"]


def test_a_ledger_that_names_other_folders(run_dir, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    ledger = json.loads((run_dir / "checkpoints.json").read_text())
    entry = {"for": ["Checkpoint every_steps"], "score": None, "times": {}, "not_finite": None}
    (run_dir / "checkpoints.json").write_text(
        json.dumps({**ledger, "../../victim": entry, "step-1/../../../victim": entry})
    )
    go_on(run_dir, callbacks=[descend.Checkpoint(every_steps=1, keep=1)])
    assert victim.is_dir()
    assert CheckpointManager(run_dir / "checkpoints").open() is not None


@pytest.mark.slow
def test_exit_codes_of_a_script(run_dir, tmp_path):
    """2 for a directory that is taken, as a shell sees it; 0 is seen by test_endings.py."""
    ended = in_a_process(OWNER, tmp_path)
    assert ended.returncode == 2
    assert "holds another run already" in ended.stderr
