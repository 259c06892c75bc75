"""Whether the installed TVM works, and what is said when it does not."""

from __future__ import annotations

from importlib import metadata

import pytest

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import check_tvm, import_tvm, installed_tvm


@pytest.mark.tvm
def test_the_installed_pair_of_tvm_and_its_ffi_survives():
    """Fails with what to install when the pair crashes, as it does with apache-tvm-ffi 0.1.15."""
    assert check_tvm() == metadata.version("apache-tvm")


@pytest.mark.tvm
def test_the_installed_version_is_known_without_an_import():
    assert installed_tvm() == metadata.version("apache-tvm")


@pytest.mark.tvm
def test_a_pair_that_crashes_is_told(monkeypatch, tmp_path):
    package = tmp_path / "tvm"
    (package / "s_tir").mkdir(parents=True)
    (package / "s_tir" / "__init__.py").write_text("")
    (package / "__init__.py").write_text(
        "import os, types\n"
        "tirx = types.SimpleNamespace(IntImm=lambda *a: a)\n"
        "ir = types.SimpleNamespace(save_json=lambda *a: os.abort())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InputError) as error:
        check_tvm()
    assert "SIGABRT" in str(error.value)
    assert "apache-tvm-ffi 0.1.15 is known to crash" in str(error.value)
    assert "pip install" in str(error.value)


@pytest.mark.tvm
def test_a_tvm_that_cannot_be_imported_is_told(monkeypatch, tmp_path):
    (tmp_path / "tvm.py").write_text("raise OSError('libtvm.so: wrong ELF class')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InputError, match=r"cannot be imported \(OSError: libtvm.so"):
        check_tvm()


def test_a_missing_tvm_is_told(monkeypatch):
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(InputError, match=r"not installed: pip install 'pytest-gpuenergy\[tvm\]'"):
        import_tvm()


def test_another_series_of_tvm_is_told(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda _: "0.30.0")
    with pytest.raises(InputError, match=r"needs Apache TVM 0\.27, and 0\.30\.0 is installed"):
        import_tvm()
