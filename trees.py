"""Shared prefixes computed once: sequences as trees in one row, and attention over them on a CPU and on CUDA.

Sequences of one task share c and the request, those of one dialogue all that was said before. Each prefix is stored
once, and every token sees its own branch only, so the result is exact. lm.py imports this file where --pack is tree;
without it everything trains with --pack none.

Models whose attention accepts no such mask (state-space models, attention sinks, capped attention scores such as
Gemma 2's) need --pack none as well.
"""
import functools
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import transformers

# ---- Trees


class Forest(NamedTuple):
    """Sequences laid out as trees in one row of T tokens, with each shared prefix stored once.

    A token's descendants follow it without a gap, so token q sees token k exactly if  k <= q < end[k].  One number per
    token is therefore the whole attention mask.
    """
    ids: np.ndarray        # (T,) token ids
    positions: np.ndarray  # (T,) position of each token in its sequence
    end: np.ndarray        # (T,) index in the row after the last descendant of the token
    paths: list            # for each sequence: (its length,) the indices of its tokens in the row
    blocks: list           # [(start, stop, prefix)]: queries start..stop see row[prefix] and, masked, each other


def common_prefix(a, b):
    """How many tokens two sequences share at their beginning."""
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    return int(differ.argmax()) if differ.any() else length


def lexicographic_order(sequences):
    """Indices of the sequences in lexicographic order, in which sequences with a shared prefix are neighbours."""
    return sorted(range(len(sequences)), key=lambda i: sequences[i].ids.astype(">i4").tobytes())


def tree_tokens(sequences):
    """How many tokens the sequences take when each shared prefix is stored once."""
    total = 0
    previous = np.empty(0)
    for n in lexicographic_order(sequences):
        ids = sequences[n].ids
        total += len(ids) - common_prefix(previous, ids)
        previous = ids
    return total


def build_prefix_forest(sequences, block=256):
    """Lay sequences out as a forest.

    The longest sequence is the trunk of a tree: one stretch of the row, causal in itself. Its branches follow, each
    laid out the same way. Those that leave the trunk last come first. A branch that shares no token with the trunk is a
    tree of its own. `block` limits how many tokens of neighbouring branches a CPU attends to together.
    """
    ids, positions, end = np.empty((3, tree_tokens(sequences)), np.int64)
    paths = [None] * len(sequences)
    blocks = []
    length = 0

    def grow(members, prefix):
        """Append what the members have beyond row[prefix], the tokens that they share."""
        nonlocal length
        trunk = max((sequences[i].ids for i in members), key=len)
        depth = len(prefix)
        start = length
        length = stop = start + len(trunk) - depth
        ids[start:stop] = trunk[depth:]
        positions[start:stop] = np.arange(depth, len(trunk))
        end[start:stop] = stop
        path = np.concatenate([prefix, np.arange(start, stop)])
        start_of_block = start
        if depth:
            last_start, _, last_prefix = blocks[-1]
            if np.array_equal(last_prefix, prefix) and stop - last_start <= block:
                start_of_block = last_start
                blocks.pop()
        blocks.append((start_of_block, stop, prefix))
        branches = {}    # {(how many tokens it shares with the trunk, its next token): members}
        for i in members:
            member = sequences[i].ids
            shared = common_prefix(member, trunk)
            if shared == len(member):
                paths[i] = path[:shared]
            else:
                branches.setdefault((shared, member[shared]), []).append(i)
        for shared, token in sorted(branches, key=lambda branch: (-branch[0], branch[1])):
            grow(branches[shared, token], path[:shared])
            end[start:start + shared - depth] = length    # the branch also descends from the shared part of the trunk

    grow(list(range(len(sequences))), np.empty(0, np.int64))
    return Forest(ids, positions, end, paths, blocks)


# ---- Attention over a forest


def sees(query, key, end, positions, window):
    """Whether a query sees a key (indices into the row): it descends from the key and is within the window, if any."""
    seen = (key <= query) & (query < end[key])
    if window is not None:
        seen = seen & (positions[query] - positions[key] < window)
    return seen


def forest_inputs(sequences, device):
    """Sequences as one row for a language model: (its inputs, the path of each sequence, tokens without padding)."""
    forest = build_prefix_forest(sequences)
    tokens = len(forest.ids)
    row = np.stack([forest.ids, forest.positions, forest.end])                                   # (3, tokens)
    if device.type == "cuda":    # FlexAttention works in blocks of 128
        padding = np.zeros((3, -tokens % 128), np.int64)
        padding[2] = np.arange(padding.shape[1]) + tokens + 1    # sees nothing but itself
        row = np.concatenate([row, padding], 1)
    ids, positions, end = torch.from_numpy(row).to(device)                                       # (T,) each
    layout = Attention(end, positions, forest.blocks)
    return {"input_ids": ids[None], "position_ids": positions[None], "layout": layout}, forest.paths, tokens


