"""Engine selected for this process; set before `driver.binding` is first imported."""

from __future__ import annotations

from kgserve.platform.settings import EngineName

selected_engine: EngineName = "kuzu"
