"""Attacks on the reader, each a function that makes a bad file out of a sound one.

An attack says how it is to be answered: the code, and words of the message. `test_attacks.py` runs them
all; what was found by the fuzzer is added here by name.
"""

from __future__ import annotations

import io
import json
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tcexport.artifacts.manifest import MANIFEST_NAME, WEIGHTS_NAME
from tcexport.tools.fuzz_reader import Seed, described, sealed

CODE = "targets/cpu/model.so"


@dataclass(frozen=True)
class Attack:
    name: str
    make: Callable[[Seed], bytes]
    code: str
    words: str


ATTACKS: list[Attack] = []


def attack(words: str, code: str = "TC401") -> Callable[[Callable[[Seed], bytes]], Any]:
    def added(make: Callable[[Seed], bytes]) -> Callable[[Seed], bytes]:
        ATTACKS.append(Attack(make.__name__, make, code, words))
        return make

    return added


# --- the ZIP --------------------------------------------------------------------------------------


def zipped(
    *members: tuple[zipfile.ZipInfo | str, bytes], method: int = zipfile.ZIP_STORED
) -> bytes:
    """What Python's zipfile writes."""
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", method) as archive:
        warnings.simplefilter("ignore")  # duplicate names
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def as_zip(seed: Seed, **names: str) -> list[tuple[zipfile.ZipInfo | str, bytes]]:
    """The members of a sound file, some under another name."""
    renamed = {"manifest": MANIFEST_NAME, **names}
    return [(renamed["manifest"], seed.head), *seed.members]


def put(data: bytes, at: int, form: str, *values: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, at, *values)
    return bytes(changed)


def directory_of(data: bytes) -> int:
    (start,) = struct.unpack_from("<L", data, len(data) - 22 + 16)
    return int(start)


def header_of(data: bytes, name: str) -> int:
    """Where the header of a member begins."""
    (at,) = struct.unpack_from("<L", data, entry_of(data, name) + 42)
    return int(at)


def entry_of(data: bytes, name: str) -> int:
    """Where the directory's entry of a member begins."""
    at = data.index(name.encode(), directory_of(data)) - 46
    assert data[at : at + 4] == b"PK\x01\x02"
    return at


@attack("is compressed")
def a_bomb_that_unpacks_to_a_gigabyte(seed: Seed) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = bytes(1 << 20)
    packed = b"".join(packer.compress(zeros) for _ in range(1 << 10)) + packer.flush()
    data = zipped((MANIFEST_NAME, packed))
    at = directory_of(data)
    return put(put(data, at + 10, "<H", 8), at + 24, "<L", 1 << 30)


@attack("is compressed")
def a_compressed_member(seed: Seed) -> bytes:
    return zipped(*as_zip(seed), method=zipfile.ZIP_DEFLATED)


@attack("its members need")
def members_that_overlap(seed: Seed) -> bytes:
    """As in D. Fifield's zip bomb: the directory names the same bytes many times."""
    data = seed.data
    start, end = directory_of(data), len(data) - 22
    at = entry_of(data, CODE)
    length = 46 + len(CODE)
    entries = data[start:end] + b"".join(
        data[at : at + 46] + f"{CODE[:-2]}{number:02}".encode() for number in range(50)
    )
    assert len(entries) == end - start + 50 * length
    count = struct.unpack_from("<H", data, end + 10)[0] + 50
    tail = put(data[end:], 8, "<2HL", count, count, len(entries))
    return data[:start] + entries + tail


@attack("form of a bundle")
def two_members_at_one_place(seed: Seed) -> bytes:
    data = seed.data
    (place,) = struct.unpack_from("<L", data, entry_of(data, WEIGHTS_NAME) + 42)
    return put(data, entry_of(data, CODE) + 42, "<L", place)


@attack("twice")
def two_members_of_one_name(seed: Seed) -> bytes:
    return zipped(*as_zip(seed), (MANIFEST_NAME, b"{}"))


