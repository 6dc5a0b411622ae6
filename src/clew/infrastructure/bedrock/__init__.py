"""The model client for Amazon Bedrock's Converse API."""
