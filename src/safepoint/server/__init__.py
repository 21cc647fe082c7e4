"""The server: sessions over HTTP, and the page. Install it with `pip install "safepoint[server]"`.

Knows nothing of how agents run: everything goes through a `Host`.
"""

from ..errors import MissingExtra as _MissingExtra

try:
    from .api import Limits
    from .app import App, create_app
    from .serve import Server, with_abandon_after
except ImportError as _problem:
    raise _MissingExtra("safepoint.server", "server", _problem) from _problem

__all__ = ["App", "Limits", "Server", "create_app", "with_abandon_after"]
