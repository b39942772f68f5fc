"""The manifest: what is in a bundle, for what machine, and how it was made.

`manifest.json` is the first member of a bundle. It describes every other member by size and digest;
a file that holds more, less or other than the manifest says is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Literal

import msgspec

from .contract import Contract, ContractError, TensorInput, TensorOutput, check_name, checked
from .expr import Expr, ExprError, from_data, is_logic
from .platforms import capability
from .recipes import RecipeError, names_of, recipe_from_data
from .states import StateError, StateTensor, check_generator, check_states

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
WEIGHTS_NAME = "weights.safetensors"
MAX_MEMORY_SUMS = 64
MAX_MANIFEST_BYTES = 64 << 20
MAX_VARIANTS = 256
GENERAL = "general"  # the variant that takes all that the bundle serves


class _Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Member(_Data, frozen=True):
    """A member of the file: size in bytes and SHA-256 of its bytes, in hexadecimal."""

    name: str
    size: int
    sha256: str


class Entry(_Data, frozen=True, omit_defaults=True):
    """How the compiled function is called.

    Its arguments are: the tensor inputs numbered ``inputs`` (indices into the contract's), then one
    shape holding the values of ``sizes`` (expressions over dims) if there are any, then the states of
    the manifest, which it writes to, then the tensors ``weights`` of weights.safetensors. It returns
    ``results`` tensors. The function ``into``, where there is one, takes before the weights a tensor
    for each of the results numbered ``given``, which it writes there; else it does the same.
    """

    function: str
    inputs: tuple[int, ...]
    sizes: tuple[Any, ...]
    weights: tuple[str, ...]
    results: int
    into: str = ""
    given: tuple[int, ...] = ()


class CudaCode(_Data, frozen=True):
    """The GPU code within a library.

    ``architectures`` are those that it holds machine code for (``sm_80``), the lowest first; ``ptx``
    is the one that it holds PTX for (``compute_90``), or "". ``driver`` is the lowest version of
    CUDA that a driver must serve (as cuDriverGetVersion says, ``13.0``) to take the machine code,
    ``ptx_driver`` the same for the PTX ("" where there is none). ``compiler`` made both.
    ``kernels`` are the names of the functions on the device, sorted.
    """

    architectures: tuple[str, ...]
    ptx: str
    driver: str
    ptx_driver: str
    compiler: str
    kernels: tuple[str, ...]


class Target(_Data, frozen=True, omit_defaults=True):
    """One binary: ``library`` is the member that holds it, ``level`` the CPU level it needs and
    ``libc`` the oldest glibc that it runs with, or macOS, whose C library has no version of its own.

    One for a GPU has ``cuda``, and its ``level`` is what the code around the kernels needs.
    ``entry`` is how this binary is called, where that is not the manifest's; then it holds that one
    function. ``entries`` are how its functions for the manifest's variants are called, in their order,
    where that is not as these say.
    """

    name: str
    system: str
    machine: str
    level: str
    libc: str
    library: str
    cuda: CudaCode | None = None
    entry: Entry | None = None
    entries: tuple[Entry, ...] = ()


class RuntimeLibrary(_Data, frozen=True, omit_defaults=True):
    """A libtvm_runtime that travels in the file. ``version`` is TVM's, ``ffi`` the version of
    apache-tvm-ffi that it was built against. ``cuda`` is the member that holds
    libtvm_runtime_cuda, which GPU code needs besides."""

    system: str
    machine: str
    version: str
    ffi: str
    library: str
    license: str
    cuda: str = ""


class Provenance(_Data, frozen=True, omit_defaults=True):
    """How the bundle was made; no times and no paths, so that equal exports give equal bytes.

    ``commit`` is that of the source file's Git repository, if there is one, and ``commit_state``
    says whether the files there were those of the commit (``clean``, ``dirty``).
    ``weights_sha256`` is that of the file whose weights were put in afterwards.
    """

    tcexport: str
    source: str
    source_sha256: str
    options: dict[str, str]
    versions: dict[str, str]
    linker: str
    commit: str = ""
    commit_state: Literal["", "clean", "dirty"] = ""
    weights_sha256: str = ""


class SourceTensor(_Data, frozen=True, omit_defaults=True):
    """A parameter or buffer of the model's ``state_dict``; ``aliases`` are its other names there.

    ``frozen`` is the SHA-256 of its bits where its value is part of the code or of the contract,
    and ``reason`` says how.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    aliases: tuple[str, ...] = ()
    frozen: str = ""
    reason: str = ""


class Parameters(_Data, frozen=True):
    """What the model's state holds, and how the stored tensors are made of it: ``recipes`` by their
    names (see `recipes`). A stored tensor without one is made of nothing of the state, or of what is
    frozen."""

    sources: tuple[SourceTensor, ...]
    recipes: dict[str, Any]


class Variant(_Data, frozen=True, omit_defaults=True):
    """Code for a part of the calls: ``entry``, and the contract of this part. A contract of None is
    the bundle's own. ``memory`` is the manifest's, for this code.

    It has the parameters, inputs and results of the bundle's contract, and dims that are read from
    the same places.
    """

    name: str
    entry: Entry
    contract: Contract | None = None
    memory: tuple[Any, ...] | None = None


class Manifest(_Data, frozen=True, omit_defaults=True):
    """``contract`` is what the bundle serves as a whole.

    Where there are ``variants``, a call that meets it goes to the first of them whose own contract it
    meets, too; ``entry`` is that of the last one. ``memory`` are
    sums of bytes over dims: a call of the compiled function allocates the largest of them at once; None
    where that is not known, and where each of several variants says it for itself. ``generator`` names
    the state that random numbers are drawn from, where there are any: int64[2], the seed and the
    number of the next call, which counts from 1; 0 before there is a seed.
    """

    format_version: int
    model: str
    contract: Contract
    entry: Entry
    targets: tuple[Target, ...]
    runtimes: tuple[RuntimeLibrary, ...]
    provenance: Provenance
    members: tuple[Member, ...]
    states: tuple[StateTensor, ...] = ()
    parameters: Parameters | None = None
    memory: tuple[Any, ...] | None = None
    external_weights: Member | None = None
    variants: tuple[Variant, ...] = ()
    generator: str = ""


class _Version(msgspec.Struct):
    format_version: int


class ManifestError(ValueError):
    """The bytes are not a manifest of a version that this reader knows.

    ``newer`` is the format version found when it is from the future.
    """

    def __init__(self, message: str, newer: int | None = None) -> None:
        super().__init__(message)
        self.newer = newer


def encode(manifest: Manifest) -> bytes:
    """The manifest as JSON, keys in the order of the fields: equal manifests give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode(data: bytes) -> Manifest:
    """Read and validate a manifest. The answer is consistent in itself.

    Raises:
        ManifestError: not JSON, an unknown field or version, or a contract that makes no sense.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestError("the manifest is too large")
    try:
        version = msgspec.json.decode(data, type=_Version).format_version
        if version > FORMAT_VERSION:
            raise ManifestError(f"format version {version}", newer=version)
        if version < 1:
            raise ManifestError(f"format version {version} does not exist")
        manifest = msgspec.json.decode(data, type=Manifest)
        check_name(manifest.model)
        contract = checked(manifest.contract)
        dims = frozenset(dim.name for dim in contract.dims)
        entry = _with_sizes(manifest.entry, dims)
        memory = _read_memory(manifest.memory, dims)
        variants = tuple(_checked_variant(each, contract) for each in manifest.variants)
        targets = tuple(_checked_target(each, contract, variants) for each in manifest.targets)
        _check_entries(manifest)
        check_states(manifest.states)
        check_generator(manifest.states, manifest.generator)
        parameters = _checked_parameters(manifest.parameters)
    except (
        msgspec.DecodeError, ContractError, ExprError, StateError, RecipeError, RecursionError
    ) as error:  # fmt: skip
        raise ManifestError(str(error)) from None
    return msgspec.structs.replace(
        manifest,
        contract=contract,
        entry=entry,
        targets=targets,
        parameters=parameters,
        memory=memory,
        variants=variants,
    )


def _checked_parameters(parameters: Parameters | None) -> Parameters | None:
    if parameters is None:
        return None
    names = [name for source in parameters.sources for name in (source.name, *source.aliases)]
    known = set(names)
    if len(known) != len(names):
        raise ManifestError("two parameters of one name")
    recipes = {name: recipe_from_data(data) for name, data in parameters.recipes.items()}
    for recipe in recipes.values():
        for name in names_of(recipe):
            if name not in known:
                raise ManifestError(f"a recipe takes {name!r:.80}, which is no parameter")
    return msgspec.structs.replace(parameters, recipes=recipes)


def external_name(sha256: str) -> str:
    """What a file of weights beside a bundle is called."""
    return f"weights-{sha256[:16]}.safetensors"


def _check_external(member: Member, held: Collection[str]) -> None:
    if WEIGHTS_NAME in held:
        raise ManifestError("the weights are inside and outside")
    sound = re.fullmatch(r"[0-9a-f]{64}", member.sha256) and member.size > 0
    if not sound or member.name != external_name(member.sha256):
        raise ManifestError(f"weights beside the bundle under the name {member.name!r:.80}")


def entry_of(manifest: Manifest, target: Target) -> Entry:
    """How a target's binary is called."""
    return manifest.entry if target.entry is None else target.entry


def _read_memory(sums: tuple[Any, ...] | None, dims: frozenset[str]) -> tuple[Expr, ...] | None:
    if sums is None:
        return None
    if len(sums) > MAX_MEMORY_SUMS:
        raise ManifestError("too many sums of memory")
    found = tuple(from_data(each, dims) for each in sums)
    if any(is_logic(each) for each in found):
        raise ManifestError("memory: a condition where a number is needed")
    return found


def memory_unknown(manifest: Manifest) -> str:
    """Why a manifest, or a variant, may say nothing of the memory that its code needs."""
    if all(target.cuda is not None for target in manifest.targets):
        return "it holds code for GPUs alone"
    return "sizes within the model depend on data or are too many, or an older tcexport made it"


def routes(manifest: Manifest, target: Target) -> tuple[Variant, ...]:
    """The variants that a target's binary holds, in the order in which they are tried.

    Without any, and in a binary that is called in its own way, it is the one code that there is.
    """
    if target.entry is not None or not manifest.variants:
        return (Variant(GENERAL, entry_of(manifest, target)),)
    if not target.entries:
        return manifest.variants
    return tuple(
        msgspec.structs.replace(each, entry=entry)
        for each, entry in zip(manifest.variants, target.entries, strict=True)
    )


def contract_of(manifest: Manifest, variant: Variant) -> Contract:
    """What a call must meet, beside the bundle's contract, to go to a variant."""
    return variant.contract or manifest.contract


def _checked_variant(variant: Variant, whole: Contract) -> Variant:
    check_name(variant.name)
    contract = whole if variant.contract is None else checked(variant.contract)
    places = {dim.name: dim.source for dim in whole.dims}
    differs = (
        contract.parameters != whole.parameters
        or contract.inputs != whole.inputs
        or contract.result != whole.result
        or len(contract.outputs) != len(whole.outputs)
        or any(places.get(dim.name) != dim.source for dim in contract.dims)
    )
    if differs:
        raise ManifestError(f"variant {variant.name!r:.80} takes other calls than the bundle")
    dims = frozenset(dim.name for dim in contract.dims)
    return Variant(
        variant.name,
        _with_sizes(variant.entry, dims),
        None if variant.contract is None else contract,
        _read_memory(variant.memory, dims),
    )


def _checked_target(target: Target, contract: Contract, variants: Sequence[Variant]) -> Target:
    if target.entries and (target.entry is not None or len(target.entries) != len(variants)):
        raise ManifestError(f"{target.name:.80} is not called in one way for each of the variants")
    served = [variant.contract or contract for variant in variants[: len(target.entries)]]
    entries = tuple(
        _with_sizes(entry, frozenset(dim.name for dim in each.dims))
        for entry, each in zip(target.entries, served, strict=True)
    )
    entry = target.entry
    if entry is not None:
        entry = _with_sizes(entry, frozenset(dim.name for dim in contract.dims))
    return msgspec.structs.replace(target, entry=entry, entries=entries)


def _with_sizes(entry: Entry, dims: frozenset[str]) -> Entry:
    return msgspec.structs.replace(
        entry, sizes=tuple(from_data(size, dims) for size in entry.sizes)
    )


def _check_entries(manifest: Manifest) -> None:
    """Whether what the entries, the targets and the runtimes name is there."""
    if manifest.variants:
        _check_variants(manifest)
    # The entry is then that of the last variant, whose contract may say more of the results.
    called = [] if manifest.variants else [(manifest.entry, manifest.contract)]
    called += [(each.entry, manifest.contract) for each in manifest.targets if each.entry]
    called += [(each.entry, contract_of(manifest, each)) for each in manifest.variants]
    called += [
        (entry, contract_of(manifest, each))
        for target in manifest.targets
        for entry, each in zip(target.entries, manifest.variants, strict=False)
    ]
    for entry, contract in called:
        for index in entry.inputs:
            inside = 0 <= index < len(contract.inputs)
            if not inside or not isinstance(contract.inputs[index], TensorInput):
                raise ManifestError(f"the entry takes input {index}, which is not a tensor")
        for output in contract.outputs:
            if isinstance(output, TensorOutput) and not 0 <= output.result < entry.results:
                raise ManifestError(f"{output.path}: the entry has no result {output.result}")
        _check_given(entry, contract)
    for target in manifest.targets:
        if target.cuda is not None:
            _check_cuda(target.name, target.cuda)
    named = [target.library for target in manifest.targets]
    for runtime in manifest.runtimes:
        named += [runtime.library, *filter(None, (runtime.license, runtime.cuda))]
    if any(entry.weights for entry, _ in called) or any(each.initial for each in manifest.states):
        named.append(WEIGHTS_NAME)
    held = {member.name for member in manifest.members}
    if manifest.external_weights is not None:
        _check_external(manifest.external_weights, held)
        held.add(WEIGHTS_NAME)
    for name in named:
        if name not in held:
            raise ManifestError(f"no member {name!r:.80}")


def _check_variants(manifest: Manifest) -> None:
    names = {variant.name for variant in manifest.variants}
    if len(names) != len(manifest.variants) or len(names) > MAX_VARIANTS:
        raise ManifestError("two variants with one name, or too many")
    last = manifest.variants[-1]
    if manifest.entry != last.entry:
        raise ManifestError("the entry is not that of the last variant")
    if last.contract is not None and any(target.entry for target in manifest.targets):
        raise ManifestError("a target has one function, and none of the variants serves all")


_CUDA_VERSION = re.compile(r"[1-9][0-9]{0,2}\.[0-9]{1,2}")


def _check_cuda(name: str, code: CudaCode) -> None:
    if not code.architectures and not code.ptx:
        raise ManifestError(f"{name:.80} holds neither machine code nor PTX")
    kinds = [("sm_", each) for each in code.architectures]
    kinds += [("compute_", code.ptx)] if code.ptx else []
    for kind, architecture in kinds:
        try:
            capability(architecture)
        except ValueError as error:
            raise ManifestError(f"{name:.80}: {error!s:.120}") from None
        if not architecture.startswith(kind):
            raise ManifestError(f"{name:.80}: {architecture} where {kind}… belongs")
    needs = [code.driver] if code.architectures else []
    needs += [code.ptx_driver] if code.ptx else []
    for version in needs:
        if _CUDA_VERSION.fullmatch(version) is None:
            raise ManifestError(f"{name:.80}: {version!r:.40} is no version of CUDA")


def _check_given(entry: Entry, contract: Contract) -> None:
    if bool(entry.into) != bool(entry.given) or len(set(entry.given)) != len(entry.given):
        raise ManifestError("the entry does not say what its results are written into")
    known = {
        output.result
        for output in contract.outputs
        if isinstance(output, TensorOutput) and None not in output.shape
    }
    for number in entry.given:
        if number not in known:
            raise ManifestError(f"the entry takes memory for result {number}, of no known size")
