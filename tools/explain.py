"""``tcexport explain``: the page of a diagnostic, or the list of all."""

from __future__ import annotations

import click

from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.levels import level_text
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
    """The page of one rule, as text."""
    parts = [f"{rule.code}: {rule.title}", rule.what, f"Why: {rule.why}", f"Do: {rule.fix}"]
    if level_text(rule):
        parts.append(f"Level: {level_text(rule)}")
    if rule.example:
        parts.append(f"Example:\n  {rule.example}")
    return "\n\n".join(parts)
