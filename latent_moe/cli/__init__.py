"""The command ``latent-moe``: one verb, one file, imported only when it is asked for.

Exit codes: 0 done; 1 the answer is no; 2 the input cannot be used (one line on standard error); 130 interrupted.
"""

import argparse
import os
import sys
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper

from latent_moe import __version__
from latent_moe.errors import AnswerNo, InputError, LatentMoEError

VERBS = {
    "tour": "run the notebooks and write a report into runs/",
    "verify": "check every tail on real ranks against a float64 reference",
    "kernels": "read traces of any supported format into one kernel table",
    "report": "write one page to look into a recording",
    "compare": "put two traces side by side, without being fooled",
    "profile": "record the workload under rocprofv3 or torch.profiler",
    "tails": "time every tail on the ranks of this machine",
    "doctor": "say what this machine has and lacks",
    "bench": "serve both arms with real vLLM, interleaved, and measure them",
    "table": "turn result files into the table with deltas and 95 % intervals",
    "predict": "predict the change from published kernels and the cost model",
    "advise": "say which tail to run here, what it is worth and how to show it",
}

# Verbs that launch ranks, and the variables of what may have started the ranks already: torchrun, srun.
ON_RANKS = ("verify", "tails", "profile")
JOB_VARIABLES = ("TORCHELASTIC_RUN_ID", "SLURM_STEP_ID")


class _Parser(argparse.ArgumentParser):
    """Argument errors in one line, as every other unusable input."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _overview() -> _Parser:
    verbs = "\n".join(f"  {name:<9} {text}" for name, text in VERBS.items())
    parser = _Parser(
        prog="latent-moe",
        usage="latent-moe VERB ... [--json]",
        description="A lab for the tail of a latent MoE layer.",
        epilog=f"verbs:\n{verbs}\n\nlatent-moe VERB --help tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"latent-moe {__version__}")
    parser.add_argument("verb", metavar="VERB", choices=VERBS, help=argparse.SUPPRESS)
    return parser


def _verb_parser(name: str, module) -> _Parser:
    parser = _Parser(prog=f"latent-moe {name}", description=module.HELP, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="last line of standard output: one JSON object")
    module.add_arguments(parser)
    return parser


def _dispatch(argv: list[str]) -> int:
    name = _overview().parse_args(argv[:1]).verb
    module = import_module(f"latent_moe.cli.{name}")
    parser = _verb_parser(name, module)
    if name not in ON_RANKS or not any(variable in os.environ for variable in JOB_VARIABLES):
        return module.run(parser.parse_args(argv[1:]))
    from latent_moe.lab.job import place_of, take_part

    place = place_of()
    if place is None:
        return module.run(parser.parse_args(argv[1:]))
    parser.set_defaults(tp=place.size)
    return take_part(place, lambda: module.run(parser.parse_args(argv[1:])))


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit code. Known errors become one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A name that the terminal's encoding lacks is written as its escape.
            stream.reconfigure(errors="backslashreplace")
    try:
        return _dispatch(sys.argv[1:] if argv is None else list(argv))
    except InputError as error:
        return _say(error, 2)
    except (AnswerNo, LatentMoEError) as error:
        return _say(error, 1)
    except ModuleNotFoundError as error:
        return _say(_missing_package(error), 2)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output (head, a pager) has gone: nothing is left to say, and nobody to say it to.
        sys.stdout = None  # type: ignore[assignment]
        return 0
    except OSError as error:
        return _say(_unusable(error), 2)
    except (RecursionError, OverflowError) as error:
        return _say(f"a number or a nesting in the input is beyond what can be read ({error})", 2)


# Packages of each extra by which it is recognised; the base install reads traces and results without them.
_EXTRAS = {
    "ranks": ("torch", "safetensors"),
    "lab": ("bs4", "IPython", "nbclient", "nbconvert", "nbformat", "plotly", "traitlets"),
    "parquet": ("pyarrow",),
    "vllm": ("vllm", "transformers", "tokenizers"),
}


def _missing_package(error: ModuleNotFoundError) -> str:
    """Which package the verb needs and how to have it; a module of our own that is missing is a fault, and is raised."""
    name = (error.name or "").partition(".")[0]
    if name in ("", "latent_moe"):
        raise error
    extra = next((extra for extra, names in _EXTRAS.items() if name in names), None)
    how = f"pip install 'latent-moe[{extra}]'" if extra else f"pip install {name}"
    return f"this needs the package {name}, which is not installed: {how}, or `make setup` in the checkout"


def _unusable(error: OSError) -> str:
    """What could not be opened or written: "/usr/x: Permission denied"."""
    place = f"{error.filename}: " if error.filename is not None else "reading or writing failed: "
    return f"{place}{error.strerror or error}"


def _say(message, code: int) -> int:
    line = " ".join(str(message).split())
    with suppress(OSError):  # nobody may be there to read it: the code still says it
        print(f"latent-moe: {line}", file=sys.stderr, flush=True)
    return code
