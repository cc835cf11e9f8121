"""A certificate for TLS that says nothing: it is the same for any name, and nobody has signed it.

Who is at the other end is proved inside the connection (`tls.py`). The only importer of cryptography, and only where a
listener is asked for encryption: it takes a while to load.
"""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LIFETIME = datetime.timedelta(days=3650)  # that of the process; nobody looks at it
_CLOCK_SKEW = datetime.timedelta(days=1)


def make_certificate() -> tuple[bytes, bytes]:
    """A new P-256 key with its certificate as PEM, and the certificate as DER."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "asyncparl")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    certificate = (
        builder.not_valid_before(now - _CLOCK_SKEW).not_valid_after(now + _LIFETIME).sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = private + certificate.public_bytes(serialization.Encoding.PEM)
    return pem, certificate.public_bytes(serialization.Encoding.DER)
