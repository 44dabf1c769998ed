"""Prompts as the families were trained with them, and what turns them into tokens. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError
from rlvla3.policies import words

BINS = 256
"""Steps that a proprioceptive number is told in."""


class Tokenizer(Protocol):
    """Text → tokens."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, with the one that begins it."""
        ...


def plain(instruction: str) -> str:
    """The prompt of π0, and of π0.5 without proprioception."""
    return f"{_cleaned(instruction)}\n"


def with_state(instruction: str, state: npt.NDArray[np.float32]) -> str:
    """The prompt of π0.5 with normalised proprioception [n] as numbers of steps; −1 is what lies below."""
    steps = np.digitize(state, np.linspace(-1.0, 1.0, BINS + 1)[:-1]) - 1
    return f"Task: {_cleaned(instruction)}, State: {' '.join(map(str, steps))};\nAction: "


def _cleaned(instruction: str) -> str:
    return instruction.strip().replace("_", " ").replace("\n", " ")


def pad(rows: Sequence[Sequence[int]], length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Tokens [B, length] filled up with 0, and which of them are there.

    Raises:
        UserError: a prompt is longer.
    """
    longest = max(map(len, rows), default=0)
    if longest > length:
        raise UserError(
            f"policy.options.prompt_length = {length}: a prompt has {longest} tokens; give at least so many"
        )
    tokens = np.zeros((len(rows), length), np.int64)
    there = np.zeros((len(rows), length), bool)
    for row, given in enumerate(rows):
        tokens[row, : len(given)] = given
        there[row, : len(given)] = True
    return tokens, there


class HashedWords:
    """Words and numbers as tokens without any file; see ``rlvla3.policies.words``."""

    def __init__(self, vocabulary: int) -> None:
        """``vocabulary``: at least what words need, and ``BINS`` + 1 for numbers."""
        if vocabulary < words.VOCABULARY + BINS + 2:
            raise ValueError(f"hashed words need {words.VOCABULARY + BINS + 2} tokens, got {vocabulary}")

    def encode(self, text: str) -> list[int]:
        """A token that begins the text, then one for each word or number."""
        found = [words.VOCABULARY + BINS + 1]
        for word in words.split(text):
            number = int(word) if word.lstrip("-").isdecimal() else None
            is_step = number is not None and -1 <= number < BINS
            found.append(
                words.VOCABULARY + 1 + number if is_step and number is not None else words.token(word)
            )
        return found


class TokenizerFile:
    """A tokenizer of the ``tokenizers`` library."""

    def __init__(self, folder: Path) -> None:
        """Read ``tokenizer.json``.

        Raises:
            UserError: there is none, or the library is missing.
        """
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise UserError(
                f"policy.options.tokenizer = {str(folder)!r}: there is no tokenizer.json; give the folder of "
                "PaliGemma's tokenizer (google/paligemma-3b-pt-224)"
            )
        try:
            import tokenizers
        except ImportError as error:
            raise UserError(
                "policy.options.tokenizer needs the extra vla: pip install 'rlvla3[vla]'"
            ) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises this class itself
            raise UserError(f"{file}: is no tokenizer: {error}; get it again") from error

    def encode(self, text: str) -> list[int]:
        """As the file says, the token that begins a text included."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=True).ids
        return found


def tokenizer(folder: str, vocabulary: int) -> Tokenizer:
    """The tokenizer of a folder, or hashed words.

    Raises:
        UserError: as for ``TokenizerFile``.
    """
    return TokenizerFile(Path(folder).expanduser()) if folder else HashedWords(vocabulary)
