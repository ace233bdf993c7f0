"""The CPU backend: a transformer as an OpenVINO graph, its attention paged, driven as one ragged batch.

The only package that imports openvino, which at import posts to an analytics service and writes a client id into the
user's home folder. It does neither where `openvino_telemetry` cannot be imported.
"""

import sys

if "openvino" not in sys.modules:  # else the user has imported it, and chosen
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
