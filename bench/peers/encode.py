"""Weights of the narrow formats in plain torch, for libraries that take encoded tensors."""

from __future__ import annotations

import torch
from torch import Tensor

_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_E2M1_EDGES = (_E2M1[1:] + _E2M1[:-1]) / 2


def _groups(rows: Tensor, group: int) -> Tensor:
    return rows.float().unflatten(-1, (-1, group))


def _exponents(groups: Tensor, largest: int) -> Tensor:
    """Shared exponent per group: floor(log2(amax)) - largest exponent of the format."""
    amax = groups.abs().amax(-1, keepdim=True).clamp_min(2.0**-120)
    return torch.floor(torch.log2(amax)) - largest


def _nibbles(codes: Tensor) -> Tensor:
    """Codes 0..15 (..., K) two per byte, the even column in the low half."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8).contiguous()


def mxfp4(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(N, K) -> E2M1 codes (N, K / 2) uint8 and exponents (N, K / 32) float."""
    groups = _groups(rows, 32)
    exponents = _exponents(groups, 2)
    scaled = groups * torch.exp2(-exponents)
    codes = torch.bucketize(scaled.abs(), _E2M1_EDGES) + (scaled < 0) * 8
    return _nibbles(codes.flatten(-2)), exponents.squeeze(-1)


def mxfp8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(N, K) -> E4M3 codes (N, K) uint8 and exponents (N, K / 32) float."""
    groups = _groups(rows, 32)
    exponents = _exponents(groups, 8)
    codes = (groups * torch.exp2(-exponents)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.flatten(-2).view(torch.uint8).contiguous(), exponents.squeeze(-1)


def fp8_blocks(rows: Tensor, block: int = 128) -> tuple[Tensor, Tensor]:
    """(N, K) -> E4M3 codes (N, K) uint8 and float32 scales (ceil(N / block), ceil(K / block))."""
    n, k = rows.shape
    padded = torch.nn.functional.pad(rows.float(), (0, -k % block, 0, -n % block))
    blocks = padded.unflatten(1, (-1, block)).unflatten(0, (-1, block))
    scales = blocks.abs().amax((1, 3)).clamp_min(1e-12) / 448
    codes = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    codes = codes.flatten(2).flatten(0, 1)[:n, :k]
    return codes.contiguous().view(torch.uint8), scales.contiguous()


def int4_groups(rows: Tensor, group: int = 32) -> tuple[Tensor, Tensor]:
    """(N, K) -> codes -7..7 stored + 8, two per byte (N, K / 2), and bfloat16 scales (N, K / group)."""
    groups = _groups(rows, group)
    scales = (groups.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 7).to(torch.bfloat16)
    codes = torch.round(groups / scales.float()).clamp(-7, 7).to(torch.int32) + 8
    return _nibbles(codes.flatten(-2)), scales.squeeze(-1).contiguous()
