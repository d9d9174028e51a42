"""Prompts of many lengths through a pretrained model. Kinds of prompts are known once imported."""

from llmprobe.probes import dictionary as dictionary
from llmprobe.probes import own_prompts as own_prompts
from llmprobe.probes import repeat as repeat
