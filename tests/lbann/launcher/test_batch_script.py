"""`lbann.run` with a stand-in for the driver: the folder, the script, the output, the exit status."""

import subprocess
from pathlib import Path

import pytest

import descend
import descend.lbann as lbann
import descend.lbann.contrib.launcher
from descend.errors import ConfigurationError
from descend.experiment.text import load

ALLOCATIONS = ("SLURM_JOB_ID", "LSB_JOBID", "FLUX_URI", "FLUX_ENCLOSING_ID")


@pytest.fixture(autouse=True)
def outside_of_an_allocation(monkeypatch):
    for name in ALLOCATIONS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def driver(tmp_path):
    """A program that prints its arguments and a variable, and fails as its last argument says."""
    program = tmp_path / "driver"
    program.write_text('#!/bin/sh\necho "got $*"\necho "$COLOUR" >&2\npwd\nexit ${STATUS:-0}\n')
    program.chmod(0o755)
    return str(program)


def experiment():
    """The parts of a run, as a script has them."""
    x = lbann.Input(data_field="samples", name="x")
    loss = lbann.L2Norm2(lbann.FullyConnected(x, num_neurons=2, name="y"), name="loss")
    model = lbann.Model(2, lbann.traverse_layer_graph(x), objective_function=loss, callbacks=[lbann.CallbackPrint()])
    readers = lbann.reader_pb2.DataReader()
    readers.reader.add(name="synthetic", role="train", num_samples=8, synth_dimensions="3", fraction_of_data_to_use=1.0)
    return lbann.Trainer(4), model, readers, lbann.SGD(learn_rate=0.1)


def test_the_driver_is_run_in_a_folder_of_its_own(tmp_path, driver, capfd):
    folder = tmp_path / "job"
    status = lbann.run(
        *experiment(),
        work_dir=folder,
        lbann_exe=driver,
        lbann_args="--disable_cuda --num_epochs=4",
        launcher_args=None,
        procs_per_trainer=1,
        environment={"COLOUR": "dark red", "STATUS": 3},
    )
    assert status == 3
    got = f"got --disable_cuda --num_epochs=4 --prototext={folder}/experiment.prototext --procs_per_trainer=1\n"
    assert got in (folder / "out.log").read_text()
    assert f"\n{folder}\n" in (folder / "out.log").read_text()
    assert (folder / "err.log").read_text() == "dark red\n"
    shown = capfd.readouterr()
    assert got in shown.out
    assert "dark red" in shown.err


def test_the_experiment_is_the_one_that_was_described(tmp_path, driver):
    trainer, model, readers, rule = experiment()
    assert lbann.run(trainer, model, readers, rule, work_dir=tmp_path / "a", lbann_exe=driver, setup_only=True) == 0
    found = load(tmp_path / "a" / "experiment.prototext")
    assert found.trainer.mini_batch_size == 4
    assert [layer.name for layer in found.model.layers] == ["x", "y", "loss"]
    assert found.optimizer == descend.SGD(learn_rate=0.1)
    assert not (tmp_path / "a" / "out.log").exists()
    lbann.run(
        trainer.export_proto(),
        model.export_proto(),
        readers,
        rule.export_proto(),
        experiment_dir=tmp_path / "b",
        binary_protobuf=True,
        lbann_exe=driver,
    )
    assert load(tmp_path / "b" / "experiment.protobin").model == found.model
    assert "--prototext=" + str(tmp_path / "b" / "experiment.protobin") in (tmp_path / "b" / "batch.sh").read_text()


def test_a_dated_folder_is_made_where_the_environment_says(tmp_path, driver, monkeypatch):
    monkeypatch.setenv("LBANN_EXPERIMENT_DIR", str(tmp_path / "all"))
    for _ in range(2):
        assert lbann.run(*experiment(), job_name="my job", lbann_exe=driver) == 0
    names = sorted(one.name for one in (tmp_path / "all").iterdir())
    assert len(names) == 2
    assert all(name[8] == "_" and name[:8].isdecimal() and "_my_job_n1_ppn1" in name for name in names)


