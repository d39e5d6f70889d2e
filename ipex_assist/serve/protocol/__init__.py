"""The forms of OpenAI's API, of vLLM's /tokenize, and how each becomes a TextRequest."""
