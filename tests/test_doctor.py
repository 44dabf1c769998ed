"""What the doctor finds on prepared machines."""

import os
from pathlib import Path

import pytest

from rlvla3.doctor import Check, graphics, machine, render, report, software, usable_cores, usable_memory


def test_cores_respect_affinity_and_both_kinds_of_quota(tmp_path: Path) -> None:
    own = float(len(os.sched_getaffinity(0)))
    assert usable_cores(tmp_path) == own
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == own
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path) == 0.5
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("25000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == 0.25
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cores(tmp_path) == own


def test_memory_is_cut_by_the_groups_limit(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 900 kB\nMemAvailable:    500 kB\n")
    assert usable_memory(tmp_path, meminfo) == 500 * 1024
    (tmp_path / "memory.max").write_text("300000\n")
    (tmp_path / "memory.current").write_text("100000\n")
    assert usable_memory(tmp_path, meminfo) == 200000
    (tmp_path / "memory.stat").write_text("anon 40000\ninactive_file 60000\nactive_file 5\n")
    assert usable_memory(tmp_path, meminfo) == 260000, "the kernel gives unread cached files up"


def test_graphics_needs_one_working_backend() -> None:
    fails = "fails: no library; apt-get install libosmesa6"
    assert [row.ok for row in graphics({"egl": fails, "osmesa": "works: llvmpipe"})] == [True, True]
    (row,) = graphics({"osmesa": fails})
    assert (row.value, row.remedy) == ("fails: no library", "apt-get install libosmesa6")


def test_missing_packages_name_the_command() -> None:
    rows = {row.name: row for row in software({"numpy": "2.0"})}
    assert rows["numpy"].ok
    assert rows["metaworld"].remedy.endswith("-m pip install 'rlvla3[metaworld]'")
    assert rows["cuda"].remedy == "make install"


def test_an_unwritable_run_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rows = [row for row in machine(tmp_path / "file" / "run") if row.name == "run folder"]
    assert rows[0].value.endswith("file is not writable")
    assert not rows[0].ok
    assert all(row.ok for row in machine(tmp_path / "new") if row.name == "run folder")


def test_rows_are_lines() -> None:
    lines: list[str] = []
    render([Check(name="a", value="1"), Check(name="long", value="2", remedy="run this")], lines.append)
    assert lines == ["ok   a     1", "MEND long  2  ->  run this"]


@pytest.mark.metaworld
def test_the_whole_report(tmp_path: Path) -> None:
    rows = {row.name: row for row in report(tmp_path)}
    assert {"python", "torch", "metaworld", "cores", "memory"} <= rows.keys()
    assert any(row.value.startswith("works") for name, row in rows.items() if name.startswith("GL "))
