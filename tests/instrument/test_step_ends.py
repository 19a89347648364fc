"""Where a training step ends when there is more than one optimizer."""

import torch

from hasten.instrument.live import LiveTraining
from hasten.instrument.step_ends import Cycle, Roles, StepEnds, StepsInProgress


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


def test_a_rare_ender_that_pauses_once_goes_on_ending_steps() -> None:
    cycle = Cycle()
    ends(cycle, ("D" * 20 + "G") * 3, 2)
    ends(cycle, "D" * 30 + "G", 2)
    assert ends(cycle, ("D" * 20 + "G") * 2, 2) == ("." * 20 + "|") * 2


def test_the_last_of_three_ends_the_step() -> None:
    cycle = Cycle()
    ends(cycle, "ABC" * 3, 3)
    assert ends(cycle, "ABC" * 2, 3) == "..|" * 2


def test_an_optimizer_that_never_steps_is_given_up_on() -> None:
    cycle = Cycle()
    learning = ends(cycle, "A" * 8, 2)
    assert learning == "." * 7 + "|"
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


def test_an_optimizer_that_is_made_anew_for_each_task_stays_the_same_one() -> None:
    def made(size):
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(size))], 0.1)

    roles, cycle, meta, found = Roles(), Cycle(), made(3), []
    for _ in range(8):
        inner = made(2)
        steps = inner, inner, meta
        found.append("".join("|" if cycle.ends_step(roles.of(s), 2) else "." for s in steps))
        del inner, steps
    assert found[3:] == ["..|"] * 5
    assert roles.of(made(3)) != roles.of(meta)
    lazy = torch.optim.SGD(torch.nn.LazyLinear(2).parameters(), 0.1)
    assert roles.of(lazy) != roles.of(meta)


def test_one_that_trains_first_ends_steps_until_the_other_joins() -> None:
    cycle = Cycle()
    assert ends(cycle, "A" * 50, 2).endswith("|" * 42)
    assert ends(cycle, "B" * 50, 2).endswith("|" * 25)
    critics = Cycle()
    assert "|" not in ends(critics, "CCCCCG" * 2, 2)


def test_an_optimizer_of_the_first_batches_alone_is_given_up_on() -> None:
    cycle = Cycle()
    assert ends(cycle, "AA" + "B" * 24, 2) == "." * 25 + "|"
    assert ends(cycle, "BBBB", 2) == "||||"


def test_an_optimizer_that_steps_once_an_epoch_ends_no_step() -> None:
    cycle = Cycle()
    ends(cycle, ("B" * 100 + "A") * 2, 2)
    assert ends(cycle, "BBABB", 2) == "||.||"


def test_a_long_cycle_is_no_silence() -> None:
    cycle = Cycle()
    ends(cycle, ("D" * 20 + "G") * 3, 2)
    assert ends(cycle, ("D" * 20 + "G") * 2, 2) == ("." * 20 + "|") * 2


def test_one_that_steps_no_more_leaves_the_end_to_the_others() -> None:
    cycle = Cycle()
    ends(cycle, "GD" * 10, 2)
    assert ends(cycle, "G" * 30, 2) == "." * 23 + "|" * 7
    assert ends(cycle, "DGDG", 2) == ".|.|"  # it comes back


def test_those_that_take_turns_of_many_steps_always_end_steps_again() -> None:
    cycle = Cycle()
    for _ in range(3):
        assert ends(cycle, "A" * 100, 2).endswith("|" * 50)
        assert ends(cycle, "B" * 100, 2).endswith("|" * 50)


def test_an_optimizer_around_another_counts_with_it() -> None:
    net, head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(net.parameters(), 0.1)
    outer = torch.optim.SGD(net.parameters(), 0.1)
    live = LiveTraining()
    ends_of = StepEnds(live, StepsInProgress())
    for made in (inner, outer):
        ends_of.constructed(made)
    assert ends_of.made_count == 1
    live.optimizers.add(inner)
    assert ends_of.made_count == 1
    live.optimizers.add(outer)  # both step: in turn, perhaps
    assert ends_of.made_count == 2
    ends_of.constructed(torch.optim.SGD(head.parameters(), 0.1))
    other = torch.optim.SGD(head.parameters(), 0.1)
    ends_of.constructed(other)
    assert ends_of.made_count == 3
