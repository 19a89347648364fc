"""Why a loader's batches may be made elsewhere, ahead of use, or once and for all.

Three reasons together are a proof. Each rests on code that was read and on objects that were
followed, never on what was not seen to happen:

- the code of the items and of the collate function has no effects outside the batch;
- nothing else in the script can write what that code reads;
- no code of the script that can still run stores into the objects, classes or modules it reads.
"""
