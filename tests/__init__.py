"""Tests: real kernels, real ranks, real collectives."""

import sys

# jsonschema imports it where it is installed. Its grammar takes each worker two seconds; it checks
# addresses, and no notebook has any that would be checked.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
