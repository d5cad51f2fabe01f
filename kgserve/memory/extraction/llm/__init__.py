"""Extraction of facts by a language model: prompts, parsing of answers, and the chat client."""
