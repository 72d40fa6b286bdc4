"""The configuration: read, checked against config/schema.yaml, defaults filled in, names resolved.

Every mistake is a UserError of one line that names the key, its place and the nearest valid name.
"""

import copy
import difflib
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator, validators

from mtpbench.errors import UserError

SCHEMA = Path(__file__).parents[2] / "config" / "schema.yaml"
DEFAULT = Path("config/config.yaml")
AXES = ("gpus", "engines", "prompts", "modes")
FLOOR = ("sessions", "rounds.min", "output_tokens")  # what a null cell needs to give others their floor: as many, as many, no more


def nearest(name: str, names) -> str:
    """The end of an error message: the nearest of the valid names, or all of them where none is near."""
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"valid: {', '.join(names)}"


def read_yaml(path: Path):
    """The mapping in a YAML file. Raises UserError that names file and line."""
    try:
        text = path.read_text(encoding="utf-8")
        _check_unique(yaml.compose(text, Loader=yaml.SafeLoader), path)
        content = yaml.safe_load(text)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run from the project's folder, or restore it with git") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else path
        raise UserError(f"{place}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds no mapping of keys; restore it with git, or see config/README.md")
    return content


def _check_unique(node, path: Path, around: frozenset = frozenset()) -> None:
    """Raises UserError for a key that stands twice in a mapping, of which YAML silently takes the last, and for an endless one."""
    if id(node) in around:
        raise UserError(f"{path}:{node.start_mark.line + 1}: an anchor that refers to itself; write the part out")
    first: dict[str, int] = {}
    for child in node.value if isinstance(node, yaml.CollectionNode) else ():
        key, value = child if isinstance(node, yaml.MappingNode) else (None, child)
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            line = key.start_mark.line + 1
            if key.value in first:
                raise UserError(f"{path}:{line}: the key '{key.value}' stands twice, first in line {first[key.value]}; delete one")
            first[key.value] = line
        _check_unique(value, path, around | {id(node)})


def load(path: Path = DEFAULT) -> dict:
    """The validated configuration of a file. Raises UserError."""
    return validate(read_yaml(path), str(path))


def validate(config: dict, name: str = str(DEFAULT)) -> dict:
    """A copy of `config` with every default filled in. Raises UserError for the first mistake; `name` is the file named."""
    config = copy.deepcopy(config)
    _check_plain(config, name)
    if config.get("partial") in ("true", "false"):  # Snakemake hands `--config partial=true` over as text
        config["partial"] = config["partial"] == "true"
    validator = _filling_validator(read_yaml(SCHEMA))
    errors = sorted(validator.iter_errors(config), key=lambda error: list(map(str, error.absolute_path)))
    if errors:
        raise UserError(f"{name}: {_one_line(errors[0])}")
    _check_references(config, name)
    return config


