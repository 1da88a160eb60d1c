"""Escape control characters in text that is shown.

Stored text may hold anything: sequences that clear the screen or set the clipboard, and characters that change the
order in which a line is read. Each of these is shown as a visible sign.
"""


def _signs() -> dict[int, str]:
    """The visible sign for each character that controls a terminal."""
    signs = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: "\u2421"}
    turning = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]  # left to right, or back
    others = [*range(0x80, 0xA0), 0x2028, 0x2029, 0xFEFF, *range(0xFFF9, 0xFFFC)]
    signs |= {code: f"<U+{code:04X}>" for code in [*turning, *others]}
    return signs | dict.fromkeys(range(0xD800, 0xE000), "\ufffd")


SIGNS = _signs()


def escape_control_characters(text: str) -> str:
    """Replace each control character by a visible sign.

    >>> escape_control_characters("red: \\x1b[31m")
    'red: ␛[31m'
    """
    return text.replace("\r\n", "\n").translate(SIGNS)
