"""How many samples, or tokens, a step consumed."""

import pytest

torch = pytest.importorskip("torch")

from hasten.instrument.samples import (  # noqa: E402
    SampleCounter,
    element_count,
    sample_count,
    token_count,
)


@pytest.fixture
def counter():
    return SampleCounter()


def images(count=4):
    return torch.zeros(count, 3, 8, 8)


def tokens(count=4, length=16):
    return torch.zeros(count, length, dtype=torch.long)


def call(counter, tensor, module=1):
    counter.called(module, (tensor,), {})


def test_a_batch_counts_once_a_backward_follows(counter) -> None:
    counter.loaded(None, [images(4), torch.zeros(4)])
    counter.trained()
    assert counter.cut() == 4
    assert counter.unit == "samples"


def test_micro_batches_add_up(counter) -> None:
    for _ in range(3):
        counter.loaded(None, images(5))
        counter.trained()
    assert counter.cut() == 15


def test_steps_on_parts_of_one_batch_count_what_each_takes_in(counter) -> None:
    seen = []
    for _ in range(3):
        batch = images(8)
        counter.loaded(None, batch)
        for part in batch.split(2):
            call(counter, part)
            counter.trained()
            seen.append(counter.cut())
    assert seen == [8, *[2] * 11]  # the first is not known to be a part


def test_what_an_evaluation_took_is_forgotten(counter) -> None:
    counter.loaded(None, images(100))
    counter.evaluated()
    counter.loaded(None, images(4))
    counter.trained()
    assert counter.cut() == 4


def test_without_a_loader_the_inputs_of_the_root_calls_count(counter) -> None:
    batch = images(6)
    call(counter, batch)
    counter.trained()
    assert counter.cut() == 6


def test_integers_in_two_dimensions_are_tokens(counter) -> None:
    batch = tokens(4, 16)
    counter.loaded(None, batch)
    call(counter, batch)
    counter.trained()
    assert (counter.cut(), counter.unit) == (64, "tokens")


def test_micro_batches_of_tokens_add_up_where_memory_is_used_again(counter) -> None:
    for _ in range(8):
        batch = tokens(2, 16)  # often at the address of the one before
        call(counter, batch)
        counter.trained()
        del batch
    assert counter.cut() == 8 * 32


def test_a_buffer_that_is_filled_again_counts_again(counter) -> None:
    buffer = tokens(2, 16)
    for _ in range(3):
        buffer.copy_(tokens(2, 16))
        call(counter, buffer)
        counter.trained()
    assert counter.cut() == 3 * 32


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[:, :-1]], ids=["whole", "shifted"])
def test_a_closure_that_runs_twenty_times_consumes_its_batch_once(counter, view) -> None:
    batch = tokens(2, 16)
    for _ in range(20):
        call(counter, view(batch))
        counter.trained()
    assert counter.cut() == view(batch).numel()


def test_a_second_network_on_the_same_step_adds_nothing(counter) -> None:
    call(counter, images(4), module=1)
    call(counter, torch.zeros(9, 7), module=2)
    counter.trained()
    assert counter.cut() == 4


def test_batches_in_dictionaries_and_nests_are_found() -> None:
    assert sample_count({"meta": "x", "image": images(3)}) == 3
    assert sample_count(["name", ({"x": images(2)},)]) == 2
    assert token_count({"input_ids": tokens(2, 8)}) == 16
    assert sample_count("no tensor") == 0
    assert sample_count(torch.tensor(1.0)) == 0


def test_elements_of_all_tensors_in_nests_are_counted() -> None:
    assert element_count({"meta": "x", "image": images(2), "rows": [tokens(2, 8)]}) == 384 + 16
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(5, 3), torch.zeros(2, 3)])
    assert element_count(packed.data) == 21
    assert element_count(packed) >= 21
    assert element_count(((torch.zeros(3, 50),), {"length": torch.tensor(1.0)})) == 151
    assert element_count(["no tensor", 3, None]) == 0


def test_a_step_has_at_least_one_sample(counter) -> None:
    assert counter.cut() == 1


@pytest.mark.parametrize("kind", ["sparse", "inference", "mask"])
def test_unusual_inputs_are_counted_and_break_nothing(counter, kind) -> None:
    if kind == "inference":
        with torch.inference_mode():
            tensor = torch.zeros(5, 4)
    else:
        tensor = torch.eye(5).to_sparse() if kind == "sparse" else torch.ones(5, 4) > 0
    for _ in range(2):
        call(counter, tensor)
        counter.trained()
    assert (counter.cut(), counter.unit) == (5, "samples")


def test_where_hardly_a_step_shows_what_it_takes_in_steps_are_counted() -> None:
    counter = SampleCounter()
    counter.loaded(None, torch.zeros(8, 3))  # one batch, and then many updates on it
    assert (counter.cut(), counter.unit) == (8, "samples")
    assert [counter.cut() for _ in range(3)] == [1, 1, 1]
    assert counter.unit == "steps"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_rows_of_different_lengths_are_samples_too() -> None:
    assert sample_count(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])) == 2


class Scale:
    """Not a mapping, for all its methods."""

    def values(self, step):
        return [step]


def test_what_has_a_method_of_a_mapping_and_is_none_holds_nothing() -> None:
    assert element_count([Scale(), torch.zeros(3)]) == 3


class Graphs:
    """A batch of graphs: the edges come first, in two rows."""

    def __init__(self, graphs) -> None:
        self.edges = torch.zeros(2, 5 * len(graphs), dtype=torch.long)
        self.labels = torch.zeros(len(graphs))

    def values(self):
        return [self.edges, self.labels]


def counts_of(counter, **details):
    loader = torch.utils.data.DataLoader(range(10), collate_fn=Graphs, **details)
    iterator = iter(loader)
    for batch in iterator:
        counter.loaded(iterator, batch)
        call(counter, batch)
        counter.trained()
        yield counter.cut()


@pytest.mark.parametrize("shuffle", [False, True])
def test_graphs_are_counted_by_the_sampler_and_not_by_their_edges(counter, shuffle) -> None:
    assert list(counts_of(counter, batch_size=4, shuffle=shuffle)) == [4, 4, 2]
    assert counter.unit == "samples"


def test_a_sampler_of_the_scripts_own_is_not_asked(counter) -> None:
    class Sampler(torch.utils.data.SequentialSampler):
        def __len__(self) -> int:
            raise AssertionError

    sampler = torch.utils.data.BatchSampler(Sampler(range(10)), 4, drop_last=False)
    assert list(counts_of(counter, batch_sampler=sampler)) == [2, 2, 2]


def test_an_item_that_is_a_whole_batch_counts_as_that(counter) -> None:
    loader = torch.utils.data.DataLoader([images(6), images(5)], collate_fn=lambda items: items[0])
    iterator = iter(loader)
    for batch in iterator:
        counter.loaded(iterator, batch)
    counter.trained()
    assert counter.cut() == 11
