"""The text the pair learns from: own answers, the standard library, generated records.

Nothing is fetched. The standard library is that of the running interpreter, so
its text differs between Python versions; `digest` says which text it was.
"""

import ast
import csv
import hashlib
import importlib.util
import io
import json
import random
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETS = ("generic", "code", "structured")
MODULES = (
    "argparse ast base64 bisect calendar cmd codecs collections colorsys configparser contextlib copy csv "
    "dataclasses difflib dis doctest enum filecmp fileinput fnmatch fractions functools getopt glob graphlib gzip "
    "hashlib heapq html inspect ipaddress json keyword linecache locale logging mailbox mimetypes netrc numbers "
    "operator optparse os pathlib pdb pickle pickletools pkgutil platform plistlib posixpath pprint profile pstats "
    "queue quopri random reprlib sched selectors shelve shlex shutil smtplib socket socketserver statistics string "
    "subprocess tarfile tempfile textwrap threading timeit token tokenize trace traceback types typing unittest "
    "urllib uuid warnings weakref webbrowser wsgiref zipfile"
).split()


def read_prompts(name, root=ROOT):
    """The prompts of one set, as the benchmark reads them."""
    lines = (root / "prompts" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def read_answers(name):
    """{prompt id: answer} from answers/<name>.md, where each answer follows a line '## id'."""
    text = (Path(__file__).parent / "answers" / f"{name}.md").read_text(encoding="utf-8")
    parts = re.split(rf"^## ({name}-\d+)$", text, flags=re.M)
    return {key: body.strip("\n") for key, body in zip(parts[1::2], parts[2::2])}


def own_dialogs(root=ROOT):
    """[(question, answer)] for every prompt of the project; a prompt without an answer is an error."""
    dialogs = []
    for name in SETS:
        answers = read_answers(name)
        dialogs += [(p["messages"][0]["content"], answers[p["id"]]) for p in read_prompts(name, root)]
    return dialogs


def library_sources():
    """Source text of the listed modules that this interpreter has as a file, in a fixed order."""
    sources = {}
    for name in MODULES:
        spec = importlib.util.find_spec(name)
        if spec and spec.origin and spec.origin.endswith(".py"):
            sources[name] = Path(spec.origin).read_text(encoding="utf-8", errors="replace")
    return sources


def library_dialogs(sources):
    """Questions about library functions, answered with their source or their docstring."""
    dialogs = []
    for module, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
                continue
            code = ast.get_source_segment(source, node) or ""
            if 150 < len(code) < 900:
                dialogs.append((f"Show the Python code of {node.name} in {module}.", f"```python\n{code}\n```"))
            doc = ast.get_docstring(node) or ""
            if 120 < len(doc) < 900:
                dialogs.append((f"What does {node.name} in {module} do?", doc))
    return dialogs


NOUNS = "sensor order book train ticket user server plant recipe invoice sample route lamp song parcel".split()
FIELDS = {
    "id": lambda r: r.randint(1, 999),
    "name": lambda r: r.choice("amber birch cedar delta ember flint grove heron iris jade".split()),
    "city": lambda r: r.choice("Oslo Porto Riga Lyon Graz Turin Bergen Gdansk".split()),
    "status": lambda r: r.choice(["open", "closed", "pending", "failed"]),
    "price": lambda r: round(r.uniform(1, 99), 2),
    "count": lambda r: r.randint(0, 40),
    "active": lambda r: r.random() < 0.5,
    "date": lambda r: f"2026-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}",
    "tags": lambda r: r.sample(["new", "blue", "heavy", "spare", "north"], 2),
}


def render_records(rows, noun, style):
    """The same rows as JSON, YAML, CSV, a Markdown table or SQL."""
    keys = list(rows[0])
    if style == "JSON":
        return json.dumps({noun + "s": rows}, indent=2)
    if style == "YAML":
        lines = [f"{noun}s:"]
        for row in rows:
            lines += [("  - " if i == 0 else "    ") + f"{k}: {json.dumps(v)}" for i, (k, v) in enumerate(row.items())]
        return "\n".join(lines)
    flat = [[" ".join(v) if isinstance(v, list) else str(v) for v in row.values()] for row in rows]
    if style == "CSV":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([keys, *flat])
        return out.getvalue().strip()
    if style == "SQL":
        values = ",\n".join("  (" + ", ".join(f"'{v}'" for v in row) + ")" for row in flat)
        return f"INSERT INTO {noun}s ({', '.join(keys)}) VALUES\n{values};"
    return "\n".join("| " + " | ".join(row) + " |" for row in [keys, ["---"] * len(keys), *flat])


def generated_dialogs(count, rng):
    """Requests for records of made-up things, with the records."""
    dialogs = []
    for _ in range(count):
        noun, style = rng.choice(NOUNS), rng.choice(["JSON", "YAML", "CSV", "SQL", "Markdown table"])
        keys = rng.sample(sorted(FIELDS), rng.randint(3, 5))
        rows = [{k: FIELDS[k](rng) for k in keys} for _ in range(rng.randint(3, 5))]
        question = f"Give {len(rows)} {noun}s as {style} with the fields {', '.join(keys)}."
        dialogs.append((question, render_records(rows, noun, style)))
    return dialogs


def build(seed, root=ROOT):
    """{'own', 'train', 'held_out': [(question, answer)], 'digest', 'python'}; held out: every 25th of the rest."""
    own = own_dialogs(root)
    rest = library_dialogs(library_sources()) + generated_dialogs(1500, random.Random(seed))
    random.Random(seed + 1).shuffle(rest)
    digest = hashlib.sha256(json.dumps([own, rest]).encode()).hexdigest()
    return {
        "own": own,
        "train": [d for i, d in enumerate(rest) if i % 25],
        "held_out": rest[::25],
        "digest": digest,
        "python": sys.version.split()[0],
    }
