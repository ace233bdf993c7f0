"""HTTPS: a certificate that is checked before anything else is done, and read again while the process runs."""

import ssl
from dataclasses import dataclass

from hotloop.core.config import ListenerConfig
from hotloop.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a certificate and its key."""

    cert: str
    key: str

    def load(self, context: ssl.SSLContext) -> None:
        """What connects from now on is shown this one. Raises ConfigError where the files cannot be used."""
        try:
            context.load_cert_chain(self.cert, self.key, self._refuse_password)
        except OSError as error:  # as an SSLError is
            raise ConfigError(f"cannot serve HTTPS with {self.cert} and {self.key}: {error}") from None

    def _refuse_password(self) -> str:
        raise ConfigError(
            f"the key in {self.key} is encrypted: store it without a password, readable by this user only"
        )


def certificate_of(config: ListenerConfig) -> Certificate | None:
    """Raises ConfigError where there is one that cannot be used."""
    if not config.tls_cert or not config.tls_key:
        return None
    certificate = Certificate(config.tls_cert, config.tls_key)
    certificate.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    return certificate
