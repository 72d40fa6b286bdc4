"""The measurement ledger: which measuring code gives the numbers of which measurement version.

A refactoring that moves no number must not make paid results stale, and a change that moves one must. So the
fingerprint holds a version, and whoever changes the measuring code says in the ledger which of the two it was.
"""

import ast
import functools
import hashlib
import json
from pathlib import Path

PACKAGE = Path(__file__).parent
LEDGER = PACKAGE / "measuring" / "ledger.json"


@functools.cache
def measurement_version() -> int:
    """The version of the measuring code: that of the ledger's last entry."""
    return entries()[-1]["measurement_version"]


def entries() -> list[dict]:
    """The ledger, oldest first: [{"measuring_code": hex64, "measurement_version": n, "why": text}]."""
    return json.loads(LEDGER.read_text())


def measured_files() -> list[Path]:
    """The source files that can move a number, sorted."""
    return sorted([*(PACKAGE / "measuring").rglob("*.py"), PACKAGE / "cell.py"])


def measuring_digest() -> str:
    """SHA-256 (64 hex) of the syntax trees of the measuring code: comments, docstrings and layout do not count."""
    total = hashlib.sha256()
    for path in measured_files():
        total.update(f"{path.relative_to(PACKAGE).as_posix()}\n{_tree(path)}\n".encode())
    return total.hexdigest()


def _tree(path: Path) -> str:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)
