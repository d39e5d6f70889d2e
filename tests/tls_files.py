"""A certificate of 127.0.0.1 for tests of encrypted connections."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path


def write_certificate(folder: Path) -> tuple[Path, Path, Path]:
    """The certificate, its key, and the same key with the passphrase "secret", in PEM form."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(1))
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    for file, lock in (
        ("key.pem", serialization.NoEncryption()),
        ("locked.pem", serialization.BestAvailableEncryption(b"secret")),
    ):
        form = serialization.PrivateFormat.PKCS8
        (folder / file).write_bytes(key.private_bytes(serialization.Encoding.PEM, form, lock))
    return folder / "cert.pem", folder / "key.pem", folder / "locked.pem"
