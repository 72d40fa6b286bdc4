"""Result files: sealed, read, checked and written here and nowhere else.

A result is precious, so it is written beside its place and renamed onto it, and carries a checksum as its last key:
a file cut short or edited by hand is noticed before anything is read from it.
"""

import hashlib
import json
import os
import re
from pathlib import Path

from mtpbench.errors import UserError

SCHEMA_VERSION = 1
RUNS = Path("metrics/runs")

# A newline is never raw inside a JSON string, so what these brackets hold is a list.
_SCALAR_LIST = re.compile(r"\[\n\s*([^\[\]{}\"]*?)\n\s*\]")
_HEAD = re.compile(rb'^\{\s*"schema_version": \d+,\s*"cell": "[^"]*",\s*"fingerprint": "([0-9a-f]{64})"')
_TAIL = re.compile(rb'"checksum": "([0-9a-f]{64})"\s*\}\s*$')


def canonical(value) -> str:
    """The one JSON text of a value: sorted keys, no spaces, UTF-8. Raises ValueError on NaN or infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value) -> str:
    """SHA-256 (64 hex) of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def path_of(cell: str, root: Path = Path(".")) -> Path:
    """Where a cell's committed result lies."""
    return root / RUNS / cell / "result.json"


def existing(root: Path = Path("."), cells: str = "*") -> list[Path]:
    """Every result under `root`, sorted by cell; `cells`: of those that fit this pattern."""
    return sorted((root / RUNS).glob(f"{cells}/result.json"))


def recorded(path: Path) -> str | None:
    """The fingerprint that a complete result file answers, or None where there is no such file."""
    return ends(path)[0]


def ends(path: Path) -> tuple[str, str] | tuple[None, None]:
    """Fingerprint and checksum of a complete result file, or None for both where there is no such file.

    Reads the two ends only, so that ten thousand cells plan in seconds: the fingerprint stands first, and the checksum
    last, so a file cut short is not taken for an answer. `read` verifies the whole.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(400)
            file.seek(max(0, os.fstat(file.fileno()).st_size - 200))
            tail = file.read()
    except FileNotFoundError:
        return None, None
    found, sealed = _HEAD.match(head), _TAIL.search(tail)
    return (found[1].decode(), sealed[1].decode()) if found and sealed else (None, None)


def seal(result: dict) -> dict:
    """The result with its checksum as the last key: SHA-256 of the canonical JSON of all the rest."""
    body = {key: value for key, value in result.items() if key != "checksum"}
    return {**body, "checksum": digest(body)}


def intact(sealed: dict) -> bool:
    """Whether the content is what `seal` saw, which is no NaN."""
    try:
        return sealed.get("checksum") == seal(sealed)["checksum"]
    except ValueError:
        return False


def read(path: Path) -> dict:
    """A whole, intact result of a known schema version.

    Raises UserError, naming the file and the remedy, where it is missing, cut short, edited or of another version.
    """
    path = Path(path)
    again = f"measure it again with `snakemake -c1 -f '{path}'`"
    remedy = f"restore it with `git checkout -- '{path}'` or {again}"
    try:
        result = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path}: no such result; correct the path, or measure it with `snakemake -c1 {RUNS}/CELL/result.json`") from None
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path}: not a complete JSON file ({error}); {remedy}") from None
    version = result.get("schema_version") if isinstance(result, dict) else None
    if type(version) is not int:
        raise UserError(f"{path}: not a result of this project (no schema_version); {remedy}")
    if version != SCHEMA_VERSION:
        way = "update this checkout" if version > SCHEMA_VERSION else f"read it with the commit in its provenance, or {again}"
        raise UserError(f"{path}: result schema version {version}, and this code reads {SCHEMA_VERSION}; {way}")
    if not intact(result):
        raise UserError(f"{path}: its checksum does not fit its content, so it was edited or damaged; {remedy}")
    return result


def anatomies(root: Path = Path(".")) -> dict[Path, dict | None]:
    """What scripts/anatomy.py left, by file; None where one is damaged, edited, or of another cell than its name says."""
    found: dict = {}
    for path in sorted((root / "metrics/anatomy").glob("*.json")):
        try:
            content = json.loads(path.read_text())
            found[path] = content if intact(content) and content["cell"] == path.stem else None
        except (ValueError, KeyError, TypeError, AttributeError):
            found[path] = None
    return found


def text_of(value) -> str:
    """JSON that a person can read and git can diff: indented, but with every list of numbers on one line."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    return _SCALAR_LIST.sub(lambda found: "[" + re.sub(r"\s+", " ", found.group(1)) + "]", text) + "\n"


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write by rename, so that a reader sees the old file or the new one whole. Raises OSError (a full disk), old file kept.

    `durable` waits for the disk; what can be derived again need not.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        cure = "make room or mend the folder, then run the same command again; what was there is kept"
        raise OSError(error.errno, f"{error.strerror}; {cure}", str(path)) from None
    finally:
        part.unlink(missing_ok=True)


def update_text(path: Path, text: str) -> None:
    """Write a derived file only where its text is another, so that its time tells Snakemake of a real change."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text, durable=False)


def write(path: Path, result: dict) -> None:
    """Seal a result and put it in its place in one step; what a killed writer left half done beside it goes."""
    for part in path.parent.glob(f".{path.name}.*.part"):
        part.unlink(missing_ok=True)
    write_text(path, text_of(seal(result)))
