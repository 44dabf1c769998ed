"""Buffers and versions: nothing torn, nothing that goes back."""

import pytest
import worlds as w

from rlvla3.core.engine import Engine
from rlvla3.core.publishing import Publisher
from rlvla3.messages import Member, MemberReady, Version

A, B = Member("generator-0"), Member("generator-1")


def publish(publisher, version):
    publisher.request(Version(version))
    write = publisher.next_write()
    assert write is not None
    publisher.published(*write)
    return write[1]


def load(publisher, member):
    version, buffer = publisher.next_load(member)
    publisher.reads(member, buffer)
    return version


def test_no_buffer_is_written_that_is_newest_or_being_read():
    publisher = Publisher("rollout", 3, (A, B))
    first = publish(publisher, 0)
    load(publisher, A)
    second = publish(publisher, 1)
    load(publisher, B)
    third = publish(publisher, 2)
    assert len({first, second, third}) == 3
    publisher.request(Version(3))
    assert publisher.next_write() is None
    publisher.loaded(A, Version(0))
    assert publisher.next_write() == (3, first)


def test_a_generator_that_dies_reading_gives_its_buffer_back():
    publisher = Publisher("evaluation", 2, (A, B))
    first = publish(publisher, 0)
    load(publisher, A)
    publish(publisher, 1)
    publisher.request(Version(2))
    assert publisher.next_write() is None
    publisher.gone(A)
    assert publisher.next_write() == (2, first)


def test_the_lowest_serving_version_is_the_slowest_generators_and_never_goes_back():
    publisher = Publisher("rollout", 3, (A, B))
    publish(publisher, 0)
    for member in (A, B):
        publisher.loaded(member, Version(0))
    publish(publisher, 1)
    publisher.loaded(A, Version(1))
    assert publisher.lowest == 0
    publisher.gone(B)
    assert publisher.lowest == 1
    publisher.gone(A)
    assert publisher.lowest == 1


def test_versions_do_not_go_back_or_get_lost():
    publisher = Publisher("rollout", 3, (A,))
    publish(publisher, 2)
    with pytest.raises(RuntimeError, match="version 1"):
        publisher.request(Version(1))
    publisher.loaded(A, Version(2))
    with pytest.raises(RuntimeError, match="back to 1"):
        publisher.loaded(A, Version(1))
    publisher.request(Version(3))
    with pytest.raises(RuntimeError, match="version 3 is not written yet"):
        publisher.request(Version(4))


def test_evaluation_does_not_begin_before_its_weights_are_published():
    """Not even while no Generator is up, so that none could be found without them."""
    engine = Engine(w.settings(evaluate=w.evaluation(2)), 0.0)
    engine.on(MemberReady(member=Member("simulator-0")), 0.0)
    engine.evaluation.begin(Version(0))
    assert not engine.weights.evaluating
