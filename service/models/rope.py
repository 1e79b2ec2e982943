"""Rotary position embedding: the frequencies and their long-context variants.

RoPE: Su et al. 2021, arXiv:2104.09864. Linear interpolation: Chen et al. 2023,
arXiv:2306.15595. YaRN: Peng et al. 2023, arXiv:2309.00071. Llama 3's variant: the rope
scaling of Meta's reference code. Field names are those of Hugging Face configurations.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.models.fields import Fields


class RopeKind(enum.Enum):
    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """One RoPE; what follows `factor` matters to LLAMA3 or YARN alone."""

    theta: float
    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    original_context_tokens: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0  # cos and sin are multiplied by it

    def frequencies(self, head_dim: int) -> NDArray[np.float32]:
        """Angle per position of each of the head_dim / 2 rotated pairs."""
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        base: NDArray[np.float32] = 1 / np.power(np.float32(self.theta), exponents)
        match self.kind:
            case RopeKind.DEFAULT:
                return base
            case RopeKind.LINEAR:
                return (base / self.factor).astype(np.float32)
            case RopeKind.LLAMA3:
                return self._llama3(base)
            case RopeKind.YARN:
                return self._yarn(base, head_dim)

    def _llama3(self, base: NDArray[np.float32]) -> NDArray[np.float32]:
        """Divides the low frequencies by `factor`, keeps the high ones, blends in between."""
        wavelength = 2 * math.pi / base
        blend = (self.original_context_tokens / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        kept = np.clip(blend, 0.0, 1.0)
        return ((1 - kept) * base / self.factor + kept * base).astype(np.float32)

    def _yarn(self, base: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
        """Interpolates dimensions that turn less than beta_slow times, keeps the fast ones."""

        def dimension(rotations: float) -> float:
            turns = self.original_context_tokens / (rotations * 2 * math.pi)
            return head_dim * math.log(turns) / (2 * math.log(self.theta))

        low = max(math.floor(dimension(self.beta_fast)), 0)
        high = min(math.ceil(dimension(self.beta_slow)), head_dim - 1)
        width = high - low if high != low else 0.001
        ramp = np.clip((np.arange(head_dim // 2) - low) / width, 0, 1)
        return (ramp * base / self.factor + (1 - ramp) * base).astype(np.float32)


def yarn_attention_factor(factor: float) -> float:
    """The temperature that the YaRN paper recommends, as a factor of cos and sin."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def rope_from_hf(config: Fields, context_tokens: int) -> RopeConfig:
    """Reads `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    name = "rope_parameters" if config.has("rope_parameters") else "rope_scaling"
    rope = Fields(
        config.path, {f"{name}.{k}": v for k, v in config.mapping(name).items()}, name + "."
    )
    owner = rope if rope.has("rope_theta") else config
    theta = owner.number("rope_theta", 10_000.0, low=1.0, high=1e12)
    if owner.number("partial_rotary_factor", 1.0, low=0.0, high=1.0) != 1.0:
        raise owner.error("partial_rotary_factor", "only whole heads are rotated here")
    type_name = "rope_type" if rope.has("rope_type") else "type"
    try:
        kind = RopeKind(rope.text(type_name, "default"))
    except ValueError:
        known = ", ".join(kind.value for kind in RopeKind)
        raise rope.error(type_name, f"not supported (supported: {known})") from None
    if kind is RopeKind.DEFAULT:
        return RopeConfig(theta)
    factor = rope.number("factor", low=1.0, high=1e6)
    if kind is RopeKind.LINEAR:
        return RopeConfig(theta, kind, factor)
    original = rope.integer("original_max_position_embeddings", context_tokens)
    if kind is RopeKind.LLAMA3:
        low = rope.number("low_freq_factor", low=1e-6, high=1e6)
        high = rope.number("high_freq_factor", low=1e-6, high=1e6)
        if high <= low:
            raise rope.error("high_freq_factor", f"must be above low_freq_factor = {low:g}")
        return RopeConfig(theta, kind, factor, original, low_freq_factor=low, high_freq_factor=high)
    for unsupported in ("mscale", "mscale_all_dim"):
        if rope.has(unsupported):
            raise rope.error(unsupported, "this YaRN variant is not supported")
    if not rope.flag("truncate", True):
        raise rope.error("truncate", "YaRN without truncation is not supported")
    return RopeConfig(
        theta,
        kind,
        factor,
        original,
        beta_fast=rope.number("beta_fast", 32.0, low=1e-3, high=1e6),
        beta_slow=rope.number("beta_slow", 1.0, low=1e-3, high=1e6),
        attention_factor=rope.number(
            "attention_factor", yarn_attention_factor(factor), low=1e-3, high=1e3
        ),
    )


def rope_from_gguf(config: Fields, head_dim: int, context_tokens: int) -> RopeConfig:
    """Reads the `rope.*` keys. Llama 3's variant is a tensor (`rope_freqs`) in GGUF files."""
    theta = config.number("rope.freq_base", 10_000.0, low=1.0, high=1e12)
    if config.integer("rope.dimension_count", head_dim) != head_dim:
        raise config.error(
            "rope.dimension_count", f"only whole heads of {head_dim} are rotated here"
        )
    kind = config.text("rope.scaling.type", "none")
    if kind == "none":
        return RopeConfig(theta)
    factor = config.number("rope.scaling.factor", low=1.0, high=1e6)
    if kind == "linear":
        return RopeConfig(theta, RopeKind.LINEAR, factor)
    if kind == "yarn":
        return RopeConfig(
            theta,
            RopeKind.YARN,
            factor,
            config.integer("rope.scaling.original_context_length", context_tokens),
            attention_factor=config.number("rope.scaling.attn_factor", 1.0, low=1e-3, high=1e3)
            * yarn_attention_factor(factor),
        )
    raise config.error("rope.scaling.type", "not supported (supported: none, linear, yarn)")
