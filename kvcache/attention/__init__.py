"""Attention backends over the block-major pool: write K and V to slots, attend through tables."""
