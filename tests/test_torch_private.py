"""Each access to a private part of torch does with the running torch what its docstring says."""

from __future__ import annotations

import ast
import ctypes
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from system_needs import needs
from torch import nn
from torch.distributed import FileStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]  # as in torch's documentation
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from descend import torch_private

PACKAGE = Path(torch_private.__file__).parent


def test_run_backward_adds_the_gradients_that_torch_adds():
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    start = torch.tensor(0.25)
    torch.autograd.backward((x @ y).square().sum(), start)
    expected = [x.grad, y.grad]
    x.grad, y.grad = None, torch.ones(4)  # one is made, the other is added to
    torch_private.run_backward((x @ y).square().sum(), start)
    assert torch.equal(x.grad, expected[0])
    assert torch.equal(y.grad, expected[1] + 1)


def test_grad_and_value_are_those_of_torch_without_its_compiler(monkeypatch):
    def loss(p: dict[str, torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x @ p["w"]).tanh()
        return (y * p["b"]).sum(), y

    weights = {"w": torch.randn(3, 4, 2), "b": torch.randn(3, 2), "unused": torch.randn(3, 5)}
    x = torch.randn(3, 6, 4)
    monkeypatch.setattr(torch_private, "dynamo_is_imported", lambda: False)
    ours, (value, seen) = torch.func.vmap(torch_private.grad_and_value(loss))(weights, x)
    theirs, (wanted, also) = torch.func.vmap(torch.func.grad_and_value(loss, has_aux=True))(weights, x)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(value, wanted)
    assert torch.equal(seen, also)
    nothing, _ = torch_private.grad_and_value(lambda p, x: (x.sum(), x))({"w": torch.ones(2)}, x)
    assert nothing["w"].tolist() == [0.0, 0.0]


def test_quick_checks_let_what_holds_pass_and_what_does_not_be_refused(monkeypatch):
    check, asked = vars(torch)["_check_with"], []

    def counted(kind: Any, condition: Any, message: Any) -> None:
        asked.append(condition)
        check(kind, condition, message)

    monkeypatch.setattr(torch, "_check_with", counted)
    with torch_private.quick_checks():
        torch._check(True, lambda: "holds")
        assert not asked
        with pytest.raises(RuntimeError, match="does not hold"):
            torch._check(False, lambda: "does not hold")
    torch._check(True, lambda: "holds")
    assert asked == [False, True]


def test_a_dispatch_mode_sees_every_operator_and_is_left_within():
    seen: list[str] = []

    def run(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        seen.append(str(operator))
        return operator(*args, **options)

    with torch_private.dispatch_mode(run):
        torch.func.vmap(lambda x: x.t().sum())(torch.ones(2, 3, 4))
    torch.ones(2).exp()
    assert seen[0] == "aten.ones.default"
    assert seen[-1] == "aten.sum.dim_IntList"
    assert "aten.exp.default" not in seen


def test_an_operator_is_taken_apart_where_autograd_would_have_done_so():
    x = torch.randn(2, 3)
    assert torch.equal(torch_private.decomposed(torch.ops.aten.mT.default, [x], (x,), {}), x.T)
    assert torch_private.decomposed(torch.ops.aten.exp.default, [x], (x,), {}) is NotImplemented


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_is_in_backward_where_checkpointing_repeats(use_reentrant: bool):
    seen = list[bool]()

    def block(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch_private.is_in_backward())
        return x.exp()

    x = torch.ones(2, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=use_reentrant)
    assert not torch_private.is_in_backward()
    y.sum().backward()
    assert seen == [False, True]
    assert not torch_private.is_in_backward()


def test_version_counter_counts_writes_to_a_tensor_and_its_views():
    x = torch.zeros(4)
    before = torch_private.version_counter(x)
    x.add_(1)
    x[:2].mul_(2)
    assert torch_private.version_counter(x) == before + 2
    assert (x + 1).sum() == 10  # reading is no write
    assert torch_private.version_counter(x) == before + 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_look_finds_one_bad_element_among_many_tensors_and_changes_none(dtype):
    tensors = [torch.randn(3, 5).to(dtype), torch.randn(4, 2).to(dtype).t(), torch.randn(2, dtype=torch.float64)]
    tensors[0][0, 0] = torch.finfo(dtype).smallest_normal / 4
    before = [x.clone() for x in tensors]
    assert torch_private.AllFinite(torch.device("cpu"))(tensors)
    assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True))
    for bad in (float("nan"), float("inf"), -float("inf")):
        tensors[1][1, 3] = bad
        assert not torch_private.AllFinite(torch.device("cpu"))(tensors)


