"""Clients trust the certificates that the environment names, and read them once."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from clew import Agent, AnthropicClient, Engine, GeminiClient, OpenAIChatClient
from clew.errors import ModelError
from clew.infrastructure.sdk_connection import certificates

CLIENTS = (OpenAIChatClient, AnthropicClient, GeminiClient)
REFUSED = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def certificate(path: Path) -> Path:
    """Write a key and its certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(hours=1)
        )
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a request with 401."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(REFUSED)
    await writer.drain()
    writer.close()


@pytest.mark.anyio
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_trusts_the_certificates_that_the_environment_names(
    client: type[OpenAIChatClient | AnthropicClient | GeminiClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = certificate(tmp_path / "own.pem"), certificate(tmp_path / "other.pem")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(own)
    server = await asyncio.start_server(refuse, "127.0.0.1", 0, ssl=tls)
    address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    statuses = []
    async with server, Engine.open("memory:") as engine:
        for trusted in (own, other, own):
            monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
            agent = Agent(client("m", api_key="k", base_url=address), engine=engine, retries=0)
            with pytest.raises(ModelError) as raised:
                await agent.run("Hello.")
            statuses.append(raised.value.status)
    assert statuses == [401, None, 401]


def test_certificates_are_read_once_for_each_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = certificate(tmp_path / "own.pem"), certificate(tmp_path / "other.pem")
    read = []
    for path in (own, other, own, other):
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        read.append(certificates())
    assert read[0] is read[2] is not read[1] is read[3]
