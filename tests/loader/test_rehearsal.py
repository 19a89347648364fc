"""A trial of a cache times what later passes take; a real run never repeats a batch."""

import pytest

pytestmark = pytest.mark.child

PROGRAM = r"""
from upshift.loader.cache import memo
from upshift.loader.cache.cached import Cache

memo._OVERHEAD_NS, memo._LOOK_SHARE_RATIO = -10**12, 1e9  # none is too cheap to be kept

class Pairs(Numbers):
    def __getitem__(self, i):
        return torch.tensor([i, i * i])

def seen(rehearses, workers=0):
    torch.manual_seed(7)
    board.rehearses = rehearses
    undo = board.add(Cache(1 << 24).offer)
    loader = DataLoader(Pairs(1200), batch_size=4, shuffle=True)
    batches = [batch[:, 0].tolist() for batch in loader]
    undo()
    board.rehearses = False
    return batches

real, trial = seen(False), seen(True)
facts["real"] = sorted(sum(real, [])) == list(range(1200))
facts["length"] = len(trial) == len(real)
facts["begins alike"] = trial[:4] == real[:4]
facts["comes again"] = len({str(batch) for batch in trial}) < len(trial) // 2
facts["notes"] = board.notes
"""


def test_the_first_batches_come_again_in_a_trial_only(loaders) -> None:
    assert loaders(PROGRAM) == {
        "real": True, "length": True, "begins alike": True, "comes again": True, "notes": []
    }  # fmt: skip
