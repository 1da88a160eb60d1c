"""Certificates for servers of the tests."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def certify(folder: Path, name: str = "server", host: str | None = None) -> Path:
    """A certificate for a host, or for this machine, that nobody else vouches for."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host or "127.0.0.1")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(who, who, key.public_key(), 1, now - timedelta(hours=1), now + timedelta(days=1))
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    named = x509.IPAddress(ipaddress.ip_address("127.0.0.1")) if host is None else x509.DNSName(host)
    made = made.add_extension(x509.SubjectAlternativeName([named]), critical=False)
    pem = serialization.Encoding.PEM
    (folder / f"{name}.crt").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(pem))
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / f"{name}.key").write_bytes(secret)
    return folder / f"{name}.crt"
