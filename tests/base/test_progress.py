"""The progress display."""

from llmprobe.base.progress import progress


def test_progress_is_silent_off_a_terminal(capfd):
    with progress() as bar:
        task = bar.add_task("work", total=3, note="")
        bar.advance(task)
    assert capfd.readouterr() == ("", "")
