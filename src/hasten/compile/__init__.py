"""Compiled twins of root modules, kept beside them: the modules themselves stay untouched.

Runs in the user's process. `twins.Twins` answers root calls, `graph.Graph` is one compiled form
of one module for one kind of call, and `fit`, `derivatives`, `outputs` and `draws` say what is
better left to plain torch. `layouts` is for a lever that lays tensors out.
"""
