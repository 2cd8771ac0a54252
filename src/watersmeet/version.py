"""The version of the package, read by the build and by ``watersmeet --version``."""

from __future__ import annotations

__version__ = "0.1.0"
