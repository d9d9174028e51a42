"""`python -m llmprobe`, for `accelerate launch -m llmprobe` among others."""

from llmprobe.cli import main

if __name__ == "__main__":
    main()