def test_an_existing_script_is_replaced_only_when_asked(tmp_path, driver):
    given = {"work_dir": tmp_path / "job", "lbann_exe": driver, "setup_only": True}
    lbann.run(*experiment(), **given)
    with pytest.raises(ConfigurationError, match="exists already: pass overwrite_script=True"):
        lbann.run(*experiment(), **given)
    assert lbann.run(*experiment(), overwrite_script=True, **given) == 0


def test_one_process_is_started_without_a_launcher_by_this_python(tmp_path):
    lbann.run(*experiment(), work_dir=tmp_path, setup_only=True)
    lines = (tmp_path / "batch.sh").read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    assert f"{lbann.lbann_exe()} --prototext={tmp_path}/experiment.prototext" in lines
    assert lines[-1] == "exit ${status:-0}"


@pytest.mark.slow
def test_several_processes_of_this_machine_are_started_together(tmp_path, driver):
    """Each process runs the driver once, and gets its rank."""
    program = Path(driver)
    program.write_text('#!/bin/sh\necho "rank $RANK of $WORLD_SIZE"\n')
    assert lbann.run(*experiment(), work_dir=tmp_path / "job", procs_per_node=2, lbann_exe=driver) == 0
    said = (tmp_path / "job" / "out.log").read_text()
    assert "rank 0 of 2" in said
    assert "rank 1 of 2" in said


HEADERS = {
    "slurm": [
        "#SBATCH --nodes=2",
        "#SBATCH --job-name=lbann",
        "#SBATCH --time=0:30:00",
        "#SBATCH --partition=debug",
        "#SBATCH --account=bank",
        "#SBATCH --reservation=morning",
        "#SBATCH --output={0}/out.log",
        "#SBATCH --error={0}/err.log",
        "#SBATCH --chdir={0}",
    ],
    "lsf": [
        "#BSUB -nnodes 2",
        "#BSUB -J lbann",
        "#BSUB -W 0:30",
        "#BSUB -q debug",
        "#BSUB -G bank",
        "#BSUB -U morning",
    ],
    "flux": ["#flux: --nodes=2", "#flux: --time-limit=30m", "#flux: --queue=debug", "#flux: --bank=bank"],
    "pjm": ["#PJM -L node=2", "#PJM --mpi proc=8", "#PJM -L elapse=0:30:00", "#PJM -g bank", "#PJM -o {0}/out.log"],
    "openmpi": [],
}
STARTERS = {
    "slurm": "srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --exclusive ",
    "lsf": "jsrun --nrs 2 --rs_per_host 1 --tasks_per_rs 4 --launch_distribution packed --cpu_per_rs ALL_CPUS ",
    "flux": "flux run --nodes=2 --ntasks=8 --exclusive ",
    "pjm": "mpiexec -n 8 --exclusive ",
    "openmpi": "mpiexec -n 8 --map-by ppr:4:node --exclusive ",
}


@pytest.mark.parametrize("scheduler", HEADERS)
def test_a_script_has_its_schedulers_header_and_launcher(tmp_path, scheduler):
    lbann.run(
        *experiment(),
        work_dir=tmp_path,
        nodes=2,
        procs_per_node=4,
        time_limit=30,
        scheduler=scheduler,
        partition="debug",
        account="bank",
        reservation="morning",
        launcher_args="--exclusive",
        environment={"A_PATH": "/a b"},
        setup_only=True,
    )
    lines = (tmp_path / "batch.sh").read_text().splitlines()
    for wanted in HEADERS[scheduler]:
        assert wanted.format(tmp_path) in lines
    assert "export A_PATH='/a b'" in lines
    launch = [line for line in lines if lbann.lbann_exe() in line]
    assert len(launch) == 1
    assert launch[0].startswith(STARTERS[scheduler])
    assert lines[lines.index(launch[0]) + 1] == "status=$?"
    assert subprocess.run(["bash", "-n", tmp_path / "batch.sh"], check=False).returncode == 0


def test_a_job_is_submitted_with_its_script(tmp_path, monkeypatch):
    """A stand-in for sbatch, since submission is all that happens here."""
    program = tmp_path / "sbatch"
    program.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/submitted\nexit 7\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    status = lbann.run(*experiment(), work_dir=tmp_path / "job", scheduler="slurm", batch_job=True)
    assert status == 7
    assert (tmp_path / "submitted").read_text() == f"{tmp_path}/job/batch.sh\n"


