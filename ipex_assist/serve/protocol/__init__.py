"""Request and response bodies of OpenAI's API and vLLM's /tokenize."""
