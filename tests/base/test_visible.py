"""What a terminal would obey is shown instead."""

import unicodedata

from llmprobe.base.visible import visible


def test_no_control_character_is_left_and_all_else_stays():
    every = "".join(map(chr, range(0x3000)))
    shown = visible(every)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")]
    assert visible("\x1b[31m\r\n") == r"\x1b[31m\r\n"
    for plain in ("Ärger – 語 [red] $x$ \\n", ""):
        assert visible(plain) == plain
