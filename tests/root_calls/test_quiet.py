"""While torch compiles no warning is shown, and none of the script's is shown a second time."""

import warnings

from hasten.root_calls.quiet import quiet


def warn_once():
    warnings.warn("of the script", stacklevel=1)


def test_a_warning_that_was_shown_is_not_shown_again(monkeypatch) -> None:
    shown = []
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(str(message)))
        warn_once()
        with quiet():
            warn_once()
            with warnings.catch_warnings(record=True):  # as torch does
                warn_once()
            warnings.warn("of torch", stacklevel=1)
        warn_once()
        warnings.warn("of torch", stacklevel=1)
    assert shown == ["of the script", "of torch"]


def test_filters_that_make_errors_of_warnings_stay() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        with quiet():
            warn_once()
        assert warnings.filters == before
