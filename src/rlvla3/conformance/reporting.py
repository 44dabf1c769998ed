"""The checks of one adapter, here or in another Python environment, as a stream of outcomes.

``python -m rlvla3.conformance.reporting ORDER PARENT``: that environment's part; prints a line for each.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rlvla3.conformance.subject import Profile, Subject, require_gl
from rlvla3.conformance.suite import Outcome, run
from rlvla3.elsewhere import interpreter
from rlvla3.errors import UserError
from rlvla3.lifetime import die_with, kill_with_children


def checked(
    kind: str, options: Mapping[str, Any], profile: Profile, only: Sequence[str]
) -> Iterator[Outcome]:
    """Run the checks in this process.

    Raises:
        UserError: the adapter cannot be built or render here, there is no such check, or ``profile.lift`` is
            no action of it.
    """
    subject = Subject(kind, options, profile)
    require_gl(subject)
    wanted, given = subject.spec.action_dim, len(profile.lift)
    if given not in (0, wanted):
        raise UserError(f"--lift: {given} numbers; an action of {kind} has {wanted}, give so many")
    yield from run(subject, tuple(only))


def checked_elsewhere(
    python: str, kind: str, options: Mapping[str, Any], profile: Profile, only: Sequence[str]
) -> Iterator[Outcome]:
    """The same in the environment of ``python``.

    Raises:
        UserError: as for ``checked``, or its process died.
    """
    order = json.dumps({"kind": kind, "options": options, "profile": asdict(profile), "only": list(only)})
    process = subprocess.Popen(
        interpreter.command(python, "rlvla3.conformance.reporting", order, str(os.getpid())),
        env=interpreter.environment(python),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            found = json.loads(line)
            if "refused" in found:
                raise UserError(found["refused"])
            yield Outcome(**found)
        if code := process.wait():
            raise UserError(f"simulator.python = {python!r}: its process ended with exit code {code}")
    finally:
        kill_with_children(process)
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def main() -> None:
    """Check, and tell; what an adapter prints meanwhile goes to the standard error."""
    die_with(int(sys.argv[2]))
    output = os.dup(1)
    os.dup2(2, 1)
    order = json.loads(sys.argv[1])
    profile = Profile(**{**order["profile"], "lift": tuple(order["profile"]["lift"])})
    with os.fdopen(output, "w") as file:
        try:
            for outcome in checked(order["kind"], order["options"], profile, order["only"]):
                file.write(json.dumps(asdict(outcome)) + "\n")
                file.flush()
        except UserError as error:
            file.write(json.dumps({"refused": str(error)}) + "\n")


if __name__ == "__main__":
    main()