def test_outside_of_an_allocation_slurm_gets_one_for_the_script(tmp_path, monkeypatch):
    program = tmp_path / "salloc"
    program.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert lbann.run(*experiment(), work_dir=tmp_path / "job", scheduler="slurm", partition="debug") == 0
    asked = (tmp_path / "asked").read_text()
    assert "--partition=debug" in asked
    assert "--output" not in asked
    assert asked.endswith(f"bash {tmp_path}/job/batch.sh\n")


def test_what_cannot_be_run_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigurationError, match="scheduler"):
        lbann.run(*experiment(), work_dir=tmp_path / "a", scheduler="slrum")
    with pytest.raises(ConfigurationError, match="nodes=2 needs a scheduler"):
        lbann.run(*experiment(), work_dir=tmp_path / "a", nodes=2)
    with pytest.raises(ConfigurationError, match="has no queue"):
        lbann.run(*experiment(), work_dir=tmp_path / "a", batch_job=True)
    with pytest.raises(ConfigurationError, match="by 'protobin' in the name"):
        lbann.run(*experiment(), work_dir=tmp_path / "a", binary_protobuf=True, proto_file_name="x.prototext")
    with pytest.raises(ConfigurationError, match="not a name of a variable"):
        lbann.run(*experiment(), work_dir=tmp_path / "a", environment={"a b": 1})
    assert not (tmp_path / "a").exists()


def test_the_launcher_for_centres_is_the_same():
    launcher = descend.lbann.contrib.launcher
    assert launcher.run is lbann.run
    assert launcher.compute_center() == "unknown"
    assert not launcher.is_lc_center()


def test_a_script_of_ones_own(tmp_path, driver):
    script = lbann.launcher.make_batch_script(work_dir=tmp_path / "job", environment={"COLOUR": "blue"})
    script.add_command("echo before")
    script.add_parallel_command([driver, "--flag"])
    assert script.run() == 0
    assert "before\ngot --flag" in (tmp_path / "job" / "out.log").read_text()


def test_profiling_stands_before_the_driver(tmp_path):
    lbann.run(*experiment(), work_dir=tmp_path, nvprof=True, setup_only=True)
    assert f"nvprof --log-file {tmp_path}/nvprof_output_%p.nvvp.log " in (tmp_path / "batch.sh").read_text()


EVIL = "x\ntouch {0}/evil\n#"


@pytest.mark.parametrize("scheduler", [*HEADERS, "local"])
@pytest.mark.parametrize("name", ["job_name", "partition", "account", "reservation", "launcher", "launcher_args"])
@pytest.mark.parametrize("character", ["\n", "\r", "\0", "\x1b", "\u2028", "\x85"])
def test_no_value_begins_a_line_of_its_own(tmp_path, scheduler, name, character):
    given = {name: f"x{character}touch {tmp_path}/evil"}
    with pytest.raises(ConfigurationError, match=f"{name}.* must be .*string of one line"):
        make_script(scheduler, tmp_path / "job", **given)


def make_script(scheduler, folder, **given):
    script = lbann.launcher.make_batch_script(folder, scheduler=scheduler, **given)
    script.add_parallel_command("true")
    return script.text()


@pytest.mark.parametrize("scheduler", [*HEADERS, "local"])
def test_a_folder_of_several_lines_is_refused(tmp_path, scheduler):
    with pytest.raises(ConfigurationError, match="work_dir must be"):
        make_script(scheduler, tmp_path / "a\ntouch evil")


@pytest.mark.parametrize("command", [EVIL, ["echo", EVIL], ("a\rb",)])
def test_a_command_is_one_line(tmp_path, command):
    script = lbann.launcher.make_batch_script(tmp_path, scheduler="local")
    for add in (script.add_command, script.add_parallel_command):
        with pytest.raises(ConfigurationError, match=r"command must be a string of one line.*add each line"):
            add(command)
    script.add_command("echo a\t b")  # a tab is white space
    with pytest.raises(ConfigurationError, match="command must be"):
        lbann.run(*experiment(), work_dir=tmp_path / "job", lbann_args=EVIL, setup_only=True)


