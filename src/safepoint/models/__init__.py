"""Models: one module per provider, each through its official SDK, which is an optional extra.

`from safepoint.models import OpenAIModel` imports only what that model needs. The SDK is imported when a model is made;
if its extra is not installed, the error names it. Knows nothing of the agent's loop.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .anthropic import AnthropicModel
    from .ollama import OllamaModel
    from .openai import OpenAIModel
    from .scripted import ScriptedModel
else:
    from ..lazy_imports import lazy_imports as _lazy_imports

    __getattr__ = _lazy_imports(
        __name__,
        {
            "AnthropicModel": ".anthropic",
            "OllamaModel": ".ollama",
            "OpenAIModel": ".openai",
            "ScriptedModel": ".scripted",
        },
    )

__all__ = ["AnthropicModel", "OllamaModel", "OpenAIModel", "ScriptedModel"]
