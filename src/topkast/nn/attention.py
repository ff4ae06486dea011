"""Multi-head attention with its four projections as layers of their own, so that each can be sparse.

`nn.MultiheadAttention` packs the query, key and value projections into one Parameter and hands it to one
function; here they are ordinary Linear layers (sparse or not), and attention itself is unchanged.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topkast.nn.belongings import attributes, tags, take_over

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def packed_bound(attention: MultiheadAttention, shape: tuple[int, ...]) -> float:
    """Xavier's bound for a query, key or value projection; torch takes it of all three packed into one."""
    rows, columns = shape
    is_packed = attention.kdim == attention.vdim == attention.embed_dim
    return math.sqrt(6 / ((3 * rows if is_packed else rows) + columns))


class MultiheadAttention(nn.Module):
    """Does what `nn.MultiheadAttention` does, with the same arguments and the same results."""

    # torch's Transformer layers read these to see whether their fused inference path applies: it does not.
    in_proj_weight = None
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, original: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim = original.embed_dim
        self.num_heads = original.num_heads
        self.head_dim = original.head_dim
        self.kdim = original.kdim
        self.vdim = original.vdim
        self.dropout = original.dropout
        self.batch_first = original.batch_first
        self.add_zero_attn = original.add_zero_attn
        self.bias_k = original.bias_k
        self.bias_v = original.bias_v
        weights, biases = _unpack(original)
        self.q_proj, self.k_proj, self.v_proj = (_linear(w, b) for w, b in zip(weights, biases, strict=True))
        self.out_proj = original.out_proj
        self.train(original.training)

    @torch.no_grad()
    def start(self) -> None:
        """Initialises what torch's layer initialises in its own way, as far as it is dense."""
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            if isinstance(projection, nn.Linear):
                bound = packed_bound(self, tuple(projection.weight.shape))
                projection.weight.uniform_(-bound, bound)
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            if projection.bias is not None:
                projection.bias.zero_()
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                nn.init.xavier_normal_(bias)

    def to_packed(self) -> nn.MultiheadAttention:
        """The torch layer, once all four projections are dense."""
        with torch.device("meta"):
            packed = nn.MultiheadAttention(
                self.embed_dim,
                self.num_heads,
                dropout=self.dropout,
                bias=self.q_proj.bias is not None,
                add_bias_kv=self.bias_k is not None,
                add_zero_attn=self.add_zero_attn,
                kdim=self.kdim,
                vdim=self.vdim,
                batch_first=self.batch_first,
            )
        projections = (self.q_proj, self.k_proj, self.v_proj)
        if packed._qkv_same_embed_dim:
            packed.in_proj_weight = _packed([p.weight for p in projections])
        else:
            for name, projection in zip("qkv", projections, strict=True):
                setattr(packed, f"{name}_proj_weight", projection.weight)
        if self.q_proj.bias is not None:
            packed.in_proj_bias = _packed([p.bias for p in projections])
        packed.out_proj.weight, packed.out_proj.bias = self.out_proj.weight, self.out_proj.bias
        packed.bias_k, packed.bias_v = self.bias_k, self.bias_v
        take_over(packed, self, attributes(self, vars(packed)))
        return packed.train(self.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """See `nn.MultiheadAttention.forward`: same arguments, shapes and result."""
        if is_causal and attn_mask is None:
            raise ValueError("`is_causal` is a hint about `attn_mask`, which must be given with it")
        is_batched = query.ndim == 3
        if not is_batched:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))

        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        bias = _attention_bias(attn_mask, key_padding_mask, self.num_heads, q.dtype)
        k, v, bias = self._extend(k, v, bias)
        q, k, v = self._heads(q), self._heads(k), self._heads(v)
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            attended, weights = _attention_with_weights(q, k, v, bias, dropout)
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
            weights = None
        output = self.out_proj(attended.transpose(1, 2).flatten(2))

        if not is_batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return (output if self.batch_first else output.transpose(0, 1)), weights

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, length, embedding) → (batch, heads, length, head)."""
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def _extend(self, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Appends the learned key and value, and the zero ones, where the layer has them."""
        extra: list[tuple[Tensor, Tensor]] = []
        if self.bias_k is not None and self.bias_v is not None:
            extra.append((self.bias_k, self.bias_v))
        if self.add_zero_attn:
            zero = k.new_zeros(1, 1, self.embed_dim)
            extra.append((zero, zero))
        for more_k, more_v in extra:
            k = torch.cat([k, more_k.to(k.dtype).expand(k.shape[0], 1, -1)], dim=1)
            v = torch.cat([v, more_v.to(v.dtype).expand(v.shape[0], 1, -1)], dim=1)
            bias = None if bias is None else F.pad(bias, (0, 1))
        return k, v, bias


def _attention_bias(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, num_heads: int, dtype: torch.dtype
) -> Tensor | None:
    """Both masks as one additive tensor that broadcasts to (batch, heads, target, source)."""
    bias = None
    if attn_mask is not None:
        bias = _additive(attn_mask, dtype)
        if bias.ndim == 3:  # (batch · heads, target, source)
            bias = bias.view(-1, num_heads, *bias.shape[1:])
    if key_padding_mask is not None:
        padding = _additive(key_padding_mask, dtype)[:, None, None, :]
        bias = padding if bias is None else bias + padding
    return bias


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """True means "do not attend" in a bool mask; other masks are added as they are."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))


def _attention_with_weights(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor]:
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    weights = torch.softmax(scores if bias is None else scores + bias, dim=-1)
    weights = F.dropout(weights, dropout) if dropout else weights
    return weights @ v, weights


def _unpack(original: nn.MultiheadAttention) -> tuple[list[nn.Parameter], list[nn.Parameter | None]]:
    """The three input projections of a torch layer, as Parameters of their own."""
    if original.in_proj_weight is not None:
        weights = _split(original.in_proj_weight)
    else:
        weights = [original.q_proj_weight, original.k_proj_weight, original.v_proj_weight]
    if original.in_proj_bias is None:
        return weights, [None] * 3
    return weights, [*_split(original.in_proj_bias)]


def _split(packed: nn.Parameter) -> list[nn.Parameter]:
    parts = [
        nn.Parameter(part.detach().clone(), requires_grad=packed.requires_grad) for part in packed.chunk(3)
    ]
    for part in parts:
        vars(part).update(tags(packed))
    return parts


def _packed(parts: list[Tensor]) -> nn.Parameter:
    joined = torch.cat([p.detach() for p in parts])
    packed = nn.Parameter(joined, requires_grad=any(p.requires_grad for p in parts))
    for part in parts:
        vars(packed).update(tags(part))
    return packed


def _linear(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.register_parameter("weight", weight)
    layer.register_parameter("bias", bias)
    return layer
