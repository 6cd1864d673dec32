import subprocess

from descend import lbann


def test_the_driver_is_one_word_where_its_program_is_installed(monkeypatch, tmp_path):
    """Scripts put it first in a list of arguments, or before others in a line."""
    program = tmp_path / "descend-lbann"
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert lbann.lbann_exe() == f"{tmp_path}/python -m descend.lbann.driver"
    program.write_text("#!/bin/sh\necho $1\n")
    program.chmod(0o755)
    done = subprocess.run([lbann.lbann_exe(), "--help"], capture_output=True, text=True, check=True)
    assert done.stdout == "--help\n"


def test_parts_of_a_build_are_there_where_their_layers_are():
    assert all(lbann.has_feature(name) for name in ("CUTENSOR", "tensor_permute", "Fftw", "ONEDNN_CPU", "CNPY"))
    assert not any(lbann.has_feature(name) for name in ("NVSHMEM", "DISTCONV", "MIOPEN", "nothing"))
