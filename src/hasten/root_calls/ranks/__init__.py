"""One model in several processes of this machine; the script runs in one of them.

Helpers are forked from the process of the script. They answer root calls for their share of the
batch: `served.SharedModel` is the model with its helpers, and joins their outputs and gradients to
the script's graph; `helper` is what runs in them. What depends on the whole batch is in `share`
(random draws) and `batch_norm`. `examine` compares a call with what one process gives.
"""
