"""Checkpoints: fetched at their pinned revisions, listed file by file with their hashes, and checked against a GPU's memory.

`fetch` runs here (into the Hugging Face cache) and in a Modal container (into the volume) alike. The list goes to
metrics/weights/{backend}/{model}.json, which is git-ignored: it says that the files lie in this cache or that volume,
which is true of one machine or one workspace and not of a clone. What a result was measured with is in its spec.
"""

import contextlib
import hashlib
import json
from pathlib import Path

from mtpbench.errors import UserError

MOUNT = "/models"  # where the volume is mounted
FOLDERS = "/weights"  # where local model folders are mounted
RECORDS = Path("metrics/weights")
LOCK = "envs/weights.txt"
PARTS = ("target", "drafter")
HEADROOM, RESERVE_GB = 1.1, 2.0  # copies while loading; CUDA context, activations and a cache of a few thousand tokens


def hub_parts(model: dict) -> dict:
    """The parts of a configured model that lie on the hub: {"target": {"repo", "revision"}, ..}."""
    return {part: {key: model[part][key] for key in ("repo", "revision")} for part in PARTS if "repo" in model[part]}


def check_pinned(parts: dict) -> None:
    """Raises UserError where a part has no revision."""
    for part, entry in parts.items():
        if entry["revision"] is None:
            raise UserError(
                f"{part}: {entry['repo']}: no revision is pinned; put the 40 hex digits of the commit you want "
                f"(https://huggingface.co/{entry['repo']}/commits/main) into config/config.yaml"
            )


def order(config: dict, name: str) -> dict:
    """What to fetch for a model, and no more of the configuration than that takes: a new price fetches nothing again."""
    settings = {key: config["modal"][key] for key in ("volume", "secret", "queue_s", "run_s")}
    return {"parts": hub_parts(config["models"][name]), "modal": settings}


def records(config: dict, cells: list[str]) -> list[Path]:
    """The lists of what these cells need from the hub, one for each backend and model; none for a cell that is not known."""
    gpus = [config["gpus"][name] for name in (cell.split("_")[0] for cell in cells) if name in config["gpus"]]
    needed = {(gpu["backend"], gpu["model"]) for gpu in gpus if hub_parts(config["models"][gpu["model"]])}
    return [RECORDS / backend / f"{model}.json" for backend, model in sorted(needed)]


def fetch(parts: dict, mount: str | None = None) -> dict:
    """Download the parts at their revisions and list them: {part: {"repo", "revision", "files": [{"name", "bytes", "sha256"}]}}.

    Into folders under `mount`, checked against the hub's own sizes and hashes, or into the Hugging Face cache, which need
    not be reached from a machine that has them already. Complete files are not downloaded again. Raises UserError.
    """
    return {part: {**entry, "files": _fetched(entry, mount)} for part, entry in parts.items()}


def fetch_on_modal(parts: dict, settings: dict, say) -> dict:
    """`fetch` into the volume, in a container without a GPU: the only one that gets the secret. Makes the volume if need be."""
    import modal

    from mtpbench.backends import container
    from mtpbench.backends import modal as adapter

    app, function = adapter.app_of(
        "mtpbench-weights", container.download, image=adapter.engine_image([LOCK], {}), cpu=2, memory=4096, timeout=settings["run_s"],
        secrets=[modal.Secret.from_name(settings["secret"], required_keys=["HF_TOKEN"])] if settings["secret"] else [],
        volumes={MOUNT: modal.Volume.from_name(settings["volume"], create_if_missing=True)},
    )  # fmt: skip
    found, _ = adapter.call(app, function, (json.dumps(parts), settings["volume"]), settings, say)
    if "error" in found:
        raise UserError(found["error"])
    return found


def local_folder(repo: str, revision: str) -> Path:
    """Where a checkpoint lies in the Hugging Face cache. Raises UserError where it is not complete there."""
    from huggingface_hub import errors, snapshot_download

    again = f"fetch it with `snakemake -c1 -f {RECORDS}/local/MODEL.json`, MODEL being its name in `models`"
    try:
        folder = Path(snapshot_download(repo, revision=revision, local_files_only=True))
    except errors.LocalEntryNotFoundError:
        raise UserError(f"{repo}@{revision[:8]} is not in the Hugging Face cache: {again}") from None
    # A download that broke off leaves a folder too.
    indices = [] if (folder / "model.safetensors").exists() else folder.glob("*.safetensors.index.json")
    shards = {name for index in indices for name in json.loads(index.read_text())["weight_map"].values()}
    lacking = [name for name in sorted({"config.json", *shards}) if not (folder / name).exists()]
    if lacking or not any(folder.glob("*.safetensors")):
        raise UserError(f"{repo}@{revision[:8]} is not whole in the Hugging Face cache ({', '.join(lacking) or '*.safetensors'} missing): {again}")
    return folder