@attack("twice")
def two_names_that_differ_in_case(seed: Seed) -> bytes:
    return zipped(*as_zip(seed), ("Manifest.JSON", b"{}"))


@attack("lies below another member")
def a_member_that_is_also_a_folder(seed: Seed) -> bytes:
    return zipped(*as_zip(seed), (f"{CODE}/x", b""))


def _named(name: str) -> Callable[[Seed], bytes]:
    return lambda seed: zipped(*as_zip(seed), (name, b"x"))


for _title, _name in {
    "a_name_that_climbs_up": "../../etc/cron.d/x",
    "a_name_that_climbs_in_the_middle": "targets/../../x",
    "an_absolute_name": "/etc/passwd",
    "a_name_with_backslashes": "..\\..\\x",
    "a_name_with_a_drive": "C:x",
    "a_name_with_a_stream": "model.so:hidden",
    "a_hidden_name": ".bashrc",
    "an_empty_part_of_a_name": "a//b",
    "a_name_of_a_device": "targets/./x",
    "a_folder": "folder/",
    "a_long_name": "a" * 256,
    "a_name_with_an_escape_sequence": "a\x1b[2Jb",
    "a_name_with_a_space_at_its_end": "model.so ",
}.items():
    ATTACKS.append(
        Attack(_title, _named(_name), "TC401", "bad member name|is a link or a directory")
    )


@attack("not ASCII")
def a_name_in_unicode(seed: Seed) -> bytes:
    return zipped(*as_zip(seed), ("m\u202eos.ledom", b""))


@attack("bad member name")
def a_name_that_ends_early(seed: Seed) -> bytes:
    """zipfile cuts a name at its NUL; another reader may not."""
    return seed.data.replace(CODE.encode(), CODE[:-3].encode() + b"\0so")


@attack("link or a directory")
def a_symbolic_link(seed: Seed) -> bytes:
    data, at = seed.data, entry_of(seed.data, CODE)
    return put(data, at + 38, "<L", (stat.S_IFLNK | 0o777) << 16)


@attack("link or a directory")
def a_device(seed: Seed) -> bytes:
    data, at = seed.data, entry_of(seed.data, CODE)
    return put(data, at + 38, "<L", (stat.S_IFBLK | 0o666) << 16)


@attack("form of a bundle")
def a_program_with_the_setuid_bit(seed: Seed) -> bytes:
    data, at = seed.data, entry_of(seed.data, CODE)
    return put(data, at + 38, "<L", (stat.S_IFREG | 0o4755) << 16)


@attack("is encrypted")
def an_encrypted_member(seed: Seed) -> bytes:
    return put(seed.data, entry_of(seed.data, CODE) + 8, "<H", 1)


@attack("data descriptor")
def a_size_that_comes_afterwards(seed: Seed) -> bytes:
    return put(seed.data, entry_of(seed.data, CODE) + 8, "<H", 8)


@attack("lies about its size")
def a_member_larger_than_the_file(seed: Seed) -> bytes:
    return put(seed.data, entry_of(seed.data, CODE) + 20, "<2L", 1 << 31, 1 << 31)


@attack("lies about its size")
def two_sizes_of_one_member(seed: Seed) -> bytes:
    return put(seed.data, entry_of(seed.data, CODE) + 24, "<L", 5)


@attack("its members need")
def a_member_that_is_longer_than_its_bytes(seed: Seed) -> bytes:
    at = entry_of(seed.data, CODE)
    (size,) = struct.unpack_from("<L", seed.data, at + 20)
    return put(seed.data, at + 20, "<2L", size + 8000, size + 8000)


@attack("ZIP64 size is missing")
def a_size_of_64_bits_that_is_not_there(seed: Seed) -> bytes:
    return put(seed.data, entry_of(seed.data, CODE) + 20, "<2L", 0xFFFFFFFF, 0xFFFFFFFF)


@attack("ZIP64 end of the directory is missing")
def a_directory_of_64_bits_that_is_not_there(seed: Seed) -> bytes:
    return put(seed.data, len(seed.data) - 6, "<L", 0xFFFFFFFF)