def test_own_buffers_are_those_of_the_module_alone():
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    module.register_buffer("held", torch.ones(3), persistent=False)
    module.register_buffer("none", None)
    assert [b is module.held for b in torch_private.own_buffers(module)] == [True]
    assert len(torch_private.own_buffers(module[0])) == len(list(module[0].buffers()))


def test_view_base_is_the_tensor_that_a_view_was_taken_of():
    x = torch.zeros(2, 3)
    assert torch_private.view_base(x) is None
    assert torch_private.view_base(x.t()) is x
    assert torch_private.view_base(x.clone()) is None


def test_tensor_address_differs_between_tensors_and_stays():
    x, y = torch.zeros(1), torch.zeros(1)
    assert torch_private.tensor_address(x) == torch_private.tensor_address(x) != torch_private.tensor_address(y)
    assert torch_private.tensor_address(x) != 0


def test_weak_storage_tells_when_the_last_tensor_is_gone_and_keeps_no_memory():
    x = torch.zeros(1000)
    view, count = x[1:], torch_private.storage_use_count(x.untyped_storage())
    gone = torch_private.weak_storage(x.untyped_storage())
    assert torch_private.storage_use_count(x.untyped_storage()) == count
    del x
    assert not gone()
    del view
    assert gone()


def test_foreach_copy_copies_each_and_casts():
    to = [torch.zeros(2), torch.zeros(3, dtype=torch.float64)]
    torch_private.foreach_copy(to, [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0])])
    assert [x.tolist() for x in to] == [[1.0, 2.0], [3.0, 4.0, 5.0]]
    assert to[1].dtype == torch.float64


def test_foreach_names_functions_of_lists():
    assert [x.tolist() for x in torch_private.foreach("mul")([torch.ones(2), torch.ones(())], [2.0, 3.0])] == [
        [2, 2],
        3,
    ]


def test_a_dispatch_mode_sees_what_a_mapped_function_does_to_stacks():
    seen: list[tuple[str, tuple[int, ...]]] = []

    def call(function, args, kwargs):
        seen.append((str(function), tuple(args[0].shape)))
        return function(*args, **kwargs)

    x = torch.zeros(3, 2)
    with torch.no_grad(), torch_private.dispatch_mode(call):
        torch.vmap(lambda x: x.exp())(x)
    assert seen == [("aten.exp.default", (3, 2))]


def test_a_dispatch_mode_does_not_import_the_compiler():
    code = (
        "import sys, torch\nfrom descend.torch_private import dispatch_mode\n"
        "with dispatch_mode(lambda function, args, kwargs: function(*args, **kwargs)):\n    torch.zeros(2).exp()\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_is_functorch_wrapped_inside_vmap_only():
    seen: list[bool] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch_private.is_functorch_wrapped(x))
        return x

    f(torch.zeros(2))
    torch.func.vmap(f)(torch.zeros(2))
    assert seen == [False, True]


@pytest.mark.parametrize(
    ("base", "members", "others"),
    [
        (torch_private.norm_class, [nn.BatchNorm1d, nn.SyncBatchNorm, nn.InstanceNorm3d], [nn.LayerNorm]),
        (torch_private.batch_norm_class, [nn.BatchNorm2d, nn.SyncBatchNorm, nn.LazyBatchNorm1d], [nn.InstanceNorm2d]),
        (torch_private.instance_norm_class, [nn.InstanceNorm1d, nn.LazyInstanceNorm2d], [nn.BatchNorm1d]),
        (torch_private.convolution_class, [nn.Conv1d, nn.ConvTranspose3d, nn.LazyConv2d], [nn.Linear]),
        (torch_private.dropout_class, [nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout], [nn.ReLU]),
    ],
    ids=lambda x: x.__name__ if callable(x) else "",
)
def test_bases_hold_their_family_and_no_other(base: Any, members: list[type], others: list[type]):
    assert all(issubclass(member, base()) for member in members)
    assert not any(issubclass(other, base()) for other in others)


