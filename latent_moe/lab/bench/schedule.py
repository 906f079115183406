"""The order of boots, and what of it is left to do after an interruption."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from latent_moe.lab.bench.recipe import Recipe


@dataclass(frozen=True)
class Boot:
    """One server start: which arm, which pair, its place in the order; `last` of its arm (parity, accuracy).

    `measures` is False where the pair's runs are there already and only what its last boots do besides is not.
    """

    arm: str
    pair: int
    order: int
    last: bool
    measures: bool = True


def boots(recipe: Recipe) -> list[Boot]:
    """A B, B A, A B ...: the order turns from pair to pair, so that a drift of the machine falls on all arms alike."""
    planned: list[Boot] = []
    for pair in range(1, recipe.pairs + 1):
        for arm in _order(list(recipe.arms), pair - 1):
            planned.append(Boot(arm, pair, len(planned), pair == recipe.pairs))
    return planned


def _order(arms: list[str], index: int) -> list[str]:
    """The arms of the pair (of more than two arms: the round) number `index`, from 0.

    Rotations: in as many rounds as there are arms each arm stands once in every place. With more than two arms the next
    rotations are reversed, so that each arm also stands as often before as after each other one.
    """
    turns, turned = divmod(index, len(arms))
    rotated = [*arms[turned:], *arms[:turned]]
    return rotated[::-1] if len(arms) > 2 and turns % 2 else rotated


def run_file(out: Path, arm: str, pair: int, concurrency: int) -> Path:
    """Where a run's result lies."""
    return out / "runs" / f"{arm}_pair{pair}_c{concurrency}.json"


def accuracy_marker(out: Path, arm: str) -> Path:
    """Exists once lm_eval has gone through for this arm."""
    return out / "state" / f"accuracy_{arm}.done"


def seed(recipe: Recipe, pair: int, concurrency: int) -> int:
    """The prompts of a run: equal for both arms of a pair, different between pairs and concurrencies."""
    return recipe.seed * 1_000_000 + pair * 1_000 + recipe.client.concurrencies.index(concurrency)


def runs_are_whole(recipe: Recipe, out: Path, pair: int) -> bool:
    """Whether every run of a pair is there."""
    files = [run_file(out, arm, pair, c) for arm in recipe.arms for c in recipe.client.concurrencies]
    return all(path.is_file() for path in files)


def extras_are_whole(recipe: Recipe, out: Path, arm: str) -> bool:
    """Whether the arm's greedy answers and its accuracy, where the recipe asks for them, are there."""
    files = [out / "parity" / f"{arm}.json"] if recipe.parity else []
    files += [accuracy_marker(out, arm)] if recipe.accuracy else []
    return all(path.is_file() for path in files)


def remaining(recipe: Recipe, out: Path) -> list[Boot]:
    """The boots of every pair that is not whole, and those whose arm has yet to answer or to be scored.

    Half a pair is measured again: its arms must be neighbours in time.
    """
    todo = []
    for boot in boots(recipe):
        if not runs_are_whole(recipe, out, boot.pair):
            todo.append(boot)
        elif boot.last and not extras_are_whole(recipe, out, boot.arm):
            todo.append(replace(boot, measures=False))
    return todo


def set_aside(recipe: Recipe, out: Path, todo: Iterable[Boot]) -> list[Path]:
    """Move the runs of half-measured pairs out of runs/ into incomplete/; returns what was moved."""
    moved = []
    for boot in (boot for boot in todo if boot.measures):
        for concurrency in recipe.client.concurrencies:
            path = run_file(out, boot.arm, boot.pair, concurrency)
            if path.is_file():
                moved.append(_move(path, out / "incomplete"))
    return moved


def _move(path: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    number = sum(1 for _ in folder.glob(f"{path.stem}*"))
    target = folder / f"{path.stem}.{number}.json"
    path.replace(target)
    return target


def write_whole(path: Path, value) -> None:
    """Write JSON whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
