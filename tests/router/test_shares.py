"""Which process should get the next connection."""

from mmap import mmap

from router.processes.balance import SLACK, Shares, cells


def three() -> list[Shares]:
    """Return three processes that have begun."""
    memory = mmap(-1, cells(3))
    found = [Shares(memory, place, 3) for place in range(3)]
    for one in found:
        one.begin()
    return found


def test_the_first_stays() -> None:
    """If no process has connections, the accepting one keeps it."""
    one, two, _ = three()
    assert one.freest() is None
    one.opened()
    assert two.freest() is None


def test_the_second_goes() -> None:
    """It goes to a process that has none."""
    one, _, _ = three()
    one.opened()
    assert one.freest() == 1


def test_what_is_under_way_counts_where_it_goes() -> None:
    """Connections being passed count where they go, or a burst would go to one process."""
    one, two, _ = three()
    one.opened()
    one.passed(1)
    assert one.freest() == 2
    one.passed(2)
    assert one.freest() is None
    two.took()
    assert one.freest() == 1  # taken, and closed again since
    two.opened()
    assert one.freest() is None


def test_what_could_not_be_passed_does_not_count() -> None:
    """A connection that could not be passed stays here."""
    one, _, _ = three()
    one.opened()
    one.passed(1)
    one.passed(1, -1)
    assert one.freest() == 1


def test_who_is_shut_gets_none() -> None:
    """A shut process gets none however few it has; if all are shut, each keeps what it accepts."""
    one, two, three_ = three()
    one.opened(5)
    two.shut()
    assert one.freest() == 2
    three_.shut()
    assert one.freest() is None
    one.shut()
    assert one.freest() is None
    one.opened()
    one.opened(-1)
    assert two.freest() is None


def test_of_many_a_few_do_not_matter() -> None:
    """Passing costs a little, so a small imbalance is accepted."""
    one, two, three_ = three()
    two.opened(10 * SLACK)
    three_.opened(10 * SLACK)
    one.opened(11 * SLACK - SLACK + 10)
    assert one.freest() is None
    one.opened()
    assert one.freest() == 1


def test_a_new_process_begins_with_none() -> None:
    """The connections of its predecessor are gone; those being passed are still to be taken."""
    memory = mmap(-1, cells(2))
    one, two = (Shares(memory, place, 2) for place in range(2))
    one.begin()
    two.begin()
    two.opened(7)
    one.opened()
    one.passed(1)
    two.shut()
    again = Shares(memory, 1, 2)
    again.begin()
    one.opened()
    assert one.freest() == 1  # 2 here, 1 being passed there
    again.took()
    again.opened()
    assert one.freest() == 1
    again.opened()
    assert one.freest() is None
