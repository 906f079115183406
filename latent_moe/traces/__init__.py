"""Any recorded trace in, one kernel table out. `read` takes a file, several files, or a directory."""

from importlib import import_module

_PUBLIC = {"read": "read", "Trace": "table", "Kernels": "table", "Coded": "table"}
__all__ = list(_PUBLIC)


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'latent_moe.traces' has no attribute {name!r}")
    return getattr(import_module(f"latent_moe.traces.{_PUBLIC[name]}"), name)
