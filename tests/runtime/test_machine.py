"""Machines: the highest level that fits is chosen; a refusal says built for, found, do."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from tcexport.artifacts.errors import BundleError
from tcexport.artifacts.manifest import Target
from tcexport.artifacts.platforms import CPU_LEVELS
from tcexport.runtime import load
from tcexport.runtime.machine import LEVEL_ENVIRONMENT, Machine, choose_target, this_machine

V2, V3, V4 = (frozenset(CPU_LEVELS[f"x86-64-v{number}"].flags) for number in (2, 3, 4))
PATH = Path("m.tcpkg")


def target(
    level: str, libc: str = "2.17", machine: str = "x86_64", system: str = "linux"
) -> Target:
    return Target(f"cpu:{level}", system, machine, level, libc, f"targets/{level}.so")


def machine(flags: frozenset[str], libc: str = "2.36") -> Machine:
    return Machine("linux", "x86_64", libc, flags)


def mac(version: str, machine: str = "arm64") -> Machine:
    return Machine("darwin", machine, version, frozenset())


def for_mac() -> Target:
    return target("arm64-macos", libc="11.0", machine="arm64", system="darwin")


BOTH = [target("x86-64-v3"), target("x86-64-v4")]


@pytest.mark.parametrize(("flags", "level"), [(V4, "x86-64-v4"), (V3, "x86-64-v3")])
def test_the_highest_level_that_fits(flags: frozenset[str], level: str) -> None:
    for targets in (BOTH, BOTH[::-1]):
        assert choose_target(targets, machine(flags | {"more"}), PATH).level == level


def refusal(targets: list[Target], found: Machine) -> str:
    with pytest.raises(BundleError) as caught:
        choose_target(targets, found, PATH)
    assert caught.value.code == "TC404"
    return str(caught.value)


def test_missing_flags_are_named() -> None:
    text = refusal(BOTH, machine(V3 - {"avx2", "fma"}))
    assert (
        "m.tcpkg was built for cpu:x86-64-v3, cpu:x86-64-v4; this machine is linux x86_64" in text
    )
    assert "cpu:x86-64-v3: the CPU lacks avx2 fma" in text
    assert "avx512f" in text
    assert "try: export with --target cpu:x86-64-v2" in text


@pytest.mark.parametrize(
    ("built", "found", "message"),
    [
        (target("x86-64-v3", libc="2.40"), machine(V4), "needs glibc 2.40 or later, found 2.36"),
        (target("x86-64-v3", libc="2.4"), machine(V4, libc=""), "needs glibc 2.4 or later"),
        (target("aarch64", machine="aarch64"), machine(V4), "needs linux aarch64"),
        (target("x86-64-v3", system="darwin"), machine(V4), "needs darwin x86_64"),
        (target("x86-64-v9"), machine(V4), "x86-64-v9, which this tcexport does not know"),
        (target("aarch64"), machine(V4), "needs a aarch64 CPU"),
        (for_mac(), machine(V4), "needs darwin arm64"),
        (for_mac(), Machine("linux", "arm64", "2.36", frozenset()), "needs darwin arm64"),
        (for_mac(), mac("13.1", "x86_64"), "needs darwin arm64"),
        (for_mac(), mac("10.16"), "needs macOS 11.0 or later, found 10.16"),
        (for_mac(), mac(""), "needs macOS 11.0 or later"),
        (
            target("aarch64", machine="arm64", system="darwin", libc="11.0"),
            mac("14.5"),
            "needs a aarch64 CPU",
        ),
    ],
)
def test_other_systems_are_refused(built: Target, found: Machine, message: str) -> None:
    assert message in refusal([built], found)


def test_a_mac_takes_what_is_for_it_and_is_told_what_to_export() -> None:
    assert choose_target([*BOTH, for_mac()], mac("11.0"), PATH).level == "arm64-macos"
    assert choose_target([for_mac()], mac("14.5"), PATH).level == "arm64-macos"
    text = refusal(BOTH, mac("14.5"))
    assert "this machine is darwin arm64, macOS 14.5" in text
    assert "try: export with --target cpu:arm64-macos" in text


def test_linux_is_told_what_to_export_instead_of_code_for_macos() -> None:
    text = refusal([for_mac()], machine(V4))
    assert "was built for cpu:arm64-macos; this machine is linux x86_64, glibc 2.36" in text
    assert "try: export with --target cpu:x86-64-v4" in text


def test_versions_are_compared_as_numbers() -> None:
    assert choose_target([target("x86-64-v3", libc="2.4")], machine(V3, libc="2.17"), PATH)


def test_no_target_at_all() -> None:
    assert "was built for nothing" in refusal([], machine(V4))


def test_a_lower_level_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL_ENVIRONMENT, "x86-64-v3")
    assert choose_target(BOTH, machine(V4), PATH).level == "x86-64-v3"
    monkeypatch.setenv(LEVEL_ENVIRONMENT, "x86-64-v4")
    text = refusal(BOTH, machine(V3))
    assert "cpu:x86-64-v4: the CPU lacks avx512f" in text
    assert f"try: unset {LEVEL_ENVIRONMENT}" in text
    monkeypatch.setenv(LEVEL_ENVIRONMENT, "x86-64-v2")
    assert "holds the levels x86-64-v3, x86-64-v4" in refusal(BOTH, machine(V4))


def test_this_machine_is_read_from_the_system(added: Path) -> None:
    found = this_machine()
    assert found.system == "linux"
    assert found.libc.startswith("2.")
    assert found.flags
    assert load(added).target.level == "x86-64-v3"


def test_a_mac_is_known_by_what_its_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    release = os.uname_result(("Darwin", "mini", "23.6.0", "Darwin Kernel Version 23.6.0", "arm64"))
    monkeypatch.setattr(os, "uname", lambda: release)
    monkeypatch.setattr(platform, "mac_ver", lambda: ("14.6.1", ("", "", ""), "arm64"))
    found = this_machine.__wrapped__()
    assert (found.system, found.machine, found.libc) == ("darwin", "arm64", "14.6.1")
    assert choose_target([*BOTH, for_mac()], found, PATH).level == "arm64-macos"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "gpu", ""])
def test_a_device_that_is_not_there_is_refused(added: Path, device: str) -> None:
    with pytest.raises(BundleError, match="TC407"):
        load(added, device=device)
