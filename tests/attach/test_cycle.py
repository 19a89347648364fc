"""Where a training step ends when there is more than one optimizer."""

from upshift.attach.cycle import Cycle


def ends(cycle, sequence, alive_count):
    return "".join("|" if cycle.ends_step(ord(name), alive_count) else "." for name in sequence)


def test_each_step_of_the_only_optimizer_ends_a_training_step() -> None:
    assert ends(Cycle(), "AAAA", 1) == "||||"


def test_of_two_that_alternate_the_second_ends_the_step() -> None:
    cycle = Cycle()
    ends(cycle, "DG" * 3, 2)
    assert ends(cycle, "DG" * 3, 2) == ".|" * 3


def test_the_rarest_optimizer_ends_the_step() -> None:
    cycle = Cycle()
    ends(cycle, "DDDDDG" * 3, 2)
    assert ends(cycle, "DDDDDG" * 2, 2) == ".....|" * 2


def test_the_last_of_three_ends_the_step() -> None:
    cycle = Cycle()
    ends(cycle, "ABC" * 3, 3)
    assert ends(cycle, "ABC" * 2, 3) == "..|" * 2


def test_an_optimizer_that_never_steps_is_given_up_on() -> None:
    cycle = Cycle()
    learning = ends(cycle, "A" * 24, 2)
    assert learning == "." * 23 + "|"
    assert ends(cycle, "AAAA", 2) == "||||"


def test_an_optimizer_that_joins_later_is_learned_anew() -> None:
    cycle = Cycle()
    ends(cycle, "A" * 30, 1)
    ends(cycle, "AB" * 4, 2)
    assert ends(cycle, "AB" * 3, 2) == "|." * 3  # one end in each period, wherever it begins


def test_a_new_optimizer_in_place_of_a_dropped_one_goes_on() -> None:
    cycle = Cycle()
    ends(cycle, "A" * 5, 1)
    assert ends(cycle, "BBB", 1) == "|||"
