"""What an error of the script says in one line."""

from hasten.errors import ScriptFailed

TRACE = """step 12
Traceback (most recent call last):
  File "train.py", line 8, in forward
    return x.view(2, -1)
RuntimeError: view size is not compatible with input tensor's size
2 files written
"""


def test_a_failed_script_is_quoted_with_the_line_that_says_why() -> None:
    failed = ScriptFailed("The script failed.", remedy="Look at it.", output=TRACE)
    assert failed.last_words == (
        "The script failed. RuntimeError: view size is not compatible with input tensor's size"
    )


def test_a_script_that_was_ended_from_outside_has_only_our_words() -> None:
    quiet = ScriptFailed("The script was ended.", remedy="Look.", output="LossError: not raised")
    assert quiet.last_words == "The script was ended."
