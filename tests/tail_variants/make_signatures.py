"""Writes signatures.json: the signatures of the functions we call, parsed (not imported) from an amd-aiter wheel.

pip download --no-deps amd-aiter==VERSION && python tests/tail_variants/make_signatures.py amd_aiter-VERSION-*.whl
"""

import ast
import json
import sys
import zipfile
from pathlib import Path

# module -> dotted names in it; `tgemm` is the instance whose methods we call.
CALLED = {"aiter/tuned_gemm.py": ("TunedGemm.mm",), "aiter/ops/rmsnorm.py": ("rmsnorm2d_fwd",)}
INSTANCES = {"aiter/tuned_gemm.py": {"tgemm": "TunedGemm"}}


def signatures(wheel: str | Path) -> dict:
    """{"distribution", "version", "functions": {"module:name": [parameter, ...]}, "instances": {...}}."""
    functions, instances = {}, {}
    with zipfile.ZipFile(wheel) as archive:
        for path, names in CALLED.items():
            tree = ast.parse(archive.read(path))
            for name in names:
                functions[f"{path}:{name}"] = _parameters(_find(tree, name.split(".")))
            for name, cls in INSTANCES.get(path, {}).items():
                instances[f"{path}:{name}"] = cls if _is_instance(tree, name, cls) else None
    version = Path(wheel).name.split("-")[1]
    return {
        "distribution": "amd-aiter",
        "version": version,
        "functions": functions,
        "instances": instances,
    }


def _find(tree: ast.AST, path: list[str]) -> ast.FunctionDef:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == path[0]:
            return _find(node, path[1:]) if path[1:] else node
    raise SystemExit(f"no {'.'.join(path)} in this version")


def _parameters(function: ast.FunctionDef) -> list[dict]:
    arguments = function.args
    positional = arguments.posonlyargs + arguments.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        raise SystemExit(f"{function.name}: only ordinary parameters are understood")
    required = len(positional) - len(arguments.defaults)
    return [
        {
            "name": argument.arg,
            "annotation": ast.unparse(argument.annotation) if argument.annotation else None,
            "default": ast.unparse(arguments.defaults[index - required]) if index >= required else None,
        }
        for index, argument in enumerate(positional)
    ]


def _is_instance(tree: ast.Module, name: str, cls: str) -> bool:
    return any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == name
        and ast.unparse(node.value) == f"{cls}()"
        for node in tree.body
    )


if __name__ == "__main__":
    found = json.dumps(signatures(sys.argv[1]), indent=2)
    Path(__file__).with_name("signatures.json").write_text(found + "\n", encoding="utf-8")
