"""Root calls answered otherwise: by compiled code, or by several processes.

Runs in the user's process. The modules themselves stay untouched.
`twins.Twins` answers with compiled twins of root modules, kept beside them; `graph.Graph` is one
compiled form of one module for one kind of call; `model_code` says what is better left to plain
torch, and `fit` what no other answer may replace. `ranks` shares calls among processes. `layouts`
is for a lever that lays tensors out; `late_compiler` keeps torch's compiler from being loaded for
nothing.
"""
