"""The command that runs the node tests of onnx; what becomes of them is in tests/onnx/test_nodes.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tcexport.tools.onnx_nodes import TITLE, main, with_section


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_tests_are_run_by_parts_of_their_names() -> None:
    done = run("test_matmul_2d", "test_optional_get_element_tensor")
    assert done.exit_code == 0, done.output
    product, optional, *counts = done.output.splitlines()
    assert optional.startswith("test_optional_get_element_tensor: refused OptionalGetElement")
    assert product == "test_matmul_2d: equal"
    assert counts[0].split() == ["1", "equal"] and len(counts) == 2


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--bundle", "No such option"),
        ("no_such_test", "no test of onnx has no_such_test in its name"),
    ],
)
def test_what_is_not_there_is_refused(typed: str, said: str) -> None:
    done = run(typed)
    assert done.exit_code == 2 and said in done.output


def test_the_page_is_looked_for_before_minutes_are_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run()
    assert done.exit_code == 1 and "docs/onnx.md is not here" in done.output


def test_a_section_of_a_page_is_replaced_and_nothing_else() -> None:
    page = f"# Page\n\n{TITLE}\n\nold\n\n## Next\n\nkept\n"
    written = f"{TITLE}\n\nnew\n"
    assert with_section(page, written) == f"# Page\n\n{TITLE}\n\nnew\n\n## Next\n\nkept\n"
    assert with_section("# Page\n", written) == f"# Page\n\n{TITLE}\n\nnew\n"