@pytest.mark.parametrize(
    "register",
    ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"],
)
def test_has_hooks_while_one_is_registered(register: str):
    module = nn.Linear(2, 2)
    assert not torch_private.has_hooks(module)
    handle = getattr(module, register)(lambda *args: None)
    assert torch_private.has_hooks(module)
    handle.remove()
    assert not torch_private.has_hooks(module)


def test_compile_is_undone():
    module = nn.Linear(2, 2)
    assert torch_private.compiled_call(module) is None
    module.compile(backend=lambda graph, inputs: pytest.fail("the compiled form was called"))
    assert torch_private.compiled_call(module) is not None
    torch_private.set_compiled_call(module, None)
    module(torch.zeros(1, 2))
    assert torch_private.compiled_call(module) is None


def test_step_is_observed_by_hooks_and_profilers():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    assert not torch_private.step_is_observed(optimizer)
    registrations = (
        optimizer.register_step_pre_hook,
        optimizer.register_step_post_hook,
        register_optimizer_step_pre_hook,
        register_optimizer_step_post_hook,
    )
    for register in registrations:
        handle = register(lambda *args: None)
        assert torch_private.step_is_observed(optimizer), register
        handle.remove()
        assert not torch_private.step_is_observed(optimizer), register
    with torch.autograd.profiler.profile():
        assert torch_private.step_is_observed(optimizer)
    assert not torch_private.step_is_observed(optimizer)


def test_a_marked_function_is_not_inlined_by_torch_compile():
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    torch_private.mark_outside_graphs(f, "a reason of this test")
    compiled = torch.compile(lambda x: f(x * 2) * 3, backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="a reason of this test"):
        compiled(torch.ones(1))
    assert torch_private.dynamo_is_imported()
    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    assert torch.compile(lambda x: f(x * 2) * 3, backend=keep)(torch.ones(1)).item() == 9.0
    assert len(graphs) > 1  # the call broke the graph


def test_the_plain_state_of_an_optimizer_is_torchs(monkeypatch: pytest.MonkeyPatch):
    class Own(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            return {"its": "own"}

    optimizer = Own([nn.Parameter(torch.ones(2))], lr=0.5)
    expected = torch.optim.Optimizer.state_dict(optimizer)
    assert torch_private.plain_state_dict(optimizer) == expected
    monkeypatch.setattr(torch_private, "dynamo_is_imported", lambda: False)
    assert torch_private.plain_state_dict(optimizer) == expected


@pytest.mark.slow
def test_dynamo_is_not_imported_by_torch_alone():
    code = "import torch; from descend.torch_private import dynamo_is_imported as f; raise SystemExit(f())"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_default_store_and_the_reducer(tmp_path: Path):
    own = FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=own, rank=0, world_size=1)
    try:
        store = torch_private.default_store()
        store.set("a key of this test", "17")
        assert torch_private.default_store().get("a key of this test") == b"17"
        inner = nn.Linear(2, 1)
        wrapped = nn.parallel.DistributedDataParallel(inner)
        wrapped(torch.ones(1, 2))  # leaves the reducer waiting for a backward pass
        torch_private.reset_reducer(wrapped)
        inner(torch.ones(1, 2)).sum().backward()
        assert inner.weight.grad is not None
    finally:
        torch.distributed.destroy_process_group()


def test_a_clone_of_a_store_has_its_values_and_a_connection_of_its_own():
    store = TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=10))
    clone = torch_private.clone_store(store)
    store.set("key", "value")
    assert clone is not store
    assert clone.get("key") == b"value"


def test_an_elastic_agent_asked_to_stop_restarts_nothing(monkeypatch: pytest.MonkeyPatch):
    kind: Any = LocalElasticAgent
    monkeypatch.setattr(kind, "_restart_workers", kind._restart_workers)  # put back afterwards
    torch_private.disable_elastic_restarts()
    agent = object.__new__(kind)
    agent._remaining_restarts = 3
    agent._restart_workers(None)
    assert agent._remaining_restarts == 0


def test_native_code_logs_errors_alone_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch):
    level = ctypes.c_int.in_dll(
        ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so")), "FLAGS_caffe2_log_level"
    )
    before = level.value
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "WARNING")
    torch_private.log_no_native_warnings()
    assert level.value == before
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL")
    try:
        level.value = 1
        torch_private.log_no_native_warnings()
        assert level.value == 2
    finally:
        level.value = before


