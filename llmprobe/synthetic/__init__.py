"""The lab: small attention models, trained many seeds at once on synthetic tasks."""
