"""The sampling that a model's authors recommend, read from beside the weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.engine.messages import SamplingParams
from service.front.default_sampling import load_default_sampling
from service.models.errors import ModelFileError
from service.models.source import ModelKind, ModelSource


def folder(path: Path, **values: object) -> ModelSource:
    (path / "generation_config.json").write_text(json.dumps(values))
    return ModelSource(ModelKind.HF_FOLDER, path, "m")


def test_values_of_the_samplers_are_taken(tmp_path: Path) -> None:
    source = folder(
        tmp_path,
        do_sample=True,
        temperature=0.7,
        top_k=20,
        top_p=0.8,
        min_p=0.05,
        repetition_penalty=1.05,
        max_new_tokens=5,
    )
    assert load_default_sampling(source) == SamplingParams(
        temperature=0.7, top_k=20, top_p=0.8, min_p=0.05, repetition_penalty=1.05
    )


def test_absent_values_files_and_folders_change_nothing(tmp_path: Path) -> None:
    assert load_default_sampling(folder(tmp_path, top_k=None)) == SamplingParams()
    (tmp_path / "generation_config.json").unlink()
    source = ModelSource(ModelKind.HF_FOLDER, tmp_path, "m")
    assert load_default_sampling(source) == SamplingParams()
    gguf = ModelSource(ModelKind.GGUF, tmp_path / "m.gguf", "m")
    assert load_default_sampling(gguf) == SamplingParams()


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 3), ("top_p", 0), ("top_k", -1), ("repetition_penalty", "x")],
)
def test_a_bad_value_is_named(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(ModelFileError, match=name):
        load_default_sampling(folder(tmp_path, **{name: value}))


def test_the_packaged_model_comes_with_what_its_card_recommends() -> None:
    source = ModelSource(ModelKind.GGUF, Path("model.gguf"), "smollm2-135m")
    assert load_default_sampling(source) == SamplingParams(temperature=0.2, top_p=0.9)