@attack("members, allowed are")
def sixty_thousand_members(seed: Seed) -> bytes:
    return put(seed.data, len(seed.data) - 14, "<2H", 60000, 60000)


@attack("members, allowed are")
def no_member_at_all(seed: Seed) -> bytes:
    return put(seed.data, len(seed.data) - 14, "<2H", 0, 0)


@attack("members, allowed are")
def five_thousand_real_members(seed: Seed) -> bytes:
    return zipped(*as_zip(seed), *((f"m{number}", b"") for number in range(5000)))


@attack("the header of member")
def a_header_that_says_other_than_the_directory(seed: Seed) -> bytes:
    """One reader would take the name of the header, another that of the directory."""
    at = header_of(seed.data, CODE) + 30
    return seed.data[:at] + b"targets/cpu/other.so"[: len(CODE)] + seed.data[at + len(CODE) :]


@attack("the header of member")
def bytes_hidden_in_the_padding(seed: Seed) -> bytes:
    at = header_of(seed.data, CODE) + 30 + len(CODE) + 40
    return seed.data[:at] + b"hidden" + seed.data[at + 6 :]


@attack("not where its end says")
def a_directory_somewhere_else(seed: Seed) -> bytes:
    return put(seed.data, len(seed.data) - 6, "<L", directory_of(seed.data) - 46)


@attack("not where its end says")
def a_second_archive_in_the_comment(seed: Seed) -> bytes:
    other = zipped(*as_zip(seed))
    return put(seed.data, len(seed.data) - 2, "<H", len(other)) + other


@attack("several disks")
def several_disks(seed: Seed) -> bytes:
    return put(seed.data, len(seed.data) - 18, "<2H", 1, 1)


