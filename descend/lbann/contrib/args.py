"""Command-line arguments that many scripts have, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, nearest
from descend.lbann.core import optimizer
from descend.lbann.core.callback import CALLBACKS

if TYPE_CHECKING:
    import argparse

__all__ = [
    "add_amp_arguments",
    "add_optimizer_arguments",
    "add_profiling_arguments",
    "add_scheduler_arguments",
    "add_training_arguments",
    "create_optimizer",
    "create_profile_callbacks",
    "get_distconv_environment",
    "get_profile_args",
    "get_scheduler_kwargs",
]

_OF_THE_SCHEDULER = (
    "nodes",
    "procs_per_node",
    "partition",
    "account",
    "scheduler",
    "reservation",
    "launcher_args",
    "time_limit",
    "setup_only",
    "batch_job",
)


def add_scheduler_arguments(parser: argparse.ArgumentParser, default_job_name: str = "lbann") -> None:
    """Add arguments of `lbann.run` to a parser: --nodes, --procs-per-node, --partition and so on."""
    parser.add_argument("--nodes", type=int, default=None, help="number of machines", metavar="NUM")
    parser.add_argument("--procs-per-node", type=int, default=None, help="processes on each", metavar="NUM")
    parser.add_argument("--partition", type=str, default=None, help="queue", metavar="NAME")
    parser.add_argument("--account", type=str, default=None, help="account that is charged", metavar="NAME")
    parser.add_argument(
        "--scheduler", type=str, default=None, help="slurm, lsf, flux, pjm, openmpi or local", metavar="NAME"
    )
    parser.add_argument("--reservation", type=str, default=None, help="name of a reservation", metavar="NAME")
    parser.add_argument("--launcher-args", type=str, default=None, help="more arguments of the launcher")
    parser.add_argument("--time-limit", type=int, default=None, help="minutes", metavar="MIN")
    parser.add_argument("--setup-only", action="store_true", help="write the files and start nothing")
    parser.add_argument("--batch-job", action="store_true", help="submit the job and do not wait for it")
    parser.add_argument("--job-name", type=str, default=default_job_name, help="name of the job", metavar="NAME")
    parser.add_argument("--work-dir", type=str, default=None, help="folder of the job", metavar="DIR")


def get_scheduler_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `lbann.run` that were given on the command line."""
    given = {name: getattr(args, name, None) for name in (*_OF_THE_SCHEDULER, "job_name", "work_dir")}
    return {name: value for name, value in given.items() if value not in (None, False)}


def add_optimizer_arguments(
    parser: argparse.ArgumentParser, default_optimizer: str = "momentum", default_learning_rate: float = 0.01
) -> None:
    """Add --optimizer and --optimizer-learning-rate to a parser."""
    names = ", ".join(_OPTIMIZERS)
    parser.add_argument(
        "--optimizer", type=str, default=default_optimizer, help=f"{names} (default: {default_optimizer})"
    )
    parser.add_argument(
        "--optimizer-learning-rate",
        type=float,
        default=default_learning_rate,
        help=f"learning rate (default: {default_learning_rate})",
        metavar="VAL",
    )


# What LBANN's argument helper fills in; adamw's weight decay is set here by the name that the optimizer has for it.
_OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "momentum": ("SGD", {"momentum": 0.9}),
    "sgd": ("SGD", {}),
    "adam": ("Adam", {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8}),
    "adamw": ("Adam", {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "adamw_weight_decay": 0.01}),
    "adagrad": ("AdaGrad", {"eps": 1e-8}),
    "rmsprop": ("RMSprop", {"decay_rate": 0.99, "eps": 1e-8}),
}


def create_optimizer(args: argparse.Namespace) -> Any:
    """The optimizer of the arguments of `add_optimizer_arguments`.

    Raises:
        ConfigurationError: there is none of this name.
    """
    name = args.optimizer.lower()
    if name not in _OPTIMIZERS:
        raise ConfigurationError(
            f"--optimizer={args.optimizer}: there is no such optimizer{nearest(name, _OPTIMIZERS) or ';'} there are "
            f"{', '.join(_OPTIMIZERS)}"
        )
    kind, constants = _OPTIMIZERS[name]
    return getattr(optimizer, kind)(learn_rate=args.optimizer_learning_rate, **constants)


def add_training_arguments(
    parser: argparse.ArgumentParser, default_minibatch_size: int = 256, default_epochs: int = 20
) -> None:
    """Add --mini-batch-size, --num-epochs and --random-seed to a parser."""
    parser.add_argument("--mini-batch-size", type=int, default=default_minibatch_size, metavar="NUM")
    parser.add_argument("--num-epochs", type=int, default=default_epochs, metavar="NUM")
    parser.add_argument("--random-seed", type=int, default=None, metavar="NUM")


def add_profiling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --profile, --profile-init and --caliper to a parser; caliper has no effect."""
    parser.add_argument("--profile", action="store_true", help="mark regions for a profiler")
    parser.add_argument("--profile-init", action="store_true", help="the first epoch too")
    parser.add_argument("--caliper", action="store_true", help="accepted, and without effect")
    parser.add_argument("--caliper-config", type=str, default=None, help="accepted, and without effect")


def create_profile_callbacks(args: argparse.Namespace) -> list[Any]:
    """The callbacks of the arguments of `add_profiling_arguments`."""
    return [CALLBACKS["CallbackProfiler"](skip_init=not args.profile_init)] if args.profile else []


def get_profile_args(args: argparse.Namespace) -> list[str]:
    """Arguments of the driver for the arguments of `add_profiling_arguments`."""
    if not args.caliper:
        return []
    return ["--caliper", *([f"--caliper_config={args.caliper_config}"] if args.caliper_config else [])]


def add_amp_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lbann.util.amp.enable_amp` to a parser."""
    parser.add_argument("--amp", action="store_true", help="automatic mixed precision")
    parser.add_argument("--amp-init-scale", type=float, default=65536.0, help="first loss scale", metavar="VAL")
    parser.add_argument("--amp-growth-factor", type=float, default=2.0, help="factor of its growth", metavar="VAL")
    parser.add_argument("--amp-backoff-factor", type=float, default=0.5, help="factor on overflow", metavar="VAL")
    parser.add_argument("--amp-growth-interval", type=int, default=2000, help="steps between growths", metavar="NUM")


def get_distconv_environment(parallel_io: bool = False, num_io_partitions: int = 1) -> dict[str, Any]:
    """Variables that LBANN's spatially divided convolutions read. Nothing is divided here, and nothing reads them."""
    return {
        "LBANN_DISTCONV_COSMOFLOW_PARALLEL_IO": int(parallel_io),
        "LBANN_DISTCONV_NUM_IO_PARTITIONS": num_io_partitions,
    }
