"""What models count, for Prometheus: ``pip install 'tcexport[prometheus]'``.

    from tcexport.runtime.prometheus import watch
    watch(model, "ranker")

A scrape reads `Model.metrics`; calls cost nothing more than before.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..artifacts.errors import Diagnostic, UsageError
from .worker import Metrics

if TYPE_CHECKING:
    from .model import Model

# Name of the counter, what it counts, its second label; read from the field of the same purpose.
_TOTALS = (
    ("calls", "Calls that were answered by the compiled code."),
    ("seconds", "Seconds that calls spent in the compiled code, all threads together."),
    ("copies", "Inputs that had to be copied, being strided or not on a 64-byte boundary."),
    ("copied_bytes", "Bytes of these inputs."),
    ("replays", "Calls that were a launch of a CUDA graph."),
)
_BY_LABEL = (
    ("violations", "code", "Calls that were refused, by the error's code."),
    ("guards", "guard", "Calls that were refused, by the guard that they violate."),
    ("variants", "variant", "Calls that each variant took."),
)


def watch(model: Model, name: str, registry: Any = None) -> None:
    """Let a registry of prometheus_client show a model's counters, labelled ``model=name``.

    They are ``tcexport_calls_total`` and so on, one for each field of `Metrics`. A model that is
    gone is no longer shown.

    Args:
        registry: a ``CollectorRegistry``; by default the one of ``start_http_server``.

    Raises:
        UsageError: TC008, prometheus_client is not installed, or another model has this name.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        raise UsageError(
            Diagnostic(
                "TC008",
                "prometheus_client is not installed",
                tries=("pip install 'tcexport[prometheus]'",),
            )
        ) from None
    where = REGISTRY if registry is None else registry
    with _lock:
        models = _watched.get(where)
        if models is None:
            models = _watched[where] = _Models()
            where.register(models)
        models.add(name, model)


class _Models:
    """A collector: the models that one registry shows, by name."""

    def __init__(self) -> None:
        self._models: weakref.WeakValueDictionary[str, Model] = weakref.WeakValueDictionary()

    def add(self, name: str, model: Model) -> None:
        if self._models.get(name, model) is not model:
            raise UsageError(Diagnostic("TC008", f"another model is watched as {name!r:.80}"))
        self._models[name] = model

    def describe(self) -> Iterable[Any]:
        return self._families({})

    def collect(self) -> Iterable[Any]:
        return self._families({name: each.metrics for name, each in self._models.items()})

    def _families(self, found: Mapping[str, Metrics]) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        for field, text in _TOTALS:
            family = CounterMetricFamily(f"tcexport_{field}", text, labels=["model"])
            for name, metrics in found.items():
                family.add_metric([name], getattr(metrics, field))
            yield family
        for field, label, text in _BY_LABEL:
            family = CounterMetricFamily(f"tcexport_{field}", text, labels=["model", label])
            for name, metrics in found.items():
                for value, count in getattr(metrics, field).items():
                    family.add_metric([name, value], count)
            yield family


_lock = threading.Lock()
_watched: weakref.WeakKeyDictionary[Any, _Models] = weakref.WeakKeyDictionary()
