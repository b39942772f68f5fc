"""What the pages say by hand of names and places is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tcexport.artifacts.platforms import CPU_LEVELS, CUDA_ARCHITECTURES
from tcexport.exporter.options import _NOT_BUILT
from tcexport.lowering.targets import DEFAULT_CPU_LEVELS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FLOORS = ("artifacts", "exporter", "lowering", "runtime", "tools")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub spells them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", shown).replace(" ", "-"))
    return found


def dead_links(page: Path) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def test_links_lead_somewhere() -> None:
    assert [(page.name, link) for page in PAGES for link in dead_links(page)] == []


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title\n[one](#a-title) [two](#another) [three](page.md) [four](gone.md)\n")
    assert list(dead_links(page)) == ["#another", "gone.md"]


def test_tools_that_are_named_are_there() -> None:
    for page in PAGES:
        for name in re.findall(r"tcexport\.tools\.(\w+)", page.read_text(encoding="utf-8")):
            assert (ROOT / "tools" / f"{name}.py").is_file(), f"{page.name}: {name}"


def test_the_readme_names_every_variable_that_is_read() -> None:
    found = set()
    for floor in FLOORS:
        for file in (ROOT / floor).rglob("*.py"):
            found |= set(re.findall(r'^\w+ = "(TCEXPORT_\w+)"$', read(str(file)), re.MULTILINE))
    assert "TCEXPORT_NUM_THREADS" in found
    assert {name for name in found if f"`{name}`" not in read("README.md")} == set()


def test_the_table_of_cpu_levels() -> None:
    rows = dict(
        re.findall(
            r"^\| `cpu:(\S+)` \| (.* \| (?:yes|no)) \|$", read("docs/compatibility.md"), re.M
        )
    )
    assert rows.keys() == CPU_LEVELS.keys()
    before: tuple[str, ...] = ()
    for name, level in CPU_LEVELS.items():
        flags, _, default = rows[name].rpartition(" | ")
        assert (default == "yes") == (name in DEFAULT_CPU_LEVELS)
        if not level.flags:
            assert flags.startswith("none: ")
            continue
        *others, said = flags.partition(", and ") if ", and " in flags else (flags,)
        assert set(said.split()) == set(level.flags) - (set(before) if others else set())
        before = level.flags


def test_the_targets_of_the_page() -> None:
    page = read("docs/targets.md")
    table = page.partition("## GPUs")[2].partition("Machine code for")[0]
    assert set(re.findall(r"`(sm_\d+)`", table)) == set(CUDA_ARCHITECTURES)
    assert set(CPU_LEVELS) <= set(re.findall(r"`([\w-]+)`", page.partition("## GPUs")[0]))
    rows = page.partition("## What is not built")[2]
    named = re.findall(r"^\| (`.*`) \|", rows, re.MULTILINE)
    assert {name for row in named for name in re.findall(r"`(\w+)`", row)} == _NOT_BUILT.keys()