def listing(folder: Path) -> list[dict]:
    """The files of a checkpoint with sizes and SHA-256, the downloader's own notes left out."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and ".cache" not in path.relative_to(folder).parts)
    return [{"name": str(path.relative_to(folder)), "bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in files]


def sha256_of(path: Path) -> str:
    """SHA-256 (64 hex) of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def places(model: dict, parts: list[str]) -> tuple[dict, dict]:
    """Where the parts lie in a Modal container: {part: path}, and the local folders to mount for it: {path: local folder}."""
    paths, folders = {}, {}
    for part in parts:
        entry = model[part]
        if "repo" in entry:
            paths[part] = f"{MOUNT}/{entry['repo']}/{entry['revision']}"
        elif "path" in entry:
            paths[part] = f"{FOLDERS}/{part}"
            folders[paths[part]] = entry["path"]
        else:
            raise UserError(f"models.{model['name']}.{part}: random weights are measured with `backend: local` only")
    return paths, folders


def size_of(entry: dict) -> int | None:
    """Bytes of a checkpoint as far as they are known without fetching it."""
    if "path" in entry:
        return sum(file.stat().st_size for file in Path(entry["path"]).glob("*"))
    return entry.get("bytes")


def copies(implementation: str, order: str) -> int:
    """How often an engine has the pair in memory: vLLM's arms are engines of their own, those of transformers share it."""
    return 2 if implementation == "vllm" and order == "interleaved" else 1


def check_memory(where: str, model: dict, memory_gb: float | None, copies: int = 1) -> None:
    """Raises UserError where the pair cannot fit into the GPU's memory; silent where either is not known."""
    sizes = [size_of(model[part]) for part in PARTS]
    if memory_gb is not None and None not in sizes and (needed := copies * sum(sizes) / 1e9 * HEADROOM + RESERVE_GB) > memory_gb:
        remedy = "choose a larger GPU or a smaller pair" + (", or `order: blocks`" if copies > 1 else "")
        raise UserError(
            f"{where}: {'two copies of ' * (copies > 1)}the pair {model['name']} need about {needed:.0f} GB with their working "
            f"memory, and the GPU has {memory_gb:g} GB; {remedy} in config/config.yaml"
        )


def _fetched(entry: dict, mount: str | None) -> list[dict]:
    import httpx2
    from huggingface_hub import HfApi, errors, snapshot_download

    repo, revision = entry["repo"], entry["revision"]
    place = f"{repo}@{revision}"
    folder = f"{mount}/{repo}/{revision}" if mount else None
    wanted = None
    try:
        wanted = HfApi().model_info(repo, revision=revision, files_metadata=True).siblings
        found = listing(Path(snapshot_download(repo, revision=revision, local_dir=folder)))
    except errors.GatedRepoError:
        raise UserError(f"{place}: accept its licence at https://huggingface.co/{repo}, then {_TOKEN}") from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{place}: no such revision; see https://huggingface.co/{repo}/commits/main") from None
    except errors.RepositoryNotFoundError:
        raise UserError(f"{place}: no such repository, or a private one; correct the name, or {_TOKEN}") from None
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, httpx2.TransportError) as error:
        if wanted is None and not mount:  # nothing of the hub: what is whole here will do
            with contextlib.suppress(UserError):
                return listing(local_folder(repo, revision))
        why = "HF_HUB_OFFLINE is set" if isinstance(error, errors.OfflineModeIsEnabled) else "huggingface.co cannot be reached"
        raise UserError(f"{place}: {why}; run again when it can be reached, finished files are kept") from None
    except errors.HfHubHTTPError as error:
        raise UserError(f"{place}: {str(error).splitlines()[0]}; run again, finished files are kept") from None
    except OSError as error:
        raise UserError(f"{place}: {error.strerror or error}; finished files are kept") from None
    here = {file["name"]: (file["bytes"], file["sha256"]) for file in found}
    for file in wanted:
        size, digest = here.get(file.rfilename, (None, None))
        if size != file.size or (file.lfs and digest != file.lfs.sha256):
            raise UserError(f"{place}: {file.rfilename} came incomplete or damaged; delete it and run again")
    return found


_TOKEN = "give a token that may read it: `hf auth login` here, the secret of `modal.secret` on Modal (docs/modal.md)"
