"""Network blocks that policy families share, in plain torch, with the names of published checkpoints.

Blocks return their keys and values instead of leaving them in a cache: a side effect would be made twice by
activation checkpointing, and the last level's weights would stay sharded in FSDP2's backward pass.

Letters: B batch, S tokens that come, K tokens that are attended to, W width, N heads, G heads of keys and
values, Z head size.
"""
