# pyarrow has no types. Everything in it is `Any`, so that strict checks do not report it.
from typing import Any

def __getattr__(name: str) -> Any: ...
