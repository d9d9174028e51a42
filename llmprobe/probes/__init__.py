"""Prompts of many lengths through a pretrained model."""
