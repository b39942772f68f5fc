"""Models that a trace cannot keep, or keeps only in part. What the export owes is written on the line
itself: ``# TC102`` must be said of this line, and nothing else of any other."""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import json
import logging
import math
import os
import pickle
import random
import socket
import subprocess
import sys
import time
import uuid
import warnings
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

log = logging.getLogger("tests.broken")
COUNT = 0
SEEN: list[float] = []
SETTINGS = {"calls": 0, "scale": 2.0}
DICE = random.Random(3)
NOWHERE = Path(os.devnull)


class Settings:
    calls = 0


# --- branches on data -----------------------------------------------------------------------------


class If(nn.Module):
    def forward(self, x):
        if x.mean() > 0.5:  # TC102
            return x.relu()
        return x


class Ternary(nn.Module):
    def forward(self, x):
        return x if (x > 0).all() else -x  # TC102


class While(nn.Module):
    def forward(self, x):
        while x.norm() > 1:  # TC102
            x = x / 2
        return x


class And(nn.Module):
    def forward(self, x):
        return x * 2 if x.min() > 0 and x.max() < 1 else x  # TC102


class Assertion(nn.Module):
    def forward(self, x):
        assert (x > -1e9).all()
        return x * 2


class BranchOnNumber(nn.Module):
    def forward(self, x):
        total = x.sum().item()
        if total > 3:  # TC102
            return x + 1
        return x


class Clip(nn.Module):
    def forward(self, x):
        return x[: int(x.abs().max()) + 1] if x[0, 0] > 0 else x  # TC102


