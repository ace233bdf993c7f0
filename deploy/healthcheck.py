"""Exits with 0 if /health at a port of this machine answers 200. With HOTLOOP_TLS_CERT set it asks over HTTPS."""

import os
import ssl
import sys
from urllib.request import urlopen


def main(port: str) -> int:
    is_tls = bool(os.environ.get("HOTLOOP_TLS_CERT"))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the certificate is not for 127.0.0.1
    try:
        with urlopen(f"http{'s' * is_tls}://127.0.0.1:{port}/health", timeout=4, context=context) as answer:
            return int(answer.status != 200)
    except OSError:
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
