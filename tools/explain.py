"""``tcexport explain``: the page of a diagnostic, or the list of all."""

from __future__ import annotations

import re
from pathlib import Path

import click

from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.names import suggestions
from ..artifacts.rules import RULES, Rule


@click.command()
@click.argument("code", required=False)
def command(code: str | None) -> None:
    """What an error code means, why it is an error, and what to do.

    Without CODE: all codes.
    """
    if code is None:
        for rule in RULES.values():
            click.echo(f"{rule.code}  {rule.title}")
        return
    found = RULES.get(code.upper()) or RULES.get(f"TC{code}")
    if found is None:
        close = suggestions(code.upper(), RULES)
        raise UsageError(
            Diagnostic(
                "TC006",
                f"there is no code {code}",
                tries=(
                    *(f"tcexport explain {name}" for name in close[:1]),
                    "tcexport explain   (lists all codes)",
                ),
            )
        )
    click.echo(page(found))


def page(rule: Rule) -> str:
    """The page of one rule as text: that of docs/diagnostics/, without Markdown's signs."""
    text = (Path(__file__).parents[1] / "docs" / "diagnostics" / f"{rule.code}.md").read_text(
        encoding="utf-8"
    )
    lines, inside = [], False
    for line in text.rstrip().splitlines():
        if line.startswith("```"):
            inside = not inside
        elif inside:
            lines.append(f"    {line}".rstrip())
        else:
            line = re.sub(r"\[(TC\d+)\]\(TC\d+\.md\)", r"\1", line)
            lines.append(re.sub(r"^#+ |\*\*", "", line))
    return "\n".join(lines)
