"""The sampling that a model's authors recommend.

A Hugging Face folder may hold generation_config.json ("Generation strategies", transformers
documentation). As other servers do, only the values of the samplers are taken: whether to
sample at all is told by the temperature. GGUF files carry no such recommendation, so that of
a packaged model is written here.
"""

from __future__ import annotations

from service.engine.messages import SamplingParams
from service.models.fields import Fields
from service.models.source import ModelKind, ModelSource

# Alias -> what the model card recommends. At temperature 1 a model of this size rambles.
_PACKAGED = {"smollm2-135m": SamplingParams(temperature=0.2, top_p=0.9)}


def load_default_sampling(source: ModelSource) -> SamplingParams:
    """What a request gets that does not choose for itself. Raises ModelFileError."""
    path = source.path / "generation_config.json"
    if source.kind is not ModelKind.HF_FOLDER or not path.is_file():
        return _PACKAGED.get(source.name, SamplingParams())
    fields = Fields.from_json_file(path)
    return SamplingParams(
        temperature=fields.number("temperature", 1.0, low=0.0, high=2.0),
        top_k=fields.integer("top_k", 0, low=0),
        top_p=fields.number("top_p", 1.0, low=1e-6, high=1.0),
        min_p=fields.number("min_p", 0.0, low=0.0, high=1.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0, low=0.01, high=2.0),
    )
