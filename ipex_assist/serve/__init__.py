"""HTTP: OpenAI's API, a page, metrics, and the engine processes behind them; the front never imports torch."""
