"""Text of others, such as a model's, where people read it. Imports no torch."""

# characters that control the terminal or reverse the text, and surrogates, are replaced by names
_VISIBLE = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {0x7F: "␡"}
_VISIBLE |= {code: f"<{code:02x}>" for code in (*range(0x80, 0xA0), 0x061C, *range(0x200E, 0x2010))}
_VISIBLE |= {code: f"<{code:04x}>" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000))}


def plain(text: str) -> str:
    """A text without control characters."""
    return text.translate(_VISIBLE)
