"""Any recorded trace in, one kernel table out: `read_trace` takes a file, several files, or a directory."""

from importlib import import_module

_PUBLIC = {"read_trace": ("read", "read"), "Trace": ("table", "Trace"), "Kernels": ("table", "Kernels")}
__all__ = list(_PUBLIC)


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'latent_moe.lab.traces' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    return getattr(import_module(f"latent_moe.lab.traces.{module}"), attribute)
