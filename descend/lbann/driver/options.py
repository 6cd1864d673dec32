"""The options of LBANN's driver: their names, what they take, their environment variables, and what they do here.

Source: LBANN's page on its command line and its option parser, commit 04c297bddf76; see `docs/lbann-driver.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GROUPS", "IMPORT_VARIABLE", "OPTIONS", "SPELLINGS", "Option", "help_text"]

IMPORT_VARIABLE = "DESCEND_LBANN_IMPORT"  # "1": `import lbann` finds this package in modules of readers


class Option(NamedTuple):
    """One option.

    Attributes:
        name: As LBANN's pages have it, without the dashes.
        takes: The type of its value; bool for a flag without one.
        help: What it does; "" for one that is accepted and has no effect here.
        also: Another spelling.
        variable: The environment variable that is used where it is not given.
    """

    name: str
    takes: type
    help: str = ""
    also: str = ""
    variable: str = ""


_FILES = (
    Option("prototext", str, "The whole experiment; a name with 'protobin' is read as binary."),
    Option("model", str, "The model and the trainer."),
    Option("optimizer", str, "The default optimizer."),
    Option("reader", str, "The data readers."),
    Option("metadata", str, "The description of a data set; read, and ignored as in LBANN's own readers."),
)

_RUN = (
    Option("mini_batch_size", int, "Samples of an update, in place of the file's."),
    Option("num_epochs", int, "Epochs, in place of the file's."),
    Option("random_seed", int, "Seed of all random numbers; 0 takes one from the clock.", "rand_seed",
           "LBANN_RANDOM_SEED"),
    Option("checkpoint_dir", str, "Where the callback Checkpoint writes.", "ckpt_dir"),
    Option("restart_dir", str, "Continue the newest checkpoint in this folder."),
    Option("load_model_weights_dir", str, "Begin with weights of a trainer's checkpoints or of SaveModel."),
    Option("load_model_weights_dir_is_complete", bool, "That folder is itself the checkpoint to take."),
    Option("exit_after_setup", bool, "Build the model and stop."),
    Option("generate_multi_proto", bool, "Trainer R reads FILE with 'trainer' replaced by 'trainerR'."),
    Option("procs_per_trainer", int, "Ranks of a trainer; all of them by default.", "", "LBANN_PROCS_PER_TRAINER"),
    Option("disable_cuda", bool, "Compute on the CPU.", "", "LBANN_DISABLE_CUDA"),
    Option("hydrogen_block_size", int, "Kept in the experiment."),
    Option("omp_num_threads", int, "Threads of one operation on the CPU, in place of OMP_NUM_THREADS."),
    Option("serialize_io", bool, "Read in the training thread.", "", "LBANN_SERIALIZE_IO"),
    Option("disable_background_io_activity", bool, "The same.", "", "LBANN_DISABLE_BACKGROUND_IO_ACTIVITY"),
    Option("verbose", bool, "Print the layers before the run.", "", "LBANN_VERBOSE"),
)  # fmt: skip

_ROLES = ("train", "validate", "test")
_DATA = (
    Option("data_filedir", str, "Folder of the data of all readers."),
    *(Option(f"data_filedir_{role}", str, f"The same for the role {role}.") for role in _ROLES),
    *(Option(f"data_filename_{role}", str, f"Data file of the role {role}.") for role in _ROLES),
    *(Option(f"label_filename_{role}", str, f"Label file of the role {role}.") for role in _ROLES),
    *(Option(f"sample_list_{role}", str, f"Sample list of the role {role}.") for role in _ROLES),
    Option("data_reader_fraction", float, "Fraction of the data of every reader that is used."),
    Option("absolute_sample_count", int, "Number of samples of every reader that are used."),
    Option("keep_sample_order", bool, "Keep the order of sample lists."),
    Option(
        "num_io_threads",
        int,
        "Processes that make the samples of a Python reader.",
        "",
        "LBANN_NUM_IO_THREADS",
    ),
    Option("vocab", str, "Vocabulary file of the reader smiles."),
    Option("sequence_length", int, "Length of the sequences of the reader smiles.", "seq_len"),
)

_ACCEPTED = (
    *(Option(name, bool) for name in (
        "no_inplace", "no_backprop_disable", "disable_signal_handler", "stack_trace_to_file", "print_affinity",
        "ltfb_verbose", "multitrainer_verbose", "ltfb_allow_global_statistics",
        "ltfb_global_multitrainer_statistics", "disable_distconv", "init_shmem", "init_nvshmem",
        "disable-cudnn-tensor-ops", "use-cudnn-tensor-ops", "use-cublas-tensor-ops",
        "use_gpu_direct_memory_in_forward_prop", "use_gpu_default_memory_in_forward_prop", "caliper", "z_score",
        "normalization", "keep_packed_fields", "load_full_sample_list_once", "write_sample_list",
        "write_sample_label_list", "check_data", "quiet", "use_data_store", "preload_data_store", "node_sizes_vary",
        "data_store_cache", "data_store_debug", "data_store_fail", "data_store_min_max_timing",
        "data_store_no_thread", "data_store_profile", "data_store_test_cache", "data_store_test_checkpoint",
        "trainer_create_two_models", "trainer_enable_subgrid_async_comm", "trainer_enable_topo_aware_subgrid",
    )),
    *(Option(name, int) for name in (
        "max_io_thread_rngs", "rng_seeds_per_trainer_to_display", "smiles_buffer_size",
        "trainer_grid_height", "trainer_primary_grid_size", "num-subgrids",
    )),
    *(Option(name, str) for name in ("caliper_config", "data_store_spill")),
)  # fmt: skip

# Options of LBANN's tools that convert one project's data; the driver itself never read them.
_TOOLS = (
    Option("jag", bool),
    *(Option(name, str) for name in (
        "base_dir", "filelist", "format", "index_fn", "mapping_fn", "mode", "output_base_dir", "output_base_fn",
        "output_dir", "output_fn",
    )),
    *(Option(name, int) for name in (
        "num_lists", "num_samples", "num_samples_per_file", "num_samples_per_list", "num_subdirs",
        "samples_per_file",
    )),
)  # fmt: skip

GROUPS: Mapping[str, tuple[Option, ...]] = {
    "Files": _FILES,
    "The run": _RUN,
    "Data, in place of what the readers say": _DATA,
    "Accepted, without effect here": _ACCEPTED,
    "Of LBANN's tools for the JAG data, accepted, without effect here": _TOOLS,
}
OPTIONS: Mapping[str, Option] = {option.name: option for options in GROUPS.values() for option in options}
SPELLINGS: Mapping[str, str] = {
    **{name.replace("-", "_"): name for name in OPTIONS},
    **{name: name for name in OPTIONS},
    **{option.also: name for name, option in OPTIONS.items() if option.also},
}
"""The name of the option for every spelling that is understood."""

_USAGE = "usage: descend-lbann [--flag=value | --flag value | --flag] ..."
_INTRODUCTION = """\
Runs an experiment as LBANN's driver does: --prototext=FILE, or --model=FILE --optimizer=FILE --reader=FILE."""
_VALUES = {int: "=N", float: "=X", str: "=TEXT", bool: ""}
_WIDE = 46


def help_text() -> str:
    """All options with what they do."""
    lines = [_USAGE, "", _INTRODUCTION]
    for group, options in GROUPS.items():
        lines += ["", f"{group}:"]
        if not options[0].help:
            lines += _listed([f"--{option.name}{_VALUES[option.takes]}" for option in options])
            continue
        for option in options:
            names = " ".join(f"--{name}{_VALUES[option.takes]}" for name in (option.name, option.also) if name)
            variable = f" [{option.variable}]" if option.variable else ""
            gap = " " * max(_WIDE - len(names), 1) if len(names) < _WIDE else "\n" + " " * (_WIDE + 2)
            lines.append(f"  {names}{gap}{option.help}{variable}")
    return "\n".join(lines) + "\n"


def _listed(names: list[str], columns: int = 100) -> list[str]:
    """Names in lines of at most so many columns."""
    lines = [" "]
    for name in names:
        if len(lines[-1]) + len(name) + 1 > columns:
            lines.append(" ")
        lines[-1] += f" {name}"
    return lines
