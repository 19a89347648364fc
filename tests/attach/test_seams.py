"""What a script hands to torch is found however it hands it over."""

import pytest
import torch

from upshift.attach.seams import differentiated

ONE, TWO = torch.ones(1), torch.ones(2)


@pytest.mark.parametrize(
    ("args", "kwargs", "found"),
    [
        ((ONE,), {}, (ONE,)),
        (([ONE, TWO], [ONE, TWO]), {}, (ONE, TWO)),
        ((), {"tensors": ONE}, (ONE,)),
        ((), {"outputs": (TWO, ONE), "inputs": ONE}, (TWO, ONE)),
        ((), {}, ()),
        (([ONE, "an edge of the graph"],), {}, (ONE,)),
    ],
)
def test_the_roots_of_a_backward_pass_come_in_any_way(args, kwargs, found) -> None:
    seen = differentiated(args, kwargs)
    assert [id(root) for root in seen] == [id(root) for root in found]