@attack("cut short, or bytes behind it")
def a_file_cut_short(seed: Seed) -> bytes:
    return seed.data[: len(seed.data) * 2 // 3]


@attack("cut short, or bytes behind it")
def a_file_with_something_behind_it(seed: Seed) -> bytes:
    return seed.data + b"\n"


@attack("does not start like a ZIP")
def a_program_with_a_bundle_behind_it(seed: Seed) -> bytes:
    return b"#!/bin/sh\nrm -rf /\n" + seed.data


@attack("its members need")
def a_hole_between_two_members(seed: Seed) -> bytes:
    at = seed.data.index(b"PK\x03\x04", 4)
    return put(
        seed.data[:at] + bytes(4096) + seed.data[at:],
        len(seed.data) + 4096 - 6,
        "<L",
        directory_of(seed.data) + 4096,
    )


@attack("first member")
def a_manifest_that_is_not_the_first(seed: Seed) -> bytes:
    return zipped(seed.members[0], *as_zip(seed)[:1])


# --- the members ----------------------------------------------------------------------------------


@attack("is not what the manifest was written for", "TC402")
def code_with_one_bit_changed(seed: Seed) -> bytes:
    members = [
        (name, content[:-1] + bytes([content[-1] ^ 1]) if name == CODE else content)
        for name, content in seed.members
    ]
    return sealed(seed.head, members)


@attack("the manifest says|is not what the manifest was written for", "TC402")
def swapped_members(seed: Seed) -> bytes:
    """Two members of one size: each has the name, the size and the CRC of the other's."""
    members = dict(seed.members) | {"a": b"one", "b": b"two"}
    head = described(json.loads(seed.head), sorted(members.items()))
    members |= {"a": b"two", "b": b"one"}
    return sealed(head, sorted(members.items()))


@attack("is not in the manifest")
def a_member_that_nobody_lists(seed: Seed) -> bytes:
    return sealed(seed.head, [*seed.members, ("zz.so", b"code")])


@attack("is not in the file")
def a_member_that_is_not_there(seed: Seed) -> bytes:
    return sealed(seed.head, seed.members[:-1])


@attack("the manifest says")
def a_member_cut_short(seed: Seed) -> bytes:
    members = [(n, c[:-1] if n == CODE else c) for n, c in seed.members]
    return sealed(seed.head, members)


@attack("the manifest says")
def a_member_extended(seed: Seed) -> bytes:
    members = [(n, c + b"\0" if n == CODE else c) for n, c in seed.members]
    return sealed(seed.head, members)


@attack("not in the manifest's order")
def members_in_another_order(seed: Seed) -> bytes:
    return sealed(seed.head, seed.members[::-1])


# --- the manifest ---------------------------------------------------------------------------------


def with_text(text: bytes) -> Callable[[Seed], bytes]:
    return lambda seed: sealed(text, seed.members)


for _title, _head in {
    "json_a_million_deep": b"[" * 1_000_000,
    "objects_a_million_deep": b'{"a":' * 1_000_000,
    "a_million_opening_quotes": b'"' * 1_000_000,
    "an_integer_of_a_million_digits": b'{"format_version": ' + b"9" * 1_000_000 + b"}",
    "an_exponent_out_of_bounds": b'{"format_version": 1e999999999}',
    "nan_for_a_number": b'{"format_version": NaN}',
    "infinity_for_a_number": b'{"format_version": Infinity}',
    "a_number_with_a_fraction": b'{"format_version": 1.5}',
    "no_json_at_all": b"\x80\x04\x95pickle",
    "text_that_is_not_utf8": b'{"format_version": 1, "model": "\xff\xfe"}',
    "half_a_surrogate": b'{"format_version": 1, "model": "\\ud800"}',
    "an_empty_manifest": b"",
    "null_for_a_manifest": b"null",
    "a_version_that_does_not_exist": b'{"format_version": 0}',
    "a_negative_version": b'{"format_version": -1}',
}.items():
    ATTACKS.append(Attack(_title, with_text(_head), "TC401", "manifest.json"))
ATTACKS.append(
    Attack(
        "a_version_from_the_future",
        with_text(b'{"format_version": 2, "guards": "of another kind"}'),
        "TC403",
        "newer than this tcexport reads",
    )
)


def edited(change: Callable[[Any], object]) -> Callable[[Seed], bytes]:
    """The manifest with one change, in a file of perfect form with digests that are right."""

    def make(seed: Seed) -> bytes:
        data = json.loads(seed.head)
        change(data)
        return sealed(described(data, seed.members), seed.members)

    return make


def deep(depth: int) -> Any:
    expr: Any = "n"
    for _ in range(depth):
        expr = ["+", expr, 1]
    return ["<", expr, 5]


def wide(depth: int) -> Any:
    """Doubles at each level: 2**depth nodes."""
    expr: Any = "n"
    for _ in range(depth):
        expr = ["*", expr, expr]
    return ["<", expr, 5]


def guard(expr: Any) -> Callable[[Any], object]:
    return lambda data: data["contract"]["guards"].__setitem__(0, {**_first(data), "expr": expr})


def _first(data: Any) -> Any:
    return data["contract"]["guards"][0]


def many(data: Any, key: str, count: int) -> None:
    data["contract"][key] = data["contract"][key] * count


_DICE = [{"name": "dice", "dtype": "float32", "shape": [2]}]
_EDITS: dict[str, tuple[Callable[[Any], object], str]] = {
    "an_unknown_field": (lambda data: data.update(more=1), "more"),
    "an_unknown_field_of_the_contract": (lambda data: data["contract"].update(more=1), "more"),
    "a_field_left_out": (lambda data: data.pop("entry"), "entry"),
    "text_for_a_number": (lambda data: data["entry"].update(results="1"), "results|an integer"),
    "a_guard_a_hundred_deep": (guard(deep(100)), "too large"),
    "a_guard_ten_thousand_deep": (guard(deep(300)), "too large"),
    "a_guard_that_doubles_at_each_level": (guard(wide(14)), "too large"),
    "a_guard_with_a_huge_number": (guard(["<", "n", 2**63]), "out of range"),
    "a_guard_with_a_number_of_a_thousand_digits": (guard(["<", "n", 10**1000]), "out of range"),
    "a_guard_that_calls_a_function": (guard(["__import__", "os"]), "unknown operator"),
    "a_guard_with_a_power": (guard(["<", ["**", "n", "n"], 5]), "unknown operator"),
    "a_guard_that_shifts": (guard(["<", ["<<", 1, "n"], 5]), "unknown operator"),
    "a_guard_with_an_unknown_name": (guard(["<", "__builtins__", 5]), "unknown dim"),
    "a_guard_that_is_text": (guard("__import__('os').system('id')"), "unknown dim"),
    "a_guard_that_is_a_number": (guard(5), "not a condition"),
    "a_guard_that_mixes": (guard(["<", ["<", "n", 1], 5]), "mixes"),
    "a_guard_with_a_float": (guard(["<", "n", 0.5]), "not an expression"),
    "a_guard_with_a_bool": (guard(["<", "n", True]), "not an expression"),
    "a_guard_with_an_empty_list": (guard(["<", "n", []]), "not an expression"),
    "a_guard_without_operands": (guard(["<"]), "operands"),
    "a_hundred_thousand_guards": (lambda data: many(data, "guards", 50_000), "too many guards"),
    "ten_thousand_inputs": (lambda data: many(data, "inputs", 2_000), "too many inputs"),
    "a_thousand_axes": (
        lambda data: data["contract"]["inputs"][0].update(shape=["n"] * 1000),
        "rank",
    ),
    "a_dim_with_two_sources": (
        lambda data: data["contract"]["dims"].append(data["contract"]["dims"][0]),
        "two dims with one name",
    ),
    "a_dim_of_an_axis_that_is_not_there": (
        lambda data: data["contract"]["dims"][0]["source"].update(axis=9),
        "no axis",
    ),
    "a_dim_of_an_input_that_is_not_there": (
        lambda data: data["contract"]["dims"][0]["source"].update(input=-1),
        "no input",
    ),
    "a_target_with_functions_for_variants_that_are_not_there": (
        lambda data: data["targets"][0].update(entries=[data["entry"]]),
        "for each of the variants",
    ),
    "a_variant_that_a_target_has_no_function_for": (
        lambda data: (
            data.update(variants=[{"name": "a", "entry": data["entry"]}]),
            data["targets"][0].update(entries=[data["entry"], data["entry"]]),
        ),
        "for each of the variants",
    ),
    "a_variant_whose_memory_is_a_condition": (
        lambda data: data.update(
            variants=[{"name": "a", "entry": data["entry"], "memory": [["<", "n", 1]]}]
        ),
        "a condition where a number is needed",
    ),
    "a_generator_that_is_not_there": (
        lambda data: data.update(generator="dice"),
        "no state of a generator",
    ),
    "a_generator_of_floats": (
        lambda data: data.update(generator="dice", states=_DICE),
        "no state of a generator",
    ),
    "a_state_of_an_unknown_dtype": (
        lambda data: data.update(states=[{**_DICE[0], "dtype": "object"}]),
        "unknown dtype",
    ),
    "a_dim_divided_by_zero": (
        lambda data: data["contract"]["dims"][0]["source"].update(scale=0),
        "scale",
    ),
    "a_step_of_zero": (lambda data: data["contract"]["dims"][0].update(step=0), "range"),
    "a_range_without_measure": (
        lambda data: data["contract"]["dims"][0].update(hi=2**63),
        "range out of bounds|out of range",
    ),
    "a_dim_whose_name_is_code": (
        lambda data: data["contract"]["dims"].append(
            {**data["contract"]["dims"][0], "name": "n\x1b]0;x\x07\n    import os"}
        ),
        "name",
    ),
    "a_model_whose_name_clears_the_screen": (lambda data: data.update(model="\x1b[2J"), "name"),
    "a_model_whose_name_runs_backwards": (lambda data: data.update(model="a\u202eb"), "name"),
    "a_path_with_a_line_of_its_own": (
        lambda data: data["contract"]["inputs"][0].update(path="x\nGuardError: all is well"),
        "name",
    ),
    "a_structure_that_names_a_leaf_twice": (
        lambda data: data["contract"]["parameters"].append(data["contract"]["parameters"][0]),
        "every leaf exactly once",
    ),
    "a_structure_four_hundred_deep": (
        lambda data: data["contract"].update(result=nested(400)),
        "every leaf exactly once",
    ),
    "a_leaf_out_of_range": (
        lambda data: data["contract"].update(result={"node": "leaf", "index": 2**40}),
        "every leaf exactly once",
    ),
    "an_unknown_node": (
        lambda data: data["contract"].update(result={"node": "object", "class": "os.system"}),
        "object",
    ),
    "an_entry_that_takes_an_input_that_is_not_there": (
        lambda data: data["entry"].update(inputs=[7]),
        "input 7",
    ),
    "an_output_of_a_result_that_is_not_there": (
        lambda data: data["contract"]["outputs"][0].update(result=-1),
        "no result",
    ),
    "a_library_that_is_not_in_the_file": (
        lambda data: data["targets"][0].update(library="/lib/x86_64-linux-gnu/libc.so.6"),
        "no member",
    ),
    "an_expression_that_is_long_to_show": (
        lambda data: data["entry"].update(sizes=[in_lists("y" * (16 << 20), 800)]),
        "not an expression: [1, [1",
    ),
    "a_runtime_without_a_library": (
        lambda data: data["runtimes"][0].update(library=""),
        "no member ''",
    ),
    "a_fixed_number_of_five_thousand_digits": (
        lambda data: data["contract"]["inputs"][3].update(text="9" * 5000),
        "bad fixed value",
    ),
    "a_fixed_number_that_is_code": (
        lambda data: data["contract"]["inputs"][3].update(text="__import__('os')"),
        "bad fixed value",
    ),
    "a_fixed_number_spelled_otherwise": (
        lambda data: data["contract"]["inputs"][3].update(text="0_3"),
        "bad fixed value",
    ),
    "an_unknown_dtype": (
        lambda data: data["contract"]["inputs"][0].update(dtype="object"),
        "dtype",
    ),
    "a_dtype_that_is_a_structure": (
        lambda data: data["contract"]["inputs"][0].update(dtype="f8,(1000,1000)i8"),
        "dtype",
    ),
    "weights_outside_that_climb_up": (
        lambda data: data.update(
            external_weights={"name": "../../etc/shadow", "size": 9, "sha256": "0" * 64}
        ),
        "inside and outside",
    ),
    "a_class_name_that_is_code": (
        lambda data: data["contract"]["result"].update(name="x=__import__('os')"),
        "does not allow",
    ),
    "a_class_that_is_a_keyword": (
        lambda data: data["contract"]["result"].update(name="lambda"),
        "does not allow",
    ),
    "a_field_that_is_not_public": (
        lambda data: data["contract"]["result"].update(fields=["y", "size", "_make"]),
        "not public",
    ),
    "a_field_twice": (
        lambda data: data["contract"]["result"].update(fields=["y", "y", "text"]),
        "one twice",
    ),
}


def in_lists(node: Any, depth: int) -> Any:
    for _ in range(depth):
        node = [1, node]
    return node


def nested(depth: int) -> Any:
    node: Any = {"node": "leaf", "index": 0}
    for _ in range(depth):
        node = {"node": "tuple", "items": [node]}
    return node


ATTACKS += [
    Attack(name, edited(change), "TC401", words) for name, (change, words) in _EDITS.items()
]


# --- the weights ----------------------------------------------------------------------------------


def weights(
    change: Callable[[dict[str, Any]], object], tail: bytes = b""
) -> Callable[[Seed], bytes]:
    """The header of the weights with one change, all digests right."""

    def make(seed: Seed) -> bytes:
        content = dict(seed.members)[WEIGHTS_NAME]
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % 64)
        return _with_weights(
            seed, struct.pack("<Q", len(text)) + text + content[8 + length :] + tail
        )

    return make


