"""`hotloop version`."""

import json
import platform

from hotloop.cli.settings import Json
from hotloop.core.version import __version__


def version(*, as_json: Json = False) -> None:
    """Print the version of hotloop and of what it runs on."""
    from importlib.metadata import version as installed

    versions = {"hotloop": __version__, "python": platform.python_version(), "openvino": installed("openvino")}
    if as_json:
        print(json.dumps(versions))
    else:
        print("\n".join(f"{name:9}{number}" for name, number in versions.items()))
