"""Compiled twins of root modules, kept beside them: the modules themselves stay untouched.

Runs in the user's process. `twins.Twins` answers root calls, `graph.Graph` is one compiled form
of one module for one kind of call; `fit`, `random_state_use` and `random_operations` say what is
better left to plain torch. `layouts` is for a lever that lays tensors out.
"""
