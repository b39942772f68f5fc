"""The bill of materials of a bundle: CycloneDX 1.6, JSON, made of what the manifest says.

No serial number and no time, which the format allows, so that equal bundles have equal ones.
Source: https://cyclonedx.org/docs/1.6/json/.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from .manifest import Manifest, Member

SBOM_NAME = "sbom.cdx.json"

# What the runtime imports, beside apache-tvm-ffi, whose version a bundle asks for exactly.
_AT_RUN_TIME = ("numpy", "msgspec", "safetensors")


def sbom(manifest: Manifest, members: Sequence[Member]) -> bytes:
    """The bill of a bundle with the other ``members``.

    Components are what is in the file and what it needs to run; what it was made with is under
    ``metadata.tools``.
    """
    digests = {member.name: member.sha256 for member in members}
    if manifest.external_weights is not None:
        digests[manifest.external_weights.name] = manifest.external_weights.sha256
    provenance = manifest.provenance
    components = [
        *_runtimes(manifest, digests),
        *_required(manifest),
        *_files(manifest, digests),
    ]
    held = [each["bom-ref"] for each in components]
    tools = [
        _component("application", "tcexport", provenance.tcexport),
        *(_package(name, version) for name, version in provenance.versions.items()),
    ]
    if provenance.linker:
        tools.append({"type": "application", "name": provenance.linker})
    said = {
        "tcexport:source": provenance.source,
        "tcexport:source_sha256": provenance.source_sha256,
        "tcexport:commit": provenance.commit,
        "tcexport:commit_state": provenance.commit_state,
    }
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {"components": tools},
            "component": {
                "type": "machine-learning-model",
                "bom-ref": "model",
                "name": manifest.model,
                "properties": [
                    {"name": name, "value": value} for name, value in said.items() if value
                ],
            },
        },
        "components": components,
        "dependencies": [
            {"ref": "model", "dependsOn": held},
            *({"ref": reference} for reference in held),
        ],
    }
    return json.dumps(bill, indent=1, ensure_ascii=False).encode() + b"\n"


def _component(kind: str, name: str, version: str) -> dict[str, Any]:
    return {"type": kind, "name": name, "version": version}


def _package(name: str, version: str) -> dict[str, Any]:
    return {
        **_component("library", name, version),
        "purl": f"pkg:pypi/{name}@{version.replace('+', '%2B')}",
    }


def _runtimes(manifest: Manifest, digests: dict[str, str]) -> Iterable[dict[str, Any]]:
    """Apache TVM's libraries, which travel in the file."""
    for each in manifest.runtimes:
        for library in filter(None, (each.library, each.cuda)):
            name = library.rpartition("/")[2]
            yield {
                "bom-ref": library,
                **_package("apache-tvm", each.version),
                "description": f"{name} for {each.system} {each.machine}",
                "scope": "required",
                "hashes": _hashes(digests[library]),
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }


def _required(manifest: Manifest) -> Iterable[dict[str, Any]]:
    """What has to be installed where the bundle is loaded."""
    for version in dict.fromkeys(each.ffi for each in manifest.runtimes):
        package = _package("apache-tvm-ffi", version)
        yield {"bom-ref": package["purl"], **package, "scope": "required"}
    for name in _AT_RUN_TIME:
        reference = f"pkg:pypi/{name}"
        yield {
            "bom-ref": reference,
            "type": "library",
            "name": name,
            "purl": reference,
            "scope": "required",
        }


def _files(manifest: Manifest, digests: dict[str, str]) -> Iterable[dict[str, Any]]:
    """Code and weights. Licences of TVM are described with it."""
    described = {
        name for each in manifest.runtimes for name in (each.library, each.license, each.cuda)
    }
    code = {each.library for each in manifest.targets}
    for name, digest in digests.items():
        if name not in described:
            yield {
                "bom-ref": name,
                "type": "library" if name in code else "data",
                "name": name,
                "hashes": _hashes(digest),
            }


def _hashes(digest: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest}]
