"""Says what an adapter offers: a question on the standard input, the answer on the standard output.

Run by another environment's interpreter (`asking`).
"""

import contextlib
import os
import sys

import msgspec
from pydantic import ValidationError

from rlvla3.config_loading.faults import located_rules
from rlvla3.elsewhere.asking import Answer, Fault, Faults, Question, Refusal, Reply
from rlvla3.errors import UserError
from rlvla3.plugins import distrust, guarded
from rlvla3.simulators.api import SimulatorSpec
from rlvla3.simulators.registry import require, simulator_class


def answer(question: Question) -> Reply:
    """Make the adapter, see that what it needs is here, and read what it offers."""
    kind = question.kind
    trust = (
        distrust(question.distrusted, question.trusted) if question.distrusted else contextlib.nullcontext()
    )
    try:
        with trust, guarded("simulator.kind", kind):
            adapter = simulator_class(kind)
            try:
                settings = adapter.Settings.model_validate(question.options)
            except ValidationError as error:
                rules = located_rules(error, adapter.Settings)
                return Faults(faults=tuple(Fault(path=path, rule=rule) for path, rule in rules))
            made = adapter(settings)
            require(kind, made)
            spec: object = made.spec
            return _checked(kind, spec, settings.model_dump(mode="json"))
    except UserError as error:
        return Refusal(text=str(error))


def _checked(kind: str, spec: object, options: dict[str, object]) -> Reply:
    if not isinstance(spec, SimulatorSpec):
        return Refusal(
            text=f"simulator.kind = {kind!r}: its spec must be a SimulatorSpec, it is {spec!r}; "
            "see rlvla3.simulators.api"
        )
    return Answer(options=options, spec=spec)


def main() -> None:
    """Answer; what an adapter prints meanwhile goes to the standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    with os.fdopen(output, "wb") as file:
        file.write(msgspec.json.encode(answer(question)))


if __name__ == "__main__":
    main()
