"""Other weights for a bundle, without compiling: packed again as the manifest records it.

The code and the contract were made for the values of some parameters, too: integers that bound
indices, numbers that stand in the code, constants that torch computed at export. Those are *frozen*:
the new file must hold the same, or leave them out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .container import Bundle, open_bundle
from .errors import BundleError, Diagnostic, UsageError
from .external import rewrite
from .manifest import WEIGHTS_NAME, Parameters, SourceTensor
from .names import suggestions
from .recipes import RecipeError, names_of
from .steps import made
from .weights import Weight, WeightsError, fingerprint, read_weights, same_bits


@dataclass(frozen=True)
class Updated:
    """``changed``: the stored tensors that have other bytes now; ``kept``: frozen parameters that the
    file of weights leaves out."""

    changed: tuple[str, ...]
    kept: tuple[str, ...]


def update_weights(path: Path, weights: Path, out: Path) -> Updated:
    """Write the bundle at ``path`` with the parameters of a safetensors file to ``out``.

    The file holds the model's ``state_dict``: every parameter by its name, shape and dtype, and no
    other; of tied ones, one name will do. The result is what an export with these values gives.

    Raises:
        BundleError: as `open_bundle`; the digests are checked.
        UsageError: TC015, the weights do not fit; TC016, a frozen parameter has another value, or
            the bundle does not record its parameters; TC012, ``out`` cannot be written.
    """
    with open_bundle(path) as bundle:
        bundle.verify()
        given, digest = _read(weights)
        parameters = bundle.manifest.parameters
        if parameters is None:
            raise UsageError(
                Diagnostic(
                    "TC016",
                    f"{bundle.path} does not record how its weights were made of parameters",
                    tries=("export the model again",),
                )
            )
        values, kept = _matched(parameters, given, weights)
        _require_frozen(parameters, values, path, weights)
        before = read_weights_of(bundle)
        after = dict(_stored(bundle, parameters, before, values))
        provenance = msgspec.structs.replace(bundle.manifest.provenance, weights_sha256=digest)
        manifest = msgspec.structs.replace(bundle.manifest, provenance=provenance)
        outside = manifest.external_weights is not None
        rewrite(bundle, out, manifest, after, outside=outside)
        changed = tuple(name for name in after if not same_bits(after[name], before[name]))
    return Updated(changed, kept)


def read_weights_of(bundle: Bundle) -> dict[str, Weight]:
    """The tensors of a bundle.

    Raises:
        BundleError: TC401, they are damaged.
    """
    if not bundle.has_weights:
        return {}
    try:
        return read_weights(bundle.view(WEIGHTS_NAME))
    except WeightsError as error:
        raise _damaged(bundle, f"{WEIGHTS_NAME}: {error}") from None


def _read(path: Path) -> tuple[dict[str, Weight], str]:
    """The tensors of a file, and the file's SHA-256."""
    try:
        data = path.read_bytes()
        return read_weights(memoryview(data), aligned=False), hashlib.sha256(data).hexdigest()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    except WeightsError as error:
        reason = str(error)
    raise UsageError(
        Diagnostic(
            "TC015",
            f"{path} is not a safetensors file: {reason}",
            tries=("safetensors.torch.save_file(model.state_dict(), …)",),
        )
    )


def _matched(
    parameters: Parameters, given: Mapping[str, Weight], path: Path
) -> tuple[dict[str, Weight], tuple[str, ...]]:
    """The values of the parameters that the file has; and the frozen ones that it has not."""
    values: dict[str, Weight] = {}
    kept: list[str] = []
    wrong: list[str] = []
    known: set[str] = set()
    frozen = {source.name for source in parameters.sources if source.frozen}
    stored = {
        name
        for recipe in parameters.recipes.values()
        if not frozen.issuperset(names_of(recipe))
        for name in names_of(recipe)
    }
    for source in parameters.sources:
        names = [name for name in (source.name, *source.aliases) if name in given]
        known |= {source.name, *source.aliases}
        if not names:
            if source.name in stored:
                wrong.append(f"{source.name}: not in the file")
            elif source.frozen:
                kept.append(source.name)
            continue
        for name in names:
            wrong += _misfit(source, name, given[name])
        if any(not same_bits(given[names[0]], given[name]) for name in names[1:]):
            wrong.append(
                f"{' and '.join(names)} are one tensor in the model, and differ in the file"
            )
        values[source.name] = given[names[0]]
    for name in given.keys() - known:
        near = suggestions(name, known - given.keys())
        wrong.append(f"{name}: not in the model{f'; {near[0]} is' if near else ''}")
    if wrong:
        raise UsageError(
            Diagnostic(
                "TC015",
                f"{path} does not fit the model: {len(wrong)} tensors",
                notes=(*sorted(wrong)[:20], *(("…",) if len(wrong) > 20 else ())),
                tries=("weights of this very architecture, as its state_dict() names them",),
            )
        )
    return values, tuple(kept)


def _misfit(source: SourceTensor, name: str, found: Weight) -> Iterator[str]:
    shape = tuple(int(size) for size in found.data.shape)
    if shape != source.shape:
        yield f"{name}: shape {list(shape)}, the model has {list(source.shape)}"
    if found.dtype != source.dtype:
        yield f"{name}: {found.dtype}, the model has {source.dtype}"


def _require_frozen(
    parameters: Parameters, values: Mapping[str, Weight], path: Path, weights: Path
) -> None:
    differ = [
        source
        for source in parameters.sources
        if source.frozen and source.name in values
        if fingerprint(values[source.name]) != source.frozen
    ]
    if differ:
        raise UsageError(
            Diagnostic(
                "TC016",
                f"{weights}: {differ[0].name} has another value than {path} was compiled for",
                notes=tuple(f"{source.name}: {source.reason}" for source in differ),
                tries=("export the model again with these weights",),
            )
        )


def _stored(
    bundle: Bundle,
    parameters: Parameters,
    before: Mapping[str, Weight],
    values: Mapping[str, Weight],
) -> Iterator[tuple[str, Weight]]:
    """The stored tensors, made again where a parameter goes into them."""
    for name, weight in before.items():
        recipe = parameters.recipes.get(name)
        if recipe is None or not values.keys() & set(names_of(recipe)):
            yield name, weight  # of nothing that the file has: frozen, all of it
            continue
        try:
            new = made(recipe, values)
        except RecipeError as error:
            raise _damaged(bundle, f"the recipe of {name!r:.80}: {error}") from None
        if new.dtype != weight.dtype or new.data.shape != weight.data.shape:
            raise _damaged(bundle, f"the recipe of {name!r:.80} makes another shape or dtype")
        yield name, new


def _damaged(bundle: Bundle, reason: str) -> BundleError:
    return BundleError(Diagnostic("TC401", f"{bundle.path} is not a bundle: {reason}"))
