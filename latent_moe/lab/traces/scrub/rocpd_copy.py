"""rocpd: the whole environment, command and host name stand in two tables; paths in others.

What is not needed to read kernels and regions is emptied, other text is cleaned, and the file is rebuilt: SQLite
leaves deleted text in its free pages until VACUUM.
"""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

from latent_moe.errors import InputError
from latent_moe.lab.secrets import SCRUBBED, Secrets

_UUID = re.compile(r"_[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12}$")
# Per table: columns and what they become, an SQL expression.
_EMPTIED = {
    "rocpd_info_process": {"command": "''", "environment": "'{}'", "extdata": "'{}'"},
    "rocpd_info_node": {
        **{"hostname": f"'{SCRUBBED}'", "domain_name": "''", "hash": "id", "extdata": "'{}'"},
        **{"machine_id": f"'{SCRUBBED}-' || id", "version": "''"},
    },
    "rocpd_info_code_object": {"uri": "''", "extdata": "'{}'"},
    "rocpd_event": {"call_stack": "'{}'", "line_info": "'{}'"},
    "rocpd_arg": {"value": "''", "extdata": "'{}'"},
}


def copy(source: Path, target: Path, secrets: Secrets) -> None:
    """Write a clean copy. Raises InputError for a damaged database or one that is no rocpd."""
    try:
        with closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as old:
            with closing(sqlite3.connect(target)) as new:
                old.backup(new)
                _clean(new, source, secrets)
    except sqlite3.Error as error:
        target.unlink(missing_ok=True)
        raise InputError(f"{source}: damaged database ({error})") from error


def _clean(db: sqlite3.Connection, source: Path, secrets: Secrets) -> None:
    db.execute("PRAGMA journal_mode=MEMORY")
    db.execute("PRAGMA foreign_keys=OFF")
    tables = _tables(db)
    if not any(_kind(table) == "rocpd_info_process" for table in tables):
        raise InputError(f"{source}: this database is not rocpd, so what is secret in it is not known")
    for table in tables:
        _learn(db, table, secrets)
    for table in tables:
        _empty(db, table)
        _clean_text(db, table, secrets)
    db.commit()
    db.execute("VACUUM")


def _tables(db) -> list[str]:
    rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return [name for (name,) in rows]


def _kind(table: str) -> str:
    return _UUID.sub("", table)


def _columns(db, table: str) -> list[str]:
    return [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]


def _learn(db, table: str, secrets: Secrets) -> None:
    """Take note of what is going to be emptied."""
    columns = _columns(db, table)
    if _kind(table) == "rocpd_info_process" and {"command", "environment"} <= set(columns):
        for command, environment in db.execute(f'SELECT command, environment FROM "{table}"'):
            secrets.add_command(_text(command))
            secrets.add_environment(_environment(environment))
    if _kind(table) == "rocpd_info_node":
        wanted = [name for name in ("hostname", "machine_id", "domain_name") if name in columns]
        for row in db.execute(f'SELECT {", ".join(wanted)} FROM "{table}"'):
            names = [_text(name) for name in row]
            secrets.add_names([*names, *(name.split(".")[0] for name in names)])


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _environment(raw: object) -> dict[str, object]:
    """A JSON object, or a list of "NAME=value", or such lines."""
    text = _text(raw)
    try:
        found = json.loads(text)
    except ValueError:
        found = text.splitlines()
    if isinstance(found, dict):
        return found
    lines = [str(line) for line in found] if isinstance(found, list) else []
    return {str(place) + line.split("=")[0]: line.split("=", 1)[-1] for place, line in enumerate(lines)}


def _empty(db, table: str) -> None:
    wanted = _EMPTIED.get(_kind(table), {})
    present = {name: value for name, value in wanted.items() if name in _columns(db, table)}
    if present:
        db.execute(
            f'UPDATE "{table}" SET ' + ", ".join(f'"{name}" = {value}' for name, value in present.items())
        )


def _clean_text(db, table: str, secrets: Secrets) -> None:
    """Rewrite every text that holds a secret or an absolute path. Names stay unique: strings are numbered on clash."""
    for column in _columns(db, table):
        query = f'SELECT rowid, "{column}" FROM "{table}" WHERE typeof("{column}") IN (\'text\', \'blob\')'
        changed = [
            (secrets.clean(_text(old)), row) for row, old in db.execute(query) if _differs(old, secrets)
        ]
        for new, row in changed:
            _rewrite(db, table, column, new, row)


def _differs(old: object, secrets: Secrets) -> bool:
    text = _text(old)
    return secrets.clean(text) != text


def _rewrite(db, table: str, column: str, new: str, row: int) -> None:
    statement = f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?'
    try:
        db.execute(statement, (new, row))
    except sqlite3.IntegrityError:
        db.execute(statement, (f"{new} #{row}", row))