def _outside(name: str, size: int = 9) -> Callable[[Seed], bytes]:
    """A file without weights that asks for some beside it."""

    def make(seed: Seed) -> bytes:
        members = tuple((n, c) for n, c in seed.members if n != WEIGHTS_NAME)
        data = json.loads(seed.head)
        data["external_weights"] = {"name": name, "size": size, "sha256": "0" * 64}
        return sealed(described(data, members), members)

    return make


ATTACKS += [
    Attack(
        "weights_beside_the_bundle_that_climb_up",
        _outside("../../../etc/shadow"),
        "TC401",
        "under the name",
    ),
    Attack("weights_beside_it_that_are_absolute", _outside("/etc/shadow"), "TC401", "the name"),
    Attack(
        "weights_beside_it_of_a_negative_size",
        _outside("weights-0000000000000000.safetensors", -1),
        "TC401",
        "the name",
    ),
    Attack(
        "weights_beside_it_that_are_not_there",
        _outside("weights-0000000000000000.safetensors"),
        "TC410",
        "needs weights-0000000000000000.safetensors beside it",
    ),
]


def _with_weights(seed: Seed, content: bytes) -> bytes:
    members = tuple((n, content if n == WEIGHTS_NAME else c) for n, c in seed.members)
    return sealed(described(json.loads(seed.head), members), members)


