"""The order of boots, and what of it is left to do after an interruption."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from latent_moe.serving.recipe import Recipe


@dataclass(frozen=True)
class Boot:
    """One server start: which arm, which pair, its place in the order; `last` of its arm (parity, accuracy)."""

    arm: str
    pair: int
    order: int
    last: bool


def boots(recipe: Recipe) -> list[Boot]:
    """A B, B A, A B ...: the order turns from pair to pair, so that a drift of the machine falls on both arms."""
    arms = list(recipe.arms)
    planned: list[Boot] = []
    for pair in range(1, recipe.pairs + 1):
        for arm in arms if pair % 2 else arms[::-1]:
            planned.append(Boot(arm, pair, len(planned), pair == recipe.pairs))
    return planned


def run_file(out: Path, arm: str, pair: int, concurrency: int) -> Path:
    """Where a run's result lies."""
    return out / "runs" / f"{arm}_pair{pair}_c{concurrency}.json"


def accuracy_marker(out: Path, arm: str) -> Path:
    """Exists once lm_eval has gone through for this arm."""
    return out / "state" / f"accuracy_{arm}.done"


def seed(recipe: Recipe, pair: int, concurrency: int) -> int:
    """The prompts of a run: equal for both arms of a pair, different between pairs and concurrencies."""
    return recipe.seed * 1_000_000 + pair * 1_000 + recipe.client.concurrencies.index(concurrency)


def pair_is_whole(recipe: Recipe, out: Path, pair: int) -> bool:
    """Whether every run of a pair, and what its last boots measure besides, is there."""
    files = [run_file(out, arm, pair, c) for arm in recipe.arms for c in recipe.client.concurrencies]
    if pair == recipe.pairs and recipe.parity:
        files += [out / "parity" / f"{arm}.json" for arm in recipe.arms]
    if pair == recipe.pairs and recipe.accuracy:
        files += [accuracy_marker(out, arm) for arm in recipe.arms]
    return all(path.is_file() for path in files)


def remaining(recipe: Recipe, out: Path) -> list[Boot]:
    """The boots of every pair that is not whole. Half a pair is measured again: its arms must be neighbours in time."""
    unfinished = {pair for pair in range(1, recipe.pairs + 1) if not pair_is_whole(recipe, out, pair)}
    return [boot for boot in boots(recipe) if boot.pair in unfinished]


def set_aside(recipe: Recipe, out: Path, todo: Iterable[Boot]) -> list[Path]:
    """Move the runs of half-measured pairs out of runs/ into incomplete/; returns what was moved."""
    moved = []
    for boot in todo:
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