@dataclass
class Attention:
    """Which tokens of a row see which, in the form that each device needs. See Forest for end, positions and blocks."""
    end: torch.Tensor           # (T,)
    positions: torch.Tensor     # (T,)
    blocks: list
    masks: dict = field(default_factory=dict)    # {window: what block_mask or block_inputs makes of it}

    def mask(self, window):
        """The mask for layers with this window, which the layers share."""
        if window not in self.masks:
            on_cuda = self.end.device.type == "cuda"
            self.masks[window] = self.block_mask(window) if on_cuda else self.block_inputs(window)
        return self.masks[window]

    def block_mask(self, window, size=128):
        """FlexAttention's mask: it skips blocks that no query sees, and applies no mask to blocks that all queries see.

        Built directly from `end`: create_block_mask, unless compiled, would first build the whole (T, T) mask.
        """
        from torch.nn.attention.flex_attention import BlockMask
        end = self.end
        positions = self.positions
        ends = end.view(-1, size)
        depths = positions.view(-1, size)                                                        # (blocks, size)
        keys = torch.arange(len(ends), device=end.device) * size                                 # each block's start
        queries = keys[:, None]
        visible = (keys <= queries) & (ends.amax(1) > queries)                                   # (blocks, blocks)
        full = (keys < queries) & (ends.amin(1) >= queries + size)
        if window is not None:
            visible &= depths.amin(1)[:, None] - depths.amax(1) < window
            full &= depths.amax(1)[:, None] - depths.amin(1) < window

        def listed(chosen):
            """For each query block: how many key blocks are chosen, and the indices of all, the chosen ones first."""
            indices = chosen.int().argsort(dim=1, descending=True, stable=True)
            return chosen.sum(1).int()[None, None], indices.int()[None, None]

        def mask_mod(batch, head, query, key):
            return sees(query, key, end, positions, window)

        return BlockMask.from_kv_blocks(*listed(visible & ~full), *listed(full), BLOCK_SIZE=size, mask_mod=mask_mod)

    def block_inputs(self, window):
        """For each block of queries on a CPU: (start, stop, indices of its keys, mask).

        Keys None: the queries' own stretch, as for a trunk. Mask None: causal. An explicit mask takes a quarter longer.
        """
        inputs = []
        for start, stop, prefix in self.blocks:
            queries = torch.arange(start, stop)
            keys = torch.cat([torch.from_numpy(prefix), queries])
            mask = None
            if len(prefix) or window is not None:
                mask = sees(queries[:, None], keys, self.end, self.positions, window)
            inputs.append((start, stop, keys if len(prefix) else None, mask))
        return inputs


def block_attention(query, key, value, blocks, scale):
    """Attention over a forest on a CPU, (1, H, T, D): each block of queries attends to the tokens it descends from."""
    sizes = [stop - start for start, stop, _, _ in blocks]
    parts = []
    # split instead of a slice per block: the gradient of a slice is as long as the row
    stretches = [tensor.split(sizes, 2) for tensor in (query, key, value)]
    for q, k, v, (_, _, keys, mask) in zip(*stretches, blocks):
        if keys is not None:
            k = key.index_select(2, keys)
            v = value.index_select(2, keys)
        parts.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale))
    return torch.cat(parts, 2)


@functools.cache
def compiled_flex():
    from torch.nn.attention.flex_attention import flex_attention
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(flex_attention, dynamic=True)


def tree_attention(module, query, key, value, attention_mask, layout=None, scaling=None, sliding_window=None, **kwargs):
    """The attention of every layer, which transformers calls: query (1, H, T, D), key and value (1, K, T, D)."""
    if layout is None or any(kwargs.get(name) is not None for name in ("s_aux", "position_bias", "softcap")):
        raise NotImplementedError("attention with sinks, biases or caps")
    if query.device.type == "cuda":
        out = compiled_flex()(query, key, value, block_mask=layout.mask(sliding_window), scale=scaling,
                              enable_gqa=query.shape[1] > key.shape[1])
    else:
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key = key.repeat_interleave(groups, 1)
            value = value.repeat_interleave(groups, 1)
        out = block_attention(query, key, value, layout.mask(sliding_window), scaling)
    return out.transpose(1, 2), None


ATTENTION = "tree"    # its name in transformers, from here on
transformers.AttentionInterface.register(ATTENTION, tree_attention)
