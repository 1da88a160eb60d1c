"""Exit codes, and the report of an error.

Each kind of error has an exit code. It is printed as two lines, the error and a hint for the user.
"""

from .. import errors
from ._hints import WordedError, hint_of
from ._terminal import print_error

FAILED, MISUSED, NOTHING, UNKNOWN, HELD, LOCKED, UNSOUND, PARTIAL, BUSY, INTERRUPTED = 1, 2, 3, 4, 5, 6, 7, 8, 9, 130
_CODES: tuple[tuple[type[errors.HithertoError], int], ...] = (
    (errors.NotFound, UNKNOWN),
    (errors.Ambiguous, UNKNOWN),
    (errors.InvalidID, UNKNOWN),
    (errors.Held, HELD),
    (errors.NotExportable, HELD),
    (errors.KeyUnavailable, LOCKED),
    (errors.InvalidKey, LOCKED),
    (errors.NotSealed, LOCKED),
    (errors.Damaged, UNSOUND),
    (errors.PartialImport, PARTIAL),
    (errors.Busy, BUSY),
    (errors.InvalidMessage, FAILED),
    (errors.PayloadTooLarge, FAILED),
    (errors.InvalidArgument, MISUSED),  # any other invalid argument: the call itself is wrong
)


def report_error(error: Exception) -> int:
    """Print an error and return its exit code. Raise a foreign error again: it means a bug."""
    if isinstance(error, WordedError):
        error, hint = error.error, error.hint
    elif isinstance(error, errors.HithertoError):
        hint = hint_of(error)
    else:
        raise error
    code = exit_code_of(error)
    print_error(str(error), hint or ("hitherto --help shows how" if code == MISUSED else None))
    return code


def exit_code_of(error: errors.HithertoError) -> int:
    """Return the exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