def test_values_of_variables_are_what_the_job_sees(tmp_path):
    """Whatever text they are: bash is asked."""
    values = {"A": "a\nb", "B": "$(touch evil)", "C": "'\"`\\", "D": "\x1b[1m\t", "E": "\u2028é"}
    script = lbann.launcher.make_batch_script(tmp_path, scheduler="local", environment=values)
    program = tmp_path / "show.py"
    program.write_text(f"import os; assert {{name: os.environ[name] for name in 'ABCDE'}} == {values!r}")
    script.add_parallel_command(f"python3 {program}")
    assert script.run() == 0
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("name", ["", "a b", "A\ntouch x\n#", "1A", "A=B", "é", 3, None])
def test_names_of_variables_are_names(tmp_path, name):
    with pytest.raises(ConfigurationError, match="is not a name of a variable"):
        lbann.launcher.make_batch_script(tmp_path, scheduler="slurm", environment={name: "1"})


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_values_that_no_variable_can_hold_are_refused(tmp_path, value):
    with pytest.raises(ConfigurationError, match=r"environment\['A'\] must be text"):
        lbann.launcher.make_batch_script(tmp_path, scheduler="slurm", environment={"A": value})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"time_limit": "1\n#"}, "time_limit must be a finite number > 0"),
        ({"time_limit": -1}, "time_limit must be"),
        ({"nodes": "2\n"}, "nodes must be an integer >= 1"),
        ({"procs_per_node": 0}, "procs_per_node must be an integer >= 1"),
        ({"job_name": 3}, "job_name must be a non-empty string"),
        ({"environment": 3}, "environment must be a mapping"),
    ],
)
def test_arguments_of_other_kinds_are_refused(tmp_path, given, said):
    with pytest.raises(ConfigurationError, match=said):
        lbann.launcher.make_batch_script(tmp_path, scheduler="slurm", **given)


def test_what_is_changed_later_is_checked_when_the_script_is_written(tmp_path):
    script = lbann.launcher.make_batch_script(tmp_path, scheduler="slurm")
    script.options["partition"] = "x\ntouch evil"
    with pytest.raises(ConfigurationError, match="partition must be"):
        script.write()


def test_a_folder_with_blanks_reaches_the_driver_as_one_word(tmp_path, driver):
    Path(driver).write_text('#!/bin/sh\necho "$#"\n')
    folder = tmp_path / "a b $(touch evil)"
    assert lbann.run(*experiment(), work_dir=folder, lbann_exe=driver) == 0
    assert "\n1\n" in (folder / "out.log").read_text()


def test_the_key_of_data_sets_is_in_no_record_of_the_scheduler(tmp_path, monkeypatch):
    """A submitted job reads it from a file of its user; neither the environment nor the script has it."""
    monkeypatch.setattr("descend.lbann.launcher.batch_script.dataset_environment", lambda: {"THE_KEY": "secret"})
    program = tmp_path / "sbatch"
    program.write_text(f'#!/bin/sh\nenv > {tmp_path}/environment\ncp "$1" {tmp_path}/script\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert lbann.run(*experiment(), work_dir=tmp_path / "job", scheduler="slurm", batch_job=True) == 0
    assert "secret" not in (tmp_path / "environment").read_text()
    text = (tmp_path / "script").read_text()
    assert "secret" not in text
    (file,) = (tmp_path / "job").glob("the_key-*")
    assert file.stat().st_mode & 0o777 == 0o600
    line = next(line for line in text.splitlines() if line.startswith("export THE_KEY="))
    said = subprocess.run(["bash", "-c", f'{line}; echo "$THE_KEY"'], capture_output=True, text=True, check=True)
    assert said.stdout == "secret\n"


@pytest.mark.parametrize("name", ["work_dir", "script_file"])
@pytest.mark.parametrize("path", [["a"], {"a": "b"}, 3, "a\0b"])
def test_what_is_no_path_is_refused_by_name(tmp_path, name, path):
    with pytest.raises(ConfigurationError, match=f"{name} must be a str or a Path or None, got"):
        lbann.contrib.launcher.make_batch_script(**{"work_dir": tmp_path, name: path})
