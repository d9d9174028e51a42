"""The lab: small attention models, trained many seeds at once on synthetic tasks.

Tasks are known once imported.
"""

from llmprobe.synthetic import arithmetic as arithmetic
from llmprobe.synthetic import formal_languages as formal_languages
from llmprobe.synthetic import questions as questions
from llmprobe.synthetic import string_editing as string_editing
