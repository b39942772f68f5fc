"""A script: the real library for a GPU, on the stand-in driver, against eager. In a process of its own,
for TVM looks for CUDA when it is imported.

    python gpu_numbers.py MODEL:DTYPE …    prints for each, as a line of JSON, the largest difference at
                                           each size
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim

HERE = Path(__file__).parent
AUTO = Dim.AUTO


class Encoder(nn.Module):
    """Embedding, a causal and a padding mask, grouped heads, norms, two products and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 64)
        self.q, self.k = nn.Linear(64, 64), nn.Linear(64, 32)
        self.v, self.out = nn.Linear(64, 32), nn.Linear(64, 64, bias=False)
        self.norm, self.rms = nn.LayerNorm(64), nn.RMSNorm(64)
        self.up, self.down, self.head = nn.Linear(64, 96), nn.Linear(96, 64), nn.Linear(64, 7)

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        y = self.norm(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, 16)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        length = ids.shape[1]
        row, column = torch.arange(length)[:, None], torch.arange(length)[None]
        mask = (column <= row) & keep[:, None, None, :]
        y = nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        x = x + self.down(nn.functional.gelu(self.up(self.rms(x))))
        return self.head(x).softmax(-1)


class Block(nn.Module):
    """A decoder's block, twice: RMS norms, rotary positions, fewer heads of keys, a gate."""

    def __init__(self, width: int = 96, heads: int = 4, key_heads: int = 2) -> None:
        super().__init__()
        self.size = width // heads
        self.embedding = nn.Embedding(60, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3))
        self.q, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, key_heads * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 200, bias=False) for _ in range(2))
        self.down, self.head = nn.Linear(200, width, bias=False), nn.Linear(width, 60, bias=False)
        turns = 1e4 ** -(torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(256.0), turns)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for _ in range(2):
            y = self.norms[0](x)
            q, k, v = (
                part(y).unflatten(-1, (-1, self.size)).transpose(1, 2)
                for part in (self.q, self.k, self.v)
            )
            y = nn.functional.scaled_dot_product_attention(
                self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True
            )
            x = x + self.out(y.transpose(1, 2).flatten(2))
            y = self.norms[1](x)
            x = x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return self.head(self.norms[2](x))


class Images(nn.Module):
    """Convolutions with their channels first and last, depthwise, strided, with norms and residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        self.same, self.each = nn.Conv2d(32, 32, 3, 1, 1), nn.Conv2d(32, 32, 3, 1, 2, 2, groups=32)
        self.wide, self.line = nn.Conv2d(32, 40, 1), nn.Conv1d(40, 5, 3)
        self.head = nn.Linear(5, 4)
        nn.init.uniform_(self.norm.running_mean, -0.5, 0.5)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(image)).relu()
        x = (self.same(x) + x).relu()
        x = nn.functional.max_pool2d(self.wide(self.each(x)), 2)
        return self.head(self.line(x.flatten(2)).mean(-1))


_SMALL = {
    "vocab_size": 90,
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 160,
    "max_position_embeddings": 128,
}


class Bert(nn.Module):
    """The encoder of transformers, of a small size."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        self.model = BertModel(BertConfig(**_SMALL))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = self.model(input_ids=ids, attention_mask=mask)
        return made.last_hidden_state, made.pooler_output


class Roberta(nn.Module):
    """The same of RoBERTa: positions are a running sum of the mask."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import RobertaConfig, RobertaModel

        self.model = RobertaModel(RobertaConfig(**_SMALL))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state


class Edges(nn.Module):
    """NaN, infinities and large arguments: what fast GPU code gets wrong."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.amax(-1), x.amin(0), x.max(), torch.softmax(x, -1), torch.log_softmax(x, 0),
            x.argmax(-1), x.sum(0), x.mean(), x.var(-1), x.prod(-1), (x > 0).all(-1),
            x.clamp(min=0), torch.maximum(x, x.flip(0)), torch.exp(x * 30), torch.sin(x * 1e4),
            torch.tanh(x), torch.erf(x), torch.log(x.abs()), x.abs() ** 1.7, x.round(),
        )  # fmt: skip


class Scans(nn.Module):
    """Running sums and the like: along rows and columns, with NaN, infinities and equal elements."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        near = x * 0.01 + 1
        wide = x[..., None].expand(-1, -1, 33)
        return (
            x.cumsum(0), x.cumsum(-1), x.flatten().cumsum(0), wide.cumsum(1), near.cumprod(1),
            torch.logcumsumexp(x, 1), torch.logcumsumexp(x, 0), *x.cummax(1), *x.cummin(0),
            *x.round().cummax(0), ids.cumsum(1), ids.cumsum(0, dtype=torch.int32), (ids > 3).cumsum(1),
            *(ids % 5).cummin(1), ids.cumprod(1), *(ids > 3).cummax(1),
        )  # fmt: skip


class Sorts(nn.Module):
    """Orders along rows and columns, with NaN, infinities and equal elements."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        large = x.clamp(-3, 3) + 1000 * (x.isnan() | x.isinf())
        return (
            *x.sort(dim=-1, stable=True), *x.sort(dim=0, stable=True, descending=True),
            *x.round().sort(dim=1, stable=True, descending=True), x.argsort(dim=0, stable=True),
            *ids.sort(dim=1, stable=True), *(ids > 3).sort(dim=0, stable=True),
            *ids.to(torch.int8).sort(dim=1, stable=True),
            *x.flatten().sort(stable=True), x.topk(1, 0).values, x.topk(2, 1, largest=False).values,
            *large.flatten().sort(stable=True), x.nan_to_num().median(1).values,
            ids.flatten().float().topk(7).values, x.flatten().topk(8).values,
        )  # fmt: skip