@pytest.mark.slow
def test_a_store_that_went_away_is_no_stack_of_native_code():
    code = (
        "from descend import torch_private; torch_private.log_no_native_warnings()\n"
        "from torch.distributed import TCPStore\n"
        "here = TCPStore('127.0.0.1', 0, 2, True, wait_for_workers=False)\n"
        "there = TCPStore('127.0.0.1', here.port, 2, False, wait_for_workers=False)\n"
        "del here\n"
        "try: there.get('a')\n"
        "except RuntimeError: print('gone')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_CPP_LOG_LEVEL"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert (ended.stdout, ended.stderr) == ("gone\n", "")


def test_schemas_say_what_is_written_and_what_is_shared():
    aten: Any = torch.ops.aten
    assert torch_private.operator_schema(aten.add_.Tensor).is_mutable
    assert not torch_private.operator_schema(aten.add.Tensor).is_mutable
    assert "(a" in str(torch_private.operator_schema(aten.view.default))
    assert "(a" not in str(torch_private.operator_schema(aten.add.Tensor))


def test_a_storage_is_one_whatever_views_it_and_counts_its_tensors():
    x = torch.zeros(4)
    before = torch_private.storage_use_count(x.untyped_storage())
    y = x[1:]
    assert torch_private.storage_identity(x.untyped_storage()) == torch_private.storage_identity(y.untyped_storage())
    assert torch_private.storage_use_count(x.untyped_storage()) == before + 1
    other = torch.zeros(4)
    assert torch_private.storage_identity(x.untyped_storage()) != torch_private.storage_identity(
        other.untyped_storage()
    )


def test_collectives_that_were_begun_are_counted(tmp_path: Path):
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        group = distributed.group.WORLD
        before = torch_private.collectives_begun(group)
        distributed.all_reduce(torch.zeros(1))
        assert torch_private.collectives_begun(group) == before + 1
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["_log_softmax", "_log_softmax_backward_data", "_unsafe_view"])
def test_private_operators_that_traces_contain_exist(name: str):
    assert torch_private.private_operator(name).default is not None


# Files that still reach into torch by themselves. To be emptied; a file that no longer does must leave the list.
REMAINING: set[str] = set()


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_names(tree: ast.AST) -> set[str]:
    """Names of private attributes that a file takes of anything but `self` and `cls`, or imports from torch."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            found |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not _is_own(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
            found |= {*node.value.split(".")}  # getattr(torch, "_name") and "torch._name" in sys.modules
    return {name for name in found if re.fullmatch(r"_[A-Za-z]\w*", name)}


def reaches_into_torch(path: Path, known: set[str]) -> set[str]:
    """What a file uses of torch's private names: those that torch_private knows, and any taken of `torch` itself."""
    text = path.read_text()
    of_modules = r"\b(?:torch|nn|distributed|distributed_c10d)\b[\w.]*\._[A-Za-z]"
    if not re.search(rf"{of_modules}|\b(?:{'|'.join(known)})\b", text):  # most files
        return set()
    tree = ast.parse(text)
    of_torch = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.fullmatch(r"_[A-Za-z]\w*", node.attr)
        and ast.unparse(node.value).split(".")[0] in ("torch", "nn", "distributed", "distributed_c10d")
    }
    return of_torch | (private_names(tree) & known)


def test_no_other_file_reaches_into_torch():
    own = Path(torch_private.__file__)
    known = private_names(ast.parse(own.read_text()))
    assert {"_version", "_foreach_copy_", "_BatchNorm", "_restart_workers"} <= known
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != own and (names := reaches_into_torch(path, known))
    }
    assert found.keys() == REMAINING, found


def test_importing_it_imports_no_torch():
    code = "import sys, descend.torch_private; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@needs("a processor on which torch multiplies float32 slowly", torch_private.float32_product() is not None)
@pytest.mark.parametrize("gaps", [False, True])
def test_products_in_float32_take_matrices_of_any_layout(gaps: bool) -> None:
    product = torch_private.float32_product()
    assert product is not None
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(300, 300, generator=draw)[: 250 if gaps else 300, : 250 if gaps else 300] for _ in range(2))
    for x in (a, a.mT):
        for y in (b, b.mT):
            torch.testing.assert_close(product(x, y), x @ y, rtol=1e-4, atol=1e-4)