def _check_plain(value, name: str, place: str = "") -> None:
    """Raises UserError for what YAML makes of a value and JSON does not have: names that are numbers or dates, NaN, infinity, dates."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise UserError(f"{name}: {place or 'top level'}: the name {key!r} is read as a {type(key).__name__}; put it in quotes")
            _check_plain(inner, name, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _check_plain(inner, name, f"{place}.{number}")
    elif not isinstance(value, str | int | float | None):
        raise UserError(f"{name}: {place}: {value} is read as a {type(value).__name__}; put it in quotes")
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name}: {place}: {value} is no number that can be used; give one, or leave the key out")


def cells(config: dict) -> list[str]:
    """The cells of the configured matrix, then the extra ones, in the order of the configuration."""
    matrix = config["matrix"]
    product = map("_".join, itertools.product(*(matrix[axis] for axis in AXES)))
    return list(dict.fromkeys([*product, *matrix["extra"]]))


def parts(cell: str, config: dict) -> dict:
    """The four names of a cell: {"gpu", "engine", "prompts", "mode"}. Raises UserError for a name that is not configured."""
    names = cell.split("_")
    if len(names) != len(AXES):
        raise UserError(f"unknown cell '{cell}': a cell is gpu_engine_prompts_mode, for example '{cells(config)[0]}'")
    for axis, name in zip(AXES, names):
        if name not in config[axis]:
            raise UserError(f"unknown cell '{cell}': no {axis}.{name} in the configuration; {nearest(name, config[axis])}")
    return dict(zip(("gpu", "engine", "prompts", "mode"), names))


def merged(*layers: dict) -> dict:
    """Mappings laid over each other, nested ones key by key; the last layer wins."""
    out: dict = {}
    for layer in layers:
        for key, value in layer.items():
            out[key] = merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def engine_on(names: dict, config: dict) -> dict:
    """The engine's entry with what the GPU's entry changes in it; its `protocol` is the whole one of the cell.

    names: {"gpu", "engine", "mode"} of config.parts.
    """
    gpu, engine = config["gpus"][names["gpu"]], config["engines"][names["engine"]]
    here = gpu["engines"].get(names["engine"], {})
    mode = config["modes"][names["mode"]]
    of_null = here.get("null_protocol", {}) if mode["method"] == "none" else {}
    protocol = merged(config["protocol"], engine["protocol"], gpu["protocol"], here.get("protocol", {}), of_null, mode.get("protocol", {}))
    return merged(engine, here, {"protocol": protocol})


def _check_references(config: dict, name: str) -> None:
    references = [(f"matrix.{axis}", axis, entry) for axis in AXES for entry in config["matrix"][axis]]
    for gpu, settings in config["gpus"].items():
        references.append((f"gpus.{gpu}.model", "models", settings["model"]))
        references += [(f"gpus.{gpu}.engines", "engines", engine) for engine in settings["engines"]]
    for place, axis, entry in references:
        if entry not in config[axis]:
            raise UserError(f"{name}: {place}: no {axis}.{entry}; {nearest(entry, config[axis])}")
    for gpu, engine, mode in itertools.product(config["gpus"], config["engines"], config["modes"]):
        protocol = engine_on({"gpu": gpu, "engine": engine, "mode": mode}, config)["protocol"]
        rounds, null = protocol["rounds"], config["gpus"][gpu]["engines"].get(engine, {}).get("null_protocol", {})
        if rounds["min"] > rounds["max"]:
            among = " (null_protocol among them)" if "rounds" in null else ""
            place = f"protocol.rounds, as laid over each other{among} for gpus.{gpu} with engines.{engine} and modes.{mode}"
            raise UserError(f"{name}: {place}: min {rounds['min']} is more than max {rounds['max']}; raise max or lower min")
        # A mode that says otherwise may be meant for another GPU; where it is in the matrix, that is asked below.
        own = config["modes"][mode].get("protocol", {})
        _check_floor(config, name, gpu, engine, mode, [key for key in FLOOR if _stands(key, null) and not _stands(key, own)])
    for cell in config["matrix"]["extra"]:
        try:
            parts(cell, config)
        except UserError as error:
            raise UserError(f"{name}: matrix.extra: {error}") from None
    for cell in (wanted := cells(config)):
        names = parts(cell, config)
        if f"{names['gpu']}_{names['engine']}_{names['prompts']}_baseline" in wanted:
            _check_floor(config, name, names["gpu"], names["engine"], names["mode"], FLOOR)


def _stands(key: str, protocol: dict) -> bool:
    """Whether a key of FLOOR is set there."""
    return "min" in protocol.get("rounds", {}) if key == "rounds.min" else key in protocol


def _check_floor(config: dict, name: str, gpu: str, engine: str, mode: str, keys: Sequence[str]) -> None:
    """Raises UserError where the null cell would tell less of equal arms than the cell that is held against it needs: that had no floor then."""
    if config["modes"][mode]["method"] == "none":
        return
    null, cell = (engine_on({"gpu": gpu, "engine": engine, "mode": each}, config)["protocol"] for each in ("baseline", mode))
    for key, (has, needs) in short_of_floor(null, cell).items():
        if key in keys:
            than, bound = ("more", "fewer") if has > needs else ("fewer", "more")
            own = _stands(key, config["modes"]["baseline"].get("protocol", {}))
            place = "modes.baseline.protocol" if own else f"gpus.{gpu}.engines.{engine}.null_protocol"
            said = f"null cells with gpus.{gpu} and engines.{engine} have {has}, {than} than the {needs} of modes.{mode}, which would have no floor"
            raise UserError(f"{name}: {place}.{key}: {said}; set it to {needs} or {bound}")


def short_of_floor(null: dict, cell: dict) -> dict[str, tuple[int, int]]:
    """Where the protocol of a null cell does too little to give a cell its floor, by key of FLOOR: what it has, and what the cell's protocol needs."""
    has, needs = ((each["sessions"], each["rounds"]["min"], each["output_tokens"]) for each in (null, cell))
    return {key: (a, b) for key, a, b in zip(FLOOR, has, needs) if (a > b if key == "output_tokens" else a < b)}


def _filling_validator(schema: dict) -> Draft202012Validator:
    """A validator that also fills in defaults, by the recipe of jsonschema's own FAQ."""
    check_properties = Draft202012Validator.VALIDATORS["properties"]

    def fill_then_check(validator, properties, instance, schema):
        if isinstance(instance, dict):
            for key, subschema in properties.items():
                if "default" in subschema:
                    instance.setdefault(key, copy.deepcopy(subschema["default"]))
        yield from check_properties(validator, properties, instance, schema)

    # JSON Schema takes 2.0 for an integer; Python takes it for no length and no index.
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    return validators.extend(Draft202012Validator, {"properties": fill_then_check}, type_checker=types)(schema)


def _one_line(error) -> str:
    """A schema error in words: where it is, what is wrong, what would be right."""
    place = ".".join(map(str, error.absolute_path)) or "top level"
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = error.schema.get("properties", {})
        patterns = error.schema.get("patternProperties", ())
        unknown = min(key for key in error.instance if key not in known and not any(re.search(each, key) for each in patterns))
        if patterns:
            return f"{place}: '{unknown}' is not a valid name: use a-z, 0-9 and '-'"
        return f"{place}: unknown key '{unknown}'; {nearest(unknown, known)}"
    if error.validator == "enum":
        return f"{place}: '{error.instance}' is not valid; {nearest(str(error.instance), map(str, error.validator_value))}"
    if error.validator in ("oneOf", "anyOf"):
        return f"{place}: {error.instance!r} is not {error.schema.get('description', 'one of its documented forms')}"
    return f"{place}: {error.message}; config/README.md says what belongs there"
