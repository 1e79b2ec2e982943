"""SmolLM2 as transformers computes it, in float32: the oracle of the numeric tests."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from service.models.source import resolve_model

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


@functools.cache
def smollm2_in_transformers() -> LlamaForCausalLM:
    """The model of the packaged GGUF file.

    `from_pretrained` would do the same and take a minute to build a tokenizer beside it.
    """
    # Imported here: it takes seconds, and `make quick` collects the tests that need it too.
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = str(resolve_model("smollm2-135m").path)
    fields = load_gguf_checkpoint(path)["config"]
    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in fields.items() if k != "model_type"}))
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], []), "tied, and nothing else is left out"
    model.tie_weights()
    return model.eval()
