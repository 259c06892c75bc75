"""A report for people and for other tools: terminal, Markdown, JSON, tables."""
