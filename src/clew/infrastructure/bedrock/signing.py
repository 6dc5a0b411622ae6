"""AWS Signature Version 4 for requests over plain HTTP, with the credentials of a botocore session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from clew.domain.runs.errors import AgentConfigurationError, MissingExtraError, ModelAccessError
from clew.infrastructure.plain_connection import PlainHttp

if TYPE_CHECKING:
    import botocore.session


def signed_headers(
    session: botocore.session.Session, http: PlainHttp, path: str, content: bytes, *, service: str, region: str
) -> dict[str, str]:
    """The headers of a signed POST. What an error must not show is added to the client's secrets."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.exceptions import BotoCoreError

    advice = "Set AWS_BEARER_TOKEN_BEDROCK, give api_key=, or a session= with AWS credentials."
    try:
        found = session.get_credentials()
        frozen = None if found is None else found.get_frozen_credentials()
    except BotoCoreError as error:
        raise ModelAccessError(f"The AWS credentials could not be loaded ({type(error).__name__}). {advice}") from None
    if frozen is None:
        raise ModelAccessError(f"There are no AWS credentials to sign with. {advice}")
    signed = AWSRequest("POST", http.url(path), headers={"content-type": "application/json"}, data=content)
    SigV4Auth(frozen, service, region).add_auth(signed)
    signature = signed.headers["Authorization"].rpartition("=")[2]
    secrets = (frozen.access_key, frozen.secret_key, frozen.token, signature)
    http.secrets = tuple(each for each in secrets if each)
    return {name.lower(): value for name, value in signed.headers.items() if name.lower() != "content-type"}


def session_of(given: botocore.session.Session | None, asked: str) -> botocore.session.Session:
    """The session to sign with, by default a new one. Raises MissingExtraError."""
    try:
        import botocore.session
    except ModuleNotFoundError:
        raise MissingExtraError(asked, "botocore", "bedrock") from None
    return botocore.session.get_session() if given is None else given


def region_of(given: str | None, session: botocore.session.Session | None) -> str:
    """The region. Raises AgentConfigurationError without one."""
    region = given or (session.get_config_variable("region") if session is not None else None)
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region or not isinstance(region, str) or not region.replace("-", "").isalnum():
        raise AgentConfigurationError("There is no valid AWS region. Set AWS_REGION, or give region=.")
    return region


def checked_key(key: str | None) -> str | None:
    """The key, None without one. Raises AgentConfigurationError for text that cannot be a key."""
    if key is not None and (not key.isascii() or not key.isprintable() or " " in key):
        raise AgentConfigurationError(
            "The key (api_key= or AWS_BEARER_TOKEN_BEDROCK) contains a line end, a space or a character that is not "
            "allowed in a key. Was it read from a file? Remove the character."
        )
    return key or None
