"""Signs for characters that do something.

Stored text may hold anything: sequences that clear the screen or set the clipboard, and characters that make a line
read otherwise than it is. Where text is shown, each of these is shown as what it is, by a sign of its own.
"""


def _signs() -> dict[int, str]:
    """Every character that does something to a terminal, and what is shown for it."""
    signs = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: "\u2421"}
    turning = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]  # left to right, or back
    others = [*range(0x80, 0xA0), 0x2028, 0x2029, 0xFEFF, *range(0xFFF9, 0xFFFC)]
    signs |= {code: f"<U+{code:04X}>" for code in [*turning, *others]}
    return signs | dict.fromkeys(range(0xD800, 0xE000), "\ufffd")


SIGNS = _signs()


def harmless(text: str) -> str:
    """The text with a sign in place of each character that would do something.

    >>> harmless("red: \\x1b[31m")
    'red: ␛[31m'
    """
    return text.replace("\r\n", "\n").translate(SIGNS)
