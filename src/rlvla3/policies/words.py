"""Word-level tokenizer built in code: no vocabulary file, nothing to download."""

import re
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

PAD = 0
_KNOWN_TEXT = """
a above and at back basket block book bottom bowl box button cabinet can close coffee cube cup
door down drawer edge from front goal grasp gripper handle hammer hold in insert into it lamp left
lever lid lift mug move nail near of off on onto open out over peg pick place plate
plug press pull push put reach release right robot rotate shelf side slide soup stack stick stove surface
switch table take target the then to top towards turn under up using wall window with
"""
KNOWN = tuple(_KNOWN_TEXT.split())
"""Words of manipulation instructions with a token of their own."""
HASHED = 896
"""Tokens shared by all other words, chosen by a checksum of the word."""
VOCABULARY = 1 + len(KNOWN) + HASHED

_INDEX = {word: 1 + number for number, word in enumerate(KNOWN)}


def token(word: str) -> int:
    """Token of one lower-case word, the same in every process."""
    known = _INDEX.get(word)
    if known is not None:
        return known
    return 1 + len(KNOWN) + zlib.crc32(word.encode()) % HASHED


def split(text: str) -> list[str]:
    """Words, and whole numbers with their sign, in lower case."""
    return re.findall(r"-?[0-9]+|[a-z0-9]+", text.lower())


def tokenize(instructions: Sequence[str], length: int) -> npt.NDArray[np.int64]:
    """Tokens [tasks, length] of each instruction, cut or filled up with ``PAD``.

    ``PAD`` is a word like any other (it has an embedding and is attended), so no mask is needed.
    """
    tokens = np.full((len(instructions), length), PAD, np.int64)
    for row, instruction in enumerate(instructions):
        words = re.findall(r"[a-z0-9]+", instruction.lower())[:length]
        tokens[row, : len(words)] = [token(word) for word in words]
    return tokens
