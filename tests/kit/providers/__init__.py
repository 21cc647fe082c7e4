"""Model providers on loopback, with the rules of the real ones: OpenAI, Anthropic, Ollama, and a llama.cpp server."""
