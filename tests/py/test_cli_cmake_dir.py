"""moe-ep cmake-dir: the folder of the CMake package, or a clear error."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from moe_ep.cli import cmake_dir
from moe_ep.cli.app import app


@pytest.mark.parametrize("library_folder", ["lib", "lib64"])
def test_the_folder_is_found_below_the_package(monkeypatch, tmp_path, library_folder):
    folder = tmp_path / library_folder / "cmake" / "moe_ep"
    folder.mkdir(parents=True)
    (folder / "moe_ep-config.cmake").touch()
    monkeypatch.setattr(cmake_dir, "_package_folders", lambda: [tmp_path / "other", tmp_path])
    result = CliRunner().invoke(app, ["cmake-dir"])
    assert result.exit_code == 0
    assert Path(result.stdout.strip()) == folder


def test_a_package_without_it_is_an_error_that_says_where_it_looked(monkeypatch, tmp_path):
    monkeypatch.setattr(cmake_dir, "_package_folders", lambda: [tmp_path])
    result = CliRunner().invoke(app, ["cmake-dir"])
    assert result.exit_code == 1
    assert "moe_ep-config.cmake must be in the installed package" in result.stderr
    assert str(tmp_path) in result.stderr.replace("\n", "")