class InSubmodule(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = If()

    def forward(self, x):
        return self.inner(x) + 1


class InFunction(nn.Module):
    def forward(self, x):
        return norm_if_large(x)


def norm_if_large(x):
    if x.abs().max() > 10:  # TC102 InFunction
        return F.normalize(x)
    return x


class EncoderMask(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x):
        rows = x.unsqueeze(1).expand(-1, 4, -1)
        mask = nn.Transformer.generate_square_subsequent_mask(4)
        return self.encoder(rows, mask=mask)  # TC102


class EarlyExit(nn.Module):
    """A beam search's end: the loop stops when every row has stopped."""

    def forward(self, x):
        done = torch.zeros(x.shape[0], dtype=torch.bool)
        for _ in range(3):
            x = x * 0.5
            done = done | (x.sum(1) < 0.1)
            if bool(done.all()):  # TC102
                break
        return x


# --- numbers out of tensors -----------------------------------------------------------------------


class ToList(nn.Module):
    def forward(self, x):
        return x * sum(x[0].tolist())  # TC107


class Formatted(nn.Module):
    def forward(self, x):
        names = {str(x[0, 0]): 1}  # TC107
        return x + len(names)


# --- numpy and C ----------------------------------------------------------------------------------


class Unwrap(nn.Module):
    def forward(self, x):
        return torch.from_numpy(np.unwrap(x.numpy()))  # TC108


class Interpolated(nn.Module):
    def forward(self, x):
        return torch.from_numpy(np.interp(x.numpy(), [0.0, 1.0], [1.0, 3.0])).float()  # TC108


class Checksum(nn.Module):
    def forward(self, x):
        return x + zlib.adler32(b"salt") % 3  # TC109


class Parsed(nn.Module):
    def forward(self, x):
        return x * json.loads("[2]")[0]  # TC101


class Subprocess(nn.Module):
    def forward(self, x):
        subprocess.run(["true"], check=True)  # TC111
        return x


# --- output ---------------------------------------------------------------------------------------


class Prints(nn.Module):
    def forward(self, x):
        print("rows", x.shape[0])  # TC110
        return x + 1


class PrintsValues(nn.Module):
    def forward(self, x):
        print(f"mean {x.mean()}", x.sum().item())  # TC110
        return x + 1


class Logs(nn.Module):
    def forward(self, x):
        log.info("mean %s", x.mean())  # TC110
        logging.debug("here")  # TC110
        return x + 1


class Warns(nn.Module):
    def forward(self, x):
        warnings.warn("careful", stacklevel=2)  # TC110
        return x + 1


class WritesToTerminal(nn.Module):
    def forward(self, x):
        sys.stderr.write("")  # TC110
        return x + 1


# --- files, network, saving -----------------------------------------------------------------------


class ReadsFile(nn.Module):
    def forward(self, x):
        with open(os.devnull) as file:  # TC111
            return x + len(file.read())


class WritesFile(nn.Module):
    def forward(self, x):
        NOWHERE.write_text("x")  # TC111
        return x + 1


class ListsFolder(nn.Module):
    def forward(self, x):
        return x + (len(os.listdir("/")) > 0)  # TC111


class Connects(nn.Module):
    def forward(self, x):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", 9), timeout=0.01)  # TC111
        return x


class Saves(nn.Module):
    def forward(self, x):
        torch.save(x, os.devnull)  # TC112
        return x * 2


class Pickles(nn.Module):
    def forward(self, x):
        return x + len(pickle.dumps(x)) % 2  # TC112


# --- writes around the trace ----------------------------------------------------------------------


class WritesData(nn.Module):
    def forward(self, x):
        y = x * 1
        y.data.mul_(3)  # TC113
        return y


class AssignsData(nn.Module):
    def forward(self, x):
        y = x * 1
        y.data = x + 5  # TC113
        return y


class ViewOfData(nn.Module):
    def forward(self, x):
        y = x * 1
        y.data[0].zero_()  # TC113
        return y


class DataOfBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running", torch.zeros(6))

    def forward(self, x):
        self.running.data += x.mean(0)  # TC103 TC113
        return x - self.running


class WritesInput(nn.Module):
    def forward(self, x):
        x += 1  # TC104
        return x * 2


class WritesInputSlice(nn.Module):
    def forward(self, x):
        x[:, 0] = 0  # TC104
        return x * 2


# --- state ----------------------------------------------------------------------------------------


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1  # TC103
        return x


class GlobalCounter(nn.Module):
    def forward(self, x):
        global COUNT
        COUNT += 1  # TC103
        return x + 1


class Appends(nn.Module):
    def __init__(self):
        super().__init__()
        self.history = []

    def forward(self, x):
        self.history.append(x.mean())  # TC103
        return x


class AppendsGlobally(nn.Module):
    def forward(self, x):
        SEEN.append(0.0)  # TC103
        return x + 1


class GlobalDict(nn.Module):
    def forward(self, x):
        SETTINGS["calls"] += 1  # TC103
        return x * SETTINGS["scale"]


class ClassAttribute(nn.Module):
    def forward(self, x):
        Settings.calls += 1  # TC103
        return x


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.ones(6)  # TC103
        return x * self.mask


class CacheByKey(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = {}

    def forward(self, x):
        key = x.shape[1]
        if key not in self.cache:
            self.cache[key] = torch.ones(key)  # TC103
        return x * self.cache[key]


class BufferInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(6))

    def forward(self, x):
        self.total.add_(x.sum(0))  # TC103
        return x + self.total


class BufferAssigned(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps = self.steps + 1  # TC103
        return x + self.steps


class InHelperObject(nn.Module):
    def __init__(self):
        super().__init__()
        self.meter = Meter()

    def forward(self, x):
        self.meter.update(x.shape[0])
        return x * 2


class Meter:
    def __init__(self):
        self.count = 0

    def update(self, n):
        self.count += int(n)  # TC103 InHelperObject


class NextOfCount(nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers = itertools.count()

    def forward(self, x):
        return x + next(self.numbers)  # TC103


class Closure(nn.Module):
    def __init__(self):
        super().__init__()
        calls = 0

        def step():
            nonlocal calls
            calls += 1  # TC103 Closure
            return calls

        self.step = step

    def forward(self, x):
        return x + self.step()


class MutableDefault(nn.Module):
    def forward(self, x):
        return x + remember(1)


def remember(value, seen=[]):  # noqa: B006
    seen.append(value)  # TC103 MutableDefault
    return len(seen)


# --- random, clock --------------------------------------------------------------------------------


class Dice(nn.Module):
    def forward(self, x):
        return x * random.uniform(0.5, 1.5)  # TC105


class OwnDice(nn.Module):
    def forward(self, x):
        return x * DICE.random()  # TC105


class NumpyDice(nn.Module):
    def forward(self, x):
        return x + float(np.random.rand())  # TC105


class TorchDice(nn.Module):
    def forward(self, x):
        return x + torch.rand(6)  # TC105


class AlwaysDropout(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5)  # TC105


class Uuid(nn.Module):
    def forward(self, x):
        return x + uuid.uuid4().int % 2  # TC105


class Time(nn.Module):
    def forward(self, x):
        return x + time.perf_counter()  # TC114


class Date(nn.Module):
    def forward(self, x):
        return x + datetime.datetime.now().year  # TC114


class Timed(nn.Module):
    def forward(self, x):
        start = time.time()  # TC114
        y = x.exp()
        print(time.time() - start)  # TC110 TC114
        return y


# --- what is kept as it was -----------------------------------------------------------------------


class Environment(nn.Module):
    def forward(self, x):
        return x * float(os.environ.get("TCEXPORT_TEST_SCALE", "3"))  # TC106


class Getenv(nn.Module):
    def forward(self, x):
        return x if os.getenv("TCEXPORT_TEST_OFF") else x + 1  # TC106


class Machine(nn.Module):
    def forward(self, x):
        return x + 1 if torch.cuda.is_available() else x + 2  # TC106


class Training(nn.Module):
    def forward(self, x):
        if self.training:  # TC115
            x = x + torch.rand_like(x)
        return F.dropout(x, 0.1, self.training)


class GradMode(nn.Module):
    def forward(self, x):
        return x * 2 if torch.is_grad_enabled() else x * 3  # TC115


class Contiguity(nn.Module):
    def forward(self, x):
        return x + 1 if x.is_contiguous() else x.contiguous() + 2  # TC116


class Strides(nn.Module):
    def forward(self, x):
        return x + x.stride()[1]  # TC116


# --- Python that the tracer does not follow -------------------------------------------------------


class Profiled(nn.Module):
    def forward(self, x):
        with Locked():
            return x + 1


class Locked(contextlib.AbstractContextManager):
    def __enter__(self):
        return zlib.crc32(b"enter")  # TC109 Profiled

    def __exit__(self, *error):
        return None


class Function(nn.Module):
    def forward(self, x):
        return Unwrapped.apply(x)


class Unwrapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(np.unwrap(x.numpy()))  # TC108 Function

    @staticmethod
    def backward(ctx, grad):
        return grad


class CustomOp(nn.Module):
    def forward(self, x):
        return torch.ops.tcexport_tests.twice(x)  # TC120


LIBRARY = torch.library.Library("tcexport_tests", "DEF")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("twice", lambda x: x * 2, "CPU")


# --- several at once ------------------------------------------------------------------------------


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        if x.sum() > 0:  # TC102
            x = x * 2
        self.calls += 1  # TC103
        x = x + zlib.crc32(b"salt") % 5  # TC109
        print("so far")  # TC110
        torch.save(x, os.devnull)  # TC112
        return x + time.time()  # TC114


class Loop(nn.Module):
    """The tracer gives up a function that it meets a break in inside of a loop; the rest counts."""

    def forward(self, x):
        for _ in range(3):
            x = x + zlib.crc32(b"salt") % 5  # TC109
            if x.mean() > 3:  # TC102
                x = x - 1
        y = x * zlib.adler32(b"salt")  # TC109
        torch.save(y, os.devnull)  # TC112
        return y if not x.any() else x  # TC102


class Again(nn.Module):
    def forward(self, x):
        return salted(salted(x))


def salted(x):
    return x + zlib.crc32(b"salt") % 5  # TC109 Again


# --- mended ---------------------------------------------------------------------------------------


class Mended(nn.Module):
    """What the hints say, all in one model that must be taken without a word."""

    def __init__(self):
        super().__init__()
        self.salt = zlib.crc32(b"salt") % 5
        self.register_buffer("mask", torch.ones(6))
        layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x, noise, now):
        x = torch.where(x.mean() > 0.5, x.relu(), x)
        x = torch.where(x > x.mean(), x, 0) * self.mask + self.salt
        x = x.clone().add_(noise) + now
        rows = x.unsqueeze(1).expand(-1, 4, -1)
        mask = nn.Transformer.generate_square_subsequent_mask(4)
        return self.encoder(rows, mask=mask, is_causal=True), math.pi


class CondMended(nn.Module):
    def forward(self, x):
        return torch.cond(x.mean() > 0.5, lambda x: x.relu(), lambda x: x * 1, (x,))


class ItemAsValue(nn.Module):
    def forward(self, x):
        return x * x.mean().item()


class Masked(nn.Module):
    def forward(self, x):
        return x[x > x.mean()]


class Generator(nn.Module):
    def forward(self, x):
        return sum(x * k for k in range(3))


class CachedFunction(nn.Module):
    def forward(self, x):
        return x * table(6)


@functools.lru_cache
def table(n):
    return math.sqrt(n)


class Detached(nn.Module):
    def forward(self, x):
        y = x * 1
        y.detach().add_(1)
        return y


class NumpyKept(nn.Module):
    def forward(self, x):
        return torch.from_numpy(np.sin(x.numpy()))
