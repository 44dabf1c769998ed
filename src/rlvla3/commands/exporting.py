"""``rlvla3 export``."""

from pathlib import Path
from typing import Literal

import typer

from rlvla3.assembly import Assembly
from rlvla3.commands.evaluating import saved_config
from rlvla3.errors import UserError
from rlvla3.learner import checkpoint
from rlvla3.policies.api import Exports

Layout = Literal["own", "lerobot", "openpi"]


def command(source: Path, folder: Path, *, averaged: bool, layout: Layout, allow_code: bool) -> None:
    """Write a policy's weights as a folder of its own, or in a published layout.

    Raises:
        UserError: the source cannot be loaded, its policy has no such layout, or ``folder`` exists.
    """
    if layout == "own":
        checkpoint.export(source, folder, averaged=averaged)
    else:
        _published(source, folder, averaged, layout, allow_code)
    typer.echo(f"{folder}: written from {checkpoint.find(source)}")


def _published(
    source: Path, folder: Path, averaged: bool, layout: Literal["lerobot", "openpi"], allow_code: bool
) -> None:
    from rlvla3.policies.pretrained.writing import write_published

    config = saved_config(source, [], allow_code=allow_code)
    policy = Assembly(config, training=False).policy
    if not isinstance(policy, Exports):
        raise UserError(
            f"--layout {layout}: policy.kind = {config.policy.kind} has no published layout; leave it out"
        )
    loaded = checkpoint.load_policy(source, averaged=averaged)
    write_published(folder, policy.exported(loaded.weights), layout)
