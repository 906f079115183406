"""roctx's profiler resume and pause: what lies between is all that rocprofv3 --selected-regions records."""

from importlib.util import find_spec

from latent_moe.errors import InputError

_ALL_THREADS = 0


def is_there() -> bool:
    """Can this interpreter resume and pause rocprofv3?"""
    return find_spec("roctx") is not None or _has_bindings()


def resume() -> None:
    """Start recording. Raises InputError without roctx."""
    _call("profilerResume", "roctxProfilerResume")


def pause() -> None:
    """Stop recording. Raises InputError without roctx."""
    _call("profilerPause", "roctxProfilerPause")


def _call(package_name: str, binding_name: str) -> None:
    if find_spec("roctx") is not None:
        import roctx  # type: ignore[import-not-found]

        getattr(roctx, package_name)(_ALL_THREADS)
    elif _has_bindings():
        from rocm.bindings import roctx as bindings  # type: ignore[import-not-found]

        getattr(bindings, binding_name)(_ALL_THREADS)
    else:
        raise InputError("rocprofv3 needs roctx to leave the warm-up out (rocprofiler-sdk's Python packages)")


def _has_bindings() -> bool:
    return find_spec("rocm") is not None and find_spec("rocm.bindings") is not None
