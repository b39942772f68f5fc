"""What the processes of an export import."""

from __future__ import annotations

import subprocess
import sys


def _printed(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_process_that_traces_holds_no_compiler() -> None:
    script = """
import sys
import tcexport.exporter.export, tcexport.exporter.check
print("tvm" in sys.modules, "torch" in sys.modules)
"""
    assert _printed(script) == "False True"


def test_nothing_is_collected_while_lasting_imports_are_made_and_what_came_with_them_stays() -> (
    None
):
    script = """
import gc
from tcexport.lowering.imports import lasting_imports
before = [each["collections"] for each in gc.get_stats()]
with lasting_imports():
    import sympy
    assert [each["collections"] for each in gc.get_stats()] == before
print(gc.isenabled(), gc.get_freeze_count() > 10_000)
"""
    assert _printed(script) == "True True"