class Narrow(nn.Module):
    """Weights of few columns and many rows, by which few rows are multiplied in parts: with each
    epilogue, odd sizes, and a last part that is empty or short."""

    def __init__(self) -> None:
        super().__init__()
        self.even, self.plain = nn.Linear(2304, 96), nn.Linear(2304, 64, bias=False)
        self.odd, self.wide = nn.Linear(1101, 50), nn.Linear(1030, 1000)
        self.most = nn.Linear(4224, 40)  # 33 steps for 8 parts of 5

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        most, x = self.most(x), x[:, :2304]
        y = nn.functional.gelu(self.even(x))
        added = self.plain(x) + y[:, :64]
        odd, wide = torch.relu(self.odd(x[:, :1101])), nn.functional.silu(self.wide(x[:, 9:1039]))
        return y, added, odd, wide, most


class Writes(nn.Module):
    """Writes to places that are data, several to one place among them, in the order of the source."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, columns = x.shape
        here, first = ids.abs() % rows, ids[:, 0].abs() % rows
        turned = x.flip(0)
        put, masked = x.clone(), x.clone()
        put[:, first] = turned[:, :1]
        masked[ids > 3] = 7
        return (
            x.scatter(0, here, turned), x.scatter(0, here[:1], 3.0), x.scatter_add(0, here, turned),
            x.scatter(1, ids[:, :5].abs() % columns, turned), put, masked,
            x.scatter_reduce(0, here, turned, "amax"), x.scatter_reduce(0, here, turned, "mean"),
            ids.scatter_add(1, ids.abs() % columns, ids), x.slice_scatter(turned[:1], 0, 0, 1),
        )  # fmt: skip


def awkward(rows: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, columns, dtype=dtype)
    x[rows // 2, columns // 3 :: 7] = float("inf")
    x[-1, columns // 2 :: 5] = float("-inf")
    x[rows // 3, columns // 2] = float("nan")
    x[0, : columns // 4] = -0.0
    return x, torch.randint(-9, 10, (rows, columns))


def model_of(name: str, dtype: torch.dtype) -> tuple[nn.Module, list[tuple[Any, ...]], Any]:
    """The module, calls of it, of which the first is traced, and which axes are dynamic."""
    if name == "encoder":
        calls = [
            (torch.randint(0, 50, (b, s)), torch.arange(s)[None].expand(b, s) < s - b + 2)
            for b, s in ((2, 9), (3, 33), (2, 2))
        ]
        calls[0][1][0, 1:] = False
        return Encoder().to(dtype), calls, {"ids": {0: AUTO, 1: AUTO}, "keep": {0: AUTO, 1: AUTO}}
    if name == "block":
        calls = [(torch.randint(0, 60, (b, s)),) for b, s in ((2, 17), (1, 2), (3, 150))]
        return Block().to(dtype), calls, {"ids": {0: AUTO, 1: AUTO}}
    if name in ("bert", "roberta"):
        calls = []
        for b, s in ((2, 11), (3, 70)):
            seen = torch.arange(s)[None].expand(b, s) < s - 3 * torch.arange(b)[:, None]
            calls.append((torch.randint(0, 90, (b, s)), seen.long()))
        axes = {0: AUTO, 1: AUTO}
        model = Bert() if name == "bert" else Roberta()
        return model.to(dtype), calls, {"ids": axes, "mask": axes}
    if name in ("scans", "sorts"):
        sizes = ((5, 40), (1, 8), (3, 2500), (70, 33), (2, 1025))
        axes = {0: AUTO, 1: AUTO}
        module = Scans() if name == "scans" else Sorts()
        return module, [awkward(*each, dtype) for each in sizes], {"x": axes, "ids": axes}
    if name == "narrow":
        calls = [(torch.randn(rows, 4224, dtype=dtype),) for rows in (5, 1, 16, 17, 130)]
        return Narrow().to(dtype), calls, {"x": {0: AUTO}}
    if name == "writes":
        axes = {0: AUTO, 1: AUTO}
        calls = [
            (torch.randn(*each, dtype=dtype), torch.randint(-9, 10, each))
            for each in ((5, 100), (2, 71), (3, 700), (70, 75))
        ]
        return Writes(), calls, {"x": axes, "ids": axes}
    if name == "images":
        calls = [(torch.randn(b, 3, h, 18, dtype=dtype),) for b, h in ((2, 18), (3, 26))]
        return Images().to(dtype), calls, {"image": {0: AUTO, 2: AUTO}}
    x = torch.randn(5, 40, dtype=dtype)
    x[0, 3], x[1], x[2, 2], x[3, 1] = float("nan"), float("-inf"), float("inf"), float("-inf")
    return Edges(), [(x,), (torch.randn(300, 40, dtype=dtype),)], {"x": {0: AUTO}}


def main(*cases: str) -> None:
    sys.path[:0] = [str(HERE), str(HERE.parent / "gpu")]
    standin = importlib.import_module("standin")
    driver = standin.build_driver()
    for library in ("libcuda.so.1", "libcudart.so.13"):
        ctypes.CDLL(str(driver / library), ctypes.RTLD_GLOBAL)
    with tempfile.TemporaryDirectory() as work:
        for number, case in enumerate(cases):
            name, dtype = case.split(":")
            folder = Path(work, str(number))
            folder.mkdir()
            os.environ |= {"STANDIN_KERNELS": str(folder), "STANDIN_DEVICES": "9.0"}
            torch.manual_seed(0)
            module, calls, dynamic = model_of(name, getattr(torch, dtype))
            run = library_on_device(standin, module.eval(), calls[0], dynamic, folder)
            print(json.dumps([case, [difference(module, run, call) for call in calls]]), flush=True)


def library_on_device(
    standin: Any, module: nn.Module, example: tuple[Any, ...], dynamic: Any, work: Path
) -> Callable[[tuple[Any, ...]], list[torch.Tensor]]:
    """Lower, pack and load the module; the kernels are compiled for the CPU, all else is real."""
    import ml_dtypes
    import tvm
    from conftest import trace  # type: ignore[import-not-found]
    from tvm import relax

    from tcexport.lowering.cuda import pack
    from tcexport.lowering.cuda.toolchain import Toolchain
    from tcexport.lowering.elf import dynamic_symbol
    from tcexport.lowering.graph import build
    from tcexport.lowering.link import find_linker
    from tcexport.lowering.pipeline import compile_for_gpu
    from tcexport.lowering.targets import gpu_target
    from tcexport.lowering.weights import WeightStore, constants

    program = trace(module, example, dynamic)
    target, store, sources = gpu_target(["sm_90"]), WeightStore(), []
    graph = build(program, constants(program), target, store)

    def images(source: str, *_: Any) -> bytes:
        sources.append(source)
        made: bytes = standin.fatbin(source, [90])
        return made

    pack.compile_kernels = images  # the one thing that is not as in an export
    nowhere = Path("/")
    library = work / "model.so"
    with pack.without_a_device():
        executable = compile_for_gpu(graph.module, target)
    tools = Toolchain(nowhere, nowhere, (), nowhere)
    pack.export_gpu_library(executable, target, tools, find_linker(target), library)
    data = library.read_bytes()
    place = dynamic_symbol(data, b"__tvm_ffi__library_bin")
    (code,) = pack.read_blob(data[place:]).device_codes()
    standin.build_kernels(sources[0], code.code, work)
    device = tvm.cuda(0)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), device)

    def on_device(value: torch.Tensor) -> Any:
        if value.dtype is torch.bfloat16:
            bits = value.contiguous().view(torch.uint16).numpy()
            return tvm.runtime.tensor(bits.view(ml_dtypes.bfloat16), device)
        return tvm.runtime.tensor(value.contiguous().numpy(), device)

    def back(value: Any) -> torch.Tensor:
        array = value.numpy()
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view("uint16").copy()).view(torch.bfloat16)
        return torch.from_numpy(array.copy())

    weights = [on_device(store.kept[name].value) for name in graph.called.weights]

    def run(call: tuple[Any, ...]) -> list[torch.Tensor]:
        assert not graph.called.sizes
        made = machine["main"](*(on_device(call[i]) for i in graph.called.inputs), *weights)
        return [back(each) for each in ([made] if graph.called.results == 1 else made)]

    return run


def difference(module: nn.Module, run: Callable[..., list[torch.Tensor]], call: Any) -> float:
    """The largest, each relative to the size of its result; infinite for another shape or dtype, or
    a NaN or an infinity where eager has none."""
    with torch.no_grad():
        wanted = module(*call)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    worst = 0.0
    for want, got in zip(wanted, run(call), strict=True):
        if want.shape != got.shape or want.dtype != got.dtype:
            return float("inf")
        want, got = want.double(), got.double()
        finite = want.isfinite()
        if not torch.equal(want[~finite].nan_to_num(7.0), got[~finite].nan_to_num(7.0)):
            return float("inf")
        if not bool(got[finite].isfinite().all()):
            return float("inf")
        if bool(finite.any()):
            scale = max(1.0, float(want[finite].abs().max()))
            worst = max(worst, float((want - got)[finite].abs().max()) / scale)
    return worst


if __name__ == "__main__":
    main(*sys.argv[1:])
