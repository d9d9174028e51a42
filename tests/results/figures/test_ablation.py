"""The figure of an ablation stays inside a column, however many classes there are."""

import numpy as np
import pandas as pd

from llmprobe.results.figures.ablation import draw_changes


def test_only_the_classes_that_change_most_are_drawn():
    rows = [
        {
            "class": f"0.{head}",
            "is_control": False,
            "n_heads": 1,
            "length": length,
            "n_prompts": 8,
            "change": head * np.log(length) / 100,
            "change_low": 0.0,
            "change_high": 0.1,
        }
        for head in range(30)
        for length in (16, 64)
    ]
    axes = draw_changes(pd.DataFrame(rows))
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [f"0.{head}" for head in range(22, 30)]
