"""How far a benchmark is and how long it will take: a bar on a terminal, lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import mean

# What is known before the first boot or run has been measured (seconds).
FIRST_GUESS_S = {"boot": 60.0, "run": 30.0}


@dataclass(frozen=True)
class Step:
    """One message: what happens now, how many of `total` steps are done, and the time left by what was measured."""

    message: str
    done: int
    total: int
    left_s: float


Notify = Callable[[Step], None]


@dataclass
class Meter:
    """Counts steps of two kinds, `boot` and `run`, and estimates the rest from the ones that were measured."""

    notify: Notify
    left: dict[str, int]
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"boot": [], "run": []})
    done: int = 0

    def __post_init__(self):
        self.total = sum(self.left.values())

    def say(self, message: str) -> None:
        """Something happens; nothing is finished by it."""
        self.notify(Step(message, self.done, self.total, self.left_s))

    def finish(self, kind: str, seconds: float, message: str) -> None:
        """A step of `kind` took `seconds`."""
        self.seconds[kind].append(seconds)
        self.left[kind] -= 1
        self.done += 1
        self.say(message)

    @property
    def left_s(self) -> float:
        """Seconds left, from the mean of each kind so far."""
        typical = {kind: mean(took) if took else FIRST_GUESS_S[kind] for kind, took in self.seconds.items()}
        return sum(self.left[kind] * typical[kind] for kind in self.left)


def minutes(seconds: float) -> str:
    """m:ss"""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def lines(step: Step) -> None:
    """A line a step on standard error."""
    print(
        f"[{step.done}/{step.total}, {minutes(step.left_s)} left] {step.message}", file=sys.stderr, flush=True
    )


@contextmanager
def shown() -> Iterator[Notify]:
    """A notify function for this standard error: a bar on a terminal, lines in a file or a notebook."""
    if not sys.stderr.isatty():
        yield lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        BarColumn(30),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=None)

        def notify(step: Step) -> None:
            text = f"{minutes(step.left_s)} left · {step.message}"
            bar.update(task, completed=step.done, total=step.total, description=text)

        yield notify
