"""The bill of materials: valid CycloneDX, about this file, equal for equal bundles."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tcexport.artifacts.container import open_bundle, write_bundle
from tcexport.artifacts.sbom import SBOM_NAME

RICH = Path(__file__).parents[1] / "attacks" / "corpus" / "rich.tcpkg"


def bill_of(path: Path, **provenance: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The bill of a sound bundle that is written again with one; and its members."""
    with open_bundle(RICH) as bundle:
        held = {each.name: bytes(bundle.view(each.name)) for each in bundle.manifest.members}
        manifest = msgspec.structs.replace(bundle.manifest, members=())
    made = msgspec.structs.replace(manifest.provenance, **provenance)
    manifest = msgspec.structs.replace(manifest, provenance=made)
    write_bundle(path, manifest, list(held.items()), bill=True)
    with open_bundle(path) as bundle:
        bundle.verify()
        text = bytes(bundle.view(SBOM_NAME)).decode()
    errors = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert errors is None, errors
    bill: dict[str, Any] = json.loads(text)
    return bill, held


def test_the_bill_is_valid_and_names_every_member_with_its_digest(tmp_path: Path) -> None:
    bill, held = bill_of(tmp_path / "m.tcpkg")
    by_reference = {each["bom-ref"]: each for each in bill["components"]}
    for name, content in held.items():
        if name.endswith("LICENSE"):
            continue
        (digest,) = by_reference[name]["hashes"]
        assert digest == {"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}
    runtime = by_reference["runtime/libtvm_runtime.so"]
    assert runtime["purl"] == "pkg:pypi/apache-tvm@0.27.0.post1"
    assert runtime["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert "pkg:pypi/apache-tvm-ffi@0.1.14.post1" in by_reference
    assert bill["metadata"]["component"]["name"] == "Rich"


def test_the_source_and_the_tools_are_named(tmp_path: Path) -> None:
    bill, _ = bill_of(
        tmp_path / "m.tcpkg",
        versions={"torch": "2.13.0+cpu"},
        commit="0" * 40,
        commit_state="clean",
    )
    tools = {each["name"]: each for each in bill["metadata"]["tools"]["components"]}
    assert tools["torch"]["purl"] == "pkg:pypi/torch@2.13.0%2Bcpu"
    said = {each["name"]: each["value"] for each in bill["metadata"]["component"]["properties"]}
    assert said["tcexport:commit"] == "0" * 40 and said["tcexport:commit_state"] == "clean"
    assert said["tcexport:source"] == "model.py"


def test_there_is_no_time_and_no_random_number_in_it(tmp_path: Path) -> None:
    for name in ("one", "two"):
        bill_of(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
