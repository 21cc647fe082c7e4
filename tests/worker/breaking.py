"""Owns an agent whose file can be broken while its worker runs, as by a deploy: `tests.worker.breaking:agent`.

While the file exists that the variable names, the module cannot be imported.
"""

import os
from pathlib import Path

from safepoint.agent import Agent
from safepoint.models.scripted import ScriptedModel

BROKEN = "SAFEPOINT_TEST_BROKEN"
TARGET = "tests.worker.breaking:agent"

if (_flag := os.environ.get(BROKEN)) and Path(_flag).exists():
    raise ImportError("half a deploy")

agent = Agent(ScriptedModel(*["done"] * 1000), name="breaking")