_W: dict[str, tuple[Callable[[Seed], bytes], str]] = {
    "weights_with_a_hole": (weights(lambda h: h["w"].update(data_offsets=[64, 84])), "hole"),
    "weights_that_overlap": (
        weights(lambda h: h["half"].update(data_offsets=[0, 12])),
        "overlap",
    ),
    "weights_that_end_before_they_begin": (
        weights(lambda h: h["w"].update(data_offsets=[20, 0])),
        "hole",
    ),
    "weights_behind_the_end": (
        weights(lambda h: h["w"].update(shape=[1 << 40], data_offsets=[0, 4 << 40])),
        "cut short",
    ),
    "weights_with_a_negative_size": (weights(lambda h: h["w"].update(shape=[-5, -1])), "shape"),
    "weights_whose_size_wraps_around": (
        weights(lambda h: h["w"].update(shape=[2**32, 2**32, 5])),
        "do not agree",
    ),
    "weights_with_a_thousand_axes": (weights(lambda h: h["w"].update(shape=[1] * 1000)), "shape"),
    "weights_of_an_unknown_dtype": (weights(lambda h: h["w"].update(dtype="O")), "dtype"),
    "weights_of_another_dtype": (weights(lambda h: h["w"].update(dtype="F64")), "do not agree"),
    "weights_with_an_unknown_field": (weights(lambda h: h["w"].update(more=1)), "header"),
    "weights_that_are_missing": (weights(lambda h: h.update(v=h.pop("w"))), "hole|no tensor"),
    "weights_with_bytes_of_no_one": (weights(lambda h: None, b"hidden"), "no tensor"),
    "weights_with_a_header_beyond_the_file": (
        lambda seed: _with_weights(seed, struct.pack("<Q", 2**63) + b"{}"),
        "longer than the file",
    ),
    "weights_with_a_header_that_is_deep": (
        lambda seed: _with_weights(
            seed, struct.pack("<Q", 64 * 2000 - 8) + b"{" + b'"a":{' * 25_000 + b" " * 2991
        ),
        "",
    ),
    "weights_of_eight_bytes": (lambda seed: _with_weights(seed, bytes(7)), "cut short"),
    "two_weights_of_one_name": (
        lambda seed: _with_weights(
            seed, dict(seed.members)[WEIGHTS_NAME].replace(b'"half"', b'"w"   ')
        ),
        "twice",
    ),
}
ATTACKS += [Attack(name, make, "TC401", words) for name, (make, words) in _W.items()]
