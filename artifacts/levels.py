"""Levels of what an export finds: a code is raised to a refusal, or its notes are silenced.

The default level of each code stands in `rules`. What would be lost in silence cannot be silenced:
a code is ``allowed`` there only where the bundle gives eager's numbers, or refuses the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from .errors import Diagnostic, UsageError
from .names import suggestions
from .rules import RULES, Rule

# Found by an export: the others are of what was typed, of a call and of a load.
_FOUND = ("TC1", "TC2", "TC5")


@dataclass(frozen=True)
class Levels:
    """``error``: codes whose notes and warnings refuse the export; ``allow``: codes whose notes and
    warnings are not told. A refusal stays one."""

    error: frozenset[str] = frozenset()
    allow: frozenset[str] = frozenset()

    def applied(self, found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
        """What is told of ``found``, each with its severity."""
        return tuple(
            self._raised(each)
            for each in found
            if each.severity == "error" or each.code not in self.allow
        )

    def _raised(self, each: Diagnostic) -> Diagnostic:
        if each.severity == "error" or each.code not in self.error:
            return each
        notes = (*each.notes, f"a {each.severity} that counts as an error here, as was asked")
        return msgspec.structs.replace(each, severity="error", notes=notes)

    def over(self, other: Levels) -> Levels:
        """These, and of another's those that these say nothing of."""
        said = self.error | self.allow
        return Levels(self.error | (other.error - said), self.allow | (other.allow - said))


def level_text(rule: Rule) -> str:
    """The level of a code and what changes it; "" for what no export finds."""
    if not rule.code.startswith(_FOUND):
        return ""
    if rule.level == "refuse":
        return "refuse, always."
    silence = f"`--allow {rule.code}` silences it" if rule.allowed else "nothing silences it"
    return f"{rule.level}, where the export can go on; `--error {rule.code}` refuses, {silence}."


def parse_levels(
    error: str | Sequence[str], allow: str | Sequence[str], place: str = "--{}"
) -> Levels:
    """Read two lists of codes; several may stand in one item, with commas.

    Args:
        place: what each list is called where it was written, ``{}`` being ``error`` or ``allow``.

    Raises:
        UsageError: TC006, a code that is not there; TC008, one that both lists name; TC013, one
            whose level cannot be changed so.
    """
    errors = [_code(each, place.format("error")) for each in _items(error)]
    allowed = [_code(each, place.format("allow")) for each in _items(allow)]
    for code in errors:
        if code in allowed:
            raise UsageError(
                Diagnostic(
                    "TC008",
                    f"{code} stands in {place.format('error')} and in {place.format('allow')}",
                )
            )
        if not code.startswith(_FOUND):
            raise UsageError(
                Diagnostic(
                    "TC013",
                    f"{place.format('error')} {code}: no export finds this",
                    notes=(f"{code} is: {RULES[code].title}",),
                )
            )
    for code in allowed:
        rule = RULES[code]
        if not rule.allowed:
            can = ", ".join(each.code for each in RULES.values() if each.allowed)
            why = (
                "it refuses the export"
                if rule.level == "refuse"
                else "the bundle may answer otherwise than the model would, and nothing else says so"
            )
            raise UsageError(
                Diagnostic(
                    "TC013",
                    f"{place.format('allow')} {code}: {rule.title} cannot be silenced, {why}",
                    notes=(f"codes that can be: {can}",),
                    tries=(f"tcexport explain {code}",),
                )
            )
    return Levels(frozenset(errors), frozenset(allowed))


def _items(typed: str | Sequence[str]) -> list[str]:
    typed = (typed,) if isinstance(typed, str) else typed
    return [part.strip() for each in typed for part in each.split(",") if part.strip()]


def _code(typed: str, place: str) -> str:
    code = typed.upper()
    if code in RULES:
        return code
    kin = [each for each in RULES if each[:3] == code[:3]]  # the first digit says what it is about
    close = suggestions(code, kin or RULES)
    raise UsageError(
        Diagnostic(
            "TC006",
            f"{place} {typed}: there is no such code",
            tries=(*(f"{place} {each}" for each in close[:1]), "tcexport explain   (lists all)"),
        )
    )
